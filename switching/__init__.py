"""The generative models, each a Pyro program, and how they are fitted to sequences."""

from .dynamics import Copy, Markov
from .emissions import Bernoulli, Categorical, Gated, MultivariateNormal, Normal, Poisson
from .factorial import FactorialSSM
from .filter_vmp import filter_vmp
from .fit import Fit
from .forecast import Forecast
from .layered import LayeredSSM
from .model import SwitchingSSM
from .pushdown import PushdownAutomaton
from .stack import StackMixture
from .stack_program import stack_program

__all__ = [
    "Bernoulli",
    "Categorical",
    "Copy",
    "FactorialSSM",
    "Fit",
    "Forecast",
    "Gated",
    "LayeredSSM",
    "Markov",
    "MultivariateNormal",
    "Normal",
    "Poisson",
    "PushdownAutomaton",
    "StackMixture",
    "SwitchingSSM",
    "filter_vmp",
    "stack_program",
]
