"""Machines: finite automata out of networks, weighted automata, counters, stacks of digits, Turing machines."""
