"""Fits of switching models: from a `Problem` to values, a posterior and diagnostics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.message_passing.engine import LostError
from ...inference.message_passing.factor_graph import ImproperError
from ...inference.numerics.cholesky import NotDefiniteError
from ..data.series import Series
from ..dynamics.any_prior import check_fit
from ..emissions.spread import varying
from ..parameters import Parameters, reordered
from ..problem import Problem
from .alignment import match_states, state_levels
from .ascent_in_parts import AscentInParts
from .chain_graph import check_fixed, is_curved, renumbered
from .climbs import Climb
from .em import EM
from .em_in_parts import EMInParts, adds_up
from .gibbs import check_gibbs, fit_gibbs
from .initialization import Initialization, with_fixed
from .message_passing import fit_vmp
from .options import SAMPLERS, Options
from .perturbation import End
from .points import RESTS
from .posterior import VariationalPosterior
from .progress import reported
from .result import Result, only_start, result_of
from .sampling import fit_nuts, fit_svi
from .search import continued, search
from .spread import spread
from .starts import opened
from .unbounded import shows_points
from .whole import Whole, jointly, together


def fit(problem: Problem, options: Options, whole: Whole | None = None) -> Result:
    """Fit the parameters of a problem; see `SwitchingSSM.fit`.

    Arguments:
        whole: all data, if the series of the problem is a sample of them. The search for the best optimum is made on
            the sample, and its best ends go on with all data.
    """
    with explains_singularity():
        problem = with_fixed(problem, options.fixed)
        if whole is not None:  # beyond the sample too
            together(whole, lambda: _check_states(problem, whole.series))
        if options.method == "em" and problem.dynamics.not_maximal:
            raise TypeError(
                f'method: got "em", but {problem.dynamics.name} has no maximum: {problem.dynamics.not_maximal}; use '
                'method="vmp" or "gibbs".'
            )
        if problem.prior is not None:
            check_fit(problem.dynamics.any_priors, problem.series, problem.fixed)
            for block in problem.dynamics.any_priors:
                if options.method == "em" and block.name not in problem.fixed:
                    block.check_mode(problem.prior)
        by_messages = options.method == "vmp" or (options.method != "em" and _passes_messages(problem))
        if options.method == "vmp":
            check_fixed(problem)
        if options.method == "gibbs":
            check_gibbs(problem)
        by_draws = options.method in ("svi", *SAMPLERS)
        initial = Initialization.of(problem, options, near_prior=by_messages, whole=whole, of_sample=by_draws)
        result = _by_draws(initial, options, by_messages, whole) if by_draws else _climb(by_messages)(initial, options)
        return replace(result, fixed=tuple(problem.fixed), held=problem.fixed)


def _check_states(problem: Problem, series: Series) -> None:
    if series.n_sequences:
        problem.dynamics.check_states(series, problem.fixed)


def _passes_messages(problem: Problem) -> bool:
    """Whether message passing can fit the problem, so that samplers start from it."""
    conjugate = all(part.emission.is_conjugate for part in problem.emission.parts)
    dynamics = problem.dynamics
    if not conjugate or dynamics.not_conjugate or dynamics.any_priors or problem.series.noise is not None:
        return False
    try:
        check_fixed(problem)
    except TypeError:
        return False
    return True


def _climb(by_messages: bool) -> Callable[[Initialization, Options], Result]:
    return _by_message_passing if by_messages else _by_em


def _by_draws(initial: Initialization, options: Options, by_messages: bool, whole: Whole | None) -> Result:
    """Samplers continue from a fit by message passing, or by EM if the emission has no conjugate prior; of more data,
    from that of the sample."""

    def first_fit() -> tuple[Result, Parameters]:
        start = _climb(by_messages)(initial, options.before_draws("vmp" if by_messages else "em"))
        problem = initial.problem.about_inputs(start.origin)
        # the mode may have probabilities of 0, which are infinitely far away in free coordinates
        return start, start.values if by_messages else problem.admitted(opened(problem, start.values))

    start, near = jointly(whole, first_fit)
    if whole is not None:
        there = whole.ranks.gathered(lambda: (near, start.origin, start.interrupted))
        near, origin = there[0][:2]  # see `continued`
        near, problem = (
            {name: table.to(whole.like) for name, table in near.items()},
            initial.problem.about_inputs(origin),
        )
        interrupted = any(one for _, _, one in there)
        sampled = None if interrupted else fit_svi(problem, options, near, whole.about_inputs(problem.series))
        if sampled is None:
            raise KeyboardInterrupt  # nothing of all data has been reached yet
        return replace(sampled, origin=origin)
    here = initial.problem.about_inputs(start.origin)
    sampled = None if start.interrupted else SAMPLED[options.method](here, options, near)
    if sampled is None:
        return replace(start, **only_start(options.method, start.method))
    return replace(sampled, origin=start.origin)


SAMPLED: dict[str, Any] = {"svi": fit_svi, "nuts": fit_nuts, "gibbs": fit_gibbs}
"""Samplers by the name of their method."""


@contextmanager
def explains_singularity() -> Iterator[None]:
    """Report covariances that rounding has made singular as errors of x."""
    try:
        yield
    except (NotDefiniteError, ImproperError) as error:
        raise ValueError(
            f"x: after rounding, the covariance of some state is not positive definite ({error}). If a feature is a "
            'sum of others, leave it out. If the prior is far from the data, use prior="weak". Or give float64.'
        ) from error
    except LostError as error:
        raise ValueError(
            f"x: rounding decides the bound of this fit ({error}). If a state may follow some data without noise, its "
            'likelihood has no maximum: use prior="weak".'
        ) from error


def _by_em(initial: Initialization, options: Options) -> Result:
    problem, units, scaled, whole = initial.problem, initial.units, initial.scaled, initial.whole
    check_modes(problem)
    prior_volume = units.log_prior_volume(problem)
    volume = initial.volume + prior_volume
    optimizer: Callable[[Parameters], EM | AscentInParts] = partial(EM, scaled)

    def end(values: Parameters) -> End:
        return End(values, scaled.chain(values).smooth().state)

    def points(sound: Climb, narrow: Climb) -> bool:
        return shows_points(scaled, sound.tables, narrow.tables)

    with reported(options, -volume, whole) as report:
        make_optimizer = spread(optimizer, initial.sharing)
        found = jointly(
            initial.sharing, lambda: search(scaled, make_optimizer, end, options, report, initial.start, points)
        )
        if whole is not None:
            optimizer = partial(AscentInParts, scaled, whole, rest=RESTS * options.tol)
            optimizer = partial(EMInParts, scaled, whole) if adds_up(scaled) else optimizer
            found = continued(found, lambda climb: climb.tables, optimizer, options, whole, report)
    climbs = found.raised(-volume, -initial.sample_volume - prior_volume)
    best = climbs.best
    order = order_of(scaled, initial.start, best.tables)
    ended = {name: table.to(problem.series.like) for name, table in best.tables.items()}
    values = reordered(problem.parameters, ended, order)
    occupancy = best.occupancy
    if occupancy is None:
        occupancy = optimizer({name: value.unsqueeze(0) for name, value in ended.items()}).counted()[0]
    origin = units.stated(values)
    back = problem.about_inputs(origin).admitted(units.about_inputs(origin).back(values))
    return result_of(
        climbs,
        "em",
        {name: value.clone() for name, value in back.items()},
        empty=occupancy[order] < 1.0,
        collapsed=None if best.collapsed is None else best.collapsed[order],
        origin=origin,
    )


def _by_message_passing(initial: Initialization, options: Options) -> Result:
    problem, units, scaled = initial.problem, initial.units, initial.scaled
    wide, start = scaled, initial.start
    if is_curved(scaled.emission):
        wide = scaled.double()
        start = None if start is None else {name: value.double() for name, value in start.items()}
    with reported(options, -initial.volume, initial.whole) as report:
        ended = fit_vmp(wide, options, report, start, initial.whole, initial.sharing)
    known = problem if initial.whole is None else None  # the density of draws would take all data
    centered = VariationalPosterior.of_chain(ended.etas, ended.graph.blocks, units.centered)
    mean = units.centered.values(centered.mean)
    order, origin = order_of(scaled, initial.start, mean), units.stated(mean)
    units, known = units.about_inputs(origin), known and known.about_inputs(origin)
    posterior = VariationalPosterior.of_chain(ended.etas, ended.graph.blocks, units, known)
    posterior = replace(posterior, blocks=renumbered(ended.graph.blocks, ended.etas, order))
    empty = ended.occupancy[order] < 1.0
    climbs = ended.search.raised(-initial.volume, -initial.sample_volume)
    return result_of(climbs, "vmp", posterior.mean, empty, posterior, origin=origin)


def order_of(problem: Problem, start: Parameters | None, values: Parameters) -> Int[Tensor, "K"]:
    """The order of the states: by location, unless the user's start, fixed values or known states number them."""
    if problem.numbered:
        return torch.arange(problem.n_states, device=problem.series.like.device)
    if start is not None:
        some = {name: value.unsqueeze(0) for name, value in values.items()}
        return match_states(problem, some, {name: value[0] for name, value in start.items()})[0]
    levels, known = state_levels(problem.emission, values), problem.known_states
    if not known:
        return levels.argsort(stable=True)
    order = torch.arange(problem.n_states, device=levels.device)
    others = torch.tensor([k for k in range(problem.n_states) if k not in known], device=levels.device)
    order[others] = others[levels[others].argsort(stable=True)]
    return order


