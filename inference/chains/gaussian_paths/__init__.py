"""Gaussian paths by their natural parameters, a block tridiagonal precision: see `op`."""
