"""`model.fit`: the record it returns, and the walk from observations to that record."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.message_passing.factor_graph import ImproperError
from ...inference.numerics.cholesky import NotDefiniteError
from ..data.series import Series
from ..emissions.contract import ConjugateEmission
from ..emissions.spread import check_squares
from ..model import SwitchingSSM
from ..parameters import Parameters, reordered
from ..problem import Problem
from .alignment import match_states, state_levels
from .em import EM
from .given import fixed_values, own_start
from .graph import renumbered
from .interrupts import sheltered
from .message_passing import fit_vmp
from .options import Options
from .posterior import VariationalPosterior
from .progress import Progress
from .sampling import Sampled, fit_nuts, fit_svi
from .search import Found, Report, search
from .units import Units

if TYPE_CHECKING:
    import arviz as az
    from matplotlib.figure import Figure

    from ..views.summary import Summary

Model = TypeVar("Model")


@dataclass(frozen=True, repr=False)
class Fit(Generic[Model]):
    """A fitted model and how it came about.

    Attributes:
        model: the model with its fitted values.
        method: how it was fitted, e.g. "em".
        objective: `[steps]`, what was maximised, after each step of the best restart. Of minibatches: the estimate of
            the bound in each pass, and at the end the bound itself.
        converged: whether the best restart met the tolerance.
        reason: why it ended, in words.
        steps: how many steps the best restart took.
        restarts: a table of one row a start: of what kind it was, its steps, where it ended and how ("converged",
            "left behind" by better ones, "max_steps", "interrupted"), and whether that is within 0.01 nats of the best.
        empty_states: `[K]`, states left with less than one expected step: their parameters are those of the prior, or
            under maximum likelihood the last that had any support. Of a model of several chains: one tensor for each.
        collapsed_states: `[K]`, states that sit on a single point under maximum likelihood; the likelihood has no
            maximum there and the variance is held at a floor.
        interrupted: whether Ctrl-C ended the fit; the best so far is kept.
        posterior: the parameters' distribution, and predictions that take it in; None of a fit by EM, which is a point.
        paths: of a model of several chains, each chain's marginals under q.
        series: what was fitted; the methods take it where they are given no x. `save` keeps the model alone.
        prior: the argument of `fit`.
        fixed: the names of the parameters that were held.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
        >>> fit = model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], method="vmp", progress=False)
        >>> fit.converged, fit.posterior.interval(0.9).lower["loc"].shape
        (True, torch.Size([2, 1]))
    """

    model: Model
    method: str
    objective: Float[Tensor, "S"]
    converged: bool
    steps: int
    restarts: pd.DataFrame
    empty_states: Bool[Tensor, "K"] | tuple[Tensor, ...]
    collapsed_states: Bool[Tensor, "K"] | tuple[Tensor, ...]
    interrupted: bool = False
    reason: str = ""
    posterior: Any = None  # a Posterior, whose methods differ with the model
    paths: Any = None
    series: Series | None = None
    prior: Any = "weak"
    fixed: tuple[str, ...] = ()

    @property
    def active_states(self) -> Any:
        """`[K]`, which states are in use: those expected to have at least one step."""
        empty = self.empty_states
        return tuple(~chain for chain in empty) if isinstance(empty, tuple) else ~empty

    @property
    def agreeing(self) -> int:
        """How many restarts ended within 0.01 nats of the best."""
        return int(self.restarts.agrees.sum())

    # ---- how well it describes what was fitted ----------------------------------------------------------------------

    @property
    def loglik(self) -> float:
        """log p(x) of all sequences that were fitted, at the fitted values."""
        with torch.no_grad():
            return float(self._model.log_evidence(self._given(None)).sum())

    @property
    def n_parameters(self) -> int:
        """How many numbers the fit chose freely."""
        return self._model.n_free(self.fixed)

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 n_parameters - 2 loglik; of a fit by EM."""
        self._check_point("aic")
        return 2 * self.n_parameters - 2 * self.loglik

    @property
    def bic(self) -> float:
        """Schwarz's criterion, log(observed steps) n_parameters - 2 loglik; of a fit by EM."""
        self._check_point("bic")
        return math.log(self._given(None).n_observed) * self.n_parameters - 2 * self.loglik

    def summary(self, level: float = 0.9) -> "Summary":
        """How the fit went, its parameters with standard errors and intervals, and its states; print it.

        A fit by EM has its standard errors from the curvature of what was maximised (see `fitting.curvature`), others
        from their posterior. `.statistics`, `.parameters` and `.states` are the same in pandas.

        Arguments:
            level: probability of the intervals.

        Raises:
            ValueError: level outside (0, 1).
        """
        from ..views.summary import summarise

        return summarise(self, self._given(None), level)

    # ---- what its model says ----------------------------------------------------------------------------------------

    def log_evidence(self, x: Any = None, **given: Any) -> Tensor:
        """That of the fitted model, as the six below; of the series that was fitted where none is given."""
        return self._model.log_evidence(self._given(x), **given)

    def filter(self, x: Any = None, **given: Any) -> Any:
        """See `model.filter`."""
        return self._model.filter(self._given(x), **given)

    def smooth(self, x: Any = None, **given: Any) -> Any:
        """See `model.smooth`."""
        return self._model.smooth(self._given(x), **given)

    def viterbi(self, x: Any = None, **given: Any) -> Any:
        """See `model.viterbi`."""
        return self._model.viterbi(self._given(x), **given)

    def states(self, x: Any = None, **given: Any) -> pd.DataFrame:
        """See `model.states`."""
        return self._model.states(self._given(x), **given)

    def forecast(self, x: Any = None, horizon: int = 1, **given: Any) -> Any:
        """See `model.forecast`; of the series that was fitted by `fit.forecast(horizon=n)`."""
        if isinstance(x, Integral) and not isinstance(x, bool):
            raise ValueError(f"x: got {x}, a single number; the number of steps is given by name, as horizon={x}.")
        return self._model.forecast(self._given(x), horizon, **given)

    def _given(self, x: Any) -> Any:
        """What was given, or what was fitted."""
        if x is None and self.series is None:
            raise ValueError("x: got None, but this fit keeps no series; give one.")
        return self.series if x is None else x

    def _check_point(self, name: str) -> None:
        if self.posterior is not None:
            raise ValueError(
                f'{name}: got a fit by "{self.method}", which is no point; use az.loo(fit.to_arviz()), or method="em".'
            )

    @property
    def _model(self) -> Any:
        return self.model

    def __repr__(self) -> str:
        """What was fitted, how it ended, and the values where they are few."""
        objective = f"{float(self.objective[-1]):.6g}" if len(self.objective) else "none"
        lines = [f"Fit by {self.method}: objective {objective} after {self.steps} steps, {self.reason}"]
        if len(self.restarts) > 1:
            lines.append(f"{self.agreeing} of {len(self.restarts)} starts within 0.01 nats of the best")
        return "\n".join([*lines, repr(self.model)])

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from ..views.pages import fit_page

        return fit_page(self)

    def to_arviz(self, x: Any = None, **keywords: Any) -> "az.InferenceData":
        """InferenceData of this fit and the series x, or what was fitted; see `switching.views.arviz.to_arviz`."""
        from ..views.arviz import to_arviz

        return to_arviz(self, self._given(x), **keywords)

    def plot(self, x: Any = None, **keywords: Any) -> "Figure":
        """The series x, or what was fitted, with state means and bands, the smoothed states and redraws; see
        `model.plot`."""
        return self._model.plot(self._given(x), **keywords)


