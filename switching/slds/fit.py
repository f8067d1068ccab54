"""Fits of switching linear models: every parameter a conjugate block, every path an exact chain.

A series is first centered and scaled by feature, so that the fit does not depend on its units. Restarts start from the
path of a single linear model and from labels of regimes. The fit with the highest evidence by a filter is kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...inference.families import GaussianPaths, Held, Point, tree_map
from ...inference.message_passing.engine import VMP
from ..data.frames import to_tensor
from ..data.series import Series
from ..fitting import points
from ..fitting.climbs import Climb, SearchResult
from ..fitting.fit import check_enough, explains_singularity
from ..fitting.graph import Etas, Graph, Points
from ..fitting.initialization import values_of_model
from ..fitting.message_passing import Passing, continued_graph
from ..fitting.options import Options
from ..fitting.posterior import VariationalPosterior
from ..fitting.progress import reported
from ..fitting.result import Result, result_of
from ..fitting.search import MultiStart, multi_start
from ..fitting.whole import Whole, together
from ..linear.fixed import Known, read_fixed
from ..linear.priors import units_of
from ..parameters import SYMMETRIC, Parameters
from ..user_priors import check_possible, log_density
from .evidence import fit_by_evidence
from .gpb import evidences
from .graph import LINEAR, SWITCH, blank_states, graph_of, priors_of, step_variance
from .inference import best_paths, infer
from .joint import COVARIANCES
from .layout import ALONE, LinearRegimes
from .problem import ORDER, SwitchingLinearProblem
from .starts import KINDS, labels_of, paths_from, single, warmed
from .user_priors import BLOCK_OF, InFit, families_under, under_conjugate, users_of

BEFORE = 32  # steps of EM before those of BFGS
BRIEF = 2  # steps of Newton's method in each M-step under a prior of the user, while starts are annealed


@explains_singularity()
def fit_switching_linear(problem: SwitchingLinearProblem, options: Options, whole: Whole | None = None) -> Result:
    """Fit the parameters of a switching linear model; see `SwitchingLinearSSM.fit`.

    Arguments:
        whole: all data, if the series of the problem is a sample of them. The best ends on the sample go on with all.
    """
    if options.prior is None:
        problem = replace(problem, layout=replace(problem.layout, prior=None))
    series = problem.series.as_table("fit").double()  # all paths are in padded tables
    layout, dtype = problem.layout, problem.series.like.dtype
    check_enough(series, max(layout.n_regimes, layout.n_latent + 1))
    units = units_of(layout.seen, series)
    volume, scaled = float(units.log_volume(series).sum()), units.series(series)
    known = Known(read_fixed(layout.known, layout.sizes, options.fixed, series.observations), units)
    users = users_of(layout, known, options.method)
    if whole is not None:
        whole = replace(whole, series=whole.series.double())
        _check_shared(layout, known, options)
    if _singular(layout, known.tables):
        return fit_by_evidence(problem, known, users, options)
    learned, states = options.saving.once("one regime", lambda: single(layout, scaled, known.inner))
    path = GaussianPaths((scaled.last + 1).unsqueeze(-1)).mean(states).linear[0, ..., 0, :, :]
    kinds, labels = _labels(problem, path, options)
    paths = paths_from(layout, scaled, states, labels)
    priors = under_conjugate(users, priors_of(layout, step_variance(path, scaled)))
    rebased = options.prior is not None and not known.tables
    graph = graph_of(layout, scaled, priors, *paths, _collect(layout, known), rebased, users.shifts)
    known_at = layout.known_points(known.inner)
    graph, brief = _in_fit(graph.fixed_at(known_at), users, options)
    start = {name: learned[name].expand(len(kinds), *priors[name].shape) for name in ALONE}
    engine = brief.engine(graph.start(len(kinds)) | start, check=False, linear=LINEAR)
    search = partial(_searched, engine, graph, kinds, users, problem, options, -volume)
    if whole is None:
        result = search().raised(-volume)
    else:
        found = together(whole, search)
        everywhere = units.series(whole.series)
        blank = tree_map(lambda table: table[0], blank_states(layout, everywhere, 1))
        log_weight = (
            None if layout.n_regimes == 1 else blank.linear.new_zeros(*everywhere.inside.shape, layout.n_regimes)
        )
        graph = graph_of(layout, everywhere, priors, blank, log_weight, _collect(layout, known), rebased, users.shifts)
        graph, _ = _in_fit(replace(graph, ranks=whole.ranks, alike=True).fixed_at(known_at), users, options)
        everything = -whole.log_volume(units)
        result = _gone_on(found, graph, problem, options, whole, everything).raised(everything, -volume)
        scaled = everywhere
    tables = result.best.tables
    none = path.new_zeros(layout.n_regimes)
    (occupancy,) = graph.ranks.summed(
        lambda: [_occupancy(scaled, graph, tables) if scaled.n_sequences else none], [none]
    )
    order = occupancy.argsort(descending=True, stable=True)
    posterior = VariationalPosterior.of(graph, tables)
    numbered = layout.recurrent or options.start is not None or known.numbers(layout.known)
    if numbered or not layout.is_as_likely(posterior.mean, order):  # regimes keep their numbers
        order = torch.arange(layout.n_regimes, device=order.device)
    posterior = replace(posterior, collect=_collect(layout, known, order))
    values = {name: value.to(dtype) for name, value in posterior.mean.items()}
    empty = occupancy[order] < 1.0
    return result_of(result, options.method, values, empty, posterior, **known.fields)


def _check_shared(layout: LinearRegimes, known: Known, options: Options) -> None:
    """Raise ValueError for what processes that share the data do not fit together."""
    if _singular(layout, known.tables):
        raise ValueError(
            "fixed: got singular noises, with which one process needs all data; give small variances instead, or fit "
            "in one process."
        )
    if options.start is not None and not isinstance(values_of_model(options.start), Mapping):
        raise ValueError(
            "start: got labels of steps, but processes share the data; give a model, a fit, or values by name."
        )


def _searched(
    engine: VMP,
    graph: Graph,
    kinds: tuple[str, ...],
    users: InFit,
    problem: SwitchingLinearProblem,
    options: Options,
    shift: float,
) -> SearchResult:
    """The ends of all starts, annealed first."""
    with multi_start(options, problem.series.double(), shift) as search:
        with search.stage(f"annealing {len(kinds)} starts"):
            engine, interrupted = warmed(engine, problem.layout.one_chain, kinds, options.saving)
        for name in {BLOCK_OF[name] for name in users.other}:
            engine.put(replace(engine.blocks[name], family=graph.families[name]))
        if interrupted:  # one start alone has a result soon
            first = torch.zeros(1, dtype=torch.long, device=problem.series.like.device)
            engine, kinds, options = engine.select(first), kinds[:1], replace(options, max_steps=1)
        optimizer = Passing(engine, graph, fresh=False)
        _run(search, optimizer, kinds, options)
        search.interrupted |= interrupted
        with search.stage(f"evidence of {len(kinds)} ends"):
            return _most_probable(search, optimizer, problem, options)


def _gone_on(
    found: SearchResult,
    graph: Graph,
    problem: SwitchingLinearProblem,
    options: Options,
    whole: Whole,
    shift: float,
) -> SearchResult:
    """The best ends on the sample, run on with all data; the best has the highest evidence by a filter."""
    here, ranks = replace(problem, series=whole.series), whole.ranks
    newton = options.method == "em" and points.repays(graph)

    def make_engine(etas: Etas) -> VMP:
        engine = graph.engine(
            etas | ranks.together(lambda: _paths_under(etas, graph, here)), check=False, linear=LINEAR
        )
        for block in graph.paths:
            engine.update(block.name)
        return engine

    def finish(search: MultiStart) -> None:
        if newton:
            points.finish(search, search.climbs, graph, options.max_steps)

    some = replace(options, max_steps=min(options.max_steps, BEFORE)) if newton else options
    with reported(options, shift) as report:
        result = continued_graph(graph, found, some, whole, report, options.n_kept, finish, make_engine)
        ends = [climb for climb in result.climbs if climb.ended not in ("left behind", "merged", "failed")]
        if len(ends) == 1 or result.interrupted:
            return result
        evidence = _evidence(ends, graph, here)
        return replace(result, best=ends[max(range(len(ends)), key=lambda i: evidence[i])])


def _paths_under(etas: Etas, graph: Graph, problem: SwitchingLinearProblem) -> dict[str, Any]:
    """Natural parameters `[R, *b, ...]` of the paths of this process, from those of the parameters."""
    if not problem.series.n_sequences:
        return {}
    ends = [{name: eta[r] for name, eta in etas.items()} for r in range(len(next(iter(etas.values()))))]
    series = problem.series.double()
    paths = [best_paths(problem.layout, VariationalPosterior.of(graph, end).mean, series) for end in ends]
    return {name: tree_map(lambda *parts: torch.stack(parts), *(one[name] for one in paths)) for name in paths[0]}


def _in_fit(graph: Graph, users: InFit, options: Options) -> tuple[Graph, Graph]:
    """The graph of a fit, at points by "em", and the one while starts are annealed."""
    if options.method != "em":
        return graph, graph
    points, known_at = _at_points(graph, options.prior is None), users.layout.known_points(users.known.inner)
    under = partial(families_under, users, points.families, graph.priors, known_at)
    return replace(points, families=under()), replace(points, families=under(max_steps=BRIEF))


def _singular(layout: LinearRegimes, tables: Parameters) -> bool:
    """Whether a known covariance has no inverse: then independent states and regimes have no bound."""
    regular = {}
    for name in set(COVARIANCES) & set(tables):
        table, full = tables[name], layout.known[name].support in SYMMETRIC
        regular[name] = torch.where(table.isnan(), torch.eye(table.shape[-1]).to(table) if full else 1.0, table)
    return layout.singular(regular) is not None


def _run(search: MultiStart, optimizer: Passing, kinds: Sequence[str], options: Options, n_kept: int = 0) -> None:
    """Run a batch of restarts; the last steps of EM are those of BFGS."""
    newton, number = options.method == "em" and points.repays(optimizer.graph), len(search.climbs)
    search.max_steps = min(options.max_steps, BEFORE) if newton else options.max_steps
    search.run(optimizer, kinds, n_kept or options.n_kept)
    if newton:
        points.finish(search, search.climbs[number:], optimizer.graph, options.max_steps)


def _most_probable(
    search: MultiStart, optimizer: Passing, problem: SwitchingLinearProblem, options: Options
) -> SearchResult:
    """All restarts; the best is the one with the highest evidence by a filter.

    The bound can favour poorly separated regimes with a low evidence. So restarts that the search has stopped are also
    run to convergence if the filter finds a high evidence at their parameters.
    """
    if len(search.climbs) == 1 or search.interrupted:
        return search.result()
    graph = optimizer.graph
    evidence = search.saving.once("evidence", lambda: _evidence(search.climbs, graph, problem))
    order = sorted(range(len(evidence)), key=lambda i: -evidence[i])
    behind = [search.climbs[i] for i in order[: options.n_kept] if search.climbs[i].ended == "left behind"]
    if behind:
        engine = graph.engine(points.tables_of(behind, graph.kept), check=False, linear=LINEAR)
        number = len(search.climbs)
        _run(search, Passing(engine, graph, fresh=False), [climb.kind for climb in behind], options, len(behind))
        evidence = evidence + search.saving.once("evidence", lambda: _evidence(search.climbs[number:], graph, problem))
    ends = [i for i, climb in enumerate(search.climbs) if climb.ended not in ("left behind", "merged", "failed")]
    return replace(search.result(), best=search.climbs[max(ends, key=lambda i: evidence[i])])


def _evidence(climbs: Sequence[Climb], graph: Graph, problem: SwitchingLinearProblem) -> list[float]:
    """log p(x) by a filter at each restart's parameters, plus the log density of priors of the user; -inf if the series
    has no density there, or if the restart failed before it had taken a step."""
    series, layout = problem.series.double(), problem.layout
    means = [VariationalPosterior.of(graph, climb.tables).mean for climb in climbs if climb.tables]

    def compute() -> list[Tensor]:
        if not series.n_sequences:
            return [zero]
        regimes = [layout.regimes(mean) for mean in means]
        return [torch.tensor(evidences(regimes, series.observations, ORDER, series.lengths)).to(zero)]

    zero = torch.zeros(len(means), dtype=torch.float64, device="cpu")
    filtered = graph.ranks.summed(compute, [zero])[0].tolist()
    found = (one + float(log_density(layout.user_priors, mean)) for one, mean in zip(filtered, means, strict=True))
    return [next(found) if climb.tables else -math.inf for climb in climbs]


def _labels(problem: SwitchingLinearProblem, path: Tensor, options: Options) -> tuple[tuple[str, ...], Tensor]:
    """The kinds of the starts and their labels [R, *b, T]; the user's start comes first."""
    k = problem.layout.n_regimes
    kinds = tuple(KINDS[i % len(KINDS)] for i in range(1 if k == 1 else options.n_tried))
    labels = labels_of(k, problem.series.inside, path, kinds, options.number)
    if options.start is None:
        return kinds, labels
    return ("own", *kinds[1:]), torch.cat([_user_labels(problem, options).unsqueeze(0), labels[1:]])


