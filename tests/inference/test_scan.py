"""Linear recurrences against a plain loop: values, derivatives, shapes, extremes, threads."""

import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_linear_scan as naive
from oracles.placement import tolerances
from samplehold import lerp_scan, linear_scan
from samplehold.inference.scans.linear import plain
from samplehold.inference.scans.linear.op import scan
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

each_kind = pytest.mark.parametrize("lerp", [False, True], ids=["linear", "lerp"])


def loop(lerp: bool, first: list[float], second: list[float], h: float) -> list[float]:
    """One column of either recurrence, in Python's own numbers."""
    states = []
    for x, y in zip(first, second, strict=True):
        h = (1 - x) * h + x * y if lerp else x * h + y
        states.append(h)
    return states


def by_columns(lerp: bool, first: Tensor, second: Tensor, h0: Tensor) -> Tensor:
    expected = torch.empty_like(second)
    for n in range(second.shape[0]):
        for d in range(second.shape[2]):
            column = loop(lerp, first[n, :, d].tolist(), second[n, :, d].tolist(), float(h0[n, d]))
            expected[n, :, d] = torch.tensor(column, dtype=second.dtype)
    return expected


@st.composite
def arguments(draw, dtype=torch.float64, max_steps=40) -> tuple[Tensor, Tensor, Tensor]:
    n, steps, width = draw(st.integers(1, 3)), draw(st.integers(0, max_steps)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from((0.0, 0.5, 1.0, 1.2)))  # 0: all factors vanish; above 1: states grow
    first = scale * torch.randn(n, steps, width, generator=generator, dtype=torch.float64)
    first = first.where(torch.rand(first.shape, generator=generator) < 0.8, draw(st.sampled_from((0.0, 1.0, -1.0))))
    second, h0 = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((n, steps, width), (n, width)))
    return first.to(dtype), second.to(dtype), h0.to(dtype)


@each_kind
@given(tables=arguments())
def test_every_implementation_equals_a_plain_loop(lerp, tables, dtype):
    tables = [table.to(dtype) for table in tables]
    expected = by_columns(lerp, *tables)
    bound = tolerances(dtype, max(1.0, float(expected.abs().amax()) if expected.numel() else 0.0))
    for implementation in (naive.scan, plain.scan, scan):
        assert_close(implementation(*tables, lerp), expected, **bound)


@each_kind
@given(tables=arguments())
def test_the_implementations_have_equal_gradients(lerp, tables, dtype):
    leaves = [table.clone().to(dtype).requires_grad_() for table in tables]
    weight = torch.linspace(-1, 1, tables[1].numel(), dtype=dtype).view(tables[1].shape)
    found = []
    for implementation in (naive.scan, plain.scan, scan):
        h = implementation(*leaves, lerp)
        found.append(torch.autograd.grad((weight * h).sum(), leaves))
    for gradients in found[1:]:
        for ours, theirs in zip(gradients, found[0], strict=True):
            scale = max(1.0, float(theirs.abs().amax()) if theirs.numel() else 0.0)
            assert_close(ours, theirs, **tolerances(dtype, scale))


@pytest.mark.few(1)
@each_kind
@examples(5)
@given(arguments(max_steps=4))
def test_first_and_second_derivatives_are_right(lerp, tables):
    leaves = [table[..., :3].clone().requires_grad_() for table in tables]
    for implementation in (plain.scan, scan):
        assert gradcheck(implementation, (*leaves, lerp))
        assert gradgradcheck(implementation, (*leaves, lerp))


@pytest.mark.parametrize("scan", [linear_scan, lerp_scan])
@pytest.mark.parametrize("steps", [1, 100, 65_536])
def test_float32_errors_stay_near_rounding_over_long_sequences(scan, steps):
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(1, steps, 8, generator=generator)
    second, h0 = torch.randn(1, steps, 8, generator=generator), torch.randn(1, 8, generator=generator)
    exact = scan(first.double(), second.double(), h0.double())
    error = (scan(first, second, h0).double() - exact).abs().amax() / exact.abs().amax()
    assert float(error) < 1e-6


def test_a_gate_of_zero_keeps_and_a_gate_of_one_takes_without_rounding():
    value, h0 = torch.randn(1, 6, 5), torch.randn(1, 5)
    gate = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0])[None, :, None].expand(1, 6, 5)
    h = lerp_scan(gate, value, h0)
    expected = torch.stack([h0, value[:, 1], value[:, 1], value[:, 1], value[:, 4], value[:, 5]], 1)
    assert torch.equal(h, expected)


def test_a_long_product_underflows_to_zero_and_leaves_no_trace():
    a = torch.full((1, 10_000, 3), 1e-30)
    b = torch.zeros(1, 10_000, 3)
    b[:, 5_000] = 7.0
    h = linear_scan(a, b, torch.ones(1, 3))
    assert (h[:, 1_000:5_000] == 0).all()
    assert (h[:, 5_000] == 7).all()
    assert h.isfinite().all()


