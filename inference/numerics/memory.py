"""Memory for results, and prefetching."""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from torch import Tensor

from .lanes import lowered


def empty_like(table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous uninitialised tensor on the CPU.

    numpy requests large pages from the system, and torch does not. For a large result, the first touch of every small
    page would cost more than the computation.
    """
    kind = torch.empty((), dtype=dtype or table.dtype, device="cpu").numpy().dtype
    return torch.from_numpy(np.empty(table.shape, kind))


@lowered
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of `array[index]`; the index may be outside the array, because nothing is read.

    A kernel that alternates between arithmetic and memory leaves each idle half of the time, and the processor does not
    predict a pass backward in time. Prefetching the next rows, one line per vector, hides both.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # to read, into all levels, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
