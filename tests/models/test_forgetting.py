"""Windows that are proved to suffice do suffice, and are no longer than they must be."""

import copy

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.networks import with_normal_weights
from samplehold import (
    GRU,
    LSTM,
    QRNN,
    Bernoulli,
    Categorical,
    Copy,
    Elman,
    Gated,
    Markov,
    MinGRU,
    MinLSTM,
    Normal,
    SwitchingSSM,
    truncate,
)
from samplehold.face.studies import forgetting, stabilize, truncation_bound
from torch.testing import assert_close

ROUNDING = 1e-13


def build(layer_class, seed, scale=1.0, features=3, units=4, **options):
    layer = layer_class(features, units, dtype=torch.float64, **options).requires_grad_(False)
    return with_normal_weights(layer, seed, scale)


def normal(random, *shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def errors(layer, x, window, h0=None):
    return (truncate(layer, window)(x, h0) - layer(x, h0)[0]).abs().amax(-1)


def single_layers():
    yield from ((MinGRU, {"candidate": kind}) for kind in ("linear", "tanh", "positive", "simplex"))
    yield MinLSTM, {}
    yield from ((QRNN, {"pooling": pooling, "window": k}) for pooling in ("f", "fo", "ifo") for k in (1, 3))


@pytest.mark.few(3)
@pytest.mark.parametrize(("layer_class", "options"), list(single_layers()))
@examples(5)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.5, 3.0]),
    tol=st.sampled_from([0.1, 1e-3, 1e-9]),
    with_start=st.booleans(),
)
def test_the_bound_holds_at_every_step_with_its_own_window_and_with_any_longer_one(
    layer_class, options, seed, scale, tol, with_start
):
    layer, random = build(layer_class, seed, scale, **options)
    x = normal(random, 2, 12, 3)
    h0 = normal(random, 1, 2, 4) if with_start and layer_class is not QRNN else None
    found = forgetting(layer, x, tol, h0)
    assert ((found.window >= 1) & (found.window <= torch.arange(1, 13))).all()
    assert (found.bound <= tol).all()
    for window in range(1, 13):
        error = errors(layer, x, window, h0)
        own = found.window == window
        assert (error[own] <= found.bound[own] + ROUNDING).all()
        assert (error[found.window <= window] <= tol + ROUNDING).all()
        assert (error <= truncation_bound(layer, x, window, h0) + ROUNDING).all()


@examples(8)
@given(seed=st.integers(0, 2**20), tol=st.sampled_from([0.1, 1e-4, 1e-8]))
def test_the_bound_is_tight_within_the_ratio_of_the_greatest_state_so_far_to_the_one_cut_off(seed, tol):
    layer, random = build(MinGRU, seed, 1.0, units=1)
    x = normal(random, 60, 3)
    states = layer(x)[0].abs().squeeze(-1)
    found = forgetting(layer, x, tol)
    for t in range(3, 60, 5):
        w = int(found.window[t])
        if w > t:
            continue
        ratio = states[: t - w + 1].max() / states[t - w]
        error = errors(layer, x, w)[t]
        assert_close(found.bound[t], error * ratio, rtol=1e-6, atol=1e-13)
        if w > 1:
            shorter = errors(layer, x, w - 1)[t] * states[: t - w + 2].max() / states[t - w + 1]
            assert shorter > tol * (1 - 1e-6)


def test_the_bound_is_the_error_itself_where_states_grow():
    layer, _ = build(MinGRU, 0, units=2, candidate="positive")
    x = torch.ones(40, 3, dtype=torch.float64)
    found = forgetting(layer, x, 1e-3)
    for t in range(40):
        w = int(found.window[t])
        if w <= t:
            error = errors(layer, x, w)[t]
            assert_close(found.bound[t], error, rtol=1e-9, atol=1e-14)
            assert errors(layer, x, w - 1)[t] > 1e-3


