"""A minGRU whose held states rotate: a loop over complex numbers, and the exact filter of a cycle with redraws."""

import math
from itertools import product

import pytest
import samplehold as sh
import torch
from torch.testing import assert_close


def made(units=4, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return sh.RotatingGRU(3, units, dtype=torch.float64, **options)


def inputs(*shape, seed=1):
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_complex_numbers(layer, x, k=0):
    """All states [T, D] of layer k over x [T, F], one step after another."""
    weight, bias, angle = (getattr(layer, f"{part}_l{k}") for part in ("weight", "bias", "angle"))
    pairs, states = len(angle), []
    h, turn = torch.zeros(pairs, dtype=torch.complex128), torch.polar(torch.ones_like(angle), angle)
    for row in x:
        pre = weight @ row + bias
        gate, value = pre[:pairs].sigmoid(), torch.complex(pre[pairs::2], pre[pairs + 1 :: 2])
        h = (1 - gate) * turn * h + gate * value
        states.append(torch.view_as_real(h).flatten())
    return torch.stack(states)


def test_the_layer_is_a_loop_over_complex_numbers_in_value_and_gradient():
    layer, x = made(num_layers=2), inputs(11)
    expected = by_complex_numbers(layer, by_complex_numbers(layer, x), 1)
    out, last = layer(x)
    assert_close(out, expected, rtol=0, atol=1e-13)
    assert_close(last[1], out[-1], rtol=0, atol=0)
    parameters = list(layer.parameters())
    assert len(parameters) == 6
    pairs = [torch.autograd.grad(y.square().sum(), parameters) for y in (out, expected)]
    for got, wanted in zip(*pairs, strict=True):
        assert_close(got, wanted, rtol=1e-12, atol=1e-13)


def twin(layer):
    """The minGRU with the same weights."""
    gates, pairs = layer.weight_l0, len(layer.angle_l0)
    plain = sh.MinGRU(3, layer.hidden_size, dtype=torch.float64).requires_grad_(False)
    for name, rows in (("weight_l0", gates), ("bias_l0", layer.bias_l0)):
        getattr(plain, name).copy_(torch.cat([rows[:pairs].repeat_interleave(2, 0), rows[pairs:]]))
    return plain


def test_it_is_the_mean_of_the_last_drawn_value_turned_since():
    layer, x = made().requires_grad_(False), inputs(6)
    (chains,) = sh.as_ssm(twin(layer), inputs="given").layers(x)
    last_draw = chains.last_draw()[::2, 1:]  # [pairs, T]; the state at the start is 0
    value = torch.complex(chains.value[:, ::2], chains.value[:, 1::2]).mT
    age = torch.arange(5, -1, -1, dtype=torch.float64)
    turn = torch.polar(torch.ones(2, 6, dtype=torch.float64), layer.angle_l0[:, None] * age)
    assert_close(torch.view_as_real((last_draw * turn * value).sum(1)).flatten(), layer(x)[0][-1], rtol=0, atol=1e-13)
    layer.angle_l0.zero_()
    assert_close(layer(x)[0], twin(layer)(x)[0], rtol=0, atol=1e-14)


# --- a cycle with redraws ---------------------------------------------------------------------------------------------


def a_cycle(K, V=4, seed=2):
    """pi [K], p(x | s, z = 1) [K, V], p(x | z = 0) [V] and rho."""
    random = torch.Generator().manual_seed(seed)
    tables = [torch.rand(*size, generator=random, dtype=torch.float64) + 0.1 for size in ((K,), (K, V), (V,))]
    return *(table / table.sum(-1, keepdim=True) for table in tables), 0.3


def filter_of(K):
    """The layer that holds the belief's Fourier coefficients 1 .. K // 2."""
    pi, shown, background, rho = a_cycle(K)
    fresh = rho * pi[:, None] * shown  # [K, V]
    draw = fresh.sum(0)
    belief = coefficients((fresh / draw).mT, K).mT  # [2 pairs, V]
    layer = sh.RotatingGRU(len(background), len(belief), bias=False, dtype=torch.float64).requires_grad_(False)
    log_odds = draw.log() - ((1 - rho) * background).log()
    layer.weight_l0.copy_(torch.cat([log_odds.expand(K // 2, -1), belief]))
    layer.angle_l0.copy_(angles(K))
    return layer


def angles(K):
    return 2 * math.pi / K * torch.arange(1, K // 2 + 1, dtype=torch.float64)


def coefficients(belief, K):
    """The states of the layer for a belief [*b, K]: its Fourier coefficients, real and imaginary parts in turn."""
    wave = angles(K)[:, None] * torch.arange(K)
    return belief @ torch.stack([wave.cos(), wave.sin()], 1).flatten(0, 1).mT


def start_at(K):
    belief = torch.eye(K, dtype=torch.float64)[0]
    return belief, coefficients(belief, K)[None]


def enumerated(tokens, K):
    """The belief after the last token, over all histories of gates and states."""
    pi, shown, background, rho = a_cycle(K)
    weights = torch.zeros(K, dtype=torch.float64)
    for path in product([None, *range(K)], repeat=len(tokens)):  # None holds, a number is drawn
        s, weight = 0, torch.ones((), dtype=torch.float64)
        for drawn, x in zip(path, tokens, strict=True):
            if drawn is None:
                s, weight = (s + 1) % K, weight * (1 - rho) * background[x]
            else:
                s, weight = drawn, weight * rho * pi[drawn] * shown[drawn, x]
        weights[s] += weight
    return weights / weights.sum()


@pytest.mark.parametrize("K", [2, 3, 4])
def test_angles_of_a_cycle_make_it_the_exact_filter_of_redraw_or_advance(K):
    tokens = torch.tensor([1, 3, 3, 0])
    out, _ = filter_of(K)(sh.one_hot(tokens, 4), start_at(K)[1])
    for t in range(1, 5):
        assert_close(out[t - 1], coefficients(enumerated(tokens[:t], K), K), rtol=0, atol=1e-12)


@pytest.mark.parametrize("K", [3, 6])
def test_over_a_long_series_it_is_the_filter_of_a_markov_model_of_states_and_gates(K):
    pi, shown, background, rho = a_cycle(K)
    belief, start = start_at(K)
    to = torch.cat([(1 - rho) * torch.eye(K, dtype=torch.float64).roll(1, 1), rho * pi.expand(K, K)], 1)
    model = sh.SwitchingSSM(sh.Markov(2 * K), sh.Categorical(4)).with_values(  # held states first, then drawn ones
        initial_probs=belief @ to,
        transition_probs=to.repeat(2, 1),
        probs=torch.cat([background.expand(K, -1), shown]),
    )
    x = model.simulate(300, seed=0).x
    exact = model.filter(x).state.unflatten(-1, (2, K)).sum(-2)
    out, _ = filter_of(K)(sh.one_hot(x[:, 0].long(), 4), start)
    assert_close(out, coefficients(exact, K), rtol=0, atol=1e-12)


def sign_changes(signal):
    return int((signal[1:].sign() * signal[:-1].sign() < 0).sum())


def silent(layer, start, steps=200):
    """States [T, D] on an input that says nothing, with the gates and candidates of the biases."""
    return layer(torch.zeros(steps, 1, dtype=torch.float64), start[None])[0]


def test_on_a_silent_input_a_readout_of_d_units_changes_sign_d_times_at_most_and_that_of_a_rotation_for_ever():
    layer = sh.MinGRU(1, 3, dtype=torch.float64).requires_grad_(False)
    layer.bias_l0.copy_(torch.tensor([-4.0, -2, 0, 0, 0, 0]))
    states = silent(layer, torch.ones(3, dtype=torch.float64))
    features = torch.cat([states, torch.ones_like(states[:, :1])], 1)
    signs = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64)
    readout = torch.linalg.solve(features[[0, 5, 30, 199]], signs)  # as many changes as a readout can have
    assert sign_changes(features @ readout) == 3
    layer = sh.RotatingGRU(1, 2, dtype=torch.float64).requires_grad_(False)
    layer.bias_l0.copy_(torch.tensor([-8.0, 0, 0]))
    layer.angle_l0.fill_(2 * math.pi / 3)
    assert sign_changes(silent(layer, torch.tensor([1.0, 0.5], dtype=torch.float64))[:, 0]) > 100


def test_units_come_in_pairs():
    with pytest.raises(ValueError, match="hidden_size: got 3, expected an even number"):
        sh.RotatingGRU(2, 3)
