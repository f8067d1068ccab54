"""The gated recurrence straight from pre-activations, on the CPU: one pass forward, one pass back.

Each step of the forward pass activates gates and candidates and applies them to the state at once. The backward pass
activates them again, which costs less than reading them from memory would.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...native.library import integers
from ...numerics.op import Call, in_single_precision
from ..linear.native import gradients, parts, states
from .op import PARTS, scan

_GATES = {"redraw": 0, "hold": 1, "ratio": 2, "free": 3}
_CANDIDATES = {"linear": 0, "tanh": 1, "positive": 2, "simplex": 3}
_STRETCH = 512  # columns whose rows fit the first-level cache


def _call(shape: Sequence[int], gate: str, candidate: str, block: int) -> tuple[list[Any], Any]:
    """The tasks of a call, and the kind of its recurrence, as the kernels read them."""
    tasks = parts(*shape, block=block if candidate == "simplex" else 16, widest=_STRETCH)
    return tasks, integers(_GATES[gate], _CANDIDATES[candidate], block)


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
    shape = n, steps, units
    return states("gated_scan", *_call(shape, gate, candidate, block), shape, pre, h0)


@scan.adjoint("cpu")
@in_single_precision
def backward(call: Call, grad: Tensor) -> list[Tensor]:
    (pre, h0, *kind), (h,) = call.inputs, call.outputs
    return gradients("gated_scan", *_call(h.shape, *kind), (pre, h0), h, grad)
