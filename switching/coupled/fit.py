r"""Learning in models of several copy chains, by message passing: every parameter a conjugate block, every chain exact.

$$q = q(\theta)\, \prod_d q_d(z_d, s_d), \qquad q(\theta) = \text{a product over blocks}$$

    redraw_d                 beta, the redraw probability of chain d
    state_d, state, table_l  Dirichlet, where a fresh state comes from
    emission, background     the families of `conjugate` (layers); of several chains together:
    noise                    matrix-normal-Wishart, all chains' locations and the precision
    rate_d                   gamma, for counts what the states of chain d multiply the rate by

Every factor is multilinear in the statistics of its blocks; the messages are its gradients. Restarts are the first axis
of every block. Concentrations of the priors are 1; the emission's prior is scaled to the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import Beta, CopyPaths, CopyTables, Dirichlet, Gamma, MatrixNormalWishart, tree_map
from ...inference.message_passing.engine import VMP, Block, Factor
from ..data.series import Sequences
from ..dynamics.contract import widened
from ..emissions import Categorical, MultivariateNormal, Normal
from ..fitting.conjugate import Emitter
from ..fitting.message_passing import Climb, climb
from ..fitting.posterior import Interval, central_intervals
from ..fitting.progress import Progress
from ..fitting.starts import first_labels
from ..parameters import Parameters

SURE = 8.0  # log odds of the labels that the paths start from
LOC_WEIGHT = 0.05  # steps that the prior of a location is worth


@dataclass(frozen=True)
class CoupledPosterior:
    """Independent blocks of conjugate families over the parameters, named as in the engine; the model says of what."""

    draw: Callable[[int, torch.Generator], Parameters]
    mean: Parameters
    blocks: dict[str, Tensor]

    def sample(self, n: int, seed: int = 0) -> Parameters:
        """n draws, on a leading axis."""
        return self.draw(n, torch.Generator().manual_seed(seed))

    def interval(self, level: float = 0.9, n: int = 10_000, seed: int = 0) -> Interval:
        """Central intervals of each number, from the quantiles of n draws."""
        return central_intervals(self.sample(n, seed), level)


@dataclass(frozen=True)
class CoupledFit:
    """A fitted model of several chains; the fields of `Fit` that such a model has.

    Attributes:
        model: the model with its fitted values, under message passing the posterior means.
        method: "vmp" or "em".
        objective: `[steps]`, the bound after each step of the best restart.
        converged: whether the best restart met the tolerance.
        steps: how many steps the best restart took.
        restarts: `[R]`, where each restart ended.
        paths: the chains' marginals under q.
        posterior: of the parameters; None of a fit by EM, which is a point.
        interrupted: whether Ctrl-C ended the fit; the best so far is kept.
    """

    model: Any
    method: str
    objective: Float[Tensor, "S"]
    converged: bool
    steps: int
    restarts: Float[Tensor, "R"]
    paths: Any
    posterior: CoupledPosterior | None = None
    interrupted: bool = False


# ---- factors ---------------------------------------------------------------------------------------------------------


def named(name: str, elog: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function under the name by which errors call its factor."""
    elog.__name__ = name
    return elog


def gates(name: str, chain: str, n_axes: int) -> Factor:
    """E log p(z | rho) from the second step on; `n_axes` of sequences and steps."""

    def elog(paths: CopyTables, redraw: Tensor) -> Tensor:
        log_redraw, log_hold = widened(redraw, 1, n_axes).unbind(-1)
        return paths.fresh[..., 1:, :].sum(-1) * log_redraw + paths.held[..., 1:, :].sum(-1) * log_hold

    return Factor(named(name, elog), (chain, name))


def fresh_states(name: str, chain: str, n_axes: int) -> Factor:
    """E log pi(s) of every drawn state."""

    def elog(paths: CopyTables, probs: Tensor) -> Tensor:
        return (paths.fresh * widened(probs, 1, n_axes)).sum(-1)

    return Factor(named(name, elog), (chain, name))


def asked(name: str, below: str, above: str, n_axes: int) -> Factor:
    """E log B[s', s] of every state s drawn in the layer below, s' being the state of the layer above."""

    def elog(lower: CopyTables, upper: CopyTables, table: Tensor) -> Tensor:
        return (((upper.fresh + upper.held) @ widened(table, 2, n_axes - 1)) * lower.fresh).sum(-1)

    return Factor(named(name, elog), (below, above, name))


