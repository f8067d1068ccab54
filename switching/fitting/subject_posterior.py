"""The posterior of the parameters of one subject, from that of all."""

from dataclasses import replace
from typing import Any

from ..data.series import Series
from ..parameters import of_subject
from .chain_graph import blocks_of
from .population_posterior import PopulationPosterior
from .posterior import DrawnPosterior, VariationalPosterior


def subject_posterior(whole: Any, model: Any, alone: Any, series: Series, subject: int) -> Any:
    """The part of a subject.

    Draws of the posterior itself (`refined`) exist if no other subject says anything about its parameters.

    Arguments:
        whole: the posterior of all subjects.
        model, alone: the models of all subjects and of this one.
        series: the sequences of the subject.
    """
    common = any(parameter.dims[:1] != ("subject",) for parameter in model.known.values())
    if isinstance(whole, DrawnPosterior):
        draws = of_subject(model.known, whole.draws, subject, lead=2)
        problem = None if common or whole.problem is None else alone.problem(series)
        return replace(whole, draws=draws, problem=problem, model=alone).labelled(alone, series)
    assert isinstance(whole, VariationalPosterior)
    assert whole.units is not None
    fixed = {} if whole.problem is None else of_subject(model.known, whole.problem.fixed, subject)
    problem = replace(alone.problem(series), fixed=fixed)
    known = {**model.dynamics.blocks, "emission": model.emission, "background": model.emission}
    own = {n for n, block in known.items() if all(p.dims[:1] == ("subject",) for p in block.parameters.values())}
    etas = {name: eta[subject] if name in own else eta for name, eta in whole.blocks.items()}
    blocks = blocks_of(alone.dynamics, alone.emission, fixed)
    posterior = type(whole).of_chain(etas, blocks, whole.units, problem, alone)
    if isinstance(whole, PopulationPosterior):
        posterior = replace(posterior, populations=whole.populations, together=whole, subject=subject)
    return (replace(posterior, problem=None) if common else posterior).labelled(alone, series)
