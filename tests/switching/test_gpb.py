"""GPB filters and Kim's smoother beside enumeration, a grid, chains without regimes, and the textbook's recursion."""

import math
from dataclasses import replace

import pytest
import samplehold as sh
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.regime_paths import enumerate_paths, on_grid, random_regimes, tables, two_chains
from samplehold.inference.chains.switching_gaussian import plain
from samplehold.switching.slds.gpb import SwitchingBelief, evidences, gpb_filter, kim_smoother
from samplehold.switching.slds.joint import Regimes
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
MODELS = {
    "seed": st.integers(0, 2**31),
    "regimes": st.integers(1, 3),
    "latent": st.integers(1, 3),
    "features": st.integers(1, 2),
    "rank": st.integers(0, 2),
}


def series(regimes: Regimes, n_steps: int, seed: int, missing: float = 0.0) -> Tensor:
    x = regimes.simulate(n_steps, seed=seed).x
    generator = torch.Generator().manual_seed(seed)
    holes = torch.rand(n_steps, regimes.n_features, generator=generator) < missing
    holes[torch.rand(n_steps, generator=generator) < missing] = True
    return x.masked_fill(holes, torch.nan)


@given(**MODELS, n_steps=st.integers(1, 4), missing=st.sampled_from([0.0, 0.3]))
def test_a_filter_of_higher_order_than_there_are_steps_is_exact(n_steps, missing, seed, rank, **sizes):
    regimes = random_regimes(seed, rank=min(rank, sizes["latent"]), **sizes)
    x = series(regimes, n_steps, seed, missing)
    for order in (n_steps, n_steps + 1):
        found, expected = gpb_filter(regimes, x, order), enumerate_paths(regimes, x)
        assert_close(found.log_normalizer, expected.log_normalizer, **TIGHT)
        assert_close(found.lagged_state, expected.state, **TIGHT)
        for t in range(n_steps):
            before = enumerate_paths(regimes, x[: t + 1])
            mean, covariance = before.moments()
            assert_close(found.state[t], before.state[-1], **TIGHT)
            assert_close(found.mean[t], mean[-1], **TIGHT)
            assert_close(found.covariance[t], covariance[-1], **TIGHT)


def textbook(regimes: Regimes, x: Tensor, order: int) -> tuple[float, Tensor, Tensor]:
    """The filter for one latent and feature as a dictionary of histories: log p(x), P(z_t | x_1..t), means."""
    p = {name: table.tolist() for name, table in tables(regimes).items()}
    kept, total, states, means = None, 0.0, [], []
    for y in x.flatten().tolist():
        made = {}
        for k in range(regimes.n_regimes):
            for history, (w, m, v, by_regime) in ({(): (1.0, 0.0, 0.0, None)} if kept is None else kept).items():
                if kept is None:
                    prior = p["initial_probs"][k]
                    m, v = p["initial_mean"][k][0], p["initial_covariance"][k][0][0]
                else:
                    prior = w * sum(share * p["transition_probs"][j][k] for j, share in by_regime.items())
                    a = p["transition"][k][0][0]
                    m, v = a * m + p["transition_offset"][k][0], a * a * v + p["state_noise"][k][0][0]
                c, r = p["emission"][k][0][0], p["observation_noise"][k][0][0]
                s, gap = c * c * v + r, y - c * m - p["emission_offset"][k][0]
                weight = prior * math.exp(-gap * gap / (2 * s)) / math.sqrt(2 * math.pi * s)
                made[(*history, k)] = (weight, m + v * c / s * gap, v - v * c / s * c * v)
        evidence = sum(w for w, _, _ in made.values())
        total += math.log(evidence)
        made = {history: (w / evidence, m, v) for history, (w, m, v) in made.items()}
        states.append([sum(w for h, (w, _, _) in made.items() if h[-1] == k) for k in range(regimes.n_regimes)])
        means.append(sum(w * m for w, m, _ in made.values()))
        kept = {}
        for key in {history[-(order - 1) :] if order > 1 else () for history in made}:
            group = {h: g for h, g in made.items() if (h[-(order - 1) :] if order > 1 else ()) == key}
            w = sum(g[0] for g in group.values())
            m = sum(g[0] * g[1] for g in group.values()) / w
            v = sum(g[0] * (g[2] + (g[1] - m) ** 2) for g in group.values()) / w
            share = {}
            for h, g in group.items():
                share[h[-1]] = share.get(h[-1], 0.0) + g[0] / w
            kept[key] = (w, m, v, share)
    return total, torch.tensor(states, dtype=torch.float64), torch.tensor(means, dtype=torch.float64)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_filters_are_the_textbooks_recursion_over_histories(order):
    regimes = random_regimes(3, regimes=3, latent=1)
    x = regimes.simulate(12, seed=1).x
    total, states, means = textbook(regimes, x, order)
    found = gpb_filter(regimes, x, order)
    assert_close(float(found.log_normalizer), total, rtol=1e-10, atol=1e-10)
    assert_close(found.state, states, **TIGHT)
    assert_close(found.mean.squeeze(-1), means, **TIGHT)


