"""Markov chains whose transitions depend on inputs, against enumeration, differences, and another optimiser."""

import itertools

import numpy as np
import pytest
import torch
from oracles.markov_paths import enumerate_paths
from oracles.models import enumerate_evidence, numbers, trace_log_prob
from oracles.streams import assert_stream_is_filter
from samplehold import Markov, MultivariateNormal, Normal, Poisson, SwitchingSSM, kernels, load
from samplehold.switching.data.series import Drive
from samplehold.switching.fitting import EM
from samplehold.switching.fitting.units import frame_of
from samplehold.switching.inputs import COEFFICIENT_SCALE
from samplehold.switching.problem import Problem
from scipy.optimize import minimize
from scipy.stats import poisson
from torch.testing import assert_close

K, C, T = 3, 2, 4
MODEL = SwitchingSSM(Markov(K, transition_prior=2.0, inputs=["dose", "rain"]), Normal(1))


def weights(k: int = K, c: int = C, seed: int = 1) -> torch.Tensor:
    return numbers(k, k, c, seed=seed) * (1 - torch.eye(k, dtype=torch.float64)).unsqueeze(-1)


def valued(model: SwitchingSSM = MODEL, seed: int = 0) -> SwitchingSSM:
    k, c = model.n_states, model.n_inputs
    return model.with_values(
        initial_probs=numbers(k, seed=seed).softmax(-1),
        transition_probs=(numbers(k, k, seed=seed + 1) + torch.eye(k)).softmax(-1),
        transition_weights=weights(k, c, seed + 2),
        loc=torch.arange(float(k), dtype=torch.float64).unsqueeze(-1),
        scale=torch.ones(k, 1, dtype=torch.float64),
    )


def tables_by_hand(model: SwitchingSSM, inputs: torch.Tensor) -> torch.Tensor:
    """The transition table into each step but the first: [T-1, K, K]."""
    probs, w = model.values["transition_probs"], model.values["transition_weights"]
    table = torch.zeros(len(inputs) - 1, *probs.shape, dtype=torch.float64)
    for t, i in itertools.product(range(1, len(inputs)), range(len(probs))):
        row = torch.stack([probs[i, j] * torch.exp(w[i, j] @ inputs[t]) for j in range(len(probs))])
        table[t - 1, i] = row / row.sum()
    return table


@pytest.mark.parametrize("mode", ["plain", "native"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_inference_is_the_enumeration_of_all_paths(mode, n):
    model, inputs, x = valued(), numbers(2, T, C, seed=5), numbers(2, T, 1, seed=6)
    lengths = torch.tensor([n, T])
    moves = torch.stack([tables_by_hand(model, table) for table in inputs]).log()
    likelihood = model.emission.log_likelihood(x, model.values).redrawn
    exact = enumerate_paths(model.initial_probs.log(), moves, likelihood, lengths)
    given = {"inputs": inputs, "lengths": lengths}
    with kernels(mode):
        smoothed, marginals = model.smooth(x, **given), model.chain(x, **given).marginals()
        assert_close(model.log_evidence(x, **given), exact.log_normalizer, rtol=1e-12, atol=0)
        assert_close(model.filter(x, **given).state, exact.filtered, rtol=1e-10, atol=1e-14)
        assert_close(smoothed.state, exact.smoothed, rtol=1e-10, atol=1e-14)
        assert_close(marginals.transition, exact.pairs, rtol=1e-10, atol=1e-14)
        assert_close(smoothed.transition, exact.pairs.sum(1), rtol=1e-10, atol=1e-14)
        assert_close(model.viterbi(x, **given).log_probability, exact.best, rtol=1e-12, atol=0)
        drawn = model.sample_posterior(x, 20_000, seed=0, **given).path[:, 1]
    share = torch.stack([(drawn == k).double().mean(0) for k in range(K)], -1)
    assert_close(share, exact.smoothed[1], rtol=0, atol=0.02)


def test_the_program_has_the_density_of_the_chain():
    model, inputs, x = valued(), numbers(3, C, seed=5), numbers(3, 1, seed=6)
    exact = enumerate_evidence(model, x, inputs=inputs)
    assert_close(model.log_evidence(x, inputs=inputs), exact, rtol=1e-12, atol=0)
    prior = SwitchingSSM(model.dynamics, model.emission)
    density = trace_log_prob(prior.collapsed, x, data=model.values, inputs=inputs)
    assert_close(density, exact + prior.log_prior(model.values), rtol=1e-12, atol=0)


def test_the_weights_prior_is_normal_and_leaves_out_those_of_staying():
    site = next(s for s in MODEL.dynamics.sites(MODEL.prior) if s.name == "transition_weights")
    w = weights()
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), COEFFICIENT_SCALE)
    exact = normal.log_prob(w).sum() - K * C * normal.log_prob(torch.zeros((), dtype=torch.float64))
    values = {"transition_weights": w}
    for log_prob in (site.log_prob(values, inside=True), site.log_prob(values, inside=False)):
        assert_close(log_prob, exact, rtol=1e-12, atol=0)
    drawn = site.distribution({}).sample()
    assert bool((drawn.diagonal() == 0).all())
    assert float(drawn.abs().sum()) > 0


