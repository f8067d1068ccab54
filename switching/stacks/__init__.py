"""Stacks with uncertain actions: mixtures over histories, and weighted pushdown automata.

Every table and history numbers the elements of a stack in one way. An element has the number of the step that pushed
it, 0..T-1. The cells of the initial stack follow from its top, T..T+D-1. The last number stands for the end below them:
"empty" for a mixture, and the bottom for an automaton.
"""