def test_a_gate_that_draws_forgets_at_once_and_one_that_holds_never():
    layer, random = build(MinGRU, 0)
    x = normal(random, 1, 30, 3)
    layer.bias_l0[:4] = 1e4
    assert (forgetting(layer, x, 1e-12).window == 1).all()
    layer.bias_l0[:4] = -1e4
    h0 = torch.ones(1, 1, 4, dtype=torch.float64)
    assert (forgetting(layer, x, 1e-12, h0).window == torch.arange(1, 31)).all()
    assert (forgetting(layer, x, 1e-12, h0).bound == 0).all()
    # from zero, a state that is never drawn stays what a truncated network starts from
    assert (forgetting(layer, x, 1e-12).window == 1).all()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("layer_class", "candidate"),
    [(MinGRU, "linear"), (MinGRU, "tanh"), (MinGRU, "positive"), (MinGRU, "simplex"), (MinLSTM, "linear")],
)
@examples(3)
@given(seed=st.integers(0, 2**20), num_layers=st.integers(2, 3), scale=st.sampled_from([0.3, 1.0]))
def test_the_bound_holds_for_a_stack(layer_class, candidate, seed, num_layers, scale):
    layer, random = build(layer_class, seed, scale, num_layers=num_layers, candidate=candidate)
    x, h0 = normal(random, 2, 25, 3), normal(random, num_layers, 2, 4)
    found = forgetting(layer, x, 0.05, h0)
    for window in (1, 2, 3, 5, 8, 12):
        error = errors(layer, x, window, h0)
        assert (error <= truncation_bound(layer, x, window, h0) + ROUNDING).all()
        own = found.window == window
        assert (error[own] <= found.bound[own] + ROUNDING).all()
        assert (found.bound[own] <= 0.05).all()


def test_the_bound_of_a_stack_is_within_a_factor_of_thirty_of_the_error():
    ratios = []
    for seed in range(20):
        layer, random = build(MinGRU, seed, 0.5, num_layers=2)
        x = normal(random, 60, 3)
        bound, error = truncation_bound(layer, x, 10)[10:], errors(layer, x, 10)[10:]
        ratios.append((bound.log() - error.log()).mean())
    assert 0 < torch.stack(ratios).mean().exp() < 30


@pytest.mark.parametrize("layer_class", [GRU, LSTM, Elman])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_bound_holds_for_stabilized_networks(layer_class, num_layers):
    layer, random = build(layer_class, 2, 0.3, num_layers=num_layers)
    for k in range(num_layers):
        getattr(layer, f"bias_ih_l{k}").sub_(2.0)
        getattr(layer, f"weight_hh_l{k}").mul_(0.5)
    x = normal(random, 2, 40, 3).clamp(-1, 1)
    layer = stabilize(layer, 1.0, slack=0.5)
    found = forgetting(layer, x, 1e-2)
    assert (found.bound <= 1e-2).all()
    assert 1 < found.longest < 30
    for window in (1, 2, 5, 10, 20, 40):
        error = errors(layer, x, window)
        assert (error <= truncation_bound(layer, x, window) + ROUNDING).all()
        assert (error[found.window == window] <= 1e-2).all()


def test_a_network_that_is_not_stable_needs_all_its_inputs():
    layer, random = build(Elman, 0, 3.0)
    x = normal(random, 300, 3)
    found = forgetting(layer, x, 1e-2)
    assert (found.window == torch.arange(1, 301)).all()
    assert (found.bound == 0).all()


@pytest.mark.parametrize(
    ("layer_class", "options"),
    [
        *single_layers(),
        (MinGRU, {"num_layers": 2}),
        (MinLSTM, {"num_layers": 2}),
        (GRU, {}),
        (LSTM, {"num_layers": 2}),
        (Elman, {}),
    ],
)
def test_single_precision_of_a_layer_is_certified_with_its_rounding_and_refused_below_it(layer_class, options):
    layer, random = build(layer_class, 3, 0.3, **options)
    x = normal(random, 2, 60, 3).clamp(-1, 1)
    if layer_class in (GRU, LSTM, Elman):
        layer = stabilize(layer, 1.0, slack=0.7)
    single, x32 = copy.deepcopy(layer).float(), x.float()
    with pytest.raises(ValueError, match=r"tol: got 1e-08, but rounding in float32 .* at least .*, or") as refused:
        forgetting(single, x32, 1e-8)
    least = float(str(refused.value).split("at least ")[1].split(",")[0])
    assert 1e-7 < least < 1e-2
    assert (forgetting(layer, x, 1e-8).bound <= 1e-8).all()
    assert (single(x32)[0] - layer.double()(x32.double())[0]).abs().max() <= least
    found = forgetting(single, x32, least)
    for window in (5, 20, 40, 59):
        error = errors(single, x32, window).double()
        assert (error <= truncation_bound(single, x32, window))[:, window:].all()
        assert (error[found.window == window] <= least).all()


