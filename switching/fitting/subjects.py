r"""Fits with parameters by subject, pooled completely, not at all, or in part.

The fit of all subjects with common parameters comes first: its search finds the optimum, and gives the states their
numbers. From there EM, or message passing, continues with parameters of each subject, so that a state has the same
meaning in all subjects.

| `pooled` | parameters of a block |
|---|---|
| "complete" | common to all subjects |
| "partial" | of each subject, from a population whose hyperparameters are fitted: see `population` |
| "none" | of each subject, under the prior of the model |
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.numerics.interrupts import may_interrupt
from ...inference.numerics.scalars import check_choice
from ..data.series import Series
from ..dynamics.contract import Dynamics
from ..emissions.contract import Emission
from ..parameters import Parameter, Parameters, read_table
from ..problem import Problem
from ..responses import CENTER
from .fit import fit
from .initialization import with_fixed
from .options import Options
from .population import fit_population, partial_blocks
from .result import Result, only_start
from .subject_starts import best_of_subjects

POOLED = ("complete", "partial", "none")
EMISSION, DYNAMICS = "emission", "dynamics"


@dataclass(frozen=True)
class Pooling:
    """How the parameters of each block are pooled over subjects.

    Attributes:
        common: the blocks of the dynamics that all subjects share.
        emission: whether emissions differ between subjects.
        partial: the blocks with a population.
    """

    common: tuple[str, ...]
    emission: bool
    partial: tuple[str, ...]

    @staticmethod
    def of(pooled: Any, dynamics: Dynamics, emission: Emission) -> "Pooling | None":
        """The pooling of the argument of `fit`; None: everything is common.

        Raises:
            ValueError: an unknown word or block; blocks that have to be pooled alike.
        """
        names = [*dynamics.blocks, EMISSION]
        if isinstance(pooled, Mapping):
            unknown = sorted(map(str, set(pooled) - {*names, DYNAMICS}))
            if unknown:
                raise ValueError(f"pooled: got {unknown}, expected blocks of this model: {[DYNAMICS, *names]}.")
            words = dict.fromkeys(names, POOLED[0])
            words |= dict.fromkeys(dynamics.blocks, pooled.get(DYNAMICS, POOLED[0]))
            words |= {name: word for name, word in pooled.items() if name != DYNAMICS}
        else:
            words = dict.fromkeys(names, pooled)
        for name, word in words.items():
            check_choice(f"pooled[{name!r}]" if isinstance(pooled, Mapping) else "pooled", word, POOLED)
        if set(words.values()) == {POOLED[0]}:
            return None
        if (reason := dynamics.unusual_prior) is not None:
            raise ValueError(
                f"pooled: got {pooled!r}, but {reason}, which parameters by subject need; give one, or leave pooled= "
                "out."
            )
        if dynamics.not_maximal:
            raise ValueError(
                f"pooled: got {pooled!r}, but {dynamics.name} supports only parameters that all subjects share; leave "
                "pooled= out, or use Markov."
            )
        common = tuple(name for name in dynamics.blocks if words[name] == POOLED[0])
        if 0 < len(common) < len(dynamics.blocks) and (dynamics.not_conjugate or dynamics.inputs):
            raise ValueError(
                f"pooled: got {dict(words)}, but the blocks of dynamics with inputs or a stationary start are fitted "
                f"together; pool {list(dynamics.blocks)} alike."
            )
        if words[EMISSION] != POOLED[0] and emission.joined is not None:
            raise ValueError(
                "pooled: got an emission by subject whose parts share a scale (tied=); leave tied= out, or pool the "
                "emission completely."
            )
        partial = tuple(name for name in names if words[name] == POOLED[1])
        return Pooling(common, words[EMISSION] != POOLED[0], partial)


def check_subjects(
    series: Series, pooling: Pooling, options: Options, dynamics: Dynamics, n_scored: Int[Tensor, "N"]
) -> None:
    """ValueError if subjects cannot have parameters of their own.

    Arguments:
        n_scored: the steps of each sequence that have a density.
    """
    assert series.subjects is not None
    assert series.subject_names is not None
    if len(series.batch_shape) != 1:
        raise ValueError(f"x: got shape {list(series.x.shape)}, expected several sequences on one axis, or a panel.")
    if len(series.subject_names) == 1:
        raise ValueError(
            f"subjects: got only {series.subject_names[0]!r}; parameters by subject need several, so leave pooled= out."
        )
    if dynamics.not_conjugate and not dynamics.no_messages and (pooling.partial or options.method == "vmp"):
        raise ValueError(
            f"pooled: got parameters by subject, but {dynamics.not_conjugate}, which message passing supports only if "
            'all parameters are common; use pooled="none", for some blocks or all, with method="em", "svi" or "nuts".'
        )
    if options.method == "gibbs":
        raise ValueError(
            'pooled: got parameters by subject, but method="gibbs" draws those that all subjects share; use '
            'method="nuts", or leave pooled= out.'
        )
    seen = torch.zeros(len(series.subject_names), dtype=torch.long, device=series.like.device)
    seen = seen.index_add(0, series.subjects, n_scored)
    own = pooling.emission or len(pooling.common) < 1
    for i in (seen < 2).nonzero().flatten().tolist() if own and not pooling.partial else []:
        raise ValueError(
            f"subjects: {series.subject_names[i]!r} has {int(seen[i])} observed step(s), too few for parameters of its "
            'own; leave it out, or use pooled="partial", which takes them from the population.'
        )


def check_populations(problem: Problem, pooling: Pooling, options: Options) -> None:
    """ValueError if a block of a problem with parameters by subject has no population, or the method fits none."""
    if not pooling.partial:
        return
    partial_blocks(problem, pooling.partial)
    if options.method == "em":
        raise ValueError(
            'method: got "em", whose estimates have no spread, so no population can be fitted; use method="vmp" '
            'with pooled="partial".'
        )


def spread_out(known: Mapping[str, Parameter], values: Mapping[str, Any], n_subjects: int) -> dict[str, Any]:
    """Common values as those of each subject, where parameters differ between subjects."""
    of_shown = {parameter.shown.name: name for name, parameter in known.items() if parameter.shown}
    spread = {}
    for name, value in values.items():
        parameter = known.get(of_shown.get(name, name))
        table = None if parameter is None or parameter.dims[:1] != ("subject",) else read_table(value, name)
        wide = table is not None and parameter is not None and table.ndim < len(parameter.dims)
        spread[name] = table.expand(n_subjects, *table.shape) if wide and table is not None else value
    return spread


def fit_subjects(
    problem: Problem, options: Options, start: Parameters, n_subjects: int, partial: tuple[str, ...]
) -> tuple[Result, Parameters | None]:
    """The fit of parameters by subject, from values of all subjects together, and the hyperparameters of their prior.

    Arguments:
        partial: the blocks with a population. Samplers draw under the hyperparameters that message passing fits.
    """
    known = problem.parameters
    fixed = None if options.fixed is None else spread_out(known, options.fixed, n_subjects)
    values = spread_out(known, start, n_subjects)
    if not partial and options.start is None:
        with suppress(KeyboardInterrupt), may_interrupt():
            values = best_of_subjects(with_fixed(problem, fixed), options, values)
    alone = replace(options, restarts=1, start=values, fixed=fixed, pooled="complete")
    if not partial:
        return fit(problem, alone), problem.prior
    quiet = alone if options.method == "vmp" else alone.before_draws("vmp")
    first = fit(problem, quiet)
    here = problem.about_inputs(first.origin)
    found = fit_population(replace(here, fixed=first.held), quiet, first.posterior, partial)
    found = replace(found, origin=first.origin)
    here = replace(here, prior=found.posterior.problem.prior)
    assert here.prior is not None
    prior = here.prior | ({CENTER: problem.prior[CENTER]} if problem.prior and CENTER in problem.prior else {})
    if options.method == "vmp" or found.interrupted:
        as_asked = options.method == found.method
        return found if as_asked else replace(found, **only_start(options.method, found.method)), prior
    result = fit(here, replace(alone, start=found.values))
    origins = [origin for origin in (first.origin, result.origin) if origin is not None]
    return replace(result, origin=sum(origins) if origins else None), prior
