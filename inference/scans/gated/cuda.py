"""Gated recurrences on a GPU, activations and all in one pass over memory forward and one back: see `cuda_recurrences`.

The backward pass computes activations again from its inputs, so the forward pass only keeps the states.
"""

import torch
from torch import Tensor

from ...numerics.op import Call
from ..cuda_recurrences import WIDEST, Kind, Parts, gradients, states
from .op import PARTS, scan


def _parts(pre: Tensor, gate: str) -> Parts:
    """Those of a row of pre-activations, where they lie."""
    parts = pre.chunk(PARTS[gate], -1)
    return Parts(parts[0], parts[-2], parts[-1], pre.shape[-1])


def _kind(gate: str, candidate: str, block: int) -> Kind:
    return Kind(gate, candidate, block if candidate == "simplex" else 1)


def _fits(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> bool:
    return candidate != "simplex" or block <= WIDEST


@scan.kernel("cuda", takes=_fits)
def forward(pre: Tensor, h0: Tensor, gate: str, candidate: str, block: int) -> Tensor:
    pre, h0 = pre.contiguous(), h0.contiguous()
    h = h0.new_empty(*pre.shape[:2], h0.shape[1])
    states(_kind(gate, candidate, block), _parts(pre, gate), h0, h)
    return h


@scan.adjoint("cuda", takes=_fits)
def backward(call: Call, grad: Tensor) -> list[Tensor]:
    pre, h0, h, grad = (table.contiguous() for table in (*call.inputs[:2], *call.outputs, grad))
    d_pre, d_h0, gate = torch.empty_like(pre), torch.zeros_like(h0), call.inputs[2]
    gradients(_kind(*call.inputs[2:]), _parts(pre, gate), h0, h, grad, _parts(d_pre, gate), d_h0)
    return [d_pre, d_h0]