@sheltered()
def fit_model(model: SwitchingSSM, series: Series, options: Options) -> Fit[SwitchingSSM]:
    """See `SwitchingSSM.fit`."""
    check_enough(series, model.n_states)
    if series.covariates is not None:
        sizes = series.covariates.detach().flatten(0, -2).abs().amax(0).clamp_min(1)
        check_squares("covariates", sizes, series.observations.dtype, series.drivers, "reaches")
    units = Units.of(model.emission, series)
    model = model if options.prior is None else model.scaled_to(series)
    problem = model.problem(series)
    if options.prior is None:
        problem = replace(problem, prior=None)
    if options.fixed:
        problem = replace(problem, fixed=fixed_values(model, problem, units, options.fixed))
    with definite():
        fit = _fitted(model, problem, units, options)
    return replace(fit, fixed=tuple(problem.fixed))


@contextmanager
def definite() -> Iterator[None]:
    """Inside, covariances that rounding leaves none are called what the caller gave: x."""
    try:
        yield
    except (NotDefiniteError, ImproperError) as error:
        raise ValueError(
            f"x: rounding leaves no covariance of some state ({error}); see whether features add up to others, and how "
            'far from the data the prior lies: leave such a feature out, use prior="weak", or give float64.'
        ) from error


def _fitted(model: SwitchingSSM, problem: Problem, units: Units, options: Options) -> Fit[SwitchingSSM]:
    if options.method == "em":
        return _by_em(model, problem, units, options)
    if options.method == "vmp":
        return _by_message_passing(model, problem, units, options)
    start = _start(model, problem, units, options)
    if start.interrupted:
        return start
    sampled = (fit_svi if options.method == "svi" else fit_nuts)(model, problem, options, start.model.values)
    return (
        _of_draws(model, problem, options.method, sampled) if sampled is not None else replace(start, interrupted=True)
    )


