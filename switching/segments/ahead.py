"""The distribution of each observation given those before it: residuals, draws, and new series along a posterior."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..emissions.contract import ByGate
from ..emissions.driven import inputs_read
from ..judging.scores import limits
from ..mixture import StateMixture
from ..parameters import Parameters
from .predictive import predicted


def predictions(problem: Any, values: Parameters, lead: int = 0) -> Iterator[StateMixture]:
    """The predictive distribution of each step, in turn, with an axis of one step: parameters are integrated out, and
    what is mixed are beginnings of its segment. `lead` axes of the values are those of draws."""
    emission, series = problem.emission, problem.series
    inputs = inputs_read(emission, series, series.drive).double() if emission.n_inputs else None
    chain = problem.chain({name: value.double() for name, value in values.items()})
    for t, (weight, natural) in enumerate(chain.before_each()):
        weights = problem.each(weight, lead).unsqueeze(-2)
        eta = problem.apart(natural[0], -2, lead)
        beside = None if inputs is None else inputs[..., t : t + 1, :]
        plain = predicted(emission, eta, problem.rows.about, beside).cut(lambda table: table.to(series.like))
        yield StateMixture(plain, {}, ByGate(weights / 2, weights / 2))  # equal gates, as in forecasts


def limits_before(problem: Any, values: Parameters) -> dict[str, Tensor]:
    """P(X_t < x_t) and P(X_t <= x_t) given the observations before, `[*b, T, F]`; NaN where x_t is missing."""
    x = problem.series.observations
    ends = [limits(one, x[..., t : t + 1, :]) for t, one in enumerate(predictions(problem, values))]
    below, at = (torch.cat(parts, -2) for parts in zip(*ends, strict=True))
    return {"below": below, "at": at}


def draws_ahead(problem: Any, values: Parameters, each: int) -> Float[Tensor, "total *b T F"]:
    """`each` draws of every observation given those before it, for each draw `[n, ...]` of the values. Sequences that
    change together are drawn apart."""
    steps = [one.sample((each,)) for one in predictions(problem, values, lead=1)]
    return torch.cat(steps, -2).transpose(0, 1).flatten(0, 1)


def draws_along(problem: Any, drawn: Any) -> Float[Tensor, "total *b T F"]:
    """New series with the changes and parameters of draws `[each, n, *b, T]` from the posterior."""
    emission, series = problem.emission, problem.series
    values = problem.own_at(drawn.parameters[0], lead=2)
    axis = 2 + len(series.batch_shape)
    # after the end of a sequence there is no parameter; what is drawn there is not used
    values = {name: torch.where(t.isnan(), t.select(axis, 0).unsqueeze(axis), t) for name, t in values.items()}
    if emission.n_inputs:
        emission = emission.beside(inputs_read(emission, series, series.drive))
    return emission.distribution(values).sample().to(series.like).transpose(0, 1).flatten(0, 1)
