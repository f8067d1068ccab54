r"""Structured variational inference of states and regimes at known parameters, from starts that find good optima.

The bound has many optima, and where the ascent ends depends on its start:

    interpolated    the switch starts from how well each regime, had it made the whole series alone, tells every
                    observation from all others, $\log p(x_t \mid x_{1..t-1}, x_{t+1..T}, m)$ (after He et al. 2023)
    annealed        what joins states and switch counts 1/T, from T = 100 on, and T <- T/2 + 1/2 after each sweep
                    (Ghahramani & Hinton 2000, section 5)
    random          the switch starts from normal log-weights

Sequences are independent at known parameters: of several starts, each keeps that with its greatest bound.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.linear_gaussian.chain import LinearGaussianChain
from ...inference.families import MarkovTables, tree_map
from ...inference.message_passing.engine import VMP
from ...inference.numerics.cholesky import cholesky
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.records import Record
from ..data.series import Series
from ..linear.factors import LOG_2PI
from ..parameters import Parameters
from .layout import LinearRegimes
from .network import CHAIN, SWITCH, Graph, annealed, bound_by_sequence

STARTS = ("interpolated", "annealed", "random")
HOT = 100.0  # the first temperature of annealing


@dataclass(frozen=True, repr=False)
class SwitchingPaths(Record):
    """The structured approximation q(states) q(regimes) and its bound; 0 beyond the end of a sequence.

    C is the number of chains of states: one, or one for each regime.
    """

    elbo: Float[Tensor, "*b"]  # <= log p(x)
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
    starts: tuple[str, ...] = ("interpolated", "annealed"),
    max_steps: int = 200,
    tol: float = 1e-9,
    seed: Seed = 0,
) -> SwitchingPaths:
    """The best q of each sequence; `starts` are some of `STARTS`, each of which may occur more than once."""
    graph = Graph.of(layout, series)
    weights = torch.stack([_start(kind, graph, values, seed, i) for i, kind in enumerate(starts)])
    engine = graph.at(values, graph.states(len(starts)), weights if graph.switched else None)
    cooled = torch.tensor([kind == "annealed" for kind in starts], device="cpu")
    if bool(cooled.any()) and graph.switched:
        engine = annealed(engine, graph, cooled, HOT, 0.5, 1)
    run = engine.run(max_steps, tol)
    bound = bound_by_sequence(engine, graph)
    best = bound.argmax(0)
    chain, switch = _kept(engine, CHAIN, best), _kept(engine, SWITCH, best) if graph.switched else None
    within = graph.inside.unsqueeze(-1)
    state = within if switch is None else switch.likelihood
    moves = (
        graph.regimes(torch.zeros_like(state))
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
        trace=run.elbo,
        converged=run.converged,
    )


def interpolated(graph: Graph, values: Parameters) -> Float[Tensor, "*b T K"]:
    r"""$\log p(x_t \mid x_{\setminus t}, m)$ of each regime m, had it made all of the series.

    With the smoothed residual $e = R^{-1} (x_t - \hat x_t)$ and $D = R^{-1} - R^{-1} C P_{t|T} C^\top R^{-1}$, that is
    $N(D^{-1} e; 0, D^{-1})$ (de Jong 1988, *A cross-validation filter for time series models*).
    """
    x, own = graph.x.unsqueeze(-3), graph.layout.separately(values)
    found = LinearGaussianChain(x, **own, lengths=graph.lengths.unsqueeze(-1)).smooth()
    seen = ~x.isnan()  # [*b, 1, T, F]
    emission, offset = own["emission"].unsqueeze(-3), own["emission_offset"].unsqueeze(-2)
    expected = (emission @ found.mean.unsqueeze(-1)).squeeze(-1) + offset
    gap = torch.where(seen, x, expected) - expected
    pairs, unit = seen.unsqueeze(-1) & seen.unsqueeze(-2), torch.eye(x.shape[-1]).to(x)
    noise = torch.where(pairs, own["observation_noise"].unsqueeze(-3), unit)  # a missing feature is of pure unit noise
    precision = torch.linalg.inv(noise)
    told = precision @ torch.where(seen.unsqueeze(-1), emission, 0.0)
    left = precision - told @ found.covariance @ told.mT
    left = cholesky((left + left.mT) / 2)
    white = torch.linalg.solve_triangular(left, precision @ gap.unsqueeze(-1), upper=False).squeeze(-1)
    log_det = left.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.where(
        graph.inside.unsqueeze(-2) > 0, log_det - white.square().sum(-1) / 2 - seen.sum(-1).to(x) * LOG_2PI / 2, 0.0
    ).mT


def _start(kind: str, graph: Graph, values: Parameters, seed: Seed, number: int) -> Tensor:
    """Log-weights [*b, T, K] of the switch."""
    shape = (*graph.x.shape[:-1], graph.layout.n_regimes)
    if kind == "interpolated" and graph.switched:
        return interpolated(graph, values)
    if kind == "random":
        generator = generator_of(seed, graph.x.device)
        draws = torch.randn(number + 1, *shape, generator=generator, dtype=torch.float64, device=graph.x.device)
        return draws[number].to(graph.x)
    return graph.x.new_zeros(shape)


def _kept(engine: VMP, name: str, best: Tensor) -> Any:
    """Expected statistics of a block, of each sequence's best restart."""
    return tree_map(lambda table: _chosen(table, best), engine.stats(name))


def _chosen(table: Tensor, best: Tensor) -> Tensor:
    """Of [R, *b, ...] the restart `best [*b]` of each sequence."""
    index = best.reshape(1, *best.shape, *(1,) * (table.ndim - 1 - best.ndim))
    return table.take_along_dim(index, 0).squeeze(0)
