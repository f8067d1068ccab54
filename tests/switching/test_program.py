"""The Pyro program, its collapsed form, the engine and plain enumeration are one density."""

import pyro
import pyro.infer
import pytest
import torch
from oracles.models import (
    DYNAMICS,
    EMISSIONS,
    KINDS,
    drive,
    enumerate_evidence,
    enumerated_by_pyro,
    random_model,
    trace_log_prob,
)
from pyro.infer.autoguide.initialization import init_to_median
from samplehold import Copy, Markov, Normal, SwitchingSSM
from torch.testing import assert_close

N_STEPS = 4
GATE = {"redraw_prob": 0.1, "state_probs": [0.5, 0.5]}


def observed(model, dynamics, seed=1, batch=(), n_steps=N_STEPS):
    return model.simulate(n_steps, batch, seed=seed, **drive(dynamics, batch, n_steps)).x


@pytest.mark.few(3)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_all_forms_are_one_density(dynamics, emission):
    model = random_model(dynamics, emission)
    x, keywords = observed(model, dynamics), drive(dynamics, (), N_STEPS)
    expected = enumerate_evidence(model, x, **keywords)
    assert_close(model.log_evidence(x, **keywords), expected, rtol=1e-10, atol=1e-10)
    assert_close(trace_log_prob(model.collapsed, x, **keywords), expected, rtol=1e-10, atol=1e-10)
    assert_close(enumerated_by_pyro(model, x, **keywords), expected, rtol=1e-10, atol=1e-10)


DRIVEN = {"redraw_intercept": -80.0, "redraw_weights": [1.0], "state_probs": [0.5, 0.5]}
NEVER = {"initial_probs": [0.5, 0.5], "transition_probs": [[1.0, 0.0], [0.5, 0.5]]}
RARE = {
    "a gate that hardly opens": (Copy(2), {"redraw_prob": 1e-30, "state_probs": [0.5, 0.5]}),
    "a gate that nearly always opens": (Copy(2), {"redraw_prob": 1 - 1e-12, "state_probs": [1e-25, 1 - 1e-25]}),
    "a state that is drawn no more": (Copy(2), {"redraw_prob": 0.5, "state_probs": [1.0, 0.0]}),
    "a move that is impossible": (Markov(2), NEVER),
    "a driven gate": (
        Copy(2, inputs=1),
        {"redraw_intercept": -80.0, "redraw_weights": [1.0], "state_probs": [0.5, 0.5]},
    ),
}


