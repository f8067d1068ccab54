"""Message passing for regressions whose states share coefficients or scales: closed forms, all paths, and NUTS."""

import itertools
import math

import pytest
import samplehold as sh
import torch
from oracles.models import numbers
from samplehold.inference.families import Gamma
from samplehold.switching.fitting import message_form
from torch import Tensor
from torch.testing import assert_close

NAMES = ["a", "b"]
LINEAR = {
    "shared": sh.LinearRegression(1, inputs=NAMES, shared=["b"]),
    "all shared": sh.LinearRegression(1, inputs=NAMES, shared=NAMES),
    "tied": sh.LinearRegression(1, inputs=NAMES, tied={"scale": "all states"}),
    "shared and tied": sh.LinearRegression(1, inputs=NAMES, shared=["b"], tied={"scale": "all states"}),
}
each = pytest.mark.parametrize("emission", LINEAR.values(), ids=LINEAR)
FEW = {"restarts": 1, "progress": False}


def series_of(steps: int, n: int = 1) -> tuple[Tensor, Tensor]:
    """Two levels with opposite slopes in the first input and one slope in the second, of a large offset."""
    inputs, low = numbers(n, steps, 2, seed=3), torch.arange(steps) % 20 < 10
    mean = torch.where(low, -1.0, 2.0) + torch.where(low, 0.5, -0.5) * inputs[..., 0] + 0.7 * inputs[..., 1]
    return (100 + 5 * (mean + 0.3 * numbers(n, steps, seed=4))).unsqueeze(-1), inputs


def test_the_expected_table_is_exact():
    """Each predictor from the moments of the numbers that it reads, one after another."""
    emission = sh.LinearRegression(2, inputs=["a", "b", "c"], shared=["b"])
    block, x = message_form(emission), numbers(4, 2, seed=1)
    x[1, 0] = torch.nan
    inputs, size = numbers(4, 3, seed=2), 2 * 3 + 1  # of each of 2 states a constant, a, c; of both b
    loc, root = numbers(2, size, seed=5), 0.5 * numbers(2, size, size, seed=6)
    covariance = root @ root.mT + 0.1 * torch.eye(size)
    shape, rate = 2 + numbers(2, 2, seed=7).square(), 1 + numbers(2, 2, seed=8).square()
    precisions = Gamma().mean(Gamma().natural(shape, rate))
    statistics = block.family.mean(block.family.natural(loc, torch.linalg.inv(covariance)))
    table = block.expected_table(torch.cat([x, inputs], -1), statistics, precisions)
    slow = torch.zeros(4, 2, dtype=torch.float64)
    for t, k, f in itertools.product(range(4), range(2), range(2)):
        if x[t, f].isnan():
            continue
        d = torch.zeros(size, dtype=torch.float64)
        d[3 * k], d[3 * k + 1], d[3 * k + 2], d[6] = 1.0, inputs[t, 0], inputs[t, 2], inputs[t, 1]
        square = (x[t, f] - d @ loc[f]) ** 2 + d @ covariance[f] @ d
        log_precision = torch.digamma(shape[k, f]) - rate[k, f].log()
        slow[t, k] += (log_precision - math.log(2 * math.pi) - shape[k, f] / rate[k, f] * square) / 2
    assert_close(table, slow, rtol=1e-10, atol=1e-10)


def log_evidence(x: Tensor, design: Tensor, count: Tensor, prior: dict[str, Tensor]) -> Tensor:
    """log p of observations `[T]` with one precision, by quadrature over it: given it, x is normal.

    `design [T, D]` has the constants of `count` states first.
    """
    a, b = prior["shape"].flatten()[0], prior["rate"].flatten()[0]
    scales = [prior[f"{name}_scale"].flatten() for name in ("coefficients", "shared_coefficients")]
    of_states, kappa = int(count), prior["count"].flatten()
    mean = design[:, :of_states] @ prior["loc"].flatten()[:of_states]
    log_tau = torch.linspace(-12, 12, 601, dtype=torch.float64)
    tau = log_tau.exp().unsqueeze(-1)
    variances = torch.cat([1 / (kappa[:of_states] * tau), *((scale**2).expand(len(tau), -1) for scale in scales)], -1)
    covariance = (design * variances.unsqueeze(-2)) @ design.mT + torch.eye(len(x)) / tau.unsqueeze(-1)
    normal = torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)
    terms = normal + a * b.log() - torch.lgamma(a) + a * log_tau - b * log_tau.exp()
    return terms.logsumexp(0) + math.log(float(log_tau[1] - log_tau[0]))


