"""Gaussian paths by the kernels for GPUs: moments, derivatives and draws are those of the plain form."""

from functools import partial

import pytest
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.chains.gaussian_paths import op, plain
from samplehold.inference.families import GaussianPaths, GaussianTables
from samplehold.inference.numerics.cholesky import NotDefiniteError
from torch import Tensor
from torch.testing import assert_close

from .test_gaussian_paths import tables as gaussian_tables

pytestmark = pytest.mark.hardware("Triton interprets or compiles")


tables = partial(gaussian_tables, 0, apart=1e3)


def close(found: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    assert_close(found, expected, rtol=rtol, atol=rtol * float(expected.abs().amax()) if expected.numel() else 0.0)


@pytest.mark.parametrize(
    ("states", "lengths"), [(1, [1]), (2, [4, 1, 3]), slow(3, [3, 2]), slow(5, [2])], ids=["1", "2", "3", "5"]
)
def test_moments_and_draws_are_those_of_the_plain_form(states, lengths):
    eta, lengths = tables(len(lengths), max(lengths), states), torch.tensor(lengths)
    noise = torch.randn(3, *eta.linear.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with gpu_kernels():
        found, drawn = op.moments(*eta, lengths), op.sample(*eta, lengths, noise)
    for ours, theirs in zip(found, plain.moments(*eta, lengths), strict=True):
        for own, twin in zip(ours.flatten(), theirs.flatten(), strict=True):  # each number to its own scale
            close(own, twin)
    for ours, theirs in zip(drawn, plain.sample(*eta, lengths, noise), strict=True):
        close(ours, theirs)


@pytest.mark.slow
def test_the_gradient_of_the_normalizer_is_the_moments():
    eta = [x.requires_grad_() for x in tables(2, 3, 2)]
    with gpu_kernels():
        grads = torch.autograd.grad(GaussianPaths().log_normalizer(GaussianTables(*eta)).sum(), eta)
    expected = plain.moments(*eta, torch.tensor([3, 3]))[1:4]
    for ours, theirs in zip(grads, expected, strict=True):
        close(ours, theirs)


@pytest.mark.slow
def test_float32_is_computed_in_float64():
    narrow = tables(1, 3, 2, torch.float32)
    wide = [x.double() for x in narrow]
    with gpu_kernels():
        found = op.moments(*narrow, torch.tensor([3]))
    for ours, theirs in zip(found[:-1], plain.moments(*wide, torch.tensor([3])), strict=False):
        assert ours.dtype == torch.float32
        assert_close(ours, theirs.float(), rtol=1e-6, atol=0.0)


@pytest.mark.slow
def test_a_precision_that_is_none_is_told_by_its_step():
    eta = tables(2, 3, 2)
    square = eta.square.clone()
    square[1, 2] = torch.eye(2)
    with gpu_kernels(), pytest.raises(NotDefiniteError, match=r"up to step 2 of sequence \[1\]"):
        GaussianPaths().log_normalizer(eta._replace(square=square))


def test_nothing_comes_of_no_sequences():
    eta, none = tables(0, 3, 2), torch.zeros(0, dtype=torch.int64)
    with gpu_kernels():
        assert [tuple(x.shape) for x in op.moments(*eta, none)] == [(0,), (0, 3, 2), (0, 3, 2, 2), (0, 2, 2, 2), (0,)]
        assert op.sample(*eta, none, torch.zeros(4, 0, 3, 2, dtype=torch.float64))[0].shape == (4, 0, 3, 2)


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        op.moments(*tables(1, 2, 2, torch.float32), torch.tensor([2]))
        eta = tables(1, 2, 2)
        op.sample(*eta, torch.tensor([2]), eta.linear[None])
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] == 0, kernel
