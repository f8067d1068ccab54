"""Dynamics: the distribution of the next hidden state. Import each from its file."""
