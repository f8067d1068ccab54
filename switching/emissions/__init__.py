"""Emissions: what a state looks like when it is observed."""

from .contract import Emission, StateEmission
from .discrete import Bernoulli, Categorical, Poisson
from .gated import Gated
from .multivariate_normal import MultivariateNormal
from .normal import Normal

__all__ = ["Bernoulli", "Categorical", "Emission", "Gated", "MultivariateNormal", "Normal", "Poisson", "StateEmission"]
