"""The start and the fixed parameters of a fit, from the user's arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..data.cells import to_tensor
from ..parameters import Parameters
from ..problem import Problem
from .options import Options
from .starts import first_guesses, from_labels
from .units import Units


@dataclass(frozen=True)
class Initialization:
    """A problem that is ready to be fitted.

    Attributes:
        problem: the problem with its fixed parameters, in the units of the data.
        units: the units of the fit.
        scaled: the problem in these units.
        start: the user's start `[1, ...]` in these units.
        volume: the increase of the log density of all sequences in these units.
    """

    problem: Problem
    units: Units
    scaled: Problem
    start: Parameters | None
    volume: float

    @staticmethod
    def of(problem: Problem, options: Options, near_prior: bool) -> "Initialization":
        """Choose units, and read the user's `fixed` and `start`; `near_prior`: see `Units.near_prior`.

        Raises:
            ValueError: `fixed` or `start` does not fit the problem.
        """
        units = Units.of(problem.emission, problem.series)
        if options.fixed:
            problem = replace(problem, fixed=fixed_values(problem, units, options.fixed))
        units = units.near_prior(problem) if near_prior else units
        start = None if options.start is None else start_values(problem, units, options.start)
        volume = float(units.log_volume(problem.series).sum())
        return Initialization(problem, units, units.problem(problem), start, volume)


def fixed_values(problem: Problem, units: Units, fixed: Any) -> Parameters:
    """The parameters to hold, under their names in the program.

    Raises:
        ValueError: they do not fit the problem, or they are all of its parameters.
    """
    whole, names = _completed(problem, units, "fixed", fixed)
    if set(names) == set(problem.parameters):
        raise ValueError("fixed: got all parameters, which leaves nothing to fit; use model.with_values(...).")
    return {name: whole[name][0] for name in names}


def start_values(problem: Problem, units: Units, start: Any) -> Parameters:
    """Parameters `[1, ...]` in these units, from a model, values by name (some may be missing), or labels.

    Raises:
        ValueError: they do not fit the problem.
    """
    start = values_of_model(start)
    if isinstance(start, Mapping):
        return units.values(_completed(problem, units, "start", start)[0])
    return from_labels(units.problem(problem), _labels(problem, start))


def values_of_model(start: Any) -> Any:
    """The values of a model, or of the model of a fit; other objects unchanged."""
    start = getattr(start, "model", start)
    values = start if isinstance(start, Mapping) else getattr(start, "values", None)
    if not isinstance(values, Mapping):
        return start
    if not values and values is not start:
        raise ValueError("start: got a model without values; fit it, or give it some by with_values(...).")
    return values


def _completed(problem: Problem, units: Units, argument: str, some: Mapping[str, Any]) -> tuple[Parameters, list[str]]:
    """All parameters `[1, ...]`, with a first guess for missing ones, and the names of those in `some`."""
    known = problem.parameters
    name_of = {p.shown.name: name for name, p in known.items() if p.shown} | {name: name for name in known}
    unknown = sorted(set(some) - set(name_of))
    if unknown:
        raise ValueError(f"{argument}: got unknown parameter(s) {unknown}; this model has {sorted(name_of)}.")
    names = sorted({name_of[name] for name in some})
    guesses = units.back(first_guesses(units.problem(problem), 1, 0).values)
    guess = {name: value[0] for name, value in guesses.items() if name not in names}
    try:
        whole = problem.values_of(guess | dict(some))
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None
    return {name: value.detach().to(problem.series.like)[None] for name, value in whole.items()}, names


def _labels(problem: Problem, start: Any) -> Tensor:
    """A state for every step, -1 if it is not known."""
    expected = (*problem.series.batch_shape, problem.series.n_steps)
    table = to_tensor(start, "start")
    if tuple(table.shape) != expected:
        raise ValueError(
            f"start: got labels of shape {tuple(table.shape)}, expected {expected}, a state for each step; or give a "
            "model, or values by name."
        )
    labels = table.double().nan_to_num(nan=-1.0)
    if bool(((labels % 1 != 0) | (labels < -1) | (labels >= problem.n_states)).any()):
        raise ValueError(
            f"start: got labels from {labels.min():g} to {labels.max():g}, expected states 0 to "
            f"{problem.n_states - 1}, and -1 or NaN if it is not known."
        )
    return labels.long()
