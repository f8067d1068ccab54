r"""Vectors of one register's width as values inside numba kernels: `Lanes`, 8 float64 or 16 float32 numbers.

numba leaves vectorisation to LLVM, which fails on the short, unknown trip counts of a recursion over K states, and on
many processors uses only half of the register. Here the width is part of the type:

        load, store                vectors of a one-dimensional array, from a position on
    load_some, store_some      the same for the last, partly filled vector of a row
        splat, spread              a number in every lane; a number of an array in every lane
    +, -, *, /, muladd         arithmetic; `muladd(a, b, c)` is a * b + c
        larger, at_least, by_sign  the larger of two; the vector with numbers below a floor set to 0; a choice of two
    largest, total             of all elements, by a tree of fixed shape
    transpose                  a square of an array's numbers, as many as a vector holds on each side
    mantissa, exponent         m in [1, 2) and e with x = m * 2^e
        width                      the number of elements of an array in a vector

The functions of `elementary` accept them too.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

BYTES = 64
_INDEX = ir.IntType(32)
_FLOAT = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
FUSE = ("contract",)
lowered: Any = intrinsic  # callers omit the first argument of the decorated function


class Lanes(types.Type):
    """The numba type of a vector: as many numbers of `dtype` as fill `BYTES` bytes."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.count: Any = BYTES * 8 // dtype.bitwidth
        self.vector = ir.VectorType(_FLOAT[dtype], self.count)
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, lanes.vector)


def _constant(vector: Any, number: Any) -> Any:
    return ir.Constant(vector, [number] * vector.count)


def _positions(positions: Any) -> Any:
    return ir.Constant(ir.VectorType(_INDEX, len(positions)), list(positions))


def _repeat(builder: Any, number: Any, count: int) -> Any:
    undefined = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    vector = builder.insert_element(undefined, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(vector, vector, _positions([0] * count))


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), Lanes(array_type.dtype).vector.as_pointer())


def _first(builder: Any, count: Any, width: int) -> Any:
    """The mask of the first `count` lanes."""
    steps = ir.Constant(ir.VectorType(count.type, width), list(range(width)))
    return builder.icmp_signed("<", steps, _repeat(builder, count, width))


