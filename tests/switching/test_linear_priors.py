"""Distributions of Pyro as priors of a structure: the density, the modes, the draws, and what is refused."""

import math
import re
from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from samplehold.switching.fitting.options import Options
from samplehold.switching.linear import sampling
from samplehold.switching.linear.coordinates import LinearDensity
from samplehold.switching.linear.maximum import SMALL
from torch import Tensor
from torch.testing import assert_close

DOUBLE = torch.float64
QUIET = {"progress": False}
ONE = QUIET | {"restarts": 1}


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers[0] if len(numbers) == 1 else numbers, dtype=DOUBLE)


def walk(n: int, step: float, noise: float, seed: int = 0) -> Tensor:
    normal = torch.randn(2, n, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return (step * normal[0].cumsum(0) + noise * normal[1])[:, None]


X = 30 + 5 * walk(30, 0.6, 1.0)
INVERSE, HALF = dist.InverseGamma(double(2.0), double(20.0)), dist.HalfNormal(double(4.0))
WEIGHTS = dist.Normal(double(0.2), double(0.4))
STILL = {"sigma2.irregular": 9.0, "sigma2.level": 0.0}

Named = dict[str, dist.Distribution]
CASES: dict[str, tuple[sh.LinearSSM, Named]] = {
    "variances": (sh.LinearSSM(sh.LocalLevel()), {"sigma2.level": INVERSE, "sigma2.irregular": INVERSE}),
    "one deviation": (sh.LinearSSM(sh.LocalLevel()), {"sigma.level": HALF}),
    "one that excludes 0": (sh.LinearSSM(sh.LocalLevel()), {"sigma.irregular": INVERSE}),
    "a variance that may be 0": (sh.LinearSSM(sh.LocalLevel()), {"sigma2.level": HALF}),
    "weights": (
        sh.LinearSSM(sh.LocalLevel() + sh.Autoregression(4)),
        {"sigma2.ar": INVERSE} | {f"ar.L{lag}": WEIGHTS for lag in (1, 2, 3, 4)},
    ),
    "ranges": (
        sh.LinearSSM(sh.LocalLevel() + sh.Cycle((4, 20), damped=True)),
        {"frequency.cycle": dist.Normal(double(0.5), double(0.3)), "damping.cycle": dist.Beta(double(8.0), double(2.0))}
        | {"sigma2.cycle": INVERSE},
    ),
}


def own_prior(prior: Named, values: dict[str, Tensor], spread: float) -> tuple[Tensor, Tensor]:
    """The log prior by distributions, and the numbers of which it is the density."""
    terms, numbers = [], []
    for name, value in values.items():
        deviation = name.replace("sigma2", "sigma")
        numbers.append(value if name in prior else value.sqrt())
        law = prior.get(name) or prior.get(deviation) or torch.distributions.Exponential(double(1 / spread))
        terms.append(law.log_prob(numbers[-1]))
    return torch.stack(terms).sum(0), torch.stack(numbers)


@pytest.mark.parametrize("volume", [False, True], ids=["mode", "draws"])
@pytest.mark.parametrize("case", CASES)
def test_the_density_is_that_of_evidence_and_distributions(case: str, volume: bool) -> None:
    """Up to one constant, with the Jacobian of the numbers whose density the prior is, by differentiation."""
    structure, prior = CASES[case]
    model = structure.with_prior(prior).scaled_to(X)
    problem, spread = model.problem(X), float(model.prior["spread"])
    units = problem.units
    start = {name: double(0.2 if name.startswith("sigma2") else 0.6) for name in model.known}
    start |= {name: double(0.1) for name in model.known if name.startswith("ar.")}
    density = LinearDensity(problem.in_units(units), units, start, volume)

    def values(y: Tensor) -> dict[str, Tensor]:
        return density.values({"y": y})

    def expected(y: Tensor) -> Tensor:
        at = values(y)
        total = structure.with_values(at).log_evidence(X) + own_prior(prior, at, spread)[0]
        if not volume:
            return total
        slopes = torch.autograd.functional.jacobian(lambda y: own_prior(prior, values(y), spread)[1], y)
        return total + torch.linalg.slogdet(slopes)[1]

    y = density.point
    points = y + 0.2 * torch.randn(4, len(y), generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    heights = torch.stack([expected(point) for point in points])
    found, slopes = density.climb(points)
    close = 1e-6 if volume and case == "weights" else 1e-9  # partial autocorrelations stop 1e-7 short of 1
    assert_close(found - found[0], heights - heights[0], rtol=close, atol=close)
    assert_close(density.at(points), found, rtol=1e-10, atol=1e-10)
    moves = 1e-5 * torch.eye(len(y), dtype=DOUBLE)
    rises = [float(expected(points[1] + move) - expected(points[1] - move)) / 2e-5 for move in moves]
    assert_close(slopes[1], double(*rises), rtol=1e-5, atol=1e-5)


def slopes_at(model: sh.LinearSSM, prior: Named) -> tuple[Tensor, Tensor]:
    """The log evidence plus the log densities of distributions, and its gradient, each times its parameter."""
    leaves = {name: value.double().clone().requires_grad_() for name, value in model.values.items()}
    height = model.problem(X).chain(leaves).log_normalizer()
    for name, law in prior.items():
        value = leaves[name.replace("sigma.", "sigma2.")]
        height = height + law.log_prob(value.sqrt() if name.startswith("sigma.") else value)
    slopes = torch.autograd.grad(height, list(leaves.values()))
    return height.detach(), torch.stack([slope * v.detach() for slope, v in zip(slopes, leaves.values(), strict=True)])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("structure", "prior"),
    [
        (sh.LocalLevel(), {"sigma2.level": INVERSE, "sigma.irregular": HALF}),
        (
            sh.LocalLevel(irregular=False) + sh.Autoregression(2),
            {"sigma2.level": INVERSE, "sigma2.ar": INVERSE, "ar.L1": WEIGHTS, "ar.L2": WEIGHTS},
        ),
    ],
)
def test_the_mode_is_where_evidence_times_distributions_is_flat(structure, prior: Named) -> None:
    fit = sh.LinearSSM(structure).fit(X, prior=prior, **ONE)
    height, slopes = slopes_at(fit.model, prior)
    assert_close(fit.objective[-1], height, rtol=1e-9, atol=1e-9)
    assert_close(slopes, torch.zeros_like(slopes), rtol=0, atol=1e-4)
    assert bool(fit.summary().parameters["standard error"].notna().all())
    again = fit.model.fit(X, **ONE)  # the model keeps them
    assert_close(again.objective[-1], height, rtol=1e-9, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", [1e-6, 1e5])
def test_no_unit_changes_the_mode(unit: float) -> None:
    def scaled(c: float) -> Named:
        return {"sigma2.level": dist.InverseGamma(2.0, 20.0 * c**2), "sigma.irregular": dist.HalfNormal(4.0 * c)}

    one, other = (sh.LinearSSM(sh.LocalLevel()).fit(X * c, prior=scaled(c), **ONE) for c in (1.0, unit))
    for name, value in one.model.values.items():
        assert_close(other.model.values[name] / unit**2, value, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_far_priors_are_reached() -> None:
    for size in (1e-3, 1e3):
        prior = {"sigma.level": dist.LogNormal(math.log(size), 0.01)}
        fit = sh.LinearSSM(sh.LocalLevel()).fit(X, prior=prior, **ONE)
        assert float(fit.model.values["sigma2.level"].sqrt()) == pytest.approx(size, rel=0.05)


@pytest.mark.slow
def test_a_variance_is_0_at_the_mode_unless_its_prior_excludes_it() -> None:
    still = 30 + X.new_tensor([3.0, -4.0, 6.0, -5.0] * 5)[:, None]
    model = sh.LinearSSM(sh.LocalLevel())
    free = model.fit(still, **ONE)
    assert float(free.model.values["sigma2.level"]) == 0.0
    for name, law in (("sigma.level", HALF), ("sigma2.level", dist.Exponential(0.1))):
        fit = model.fit(still, prior={name: law}, **ONE)
        assert float(fit.model.values["sigma2.level"]) == 0.0
        density = law.log_prob(double(0.0))
        rest = math.log(1 / float(fit.model.prior["spread"]))  # of the exponential density of the other one
        expected = fit.loglik + density + rest + math.exp(rest) * -fit.model.values["sigma2.irregular"].sqrt()
        assert_close(fit.objective[-1], expected, rtol=1e-9, atol=1e-9)
    for law in (dist.Gamma(3.0, 1.0), INVERSE):
        chosen = model.with_prior({"sigma2.level": law}).scaled_to(still)
        fit = chosen.fit(still, **ONE)
        assert float(fit.model.values["sigma2.level"]) > 0.01
        nothing = chosen.problem(still).objective({"sigma2.level": double(0.0), "sigma2.irregular": double(9.0)})
        assert float(nothing) == -math.inf
    assert float(fit.profile_interval(0.9, "sigma2.level").lower["sigma2.level"]) > 0.0


def test_a_likelihood_without_a_maximum_has_a_mode_under_a_prior_that_excludes_0() -> None:
    line = torch.arange(12.0, dtype=DOUBLE)
    model = sh.LinearSSM(sh.LocalLinearTrend())
    for prior in (None, {"sigma.level": HALF}):
        with pytest.raises(ValueError, match=r"^x: follows LocalLinearTrend\(\) without any noise"):
            model.fit(line, prior=prior, **ONE)
    prior = {f"sigma2.{name}": INVERSE for name in ("irregular", "level", "trend")}
    values = model.fit(line, prior=prior, **ONE).model.values
    assert min(float(value) for value in values.values()) > SMALL


@pytest.mark.slow
def test_ranges_are_those_of_their_priors() -> None:
    model = sh.LinearSSM(sh.LocalLevel() + sh.Cycle(damped=True))
    prior = {"frequency.cycle": dist.Uniform(0.5, 0.7), "damping.cycle": dist.Beta(2.0, 2.0)}
    fit = model.fit(X, prior=prior, **ONE)
    assert 0.5 <= float(fit.model.values["frequency.cycle"]) <= 0.7
    assert math.isfinite(float(fit.objective[-1]))
    problem = fit.model.problem(X)
    assert LinearDensity(problem, problem.units, fit.model.values).ranges["frequency.cycle"] == pytest.approx(
        (0.5, 0.7)
    )
    free = LinearDensity(replace(problem, prior=None), problem.units, fit.model.values, volume=False)
    assert free.ranges["frequency.cycle"] == (0.0, math.pi)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_a_mode_at_the_end_of_a_prior_has_an_objective_and_a_profile(dtype: torch.dtype) -> None:
    """The number in the dtype of the data may be the end, at which a uniform density is 0, or beyond."""
    steps = torch.arange(40, dtype=DOUBLE)[:, None]
    x = (3 * (0.8 * steps).cos() + 0.1 * walk(40, 0.0, 1.0)).to(dtype)
    model = sh.LinearSSM(sh.Cycle(damped=True))
    fit = model.fit(x, prior={"frequency.cycle": dist.Uniform(double(0.5), double(0.79))}, **ONE)
    assert float(fit.model.values["frequency.cycle"]) == pytest.approx(0.79, abs=1e-6)
    objective = fit.model.problem(x).objective(fit.model.values)
    assert_close(objective.double(), fit.objective[-1].double(), rtol=1e-4, atol=0)
    ends = fit.profile_interval(0.9, "frequency.cycle")
    assert 0.5 < float(ends.lower["frequency.cycle"]) < float(ends.upper["frequency.cycle"]) < 0.7901
    again = fit.model.fit(x, start=fit, **ONE)
    assert_close(again.objective[-1], fit.objective[-1], rtol=1e-4, atol=0)


def test_draws_start_off_the_ends_of_a_range(monkeypatch) -> None:
    """At an end, where the mode may be, there is no volume of coordinates."""
    densities: list[Any] = []
    monkeypatch.setattr(sampling, "_by_svi", lambda density, *_: densities.append(density))
    model = sh.LinearSSM(sh.Cycle(damped=True)).with_prior({"frequency.cycle": dist.Uniform(double(0.9), double(1.1))})
    problem = model.scaled_to(X).problem(X)
    for end in (0.9, 1.1):
        start = {name: double(0.5) for name in model.known} | {"frequency.cycle": double(end)}
        sampling.draw(problem, problem.units, Options("svi"), start)
        assert math.isfinite(float(densities[-1].log_prob(densities[-1].start)))
    assert len(densities) == 2


def test_a_later_prior_of_a_parameter_replaces_an_earlier_one_in_any_form() -> None:
    model = sh.LinearSSM(sh.LocalLevel()).with_prior({"sigma2.level": INVERSE, "sigma2.irregular": INVERSE})
    model = model.with_prior({"sigma.level": HALF, "spread": [2.0]})
    assert model.emission.prior == {"sigma2.irregular": INVERSE, "sigma.level": HALF}
    assert model.scaled_to(X).emission.prior == model.emission.prior
    assert float(model.scaled_to(X).prior["spread"]) == 2.0
    values = {"sigma2.level": 2.0, "sigma2.irregular": 3.0}
    assert model.with_values(values).emission.prior == model.emission.prior
    assert str(model.with_values(values)) == str(sh.LinearSSM(sh.LocalLevel()).with_values(values))


@pytest.mark.slow
def test_without_a_prior_they_are_ignored() -> None:
    model = sh.LinearSSM(sh.LocalLevel())
    fit = model.with_prior({"sigma2.level": INVERSE}).fit(X, prior=None, **ONE)
    assert_close(fit.objective[-1], model.fit(X, **ONE).objective[-1], rtol=1e-12, atol=0)


def test_files_hold_them(tmp_path) -> None:
    for structure, prior in CASES.values():
        model = structure.with_prior(prior | {"spread": [3.0]})
        model.save(tmp_path / "model")
        again = sh.load(tmp_path / "model")
        values = {name: double(0.3) for name in model.known}
        values |= {name: double(0.1) for name in model.known if name.startswith("ar.")}
        one, other = (here.problem(X).log_prior(values) for here in (model, again))
        assert_close(one, other, rtol=0, atol=0)
        assert float(one) != float(structure.with_prior({"spread": [3.0]}).problem(X).log_prior(values))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_draws_have_the_moments_of_a_grid(method: str) -> None:
    """Of both standard deviations of a local level, one with a prior of its variance that excludes 0."""
    x = double(0.2, 0.9, 1.1, 0.4, 2.0, 2.4).unsqueeze(-1)
    law, other = dist.InverseGamma(double(3.0), double(1.0)), dist.HalfNormal(double(0.8))
    axis = torch.linspace(0.01, 4.0, 120, dtype=DOUBLE)
    noise, step = (table.flatten() for table in torch.meshgrid(axis, axis, indexing="ij"))
    chain = sh.LinearSSM(sh.LocalLevel()).problem(x).chain({"sigma2.irregular": noise**2, "sigma2.level": step**2})
    heights = chain.log_normalizer() + law.log_prob(noise**2) + noise.log() + other.log_prob(step)
    weights = heights.softmax(0)
    options = {"num_samples": 25, "warmup_steps": 25} if method == "nuts" else {"max_steps": 300}
    prior = {"sigma2.irregular": law, "sigma.level": other}
    fit = sh.LinearSSM(sh.LocalLevel()).fit(x, method, prior=prior, restarts=1, **options, **QUIET)
    drawn = {name: value.sqrt().flatten() for name, value in fit.posterior.draws.items()}
    for name, table in (("sigma2.irregular", noise), ("sigma2.level", step)):
        mean = float(weights @ table)
        spread = float(weights @ (table - mean).square()) ** 0.5
        assert abs(float(drawn[name].mean()) - mean) < 0.6 * spread


def level(**prior: dist.Distribution) -> sh.LinearSSM:
    named = {name.replace("_", "."): law for name, law in prior.items()}
    return sh.LinearSSM(sh.LocalLevel() + sh.Autoregression(2)).with_prior(named)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: level(sigma2_level=dist.Normal(0.0, 1.0)),
            "prior['sigma2.level']: got Normal, whose support does not fit",
        ),
        (
            lambda: level(sigma_level=dist.Uniform(0.0, 9.0)),
            "prior['sigma.level']: got Uniform, whose support does not fit",
        ),
        (lambda: level(sigma2_seasonal=INVERSE), "prior: got 'sigma2.seasonal', expected some of sigma2.irregular"),
        (lambda: level(ar_L1=WEIGHTS), "prior: got ['ar.L1'] without the rest of ['ar.L1', 'ar.L2']"),
        (lambda: level(sigma2_level=INVERSE, sigma_level=HALF), "prior: got sigma2.level twice, in two forms"),
        (
            lambda: level(sigma2_level=dist.Gamma(0.5, 1.0)),
            "prior['sigma2.level']: got Gamma with an infinite density at 0, so that the mode is 0 whatever the data; "
            "give one with a finite density, or the prior of 'sigma.level'",
        ),
        (
            lambda: level(sigma_level=dist.HalfNormal(torch.ones(2))),
            "prior['sigma.level']: got a distribution of shape [2], expected one number's.",
        ),
        (
            lambda: sh.LinearSSM(sh.Cycle(damped=True)).with_prior({"frequency.cycle": dist.Uniform(4.0, 5.0)}),
            "prior['frequency.cycle']: got Uniform, whose support does not fit frequency.cycle; give a distribution",
        ),
        (
            lambda: sh.LinearSSM(sh.Cycle(damped=True)).with_prior({"damping.cycle": dist.Beta(0.5, 2.0)}),
            "prior['damping.cycle']: got Beta with an infinite density at 0",
        ),
        (
            lambda: level(sigma2_level=INVERSE).fit(X, fixed={"sigma2.level": 0.0}),
            "fixed['sigma2.level']: got 0, which its prior of InverseGamma excludes",
        ),
        (lambda: sh.LinearSSM(sh.LocalLevel()).fit(X, fixed=STILL), "fixed: got all parameters, which leaves nothing"),
        (
            lambda: sh.LinearSSM(sh.LocalLevel()).with_prior({"sigma2.level": INVERSE}).fit(X, start=STILL, **ONE),
            "start['sigma2.level']: got 0, which its prior of InverseGamma excludes; give another number",
        ),
        (
            lambda: sh.LinearSSM(sh.Cycle((4, 20))).with_prior({"damping.cycle": dist.Beta(double(4.0, 5.0), 2.0)}),
            "prior['damping.cycle']: got a distribution of shape [2], expected one number's.",
        ),
        (
            lambda: sh.LinearSSM(sh.LocalLevel()).with_prior({"sigma2.level": dist.HalfNormal}),
            "prior['sigma2.level']: got the class HalfNormal, expected a distribution of Pyro, such as dist.Half",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, said) -> None:
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(said)):
        make()
