"""Generative models, each a Pyro program, and their fits to sequences."""
