"""Switching linear models in one form: chains along a path of regimes, chains side by side, draws."""

import pytest
import samplehold as sh
import torch
from oracles.regime_paths import enumerate_paths, on_grid, random_regimes, tables
from samplehold.inference.chains.switching_gaussian.tables import stick_breaking
from samplehold.switching.slds.joint import Regimes, side_by_side
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize(("latent", "features", "rank"), [(1, 1, 1), (2, 2, 1), (3, 2, 0)])
def test_the_chain_along_each_path_has_the_moments_of_its_dense_normal_distribution(latent, features, rank):
    regimes = random_regimes(1, regimes=3, latent=latent, features=features, rank=rank)
    x = regimes.simulate(4, seed=2).x
    x[1] = torch.nan
    x[2, 0] = torch.nan
    expected = enumerate_paths(regimes, x)
    smoothed = regimes.along(x, expected.path).smooth()
    assert_close(smoothed.log_normalizer + regimes.log_prob(expected.path), expected.log_weight, **TIGHT)
    assert_close(smoothed.mean, expected.mean, **TIGHT)
    assert_close(smoothed.covariance, expected.covariance, **TIGHT)


def test_paths_and_series_broadcast_and_end_where_lengths_say():
    regimes = random_regimes(2, latent=1)
    draw = regimes.simulate(5, (3,), seed=0)
    lengths = torch.tensor([5, 2, 1])
    path = torch.where(torch.arange(5) < lengths.unsqueeze(-1), draw.path, -1)
    for b, length in enumerate(lengths.tolist()):
        one = regimes.along(draw.x[b, :length], path[b, :length])
        several = regimes.along(draw.x, path, lengths).log_normalizer()
        assert_close(several[b], one.log_normalizer(), **TIGHT)
        assert_close(regimes.log_prob(path, lengths=lengths)[b], regimes.log_prob(path[b, :length]), **TIGHT)
    shared = regimes.along(draw.x[0], draw.path).log_normalizer()
    many = regimes.along(draw.x, draw.path.expand(4, 3, 5)).log_normalizer()
    assert shared.shape == (3,)
    assert_close(many, regimes.along(draw.x, draw.path).log_normalizer().expand(4, 3), **TIGHT)


def test_chains_side_by_side_are_independent_and_the_regime_shows_one():
    k, latent, features = 3, 2, 2
    one = tables(random_regimes(3, regimes=k, latent=latent, features=features))
    joint = Regimes(**side_by_side(one))
    x = joint.simulate(6, seed=1).x
    path = torch.tensor([0, 0, 2, 1, 1, 2])
    evidence, smoothed = 0.0, joint.along(x, path).smooth()
    for j in range(k):
        names = set(one) - {"initial_probs", "transition_probs"}
        shown = torch.where((path == j).unsqueeze(-1), x, torch.nan)
        own = sh.chains.LinearGaussianChain(shown, **{name: one[name][j] for name in names}).smooth()
        evidence = evidence + own.log_normalizer
        assert_close(smoothed.mean[:, latent * j : latent * (j + 1)], own.mean, **TIGHT)
    assert_close(smoothed.log_normalizer, evidence, **TIGHT)


def test_log_probability_of_a_recurrent_path_is_that_of_its_sticks():
    regimes = random_regimes(4, regimes=3, recurrent=True)
    draw = regimes.simulate(5, (2,), seed=3)
    for b in range(2):
        z, total = draw.path[b], regimes.initial_probs[draw.path[b, 0]].log()
        for t in range(1, 5):
            share = torch.sigmoid(regimes.recurrence @ draw.latent[b, t - 1] + regimes.recurrence_offset[z[t - 1]])
            probs = torch.stack([share[0], (1 - share[0]) * share[1], (1 - share[0]) * (1 - share[1])])
            total = total + probs[z[t]].log()
        assert_close(regimes.log_prob(z, draw.latent[b]), total, **TIGHT)
    assert_close(regimes.log_prob(draw.path, draw.latent)[1], total, **TIGHT)
    with pytest.raises(ValueError, match=r"^latents: got None"):
        regimes.log_prob(draw.path)


