"""The weighted pushdown recursion on the CPU: the kernels behind the operator, and step by step."""

from typing import Any

import torch
from torch import Tensor

from ...numerics.native_calls import check_given
from ...numerics.op import Call
from .native_steps import Tables, Weights, advance, check_states, new_tables, retreat
from .native_tape import start
from .op import pushdown, starts

starts.kernel("cpu")(start)


@pushdown.kernel("cpu")
def inside(log_initial: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
    (B, K), T, Q, pairs = log_initial.shape, given[0].shape[1], given[3].shape[-1], ("push", "replace", "bottom")
    check_given("log_initial", log_initial, (B, K), torch.float64)
    for name, table in zip(pairs, given, strict=False):
        check_given(f"log_{name}", table, (B, T, K, K), torch.float64)
    check_given("log_pop", given[3], (B, T, K, check_states(K, Q)), torch.float64)
    if given[4] is not None:
        check_given("log_evidence", given[4], (B, T, T + 1, K), torch.float64)
    weights = _weights(*given[:-1])
    tables = new_tables(log_initial, weights.pop.shape[-1], T)
    advance((1, T), weights, tables, best=given[-1])
    return tables


def _all_runs(*inputs: Any) -> bool:
    return not inputs[-1]


@pushdown.adjoint("cpu", takes=_all_runs)
def inside_adjoint(call: Call, *grads: Tensor | None) -> list[Tensor]:
    weights, tables = _weights(*call.inputs[1:-1]), Tables._make(x.contiguous() for x in call.outputs)
    gradients = Weights._make(None if x is None else torch.zeros_like(x) for x in weights)
    adjoint = Tables._make(
        (None if k == 1 else torch.zeros_like(x)) if d is None else d.clone(memory_format=torch.contiguous_format)
        for k, (x, d) in enumerate(zip(call.outputs, grads, strict=True))
    )
    retreat((1, weights.pop.shape[1]), weights, tables, gradients, adjoint)
    return [adjoint.below[:, 0] + adjoint.log_top[:, 0, 0], *(x for x in gradients if x is not None)]


def _weights(*given: Tensor | None) -> Weights:
    return Weights._make(None if x is None else x.detach().contiguous() for x in given)
