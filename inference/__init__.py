"""Inference without Pyro and without parameters: tensors in, tensors out.

The rooms, each of which may use those before it: numerics, scans, gaussian, chains, stacks, families, message_passing.
"""
