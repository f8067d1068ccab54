"""Learning switching linear models: every parameter a conjugate block, every path an exact chain.

Restarts are the first axis of every block. A series is centered and scaled by feature first, so that nothing depends on
its units; priors are worth a few steps, and the noise of moves is expected at a tenth of how much the path of a single
linear model moves. Expectation-maximisation is the same with points in the place of the parameters' densities.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inference.families import GaussianPaths, GaussianTables, Point
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block
from ..data.series import Series
from ..fitting.fit import Fit, check_enough, course, definite
from ..fitting.interrupts import sheltered
from ..fitting.network import Network, NetworkPassing, NetworkPosterior
from ..fitting.options import Options
from ..fitting.progress import Progress
from ..fitting.search import TRIALS, Race
from ..linear.rebasing import rebase
from ..parameters import Parameters
from .layout import LinearRegimes
from .network import CHAIN, LINEAR, SWITCH, Graph
from .starts import KINDS, SWEEPS, components, labels_of, near_path, path_blocks, warmed

if TYPE_CHECKING:
    from .model import SwitchingLinearSSM

WORTH = 0.1  # steps that the prior of a regression is worth
SHARE = 0.1  # of how much a path moves, that its noise is expected to be
SEEN = 1e-3  # of the variance of a feature, that the noise of sights is expected to be
WEIGHT = 0.1  # precision of the logistic regressions


@dataclass(frozen=True)
class Units:
    """Where each feature lies and how far it spreads."""

    center: Tensor
    scale: Tensor

    @staticmethod
    def of(series: Series) -> "Units":
        rows = series.rows.double()
        center = rows.nanmean(0)
        scale = (rows - center).square().nanmean(0).sqrt()
        like = series.observations
        return Units(center.to(like), torch.where(scale > 0, scale, 1.0).to(like))

    def inside(self, series: Series) -> Series:
        return replace(series, observations=(series.observations - self.center) / self.scale, checked=None)


def priors(graph: Graph, moved: Tensor) -> dict[str, Tensor]:
    """Natural parameters of the blocks' priors; `moved` [L] is the variance of what a path moves by."""
    layout, x, families = graph.layout, graph.x, graph.families
    n, k = layout.n_latent, layout.n_regimes
    unit, inputs = torch.eye(n).to(x), torch.eye(n + 1).to(x)
    persists, count = torch.cat([unit, torch.zeros_like(unit[:1])]), x.new_tensor(n + 2.0)
    families_of: dict[str, Any] = families
    mean = x.new_zeros(layout.n_chains, n)
    found = {
        "first": families_of["first"].natural(mean, x.new_tensor(WORTH), count, unit / count),
        "moves": families_of["moves"].natural(
            persists.expand(k, n + 1, n), WORTH * inputs, count, torch.diag(1 / (SHARE * moved)) / count
        ),
    }
    if layout.full_noise:
        f = layout.n_features
        df, spread = x.new_tensor(f + 2.0), torch.eye(f).to(x) / (SEEN * (f + 2))
        loc = x.new_zeros(layout.n_emissions, n + 1, f)
    else:
        df, spread = x.new_tensor(3.0), x.new_ones(1, 1) / (3 * SEEN)
        loc = x.new_zeros(layout.n_emissions, layout.n_features, n + 1, 1)
    found["sights"] = families_of["sights"].natural(loc, WORTH * inputs, df, spread)
    if k > 1:
        found["initial"] = x.new_ones(k)
        if layout.recurrent:
            weights = x.new_zeros(k - 1, n + k)
            found["recurrence"] = families_of["recurrence"].natural(weights, WEIGHT * torch.eye(n + k).to(x))
        else:
            found["transition"] = x.new_ones(k, k)
    return found


def single(graph: Graph) -> tuple[dict[str, Tensor], GaussianTables]:
    """Natural parameters [1, 1, ...] of the blocks of a single linear model, and of its path of states."""
    alone = replace(graph, layout=replace(graph.layout, n_regimes=1, one_chain=True, recurrent=False))
    path = components(alone)
    prior, near = priors(alone, _moved(path, graph)), near_path(alone, path)
    engine = _engine(alone, prior, alone.paths(near, None))
    for name in alone.families:
        engine.update(name)
    engine.run(SWEEPS, 0.0)
    return {name: engine.blocks[name].eta for name in alone.families}, engine.blocks[CHAIN].eta


