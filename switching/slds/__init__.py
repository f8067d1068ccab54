"""Switching linear dynamics: chains of real vectors, and a regime that says how they move and what is seen of them."""