def test_factors_of_one_count():
    steps = 5_000
    for scan_of in (scan, plain.scan):
        h = scan_of(torch.ones(2, steps, 3), torch.ones(2, steps, 3), torch.zeros(2, 3), False)
        assert torch.equal(h, torch.arange(1.0, steps + 1)[None, :, None].expand(2, steps, 3))


def test_h0_is_zero_unless_given_and_batch_axes_broadcast():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(3, 1, 7, 2, generator=generator), torch.randn(4, 7, 2, generator=generator)
    h0 = torch.randn(2, generator=generator)
    assert_close(linear_scan(a, b), linear_scan(a, b, torch.zeros(3, 4, 2)), rtol=0, atol=0)
    h = linear_scan(a, b, h0)
    assert h.shape == (3, 4, 7, 2)
    for i in range(3):
        for j in range(4):
            assert_close(h[i, j], linear_scan(a[i, 0], b[j], h0), rtol=0, atol=0)
    start = h0.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linear_scan(a, b, start).sum(), start)
    assert gradient.shape == (2,)
    assert_close(gradient, a.cumprod(-2).sum((0, 1, 2)) * 4, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 3), (2, 2, 0, 5)])
def test_empty_axes_give_empty_results(shape):
    first, second = torch.ones(shape, requires_grad=True), torch.ones(shape, requires_grad=True)
    h = lerp_scan(first, second)
    assert h.shape == shape
    h.sum().backward()
    assert first.grad is not None
    assert first.grad.shape == shape


def test_the_layout_of_the_arguments_does_not_matter():
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(5, 6, 4, generator=generator).transpose(0, 1) for _ in range(2))
    assert_close(linear_scan(a, b), linear_scan(a.contiguous(), b.contiguous()), rtol=0, atol=0)
    leaf = a.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linear_scan(leaf, b).sum(), leaf)
    leaf = a.contiguous().requires_grad_()
    (expected,) = torch.autograd.grad(linear_scan(leaf, b).sum(), leaf)
    assert_close(gradient, expected, rtol=0, atol=0)


def test_arguments_are_not_changed():
    a, b, h0 = torch.randn(2, 5, 3), torch.randn(2, 5, 3), torch.randn(2, 3)
    copies = a.clone(), b.clone(), h0.clone()
    linear_scan(a, b, h0)
    lerp_scan(a, b, h0)
    assert all(torch.equal(x, y) for x, y in zip((a, b, h0), copies, strict=True))


def test_nan_stays_in_its_sequence_and_column():
    b = torch.ones(2, 4, 3)
    b[1, 2, 0] = math.nan
    h = linear_scan(torch.ones(2, 4, 3), b)
    assert h[1, 2:, 0].isnan().all()
    assert int(h.isnan().sum()) == 2


@pytest.mark.cpu("the messages name it")
def test_bad_arguments_are_named():
    a, b, h0 = torch.zeros(2, 4, 3), torch.zeros(2, 4, 3), torch.zeros(2, 3)
    for arguments_, message in (
        ((a[:, :3], b), r"a: got a \[2, 3, 3\], b \[2, 4, 3\]; expected both as \[\*batch, T, D\]"),
        ((a, b[0, 0]), r"a: got a \[2, 4, 3\], b \[3\]"),
        ((a, b, h0[:, :2]), r"h0: got shape \[2, 2\]; expected \[\*batch, 3\]"),
        ((a, b[[0, 1, 1]]), r"a, b: the batch axes a \[2\], b \[3\] do not broadcast"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_scan(*arguments_)
    with pytest.raises(ValueError, match=r"gate: got gate \[2, 4, 1\], value \[2, 4, 3\]"):
        lerp_scan(a[..., :1], b)
    with pytest.raises(TypeError, match=r"b: got torch.float64 on cpu, but a is torch.float32"):
        linear_scan(a, b.double())
    with pytest.raises(
        TypeError,
        match=r"a: got dtype torch.int64, expected torch.float32, .*torch.bfloat16 or torch.float16",
    ):
        linear_scan(a.long(), b)


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_carried_in_single_and_rounded_once(lerp, dtype):
    generator = torch.Generator().manual_seed(5)
    first = (torch.rand(2, 40, 3, generator=generator) * 0.1).to(dtype)
    first = first if lerp else 1 - first
    second, h0 = torch.randn(2, 40, 3, generator=generator).to(dtype), torch.randn(2, 3, generator=generator).to(dtype)
    weight = torch.randn(2, 40, 3, generator=generator).to(dtype)
    found = []
    for exact in (False, True):
        leaves = [(x.float() if exact else x).clone().requires_grad_() for x in (first, second, h0)]
        h = (lerp_scan if lerp else linear_scan)(*leaves)
        gradients = torch.autograd.grad(h, leaves, weight.to(h.dtype), create_graph=True)
        again = torch.autograd.grad(sum(x.float().square().sum() for x in gradients), leaves)  # by the formula
        found.append((h, *gradients, *again))
    unit = torch.finfo(dtype).eps
    assert_close(found[0][0], found[1][0].to(dtype), rtol=0, atol=0)
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == dtype
        assert_close(ours.float(), theirs, rtol=4 * unit, atol=4 * unit * float(theirs.detach().abs().amax()))
