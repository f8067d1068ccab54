"""Small matrices inside kernels for GPUs: tiles in registers, their sides padded to powers of two by zeros.

A factor absorbs others by one reflection for each row, which turns its column and the columns of a block into one
column (Golub & Van Loan 2013, 5.1.1). A reflection costs three reductions over the block, and no matrix is inverted.
"""

from .gpu import constexpr, kernel, tl, triton

_NOTHING = constexpr(2.0**-1000)  # a sum of squares too small to divide by
_NUMBERS = 128  # of a tile in the registers of a warp


def warps(numbers: int) -> int:
    """The number of warps of a program with tiles of `numbers` entries."""
    return max(1, min(8, numbers // _NUMBERS))


def beside(n: int, side: int) -> int:
    """The number of n sequences, each with a square tile of this side, that share a program."""
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
    """left @ tile, for a matrix of `width` columns in memory, whose rows outside the mask count as zeros."""
    total = tl.zeros((rows.shape[0], tile.shape[1]), tl.float64)
    for k in range(width):
        column = tl.load(left + rows * width + k, mask, 0.0).to(tl.float64)
        total += column[:, None] * row_of(tile, inner, k)[None, :]
    return total


@kernel
def transposed_product(left, width: constexpr, rows, mask, tile):
    """left' @ tile, for a square matrix in memory, which counts as zeros outside the mask."""
    total = tl.zeros_like(tile)
    for k in range(width):
        column = tl.load(left + k * width + rows, mask, 0.0).to(tl.float64)
        total += column[:, None] * row_of(tile, rows, k)[None, :]
    return total


@kernel
def times(left, right, inner, n: constexpr):
    """left @ right, of n columns and rows."""
    total = tl.zeros((left.shape[0], right.shape[1]), tl.float64)
    for k in range(n):
        total += column_of(left, inner, k)[:, None] * row_of(right, inner, k)[None, :]
    return total


@kernel
def transposed_times(left, right, rows, n: constexpr):
    """left' @ right, of n rows."""
    total = tl.zeros((left.shape[1], right.shape[1]), tl.float64)
    for k in range(n):
        total += row_of(left, rows, k)[:, None] * row_of(right, rows, k)[None, :]
    return total


@kernel
def outer(left, right, columns, n: constexpr):
    """left @ right', of n columns."""
    total = tl.zeros((left.shape[0], right.shape[0]), tl.float64)
    for k in range(n):
        total += column_of(left, columns, k)[:, None] * column_of(right, columns, k)[None, :]
    return total


@kernel
def reflection(first, row):
    """The reflection of [first, row] onto its first entry, which is not negative: its norm there, its head and its
    scale."""
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
    """The lower triangle of [triangle, tile]; if BOTH, the same rotation of [0, others], and the rest of `others`."""
    lower, turned = tl.zeros_like(triangle), tl.zeros_like(others)
    none = tl.sum(turned, 1)
    for k in range(n):
        column, row = column_of(triangle, rows, k), row_of(tile, rows, k)
        _, head, scale = reflection(tl.sum(tl.where(rows == k, column, 0.0), 0), row)
        column, tile = reflect(column, tile, row, head, scale)
        lower = tl.where(rows[None, :] == k, column[:, None], lower)
        if BOTH:
            column, others = reflect(none, others, row, head, scale)
            turned = tl.where(rows[None, :] == k, column[:, None], turned)
    return lower, turned, others


@kernel
def at_step(table, n, t, steps, size: constexpr):
    """The entry of a table [N, S, size] for step t of sequence n; S is 1 if it is the same for all steps."""
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
