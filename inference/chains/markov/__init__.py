"""Markov chains, whose state moves by a table of transitions: the class is `chain.MarkovChain`."""