@pytest.mark.parametrize(("dynamics", "values"), RARE.values(), ids=RARE)
def test_what_is_impossible_or_rare_is_so_in_every_form(dynamics, values):
    model = SwitchingSSM(dynamics, Normal(1)).with_values(values | {"loc": [[0.0], [12.0]], "scale": [[1.0], [1.0]]})
    x = torch.tensor([[0.0], [12.0], [6.0]], dtype=torch.float64)  # which ask for a move that the dynamics hardly make
    given = {"inputs": torch.zeros(3, 1, dtype=torch.float64)} if getattr(dynamics, "n_inputs", 0) else {}
    expected = model.log_evidence(x, **given)
    assert expected < -40
    assert_close(enumerated_by_pyro(model, x, **given), expected, rtol=1e-10, atol=0)
    assert_close(trace_log_prob(model.collapsed, x, **given), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_the_density_of_a_path_has_a_gradient_where_a_gate_is_certain(prob):
    rho = torch.tensor(prob, dtype=torch.float64, requires_grad=True)
    values = {"state_probs": [0.5, 0.5], "loc": [[0.0], [1.0]], "scale": [[1.0], [1.0]]}
    model = SwitchingSSM(Copy(2), Normal(1)).with_values(values | {"redraw_prob": rho})
    data = {"s_1": torch.tensor(1), "s_2": torch.tensor(1), "z_2": torch.tensor(prob, dtype=torch.float64)}
    density = trace_log_prob(model, torch.zeros(2, 1, dtype=torch.float64), data=data)
    assert density.isfinite()
    if density.requires_grad:
        assert torch.autograd.grad(density, rho)[0].isfinite()


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("dynamics", "emission"), [k for k in KINDS if "categorical" not in k[1] and "symbols" not in k[1]]
)
def test_missing_features_are_marginalised_in_every_form(dynamics, emission):
    model = random_model(dynamics, emission)
    x, keywords = observed(model, dynamics), drive(dynamics, (), N_STEPS)
    x[1, 0] = x[2, 1] = torch.nan
    x[3] = torch.nan
    expected = enumerate_evidence(model, x, **keywords)
    assert torch.isfinite(expected)
    assert_close(model.log_evidence(x, **keywords), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dynamics", list(DYNAMICS))
def test_ragged_batches_equal_their_sequences_one_by_one(dynamics):
    model = random_model(dynamics, "normal")
    batch, lengths = (3,), [N_STEPS, 1, 2]
    x, keywords = observed(model, dynamics, batch=batch), drive(dynamics, batch, N_STEPS)
    whole = model.log_evidence(x, lengths=lengths, **keywords)
    alone = [
        model.log_evidence(x[b, :n], **{name: table[b, :n] for name, table in keywords.items()})
        for b, n in enumerate(lengths)
    ]
    assert_close(whole, torch.stack(alone), rtol=1e-12, atol=0)
    collapsed = trace_log_prob(model.collapsed, x, lengths=lengths, **keywords)
    explicit = enumerated_by_pyro(model, x, lengths=lengths, **keywords)
    assert_close(collapsed, whole.sum(), rtol=1e-12, atol=0)
    assert_close(explicit, whole.sum(), rtol=1e-10, atol=0)


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_log_prior_is_the_density_of_the_parameter_sites(dynamics, emission):
    model = random_model(dynamics, emission)
    x, keywords = observed(model, dynamics), drive(dynamics, (), N_STEPS)
    free = model.without_values()
    joint = trace_log_prob(free.collapsed, x, data=model.values, **keywords)
    assert_close(joint, model.log_evidence(x, **keywords) + model.log_prior(model.values), rtol=1e-10, atol=1e-10)


def test_gaps_of_whole_steps_equal_missing_steps_in_between():
    model = random_model("copy", "normal")
    x = observed(model, "copy")
    gaps = torch.tensor([1, 3, 1, 2])
    stretched = torch.full((int(gaps.sum()), 2), torch.nan, dtype=x.dtype)
    stretched[gaps.cumsum(0) - 1] = x
    assert_close(model.log_evidence(x, dt=gaps), model.log_evidence(stretched), rtol=1e-12, atol=0)


def test_infer_discrete_draws_paths_from_the_posterior():
    model = random_model("copy", "normal")
    x = observed(model, "copy")
    posterior = model.smooth(x)
    pyro.set_rng_seed(0)
    n = 2000
    tiled = x.expand(n, *x.shape)
    sampler = pyro.infer.infer_discrete(model, first_available_dim=-2)
    trace = pyro.poutine.trace(sampler).get_trace(tiled)
    for step in range(N_STEPS):
        p = posterior.state[step, 1]
        frequency = trace.nodes[f"s_{step + 1}"]["value"].double().mean()
        assert abs(frequency - p) < 4.5 * (p * (1 - p) / n).sqrt() + 1e-12


def test_predictive_draws_parameters_paths_and_observations():
    model = SwitchingSSM(Copy(3), Normal(2))
    pyro.set_rng_seed(0)
    draws = pyro.infer.Predictive(model, num_samples=7)(n_steps=5)
    assert draws["loc"].shape == (7, 3, 2)
    assert draws["x_5"].shape == (7, 2)
    assert set(draws["s_2"].unique().tolist()) <= {0, 1, 2}
    assert bool((draws["z_1"] == 1).all())


@pytest.mark.hardware("provenance is told by a kind of tensor of its own")
def test_the_program_names_what_depends_on_what():
    model = SwitchingSSM(Copy(2), Normal(1))
    relations = pyro.infer.inspect.get_model_relations(model, (torch.zeros(2, 1),))
    assert "x_2" in relations["observed"]
    assert {"redraw_prob", "state_probs", "loc", "precision"} <= set(relations["sample_sample"])


@pytest.mark.slow
def test_svi_and_nuts_run_on_the_collapsed_density():
    model = random_model("copy", "normal", seed=3)
    free, x = model.without_values(), observed(model, "copy", n_steps=30)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = pyro.infer.autoguide.AutoNormal(free.collapsed, init_loc_fn=init_to_median)
    svi = pyro.infer.SVI(free.collapsed, guide, pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO())
    losses = [svi.step(x) for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])
    kernel = pyro.infer.NUTS(free.collapsed)
    mcmc = pyro.infer.MCMC(kernel, num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(x)
    assert mcmc.get_samples()["loc"].shape == (5, 2, 2)


def test_what_no_path_can_have_made_has_density_zero():
    model = SwitchingSSM(Copy(2), Normal(1)).with_values(loc=[[0.0], [1.0]], precision=[[1.0], [1.0]], **GATE)
    x = torch.tensor([[0.0, 1.0, 0.5], [0.0, 1e200, 0.5]], dtype=torch.float64)[..., None]  # its square is infinite
    mixture = pyro.poutine.trace(model.collapsed).get_trace(x).nodes["x"]["fn"]
    found = mixture.log_prob(x)
    assert_close(found[0], model.log_evidence(x[0]), rtol=1e-12, atol=0)
    assert found[1] == -torch.inf
    with pytest.raises(ValueError, match="step 1 of sequence 1 is impossible"):
        model.log_evidence(x)


@pytest.mark.parametrize("seed", range(3))
def test_nuts_finds_a_step_size_for_a_series_in_any_unit(seed):
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e4 + 1e5
    free = SwitchingSSM(Copy(2), Normal(1)).fit(x, restarts=1, max_steps=3, progress=False).model.without_values()
    pyro.set_rng_seed(seed)
    kernel = pyro.infer.NUTS(free.collapsed, max_tree_depth=3)
    pyro.infer.MCMC(kernel, num_samples=2, warmup_steps=2, disable_progbar=True).run(x)
    assert 0 < kernel.step_size < float("inf")


@pytest.mark.parametrize("emission", list(EMISSIONS))
def test_simulation_has_the_moments_of_the_model(emission):
    model = random_model("copy", emission, seed=5)
    drawn = model.simulate(200, (200,), seed=0)
    rho = float(model.redraw_prob)
    gates = drawn.redraw[:, 1:].double()
    assert abs(float(gates.mean()) - rho) < 5 * (rho * (1 - rho) / gates.numel()) ** 0.5
    fresh = drawn.path[drawn.redraw]
    p = float(model.state_probs[0])
    assert abs(float((fresh == 0).double().mean()) - p) < 5 * (p * (1 - p) / fresh.numel()) ** 0.5
    assert bool((drawn.path[:, 1:] == drawn.path[:, :-1])[~drawn.redraw[:, 1:]].all())
    forecast_like = model.emission.mean(model.values).redrawn[drawn.path]
    held = model.emission.mean(model.values).held.expand(2, -1)[drawn.path]
    expected = torch.where(drawn.redraw.unsqueeze(-1), forecast_like, held)
    spread = model.emission.variance(model.values)
    largest = max(float(spread.redrawn.max()), float(spread.held.max()))
    assert float((drawn.x - expected).mean((0, 1)).abs().max()) < 5 * (largest / drawn.path.numel()) ** 0.5
