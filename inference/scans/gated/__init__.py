"""Gated recurrences of minimal networks, straight from pre-activations: the functions to call are in `op`."""