def _masked(builder: Any, operation: str, vector: Any, result: Any, arguments: Any) -> Any:
    name = f"llvm.masked.{operation}.v{vector.count}f{64 if vector.count * 8 == BYTES else 32}.p0"
    signature = ir.FunctionType(result, [a.type for a in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    return builder.call(function, arguments)


@lowered
def load(typing: Any, array: Any, index: Any) -> Any:
    """The vector that starts at `array[index]`; bounds are not checked."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *args), align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, types.intp), generate


@lowered
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Write the vector to `array[index]` and the following elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, Lanes(array.dtype)), generate


@lowered
def load_some(typing: Any, array: Any, index: Any, count: Any, filler: Any) -> Any:
    """The vector of `array[index : index + count]`, filled up with `filler`; a whole vector if count is larger."""
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args[:2])
        alignment = ir.Constant(_INDEX, array.dtype.bitwidth // 8)
        mask, rest = _first(builder, args[2], lanes.count), _repeat(builder, args[3], lanes.count)
        return _masked(builder, "load", lanes.vector, lanes.vector, [address, alignment, mask, rest])

    return lanes(array, types.intp, types.intp, array.dtype), generate


@lowered
def store_some(typing: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """Write the first `count` numbers of the vector to `array[index]` and the following elements."""
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args[:2])
        alignment = ir.Constant(_INDEX, array.dtype.bitwidth // 8)
        mask = _first(builder, args[3], lanes.count)
        _masked(builder, "store", lanes.vector, ir.VoidType(), [args[2], address, alignment, mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes, types.intp), generate


@lowered
def transpose(typing: Any, array: Any, index: Any) -> Any:
    """Transpose in place the square matrix that starts at `array[index]`; each of its rows is a vector."""
    n = Lanes(array.dtype).count

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        index = args[1].type
        places = [
            _address(context, builder, array, args[0], builder.add(args[1], ir.Constant(index, i * n)))
            for i in range(n)
        ]
        alignment = array.dtype.bitwidth // 8
        rows = [builder.load(place, align=alignment) for place in places]
        distance = n // 2
        while distance:  # exchange the blocks beside the diagonal, of decreasing size
            low = [j if not j & distance else n + j - distance for j in range(n)]
            high = [j + distance if not j & distance else n + j for j in range(n)]
            for i in (i for i in range(n) if not i & distance):
                pair = rows[i], rows[i + distance]
                rows[i] = builder.shuffle_vector(*pair, _positions(low))
                rows[i + distance] = builder.shuffle_vector(*pair, _positions(high))
            distance //= 2
        for place, row in zip(places, rows, strict=True):
            builder.store(row, place, align=alignment)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@lowered
def width(typing: Any, array: Any) -> Any:
    """The number of elements of the array in a vector, known when the kernel is compiled."""
    count = Lanes(array.dtype).count
    return types.intp(array), lambda context, builder, signature, args: context.get_constant(types.intp, count)


@lowered
def spread(typing: Any, array: Any, index: Any) -> Any:
    """The number `array[index]` in every lane."""
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return _repeat(builder, builder.load(builder.gep(data, [args[1]])), lanes.count)

    return lanes(array, types.intp), generate


@lowered
def splat(typing: Any, number: Any) -> Any:
    """The number in every lane."""
    lanes = Lanes(number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _repeat(builder, args[0], lanes.count)

    return lanes(number), generate


@lowered
def muladd(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c`, rounded once if the processor supports it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(builder.fmul(args[0], args[1], flags=FUSE), args[2], flags=FUSE)

    return a(a, a, a), generate


def _elementwise(generate: Callable[[Any, Any, Any], Any]) -> Any:
    @lowered
    def combine(typing: Any, a: Any, b: Any) -> Any:
        return a(a, a), lambda context, builder, signature, args: generate(builder, *args)

    return combine


def _overload(sign: Callable[..., Any], function: Any) -> None:
    @overload(sign)
    def operate(a, b):
        return (lambda a, b: function(a, b)) if isinstance(a, Lanes) and isinstance(b, Lanes) else None


def _select_larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _select_smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


_overload(operator.add, _elementwise(lambda builder, a, b: builder.fadd(a, b, flags=FUSE)))
_overload(operator.sub, _elementwise(lambda builder, a, b: builder.fsub(a, b, flags=FUSE)))
_overload(operator.mul, _elementwise(lambda builder, a, b: builder.fmul(a, b, flags=FUSE)))
_overload(operator.truediv, _elementwise(lambda builder, a, b: builder.fdiv(a, b, flags=FUSE)))
larger: Any = _elementwise(_select_larger)
smaller: Any = _elementwise(_select_smaller)


@lowered
def at_least(typing: Any, a: Any, floor: Any) -> Any:
    """`a` where it is at least `floor` or NaN, and 0 elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        keep = builder.fcmp_unordered(">=", args[0], _repeat(builder, args[1], a.count))
        return builder.select(keep, args[0], _constant(a.vector, 0.0))

    return a(a, a.dtype), generate


@lowered
def by_sign(typing: Any, x: Any, not_negative: Any, negative: Any) -> Any:
    """The first of two vectors where `x >= 0`, and the second elsewhere, also where x is NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">=", args[0], _constant(x.vector, 0.0)), args[1], args[2])

    return x(x, x, x), generate


def _part(generate: Callable[..., Any]) -> Any:
    """A function of the bits of positive normal numbers."""

    @lowered
    def take(typing: Any, x: Any) -> Any:
        stored, bias = (52, 1023) if x.dtype == types.float64 else (23, 127)
        bits = ir.VectorType(ir.IntType(x.dtype.bitwidth), x.count)

        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def floating(number: Any) -> Any:
                return builder.bitcast(number, x.vector)

            return generate(builder, builder.bitcast(args[0], bits), partial(_constant, bits), floating, stored, bias)

        return x(x), lower

    return take


def _mantissa(builder: Any, bits: Any, constant: Any, floating: Any, stored: int, bias: int) -> Any:
    return floating(builder.or_(builder.and_(bits, constant((1 << stored) - 1)), constant(bias << stored)))


def _exponent(builder: Any, bits: Any, constant: Any, floating: Any, stored: int, bias: int) -> Any:
    # the integer as the last digits of a number that has no others
    over = bias + stored << stored
    number = floating(builder.or_(builder.lshr(bits, constant(stored)), constant(over)))
    return builder.fsub(number, _constant(number.type, float((1 << stored) + bias)))


mantissa, exponent = _part(_mantissa), _part(_exponent)


def _reduction(generate: Callable[[Any, Any, Any], Any]) -> Any:
    @lowered
    def reduce(typing: Any, a: Any) -> Any:
        def halve(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector, n = args[0], a.count
            while n > 1:
                low = builder.shuffle_vector(vector, vector, _positions(range(n // 2)))
                high = builder.shuffle_vector(vector, vector, _positions(range(n // 2, n)))
                vector, n = generate(builder, low, high), n // 2
            return builder.extract_element(vector, ir.Constant(_INDEX, 0))

        return a.dtype(a), halve

    return reduce


total: Any = _reduction(lambda builder, a, b: builder.fadd(a, b))
largest: Any = _reduction(_select_larger)
