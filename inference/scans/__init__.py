"""Recurrences over time, element by element: `linear` from their coefficients, `gated` from pre-activations.

Each is an operator (`op`) with a plain form in torch (`plain`), a textbook twin (`naive`) and kernels for the CPU
(`cpu`) and for GPUs (`cuda`), the latter both made of those in `cuda_recurrences`.
"""