def test_truncated_networks_keep_layouts_and_gradients():
    layer, random = build(MinGRU, 5, num_layers=2)
    layer.requires_grad_(True)
    turned = MinGRU(3, 4, num_layers=2, batch_first=False, dtype=torch.float64)
    turned.load_state_dict(layer.state_dict())
    x, h0 = normal(random, 2, 5, 9, 3), normal(random, 2, 2, 5, 4)
    out = truncate(layer, 4)(x, h0)
    assert out.shape == (2, 5, 9, 4)
    assert_close(truncate(turned, 4)(x.movedim(2, 0), h0).movedim(0, 2), out)
    assert_close(truncate(turned, 20)(x.movedim(2, 0), h0).movedim(0, 2), layer(x, h0)[0])
    assert_close(out[:, :, 7], layer(x[:, :, 4:8])[0][:, :, -1])
    assert forgetting(turned, x.movedim(2, 0), 1e-3).window.shape == (2, 5, 9)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(truncate(layer, 4)(x, h0)[:, :, 8].sum(), x)
    assert (gradient[:, :, :5] == 0).all()
    assert (gradient[:, :, 5:] != 0).all()


def weights(model, x):
    """What a step's belief is multiplied with and what is added to it, each [T, K]."""
    chain = model.chain(x)
    return chain.log_held.exp().expand_as(chain.log_fresh), chain.log_fresh.exp()


def continued(steps, beliefs, begin):
    """The filter's beliefs [T - begin, *n, K] after each of the observations from step `begin` on, one at a time."""
    found, belief = [], beliefs.to(steps[0])
    for held, fresh in zip(*(table[begin:] for table in steps), strict=True):
        belief = fresh + held * belief
        belief = belief / belief.sum(-1, keepdim=True)
        found.append(belief)
    return torch.stack(found)


def variation(one, other):
    return 0.5 * (one - other).double().abs().sum(-1)


def windowed(model, x, carried=None):
    """Errors [T, T] at the steps t of filters of the last w observations, in row w - 1; 0 where w is all there are.

    They restart from state_probs. The greatest counts of those from the exact filter of x, and of the beliefs
    `carried` [n, K] into each window, if any.
    """
    steps, prior = weights(model, x), model.values["state_probs"]
    exact = model.filter(x).state[:, None]
    errors = torch.zeros(len(exact), len(exact), dtype=torch.float64)
    for begin in range(1, len(exact)):
        ends = exact[begin:]
        if carried is not None:
            ends = torch.cat([ends, continued(steps, carried, begin)], 1)
        error = variation(continued(steps, prior[None], begin), ends).amax(-1)
        window = torch.arange(len(error))
        errors[window, window + begin] = error
    return errors


def least_windows(errors, tol):
    """The least window [T] from which on no window has an error beyond `tol`."""
    return 1 + ((errors > tol) * torch.arange(1, len(errors) + 1)[:, None]).amax(0)


def corners(model):
    """Beliefs [V, K] whose mixtures may come before a window: any at all, or what a symbol tells of a fresh state."""
    prior, emission = model.values["state_probs"], model.emission
    if not isinstance(emission, Gated):
        return torch.eye(len(prior), dtype=prior.dtype)
    tells = prior * model.values["probs"].T
    return tells / tells.sum(-1, keepdim=True)


def furthest(model, x, t):
    """How far filters that came with a corner are from the one that restarts, after 1, 2, .., t observations [t]."""
    steps, prior = weights(model, x[: t + 1]), model.values["state_probs"]
    starts = torch.cat([prior[None], corners(model)])
    ends = torch.stack([continued(steps, starts, t - window + 1)[-1] for window in range(1, t + 1)])
    return variation(ends[:, 1:], ends[:, :1]).amax(-1)


def copy_model(kind, redraw, random):
    def rows(*shape):
        table = torch.rand(*shape, generator=random, dtype=torch.float64) + 0.05
        return table / table.sum(-1, keepdim=True)

    values = {"redraw_prob": redraw, "state_probs": rows(3)}
    if kind == "normal":
        loc = normal(random, 3, 1)
        return SwitchingSSM(Copy(3), Normal(1)).with_values(values, loc=loc, scale=torch.ones(3, 1))
    if kind == "held":
        return SwitchingSSM(Copy(3), Categorical(4)).with_values(values, probs=rows(3, 4))
    emission = Gated(Categorical(4), Categorical(4))
    return SwitchingSSM(Copy(3), emission).with_values(values, probs=rows(3, 4), background_probs=rows(1, 4))


