"""Switching state-space models and gated recurrent networks as one object."""
