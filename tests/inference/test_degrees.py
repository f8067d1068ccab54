"""Degrees of freedom as an exponential family: against quadrature, automatic differentiation and draws."""

import math

import numpy as np
import pytest
import torch
from samplehold.inference.families import Degrees, Gamma, Held, LocPrecisionDf, NormalGamma, Tailed, given_in_part
from samplehold.inference.numerics.gammas import stirling_rest, stirling_slopes
from scipy import integrate, special
from torch import Generator, Tensor
from torch.testing import assert_close

CASES = [(2.0, 0.1, 0.0), (2.0, 0.1, 5.0), (502.0, 60.0, 1000.0), (5002.0, 10.0, 1e4), (0.5, 1.0, 0.0), (0.2, 0.5, 3.0)]
each_case = pytest.mark.parametrize("case", CASES)


def eta_of(*cases: tuple[float, float, float]) -> Tensor:
    return Degrees().natural(*torch.tensor(cases, dtype=torch.float64).unbind(-1))


def rest(half: float) -> float:
    """Stirling's delta as the difference that it is."""
    return special.gammaln(half) - (half - 0.5) * math.log(half) + half - math.log(2 * math.pi) / 2


def integrals(case: tuple[float, float, float], *of) -> list[float]:
    """The logarithm of the integral of the unnormalised density, and the expected values of some functions."""
    shape, rate, weight = case

    def log_density(y):
        return shape * y - rate * math.exp(y) - weight * rest(math.exp(y) / 2)

    grid = np.linspace(-80.0, 9.0, 4001)
    top = grid[np.argmax([log_density(y) for y in grid])]
    ends = [(top - 90, top - 1), (top - 1, top), (top, top + 1), (top + 1, top + 12)]

    def integral(function):
        def integrand(y):
            return math.exp(log_density(y) - log_density(top)) * function(math.exp(y))

        return sum(integrate.quad(integrand, *pair, epsrel=1e-12, limit=400)[0] for pair in ends)

    total = integral(lambda df: 1.0)
    return [math.log(total) + log_density(top), *(integral(one) / total for one in of)]


@each_case
def test_normalizers_and_means_are_integrals(case):
    log_normalizer, *mean = integrals(case, math.log, lambda df: df, lambda df: -rest(df / 2))
    eta = eta_of(case)[0]
    assert float(Degrees().log_normalizer(eta)) == pytest.approx(log_normalizer, rel=1e-9, abs=1e-9)
    assert Degrees().mean(eta).tolist() == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert float(Degrees().expected(eta)) == pytest.approx(mean[1], rel=1e-6)
    assert float(Degrees().log_normalizer(eta.float())) == pytest.approx(log_normalizer, rel=1e-5)


@pytest.mark.parametrize("case", [(2.0, 0.1, 1e6), (0.5, 1e-3, 1e5), (1.0, 100.0, 1e4)])
def test_a_weight_far_above_the_shape_has_nodes_about_the_mode(case):
    eta = eta_of(case)[0].requires_grad_()
    nodes = Degrees().nodes(eta.detach())
    inside = nodes.probs.argmax()
    assert 64 < int(inside) < 192
    (slope,) = torch.autograd.grad(Degrees().log_normalizer(eta), eta)
    assert bool(slope.isfinite().all())
    below, above = (eta_of((case[0] + shift, *case[1:]))[0] for shift in (-1e-3, 1e-3))
    change = (Degrees().log_normalizer(above) - Degrees().log_normalizer(below)) / 2e-3
    assert float(change) == pytest.approx(float(Degrees().mean(eta.detach())[0]), rel=1e-5)


@pytest.mark.parametrize("shape", [0.2, 0.05, 0.01, 0.001])
def test_small_shapes_have_long_left_tails(shape):
    eta = eta_of((shape, 0.1, 0.0))[0]
    a = torch.tensor(shape, dtype=torch.float64)
    log_normalizer, mean = Degrees().evaluate(eta)
    assert_close(log_normalizer, torch.lgamma(a) - a * math.log(0.1), rtol=0, atol=1e-10)
    assert_close(mean[:2], torch.stack([torch.digamma(a) - math.log(0.1), a / 0.1]), rtol=1e-10, atol=0)
    seen = [eta_of((shape, 0.1, weight))[0] for weight in (3.0 - 1e-4, 3.0, 3.0 + 1e-4)]
    below, _, above = (float(Degrees().log_normalizer(one)) for one in seen)
    assert float(Degrees().mean(seen[1])[2]) == pytest.approx((above - below) / 2e-4, rel=1e-6)


def test_without_observations_it_is_a_gamma_density():
    usual = {"shape": torch.tensor([0.7, 2.0]).double(), "rate": torch.tensor([3.0, 0.1]).double()}
    eta = Degrees().natural(**usual, weight=torch.zeros(2).double())
    assert_close(Degrees().log_normalizer(eta), Gamma().log_normalizer(Gamma().natural(**usual)), rtol=1e-9, atol=1e-9)
    at = torch.tensor([0.3, 12.0]).double()
    assert_close(
        Degrees().log_prob(at, eta),
        torch.distributions.Gamma(concentration=usual["shape"], rate=usual["rate"]).log_prob(at),
        rtol=1e-9,
        atol=1e-9,
    )


