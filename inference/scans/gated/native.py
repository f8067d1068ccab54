"""The gated recurrence straight from pre-activations, on the CPU: one pass forward, one pass back.

Each step of the forward pass activates gates and candidates and applies them to the state at once. The backward pass
activates them again, which costs less than reading them from memory would.
"""

from typing import Any

from torch import Tensor

from ...native.library import empty, function, integers
from ...numerics.native_calls import run
from ...numerics.op import Call, in_single_precision
from ..linear.native import parts
from .op import PARTS, scan

_GATES = {"redraw": 0, "hold": 1, "ratio": 2, "free": 3}
_CANDIDATES = {"linear": 0, "tanh": 1, "positive": 2, "simplex": 3}
_STRETCH = 512  # columns whose rows fit the first-level cache


def _tasks(h: Tensor, candidate: str, block: int) -> list[Any]:
    return parts(*h.shape, block=block if candidate == "simplex" else 16, widest=_STRETCH)


def _layout(gate: str, candidate: str, block: int) -> Any:
    return integers(_GATES[gate], _CANDIDATES[candidate], block)


@scan.kernel("cpu")
@in_single_precision
def forward(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    (n, steps, width), units = pre.shape, h0.shape[-1]
    if h0.shape != (n, units) or width != PARTS[gate] * units:
        raise ValueError(f"pre, h0: got shapes {list(pre.shape)}, {list(h0.shape)}, for {gate=}.")
    if pre.dtype != h0.dtype:
        raise TypeError(f"pre, h0: got {pre.dtype}, {h0.dtype}, expected one dtype.")
    if candidate == "simplex" and (block < 1 or units % block):
        raise ValueError(f"block: got {block}, expected a divisor of {units}.")
    tables = [x.detach().contiguous() for x in (pre, h0)]
    h = empty(n, steps, units, dtype=pre.dtype)
    if h.numel():
        layout = _layout(gate, candidate, block)
        run(function("gated_scan", h.dtype), _tasks(h, candidate, block), layout, *tables, h)
    return h


@scan.adjoint("cpu")
@in_single_precision
def backward(call: Call, d_h: Tensor) -> list[Tensor]:
    (pre, h0, *options), (h,) = call.inputs, call.outputs
    tables = [x.detach().contiguous() for x in (pre, h0, h, d_h)]
    gradients = [empty(*x.shape, dtype=x.dtype) for x in tables[:2]]
    if h.numel():
        tasks = _tasks(h, *options[1:])
        run(function("gated_scan_adjoint", h.dtype), tasks, _layout(*options), *tables, *gradients)
    else:
        gradients[1].zero_()
    return gradients
