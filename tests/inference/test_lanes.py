"""Vectors inside kernels: their arithmetic, their edges, and the exponential."""

import numpy as np
import pytest
from samplehold.inference.numerics.compilation import exact_kernel, kernel
from samplehold.inference.numerics.elementary import exp
from samplehold.inference.numerics.lanes import (
    at_least,
    larger,
    largest,
    load,
    load_some,
    muladd,
    splat,
    spread,
    store,
    store_some,
    total,
    width,
)

DTYPES = [np.float32, np.float64]


def exponentials(x, y):
    for i in range(0, x.size, width(x)):
        store_some(y, i, exp(load_some(x, i, x.size - i, x.dtype.type(-1))), x.size - i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compile", [kernel, exact_kernel])
def test_exp_is_within_one_unit_in_the_last_place(compile, dtype):
    lowest = -708.0 if dtype is np.float64 else -87.0
    x = np.concatenate([np.linspace(lowest, 0, 50_001), -np.logspace(-20, 1, 50_000)]).astype(dtype)
    y = np.empty_like(x)
    compile(exponentials)(x, y)
    exact = np.exp(x.astype(np.longdouble))
    assert (np.abs(y - exact) <= np.spacing(exact.astype(dtype))).all()
    assert y[x == 0].tolist() == [1.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_of_the_extremes(dtype):
    x = np.array([-np.inf, -1e5, -750.0, np.nan, 0.0], dtype)
    y = np.empty_like(x)
    exact_kernel(exponentials)(x, y)
    np.testing.assert_array_equal(y, np.array([0, 0, 0, np.nan, 1], dtype))


def arithmetic(x, y, out):
    a, b = load(x, 1), load(y, 0)
    wide = width(x)
    store(out, 0, a + b)
    store(out, wide, a - b)
    store(out, 2 * wide, a * b)
    store(out, 3 * wide, muladd(a, b, splat(x.dtype.type(3))))
    store(out, 4 * wide, larger(a, b))
    store(out, 5 * wide, at_least(a, x.dtype.type(0.5)))
    store(out, 6 * wide, spread(x, 2))
    store_some(out, 7 * wide, load_some(x, 1, 3, x.dtype.type(-2)), wide - 1)
    out[8 * wide] = total(a)
    out[8 * wide + 1] = largest(b)
    return wide


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_do_what_arrays_do(dtype):
    wide = 64 // np.dtype(dtype).itemsize
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, wide + 1)).astype(dtype)
    out = np.full(9 * wide, 7, dtype)
    assert exact_kernel(arithmetic)(x, y, out) == wide
    a, b, rows = x[1:], y[:wide], out.reshape(9, wide)
    some = np.array([*a[:3], *[-2] * (wide - 4), 7], dtype)
    expected = [a + b, a - b, a * b, a * b + 3, np.maximum(a, b), np.where(a >= 0.5, a, 0), np.full(wide, x[2]), some]
    np.testing.assert_allclose(rows[:8], expected, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    np.testing.assert_allclose(rows[8, :2], [a.sum(), b.max()], rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    assert (rows[8, 2:] == 7).all()
