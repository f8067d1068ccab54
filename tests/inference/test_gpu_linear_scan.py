"""Linear recurrences by the kernels for GPUs: values and derivatives are those of a loop, however time is cut."""

import pytest
import torch
from examples import slow
from oracles import naive_linear_scan as naive
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.scans.linear.op import scan
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.hardware("Triton interprets or compiles")

each_kind = pytest.mark.parametrize("lerp", [False, True], ids=["linear", "lerp"])


def tables(sequences: int, steps: int, width: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(steps)
    shapes = (sequences, steps, width), (sequences, steps, width), (sequences, width)
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    ]


def states_and_gradients(function, given: list[Tensor], lerp: bool) -> list[Tensor]:
    h = function(*given, lerp)
    weight = torch.linspace(-1, 1, h.numel(), dtype=h.dtype).view(h.shape)
    return [h, *torch.autograd.grad((weight * h).sum(), given)]


@each_kind
@pytest.mark.parametrize("shape", [(2, 1, 1), slow((3, 5, 130)), (1, 6, 2), slow((1, 26, 3))])
def test_kernels_equal_a_loop(lerp, shape):
    given = tables(*shape)
    with gpu_kernels():
        found = states_and_gradients(scan, given, lerp)
    for ours, theirs in zip(found, states_and_gradients(naive.scan, given, lerp), strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * max(1.0, float(theirs.detach().abs().amax())))


def test_nothing_comes_of_no_steps():
    given = tables(2, 0, 3)
    with gpu_kernels():
        h, *gradients = states_and_gradients(scan, given, True)
    assert h.shape == (2, 0, 3)
    assert all(not bool(gradient.any()) for gradient in gradients)


@pytest.mark.slow
def test_a_gate_of_one_takes_and_a_gate_of_zero_keeps_without_rounding():
    value, h0 = torch.randn(1, 6, 5), torch.randn(1, 5)
    gate = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0])[None, :, None].expand(1, 6, 5)
    with gpu_kernels():
        h = scan(gate, value, h0, True)
    assert torch.equal(h, torch.stack([h0, *value[:, [1, 1, 1, 4, 5]].unbind(1)], 1))


@pytest.mark.slow
@each_kind
def test_half_precision_is_carried_in_single_and_rounded_once(lerp):
    given = tables(1, 7, 3, torch.bfloat16)
    with gpu_kernels():
        found = states_and_gradients(scan, given, lerp)
    expected = states_and_gradients(naive.scan, [table.detach().float().requires_grad_() for table in given], lerp)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert_close(ours.float(), theirs, rtol=2**-7, atol=2**-7 * float(theirs.detach().abs().amax()))


@pytest.mark.slow
def test_a_state_of_nothing_stays_so_however_large_the_factors():
    double = {"dtype": torch.float64}
    factors, nothing = torch.full((1, 12, 2), 1e200, **double), torch.zeros(1, 12, 2, **double)
    with gpu_kernels():
        h = scan(factors, nothing, torch.tensor([[0, 1e-300]], **double), False)
    assert torch.equal(h[..., 0], torch.zeros(1, 12, dtype=torch.float64))
    assert h[0, 3:, 1].isinf().all()


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        for dtype, lerp in ((torch.float32, False), (torch.float64, True), (torch.bfloat16, True)):
            states_and_gradients(scan, tables(1, 6, 3, dtype), lerp)
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] + kernel["stack"] < 32, kernel
