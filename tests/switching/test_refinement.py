"""The posterior density in free coordinates, and draws from it by importance sampling around its peak."""

import math

import arviz as az
import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.effort import effort
from oracles.models import ALTERNATE, KINDS, drive, random_model
from samplehold.switching.fitting import Density, refinement, sampling
from samplehold.switching.fitting.density import Whitened
from samplehold.switching.fitting.refinement import RELIABLE, peak, smoothed_weights
from scipy import stats
from torch.testing import assert_close


def density_of(dynamics: str, emission: str) -> Density:
    model, keywords = random_model(dynamics, emission, seed=1), drive(dynamics, (2,), 12)
    x = model.simulate(12, (2,), seed=0, **keywords).x
    x[0, 3] = torch.nan
    values = {name: value.double() for name, value in model.values.items()}
    return Density(model.problem(x, **keywords).double(), values)


def around(density: Density, n: int) -> torch.Tensor:
    noise = torch.randn(n, len(density.point), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return density.point + 0.1 * noise


# ---- the density -----------------------------------------------------------------------------------------------------


@pytest.mark.few(8)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_the_density_is_the_joint_in_the_units_of_the_data_but_for_their_volume(dynamics, emission):
    density = density_of(dynamics, emission)
    assert_close(density.values(density.start), density.values(density.by_name(density.point)), rtol=0, atol=0)
    rest = []
    for point, height in zip(around(density, 4), density.at(around(density, 4)), strict=True):
        free = density.by_name(point)
        inner = density.units.values(density.values(free))
        volume = density.coordinates.log_volume(free, inner)
        rest.append(height - volume - density.problem.objective(density.values(free)))
    assert_close(torch.stack(rest), rest[0].expand(4), rtol=1e-11, atol=1e-9)  # the same everywhere


@pytest.mark.few(8)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_gradients_and_curvature_are_those_of_differences(dynamics, emission):
    density = density_of(dynamics, emission)
    point, n = density.point, len(density.point)
    moves = 1e-5 * torch.eye(n, dtype=torch.float64)
    above, below = density.at(torch.cat([point + moves, point - moves])).chunk(2)
    assert_close(density.gradient(point[None])[0], (above - below) / 2e-5, rtol=1e-5, atol=1e-5)
    hessian, wide = density.hessian(point), 1e-3 * torch.eye(n, dtype=torch.float64)
    pairs = point + wide[:, None] + torch.stack([wide, -wide])[:, None]
    ends = density.at(torch.cat([pairs, 2 * point - pairs]).reshape(-1, n)).reshape(4, n, n)
    assert_close(hessian, (ends[0] - ends[1] - ends[3] + ends[2]) / 4e-6, rtol=1e-3, atol=1e-3)


def test_where_the_data_are_impossible_it_is_minus_infinite():
    x = torch.tensor([0.0, 1.0, 2.0, 9.0], dtype=torch.float64)
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).scaled_to(x)
    density = Density(model.problem(x), model.fit(x, progress=False).model.values)
    far = density.point.clone()
    far[-1] = torch.nan  # where rounding took a parameter out of its support
    heights = density.at(torch.stack([far, density.point, far, density.point]))
    assert heights.isfinite().tolist() == [False, True, False, True]
    assert bool((heights[[0, 2]] == -torch.inf).all())


def test_in_the_coordinates_of_its_peak_the_density_is_the_same_and_its_curvature_is_one():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    x = 900 + 150 * torch.randn(80, 1, generator=torch.Generator().manual_seed(0)).double()
    x[30:50] += 600
    density = Density(model.scaled_to(x).problem(x), model.fit(x, "vmp", restarts=2, progress=False).model.values)
    point, variances, axes = peak(density)
    white = Whitened(density, point, variances, axes)
    assert bool((variances < 10).all())
    assert_close(white.hessian(white.point), -torch.eye(len(point)).double(), rtol=0, atol=1e-5)
    moves = torch.randn(5, len(point), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    root = axes @ (variances.sqrt()[:, None] * axes.mT)
    assert_close(white.at(moves), density.at(point + moves @ root), rtol=1e-12, atol=0)
    there, expected = white.values({"u": moves[0]}), density.values(density.by_name(point + moves[0] @ root))
    assert_close(there, expected, rtol=1e-10, atol=0)


# ---- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_a_single_normal_the_draws_are_those_of_the_posterior_in_closed_form():
    generator = torch.Generator().manual_seed(0)
    x = 1e6 + 3.0 * torch.randn(12, 1, generator=generator, dtype=torch.float64)
    model = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).scaled_to(x)
    prior = {name: float(value) for name, value in model.prior.items() if value.numel() == 1 and "conc" not in name}
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(x, "vmp", progress=False)
    refined = fit.posterior.refined
    assert refined.pareto_k < RELIABLE
    n, mean = len(x), float(x.mean())
    count, shape = prior["count"] + n, prior["shape"] + n / 2
    loc = (prior["count"] * prior["loc"] + n * mean) / count
    scatter = float((x - mean).square().sum()) + prior["count"] * n / count * (mean - prior["loc"]) ** 2
    rate = prior["rate"] + scatter / 2
    exact = {
        "precision": stats.gamma(shape, scale=1 / rate),
        "loc": stats.t(2 * shape, loc, math.sqrt(rate / (shape * count))),
    }
    for name, distribution in exact.items():
        draws = refined.draws[name].flatten().numpy()
        assert stats.kstest(draws, distribution.cdf).statistic < 0.05  # of 4000 draws that share 2000 weights' worth
    interval = fit.posterior.interval(0.9)
    assert_close(float(interval.lower["loc"]), exact["loc"].ppf(0.05), rtol=0, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9, 2.0])
