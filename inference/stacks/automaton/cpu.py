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
def inside(
    log_initial: Tensor,
    log_push: Tensor,
    log_replace: Tensor,
    log_bottom: Tensor,
    log_pop: Tensor,
    log_evidence: Tensor | None,
    best: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T = log_push.shape[1]
    tables = new_tables(log_initial, log_pop.shape[-1], T)
    weights, filled = _weights(log_push, log_replace, log_bottom, log_pop, log_evidence), Tables(*arrays(*tables))
    in_parallel([partial(forward, part, (1, T), int(best), weights, filled) for part in shares(log_pop, T**3 / 3)])
    return tables


def _all_runs(*inputs: Any) -> bool:
    return not inputs[-1]


@pushdown.adjoint("cpu", takes=_all_runs)
def inside_adjoint(call: Call, *grads: Tensor | None) -> list[Tensor]:
    (_, *given, _), tables = call.inputs, call.outputs
    T = given[0].shape[1]
    gradients = [None if x is None else torch.zeros(x.shape, dtype=x.dtype) for x in given]
    adjoint = [
        torch.zeros(x.shape, dtype=x.dtype) if d is None else d.clone(memory_format=torch.contiguous_format)
        for x, d in zip(tables, grads, strict=True)
    ]
    if grads[1] is None:
        adjoint[1] = adjoint[1][:, :0, :, :, :0]
    arguments = _weights(*given), Tables(*arrays(*tables)), _weights(*gradients), Tables(*arrays(*adjoint))
    in_parallel([partial(backward, part, (1, T), *arguments) for part in shares(given[3], T**3 / 3)])
    return [adjoint[2][:, 0] + adjoint[3][:, 0, 0], *(x for x in gradients if x is not None)]


def _weights(push: Any, *rest: Any) -> Weights:
    *others, evidence = rest
    if evidence is None:
        evidence = push.new_zeros(*push.shape[:2], 0, push.shape[2])
    return Weights(*arrays(push, *others, evidence))
