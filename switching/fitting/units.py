r"""Units of the data's spread, in which every method fits.

An offset of $10^8$ or a spread of $10^{-9}$ costs digits in sums of squares. So the data are first centred and divided
by their spread, and the fitted parameters are converted back:

$$\tilde x = (x - a) / u, \qquad \log p(x) = \log p(\tilde x) - \sum_{t, f \text{ observed}} \log u_f.$$

Inputs are centred and divided by their spread too, so that no fit depends on their origin and unit. They are centred at
the inputs at which the priors of constants are stated; see `responses`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..data.packed import rows_of
from ..data.series import Series
from ..emissions.conjugate import ConjugateEmission
from ..emissions.contract import Emission
from ..emissions.driven import scored_rows
from ..emissions.spread import check_squares, spread, varying
from ..parameters import Parameters, moved
from ..priors import log_prior
from ..problem import Problem
from ..responses import CENTER, Frame, spread_of_inputs


@runtime_checkable
class HasUnits(Protocol):
    """A model of observations that can convert its parameters to other units."""

    def in_units(self, table: Parameters, unit: Tensor, /) -> Parameters: ...


@dataclass(frozen=True)
class Units:
    """The location and the spread of the data, for coordinates in which these are about 0 and 1.

    Attributes:
        emission: converts its parameters to these units and back.
        about, unit: location and spread in float64, which holds differences of float32 numbers exactly.
        frame: the coordinates of inputs; None: those of the model.
    """

    emission: HasUnits
    about: Float[Tensor, "F"]
    unit: Float[Tensor, "F"]
    frame: Frame | None = None

    @staticmethod
    def of_problem(problem: Problem) -> "Units":
        """The units of the observed values and of the inputs of a problem."""
        units = Units.of(problem.emission, problem.series, problem.fixed)
        return replace(units, frame=frame_of(problem))

    @staticmethod
    def of(emission: Emission, series: Series, fixed: Collection[str] = ()) -> "Units":
        """The units of the observed values; 0 and 1 if the emission has no units.

        Arguments:
            fixed: the names of fixed parameters. The location is 0 if one of them would not stay fixed otherwise.

        Raises:
            ValueError: the square of a spread is out of range of the dtype of the series; names the feature.
        """
        _check_inputs(series)
        rows, dtype, names = series.rows.detach().double(), series.like.dtype, series.features_of()
        about, unit = torch.zeros_like(rows[0]), torch.ones_like(rows[0])
        if all(part.emission.have_unit for part in emission.parts):
            known = spread(rows, 1, rows.shape[-1])
            scale = torch.where(varying(rows), known.scale, 0.0)
            about, unit = emission.units(known.center, scale, fixed)
        check_squares("x", unit, dtype, names)
        reach = (rows.nan_to_num(0.0).abs().amax(0) / unit).clamp_min(1)
        check_squares("x", torch.where(unit == 1, reach, 1.0), dtype, names, "reaches")
        return Units(emission, about, unit)

    def check(self, series: Series, dtype: torch.dtype) -> None:
        """Raise ValueError if the squares of later observations, in these units or about their location, or of inputs
        are out of range of a dtype; names the feature."""
        _check_inputs(series)
        rows, unit = series.rows.detach().to(self.unit), self.unit
        reach = (rows - self.about).nan_to_num(0.0).abs().amax(0).maximum(unit)
        for scale in (reach, reach / unit):
            check_squares("x", scale, dtype, series.features_of(), "reaches")

    def to(self, like: Tensor) -> "Units":
        """These units on another device."""
        frame = self.frame
        if frame is not None:
            frame = replace(frame, center=frame.center.to(like.device), scale=frame.scale.to(like.device))
        return replace(self, about=self.about.to(like.device), unit=self.unit.to(like.device), frame=frame)

    def stated(self, values: Parameters) -> Float[Tensor, "C"] | None:
        """The inputs at which the constants of values in these units are stated: None, those of the model, if this
        keeps their digits, otherwise the middle of the inputs."""
        if self.frame is None or not bool(self.frame.center.any()):
            return None
        there = self.values(self.back(values))
        return None if self.frame.close(values, there) else self.frame.center

    @property
    def centered(self) -> "Units":
        """These units for parameters whose constants are stated at the middle of the inputs."""
        return self if self.frame is None else self.about_inputs(self.frame.center)

    def about_inputs(self, origin: Float[Tensor, "C"] | None) -> "Units":
        """These units for parameters whose constants are stated at other inputs."""
        if self.frame is None or origin is None:
            return self
        return replace(self, frame=replace(self.frame, center=self.frame.center - origin.to(self.frame.center)))

    def near_prior(self, problem: Problem) -> "Units":
        """These units, centred at the prior's location if its natural parameters would lose digits otherwise.

        Natural parameters subtract the square of the location. If this leaves no digits of a scale, the prior's
        location alone determines the locations of the states, and the data need no more digits than it has.
        """
        inner = self.problem(problem)
        if inner.prior is None or "loc" not in inner.prior:
            return self
        for part in inner.emission.parts:
            prior = part.own(inner.prior)
            if not (isinstance(part.emission, ConjugateEmission) and part.emission.have_unit):
                continue
            if "loc" in prior and not _is_kept(part.emission, prior):
                about = problem.prior["loc"].double().mean(0) if problem.prior else self.about
                return replace(self, about=about)
        return self

    def series(self, series: Series) -> Series:
        """The series in these units, in its own dtype."""
        series = series if self.frame is None else series.rescaled(self.frame.center, self.frame.scale)
        if not bool(self.about.any()) and bool((self.unit == 1).all()):
            return series
        # in place, so that it needs only one more table of the size of x
        scaled = series.mapped(lambda x: (x.double() - self.about).div_(self.unit).to(x))
        return scaled._mapped(lambda noise: noise.double().div(self.unit.square()).to(noise), "noise")

    def problem(self, problem: Problem) -> Problem:
        """The problem in these units."""
        prior = None if problem.prior is None else self.values(problem.prior)
        emission = problem.emission.in_fit_units(self.about, self.unit)
        series, fixed = self.series(problem.series), self.values(problem.fixed)
        return replace(problem, emission=emission, series=series, prior=prior, fixed=fixed)

    def values(self, table: Parameters) -> Parameters:
        """Values or hyperparameters in these units."""
        wide = {name: value.double() for name, value in table.items()}
        scaled = self.emission.in_units(self._shifted(wide, -self.about), self.unit)
        return _like(table, scaled if self.frame is None else self.frame.into(scaled))

    def back(self, table: Parameters) -> Parameters:
        """Values in the units of the data."""
        wide = {name: value.double() for name, value in table.items()}
        wide = wide if self.frame is None else self.frame.inverse.into(wide)
        return _like(table, self._shifted(self.emission.in_units(wide, 1 / self.unit), self.about))

    def _shifted(self, table: Parameters, by: Tensor) -> Parameters:
        return self.emission.shifted(table, by) if isinstance(self.emission, Emission) else moved(table, by)

    def log_volume(self, series: Series) -> Float[Tensor, "*b"]:
        """The increase of the log density of each sequence in these units, times its weight."""
        lagged = isinstance(self.emission, Emission) and self.emission.order > 0
        if series.lengths is None and series.powers is None and not lagged:
            total = (~torch.isnan(series.observations)).to(self.unit).sum(-2) @ self.unit.log()
        else:
            seen = scored_rows(self.emission, series) if lagged else ~torch.isnan(series.rows)  # pyright: ignore[reportArgumentType]
            each = seen.to(self.unit) @ self.unit.log()
            each = each if series.powers is None else each * series.powers[series.inside].to(each)
            total = each.new_zeros(series.n_sequences).index_add(0, series.sequence_of_rows, each)
            total = total.reshape(series.batch_shape)
        return total if series.weights is None else total * series.weights.to(total)

    def log_prior_volume(self, problem: Problem) -> float:
        """The increase of the log density of the prior in these units."""
        if problem.prior is None:
            return 0.0
        prior = {name: table.double() for name, table in problem.prior.items()}
        typical = problem.emission.start(prior)
        emission = problem.emission.in_fit_units(self.about, self.unit)
        there = log_prior(emission.sites(self.values(prior)), self.values(typical))
        return float(there - log_prior(problem.emission.sites(prior), typical)) + self._volume_of_weights(problem)

    def _volume_of_weights(self, problem: Problem) -> float:
        """The increase of the log density of the dynamics' weights of inputs."""
        if self.frame is None:
            return 0.0
        known, sizes, prior = problem.dynamics.parameters, problem.dynamics.sizes, problem.prior or {}
        names = {name for response in problem.dynamics.responses for name in response.coefficients}

        def at_zero(prior: Parameters) -> float:
            like, total = next(iter(prior.values())), 0.0
            for site in problem.dynamics.sites(prior):
                if site.name in names:
                    zero = like.new_zeros([sizes[dim] for dim in known[site.name].dims])
                    total += float(site.log_prob({site.name: zero}, inside=False))
            return total

        wide = {name: table.double() for name, table in prior.items()}
        return at_zero(self.values(wide)) - at_zero(wide)


