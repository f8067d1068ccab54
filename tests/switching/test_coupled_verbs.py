"""Models of several chains have the verbs of every model, exact over joint states: against enumeration."""

import itertools

import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of, layered_of
from oracles.linear_models import draw
from oracles.streams import assert_stream_is_filter
from torch.testing import assert_close

FLOAT = torch.float64


def factorial(counts: bool = False) -> sh.FactorialSSM:
    loc = [(0.5 if counts else 2.0) * draw(d, k, 2) for d, k in enumerate((2, 3))]
    probs = [draw(5 + d, k).softmax(-1) for d, k in enumerate((2, 3))]
    return factorial_of(torch.tensor([0.3, 0.2]).to(FLOAT), probs, loc, None if counts else torch.eye(2).to(FLOAT))


def layered(gated: bool = False) -> sh.LayeredSSM:
    values = {"loc": 2 * draw(1, 3, 2), "scale": draw(2, 3, 2).exp()}
    if gated:
        values |= {"background_loc": draw(3, 1, 2), "background_scale": draw(4, 1, 2).exp()}
    emission = sh.Gated(sh.Normal(2), sh.Normal(2)) if gated else sh.Normal(2)
    table = draw(5, 2, 3).softmax(-1)
    return layered_of(emission, values, torch.tensor([0.4, 0.2]).to(FLOAT), [table], torch.tensor([0.3, 0.7]).to(FLOAT))


MODELS = {
    "factorial": factorial(),
    "counts": factorial(counts=True),
    "layered": layered(),
    "gated": layered(gated=True),
}
each = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


@each
def test_the_best_path_is_the_best_of_all(model):
    x = model.simulate(3, seed=1).x
    product = model.product
    chain = product.chain(x)
    scores = {}
    for path in itertools.product(range(product.n_states), repeat=3):
        steps = torch.tensor(path)
        moves = chain.log_transition[steps[:-1], steps[1:]].sum()
        scores[path] = float(chain.log_initial[steps[0]] + moves + chain.log_likelihood[torch.arange(3), steps].sum())
    best = max(scores, key=scores.get)
    found = model.viterbi(x)
    assert found.path.shape == (3, 2)
    assert_close(float(found.log_probability), scores[best], rtol=1e-10, atol=0)
    assert found.path.tolist() == model.of_product(torch.tensor(best)).tolist()


@each
def test_draws_have_the_smoothed_frequencies(model):
    x, n = model.simulate(6, seed=2).x, 20_000
    smoothed, drawn = model.smooth(x), model.sample_posterior(x, n, seed=0)
    assert drawn.path.shape == drawn.redraw.shape == (n, 6, 2)
    pairs = [(drawn.redraw.double().mean(0), smoothed.redraw)]
    for d, state in enumerate(smoothed.state):
        pairs += [((drawn.path[..., d] == k).double().mean(0), state[:, k]) for k in range(state.shape[-1])]
    for frequency, p in pairs:
        assert bool(((frequency - p).abs() < 5 * (p * (1 - p) / n).clamp_min(0).sqrt() + 1e-9).all())
    held = ~drawn.redraw[:, 1:]
    assert bool((drawn.path[:, 1:] == drawn.path[:, :-1])[held].all())
    assert torch.equal(drawn.path, model.sample_posterior(x, n, seed=0).path)


@each
def test_forecasts_go_on_from_the_filter_to_the_stationary_chain(model):
    x = model.simulate(5, (2,), seed=3).x
    ahead = model.forecast(x, 200)
    assert [state.shape for state in ahead.state] == [(2, 200, k) for k in model.chain_sizes]
    assert ahead.redraw.shape == (2, 200, 2)
    missing = torch.cat([x, x.new_full((2, 3, 2), torch.nan)], 1)
    for state, filtered in zip(ahead.state, model.filter(missing).state, strict=True):
        assert_close(state[:, :3], filtered[:, 5:], rtol=1e-9, atol=1e-11)
    for state, prior in zip(ahead.state, model.fresh_probs, strict=True):
        assert_close(state[:, -1], prior.expand(2, -1), rtol=1e-6, atol=1e-6)
    interval = ahead.interval(0.8)
    assert bool((interval.lower <= interval.upper).all())


