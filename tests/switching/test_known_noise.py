"""Known variances of the noise of measurements, for normal emissions."""

import math

import numpy as np
import pandas as pd
import pyro
import pytest
import samplehold as sh
import torch
from oracles.effort import effort
from oracles.models import DYNAMICS, EMISSIONS, drive, enumerated_by_pyro, random_model, trace_log_prob
from samplehold.switching.fitting.density import Density
from samplehold.switching.fitting.units import Units
from scipy.optimize import minimize
from torch.testing import assert_close

N = 5
KINDS = [("copy", "normal"), ("markov", "normal"), ("inputs", "normal"), ("copy", "gated"), ("copy", "gated_by_state")]
KINDS += [("markov", "tied"), ("inputs", "gated_tied"), ("copy", "gated_tied_by_state")]


def data(dynamics, emission, n=N, batch=(2,), seed=3):
    """A model, sequences from it with noise, and what stands beside them."""
    model, given = random_model(dynamics, emission), drive(dynamics, batch, n)
    generator = torch.Generator().manual_seed(seed)
    given["noise"] = 2 * torch.rand(*batch, n, 2, generator=generator, dtype=torch.float64) ** 3
    return model, model.simulate(n, batch, seed=seed, **given).x, given


def by_rescaling(model, x, noise, **given):
    """log p(x) of one sequence with noise, from a chain of the densities N(loc, 1 / precision + noise) written out."""
    tables = []
    for part in model.emission.parts:
        values = part.own(model.values)
        variance = 1 / values["precision"] + noise.unsqueeze(-2)
        terms = -(x.unsqueeze(-2) - values["loc"]).square() / variance / 2 - (2 * math.pi * variance).log() / 2
        tables.append(terms.nan_to_num(0.0).sum(-1))
    likelihood = sh.switching.emissions.contract.ByGate(tables[0], tables[-1])
    problem = model.problem(x, **given)
    return model.dynamics.chain(model.values, likelihood, problem.series.drive).log_normalizer()


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_the_noise_adds_to_the_variance_of_the_state_in_every_form(dynamics, emission):
    model, x, given = data(dynamics, emission)
    x[0, 1, 0] = x[1, 2, 1] = torch.nan
    x[0, 3] = torch.nan
    expected = by_rescaling(model, x, given["noise"], **{n: t for n, t in given.items() if n != "noise"})
    assert_close(model.log_evidence(x, **given), expected, rtol=1e-10, atol=1e-10)
    assert_close(trace_log_prob(model.collapsed, x, **given), expected.sum(), rtol=1e-10, atol=0)
    assert_close(enumerated_by_pyro(model, x, **given), expected.sum(), rtol=1e-10, atol=0)


def test_noise_of_0_is_no_noise_and_great_noise_is_a_missing_value():
    model, x, _ = data("markov", "normal")
    assert_close(model.log_evidence(x, noise=torch.zeros(2, N)), model.log_evidence(x), rtol=1e-12, atol=0)
    noise = torch.zeros_like(x)
    noise[:, 2] = 1e12
    missing = x.masked_fill(noise > 0, torch.nan)
    assert_close(model.smooth(x, noise=noise).state, model.smooth(missing).state, rtol=0, atol=1e-8)
    free = random_model("markov", "normal")
    options = {"prior": free.prior, "start": free, "restarts": 1, "max_steps": 15, "progress": False}
    with_zeros, plain = free.fit(x, noise=0 * noise, **options), free.fit(x, **options)
    assert_close(with_zeros.model.values, plain.model.values, rtol=1e-9, atol=1e-10)


@pytest.mark.few(4)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
@pytest.mark.parametrize("prior", ["weak", None])
def test_em_never_lowers_the_objective_which_is_the_log_joint(dynamics, emission, prior):
    _, x, given = data(dynamics, emission, n=30, batch=(3,))
    x[0, 2, 0] = torch.nan
    given |= {"lengths": [30, 12, 4]}
    blank = sh.SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission])
    fit = blank.fit(x, prior=prior, restarts=1, max_steps=40, progress=False, **given)
    assert bool((fit.objective.diff() >= -1e-9).all())
    height = fit.model.log_evidence(x, **given).sum()
    if prior is not None:
        height = height + blank.scaled_to(x, **given).log_prior(fit.model.values)
    assert_close(fit.objective[-1], height, rtol=1e-9, atol=1e-8)


