"""Small matrices inside numba kernels: triangular factors, products, and a test for steady recursions.

Functions write into their last arguments. They use loops instead of slices and `np.empty`, for which numba would
compile separate functions.
"""

import math

import numpy as np

from .compilation import inlined, lean_kernel
from .lanes import load_some, muladd, splat, store_some, total, width

NOTHING = 2.0**-1000  # a sum of squares that one cannot be divided by
SAME = 8.0 * float(np.finfo(np.float64).eps)  # of a row's norm: the limit for "no change"


@inlined
def _stride(table):
    """The numbers from a row to the next one; 0 if a row is not contiguous."""
    return table.strides[0] // table.itemsize if table.strides[1] == table.itemsize else 0


@inlined
def _dot(one, at, other, there, n):
    """The sum of products of n numbers of contiguous rows, from these places on.

    The compiler's vectors are for rows of several times their width; those of `lanes` serve rows that fill one.
    """
    if n < width(one):
        result = one.dtype.type(0)
        for j in range(n):
            result += one.flat[at + j] * other.flat[there + j]
        return result
    products = splat(one.dtype.type(0))
    for j in range(0, n, width(one)):
        products = muladd(load_some(one, at + j, n - j, 0.0), load_some(other, there + j, n - j, 0.0), products)
    return total(products)


@inlined
def _add_multiple(factor, table, at, out, there, n):
    """n numbers of a contiguous row += factor times those of another, from these places on."""
    if n < width(out):
        for j in range(n):
            out.flat[there + j] += factor * table.flat[at + j]
        return
    for j in range(0, n, width(out)):
        before = load_some(out, there + j, n - j, 0.0)
        store_some(out, there + j, muladd(splat(factor), load_some(table, at + j, n - j, 0.0), before), n - j)


@lean_kernel
def triangularize(table, n_pivots):
    """Rotate columns so that the first rows become a lower triangle without negative numbers on its diagonal.

    Rows beyond the pivots are rotated with them. A Householder reflection a row (Golub & Van Loan 2013, 5.1.1). The
    table is contiguous.
    """
    n_rows, n_columns = table.shape
    for k in range(n_pivots):
        pivot, n = k * n_columns + k + 1, n_columns - k - 1
        rest, first = _dot(table, pivot, table, pivot, n), table[k, k]
        if first >= 0.0 and rest < NOTHING:
            for j in range(k + 1, n_columns):
                table[k, j] = 0.0
            continue
        norm = math.sqrt(first * first + rest)
        head = first - norm if first <= 0.0 else -rest / (first + norm)
        scale = 2.0 / (head * head + rest)
        for i in range(k + 1, n_rows):
            row = i * n_columns + k + 1
            share = scale * (table[i, k] * head + _dot(table, row, table, pivot, n))
            table[i, k] -= share * head
            _add_multiple(-share, table, pivot, table, row, n)
        table[k, k] = norm
        for j in range(k + 1, n_columns):
            table[k, j] = 0.0


@lean_kernel
def multiply(a, b, out):
    """out = a b."""
    n, of_b, of_out = out.shape[1], _stride(b), _stride(out)
    for i in range(out.shape[0]):
        if n >= width(out) and of_b and of_out:
            for j in range(0, n, width(out)):
                products = splat(out.dtype.type(0))
                for k in range(b.shape[0]):
                    products = muladd(splat(a[i, k]), load_some(b, k * of_b + j, n - j, 0.0), products)
                store_some(out, i * of_out + j, products, n - j)
            continue
        for j in range(n):
            out[i, j] = 0.0
        for k in range(b.shape[0]):
            factor = a[i, k]
            for j in range(n):
                out[i, j] += factor * b[k, j]


@lean_kernel
def multiply_transposed(a, b, out):
    """out = a' b."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 0.0
    for k in range(b.shape[0]):
        for i in range(out.shape[0]):
            factor = a[k, i]
            for j in range(out.shape[1]):
                out[i, j] += factor * b[k, j]


@lean_kernel
def multiply_by_transposed(a, b, out):
    """out = a b'."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * b[j, k]
            out[i, j] = total


