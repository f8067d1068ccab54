"""The search of structures: its density, and maxima that depend on no seed, beside those of many starts of a peer."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from samplehold import Autoregression, Cycle, LinearSSM, LocalLevel, LocalLinearTrend, Regression, Seasonal, kernels
from samplehold.switching.ascent import Ascent, Peak
from samplehold.switching.fitting import Options
from samplehold.switching.fitting.search import MultiStart
from samplehold.switching.linear.coordinates import LinearDensity
from samplehold.switching.linear.kinds import changed, grid, in_scale
from samplehold.switching.linear.priors import units_of
from samplehold.switching.linear.problem import typical
from samplehold.switching.linear.quick import QuickDensity
from statsmodels.tsa.statespace.structural import UnobservedComponents
from torch.testing import assert_close

from tests.examples import slow

DATA = Path(__file__).parents[2] / "notebooks" / "data"
MACRO = pd.read_csv(DATA / "us_macro.csv")
SERIES = {
    "inflation": MACRO["infl"].to_numpy(dtype=float),
    "unemployment": MACRO["unemp"].to_numpy(dtype=float),
    "product": 100 * np.log(MACRO["realgdp"].to_numpy(dtype=float)),
    "nile": pd.read_csv(DATA / "nile.csv")["volume"].to_numpy(dtype=float),
    "sunspots": np.sqrt(pd.read_csv(DATA / "sunspots.csv").iloc[:, 1].to_numpy(dtype=float)),
}
STRUCTURES = {
    "level, autoregression": (LocalLevel() + Autoregression(1), {"level": "llevel", "autoregressive": 1}),
    "trend": (LocalLinearTrend(), {"level": "lltrend"}),
    "level, season": (LocalLevel() + Seasonal(4), {"level": "llevel", "seasonal": 4}),
    "trend, autoregression": (LocalLinearTrend() + Autoregression(2), {"level": "lltrend", "autoregressive": 2}),
}


def densities(structure: object, x: np.ndarray, **given: object) -> tuple[QuickDensity, LinearDensity]:
    """The density for searches, and the exact one."""
    model = LinearSSM(structure)
    problem = replace(model.problem(x, **given), prior=None)
    units = units_of(problem.emission, problem.series)
    inner = problem.in_units(units)
    near = typical(inner.dynamics, inner.emission)
    return QuickDensity(inner, units, near, volume=False), LinearDensity(inner, units, near, volume=False)


@pytest.mark.parametrize(
    "structure",
    [
        LocalLevel() + Seasonal(4) + Autoregression(2),
        LocalLinearTrend(stochastic_level=False) + Cycle(damped=True),
        LocalLevel(irregular=False) + Regression(1, varying=True),
    ],
    ids=str,
)
def test_the_density_of_searches_has_the_values_and_the_gradient_of_the_exact_one(structure: LocalLevel) -> None:
    x = SERIES["nile"].copy()
    x[[4, 50, 51]] = np.nan
    given = {"inputs": np.sin(np.arange(len(x)))[:, None]} if structure.n_inputs else {}
    quick, exact = densities(structure, x, **given)
    points = 0.1 + torch.rand(3, len(quick.point), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with kernels("native"):
        (height, forward), central = quick.climb(points), quick.gradient(points)
        curved = quick.curved(points)
        assert_close(quick.at(points), exact.at(points), rtol=1e-9, atol=1e-9)
    expected, gradient = exact.climb(points)
    assert_close(height, expected, rtol=1e-9, atol=1e-9)
    assert_close(central, gradient, rtol=1e-5, atol=1e-5)
    assert_close(forward, gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))
    hessian = torch.stack([exact.hessian(point) for point in points])
    assert_close(curved[:2], (expected, gradient), rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))
    assert_close(curved[2], hessian, rtol=1e-2, atol=1e-2 * float(hessian.abs().max()))


def test_starts_have_the_best_common_scale_of_their_standard_deviations() -> None:
    quick, _ = densities(LocalLinearTrend() + Autoregression(1), SERIES["inflation"])
    points = torch.tensor([[0.1, 0.2, 0.05, 3.0, 0.5], [9.0, 0.0, 1.0, 4.0, -0.3]], dtype=torch.float64)
    with kernels("native"):
        scaled, heights = in_scale(quick, points)
        assert_close(quick.at(scaled), heights)
        for c in (0.99, 1.01):
            near = torch.cat([c * scaled[:, :4], scaled[:, 4:]], -1)
            assert bool((quick.at(near) < heights).all())


def test_starts_are_of_all_kinds_and_changes_of_an_end_differ_in_a_component() -> None:
    quick, _ = densities(LocalLevel() + Autoregression(1), SERIES["nile"])
    starts = grid(quick)
    assert len(starts.kinds) == len(set(starts.kinds)) == 7 * 3  # some variances above 0, and three autoregressions
    heights = quick.at(starts.points)
    assert bool((heights.diff() <= 0).all())
    near = changed(quick, starts.points[0])
    assert bool(((near.points - starts.points[0]).abs() > 0).sum(-1).le(2).all())


CASES = [(name, series) for name in STRUCTURES for series in SERIES]
QUICK = ("level, autoregression", "inflation")


@pytest.mark.parametrize(("name", "series"), [QUICK, *(slow(*case) for case in CASES if case != QUICK)])
def test_the_maximum_depends_on_no_seed_and_is_no_lower_than_that_of_many_starts(name: str, series: str) -> None:
    (structure, keywords), x = STRUCTURES[name], SERIES[series]
    with kernels("native"):
        fits = [LinearSSM(structure).fit(x, seed=seed, progress=False) for seed in range(2)]
    ends = [fit.loglik for fit in fits]
    assert max(ends) - min(ends) < 1e-6
    assert all(fit.converged for fit in fits)
    best = many_starts(x, keywords)
    # an autoregression at the end of its range is a fixed oscillation, whose likelihood has as many maxima as periods
    at_the_end = (name, series) == ("trend, autoregression", "nile")
    assert ends[0] >= best - (0.2 if at_the_end else 1e-4)


def many_starts(x: np.ndarray, keywords: dict[str, object], n: int = 4) -> float:
    """The greatest maximum of statsmodels from its own start and from random ones."""
    draws, size = np.random.default_rng(1), np.diff(x).var()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = UnobservedComponents(x, use_exact_diffuse=True, **keywords)
        ends = [peer.fit(disp=False).llf]
        for _ in range(n):
            start = [
                size * 10 ** draws.uniform(-3, 0.5) if name.startswith("sigma2") else draws.uniform(-0.9, 0.95)
                for name in peer.param_names
            ]
            try:
                ends.append(peer.fit(start, disp=False, maxiter=300).llf)
            except (ValueError, np.linalg.LinAlgError):  # an autoregression that is not stationary
                continue
    return float(max(end for end in ends if np.isfinite(end)))


class Quartic:
    """A function with a flat maximum at 1, which counts the points at which it is computed."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def climb(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.sizes.append(len(flat))
        return -(flat - 1).pow(4).sum(-1), -4 * (flat - 1).pow(3)


