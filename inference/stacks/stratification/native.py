"""One fused step of a stratification stack, a node of the autograd graph each way; the equations are those of `op`."""

from typing import Any

import torch
from torch import Tensor

from ...native.library import function, integers
from ...numerics.native_calls import run
from ...numerics.op import Call, beyond_kernels, differentiated, replay
from ...numerics.threads import ranges
from .op import step

_IN_ROWS = torch.contiguous_format
_MIN_WORK = 32_768  # numbers that repay a second thread


def _run(name: str, raw: Tensor, values: Tensor, *tables: Tensor | None) -> None:
    stacks, layers, width = values.shape
    tasks = [integers(*part) for part in ranges(stacks, _MIN_WORK // ((layers + 1) * (width + 4)) + 1)]
    run(function(name, raw.dtype), tasks, integers(layers, width), *tables)


def _step(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    raw, strength, values = (x.detach().contiguous() for x in given)
    (M, n, V), new = values.shape, raw.new_empty
    after, all_values, reading = new(M, n + 1), new(M, n + 1, V), new(M, V)
    all_values[:, :n] = values
    _run("stratified_step", raw, values, raw, strength, all_values, after, reading)
    return after, all_values, reading


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        results = _step(*given)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *results[:2])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *inputs, after, all_values = ctx.saved_tensors
        if beyond_kernels(*grads):
            return replay(step.plain, Call(tuple(inputs), (), ctx.needs_input_grad), grads)
        raw, strength, values = (x.detach().contiguous() for x in inputs)
        g_after, g_values, g_reading = grads
        g_raw, g_strength = torch.empty_like(raw), torch.empty_like(strength)
        g_values = torch.zeros_like(all_values) if g_values is None else g_values.clone(memory_format=_IN_ROWS)
        given = [None if x is None else x.contiguous() for x in (after, all_values, g_after, g_reading)]
        _run("stratified_step_adjoint", raw, values, raw, strength, *given, g_raw, g_strength, g_values)
        return g_raw, g_strength, g_values[:, :-1]


def _fits(raw: Tensor, strength: Tensor, values: Tensor) -> bool:
    """Whether the arguments are those of a step; if not, the plain form says what is wrong."""
    alike = all(x.dtype == raw.dtype and x.device.type == "cpu" for x in (strength, values))
    if not alike or (raw.dim(), strength.dim(), values.dim()) != (2, 2, 3):
        return False
    return raw.shape == (len(values), 2 + values.shape[2]) and strength.shape == values.shape[:2]


@step.kernel("cpu", takes=_fits)
def stratified_step(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (_Step.apply if differentiated(*given) else _step)(*given)  # pyright: ignore[reportReturnType]
