"""Gibbs samplers of regimes and latents: every conditional exactly, and the whole beside enumeration and a grid."""

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.regime_paths import enumerate_paths, on_grid, random_regimes, tables, two_chains
from samplehold.inference.chains.switching_gaussian.paths import Paths, draw_polya_gamma
from samplehold.switching.slds import gibbs as module
from samplehold.switching.slds.gibbs import SwitchingSampled, gibbs
from samplehold.switching.slds.joint import Regimes
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
MODELS = {
    "seed": st.integers(0, 2**31),
    "regimes": st.integers(1, 3),
    "latent": st.integers(1, 3),
    "features": st.integers(1, 2),
}


def series(regimes: Regimes, n_steps: int, seed: int, missing: float) -> Tensor:
    x = regimes.simulate(n_steps, (1,), seed=seed).x
    holes = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < missing
    return x.masked_fill(holes, torch.nan)


def four_chains(regimes: Regimes, x: Tensor, seed: int) -> tuple[Paths, Tensor]:
    path = torch.randint(regimes.n_regimes, (4, x.shape[-2]), generator=torch.Generator().manual_seed(seed))
    return Paths(regimes.tables(), x, torch.full((4,), x.shape[-2])), path


# ---- each conditional


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
@given(**MODELS, rank=st.integers(0, 3), n_steps=st.integers(1, 6), missing=st.sampled_from([0.0, 0.4]))
def test_each_regime_is_drawn_from_its_probability_given_all_others(seed, rank, n_steps, missing, **sizes):
    """P(z_t | z_-t, x) from the evidence of the K paths that differ in step t, those before it as they were drawn."""
    regimes = random_regimes(seed, rank=min(rank, sizes["latent"]), **sizes)
    x = series(regimes, n_steps, seed, missing)
    paths, path = four_chains(regimes, x, seed)
    drawn, state, failed = paths.collapsed(path, torch.Generator().manual_seed(seed))
    assert bool((failed < 0).all())
    for t in range(n_steps):
        choices = path.unsqueeze(1).repeat(1, regimes.n_regimes, 1)
        choices[..., t] = torch.arange(regimes.n_regimes)
        log_weight = regimes.along(x[0], choices).log_normalizer() + regimes.log_prob(choices)
        assert_close(state[:, t], log_weight.softmax(-1), rtol=1e-8, atol=1e-10)
        path[:, t] = drawn[:, t]


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
@pytest.mark.parametrize(("n_particles", "rank"), [(2, 2), (3, 1), (16, 0)])
def test_whole_paths_drawn_from_paths_of_the_posterior_are_of_the_posterior(n_particles, rank):
    """Independent draws from all paths by weight, each redrawn once: frequencies within five standard errors."""
    regimes, n = random_regimes(8, regimes=3, latent=2, rank=rank), 20000
    x = series(regimes, 4, 2, 0.3)
    expected, generator = enumerate_paths(regimes, x[0]), torch.Generator().manual_seed(n_particles)
    path = expected.path[torch.multinomial(expected.weight, n, True, generator=generator)].contiguous()
    paths = Paths(regimes.tables(), x, torch.full((n,), 4))
    drawn, failed = paths.redrawn(path, n_particles, generator)
    assert bool((failed < 0).all())
    assert float((drawn != path).double().mean()) > 0.01
    found = torch.bincount((drawn * 3 ** torch.arange(3, -1, -1)).sum(-1), minlength=81) / n
    error = (expected.weight * (1 - expected.weight) / n).sqrt() + 1 / n
    assert bool(((found - expected.weight).abs() < 5 * error).all())


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
@given(**MODELS, rank=st.integers(0, 3), n_steps=st.integers(1, 6), missing=st.sampled_from([0.0, 0.4]))
def test_latents_given_regimes_have_the_smoothers_moments(seed, rank, n_steps, missing, **sizes):
    regimes = random_regimes(seed, rank=min(rank, sizes["latent"]), **sizes)
    x = series(regimes, n_steps, seed, missing)
    paths, path = four_chains(regimes, x, seed)
    found, failed = paths.latents(path, x.new_zeros(4, n_steps, 0), torch.Generator().manual_seed(seed))
    expected = regimes.along(x[0], path).smooth()
    assert bool((failed < 0).all())
    assert_close(found.mean, expected.mean, **TIGHT)
    assert_close(found.covariance, expected.covariance, **TIGHT)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
