r"""Structured variational inference of states and regimes at known parameters, from starts that find good optima.

The bound has many optima, and the end of the ascent depends on its start:

    interpolated    the switch starts from the log density of each observation given all others, if the regime had
                    produced the whole series: $\log p(x_t \mid x_{1..t-1}, x_{t+1..T}, m)$ (after He et al. 2023)
    annealed        factors that join states and switch have weight 1/T, at first with T = 100, and T <- T/2 + 1/2 after
                    each sweep (Ghahramani & Hinton 2000, section 5)
    random          the switch starts from normal log-weights

Sequences are independent at known parameters, so each sequence keeps the start with its greatest bound.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.linear_gaussian.chain import LinearGaussianChain
from ...inference.families import MarkovTables, tree_map
from ...inference.message_passing.apart import run_apart
from ...inference.message_passing.engine import VMP
from ...inference.numerics.cholesky import cholesky
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.records import Record
from ..data.series import Series
from ..linear.factors import LOG_2PI
from ..parameters import Parameters
from .gpb import kim_smoother
from .graph import CHAIN, LINEAR, SWITCH, annealed, blank_states, graph_at, regimes
from .layout import LinearRegimes

STARTS = ("interpolated", "annealed", "random")
HOT = 100.0  # the first temperature of annealing
NEAR = 30  # sweeps of paths from which a fit goes on
CLEAR = 1e-3  # nats by which another start has to be better than the first
HISTORIES = 256  # that Kim's smoother keeps by default, at most


@dataclass(frozen=True, repr=False)
class SwitchingPaths(Record):
    """The structured approximation q(states) q(regimes) and its bound; 0 after the end of a sequence.

    C is the number of chains of states: one, or one for each regime.
    """

    elbo: Float[Tensor, "*b"]  # <= log p(x); -inf if Kim's smoother served
    state: Float[Tensor, "*b T K"]  # q(z_t)
    mean: Float[Tensor, "*b C T L"]  # of s_t under q
    covariance: Float[Tensor, "*b C T L L"]
    cross_covariance: Float[Tensor, "*b C T-1 L L"]  # of s_t+1 (rows) and s_t
    switch: MarkovTables  # natural parameters of q(z_1..T): weights of the first regime, of moves, of steps
    trace: Float[Tensor, "steps R"]  # the elbo of all sequences after each sweep, by start
    converged: bool


def infer(
    layout: LinearRegimes,
    values: Parameters,
    series: Series,
    starts: tuple[str, ...] = STARTS[:2],
    max_steps: int = 200,
    tol: float = 1e-9,
    seed: Seed = 0,
) -> SwitchingPaths:
    """The best q of each sequence; `starts` are some of `STARTS`, each of which may occur more than once.

    States and regimes that are independent have no density if a noise is singular; then Kim's smoother serves.
    """
    if layout.singular(values):
        return kim_paths(layout, values, series)
    engine = _engine(layout, values, series, starts, seed, apart=False)
    run = engine.run(max_steps, tol)
    return _best(layout, engine, series, run.elbo, run.converged)


def best_paths(layout: LinearRegimes, values: Parameters, series: Series) -> dict[str, Any]:
    """Natural parameters `[*b, ...]` of the best q of each sequence, by block of paths, after some sweeps. They do not
    depend on other sequences."""
    engine = _engine(layout, values, series, STARTS[:2], 0, apart=True)
    for _ in range(NEAR):
        engine.step()
    bound = engine.bounds(1 + len(series.batch_shape))
    bound[0] += CLEAR  # so that rounding does not choose between equal ends
    paths = {name: block.eta for name, block in engine.blocks.items() if block.prior is None}
    return {name: tree_map(lambda table: _chosen(table, bound.argmax(0)), eta) for name, eta in paths.items()}


def infer_apart(
    layout: LinearRegimes,
    values: Parameters,
    series: Series,
    starts: tuple[str, ...] = STARTS[:2],
    max_steps: int = 200,
    tol: float = 1e-9,
    seed: Seed = 0,
) -> tuple[SwitchingPaths, list[tuple[Tensor, bool]]]:
    """`infer` of each sequence `[N]` alone, computed together, and for each its trace and whether it converged."""
    if layout.singular(values):
        paths = kim_paths(layout, values, series)
        return paths, [(paths.trace, paths.converged)] * series.n_sequences
    engine = _engine(layout, values, series, starts, seed, apart=True)
    ends = run_apart(engine, 2, max_steps, tol)
    return _best(layout, engine, series, ends[0][0], all(converged for _, converged in ends)), ends


def _engine(
    layout: LinearRegimes, values: Parameters, series: Series, starts: tuple[str, ...], seed: Seed, apart: bool
) -> VMP:
    """The engine with a restart for each start, after annealing; `apart`: with the starts of sequences alone."""
    weights = torch.stack([_start(kind, layout, values, series, seed, i, apart) for i, kind in enumerate(starts)])
    states = blank_states(layout, series, len(starts))
    graph = graph_at(layout, series, values, states, weights if layout.n_regimes > 1 else None)
    engine = graph.engine(graph.start(len(starts)), check=False, linear=LINEAR)
    return annealed(engine, [HOT if kind == "annealed" else 1.0 for kind in starts], 0.5, 1)


def _best(layout: LinearRegimes, engine: VMP, series: Series, trace: Tensor, converged: bool) -> SwitchingPaths:
    """The paths of each sequence's best start."""
    bound, switched = engine.bounds(1 + len(series.batch_shape)), layout.n_regimes > 1
    best = bound.argmax(0)
    chain, switch = _kept(engine, CHAIN, best), _kept(engine, SWITCH, best) if switched else None
    state = series.inside.unsqueeze(-1).to(chain.linear) if switch is None else switch.likelihood
    moves = (
        regimes(layout, torch.zeros_like(state))
        if switch is None
        else tree_map(lambda table: _chosen(table, best), engine.blocks[SWITCH].eta)
    )
    outer = chain.linear.unsqueeze(-1) * chain.linear.unsqueeze(-2)
    crossed = chain.linear[..., 1:, :, None] * chain.linear[..., :-1, None, :]
    return SwitchingPaths(
        elbo=bound.gather(0, best.unsqueeze(0)).squeeze(0),
        state=state,
        mean=chain.linear,
        covariance=chain.square - outer,
        cross_covariance=chain.cross - crossed,
        switch=moves,
        trace=trace,
        converged=converged,
    )


