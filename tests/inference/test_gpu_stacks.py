"""Steps of stacks by the kernels for GPUs: values and derivatives are those of plain torch."""

import pytest
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from oracles.placement import close
from samplehold.inference.stacks.stratification.op import step as stratification
from samplehold.inference.stacks.superposition.op import step as superposition
from torch import Tensor

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def results_and_gradients(function, given: list[Tensor], *others) -> list[Tensor]:
    results = function(*given, *others)
    total = sum((torch.linspace(-1, 1, x.numel(), dtype=x.dtype) * x.flatten()).sum() for x in results)
    return [*results, *torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True)]


def agree(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype = torch.float64) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        close(ours, theirs, dtype, rtol=1e-12, atol=1e-13)


def doubled(given: list[Tensor]) -> list[Tensor]:
    """The same numbers in float64, with gradients of their own."""
    return [x.detach().double().requires_grad_() for x in given]


@pytest.mark.parametrize(
    ("stacks", "cells", "width", "depth", "n_read", "pops"),
    [
        (3, 2, 2, 3, 1, 1),
        (2, 0, 3, 1, 2, 1),
        slow(1, 3, 1, 3, 5, 3),
        slow(2, 4, 1, 2, 1, 2),
        slow(1, 90, 3, 91, 1, 1),
    ],
)
def test_superposition_equals_plain_torch(stacks, cells, width, depth, n_read, pops, dtype):
    given = [normal(stacks, 2 + pops + width, dtype=dtype), normal(stacks, cells, width, dtype=dtype)]
    with gpu_kernels():
        found = results_and_gradients(superposition, given, depth, n_read, -0.1)
    agree(found, results_and_gradients(superposition.plain, doubled(given), depth, n_read, -0.1), dtype)


def test_superposition_of_no_stacks():
    with gpu_kernels():
        new, reading = superposition(normal(0, 5), normal(0, 1, 2), 2, 1, 0.0)
    assert new.shape == (0, 2, 2)
    assert reading.shape == (0, 2)


@pytest.mark.parametrize(("stacks", "layers", "width"), [(3, 0, 2), (2, 1, 3), slow(2, 6, 1), slow(1, 40, 3)])
def test_stratification_equals_plain_torch(stacks, layers, width, dtype):
    raw, values = normal(stacks, 2 + width, dtype=dtype), normal(stacks, layers, width, dtype=dtype)
    strength = (
        normal(stacks, layers, dtype=dtype).detach().sigmoid() * (torch.arange(layers) % 3 > 0)
    ).requires_grad_()  # some gone
    given = [raw, strength, values]
    with gpu_kernels():
        found = results_and_gradients(stratification, given)
    agree(found, results_and_gradients(stratification.plain, doubled(given)), dtype)


@pytest.mark.slow
def test_second_derivatives_of_steps_are_those_of_plain_torch():
    for step, given, others in (
        (superposition, [normal(1, 5), normal(1, 1, 2)], (2, 1, 0.0)),
        (stratification, [normal(1, 4), normal(1, 2).detach().sigmoid().requires_grad_(), normal(1, 2, 2)], ()),
    ):
        found = []
        with gpu_kernels():
            for function in (step, step.plain):
                total = sum(x.square().sum() for x in function(*given, *others))
                gradients = torch.autograd.grad(total, given, create_graph=True)
                found.append(torch.autograd.grad(sum(x.square().sum() for x in gradients), given))
        agree(*found)


def test_a_stack_without_a_number_reads_none():
    with gpu_kernels():
        strength, _, reading = stratification(torch.full((1, 3), torch.nan), torch.ones(1, 2), torch.ones(1, 2, 1))
    assert strength[0, 2].isnan()
    assert reading.isnan().all()


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        for dtype in (torch.float32, torch.float64):
            table = lambda *shape, dtype=dtype: normal(*shape, dtype=dtype)
            results_and_gradients(superposition, [table(2, 5), table(2, 2, 2)], 3, 1, -0.1)
            results_and_gradients(stratification, [table(2, 4), table(2, 2), table(2, 2, 2)])
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] + kernel["stack"] < 32, kernel
