"""Factored copy chains by the kernels for GPUs: they equal the chain multiplied out."""

import math

import pytest
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.chains.factored_copy import op, plain
from torch.testing import assert_close

from .test_factored_copy_chain import tables

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


def check(given, **bounds: float) -> list[int]:
    """Both operators, where no observation is impossible, which they must find as `plain` does."""
    double = [table.double() if table.is_floating_point() else table for table in given]
    for name in ("filter", "posterior"):
        with gpu_kernels():
            *found, failed = getattr(op, name)(*given)
        *expected, failed_there = getattr(plain, name)(*double)
        assert torch.equal(failed, failed_there)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == given[3].dtype
            assert_close(ours[failed < 0].double(), theirs[failed < 0], **bounds)
    return failed.tolist()


@pytest.mark.parametrize(
    ("n", "steps", "states", "gates"), [(2, 1, 1, 1), slow(9, 2, 3, 1), slow(3, 5, 2, 5), slow(1, 3, 33, 3)]
)
def test_kernels_equal_the_chain_multiplied_out(n, steps, states, gates):
    check(tables(0, n, steps, states, gates), rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_tables_are_shared_by_the_sequences_that_they_broadcast_to():
    redraw, hold, state, likelihood, _ = tables(1, 3, 4, 2, 4)
    given = redraw[:, None], hold[:1, None, :1], state[0], likelihood[:2], torch.tensor([[4, 2], [3, 4], [1, 4]])
    check(given, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_far_apart_lose_no_more_than_their_rounding(dtype):
    given = [
        table.to(dtype) if table.is_floating_point() else table for table in tables(2, 8, 4, 3, 4, 1e5, ragged=False)
    ]
    rounding = 16 * torch.finfo(dtype).eps
    check(given, rtol=rounding, atol=1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.slow
def test_impossible_events_and_bad_numbers_are_found_where_they_stand():
    redraw, hold, state, likelihood, lengths = tables(3, 6, 4, 2, 4, ragged=False)
    state[0, 1] = redraw[1, 2] = hold[1, 0] = -math.inf
    likelihood[2, 1] = -math.inf
    likelihood[3, 3, 0], redraw[4, 2], hold[5, 1] = math.nan, math.inf, math.nan
    assert check((redraw, hold, state, likelihood, lengths), rtol=1e-10, atol=1e-13) == [-1, -1, 1, 3, 2, 1]
    redraw[:, 0], hold[:, 0], lengths[:] = math.nan, math.inf, 1  # the first step draws its state, and is the last
    assert check((redraw, hold, state, likelihood, lengths), rtol=1e-10, atol=1e-13) == [-1] * 6


@pytest.mark.slow
def test_gradients_are_those_of_the_plain_form():
    *factors, lengths = tables(4, 3, 4, 2, 1)
    leaves = [table.requires_grad_() for table in factors]
    with gpu_kernels():
        found = torch.autograd.grad(op.log_normalizer(*leaves, lengths)[0].cos().sum(), leaves)
    expected = torch.autograd.grad(plain.log_normalizer(*leaves, lengths)[0].cos().sum(), leaves)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu_without_spilling_more_than_a_few_registers():
    with gpu_kernels() as launches:
        op.filter(*(table.float() if table.is_floating_point() else table for table in tables(0, 1, 2, 8, 2)))
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] == 0, kernel
        assert kernel["stack"] <= 32, kernel  # of registers that are given up so that more programs run at once