def _by_em(model: SwitchingSSM, problem: Problem, units: Units, options: Options) -> Fit[SwitchingSSM]:
    check_modes(problem)
    own = None if options.start is None else own_start(model, problem, units, options.start)
    inner = units.problem(problem)
    volume = float(units.log_volume(problem.series).sum()) + units.log_prior_volume(problem)
    with Progress(f"EM, {options.restarts} restarts", options.max_steps, options.progress) as shown:
        found = search(
            inner, partial(EM, inner), lambda v: inner.chain(v).smooth().state, options, _less(shown, volume), own
        ).raised(-volume)
    best = found.best
    order = _order(inner, own, best.tables)
    values = reordered(problem.parameters, best.tables, order)
    occupancy = EM(inner, {name: value.unsqueeze(0) for name, value in values.items()}).occupancy[0]
    values = units.back(values) | problem.fixed
    return Fit(
        model=model._copy({name: value.clone() for name, value in values.items()}, model.prior),
        method="em",
        empty_states=occupancy < 1.0,
        collapsed_states=torch.zeros_like(occupancy > 0) if best.collapsed is None else best.collapsed[order],
        **course(found),
    )


def _by_message_passing(model: SwitchingSSM, problem: Problem, units: Units, options: Options) -> Fit[SwitchingSSM]:
    units = units.near_prior(problem)
    own = None if options.start is None else own_start(model, problem, units, options.start)
    inner, volume = units.problem(problem), float(units.log_volume(problem.series).sum())
    with Progress(f"VMP, {options.restarts} restarts", options.max_steps, options.progress) as shown:
        ended = fit_vmp(inner, options, _less(shown, volume), own)
    posterior = VariationalPosterior(model, ended.etas, units, problem)
    order = _order(inner, own, units.values(posterior.mean))
    posterior = replace(posterior, blocks=renumbered(posterior.known_blocks, ended.etas, order))
    empty = ended.occupancy[order] < 1.0
    return Fit(
        model=model._copy(posterior.mean, model.prior),
        method="vmp",
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        posterior=posterior,
        **course(ended.found.raised(-volume)),
    )


def _order(problem: Problem, own: Parameters | None, values: Parameters) -> Int[Tensor, "K"]:
    """The states by their locations; where the user has numbered them, as in that start, or as they are fixed."""
    if any("state" in problem.parameters[name].dims for name in problem.fixed):
        return torch.arange(problem.n_states, device=problem.series.observations.device)
    if own is not None:
        some = {name: value.unsqueeze(0) for name, value in values.items()}
        return match_states(problem, some, {name: value[0] for name, value in own.items()})[0]
    return state_levels(problem.emission, values).argsort(stable=True)


def _less(report: Report, volume: float) -> Report:
    """Of heights in units of the data's spread what they are in the data's own."""
    return lambda step, best: report(step, best - volume)


def course(found: Found) -> dict[str, Any]:
    """Of a record how its fit went."""
    return {
        "objective": torch.tensor(found.best.trace, dtype=torch.float64, device="cpu"),
        "converged": found.best.ended == "converged" and not found.interrupted,
        "reason": found.reason,
        "steps": len(found.best.trace),
        "restarts": found.table,
        "interrupted": found.interrupted,
    }


def _start(model: SwitchingSSM, problem: Problem, units: Units, options: Options) -> Fit[SwitchingSSM]:
    """The fit by message passing, or where there is no conjugate prior by EM, from which the samplers go on."""
    conjugate = all(isinstance(part.emission, ConjugateEmission) for part in problem.emission.parts)
    quiet = replace(options, method="vmp" if conjugate else "em", max_steps=500, progress=False)
    return (_by_message_passing if conjugate else _by_em)(model, problem, units, quiet)


def _of_draws(model: SwitchingSSM, problem: Problem, method: str, sampled: Sampled) -> Fit[SwitchingSSM]:
    empty = sampled.occupancy < 1.0
    return Fit(
        model=model._copy(sampled.posterior.mean | problem.fixed, model.prior),
        method=method,
        objective=sampled.objective,
        converged=sampled.converged,
        reason=sampled.reason,
        steps=len(sampled.objective),
        restarts=sampled.restarts,
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        interrupted=sampled.interrupted,
        posterior=sampled.posterior,
    )


def check_enough(series: Series, n_states: int) -> None:
    """Raise ValueError where the series cannot support a fit."""
    if not series.n_sequences:
        raise ValueError(f"x: got shape {list(series.observations.shape)}, a batch of no sequence; give at least one.")
    observed = ~torch.isnan(series.rows)
    for feature, any_seen in enumerate(observed.any(0).tolist()):
        if not any_seen:
            name = f" ({series.features_of()[feature]})" if series.features else ""
            raise ValueError(f"x: feature {feature}{name} has no observed value; drop it, or give data that has some.")
    n_observed = int(observed.any(-1).sum())
    if n_observed < n_states:
        raise ValueError(f"x: got {n_observed} observed step(s) for {n_states} states; use fewer states or more data.")


def check_modes(problem: Problem) -> None:
    """Raise ValueError where a concentration below 1 leaves the posterior without a mode."""
    for name, table in (problem.prior or {}).items():
        if name.endswith(("concentration", "successes", "failures")) and bool((table < 1).any()):
            raise ValueError(
                f"{name}: got a concentration below 1 ({float(table.min()):g}), under which the posterior has no mode; "
                "EM needs concentrations of at least 1."
            )
