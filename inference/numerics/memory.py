"""Memory for results, and asking for it before it is needed."""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from .compilation import kernel


def empty_like(table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous tensor to be filled, on the CPU.

    numpy asks the system for large pages, which torch does not: of a large result, the first touch of every page would
    otherwise cost more than computing it.
    """
    kind = torch.empty((), dtype=dtype or table.dtype).numpy().dtype
    return torch.from_numpy(np.empty(table.shape, kind))


def _line_of(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`, which may lie outside of the array: nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(prefetch, [address, flag(0), flag(3), flag(1)])  # to read, into all levels, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


_prefetch_line: Any = intrinsic(_line_of)


@kernel
def prefetch(array: Any, start: int, n: int) -> None:
    """Ask for `array[start : start + n]` of a flat array; parts outside of it are harmless.

    A kernel that alternates between a row of arithmetic and a row of memory leaves each idle half the time, and a pass
    backward in time goes against the processor's own prediction. Asking for the rows to come hides both.
    """
    for index in range(start, start + n, 64 // array.itemsize):
        _prefetch_line(array, index)
