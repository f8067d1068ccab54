"""Fits of linear models: structures by maximum likelihood, tables by message passing, both by sampling."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..fitting.fit import explains_singularity
from ..fitting.initialization import values_of_model
from ..fitting.options import Options
from ..fitting.posterior import ParameterPosterior
from ..fitting.result import Result, diagnostics, only_start
from ..fitting.units import Units
from ..fitting.whole import Whole
from ..parameters import Parameters
from ..user_priors import check_possible
from .emission import Irregular
from .fixed import inverse_in_groups, known_points, open_values, read_fixed
from .learning import learn
from .maximum import maximum, mode_of_tables
from .priors import NAMES, one_point
from .problem import LinearProblem, sizes, typical
from .sampling import draw


@explains_singularity()
def fit_linear(problem: LinearProblem, options: Options, whole: Whole | None = None) -> Result:
    """Fit the parameters of a linear model; see `LinearSSM.fit`.

    Arguments:
        whole: all data, if the series of the problem is a sample of them.
    """
    series = problem.series
    check_options(problem, options)
    there = partial(_placed, series.like.device)
    units = replace(problem, prior=None if problem.prior is None else there(problem.prior)).units
    fixed = there(fixed_values(problem, options))
    problem = replace(problem, series=series.double(), fixed=fixed)
    whole = None if whole is None else whole.double()
    start = None if options.start is None else there(start_values(problem, options.start))
    if options.method in ("em", "vmp"):
        values, posterior, how = by_climb(problem, units, options, start, whole)
    else:
        values, posterior, how = by_draws(problem, units, options, start)
    nothing = torch.zeros(0, dtype=torch.bool, device="cpu")
    how.setdefault("method", options.method)
    return Result(
        values={name: values[name].to(series.like) for name in problem.parameters},
        empty_states=nothing,
        collapsed_states=nothing,
        posterior=posterior,
        fixed=tuple(fixed),
        held=fixed,
        **how,
    )


def _placed(device: torch.device, tables: Parameters) -> Parameters:
    return {name: table.to(device) for name, table in tables.items()}


Outcome = tuple[Parameters, ParameterPosterior | None, dict[str, Any]]


def by_climb(
    problem: LinearProblem, units: Units, options: Options, user_start: Parameters | None, whole: Whole | None = None
) -> Outcome:
    """The mode, or the best q."""
    if isinstance(problem.emission, Irregular):
        values, search = maximum(problem, units, options, user_start, whole)
        return values, None, diagnostics(search)
    learnt, search = learn(problem, units, options, user_start, whole)
    if under_user_priors(problem):
        values, search = mode_of_tables(problem, units, options, learnt.mean, whole)
        return values, None, diagnostics(search)
    return learnt.mean, learnt if options.method == "vmp" else None, diagnostics(search)


def by_draws(problem: LinearProblem, units: Units, options: Options, user_start: Parameters | None) -> Outcome:
    """Draws, from the mode of a structure, or from the best q of tables."""
    method = "em" if isinstance(problem.emission, Irregular) or under_user_priors(problem) else "vmp"
    quiet = options.before_draws(method)
    values, posterior, how = by_climb(problem, units, quiet, user_start)
    drawn = None if how["interrupted"] else draw(problem, units, options, values)
    if drawn is None:
        return values, posterior, how | only_start(options.method, method)
    draws, how = drawn
    return draws.mean | problem.fixed, draws, how


def check_options(problem: LinearProblem, options: Options) -> None:
    """Raise ValueError for a method that the model does not have."""
    if options.method == "vmp" and isinstance(problem.emission, Irregular):
        raise ValueError(
            f'method: got "vmp", but states of {problem.dynamics!r} are partly without noise, so they have no '
            'density; use "em", "svi" or "nuts".'
        )
    if options.method == "vmp" and under_user_priors(problem):
        names = ", ".join(problem.emission.user_priors)
        raise ValueError(
            f'method: got "vmp", which supports no distribution as a prior of {names}; use "em", "svi" or "nuts".'
        )


def under_user_priors(problem: LinearProblem) -> bool:
    """Whether tables have priors of the user."""
    emission = problem.emission
    return not isinstance(emission, Irregular) and problem.prior is not None and bool(emission.user_priors)


# ---- parameters from the user ---------------------------------------------------------------------------------------


def fixed_values(problem: LinearProblem, options: Options) -> Parameters:
    """The parameters to hold, in float64, with NaN for entries that are free.

    Raises:
        ValueError: see `read_fixed`; for a structure or a method that samples, some but not all of the parameters that
            belong together.
    """
    fixed = options.fixed
    if not fixed:
        return {}
    if isinstance(problem.emission, Irregular):
        values = problem.values_of(typical(problem.dynamics, problem.emission) | dict(fixed))
        _check_whole([*problem.emission.structure.orders.values()], fixed)
        tables = {name: values[name].double() for name in values if name in fixed}
        if len(tables) == len(values):
            raise ValueError("fixed: got all parameters, which leaves nothing to fit; use model.with_values(...).")
        if problem.prior is not None:
            check_possible(problem.emission.user_priors, tables, "fixed")
        return tables
    lengths = sizes(problem.dynamics, problem.emission)
    tables = read_fixed(problem.parameters, lengths, fixed, problem.series.like)
    known_points(one_point(open_values(problem.parameters, lengths, tables), problem.emission, inverse_in_groups))
    if options.method not in ("em", "vmp") or under_user_priors(problem):
        some = [name for name, table in tables.items() if bool(table.isnan().any())]
        if some:
            beside, cure = f'method="{options.method}"', 'use "em" or "vmp"'
            if under_user_priors(problem):
                beside, cure = "a fit under distributions in prior", "leave these out"
            raise ValueError(f"fixed: got {some} in part, which {beside} cannot hold; {cure}, or give whole tables.")
        _check_whole([*NAMES.values()], tables)
    return tables


def _check_whole(together: Iterable[Sequence[str]], fixed: Mapping[str, Any]) -> None:
    for names in together:
        some = [name for name in names if name in fixed]
        if some and len(some) < len(names):
            raise ValueError(f"fixed: got {some} without the rest of {list(names)}; give all of these, or none.")


def start_values(problem: LinearProblem, start: Any) -> Parameters:
    """The values from which a fit starts: those of a model, of a fit, or by name.

    Raises:
        TypeError, ValueError: they are no values of the model, or a user prior excludes one that is not held.
    """
    values = values_of_model(start)
    if not isinstance(values, Mapping):
        raise TypeError(f"start: got {type(start).__name__}, expected a model, a fit, or values by name.")
    tables = {name: value.double() for name, value in problem.values_of(values).items()}
    if isinstance(problem.emission, Irregular) and problem.prior is not None:
        check_possible(problem.emission.user_priors, tables, "start", problem.fixed)
    return tables
