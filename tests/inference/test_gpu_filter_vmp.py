"""The step-by-step mean field filter by its kernel for GPUs: it equals numbers and loops."""

import pytest
import torch
from examples import slow
from oracles import naive_stepwise as naive
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.message_passing.stepwise import op, plain
from torch.testing import assert_close

from .test_filter_vmp_kernel import random_tables

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


def arguments(seed, states=3, impossible=False, wide=True, independent=False, given=False, dtype=torch.float64):
    tables = random_tables(seed, 4, 3, states, impossible, wide, dtype)
    gate = torch.rand(4, 3, generator=torch.Generator().manual_seed(seed)).to(dtype) if given else None
    return *tables, gate, torch.tensor([3, 1, 2, 3]), 2, independent


def check(given, twin=naive, rtol=1e-10, atol=1e-12):
    with gpu_kernels():
        *found, failed = op.filter(*given)
    *expected, failed_there = twin.filter(*given)
    assert torch.equal(failed, failed_there)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == given[0].dtype
        assert_close(ours[failed < 0], theirs[failed < 0], rtol=rtol, atol=atol)
    return failed


@pytest.mark.parametrize("independent", [False, True], ids=["mean_field", "conditional"])
@pytest.mark.parametrize("wide", [False, slow(True)])
@pytest.mark.parametrize("given", [False, True], ids=["inferred", "given"])
def test_the_kernel_equals_its_textbook_twin(independent, wide, given):
    check(arguments(1, 3, False, wide, independent, given))


@pytest.mark.slow
@pytest.mark.parametrize("independent", [False, True], ids=["mean_field", "conditional"])
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_impossible_events_and_certain_gates(seed, independent):
    check(arguments(seed, 2, True, bool(seed % 2), independent))


@pytest.mark.slow
def test_many_states_and_float32():
    check(arguments(5, 33))
    check(arguments(6, dtype=torch.float32), plain, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_numbers_are_found_where_they_stand_and_not_beyond_the_end(bad):
    given = arguments(7)
    given[0][0, 1, 0] = given[0][1, 2, 0] = given[1][3, 2, 1] = bad
    with gpu_kernels():
        assert op.filter(*given)[-1].tolist() == [1, -1, -1, 2]


@pytest.mark.slow
def test_weights_of_any_size_beside_ordinary_ones():
    given = arguments(8)
    given[0][0, :, 1], given[1][2, :, 0], given[0][3, 1, 0] = 2.0**955, -(2.0**955), -500.0
    check(given)


def test_no_sequences_give_empty_results():
    given = [table[:0] if isinstance(table, torch.Tensor) else table for table in arguments(1)]
    with gpu_kernels():
        assert [tuple(table.shape) for table in op.filter(*given)] == [(0, 3, 3), *[(0, 3)] * 3, (0,)]


@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu_without_spilling_more_than_a_few_registers():
    with gpu_kernels() as launches:
        op.filter(*arguments(1))
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] == 0, kernel
        assert kernel["stack"] <= 32, kernel  # of registers that are given up so that more programs run at once
