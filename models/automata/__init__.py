"""Machines: finite automata from networks, weighted automata, counters, stacks of digits, Turing machines."""