def emitted(emitter: Emitter, chain: str, x: Tensor, prior: Parameters, gate: str) -> Factor:
    """E log p(x | s) at the steps that a chain draws ("drawn"), holds ("held"), or both."""
    rows = x.reshape(-1, x.shape[-1])
    features, constant = observed_features(emitter, rows, prior)

    def elog(paths: CopyTables, statistics: Tensor) -> Tensor:
        used = {"drawn": paths.fresh, "held": paths.held}.get(gate, paths.fresh + paths.held)
        table = features @ statistics.flatten(2).mT + constant
        return (used * table.reshape(len(table), *x.shape[:-1], -1)).sum(-1)

    return Factor(named(emitter.block, elog), (chain, emitter.block))


def observed_features(emitter: Emitter, x: Tensor, prior: Parameters) -> tuple[Tensor, Tensor]:
    r"""$\phi(x)$ [N, P] and h(x) [N, 1] with $\log p(x \mid \theta) = \langle t(\theta), \phi(x)\rangle + h(x)$.

    A missing feature has neither. Raises ValueError where full normals miss some of a step's features.
    """
    emission, piece, seen = emitter.emission, emitter.piece, ~torch.isnan(x)
    whole = isinstance(emission, MultivariateNormal)
    if whole:
        check_whole_steps(x)
    filled = torch.where(seen, x, 0.0)
    if isinstance(emission, Categorical):
        one_hot = torch.nn.functional.one_hot(filled[..., 0].long(), emission.n_categories)
        moments = {"counts": one_hot.to(x)}
    else:
        count = torch.ones_like(filled[..., 0] if whole else filled)
        scatter = torch.zeros(*x.shape, x.shape[-1]).to(x) if whole else torch.zeros_like(x)
        moments = {"count": count, "mean": filled, "scatter": scatter, "total": filled}
    features = piece.message(moments)
    features = features * (seen.all(-1, keepdim=True) if features.ndim == 2 else seen.unsqueeze(-1))
    reference = {name: value[:1] for name, value in piece.mean(piece.prior(prior)).items()}
    flat = features.flatten(1)
    at_reference = flat @ piece.statistics(reference).flatten(1).mT
    return flat, emission.table(x, reference) - at_reference


def check_whole_steps(x: Tensor) -> None:
    missing = torch.isnan(x)
    if bool((missing.any(-1) & ~missing.all(-1)).any()):
        raise ValueError("x: misses single features, expected whole steps; fill them in, or set the whole step to NaN.")


def joint_normal(x: Tensor, family: MatrixNormalWishart, sizes: Sequence[int], chains: Sequence[str]) -> Factor:
    """E log N(x; sum of the chains' locations, precision) at the steps that were observed."""
    seen = ~torch.isnan(x).any(-1)
    filled = torch.where(seen.unsqueeze(-1), x, 0.0)
    outer = filled.unsqueeze(-1) * filled.unsqueeze(-2)
    within = torch.block_diag(*(torch.ones(k, k) for k in sizes)).to(x)
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
        value = filled * torch.stack(log_rate).sum(0) - torch.stack(rate).prod(0) - torch.lgamma(filled + 1)
        return (value * seen).sum(-1)

    return Factor(counts, (*chains, *(f"rate_{d + 1}" for d in range(n))))


# ---- blocks ----------------------------------------------------------------------------------------------------------


def flat_prior(name: str, *shape: int, like: Tensor, restarts: int) -> Block:
    """A Dirichlet, or for two numbers a beta block with concentrations of 1."""
    prior = torch.ones(shape, dtype=like.dtype, device=like.device)
    family = Beta() if name.startswith("redraw") else Dirichlet()
    return Block(name, family, prior, prior.expand(restarts, *shape))


def noise_block(x: Tensor, n_states: int, restarts: int) -> Block:
    """Locations around 0, to which x is centered, and a precision around the inverse variance of x."""
    rows = x.reshape(-1, x.shape[-1])
    variance = Normal(x.shape[-1]).default_prior(1, rows)["rate"][0] * 2
    family = MatrixNormalWishart(n_states)
    prior = family.natural(
        x.new_zeros(n_states, x.shape[-1]),
        LOC_WEIGHT * torch.eye(n_states).to(x),
        x.new_tensor(x.shape[-1] + 2.0),
        torch.diag(1 / variance),
    )
    return Block("noise", family, prior, prior.expand(restarts, -1))