def with_constants(result: Result, series: Series, options: Options) -> Result:
    """A result whose reason names the constant features, if nothing bounds the likelihood of their noise."""
    still = [] if options.prior is not None or options.fixed else (~varying(series.rows)).nonzero().flatten().tolist()
    if not still:
        return result
    named = f"feature{'s' * (len(still) > 1)} {', '.join(map(str, still))}"
    said = f'; of constant data ({named}) the likelihood is unbounded: prior="weak" bounds it, or leave them out'
    return replace(result, reason=result.reason + said)


def check_enough(series: Series, n_states: int) -> None:
    """Raise ValueError if the series has too few observations for a fit."""
    if not series.n_sequences:
        raise ValueError(f"x: got shape {list(series.x.shape)}, a batch of no sequence; give at least one.")
    observed = ~torch.isnan(series.rows)
    for feature, any_seen in enumerate(observed.any(0).tolist()):
        if not any_seen:
            name = f" ({series.features_of()[feature]})" if series.features else ""
            raise ValueError(f"x: feature {feature}{name} has no observed value; drop it, or give data that has some.")
    n_observed = int(observed.any(-1).sum())
    if n_observed < n_states:
        raise ValueError(f"x: got {n_observed} observed step(s) for {n_states} states; use fewer states or more data.")


def check_modes(problem: Problem) -> None:
    """Raise ValueError if a concentration below 1 leaves the posterior without a mode."""
    unused = {block.hyperparameter for block in problem.dynamics.any_priors}
    for name, table in (problem.prior or {}).items():
        if name not in unused and name.endswith(("concentration", "successes", "failures")) and bool((table < 1).any()):
            raise ValueError(
                f"{name}: got a concentration below 1 ({float(table.min()):g}), so the posterior has no mode; "
                "EM needs concentrations of at least 1."
            )
