"""`model.fit`: the record it returns, and the walk from observations to that record."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..data.series import Series
from ..emissions.contract import ConjugateEmission
from ..model import SwitchingSSM
from ..parameters import Parameters, reordered
from ..problem import Problem
from .alignment import match_states, state_levels
from .em import EM, occupied
from .given import fixed_values, own_start
from .graph import partly_held, renumbered
from .message_passing import fit_vmp
from .options import Options
from .posterior import VariationalPosterior
from .progress import Progress
from .sampling import Sampled, fit_nuts, fit_svi
from .search import Found, search

if TYPE_CHECKING:
    import arviz as az
    from matplotlib.figure import Figure

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

    @property
    def active_states(self) -> Any:
        """`[K]`, which states are in use: those expected to have at least one step."""
        empty = self.empty_states
        return tuple(~chain for chain in empty) if isinstance(empty, tuple) else ~empty

    @property
    def agreeing(self) -> int:
        """How many restarts ended within 0.01 nats of the best."""
        return int(self.restarts.agrees.sum())

    def log_evidence(self, x: Any, **given: Any) -> Tensor:
        """That of the fitted model, as the six below."""
        return self._model.log_evidence(x, **given)

    def filter(self, x: Any, **given: Any) -> Any:
        """See `model.filter`."""
        return self._model.filter(x, **given)

    def smooth(self, x: Any, **given: Any) -> Any:
        """See `model.smooth`."""
        return self._model.smooth(x, **given)

    def viterbi(self, x: Any, **given: Any) -> Any:
        """See `model.viterbi`."""
        return self._model.viterbi(x, **given)

    def states(self, x: Any, **given: Any) -> pd.DataFrame:
        """See `model.states`."""
        return self._model.states(x, **given)

    def forecast(self, x: Any, horizon: int, **given: Any) -> Any:
        """See `model.forecast`."""
        return self._model.forecast(x, horizon, **given)

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

    def to_arviz(self, x: Any, **keywords: Any) -> "az.InferenceData":
        """InferenceData of this fit and the series x; see `samplehold.switching.views.arviz.to_arviz`."""
        from ..views.arviz import to_arviz

        return to_arviz(self, x, **keywords)

    def plot(self, x: Any, **keywords: Any) -> "Figure":
        """The series with state means and bands, the smoothed states and the redraw probability; see `model.plot`."""
        return self.model.plot(x, **keywords)  # type: ignore[attr-defined]


def fit_model(model: SwitchingSSM, series: Series, options: Options) -> Fit[SwitchingSSM]:
    """See `SwitchingSSM.fit`."""
    check_enough(series, model.n_states)
    model = model.scaled_to(series) if options.prior == "scaled" else model
    problem = model.problem(series)
    if options.prior is None:
        problem = replace(problem, prior=None)
    if options.fixed:
        problem = replace(problem, fixed=fixed_values(model, problem, options.fixed))
    if options.method == "em":
        return _by_em(model, problem, options)
    if options.method == "vmp":
        return _by_message_passing(model, problem, options)
    start = _start(model, problem, options)
    if start.interrupted:
        return start
    sampled = (fit_svi if options.method == "svi" else fit_nuts)(model, problem, options, start.model.values)
    return _of_draws(model, options.method, sampled) if sampled is not None else replace(start, interrupted=True)


def _by_em(model: SwitchingSSM, problem: Problem, options: Options) -> Fit[SwitchingSSM]:
    check_modes(problem)
    own = None if options.start is None else own_start(model, problem, options.start)
    with Progress(f"EM, {options.restarts} restarts", options.max_steps, options.progress) as shown:
        found = search(problem, partial(EM, problem), lambda v: problem.chain(v).smooth().state, options, shown, own)
    best = found.best
    order = _order(problem, own, best.tables)
    values = reordered(problem.parameters, best.tables, order)
    occupancy = occupied(problem.chain(values).marginals()).flatten(0, -2).sum(0)
    return Fit(
        model=model._copy({name: value.clone() for name, value in values.items()}, model.prior),
        method="em",
        empty_states=occupancy < 1.0,
        collapsed_states=torch.zeros_like(occupancy > 0) if best.collapsed is None else best.collapsed[order],
        **course(found),
    )


def _by_message_passing(model: SwitchingSSM, problem: Problem, options: Options) -> Fit[SwitchingSSM]:
    own = None if options.start is None else own_start(model, problem, options.start)
    with Progress(f"VMP, {options.restarts} restarts", options.max_steps, options.progress) as shown:
        ended = fit_vmp(problem, options, shown, own)
    posterior = VariationalPosterior(model, ended.etas, ended.graph.about, problem)
    order = _order(problem, own, posterior.mean)
    posterior = replace(posterior, blocks=renumbered(posterior.known_blocks, ended.etas, order))
    empty = ended.occupancy[order] < 1.0
    return Fit(
        model=model._copy(posterior.mean, model.prior),
        method="vmp",
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        posterior=posterior,
        **course(ended.found),
    )


def _order(problem: Problem, own: Parameters | None, values: Parameters) -> Int[Tensor, "K"]:
    """The states by their locations; where the user has numbered them, as in that start, or as they are fixed."""
    if any("state" in problem.parameters[name].dims for name in problem.fixed):
        return torch.arange(problem.n_states)
    if own is not None:
        some = {name: value.unsqueeze(0) for name, value in values.items()}
        return match_states(problem, some, {name: value[0] for name, value in own.items()})[0]
    return state_levels(problem.emission, values).argsort(stable=True)


def course(found: Found) -> dict[str, Any]:
    """Of a record how its fit went."""
    return {
        "objective": torch.tensor(found.best.trace, dtype=torch.float64),
        "converged": found.best.ended == "converged",
        "reason": found.reason,
        "steps": len(found.best.trace),
        "restarts": found.table,
        "interrupted": found.interrupted,
    }


def _start(model: SwitchingSSM, problem: Problem, options: Options) -> Fit[SwitchingSSM]:
    """The fit by message passing, or where there is no conjugate prior by EM, from which the samplers go on."""
    conjugate = all(isinstance(part.emission, ConjugateEmission) for part in problem.emission.parts)
    conjugate = conjugate and not partly_held(problem)
    quiet = replace(options, method="vmp" if conjugate else "em", max_steps=500, progress=False)
    return (_by_message_passing if conjugate else _by_em)(model, problem, quiet)


def _of_draws(model: SwitchingSSM, method: str, sampled: Sampled) -> Fit[SwitchingSSM]:
    empty = sampled.occupancy < 1.0
    return Fit(
        model=model._copy(sampled.posterior.mean, model.prior),
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
