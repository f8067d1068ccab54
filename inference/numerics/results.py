"""What is now in `memory`."""

from .memory import empty_like as empty_like
