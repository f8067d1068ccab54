"""Cholesky factors: those of torch, with its derivatives, and of what rounding has made indefinite."""

import warnings

import pytest
import torch
from samplehold.inference.numerics.cholesky import SMALL, cholesky, log_det, rounding


def positive_definite(*shape, dtype=torch.float64):
    root = torch.randn(*shape, shape[-1], generator=torch.Generator().manual_seed(0), dtype=dtype)
    return root @ root.mT + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (3, 2), (2, 0, 2), (2, 4, 3), (SMALL, 2)])
def test_the_factors_are_those_of_torch_whatever_the_size(shape, dtype):
    matrix = positive_definite(*shape, dtype=dtype)
    found = cholesky(matrix)
    assert found.dtype == dtype
    assert torch.allclose(found, torch.linalg.cholesky(matrix), rtol=1e-5 if dtype == torch.float32 else 1e-12)
    assert torch.equal(found, found.tril())


def test_transposed_views_are_read_as_they_are_shown():
    matrix = positive_definite(2, 3, 4)
    assert torch.allclose(cholesky(matrix.mT), cholesky(matrix), rtol=1e-12)


def test_factors_can_be_differentiated_twice():
    matrix = positive_definite(2, 3).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda m: cholesky((m + m.mT) / 2), matrix)


@pytest.mark.parametrize("bad", [-1.0, 0.0, torch.nan])
@pytest.mark.parametrize("place", [0, 1])
def test_what_has_no_factor_is_named(bad, place):
    matrix = positive_definite(3, 2)
    matrix[1, place, place] = bad
    with pytest.raises(ValueError, match=r"matrix \[1\]: (up to row|holds)"):
        cholesky(matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("differentiated", [False, True])
def test_what_rounding_made_indefinite_has_the_factor_of_a_matrix_within_the_bound(dtype, differentiated):
    root = torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    scale = torch.tensor([1e-3, 1.0, 1e5], dtype=dtype)
    matrix = (root @ root.mT) * scale.unsqueeze(-1) * scale  # of rank 2
    assert bool(torch.linalg.cholesky_ex(matrix).info.any())
    chol = cholesky(matrix.requires_grad_(differentiated)).detach()
    again, diagonal = chol @ chol.mT, matrix.detach().diagonal(dim1=-2, dim2=-1)
    size = (diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)).sqrt()
    assert bool(((again - matrix.detach()).abs() <= 2 * rounding(matrix) * size).all())


def test_what_is_indefinite_beyond_rounding_is_refused():
    with pytest.raises(ValueError, match="up to row 1 of 2, it is not positive definite"):
        cholesky(torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-3]]))


def test_log_determinants_of_factors_and_quietly_of_what_is_none():
    """A search tries parameters of no density, and asks afterwards."""
    chol = cholesky(positive_definite(3, 2))
    assert torch.allclose(log_det(chol), torch.logdet(chol @ chol.mT), rtol=1e-12)
    chol[1, 0, 0], chol[2, 1, 1] = -1.0, 0.0
    with warnings.catch_warnings(action="error"):
        found = log_det(chol)
    assert found[1].isnan()
    assert found[2] == -torch.inf
