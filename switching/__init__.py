"""The generative models, each a Pyro program, and how they are fitted to sequences."""

from .dynamics import Copy, Markov
from .emissions import Bernoulli, Categorical, Gated, MultivariateNormal, Normal, Poisson
from .fit import Fit
from .forecast import Forecast
from .model import SwitchingSSM

__all__ = [
    "Bernoulli",
    "Categorical",
    "Copy",
    "Fit",
    "Forecast",
    "Gated",
    "Markov",
    "MultivariateNormal",
    "Normal",
    "Poisson",
    "SwitchingSSM",
]
