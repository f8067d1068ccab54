"""What a user gives a fit besides data: where to start, and what to hold."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..data.reading import to_tensor
from ..model import SwitchingSSM
from ..parameters import Parameters
from ..problem import Problem
from .starts import first_guesses, from_labels
from .units import Units


def fixed_values(model: SwitchingSSM, problem: Problem, units: Units, fixed: Any) -> Parameters:
    """The parameters to hold, under their own names.

    Raises:
        ValueError: they do not fit the model, or leave nothing to fit.
    """
    whole, names = _completed(model, problem, units, "fixed", fixed)
    if set(names) == set(model.known):
        raise ValueError("fixed: got all parameters, which leaves nothing to fit; use model.with_values(...).")
    return {name: whole[name][0] for name in names}


def own_start(model: SwitchingSSM, problem: Problem, units: Units, start: Any) -> Parameters:
    """Parameters `[1, ...]` in these units, from a model, values by name (of which some may be missing), or labels.

    Raises:
        ValueError: they do not fit the model or the series.
    """
    start = getattr(start, "model", start)  # of a fit
    if isinstance(start, SwitchingSSM):
        if not start.values:
            raise ValueError("start: got a model without values; fit it, or give it some by with_values(...).")
        start = start.values
    if isinstance(start, Mapping):
        return units.values(_completed(model, problem, units, "start", start)[0])
    return from_labels(units.problem(problem), _labels(problem, start))


def _completed(
    model: SwitchingSSM, problem: Problem, units: Units, argument: str, given: Mapping[str, Any]
) -> tuple[Parameters, list[str]]:
    """All parameters `[1, ...]`, those that are not given from a first guess; and the names of those that are."""
    own = {p.shown.name: name for name, p in model.known.items() if p.shown} | {name: name for name in model.known}
    unknown = sorted(set(given) - set(own))
    if unknown:
        raise ValueError(f"{argument}: got unknown parameter(s) {unknown}; this model has {sorted(own)}.")
    names = sorted({own[name] for name in given})
    guesses = units.back(first_guesses(units.problem(problem), 1, 0).values)
    guess = {name: value[0] for name, value in guesses.items() if name not in names}
    try:
        whole = model.with_values(guess | dict(given)).values
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None
    return {name: value.detach().to(problem.series.observations)[None] for name, value in whole.items()}, names


def _labels(problem: Problem, start: Any) -> Tensor:
    """A state for every step, -1 where it is not known."""
    expected = tuple(problem.series.observations.shape[:-1])
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
            f"{problem.n_states - 1}, and -1 or NaN where it is not known."
        )
    return labels.long()
