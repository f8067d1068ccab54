r"""Exponential functions and logarithms for use inside numba kernels: `exp`, `sigmoids`, `tanh`, `log`; and `digamma`.

A call to the system's `exp` inside a loop prevents LLVM from vectorising it. Written as plain arithmetic, it runs on a
full register of numbers at once, about ten times as fast, and is exact to one unit in the last place. For `Lanes`, it
takes a whole vector.

$$x = n \ln 2 + r, \quad |r| \le \tfrac{1}{2} \ln 2, \qquad e^x = 2^n + 2^n (e^r - 1)$$

Adding $1.5 \cdot 2^{m}$ for $m$ mantissa bits removes the fraction of $x / \ln 2$ and gives $n$. $2^n$ is assembled
from its bits, and $e^r - 1$ is its Taylor polynomial. $e^x - 1 = (2^n - 1) + 2^n (e^r - 1)$ loses no digits near 0, and
gives $\tanh$ without a second polynomial.

$$\log x = n \ln 2 + \log m, \quad m \in [1/\sqrt 2, \sqrt 2), \qquad
\log m = 2 (s + s^3/3 + s^5/5 + \ldots), \quad s = (m - 1) / (m + 1)$$
"""

import math
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from .compilation import inlined
from .lanes import FUSE, Lanes, by_sign, exponent, lowered, mantissa, muladd, splat

_ASYMPTOTIC = 10.0  # from here on eight terms of the series of digamma are exact to rounding


class _Format(NamedTuple):
    """A number format, with the constants to reduce x."""

    integer: Any
    mantissa: int
    bias: int
    lowest: float  # below it, the exponential is less than the least normal number
    ln2_high: float  # few enough bits that n * ln2_high is exact
    ln2_low: float
    degree: int  # of the Taylor polynomial


_LN2 = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_LN2_HIGH, _LN2_LOW = _LN2
_FORMATS = {
    types.float32: _Format(ir.IntType(32), 23, 127, -87.0, 0.693359375, math.log(2) - 0.693359375, 7),
    types.float64: _Format(ir.IntType(64), 52, 1023, -708.0, *_LN2, 13),
}


def _exponential(x: Any, builder: Any, value: Any, less_one: bool) -> Any:
    """exp(x), or exp(x) - 1, for a value of numba type x that is at most 0."""
    vector = isinstance(x, Lanes)
    form = _FORMATS[x.dtype if vector else x]
    bits = ir.VectorType(form.integer, x.count) if vector else form.integer

    def constant(number: float, kind: Any = value.type) -> Any:
        return ir.Constant(kind, _filled(kind, number))

    def fused(a: Any, b: Any, c: Any) -> Any:
        return builder.fadd(builder.fmul(a, b, flags=FUSE), c, flags=FUSE)

    vanishes = builder.fcmp_ordered("<", value, constant(form.lowest))
    y = builder.select(vanishes, constant(form.lowest), value)
    shifter, one, nothing = constant(1.5 * 2**form.mantissa), constant(1.0), constant(0.0)
    shifted = fused(y, constant(1 / math.log(2)), shifter)
    n = builder.fsub(shifted, shifter)
    r = fused(n, constant(-form.ln2_low), fused(n, constant(-form.ln2_high), y))
    series = constant(1 / math.factorial(form.degree))  # of (exp(r) - 1 - r) / r^2
    for k in range(form.degree - 1, 1, -1):
        series = fused(series, r, constant(1 / math.factorial(k)))
    exponent = builder.add(builder.bitcast(shifted, bits), constant(form.bias, bits))
    power = builder.bitcast(builder.shl(exponent, constant(form.mantissa, bits)), value.type)
    power = builder.select(vanishes, nothing, power)
    if less_one:
        return fused(power, fused(builder.fmul(r, r, flags=FUSE), series, r), builder.fsub(power, one))
    return builder.fmul(power, fused(fused(series, r, one), r, one))


def _by_sign(builder: Any, value: Any, not_negative: Any, negative: Any) -> Any:
    positive = builder.fcmp_ordered(">=", value, ir.Constant(value.type, _filled(value.type, 0.0)))
    return builder.select(positive, not_negative, negative)


def _filled(kind: Any, number: float) -> Any:
    return [number] * kind.count if isinstance(kind, ir.VectorType) else number


def _less_magnitude(builder: Any, value: Any) -> Any:
    return _by_sign(builder, value, builder.fneg(value), value)


@lowered
def _exp(typing: Any, x: Any) -> Any:
    return x(x), lambda context, builder, signature, args: _exponential(x, builder, args[0], False)


@lowered
def _sigmoids(typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        one = ir.Constant(value.type, _filled(value.type, 1.0))
        e = _exponential(x, builder, _less_magnitude(builder, value), False)
        large = builder.fdiv(one, builder.fadd(one, e, flags=FUSE))
        small = builder.fmul(e, large, flags=FUSE)
        both = [_by_sign(builder, value, large, small), _by_sign(builder, value, small, large)]
        return context.make_tuple(builder, signature.return_type, both)

    return types.UniTuple(x, 2)(x), generate


@lowered
def _tanh(typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        less = _less_magnitude(builder, value)
        m = _exponential(x, builder, builder.fadd(less, less), True)
        two = ir.Constant(value.type, _filled(value.type, 2.0))
        y = builder.fdiv(m, builder.fadd(m, two, flags=FUSE))
        return _by_sign(builder, value, builder.fneg(y), y)

    return x(x), generate


@inlined
def exp(x: Any) -> Any:
    """`exp(x)` for x <= 0, a number or `Lanes`; 0 if the result is near or below the least normal number."""
    return _exp(x)


@inlined
def sigmoids(x: Any) -> Any:
    """`(sigmoid(x), sigmoid(-x))`, both accurate; neither is computed as one minus the other."""
    return _sigmoids(x)


@inlined
def tanh(x: Any) -> Any:
    """`tanh(x) = -m / (2 + m)` with `m = exp(-2|x|) - 1`, with the sign of x."""
    return _tanh(x)


@inlined
def log(x: Any) -> Any:
    """`log(x)` of float64 `Lanes` of positive normal numbers, to two units in the last place of the larger of itself
    and 1."""
    one, m, n = splat(1.0), mantissa(x), exponent(x)
    above = m - splat(1.4142135623730951)
    m, n = by_sign(above, m * splat(0.5), m), by_sign(above, n + one, n)
    f = m - one
    s = f / (m + one)
    z = s * s
    series = splat(2 / 21)
    for k in (19, 17, 15, 13, 11, 9, 7, 5, 3):
        series = muladd(series, z, splat(2 / k))
    half = splat(0.5) * f * f  # log(1 + f) = f - half + s (half + z series)
    rest = muladd(n, splat(_LN2_LOW), s * muladd(z, series, half))
    return muladd(n, splat(_LN2_HIGH), f - (half - rest))


@inlined
def digamma(x: float) -> float:
    """The derivative of log Gamma at x > 0, by its recurrence and its asymptotic series; NaN elsewhere."""
    if not x > 0:
        return math.nan
    shift = 0.0
    while x < _ASYMPTOTIC:
        shift += 1 / x
        x += 1
    s = 1 / (x * x)
    series = 691 / 32760 - s * (1 / 12 - s * (3617 / 8160))
    series = 1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * series))))
    return math.log(x) - 0.5 / x - s * series - shift
