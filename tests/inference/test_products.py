"""Products of many rows: whichever library multiplies, values and derivatives are those of torch's own `linear`."""

import pytest
import torch
from samplehold.inference.numerics import products
from samplehold.inference.numerics.products import linear
from torch import nn
from torch.testing import assert_close

FAST = linear.serving(torch.zeros(1), torch.zeros(1, 1), None) is not None


@pytest.fixture(autouse=True)
def _whatever_the_size(monkeypatch):
    monkeypatch.setattr(products, "_MIN_WORK", 0)


def tables(shape, outputs, dtype=torch.float32, seed=0):
    random = torch.Generator().manual_seed(seed)
    draw = lambda *sizes: torch.randn(*sizes, generator=random).to(dtype).requires_grad_()
    return draw(*shape), draw(outputs, shape[-1]), draw(outputs)


def evaluate(function, given, weight):
    found = function(*given)
    return found, *torch.autograd.grad((found * weight.to(found.dtype)).sum(), [x for x in given if x is not None])


@pytest.mark.parametrize("shape", [(64, 5), (3, 43, 7), (2, 3, 50, 1), (9000, 16), (1, 193, 33)])
@pytest.mark.parametrize("outputs", [1, 6, 40])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_double_precision(shape, outputs, biased):
    given = tables(shape, outputs)[: 2 + biased]
    double = [x.detach().double().requires_grad_() for x in given]
    weight = torch.randn(*shape[:-1], outputs, generator=torch.Generator().manual_seed(1))
    got = evaluate(linear, given if biased else (*given, None), weight)
    assert ("_Linear" in got[0].grad_fn.name()) == FAST
    for a, b in zip(got, evaluate(nn.functional.linear, double, weight), strict=True):
        assert a.dtype == torch.float32
        assert_close(a.double(), b, rtol=0, atol=4e-6 * b.abs().max().item())


def test_strided_rows_and_weights_and_an_expanded_gradient():
    wide, tall, bias = tables((70, 2, 12), 20)
    x, weight = wide.transpose(0, 1)[..., ::2], tall.T[:12:2].T
    assert_close(linear(x, weight, bias), nn.functional.linear(x, weight, bias), rtol=0, atol=1e-5)
    got = torch.autograd.grad(linear(x, weight, bias).sum(), (wide, tall, bias))
    expected = torch.autograd.grad(nn.functional.linear(x, weight, bias).sum(), (wide, tall, bias))
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b, rtol=0, atol=2e-5)


def test_a_gradient_that_nobody_asks_for_is_not_computed(monkeypatch):
    x, weight, bias = tables((128, 8), 4)
    products_made = []
    monkeypatch.setattr(products, "_multiply", lambda *given: products_made.append(given) or given[0] @ given[1].t())
    linear(x.detach(), weight, bias).sum().backward()
    assert len(products_made) == 2 * FAST  # that of the values and that of the weight's gradient


def derivatives(function, x, weight, bias):
    value = function(x, weight, bias).pow(3).sum()
    first = torch.autograd.grad(value, (x, weight, bias), create_graph=True)
    second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, weight, bias))
    rows = torch.eye(3).reshape(3, 3, 1)
    several = torch.autograd.grad(function(x, weight, bias)[:3, :1], (x, weight), rows, is_grads_batched=True)
    mapped = torch.func.vmap(lambda w: function(x, w, bias))(weight.expand(4, *weight.shape))
    return *first, *second, *several, mapped, torch.func.grad(lambda w: function(x, w, bias).sum())(weight)


def test_derivatives_of_any_order_and_several_at_once():
    given = tables((80, 3), 2)
    for a, b in zip(derivatives(linear, *given), derivatives(nn.functional.linear, *given), strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


@pytest.mark.skipif(not FAST, reason="what torch's own product does is its affair")
@pytest.mark.parametrize("features", [3, 24])
def test_values_and_gradients_do_not_depend_on_the_number_of_threads(features):
    given, found = tables((40_001, features), 2 * features), []
    weight, before = torch.randn(40_001, 2 * features), torch.get_num_threads()
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found.append(evaluate(linear, given, weight))
    torch.set_num_threads(before)
    for pieces in zip(*found, strict=True):
        assert all(torch.equal(piece, pieces[0]) for piece in pieces)


def test_other_dtypes_autocast_and_a_disabled_library_are_left_to_torch():
    double = tables((70, 4), 3, torch.float64)
    assert torch.equal(linear(*double), nn.functional.linear(*double))
    single = tables((70, 4), 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(*single).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(linear(*single), nn.functional.linear(*single))
    assert torch.equal(linear(single[0][0], *single[1:]), nn.functional.linear(single[0][0], *single[1:]))
    assert linear(torch.zeros(0, 4), single[1].detach(), None).shape == (0, 3)
