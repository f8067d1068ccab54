"""Fits of switching linear models: every parameter a conjugate block, every path an exact chain.

A series is centered and scaled by feature first, so that nothing depends on its units. Restarts start from the path of
a single linear model and from labels of regimes. Of the ends, the one with the most probable series under a filter
is kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...inference.families import GaussianPaths, Point, tree_map
from ..data.reading import to_tensor
from ..fitting.density import IMPOSSIBLE
from ..fitting.fit import check_enough, explains_singularity
from ..fitting.initialization import values_of_model
from ..fitting.interrupts import interruptible
from ..fitting.network import Network, NetworkPassing, multi_start
from ..fitting.options import Options
from ..fitting.result import Result, diagnostics
from ..fitting.search import TRIALS, Climb, Found, MultiStart
from ..linear.priors import Units
from ..linear.rebasing import rebase
from ..parameters import Parameters
from .gpb import gpb_filter
from .inference import infer
from .layout import LinearRegimes
from .network import CHAIN, LINEAR, SWITCH, Graph
from .priors import priors, step_variance
from .problem import ORDER, SwitchingLinearProblem
from .starts import KINDS, labels_of, path_blocks, single, warmed

ALONE = ("first", "moves", "sights")  # blocks that a single linear model has too


@interruptible()
@explains_singularity()
def fit_switching_linear(problem: SwitchingLinearProblem, options: Options) -> Result:
    """Fit the parameters of a switching linear model; see `SwitchingLinearSSM.fit`."""
    layout, dtype, series = problem.layout, problem.series.observations.dtype, problem.series.double()
    check_enough(series, max(layout.n_regimes, layout.n_latent + 1))
    units = Units.of(layout.seen, series)
    graph, volume = Graph.of(layout, units.of_series(series)), units.log_volume(series)
    learned, states = single(graph)
    path = GaussianPaths(graph.lengths.unsqueeze(-1)).mean(states).linear[0, ..., 0, :, :]
    kinds, labels = _labels(problem, graph, path, options)
    network = Network(
        families=graph.families,
        priors=priors(graph, step_variance(path, graph)),
        factors=graph.factors(),
        paths=path_blocks(graph, states, labels),
        collect=_collect(layout, units),
        between=None if options.prior is None else partial(rebase, paths=CHAIN),
    )
    start = {name: learned[name].expand(len(kinds), *network.priors[name].shape) for name in ALONE}
    network = _at_points(network, options.prior is None) if options.method == "em" else network
    engine, interrupted = warmed(network.engine(len(kinds), start, check=False, linear=LINEAR), graph, kinds)
    optimizer, n_kept = NetworkPassing(engine, network, fresh=False), -(-options.restarts // 4)
    with multi_start(replace(options, max_steps=1) if interrupted else options, series, -volume) as search:
        search.run(optimizer, kinds, n_kept)
        search.interrupted |= interrupted
        result = _most_probable(search, optimizer, problem, n_kept)
    tables = result.best.tables
    occupancy = _occupancy(graph, network, tables)
    order = occupancy.argsort(descending=True, stable=True)
    if layout.recurrent or options.start is not None:  # whose regimes have their places
        order = torch.arange(layout.n_regimes, device=order.device)
    posterior = replace(network.posterior(tables), collect=_collect(layout, units, order))
    empty = occupancy[order] < 1.0
    return Result(
        values={name: value.to(dtype) for name, value in posterior.mean.items()},
        method=options.method,
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        posterior=posterior if options.method == "vmp" else None,
        **diagnostics(result.raised(-volume)),
    )


def _most_probable(
    search: MultiStart, optimizer: NetworkPassing, problem: SwitchingLinearProblem, n_kept: int
) -> Found:
    """The climbs, the best of them that under whose parameters a filter finds the series most probable.

    The bound can favour poorly separated regimes, under which the series is improbable. So climbs that the search has
    left behind, but that the filter finds the best, continue to the end too.
    """
    if len(search.climbs) == 1 or search.interrupted:
        return search.found()
    evidence = _evidence(search.climbs, optimizer.network, problem)
    order = sorted(range(len(evidence)), key=lambda i: -evidence[i])
    behind = [search.climbs[i] for i in order[:n_kept] if search.climbs[i].ended == "left behind"]
    if behind:
        tables = {
            name: tree_map(lambda *parts: torch.stack(parts), *(climb.tables[name] for climb in behind))
            for name in optimizer.engine.blocks
        }
        number = len(search.climbs)
        search.run(optimizer.resumed(tables, len(behind)), [climb.kind for climb in behind], len(behind))
        evidence += _evidence(search.climbs[number:], optimizer.network, problem)
    ends = [i for i, climb in enumerate(search.climbs) if climb.ended != "left behind"]
    return replace(search.found(), best=search.climbs[max(ends, key=lambda i: evidence[i])])


def _evidence(climbs: Sequence[Climb], network: Network, problem: SwitchingLinearProblem) -> list[float]:
    """log p(x) by a filter at each climb's parameters; -inf where it has no density there."""
    series, heights = problem.series.double(), []
    for climb in climbs:
        regimes = problem.layout.regimes(network.posterior(climb.tables).mean)
        try:
            filtered = gpb_filter(regimes, series.observations, ORDER, series.lengths)
        except IMPOSSIBLE:
            heights.append(-math.inf)
        else:
            heights.append(float(filtered.log_normalizer.sum()))
    return heights


def _labels(
    problem: SwitchingLinearProblem, graph: Graph, path: Tensor, options: Options
) -> tuple[tuple[str, ...], Tensor]:
    """The kinds of the starts and their labels [R, *b, T]; the user's own first."""
    n = 1 if options.restarts == 1 or not graph.switched else TRIALS * options.restarts
    kinds = tuple(KINDS[i % len(KINDS)] for i in range(n))
    labels = labels_of(graph, path, kinds, options.number)
    if options.start is None:
        return kinds, labels
    return ("own", *kinds[1:]), torch.cat([_own_labels(problem, options.start).unsqueeze(0), labels[1:]])


def _own_labels(problem: SwitchingLinearProblem, start: Any) -> Tensor:
    """Labels [*b, T] that are the user's, or the most probable ones under a fit, a model or values by name."""
    layout, values = problem.layout, values_of_model(start)
    if isinstance(values, Mapping):
        of_start = getattr(getattr(start, "model", start), "layout", layout)
        if of_start != layout:
            raise ValueError(f"start: got a model of {of_start}, expected {layout}.")
        series = problem.series.double()
        values = {name: value.to(series.observations) for name, value in problem.values_of(values).items()}
        with torch.no_grad():
            return infer(layout, values, series).state.argmax(-1)
    table, expected = to_tensor(start, "start"), tuple(problem.series.observations.shape[:-1])
    whole = tuple(table.shape) == expected and bool((table % 1 == 0).all())
    if not whole or bool((table < 0).any()) or bool((table >= layout.n_regimes).any()):
        raise ValueError(
            f"start: got labels of shape {tuple(table.shape)}, expected {expected}, a regime from 0 to "
            f"{layout.n_regimes - 1} for each step; or give a model, or values by name."
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
