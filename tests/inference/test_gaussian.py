"""Normal densities and moments: the fused kernels, plain torch and the textbook agree."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_gaussian as naive
from oracles.operators import without_kernels
from oracles.placement import close
from samplehold.inference.gaussian import op as gaussian
from samplehold.inference.gaussian import plain as vectorized
from torch.testing import assert_close


def problem(seed, n, k, f, restarts=(), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x, loc, weights, log_volume = (
        torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((n, f), (*restarts, k, f), (*restarts, n, k), (*restarts, k, f))
    )
    root = torch.randn(*restarts, k, f, f, generator=generator, dtype=dtype).tril(-1) * 0.3
    chol = root + torch.diag_embed(0.5 + torch.rand(*restarts, k, f, generator=generator, dtype=dtype))
    return x, loc, chol, log_volume, weights.sigmoid()


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_all_implementations_equal_the_textbook(dtype, seed, n, k, f):
    x, loc, chol, log_volume, weights = problem(seed, n, k, f, dtype=dtype)
    precision = chol.diagonal(dim1=-2, dim2=-1) ** 2
    given_ = {
        "multivariate_normal_log_density": (x, loc, chol, log_volume.sum(-1)),
        "normal_log_density": (x, loc, precision, log_volume),
        "normal_moments": (x, weights, loc),
        "multivariate_normal_moments": (x, weights, loc),
    }
    for name, arguments in given_.items():
        expected = tuple(getattr(naive, name)(*(table.double() for table in arguments)))
        size, atol = max(1.0, max(float(table.abs().max()) for table in expected)), 1e-12
        for module in (gaussian, vectorized):
            for a, b in zip(tuple(getattr(module, name)(*arguments)), expected, strict=True):
                close(a, b, dtype, size, rtol=1e-10, atol=1e-10 if "density" in name else atol)


def test_what_is_not_said_of_the_volume_follows_from_the_precision():
    x, loc, chol, _, _ = problem(0, 4, 2, 3)
    precision = chol.diagonal(dim1=-2, dim2=-1) ** 2
    full = torch.distributions.MultivariateNormal(loc, precision_matrix=chol @ chol.mT).log_prob(x.unsqueeze(-2))
    assert_close(gaussian.multivariate_normal_log_density(x, loc, chol), full, rtol=1e-10, atol=1e-10)
    diagonal = torch.distributions.Normal(loc, precision.rsqrt()).log_prob(x.unsqueeze(-2)).sum(-1)
    assert_close(gaussian.normal_log_density(x, loc, precision), diagonal, rtol=1e-10, atol=1e-10)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_missing_features_count_for_nothing_in_all_implementations(seed, n, k, f):
    x, loc, chol, log_volume, weights = problem(seed, n, k, f)
    x = x.masked_fill(torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.3, torch.nan)
    precision = chol.diagonal(dim1=-2, dim2=-1) ** 2
    for name, given_ in (
        ("normal_log_density", (x, loc, precision, log_volume)),
        ("normal_moments", (x, weights, loc)),
    ):
        expected = getattr(naive, name)(*given_)
        for module in (gaussian, vectorized):
            found = getattr(module, name)(*given_)
            assert_close(tuple(found), tuple(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("restarts", [(), (2,)])
@pytest.mark.parametrize("name", ["normal_log_density", "normal_moments"])
def test_derivatives_are_right_where_features_are_missing(name, restarts):
    x, *parameters = arguments_of(name, restarts)
    x = x.detach().masked_fill(torch.eye(4, 2) > 0, torch.nan)
    function = partial(getattr(gaussian, name), x)
    assert torch.autograd.gradcheck(function, parameters)
    assert torch.autograd.gradgradcheck(function, parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("restarts", [(), (3,), (2, 2)])
@pytest.mark.parametrize("n", [1, 255, 257, 1000])
def test_blocks_and_restarts_change_nothing(n, restarts, dtype):
    x, loc, chol, log_volume, weights = problem(0, n, 3, 2, restarts, dtype)
    holes = x.masked_fill(torch.arange(n).unsqueeze(-1) % 300 == 260, torch.nan)  # in the second block first
    precision = chol.diagonal(dim1=-2, dim2=-1) ** 2
    tolerance = {"rtol": 1e-5, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-10}
    for name, arguments in [
        ("multivariate_normal_log_density", (x, loc, chol, log_volume.sum(-1))),
        ("normal_log_density", (x, loc, precision, log_volume)),
        ("normal_moments", (x, weights, loc)),
        ("multivariate_normal_moments", (x, weights, loc)),
        ("normal_log_density", (holes, loc, precision, log_volume)),
        ("normal_moments", (holes, weights, loc)),
    ]:
        found, expected = getattr(gaussian, name)(*arguments), getattr(vectorized, name)(*arguments)
        assert_close(tuple(found), tuple(expected), **tolerance)


FUNCTIONS = ["multivariate_normal_log_density", "normal_log_density", "normal_moments", "multivariate_normal_moments"]


def arguments_of(name, restarts=()):
    x, loc, chol, log_volume, weights = problem(0, 4, 2, 2, restarts)
    spread = {
        "multivariate_normal_log_density": (chol, log_volume.sum(-1)),
        "normal_log_density": (chol.diagonal(dim1=-2, dim2=-1) ** 2, log_volume),
    }
    others = (loc, *spread[name]) if name in spread else (weights, loc)
    return [table.detach().clone().requires_grad_() for table in (x, *others)]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("restarts", [(), (2,)])
def test_first_and_second_derivatives_are_right(name, restarts):
    x, *parameters = arguments_of(name, restarts)
    function = getattr(gaussian, name)
    for tables in ((x, *parameters), (x.detach(), *parameters)):
        assert torch.autograd.gradcheck(function, tables)
        assert torch.autograd.gradgradcheck(function, tables)


@pytest.mark.slow
@pytest.mark.parametrize(
    "operator",
    [gaussian.full_density, gaussian.diagonal_density, gaussian.diagonal_moments, gaussian.full_moments],
    ids=FUNCTIONS,
)
@pytest.mark.cpu("torch's checks know few devices")
def test_the_operators_pass_torchs_own_checks(operator):
    for served in (operator, without_kernels(operator)):
        torch.library.opcheck(served.overload, arguments_of(operator.name, (2,)))


def test_data_far_from_zero_keep_their_digits():
    x = torch.tensor([[1e8], [1e8 + 1]], dtype=torch.float64)
    ones = torch.ones(2, 1, dtype=torch.float64)
    _, first, second = gaussian.multivariate_normal_moments(x, ones, torch.tensor([[1e8]], dtype=torch.float64))
    assert first.item() == 1.0
    assert second.item() == 1.0