def _user_labels(problem: SwitchingLinearProblem, options: Options) -> Tensor:
    """The user's labels [*b, T], or the most probable labels under a fit, a model or values by name."""
    layout, start, values = problem.layout, options.start, values_of_model(options.start)
    if isinstance(values, Mapping):
        of_start = getattr(getattr(start, "model", start), "layout", layout)
        if of_start != layout:
            raise ValueError(f"start: got a model of {of_start}, expected {layout}.")
        series = problem.series.double()
        values = {name: value.to(series.observations) for name, value in problem.values_of(values).items()}
        check_possible(layout.user_priors, values, "start", options.fixed or {})
        with torch.no_grad():
            return infer(layout, values, series).state.argmax(-1)
    table, expected = to_tensor(start, "start"), tuple(problem.series.observations.shape[:-1])
    are_labels = tuple(table.shape) == expected and bool((table % 1 == 0).all())
    if not are_labels or bool((table < 0).any()) or bool((table >= layout.n_regimes).any()):
        raise ValueError(
            f"start: got labels of shape {tuple(table.shape)}, expected {expected}, a regime from 0 to "
            f"{layout.n_regimes - 1} for each step; or give a model, or values by name."
        )
    return table.long()


def _at_points(graph: Graph, flat: bool) -> Graph:
    """Points instead of densities. One sequence has one first step, whose likelihood does not determine a variance, so
    the first step keeps its prior."""
    points = graph.at_points(flat)
    if isinstance(graph.families["first"], Held):
        return points
    families = {**points.families, "first": Point(graph.families["first"])}
    return replace(points, families=families, priors=points.priors | {"first": graph.priors["first"]})


def _occupancy(series: Series, graph: Graph, tables: dict[str, Any]) -> Tensor:
    """The expected number of steps in each regime, [K]."""
    if SWITCH not in tables:
        return series.inside.sum().reshape(1)
    return graph.paths[-1].family.mean(tables[SWITCH]).likelihood.flatten(0, -2).sum(0)


def _collect(layout: LinearRegimes, known: Known, order: Tensor | None = None) -> Callable[[Points], Parameters]:
    """From points of the blocks to the model's parameters, in the data's units, with regimes in an order."""
    return partial(_in_data, layout, known, order)


def _in_data(layout: LinearRegimes, known: Known, order: Tensor | None, points: Points) -> Parameters:
    values = known.back(layout.values(points))
    return values if order is None else layout.reordered(values, order)