def test_a_restart_that_rests_is_not_computed_again() -> None:
    density = Quartic()
    Ascent(density, torch.tensor([[1.0], [3.0], [0.5]], dtype=torch.float64), tol=1e-6).run(2)
    assert density.sizes[0] == 3
    assert max(density.sizes[1:]) == 2


def test_a_restart_merges_with_an_earlier_one_at_its_point() -> None:
    series = LinearSSM(LocalLevel()).read([1.0, 2.0, 3.0])
    search = MultiStart(Options(restarts=2, tol=0.0, progress=False), series, lambda *_: None)
    search.run(Ascent(Quartic(), torch.tensor([[0.0], [3.0]], dtype=torch.float64)), ["a", "b"], 2)
    earlier = search.best
    near = torch.tensor([[1.015]], dtype=torch.float64)
    search.run(Ascent(Quartic(), near), ["near"], 0, independent=False, beside=earlier)
    assert (search.climbs[-1].ended, search.climbs[-1].leader) == ("merged", earlier)
    search.run(Ascent(Quartic(), near), ["alone"], 0, independent=False)
    assert search.climbs[-1].leader is None


class TwoPeaks:
    """Even in the first coordinate: maxima of 0 at (1, 0) and of 1 at (6, 0), and at their mirror images."""

    def climb(self, flat):
        with torch.enable_grad():
            y = flat.detach().requires_grad_()
            away = torch.stack([y[:, 0].abs() - 1, y[:, 0].abs() - 6], -1)
            low, high = (-2 * away.square() - y[:, 1:].square()).unbind(-1)
            height = torch.maximum(low, high + 1)
            (slope,) = torch.autograd.grad(height.sum(), y)
        return height.detach(), slope


def test_an_ascent_moves_to_a_known_peak_that_explains_it_and_to_no_other():
    low = Peak(torch.tensor([1.0, 0.0]).double(), torch.zeros(()).double(), torch.tensor([[4.0, 0], [0, 2]]).double())
    starts = torch.tensor([[-0.5, 1.0], [5.0, 0.5], [-7.0, 0.0]], dtype=torch.float64)
    ascent = Ascent(TwoPeaks(), starts, 1e-9, n_even=1, known=low)
    ascent.run(1)
    assert torch.equal(ascent.point[0], low.point)
    ascent.run(30)
    assert_close(ascent.point[1:], torch.tensor([[6.0, 0.0], [6.0, 0.0]]).double(), rtol=1e-6, atol=1e-6)
    assert_close(ascent.height(), torch.tensor([0.0, 1.0, 1.0]).double(), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_an_input_that_is_almost_constant_beside_a_level_is_fitted() -> None:
    """A regression on 1 + 1e-6 z is one on z: the kernel loses the difference, so the chain computes the density."""
    random = np.random.default_rng(3)
    x, z = random.normal(size=60), random.normal(size=(60, 1))
    model = LinearSSM(LocalLevel() + Regression(1))
    plain = model.fit(x, inputs=z, progress=False)
    for share in (1e-5, 1e-6):
        fit = model.fit(x, inputs=1 + share * z, progress=False)
        assert abs(fit.loglik + np.log(share) - plain.loglik) < 1e-3
        for name, value in plain.model.values.items():
            assert_close(fit.model.values[name], value, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_smooth_series_under_a_long_autoregression_are_refused() -> None:
    """Variances of the states are about 1e14 times that of the noise, so no digit of the likelihood is right."""
    steps, noise = np.arange(80.0), np.random.default_rng(1).normal(size=80)
    for x in (np.sin(steps / 5) + 1e-9 * noise, steps**3 + noise):
        with pytest.raises(ValueError, match=r"^x: is so smooth that the past explains the autoregression of Auto"):
            LinearSSM(Autoregression(4)).fit(x, progress=False)
