"""The superposition stack, whose cells are expectations over independent actions: see `op`."""
