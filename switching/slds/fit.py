"""Learning switching linear models: every parameter a conjugate block, every path an exact chain.

Restarts are the first axis of every block. A series is centered and scaled by feature first, so that nothing depends on
its units; priors are worth a few steps, and the noise of moves is expected at a tenth of how much the path of a single
linear model moves. Expectation-maximisation is the same with points in the place of the parameters' densities.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inference.families import GaussianPaths, GaussianTables, Point, tree_map
from ...inference.message_passing.engine import VMP
from ...inference.message_passing.factor_graph import Block
from ..data.reading import to_tensor
from ..data.series import Series
from ..fitting.density import IMPOSSIBLE
from ..fitting.fit import Fit, check_enough, course, definite
from ..fitting.interrupts import sheltered
from ..fitting.network import Network, NetworkPassing, NetworkPosterior
from ..fitting.options import Options
from ..fitting.progress import Progress
from ..fitting.search import TRIALS, Climb, Found, Race
from ..linear.priors import Units
from ..linear.rebasing import rebase
from ..parameters import Parameters
from .gpb import gpb_filter
from .layout import LinearRegimes
from .network import CHAIN, LINEAR, SWITCH, Graph
from .problem import ORDER
from .starts import KINDS, SWEEPS, components, labels_of, near_path, path_blocks, warmed

if TYPE_CHECKING:
    from .model import SwitchingLinearSSM

WORTH = 0.1  # steps that the prior of a regression is worth
SHARE = 0.1  # of how much a path moves, that its noise is expected to be
SEEN = 1e-3  # of the variance of a feature, that the noise of sights is expected to be
WEIGHT = 0.1  # precision of the logistic regressions
ALONE = ("first", "moves", "sights")  # blocks that a single linear model has too


def priors(graph: Graph, moved: Tensor) -> dict[str, Tensor]:
    """Natural parameters of the blocks' priors; `moved` [L] is the variance of what a path moves by."""
    layout, x = graph.layout, graph.x
    families: dict[str, Any] = graph.families
    n, k = layout.n_latent, layout.n_regimes
    unit, inputs = torch.eye(n).to(x), torch.eye(n + 1).to(x)
    persists, count = torch.cat([unit, torch.zeros_like(unit[:1])]), x.new_tensor(n + 2.0)
    mean = x.new_zeros(layout.n_chains, n)
    found = {
        "first": families["first"].natural(mean, x.new_tensor(WORTH), count, unit / count),
        "moves": families["moves"].natural(
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
    found["sights"] = families["sights"].natural(loc, WORTH * inputs, df, spread)
    if k > 1:
        found["initial"] = x.new_ones(k)
        if layout.recurrent:
            weights = x.new_zeros(k - 1, n + k)
            found["recurrence"] = families["recurrence"].natural(weights, WEIGHT * torch.eye(n + k).to(x))
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
    if engine.run(SWEEPS, 0.0).interrupted:
        raise KeyboardInterrupt  # nothing of the model itself has been reached yet
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


@sheltered()
@definite()
def fit_switching_linear(model: "SwitchingLinearSSM", series: Series, options: Options) -> Fit[Any]:
    """See `SwitchingLinearSSM.fit`."""
    layout, dtype, series = model.layout, series.observations.dtype, series.double()
    check_enough(series, max(layout.n_regimes, layout.n_latent + 1))
    units = Units.of(layout.seen, series)
    graph = Graph.of(layout, units.of_series(series))
    learned, states = single(graph)
    path = GaussianPaths(graph.lengths.unsqueeze(-1)).mean(states).linear[0, ..., 0, :, :]
    kinds, labels = _labels(model, series, graph, path, options)
    network = Network(
        families=graph.families,
        priors=priors(graph, _moved(path, graph)),
        factors=graph.factors(),
        paths=path_blocks(graph, states, labels),
        collect=_collect(layout, units),
        between=None if options.prior is None else partial(rebase, paths=CHAIN),
    )
    start = {name: learned[name].expand(len(kinds), *network.priors[name].shape) for name in ALONE}
    if options.method == "em":
        network = _at_points(network, flat=options.prior is None)
    engine, interrupted = warmed(_engine(graph, network.priors, network.paths, network.families, start), graph, kinds)
    title = f"{options.method.upper()}, {options.restarts} restarts"
    volume = units.log_volume(series)
    with Progress(title, options.max_steps, options.progress) as shown:
        some = replace(options, max_steps=1) if interrupted else options
        race = Race(some, series, lambda step, best: shown(step, best - volume))
        race.run(NetworkPassing(engine, network, fresh=False), kinds, -(-options.restarts // 4))
        race.interrupted |= interrupted
        found = _most_probable(race, engine, network, layout, series, -(-options.restarts // 4))
    occupancy = _occupancy(graph, network, found.best.tables)
    order = occupancy.argsort(descending=True, stable=True)
    if layout.recurrent or options.start is not None:  # whose regimes have their places
        order = torch.arange(layout.n_regimes, device=order.device)
    etas = {name: found.best.tables[name] for name in network.families}
    posterior = NetworkPosterior(etas, network.families, _collect(layout, units, order))
    empty = occupancy[order] < 1.0
    return Fit(
        model=model._copy({name: value.to(dtype) for name, value in posterior.mean.items()}),
        method=options.method,
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        posterior=posterior if options.method == "vmp" else None,
        **course(found.raised(-volume)),
    )


def _most_probable(
    race: Race, engine: VMP, network: Network, layout: LinearRegimes, series: Series, n_kept: int
) -> Found:
    """The climbs, the best of them that under whose parameters a filter finds the series most probable.

    A bound may be highest where regimes are told least, at parameters under which the series is improbable. So those
    that the race has left behind, but the filter finds the best, go on to the end too.
    """
    if len(race.climbs) == 1 or race.interrupted:
        return race.found()
    evidence = {id(climb): _evidence(climb, network, layout, series) for climb in race.climbs}
    order = sorted(race.climbs, key=lambda climb: -evidence[id(climb)])
    behind = [climb for climb in order[:n_kept] if climb.ended == "left behind"]
    if behind:
        blocks = []
        for name, block in engine.blocks.items():
            eta = tree_map(lambda *parts: torch.stack(parts), *(climb.tables[name] for climb in behind))
            blocks.append(replace(block, eta=eta))
        again = VMP(blocks, engine.factors, len(behind), check=False, linear=engine.linear)
        number = len(race.climbs)
        race.run(NetworkPassing(again, network, fresh=False), [climb.kind for climb in behind], len(behind))
        evidence |= {id(climb): _evidence(climb, network, layout, series) for climb in race.climbs[number:]}
    ends = [climb for climb in race.climbs if climb.ended != "left behind"]
    return replace(race.found(), best=max(ends, key=lambda climb: evidence[id(climb)]))


def _evidence(climb: Climb, network: Network, layout: LinearRegimes, series: Series) -> float:
    """log p(x) by a filter at a climb's parameters; -inf where it has no density there."""
    etas = {name: climb.tables[name] for name in network.families}
    values = NetworkPosterior(etas, network.families, network.collect).mean
    try:
        found = gpb_filter(layout.regimes(values), series.observations, ORDER, series.lengths)
    except IMPOSSIBLE:
        return -math.inf
    return float(found.log_normalizer.sum())


def _labels(
    model: "SwitchingLinearSSM", series: Series, graph: Graph, path: Tensor, options: Options
) -> tuple[tuple[str, ...], Tensor]:
    """The kinds of the starts and their labels [R, *b, T]; the user's own first."""
    n = 1 if options.restarts == 1 or not graph.switched else TRIALS * options.restarts
    kinds = tuple(KINDS[i % len(KINDS)] for i in range(n))
    labels = labels_of(graph, path, kinds, options.number)
    if options.start is None:
        return kinds, labels
    return ("own", *kinds[1:]), torch.cat([_own(model, series, options.start).unsqueeze(0), labels[1:]])


def _own(model: "SwitchingLinearSSM", series: Series, start: Any) -> Tensor:
    """Labels [*b, T] that are the user's, or what a fit, a model or values by name say of the series."""
    start = getattr(start, "model", start)  # of a fit
    if isinstance(start, Mapping):
        start = model.with_values(start)
    if isinstance(start, type(model)):
        if start.layout != model.layout:
            raise ValueError(f"start: got {repr(start).splitlines()[0]}, expected {repr(model).splitlines()[0]}.")
        return start.smooth(series).state.argmax(-1)
    table, expected = to_tensor(start, "start"), tuple(series.observations.shape[:-1])
    whole = tuple(table.shape) == expected and bool((table % 1 == 0).all())
    if not whole or bool((table < 0).any()) or bool((table >= model.n_states).any()):
        raise ValueError(
            f"start: got labels of shape {tuple(table.shape)}, expected {expected}, a regime from 0 to "
            f"{model.n_states - 1} for each step; or give a model, or values by name."
        )
    return table.long()


def _at_points(network: Network, flat: bool) -> Network:
    """Points in the place of densities. One sequence has one first step, whose variance no likelihood tells: there
    the prior stays."""
    points = network.at_points(flat)
    families = points.families | {"first": Point(network.families["first"])}
    return replace(points, families=families, priors=points.priors | {"first": network.priors["first"]})


def _occupancy(graph: Graph, network: Network, tables: dict[str, Any]) -> Tensor:
    """The expected number of steps in each regime, [K]."""
    if not graph.switched:
        return graph.inside.sum().reshape(1)
    return network.paths[-1].family.mean(tables[SWITCH]).likelihood.flatten(0, -2).sum(0)


def _collect(
    layout: LinearRegimes, units: Units, order: Tensor | None = None
) -> Callable[[dict[str, Any]], Parameters]:
    """From points of the blocks to the model's parameters, in the data's units, with regimes in an order."""

    def collect(points: dict[str, Any]) -> Parameters:
        if layout.n_regimes == 1:  # of whose switch there are no blocks
            one = points["moves"].loc.new_ones(*points["moves"].loc.shape[:-2])
            points = points | {"initial": one, "transition": one.unsqueeze(-1)}
        found = layout.seen.in_units(layout.values(points), *units.back)
        return found if order is None else layout.reordered(found, order)

    return collect
