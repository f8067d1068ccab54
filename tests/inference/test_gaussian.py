"""Normal densities and moments: the fused kernels, plain torch and the textbook agree."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_gaussian as naive
from oracles.placement import close
from samplehold.inference.gaussian import op as gaussian
from samplehold.inference.gaussian import plain as vectorized
from torch.testing import assert_close


def calls(seed, n, k, f, restarts=(), dtype=torch.float64, missing=None):
    """The arguments of each function, of which those of diagonal forms may miss features."""
    generator = torch.Generator().manual_seed(seed)
    x, loc, weights, log_volume = (
        torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((n, f), (*restarts, k, f), (*restarts, n, k), (*restarts, k, f))
    )
    root = torch.randn(*restarts, k, f, f, generator=generator, dtype=dtype).tril(-1) * 0.3
    chol = root + torch.diag_embed(0.5 + torch.rand(*restarts, k, f, generator=generator, dtype=dtype))
    seen = x if missing is None else x.masked_fill(missing, torch.nan)
    return {
        "normal_log_density": (seen, loc, chol.diagonal(dim1=-2, dim2=-1) ** 2, log_volume),
        "normal_moments": (seen, weights.sigmoid(), loc),
        "multivariate_normal_log_density": (x, loc, chol, log_volume.sum(-1)),
        "multivariate_normal_moments": (x, weights.sigmoid(), loc),
    }


FUNCTIONS = [*calls(0, 1, 1, 1)]


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def test_all_implementations_equal_the_textbook(dtype, seed, n, k, f, share):
    missing = torch.rand(n, f, generator=torch.Generator().manual_seed(seed)) < share
    for name, arguments in calls(seed, n, k, f, dtype=dtype, missing=missing).items():
        expected = tuple(getattr(naive, name)(*(table.double() for table in arguments)))
        size, atol = max(1.0, max(float(table.abs().max()) for table in expected)), 1e-12
        for module in (gaussian, vectorized):
            for a, b in zip(tuple(getattr(module, name)(*arguments)), expected, strict=True):
                close(a, b, dtype, size, rtol=1e-10, atol=1e-10 if "density" in name else atol)


def test_what_is_not_said_of_the_volume_follows_from_the_precision():
    found = calls(0, 4, 2, 3)
    (x, loc, chol, _), (_, _, precision, _) = found["multivariate_normal_log_density"], found["normal_log_density"]
    full = torch.distributions.MultivariateNormal(loc, precision_matrix=chol @ chol.mT).log_prob(x.unsqueeze(-2))
    assert_close(gaussian.multivariate_normal_log_density(x, loc, chol), full, rtol=1e-10, atol=1e-10)
    diagonal = torch.distributions.Normal(loc, precision.rsqrt()).log_prob(x.unsqueeze(-2)).sum(-1)
    assert_close(gaussian.normal_log_density(x, loc, precision), diagonal, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("restarts", [(), (2,)])
@pytest.mark.parametrize("name", ["normal_log_density", "normal_moments"])
def test_derivatives_are_right_where_features_are_missing(name, restarts):
    x, *parameters = calls(0, 4, 2, 2, restarts, missing=torch.eye(4, 2) > 0)[name]
    parameters, function = [table.requires_grad_() for table in parameters], partial(getattr(gaussian, name), x)
    assert torch.autograd.gradcheck(function, parameters)
    assert torch.autograd.gradgradcheck(function, parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("restarts", [(), (3,), (2, 2)])
@pytest.mark.parametrize("n", [1, 255, 257, 1000])
def test_blocks_and_restarts_change_nothing(n, restarts, dtype):
    tolerance = {"rtol": 1e-5, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-10}
    for missing in (None, torch.arange(n).unsqueeze(-1) % 300 == 260):  # in the second block first
        for name, arguments in calls(0, n, 3, 2, restarts, dtype, missing).items():
            found, expected = getattr(gaussian, name)(*arguments), getattr(vectorized, name)(*arguments)
            assert_close(tuple(found), tuple(expected), **tolerance)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("restarts", [(), (2,)])
def test_first_and_second_derivatives_are_right(name, restarts):
    x, *parameters = [table.requires_grad_() for table in calls(0, 4, 2, 2, restarts)[name]]
    function = getattr(gaussian, name)
    for tables in ((x, *parameters), (x.detach(), *parameters)):
        assert torch.autograd.gradcheck(function, tables)
        assert torch.autograd.gradgradcheck(function, tables)


def test_data_far_from_zero_keep_their_digits():
    x = torch.tensor([[1e8], [1e8 + 1]], dtype=torch.float64)
    ones = torch.ones(2, 1, dtype=torch.float64)
    _, first, second = gaussian.multivariate_normal_moments(x, ones, torch.tensor([[1e8]], dtype=torch.float64))
    assert first.item() == 1.0
    assert second.item() == 1.0
