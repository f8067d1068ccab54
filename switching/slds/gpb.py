"""Filters and smoothers of switching linear models at given parameters, by merged normal densities.

`inference/chains/switching_gaussian/plain` describes the algorithm, and when it is exact. All is computed in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.switching_gaussian import op, plain
from ...inference.chains.switching_gaussian.plain import Belief, smooth
from ...inference.numerics.checks import check_lengths, check_table
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_kind
from ...inference.numerics.threads import sum_of_steps
from .joint import Regimes

MOST = 2**18  # histories


@dataclass(frozen=True, repr=False)
class SwitchingBelief(Record):
    """The belief of a filter of order n: a mixture of normal densities, in float64.

    There are C = K^max(n-1, 1) histories of regimes. Their numbers have the newest regime as the last digit in base K.
    Each history has its own density; with n = 1 all share one.
    """

    log_weight: Float[Tensor, "*b C"]
    mean: Float[Tensor, "*b M L"]
    covariance: Float[Tensor, "*b M L L"]


@dataclass(frozen=True, repr=False)
class SwitchingFiltered(Record):
    """The belief after each observation; 0 after the end of a sequence."""

    log_normalizer: Float[Tensor, "*b"]  # the approximation of log p(x), given the steps before x
    log_increment: Float[Tensor, "*b T"]  # of log p(x_t | x_1..t-1)
    state: Float[Tensor, "*b T K"]  # P(z_t | x_1..t)
    lagged_state: Float[Tensor, "*b T K"]  # P(z_t | x_1..t+n-1); for the last n - 1 steps P(z_t | x)
    mean: Float[Tensor, "*b T L"]  # of s_t given x_1..t
    covariance: Float[Tensor, "*b T L L"]
    belief: SwitchingBelief  # after each sequence's last step


@dataclass(frozen=True, repr=False)
class SwitchingSmoothed(Record):
    """The belief given the whole sequence; 0 after its end."""

    log_normalizer: Float[Tensor, "*b"]
    state: Float[Tensor, "*b T K"]  # P(z_t | x)
    transition: Float[Tensor, "*b T-1 K K"]  # P(z_t, z_t+1 | x)
    mean: Float[Tensor, "*b T L"]  # of s_t given x
    covariance: Float[Tensor, "*b T L L"]
    cross_covariance: Float[Tensor, "*b T-1 L L"] | None = None  # of s_t+1 (rows) and s_t; None where a kernel served


def gpb_filter(
    regimes: Regimes, x: Tensor, order: int = 2, lengths: Any = None, belief: SwitchingBelief | None = None
) -> SwitchingFiltered:
    r"""The generalised pseudo-Bayesian filter GPB(n): exact up to step n, and for all of x with n > T.

    Arguments:
        x: [*b, T, F]; NaN: missing, a whole step or single features.
        order: n; every step computes $K^n$ normal densities. 1 keeps one density for all regimes, 2 is Kim's filter.
            `lagged_state` uses the n - 1 steps after each regime, too.
        lengths: [*b], each sequence's number of steps; None: all have T.
        belief: the belief after the step before x, `gpb_filter(...).belief` of the same order; None: x is the
            beginning.

    Raises:
        TypeError: x of another dtype or device than the parameters, lengths that are not integers.
        ValueError: shapes that do not fit, an order with too many histories, an observation without density.

    >>> import torch
    >>> one, half = torch.ones(2, 1, 1), torch.full((2, 2), 0.5)
    >>> calm_or_wild = torch.tensor([0.1, 10.0]).view(2, 1, 1)
    >>> none = one[:, 0] * 0
    >>> regimes = Regimes(half[0], half, none, one, one, none, calm_or_wild, one, none, 0.1 * one)
    >>> gpb_filter(regimes, torch.tensor([[0.0], [0.2], [5.0], [4.9]])).state[:, 1]
    tensor([0.5000, 0.1530, 1.0000, 0.1467])
    """
    order, k, n = check_order(order, regimes.n_regimes), regimes.n_regimes, regimes.n_latent
    flat, ends, batch = read(regimes, x, lengths)
    before = None
    if belief is not None:
        check_kind("belief", belief, SwitchingBelief, "the `belief` of a result of gpb_filter")
        histories, densities = k ** max(order - 1, 1), k ** (order - 1)
        sizes = {"log_weight": (histories,), "mean": (densities, n), "covariance": (densities, n, n)}
        for name, size in sizes.items():
            table = getattr(belief, name)
            if tuple(table.shape) != (*batch, *size):
                raise ValueError(
                    f"belief.{name}: got shape {list(table.shape)}, expected {[*batch, *size]}; give the belief of a "
                    f"filter of order {order} for the same sequences."
                )
        tables = (getattr(belief, name).reshape(-1, *size) for name, size in sizes.items())
        before = Belief(*tables)
    filtered = op.filter(flat, ends, regimes.tables(), order, before)
    check_density(filtered.failed.reshape(batch))

    steps = (filtered.log_increment, filtered.state, filtered.lagged, filtered.mean, filtered.covariance)
    increment, state, lagged, mean, covariance = (table.reshape(batch + table.shape[1:]) for table in steps)
    kept = SwitchingBelief(*(table.reshape(batch + table.shape[1:]) for table in filtered.belief))
    return SwitchingFiltered(
        sum_of_steps(increment).to(x),
        increment.to(x),
        state.to(x),
        lagged.to(x),
        mean.to(x),
        covariance.to(x),
        kept,
    )


def evidences(regimes: Sequence[Regimes], x: Tensor, order: int, lengths: Any = None) -> list[float]:
    """log p(x) of several models by GPB(n), summed over sequences; -inf where x has no density."""
    flat, ends, _ = read(regimes[0], x, lengths)
    tables = [one.tables() for one in regimes]
    kernel = op.filter.serving(flat, ends, tables[0], order, None)
    if kernel is None:
        inside = torch.arange(flat.shape[1], device=flat.device) < ends.unsqueeze(-1)
        return plain.evidences(tables, flat, inside, order).sum(-1).tolist()
    filtered = [kernel(flat, ends, some, order, None) for some in tables]
    impossible = [bool((one.failed >= 0).any()) for one in filtered]
    heights = (float(one.log_increment.sum()) for one in filtered)
    return [-math.inf if bad else height for bad, height in zip(impossible, heights, strict=True)]


def kim_smoother(
    regimes: Regimes, x: Tensor, lengths: Any = None, order: int = 2, crossed: bool = False
) -> SwitchingSmoothed:
    """Kim's smoother, backward over the filter of an order of 2 or more; arguments and errors as in `gpb_filter`.

    It is exact if regimes do not differ, and with fewer steps than the order. Its moments of latents are unreliable if
    latents contract without noise. Then a higher order is better, or the lagged regimes of its filter.

    Arguments:
        crossed: whether to compute `cross_covariance`, too.

    >>> import torch
    >>> one, half = torch.ones(2, 1, 1), torch.full((2, 2), 0.5)
    >>> calm_or_wild = torch.tensor([0.1, 10.0]).view(2, 1, 1)
    >>> none = one[:, 0] * 0
    >>> regimes = Regimes(half[0], half, none, one, one, none, calm_or_wild, one, none, 0.1 * one)
    >>> kim_smoother(regimes, torch.tensor([[0.0], [0.2], [5.0], [4.9]])).mean.flatten()
    tensor([0.0659, 0.1751, 4.9374, 4.9150])
    """
    flat, ends, batch = read(regimes, x, lengths)
    order = check_order(order, regimes.n_regimes, least=2)
    if order == 2 and not crossed:
        smoothed = op.smooth(flat, ends, regimes.tables())
    else:
        smoothed = smooth(regimes.tables(), flat, ends, order)
    check_density(smoothed.failed.reshape(batch))
    names = ("log_normalizer", "state", "pairs", "mean", "covariance")
    tables = (getattr(smoothed, name).reshape(batch + getattr(smoothed, name).shape[1:]).to(x) for name in names)
    cross = None if smoothed.cross is None else smoothed.cross.reshape(batch + smoothed.cross.shape[1:]).to(x)
    return SwitchingSmoothed(*tables, cross_covariance=cross)


def check_order(order: Any, n_regimes: int, least: int = 1) -> int:
    """The order of a filter; ValueError if its histories are too many."""
    order = check_integer("order", order, least=least)
    if n_regimes**order > MOST:
        most = next(n for n in range(order, -1, -1) if n_regimes**n <= MOST)
        raise ValueError(
            f"order: got {order}, but {n_regimes} regimes have {n_regimes}^{order} histories; give at most {most}."
        )
    return order


def read(regimes: Regimes, x: Tensor, lengths: Any) -> tuple[Tensor, Tensor, torch.Size]:
    """Sequences [N, T, F] in float64, their lengths, and the batch axes."""
    check_table("x", x, None, regimes.n_features, like=regimes.emission)
    batch, n_steps = x.shape[:-2], x.shape[-2]
    if not n_steps or bool(x.isinf().any()):
        raise ValueError(
            f"x: got shape {list(x.shape)}{', with infinite numbers' if n_steps else ''}, expected finite numbers "
            "[*batch, T, F] of one step or more; NaN is missing."
        )
    ends = check_lengths(lengths, batch, n_steps, x.device)
    return x.detach().double().reshape(-1, n_steps, regimes.n_features), ends.reshape(-1), batch


def check_density(failed: Tensor) -> None:
    """Raise ValueError if a sequence has a step `failed [*b]` without density; -1: all steps have a density."""
    bad = (failed >= 0).nonzero()
    if len(bad):
        *index, step = *bad[0].tolist(), int(failed[tuple(bad[0].tolist())])
        of = f" of sequence {index[0] if len(index) == 1 else tuple(index)}" if index else ""
        raise ValueError(
            f"x, observation_noise: the observation at step {step}{of} has no density under the possible regimes, "
            "because features have no observation noise, or numbers are out of range; give observation_noise "
            "positive variances, or x in other units."
        )
