"""The thin interface over the chains: streams, values, shapes, gradients."""

import re

import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, random_model
from torch.testing import assert_close


def check_stream(model, x: torch.Tensor, keywords: dict[str, torch.Tensor], rtol: float = 1e-12) -> None:
    """Three streams, step by step, against the filter on the whole series [3, T, F]."""
    whole = model.filter(x, **keywords)
    # the gate's weight is added to log-weights of this size, so the filter's redraw has no more digits
    rounding = 16 * torch.finfo(x.dtype).eps * whole.log_increment.abs().cummax(1).values.clamp_min(1.0)
    state, n_steps = model.start((3,)), x.shape[1]
    for t in range(n_steps):
        state, out = model.update(state, x[:, t], **{name: table[:, t] for name, table in keywords.items()})
        assert_close(out.state, whole.state[:, t], rtol=rtol, atol=1e-15)
        assert_close(out.log_increment, whole.log_increment[:, t], rtol=1e-11, atol=1e-12)
        if whole.redraw is not None:
            assert ((out.redraw - whole.redraw[:, t]).abs() <= rounding[:, t]).all()
    assert state.steps == n_steps
    assert_close(state.log_evidence, whole.log_normalizer, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_a_stream_equals_the_filter_on_the_whole_series(dynamics, emission):
    model, keywords = random_model(dynamics, emission), drive(dynamics, (3,), 12)
    x = model.simulate(12, (3,), seed=0, **keywords).x
    if emission != "full":
        x[1, 4] = torch.nan
    check_stream(model, x, keywords)


@pytest.mark.parametrize("dynamics", ["copy", "inputs", "markov"])
def test_a_stream_equals_the_filter_beside_outliers(dynamics):
    """Steps whose log-weights are large, and a belief that is certain of a state."""
    model, keywords = random_model(dynamics, "normal"), drive(dynamics, (3,), 6)
    x = model.simulate(6, (3,), seed=0, **keywords).x
    x[0, 2], x[1, 3], x[2, :4] = 1e8, -1e12, 1e3
    size = float(model.filter(x, **keywords).log_increment[2].abs().max())  # of log-weights that do not decide alone
    check_stream(model, x, keywords, rtol=4 * size * torch.finfo(x.dtype).eps)


def test_a_stream_refuses_an_impossible_observation():
    values = {"redraw_prob": 0.5, "state_probs": [0.5, 0.5], "probs": [[1.0, 0.0], [1.0, 0.0]]}
    model = sh.SwitchingSSM(sh.Copy(2), sh.Categorical(2)).with_values(**values)
    state, _ = model.update(model.start((2,)), [0, 0])
    with pytest.raises(ValueError, match=r"x_t: the observation at step 0 of sequence 1 is impossible"):
        model.update(state, [0, 1])


@pytest.mark.parametrize("dynamics", ["copy", "markov"])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_results_have_the_batch_axes_of_x(dynamics, batch):
    model = random_model(dynamics, "normal")
    x = model.simulate(5, batch, seed=0).x
    assert model.log_evidence(x).shape == batch
    assert model.filter(x).state.shape == (*batch, 5, 2)
    assert model.smooth(x).state.shape == (*batch, 5, 2)
    assert model.viterbi(x).path.shape == (*batch, 5)
    assert model.sample_posterior(x, 4).path.shape == (4, *batch, 5)
    assert model.forecast(x, 3).mean.shape == (*batch, 3, 2)


def test_the_dtype_of_x_decides():
    model = random_model("copy", "normal")
    x = model.simulate(5, seed=0).x
    assert model.smooth(x.float()).state.dtype == torch.float32
    assert model.smooth(x).state.dtype == torch.float64


@pytest.mark.parametrize("dynamics", ["copy", "inputs", "markov"])
def test_log_evidence_is_differentiable_in_the_parameters(dynamics):
    model = random_model(dynamics, "normal")
    keywords = drive(dynamics, (), 8)
    x = model.simulate(8, seed=0, **keywords).x
    names = list(model.values)

    def evidence(*leaves):
        return model.problem(x, **keywords).chain(dict(zip(names, leaves, strict=True))).log_normalizer()

    leaves = [v.clone().requires_grad_() for v in model.values.values()]
    assert torch.autograd.gradcheck(evidence, leaves, atol=1e-6)


def test_posterior_paths_have_the_smoothed_frequencies():
    model = random_model("copy", "normal")
    x = model.simulate(6, seed=0).x
    smoothed, n = model.smooth(x), 20_000
    drawn = model.sample_posterior(x, n, seed=0)
    for frequency, p in [
        ((drawn.path == 1).double().mean(0), smoothed.state[:, 1]),
        (drawn.redraw.double().mean(0), smoothed.redraw),
    ]:
        assert bool(((frequency - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-12).all())


def test_values_may_be_given_as_readers_know_them():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [3.0]], scale=[[1.0], [2.0]]
    )
    assert_close(model.precision, torch.tensor([[1.0], [0.25]], dtype=model.precision.dtype))
    assert_close(model.describe()["scale"], torch.tensor([[1.0], [2.0]], dtype=model.precision.dtype))
    full = sh.SwitchingSSM(sh.Copy(1), sh.MultivariateNormal(2)).with_values(
        redraw_prob=0.1, state_probs=[1.0], loc=np.zeros((1, 2)), covariance=np.array([[[2.0, 1.0], [1.0, 2.0]]])
    )
    assert_close(full.describe()["covariance"][0], torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64))