@pytest.mark.parametrize("n", [3, 50, 4000])
def test_smoothed_weights_are_those_of_arviz(shape, n):
    logs = np.log(np.random.default_rng(n).pareto(1 / shape, n) + 1)
    found, k = smoothed_weights(torch.from_numpy(logs))
    expected, shape_of = az.psislw(logs.copy())
    assert_close(found, torch.from_numpy(np.exp(np.asarray(expected))), rtol=1e-10, atol=1e-14)
    assert k == pytest.approx(float(shape_of), rel=1e-10)


@pytest.mark.slow
def test_they_are_as_wide_as_those_of_nuts(monkeypatch):
    monkeypatch.setattr(sampling, "CHAINS", 2)
    truth = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-2.0], [2.0]], scale=[[1.0], [1.0]]
    )
    x = truth.simulate(60, seed=0).x
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    fits = {
        method: model.fit(x, method, restarts=2, progress=False, **effort(method, 200))
        for method in ("vmp", "svi", "nuts")
    }
    exact = fits["nuts"].posterior
    assert exact.refined is exact
    for method in ("vmp", "svi"):
        refined = fits[method].posterior.refined
        assert refined.pareto_k < RELIABLE
        for name in ("redraw_prob", "loc", "precision"):
            found, expected = refined.draws[name][0], exact.draws[name].flatten(0, 1)
            assert_close(found.std(0) / expected.std(0), torch.ones(expected.shape[1:]).double(), rtol=0, atol=0.25)
            assert bool(((found.mean(0) - expected.mean(0)).abs() < 0.3 * expected.std(0)).all())
    raw, corrected = (fits["vmp"].posterior.interval(0.9, correct=correct) for correct in (False, True))
    widths = [float(ends.upper["redraw_prob"] - ends.lower["redraw_prob"]) for ends in (raw, corrected)]
    assert widths[1] > 1.3 * widths[0]


def test_without_weights_they_are_of_the_normal_at_the_peak(monkeypatch):
    monkeypatch.setattr(refinement, "MOST", 0)
    x = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-2.0], [2.0]], scale=[[1.0], [1.0]]
    ).simulate(100, seed=0).x  # fmt: skip
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, "vmp", progress=False)
    refined = fit.posterior.refined
    assert math.isnan(refined.pareto_k)
    density = Density(fit.posterior.problem, fit.posterior.mean)
    point, variances, axes = peak(density)
    assert float(density.gradient(point[None]).abs().max()) < 1e-3
    assert_close(axes @ (variances[:, None] * axes.mT), torch.linalg.inv(-density.hessian(point)), rtol=1e-6, atol=1e-9)
    draws = {name: value[0] for name, value in refined.draws.items()}
    logit = torch.logit(draws["redraw_prob"])
    sd = dict(zip(density.start, density.by_name((axes.square() @ variances).sqrt()).values(), strict=True))
    assert_close(logit.std(), sd["redraw_prob"], rtol=0.05, atol=0)


@pytest.mark.few(2)
@pytest.mark.parametrize(("dynamics", "emission"), ALTERNATE)
def test_every_model_has_intervals(dynamics, emission):
    model, keywords = random_model(dynamics, emission, seed=1), drive(dynamics, (), 30)
    x = model.simulate(30, seed=0, **keywords).x
    try:
        fit = model.fit(x, "vmp", restarts=1, progress=False, **keywords)
    except TypeError:  # without a conjugate prior
        fit = model.fit(x, "svi", restarts=1, max_steps=5, progress=False, **keywords)
    interval = fit.posterior.interval(0.8)
    for name, parameter in model.known.items():
        for end in interval:
            assert bool(end[name].isfinite().all())
            if parameter.support.event_dim == 0:  # of a simplex or a matrix, ends of single numbers are none
                assert bool(parameter.support.check(end[name]).all())
        assert bool((interval.lower[name] <= interval.upper[name]).all())


def test_heavy_tails_of_weights_are_told():
    rng = np.random.default_rng(0)
    even, k = smoothed_weights(torch.from_numpy(0.1 * rng.standard_normal(4000)))
    assert k < 0.3
    assert_close(even.sum(), torch.tensor(1.0, dtype=torch.float64))
    _, k = smoothed_weights(torch.from_numpy(np.log(rng.pareto(0.7, 4000) + 1)))
    assert k > RELIABLE
    weights, _ = smoothed_weights(torch.cat([torch.zeros(3999), torch.tensor([-math.inf])]).double())
    assert float(weights[-1]) < 1e-12


@pytest.mark.slow
def test_divergences_are_reported(monkeypatch):
    monkeypatch.setattr(sampling, "CHAINS", 2)
    x = torch.cat([torch.zeros(20), torch.full((20,), 5.0)]).double()[:, None] + torch.arange(40)[:, None] % 3 * 0.3
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, "nuts", num_samples=12, restarts=1, progress=False)
    assert fit.posterior.diverging.shape == (2, 12)
    assert fit.reason.startswith(("converged", "not converged"))
    data = fit.to_arviz(x, draws=12)
    assert data["sample_stats"]["diverging"].dims == ("chain", "draw")
    assert data["sample_stats"]["diverging"].shape == (2, 6)
    az.plot_trace(data, var_names=["redraw_prob"])


def test_a_matrix_that_rounding_breaks_is_a_density_of_zero():
    density = density_of("copy", "full")
    names = list(density.start)
    far = {name: value.clone() for name, value in density.start.items()}
    far["precision"][..., -1] = 400.0  # a precision of e^800
    where = torch.cat([far[name].flatten() for name in names])
    heights = density.at(torch.stack([density.point, where]))
    assert heights.isfinite().tolist() == [True, False]
    assert float(density.potential({name: value.clone() for name, value in far.items()})) == math.inf