def test_sticks_far_out_lose_no_digits():
    found = stick_breaking(torch.tensor([800.0, -800.0], dtype=torch.float64))
    assert_close(found, torch.tensor([0.0, -1600.0, -800.0], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("recurrent", [False, True])
def test_draws_have_the_moments_of_the_model(recurrent):
    """P(z_t) and E[x_t] of the first three steps, x unseen, against the grid: within five standard errors."""
    regimes = random_regimes(5, latent=1, recurrent=recurrent)
    vague = Regimes(**tables(regimes) | {"observation_noise": torch.full((2, 1, 1), 1e12, dtype=torch.float64)})
    expected = on_grid(vague, torch.zeros(3, 1, dtype=torch.float64))
    n = 20000
    draw = regimes.simulate(3, (n,), seed=6)
    first = (draw.path == 0).double()
    assert_close(first.mean(0), expected.state[:, 0], rtol=0, atol=float(5 * 0.5 / n**0.5))
    spread = draw.latent.squeeze(-1)
    assert bool(((spread.mean(0) - expected.mean).abs() < 5 * spread.std(0) / n**0.5).all())
    shown = draw.x - torch.einsum("btfl,btl->btf", regimes.emission[draw.path], draw.latent)
    noise = (shown - regimes.emission_offset[draw.path]).squeeze(-1)
    variance = regimes.observation_noise[draw.path].flatten(1)
    ratio = (noise.square() / variance).mean()
    assert abs(float(ratio) - 1) < 5 * (2 / (3 * n)) ** 0.5


def test_draws_depend_on_the_seed_alone():
    regimes = random_regimes(6)
    first, again = (regimes.simulate(7, (2, 3), seed=9).x for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == (2, 3, 7, 1)


def test_the_grid_agrees_with_enumeration():
    regimes = random_regimes(7, regimes=3, latent=1)
    x = regimes.simulate(4, seed=0).x
    expected, found = enumerate_paths(regimes, x), on_grid(regimes, x)
    assert_close(found.log_normalizer, expected.log_normalizer, rtol=1e-9, atol=1e-9)
    assert_close(found.state, expected.state, rtol=1e-9, atol=1e-9)
    assert_close(found.mean, expected.moments()[0].squeeze(-1), rtol=1e-9, atol=1e-9)
    assert_close(found.filtered[-1], expected.state[-1], rtol=1e-9, atol=1e-9)


def _changed(name: str, value: Tensor | None) -> dict[str, Tensor | None]:
    return vars(random_regimes(0)) | {name: value}


NEGATIVE = -torch.eye(2, dtype=torch.float64).expand(2, 2, 2)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("transition", torch.zeros(2, 3, 3, dtype=torch.float64), ValueError, r"got shape \[2, 3, 3\]"),
        ("transition", torch.zeros(2, 2, 2), TypeError, "torch.float32"),
        ("emission", torch.zeros(2, 2, dtype=torch.float64), ValueError, r"got shape \[2, 2\]"),
        ("emission", torch.zeros(2, 0, 2, dtype=torch.float64), ValueError, "none of them 0"),
        ("initial_probs", torch.full((2,), 0.4, dtype=torch.float64), ValueError, "normalise them"),
        ("transition_probs", torch.full((2, 2), torch.nan, dtype=torch.float64), ValueError, "not finite"),
        ("state_noise", NEGATIVE, ValueError, "negative eigenvalue"),
        ("initial_covariance", NEGATIVE, ValueError, "negative eigenvalue"),
        ("observation_noise", -torch.ones(2, 1, 1, dtype=torch.float64), ValueError, "negative eigenvalue"),
        ("recurrence", torch.zeros(1, 2, dtype=torch.float64), ValueError, "got one of them"),
    ],
)
def test_bad_parameters_are_refused_by_name(as_users_call, name, value, error, message):
    with pytest.raises(error, match=rf"^{name}.*{message}"):
        Regimes(**_changed(name, value))


def test_paths_that_do_not_fit_are_refused(as_users_call):
    regimes = random_regimes(0)
    x = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^path: got regime -1, expected 0 to 1; .* lengths"):
        regimes.along(x, torch.tensor([0, 1, -1]))
    with pytest.raises(ValueError, match=r"^path: got regime 2"):
        regimes.log_prob(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"^path: got shape \[2\], expected \[\*batch, 3\]"):
        regimes.along(x, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"^x: got shape"):
        regimes.along(torch.zeros(3, 2, dtype=torch.float64), torch.tensor([0, 1, 1]))
