"""Factors, blocks and starts of fits of models of several chains.

Every factor is multilinear in the expected statistics of its blocks. Its messages are gradients, by automatic
differentiation if there is no closed form.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import CopyPaths, CopyTables, MatrixNormalWishart
from ...inference.message_passing.factor_graph import Block, Factor
from ...inference.numerics.cholesky import cholesky, cholesky_inverse
from ..data.series import Series, number
from ..dynamics.factors import named
from ..emissions.normal import Normal
from ..emissions.spread import spread
from ..fitting.starts import first_labels
from ..parameters import widened
from ..user_priors import UserPrior, hyperparameters

SURE = 8.0  # log odds of the labels at the start of the paths
LOC_WEIGHT = 0.05  # weight of the prior of a location, in steps


# ---- factors ---------------------------------------------------------------------------------------------------------


def drawn_under(name: str, below: str, above: str, n_axes: int) -> Factor:
    """E log B[s', s] of every state s drawn in the layer below, where s' is the state of the layer above."""

    def elog(lower: CopyTables, upper: CopyTables, table: Tensor) -> Tensor:
        return (((upper.fresh + upper.held) @ widened(table, 2, n_axes - 1)) * lower.fresh).sum(-1)

    return Factor(named(name, elog), (below, above, name))


def joint_normal(x: Tensor, family: MatrixNormalWishart, sizes: Sequence[int], chains: Sequence[str]) -> Factor:
    """E log N(x; sum of the chains' locations, precision) at the steps that were observed."""
    seen = ~torch.isnan(x).any(-1)
    filled = torch.where(seen.unsqueeze(-1), x, 0.0)
    outer = filled.unsqueeze(-1) * filled.unsqueeze(-2)
    within = torch.block_diag(*(torch.ones(k, k, device="cpu") for k in sizes)).to(x)
    n_axes = x.ndim - 1

    def noise(statistics: Tensor, *paths: CopyTables) -> Tensor:
        first, second, log_volume, precision = family.parts(statistics)
        state = torch.cat([p.fresh + p.held for p in paths], -1)
        linear = (state @ widened(first, 2, n_axes - 1) * filled).sum(-1)
        across = (state @ widened(second * (1 - within), 2, n_axes - 1) * state).sum(-1)
        alone = (state * widened(second.diagonal(dim1=-2, dim2=-1), 1, n_axes)).sum(-1)
        data = (outer * widened(precision, 2, n_axes)).sum((-2, -1))
        constant = widened(log_volume, 0, n_axes) - x.shape[-1] * math.log(2 * math.pi)
        return linear + (constant - across - alone - data) / 2

    return Factor(noise, ("noise", *chains), mask=seen.to(x))


def joint_counts(x: Tensor, chains: Sequence[str]) -> Factor:
    """E log Poisson(x; product of the chains' rates) of the counts that were observed."""
    seen = ~torch.isnan(x)
    filled = torch.where(seen, x, 0.0)
    n_axes, n = x.ndim - 1, len(chains)

    def counts(*stats: Any) -> Tensor:
        states = [p.fresh + p.held for p in stats[:n]]
        log_rates, rates = zip(*(table.unbind(-1) for table in stats[n:]), strict=True)
        log_rate = [m @ widened(table, 2, n_axes - 1) for m, table in zip(states, log_rates, strict=True)]
        rate = [m @ widened(table, 2, n_axes - 1) for m, table in zip(states, rates, strict=True)]
        value = filled * torch.stack(log_rate).sum(0) - reduce(torch.mul, rate) - torch.lgamma(filled + 1)
        return (value * seen).sum(-1)

    return Factor(counts, (*chains, *(f"rate_{d + 1}" for d in range(n))))


def check_whole_steps(x: Tensor) -> None:
    """Raise ValueError if single features of a step are missing."""
    missing = torch.isnan(x)
    if bool((missing.any(-1) & ~missing.all(-1)).any()):
        raise ValueError("x: at some step only some features are missing; fill them in, or set the whole step to NaN.")


def check_possible_everywhere(log_likelihood: Tensor, series: Series) -> None:
    """Raise ValueError unless each step's expected log-likelihood `[*b, T]` is finite: independent chains need positive
    likelihoods of all states."""
    bad = ~log_likelihood.isfinite() & series.inside
    if bool(bad.any()):
        *batch, step = bad.nonzero()[0].tolist()
        dtype = str(log_likelihood.dtype).removeprefix("torch.")
        raise ValueError(
            f"x: the observation at {f'sequence {number(batch)}, ' if batch else ''}step {step} is impossible under "
            f"some state in {dtype}, but independent chains need positive likelihoods; use `smooth`, which is "
            f"exact{', or give float64' if dtype == 'float32' else ''}."
        )


# ---- priors ----------------------------------------------------------------------------------------------------------


def noise_prior(x: Tensor, n_states: int, user: UserPrior | None) -> Tensor:
    """Locations around 0, to which x is centered, and a precision around the inverse variance of x, or one with the
    user's Wishart prior."""
    n_features = x.shape[-1]
    variance = spread(x.reshape(-1, n_features), 1, n_features).total
    wishart = {"df": x.new_tensor(n_features + 2.0), "inverse_scale": torch.diag(variance)}
    wishart |= {} if user is None else hyperparameters(user, wishart)
    return MatrixNormalWishart(n_states).natural(
        x.new_zeros(n_states, n_features),
        LOC_WEIGHT * torch.eye(n_states).to(x),
        wishart["df"],
        cholesky_inverse(cholesky(wishart["inverse_scale"])),
    )


def rate_prior(x: Tensor, n_states: int, n_chains: int) -> Tensor:
    """Rates around the share of one of n chains in the mean count."""
    mean = x.reshape(-1, x.shape[-1]).nanmean(0).clamp_min(1e-3)
    rate = mean ** (-1 / n_chains)
    return torch.stack([torch.ones_like(rate), -rate], -1).expand(n_states, -1, -1)


# ---- starts ----------------------------------------------------------------------------------------------------------


def in_groups(
    series: Series,
    labels: Sequence[Tensor] | None,
    sizes: Sequence[int],
    join: Callable[[Series, list[str]], list[Factor]],
) -> tuple[list[Factor], list[Block]]:
    """Factors and paths of each group of sequences; paths of all chains of the first group, then of the next.

    Arguments:
        labels: a labelling `[R, N]` of all steps for each chain, near which its paths start. None: paths start at
            nothing, and have no axis of restarts.
        join: the factors of a series and the names of its chains.
    """
    factors, paths = [], []
    tables = None if labels is None else [series.by_group(one.mT) for one in labels]  # [*b, T, R] for each group
    for i, part in enumerate(series.parts()):
        names = [f"chain_{d}_{i}" for d in range(1, len(sizes) + 1)]
        factors += join(part, names)
        for d, (name, k) in enumerate(zip(names, sizes, strict=True)):
            start = part.like.new_zeros(*part.inside.shape, k)
            if tables is not None:
                start = SURE * torch.nn.functional.one_hot(tables[d][i].movedim(-1, 0), k).to(start)
            paths.append(Block(name, CopyPaths(part.lengths), eta=CopyTables(start, start)))
    return factors, paths


def greedy_labels(x: Float[Tensor, "N F"], sizes: Sequence[int], restarts: int, seed: int) -> list[Tensor]:
    """For each chain labels `[R, N]`: of the data for the first chain, of the residual for each later chain."""
    by_start = []
    for restart in range(restarts):
        rest, of_start = x, []
        for k in sizes:
            # even restarts use clusters, odd ones stretches of time
            labels = first_labels(Normal(rest.shape[-1]), Series(rest), k, 2, seed + restart)[restart % 2]
            one_hot = torch.nn.functional.one_hot(labels, k).to(rest)
            seen = ~torch.isnan(rest)
            means = one_hot.mT @ torch.where(seen, rest, 0.0) / (one_hot.mT @ seen.to(rest)).clamp_min(1)
            rest = rest - one_hot @ means
            of_start.append(labels)
        by_start.append(of_start)
    return [torch.stack([of_start[d] for of_start in by_start]) for d in range(len(sizes))]


def labels_above(series: Series, below: Tensor, n_below: int, k: int, seed: int) -> Tensor:
    """Labels `[R, N]` of a layer: clusters of the frequencies of the labels below around a step.

    The restarts use windows of 4, 8, 16, ... steps on either side.
    """
    by_restart, groups = [], [*series.parts()]
    for restart, labels in enumerate(below):
        width, near = min(2 ** (2 + restart % 5), series.n_steps), []
        one_hot = torch.nn.functional.one_hot(labels, n_below).to(series.like)
        for part, table in zip(groups, series.by_group(one_hot), strict=True):
            windows = table.reshape(-1, *table.shape[-2:]).mT
            shares = torch.nn.functional.avg_pool1d(windows, 2 * width + 1, 1, width)
            near.append(shares.mT.reshape(table.shape)[part.inside])
        shares = Series(series.joined(near))
        by_restart.append(first_labels(Normal(n_below), shares, k, 1, seed + restart)[0])
    return torch.stack(by_restart)
