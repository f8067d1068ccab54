r"""The rates of a chain in continuous time: which may be positive, and their Gamma priors.

The complete path of a chain has the density

$$\prod_{k \ne l} q_{kl}^{N_{kl}} e^{-q_{kl} T_k}$$

with the numbers of jumps $N_{kl}$ and the times $T_k$ in the states, so a Gamma prior of a rate is conjugate to them.
Its shape a counts a - 1 jumps, and its rate is a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Gamma
from ...inference.numerics.arrays import numbers
from ...inference.numerics.checks import check_integers
from ..entries import Entries
from ..known import KnownDistribution, KnownEntries
from ..parameters import Parameter, Parameters
from ..priors import Conjugate, Site
from .possible import Mask

NAME = "rates"
CLOSE = 1e-6  # relative difference of a diagonal from minus the sum of its row


def read_moves(mask: Any, absorbing: Sequence[int], n_states: int) -> Mask:
    """Which jumps are possible, from truth values `[K, K]`, whose diagonal is ignored, or None, all.

    Raises:
        TypeError: numbers that are not truth values.
        ValueError: another shape; a state without an exit that is not absorbing, or an absorbing one with an exit.
    """
    free = ~torch.eye(n_states, dtype=torch.bool, device="cpu")
    if mask is None:
        free[list(absorbing)] = False
    else:
        table = numbers(mask, "mask")
        if table.dtype != torch.bool:
            raise TypeError(f"mask: got {table.dtype}, expected True where a jump is possible and False elsewhere.")
        if table.shape != (n_states, n_states):
            raise ValueError(f"mask: got shape {tuple(table.shape)}, expected {(n_states, n_states)}, [old, new].")
        free &= table.cpu()
    for state, leaves in enumerate(free.any(-1).tolist()):
        if leaves and state in absorbing:
            raise ValueError(f"absorbing: got state {state}, which mask lets out; make its row False, or leave it out.")
        if not leaves and state not in absorbing and n_states > 1:
            raise ValueError(
                f"mask: got no exit from state {state}; make a jump possible, or say absorbing=[{state}] if none is."
            )
    return tuple(tuple(row) for row in free.tolist())


def read_states(states: Any, name: str, n_states: int) -> tuple[int, ...]:
    """Numbers of states, in rising order.

    Raises:
        TypeError: other than whole numbers.
        ValueError: a number that no state has.
    """
    none = isinstance(states, list | tuple) and not states
    found = [] if none else check_integers(states, name, "numbers of states").flatten().tolist()
    for state in found:
        if not 0 <= state < n_states:
            raise ValueError(f"{name}: got state {state}, expected states from 0 to {n_states - 1}.")
    return tuple(sorted(set(found)))


def without_diagonal(table: Float[Tensor, "K K"]) -> Float[Tensor, "K K"]:
    """Rates with a diagonal of 0, from these or from a generator, whose diagonal is minus the sum of the others.

    Raises:
        ValueError: another diagonal.
    """
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        return table  # which the check of shapes refuses
    diagonal = table.diagonal()
    others = table - torch.diag(diagonal)
    exits = others.sum(-1)
    wrong = (diagonal != 0) & ~((diagonal + exits).abs() <= CLOSE * exits.abs())
    for state in wrong.nonzero().flatten()[:1].tolist():
        raise ValueError(
            f"{NAME}: got {float(diagonal[state]):g} on the diagonal at [{state}, {state}], expected 0, or as in a "
            f"generator minus the sum of the other rates of its row, {-float(exits[state]):g}."
        )
    return others


def generator_of(rates: Float[Tensor, "*n K K"]) -> Float[Tensor, "*n K K"]:
    """The rates in float64 with minus their sums on the diagonal."""
    wide = rates.double()
    return wide - torch.diag_embed(wide.sum(-1))


@dataclass(frozen=True, eq=False)
class JumpRates(Conjugate):
    """Rates from state to state, of which the possible ones have Gamma priors."""

    free: Bool[Tensor, "K K"]
    family = Gamma()

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        support = Entries(self.free, "mask excludes this jump", of=constraints.nonnegative)
        return {NAME: Parameter(("state", "state_new"), support)}

    def natural(self, prior: Parameters) -> Tensor:
        return self.family.natural(prior["rates_shape"], prior["rates_time"])

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        return {"rates_shape": eta[..., 0], "rates_time": -eta[..., 1]}

    def values(self, point: Tensor) -> Parameters:
        return {NAME: torch.where(self.free.to(point.device), point, 0.0)}

    def sites(self, prior: Parameters) -> list[Site]:
        shape, time = prior["rates_shape"], prior["rates_time"]
        free = self.free.to(shape.device)
        known = KnownEntries(constraints.nonnegative, torch.where(free, torch.nan, 0.0).to(shape))
        whole = KnownDistribution(dist.Gamma(shape, time).to_event(2), known, ~free)
        return [Site(NAME, lambda values: whole)]
