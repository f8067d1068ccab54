r"""Free coordinates of the hyperparameters of a population, and their best values.

Given the paths, the data of subject i add a message $m_i$ to the natural parameters $\eta$ of its block. So the
parameters of subjects are integrated out in closed form, and the best hyperparameters are the maximum of

$$G(\eta) = \sum_i A(\eta + m_i) - A(\eta).$$

EM over the parameters of subjects (`inference.families.matched`) comes near it in small steps. If subjects hardly
differ, its steps become ever smaller, long before the spread of the population has fallen to its optimum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import Beta, Dirichlet, Gamma, NormalGamma, NormalWishart, VectorFamily, matched
from ..ascent import newton
from ..newton import uphill

MOST = math.log(1e8)  # the largest logarithm of a concentration: members of a population hardly differ; its negative is
# the least one of a symbol or a rate that none of them has
MODERATE = math.log(100.0)  # one at which they do
STEPS = 30  # of Newton's method at most
TINY = 1e-300  # in place of the length of no step


@dataclass(frozen=True)
class Coordinates:
    """Free coordinates `[*plates, d]` of hyperparameters.

    Attributes:
        fitted: those of given hyperparameters.
        natural: the natural parameters at some coordinates.
        log_prior: their log density in these coordinates.
        limited: coordinates whose logarithms of concentrations are at most some number.
    """

    fitted: Float[Tensor, "*plates d"]
    natural: Callable[[Tensor], Tensor]
    log_prior: Callable[[Tensor], Tensor]
    limited: Callable[[Tensor, float], Tensor]

    @property
    def start(self) -> Float[Tensor, "*plates d"]:
        """Those from which a search starts: of a population whose members differ."""
        return self.limited(self.fitted, MODERATE)


@singledispatch
def coordinates(family: VectorFamily[Any], eta: Float[Tensor, "*plates P"]) -> Coordinates:
    """Coordinates of the hyperparameters of plates of a family, with those of `eta`.

    Raises:
        TypeError: a family without a rule.
    """
    raise TypeError(f"family: {type(family).__name__} has no population.")


@coordinates.register(Beta)
@coordinates.register(Dirichlet)
def _(family: Beta | Dirichlet, eta: Tensor) -> Coordinates:
    def log_prior(free: Tensor) -> Tensor:
        log_total = free.logsumexp(-1)
        return _half_cauchy(log_total) + (free - log_total.unsqueeze(-1)).sum(-1)

    def limited(free: Tensor, most: float) -> Tensor:
        return (free - (free.logsumexp(-1, keepdim=True) - most).clamp_min(0.0)).clamp_min(-MOST)

    return Coordinates(eta.log(), torch.exp, log_prior, limited)


@coordinates.register(Gamma)
def _(family: Gamma, eta: Tensor) -> Coordinates:
    q = family.usual(eta)
    return Coordinates(
        torch.stack([q.shape.log(), (q.shape / q.rate).log()], -1),
        lambda free: family.natural(free[..., 0].exp(), (free[..., 0] - free[..., 1]).exp()),
        lambda free: _half_cauchy(free[..., 0]),
        lambda free, most: torch.stack([free[..., 0].clamp(-MOST, most), free[..., 1].clamp_min(-MOST)], -1),
    )


@coordinates.register(NormalGamma)
def _(family: NormalGamma, eta: Tensor) -> Coordinates:
    q = family.usual(eta)

    def natural(free: Tensor) -> Tensor:
        loc, count, shape, mean = free.unbind(-1)
        return family.natural(loc, count.exp(), shape.exp(), (shape - mean).exp())

    return Coordinates(
        torch.stack([q.loc, q.kappa.log(), q.shape.log(), (q.shape / q.rate).log()], -1),
        natural,
        lambda free: _half_cauchy(free[..., 1]) + _half_cauchy(free[..., 2]),
        lambda free, most: _limited(free, most, 1, 2),
    )


@coordinates.register(NormalWishart)
def _(family: NormalWishart, eta: Tensor) -> Coordinates:
    """The mean of the precisions is known up to a factor."""
    q = family.usual(eta)
    dim = q.loc.shape[-1]
    mean, least = q.df[..., None, None] * q.scale_matrix, dim - 1.0

    def natural(free: Tensor) -> Tensor:
        loc, (count, excess, factor) = free[..., :dim], free[..., dim:].unbind(-1)
        df = least + excess.exp()
        return family.natural(loc, count.exp(), df, mean * (factor.exp() / df)[..., None, None])

    def limited(free: Tensor, most: float) -> Tensor:
        factor = free[..., -1:].clamp(-MOST, MOST)
        return _limited(torch.cat([free[..., :-1], factor], -1), most, dim, dim + 1)

    counts = [q.kappa.log(), (q.df - least).log()]
    return Coordinates(
        torch.cat([q.loc, torch.stack([*counts, torch.zeros_like(q.df)], -1)], -1),
        natural,
        lambda free: _half_cauchy(free[..., dim]) + _half_cauchy(free[..., dim + 1]),
        lambda free, most: _limited(
            torch.cat([free[..., :-1], free[..., -1:].clamp(-MOST, MOST)], -1), most, dim, dim + 1
        ),
    )


def _half_cauchy(log_count: Tensor) -> Tensor:
    """The log density of log c if 1 / sqrt(c) is half-Cauchy, cut where the natural parameters lose their digits."""
    height = log_count / 2 - torch.nn.functional.softplus(log_count)
    return torch.where(log_count.abs() < MOST, height, -math.inf)


def _limited(free: Tensor, most: float, *places: int) -> Tensor:
    """Coordinates of which some are at most a number."""
    return torch.stack([one.clamp_max(most) if i in places else one for i, one in enumerate(free.unbind(-1))], -1)


def best_population(
    family: VectorFamily[Any], eta: Float[Tensor, "*plates P"], messages: Float[Tensor, "S *plates P"], anew: bool
) -> Float[Tensor, "*plates P"]:
    """The natural parameters of the best population, each plate by itself.

    A step of EM comes first, for what has no coordinates. Newton's method goes on from there.

    Arguments:
        eta: natural parameters from which the step starts.
        messages: what the data of each subject add to them.
        anew: whether Newton's method starts from a population whose members differ: G is flat where they hardly do,
            although it may be higher elsewhere.
    """
    near = matched(family, family.mean(eta + messages).mean(0), eta).reshape(-1, eta.shape[-1])
    added = messages.reshape(messages.shape[0], *near.shape).movedim(0, 1)
    known = coordinates(family, near)

    def at(free: Tensor) -> Tensor:
        return known.natural(known.limited(free, MOST))

    def height(free: Tensor) -> Tensor:  # a divergence keeps digits that a difference of normalizers loses
        here = at(free).unsqueeze(-2)
        gained = (added * family.mean(here + added)).sum(-1) - family.kl(here + added, here)
        return gained.sum(-1).nan_to_num(-math.inf, posinf=-math.inf)

    def step(free: Tensor) -> tuple[Tensor, Tensor]:
        ascent, gain = uphill(height, free)
        inside = known.limited(free + ascent, MOST) - free
        return inside, gain * inside.norm(dim=-1) / ascent.norm(dim=-1).clamp_min(TINY)

    end = newton(height, step, known.start if anew else known.limited(known.fitted, MOST), STEPS)
    higher = height(end) > height(known.fitted)
    return at(torch.where(higher.unsqueeze(-1), end, known.fitted)).reshape(eta.shape)