def rate_block(name: str, x: Tensor, n_states: int, n_chains: int, restarts: int) -> Block:
    """Rates around the share of one of n chains in the mean count."""
    mean = x.reshape(-1, x.shape[-1]).nanmean(0).clamp_min(1e-3)
    rate = mean ** (-1 / n_chains)
    prior = Gamma().natural(torch.ones_like(rate), rate).expand(n_states, -1, -1)
    return Block(name, Gamma(), prior, prior.expand(restarts, *prior.shape))


def paths_block(name: str, labels: Tensor, n_states: int, series: Sequences) -> Block:
    """Exact paths that start near a labelling `[R, *b, T]`."""
    start = SURE * torch.nn.functional.one_hot(labels, n_states).to(series.values)
    return Block(name, CopyPaths(series.lengths), eta=CopyTables(start, start))


def greedy_labels(series: Sequences, sizes: Sequence[int], restarts: int, seed: int) -> list[Tensor]:
    """For each chain labels `[R, *b, T]`: of the data, then of what the chains before leave of it."""
    found = []
    for restart in range(restarts):
        rest, own = series.values.clone(), []
        for k in sizes:
            left = Sequences(rest, series.lengths)
            # the even ones cluster, the odd ones cut time into stretches
            labels = first_labels(Normal(rest.shape[-1]), left, k, 2, seed + restart)[restart % 2]
            one_hot = torch.nn.functional.one_hot(labels, k).to(rest)
            seen = ~torch.isnan(rest)
            rows = one_hot.flatten(0, -2).mT @ torch.where(seen, rest, 0.0).flatten(0, -2)
            means = rows / (one_hot.flatten(0, -2).mT @ seen.to(rest).flatten(0, -2)).clamp_min(1)
            rest = rest - one_hot @ means
            own.append(labels)
        found.append(own)
    return [torch.stack([own[d] for own in found]) for d in range(len(sizes))]


def labels_above(series: Sequences, below: Tensor, n_below: int, k: int, seed: int) -> Tensor:
    """For a layer labels `[R, *b, T]`: clusters of how often each label below occurs around a step.

    The restarts look 4, 8, 16, ... steps around.
    """
    found = []
    for restart, labels in enumerate(below):
        one_hot = torch.nn.functional.one_hot(labels, n_below).to(series.values) * series.inside.unsqueeze(-1)
        width = min(2 ** (2 + restart % 5), labels.shape[-1])
        rows = one_hot.reshape(-1, *one_hot.shape[-2:]).mT
        near = torch.nn.functional.avg_pool1d(rows, 2 * width + 1, 1, width)
        shares = Sequences(near.mT.reshape(one_hot.shape), series.lengths)
        found.append(first_labels(Normal(n_below), shares, k, 1, seed + restart)[0])
    return torch.stack(found)


# ---- fits ------------------------------------------------------------------------------------------------------------


def check_numbers(restarts: int, max_steps: int) -> None:
    """Raise ValueError where there is nothing to run."""
    for name, value in (("restarts", restarts), ("max_steps", max_steps)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1.")


def run(engine: VMP, restarts: int, max_steps: int, tol: float, progress: bool) -> tuple[Climb, VMP]:
    """Climb, and the engine of the best restart alone."""
    with Progress(f"VMP, {restarts} restarts", max_steps, progress) as shown:
        ended = climb(engine, restarts, max_steps, tol, shown)
    return ended, ended.engine.select(torch.tensor([ended.best]))


def means(engine: VMP, name: str) -> Tensor:
    """Expected probabilities of a beta or Dirichlet block of an engine with one restart."""
    eta = engine.blocks[name].eta[0]
    return eta / eta.sum(-1, keepdim=True)


def draws(blocks: dict[str, Block], n: int, generator: torch.Generator) -> dict[str, Any]:
    """Of each block of parameters n draws, of an engine with one restart."""
    return {
        name: _without_restart(block.family.sample(block.eta, n, generator))  # pyright: ignore[reportAttributeAccessIssue]
        for name, block in blocks.items()
    }


def _without_restart(point: Any) -> Any:
    if isinstance(point, Tensor):
        return point[:, 0]
    return type(point)(*(part[:, 0] for part in vars(point).values()))


def parameter_blocks(engine: VMP) -> dict[str, Block]:
    return {name: block for name, block in engine.blocks.items() if not isinstance(block.family, CopyPaths)}


def used(engine: VMP, chains: Sequence[str]) -> list[CopyTables]:
    """Statistics of the chains of an engine with one restart."""
    return [tree_map(lambda part: part[0], engine.stats(name)) for name in chains]
