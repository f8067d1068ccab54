"""Small matrices inside kernels for GPUs: tiles in registers, their sides padded to powers of two by zeros.

A factor takes up others by reflections, a row each, that turn its own column and the columns of a block into one column
(Golub & Van Loan 2013, 5.1.1): a reflection costs three reductions over the block, and nothing is inverted.
"""

from .gpu import constexpr, kernel, tl, triton

_NOTHING = constexpr(2.0**-1000)  # a sum of squares that one cannot be divided by
_NUMBERS = 128  # of a tile in the registers of a warp


def warps(numbers: int) -> int:
    """Of a program that works on tiles of so many numbers."""
    return max(1, min(8, numbers // _NUMBERS))


def beside(n: int, side: int) -> int:
    """How many of n sequences, each with a square tile of that side, go beside each other in a program."""
    return max(1, min(triton.next_power_of_2(n), _NUMBERS // side**2)) if n else 1


@kernel
def row_of(tile, rows, k):
    """Row k of a tile."""
    return tl.sum(tl.where(rows[:, None] == k, tile, 0.0), 0)


@kernel
def column_of(tile, columns, k):
    """Column k of a tile."""
    return tl.sum(tl.where(columns[None, :] == k, tile, 0.0), 1)


@kernel
def unit(SIDE: constexpr):
    """The unit matrix."""
    i = tl.arange(0, SIDE)
    return tl.where(i[:, None] == i[None, :], 1.0, 0.0).to(tl.float64)


@kernel
def product(left, width: constexpr, rows, mask, tile, inner):
    """left @ tile, of a matrix of so many columns in memory, whose rows beyond the mask count as zeros."""
    found = tl.zeros((rows.shape[0], tile.shape[1]), tl.float64)
    for k in range(width):
        own = tl.load(left + rows * width + k, mask, 0.0).to(tl.float64)
        found += own[:, None] * row_of(tile, inner, k)[None, :]
    return found


@kernel
def transposed_product(left, width: constexpr, rows, mask, tile):
    """left' @ tile, of a square matrix in memory, which counts as zeros beyond the mask."""
    found = tl.zeros_like(tile)
    for k in range(width):
        own = tl.load(left + k * width + rows, mask, 0.0).to(tl.float64)
        found += own[:, None] * row_of(tile, rows, k)[None, :]
    return found


@kernel
def times(left, right, inner, n: constexpr):
    """left @ right, of n columns and rows."""
    found = tl.zeros((left.shape[0], right.shape[1]), tl.float64)
    for k in range(n):
        found += column_of(left, inner, k)[:, None] * row_of(right, inner, k)[None, :]
    return found


@kernel
def transposed_times(left, right, rows, n: constexpr):
    """left' @ right, of n rows."""
    found = tl.zeros((left.shape[1], right.shape[1]), tl.float64)
    for k in range(n):
        found += row_of(left, rows, k)[:, None] * row_of(right, rows, k)[None, :]
    return found


@kernel
def outer(left, right, columns, n: constexpr):
    """left @ right', of n columns."""
    found = tl.zeros((left.shape[0], right.shape[0]), tl.float64)
    for k in range(n):
        found += column_of(left, columns, k)[:, None] * column_of(right, columns, k)[None, :]
    return found


@kernel
def reflection(first, row):
    """Of [first, row] onto its first entry, which is not negative: its norm there, its head and its scale."""
    rest = tl.sum(row * row, 0)
    norm, turns = tl.sqrt(first * first + rest), rest >= _NOTHING
    head = -rest / tl.where(turns, first + norm, 1.0)
    return norm, head, tl.where(turns, 2.0, 0.0) / tl.where(turns, head * head + rest, 1.0)


@kernel
def reflect(column, tile, row, head, scale):
    """[column, tile] after a reflection."""
    share = (column * head + tl.sum(tile * row[None, :], 1)) * scale
    return column - share * head, tile - share[:, None] * row[None, :]


@kernel
def absorb(triangle, tile, others, rows, n: constexpr, BOTH: constexpr):
    """The lower triangle of [triangle, tile]; if BOTH, the same rotation of [0, others], and what stays of `others`."""
    found, turned = tl.zeros_like(triangle), tl.zeros_like(others)
    none = tl.sum(turned, 1)
    for k in range(n):
        own, row = column_of(triangle, rows, k), row_of(tile, rows, k)
        _, head, scale = reflection(tl.sum(tl.where(rows == k, own, 0.0), 0), row)
        own, tile = reflect(own, tile, row, head, scale)
        found = tl.where(rows[None, :] == k, own[:, None], found)
        if BOTH:
            own, others = reflect(none, others, row, head, scale)
            turned = tl.where(rows[None, :] == k, own[:, None], turned)
    return found, turned, others


@kernel
def at_step(table, n, t, steps, size: constexpr):
    """What a table [N, S, size] has for step t of entry n, S being one where it is the same for all."""
    return table + (n * steps + tl.minimum(t, steps - 1)) * size


@kernel
def vectors(table, t, steps, width: constexpr, columns, mask):
    """Rows t of tables [steps, width], from where each begins; one row where it serves all steps."""
    at = table[:, None] + tl.minimum(t, steps - 1) * width + columns[None, :]
    return tl.load(at, mask[:, None] & (columns < width)[None, :], 0.0).to(tl.float64)


@kernel
def matrices(table, rows, columns, height: constexpr, width: constexpr, mask):
    """Matrices [height, width], from where each begins."""
    at = table[:, None, None] + rows[None, :, None] * width + columns[None, None, :]
    exist = (rows < height)[None, :, None] & (columns < width)[None, None, :]
    return tl.load(at, mask[:, None, None] & exist, 0.0).to(tl.float64)


@kernel
def each_times(matrices, vectors):
    """The products of matrices [n, I, J] with vectors [n, J]."""
    return tl.sum(matrices * vectors[:, None, :], 2)


@kernel
def each_transposed_times(matrices, vectors):
    """The products of transposed matrices [n, I, J] with vectors [n, I]."""
    return tl.sum(matrices * vectors[:, :, None], 1)
