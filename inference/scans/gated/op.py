r"""Gated recurrences from pre-activations: the part of a minimal network after its matrix product.

$$h_t = hold_t \odot h_{t-1} + draw_t \odot v_t$$

A row of pre-activations is `[gate, candidate]` or `[forget, input, candidate]`, each as wide as the state:

| gate     | parts | hold                                 | draw                                 | of |
|----------|-------|--------------------------------------|--------------------------------------|----|
| "redraw" | 2     | $1 - \sigma(g)$                     | $\sigma(g)$                         | minGRU |
| "hold"   | 2     | $\sigma(f)$                         | $1 - \sigma(f)$                     | QRNN, f and fo |
| "ratio"  | 3     | $\sigma(f) / (\sigma(f) + \sigma(i))$ | $\sigma(i) / (\sigma(f) + \sigma(i))$ | minLSTM |
| "free"   | 3     | $\sigma(f)$                         | $\sigma(i)$                         | QRNN, ifo |

| candidate  | v |
|------------|---|
| "linear"   | $c$ |
| "tanh"     | $\tanh c$ |
| "positive" | $c + 1/2$ for $c \ge 0$, else $\sigma(c)$ (Feng et al. 2024, appendix B) |
| "simplex"  | softmax over each block of units |

All but "free" take convex combinations of the old state and the candidate, so no rescaling and no logarithms are
needed: a long product of holds underflows to the 0 it stands for.
"""

import math
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import DTYPES, HALVES, check_same_dtype, common_batch
from ...numerics.op import Call, Gradients, Op, blank, in_single_precision
from ...numerics.scalars import check_choice, check_integer
from ..linear.op import states_before, through_states
from . import plain
from .plain import Activated as Activated

Gate = Literal["redraw", "hold", "ratio", "free"]
Candidate = Literal["linear", "tanh", "positive", "simplex"]
PARTS: dict[str, int] = {"redraw": 2, "hold": 2, "ratio": 3, "free": 3}


@in_single_precision
def _gradient(call: Call, grad: Tensor) -> Gradients:
    (pre, h0, *kinds), (h,) = call.inputs, call.outputs
    now = plain.activate(pre, *kinds)
    total = through_states(now.hold, grad)
    by_activation = plain.Activated(total * states_before(h0, h), total * now.value, total * now.draw)
    of_h0 = (now.hold[:, :1] * total[:, :1]).sum(1)
    return plain.activate_adjoint(pre, now, by_activation, *kinds), of_h0, None, None, None


scan: Op = Op(
    "gated_scan(Tensor pre, Tensor h0, str gate, str candidate, int block) -> Tensor",
    plain.gated_scan,
    fake=lambda pre, h0, *options: blank(h0, (*pre.shape[:2], h0.shape[1])),
    gradient=_gradient,
    by_sequence=True,
)
"""All states [N, T, D] from pre-activations [N, T, parts * D], states before them [N, D], gate, candidate and block."""


def gated_scan(
    pre: Float[Tensor, "*b T width"],
    h0: Float[Tensor, "*b0 D"],
    gate: str = "redraw",
    candidate: str = "linear",
    block: int | None = None,
) -> Float[Tensor, "*b T D"]:
    """All states of a gated recurrence from its pre-activations.

    Arguments:
        pre: the output of one matrix product, parts of width D side by side (see the tables of this module). In half
            precision (bfloat16, float16) the state is kept in float32 between steps, and rounded when given back.
        h0: the state before the first step; its batch axes equal those of `pre`, or broadcast to them.
        gate: "redraw", "hold", "ratio" or "free".
        candidate: "linear", "tanh", "positive" or "simplex".
        block: the number of units of one simplex, for candidate="simplex"; all D where None.

    Raises:
        TypeError: tables that are not floating tensors of one dtype on one device.
        ValueError: widths that do not fit together, or a gate or candidate that does not exist.

    >>> import torch
    >>> pre = torch.tensor([[0.0, 4.0], [0.0, 8.0], [-100.0, 1.0]])  # gates of one half, one half and 0
    >>> gated_scan(pre, torch.zeros(1)).squeeze(-1)
    tensor([2., 5., 5.])
    """
    check_same_dtype({"pre": pre, "h0": h0}, (*DTYPES, *HALVES), values=False)
    if pre.dim() < 2 or h0.dim() < 1:
        raise ValueError(f"pre: got shape {list(pre.shape)} and h0 {list(h0.shape)}, expected [*b, T, width], [*b, D].")
    block = check_kinds(h0.shape[-1], gate, candidate, block)
    _check_width(pre, h0.shape[-1], gate)
    batch, (steps, width), units = pre.shape[:-2], pre.shape[-2:], h0.shape[-1]
    if h0.shape[:-1] != batch and common_batch(pre=batch, h0=h0.shape[:-1]) != batch:
        raise ValueError(f"h0: got shape {list(h0.shape)}, expected {[*batch, units]}, one state for each sequence.")
    n = math.prod(batch)  # `batch.numel()` would be a constant to torch's compiler
    flat = pre.reshape(n, steps, width), h0.expand(*batch, units).reshape(n, units)
    return scan(*flat, gate, candidate, block).reshape(*batch, steps, units)


def activate(
    pre: Float[Tensor, "*b width"],
    units: int,
    gate: str = "redraw",
    candidate: str = "linear",
    block: int | None = None,
) -> Activated:
    """`hold`, `draw` and `value`, each [*b, units], of pre-activations of one step or of a whole series.

    Arguments and errors are as for `gated_scan`.
    """
    block = check_kinds(units, gate, candidate, block)
    _check_width(pre, units, gate)
    return plain.activate(pre, gate, candidate, block)


def check_kinds(units: int, gate: str, candidate: str, block: int | None) -> int:
    """The size of a block, once gate, candidate and block are known to exist and to fit the number of units."""
    for name, value, known in (("gate", gate, get_args(Gate)), ("candidate", candidate, get_args(Candidate))):
        check_choice(name, value, known)
    if block is None:
        return units
    if candidate != "simplex":
        raise ValueError(f"block: got {block} with candidate={candidate!r}; only candidate='simplex' has blocks.")
    block = check_integer("block", block)
    if units % block:
        raise ValueError(f"block: got {block}, but there are {units} units; give a divisor of {units}.")
    return block


def _check_width(pre: Tensor, units: int, gate: str) -> None:
    if pre.shape[-1] != PARTS[gate] * units:
        raise ValueError(
            f"pre: got {pre.shape[-1]} columns, but gate={gate!r} over {units} units needs {PARTS[gate]} * {units}; "
            "its columns are the gates and then the candidates."
        )
