"""Dynamics: how the hidden state moves. Import each from its file."""
