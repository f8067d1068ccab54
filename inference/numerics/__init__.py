"""Shared tools: operators and their kernels, threads, vectors and exponentials for kernels, checks, randomness.

This folder knows no model. `op` turns an algorithm into a torch operator.
"""
