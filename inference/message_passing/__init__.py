"""Variational message passing: the `engine` over blocks and factors, the `factor_graph` that compiles into it, and
`stepwise`, the filter that passes messages within one step at a time.
"""
