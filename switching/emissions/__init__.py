"""Emissions: the distribution of an observation given its state. Import each from its file."""
