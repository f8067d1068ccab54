"""Semi-Markov chains, whose segments have durations of any distribution: the class is `chain.SemiMarkovChain`."""
