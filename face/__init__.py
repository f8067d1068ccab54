"""The part of the public face that stands under `sh.chains`, `sh.stacks`, `sh.automata`, `sh.layouts`, `sh.studies`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["automata", "chains", "layouts", "stacks", "studies"])