@pytest.mark.slow
def test_more_order_is_nearer_to_the_truth():
    """Summed over models: the error of P(z_t | x_1..t) and of log p(x) at the last of seven steps."""
    errors = []
    for order in (1, 2, 4, 6):
        error = 0.0
        for seed in range(12):
            regimes = random_regimes(seed, latent=1)
            x = regimes.simulate(7, seed=seed).x
            expected, found = enumerate_paths(regimes, x), gpb_filter(regimes, x, order)
            error += float((found.state[-1] - expected.state[-1]).abs().sum())
        errors.append(error)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 * errors[0]


def test_regimes_that_do_not_differ_are_one_linear_chain():
    one = tables(random_regimes(4, regimes=1, latent=2, features=2, rank=1))
    alike = {name: table.expand(3, *table.shape[1:]) for name, table in one.items()}
    probs = {"initial_probs": torch.tensor([0.2, 0.5, 0.3]), "transition_probs": torch.full((3, 3), 1 / 3)}
    regimes = Regimes(**alike | {name: table.double() for name, table in probs.items()})
    x = series(regimes, 20, 5, 0.2)
    chain = regimes.along(x, torch.zeros(20, dtype=torch.int64))
    filtered, smoothed = chain.filter(), chain.smooth()
    for order in (1, 2, 3):
        found = gpb_filter(regimes, x, order)
        assert_close(found.log_increment, filtered.log_increment, **TIGHT)
        assert_close(found.mean, filtered.mean, **TIGHT)
        assert_close(found.covariance, filtered.covariance, **TIGHT)
    found = kim_smoother(regimes, x)
    assert_close(found.log_normalizer, smoothed.log_normalizer, **TIGHT)
    assert_close(found.mean, smoothed.mean, rtol=1e-8, atol=1e-8)  # its gains divide by predicted covariances
    assert_close(found.covariance, smoothed.covariance, rtol=1e-8, atol=1e-8)
    chosen = sh.chains.MarkovChain(
        *(regimes.initial_probs.log(), regimes.transition_probs.log()), torch.zeros(20, 3).double()
    )
    assert_close(found.state, chosen.smooth().state, **TIGHT)


def test_kims_smoother_is_exact_over_two_steps_that_the_first_regime_does_not_outlive():
    """Where regimes are drawn afresh and the latents too, a step tells nothing of the one before."""
    given = tables(random_regimes(8, regimes=3, latent=1))
    probs = given["initial_probs"].expand(3, 3)
    regimes = Regimes(**given | {"transition_probs": probs, "transition": torch.zeros(3, 1, 1, dtype=torch.float64)})
    x = regimes.simulate(5, seed=2).x
    expected, found = enumerate_paths(regimes, x), kim_smoother(regimes, x)
    mean, covariance = expected.moments()
    assert_close(found.state, expected.state, **TIGHT)
    assert_close(found.transition, expected.pairs, **TIGHT)
    assert_close(found.mean, mean, **TIGHT)
    assert_close(found.covariance, covariance, **TIGHT)