@pytest.mark.parametrize(("rank", "missing"), [(2, 0.0), (1, 0.4), (0, 0.2)])
def test_latents_are_drawn_with_these_moments(rank, missing):
    """Means, covariances and those of neighbours of 50000 draws, within five standard errors."""
    regimes, n = random_regimes(1, latent=2, rank=rank), 50000
    x = series(regimes, 5, 3, missing)
    path = torch.tensor([0, 1, 1, 0, 1]).repeat(n, 1)
    paths = Paths(regimes.tables(), x, torch.full((n,), 5))
    found, _ = paths.latents(path, x.new_zeros(n, 5, 0), torch.Generator().manual_seed(0))
    expected = regimes.along(x[0], path[0]).smooth()
    gap = found.drawn - expected.mean
    scale = expected.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    assert bool((gap.mean(0).abs() <= 5 * scale / n**0.5 + 1e-12).all())
    spread = torch.einsum("bti,btj->tij", gap, gap) / n
    allowed = 5 * (2 / n) ** 0.5 * scale.unsqueeze(-1) * scale.unsqueeze(-2) + 1e-12
    assert bool(((spread - expected.covariance).abs() <= allowed).all())
    cross = torch.einsum("bti,btj->tij", gap[:, 1:], gap[:, :-1]) / n
    allowed = 5 * (2 / n) ** 0.5 * scale[1:].unsqueeze(-1) * scale[:-1].unsqueeze(-2) + 1e-12
    assert bool(((cross - expected.cross_covariance).abs() <= allowed).all())


@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
def test_what_latents_say_of_regimes_is_their_density():
    regimes = random_regimes(2, regimes=3, latent=2, features=2)
    x = series(regimes, 5, 3, 0.0)
    paths, path = four_chains(regimes, x, 0)
    drawn = paths.latents(path, x.new_zeros(4, 5, 0), torch.Generator().manual_seed(0))[0].drawn
    normal = torch.distributions.MultivariateNormal
    for t in range(5):
        for k in range(3):
            seen = regimes.emission[k] @ drawn[:, t, :, None]
            value = normal(seen.squeeze(-1) + regimes.emission_offset[k], regimes.observation_noise[k]).log_prob(
                x[0, t]
            )
            if t:
                moved = (regimes.transition[k] @ drawn[:, t - 1, :, None]).squeeze(-1) + regimes.transition_offset[k]
                value = value + normal(moved, regimes.state_noise[k]).log_prob(drawn[:, t])
            else:
                first = normal(regimes.initial_mean[k], regimes.initial_covariance[k])
                value = value + first.log_prob(drawn[:, 0])
            assert_close(paths.log_likelihood(drawn)[:, t, k], value, **TIGHT)


