"""Inference over stacks: `superposition`, `automaton`, `stratification`.

The first two have an operator (`op`) each, with CPU kernels (`cpu`).
"""
