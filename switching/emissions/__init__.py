"""Emissions: what a state looks like when it is observed. Import each from its file."""
