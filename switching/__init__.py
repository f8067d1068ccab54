"""The generative models, each a Pyro program, and how they are fitted to sequences."""

from .coupled.factorial import FactorialSSM
from .coupled.layered import LayeredSSM
from .dynamics import Copy, Markov
from .emissions import Bernoulli, Categorical, Gated, MultivariateNormal, Normal, Poisson
from .filter_vmp import filter_vmp
from .fitting.fit import Fit
from .forecast import Forecast
from .model import SwitchingSSM
from .stacks.automaton import PushdownAutomaton
from .stacks.mixture import StackMixture
from .stacks.program import stack_program

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