def test_em_takes_noise_beside_fixed_parameters_known_states_and_weights():
    model, x, given = data("copy", "normal", n=30, batch=(3,))
    given |= {"states": torch.where(torch.arange(30) % 3 == 0, 1, -1).expand(3, -1), "weights": [2.0, 1.0, 0.5]}
    fixed = {"loc": model.values["loc"]}
    fit = model.without_values().fit(x, restarts=1, max_steps=25, fixed=fixed, progress=False, **given)
    assert bool((fit.objective.diff() >= -1e-9).all())
    assert_close(fit.model.values["loc"], fixed["loc"], rtol=1e-12, atol=1e-12)
    scaled = model.without_values().scaled_to(x, **given).problem(x, **given)
    assert_close(fit.objective[-1], scaled.objective(fit.model.values), rtol=1e-9, atol=1e-8)
    known = fit.smooth().state[:, ::3, 1]
    assert_close(known, torch.ones_like(known), rtol=1e-14, atol=0)


def test_em_ends_at_the_maximum_of_the_likelihood():
    """One state: the maximum over location and scale, by another optimizer."""
    generator = torch.Generator().manual_seed(0)
    noise = 3 * torch.rand(80, generator=generator, dtype=torch.float64)
    x = 2.0 + (0.5 + noise).sqrt() * torch.randn(80, generator=generator, dtype=torch.float64)

    def negative(free):
        variance = np.exp(free[1]) + noise.numpy()
        return float(((x.numpy() - free[0]) ** 2 / variance + np.log(variance)).sum() / 2)

    best = minimize(negative, [0.0, 0.0], method="BFGS", options={"gtol": 1e-9})
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(
        x, noise=noise, prior=None, tol=1e-13, max_steps=5000, progress=False
    )
    assert float(fit.model.values["loc"]) == pytest.approx(best.x[0], abs=1e-4)
    assert float(1 / fit.model.values["precision"]) == pytest.approx(math.exp(best.x[1]), abs=1e-4)
    plain = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(x, prior=None, progress=False)
    assert float(1 / plain.model.values["precision"]) > 1.5 * math.exp(best.x[1])  # noise counted as scale


def test_known_noise_tells_states_apart_whose_scale_it_hides():
    """Steps of large noise decide less."""
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]], scale=[[0.3], [0.3]]
    )
    noise = torch.tensor([0.0, 25.0, 0.0])
    sure = model.smooth([1.0, -1.0, 1.0], noise=noise).state[:, 1]
    assert float(sure.min()) > 0.8
    assert float(model.smooth([1.0, -1.0, 1.0]).state[1, 1]) < 0.1


def test_samplers_fit_the_same_density():
    model, x, given = data("copy", "normal", n=20)
    problem, values = model.problem(x, **given), model.values
    units = Units.of(problem.emission, problem.series)
    scaled, volume = units.problem(problem), units.log_volume(problem.series).sum()
    evidence = scaled.objective(units.values(values)) - scaled.log_prior(units.values(values))
    assert_close(evidence - volume, model.log_evidence(x, **given).sum(), rtol=1e-10, atol=1e-9)
    density = Density(problem, values)
    (gradient,) = density.gradient(density.point[None])
    step = 1e-6 * torch.randn(density.point.shape, generator=torch.Generator().manual_seed(1)).double()
    above, below = density.at(torch.stack([density.point + step, density.point - step]))
    assert_close((above - below) / 2, gradient @ step, rtol=1e-5, atol=1e-11)


@pytest.mark.parametrize(("method", "steps"), [("svi", 40), ("nuts", 4)])
def test_sampled_fits_run(method, steps):
    model, x, given = data("copy", "normal", n=20)
    fit = model.without_values().fit(x, method, restarts=2, progress=False, **effort(method, steps), **given)
    assert bool(torch.isfinite(fit.model.log_evidence(x, **given)).all())


def test_draws_have_the_noise():
    model = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).with_values(
        initial_probs=[1.0], transition_probs=[[1.0]], loc=[[0.0]], scale=[[1.0]]
    )
    noise = torch.tensor([0.0, 3.0, 8.0], dtype=torch.float64)
    deep = noise.expand(20_000, -1)
    drawn = model.simulate(3, (20_000,), seed=0, noise=deep).x
    assert_close(drawn.var(0).flatten(), 1 + noise, rtol=0.05, atol=0)
    trace = pyro.poutine.trace(model).get_trace(n_steps=3, batch_shape=(20_000,), noise=deep)
    explicit = torch.stack([trace.nodes[f"x_{t}"]["value"] for t in (1, 2, 3)], -2)
    assert_close(explicit.var(0).flatten(), 1 + noise, rtol=0.05, atol=0)
    data = model.to_arviz(torch.zeros(3, dtype=torch.float64), noise=noise, draws=20_000)
    for group in (data.posterior_predictive, data.replicated):
        assert_close(torch.from_numpy(group["x"].values).flatten(0, 1).var(0).flatten(), 1 + noise, rtol=0.05, atol=0)