@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
@pytest.mark.parametrize("c", [0.0, 0.4, 2.0, -3.0, 8.0, 40.0, 200.0])
def test_polya_gamma_numbers_have_their_moments_and_transform(c):
    """Mean tanh(c/2) / 2c, and E exp(-s w) = cosh(c/2) / cosh(sqrt(c^2/4 + s/2)); within five standard errors."""
    n = 200000
    at = torch.tensor(abs(c) or 1e-6, dtype=torch.float64)
    drawn = draw_polya_gamma(
        torch.full((100, n // 100), c, dtype=torch.float64), torch.Generator().manual_seed(1)
    ).flatten()
    mean = (at / 2).tanh() / (2 * at)
    assert float((drawn.mean() - mean).abs()) < 5 * float(drawn.std()) / n**0.5
    for s in (0.5, 5.0, 50.0):
        far = (at.square() / 4 + s / 2).sqrt()
        log_cosh = lambda u: u + torch.nn.functional.softplus(-2 * u)  # less log 2
        expected = (log_cosh(at / 2) - log_cosh(far)).exp()
        values = (-s * drawn).exp()
        assert float((values.mean() - expected).abs()) < 5 * float(values.std()) / n**0.5
    assert bool((drawn > 0).all())


@pytest.mark.kernels
@pytest.mark.cpu("numba's kernels")
def test_polya_gamma_numbers_far_out_are_their_mean():
    drawn = draw_polya_gamma(torch.tensor([[1e4, 1e8, -1e100]], dtype=torch.float64))
    assert_close(
        drawn * torch.tensor([[2e4, 2e8, 2e100]], dtype=torch.float64), torch.ones(1, 3).double(), rtol=0.1, atol=0
    )


# ---- the whole


def close_to(found: SwitchingSampled, state: Tensor, mean: Tensor) -> None:
    """Within six standard errors of as many draws as the shares are worth."""
    n = float(found.effective_size.min())
    assert_close(found.state, state, rtol=0, atol=6 * 0.5 / n**0.5)
    spread = found.covariance.diagonal(dim1=-2, dim2=-1).amax().sqrt()
    assert_close(found.mean, mean, rtol=0, atol=float(6 * spread / n**0.5))
    assert bool((found.r_hat < 1.1).all())
    assert n > 100


@pytest.mark.few(1)
@pytest.mark.parametrize("moves", ["alternating", "collapsed", "both"])
@pytest.mark.slow
def test_both_kinds_of_moves_have_the_enumerated_posterior(moves):
    """Two chains side by side, with missing numbers; probabilities, moments and the pairs of draws."""
    regimes = near_regimes()
    x = regimes.simulate(6, seed=1).x
    x[2] = torch.nan
    found, expected = (
        gibbs(regimes, x, draws=120, warmup=30, chains=64, thin=1, moves=moves, seed=0),
        enumerate_paths(regimes, x),
    )
    mean, covariance = expected.moments()
    close_to(found, expected.state, mean)
    assert_close(found.covariance, covariance, rtol=0.1, atol=0.1)
    pairs = torch.zeros(5, 2, 2, dtype=torch.float64)
    for j in range(2):
        for k in range(2):
            pairs[:, j, k] = ((found.path[..., :-1] == j) & (found.path[..., 1:] == k)).double().mean(0)
    assert_close(pairs, expected.pairs, rtol=0, atol=float(6 * 0.5 / found.effective_size.min().sqrt()))
    assert_close(found.latent.mean(0), mean, rtol=0, atol=0.2)


def near_regimes() -> Regimes:
    """Two that are told apart with some doubt."""
    given = tables(random_regimes(3, latent=1))
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    near = {
        "emission": one,
        "observation_noise": 0.5 * one,
        "state_noise": one * torch.tensor([0.5, 1.5]).view(2, 1, 1),
    }
    return Regimes(**given | near | {"transition_offset": 0.5 * given["transition_offset"]})


@pytest.mark.kernels
@pytest.mark.slow
def test_draws_given_noise_without_density_are_collapsed_and_right():
    regimes = random_regimes(4, latent=3, rank=1)
    x = regimes.simulate(6, seed=1).x
    found, expected = gibbs(regimes, x, draws=120, warmup=30, chains=64, seed=0), enumerate_paths(regimes, x)
    close_to(found, expected.state, expected.moments()[0])


@pytest.mark.kernels
@pytest.mark.slow
def test_collapsed_moves_mix_where_latents_have_little_noise():
    """An alternation sees regimes through latents that all but tell them: its chains stay where they started."""
    given = tables(random_regimes(3, latent=1))
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    little = {"state_noise": 1e-6 * one, "transition": 0.9 * one, "emission": one, "observation_noise": one}
    offset = torch.tensor([[0.2], [-0.2]], dtype=torch.float64)
    regimes = Regimes(**given | little | {"transition_offset": offset, "initial_covariance": one})
    x = regimes.simulate(7, seed=2).x
    expected = enumerate_paths(regimes, x)
    collapsed = gibbs(regimes, x, draws=100, warmup=30, chains=32, moves="collapsed", seed=0)
    close_to(collapsed, expected.state, expected.moments()[0])
    alternating = gibbs(regimes, x, draws=100, warmup=30, chains=32, moves="alternating", seed=0)
    assert float(alternating.r_hat.max()) > 2
    assert float(alternating.effective_size.min()) < 0.1 * float(collapsed.effective_size.min())


@pytest.mark.kernels
@pytest.mark.slow
def test_whole_paths_leave_stretches_that_single_regimes_do_not():
    """Ghahramani & Hinton's two chains, of which one is not seen: to change a regime alone costs its neighbours."""
    regimes = two_chains()
    x = regimes.simulate(40, (3,), seed=5).x
    alone, whole = (
        gibbs(regimes, x, draws=40, warmup=20, chains=8, moves="collapsed", particles=n, seed=1) for n in (0, 16)
    )
    assert float(whole.r_hat.median()) < 1.1
    assert float(whole.effective_size.mean()) > 3 * float(alone.effective_size.mean())


@pytest.mark.slow
def test_recurrent_regimes_have_the_posterior_of_the_grid():
    model = random_regimes(5, regimes=3, latent=1, recurrent=True)
    x = model.simulate(5, seed=1).x
    expected, found = on_grid(model, x), gibbs(model, x, draws=120, warmup=40, chains=128, seed=0)
    close_to(found, expected.state, expected.mean.unsqueeze(-1))


@pytest.mark.slow
def test_one_regime_leaves_nothing_to_draw():
    for recurrent in (False, True):
        regimes = random_regimes(6, regimes=1, recurrent=recurrent)
        x = regimes.simulate(8, (2,), seed=0).x
        found = gibbs(regimes, x, draws=4, warmup=0, chains=1, thin=1)
        expected = regimes.along(x, torch.zeros(2, 8, dtype=torch.int64)).smooth()
        assert_close(found.mean, expected.mean, **TIGHT)
        assert_close(found.covariance, expected.covariance, rtol=1e-8, atol=1e-8)
        assert_close(found.state, torch.ones(2, 8, 1, dtype=torch.float64), **TIGHT)
        assert found.r_hat.tolist() == [[1.0], [1.0]]


@pytest.mark.kernels
@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True])
def test_draws_depend_on_the_seed_alone_and_read_nothing_beyond_the_end(recurrent):
    regimes = random_regimes(7, latent=2, recurrent=recurrent)
    x = regimes.simulate(20, (3,), seed=0).x
    lengths = torch.tensor([20, 11, 1])
    spoiled = torch.where((torch.arange(20) < lengths[:, None])[..., None], x, 1e6)
    before, found = torch.get_num_threads(), []
    try:
        for n_threads, given in ((1, x), (2, x), (1, spoiled), (1, spoiled.mT.contiguous().mT)):
            torch.set_num_threads(n_threads)
            found.append(gibbs(regimes, given, draws=20, warmup=5, chains=6, thin=5, lengths=lengths, seed=3))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for name in ("state", "mean", "covariance", "path", "latent", "share"):
            assert torch.equal(getattr(found[0], name), getattr(other, name)), name
    beyond = torch.arange(20) >= lengths[:, None]
    assert not found[0].state[beyond].any()
    assert bool((found[0].path[:, beyond] == -1).all())
    assert bool((found[0].path[:, ~beyond] >= 0).all())
    assert found[0].path.shape == (24, 3, 20)
    assert found[0].share.shape == (20, 6, 3, 2)
    assert_close(found[0].share.sum(-1), torch.ones(20, 6, 3, dtype=torch.float64), **TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True])
