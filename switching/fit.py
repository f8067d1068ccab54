"""`Fit`: the result of a fit together with the model and the series."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from ..inference.numerics.clock import Clock, timed
from ..inference.numerics.gradients import needs_gradients
from ..inference.numerics.interrupts import importing, interruptible
from ..inference.numerics.randomness import Seed
from ..inference.numerics.scalars import check_flag, check_path
from .data.series import Given, Series
from .estimates import Estimates
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

Model = TypeVar("Model")


@dataclass(frozen=True, repr=False, kw_only=True)
class Fit(Estimates, Generic[Model]):
    """A fitted model, with the details of the fit.

    Attributes:
        model: the model with its fitted values.
        series: the fitted series, after `update` the last batch; of shared data, the sequences of this process. Methods
            use it if they get no x.
        prior: the argument of `fit`.
        others: see `Result`.

    A fit has the verbs of its model, at the fitted values: `fit.smooth()` reads the fitted series, `fit.smooth(x)`
    another one. Criteria and tables of its parameters follow, and what depends on its data.

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
        named = self.labels
        return None if named is None else named.state_names

    @property
    def labels(self) -> Series | None:
        """The series with the names of features, inputs and states: the fitted one, or if the fit was saved without it,
        one without a step."""
        return self.series if self.kept is None else self.kept.labels

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

    # ---- views, and more data ----------------------------------------------------------------------------------------

    @needs_gradients
    def plot_effect(self, name: str, level: float = 0.9) -> "Figure":
        """The effect of the input `name` on each part of a `SwitchingSSM` that reads it, with bands of probability
        `level`: see `views.effects.plot_effect`.

        Arguments:
            name: the name of the input.
            level: the probability of the bands.

        Raises:
            ValueError: the model reads no such input; level outside (0, 1).
        """
        with importing():
            from .views.effects import plot_effect

        if not self._model.chain_sizes:
            kind = self._model.name
            raise ValueError(f"name: got {name!r}, but the states of a {kind} read no inputs; see summary().")
        if isinstance(self._model.inputs, int):
            raise ValueError(f"name: got {name!r}, but the model reads no inputs by name.")
        self._given(None)
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
        with importing():
            from .views.sojourns import sojourns

        self._given(None)
        return sojourns(self, level)

    @needs_gradients
    def plot_transitions(self, times: Any = None, level: float = 0.9) -> "Figure":
        """A panel for each state: the probability of every state after some time (`ContinuousMarkov` dynamics).

        Bands are quantiles over draws of the parameters from their posterior; fits without a prior have none. If rates
        depend on inputs, these are 0.

        Arguments:
            times: `[n]`, at least 0, in the unit of the gaps; None: up to three times the longest mean stay.
            level: probability of the bands.

        Raises:
            TypeError: a model of other dynamics, or with parameters by subject.
            ValueError: negative times; level outside (0, 1).
        """
        with importing():
            from .views.sojourns import plot_transitions

        self._given(None)
        return plot_transitions(self, times, level)

    def subject(self, name: str) -> "Fit[Any]":
        """The fit of one subject, if parameters differ by subject (`pooled=`): its model, its sequences and its
        posterior. Diagnostics are those of the whole fit.

        Arguments:
            name: the name of the subject.

        Raises:
            ValueError: there is no such subject.
        """
        model = self._model.of(name)
        full_data, i = self._model.read(self._given(None)), self._model.subjects.index(str(name))
        members = (full_data.subjects == i).nonzero().flatten()
        series = full_data.one(int(members[0])) if len(members) == 1 else full_data.part(members)
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
        their sources. Restarts, units, prior, fixed parameters and the numbers of states do not change.

        The batch has sequences of its own: the first state of each has the distribution of first states. So a long
        sequence that is cut loses one transition at each cut. A sequence without any observation is ignored, and a
        batch of such sequences returns this fit. q(paths) is always `factorization="structured"`.

        `series`, `objective` and `loglik` of the new fit describe the batch. `objective` is its log evidence under the
        values before it, or the bound of its evidence given q. `empty_states` are states that no batch has used. There
        is no `aic`, `bic` or `icl`. A fit by EM has no standard errors; a fit by message passing has the intervals of
        q. A fit that `update` returned cannot be continued after `save` and `load`. If several processes shared the
        data, a fit by EM cannot be continued: each process knows only its own sequences. A batch is read into memory.

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

    def residuals(self, x: Any = None, *, seed: Seed = 0, **given: Any) -> "Residuals":
        """One-step-ahead pseudo-residuals at the fitted values, of a model of states or of segments.

        A residual is the normal score of an observation under its distribution given the observations before it, a
        mixture over predicted states.

        They have the index of the data, NaN where an observation or a lag is missing, and are standard normal and
        independent if the model is true: see `judging.residuals`. Those of several features are of each feature alone.
        Scores beyond 8.2 standard deviations are 8.2, where probabilities have no more digits. An emission without a
        distribution function has shares of draws in place of probabilities.

        Arguments:
            x: the series; by default the fitted one, from which the parameters were estimated.
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
        values. `.probability [K]` has P(1 state used), ..., P(K states used); `.mode` is the most probable number;
        `.mean`, `.interval()`.

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
        """Checks to read before you trust a fit, one line each; print the result.

        They cover the end of the search, the kinds of start that reached the optimum, data for each parameter, rare
        states, estimates at the end of their range, expected durations, and the certainty of the states. Residuals are
        tested for normality, for autocorrelation, and for autocorrelation of their squares. `.concerns` has the lines
        that ask for attention; see `judging.diagnosis` for the limits. Models other than `SwitchingSSM` have fewer
        lines.

        Arguments:
            seed: of `residuals`.
        """
        from .judging.diagnosis import diagnose

        return diagnose(self, self._given(None), seed)

    def save(self, path: str | Path, *, data: bool = False) -> None:
        """Write the fit and its model into the folder `path`, as one file. `sh.load(path)` gives the fit back.

        The file has the values, the posterior, the diagnostics and the labels, and the numbers of `summary`. The
        posterior is kept as draws: all of a sampler, 4000 or 10,000 of others. `fit.model.save(path)` writes the model
        alone.

        Arguments:
            path: the folder; it is made if it does not exist.
            data: whether to keep the data too. Without them, methods of the loaded fit need x. With them, the loaded
                fit works as before, except that `update` needs a fit by EM, and results come in frames of pandas.

        Raises:
            TypeError: a part of the model, or with `data` a label of a step, that cannot be stored.
            ValueError: `data` of a fit whose data are in files.
            OSError: the file cannot be written; an existing one stays unchanged.
        """
        from .stored_fit import save_fit

        save_fit(self, check_path("path", path), data=check_flag("data", data))

    def __dir__(self) -> list[str]:
        """Its members, without those that this fit cannot answer."""
        from .offers import offered

        return offered(self, super().__dir__())

    def __getattr__(self, name: str) -> Any:
        there = "model" in vars(self) and hasattr(self.model, name)
        raise missing_member(self, name, "fit", f"fit.model.{name}" if there else "")

    def __repr__(self) -> str:
        """The method, how the fit ended, and the values if they are few."""
        objective = f"{float(self.objective[-1]):.6g}" if len(self.objective) else "none"
        lines = [f"Fit by {self.method}: objective {objective} after {self.steps} steps, {self.reason}"]
        if len(self.restarts) > 1:
            starts = f"{int(self.restarts.agrees.sum())} of {len(self.restarts)} starts"
            kinds = f", of {self.agreeing} of {self.n_kinds} independent kinds," if self.n_kinds > 1 else ""
            lines.append(f"{starts}{kinds} ended within 0.01 nats of the best")
        return "\n".join([*lines, repr(self.model)])

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from .views.pages import fit_page

        return fit_page(self)

    @needs_gradients
    def to_arviz(self, x: Any = None, **keywords: Any) -> "az.InferenceData":
        """InferenceData of this fit and the series x (default: the fitted series); see
        `switching.views.arviz.to_arviz`.

        Arguments:
            x: another series; None: the fitted series.
            keywords: as in `switching.views.arviz.to_arviz`.
        """
        with importing():
            from .views.arviz import to_arviz

        return to_arviz(self, self._given(x), **keywords)

    @needs_gradients
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