@pytest.mark.few(1)
def test_the_bound_of_one_state_lies_closely_below_the_evidence():
    inputs = numbers(25, 2, seed=1)
    x = (0.5 + inputs @ torch.tensor([0.8, -0.4]).double() + 0.5 * numbers(25, seed=2)).unsqueeze(-1)
    model = sh.SwitchingSSM(sh.Markov(1), sh.LinearRegression(1, inputs=NAMES, shared=["b"]))
    fit = model.fit(x, "vmp", inputs=inputs, tol=1e-12, progress=False)
    prior = model.scaled_to(x, inputs=inputs).prior
    design = torch.nn.functional.pad(inputs, (1, 0), value=1.0)
    exact = float(log_evidence(x[:, 0], design, torch.tensor(1), prior))
    assert exact - 0.1 < float(fit.objective[-1]) < exact


@pytest.mark.few(1)
def test_the_bound_lies_below_the_evidence_of_all_paths():
    steps = 5
    x, inputs = series_of(20)
    x, inputs = x[:, 7 : 7 + steps] - 100, inputs[:, 7 : 7 + steps]
    model = sh.SwitchingSSM(sh.Markov(2), LINEAR["shared and tied"])
    moves = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).double()
    known = {"initial_probs": torch.tensor([0.5, 0.5]).double(), "transition_probs": moves}
    fit = model.fit(x, "vmp", inputs=inputs, fixed=known, progress=False)
    prior = model.scaled_to(x, inputs=inputs).prior
    terms = []
    for path in itertools.product(range(2), repeat=steps):
        one_hot = torch.nn.functional.one_hot(torch.tensor(path), 2).double()
        design = torch.cat([one_hot, one_hot * inputs[0, :, :1], inputs[0, :, 1:]], -1)
        of_path = math.log(0.5) + sum(float(moves[i, j].log()) for i, j in itertools.pairwise(path))
        terms.append(of_path + log_evidence(x[0, :, 0], design, torch.tensor(2), prior))
    exact = float(torch.stack(terms).logsumexp(0))
    assert exact - 4 < float(fit.objective[-1]) < exact


@pytest.mark.few(1)
@pytest.mark.parametrize("plain", [sh.Bernoulli, sh.Poisson], ids=lambda kind: kind.__name__)
def test_one_state_shares_its_coefficients_with_no_other(plain):
    inputs = numbers(30, 2, seed=1)
    x = (numbers(30, 1, seed=2) + inputs[:, :1] > 0).double()
    fits = [
        sh.SwitchingSSM(sh.Markov(1), plain(1, inputs=NAMES, shared=shared)).fit(
            x, "vmp", inputs=inputs, tol=1e-12, progress=False
        )
        for shared in ([], ["a"], NAMES)
    ]
    for fit in fits[1:]:
        assert_close(fit.objective[-1], fits[0].objective[-1], rtol=0, atol=1e-8)
        assert_close(
            fit.model.values["shared_coefficients"][0, :, 0], fits[0].model.values["coefficients"][0, :, 0],
            rtol=0, atol=1e-4,
        )  # fmt: skip


@pytest.mark.few(1)
@each
def test_fits_raise_the_bound_and_come_near_the_mode(emission):
    x, inputs = series_of(100)
    x[0, 1] = torch.nan
    model = sh.SwitchingSSM(sh.Copy(2), emission)
    fit = model.fit(x, "vmp", inputs=inputs, **FEW)
    assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    assert float(fit.objective[-1]) < fit.loglik
    mode = model.fit(x, inputs=inputs, start=fit.model, **FEW)
    assert mode.loglik - 10 < fit.loglik < mode.loglik + 3
    assert_close(fit.model.values["loc"], mode.model.values["loc"], rtol=0, atol=0.1)


