"""One fused step of a superposition stack: from the controller's raw outputs to the new cells and their reading.

A small network spends its time on calls, not on arithmetic: the softmax, the sigmoid, the update and the read are one
node of the autograd graph each way, with less ado than an operator has. The equation is that of `op.superpose`.
"""

from ctypes import c_double
from typing import Any

import torch
from torch import Tensor

from ...native.library import function, integers
from ...numerics.native_calls import run
from ...numerics.op import Call, beyond_kernels, differentiated, replay
from ...numerics.threads import ranges
from .op import step

_MIN_WORK = 32_768  # numbers that repay a second thread


def _step(raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> tuple[Tensor, Tensor]:
    new, reading = raw.new_empty(len(raw), depth, cells.shape[2]), raw.new_empty(len(raw), n_read * cells.shape[2])
    raw, cells = raw.detach().contiguous(), cells.detach().contiguous()
    _run("superposed_step", raw, cells, (depth, n_read, empty), raw, cells, new, reading)
    return new, reading


def _run(name: str, raw: Tensor, cells: Tensor, others: tuple[int, int, float], *tables: Tensor | None) -> None:
    (n, before, width), (depth, n_read, empty) = cells.shape, others
    actions = raw.shape[1] - width
    tasks = [integers(*part) for part in ranges(n, _MIN_WORK // (actions * (max(before, depth) + 1) * (width + 1)) + 1)]
    run(function(name, raw.dtype), tasks, integers(actions, width, before, depth, n_read), c_double(empty), *tables)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, cells: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        ctx.others = others
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(raw, cells)
        return _step(raw, cells, *others)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        raw, cells = saved = ctx.saved_tensors
        if beyond_kernels(*grads):
            return replay(step.plain, Call((*saved, *ctx.others), (), ctx.needs_input_grad), grads)
        raw, cells, *grads = (x if x is None else x.detach().contiguous() for x in (raw, cells, *grads))
        g_raw, g_cells = torch.empty_like(raw), torch.empty_like(cells)
        _run("superposed_step_adjoint", raw, cells, ctx.others, raw, cells, *grads, g_raw, g_cells)
        return g_raw, g_cells, None, None, None


def _fits(raw: Tensor, cells: Tensor, depth: int, n_read: int, empty: float) -> bool:
    """Whether the arguments are those of a step; if not, the plain form says what is wrong."""
    alike = raw.dtype == cells.dtype and cells.device.type == "cpu"
    if not alike or raw.dim() != 2 or cells.dim() != 3 or min(depth, n_read) < 0:
        return False
    return len(raw) == len(cells) and raw.shape[1] >= cells.shape[2] + 3


@step.kernel("cpu", takes=_fits)
def superposed_step(raw: Tensor, cells: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return (_Step.apply if differentiated(raw, cells) else _step)(raw, cells, *others)  # pyright: ignore[reportReturnType]
