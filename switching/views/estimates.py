"""The estimates of a fit as tables: their standard errors, intervals and covariance."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit, logit, ndtr, ndtri
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_probability
from ..data.series import Series
from ..entries import of_free
from ..fitting.curvature import Curvature, errors_of
from ..fitting.units import frame_of
from ..intervals import central_interval
from ..parameters import SYMMETRIC, Parameter, Parameters, described, is_simplex
from ..problem import Problem, SeriesProblem
from .tables import Row, coordinates, rows

DRAWS = 10_000  # of a posterior
MOST = 300  # parameters of all subjects, beyond which there is no common curvature


def parameters_of(fit: Any, series: Series, level: float) -> pd.DataFrame:
    """`Summary.parameters` of a fit."""
    level, model = check_probability("level", level, proper=True), fit.model
    if fit.posterior is not None:
        return drawn_parameters(fit.posterior, model, series, level)
    estimates, errors = _estimates(model), errors_of(error_factors(fit, series))
    ends = normal_ends(model.known, estimates, errors, float(ndtri((1 + level) / 2)), fit.held)
    return _with_tests(_table(model, series, estimates, errors, ends), model, series)


def drawn_parameters(posterior: Any, model: Any, series: Series, level: float) -> pd.DataFrame:
    """`Summary.parameters` of a posterior: a model's values, with standard deviations and central intervals of
    draws."""
    drawn = posterior.refined.sample(DRAWS)
    draws = described(model.known, {name: value.double() for name, value in drawn.items()})
    errors = {name: table.std(0) for name, table in draws.items()}
    ends: dict[str, tuple[Any, Any]] = {}
    for name, table in draws.items():
        lower, upper = central_interval(table, level)
        ends[name] = lower, upper
    return _table(model, series, _estimates(model), errors, ends)


def covariance_of(fit: Any, series: Series) -> pd.DataFrame:
    """See `Fit.cov_params`."""
    model, named = fit.model, list(rows(fit.model, coordinates(series, fit.model)))
    if fit.posterior is None:
        factors = error_factors(fit, series)
        size = max((table.shape[-1] for table in factors.values()), default=1)
        lines = [factors[row.parameter][row.index].expand(size) for row in named]
    else:
        drawn = fit.posterior.refined.sample(DRAWS)
        draws = described(model.known, {name: value.double().cpu() for name, value in drawn.items()})
        lines = [draws[row.parameter][(slice(None), *row.index)] for row in named]
        lines = [(line - line.mean()) / (len(line) - 1) ** 0.5 for line in lines]
    table = torch.stack(lines)
    names = pd.Index([row.name for row in named], name="parameter")
    return pd.DataFrame((table @ table.mT).numpy(), index=names, columns=names)


# ---- the numbers -----------------------------------------------------------------------------------------------------


def _estimates(model: Any) -> Parameters:
    return {name: value.double().cpu() for name, value in described(model.known, model.values).items()}


def _table(
    model: Any, series: Series, estimates: Parameters, errors: Parameters, ends: dict[str, tuple[Any, Any]]
) -> pd.DataFrame:
    records = [
        (
            row.name,
            row.state,
            *(float(table[row.parameter][row.index]) for table in (estimates, errors)),
            *(float(end[row.index]) for end in ends[row.parameter]),
        )
        for row in rows(model, coordinates(series, model))
    ]
    columns = ["parameter", "state", "estimate", "standard error", "lower", "upper"]
    return pd.DataFrame.from_records(records, columns=columns, index="parameter")


def error_factors(fit: Any, series: Series, described_as: dict[str, Parameter] | None = None) -> Parameters:
    """The factors of errors from the curvature of the log-likelihood, or with a prior of the log posterior: see
    `Curvature.error_factors`.

    Arguments:
        described_as: the parameters with their displayed forms; None: those of the model.
    """
    forms = fit.model.known if described_as is None else described_as
    curvature = None if fit.kept is not None else curvature_of(fit, series, forms)
    factors = {} if curvature is None else curvature.error_factors()
    return _unknown(forms, fit.model.values) | (factors if fit.kept is None else fit.kept.factors)


def curvature_of(fit: Any, series: Series, forms: Mapping[str, Parameter]) -> Curvature | None:
    """The curvature of the log-likelihood, or with a prior of the log posterior, in the parameters that are not held;
    None if it is unknown.

    Arguments:
        forms: the parameters with their displayed forms.
    """
    model, coupled = fit.model, bool(fit.model.chain_name)
    if not model.differentiable or is_many(fit) or not fit.has_all:
        return None
    problem = model.problem(series)
    prior = None if coupled or fit.prior is None else {name: t.double().cpu() for name, t in problem.prior.items()}
    problem = replace(problem, series=problem.series.cpu().double(), prior=prior)
    frame = frame_of(problem) if isinstance(problem, Problem) else None
    problem = problem.in_frame(frame) if isinstance(problem, Problem) else problem

    def objective(values: Parameters) -> Tensor:
        product = model.product_of(values)
        evidence = problem.total(problem.evidence(product))
        return evidence + problem.log_prior(product)

    values = {name: value.detach().double().cpu() for name, value in model.values.items()}
    values = values if frame is None else frame.into(values)
    fixed = {name: values.pop(name) for name in fit.fixed if name not in in_part(fit)}
    known = {name: forms[name] for name in values}

    def beside_held(free: Parameters) -> Tensor:
        n = len(next(iter(free.values())))
        return objective(free | {name: value.expand(n, *value.shape) for name, value in fixed.items()})

    free = {name: entries.cpu() for name, entries in in_part(fit).items()}

    def back(values: Parameters) -> Parameters:
        return values if frame is None else frame.inverse.into(values | fixed)

    return Curvature.of(beside_held, problem.in_turns, known, values, _unit(problem), free, back)


def draws_around(fit: Any, n: int, seed: Seed) -> Parameters | None:
    """Draws `[n, ...]` of the parameters from the normal of the curvature of a fit by EM, those that are held included;
    Entries at the boundary of their range are the same in all. None if some other free number has no standard error, or
    if the fit has not ended at a maximum. A fit that was saved without its data has some, which do not depend on the
    seed."""
    if fit.kept is not None:
        kept = fit.kept.draws
        return kept and {name: table[torch.arange(n, device=table.device) % len(table)] for name, table in kept.items()}
    curvature = curvature_of(fit, fit.series, fit.model.known)
    if curvature is None:
        return None
    drawn = curvature.sample(n, seed)
    values = fit.model.values
    if drawn is None:
        return None
    return {name: table.expand(n, *values[name].shape) for name, table in (values | drawn).items()}


def _unknown(forms: Mapping[str, Parameter], values: Parameters) -> Parameters:
    """Factors of numbers without standard errors."""
    tables = described(forms, {name: value.double().cpu() for name, value in values.items()})
    return {name: torch.full_like(table, torch.nan).unsqueeze(-1) for name, table in tables.items()}


def _with_tests(table: pd.DataFrame, model: Any, series: Series) -> pd.DataFrame:
    """The table with columns z and p, if the model has coefficients: of these alone."""
    tested = [is_coefficient(row, model) for row in rows(model, coordinates(series, model))]
    if not any(tested):
        return table
    z = (table["estimate"] / table["standard error"]).where(tested)
    table.insert(3, "z", z)
    table.insert(4, "p", 2 * ndtr(-z.abs()))
    return table


def is_coefficient(row: Row, model: Any) -> bool:
    """Whether a number is the coefficient of an input or a lag, which has no effect at 0."""
    known = model.known.get(row.parameter)
    read = {*model.inputs_of, "regressor"}
    return known is not None and of_free(known.support) is constraints.real and not read.isdisjoint(known.dims)


def is_many(fit: Any) -> bool:
    """Whether the parameters of all subjects are too many for one curvature."""
    return bool(fit.model.subjects) and fit.n_parameters > MOST


def in_part(fit: Any) -> dict[str, Tensor]:
    """Which entries are free, of the parameters of which some are held."""
    return {name: table.isnan() for name, table in fit.held.items() if bool(table.isnan().any())}


def _unit(problem: SeriesProblem) -> Tensor:
    """The spread of each feature."""
    observed = problem.series.rows
    about = observed - observed.nanmean(0)
    spread = about.square().nanmean(0).sqrt()
    return torch.where(spread > 0, spread, 1.0)


def normal_ends(
    known: dict[str, Parameter], estimates: Parameters, errors: Parameters, reach: float, held: Parameters
) -> dict[str, tuple[Any, Any]]:
    """The ends of normal intervals, in unconstrained coordinates."""
    ends = {}
    for name, parameter in known.items():
        shown = parameter.shown.name if parameter.shown else name
        support = of_free(parameter.shown.support if parameter.shown else parameter.support)
        at, step = estimates[shown].cpu().numpy(), reach * errors[shown].cpu().numpy()
        with np.errstate(all="ignore"):  # without an error there is no interval
            plain, positive = (at - step, at + step), (at * np.exp(-step / at), at * np.exp(step / at))
            rest = _rest(held.get(name), support, at)
            share = tuple(rest * expit(logit(at / rest) + sign * step / (at * (1 - at / rest))) for sign in (-1, 1))
        if is_simplex(support) or support is constraints.unit_interval:
            ends[shown] = share
        elif support is constraints.positive or support is constraints.nonnegative:
            ends[shown] = positive
        elif support in SYMMETRIC:
            diagonal = np.eye(at.shape[-1], dtype=bool)
            ends[shown] = tuple(np.where(diagonal, a, b) for a, b in zip(positive, plain, strict=True))
        else:
            ends[shown] = plain
    return ends


def _rest(held: Tensor | None, support: constraints.Constraint, at: np.ndarray) -> np.ndarray:
    """The probability that the free entries of each row share."""
    if held is None or not is_simplex(support):
        return np.ones_like(at)
    known = held.double().cpu().numpy()
    return np.broadcast_to(1 - np.nansum(known, -1, keepdims=True), at.shape)