def kim_paths(layout: LinearRegimes, values: Parameters, series: Series, order: int | None = None) -> SwitchingPaths:
    """Kim's smoother. `order`: how many past regimes are kept; default: one more than the dimension of the state, or
    less."""
    if order is None:
        most = int(math.log(HISTORIES, max(2, layout.n_regimes)))
        order = max(2, min(layout.n_latent + 1, most))
    smoothed = kim_smoother(layout.regimes(values), series.observations, series.lengths, order, crossed=True)
    leaving = smoothed.transition.sum(-1, keepdim=True)
    moves = torch.where(leaving > 0, smoothed.transition / leaving.clamp_min(1e-300), 1 / layout.n_regimes)
    first = torch.where(smoothed.state[..., 0, :].sum(-1, keepdim=True) > 0, smoothed.state[..., 0, :], 1.0)
    assert smoothed.cross_covariance is not None
    covariance, cross = (_by_chain(layout, table) for table in (smoothed.covariance, smoothed.cross_covariance))
    return SwitchingPaths(
        elbo=torch.full_like(smoothed.log_normalizer, -torch.inf),
        state=smoothed.state,
        mean=smoothed.mean.unflatten(-1, (layout.n_chains, -1)).movedim(-2, -3),
        covariance=covariance,
        cross_covariance=cross,
        switch=MarkovTables(first.log(), moves.log(), torch.zeros_like(smoothed.state)),
        trace=series.observations.new_zeros(0, 1),
        converged=True,
    )


