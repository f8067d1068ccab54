"""Gated recurrences by the kernels for GPUs: values and derivatives are those of a loop, however time is cut."""

import pytest
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from oracles.naive_gated_scan import gated_scan as naive
from samplehold.inference.scans.gated.op import PARTS, scan
from torch import Tensor
from torch.testing import assert_close

from .test_gated_scan import KINDS, evaluate, tables

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


def agree(found: list[Tensor], expected: list[Tensor], bound: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(
            ours.double(), theirs.double(), rtol=bound, atol=bound * max(1.0, float(theirs.detach().abs().amax()))
        )


@pytest.mark.parametrize("gate", PARTS)
@pytest.mark.parametrize("candidate", [KINDS[0], *map(slow, KINDS[1:])])
def test_kernels_equal_a_loop(gate, candidate):
    given = tables(1, 1, 6, 3, gate, scale=30.0 if candidate == "simplex" else 1.0)  # in chunks
    with gpu_kernels():
        found = evaluate(scan, *given, gate, candidate, 3)
    agree(found, evaluate(naive, *given, gate, candidate, 3), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "candidate", "shape"), [("free", "tanh", (2, 1, 5)), ("hold", "simplex", (2, 3, 66))])
def test_time_is_left_whole_and_sequences_share_programs(gate, candidate, shape):
    given = tables(1, *shape, gate, scale=30.0)
    with gpu_kernels():
        found = evaluate(scan, *given, gate, candidate, shape[2] // 2 or 1)
    agree(found, evaluate(naive, *given, gate, candidate, shape[2] // 2 or 1), 1e-12)


def test_nothing_comes_of_no_steps():
    given = tables(1, 2, 0, 3, "hold")
    with gpu_kernels():
        h, *gradients = evaluate(scan, *given, "hold", "tanh", 3)
    assert h.shape == (2, 0, 3)
    assert all(not bool(gradient.any()) for gradient in gradients)


@pytest.mark.slow
def test_half_precision_is_carried_in_single_and_rounded_once():
    given = [table.detach().requires_grad_() for table in tables(1, 1, 6, 3, "ratio", torch.bfloat16)]
    with gpu_kernels():
        found = evaluate(scan, *given, "ratio", "positive", 3)
    expected = evaluate(naive, *(table.detach().float().requires_grad_() for table in given), "ratio", "positive", 3)
    assert all(x.dtype == torch.bfloat16 for x in found)
    agree(found[:1], expected[:1], 2**-8)  # the interpreter cuts digits off where a GPU rounds
    agree(found[1:], expected[1:], 2**-7)


@pytest.mark.slow
def test_of_two_gates_one_may_be_shut_for_certain_and_not_both():
    inf, nan = torch.inf, torch.nan
    pre = torch.tensor([[-inf, 0.3, 1.0], [0.3, -inf, 1.0], [inf, 0.0, 1.0], [-inf, -inf, 1.0], [nan, 0.0, 1.0]])
    given = pre.unsqueeze(1), torch.full((5, 1), 2.0), "ratio", "linear", 1
    with gpu_kernels():
        found = scan(*given)
    assert_close(found, scan.plain(*given), equal_nan=True)


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        for dtype, gate, candidate in (
            (torch.float32, "redraw", "positive"),
            (torch.float64, "ratio", "tanh"),
            (torch.bfloat16, "free", "simplex"),
        ):
            evaluate(scan, *tables(1, 1, 6, 4, gate, dtype), gate, candidate, 4)
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] + kernel["stack"] < 32, kernel