def test_gradients_in_every_number_are_those_of_differences():
    model, inputs, x = valued(), numbers(T, C, seed=5), numbers(T, 1, seed=6)
    problem = model.problem(x, inputs=inputs)

    def evidence(probs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return problem.evidence(model.values | {"transition_probs": probs, "transition_weights": w})

    leaves = [model.values[name].clone().requires_grad_() for name in ("transition_probs", "transition_weights")]
    assert torch.autograd.gradcheck(evidence, leaves, eps=1e-6, atol=1e-8)


def test_inputs_of_zero_leave_a_constant_table():
    model, x = valued(), numbers(2, T, 1, seed=6)
    plain = {name: value for name, value in model.values.items() if name != "transition_weights"}
    constant = SwitchingSSM(Markov(K), Normal(1))._copy(plain)
    zeros = torch.zeros(2, T, C)
    assert_close(model.log_evidence(x, inputs=zeros), constant.log_evidence(x), rtol=1e-12, atol=0)
    assert_close(
        model.forecast(x, 1, inputs=torch.zeros(2, T + 1, C)).mean, constant.forecast(x, 1).mean, rtol=1e-12, atol=0
    )
    assert_close(model.durations(x, inputs=zeros), constant.durations(x), rtol=1e-12, atol=0)


def test_durations_are_those_of_the_mean_table():
    model, inputs = valued(), numbers(2, T, C, seed=5)
    tables = [tables_by_hand(model, torch.cat([table[:1], table])) for table in inputs]
    stay = torch.cat(tables).mean(0).diagonal()
    assert_close(model.durations(numbers(2, T, 1), inputs=inputs), 1 / (1 - stay), rtol=1e-12, atol=0)


def test_forecasts_and_streams_agree_with_the_filter():
    model, inputs, x = valued(), numbers(2, 9, C, seed=5), numbers(2, 9, 1, seed=6)
    ahead = model.forecast(x[:, :5], 4, inputs=inputs)
    x[:, 5:] = torch.nan
    filtered = model.filter(x, inputs=inputs)
    assert_close(ahead.state, filtered.state[:, 5:], rtol=1e-12, atol=1e-14)
    assert_stream_is_filter(model, x, "state", rtol=1e-10, atol=1e-12, inputs=inputs)


def test_simulated_moves_have_the_probabilities_of_their_inputs():
    model = valued()
    inputs = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=torch.float64).repeat(1000, 1)
    path = model.simulate(2000, (20,), seed=0, inputs=inputs.expand(20, -1, -1)).path
    tables = tables_by_hand(model, inputs[:3])
    for parity, table in enumerate(tables):
        old, new = path[:, parity:-1:2].flatten(), path[:, parity + 1 :: 2].flatten()
        counts = torch.zeros(K, K, dtype=torch.float64).index_put_((old, new), torch.ones(1).double(), accumulate=True)
        assert_close(counts / counts.sum(-1, keepdim=True), table, rtol=0, atol=0.03)


# ---- fits ------------------------------------------------------------------------------------------------------------


def simulated(model: SwitchingSSM, shape: tuple[int, ...], seed: int = 0):
    inputs = numbers(*shape, model.n_inputs, seed=seed + 10)
    return model.simulate(shape[-1], shape[:-1], seed=seed, inputs=inputs).x, inputs


@pytest.mark.few(1)
@pytest.mark.parametrize("prior", ["weak", None])
@pytest.mark.parametrize("ragged", [False, True])
def test_em_never_falls_and_ends_where_the_slope_is_0(prior, ragged):
    model = valued(SwitchingSSM(Markov(2, inputs=1, transition_prior=1.5), Normal(1)), seed=3)
    x, inputs = simulated(model, (6, 120))
    lengths = [120, 120, 20, 15, 10, 3] if ragged else [120] * 6
    given = {"lengths": lengths, "inputs": inputs}
    fit = model.fit(x, restarts=1, start=model, max_steps=2000, tol=1e-13, prior=prior, progress=False, **given)
    objective = fit.objective
    assert float(objective.diff().min()) > -1e-9 * float(objective.abs().max())
    problem = model.scaled_to(x, **given).problem(x, **given)
    frame = frame_of(problem)  # the prior is that of probabilities at the mean inputs
    problem = problem.in_frame(frame)
    leaves = {name: value.clone().requires_grad_() for name, value in frame.into(fit.model.values).items()}
    height = problem.evidence(leaves).sum() + (problem.log_prior(leaves) if prior else 0)
    slopes = dict(zip(leaves, torch.autograd.grad(height, list(leaves.values())), strict=True))
    moves = 1 - torch.eye(2).unsqueeze(-1)
    assert float((slopes["transition_weights"] * moves).abs().max()) < 1e-3
    rows = slopes["transition_probs"] * leaves["transition_probs"]  # in the logits
    along = rows - leaves["transition_probs"] * rows.sum(-1, keepdim=True)
    assert float(along.abs().max()) < 1e-3


