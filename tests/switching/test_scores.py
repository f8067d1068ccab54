"""Scores of forecasts: limits of the distribution function, and the continuous ranked probability score."""

from dataclasses import dataclass

import numpy as np
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.models import drive, numbers, random_model
from oracles.switching_linear import KINDS, model_of
from samplehold.switching.emissions.contract import ByGate
from samplehold.switching.forecast import normal_mixture
from samplehold.switching.judging import scores
from samplehold.switching.mixture import StateMixture
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close


def normals(n: int, n_features: int = 1, seed: int = 0) -> StateMixture:
    """A mixture of n normals with scales from 0.5 to 2, at two steps."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, n, generator=generator, dtype=torch.float64)
    loc = 3 * torch.randn(2, n, n_features, generator=generator, dtype=torch.float64)
    factor = torch.randn(2, n, n_features, n_features, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.mT + 0.25 * torch.eye(n_features)
    return normal_mixture(weights / weights.sum(-1, keepdim=True), loc, covariance)


def by_quadrature(mixture: StateMixture, x: Tensor, step: int, feature: int) -> float:
    """The integral of the squared distance of the distribution function from that of x."""

    def squared(z: float, above: float) -> float:
        return float((mixture.cdf(torch.full_like(x, z))[step, feature] - above) ** 2)

    at = float(x[step, feature])
    return sum(
        integrate.quad(squared, *ends, args=(above,), limit=400, epsabs=1e-11)[0]
        for ends, above in (((-60.0, at), 0.0), ((at, 60.0), 1.0))
    )


@pytest.mark.parametrize(("n", "n_features"), [(1, 1), slow(3, 2), (200, 1)])
def test_the_score_of_a_mixture_of_normals_is_its_integral(n, n_features):
    mixture = normals(n, n_features)
    x = torch.tensor([[0.3] * n_features, [4.0] * n_features]).double()
    score = scores.crps(mixture, x)
    for step in range(2):
        assert float(score[step, -1]) == pytest.approx(by_quadrature(mixture, x, step, n_features - 1), abs=1e-8)


def test_pairs_and_steps_give_the_same_spread():
    _, loc, variance = normals(6).components
    weights, variance = normals(6).weights.redrawn, variance + 0.5
    scale = variance.sqrt()
    low, high = (loc - 12 * scale).amin(-2), (loc + 12 * scale).amax(-2)
    points = 2 + int(2 * ((high - low) / scale.amin(-2)).amax())
    pairs = scores._spread_by_pairs(weights, loc, variance)
    assert_close(scores._spread_by_steps(weights, loc, scale, low, high, points), pairs, rtol=1e-12, atol=1e-12)


def test_the_score_of_a_mixture_with_held_steps_counts_both_gates():
    model = random_model("copy", "gated")
    mixture = model.forecast(torch.zeros(4, 2).double(), 2).observation
    x = torch.tensor([[0.5, -1.0], [2.0, 0.0]]).double()
    assert float(scores.crps(mixture, x)[1, 1]) == pytest.approx(by_quadrature(mixture, x, 1, 1), abs=1e-8)


@pytest.mark.parametrize("emission", ["poisson", "categorical", "bernoulli"])
def test_the_score_of_whole_numbers_is_a_sum(emission):
    model = random_model("markov", emission)
    mixture = model.forecast(torch.ones(3, model.n_features).double(), 2).observation
    x = torch.ones(2, model.n_features).double()
    grid = np.arange(0, 60)
    cdf = np.stack(
        [mixture.cdf(torch.full_like(x, float(k) if emission != "categorical" else min(k, 2.0))) for k in grid]
    )
    naive = ((cdf - (grid[:, None, None] >= x.numpy())) ** 2).sum(0)
    np.testing.assert_allclose(scores.crps(mixture, x), naive, rtol=1e-9, atol=1e-12)


@dataclass(frozen=True)
class CountAndLength(sh.Emission):
    """A count and a length, both with the mean `rate`."""

    n_features: int = 2
    name = "CountAndLengthOfTheTests"
    parameters = {"rate": sh.Parameter(("state", "feature"), constraints.positive)}  # noqa: RUF012
    support = constraints.cat([constraints.nonnegative_integer, constraints.positive], -1, [1, 1])

    def log_prob(self, x, values):
        rate = values["rate"]
        return dist.Poisson(rate[..., 0]).log_prob(x[..., 0]) + dist.Exponential(1 / rate[..., 1]).log_prob(x[..., 1])

    def distribution(self, values):
        raise NotImplementedError

    def moments(self, values):
        rate = values["rate"]
        return rate, torch.stack([rate[..., 0], rate[..., 1] ** 2], -1)

    def marginal_cdf(self, x, values):
        rate = values["rate"]
        count = torch.special.gammaincc(x[..., 0].clamp_min(0).floor() + 1, rate[..., 0])
        length = -torch.expm1(-x[..., 1].clamp_min(0) / rate[..., 1])
        return torch.stack([torch.where(x[..., 0] < 0, 0.0, count), length], -1)

    def sample_at(self, values, state, redraw):
        rate = values["rate"][state]
        return torch.stack([torch.poisson(rate[..., 0]), dist.Exponential(1 / rate[..., 1]).sample()], -1)

    def default_prior(self, n_states, x):
        return {}


def test_a_count_beside_a_length_is_summed_and_the_length_is_not():
    weights = ByGate(torch.tensor([[0.3, 0.7]], dtype=torch.float64), torch.zeros(1, 2).double())
    mixture = StateMixture(CountAndLength(), {"rate": torch.tensor([[2.0, 1.0], [9.0, 3.0]]).double()}, weights)
    x = torch.tensor([[4.0, 2.5]]).double()
    score = scores.crps(mixture, x)
    cdf = 0.3 * stats.poisson.cdf(np.arange(80), 2.0) + 0.7 * stats.poisson.cdf(np.arange(80), 9.0)
    assert float(score[0, 0]) == pytest.approx(((cdf - (np.arange(80) >= 4)) ** 2).sum(), rel=1e-9)
    assert float(score[0, 1]) == pytest.approx(by_quadrature(mixture, x, 0, 1), rel=0.05)


def test_draws_come_close_where_there_is_no_closed_form(monkeypatch):
    mixture, x = normals(3), torch.tensor([[0.0], [1.0]]).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = scores._of_draws(mixture.sample((40_000,)), x)
    assert_close(drawn, scores.crps(mixture, x), rtol=0.03, atol=0.02)


def test_the_score_of_draws_is_that_of_their_own_distribution():
    draws = torch.randn(50, 1, generator=torch.Generator().manual_seed(0)).double()
    x = torch.tensor([0.4]).double()
    naive = (draws - x).abs().mean() - (draws - draws.T).abs().mean() / 2
    assert float(scores._of_draws(draws, x)) == pytest.approx(float(naive), rel=1e-12)


def test_limits_differ_by_the_probability_of_a_count():
    rate = torch.tensor([[2.0], [9.0]]).double()
    weights = ByGate(torch.tensor([[0.3, 0.7]], dtype=torch.float64), torch.zeros(1, 2).double())
    mixture = StateMixture(sh.Poisson(1), {"rate": rate}, weights)
    below, at = scores.limits(mixture, torch.tensor([[4.0]]).double())
    expected = [0.3 * stats.poisson.cdf(k, 2.0) + 0.7 * stats.poisson.cdf(k, 9.0) for k in (3, 4)]
    np.testing.assert_allclose([float(below), float(at)], expected, rtol=1e-12)
    below, at = scores.limits(mixture, torch.tensor([[0.0]]).double())
    assert float(below) == 0.0
    assert bool(scores.limits(mixture, torch.tensor([[torch.nan]]).double())[0].isnan().all())


def test_limits_of_a_continuous_distribution_agree():
    mixture, x = normals(3), torch.tensor([[0.0], [1.0]]).double()
    below, at = scores.limits(mixture, x)
    assert_close(below, at, rtol=0, atol=1e-15)
    assert_close(at, mixture.cdf(x), rtol=0, atol=0)


def test_a_forecast_of_a_linear_model_has_its_distribution():
    values = {"sigma2.irregular": 1.0, "sigma2.level": 0.5}
    ahead = sh.LinearSSM(sh.LocalLevel()).with_values(values).forecast([1.0, 2.0, 4.0], 2)
    x = torch.tensor([[0.5], [3.0]]).double()
    normal = stats.norm(ahead.mean.numpy(), ahead.variance.sqrt().numpy())
    np.testing.assert_allclose(ahead.observation.log_prob(x), normal.logpdf(x.numpy())[:, 0], rtol=1e-12)
    np.testing.assert_allclose(ahead.observation.cdf(x), normal.cdf(x.numpy()), rtol=1e-12)


def test_a_forecast_of_a_switching_linear_model_has_the_covariances_of_its_regimes():
    model = model_of(KINDS["full noise"])
    ahead = model.forecast(numbers(6, 2), 2)
    x = numbers(2, 2, seed=1)
    density = sum(
        float(ahead.state[1, k])
        * stats.multivariate_normal.pdf(x[1], ahead.by_regime_mean[1, k], ahead.by_regime_covariance[1, k])
        for k in range(2)
    )
    assert float(ahead.observation.log_prob(x)[1]) == pytest.approx(np.log(density), rel=1e-9)
    assert_close(ahead.observation.cdf(x), ahead.cdf(x))
    assert_close(ahead.observation.mean, ahead.mean)
    assert_close(ahead.observation.variance, ahead.variance)


def test_components_of_a_driven_emission_are_those_of_its_steps():
    model = random_model("driven", "normal")
    given = drive("driven", (), 5)
    mixture = model.forecast(torch.zeros(3, 2).double(), 2, **given).observation
    weight, mean, variance = mixture.components
    assert_close((weight.unsqueeze(-1) * mean).sum(-2), mixture.mean)
    assert_close((weight.unsqueeze(-1) * (variance + mean**2)).sum(-2) - mixture.mean**2, mixture.variance)


def test_sums_over_whole_numbers_are_made_in_parts(monkeypatch):
    mixture = sh.SwitchingSSM(sh.Copy(1), sh.Poisson(1)).with_values(
        redraw_prob=0.5, state_probs=[1.0], rate=[[40.0]]
    ).forecast([40.0], 3).observation  # fmt: skip
    x = torch.tensor([[30.0], [torch.nan], [55.0]]).double()
    z = np.arange(400)
    expected = [np.square(stats.poisson.cdf(z, 40.0) - (z >= value)).sum() for value in (30, 55)]
    for size in (1, 2**18):
        monkeypatch.setattr(scores, "AT_ONCE", size)
        found = scores.crps(mixture, x)[:, 0]
        np.testing.assert_allclose(found[[0, 2]], expected, rtol=1e-9)
        assert found[1].isnan()


def test_sums_over_whole_numbers_are_tables(monkeypatch):
    mixture = sh.SwitchingSSM(sh.Copy(1), sh.Poisson(1)).with_values(
        redraw_prob=0.5, state_probs=[1.0], rate=[[900.0]]
    ).forecast([900.0], 1).observation  # fmt: skip
    calls, cdf = [], type(mixture).cdf
    monkeypatch.setattr(type(mixture), "cdf", lambda self, value: calls.append(1) or cdf(self, value))
    scores.crps(mixture, torch.tensor([[880.0]]).double())
    assert len(calls) == 2
