"""Dynamics: how the hidden state moves."""

from .contract import Drive, Dynamics
from .copy import Copy
from .markov import Markov

__all__ = ["Copy", "Drive", "Dynamics", "Markov"]
