"""Switching state-space models and gated recurrent networks as two views of one object.

>>> import samplehold as sh
>>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
>>> fit = model.fit([1.1, 0.9, 1.0, 4.0, 4.2, 4.1], progress=False)
>>> fit.model.smooth([1.1, 0.9, 1.0, 4.0, 4.2, 4.1]).redraw.shape
torch.Size([6])

The names are listed in `__init__.pyi`, and loaded on first use, so that the command line answers at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
