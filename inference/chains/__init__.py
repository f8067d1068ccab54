"""Exact inference over the paths of a hidden state: `contract` says what every chain offers, `copy` and `markov` do it.

`linear_gaussian` does the like for states that are real vectors, with records of means and covariances.

In each room `chain` has the public class, `op` its operators, `plain` and `naive` their twins, `cpu` the kernels.
"""
