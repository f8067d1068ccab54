"""The fused gated recurrence and its exponentials against plain loops, in value and gradient."""

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.naive_gated_scan import gated_scan as naive
from oracles.placement import tolerances
from samplehold.inference.native.library import function, integers, pointer
from samplehold.inference.scans.gated.op import PARTS, activate, gated_scan
from samplehold.inference.scans.gated.plain import gated_scan as vectorized
from torch.testing import assert_close

KINDS = ("linear", "tanh", "positive", "simplex")


def tables(seed, B, T, D, gate, dtype=torch.float64, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    pre = scale * torch.randn(B, T, PARTS[gate] * D, generator=random, dtype=torch.float64)
    h0 = torch.randn(B, D, generator=random, dtype=torch.float64)
    weight = torch.randn(B, T, D, generator=random, dtype=torch.float64)
    return pre.to(dtype).requires_grad_(), h0.to(dtype).requires_grad_(), weight.to(dtype)


def evaluate(function, pre, h0, weight, *options):
    h = function(pre, h0, *options)
    return h, *torch.autograd.grad((h * weight).sum(), (pre, h0))


@pytest.mark.few(8)
@pytest.mark.parametrize("gate", PARTS)
@pytest.mark.parametrize("candidate", KINDS)
@examples(4)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 12),
    blocks=st.integers(1, 5),
    block=st.integers(1, 9),
    scale=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 2**20),
)
def test_fused_vectorized_and_loop_agree_in_value_and_gradient(
    gate, candidate, B, T, blocks, block, scale, seed, dtype
):
    D = blocks * block
    pre, h0, weight = tables(seed, B, T, D, gate, dtype, scale)
    given_block = block if candidate == "simplex" else None
    expected = evaluate(naive, pre, h0, weight, gate, candidate, block)
    size = max(1.0, *(piece.abs().max().item() for piece in expected))
    for got in (
        evaluate(gated_scan, pre, h0, weight, gate, candidate, given_block),
        evaluate(vectorized, pre, h0, weight, gate, candidate, block),
    ):
        for a, b in zip(got, expected, strict=True):
            assert_close(a, b, **tolerances(dtype, size))


@pytest.mark.parametrize(("B", "T", "D", "block"), [(1, 200, 1536, 96), (5, 40, 640, 640), (3, 2, 5000, 5000)])
@pytest.mark.parametrize("candidate", ["positive", "simplex"])
@pytest.mark.parametrize("gate", ["redraw", "ratio"])
def test_wide_layers_split_into_stretches_of_units(gate, candidate, B, T, D, block):
    pre, h0, weight = tables(0, B, T, D, gate)
    expected = evaluate(naive, pre, h0, weight, gate, candidate, block)
    got = evaluate(gated_scan, pre, h0, weight, gate, candidate, block if candidate == "simplex" else None)
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.few(8)
@pytest.mark.parametrize("gate", PARTS)
@pytest.mark.parametrize("candidate", KINDS)
def test_float32_follows_float64_over_a_long_series(gate, candidate):
    block = 4 if candidate == "simplex" else None
    single = tables(1, 2, 5000, 8, gate, torch.float32)
    double = [table.detach().double().requires_grad_() for table in single]
    got = evaluate(gated_scan, *single, gate, candidate, block)
    for a, b in zip(got, evaluate(gated_scan, *double, gate, candidate, block), strict=True):
        assert a.dtype == torch.float32
        assert_close(a.double(), b, rtol=2e-6, atol=2e-6 * b.abs().max().item())


@pytest.mark.parametrize("gate", PARTS)
def test_a_gated_scan_can_be_differentiated_twice(gate):
    pre, h0, _ = tables(2, 2, 3, 2, gate)
    options = {"gate": gate, "candidate": "tanh"}
    assert torch.autograd.gradcheck(lambda p, h: gated_scan(p, h, **options), (pre, h0), atol=1e-7)
    assert torch.autograd.gradgradcheck(lambda p, h: gated_scan(p, h, **options), (pre, h0), atol=1e-7)


