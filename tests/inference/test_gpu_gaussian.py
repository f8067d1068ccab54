"""Normal densities and moments by the kernels for GPUs: the textbook's values, however steps are cut."""

from typing import Any

import pytest
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.gaussian import op, plain
from torch import Tensor
from torch.testing import assert_close

from .test_gaussian import calls

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


def tables(steps: int, *sizes: Any, **options: Any) -> dict[str, list[Tensor]]:
    """The arguments of each operator."""
    missing = torch.rand(steps, sizes[1], generator=torch.Generator().manual_seed(steps)) < 0.3
    return calls(steps, steps, *sizes, missing=missing, **options)


def results(given: dict[str, list[Tensor]]) -> list[Tensor]:
    outputs = [getattr(op, name)(*arguments) for name, arguments in given.items()]
    return [table for output in outputs for table in (output if isinstance(output, tuple) else (output,))]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, ()), (9, 2, 5, (2, 1)), *map(slow, [(70, 3, 2, (2,)), (5, 35, 1, ()), (700, 2, 3, ())])]
)
def test_kernels_equal_the_plain_form(shape):
    given = tables(*shape)
    with gpu_kernels():
        found = results(given)
    expected = [getattr(plain, name)(*arguments) for name, arguments in given.items()]
    expected = [table for output in expected for table in (output if isinstance(output, tuple) else (output,))]
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-11)


def test_steps_without_features_or_restarts_are_sums_of_nothing():
    with gpu_kernels() as launches:
        found = results(tables(0, 2, 3))
        none = results(tables(4, 2, 3, (0,)))
    assert not any(bool(table.any()) for table in found)
    assert [len(table) for table in none] == [0] * len(none)
    assert {launch.kernel for launch in launches} == {"_sums"}


@pytest.mark.slow
def test_gradients_are_those_of_the_plain_form():
    for name, arguments in tables(6, 2, 3, (2,)).items():
        leaves = [arguments[0], *(table.detach().clone().requires_grad_() for table in arguments[1:])]
        with gpu_kernels():
            found = getattr(op, name)(*leaves)
            found = found if isinstance(found, tuple) else (found,)
            gradients = torch.autograd.grad(sum(table.square().sum() for table in found), leaves[1:])
        expected = getattr(plain, name)(*leaves)
        expected = expected if isinstance(expected, tuple) else (expected,)
        theirs = torch.autograd.grad(sum(table.square().sum() for table in expected), leaves[1:])
        for one, other in zip(gradients, theirs, strict=True):
            assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_second_moments_are_symmetric_and_the_same_again():
    given = tables(200, 2, 3, dtype=torch.float32)["multivariate_normal_moments"]
    with gpu_kernels():
        (_, _, second), again = op.multivariate_normal_moments(*given), op.multivariate_normal_moments(*given)
    assert torch.equal(second, second.mT)
    assert torch.equal(second, again[2])
    assert_close(second, plain.multivariate_normal_moments(*given)[2], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        results(tables(3, 8, 4))
    for kernel in compile_for_gpu(launches):
        assert (kernel["local"], kernel["stack"]) == (0, 0), kernel
