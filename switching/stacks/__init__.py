"""Stacks that are not sure of what was done to them: mixtures over histories, and weighted pushdown automata.

One numbering of what may lie on a stack, in every table and every history: an element has the number of the step that
pushed it, 0..T-1; then come the cells of the initial stack from its top, T..T+D-1; the last number is what lies under
them all, "empty" for a mixture and the bottom for an automaton.
"""
