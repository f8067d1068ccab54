"""`model.fit`: the record it returns, and the walk from observations to that record."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..data.series import Sequences
from .em import Maximization, Problem, maximize
from .posterior import Posterior
from .progress import Progress
from .starts import first_labels

if TYPE_CHECKING:
    import arviz as az
    from matplotlib.figure import Figure

    from ..model import SwitchingSSM

METHODS = ("em", "vmp", "svi", "nuts")


@dataclass(frozen=True)
class Fit:
    """A fitted model and how it came about.

    Attributes:
        model: the model with its fitted values.
        method: how it was fitted, e.g. "em".
        objective: `[steps]`, what was maximised, after each step of the best restart. Of minibatches: the estimate of
            the bound in each pass, and at the end the bound itself.
        converged: whether the best restart met the tolerance.
        steps: how many steps the best restart took.
        restarts: `[R]`, where each restart ended.
        empty_states: `[K]`, states left with less than one expected step: their parameters are those of the prior, or
            under maximum likelihood the last that had any support.
        collapsed_states: `[K]`, states that sit on a single point under maximum likelihood; the likelihood has no
            maximum there and the variance is held at a floor.
        interrupted: whether Ctrl-C ended the fit; the best so far is kept.
        posterior: the parameters' distribution, and predictions that take it in; None of a fit by EM, which is a point.
    """

    model: "SwitchingSSM"
    method: str
    objective: Float[Tensor, "S"]
    converged: bool
    steps: int
    restarts: Float[Tensor, "R"]
    empty_states: Bool[Tensor, "K"]
    collapsed_states: Bool[Tensor, "K"]
    interrupted: bool = False
    posterior: Posterior | None = None

    @property
    def active_states(self) -> Bool[Tensor, "K"]:
        """`[K]`, which states are in use: those expected to have at least one step."""
        return ~self.empty_states

    def to_arviz(self, x: Any, **keywords: Any) -> "az.InferenceData":
        """InferenceData of this fit and the series x; see `samplehold.switching.views.arviz.to_arviz`."""
        from ..views.arviz import to_arviz

        return to_arviz(self, x, **keywords)

    def plot(self, x: Any, **keywords: Any) -> "Figure":
        """The series with state means and bands, the smoothed states and the redraw probability; see
        `plots.plot_fit`."""
        from ..views.figures import plot_fit

        return plot_fit(self.model, x, **keywords)


def fit_model(
    model: "SwitchingSSM",
    x: Any,
    method: str,
    restarts: int,
    max_steps: int,
    tol: float,
    seed: int,
    lengths: Any,
    progress: bool,
    prior: str | None,
    covariates: Any,
    dt: Any,
    factorization: str = "structured",
    batch_size: int | None = None,
) -> Fit:
    """See `SwitchingSSM.fit`."""
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}, expected one of {', '.join(METHODS)}.")
    if method != "em" and prior is None:
        raise ValueError(f'prior: got None; method="{method}" has a posterior only under a prior: "scaled" or "own".')
    for name, value in (("restarts", restarts), ("max_steps", max_steps)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1.")
    if not (tol >= 0 and math.isfinite(tol)):
        raise ValueError(f"tol: got {tol!r}, expected a small number of at least 0, such as 1e-6.")
    if prior not in ("scaled", "own", None):
        raise ValueError(f'prior: got {prior!r}, expected "scaled", "own", or None for maximum likelihood.')
    check_batches(batch_size, method)
    series = model.read(x, lengths)
    check_enough(series, model.n_states)
    drive = model._drive(covariates, dt, series.values, series.batch_shape, series.values.shape[-2])
    model = model.scaled_to(series) if prior == "scaled" else model
    if method == "vmp":
        from .message_passing import fit_vmp

        return fit_vmp(model, series, drive, factorization, restarts, max_steps, tol, seed, progress, batch_size)
    if method != "em":
        from .sampling import fit_nuts, fit_svi

        sampled = fit_svi if method == "svi" else fit_nuts
        return sampled(model, series, drive, restarts, max_steps, tol, seed, progress)
    table = None if prior is None else model.prior_like(series.values)
    if table is not None:
        check_modes(table)
    problem = Problem(model.dynamics, model.emission, series, drive, table)
    labels = first_labels(model.emission, series, model.n_states, restarts, seed)
    starts = problem.start(labels, model.n_states)
    with Progress(f"EM, {restarts} restarts", max_steps, progress) as shown:
        ended = maximize(problem, starts, max_steps, tol, shown)
    return _record(model, ended)


def _record(model: "SwitchingSSM", ended: Maximization) -> Fit:
    # a likelihood that grows without bound on a collapsed state is no better fit: prefer restarts without one
    sound = ~ended.collapsed.any(-1)
    score = torch.where(sound, ended.final, -torch.inf) if bool(sound.any()) else ended.final
    best = int(score.argmax())
    objective = ended.objective[:, best]
    return Fit(
        model=model._copy({name: value[best].clone() for name, value in ended.values.items()}, model.prior),
        method="em",
        objective=objective[~objective.isnan()],
        converged=bool(ended.converged[best]),
        steps=ended.steps[best],
        restarts=ended.final,
        empty_states=ended.occupancy[best] < 1.0,
        collapsed_states=ended.collapsed[best],
        interrupted=ended.interrupted,
    )


def check_batches(batch_size: int | None, method: str) -> None:
    """Raise ValueError where there is no such minibatch, or a method that takes none."""
    if batch_size is None:
        return
    if method != "vmp":
        raise ValueError(f'batch_size: got {batch_size}, but method="{method}" takes all data; use method="vmp".')
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size!r}, expected a number of sequences of at least 1.")


def check_enough(series: Sequences, n_states: int) -> None:
    """Raise ValueError where the series cannot support a fit."""
    observed = ~torch.isnan(series.values.reshape(-1, series.values.shape[-1]))
    for feature, any_seen in enumerate(observed.any(0).tolist()):
        if not any_seen:
            name = f" ({series.features[feature]})" if series.features else ""
            raise ValueError(f"x: feature {feature}{name} has no observed value; drop it, or give data that has some.")
    n_observed = int(observed.any(-1).sum())
    if n_observed < n_states:
        raise ValueError(f"x: got {n_observed} observed step(s) for {n_states} states; use fewer states or more data.")


def check_modes(prior: dict[str, Tensor]) -> None:
    """Raise ValueError where a concentration below 1 leaves the posterior without a mode."""
    for name, table in prior.items():
        if name.endswith(("concentration", "successes", "failures")) and bool((table < 1).any()):
            raise ValueError(
                f"{name}: got a concentration below 1 ({float(table.min()):g}), under which the posterior has no mode; "
                "EM needs concentrations of at least 1."
            )