@pytest.mark.parametrize("kind", ["normal", "held", "gated"])
@examples(5)
@given(seed=st.integers(0, 2**20), redraw=st.sampled_from([0.05, 0.3, 0.8]), tol=st.sampled_from([0.1, 1e-3]))
def test_the_bound_holds_for_the_exact_filter_of_a_model(kind, seed, redraw, tol):
    model = copy_model(kind, redraw, torch.Generator().manual_seed(seed))
    x = model.simulate(25, seed=seed).x
    found = forgetting(model, x, tol)
    assert found.window.shape == (25,)
    assert (found.bound <= tol).all()
    errors = windowed(model, x)
    assert (errors.gather(0, found.window[None] - 1)[0] <= found.bound).all()
    assert (least_windows(errors, tol) <= found.window).all()


def test_the_bound_holds_across_gaps_in_which_a_filter_forgets():
    model = copy_model("gated", 0.1, torch.Generator().manual_seed(1))
    x, dt = model.simulate(30, seed=1).x, torch.ones(30, dtype=torch.float64)
    dt[10::10] = 40.0
    series = model.read(x, dt=dt)
    found, even = forgetting(model, series, 0.05), forgetting(model, x, 0.05)
    assert found.longest < even.longest
    assert (found.bound <= 0.05).all()
    assert (windowed(model, series).gather(0, found.window[None] - 1)[0] <= found.bound).all()


def test_steps_beyond_a_sequence_need_no_inputs():
    model = copy_model("gated", 0.1, torch.Generator().manual_seed(1))
    x = model.simulate(30, seed=1).x
    found, alone = forgetting(model, [x, x[:4]], 1e-9), forgetting(model, x[:4], 1e-9)
    assert_close(found.window[1, :4], alone.window)
    assert_close(found.bound[1, :4], alone.bound)
    assert not found.window[1, 4:].any()
    assert not found.bound[1, 4:].any()


def test_where_held_steps_emit_alike_the_bound_is_what_is_held_times_the_distance_of_the_furthest_state():
    """Of what can be observed before; and no shorter window has a bound within tol."""
    model = copy_model("gated", 0.1, torch.Generator().manual_seed(3))
    x = model.simulate(60, seed=3).x
    found, filtered = forgetting(model, x, 1e-2), model.filter(x)
    prior = model.values["state_probs"]
    cut_off, most = variation(filtered.state, prior), variation(corners(model), prior).max()
    assert (cut_off <= most + ROUNDING).all()
    errors, certified = windowed(model, x), 0
    for t in range(60):
        w = int(found.window[t])
        if w <= t:
            held = (1 - filtered.redraw[t - w + 1 : t + 1]).prod()
            assert_close(found.bound[t], held * most)
            assert_close(errors[w - 1, t], held * cut_off[t - w], rtol=1e-9, atol=1e-14)
            assert (1 - filtered.redraw[t - w + 2 : t + 1]).prod() * most > 1e-2
            certified += 1
    assert certified > 10
    batch = forgetting(model, x.expand(2, 60, 1), 1e-2)
    assert_close(batch.window, found.window.expand(2, 60))


KINDS = pytest.mark.parametrize("kind", ["normal", "held", "gated"])


@pytest.mark.few(2)
@KINDS
@pytest.mark.parametrize("tol", [0.1, 1e-3, 1e-7])
def test_the_bound_of_a_filter_is_reached_and_no_shorter_window_will_do(kind, tol):
    model = copy_model(kind, 0.2, torch.Generator().manual_seed(5))
    x = model.simulate(130, seed=5).x
    found = forgetting(model, x, tol)
    for t in (90, 110, 129):
        w, reached = int(found.window[t]), furthest(model, x, t)
        assert_close(found.bound[t], reached[w - 1], rtol=1e-4, atol=1e-12)
        assert (reached[w - 1 :] <= tol).all()
        assert w == 1 or reached[w - 2] > tol * (1 - 1e-4)


