"""The posterior of the parameters of one subject, from that of all."""

from dataclasses import replace
from typing import Any

from ..data.series import Series
from ..parameters import of_subject
from .chain_graph import blocks_of
from .population_posterior import PopulationPosterior
from .posterior import DrawnPosterior, VariationalPosterior


def subject_posterior(of_all: Any, model: Any, alone: Any, series: Series, subject: int) -> Any:
    """The part of a subject.

    Draws of the posterior itself (`refined`) exist if no other subject says anything about its parameters.

    Arguments:
        of_all: the posterior of all subjects.
        model, alone: the models of all subjects and of this one.
        series: the sequences of the subject.
    """
    common = any(parameter.dims[:1] != ("subject",) for parameter in model.known.values())
    if isinstance(of_all, DrawnPosterior):
        draws = of_subject(model.known, of_all.draws, subject, lead=2)
        problem = None if common or of_all.problem is None else alone.problem(series)
        return replace(of_all, draws=draws, problem=problem, model=alone).labelled(alone, series)
    assert isinstance(of_all, VariationalPosterior)
    assert of_all.units is not None
    fixed = {} if of_all.problem is None else of_subject(model.known, of_all.problem.fixed, subject)
    problem = replace(alone.problem(series), fixed=fixed)
    known = {**model.dynamics.blocks, "emission": model.emission, "background": model.emission}
    own = {n for n, block in known.items() if all(p.dims[:1] == ("subject",) for p in block.parameters.values())}
    etas = {name: eta[subject] if name in own else eta for name, eta in of_all.blocks.items()}
    blocks = blocks_of(alone.dynamics, alone.emission, fixed)
    posterior = type(of_all).of_chain(etas, blocks, of_all.units, problem, alone)
    if isinstance(of_all, PopulationPosterior):
        posterior = replace(posterior, populations=of_all.populations, together=of_all, subject=subject)
    return (replace(posterior, problem=None) if common else posterior).labelled(alone, series)
