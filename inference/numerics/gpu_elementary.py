"""Elementary functions for Triton kernels, close to rounding in relative terms; NaN stays NaN."""

from .gpu import constexpr, kernel, tl

_TERMS = constexpr(9)  # of the continued fraction: 1e-17 below 0.5
_LOG2E = constexpr(1.4426950408889634)
_LN2 = constexpr(0.693359375)  # of few digits, so that small integers times it are exact
_LN2_REST = constexpr(-2.1219444005469057e-4)


@kernel
def exp(x):
    """e^x of float32 x < 88, or float64. `tl.exp` of float32 multiplies x by log2(e) first, and loses |x| roundings."""
    if x.dtype == tl.float32:
        e = tl.minimum(tl.maximum(tl.floor(x * _LOG2E + 0.5), -150.0), 128.0)
        power = tl.exp((x - e * _LN2) - e * _LN2_REST) * tl.exp2(e)
    else:
        power = tl.exp(x)
    return power


@kernel
def sigmoids(x):
    """sigmoid(x) and sigmoid(-x), neither of which is rounded to 0 or 1 early."""
    grown = exp(-tl.abs(x))
    large = 1 / (1 + grown)
    small = grown * large
    return tl.where(x >= 0, large, small), tl.where(x >= 0, small, large)


@kernel
def tanh(x):
    """By Lambert's continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))) near 0, by an exponential elsewhere."""
    size = tl.abs(x)
    y = tl.minimum(size, 0.5)
    over, under, over_before, under_before = y, y * 0 + 1, y * 0, y * 0 + 1
    for k in tl.static_range(1, _TERMS):
        over, over_before = (2 * k + 1) * over + y * y * over_before, over
        under, under_before = (2 * k + 1) * under + y * y * under_before, under
    grown = exp(-2 * size)
    result = tl.where(size < 0.5, over / under, (1 - grown) / (1 + grown))
    return tl.where(x < 0, -result, result)
