"""Variational message passing: the `engine` over blocks and factors, the `factor_graph` that compiles into it, and
`stepwise`, the filter that passes messages within one step at a time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"engine": ["VMP", "Block", "Factor"]})
