"""Gaussian paths by natural parameters: the kernel, the plain form and one dense normal distribution agree."""

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_gaussian_paths as naive
from oracles.placement import close
from samplehold.inference.chains.gaussian_paths import op, plain
from samplehold.inference.families import GaussianPaths, GaussianTables
from samplehold.inference.numerics.cholesky import NotDefiniteError
from torch import Tensor


def tables(
    seed: int, n: int, n_steps: int, n_states: int, dtype: torch.dtype = torch.float64, apart: float = 1.0
) -> GaussianTables:
    """Of proper paths, whose scales lie `apart` a state: residuals of each step and its predecessor, squared."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    scale = apart ** torch.arange(n_states, dtype=torch.float64)
    into = (0.3 * draw(n_steps, n_states, n_states) + 2 * torch.eye(n_states)) * scale
    out = 0.5 * draw(n_steps, n_states, n_states) * scale
    square = -(into.mT @ into) / 2
    square[:, :-1] -= out[:, 1:].mT @ out[:, 1:] / 2
    linear = draw(n_steps, n_states) * scale
    return GaussianTables(linear.to(dtype), square.to(dtype), (into[:, 1:].mT @ out[:, 1:]).to(dtype))


@examples(40)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_moments_and_normalizer_are_those_of_the_dense_normal(
    dtype: torch.dtype, seed: int, lengths: list[int], n_states: int
) -> None:
    eta = tables(seed, len(lengths), max(lengths), n_states, dtype)
    found, moments = GaussianPaths(torch.tensor(lengths)).evaluate(eta)
    eta = GaussianTables(*(table.double() for table in eta))
    by_torch = plain.moments(*eta, torch.tensor(lengths))
    size = max(1.0, *(float(table.abs().max()) for table in by_torch[:3]))
    for kernel, twin in zip((found, *moments), by_torch, strict=False):
        close(kernel, twin, dtype, size, rtol=1e-10, atol=1e-10)
    for b, n in enumerate(lengths):
        dense = naive.posterior(eta.linear[b, :n], eta.square[b, :n], eta.cross[b, : n - 1])
        close(found[b], dense.log_normalizer, dtype, size, rtol=1e-10, atol=1e-10)
        close(moments.linear[b, :n], dense.mean, dtype, size, rtol=1e-10, atol=1e-10)
        whole = dense.covariance + dense.mean[:, :, None, None] * dense.mean
        for t in range(n):
            close(moments.square[b, t], whole[t, :, t], dtype, size, rtol=1e-10, atol=1e-10)
            if t:
                close(moments.cross[b, t - 1], whole[t, :, t - 1], dtype, size, rtol=1e-10, atol=1e-10)
        for table in moments:
            beyond = table[b, n - 1 :] if table is moments.cross else table[b, n:]
            assert not beyond.any()


def test_gradients_of_the_normalizer() -> None:
    eta = tables(0, 2, 4, 2)
    family, leaves = GaussianPaths(torch.tensor([4, 3])), [x.requires_grad_() for x in eta]
    value = lambda *parts: family.log_normalizer(GaussianTables(*parts))
    assert torch.autograd.gradcheck(value, leaves)
    assert torch.autograd.gradgradcheck(value, leaves)


def test_draws_are_the_plain_ones_and_have_the_moments() -> None:
    eta, lengths = tables(1, 3, 5, 2), torch.tensor([5, 1, 3])
    noise = torch.randn(4, 3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel, _ = op.sample(*eta, lengths, noise)
    torch.testing.assert_close(kernel, plain.sample(*eta, lengths, noise)[0], rtol=1e-10, atol=1e-10)
    family = GaussianPaths(lengths)
    n = 40_000
    draws = family.sample(eta, n, torch.Generator().manual_seed(0))
    used, mean = family.statistics(draws), family.mean(eta)
    for drawn, expected in zip(used, mean, strict=True):
        error = drawn.std(0) / n**0.5
        assert bool(((drawn.mean(0) - expected).abs() <= 6 * error + 1e-12).all())


def test_float32_is_that_of_float64_rounded() -> None:
    eta = tables(2, 3, 50, 3)
    narrow = GaussianTables(*(x.float() for x in eta))
    wide = GaussianTables(*(x.double() for x in narrow))
    for a, b in zip(GaussianPaths().mean(narrow), GaussianPaths().mean(wide), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b.float(), rtol=1e-6, atol=1e-6)


def test_batch_axes_and_a_base_that_broadcasts() -> None:
    eta = tables(3, 6, 4, 2)
    rows = GaussianTables(*(x.reshape(2, 3, *x.shape[1:]) for x in eta))
    base = tables(4, 1, 4, 2)
    found, moments = GaussianPaths(base=base).evaluate(rows)
    summed = GaussianTables(*(a + b for a, b in zip(rows, base, strict=True)))
    expected, plain_moments = GaussianPaths().evaluate(summed)
    assert found.shape == (2, 3)
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(moments, plain_moments, strict=True))


@pytest.mark.parametrize("step", [0, 2])
def test_a_precision_that_is_none_is_told_by_its_step(step: int) -> None:
    eta = tables(5, 2, 4, 2)
    square: Tensor = eta.square.clone()
    square[1, step] = torch.eye(2)
    with pytest.raises(NotDefiniteError, match=rf"up to step {step} of sequence \[1\]"):
        GaussianPaths().log_normalizer(eta._replace(square=square))
    assert plain.moments(*eta._replace(square=square), torch.tensor([4, 4]))[-1].tolist() == [-1, step]


def test_checks_of_shapes_and_numbers() -> None:
    eta = tables(6, 2, 4, 2)
    with pytest.raises(ValueError, match="cross: got shape"):
        GaussianPaths().check(eta._replace(cross=eta.square))
    with pytest.raises(ValueError, match="linear: got a number that is not finite"):
        GaussianPaths().check(eta._replace(linear=eta.linear * torch.inf))


def test_one_step() -> None:
    eta = GaussianTables(
        torch.tensor([[2.0]]).double(), -torch.ones(1, 1, 1).double() / 2, torch.zeros(0, 1, 1).double()
    )
    total, moments = GaussianPaths().evaluate(eta)
    assert moments.linear.item() == pytest.approx(2.0)
    assert moments.square.item() == pytest.approx(5.0)
    assert total.item() == pytest.approx(2.0 + 0.9189385332046727)
