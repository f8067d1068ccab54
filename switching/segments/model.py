r"""`Segments`: a parameter that is drawn afresh at each change, and held between changes.

$$z_t \sim \text{Bernoulli}(h), \quad z_1 = 1, \qquad \theta_t = \theta_{t-1} \text{ if } z_t = 0, \qquad
\theta_t \sim p(\theta) \text{ if } z_t = 1, \qquad x_t \sim p(x \mid \theta_t)$$

It is the copy chain whose state is a parameter with a conjugate prior. Parameters of segments are integrated out, so
the filter over run lengths (Adams & MacKay 2007), the posterior of changes and draws of it (Fearnhead 2006), and the
most probable segmentation are exact: see `SegmentChain`. The parameters of the model are the hazard h and the
hyperparameters of $p(\theta)$, see `hyperparameters`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import torch
from torch import Tensor

from ...inference.chains.contract import Viterbi
from ...inference.chains.segment.chain import SegmentChain
from ...inference.numerics.checks import naming
from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import (
    check_batch_shape,
    check_flag,
    check_integer,
    check_kind,
    check_number,
    check_probability,
)
from ..base import Model, Probabilities
from ..data.design import check_rank
from ..data.ragged import by_sequence
from ..data.series import Given, Series, place
from ..emissions.contract import Emission
from ..emissions.multivariate_normal import MultivariateNormal
from ..emissions.spread import check_squares
from ..fitting.options import Options
from ..inputs import Inputs, all_inputs, columns_of, count_inputs
from ..parameters import Parameter, Parameters, check_parameters, read_tables
from ..peers import explains_options
from ..priors import sample_sites
from ..responses import CENTER, SCALE, spread_of_inputs
from ..seeding import in_turn, seeded
from ..user_priors import is_distribution, shortly
from .beliefs import event_shapes
from .durations import is_duration
from .forecast import SegmentsForecast, forecast
from .hazards import (
    HAZARD,
    INTERCEPT,
    OF_HAZARD,
    Hazard,
    check_shared,
    inputs_of,
    is_beta,
    of_hazard,
    prior_of,
    prior_of_weights,
    read_hazard,
    with_prior,
)
from .hyperparameters import (
    OF_LOCATION,
    check_emission,
    check_hazard,
    given_by,
    hyperparameters,
    known,
    sizes_of,
    widened,
)
from .problem import SegmentProblem
from .program import segment_program
from .records import SegmentsFiltered, SegmentsSampled, SegmentsSimulated, SegmentsSmoothed
from .streams import MOST, TOL, SegmentsStreamOutput, SegmentsStreamState, advanced, extended, started

if TYPE_CHECKING:
    import pandas as pd

    from ..fit import Fit
    from ..views.panels import Panels

SEEN = {"Normal": "loc", "MultivariateNormal": "loc", "Poisson": "rate", "Bernoulli": "probs"}
"""The parameter that is the mean of an observation; figures show it behind the observations."""


class Segments(Model):
    """A series of segments, each with parameters of its own, drawn from a conjugate prior.

    Arguments:
        emission: the distribution of an observation: `Normal`, `Poisson`, `Bernoulli`, `Categorical`, `Exponential`,
            `MultivariateNormal` or `LinearRegression`. Its conjugate prior is that of each segment's parameters.
        hazard: P(change) before each step after the first: a probability, or its prior, a Beta distribution, with which
            a fit estimates it. Names of inputs on which it depends, `["dose"]`: see `switching.segments.hazards`. Or a
            distribution on 0, 1, 2, ... of the steps of a segment after its first one, such as `dist.NegativeBinomial`;
            the hazard then depends on the run. None: a Beta(2, 2) prior.
        tol: 0: exact, in a time that grows with the square of the length. A number above 0: segmentations whose share
            of the posterior is at most `tol` in total are left out, which is much faster for long series.
        shared: whether all sequences change at the same steps, with parameters of their own.

    The values are the hazard and the hyperparameters of the prior of a segment's parameters: see
    `switching.segments.hyperparameters`. The emission's `prior` gives them, or `with_prior`, or a fit. Methods accept x
    as in `SwitchingSSM`, with `lengths`, `dt`, and `inputs` of the hazard or a `LinearRegression`. Missing values are
    NaN.

    Raises:
        TypeError: an emission without a conjugate prior; a hazard of another kind.
        ValueError: a hazard outside (0, 1); priors that are not conjugate.

    Adams & MacKay 2007, for the filter over run lengths; Fearnhead 2006, for the posterior of changes and its draws.

    See Also:
        `Copy`, which draws again from K states; `chains.SegmentChain`, its inference; docs/guides/segments.md.

    Example:
        >>> import pyro.distributions as dist
        >>> import samplehold as sh
        >>> model = sh.Segments(sh.Poisson(1, prior={"rate": dist.Gamma(1.0, 1.0)}), hazard=0.02)
        >>> smoothed = model.smooth([1, 0, 2, 1, 0, 1, 9, 12, 8, 11, 10])
        >>> int(smoothed.change[1:].argmax()) + 1, smoothed.mean["rate"][-1].round(decimals=1)
        (6, tensor([8.5000], dtype=torch.float64))
    """

    made_of: ClassVar[tuple[str, ...]] = ("emission", "hazard", "tol", "shared")
    methods: ClassVar[tuple[str, ...]] = ("em", "nuts")
    reading = "hazard=[...]"
    emission: Any
    hazard: Any
    tol: float
    shared: bool

    def __init__(self, emission: Emission, hazard: Any = None, *, tol: float = 0.0, shared: bool = False) -> None:
        check_emission(emission)
        hazard, tol = read_hazard(hazard), check_number("tol", tol, least=0)
        if tol >= 1:
            raise ValueError(f"tol: got {tol}, expected a share of the posterior, less than 1, such as 1e-9.")
        super().__init__(emission=emission, hazard=hazard, tol=tol, shared=check_flag("shared", shared))
        _ = self.inputs  # raises an error if parts do not fit together
        vars(self).update(_chosen=given_by(emission) | ({OF_HAZARD} if is_beta(hazard) else set()))
        vars(self).update(values=self._implied(self._chosen))

    @classmethod
    def _from_specification(cls, parts: dict[str, Any]) -> "Segments":
        rest = {name: part for name, part in parts.items() if name not in ("emission", "shared")}
        return cls(parts["emission"], **rest, shared=bool(parts.get("shared", False)))

    def _made(self) -> str:
        shown = "" if self.hazard is None else f", hazard={shortly(self.hazard)}"
        shown = "" if self._has_rate and self.values else shown  # a line of the values has it
        more = [f"tol={self.tol:g}"] * (self.tol > 0) + ["shared=True"] * self.shared
        return f"{self.name}({', '.join([f'{self.emission!r}{shown}', *more])})"

    @property
    def _has_rate(self) -> bool:
        """Whether the hazard is a number."""
        return isinstance(self.hazard, float)

    @property
    def duration(self) -> Any:
        """The distribution of a segment's steps after the first; None if the hazard is a parameter."""
        return self.hazard if is_duration(self.hazard) else None

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        return self.emission.n_features

    @property
    def inputs(self) -> Inputs:
        """The inputs that the model reads: first the hazard's inputs, then the emission's other ones."""
        return all_inputs((inputs_of(self.hazard), self.emission.inputs))

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        """The inputs along each axis of parameters, by the name of the axis."""
        return {"input": inputs_of(self.hazard)} | self.emission.inputs_of

    @property
    def known(self) -> dict[str, Parameter]:
        """The axes, support and displayed form of each parameter."""
        return known(self.emission, self.hazard)

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        return sizes_of(self.emission, self.hazard)

    def _checked(self, values: Parameters) -> Parameters:
        wide = widened(self.emission, self.hazard, values)
        checked = check_parameters(self.known, wide, self.sizes, self.name)
        check_hazard(checked)
        return checked

    def _weak_prior(self, series: Series | None) -> Parameters:
        rows = None if series is None else series.rows
        like = torch.zeros((), dtype=torch.float64, device="cpu") if rows is None else rows
        prior = self.emission.prior_scaled(1, rows)
        names = hyperparameters(self.emission)
        tables = {n: prior[n][0].to(like).clone(memory_format=torch.contiguous_format) for n in names}
        if self.emission.n_inputs:
            tables[SCALE] = self._spreads(series)
        if not of_hazard(self.hazard):
            return tables
        tables = {OF_HAZARD: like.new_tensor(prior_of(self.hazard))} | tables
        if isinstance(self.hazard, Hazard):
            tables |= prior_of_weights(self.hazard, series)
            if CENTER in self.prior and (OF_HAZARD in self._chosen or self.hazard.is_set):
                tables[CENTER] = self.prior[CENTER]
        return tables

    def _spreads(self, series: Series | None) -> Tensor:
        """The spreads of the emission's inputs; those of before, if values or the user have stated weights for them."""
        before = self.prior.get(SCALE, torch.ones(self.emission.n_inputs, dtype=torch.float64, device="cpu"))
        spread = None if series is None or self.values or OF_LOCATION in self._chosen else spread_of_inputs(series)
        return before if spread is None else spread[1].cpu()[columns_of(self.emission.inputs, self.inputs)]

    def _about_means(self, series: Series, stated: frozenset[str]) -> "Segments":
        """The model with locations of regressions at the mean inputs of a series.

        Arguments:
            stated: the parameters and hyperparameters that the user has stated, at the inputs of before.
        """
        spread = spread_of_inputs(series) if self.emission.n_inputs and "loc" not in stated else None
        if spread is None:
            return self
        by = torch.zeros_like(spread[0])
        columns = columns_of(self.emission.inputs, self.inputs)
        by[columns] = spread[0][columns]
        if stated & {OF_HAZARD, INTERCEPT}:
            by[: count_inputs(inputs_of(self.hazard))] = 0.0
        model = self._copy(self.values)
        vars(model).update(origin=by.cpu() if self.origin is None else self.origin + by.cpu())
        return model

    def _check_prior(self, prior: Parameters) -> None:
        check_parameters(hyperparameters(self.emission), prior, self.sizes, self.name)
        for name in (OF_HAZARD, SCALE):
            if name in prior and not bool((prior[name] > 0).all()):
                raise ValueError(f"{name}: got {prior[name].tolist()}, expected numbers above 0.")

    def _implied(self, chosen: frozenset[str] | set[str]) -> Parameters:
        """The values, if the hazard is a number, or follows from durations, and all hyperparameters are chosen."""
        names = [name for name in self.known if name != HAZARD]
        if not set(names) <= set(chosen) or (HAZARD in self.known and not self._has_rate):
            return {}
        tables = {name: self.prior[name] for name in names}
        hazard = {HAZARD: next(iter(tables.values())).new_tensor(self.hazard)} if self._has_rate else {}
        return hazard | tables

    def with_values(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> "Segments":
        """The same model with these parameter values, by name; a number stands for all entries of a table. Values that
        the specification or `with_prior` has set need not be repeated.

        Arguments:
            values: numbers in any form by name.

        Raises:
            ValueError: a parameter is missing, unknown, of another shape, or outside its space.
        """
        chosen: dict[str, Any] = {name: self.prior[name] for name in self.known if name in self._chosen}
        if self._has_rate:
            chosen[HAZARD] = self.hazard
        return super().with_values({**chosen, **(values if isinstance(values, Mapping) else {}), **named})

    def with_prior(self, prior: Mapping[str, Any]) -> "Segments":
        """The same model with another prior of the parameters of each segment.

        It has hyperparameters with the names and shapes of `model.prior`, or numbers for all of their entries. Or it
        has distributions of Pyro of the conjugate form by name of a parameter, and a Beta of `hazard`. A fit starts
        there, and takes them as typical values.

        Raises:
            ValueError: other names or shapes; numbers that are not finite or not valid hyperparameters; a distribution
                that is not of the conjugate form.

        >>> import samplehold as sh
        >>> model = sh.Segments(sh.Normal(1), hazard=0.02)
        >>> model.with_prior({"loc": 900.0, "count": 0.1, "shape": 2.0, "rate": 2 * 120.0**2})
        Segments(Normal(n_features=1))
          hazard: 0.02
          loc: [900]
          count: [0.1]
          shape: [2]
          rate: [2.88e+04]
        """
        if not isinstance(prior, Mapping):
            return super().with_prior(prior)
        laws = {name: value for name, value in prior.items() if is_distribution(value)}
        model = self._under(laws) if laws else self
        tables = {name: value for name, value in prior.items() if name not in laws}
        single = {name: value for name, value in tables.items() if name in self.known}
        tables |= widened(self.emission, self.hazard, read_tables(single)) if single else {}
        prepared: Any = Model.with_prior(model, tables)
        vars(prepared).update(values=prepared._implied(prepared._chosen) or dict(self.values))
        return prepared

    def _under(self, laws: Mapping[str, Any]) -> "Segments":
        """The model with distributions as priors of the emission's parameters and of the hazard."""
        hazard = with_prior(self.hazard, laws[HAZARD]) if HAZARD in laws else self.hazard
        of_emission = {name: law for name, law in laws.items() if name != HAZARD}
        emission = self.emission.with_user_priors(of_emission) if of_emission else self.emission
        made = type(self)(emission, hazard, tol=self.tol, shared=self.shared)
        kept = {name: self.prior[name] for name in self._chosen - made._chosen if name in made.prior}
        return made.with_prior(kept) if kept else made

    def scaled_to(self, x: Any, **given: Unpack[Given]) -> "Segments":
        """The same model with its weak prior scaled to the observations x, as in `fit`; hyperparameters that were
        chosen stay. If the hazard is a number, the model then has values.

        Raises:
            ValueError: a feature of x without any observed value.
        """
        return self._scaled(self._series(x, given), {})

    def _scaled(self, series: Series, fixed: Parameters) -> "Segments":
        of_hazard = {OF_HAZARD} if isinstance(self.hazard, Hazard) and self.hazard.is_set else set()
        here = self if self.values else self._about_means(series, self._chosen | of_hazard | set(fixed))
        model: Any = Model.scaled_to(here, series)
        vars(model).update(values=dict(model.values) or model._implied(set(model.prior)))
        return model

    @property
    def _values(self) -> Parameters:
        if self.values:
            return self.values
        missing = [name for name in self.known if name not in self._chosen and not (name == HAZARD and self._has_rate)]
        raise ValueError(
            f"model: has no values of {', '.join(missing)} yet; use model.fit(x).model, model.with_values(...), or, "
            "with a number as hazard, model.scaled_to(x) for a weak prior."
        )

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        parts, tensors = super().to_parts()
        return {name: part for name, part in parts.items() if name != "shared" and part is not None} | (
            {"shared": 1} if self.shared else {}
        ), tensors

    @classmethod
    def from_parts(cls, parts: dict[str, Any], tensors: dict[str, Tensor]) -> "Segments":
        model = super().from_parts(parts, tensors)
        return model if any(name.startswith("value.") for name in tensors) else model.without_values()

    # ---- what was observed -----------------------------------------------------------------------------------------

    def _check_observations(self, series: Series) -> None:
        self.emission.check(series.observations, series.features_of() if series.features else None)
        if isinstance(self.emission, MultivariateNormal):
            missing = series.observations.isnan()
            part = missing & ~missing.all(-1, keepdim=True)
            if bool(part.any()):
                raise ValueError(
                    f"x: a feature is missing at {place(part)}, but with some features of a step the posterior of "
                    "MultivariateNormal is not conjugate; leave out the whole step, or use Normal(n_features)."
                )

    @property
    def together(self) -> bool:
        """Whether all sequences change together."""
        return self.shared

    def check_apart(self, series: Series) -> None:
        """ValueError if sequences cannot be processed in groups, as `ragged=True` does.

        Arguments:
            series: what `read` returned.
        """
        if self.shared and len(series.groups()) > 1:
            raise ValueError("ragged: got True, but with shared=True all sequences change together; leave it out.")

    def _check_drives(self, series: Series, n_steps: int) -> None:
        super()._check_drives(series, n_steps)
        if series.design is not None and series.n_sequences:
            largest = series.design.detach().double().abs().flatten(0, -2).amax(0)
            check_squares("inputs", largest.clamp_min(1.0), torch.float64, series.drivers, "reaches")
            if self.shared and isinstance(self.hazard, Hazard):
                check_shared(series, self.hazard)

    def _check_drive(self, series: Series, n_steps: int) -> None:
        gaps = series.gaps
        if gaps is None:
            return
        if self.duration is not None or (self.shared and series.batch_shape):
            other = "a distribution of durations" if self.duration is not None else "shared changes of sequences"
            raise ValueError(f"dt: was given, but {other} does not use gaps; leave it out.")
        if tuple(gaps.shape) != (*series.batch_shape, n_steps):
            raise ValueError(
                f"dt: got shape {tuple(gaps.shape)}, expected {(*series.batch_shape, n_steps)}: the gap before each "
                "step."
            )
        inside = gaps[..., 1:]
        if not bool(((inside >= 0) & inside.isfinite()).all()):
            raise ValueError("dt: got a gap that is negative or not finite; give the time since the previous step.")

    def problem(self, x: Any, **given: Unpack[Given]) -> SegmentProblem:
        """The emission, the hazard, the prior and the series x, as one input for inference."""
        return self._problem(self.read(x, **given))

    def _problem(self, series: Series) -> SegmentProblem:
        prior = {name: table.to(series.like) for name, table in self.prior.items()}
        shared = self.shared and bool(series.batch_shape) and series.n_sequences > 0
        return SegmentProblem(self.emission, series, self.hazard, self.tol, shared, prior, scale=self.prior.get(SCALE))

    # ---- the Pyro program ------------------------------------------------------------------------------------------

    @in_turn()
    def forward(
        self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = (), **given: Unpack[Given]
    ) -> Tensor:
        """The generative program, conditioned on x if it is given: see `switching.segments.program`. Without values it
        draws them from their prior. Returns the observations.
        """
        problem = self._extent(x, n_steps, batch_shape, given)
        values = self.values_like(problem.series.like) if self.values else sample_sites(problem.sites)
        return segment_program(problem, values, observed=x is not None).x

    @explains_options
    def simulate(
        self, n_steps: int, batch_shape: tuple[int, ...] = (), *, seed: Seed = None, **given: Unpack[Given]
    ) -> SegmentsSimulated:
        """A draw of changes, parameters and observations. A seed makes the draw repeatable and does not touch global
        state. `inputs` and `dt` are those of all steps.
        """
        problem = self._extent(None, n_steps, batch_shape, given)
        values, series = self.values_like(problem.series.like), problem.series
        with seeded(seed, series.like):
            if series.n_sequences:
                return segment_program(problem, values, observed=False)
        x, path = series.observations, torch.zeros_like(series.observations[..., 0], dtype=torch.long)
        shapes = event_shapes(self.emission).items()  # Pyro's plates are never empty
        return SegmentsSimulated(x, path, path > 0, {name: x.new_zeros(*path.shape, *shape) for name, shape in shapes})

    def _extent(self, x: Any, n_steps: int | None, batch_shape: tuple[int, ...], given: Given) -> SegmentProblem:
        """The problem of x; without x, one of `n_steps` steps without observations."""
        if x is not None:
            return self.problem(x, **given)
        if n_steps is None:
            raise ValueError("n_steps: got None; without x, give the number of steps to draw.")
        n_steps, batch_shape = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        return self.problem(self._like.new_full((*batch_shape, n_steps, self.n_features), torch.nan), **given)

    # ---- inference given the values --------------------------------------------------------------------------------

    def chain(self, x: Any, **given: Unpack[Given]) -> SegmentChain:
        """The chain over the segmentations of x, in float64."""
        series = self.read(x, **given)
        problem = self._problem(series if series.lengths is None else series.as_table("give"))
        return problem.chain(self.values_like(series.like))

    def log_evidence(self, x: Any, **given: Unpack[Given]) -> Tensor:
        """log p(x | values) of each sequence, `[*batch]`, of all together if changes are shared; all segmentations and
        parameters are integrated out. Differentiable in the values.
        """
        problem = self.problem(x, **given)
        with naming("x"):
            return problem.evidence(self.values_like(problem.series.like)).to(problem.series.like)

    @by_sequence()
    def filter(self, x: Any, **given: Unpack[Given]) -> SegmentsFiltered:
        """The belief after each observation: P(change), the expected run length, and means and standard deviations of
        the parameters, given x_1..t.
        """
        with naming("x"):
            problem = self.problem(x, **given)
            found = problem.chain(self.values_like(problem.series.like)).filter(problem.expectation)
            mean, sd = problem.summarised(found.expected[0])
            total, increment, left_out = map(problem.each, (found.log_normalizer, found.log_increment, found.left_out))
            change, run = (problem.each(table, beyond=0) for table in (found.change, found.run))
            return SegmentsFiltered(total, increment, change, run, mean, sd, left_out)

    @by_sequence()
    def smooth(self, x: Any, **given: Unpack[Given]) -> SegmentsSmoothed:
        """The belief given the whole series: P(change before t), the expected number of changes, and means and standard
        deviations of the parameters at each step.
        """
        with naming("x"):
            problem = self.problem(x, **given)
            found = problem.chain(self.values_like(problem.series.like)).smooth(problem.expectation)
            mean, sd = problem.summarised(found.expected[0])
            total, n_changes, left_out = map(problem.each, (found.log_normalizer, found.n_changes, found.left_out))
            return SegmentsSmoothed(total, problem.each(found.change, beyond=0), n_changes, mean, sd, left_out)

    @by_sequence()
    def viterbi(self, x: Any, **given: Unpack[Given]) -> Viterbi:
        """The most probable segmentation: the number of the segment at each step, where segments begin, and the log
        joint of the segmentation and x, with the parameters integrated out. `segments` has it as a table.
        """
        with naming("x"):
            problem = self.problem(x, **given)
            best = problem.chain(self.values_like(problem.series.like)).viterbi()
            assert best.redraw is not None
            path, redraw = problem.each(best.path, beyond=-1), problem.each(best.redraw, beyond=0)
            return Viterbi(path, problem.each(best.log_probability), redraw)

    @by_sequence(draws=True)
    def sample_posterior(self, x: Any, n: int, seed: Seed = None, **given: Unpack[Given]) -> SegmentsSampled:
        """n independent draws of the segmentation and of the parameters given the whole series: `path [n, *batch, T]`,
        `parameters` by name.
        """
        with naming("x"):
            problem = self.problem(x, **given)
            drawn = problem.chain(self.values_like(problem.series.like)).sample(n, seed)
            path, redraw = problem.each(drawn.path, 1, beyond=-1), problem.each(drawn.redraw, 1, beyond=0)
            return SegmentsSampled(path, redraw, problem.parameters_at(drawn.parameters[0]))

    def segments(self, x: Any, **given: Unpack[Given]) -> "pd.DataFrame | Any":
        """The segments of the most probable segmentation, a row for each.

        The columns are `sequence`, if x has several; `begin` and `end`, the labels of the first and the last step;
        `steps`; and the posterior mean and standard deviation of each parameter, such as `loc` and `loc_sd`.
        """
        from ..views.segment_tables import segments

        return segments(self, self.problem(x, **given))

    def probabilities(self, chain: SegmentChain, values: Parameters) -> Probabilities:
        return {"change_probability": (chain.change_probability().to(next(iter(values.values()))), ())}

    def states(self, x: Any, **given: Unpack[Given]) -> "pd.DataFrame | Any":
        """The belief about each step given the whole sequence, a row for each step.

        Returns:
            A frame as in `SwitchingSSM.states`, with the columns `change`, P(a segment begins at t | x), 0 at the
            first step; and for each parameter its mean and standard deviation, such as `loc` and `loc_sd`. Those of
            several features have the names of the features, as `loc_level`.
        """
        return super().states(x, **given)

    def _of_steps(self, series: Series) -> Any:
        from ..views.segment_tables import states

        return states(self, self._problem(series))

    @torch.no_grad()
    @explains_options
    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> SegmentsForecast:
        """Observations at each of the `horizon` steps after the end of x, and the probability of a change up to there.

        They are exact mixtures of predictive distributions, whose parameters are integrated out.

        If the model reads inputs or gaps, pass future ones too: `[*batch, T + horizon, C]` and `[*batch, T + horizon]`.
        All sequences must then have equal lengths.
        """
        horizon = check_integer("horizon", horizon)
        series = self.read(x, horizon=horizon, **given)
        series.check_ahead(horizon)
        if self.shared and not bool(series.inside.all()):
            raise ValueError(
                "lengths: got sequences that end at different steps, but forecasts of shared changes begin at one; "
                "give all sequences as many steps, with NaN after the end."
            )
        with naming("x"):
            return forecast(self._problem(series), self.values_like(series.like), horizon, self)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = (), *, tol: float = TOL, most: int = MOST) -> SegmentsStreamState:
        """The state of a batch of streams before their first observation.

        Arguments:
            batch_shape: the batch axes of the streams; () for a single stream.
            tol: how much each update may leave out: a bound on the belief's change in total variation. With 0, memory
                grows.
            most: beginnings of the segment in force that are kept at most.
        """
        batch_shape, most = check_batch_shape("batch_shape", batch_shape), check_integer("most", most)
        return started(self, self.values_like(self._like), batch_shape, check_probability("tol", tol), most)

    def update(
        self, state: SegmentsStreamState, x_t: Any, *, inputs: Any = None, dt: Any = None
    ) -> tuple[SegmentsStreamState, SegmentsStreamOutput]:
        """Add one observation of each stream: `x_t [*batch, F]` (or `[*batch]` for one feature), NaN where missing.

        `inputs [*batch, C]` and `dt [*batch]` are those of this step. The result equals `filter` on the whole series up
        to the mass left out; `state.runs.left_out` bounds it.

        Arguments:
            dt: the gap before this step, `[*batch]`.
        """
        check_kind("state", state, SegmentsStreamState, "the state from start() or update()")
        with naming("x_t"):
            return advanced(self, state, x_t, inputs, dt)

    def extend(
        self, state: SegmentsStreamState, x: Any, **given: Unpack[Given]
    ) -> tuple[SegmentsStreamState, SegmentsFiltered]:
        """Add several observations of each stream, `x [*batch, S, F]`, at once: as `update` for each, and much faster.

        `inputs [*batch, S, C]` and `dt [*batch, S]` are those of these steps. Returns the state after them, and the
        belief after each; `log_normalizer` and `left_out` cover the stream so far.

        Arguments:
            x: the observations of S steps, NaN where missing.
        """
        check_kind("state", state, SegmentsStreamState, "the state from start() or update()")
        return extended(self, state, x, given)

    # ---- fits and figures ------------------------------------------------------------------------------------------

    @explains_options
    def fit(
        self,
        x: Any,
        method: str = "em",
        restarts: int = 8,
        *,
        prior: str | Mapping[str, Any] | None = "weak",
        seed: Seed = 0,
        progress: bool = True,
        max_steps: int = 500,
        tol: float = 1e-6,
        start: Any = None,
        fixed: Any = None,
        num_samples: int | None = None,
        warmup_steps: int | None = None,
        checkpoint: str | Path | None = None,
        every: float = 60.0,
        **given: Unpack[Given],
    ) -> "Fit[Any]":
        """Fit the hazard and the hyperparameters of the segments' prior to sequences: see `switching.segments.fit`.

        Arguments:
            x: sequences and the arguments beside them, as in `read`; or a `Series`.
            method: "em": the mode of their posterior, or maximum likelihood, by exact gradients of the log evidence.
                "nuts": draws of them by Pyro.
            restarts: starts at most, of several hazards and spreads; the first one is at the values of the model.
            max_steps, tol, seed, progress, num_samples, warmup_steps, checkpoint, every: as in `SwitchingSSM.fit`.
            prior: "weak": see `switching.segments.hyperparameters`; about hyperparameters of `with_prior`, or else the
                emission's weak default, which is scaled to x. A dictionary sets some, as `with_prior` does. None: no
                prior, for "em". If segments have equal values, the evidence is unbounded; then their variance is kept
                at a floor, and `reason` says so.
            start: an additional start; with `restarts=1`, the only one. It is a model, a fit, or values by name.
            fixed: parameters that are held at these values, by name, such as `{"hazard": 0.02}`.
            given: as in every method.

        Returns:
            `Fit`, whose `model` has the fitted values; `posterior` has the draws of NUTS.

        Raises:
            TypeError, ValueError: as `SwitchingSSM.fit`; `fixed` that leaves nothing to fit, or holds tables in part.

        >>> import samplehold as sh
        >>> x = [0.1, -0.2, 0.0, 0.2, 5.1, 4.8, 5.0, 5.2, 4.9, 1.9, 2.1, 2.0]
        >>> fit = sh.Segments(sh.Normal()).fit(x, progress=False)
        >>> fit.segments.steps.tolist()
        [4, 5, 3]
        """
        options = Options(
            method,
            restarts,
            max_steps,
            tol,
            seed,
            prior,
            progress,
            start=start,
            fixed=fixed,
            num_samples=num_samples,
            warmup_steps=warmup_steps,
            checkpoint=checkpoint,
            every=every,
        )
        return self._fit(x, given, options)

    def _fitted(self, series: Series, options: Options) -> "Fit[Any]":
        from ..fitting.fit import check_enough
        from .fit import fit_segments, fixed_tables, start_values

        check_enough(series, 1)
        check_rank(series, inputs_of(self.hazard), "the hazard", INTERCEPT)
        fixed, start = fixed_tables(self, options.fixed), start_values(self, options.start)
        model = self.without_values()._scaled(series, fixed)
        kept = {CENTER: INTERCEPT, SCALE: OF_LOCATION}  # what is fixed is that of before, so the prior is too
        model = model._copy(
            {}, model.prior | {n: self.prior[n] for n, of in kept.items() if of in fixed and n in self.prior}
        )
        series = model._about_origin(series)

        def double(tables: Parameters) -> Parameters:
            return {name: table.to(series.like.device).double() for name, table in tables.items()}

        center = double(model.prior)
        prior = None if options.prior is None else center
        problem = replace(model._problem(series).double(), prior=prior, fixed=double(fixed))
        result = fit_segments(problem, center, double(start), options)
        return self._kind_of_fit(result.posterior is not None).of(
            result, model._copy({name: value.to(series.like) for name, value in result.values.items()})
        )

    def _kind_of_fit(self, has_posterior: bool) -> type["Fit[Any]"]:
        from .segment_fit import SegmentFit

        return SegmentFit

    def _panels(self, full_data: Series, sequence: int, level: float) -> "Panels":
        """Colours alternate between the segments of the most probable segmentation. The bands of parameters include the
        uncertainty of the segmentation."""
        from ..views.panels import MOST_CURVES, TWO_COLORS, Curve, Panels, curves_of, ends_of, within_support
        from ..views.segment_tables import columns

        smoothed, best = self._of_one(full_data, sequence)
        series, seen, curves = full_data.one(sequence), SEEN.get(self.emission.name), {}
        look: dict[str, Any] = {"best": best.path % 2, "colors": TWO_COLORS}
        begins, gates = best.redraw.nonzero().flatten().tolist()[1:], {"change": smoothed.change}
        about = " and its most probable segments, with "
        if "category" in self.sizes:
            features = [Curve(probs=smoothed.mean["probs"], joined=False)]
            return Panels(f"{about}the mean probability of each category", features, gates=gates, begins=begins)
        features = [Curve()] * series.n_features
        if seen is not None:
            ends = within_support(self.emission, ends_of(smoothed.mean[seen], smoothed.sd[seen], level))
            features = curves_of(ends, **look, joined=seen != "probs")
        found = columns(self, series, smoothed.mean, smoothed.sd)
        names = [name for name in found if f"{name}_sd" in found]
        others = [name for name in names if name != seen and not name.startswith(f"{seen}_")]
        for name in others[:MOST_CURVES]:
            curves[name] = Curve(*ends_of(found[name], found[f"{name}_sd"], level), **look)
        about += f"means and {100 * level:g}% bands of parameters"
        return Panels(about, features, curves=curves, gates=gates, begins=begins)

    def _of_one(self, full_data: Series, sequence: int) -> tuple[Any, Any]:
        """The belief and the most probable segmentation of one sequence; if changes are shared, given all sequences."""
        if not self.shared:
            one = full_data.one(sequence)
            return self.smooth(one), self.viterbi(one)
        n = len(full_data.batch_shape)

        def part(table: Tensor) -> Tensor:
            return table.flatten(0, n - 1)[sequence][: int(full_data.last.flatten()[sequence]) + 1] if n else table

        smoothed, best = self.smooth(full_data), cast(Any, self.viterbi(full_data))
        mean, sd = ({name: part(table) for name, table in tables.items()} for tables in (smoothed.mean, smoothed.sd))
        one = replace(smoothed, change=part(smoothed.change), mean=mean, sd=sd)
        return one, replace(best, path=part(best.path), redraw=part(best.redraw))

    def _panels_ahead(self, forecast: SegmentsForecast, level: float) -> "Panels":
        """Before the end of the series P(a segment begins at t | x), after it that of a change since the end."""
        from ..views.panels import Curve, Panels, ahead

        change = self.smooth(forecast.series).change.clone()
        change[0] = 0.0
        gates = {"change": torch.cat([change, forecast.redraw])}
        if "category" not in self.sizes:
            return ahead(forecast, level, gates=gates)
        return Panels("the probability of each category", [Curve(probs=forecast.probs, joined=False)], gates=gates)