def test_noise_has_the_form_of_x():
    model, noise = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), [[1.0, 2.0, 0.5], [3.0, 1.0]]
    a, b = [0.0, 0.1, 0.2], [1.0, 1.1]
    index = pd.MultiIndex.from_tuples([(s, t) for s, n in (("a", 3), ("b", 2)) for t in range(n)], names=["who", "t"])
    frame = pd.DataFrame({"x": a + b, "v": noise[0] + noise[1]}, index=index)
    forms = (
        ([a, b], noise, {}),
        ({"a": a, "b": b}, {"b": noise[1], "a": noise[0]}, {}),
        (frame[["x"]], frame["v"], {}),
        (frame[["x"]], frame[["v"]], {}),
        (a + b, noise[0] + noise[1], {"lengths": [3, 2]}),
        (torch.tensor([a, [*b, 9.0]]).unsqueeze(-1), torch.tensor([noise[0], [*noise[1], 7.0]]), {"lengths": [3, 2]}),
    )
    for x, form, given in forms:
        assert model.read(x, noise=form, **given).noise.squeeze(-1).tolist() == [[1.0, 2.0, 0.5], [3.0, 1.0, 0.0]]
    two = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2))
    assert two.read(torch.zeros(3, 2), noise=noise[0]).noise.tolist() == [[n, n] for n in noise[0]]
    nan = float("nan")
    assert model.read([0.0, nan, 1.0], noise=[1.0, nan, 2.0]).noise.flatten().tolist() == [1.0, 0.0, 2.0]


def test_packed_sequences_have_the_results_of_padded_ones():
    model, x, given = data("markov", "normal", n=60, batch=())
    noise, lengths = given["noise"], [60, 3, 2, 5, 2]
    parts, variances = [x[:n] for n in lengths], [noise[:n] for n in lengths]
    series = model.read(parts, noise=variances)
    assert series.packed
    alone = [model.log_evidence(part, noise=v) for part, v in zip(parts, variances, strict=True)]
    assert_close(model.log_evidence(series), torch.stack(alone), rtol=1e-12, atol=0)
    assert_close(model.log_evidence(series.one(3)), alone[3], rtol=1e-12, atol=0)
    fit = model.without_values().fit(series, restarts=1, max_steps=20, progress=False)
    assert bool((fit.objective.diff() >= -1e-9).all())
    table = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    wide = torch.nn.utils.rnn.pad_sequence(variances, batch_first=True)
    padded = model.without_values().fit(table, lengths=lengths, noise=wide, restarts=1, max_steps=20, progress=False)
    assert_close(fit.objective[-1], padded.objective[-1], rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ([1.0, -1.0, 1.0], "noise: got -1 at step 1, feature 0; expected finite variances of at least 0"),
        ([1.0, float("nan"), 1.0], "noise: got nan at step 1, feature 0"),
        ([1.0, 1.0], r"noise: got shape \(2,\), expected \(3,\)"),
        (torch.ones(3, 2), r"noise: got shape \(3, 2\), expected \(3,\) or \(3, 1\)"),
        ("1", "noise: got str"),
    ],
)
def test_bad_noise_is_named(noise, message):
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    with pytest.raises((ValueError, TypeError), match=message):
        model.read([0.0, 1.0, 2.0], noise=noise)


def test_what_takes_no_noise_says_so():
    x = [0.0, 1.0, 2.0, 1.0]
    noise = [1.0] * 4
    counts = sh.SwitchingSSM(sh.Copy(2), sh.Poisson(1))
    with pytest.raises(
        ValueError, match="noise: was given, but Poisson does not support it; leave it out, or use Normal"
    ):
        counts.read(x, noise=noise)
    with pytest.raises(ValueError, match='noise: was given, but message passing does not support it; use method="em"'):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, "vmp", noise=noise, progress=False)
    with pytest.raises(ValueError, match="noise: was given, but a LinearSSM does not support it; leave it out"):
        sh.LinearSSM(1, 1).read(x, noise=noise)
    with pytest.raises(ValueError, match="noise: was given, but this filter does not support it; leave it out"):
        sh.filter_vmp(random_model("copy", "normal"), torch.zeros(4, 2), noise=noise)
