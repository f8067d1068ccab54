r"""Profile intervals: the values of a parameter that the data do not contradict, whatever the other parameters are.

With the profile $\ell_p(c) = \max \{ \ell(\theta) : \theta_p = c \}$ of the objective $\ell$ that was maximised, the
interval of a level is the range of all c with

$$2\,(\max \ell - \ell_p(c)) \le \chi^2_1(\mathrm{level})$$

(Cox & Hinkley 1974, *Theoretical Statistics*, 9.2). It needs no curvature, so it may begin at a variance of 0, and it
is the same for any function of the parameter. The other parameters are maximised at a grid of c, from the fitted ones,
from changes of these (see `kinds`), and from the ends at neighbouring c. The ends of the interval are then found by
root search.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import ndtri
from torch import Tensor

from ...inference.numerics.gradients import needs_gradients
from ...inference.numerics.scalars import check_kind, check_probability
from ...inference.numerics.threads import one_thread_if_small
from ..ascent import Ascent
from ..fit import Fit
from ..intervals import Interval
from ..parameters import Parameters
from .coordinates import STEEPEST, LinearDensity, StructureCoordinates
from .kinds import LOW, N_FREQUENCIES, changed
from .problem import LinearProblem
from .quick import QuickDensity
from .stationary import from_partial_autocorrelations

LEAST, MOST = 1e-4, 1e3  # standard deviations of a grid, in units of the data
RATIO = 10**0.5  # of neighbours in it
N_PLACES = 17  # of other grids
STEPS, STRIDE = 120, 6  # of an ascent, and between two looks
TOL = 1e-7  # gain in nats in a stride at which an ascent ends
HOPE = 10.0  # further gain of an ascent at most, in the gain of its last stride
ROUNDS = 3  # in which the places of a grid try the ends of their neighbours
NUDGE = 2e-3  # smallest standard deviation of a start: at 0 the slope is 0, even where a rise begins
STIFF = 1e4  # weight of the squared distance of a coefficient from c
EDGE = 8.0  # coordinate of a partial autocorrelation of 1 up to rounding
PRECISION = 1e-7  # of a root, in coordinates
HIGHER = 1e-3  # gain in nats by a neighbour's end that counts


@dataclass(frozen=True, repr=False, kw_only=True)
class StructureFit(Fit[Any]):
    """A fit of a structure by maximum likelihood, or to the mode under a prior."""

    @needs_gradients
    def profile_interval(self, level: float = 0.9, parameters: str | Sequence[str] | None = None) -> Interval:
        """Intervals of parameters from the profile of the objective: see `switching.linear.profile`.

        The normal intervals of `summary` treat a variance at 0 as known. These let all other parameters vary. The lower
        end is 0 if the profile at 0 is high enough. The upper end of a variance is infinite if the profile is high
        enough even for a standard deviation of 1000 times the spread of the series. If the data contradict values in
        between, the interval contains them too.

        Arguments:
            level: probability of the intervals; at a lower end of 0 they contain the parameter a little more often.
            parameters: the names of some; None: all that were not held.

        Returns:
            Lower and upper ends by parameter, as those of `posterior.interval`.

        Raises:
            ValueError: level outside (0, 1); a parameter that the structure lacks, or that was held; a fit whose data
                several processes shared.

        >>> import samplehold as sh
        >>> fit = sh.LinearSSM(sh.LocalLevel()).fit([4.0, 5.5, 5.0, 7.1, 6.2, 8.0, 6.9], progress=False)
        >>> ends = fit.profile_interval(0.9, "sigma2.irregular")
        >>> float(ends.lower["sigma2.irregular"]), round(float(ends.upper["sigma2.irregular"]), 2)
        (0.0, 2.69)
        """
        level = check_probability("level", level, proper=True)
        names = self._free(parameters)
        if self.shared:
            raise ValueError(
                "profile_interval: several processes shared the data of this fit, but a profile needs all of it; use "
                "the fit of one process."
            )
        series = self._given(None)
        problem = self.model.problem(series)
        prior = None if self.prior is None else problem.prior
        fixed = {name: table.to(series.like.device) for name, table in self.held.items()}
        problem = replace(problem, prior=prior, fixed=fixed).double()
        values = {name: value.double() for name, value in self.model.values_like(series.like).items()}
        with one_thread_if_small(N_PLACES * series.like.numel()), torch.no_grad():
            profiled = Profiled(problem, values, float(ndtri((1 + level) / 2)) ** 2 / 2)
            ends = {name: profiled.ends(name) for name in names}
        like = series.like
        return Interval(*({name: like.new_tensor(pair[i]) for name, pair in ends.items()} for i in range(2)))

    def _free(self, parameters: str | Sequence[str] | None) -> list[str]:
        """The names of the parameters that are meant, in their order."""
        free = [name for name in self.model.known if name not in self.fixed]
        if parameters is None:
            return free
        check_kind("parameters", parameters, (str, Sequence), "names of parameters")
        names = [parameters] if isinstance(parameters, str) else list(parameters)
        unknown = [name for name in names if name not in free]
        if unknown:
            beside = f", and holds {list(self.fixed)}" if self.fixed else ""
            raise ValueError(f"parameters: got {unknown}, but this fit estimates {free}{beside}; name some of these.")
        return names


class Profiled:
    """The profiles of an objective, around its maximum.

    Arguments:
        problem: in float64, in the units of the user.
        values: the parameters at the maximum.
        drop: how far in nats the profile may fall.
    """

    top: float
    drop: float

    def __init__(self, problem: LinearProblem, values: Parameters, drop: float) -> None:
        units, self.drop = problem.units, drop
        self.density: QuickDensity = QuickDensity(problem.in_units(units), units, units.values(values), volume=False)
        self.best: Tensor = self.density.point
        self.top = float(self.density.at(self.best[None]))
        self.others: Tensor = changed(self.density, self.best).points

    def ends(self, name: str) -> tuple[float, float]:
        """The interval of a parameter."""
        number = FixedNumber.of(self.density, name)
        targets = number.grid(self.best)
        ends, heights = self._profile(number, targets)
        self.top = max(self.top, float(heights.max()))
        inside = (heights >= self.top - self.drop).nonzero().flatten().tolist()
        lower = self._end(number, targets, ends, inside[0], -1)
        if name in self.density.variances and inside[-1] == len(targets) - 1:
            return lower, math.inf
        return lower, self._end(number, targets, ends, inside[-1], 1)

    def _profile(
        self, number: "FixedNumber", targets: Float[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n P"], Float[Tensor, "n"]]:
        """The best coordinates at each target, and their heights."""
        least = self.top - self.drop
        others = torch.stack([self._best_change(number, target) for target in targets])
        ends, heights = number.maximum(targets, torch.stack([self.best.expand_as(others), others]), least)
        for _ in range(ROUNDS):
            before = heights
            ends, heights = number.maximum(targets, torch.stack([ends, ends.roll(1, 0), ends.roll(-1, 0)]), least)
            if bool((heights <= before + HIGHER).all() | (heights >= least).all()):
                break
        return ends, heights

    def _best_change(self, number: "FixedNumber", target: Tensor) -> Float[Tensor, "P"]:
        points = number.moved(self.others, target)
        return points[int(self.density.at(points).argmax())]

    def _end(self, number: "FixedNumber", targets: Tensor, ends: Tensor, place: int, step: int) -> float:
        """The end of the interval between a place of the grid inside of it and the next one outside."""
        outside = place + step
        if not 0 <= outside < len(targets):
            return number.value(ends[place])
        near = ends[[place, outside]].unsqueeze(1)

        @cache
        def above(target: float) -> float:
            _, heights = number.maximum(near.new_tensor([target]), near)
            return float(heights) - (self.top - self.drop)

        inner, outer = float(targets[place]), float(targets[outside])
        if above(inner) <= 0:
            return number.value(ends[place])
        if above(outer) >= 0:
            return number.value(ends[outside])
        root = near.new_tensor([brentq(above, inner, outer, xtol=PRECISION)])
        return number.value(number.maximum(root, near)[0][0])


@dataclass(frozen=True)
class FixedNumber:
    """The density at points [y, c]: of coordinates y of which one number is held at c.

    If the number is a coordinate, it is set to c. The first coefficients of an autoregression are functions of several
    coordinates. Such a one is pulled to c by `STIFF` / 2 times the square of its distance. Where this sum is highest,
    the other parameters are the best ones for the coefficient there, which is near c.

    Attributes:
        place: of the coordinate; None: there is none.
        block: of a coefficient without a coordinate, the places of its autoregression, and its number in it.
    """

    density: LinearDensity
    name: str
    place: int | None
    block: tuple[slice, int] = (slice(0), 0)

    @staticmethod
    def of(density: LinearDensity, name: str) -> "FixedNumber":
        """The density with this parameter held."""
        form = density.coordinates
        assert isinstance(form, StructureCoordinates)
        first = len(form.variances)
        if name in form.variances:
            return FixedNumber(density, name, form.variances.index(name))
        for names in form.weights:
            last = first + len(names) - 1
            if name in names[:-1]:
                return FixedNumber(density, name, None, (slice(first, last + 1), names.index(name)))
            if name == names[-1]:
                return FixedNumber(density, name, last)
            first = last + 1
        return FixedNumber(density, name, first + list(form.ranges).index(name))

    def grid(self, best: Float[Tensor, "P"]) -> Float[Tensor, "n"]:
        """Values of c over the whole range, that of the maximum among them."""
        n_variances, first_range = len(self.density.variances), len(best) - len(self.density.ranges)
        if self.place is None:
            block, entry = self.block
            middle, n = float(self._coefficients(best)), block.stop - block.start
            most = math.comb(n, entry + 1)
            places = [*torch.linspace(-most, most, N_PLACES, device="cpu").tolist(), middle]
        elif self.place < n_variances:
            middle = float(best[self.place]) or LOW
            lowest, highest = (math.log(end / middle, RATIO) for end in (LEAST, MOST))
            powers = range(min(0, math.ceil(lowest)), math.floor(highest) + 1)
            places = [0.0, *(middle * RATIO**power for power in powers)]
        elif self.place < first_range:
            places = [*torch.linspace(-EDGE, EDGE, N_PLACES, device="cpu").tolist(), float(best[self.place])]
        else:
            n = N_FREQUENCIES if self.name.startswith("frequency") else N_PLACES
            places = [*torch.linspace(0.0, math.pi, n, device="cpu").tolist(), float(best[self.place])]
        return best.new_tensor(sorted(places))

    def value(self, at: Float[Tensor, "P"]) -> float:
        """The parameter in the units of the user."""
        return float(self.density.values({"y": at})[self.name])

    def moved(self, at: Float[Tensor, "*r P"], target: Float[Tensor, "*#r"]) -> Float[Tensor, "*r P"]:
        """Coordinates with the held one in its place."""
        if self.place is None:
            return at
        there = at.clone()
        there[..., self.place] = target
        return there

    def climb(self, flat: Float[Tensor, "R Q"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R Q"]]:
        """Heights and slopes, as an `Ascent` needs them; c has none."""
        target, at = flat[:, -1], self.moved(flat[:, :-1], flat[:, -1])
        heights, slopes = self.density.climb(at)
        if self.place is None:
            with torch.enable_grad():
                here = at.detach().requires_grad_()
                pull = -STIFF / 2 * (self._coefficients(here) - target).square()
                (slope,) = torch.autograd.grad(pull.sum(), here)
            heights, slopes = heights + pull.detach(), slopes + slope
        else:
            slopes = slopes.clone()
            slopes[:, self.place] = 0.0
        return heights, torch.nn.functional.pad(slopes, (0, 1))

    def maximum(
        self, targets: Float[Tensor, "n"], starts: Float[Tensor, "k n P"], least: float | None = None
    ) -> tuple[Float[Tensor, "n P"], Float[Tensor, "n"]]:
        """For each target the best coordinates from k starts, and the density there.

        Arguments:
            least: a height; ascents stop where it has been reached, or no longer can be. None: they go on to the end.
        """
        k, n, _ = starts.shape
        starts, n_variances = starts.clone(), len(self.density.variances)
        starts[..., :n_variances] = starts[..., :n_variances].abs().clamp_min(NUDGE)
        points = torch.cat([starts, targets.expand(k, n).unsqueeze(-1)], -1).flatten(0, 1)
        ascent, going = Ascent(self, points.clone(), TOL), torch.arange(k * n, device=points.device)
        heights = ascent.height().clone()
        for _ in range(STEPS // STRIDE):
            before = ascent.height()
            ascent.run(STRIDE)
            heights[going], points[going] = ascent.height(), ascent.point
            rise, hope = ascent.height() - before, ascent.height() + HOPE * (ascent.height() - before)
            best = heights.unflatten(0, (k, n)).amax(0)[going % n]
            stay = (rise > TOL) & (hope >= best)
            if least is not None:
                stay &= (best < least) & (hope >= least)
            if not bool(stay.any()):
                break
            ascent, going = ascent.select(stay), going[stay]
        best = heights.unflatten(0, (k, n)).argmax(0)
        ends = self.moved(points[:, :-1].unflatten(0, (k, n))[best, torch.arange(n, device=best.device)], targets)
        return ends, self.density.at(ends)

    def _coefficients(self, at: Float[Tensor, "*r P"]) -> Float[Tensor, "*r"]:
        block, entry = self.block
        return from_partial_autocorrelations(at[..., block].tanh() * STEEPEST)[..., entry]
