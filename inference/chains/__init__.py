"""Exact inference over the paths of a hidden state: `contract` says what every chain offers, `copy` and `markov` do it.

In each room `chain` has the public class, `op` its operators, `plain` and `naive` their twins, `cpu` the kernels.
"""