def test_an_m_step_is_the_maximum_of_the_expected_log_joint():
    model = valued(SwitchingSSM(Markov(K, inputs=C, transition_prior=[[3.0, 1.0, 2.0]] * 3), Normal(1)), seed=2)
    x, inputs = simulated(model, (3, 40))
    dynamics, drive = model.dynamics, Drive(inputs)
    marginals = model.chain(x, inputs=inputs).marginals()
    sums = dynamics.marginals(model.chain(x, inputs=inputs), drive)
    stacked = type(sums)(*(None if f is None else f.unsqueeze(0) for f in vars(sums).values()))
    old = {name: value.unsqueeze(0) for name, value in model.values.items()}
    new = old
    for _ in range(8):  # each continues Newton's method
        new = dynamics.maximize(stacked, model.prior, old | new, drive)
    again = dynamics.maximize(stacked, model.prior, old | new, drive)
    for name in ("transition_probs", "transition_weights", "initial_probs"):
        assert_close(again[name], new[name], rtol=0, atol=1e-9)

    def height(values):
        like = model.emission.log_likelihood(x, model.values)
        chain = dynamics.chain(values, like, drive)
        prior = sum(site.log_prob(values, False) for site in dynamics.sites(model.prior))
        start = (marginals.initial * chain.log_initial).sum()
        return start + (marginals.transition * chain.log_transition).sum() + prior

    best = {name: value[0] for name, value in new.items()}
    top = height(best)
    for seed in range(30):
        w = best["transition_weights"] + 1e-3 * weights(seed=seed)
        probs = (best["transition_probs"].log() + 1e-3 * numbers(K, K, seed=seed)).softmax(-1)
        assert float(height(best | {"transition_weights": w})) < float(top)
        assert float(height(best | {"transition_probs": probs})) < float(top)


def test_fixed_parameters_and_impossible_moves_stay():
    model = valued(seed=4)
    x, inputs = simulated(model, (4, 60))
    table = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.2, 0.3, 0.5]], dtype=torch.float64)
    some = {"restarts": 1, "progress": False, "max_steps": 15}
    flat = SwitchingSSM(Markov(K, inputs=["dose", "rain"]), Normal(1))
    for held in ({"transition_probs": table}, {"transition_weights": weights(seed=9)}):
        fit = flat.fit(x, inputs=inputs, fixed=held, **some)
        assert_close(fit.model.values[next(iter(held))], next(iter(held.values())), rtol=0, atol=0)
        assert float(fit.objective.diff().min()) > -1e-9 * float(fit.objective.abs().max())
    begin = model.values | {"transition_probs": table}
    fit = flat.fit(x, inputs=inputs, start=begin, prior=None, **some)
    assert bool((fit.model.transition_probs[table == 0] == 0).all())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_a_fit_recovers_the_weights(seed):
    model = valued(SwitchingSSM(Markov(2, inputs=["dose"]), Normal(1)), seed=seed)
    model = model.with_values(model.values | {"loc": torch.tensor([[0.0], [6.0]]).double()})
    x, inputs = simulated(model, (10, 400), seed)
    fit = SwitchingSSM(model.dynamics, Normal(1)).fit(x, inputs=inputs, restarts=2, progress=False)
    summary = fit.summary().parameters
    rows = summary[summary.index.str.startswith("transition_weights")]
    assert list(rows.index) == ["transition_weights[0, 1, dose]", "transition_weights[1, 0, dose]"]
    true = torch.stack([model.transition_weights[0, 1, 0], model.transition_weights[1, 0, 0]])
    error = torch.tensor((rows["estimate"].to_numpy() - true.numpy()) / rows["standard error"].to_numpy())
    assert float(error.abs().max()) < 4
    assert float(rows["standard error"].max()) < 0.5
    assert fit.n_parameters == 1 + 2 + 2 + 2 + 2


