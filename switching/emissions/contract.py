r"""What an emission is: $p(x_t \mid s_t, z_t)$, its conjugate prior, and the two things that fitting needs of it.

An emission is a stateless description. Its parameters live in a dictionary of tensors `[*r, K, ...]`, where `*r` are
restarts or posterior draws, and its prior in another, so one description serves the Pyro program, EM over many restarts
at once, and message passing. `Emission` is what a model asks for; `StateEmission` is the usual case, in which a step's
distribution depends on its state alone:

    log_prob    log p(x | parameters), feature values that are NaN marginalised
    moments     sum_t w_t(s) times the sufficient statistics of x_t, centred so that nothing cancels
    maximize    the mode of the conjugate posterior given those moments (maximum likelihood without a prior)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ..parameters import Parameters, Site


@dataclass(frozen=True)
class Maximized:
    """Parameters after an M-step, and the states that could not be estimated."""

    values: Parameters
    collapsed: Bool[Tensor, "*r K"]  # a variance fell to its floor: the state sits on a single point


class ByGate(NamedTuple):
    """A quantity of redrawn steps and of held ones; the same tensor where the two do not differ."""

    redrawn: Tensor
    held: Tensor


class Emission(ABC):
    """Distribution of one observation given the state and the gate; see the module's equations."""

    n_features: int  # F, the length of one observation
    event_dims: dict[str, int]  # of each parameter, the number of axes after the state axis

    @abstractmethod
    def check(self, x: Float[Tensor, "*b T F"]) -> None:
        """Raise ValueError, naming the place, where x lies outside the support."""

    @abstractmethod
    def check_values(self, values: Parameters) -> Parameters:
        """Return the parameters under their own names and shapes; raise ValueError where they are not valid."""

    @abstractmethod
    def default_prior(self, n_states: int, x: Float[Tensor, "N F"] | None) -> Parameters:
        """Weak conjugate prior, scaled to the observations x (unit scale without any)."""

    @abstractmethod
    def sites(self, prior: Parameters) -> list[Site]:
        """The parameters' prior as Pyro sites."""

    @abstractmethod
    def log_likelihood(self, x: Float[Tensor, "*b T F"], values: Parameters) -> ByGate:
        """log p(x_t | s, z_t): `[*r, *b, T, K]` for redrawn steps, and the same or `[*r, *b, T, 1]` for held ones."""

    @abstractmethod
    def log_prob_at(self, x: Tensor, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        """log p(x | s, z) at given states and gates, which broadcast against the batch axes of x."""

    @abstractmethod
    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        """One observation for each of the given states and gates: `[*batch, F]`."""

    @abstractmethod
    def gather(
        self,
        x: Float[Tensor, "N F"],
        redrawn: Float[Tensor, "*r N K"],
        held: Float[Tensor, "*r N H"] | None,
        values: Parameters | None,
    ) -> Parameters:
        """Moments under the posterior weights of redrawn and of held steps (none for a Markov chain).

        `values` are the parameters under which missing features are filled in, and about which moments are taken.
        """

    @abstractmethod
    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        """Mode of the posterior; without a prior the maximum likelihood, with variances of at least `floor` [F]."""

    @abstractmethod
    def mean(self, values: Parameters) -> ByGate:
        """Mean of each feature in each state: `[*r, K, F]` (held: the same or `[*r, 1, F]`)."""

    @abstractmethod
    def variance(self, values: Parameters) -> ByGate:
        """Variance of each feature in each state, shaped as `mean`."""

    def embed(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N E"]:
        """Coordinates in which near observations are alike, for k-means starts; x has no missing values."""
        return x

    def describe(self, values: Parameters) -> Parameters:
        """The parameters as a reader knows them, e.g. scales rather than precisions."""
        return {name: values[name] for name in self.event_dims}


class StateEmission(Emission):
    """An emission that depends on the state alone."""

    @abstractmethod
    def log_prob(self, x: Float[Tensor, "*#n F"], values: Parameters) -> Float[Tensor, "*n"]:
        """log p(x | parameters), which broadcast against x; a NaN feature is marginalised."""

    @abstractmethod
    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        """The Pyro distribution of a whole observation: batch as the parameters, event [F]."""

    @abstractmethod
    def moments(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], values: Parameters | None
    ) -> Parameters:
        """Weighted sufficient statistics."""

    def table(self, x: Float[Tensor, "*b T F"], values: Parameters) -> Float[Tensor, "*rb T K"]:
        """log p(x_t | s) of every step and state."""
        return self.log_prob(x.unsqueeze(-2), against_steps(values, self.event_dims, x.ndim - 1))

    def log_likelihood(self, x: Tensor, values: Parameters) -> ByGate:
        table = self.table(x, values)
        return ByGate(table, table)

    def log_prob_at(self, x: Tensor, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        return self.log_prob(x, self.at(values, state))

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        values = self.at(values, state)
        return self.distribution(values).sample().to(next(iter(values.values())).dtype)  # symbols as numbers

    def at(self, values: Parameters, state: Tensor) -> Parameters:
        """The parameters of given states: `[K, ...]` indexed by `[*batch]` gives `[*batch, ...]`."""
        return {name: values[name][state] for name in self.event_dims}

    def gather(self, x: Tensor, redrawn: Tensor, held: Tensor | None, values: Parameters | None) -> Parameters:
        return self.moments(x, redrawn if held is None else redrawn + held, values)


def is_complete(x: Tensor) -> bool:
    """Whether nothing is missing, in one pass; by numpy, since torch would wake its threads, which then stay awake."""
    if x.device.type == "cpu":
        return not np.isnan(x.detach().numpy().sum())
    return not bool(torch.isnan(x).any())


def against_steps(values: Parameters, event_dims: dict[str, int], n_axes: int) -> Parameters:
    """Parameters [*r, K, ...] as [*r, 1, ..., 1, K, ...], with `n_axes` axes for sequences and steps."""

    def widen(value: Tensor, dims: int) -> Tensor:
        split = value.ndim - 1 - dims
        return value.reshape(*value.shape[:split], *(1,) * n_axes, *value.shape[split:])

    return {name: widen(values[name], dims) for name, dims in event_dims.items()}


def check_support(x: Tensor, valid: Tensor, expected: str) -> None:
    """Raise ValueError naming the first observed value of x that is not valid."""
    bad = ~valid & ~torch.isnan(x)
    if bad.any():
        *batch, step, feature = torch.nonzero(bad)[0].tolist()
        place = f"sequence {batch[0] if len(batch) == 1 else tuple(batch)}, " if batch else ""
        got = float(x[(*batch, step, feature)])
        raise ValueError(f"x: got {got:g} at {place}step {step}, feature {feature}; expected {expected}.")


def shaped(values: Parameters, name: str, tail: tuple[int, ...], emission: str) -> Tensor:
    """The named parameter, checked to be a finite [K, *tail]."""
    expected = f"[K{''.join(f', {n}' for n in tail)}]"
    if name not in values:
        raise ValueError(f"{name}: missing; {emission} needs it, of shape {expected}.")
    value = values[name]
    if value.ndim < 1 + len(tail) or tuple(value.shape[value.ndim - len(tail) :]) != tail:
        raise ValueError(f"{name}: got shape {tuple(value.shape)}; {emission} needs {expected}.")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name}: got values that are not finite; give finite parameters.")
    return value
