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
from ...inference.numerics.products import with_ones
from ..ascent import inside, newton, shortened
from ..entries import Entries
from ..known import KnownDistribution
from ..parameters import Parameter, Parameters, free_entries
from ..priors import Conjugate, Site
from .possible import Mask
from .rows import InputWeights

NAME, WEIGHTS = "rates", "rates_weights"
MAX_STEPS = 50  # of Newton's method
LEAST = 1e-12  # curvature of a step, relative to the data's
CLOSE = 1e-6  # relative difference of a diagonal from minus the sum of its row


def read_moves(mask: Any, absorbing: Sequence[int], n_states: int, move: str = "jump") -> Mask:
    """Which jumps are possible, from truth values `[K, K]`, whose diagonal is ignored, or None, all.

    Arguments:
        move: what a jump is called in errors.

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
            raise TypeError(f"mask: got {table.dtype}, expected True where a {move} is possible and False elsewhere.")
        if table.shape != (n_states, n_states):
            raise ValueError(f"mask: got shape {tuple(table.shape)}, expected {(n_states, n_states)}, [old, new].")
        free &= table.cpu()
    for state, leaves in enumerate(free.any(-1).tolist()):
        if leaves and state in absorbing:
            raise ValueError(
                f"absorbing: got state {state}, but mask allows {move}s out of it; make its row False, or leave it out."
            )
        if not leaves and state not in absorbing and n_states > 1:
            raise ValueError(f"mask: no {move} leaves state {state}; make one possible, or give absorbing=[{state}].")
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
            f"{NAME}: got {float(diagonal[state]):g} on the diagonal at [{state}, {state}], expected 0, or "
            f"minus the sum of the other rates of its row (as in a generator), {-float(exits[state]):g}."
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
        known: Any = self.parameters[NAME].support
        distribution = KnownDistribution(dist.Gamma(shape, time).to_event(2), known, ~self.free.to(shape.device))
        return [Site(NAME, lambda values: distribution)]


def rate_weights(free: Bool[Tensor, "K K"], n_inputs: int) -> InputWeights:
    """The weights [K, K, C] of inputs in the logarithms of rates."""
    support = Entries(free.unsqueeze(-1).expand(-1, -1, n_inputs).clone(), "mask excludes this jump")
    return InputWeights(WEIGHTS, ("state", "state_new", "input"), support)


@dataclass(frozen=True)
class RateLikelihood:
    r"""The objective of an M-step of rates $e^{a + w^\top c}$ as a function of a and w, `[*r, K, K, P]`.

    Attributes:
        design: 1 and the inputs of each distinct gap.
        jumps, times: expected in these gaps; jumps that have no rate do not count.
        prior_jumps, prior_time: of the prior, at inputs 0.
        shrink: the precision of the prior of the weights of each input.
        free: 1 at the numbers that may move, 0 at others.
    """

    design: Float[Tensor, "U P"]
    jumps: Float[Tensor, "*r U K K"]
    times: Float[Tensor, "*r U K"]
    prior_jumps: Float[Tensor, "K K"]
    prior_time: Float[Tensor, "K K"]
    shrink: Float[Tensor, "#C"]
    free: Float[Tensor, "*#r K K P"]

    def _expected(self, numbers: Float[Tensor, "*r K K P"]) -> Float[Tensor, "*r U K K"]:
        """The expected jumps at these rates."""
        return self._log_rates(numbers).exp() * self.times.unsqueeze(-1)

    def _log_rates(self, numbers: Float[Tensor, "*r K K P"]) -> Float[Tensor, "*r U K K"]:
        return torch.einsum("up,...klp->...ukl", self.design, numbers)

    def value(self, numbers: Float[Tensor, "*r K K P"]) -> Float[Tensor, "*r K K"]:
        """The objective of each rate."""
        of_data = self.jumps * self._log_rates(numbers) - self._expected(numbers)
        at_zero, weights = numbers[..., 0], numbers[..., 1:]
        prior = self.prior_jumps * at_zero - self.prior_time * at_zero.exp()
        return inside(of_data.sum(-3) + prior - (self.shrink * weights.square()).sum(-1) / 2, numbers)

    def step(self, numbers: Float[Tensor, "*r K K P"]) -> tuple[Tensor, Tensor]:
        """A step of Newton's method, and the gain that it promises."""
        expected, at_zero = self._expected(numbers), numbers[..., 0].exp() * self.prior_time
        gradient = torch.einsum("up,...ukl->...klp", self.design, self.jumps - expected)
        curvature = torch.einsum("up,uq,...ukl->...klpq", self.design, self.design, expected)
        gradient[..., 0] += self.prior_jumps - at_zero
        gradient[..., 1:] -= self.shrink * numbers[..., 1:]
        ridge = torch.zeros_like(numbers)
        ridge[..., 0], ridge[..., 1:] = at_zero, self.shrink
        ridge = ridge + LEAST * (1 + curvature.diagonal(dim1=-2, dim2=-1))
        both = self.free.unsqueeze(-1) * self.free.unsqueeze(-2)
        gradient, held = gradient * self.free, torch.diag_embed((1 - self.free).expand(numbers.shape))
        curvature = (curvature + torch.diag_embed(ridge)) * both + held
        step = shortened(torch.linalg.solve(curvature, gradient.unsqueeze(-1)).squeeze(-1))
        return step, (gradient * step).sum(-1)

    def raised(self, numbers: Float[Tensor, "*r K K P"]) -> Float[Tensor, "*r K K P"]:
        """The numbers at the maximum."""
        return newton(self.value, self.step, numbers, MAX_STEPS)


def maximal_rates(
    jumps: Float[Tensor, "*r U K K"],
    times: Float[Tensor, "*r U K"],
    inputs: Float[Tensor, "U C"],
    prior: Parameters | None,
    values: Parameters,
    fixed: Parameters,
) -> Parameters:
    """The M-step of rates and weights, from expected jumps and times in gaps with these inputs."""
    rates, weights = values[NAME].double(), values[WEIGHTS].double()
    live, none = rates > 0, torch.zeros_like(rates[..., :1, :1])
    free = free_entries({name: values[name] for name in (NAME, WEIGHTS)}, fixed)
    moving = torch.cat([free[NAME].unsqueeze(-1), free[WEIGHTS]], -1).to(rates) * live.unsqueeze(-1)
    likelihood = RateLikelihood(
        with_ones(inputs),
        torch.where(live.unsqueeze(-3), jumps, 0.0),
        times,
        none if prior is None else prior["rates_shape"].double() - 1,
        none if prior is None else prior["rates_time"].double(),
        rates.new_zeros(1) if prior is None else prior[f"{WEIGHTS}_scale"].double() ** -2,
        moving,
    )
    numbers = torch.cat([torch.where(live, rates, 1.0).log().unsqueeze(-1), weights], -1)
    best = likelihood.raised(numbers).to(values[NAME])
    return {NAME: torch.where(live, best[..., 0].exp(), 0.0), WEIGHTS: best[..., 1:]}