@KINDS
def test_no_belief_carried_in_and_no_earlier_inputs_lead_beyond_the_bound(kind):
    """By ascent over mixtures of the corners, which comes as near to the bound as the mixtures come to a corner."""
    model = copy_model(kind, 0.2, torch.Generator().manual_seed(6))
    x = model.simulate(50, seed=6).x
    found, prior = forgetting(model, x, 1e-2), model.values["state_probs"]
    begin = 50 - int(found.window[-1])
    late = weights(model, x)
    restart = continued(late, prior, begin)[-1]
    logits = torch.randn(
        8, len(corners(model)), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    earlier = x[:begin].clone().requires_grad_(kind == "normal")
    climb = torch.optim.Adam([logits, earlier] if kind == "normal" else [logits], lr=0.5)
    for _ in range(40):
        reached = variation(continued(late, logits.softmax(-1) @ corners(model), begin)[-1], restart)
        assert (reached <= found.bound[-1]).all()
        if kind == "normal":
            carried = continued(weights(model, torch.cat([earlier, x[begin:]])), prior, 0)[-1]
            reached = torch.cat([reached, variation(carried, restart)[None]])
            assert reached[-1] <= found.bound[-1]
        climb.zero_grad()
        (-reached.sum()).backward()
        climb.step()
    assert reached.max() > 0.98 * found.bound[-1]


@examples(30)
@given(
    seed=st.integers(0, 2**20),
    redraw=st.sampled_from([0.01, 0.2, 0.9]),
    past=st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, torch.nan])] * 2), min_size=1, max_size=30),
    tol=st.sampled_from([0.2, 1e-2]),
)
def test_no_past_of_a_gated_model_leads_beyond_the_bound_whatever_was_missing_in_it(seed, redraw, past, tol):
    random = torch.Generator().manual_seed(seed)
    probs = torch.rand(2, 3, 2, generator=random, dtype=torch.float64).round(decimals=1)  # some impossible
    values = {"redraw_prob": redraw, "state_probs": torch.tensor([0.2, 0.3, 0.5])}
    model = SwitchingSSM(Copy(3), Gated(Bernoulli(2), Bernoulli(2))).with_values(
        values, probs=probs[0], background_probs=0.1 + 0.8 * probs[1, :1]
    )
    late = model.simulate(20, seed=seed).x
    x = torch.cat([torch.tensor(past, dtype=torch.float64), late])
    found = forgetting(model, x, tol)
    steps, prior, exact = weights(model, x), model.values["state_probs"].double(), model.filter(x).state
    for t in range(len(past), len(x)):
        w = int(found.window[t])
        if w <= t - len(past):
            alone = forgetting(model, late, tol)  # which knows nothing of this past
            assert_close(alone.window[t - len(past)], found.window[t])
            restart = continued([table[: t + 1] for table in steps], prior, t - w + 1)[-1]
            assert variation(exact[t], restart) <= found.bound[t]


@pytest.mark.few(2)
@KINDS
@pytest.mark.parametrize("redraw", [0.05, 0.3])
@pytest.mark.parametrize("tol", [1e-2, 1e-3])
def test_a_filters_windows_are_near_the_least_that_serve(kind, redraw, tol):
    """For this series, and where what came before the window was any one observation, many times."""
    model = copy_model(kind, redraw, torch.Generator().manual_seed(1))
    x = model.simulate(120, seed=1).x
    found = forgetting(model, x, tol).window
    values = torch.tensor([-8.0, 0.0, 8.0] if kind == "normal" else [0.0, 1.0, 2.0, 3.0]).double()
    pasts = torch.stack([model.filter(value.expand(300, 1)).state[-1] for value in values])
    for carried, factor in ((None, 10), (pasts, 1.5)):
        least = least_windows(windowed(model, x, carried), tol)
        assert (least <= found).all()
        assert found.double().mean() < factor * least.double().mean()


@pytest.mark.parametrize("shape", [(1, 1), (0, 5, 1), (2, 1, 1)])
def test_a_series_of_one_observation_or_none_at_all_has_nothing_to_cut_off(shape):
    found = forgetting(copy_model("normal", 0.2, torch.Generator().manual_seed(0)), torch.zeros(shape), 1e-2)
    assert found.window.shape == found.bound.shape == shape[:-1]
    assert (found.window == 1).all()
    assert not found.bound.any()


def test_evidence_forgets_where_holds_do_not():
    model = SwitchingSSM(Copy(2), Normal(1))
    model = model.with_values(redraw_prob=0.005, state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]], scale=[[1.0], [1.0]])
    x = model.simulate(300, seed=0).x
    found, least = forgetting(model, x, 0.05), least_windows(windowed(model, x), 0.05)
    assert found.longest < 30
    assert found.window.double().mean() < 4 * least.double().mean()


