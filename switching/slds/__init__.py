"""Switching linear dynamics: chains of real vectors, and a regime that chooses their dynamics and their emission."""
