"""Fits of linear models: a structure climbs its own likelihood, tables go by message passing, both may be sampled."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..data.series import Series
from ..fitting.fit import Fit, check_enough, course, definite
from ..fitting.interrupts import sheltered
from ..fitting.options import Options
from ..fitting.posterior import ParameterPosterior
from ..parameters import Parameters
from .emission import Irregular
from .learning import learn
from .maximum import maximum
from .model import LinearSSM
from .priors import NAMES, Units
from .problem import LinearProblem, typical
from .sampling import draw


@sheltered()
@definite()
def fit_linear(model: LinearSSM, series: Series, options: Options) -> Fit[LinearSSM]:
    """See `LinearSSM.fit`."""
    check_enough(series, 1)
    check_options(model, options)
    if options.prior is not None:
        model = model.scaled_to(series)
    there = partial(_placed, series.observations.device)
    units = Units.of(model.emission, series) if options.prior is None else Units(**there(model.prior))
    fixed = there(fixed_values(model, options.fixed))
    problem = replace(model.problem(series.double()), fixed=fixed)
    problem = replace(problem, prior=None) if options.prior is None else problem
    own = None if options.start is None else there(start_values(model, options.start))
    by = by_climb if options.method in ("em", "vmp") else by_draws
    values, posterior, how = by(problem, units, options, own)
    nothing = torch.zeros(0, dtype=torch.bool, device="cpu")
    return Fit(
        model=model._copy({name: values[name].to(series.observations) for name in model.known}, model.prior),
        method=options.method,
        empty_states=nothing,
        collapsed_states=nothing,
        posterior=posterior,
        fixed=tuple(fixed),
        **how,
    )


def _placed(device: torch.device, tables: Parameters) -> Parameters:
    return {name: table.to(device) for name, table in tables.items()}


Found = tuple[Parameters, ParameterPosterior | None, dict[str, Any]]


def by_climb(problem: LinearProblem, units: Units, options: Options, own: Parameters | None) -> Found:
    """The mode, or the best q."""
    if isinstance(problem.emission, Irregular):
        values, found = maximum(problem, units, options, own)
        return values, None, course(found)
    learnt, found = learn(problem, units, options, own)
    return learnt.mean | problem.fixed, learnt if options.method == "vmp" else None, course(found)


def by_draws(problem: LinearProblem, units: Units, options: Options, own: Parameters | None) -> Found:
    """Draws, from the mode of a structure, or from the best q of tables."""
    method = "em" if isinstance(problem.emission, Irregular) else "vmp"
    quiet = replace(options, method=method, max_steps=500, progress=False)
    values, posterior, how = by_climb(problem, units, quiet, own)
    if how["interrupted"]:
        return values, posterior, how
    drawn = draw(problem, units, options, values)
    if drawn is None:
        return values, posterior, how | {"interrupted": True}
    draws, how = drawn
    return draws.mean | problem.fixed, draws, how


def check_options(model: LinearSSM, options: Options) -> None:
    """Raise ValueError for what a linear model has not."""
    if options.method == "vmp" and isinstance(model.emission, Irregular):
        raise ValueError(
            f'method: got "vmp", but states of {model.dynamics!r} follow from each other without noise, so that they '
            'have no density; use "em", "svi" or "nuts".'
        )


# ---- what a user says of parameters ----------------------------------------------------------------------------------


def fixed_values(model: LinearSSM, given: Any) -> Parameters:
    """What a fit holds, in float64.

    Raises:
        ValueError: what `with_values` raises; a part of what is only known together.
    """
    if not given:
        return {}
    together = [*NAMES.values()]
    if isinstance(model.emission, Irregular):
        together = [*model.emission.structure.orders.values()]
    own = model.with_values(typical(model.dynamics, model.emission) | dict(given)).values
    for names in together:
        some = [name for name in names if name in given]
        if some and len(some) < len(names):
            raise ValueError(f"fixed: got {some} without the rest of {list(names)}; give all of these, or none.")
    return {name: own[name].double() for name in own if name in given}


def start_values(model: LinearSSM, given: Any) -> Parameters:
    """The values that a fit is to start from: of a model, of a fit, or by name."""
    found = getattr(given, "model", given)
    found = found.values if isinstance(found, LinearSSM) else found
    if not isinstance(found, Mapping):
        raise TypeError(f"start: got {type(given).__name__}, expected a model, a fit, or values by name.")
    if not found:
        raise ValueError("start: got a model without values; give one with some.")
    return {name: value.double() for name, value in model.with_values(found).values.items()}