def frame_of(problem: Problem) -> Frame | None:
    """The coordinates in which the priors of a problem are stated at inputs 0, about which inputs have the spread 1."""
    spread = spread_of_inputs(problem.series) if problem.responses else None
    if spread is None:
        return None
    center, scale = mean, _ = spread
    if problem.prior is not None and CENTER in problem.prior:
        center = problem.prior[CENTER].to(scale)
    elif not problem.moves_origin:
        center = torch.zeros_like(scale)
    return Frame(problem.responses, problem.inputs, center, torch.hypot(scale, mean - center))


def _check_inputs(series: Series) -> None:
    if series.inputs is not None:
        sizes = rows_of(series.inputs).detach().flatten(0, -2).abs().amax(0).clamp_min(1)
        check_squares("inputs", sizes, series.like.dtype, series.drivers, "reaches")


def _is_kept(emission: ConjugateEmission, prior: Parameters) -> bool:
    """Whether natural parameters hold a prior to a quarter of the digits; with a looser limit the data lose more."""
    exact = emission.start(prior)
    try:
        expected = emission.expected(emission.natural(prior))
    except RuntimeError:  # a Cholesky factor that does not exist
        return False
    close = torch.finfo(prior["loc"].dtype).eps ** 0.25
    return all(bool(((expected[n] - v).abs() <= close * v.abs().amax()).all()) for n, v in exact.items() if n != "loc")


def _like(table: Parameters, values: Parameters) -> Parameters:
    return {name: value.to(table[name]) for name, value in values.items()}
