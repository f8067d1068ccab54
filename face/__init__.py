"""The part of the public face that stands under `sh.automata`, `sh.chains`, `sh.layouts`, `sh.sklearn` and others."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, ["automata", "chains", "layouts", "sklearn", "stacks", "studies"]
)