@lean_kernel
def add_by_transposed(a, b, out):
    """out += a b'."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * b[j, k]
            out[i, j] += total


@lean_kernel
def add(table, out):
    """out += table."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] += table[i, j]


@lean_kernel
def clear(out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 0.0


@lean_kernel
def copy(table, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = table[i, j]


@inlined
def copy_row(row, out):
    """out <- row. numba compiles for seconds if an array is assigned to a slice."""
    for i in range(row.shape[0]):
        out[i] = row[i]


@lean_kernel
def solve(root, table):
    """table <- root^-1 table, of a lower triangle."""
    for i in range(table.shape[0]):
        for k in range(i):
            factor = root[i, k]
            for j in range(table.shape[1]):
                table[i, j] -= factor * table[k, j]
        inverse = 1.0 / root[i, i]
        for j in range(table.shape[1]):
            table[i, j] *= inverse


@lean_kernel
def solve_transposed(root, table):
    """table <- root'^-1 table, of a lower triangle."""
    for i in range(table.shape[0] - 1, -1, -1):
        for k in range(i + 1, table.shape[0]):
            factor = root[k, i]
            for j in range(table.shape[1]):
                table[i, j] -= factor * table[k, j]
        inverse = 1.0 / root[i, i]
        for j in range(table.shape[1]):
            table[i, j] *= inverse


@inlined
def factor(matrix, n):
    """The lower triangle <- its Cholesky factor; returns the log determinant, NaN where there is no finite factor."""
    log_det = 0.0
    for j in range(n):
        pivot = matrix[j, j]
        for k in range(j):
            pivot -= matrix[j, k] * matrix[j, k]
        if not 0.0 < pivot < np.inf:
            return np.nan
        root = math.sqrt(pivot)
        log_det += math.log(pivot)
        matrix[j, j] = root
        inverse = 1.0 / root
        for i in range(j + 1, n):
            value = matrix[i, j]
            for k in range(j):
                value -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = value * inverse
    return log_det


@inlined
def invert(chol, lower, inverse):
    """The inverse of a lower triangle, and that of the matrix whose Cholesky factor it is."""
    n = lower.shape[0]
    for j in range(n):
        lower[j, j] = 1.0 / chol[j, j]
        for i in range(j + 1, n):
            value = 0.0
            for k in range(j, i):
                value -= chol[i, k] * lower[k, j]
            lower[i, j] = value / chol[i, i]
    for i in range(n):
        for j in range(i + 1):
            value = 0.0
            for k in range(i, n):
                value += lower[k, i] * lower[k, j]
            inverse[i, j] = value
            inverse[j, i] = value


@inlined
def solve_column(chol, column, begin, n):
    """column <- chol^-1 column, whose first `begin` numbers are 0."""
    for i in range(begin, n):
        total = column[i]
        for k in range(begin, i):
            total -= chol[i, k] * column[k]
        column[i] = total / chol[i, i]


@lean_kernel
def is_steady(table, before, reference, clock, step):
    r"""Whether a recursion has reached its fixed point, to rounding; called after every step, counted from 1.

    This is so if neither the last step nor a stretch, an eighth of all steps so far, changed any entry. The rest of a
    mode that decays by $\rho$ a step is less than its change over n steps times $\rho^n / (1 - \rho^n)$. A mode that
    rotates, such as a season, changes at every step. `clock` holds the step of the next check, 0 at the start.
    """
    if step < clock[0]:
        return False
    same = clock[0] > 0
    for i in range(before.shape[0]):
        norm = 0.0
        for j in range(before.shape[1]):
            norm += before[i, j] * before[i, j]
        bound = SAME * math.sqrt(norm)
        for j in range(before.shape[1]):
            same &= abs(table[i, j] - reference[i, j]) <= bound and abs(table[i, j] - before[i, j]) <= bound
            reference[i, j] = table[i, j]
    clock[0] = step + max(8, step // 8)
    return same
