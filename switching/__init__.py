"""The generative models, each a Pyro program, and how they are fitted to sequences."""