def _moved(path: Tensor, graph: Graph) -> Tensor:
    """The variance [L] of what a path [*b, T, L] moves by in a step."""
    inside = graph.inside[..., 1:, None]
    steps = (path[..., 1:, :] - path[..., :-1, :]).square() * inside
    n = path.shape[-1]
    return (steps.reshape(-1, n).sum(0) / inside.sum().clamp_min(1)).clamp_min(1e-10)


def _engine(
    graph: Graph,
    prior: dict[str, Tensor],
    paths: list[Block],
    families: dict[str, Any] | None = None,
    start: dict[str, Tensor] | None = None,
) -> VMP:
    """The engine that learns, from starts [R, ...] of the blocks of parameters or their priors."""
    restarts = paths[0].eta.linear.shape[0]
    begin = {name: eta.expand(restarts, *eta.shape) for name, eta in prior.items()} | (start or {})
    blocks = [Block(name, kind, prior[name], begin[name]) for name, kind in (families or graph.families).items()]
    return VMP([*blocks, *paths], graph.factors(), restarts, check=False, linear=LINEAR)


def _spread(table: Tensor, prior: Tensor, restarts: int) -> Tensor:
    """What a single model has learned, [1, 1, ...], for every regime and restart."""
    return table.expand(restarts, *prior.shape)


@sheltered()
@definite()
def fit_switching_linear(model: "SwitchingLinearSSM", series: Series, options: Options) -> Fit[Any]:
    """See `SwitchingLinearSSM.fit`."""
    layout, dtype, series = model.layout, series.observations.dtype, series.double()
    check_enough(series, max(layout.n_regimes, layout.n_latent + 1))
    units = Units.of(series)
    graph = Graph.of(layout, units.inside(series))
    learned, states = single(graph)
    path = GaussianPaths(graph.lengths.unsqueeze(-1)).mean(states).linear[0, ..., 0, :, :]
    prior = priors(graph, _moved(path, graph))
    n = options.restarts if options.restarts == 1 or not graph.switched else TRIALS * options.restarts
    n = n if graph.switched else 1
    kinds = tuple(KINDS[i % len(KINDS)] for i in range(n))
    labels = labels_of(graph, path, kinds, options.number)
    paths = path_blocks(graph, states, labels)
    between = None if options.prior is None else partial(rebase, paths=CHAIN)
    network = Network(graph.families, prior, graph.factors(), paths, _collect(layout, units), between)
    families, prior = network.families, network.priors
    if options.method == "em":
        # one sequence has one first step, which no likelihood says the variance of
        flat = options.prior is None
        points = network.at_points(flat)
        families = points.families | {"first": Point(network.families["first"])}
        prior = points.priors | {"first": network.priors["first"]}
    start = {name: _spread(learned[name], network.priors[name], n) for name in ("first", "moves", "sights")}
    engine = warmed(_engine(graph, prior, network.paths, families, start), graph)
    title = f"{options.method.upper()}, {options.restarts} restarts"
    with Progress(title, options.max_steps, options.progress) as shown:
        race = Race(options, series, shown)
        race.run(NetworkPassing(engine, network, fresh=False), kinds, -(-options.restarts // 4))
    found = race.found()
    best = race.best
    etas = {name: best.tables[name] for name in families}
    posterior = NetworkPosterior(etas, families, network.collect)
    occupancy = graph.inside.sum().reshape(1)
    if graph.switched:
        state = network.paths[-1].family.mean(best.tables[SWITCH]).likelihood
        occupancy = state.flatten(0, -2).sum(0)
    volume = float((~series.rows.isnan()).to(series.observations).sum(0) @ units.scale.log())
    values = {name: value.to(dtype) for name, value in posterior.mean.items()}
    order = occupancy.argsort(descending=True, stable=True)
    if not layout.recurrent:
        values, occupancy = layout.reordered(values, order), occupancy[order]
    return Fit(
        model=model._copy(values),
        method=options.method,
        empty_states=occupancy < 1.0,
        collapsed_states=torch.zeros_like(occupancy > 0),
        posterior=posterior if options.method == "vmp" else None,
        **course(found.raised(-volume)),
    )


def _collect(layout: LinearRegimes, units: Units) -> Callable[[dict[str, Any]], Parameters]:
    """From points of the blocks to the model's parameters, in the data's units."""

    def collect(points: dict[str, Any]) -> Parameters:
        if layout.n_regimes == 1:
            some = points["moves"].loc
            points = points | {
                "initial": some.new_ones(*some.shape[:-2]),
                "transition": some.new_ones(*some.shape[:-2], 1),
            }
        return layout.rescaled(layout.values(points), units.center, units.scale)

    return collect
