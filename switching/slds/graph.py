r"""The graph of a switching linear model: one block for the paths of states, one for the paths of the switch.

$$q = q(\theta)\, q(z_{1:T}) \prod_m q(s^{(m)}_{1:T})$$

Every q of paths is an exact chain (Ghahramani & Hinton 2000, *Variational learning for switching state-space models*):
given the other blocks, a path of states has the natural parameters of its transitions and of its observations. Each
observation is weighted by the probability that the switch shows this path. A weight of 0 removes the term.

Priors are for series that are centered and scaled by feature, and have the weight of a few steps. The expected noise of
transitions is a tenth of the variance of the steps of a single linear model's path.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...inference.families import (
    Dirichlet,
    Gaussian,
    GaussianPaths,
    GaussianTables,
    MarkovPaths,
    MarkovTables,
    VectorFamily,
    tree_map,
)
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block, Factor
from ...inference.numerics.deferred import deferred
from ..data.series import Series
from ..dynamics import factors as discrete
from ..fitting.graph import Etas, Graph, Points
from ..linear.factors import of_blocks
from ..linear.priors import families as linear_families
from ..linear.priors import natural
from ..linear.rebasing import rebase
from ..parameters import Parameters
from .layout import LinearRegimes
from .recurrence import recurrence

CHAIN, SWITCH = "chain", "switch"
LINEAR = frozenset({SWITCH})  # all factors are linear, not just affine, in the statistics of these blocks
COLD = 0.01  # excess over 1 below which the temperature counts as 1
WORTH = 0.1  # weight of the prior of a regression, in steps
SHARE = 0.1  # expected noise of a path, as a share of the variance of its steps
SPARE = 2.0  # degrees of freedom of a noise under the prior, minus its size
SEEN = 1e-3  # expected observation noise, as a share of the variance of a feature
WEIGHT = 0.1  # precision of the logistic regressions


def graph_of(
    layout: LinearRegimes,
    series: Series,
    priors: Etas,
    states: GaussianTables,
    log_weight: Tensor | None,
    collect: Callable[[Points], Parameters],
    rebased: bool = False,
    shifted: bool = True,
) -> Graph:
    """The graph of a series; its paths start at these natural parameters of states and log-weights of regimes.

    Arguments:
        rebased, shifted: whether a fit changes the basis of the states, and whether it also shifts them.
    """
    lengths = series.last + 1
    paths = [Block(CHAIN, GaussianPaths(lengths.unsqueeze(-1)), eta=states)]
    if log_weight is not None:
        paths.append(Block(SWITCH, MarkovPaths(lengths), eta=regimes(layout, log_weight)))
    moves = partial(rebase, paths=[CHAIN], shifted=shifted) if rebased else None
    return Graph(families_of(layout), priors, factors_of(layout, series), paths, collect, rebase=moves)


def graph_at(
    layout: LinearRegimes, series: Series, values: Parameters, states: GaussianTables, log_weight: Tensor | None
) -> Graph:
    """The graph of a series at known parameters."""
    points = layout.points(values)
    points = {name: points[name] for name in layout.blocks}
    known = {name: family.statistics(points[name]) for name, family in families_of(layout).items()}
    priors = {name: eta.nan_to_num(neginf=0.0) for name, eta in known.items()}
    return graph_of(layout, series, priors, states, log_weight, layout.values).fixed_at(points)


def families_of(layout: LinearRegimes) -> dict[str, VectorFamily[Any]]:
    """The families of the blocks of parameters."""
    rows = {"initial": Dirichlet(), "transition": Dirichlet(), "recurrence": Gaussian()}
    families = linear_families(layout.n_latent) | rows
    return {name: families[name] for name in layout.blocks}


def factors_of(layout: LinearRegimes, series: Series) -> list[Factor]:
    """The factors between the blocks of parameters and the paths."""
    n_axes, inside = len(series.batch_shape) + 1, series.inside.to(series.observations)
    switch = SWITCH if layout.n_regimes > 1 else None
    moved, seen = switch if layout.one_chain else None, None if layout.common_emission else switch
    factors = of_blocks(CHAIN, series, layout.full_noise, moved, seen) | {
        "initial": discrete.first_state("initial", SWITCH, n_axes),
        "transition": discrete.moves("transition", SWITCH, n_axes),
        "recurrence": recurrence("recurrence", CHAIN, SWITCH, inside),
    }
    return [factors[name] for name in layout.blocks]


def priors_of(layout: LinearRegimes, moved: Tensor) -> Etas:
    """Natural parameters of the blocks' priors; `moved` [L] is the variance of a path's steps."""
    n, k = layout.n_latent, layout.n_regimes
    unit, weight = torch.eye(n).to(moved), WEIGHT * torch.eye(n + k).to(moved)
    persists = torch.cat([unit, torch.zeros_like(unit[:1])])
    weights = moved.new_full((n + 1,), WORTH)
    etas = natural(layout.seen, persists, SHARE * moved, weights, unexplained=SEEN, spare=SPARE)
    sizes = {"first": layout.n_chains, "moves": k, "sights": layout.n_emissions}
    priors = {name: etas[name].expand(size, *etas[name].shape) for name, size in sizes.items()} | {
        "initial": moved.new_ones(k),
        "transition": moved.new_ones(k, k),
        "recurrence": Gaussian().natural(moved.new_zeros(k - 1, n + k), weight),
    }
    return {name: priors[name] for name in layout.blocks}


def step_variance(path: Tensor, series: Series) -> Tensor:
    """The variance [L] of the steps of a path [*b, T, L]."""
    inside = series.inside[..., 1:, None].to(path)
    steps = (path[..., 1:, :] - path[..., :-1, :]).square() * inside
    n = path.shape[-1]
    return (steps.reshape(-1, n).sum(0) / inside.sum().clamp_min(1)).clamp_min(1e-10)


def blank_states(layout: LinearRegimes, series: Series, restarts: int) -> GaussianTables:
    """Natural parameters of paths of states [R, *b, C, T, ...] near 0."""
    n, steps = layout.n_latent, series.n_steps
    shape = (restarts, *series.batch_shape, layout.n_chains)
    zero, unit = series.observations.new_zeros(()), torch.eye(n).to(series.observations)
    return GaussianTables(
        zero.expand(*shape, steps, n),
        (-unit / 2).expand(*shape, steps, n, n),
        zero.expand(*shape, max(steps - 1, 0), n, n),
    )


def regimes(layout: LinearRegimes, log_weight: Tensor) -> MarkovTables:
    """Natural parameters of paths of the switch from log-weights [R, *b, T, K] of each step."""
    *shape, steps, k = log_weight.shape
    moves = (steps - 1, k, k) if layout.recurrent else (k, k)
    zero = log_weight.new_zeros(())
    return MarkovTables(zero.expand(*shape, k), zero.expand(*shape, *moves), log_weight)


def annealed(
    engine: VMP,
    hot: Sequence[float],
    cooling: float,
    sweeps: int,
    exempt: Collection[str] = frozenset(),
    known: dict[str, Any] | None = None,
    note: Callable[[Callable[[], Any]], None] = lambda state: None,
) -> VMP:
    """The engine after its restarts have been cooled down, each from a temperature `hot [R]`; 1 leaves it alone.

    The factors that join states and switch have weight 1/T for some sweeps, at first with T = hot. Then T - 1 is
    multiplied by `cooling`, and this repeats until T - 1 is below `COLD`. Finally all factors have weight 1 again.
    A restart joins the hottest ones as soon as they have come down to its own temperature. Factors of the blocks
    `exempt` have weight 1 throughout.

    Arguments:
        known: a state to go on from.
        note: takes the state after each temperature.
    """
    if SWITCH not in engine.blocks:
        return engine
    both = [{CHAIN, SWITCH} <= set(f.blocks) and not set(exempt) & set(f.blocks) for f in engine.factors]
    temperature, places, part = max(hot), [], engine
    if known is not None:
        temperature, places, engine = known["temperature"], known["places"], engine_in(engine, known["engine"])
        part = engine_in(engine, known["part"], len(places))
    while temperature > 1 + COLD:
        due = [i for i, first in enumerate(hot) if first >= temperature]
        if due != places:
            engine, places = _replaced(engine, part, places), due
            part = engine.select(torch.tensor(due, device=engine.blocks[CHAIN].eta.linear.device))
        part = part.with_factors(
            replace(f, scale=1 / temperature) if b else f for f, b in zip(engine.factors, both, strict=True)
        )
        with deferred():
            for _ in range(sweeps):
                part.step()
        temperature = 1 + cooling * (temperature - 1)
        state = {"temperature": temperature, "places": places}
        note(partial(_state, state, engine, part))
    return _replaced(engine, part, places)


def _state(state: dict[str, Any], engine: VMP, part: VMP) -> dict[str, Any]:
    return state | {"engine": engine.state(engine.blocks), "part": part.state(part.blocks)}


def engine_in(like: VMP, state: dict[str, Any], restarts: int | None = None) -> VMP:
    """The engine that had this state; `like` has the same blocks and factors, and as many restarts by default."""
    blocks = [replace(block, eta=state["etas"][name]) for name, block in like.blocks.items()]
    engine = VMP(blocks, like.factors, restarts or like.restarts, check=False, linear=frozenset(state["linear"]))
    engine.set(state)
    return engine


def _replaced(engine: VMP, part: VMP, places: Sequence[int]) -> VMP:
    """The engine with other restarts at some places."""
    if not places:
        return engine

    def mixed(table: Tensor, some: Tensor) -> Tensor:
        return table.clone().index_copy(0, torch.tensor(places, device=some.device), some)

    blocks = [
        replace(block, eta=tree_map(mixed, block.eta, part.blocks[name].eta)) for name, block in engine.blocks.items()
    ]
    return VMP(blocks, engine.factors, engine.restarts, check=False, linear=engine.linear, ranks=engine.ranks)