def test_strided_and_empty_tables():
    pre, h0, weight = tables(4, 3, 5, 4, "redraw")
    expected = gated_scan(pre, h0)
    turned = pre.detach().transpose(0, 1).contiguous().transpose(0, 1)
    assert_close(gated_scan(turned, h0.detach().T.contiguous().T), expected.detach(), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad((gated_scan(pre, h0) * weight[..., :1].expand_as(weight)).sum(), pre)
    assert gradient.isfinite().all()
    empty = gated_scan(pre[:, :0], h0)
    assert empty.shape == (3, 0, 4)
    pieces = torch.autograd.grad(empty.sum(), (pre, h0))
    assert all((piece == 0).all() for piece in pieces)
    assert gated_scan(pre[0], h0[0]).shape == (5, 4)
    assert_close(gated_scan(pre, h0[0]), gated_scan(pre, h0[:1].expand(3, 4)), rtol=0, atol=0)


def test_a_nan_stays_in_its_unit_and_its_future():
    pre, h0, _ = (table.detach() for table in tables(5, 1, 6, 3, "redraw"))
    pre[0, 2, 1] = float("nan")
    h = gated_scan(pre, h0)
    expected = torch.zeros(6, 3, dtype=torch.bool)
    expected[2:, 1] = True
    assert (h[0].isnan() == expected).all()


def test_gates_of_one_step_are_accurate_near_zero():
    pre = torch.tensor([[40.0, 1.0], [-40.0, 1.0]], dtype=torch.float64)
    step = activate(pre, 1)
    tiny = torch.tensor(-40.0, dtype=torch.float64).exp()
    assert_close(step.hold[0, 0], tiny, rtol=1e-15, atol=0)
    assert_close(step.draw[1, 0], tiny, rtol=1e-15, atol=0)


def test_wrong_tables_are_refused_with_the_cure():
    pre, h0 = torch.zeros(2, 3, 8), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="gate: got 'reset', expected one of 'redraw', 'hold', 'ratio', 'free'"):
        gated_scan(pre, h0, "reset")
    with pytest.raises(ValueError, match=r"pre: got 8 columns, but gate='ratio' over 4 units needs 3 \* 4"):
        gated_scan(pre, h0, "ratio")
    with pytest.raises(ValueError, match="block: got 3, but there are 4 units"):
        gated_scan(pre, h0, "redraw", "simplex", 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elementary_functions_are_accurate_to_three_units_in_the_last_place(dtype):
    def found(x: np.ndarray) -> np.ndarray:
        table = torch.from_numpy(x)
        out = torch.empty(5, len(x), dtype=dtype, device="cpu")
        function("elementary", dtype)(integers(len(x)), pointer(table), pointer(out))
        return out.numpy()

    lowest = 80 if dtype == torch.float32 else 700
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-lowest, lowest, 20_000), 10 ** random.uniform(-20, 1, 20_000), [0.0]])
    x = np.concatenate([x, -x]).astype(np.float32 if dtype == torch.float32 else np.float64)
    exact = x.astype(np.longdouble)
    grown = np.exp(-np.abs(exact))
    up = np.where(exact >= 0, 1, grown) / (1 + grown)
    with np.errstate(divide="ignore"):
        expected = [grown, up, np.where(exact >= 0, grown, 1) / (1 + grown), np.tanh(exact), np.log(np.abs(exact))]
    for got, wanted in zip(found(x), expected, strict=True):
        some = np.isfinite(wanted)
        units = np.abs(got[some] - wanted[some]) / np.spacing(np.abs(wanted[some]).astype(x.dtype))
        assert units.max() < 3
        np.testing.assert_array_equal(got[~some], wanted[~some].astype(x.dtype))
    edges = np.array([-np.inf, np.inf, np.nan, -1e6, 1e6], x.dtype)
    at_edges = [[0, 0, np.nan, 0, 0], [0, 1, np.nan, 0, 1], [1, 0, np.nan, 1, 0], [-1, 1, np.nan, -1, 1]]
    np.testing.assert_array_equal(found(edges)[:4], at_edges)
    np.testing.assert_array_equal(found(edges)[4, :3], [np.inf, np.inf, np.nan])
