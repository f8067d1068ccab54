"""Vectors inside kernels: their arithmetic, their edges, and the exponential."""

import numpy as np
import pytest
from samplehold.inference.numerics.compilation import exact_kernel, kernel
from samplehold.inference.numerics.elementary import exp, sigmoids, tanh
from samplehold.inference.numerics.lanes import (
    at_least,
    by_sign,
    exponent,
    larger,
    largest,
    load,
    load_some,
    mantissa,
    muladd,
    smaller,
    splat,
    spread,
    store,
    store_some,
    total,
    transpose,
    width,
)

pytestmark = [pytest.mark.kernels, pytest.mark.cpu("numba's kernels")]

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


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_vectors_and_of_numbers_the_exponentials_are_the_same(dtype):
    def of_numbers(x, out):
        for i in range(x.size):
            out[i, 0], out[i, 1] = sigmoids(x[i])
            out[i, 2] = tanh(x[i])

    def of_vectors(x, out):
        for i in range(0, x.size, width(x)):
            some, n = load_some(x, i, x.size - i, x.dtype.type(0)), x.size - i
            up, down = sigmoids(some)
            store_some(out[0], i, up, n)
            store_some(out[1], i, down, n)
            store_some(out[2], i, tanh(some), n)

    x = np.concatenate([np.linspace(-50, 50, 1001), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e6, -1e6, 1e-20, -1e-20]])
    x = x.astype(dtype)
    numbers, vectors = np.full((x.size, 3), 7, dtype), np.full((3, x.size), 7, dtype)
    exact_kernel(of_numbers)(x, numbers)
    exact_kernel(of_vectors)(x, vectors)
    np.testing.assert_allclose(vectors, numbers.T, rtol=2 * np.finfo(dtype).eps, atol=0)


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
    store(out, 8 * wide, a / b)
    store(out, 9 * wide, smaller(a, b))
    store(out, 10 * wide, by_sign(a, b, b + b))
    out[11 * wide] = total(a)
    out[11 * wide + 1] = largest(b)
    return wide


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_do_what_arrays_do(dtype):
    wide = 64 // np.dtype(dtype).itemsize
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, wide + 1)).astype(dtype)
    out = np.full(12 * wide, 7, dtype)
    assert exact_kernel(arithmetic)(x, y, out) == wide
    a, b, rows = x[1:], y[:wide], out.reshape(12, wide)
    some = np.array([*a[:3], *[-2] * (wide - 4), 7], dtype)
    expected = [a + b, a - b, a * b, a * b + 3, np.maximum(a, b), np.where(a >= 0.5, a, 0), np.full(wide, x[2]), some]
    expected += [a / b, np.minimum(a, b), np.where(a >= 0, b, 2 * b)]
    np.testing.assert_allclose(rows[:11], expected, rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    np.testing.assert_allclose(rows[11, :2], [a.sum(), b.max()], rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    assert (rows[11, 2:] == 7).all()


def squares(x, out, parts):
    for i in range(0, x.size, width(x)):
        store(out, i, load(x, i))
        store(parts, i, mantissa(load(x, i)))
        store(parts, x.size + i, exponent(load(x, i)))
    transpose(out, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_are_transposed_and_numbers_taken_apart(dtype):
    wide = 64 // np.dtype(dtype).itemsize
    least, most = np.log2(np.finfo(dtype).tiny), np.log2(np.finfo(dtype).max)
    x = (
        np.random.default_rng(1).uniform(1, 2, (wide, wide))
        * 2.0 ** np.linspace(least, most - 1, wide**2).reshape(wide, wide).round()
    )
    x = x.astype(dtype)
    out, parts = np.empty(x.size, dtype), np.empty(2 * x.size, dtype)
    exact_kernel(squares)(x.ravel(), out, parts)
    np.testing.assert_array_equal(out.reshape(wide, wide), x.T)
    m, e = np.frexp(x.ravel())  # in [1/2, 1)
    np.testing.assert_array_equal(parts.reshape(2, -1), [2 * m, e - 1])
