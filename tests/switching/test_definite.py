"""Positive definite matrices in free coordinates: a bijection with the Jacobian that it says."""

import pytest
import torch
from samplehold.switching.definite import DefiniteTransform, definite
from torch.distributions import biject_to, constraints
from torch.testing import assert_close


@pytest.mark.parametrize("side", [1, 2, 4])
def test_it_is_a_bijection_whose_jacobian_is_that_of_autograd(side):
    transform, size = DefiniteTransform(), side * (side + 1) // 2
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(side), dtype=torch.float64)
    y = transform(x)
    assert y.shape == transform.forward_shape(x.shape)
    assert x.shape == transform.inverse_shape(y.shape)
    assert bool(definite.check(y).all())
    assert_close(transform.inv(y), x, rtol=1e-10, atol=1e-10)
    rows, columns = torch.tril_indices(side, side)
    for point, value, found in zip(x, y, transform.log_abs_det_jacobian(x, y), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda p: transform(p)[rows, columns], point)
        assert_close(found, torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-10, atol=1e-10)
        assert_close(value, value.mT, rtol=0, atol=1e-12)


def test_each_of_several_matrices_has_its_own_coordinates():
    transform = biject_to(constraints.independent(definite, 1))
    x = torch.randn(2, 3, dtype=torch.float64)
    assert transform(x).shape == (2, 2, 2)
    assert transform.log_abs_det_jacobian(x, transform(x)).shape == ()
