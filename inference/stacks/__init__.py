"""Inference over stacks: `superposition`, `automaton`, `stratification`.

Each has its functions in `op`; the first two have kernels for the CPU (`cpu`), the first and the last for GPUs
(`cuda`).
"""
