"""Markov chains, whose state moves by a table of transitions: the class is `chain.MarkovChain`."""

from ...numerics.op import load_kernels

load_kernels(__name__)