GOOD = {"redraw_prob": 0.1, "state_probs": [0.5, 0.5], "loc": [[0.0], [3.0]], "scale": [[1.0], [2.0]]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"redraw_prob": 1.5}, "redraw_prob: got 1.5, expected a probability"),
        ({"state_probs": [0.5, 0.6]}, "state_probs: got rows that are not probabilities"),
        ({"state_probs": [1.1, -0.1]}, r"state_probs: got -0.1 at \[1\], expected probabilities, from 0 to 1"),
        ({"state_probs": [0.2, 0.3, 0.5]}, r"state_probs: got shape \(3,\)"),
        ({"loc": [[0.0]]}, r"loc: got shape \(1, 1\); Normal needs \[2, 1\]"),
        ({"loc": [0.0, 1.0]}, r"loc: got shape \(2,\)"),
        ({"scale": [[0.0], [1.0]]}, "scale: got 0.0, expected a number greater than 0"),
        ({"rate": [[1.0], [1.0]]}, r"unknown parameter\(s\) \['rate'\]"),
        ({"loc": None}, "loc: missing"),
    ],
)
def test_values_outside_their_space_are_refused(change, said):
    values = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(ValueError, match=said):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(**values)


def test_a_model_without_values_says_what_to_do():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    for call in (lambda: model.smooth([0.0, 1.0]), lambda: model.start(), lambda: model.simulate(3)):
        with pytest.raises(ValueError, match=r"has no parameter values yet; use model\.fit"):
            call()


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: sh.Normal(0), ValueError, "n_features: got 0, expected an integer of at least 1"),
        (lambda: sh.MultivariateNormal(-1), ValueError, "n_features: got -1"),
        (lambda: sh.Bernoulli(0), ValueError, "n_features: got 0"),
        (lambda: sh.Poisson(-2), ValueError, "n_features: got -2"),
        (lambda: sh.Copy(2, inputs=-1), ValueError, "inputs: got -1, expected an integer of at least 0"),
        (lambda: sh.SwitchingSSM(sh.Markov(2), sh.Gated(sh.Normal(1), sh.Normal(1))), ValueError, "Gated needs Copy"),
        (lambda: sh.Gated(sh.Normal(1), sh.Normal(2)), ValueError, "background: got 2 feature"),
        (lambda: sh.Categorical(0), ValueError, "n_categories: got 0"),
    ],
)
def test_structures_that_cannot_be_are_refused(build, error, said):
    with pytest.raises(error, match=said):
        build()


def test_horizons_and_streams_that_do_not_fit_are_refused():
    model = random_model("copy", "normal")
    with pytest.raises(ValueError, match="horizon: got 0"):
        model.forecast(torch.zeros(3, 2), 0)
    with pytest.raises(ValueError, match=r"x_t: got shape \(3,\), expected \(2,\)"):
        model.update(model.start(), torch.zeros(3))
    with pytest.raises(ValueError, match=r"level: got 1\.5"):
        model.forecast(torch.zeros(3, 2), 1).interval(1.5)
    with pytest.raises(ValueError, match="n_steps: got None"):
        model()


def test_simulating_with_a_seed_leaves_the_global_generator_alone():
    model = random_model("copy", "normal")
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first = model.simulate(10, seed=1).x
    assert_close(torch.rand(1), expected, rtol=0, atol=0)
    assert_close(model.simulate(10, seed=1).x, first, rtol=0, atol=0)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: sh.SwitchingSSM(2, sh.Normal(1)), "dynamics: got int"),
        (lambda: sh.SwitchingSSM(sh.Copy(2), "normal"), "emission: got str"),
        (lambda: sh.Gated(sh.Normal(1), 3), "background: got int"),
        *((lambda kind=kind, n=n: kind(n), f"n_states: got {n}") for kind in (sh.Copy, sh.Markov) for n in (2.0, True)),
        *(
            (lambda kind=kind, n=n: kind(n), f"n_features: got {n}")
            for kind in (sh.Normal, sh.MultivariateNormal, sh.Bernoulli, sh.Poisson)
            for n in (1.5, True, None)
        ),
        (lambda: sh.Categorical(2.5), "n_categories: got 2.5"),
        (lambda: sh.Categorical(True), "n_categories: got True"),
        (lambda: sh.Copy(2, inputs=0.5), "inputs: got 0.5"),
        (lambda: sh.Copy(2, inputs=True), "inputs: got True"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(build, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        build()
