"""What dynamics are: how the hidden state moves, as a chain over tables, as Pyro sites and as an M-step.

Dynamics are a stateless description, like an emission; their parameters are tensors `[*r, ...]`, where `*r` are
restarts or posterior draws.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ..emissions.contract import ByGate
from ..parameters import Parameters, Site


@dataclass(frozen=True)
class Drive:
    """What moves the redraw probability from outside: covariates `[*b, T, C]` and gaps `dt [*b, T]` before each
    step."""

    covariates: Float[Tensor, "*b T C"] | None = None
    dt: Float[Tensor, "*b T"] | None = None

    def at(self, steps: slice) -> "Drive":
        """The same for a range of steps."""
        return Drive(
            None if self.covariates is None else self.covariates[..., steps, :],
            None if self.dt is None else self.dt[..., steps],
        )


class Dynamics(ABC):
    """Prior over state paths."""

    n_states: int
    n_covariates: int = 0  # that drive it
    holds: ClassVar[bool] = False  # whether a step may hold its state, so that there is a gate

    @abstractmethod
    def check_values(self, values: Parameters) -> Parameters:
        """Return the parameters under their own names and shapes; raise ValueError where they are not valid."""

    @abstractmethod
    def check_drive(self, drive: Drive, batch_shape: torch.Size, n_steps: int) -> None:
        """Raise ValueError where covariates or gaps do not fit these dynamics or the series."""

    @abstractmethod
    def default_prior(self) -> Parameters:
        """The concentrations given to the constructor, as tables."""

    @abstractmethod
    def sites(self, prior: Parameters) -> list[Site]:
        """The parameters' prior as Pyro sites."""

    @abstractmethod
    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
        belief: Float[Tensor, "*b K"] | None = None,
    ) -> Chain:
        """The chain over state paths that has these parameters and likelihood tables `[*r, *b, T, K]`.

        With a `belief` about the state before the first step, the chain goes on from there.
        """

    @abstractmethod
    def maximize(self, marginals: Marginals, prior: Parameters | None, values: Parameters, drive: Drive) -> Parameters:
        """Mode of the parameters given the chain's posterior; maximum likelihood without a prior."""

    @abstractmethod
    def start(self, labels: Int[Tensor, "*rb T"], n_batch: int, inside: Tensor) -> Parameters:
        """Rough parameters from a first labelling of every step; the last `n_batch` axes before time are sequences."""

    @abstractmethod
    def propagate(self, values: Parameters, belief: Float[Tensor, "*b K"], drive: Drive, horizon: int) -> ByGate:
        """P(s, z) at each of the `horizon` steps that follow the belief: `[*b, H, K]` for z = 1 and for z = 0."""

    @abstractmethod
    def first(self, values: Parameters) -> Float[Tensor, "K"]:
        """P(s_1), before any observation."""

    @abstractmethod
    def draw(self, values: Parameters, step: int, previous: Tensor | None, drive: Drive) -> tuple[Tensor, Tensor]:
        """Pyro sites `z_t`, `s_t` of one step (from 1) given the state before it; returns (redraw, state)."""

    def log_gate(self, values: Parameters, drive: Drive, n_batch: int) -> tuple[Tensor, Tensor]:
        """log P(z_t = 1) and log P(z_t = 0) of every step, where there is a gate."""
        raise TypeError(f"dynamics: {type(self).__name__} has no gate; use Copy(n_states).")

    def describe(self, values: Parameters) -> Parameters:
        """The parameters as a reader knows them."""
        return values


def draw_state(step: int, probs: Tensor) -> Tensor:
    """The site `s_{step}`, marked for exact enumeration."""
    return pyro.sample(f"s_{step}", dist.Categorical(probs), infer={"enumerate": "parallel"})


def check_n_states(n_states: int) -> None:
    if not isinstance(n_states, int) or isinstance(n_states, bool):
        raise TypeError(f"n_states: got {n_states!r}, expected an integer.")
    if n_states < 1:
        raise ValueError(f"n_states: got {n_states}, expected at least 1.")


def check_probs(values: Parameters, name: str, shape: tuple[int, ...]) -> Tensor:
    """The named table of probabilities over its last axis, normalised; ValueError where it is not one."""
    from ..emissions.discrete import check_simplex

    if name not in values:
        raise ValueError(f"{name}: missing; the dynamics need it, of shape {list(shape)}.")
    value = values[name]
    if tuple(value.shape[value.ndim - len(shape) :]) != shape:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}; the dynamics need {list(shape)}.")
    return check_simplex(value, name)


def widened(table: Tensor, event_dims: int, n_axes: int) -> Tensor:
    """[*r, *event] as [*r, 1, ..., 1, *event] with `n_axes` axes for sequences (and steps)."""
    split = table.ndim - event_dims
    return table.reshape(*table.shape[:split], *(1,) * n_axes, *table.shape[split:])