def _by_chain(layout: LinearRegimes, table: Tensor) -> Tensor:
    """The blocks [*b, C, T, L, L] of each chain, of a table [*b, T, C L, C L]."""
    split = table.unflatten(-1, (layout.n_chains, -1)).unflatten(-3, (layout.n_chains, -1))
    return split.diagonal(dim1=-4, dim2=-2).movedim(-1, -4)


def interpolated(layout: LinearRegimes, values: Parameters, series: Series) -> Float[Tensor, "*b T K"]:
    r"""$\log p(x_t \mid x_{\setminus t}, m)$ of each regime m, if it had produced the whole series.

    With the smoothed residual $e = R^{-1} (x_t - \hat x_t)$ and $D = R^{-1} - R^{-1} C P_{t|T} C^\top R^{-1}$, it
    equals the log of $N(D^{-1} e; 0, D^{-1})$ (de Jong 1988, *A cross-validation filter for time series models*).
    """
    x, regime_values = series.observations.unsqueeze(-3), layout.separately(values)
    smoothed = LinearGaussianChain(x, **regime_values, lengths=(series.last + 1).unsqueeze(-1)).smooth()
    seen = ~x.isnan()  # [*b, 1, T, F]
    emission, offset = regime_values["emission"].unsqueeze(-3), regime_values["emission_offset"].unsqueeze(-2)
    expected = (emission @ smoothed.mean.unsqueeze(-1)).squeeze(-1) + offset
    gap = torch.where(seen, x, expected) - expected
    pairs, unit = seen.unsqueeze(-1) & seen.unsqueeze(-2), torch.eye(x.shape[-1]).to(x)
    # a missing feature gets unit noise
    noise = torch.where(pairs, regime_values["observation_noise"].unsqueeze(-3), unit)
    precision = torch.linalg.inv(noise)
    weighted = precision @ torch.where(seen.unsqueeze(-1), emission, 0.0)
    error_precision = precision - weighted @ smoothed.covariance @ weighted.mT
    error_precision = cholesky((error_precision + error_precision.mT) / 2)
    white = torch.linalg.solve_triangular(error_precision, precision @ gap.unsqueeze(-1), upper=False).squeeze(-1)
    log_det = error_precision.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.where(
        series.inside.unsqueeze(-2), log_det - white.square().sum(-1) / 2 - seen.sum(-1).to(x) * LOG_2PI / 2, 0.0
    ).mT


def _start(
    kind: str, layout: LinearRegimes, values: Parameters, series: Series, seed: Seed, number: int, apart: bool
) -> Tensor:
    """Log-weights [*b, T, K] of the switch."""
    x = series.observations

    def random(*steps: int) -> Tensor:
        generator = generator_of(seed, x.device)
        shape = number + 1, *steps, layout.n_regimes
        return torch.randn(shape, generator=generator, dtype=torch.float64, device=x.device)[number].to(x)

    if kind == "interpolated" and layout.n_regimes > 1:
        return interpolated(layout, values, series)
    if kind == "random":
        if not apart:
            return random(*x.shape[:-1])
        return torch.nn.utils.rnn.pad_sequence([random(n) for n in (series.last + 1).tolist()], True)
    return x.new_zeros(*x.shape[:-1], layout.n_regimes)


def _kept(engine: VMP, name: str, best: Tensor) -> Any:
    """Expected statistics of a block, for each sequence's best restart."""
    return tree_map(lambda table: _chosen(table, best), engine.stats(name))


def _chosen(table: Tensor, best: Tensor) -> Tensor:
    """The restart `best [*b]` of each sequence, from a table [R, *b, ...]."""
    index = best.reshape(1, *best.shape, *(1,) * (table.ndim - 1 - best.ndim))
    return table.take_along_dim(index, 0).squeeze(0)
