"""Recurrences over time, element by element: `linear` from their coefficients, `gated` from pre-activations.

Each is an operator (`op`) with a plain form in torch (`plain`) and kernels for the CPU (`native`) and for GPUs
(`cuda`), the latter both made of those in `cuda_recurrences`.
"""
