r"""Linear recurrences over time, element by element.

$$h_t = a_t \odot h_{t-1} + b_t \qquad\qquad h_t = (1 - gate_t) \odot h_{t-1} + gate_t \odot value_t$$

The second is the first with $a = 1 - gate$ and $b = gate \odot value$, the update of a minGRU. Both are computed as
they are written, without logarithms: a long product of small $a_t$ underflows to the 0 that it stands for.

The gradient runs the same recurrence backward in time. With $\bar h_t$ the gradient of the loss with respect to $h_t$
through all that comes after,

$$\bar h_t = \partial L / \partial h_t + a_{t+1} \odot \bar h_{t+1}, \qquad
\bar b_t = \bar h_t, \quad \bar a_t = \bar h_t \odot h_{t-1}, \quad \bar h_0 = a_1 \odot \bar h_1 .$$
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import DTYPES, HALVES, check_same_dtype, check_table, common_batch
from ...numerics.op import Call, Gradients, Op, blank, in_single_precision
from . import plain


def through_states(hold: Tensor, grad: Tensor) -> Tensor:
    r"""$\bar h_t = grad_t + hold_{t+1} \bar h_{t+1}$, [N, T, D]: of a loss, through every state and all after it."""
    after = torch.cat([hold[:, 1:], torch.zeros_like(hold[:, :1])], 1)
    return scan(after.flip(1), grad.flip(1), grad.new_zeros(grad.shape[0], grad.shape[2]), False).flip(1)


def states_before(h0: Tensor, h: Tensor) -> Tensor:
    """The state before each step, [N, T, D]."""
    return torch.cat([h0[:, None], h], 1)[:, :-1]


@in_single_precision
def _gradient(call: Call, grad: Tensor) -> Gradients:
    (first, second, h0, lerp), (h,) = call.inputs, call.outputs
    hold = 1 - first if lerp else first
    total, before = through_states(hold, grad), states_before(h0, h)
    of_h0 = (hold[:, :1] * total[:, :1]).sum(1)
    return (total * (second - before), total * first, of_h0, None) if lerp else (total * before, total, of_h0, None)


scan: Op = Op(
    "linear_scan(Tensor first, Tensor second, Tensor h0, bool lerp) -> Tensor",
    plain.scan,
    fake=lambda first, second, h0, lerp: blank(second),
    gradient=_gradient,
    by_sequence=True,
)
"""`h_t = first_t h_{t-1} + second_t`, or `h_t = (1 - first_t) h_{t-1} + first_t second_t` if `lerp`.

From first and second [N, T, D] and h0 [N, D] to all states [N, T, D].
"""


def linear_scan(a: Tensor, b: Tensor, h0: Tensor | None = None) -> Float[Tensor, "*b T D"]:
    r"""All states of $h_t = a_t h_{t-1} + b_t$.

    Arguments:
        a: [*b, T, D], any real numbers. In half precision (bfloat16, float16) the state is kept in float32 between
            steps, and rounded where it is given back.
        b: [*b, T, D].
        h0: [*b, D], the state before the first step; zeros if None. Batch axes broadcast.

    Returns:
        h_1..T, [*b, T, D]. Differentiable in every argument, any number of times.

    Raises:
        TypeError: arguments that are not floating tensors of one dtype on one device.
        ValueError: shapes that do not fit together; h0 that is not finite.

    See Also:
        `lerp_scan`, whose two factors sum to 1; docs/quality/benchmarks.md, on its speed.

    >>> import torch
    >>> linear_scan(torch.full((3, 1), 0.5), torch.ones(3, 1)).squeeze(-1)
    tensor([1.0000, 1.5000, 1.7500])
    """
    return _scan(False, ("a", "b"), a, b, h0)


def lerp_scan(gate: Tensor, value: Tensor, h0: Tensor | None = None) -> Float[Tensor, "*b T D"]:
    r"""All states of $h_t = (1 - gate_t) h_{t-1} + gate_t value_t$, as in a minGRU (Feng et al. 2024).

    A gate of exactly 0 keeps the state and a gate of exactly 1 takes the value, both without rounding.

    Arguments:
        gate: [*b, T, D], usually in [0, 1]. In half precision (bfloat16, float16) the state is kept in float32 between
            steps, and rounded where it is given back.
        value: [*b, T, D].
        h0: [*b, D], the state before the first step; zeros if None. Batch axes broadcast.

    Returns:
        h_1..T, [*b, T, D]. Differentiable in every argument, any number of times.

    Raises:
        TypeError: arguments that are not floating tensors of one dtype on one device.
        ValueError: shapes that do not fit together; h0 that is not finite.

    See Also:
        `linear_scan`, with free factors; `MinGRU`, a layer that runs on it; docs/quality/benchmarks.md, on its speed.

    >>> import torch
    >>> gate, value = torch.tensor([[1.0], [0.0], [0.5]]), torch.tensor([[4.0], [9.0], [8.0]])
    >>> lerp_scan(gate, value).squeeze(-1)
    tensor([4., 4., 6.])
    """
    return _scan(True, ("gate", "value"), gate, value, h0)


def _scan(lerp: bool, names: tuple[str, str], first: Tensor, second: Tensor, h0: Tensor | None) -> Tensor:
    named = {**dict(zip(names, (first, second), strict=True)), "h0": h0}
    check_same_dtype(named, (*DTYPES, *HALVES), ["h0"], values=False)
    for name, table in zip(names, (first, second), strict=True):
        if table.dim() < 2 or table.shape[-2:] != second.shape[-2:]:
            shapes = f"{names[0]} {list(first.shape)}, {names[1]} {list(second.shape)}"
            raise ValueError(f"{name}: got {shapes}; expected both as [*batch, T, D] with the same T and D.")
    steps, width = second.shape[-2:]
    if h0 is not None and h0.shape[-1:] != (width,):
        raise ValueError(f"h0: got shape {list(h0.shape)}; expected [*batch, {width}], one state for each sequence.")
    if h0 is not None and not torch.compiler.is_compiling():
        check_table("h0", h0, like=second, finite=True)
    leading = None if h0 is None else h0.shape[:-1]
    batch = common_batch(**dict(zip(names, (first.shape[:-2], second.shape[:-2]), strict=True)), h0=leading)
    if h0 is None:
        h0 = second.new_zeros(*batch, width)
    size = math.prod(batch)
    tables = [table.expand(*batch, steps, width).reshape(size, steps, width) for table in (first, second)]
    start = h0.expand(*batch, width).reshape(size, width)
    return scan(*tables, start, lerp).reshape(*batch, steps, width)