def test_means_are_gradients_and_divergences_those_of_normalizers():
    eta, eta0 = eta_of(*CASES), eta_of(*CASES[1:], CASES[0])
    leaf = eta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Degrees().log_normalizer(leaf).sum(), leaf)
    mean = Degrees().mean(eta)
    assert_close(mean, slope, rtol=1e-11, atol=1e-12)
    kl = Degrees().kl(eta, eta0)
    gap = Degrees().log_normalizer(eta) - Degrees().log_normalizer(eta0)
    assert_close(kl, ((eta - eta0) * mean).sum(-1) - gap, rtol=1e-9, atol=1e-9)
    assert bool((kl > 0).all())
    assert float(Degrees().kl(eta, eta).abs().max()) < 1e-9


def test_draws_have_the_expected_statistics_and_the_mode_is_the_highest_point():
    eta = eta_of(*CASES[:4])
    draws = Degrees().sample(eta, 20_000, Generator().manual_seed(0))
    gap = Degrees().statistics(draws).mean(0) - Degrees().mean(eta)
    assert bool((gap.abs() < 5 * Degrees().statistics(draws).std(0) / math.sqrt(20_000)).all())
    mode = Degrees().mode(eta).requires_grad_()
    (slope,) = torch.autograd.grad(Degrees().log_prob(mode, eta).sum(), mode)
    assert float((mode * slope).abs().max()) < 1e-5
    assert bool((Degrees().log_prob(mode, eta) >= Degrees().log_prob(draws[:50], eta)).all())
    with pytest.raises(ValueError, match="for a mode"):
        Degrees().mode(eta_of((0.5, 1.0, 0.0)))
    assert bool(Degrees().peak(eta_of((0.5, 1.0, 0.0))).isnan().all())
    with pytest.raises(ValueError, match="weight of Degrees"):
        Degrees().check(eta_of((1.0, 1.0, -1.0)))


def test_slopes_of_stirlings_rest_are_its_derivatives():
    y = torch.linspace(-6, 12, 40, dtype=torch.float64).requires_grad_()
    (exact,) = torch.autograd.grad(stirling_rest(y.exp()).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(exact.sum(), y)
    for slope, other in zip(stirling_slopes(y.exp().detach()), (exact, second), strict=True):
        assert_close(slope, other.detach(), rtol=1e-4, atol=1e-8)


def test_a_location_a_precision_and_degrees_are_two_independent_parts():
    family, generator = Tailed(), Generator().manual_seed(0)
    usual = {
        n: 0.5 + torch.rand(3, generator=generator, dtype=torch.float64) for n in ("loc", "kappa", "shape", "rate")
    }
    of_df = {"df_shape": usual["kappa"] + 1, "df_rate": usual["rate"], "df_weight": usual["loc"]}
    eta = family.natural(**usual, **of_df)
    again = vars(family.usual(eta))
    assert all(torch.allclose(again[name], value) for name, value in (usual | of_df).items())
    family.check(eta)
    parts = NormalGamma(), eta[:, :4], Degrees(), eta[:, 4:]
    assert_close(family.log_normalizer(eta), parts[0].log_normalizer(parts[1]) + parts[2].log_normalizer(parts[3]))
    assert_close(family.mean(eta), torch.cat([parts[0].mean(parts[1]), parts[2].mean(parts[3])], -1))
    point = family.sample(eta, 5, generator)
    whole = parts[0].log_prob(point, parts[1]) + parts[2].log_prob(point.df, parts[3])
    assert_close(family.log_prob(point, eta), whole)
    for at in (family.mode(eta), family.peak(eta)):
        assert_close(at.precision, parts[0].mode(parts[1]).precision)
        assert_close(at.df, parts[2].mode(parts[3]))
    assert_close(family.moved(eta, torch.ones(3).double())[:, :4], parts[0].moved(parts[1], torch.ones(3).double()))


@pytest.mark.parametrize("known", ["df", "loc", "precision", "some df", "all but loc"])
def test_parts_may_be_known(known):
    free = torch.full((3,), torch.nan).double()
    table = {"loc": free, "precision": free, "df": free}
    values = {"loc": torch.ones(3).double(), "precision": torch.ones(3).double() * 2, "df": torch.ones(3).double() * 4}
    names = {"some df": ["df"], "all but loc": ["precision", "df"]}.get(known, [known])
    point = LocPrecisionDf(**(table | {name: values[name] for name in names}))
    if known == "some df":
        point = LocPrecisionDf(free, free, torch.tensor([4.0, torch.nan, 5.0]).double())
    family = given_in_part(Tailed(), point)
    eta = torch.cat([torch.tensor([[1.0, -2.0, 3.0, -4.0]]).double().expand(3, 4), eta_of(*CASES[:3])], -1)
    family.check(eta)
    leaf = eta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(family.log_normalizer(leaf).sum(), leaf)
    assert_close(family.mean(eta), slope, rtol=1e-9, atol=1e-9)
    for at in (family.expected(eta), family.sample(eta, 4, Generator().manual_seed(0))):
        for name in names:
            fixed = vars(point)[name]
            assert_close(
                torch.where(fixed.isnan(), fixed, vars(at)[name]), fixed.expand_as(vars(at)[name]), equal_nan=True
            )
    assert isinstance(family.degrees, Held) is ("df" in names and known != "some df")