def test_no_sequences_give_no_results(recurrent):
    regimes, x = random_regimes(7, recurrent=recurrent), torch.zeros(2, 0, 5, 1, dtype=torch.float64)
    found = gibbs(regimes, x, draws=4, warmup=0, thin=2)
    assert found.mean.shape == (2, 0, 5, 2)
    assert found.path.shape == (8, 2, 0, 5)
    assert found.r_hat.shape == (2, 0, 2)


@pytest.mark.slow
def test_float32_is_taken_and_given():
    regimes = Regimes(**{name: table.float() for name, table in tables(near_regimes()).items()})
    x = regimes.simulate(6, seed=1).x
    found, expected = gibbs(regimes, x, draws=20, warmup=20, chains=128, seed=0), enumerate_paths(regimes, x)
    assert found.mean.dtype == found.latent.dtype == found.state.dtype == torch.float32
    assert_close(found.state.double(), expected.state, rtol=0, atol=0.1)


@pytest.mark.slow
def test_an_interrupt_leaves_the_sweeps_that_there_are(monkeypatch):
    calls, real = [], module._sweep

    def sweep(*given):
        calls.append(given)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(module, "_sweep", sweep)
    regimes = near_regimes()
    x = regimes.simulate(6, seed=1).x
    found = gibbs(regimes, x, draws=100, warmup=2, thin=4, seed=0)
    assert found.interrupted
    assert found.share.shape[0] == 10
    assert found.path.shape == (8, 6)
    whole = gibbs(regimes, x, draws=10, warmup=2, thin=4, seed=0)
    assert torch.equal(found.state, whole.state)
    assert not whole.interrupted
    calls.clear()
    found = gibbs(regimes, x, draws=100, warmup=2, thin=100, seed=0)
    assert found.path.shape == (4, 6)  # the last sweep, as none was kept
    calls.clear()
    early = gibbs(regimes, x, draws=100, warmup=40, seed=0)  # of 12 sweeps of the warm-up, those from the eighth on
    assert early.interrupted
    assert early.share.shape[0] == 5
    assert bool((early.state.sum(-1) - 1).abs().max() < 1e-6)
    monkeypatch.setattr(module, "_sweep", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # before there is anything to lose
        gibbs(regimes, x, draws=100, warmup=10, seed=0)


def test_bad_arguments_are_refused_by_name():
    jaxtyping.config.update("jaxtyping_disable", True)
    regimes, recurrent = random_regimes(0), random_regimes(0, recurrent=True)
    singular, silent = random_regimes(0, rank=1), random_regimes(0, rank=1, recurrent=True)
    x = torch.zeros(3, 1, dtype=torch.float64)
    cases = [
        (lambda: gibbs(regimes, x, draws=3), ValueError, r"^draws: got 3, expected an integer of at least 4"),
        (lambda: gibbs(regimes, x, warmup=-1), ValueError, r"^warmup: got -1"),
        (lambda: gibbs(regimes, x, chains=0), ValueError, r"^chains: got 0"),
        (lambda: gibbs(regimes, x, draws=10, thin=0), ValueError, r"^thin: got 0, expected an integer of at least 1"),
        (lambda: gibbs(regimes, x, particles=1), ValueError, r"^particles: got 1, .* give 2 or more"),
        (lambda: gibbs(regimes, x, moves="block"), ValueError, r"^moves: got 'block', expected one of"),
        (lambda: gibbs(recurrent, x, moves="both"), ValueError, r"^moves: got 'both', .* give 'alternating'"),
        (lambda: gibbs(singular, x, moves="both"), ValueError, r"^state_noise: got singular .* moves='collapsed'"),
        (lambda: gibbs(silent, x), ValueError, r"^state_noise: got singular .* give positive definite ones"),
        (lambda: gibbs(regimes, x.float()), TypeError, r"^x: got torch.float32"),
        (lambda: gibbs(regimes, x, lengths=[1, 2]), ValueError, r"^lengths: "),
        (lambda: gibbs(regimes, x, seed="a"), TypeError, r"^seed: got 'a'"),
        (lambda: gibbs(regimes, x + torch.inf), ValueError, r"^x: .* infinite"),
        (lambda: gibbs(regimes, x + 1e200, seed=0), ValueError, r"^x, observation_noise: .* has no density"),
    ]
    try:
        for call, error, message in cases:
            with pytest.raises(error, match=message):
                call()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