def test_kims_smoother_is_near_to_enumeration_and_nearer_than_the_filter():
    """Two chains side by side, as Ghahramani & Hinton's; errors of P(z_t | x) over eight steps."""
    regimes = two_chains()
    x = regimes.simulate(8, (20,), seed=4).x
    smoothed, filtered = kim_smoother(regimes, x), gpb_filter(regimes, x)
    expected = [enumerate_paths(regimes, one) for one in x]
    state = torch.stack([paths.state for paths in expected])
    pairs = torch.stack([paths.pairs for paths in expected])
    mean = torch.stack([paths.moments()[0] for paths in expected])
    assert float((smoothed.state - state).abs().mean()) < 0.5 * float((filtered.state - state).abs().mean())
    assert float((smoothed.state - state).abs().mean()) < 0.06
    assert float((smoothed.transition - pairs).abs().mean()) < 0.06
    assert float((smoothed.mean - mean).abs().mean()) < 0.5 * float((filtered.mean - mean).abs().mean())
    assert_close(smoothed.transition.sum(-1), smoothed.state[:, :-1], **TIGHT)
    assert_close(smoothed.transition.sum(-2), smoothed.state[:, 1:], **TIGHT)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_stream_is_filtered_as_in_one_go_in_either_dtype(order, recurrent):
    regimes = random_regimes(9, regimes=3, latent=2, recurrent=recurrent)
    x = torch.stack([series(regimes, 9, seed, 0.2) for seed in range(3)])
    for kind in (torch.float64, torch.float32):
        own = Regimes(**{name: table.to(kind) for name, table in tables(regimes).items()})
        whole, rows = gpb_filter(own, x.to(kind), order), []
        belief = None
        for part in x.to(kind).split([4, 1, 4], 1):
            found = gpb_filter(own, part, order, belief=belief)
            rows.append(found)
            belief = found.belief
        # the parts give out numbers of their dtype, and carry on float64
        tight = TIGHT if kind == torch.float64 else {"rtol": 1e-6, "atol": 1e-6}
        assert_close(torch.cat([row.state for row in rows], 1), whole.state, **tight)
        assert_close(torch.cat([row.mean for row in rows], 1), whole.mean, **tight)
        assert_close(sum(row.log_normalizer for row in rows), whole.log_normalizer, **tight)
        assert_close(belief.log_weight, whole.belief.log_weight, **TIGHT)
        assert_close(belief.covariance, whole.belief.covariance, **TIGHT)
        assert whole.mean.dtype == kind


@pytest.mark.parametrize("recurrent", [False, True])
def test_nothing_is_read_beyond_the_end_of_a_sequence(recurrent):
    regimes = random_regimes(10, regimes=2, latent=2, recurrent=recurrent)
    x = torch.stack([series(regimes, 6, seed) for seed in range(3)])
    lengths = torch.tensor([6, 3, 1])
    spoiled = torch.where((torch.arange(6) < lengths[:, None])[..., None], x, 1e6)
    for order in (1, 3):
        found, smoothed = gpb_filter(regimes, spoiled, order, lengths), kim_smoother(regimes, spoiled, lengths)
        for b, n in enumerate(lengths.tolist()):
            one, other = gpb_filter(regimes, x[b, :n], order), kim_smoother(regimes, x[b, :n])
            assert_close(found.log_normalizer[b], one.log_normalizer, **TIGHT)
            assert_close(found.belief.mean[b], one.belief.mean, **TIGHT)
            assert_close(smoothed.log_normalizer[b], other.log_normalizer, **TIGHT)
            for name in ("state", "lagged_state", "mean", "covariance"):
                table = getattr(found, name)[b]
                assert_close(table[:n], getattr(one, name), **TIGHT)
                assert not table[n:].any()
            for name in ("state", "mean", "covariance", "transition"):
                table, own = getattr(smoothed, name)[b], getattr(other, name)
                assert_close(table[: len(own)], own, **TIGHT)
                assert not table[len(own) :].any()


