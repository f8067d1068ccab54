"""Switching linear models whose noises are singular: companion forms, and observations without noise.

Against a plain Kim filter, as the textbooks have it, and against enumeration of all paths of regimes.
"""

import math

import pyro
import pytest
import samplehold as sh
import torch
from oracles.regime_paths import enumerate_paths
from oracles.streams import assert_stream_is_filter
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
HALF = torch.full((2,), 0.5, dtype=torch.float64)


def tensor(rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def hamilton() -> sh.SwitchingLinearSSM:
    """A switching mean and an autoregression of order 2 about it, seen without noise (Hamilton 1989; Kim 1994)."""
    return sh.SwitchingLinearSSM(2, 2).with_values(
        initial_probs=[0.3, 0.7],
        transition_probs=[[0.9, 0.1], [0.25, 0.75]],
        initial_mean=[0.2, -0.1],
        initial_covariance=[[1.0, 0.3], [0.3, 0.8]],
        transition=tensor([[0.5, 0.2], [1.0, 0.0]]).expand(2, 2, 2),
        transition_offset=tensor([[0.0, 0.0]]).expand(2, 2),
        state_noise=tensor([[0.6, 0.0], [0.0, 0.0]]).expand(2, 2, 2),
        emission=tensor([[1.0, 0.0]]).expand(2, 1, 2),
        emission_offset=[[1.1], [-0.4]],
        observation_noise=[[0.0], [0.0]],
    )


def lam() -> sh.SwitchingLinearSSM:
    """The growth of a trend with a switching drift and of an autoregression about it (Lam 1990)."""
    return sh.SwitchingLinearSSM(2, 2).with_values(
        hamilton().values | {"emission": tensor([[1.0, -1.0]]).expand(2, 1, 2)}
    )


def factor() -> sh.SwitchingLinearSSM:
    """Three series of one factor with a switching drift and two lags, and noises of their own (Kim & Nelson 1999)."""
    return sh.SwitchingLinearSSM(2, 2, 3, common_emission=True).with_values(
        initial_probs=HALF,
        transition_probs=[[0.9, 0.1], [0.2, 0.8]],
        initial_mean=[0.0, 0.0],
        initial_covariance=[[1.0, 0.0], [0.0, 1.0]],
        transition=tensor([[0.4, 0.2], [1.0, 0.0]]).expand(2, 2, 2),
        transition_offset=[[0.8, 0.0], [-1.2, 0.0]],
        state_noise=tensor([[1.0, 0.0], [0.0, 0.0]]).expand(2, 2, 2),
        emission=[[1.0, 0.0], [0.7, 0.2], [0.4, 0.0]],
        emission_offset=[0.0, 0.1, 0.0],
        observation_noise=[0.3, 0.4, 0.2],
    )


def differing() -> sh.SwitchingLinearSSM:
    """Noises of other directions in each regime."""
    return sh.SwitchingLinearSSM(2, 2).with_values(
        lam().values
        | {
            "transition": [[[0.5, 0.2], [0.1, 0.3]], [[-0.4, 0.0], [0.2, 0.6]]],
            "state_noise": [[[0.6, 0.0], [0.0, 0.0]], [[0.1, 0.2], [0.2, 0.4]]],
            "observation_noise": [[0.1], [0.5]],
        }
    )


MODELS = {"Hamilton": hamilton, "Lam": lam, "factor": factor, "differing": differing}
each = pytest.mark.parametrize("model", [make() for make in MODELS.values()], ids=MODELS)


def kim_filter(model: sh.SwitchingLinearSSM, x: Tensor) -> float:
    """log p(x) by the filter of Kim & Nelson 1999, section 5.2, one pair of regimes after another."""
    v = model.layout.regimes(model.values)
    total, weight, mean, spread = 0.0, None, [v.initial_mean[k] for k in range(2)], list(v.initial_covariance)
    for t, row in enumerate(x):
        pairs = {}
        for k in range(2):
            for j in range(2) if t else [k]:
                m, p = mean[j], spread[j]
                prior = v.initial_probs[k]
                if t:
                    assert weight is not None
                    m, p = v.transition[k] @ m + v.transition_offset[k], v.transition[k] @ p @ v.transition[k].T
                    p, prior = p + v.state_noise[k], weight[j] * v.transition_probs[j, k]
                gap = row - v.emission[k] @ m - v.emission_offset[k]
                f = v.emission[k] @ p @ v.emission[k].T + v.observation_noise[k]
                gain = p @ v.emission[k].T @ torch.linalg.inv(f)
                log_density = torch.distributions.MultivariateNormal(torch.zeros_like(gap), f).log_prob(gap)
                pairs[j, k] = prior * log_density.exp(), m + gain @ gap, p - gain @ v.emission[k] @ p
        density = sum(float(share) for share, _, _ in pairs.values())
        total += math.log(density)
        weight, mean, spread = [], [], []
        for k in range(2):
            into = [pair for (_, new), pair in pairs.items() if new == k]
            share = sum(one for one, _, _ in into)
            merged = sum(one * m for one, m, _ in into) / share
            mean.append(merged)
            spread.append(sum(one * (p + torch.outer(m - merged, m - merged)) for one, m, p in into) / share)
            weight.append(share / density)
    return total


@each
def test_the_evidence_is_that_of_a_plain_kim_filter(model) -> None:
    x = model.simulate(40, seed=3).x
    assert float(model.log_evidence(x)) == pytest.approx(kim_filter(model, x), abs=1e-9)


@each
def test_short_series_are_exact(model) -> None:
    x = model.simulate(6, (2,), seed=1).x
    x[1, 2] = torch.nan
    smoothed, filtered, exact = model.smooth(x, order=7), model.filter(x, order=6), model.log_evidence(x, order=6)
    for b, one in enumerate(x):
        expected = enumerate_paths(model.regimes(), one)
        mean, covariance = expected.moments()
        assert_close(exact[b], expected.log_normalizer, **TIGHT)
        assert_close(filtered.state[b, -1], expected.state[-1], **TIGHT)
        assert_close(smoothed.state[b], expected.state, **TIGHT)
        assert_close(smoothed.mean[b, 0], mean, rtol=1e-8, atol=1e-8)
        assert_close(smoothed.covariance[b, 0], covariance, rtol=1e-8, atol=1e-8)
        chain = sh.chains.MarkovChain(*(table[b] for table in smoothed.switch))
        assert_close(chain.smooth().state, expected.state, **TIGHT)


def test_chains_side_by_side_have_their_own_blocks() -> None:
    one = hamilton().values
    both = {name: torch.stack([one[name], 0.5 * one[name]]) for name in ("initial_mean", "initial_covariance")}
    values = one | both | {"observation_noise": tensor([[0.2], [0.4]])}
    model = sh.SwitchingLinearSSM(2, 2, shared="chain per regime").with_values(values)
    x = model.simulate(5, seed=1).x
    smoothed, (mean, covariance) = model.smooth(x, order=6), enumerate_paths(model.regimes(), x).moments()
    for k in range(2):
        own = slice(2 * k, 2 * k + 2)
        assert_close(smoothed.mean[k], mean[:, own], rtol=1e-8, atol=1e-8)
        assert_close(smoothed.covariance[k], covariance[:, own, own], rtol=1e-8, atol=1e-8)
        assert_close(smoothed.cross_covariance[k][:, 1], smoothed.covariance[k][:-1, 0], rtol=1e-8, atol=1e-8)


def test_successive_states_have_the_covariance_of_lags() -> None:
    """In a companion form the second number is the first of the step before."""
    smoothed = factor().smooth(factor().simulate(7, seed=0).x, order=8)
    cross, covariance = smoothed.cross_covariance[0], smoothed.covariance[0]
    assert_close(cross[:, 1], covariance[:-1, 0], rtol=1e-8, atol=1e-8)


@each
def test_every_verb_takes_singular_noise(model) -> None:
    x = model.simulate(12, seed=2).x
    smoothed = model.smooth(x)
    assert bool(smoothed.elbo.isneginf())
    assert_close(smoothed.state.sum(-1), torch.ones(12, dtype=torch.float64))
    path = model.viterbi(x)
    expected = model.regimes().along(x, path.path).log_normalizer() + model.regimes().log_prob(path.path)
    assert_close(path.log_probability, expected)
    assert bool(model.forecast(x, 3).mean.isfinite().all())
    assert len(model.states(x)) == 12
    assert_stream_is_filter(model, x)


@pytest.mark.slow
def test_gibbs_draws_keep_the_lags() -> None:
    drawn = hamilton().sample_posterior(hamilton().simulate(6, seed=2).x, 4, seed=0, warmup=4)
    assert_close(drawn.latent[:, 1:, 1], drawn.latent[:, :-1, 0], **TIGHT)


@each
def test_the_program_is_the_density_on_the_directions_with_noise(model) -> None:
    pyro.set_rng_seed(0)
    drawn = pyro.poutine.trace(model.forward).get_trace(n_steps=3)
    path = torch.stack([drawn.nodes[f"z_{t}"]["value"] for t in (1, 2, 3)])
    latents = torch.stack([drawn.nodes[f"s_{t}"]["value"] for t in (1, 2, 3)])
    total = float(drawn.log_prob_sum())
    assert math.isfinite(total)
    tables, expected = model.regimes(), float(model.regimes().log_prob(path))
    for t in range(3):
        z = path[t]
        mean, spread = tables.initial_mean[z], tables.initial_covariance[z]
        if t:
            mean = tables.transition[z] @ latents[t - 1] + tables.transition_offset[z]
            spread = tables.state_noise[z]
        seen = tables.emission[z] @ latents[t] + tables.emission_offset[z]
        x = drawn.nodes[f"x_{t + 1}"]["value"]
        for gap, covariance in ((latents[t] - mean, spread), (x - seen, tables.observation_noise[z])):
            size, axes = torch.linalg.eigh(covariance)
            there = size > 1e-9
            white = (gap @ axes)[there] / size[there].sqrt()
            expected -= float((white.square() + size[there].log() + math.log(2 * math.pi)).sum()) / 2
    assert total == pytest.approx(expected, abs=1e-8)


def test_exact_smoothing_has_no_smaller_order_than_two() -> None:
    model = hamilton()
    with pytest.raises(ValueError, match="order"):
        model.smooth(torch.zeros(4, 1).double(), order=1)


HELD = {
    "Hamilton": {
        "transition": [[math.nan, math.nan], [1.0, 0.0]],
        "transition_offset": 0.0,
        "state_noise": [[math.nan, 0.0], [0.0, 0.0]],
        "emission": [[1.0, 0.0]],
        "observation_noise": 0.0,
        "initial_mean": 0.0,
        "initial_covariance": [[1.0, 0.0], [0.0, 1.0]],
    },
    "factor": {
        "transition": [[math.nan, math.nan], [1.0, 0.0]],
        "transition_offset": [math.nan, 0.0],
        "state_noise": [[1.0, 0.0], [0.0, 0.0]],
        "emission_offset": 0.0,
        "transition_probs": [[math.nan, math.nan], [0.2, 0.8]],
    },
}


@pytest.mark.few(1)
@pytest.mark.parametrize("prior", [None, "weak"])
@pytest.mark.parametrize("name", HELD)
def test_fits_increase_the_evidence_of_the_filter_beside_known_structure(name: str, prior: str | None) -> None:
    true, fixed = MODELS[name](), HELD[name]
    x = true.simulate(24, seed=3).x
    model = sh.SwitchingLinearSSM(2, 2, true.n_features, common_emission=true.layout.common_emission)
    fit = model.fit(x, fixed=fixed, start=true, prior=prior, restarts=1, max_steps=5, progress=False)
    assert len(fit.objective) == 5
    assert float(fit.objective.diff().min()) > 0
    for key, table in fixed.items():
        value, known = fit.model.values[key], tensor(table)
        assert_close(value, torch.where(known.isnan(), value, known), rtol=1e-12, atol=1e-12)
    if prior is None:
        assert float(fit.objective[-1]) == pytest.approx(kim_filter(fit.model, x), abs=1e-8)
        assert fit.loglik == pytest.approx(float(fit.objective[-1]), abs=1e-8)


def test_a_fit_beside_known_structure_does_not_depend_on_the_unit() -> None:
    x, quiet = hamilton().simulate(16, seed=3).x, {"restarts": 1, "max_steps": 3, "progress": False}
    fixed = {name: table for name, table in HELD["Hamilton"].items() if not name.startswith("initial")}
    first, second = (sh.SwitchingLinearSSM(2, 2).fit(unit * x, fixed=fixed, **quiet) for unit in (1.0, 1e4))
    for name, power in (("transition", 0), ("state_noise", 2), ("emission_offset", 1)):
        assert_close(second.model.values[name] / 1e4**power, first.model.values[name], rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_a_fit_from_scratch_reaches_the_evidence_of_the_truth() -> None:
    true = hamilton()
    x, held = true.simulate(60, seed=4).x, HELD["Hamilton"]
    fit = sh.SwitchingLinearSSM(2, 2).fit(x, fixed=held, prior=None, restarts=3, max_steps=30, progress=False)
    assert fit.loglik > float(true.log_evidence(x))


def test_message_passing_refuses_noises_without_an_inverse() -> None:
    x = hamilton().simulate(20, seed=0).x
    with pytest.raises(ValueError, match=r"method: got 'vmp'.*use \"em\""):
        sh.SwitchingLinearSSM(2, 2).fit(x, "vmp", fixed=HELD["Hamilton"], progress=False)
    with pytest.raises(ValueError, match=r"whose states choose the regimes.*give small variances"):
        sh.SwitchingLinearSSM(2, 2, recurrent=True).fit(x, fixed=HELD["Hamilton"], progress=False)
    nothing = HELD["Hamilton"] | {"state_noise": 0.0}
    with pytest.raises(ValueError, match="x has no density at any start"):
        sh.SwitchingLinearSSM(2, 2).fit(x, fixed=nothing, restarts=1, max_steps=1, progress=False)
    with pytest.raises(TypeError, match="start: got"):
        sh.SwitchingLinearSSM(2, 2).fit(x, fixed=HELD["Hamilton"], start=torch.zeros(20), progress=False)
