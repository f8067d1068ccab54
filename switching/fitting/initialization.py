"""The start and the fixed parameters of a fit, from the user's arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from ..data.frames import to_tensor
from ..data.series import Series
from ..dynamics.any_prior import check_start
from ..entries import Entries, PossibleRows
from ..known import is_whole, known_rows
from ..parameters import SYMMETRIC, Parameters, described, is_simplex, read_table
from ..problem import Problem
from .options import Options
from .starts import first_guesses, from_labels
from .units import Units
from .whole import Whole


@dataclass(frozen=True)
class Initialization:
    """A problem that is ready to be fitted.

    Attributes:
        problem: the problem with its fixed parameters, in the units of the data.
        units: the units of the fit.
        scaled: the problem in these units.
        start: the user's start `[1, ...]` in these units.
        volume: the increase of the log density of all sequences in these units.
        sample_volume: of the sequences of the problem, if they are a sample.
        whole: all data in these units, if the series of the problem is a sample of them.
        sharing: all data, whose processes share the search on the sample.
    """

    problem: Problem
    units: Units
    scaled: Problem
    start: Parameters | None
    volume: float
    sample_volume: float = 0.0
    whole: Whole | None = None
    sharing: Whole | None = None

    @staticmethod
    def of(
        problem: Problem, options: Options, near_prior: bool, whole: Whole | None = None, of_sample: bool = False
    ) -> "Initialization":
        """Choose units, and read the user's `start`.

        Arguments:
            near_prior: see `Units.near_prior`.
            whole: all data, if the series of the problem is a sample of them.
            of_sample: whether the fit is that of the sample alone.

        Raises:
            ValueError: `start` does not fit the problem.
        """
        units = Units.of_problem(problem)
        units = units.near_prior(problem) if near_prior else units
        start = None if options.start is None else start_values(problem, units, options.start)
        volume = float(units.log_volume(problem.series).sum())
        initial = Initialization(problem, units, units.problem(problem), start, volume, sharing=whole)
        if whole is None or of_sample:
            return initial
        return replace(initial, volume=whole.log_volume(units), sample_volume=volume, whole=replace(whole, units=units))


def with_fixed(problem: Problem, fixed: Any) -> Problem:
    """The problem with the tables of the parameters to hold, under their names in the program; NaN marks free entries.

    Raises:
        ValueError: they do not fit the problem, or they are all of its parameters.
    """
    if not fixed:
        return problem
    units = Units.of_problem(problem)
    tables = {name: read_table(value, f"fixed[{name!r}]") for name, value in fixed.items()}
    tables = {name: table for name, table in tables.items() if not bool(table.isnan().all())}
    free = {name: table.isnan() for name, table in tables.items()}
    completed, called = _completed(problem, units, "fixed", tables)
    known = {name: completed[name][0] for name in called}
    for name, given in called.items():
        known[name] = _with_gaps(problem.parameters[name].support, known[name], free[given])
    if set(known) == set(problem.parameters) and all(map(is_whole, known.values())):
        raise ValueError("fixed: got all parameters, which leaves nothing to fit; use model.with_values(...).")
    problem.dynamics.check_states(problem.series, known)
    return replace(problem, fixed=known)


def _with_gaps(support: Constraint, table: Tensor, free: Tensor) -> Tensor:
    """A table with NaN at its free entries."""
    free = free.to(table.device)
    if isinstance(support, Entries | PossibleRows):
        free = free & support.free.to(table.device)
    if is_simplex(support):
        free = free & (free.sum(-1, keepdim=True) > 1)  # a single one is the rest
    return table.masked_fill(free, torch.nan)


def start_values(problem: Problem, units: Units, start: Any) -> Parameters:
    """Parameters `[1, ...]` in these units, from a model, values by name (some may be missing), or labels.

    Raises:
        ValueError: they do not fit the problem, or a user's prior excludes them.
    """
    other, start = getattr(getattr(start, "model", start), "origin", None), values_of_model(start)
    if isinstance(start, Mapping):
        completed = _completed(problem, units, "start", start)[0]
        if problem.prior is not None:
            check_start(problem.dynamics.any_priors, completed, problem.fixed)
        return units.about_inputs(_apart(other, problem.series)).values(completed)
    return from_labels(units.problem(problem), _labels(problem, start))


def _apart(origin: Tensor | None, series: Series) -> Tensor | None:
    """The inputs at which a start is stated, in those of the problem; None: they are the same."""
    if origin is None and series.scaling is None:
        return None
    ours = 0.0 if series.scaling is None else series.scaling.origin
    return (torch.zeros_like(ours) if origin is None else origin) - ours  # type: ignore[arg-type]


def values_of_model(start: Any) -> Any:
    """The values of a model, or of the model of a fit; other objects unchanged."""
    start = getattr(start, "model", start)
    values = start if isinstance(start, Mapping) else getattr(start, "values", None)
    if not isinstance(values, Mapping):
        return start
    if not values and values is not start:
        raise ValueError("start: got a model without values; fit it, or give it some by with_values(...).")
    return values


def _completed(
    problem: Problem, units: Units, argument: str, some: Mapping[str, Any]
) -> tuple[Parameters, dict[str, str]]:
    """All parameters `[1, ...]`, with a first guess for missing ones and entries, and the caller's names of those in
    `some`."""
    known = problem.parameters
    name_of = {p.shown.name: name for name, p in known.items() if p.shown} | {name: name for name in known}
    unknown = sorted(set(some) - set(name_of))
    if unknown:
        raise ValueError(f"{argument}: got unknown parameter(s) {unknown}; this model has {sorted(name_of)}.")
    called = {name_of[name]: name for name in sorted(some)}
    guess, shown = {}, {}
    if len(called) < len(known) or any(bool(read_table(value, name).isnan().any()) for name, value in some.items()):
        guesses = {n: value[0] for n, value in units.back(first_guesses(units.problem(problem), 1, 0).values).items()}
        guess = {name: value for name, value in guesses.items() if name not in called}
        shown = described(known, guesses) | guesses
    try:
        filled = {
            name: _filled(name, value, known[name_of[name]].support, shown[name]) if shown else value
            for name, value in some.items()
        }
        completed = problem.values_of(guess | filled)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None
    return {name: value.detach().to(problem.series.like)[None] for name, value in completed.items()}, called


def _filled(name: str, value: Any, support: Constraint, guess: Tensor) -> Any:
    """The user's numbers, with a guess in place of NaN; free probabilities share the rest of their row."""
    table = value if isinstance(value, Tensor) else read_table(value, name)
    free = table.isnan()
    if table.shape != guess.shape or not bool(free.any()):
        return value
    if support in SYMMETRIC and bool((free.flatten(-2).any(-1) != free.flatten(-2).all(-1)).any()):
        raise ValueError(f"{name}: got a matrix with some NaN entries; give all of its entries, or none.")
    if not is_simplex(support):
        return torch.where(free, guess.to(table), table)
    if isinstance(support, PossibleRows):
        table = torch.where(free & ~support.free.to(table.device), 0.0, table)
    table = known_rows(name, table.double())
    rest = 1 - table.nan_to_num(0.0).sum(-1, keepdim=True)
    return torch.where(table.isnan(), rest / table.isnan().sum(-1, keepdim=True).clamp_min(1), table)


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