@KINDS
def test_single_precision_is_certified_with_its_rounding_and_refused_below_it(kind):
    model = copy_model(kind, 0.4, torch.Generator().manual_seed(2))
    x = model.simulate(60, seed=2).x.float()
    with pytest.raises(
        ValueError, match=r"tol: got 1e-08, but rounding in float32 .* at least [\d.e-]+, or"
    ) as refused:
        forgetting(model, x, 1e-8)
    least = float(str(refused.value).split("at least ")[1].split(",")[0])
    assert 1e-7 < least < 1e-3
    found, errors = forgetting(model, x, least), windowed(model, x)
    assert found.window[-1] < 60
    assert (errors.gather(0, found.window[None] - 1)[0] <= found.bound).all()
    assert (least_windows(errors, least) <= found.window).all()
    with pytest.raises(ValueError, match=r"tol: got 1e-25, but rounding in float64 is .* at least [0-9.e-]+[.]$"):
        forgetting(model, x.double(), 1e-25)


def test_a_filter_that_cannot_have_come_from_some_states_is_certified_for_the_others():
    """Without redraws a token that no state but one emits leaves that state; nothing else ever does."""
    probs = [[0.5, 0.5, 0.0], [0.5, 0.4, 0.1], [0.5, 0.5, 0.0]]
    model = SwitchingSSM(Copy(3), Categorical(3)).with_values(redraw_prob=0.0, state_probs=[0.2, 0.5, 0.3], probs=probs)
    x = torch.tensor([0.0, 0, 0, 2, 0, 0]).double()[:, None]
    found = forgetting(model, x, 1e-6)
    assert found.window.tolist() == [1, 2, 3, 1, 2, 3]
    assert (found.bound <= 1e-12).all()


def test_a_long_series_is_certified_in_little_time():
    layer, random = build(MinGRU, 6, 0.3, units=8)
    layer.bias_l0[:8] = -6.0
    x = normal(random, 20_000, 3)
    found = forgetting(layer, x, 1e-6)
    assert found.longest > 1000
    t = 15_000
    w = int(found.window[t])
    again = layer(x[t - w + 1 : t + 1])[0][-1]
    assert (again - layer(x)[0][t]).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: forgetting(MinGRU(3, 4), x, 0.0), "tol: got 0.0"),
        (lambda x: forgetting(torch.nn.Linear(3, 4), x, 0.1), "layer_or_model: got Linear, expected MinGRU"),
        (lambda x: forgetting(QRNN(3, 4, num_layers=2), x, 0.1), "layer: a QRNN of several layers"),
        (lambda x: forgetting(Elman(3, 4), x, 0.1, torch.full((1, 4), 9.0)), "h0: of size 18 in layer 0"),
        (lambda x: forgetting(MinGRU(3, 4), x, 0.1, torch.ones(4)), r"^h0: got shape \[4\]"),
        (lambda x: truncate(MinGRU(3, 4), 0), "window: got 0"),
        (lambda x: truncation_bound(MinGRU(3, 4), x, 0), "window: got 0"),
        (lambda x: forgetting(SwitchingSSM(Copy(2), Normal(3)), x, 0.1, x[0]), "h0: given for a model"),
        (
            lambda x: forgetting(SwitchingSSM(Markov(2), Normal(3)), x, 0.1),
            "layer_or_model: the model has dynamics M",
        ),
    ],
)
def test_wrong_input_is_refused_with_the_cure(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(torch.zeros(5, 3))


@pytest.mark.parametrize(
    ("layer", "error"),
    [(torch.nn.Linear(2, 2), TypeError), (torch.nn.GRU(2, 2, bidirectional=True), ValueError)],
)
def test_what_has_no_window_of_past_inputs_cannot_be_truncated(layer, error):
    with pytest.raises(error, match="layer: "):
        truncate(layer, 3)


def test_a_series_that_the_model_cannot_produce_has_no_windows():
    model = SwitchingSSM(Copy(2), Categorical(3))
    model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], probs=[[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    with pytest.raises(ValueError, match=r"x: the observation at step 2 is impossible"):
        forgetting(model, [0, 1, 2, 1, 0], 0.1)