def test_an_autoregression_in_companion_form_is_filtered():
    """Two regimes of an AR(2), seen without noise: all is determined by x, so that few histories are exact."""
    companion = torch.tensor([[[0.5, 1.0], [0.3, 0.0]], [[-0.6, 1.0], [0.2, 0.0]]], dtype=torch.float64)
    noise = torch.diag(torch.tensor([0.7, 0.0], dtype=torch.float64)).expand(2, 2, 2)
    seen = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(2, 1, 2)
    none, half = torch.zeros(2, 2, dtype=torch.float64), torch.full((2, 2), 0.5, dtype=torch.float64)
    start = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    zero = torch.zeros(2, 1, 1, dtype=torch.float64)
    regimes = Regimes(half[0], half, none, start, companion, none, noise, seen, zero[:, 0], zero)
    x = regimes.simulate(8, seed=1).x
    expected, found = enumerate_paths(regimes, x), gpb_filter(regimes, x, 3)
    assert_close(found.log_normalizer, expected.log_normalizer, **TIGHT)
    assert_close(found.state[-1], expected.state[-1], **TIGHT)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_recurrent_regimes_agree_with_sums_over_a_grid(seed):
    """What is chosen after one step is a mean over one normal density; later ones are merged."""
    regimes = random_regimes(seed, regimes=3, latent=1, recurrent=True)
    vague = Regimes(**tables(regimes) | {"observation_noise": 0 * regimes.observation_noise + 1e14})
    unseen = torch.full((2, 1), torch.nan, dtype=torch.float64)
    expected, found = on_grid(vague, 0 * unseen.nan_to_num()), gpb_filter(regimes, unseen)
    assert_close(found.state, expected.filtered, rtol=1e-8, atol=1e-8)
    assert_close(found.mean.squeeze(-1), expected.filtered_mean, rtol=1e-8, atol=1e-8)
    x = regimes.simulate(4, seed=seed).x
    expected, found, smoothed = on_grid(regimes, x), gpb_filter(regimes, x, 3), kim_smoother(regimes, x)
    assert_close(found.state, expected.filtered, rtol=0, atol=0.03)
    assert_close(found.log_normalizer, expected.log_normalizer, rtol=0, atol=0.1)
    assert_close(smoothed.state, expected.state, rtol=0, atol=0.15)


def test_recurrence_of_no_slope_is_a_table_of_transitions():
    given = tables(random_regimes(11, regimes=3, latent=2, recurrent=True))
    given["recurrence"] = torch.zeros(2, 2, dtype=torch.float64)
    regimes = Regimes(**given)
    moves = regimes.log_transition(torch.zeros(2, dtype=torch.float64)).exp()
    plain = {name: table for name, table in given.items() if not name.startswith("recurrence")}
    same = Regimes(**plain | {"transition_probs": moves})
    x = same.simulate(10, seed=3).x
    for order in (1, 2, 3):
        assert_close(gpb_filter(regimes, x, order).log_increment, gpb_filter(same, x, order).log_increment, **TIGHT)
    assert_close(kim_smoother(regimes, x).mean, kim_smoother(same, x).mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("latent", "regimes"), [(3, 3), (2, 4), (4, 4), (5, 6)])
def test_means_over_beliefs_are_those_of_many_draws(latent, regimes):
    """P(z_2) and E[s_2] where nothing is seen, over 2, 2, 3 and 5 directions: within five standard errors."""
    model = random_regimes(12, regimes=regimes, latent=latent, recurrent=True)
    found = gpb_filter(model, torch.full((2, 1), torch.nan, dtype=torch.float64))
    n = 40000
    draw = model.simulate(2, (n,), seed=5)
    share = torch.nn.functional.one_hot(draw.path[:, 1], regimes).double()
    allowed = 5 * (share.std(0) / n**0.5 + 1 / n) + 2e-3
    assert bool(((share.mean(0) - found.state[1]).abs() < allowed).all())
    latents = draw.latent[:, 1]
    assert bool(((latents.mean(0) - found.mean[1]).abs() < 5 * latents.std(0) / n**0.5 + 2e-3).all())