@pytest.mark.slow
def test_a_fit_is_the_optimum_of_another_optimiser():
    truth = SwitchingSSM(Markov(2, inputs=1), Poisson(1)).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.2, 0.8]],
        transition_weights=[[[0.0], [1.0]], [[-1.0], [0.0]]],
        rate=[[1.0], [6.0]],
    )
    x, inputs = simulated(truth, (150,))
    counts, c = x[:, 0].numpy(), inputs[:, 0].numpy()

    def fall(y: np.ndarray) -> float:
        """Minus the log likelihood by a forward recursion of numbers."""
        rate, start = np.exp(y[:2]), 1 / (1 + np.exp(-y[2]))
        log_p = poisson.logpmf(counts[:, None], rate)
        belief, total = np.array([1 - start, start]), 0.0
        for t in range(len(counts)):
            if t:
                leave = 1 / (1 + np.exp(-(y[3:5] + y[5:7] * c[t])))
                belief = belief @ np.array([[1 - leave[0], leave[0]], [leave[1], 1 - leave[1]]])
            belief = belief * np.exp(log_p[t])
            total += np.log(belief.sum())
            belief = belief / belief.sum()
        return -total

    starts = [np.array([0.0, 2.0, 0.0, -2.0, -2.0, w, -w]) for w in (0.0, 1.0)]
    best = min(minimize(fall, y, method="BFGS").fun for y in starts)
    fit = SwitchingSSM(truth.dynamics, Poisson(1)).fit(x, inputs=inputs, prior=None, tol=1e-9, progress=False)
    assert abs(fit.loglik + best) < 0.01


@pytest.mark.slow
def test_samplers_and_svi_take_inputs():
    model = valued(SwitchingSSM(Markov(2, inputs=["dose"]), Normal(1)), seed=1)
    x, inputs = simulated(model, (60,))
    some = {"inputs": inputs, "restarts": 1, "progress": False}
    svi = SwitchingSSM(model.dynamics, Normal(1)).fit(x, "svi", max_steps=30, **some)
    nuts = SwitchingSSM(model.dynamics, Normal(1)).fit(x, "nuts", num_samples=5, warmup_steps=5, **some)
    for fit in (svi, nuts):
        drawn = fit.posterior.sample(10)["transition_weights"]
        assert bool((drawn.diagonal(dim1=1, dim2=2) == 0).all())
        assert float(drawn.std(0).max()) > 0
        data = fit.to_arviz(draws=4)
        assert data.posterior["transition_weights"].dims[2:] == ("state", "state_new", "input")
        assert list(data.posterior["input"].values) == ["dose"]
        assert len(fit.states()) == 60
        assert fit.plot() is not None
        assert "transition_weights[0, 1, dose]" in str(fit.summary())


def test_models_with_inputs_survive_files(tmp_path):
    model = valued()
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.inputs == ("dose", "rain")
    x, inputs = numbers(T), numbers(T, C)
    assert_close(loaded.log_evidence(x, inputs=inputs), model.log_evidence(x, inputs=inputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"transition_weights": torch.ones(K, K, C)},
            r"^transition_weights: got 1 at \[0, 0, 0\], expected 0: weights",
        ),
        ({"transition_weights": torch.zeros(K, K)}, r"^transition_weights: got shape \(3, 3\); .* needs \[3, 3, 2\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        MODEL.with_values({name: valued().values[name] for name in MODEL.known} | values)


def test_one_state_and_one_step_are_fitted():
    one = SwitchingSSM(Markov(1, inputs=1), Normal(1)).fit(
        numbers(20), inputs=numbers(20, 1), restarts=2, progress=False
    )
    assert one.n_parameters == 2
    fit = SwitchingSSM(Markov(2, inputs=1), MultivariateNormal(1)).fit(
        numbers(5, 1, 1), inputs=numbers(5, 1, 1), restarts=2, progress=False
    )
    assert bool(fit.objective.isfinite().all())


def test_float32_series_keep_their_dtype():
    model = valued()
    x, inputs = (table.float() for table in simulated(model, (3, 50)))
    fit = MODEL.fit(x, inputs=inputs, restarts=1, max_steps=10, progress=False)
    assert all(value.dtype is torch.float32 for value in fit.model.values.values())
    assert float(fit.objective.diff().min()) > -1e-4 * float(fit.objective.abs().max())


def test_restarts_are_fitted_as_if_alone():
    models = [valued(seed=seed) for seed in (0, 5)]
    x, inputs = simulated(models[0], (3, 30))
    problem = models[0].problem(x, inputs=inputs)
    assert isinstance(problem, Problem)
    together = {name: torch.stack([m.values[name] for m in models]) for name in models[0].values}
    both = EM(problem, together)
    both.run(3)
    for r, model in enumerate(models):
        alone = EM(problem, {name: value.unsqueeze(0) for name, value in model.values.items()})
        alone.run(3)
        for name, value in alone.tables.items():
            assert_close(both.tables[name][r], value[0], rtol=1e-8, atol=1e-10)