@pytest.mark.few(1)
def test_what_is_asked_of_a_fit(tmp_path):
    x, inputs = series_of(60)
    fit = sh.SwitchingSSM(sh.Copy(2), LINEAR["shared and tied"]).fit(x, "vmp", inputs=inputs, **FEW)
    assert "shared_coefficients" in repr(fit.summary())
    draws = fit.posterior.sample(7, seed=0)
    assert draws["shared_coefficients"].shape == (7, 1, 1, 1)
    assert draws["precision"].shape == (7, 1, 1)
    lower, upper = fit.posterior.interval(0.9)
    for name in ("loc", "shared_coefficients", "precision"):
        assert bool(((lower[name] < fit.model.values[name]) & (fit.model.values[name] < upper[name])).all())
    assert fit.to_arviz(draws=3).posterior["shared_coefficients"].shape[1] == 3
    fit.save(tmp_path / "fit")
    assert_close(sh.load(tmp_path / "fit").values, fit.model.values, rtol=0, atol=0)
    assert bool(fit.forecast(2, inputs=numbers(1, 2, 2)).mean.isfinite().all())
    assert fit.posterior.smooth(x, inputs=inputs).state.shape == (1, 60, 2)


@pytest.mark.few(1)
@each
def test_known_parameters_stay_and_coefficients_of_0_have_the_bound_of_the_normal_emission(emission):
    x, inputs = series_of(30)
    shapes = {"loc": (2, 1), "precision": (2 - ("tied" in repr(emission)), 1)}
    known = {"loc": 100 + 5 * numbers(*shapes["loc"]), "precision": 0.05 + numbers(*shapes["precision"]).square()}
    coefficients = {
        name: torch.zeros([{"shared": 1, "state": 2, "feature": 1}.get(d, emission.sizes.get(d)) for d in p.dims])
        for name, p in emission.parameters.items()
        if name not in known
    }
    model = sh.SwitchingSSM(sh.Markov(2), emission)
    fit = model.fit(x, "vmp", inputs=inputs, fixed=known | coefficients, **FEW)
    for name, table in (known | coefficients).items():
        assert_close(fit.model.values[name], table.double(), rtol=1e-9, atol=1e-9)
    plain = sh.SwitchingSSM(sh.Markov(2), emission.plain).fit(x, "vmp", fixed=known, **FEW)
    assert_close(fit.objective[-1], plain.objective[-1], rtol=0, atol=1e-6)
    scale = model.fit(x, "vmp", inputs=inputs, fixed={"precision": known["precision"]}, **FEW)
    assert_close(scale.model.values["precision"], known["precision"], rtol=1e-12, atol=0)
    assert float(scale.objective.diff().min()) > -1e-9 * float(scale.objective.abs().max())
    with pytest.raises(TypeError, match=r"^fixed: got loc, but message passing holds all parameters of"):
        model.fit(x, "vmp", inputs=inputs, fixed={"loc": known["loc"]}, **FEW)


@pytest.mark.slow
def test_intervals_are_near_those_of_nuts():
    (x, inputs), emission = series_of(150), LINEAR["shared and tied"]
    model = sh.SwitchingSSM(sh.Markov(2), emission)
    fit = model.fit(x, "vmp", inputs=inputs, **FEW)
    draws = model.fit(x, "nuts", inputs=inputs, num_samples=150, warmup_steps=50, seed=0, progress=False)
    exact, near = draws.posterior.interval(0.9), fit.posterior.interval(0.9, correct=False)
    for name in emission.parameters:
        width = exact.upper[name] - exact.lower[name]
        for a, b in ((near.lower, exact.lower), (near.upper, exact.upper)):
            assert float(((a[name] - b[name]).abs() / width).max()) < 0.25