@each
def test_a_stream_is_the_filter(model):
    x = model.simulate(6, (3,), seed=4).x
    x[1, 2] = torch.nan
    assert_stream_is_filter(model, x, "redraw", "state", rtol=1e-9, atol=1e-11)


@each
def test_a_saved_model_comes_back_the_same(model, tmp_path):
    model.save(tmp_path)
    again = type(model).load(tmp_path)
    x = model.simulate(4, seed=5).x
    assert torch.equal(again.log_evidence(x), model.log_evidence(x))
    with pytest.raises(ValueError, match=f"holds a {type(model).__name__}; use {type(model).__name__}.load"):
        sh.SwitchingSSM.load(tmp_path)


@each
def test_arviz_has_a_state_and_a_redraw_for_each_chain(model):
    x = model.simulate(7, (2,), seed=6).x
    data, smoothed = model.to_arviz(x, draws=3), model.smooth(x)
    for d, state in enumerate(smoothed.state, start=1):
        found = data.smoothed[f"state_probability_{d}"]
        assert found.dims == ("sequence", "time", f"state_{d}")
        assert_close(torch.from_numpy(found.values), state, rtol=1e-10, atol=1e-12)
    redraw = data.smoothed["redraw_probability"]
    assert redraw.dims[2] in ("component", "layer")
    assert_close(torch.from_numpy(redraw.values), smoothed.redraw, rtol=1e-10, atol=1e-12)
    assert float(data.log_density["x"].sum()) == pytest.approx(float(model.log_evidence(x).sum()), rel=1e-10)
    assert data.replicated["x"].shape == (1, 3, 2, 7, 2)
    assert data.estimates["redraw_prob"].shape == (2,)


@each
def test_figures_have_a_strip_for_each_chain(model):
    x = model.simulate(30, seed=7).x
    assert len(model.plot(x).axes) == 2 + 2 + 2
    assert len(model.plot_forecast(x, 5).axes) == 2 + 2


def test_draws_of_the_parameters_keep_their_own_gates():
    model = factorial()
    x = model.simulate(40, (2,), seed=8).x
    fit = model.fit(x, "vmp", restarts=2, max_steps=30, progress=False)
    data, draws = fit.to_arviz(x, draws=5, seed=0), fit.posterior.sample(5, 0)
    each = [model.with_values({n: v[i] for n, v in draws.items()}).smooth(x).redraw for i in range(5)]
    found = torch.from_numpy(data.smoothed["redraw_probability"].values)
    assert_close(found, torch.stack(each).mean(0), rtol=1e-9, atol=1e-11)
    assert fit.plot(x).axes


@pytest.mark.few(2)
@pytest.mark.parametrize("prior", ["weak", None])
@each
def test_em_raises_a_bound_below_the_evidence(model, prior):
    x = model.simulate(60, (2,), seed=9).x
    fit = model.fit(x, restarts=3, max_steps=60, prior=prior, progress=False)
    assert fit.method == "em"
    assert fit.posterior is None
    assert float(fit.objective.diff().min()) >= -1e-9 * float(fit.objective.abs().max())
    assert [len(empty) for empty in fit.empty_states] == list(model.chain_sizes)
    if prior is None:
        assert fit.objective[-1] <= fit.model.log_evidence(x).sum() + 1e-6
        assert fit.paths.elbo[-1] == fit.objective[-1]


def test_what_such_a_model_cannot_do_is_said():
    model, x = factorial(), torch.zeros(5, 2)
    with pytest.raises(ValueError, match="inputs: was given, but no part of the model reads any"):
        model.smooth(x, inputs=torch.zeros(5, 1))
    with pytest.raises(ValueError, match="method: got 'nuts', expected one of 'em', 'vmp'"):
        model.fit(x, "nuts")
    with pytest.raises(ValueError, match="n_steps: got 0"):
        model.simulate(0)
