"""Linear recurrences on a GPU: one pass over memory forward, one pass back, by the kernels of `cuda_recurrences`."""

import torch
from torch import Tensor

from ...numerics.op import Call
from ..cuda_recurrences import Kind, Parts, gradients, states
from .op import scan


def _parts(first: Tensor, second: Tensor) -> Parts:
    return Parts(first, first, second, first.shape[-1])


def _kind(lerp: bool) -> Kind:
    return Kind("lerp" if lerp else "linear")


@scan.kernel("cuda")
def forward(first: Tensor, second: Tensor, h0: Tensor, lerp: bool) -> Tensor:
    first, second, h0 = (table.contiguous() for table in (first, second, h0))
    h = torch.empty_like(second)
    states(_kind(lerp), _parts(first, second), h0, h)
    return h


@scan.adjoint("cuda")
def backward(call: Call, grad: Tensor) -> list[Tensor]:
    first, second, h0, h, grad = (table.contiguous() for table in (*call.inputs[:3], *call.outputs, grad))
    d_first, d_second, d_h0 = torch.empty_like(first), torch.empty_like(second), torch.zeros_like(h0)
    d_parts = _parts(d_first, d_second)
    gradients(_kind(call.inputs[3]), _parts(first, second), h0, h, grad, d_parts, d_h0)
    return [d_first, d_second, d_h0]
