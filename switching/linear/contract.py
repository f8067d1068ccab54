r"""The dynamics of latent vectors of a linear model: their contract, and the general case.

$$s_1 \sim N(m, P), \qquad s_{t+1} = A s_t + c + N(0, Q)$$

Dynamics turn parameters by name, `[*r, ...]` with axes for restarts or draws, into `TransitionParameters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.scalars import check_integer
from ..inputs import Inputs, count_inputs
from ..parameters import Named, Parameter, Parameters, check_parameters


class TransitionParameters(NamedTuple):
    """The arguments of a `LinearGaussianChain` for its transition and first state, [*r, ...]; None: 0."""

    transition: Tensor
    state_noise: Tensor
    initial_mean: Tensor | None
    initial_covariance: Tensor | None
    transition_offset: Tensor | None = None


class LinearDynamics(Named, ABC):
    """The dynamics of a latent vector; a frozen dataclass.

    Attributes:
        n_latent: L, the length of the vector.
        inputs: those of an observation, by name or number.

    Arguments of methods:
        values: parameters by name.
    """

    n_latent: int
    inputs: Inputs = 0

    @property
    def n_inputs(self) -> int:
        """C, the number of inputs."""
        return count_inputs(self.inputs)

    @property
    @abstractmethod
    def latents(self) -> tuple[str, ...]:
        """The names of the entries of the latent vector."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Parameter]:
        """The axes and the support of each parameter."""

    @property
    def diffuse(self) -> tuple[bool, ...]:
        """Which entries have a diffuse start."""
        return (False,) * self.n_latent

    @property
    def shown(self) -> tuple[int, ...]:
        """The entries with a panel in figures: all except lags and rotations of others."""
        return tuple(range(self.n_latent))

    @abstractmethod
    def moves(self, values: Parameters) -> TransitionParameters:
        """The tables under parameters `[*r, ...]`."""

    def check_values(self, values: Parameters) -> Parameters:
        """The parameters of these dynamics; ValueError if they are not valid."""
        return check_parameters(
            self.parameters, values, {"latent": self.n_latent, "latent_new": self.n_latent}, self.name
        )


@dataclass(frozen=True)
class LinearGaussian(LinearDynamics):
    """Linear Gaussian dynamics of a latent vector, whose matrices are all parameters.

    Parameters, L being `n_latent`: `transition` [L, L], to the new state (rows) from the old one; `transition_offset`
    [L]; `state_noise` [L, L], a covariance; `initial_mean` [L] and `initial_covariance` [L, L] of the first state.

    Raises:
        TypeError, ValueError: n_latent is not a positive whole number.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 3.

    See Also:
        `LinearSSM`, the model of these dynamics; `LocalLevel`, a component with named parameters;
        docs/guides/linear.md.

    >>> import samplehold as sh
    >>> sh.LinearSSM(sh.LinearGaussian(2), n_features=3).sizes
    {'latent': 2, 'latent_new': 2, 'feature': 3, 'feature_new': 3}
    """

    n_latent: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_latent", check_integer("n_latent", self.n_latent))

    @property
    def latents(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.n_latent)))

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        covariance = Parameter(("latent", "latent_new"), constraints.positive_definite)
        return {
            "transition": Parameter(("latent_new", "latent")),
            "transition_offset": Parameter(("latent",)),
            "state_noise": covariance,
            "initial_mean": Parameter(("latent",)),
            "initial_covariance": covariance,
        }

    def moves(self, values: Parameters) -> TransitionParameters:
        return TransitionParameters(**{name: values[name] for name in TransitionParameters._fields})
