"""`Fit`: the result of a fit together with the model and the series."""

from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

import torch
from torch import Tensor

from ..inference.numerics.clock import Clock, timed
from ..inference.numerics.gradients import needs_gradients
from ..inference.numerics.interrupts import interruptible
from ..inference.numerics.randomness import Seed
from .data.frames import plain
from .data.knowledge import coded
from .data.series import Given, Series
from .fitting.report import Report
from .fitting.result import Result
from .fitting.subject_posterior import subject_posterior
from .parameters import of_subject
from .peers import missing_member

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd
    from matplotlib.figure import Figure

    from .judging.diagnosis import Diagnosis
    from .judging.residuals import Residuals
    from .judging.states_used import StatesUsed
    from .views.summary import Summary

Model = TypeVar("Model")


@dataclass(frozen=True, repr=False, kw_only=True)
class Fit(Result, Generic[Model]):
    """A fitted model, with the details of the fit.

    Attributes:
        model: the model with its fitted values.
        series: the fitted series, after `update` the last batch; of shared data, the sequences of this process. Methods
            use it if they get no x. `save` writes only the model.
        prior: the argument of `fit`.
        others: see `Result`.

    See Also:
        `SwitchingSSM.fit`, which returns it; `select`, which makes several; docs/guides/choosing.md, on how to judge
        it.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
        >>> fit = model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], method="vmp", progress=False)
        >>> fit.converged, fit.posterior.interval(0.9).lower["loc"].shape
        (True, torch.Size([2, 1]))
    """

    model: Model
    series: Series | None = None
    prior: Any = "weak"

    @classmethod
    def of(cls, result: Result, model: Model, reader: Any = None) -> "Fit[Model]":
        """Make a Fit from a result.

        Arguments:
            result: the values and the course of the fit.
            model: the model with the fitted values.
            reader: the model with the prior of the fit; a posterior reads other series with it.
        """
        fields = dict(vars(result))
        if hasattr(result.posterior, "forecast"):
            fields["posterior"] = replace(result.posterior, model=reader)
        return cls(model=model, **fields)

    def reported(self, clock: Clock) -> "Fit[Model]":
        """The fit with the report of its time, which is over.

        Arguments:
            clock: the time that reading and computing took.
        """
        return self if self.series is None else replace(self, report=Report.of(clock, self.series, self.steps))

    @property
    def state_names(self) -> tuple[str, ...] | None:
        """The labels of the states, if the fitted states had labels."""
        return None if self.series is None else self.series.state_names

    @property
    def active_states(self) -> Any:
        """`[K]`, whether each state is in use: it is expected at one step or more."""
        empty = self.empty_states
        return tuple(~chain for chain in empty) if isinstance(empty, tuple) else ~empty

    @property
    def agreeing(self) -> int:
        """The number of independent kinds of start that reached the best optimum, within 0.01 nats.

        Starts of one kind resemble each other, and starts from the ends of others (`restarts.independent` is False)
        lead back to them, so their number says little. If few of the kinds reached it, `reason` says so: a better
        optimum may exist, and more restarts may find it.
        """
        table = self.restarts
        return int(table.start[table.agrees & table.independent].nunique())

    @property
    def n_kinds(self) -> int:
        """The number of independent kinds of start."""
        return int(self.restarts.start[self.restarts.independent].nunique())

    # ---- how well it describes what was fitted ----------------------------------------------------------------------

    @property
    def loglik(self) -> float:
        """log p(x) of all sequences of `series`, each times its weight, at the fitted values."""
        with torch.no_grad():
            return float(self._given(None).weighed(self._model.log_evidence(self._given(None))).sum())

    @property
    def n_parameters(self) -> int:
        """The number of free parameters in this fit."""
        return self._model.n_free(self.held or self.fixed)

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 n_parameters - 2 loglik, for a fit by EM."""
        return self._criterion("aic")

    @property
    def bic(self) -> float:
        """Schwarz's criterion, log(n) n_parameters - 2 loglik, for a fit by EM; n is the number of steps with a
        density."""
        return self._criterion("bic")

    @property
    def icl(self) -> float:
        """The integrated completed likelihood of a fit by EM of a `SwitchingSSM`.

        It is bic plus twice the entropy of the states given x, so it prefers states that are well separated (Biernacki,
        Celeux & Govaert 2000).
        """
        return self._criterion("icl")

    @needs_gradients
    def summary(self, level: float = 0.9) -> "Summary":
        """The course of the fit, its parameters with standard errors and intervals, and its states; print it.

        For a fit by EM, standard errors come from the curvature of the objective (see `fitting.curvature`); for others,
        from their posterior. `.statistics`, `.parameters` and `.states` hold the same numbers in pandas.

        Arguments:
            level: probability of the intervals.

        Raises:
            ValueError: level outside (0, 1).
        """
        from .views.summary import summarise

        return summarise(self, self._given(None), level)

    @needs_gradients
    def plot_effect(self, name: str, level: float = 0.9) -> "Figure":
        """What the input `name` does to each part of a `SwitchingSSM` that reads it, with bands of probability
        `level`: see `views.effects.plot_effect`.

        Arguments:
            name: the name of the input.
            level: the probability of the bands.

        Raises:
            ValueError: the model reads no such input; level outside (0, 1).
        """
        from .views.effects import plot_effect

        if not self._model.chain_sizes:
            kind = self._model.name
            raise ValueError(f"name: got {name!r}, but the states of a {kind} read no inputs; see summary().")
        if isinstance(self._model.inputs, int):
            raise ValueError(f"name: got {name!r}, but the model reads no inputs by name.")
        return plot_effect(self, name, level)

    @needs_gradients
    def sojourn(self, level: float = 0.9) -> "pd.DataFrame":
        """The mean time in each state from entering it to leaving it, of `ContinuousMarkov` dynamics.

        A row for each state: `estimate`, `standard error`, and the ends of the interval, `lower` and `upper`, as in
        `summary`; infinite and NaN for an absorbing state. The unit is that of the gaps. If rates depend on inputs,
        these are 0.

        Arguments:
            level: probability of the intervals.

        Raises:
            TypeError: a model of other dynamics, or with parameters by subject.
            ValueError: level outside (0, 1).
        """
        from .views.sojourns import sojourns

        self._given(None)
        return sojourns(self, level)

    @needs_gradients
    def plot_transitions(self, times: Any = None, level: float = 0.9) -> "Figure":
        """A panel for each state: the probability of every state some time after it, of `ContinuousMarkov` dynamics.

        Bands are quantiles over draws of the parameters from their posterior; fits without a prior have none. If rates
        depend on inputs, these are 0.

        Arguments:
            times: `[n]`, at least 0, in the unit of the gaps; None: up to three times the longest mean stay.
            level: probability of the bands.

        Raises:
            TypeError: a model of other dynamics, or with parameters by subject.
            ValueError: negative times; level outside (0, 1).
        """
        from .views.sojourns import plot_transitions

        self._given(None)
        return plot_transitions(self, times, level)

    def subject(self, name: str) -> "Fit[Any]":
        """The fit of one subject, of a fit with parameters by subject (`pooled=`): its model, its sequences, and its
        part of the posterior. Diagnostics are those of the whole fit.

        Arguments:
            name: the name of the subject.

        Raises:
            ValueError: there is no such subject.
        """
        model = self._model.of(name)
        whole, i = self._model.read(self._given(None)), self._model.subjects.index(str(name))
        members = (whole.subjects == i).nonzero().flatten()
        series = whole.one(int(members[0])) if len(members) == 1 else whole.part(members)
        series = replace(series, subjects=None, subject_names=None, checked=None)
        posterior = self.posterior and subject_posterior(self.posterior, self._model, model, series, i)
        fixed = of_subject(self._model.known, self.held, i)
        return replace(self, model=model, values=model.values, series=series, posterior=posterior, held=fixed)

    @needs_gradients
    @interruptible()
    def update(
        self,
        x: Any,
        *,
        forgetting: float = 1.0,
        exponent: float = 1.0,
        max_steps: int | None = None,
        tol: float | None = None,
        **given: Unpack[Given],
    ) -> "Fit[Model]":
        """This fit continued with a new batch of data, as a new fit. It can be continued again and again, in constant
        memory: it holds the last batch, and statistics of all earlier data.

        By message passing, q of the parameters is the prior of the batch. EM adds the expected statistics of the batch
        under the values so far to those of earlier data, and takes one M-step. `fitting.streaming` has both rules and
        their sources. Restarts, units, prior, fixed parameters and the numbers of states are those of the first fit.

        The batch has sequences of its own: the first state of each has the distribution of first states. So a long
        sequence that is cut loses one transition at each cut. A sequence without any observation is ignored, and a
        batch of such sequences returns this fit. q(paths) is always `factorization="structured"`.

        Of the new fit, `series`, `objective` and `loglik` are those of the batch. `objective` is its log evidence under
        the values before it, or the bound of its evidence given q. `empty_states` are those that no batch has used.
        There is no `aic`, `bic` or `icl`, a fit by EM has no standard errors, and intervals of one by message passing
        are those of q. `save` writes the model, so a fit that was saved does not go on. Nor does one by EM whose data
        several processes shared: it knows only the sequences of its own process. A batch is read into memory.

        Arguments:
            x: new data, and `given` beside it as in `fit`, except for noise.
            forgetting: the weight from 0 (excluded) to 1 that earlier data keep at each update. With a number below 1,
                estimates follow parameters that drift: equal batches count 1 / (1 - forgetting) times one of them.
            exponent: above 0.5, at most 1, for a fit by EM: its step is the share of the batch in all data, to this
                power. Numbers below 1 forget a poor start sooner, and vary more.
            max_steps, tol: of message passing, as in `fit`.

        Raises:
            ValueError: as `fit`; an option out of range, or not of this method; known noise; several processes; a fit
                by "svi" or "nuts", or by "em" of shared data.
            TypeError: a fit of another model than a `SwitchingSSM`, or by subject; by EM, with an M-step without a
                closed form; parts without a conjugate prior.

        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
        >>> fit = model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], progress=False)
        >>> later = fit.update([0.3, 0.2, 0.4, 5.4, 5.3])
        >>> bool((later.model.loc > fit.model.loc).all()), later.updates
        (True, 1)
        """
        from .fitting.streaming import StepRule, updated

        with timed() as clock:
            fit = updated(self, x, StepRule(forgetting, exponent), max_steps, tol, self._numbered(dict(given)))
        return fit if fit is self else fit.reported(clock)

    # ---- what its model says ----------------------------------------------------------------------------------------

    def log_evidence(self, x: Any = None, **given: Any) -> Tensor:
        """The log evidence at the fitted values: see `model.log_evidence`.

        Without x, this method and the next six use the fitted series.

        Arguments:
            x: another series, as in `model.read`; None: the fitted series.
        """
        return self._model.log_evidence(self._given(x), **self._numbered(given))

    def filter(self, x: Any = None, **given: Any) -> Any:
        """The beliefs given the past at each step, at the fitted values: see `model.filter`.

        Arguments:
            x: another series, as in `model.read`; None: the fitted series.
        """
        return self._model.filter(self._given(x), **self._numbered(given))

    def smooth(self, x: Any = None, **given: Any) -> Any:
        """The beliefs given the whole series, at the fitted values: see `model.smooth`.

        Arguments:
            x: another series, as in `model.read`; None: the fitted series.
        """
        return self._model.smooth(self._given(x), **self._numbered(given))

    def viterbi(self, x: Any = None, **given: Any) -> Any:
        """The most probable path at the fitted values: see `model.viterbi`.

        Arguments:
            x: another series, as in `model.read`; None: the fitted series.
        """
        return self._model.viterbi(self._given(x), **self._numbered(given))

    def states(self, x: Any = None, **given: Any) -> "pd.DataFrame | Any":
        """A table of the states at each step, at the fitted values: see `model.states`.

        Arguments:
            x: another series, as in `model.read`; None: the fitted series.
        """
        if self.state_names is None:
            return self._model.states(self._given(x), **given)
        from .views.states import states

        return states(self._model, self._given(x), self.state_names, **self._numbered(given))

    def write(
        self,
        path: str | Path,
        result: str = "states",
        x: Any = None,
        *,
        horizon: int = 1,
        seed: Seed = 0,
        **given: Any,
    ) -> None:
        """Write states, forecasts or draws to a Parquet file: see `model.write`.

        Arguments:
            path: the Parquet file.
            result: "states", "viterbi", "forecast" or "draws".
            x: another series; None: the fitted series.
            horizon: the number of steps of a forecast.
            seed: of draws.
        """
        from .views.written import write

        write(self._model, self._given(x), path, result, horizon, seed, self.state_names, **self._numbered(given))

    def forecast(self, x: Any = None, horizon: int | None = None, **given: Any) -> Any:
        """A forecast at the fitted values: see `model.forecast`.

        `fit.forecast(12)` forecasts the fitted series, as does `fit.forecast(horizon=12)`; one step if there is no
        number. Inputs and gaps are then those of the steps to come, `[*batch, horizon, ...]`.

        Arguments:
            x: another series, or the number of steps; None: the fitted series.
            horizon: the number of steps to forecast.
        """
        if isinstance(x, Integral) and not isinstance(x, bool):
            if horizon is not None:
                raise ValueError(f"x: got {x}, a single number, and horizon={horizon}; give one number of steps.")
            x, horizon = None, int(x)
        return self._model.forecast(self._given(x), 1 if horizon is None else horizon, **self._numbered(given))

    def residuals(self, x: Any = None, *, seed: Seed = 0, **given: Any) -> "Residuals":
        """One-step-ahead pseudo-residuals at the fitted values, of a model of states or of segments.

        A residual is the normal score of an observation under its distribution given the observations before it, a
        mixture over predicted states.

        They have the index of the data, NaN where an observation or a lag is missing, and are standard normal and
        independent if the model is true: see `judging.residuals`. Those of several features are of each feature alone.
        Scores beyond 8.2 standard deviations are 8.2, where probabilities have no more digits. An emission without a
        distribution function has shares of draws in place of probabilities.

        Arguments:
            x: the series; by default the fitted one, whose residuals know its parameters already.
            seed: of the draws for counts and categories, whose probabilities jump.

        Raises:
            TypeError: a model of another kind.
        """
        from .judging.residuals import residuals

        return residuals(self._model, self._given(x), seed, **self._numbered(given))

    def n_states_used(
        self, x: Any = None, *, draws: int | None = None, least_steps: int = 1, seed: Seed = 0
    ) -> "StatesUsed":
        """How many states the series uses: the posterior probability of each number, of a `SwitchingSSM`.

        A draw of the whole path of all sequences visits some of the states. A fit by "gibbs" has such draws of the
        fitted series. Other fits draw parameters from their posterior, and a path given each; EM draws paths given its
        values. `.probability [K]` is that of 1 to K states, `.mode` the most probable number; `.mean`, `.interval()`.

        Arguments:
            x: the series; by default the fitted one.
            draws: number of paths; None: 1000, or all of "gibbs".
            least_steps: a state is used if so many steps are in it.
            seed: of the draws.

        Raises:
            TypeError: a model of another kind, or with parameters by subject.
            ValueError: numbers below 1.
        """
        from .judging.states_used import states_used

        return states_used(self, x, draws, least_steps, seed)

    @needs_gradients
    def diagnose(self, *, seed: Seed = 0) -> "Diagnosis":
        """What to look at before one trusts a fit, a line each; print it.

        How the search ended, how many kinds of start agree, data for each parameter, rare states, estimates at the end
        of their range, expected durations, how certain the states are, and tests of the residuals: their normality,
        autocorrelation, and that of their squares. `.concerns` has the lines that ask for attention; see
        `judging.diagnosis` for the limits. Models other than `SwitchingSSM` have fewer lines.

        Arguments:
            seed: of `residuals`.
        """
        from .judging.diagnosis import diagnose

        return diagnose(self, self._given(None), seed)

    def save(self, path: str | Path) -> None:
        """Write the fitted model into the folder `path`; see `model.save`. `sh.load(path)` reads it.

        Arguments:
            path: the folder; it is made if it does not exist.
        """
        self._model.save(path)

    def _given(self, x: Any) -> Any:
        """x if it is given, otherwise the fitted series."""
        if x is None and self.series is None:
            raise ValueError("x: got None, but this fit keeps no series; give one.")
        return self.series if x is None else x

    def _numbered(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments beside x, with labels of states as the numbers that they have in this fit."""
        if self.state_names is None or given.get("states") is None:
            return given
        return given | {"states": coded(plain(given["states"], "states"), self.state_names)[0]}

    def _criterion(self, name: str) -> float:
        from .judging.criteria import Criteria

        self._check_point(name)
        self._given(None)
        return getattr(Criteria.of(self, (name,)), name)

    def _check_point(self, name: str) -> None:
        if self.updates:
            raise ValueError(
                f"{name}: this fit was continued by update and holds only the last batch, but {name} needs the "
                "likelihood of all data; fit all data at once."
            )
        if self.shared:
            raise ValueError(
                f"{name}: several processes shared the data of this fit, but {name} needs the likelihood of all data; "
                "call select with this model as the only candidate, or take the sum of fit.loglik over the processes."
            )
        if self.posterior is not None:
            raise ValueError(
                f'{name}: got a fit by "{self.method}", which is no point estimate; use az.loo(fit.to_arviz()), '
                'or method="em".'
            )

    def __getattr__(self, name: str) -> Any:
        raise missing_member(type(self).__name__, name, ", of the fit or of its `model`")

    @property
    def _model(self) -> Any:
        return self.model

    def __repr__(self) -> str:
        """The method, how the fit ended, and the values if they are few."""
        objective = f"{float(self.objective[-1]):.6g}" if len(self.objective) else "none"
        lines = [f"Fit by {self.method}: objective {objective} after {self.steps} steps, {self.reason}"]
        if len(self.restarts) > 1:
            starts = f"{int(self.restarts.agrees.sum())} of {len(self.restarts)} starts"
            kinds = f", {self.agreeing} of {self.n_kinds} independent kinds," if self.n_kinds > 1 else ""
            lines.append(f"{starts}{kinds} within 0.01 nats of the best")
        return "\n".join([*lines, repr(self.model)])

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from .views.pages import fit_page

        return fit_page(self)

    def to_arviz(self, x: Any = None, **keywords: Any) -> "az.InferenceData":
        """InferenceData of this fit and the series x (default: the fitted series); see
        `switching.views.arviz.to_arviz`.

        Arguments:
            x: another series; None: the fitted series.
            keywords: as in `switching.views.arviz.to_arviz`.
        """
        from .views.arviz import to_arviz

        return to_arviz(self, self._given(x), **keywords)

    def save_arviz(self, path: str | Path, x: Any = None, **keywords: Any) -> None:
        """Write `to_arviz(x, ...)` into a netCDF file, completely or not at all; `az.from_netcdf(path)` reads it.

        `InferenceData.to_netcdf` writes the same, but on a full disk it can end the process.

        Arguments:
            path: the netCDF file.
            x: another series; None: the fitted series.
            keywords: as in `switching.views.arviz.to_arviz`.

        Raises:
            OSError: the file cannot be written; an existing file stays unchanged.
        """
        from .data.writing import write_output
        from .views.arviz import to_groups
        from .views.groups import netcdf

        write_output(Path(path), netcdf(to_groups(self, self._given(x), **keywords)))

    def plot(self, x: Any = None, **keywords: Any) -> "Figure":
        """The series x (default: the fitted series) with state means and bands, the smoothed states and redraws; see
        `model.plot`.

        Arguments:
            x: another series; None: the fitted series.
            keywords: as in `model.plot`.
        """
        return self._model.plot(self._given(x), **keywords)
