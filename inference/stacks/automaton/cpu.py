"""The weighted pushdown recursion on the CPU: the kernels of `cpu_recursion` behind the operator, and step by step."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...numerics.op import Call
from ...numerics.threads import in_parallel
from .cpu_recursion import Tables, Weights, backward, forward
from .cpu_tape import arrays, new_tables, shares, start
from .op import pushdown, starts

starts.kernel("cpu")(start)


@pushdown.kernel("cpu")
def inside(log_initial: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *weights, best = given
    log_push, log_pop = weights[0], weights[3]
    T = log_push.shape[1]
    tables = new_tables(log_initial, log_pop.shape[-1], T)
    arguments = (1, T), int(best), _weights(*weights), Tables(*arrays(*tables))
    in_parallel([partial(forward, part, *arguments) for part in shares(log_pop, T**3 / 3)])
    return tables


def _all_runs(*inputs: Any) -> bool:
    return not inputs[-1]


@pushdown.adjoint("cpu", takes=_all_runs)
def inside_adjoint(call: Call, *grads: Tensor | None) -> list[Tensor]:
    (_, *weights, _), tables = call.inputs, call.outputs
    T = weights[0].shape[1]
    gradients = [None if x is None else torch.zeros(x.shape, dtype=x.dtype) for x in weights]
    adjoint = [
        torch.zeros(x.shape, dtype=x.dtype) if d is None else d.clone(memory_format=torch.contiguous_format)
        for x, d in zip(tables, grads, strict=True)
    ]
    if grads[1] is None:
        adjoint[1] = adjoint[1][:, :0, :, :, :0]
    arguments = _weights(*weights), Tables(*arrays(*tables)), _weights(*gradients), Tables(*arrays(*adjoint))
    in_parallel([partial(backward, part, (1, T), *arguments) for part in shares(weights[3], T**3 / 3)])
    return [adjoint[2][:, 0] + adjoint[3][:, 0, 0], *(x for x in gradients if x is not None)]


def _weights(push: Any, *rest: Any) -> Weights:
    *others, evidence = rest
    if evidence is None:
        evidence = push.new_zeros(*push.shape[:2], 0, push.shape[2])
    return Weights(*arrays(push, *others, evidence))
