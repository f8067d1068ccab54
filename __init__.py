"""Switching state-space models and gated recurrent networks as two views of one object.

>>> import samplehold as sh
>>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
>>> fit = model.fit([1.1, 0.9, 1.0, 4.0, 4.2, 4.1], progress=False)
>>> fit.model.smooth([1.1, 0.9, 1.0, 4.0, 4.2, 4.1]).redraw.shape
torch.Size([6])

The names are listed in `__init__.pyi`, and loaded on first use, so that the command line answers at once.
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__:
        from .inference.numerics.interrupts import importing

        with importing():
            return _load(name)
    from .switching.peers import missing_class

    raise missing_class(name)


__version__ = "0.1.0"
