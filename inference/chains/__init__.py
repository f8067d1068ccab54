"""Exact inference over the paths of a hidden state: `contract` defines all chains, `copy` and `markov` implement it.

`linear_gaussian` has chains of real vectors, with records of means and covariances.

In each folder `chain` has the public class, `op` its operators, `plain` their plain forms, `native` and `cuda`
the kernels.
"""