def test_bad_arguments_are_refused_by_name(as_users_call):
    regimes = random_regimes(0)
    x = torch.zeros(3, 1, dtype=torch.float64)
    belief = gpb_filter(regimes, x, 3).belief
    cases = [
        (lambda: gpb_filter(regimes, x, 0), ValueError, r"^order: got 0"),
        (lambda: gpb_filter(regimes, x, 1.5), TypeError, r"^order: got 1.5"),
        (lambda: gpb_filter(regimes, x, 40), ValueError, r"^order: got 40, .* give at most 18"),
        (lambda: gpb_filter(regimes, x.float()), TypeError, r"^x: got torch.float32"),
        (lambda: gpb_filter(regimes, x.numpy()), TypeError, r"^x: got ndarray"),
        (lambda: gpb_filter(regimes, x[:0]), ValueError, r"^x: got shape \[0, 1\]"),
        (lambda: gpb_filter(regimes, x + torch.inf), ValueError, r"^x: .* infinite"),
        (lambda: gpb_filter(regimes, x, lengths=4), ValueError, r"^lengths: got 4"),
        (lambda: gpb_filter(regimes, x, belief=belief), ValueError, r"^belief.log_weight: got shape \[4\]"),
        (lambda: gpb_filter(regimes, x, belief=3), TypeError, r"^belief: got int"),
        (lambda: gpb_filter(regimes, x + 1e200), ValueError, r"^x, observation_noise: .* at step 0 has no density"),
        (lambda: kim_smoother(regimes, x[None] + 1e200), ValueError, r"at step 0 of sequence 0 has no density"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    silent = Regimes(
        **tables(regimes) | {"emission": 0 * regimes.emission, "observation_noise": x[:1, None].repeat(2, 1, 1)}
    )
    with pytest.raises(ValueError, match="give observation_noise positive variances"):
        gpb_filter(silent, x)


@pytest.mark.parametrize("recurrent", [False, True])
def test_no_sequences_give_no_results(recurrent):
    regimes, x = random_regimes(7, recurrent=recurrent), torch.zeros(2, 0, 5, 1, dtype=torch.float64)
    found, smoothed = gpb_filter(regimes, x, 3), kim_smoother(regimes, x)
    assert found.covariance.shape == (2, 0, 5, 2, 2)
    assert gpb_filter(regimes, x, 3, belief=found.belief).lagged_state.shape == (2, 0, 5, 2)
    assert smoothed.transition.shape == (2, 0, 4, 2, 2)


def test_a_belief_is_a_record_of_float64():
    belief = gpb_filter(random_regimes(0), torch.zeros(4, 3, 1, dtype=torch.float64), 3).belief
    assert isinstance(belief, SwitchingBelief)
    assert belief.mean.shape == (4, 4, 2)
    assert_close(belief.log_weight.exp().sum(-1), torch.ones(4, dtype=torch.float64), **TIGHT)


@pytest.mark.few(3)
@pytest.mark.parametrize("form", ["plain", "native"])
@pytest.mark.parametrize(("recurrent", "order"), [(False, 1), (False, 2), (True, 2)])
def test_evidences_of_several_models_are_those_of_each(form, recurrent, order):
    models = [random_regimes(seed, recurrent=recurrent, regimes=2, latent=2, features=2) for seed in range(3)]
    lengths = torch.tensor([12, 5])
    x = torch.stack([series(models[0], 12, seed, missing=0.2) for seed in range(2)])
    with sh.kernels(form):
        several = evidences(models, x, order, lengths)
        alone = [float(gpb_filter(model, x, order, lengths).log_normalizer.sum()) for model in models]
    assert_close(torch.tensor(several), torch.tensor(alone), **TIGHT)


@pytest.mark.parametrize("recurrent", [False, True])
def test_evidences_of_several_models_have_the_gradients_of_each(recurrent):
    models = [random_regimes(seed, recurrent=recurrent, regimes=2, latent=2, features=1) for seed in range(3)]
    x, inside = series(models[0], 8, 0).unsqueeze(0), torch.ones(1, 8, dtype=torch.bool)
    of_all = [model.tables() for model in models]
    sources = [made.transition.requires_grad_() for made in of_all]
    together = torch.autograd.grad(plain.evidences(of_all, x, inside, 2).sum(), sources)
    for made, source, gradient in zip(of_all, sources, together, strict=True):
        (alone,) = torch.autograd.grad(plain.evidence(made, x, inside, 2).sum(), source)
        assert_close(gradient, alone, **TIGHT)


@pytest.mark.parametrize("form", ["plain", "native"])
def test_a_model_without_density_does_not_touch_the_evidence_of_others(form):
    good = random_regimes(0, regimes=2, latent=1, features=1)
    noises = "state_noise", "initial_covariance", "observation_noise"
    bad = replace(good, **{name: 0 * getattr(good, name) for name in noises})
    x = series(good, 6, 0)
    with sh.kernels(form):
        several = evidences([bad, good], x, 2)
    assert several[0] == -math.inf
    assert_close(several[1], float(gpb_filter(good, x).log_normalizer), **TIGHT)
