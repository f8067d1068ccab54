"""Starts of parameters that differ between subjects: from the fit of all subjects together, or of a subject alone.

Subjects may differ by more than their states do, for example by an offset. Then the states of the common fit tell the
subjects apart, and within a subject they become the same. So each subject also has first guesses from its own
sequences. All guesses of all subjects take some steps of EM as one batch, and each subject keeps its best end. The
common fit comes first if it is as good, because its states mean the same in all subjects. The states of first guesses
and of their ends are in order of location. Where some parameters are common, all subjects keep the same end.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..emissions.by_subject import of_one
from ..parameters import Parameter, Parameters, of_subject, reordered
from ..problem import Problem
from .climbs import SAME
from .em import EM
from .fit import check_modes, order_of
from .options import Options
from .starts import first_guesses
from .units import Units

GUESSES = 8  # of each subject
STEPS = 40  # of EM
MAX_NUMBERS = 2**20  # numbers in the likelihood tables of all guesses, above which there are fewer


def best_of_subjects(problem: Problem, options: Options, start: Parameters) -> Parameters:
    """The values of each subject from which its own parameters are fitted.

    Arguments:
        problem: with parameters by subject.
        start: the values of the common fit, under the names and with the axes of the problem.
    """
    try:
        check_modes(problem)
    except ValueError:  # EM has no end there
        return start
    units = Units.of_problem(problem)
    scaled, common = units.problem(problem), {n: value.unsqueeze(0) for n, value in units.values(start).items()}
    singles = [_single(scaled, number) for number in range(len(problem.series.subject_names or ()))]
    n = 1 if options.restarts == 1 else max(1, min(GUESSES, MAX_NUMBERS // max(1, scaled.size)))
    guesses = [
        _guessed(one, problem.parameters, common, number, n, options.number) for number, one in enumerate(singles)
    ]
    own = [name for name, parameter in problem.parameters.items() if parameter.dims[:1] == ("subject",)]
    tables = {name: torch.stack([guess[name] for guess in guesses], 1) for name in common}
    tables = {name: table if name in own else table.mean(1) for name, table in tables.items()}
    batch = EM(scaled, {name: torch.cat([common[name], table]) for name, table in tables.items()})
    batch.run(STEPS)
    heights = _heights(scaled, singles, batch.tables)
    if len(own) < len(common):  # the common values of an end belong to all of it
        heights = heights.sum(1, keepdim=True).expand_as(heights)
    best = torch.where(heights.amax(0) > heights[0] + SAME, heights.argmax(0), 0)
    every = torch.arange(len(singles), device=best.device)
    values = {name: t[best, every] if name in own else t[best[0]] for name, t in batch.tables.items()}
    if len(own) == len(common):
        for number in best.nonzero().flatten().tolist():  # EM may have changed the order of a first guess
            one, alone = of_subject(problem.parameters, values, number), singles[number]
            for name, value in reordered(alone.parameters, one, order_of(alone, None, one)).items():
                values[name][number] = value
    return units.back(values)


def _single(problem: Problem, subject: int) -> Problem:
    """The problem of one subject."""
    series = problem.series
    members = (series.subjects == subject).nonzero().flatten()  # type: ignore[union-attr]
    return replace(
        problem,
        dynamics=problem.dynamics.dynamics,  # type: ignore[attr-defined]
        emission=problem.emission.mapped(of_one),
        series=replace(series.part(members), subjects=None, subject_names=None),
        fixed=of_subject(problem.parameters, problem.fixed, subject),
    )


def _guessed(
    one: Problem, known: Mapping[str, Parameter], common: Parameters, subject: int, n: int, seed: int
) -> Parameters:
    """First guesses `[n, ...]` of a subject, with states in order; the common values if it has too few observations."""
    rows = one.series.rows
    if len(rows) < one.n_states or bool(rows.isnan().all(0).any()):
        values = of_subject(known, common, subject, lead=1)
        return {name: value.expand(n, *value.shape[1:]) for name, value in values.items()}
    first = first_guesses(one, n, seed).values
    guesses = [{name: value[i] for name, value in first.items()} for i in range(n)]
    ordered = [reordered(one.parameters, guess, order_of(one, None, guess)) for guess in guesses]
    return {name: torch.stack([guess[name] for guess in ordered]) for name in common}


def _heights(problem: Problem, singles: list[Problem], values: Parameters) -> Tensor:
    """The objective of each subject `[R, S]`."""
    series = problem.series
    evidence = problem.marginals(values).log_normalizer
    by_subject = evidence.new_zeros(len(evidence), len(singles)).index_add(1, series.subjects, evidence)  # type: ignore[arg-type]
    priors = [
        one.log_prior(of_subject(problem.parameters, values, number, lead=1)) for number, one in enumerate(singles)
    ]
    return by_subject + torch.stack([prior.expand(len(evidence)) for prior in priors], -1)
