r"""The weighted pushdown recursion: stacks whose actions have any weights, or whose top is observed.

Weights that do not sum to one, or evidence about the top, couple the actions of all steps. A configuration is a state q
with a top symbol x; step t pushes ($q x \to r y$, x stays below), replaces ($q x \to r y$) or pops ($q x \to r$).
Number elements by the step that pushed them, 0 being the bottom, which is never popped. Then

$$N_t[c] = e_t(c) \Big( N_{t-1}[c]\, replace_t + \sum_{c<k<t} N_{k-1}[c]\, M_t[k] \Big), \qquad N_c[c] = e_c(c)\, I,$$
$$M_t[k] = push_k\, N_{t-1}[k]\, pop_t, \qquad F_t[c] = B_c\, N_t[c], \qquad
B_c = \Big(\sum_{c'} F_{c-1}[c']\Big)\, push_c$$

$N_t[c]$ is the weight from element c newly on top to c on top at t (a matrix over configurations), $M_t[k]$ that of an
element pushed at k and popped at t, e the evidence that c is on top at t, $F_t[c]$ the weight of all runs with c on top
at t, and $B_0$ the initial weight. (Lang 1974; DuSell & Chiang 2020 index the same sums by the element under c.)
$O(T^3)$ time and $O(T^2)$ memory, all in logs. With `max` for the sum the same tables hold the best runs.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.arrays import ordinary
from ...numerics.op import Op, Variants, blank, tensors
from . import plain
from .runs import Choose as Choose
from .runs import Runs as Runs
from .runs import draw as draw
from .runs import largest as largest
from .runs import trace as trace
from .tables import Inside as Inside
from .tables import Weights as Weights


def _fake(initial: Tensor, push: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (B, T, K), Q = push.shape[:3], others[2].shape[-1]
    shapes = (B, T + 1, K, T + 1, K), (B, T + 1, K, Q, T + 1), (B, T + 1, K), (B, T + 1, T + 1, K)
    segment, matched, below, log_top = (blank(initial, shape) for shape in shapes)
    return segment, matched, below, log_top


pushdown: Op = Op(
    "pushdown(Tensor log_initial, Tensor log_push, Tensor log_replace, Tensor log_bottom, Tensor log_pop, "
    f"Tensor? log_evidence, bool best) -> {tensors(4)}",
    plain.pushdown,
    _fake,
)
"""The tables of `Inside`, but segment by time, configuration at that time, element, and configuration newly on top.

From the tables of `Weights` in float64, and whether to take the best runs instead of all.
"""


def inside(weights: Weights, best: bool = False) -> Inside:
    """The tables of all runs, or with `best` of the best runs, in float64; differentiable any number of times.

    >>> half = torch.tensor(0.5).log().reshape(1, 1, 1, 1).expand(1, 3, 1, 1)  # push or pop, three times
    >>> never = torch.full_like(half, -torch.inf)
    >>> weights = Weights(torch.zeros(1, 1), half, never, half, half)  # a pop on the bottom holds it
    >>> inside(weights).log_top[0, -1].exp().flatten()  # elements 0 to 3 on top in the end
    tensor([0.3750, 0.1250, 0.0000, 0.5000], dtype=torch.float64)
    """
    tables = [None if x is None else x.double() for x in vars(weights).values()]
    segment, matched, below, log_top = pushdown(*tables, best)
    return Inside(segment.permute(0, 3, 4, 2, 1), matched, below, log_top)


def inside_differentiable(weights: Weights) -> Inside:
    """As `inside`, whose tables can all be differentiated."""
    return inside(weights)


@runtime_checkable
class Tape(Protocol):
    """A run after some steps."""

    def advance(self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> tuple[Tensor, "Tape"]:
        """See the function `advance`."""
        ...


starts: Variants = Variants(plain.start)
"""The start of a run. It is not an operator, because the steps of a run share computations and their derivative."""


def start(log_initial: Float[Tensor, "B K"], n_states: int, n_steps: int = 16) -> Tape:
    """A run before its first step, to be lengthened by `advance`; `n_steps` is a guess of how long it gets."""
    return starts(log_initial, n_states, n_steps)


def advance(
    tape: Any, log_push: Float[Tensor, "B K K"], log_replace: Float[Tensor, "B K K"], log_pop: Float[Tensor, "B K Q"]
) -> tuple[Float[Tensor, "B n K"], Tape]:
    """log_top [B, t + 1, K] after one more step, differentiable, and the longer run; the given run stays valid.

    >>> half = torch.tensor([[[0.5]]]).log()  # push or pop, one state and symbol
    >>> log_top, run = advance(start(torch.zeros(1, 1), n_states=1), half, torch.full_like(half, -torch.inf), half)
    >>> log_top.exp().flatten()  # a pop on the bottom has no weight: half of the runs are left, with the new one on top
    tensor([0.0000, 0.5000])
    """
    weights = log_push, log_replace, log_pop
    return plain.advance(tape, *weights) if isinstance(tape, plain.Tape) else tape.advance(*weights)


Push = Callable[[Float[Tensor, "B n L"], int, int], Float[Tensor, "B n L"]]


def carry(weights: Weights, tables: Inside, bottom: Float[Tensor, "B L"], push: Push) -> Float[Tensor, "B T L"]:
    r"""Posterior expectation, at every step, of a label of the whole stack; one configuration only (K = 1).

    The label of the bottom is given, and pushing element k turns a label linearly into `push(labels, first, last)` for
    k = first..last-1. So the depth is a one-hot label that a push shifts, and the cells are a label that a push shifts
    while it writes the value on top. Expectations run down the derivations as probabilities do in the outside pass:

    $$D_t[c] = P(c\ \text{on top at}\ t \mid \text{all})\; E[label \mid c\ \text{on top at}\ t, \text{all}]$$

    O(T^3 L) time and O(T^2 L) memory.

    Arguments:
        tables: of `inside`.
        push: from labels, one for each of some elements, and the first and the end of their numbers, to labels with
            these elements pushed.
    """
    B, T = weights.log_pop.shape[:2]
    N, M = tables.segment[:, :, 0, 0], tables.matched[:, :, 0, 0]
    share_top = tables.log_top[..., 0].softmax(-1)  # [B, t, c]
    filtered, opened = bottom[:, None], bottom[:, None]  # labels by time, and by element if it is open for ever
    for t in range(1, T + 1):
        opened = torch.cat([opened, push(filtered[:, t - 1 :], t, t + 1)], 1)
        filtered = torch.cat([filtered, share_top[:, t, None, : t + 1] @ opened], 1)
    stays = [share_top.new_ones(B)]  # probability that nothing on the stack at time t is touched later, from t = T down
    for t in range(T, 0, -1):
        stays.append((torch.stack(stays[::-1], 1) * share_top[:, t:, t]).sum(1))
    ends = torch.stack(stays[::-1], 1)
    D = bottom.new_zeros(B, T + 1, T + 1, bottom.shape[-1])  # by c and t
    D = D + ((ends[..., None] * share_top).transpose(1, 2)[..., None] * opened[:, :, None])
    cells = []
    for t in range(T, 0, -1):
        cells.append(D[:, : t + 1, t].sum(1))
        now = D[:, :t, t].clone()
        log_total = N[:, :t, t] if weights.log_evidence is None else N[:, :t, t] - weights.log_evidence[:, t - 1, :t, 0]
        log_total = torch.where(N[:, :t, t].isneginf(), torch.inf, log_total)
        held = torch.cat([weights.log_bottom[:, t - 1, 0], weights.log_replace[:, t - 1, 0].expand(B, t - 1)], 1)
        D[:, :t, t - 1] += (N[:, :t, t - 1] + held - log_total).exp()[..., None] * now
        split = (N[:, :t, : t - 1] + M[:, t, None, 1:t] - log_total[..., None]).exp()  # [B, c, k]
        D[:, :t, : t - 1] += split[..., None] * now[:, :, None]
        D[:, 1:t, t - 1] += push(split.transpose(1, 2) @ now, 1, t)
    return torch.stack(cells[::-1], 1)


def expected_use(build: Callable[..., Weights], *leaves: Tensor) -> tuple[Tensor, ...]:
    """How often a run uses each leaf: the gradient of log Z, where `build(*leaves)` makes the weights from log-weights.

    Shaped like the leaves; differentiable in turn if a leaf needs a gradient.
    """
    again = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
    with torch.enable_grad():
        inputs = [x.view_as(x) if x.requires_grad else ordinary(x).detach().requires_grad_() for x in leaves]
        weights = build(*inputs)
        total = log_total(inside(weights)).sum()
        return torch.autograd.grad(total, inputs, create_graph=again, materialize_grads=True)  # no pop at T = 1


def log_total(tables: Inside) -> Float[Tensor, " B"]:
    """log Z of all runs: the log of the sum of the weights of all runs of T steps."""
    return torch.logsumexp(tables.log_top[:, -1].flatten(1), -1)


def vanished(tables: Inside) -> tuple[int, int] | None:
    """The first sequence that no run survives, with the step, counted from 0, at which the last one dies; or None."""
    dead = tables.log_top.detach().flatten(2).amax(-1).isneginf()
    if not dead.any():
        return None
    sequence = int(dead.any(1).nonzero()[0])
    return sequence, int(dead[sequence].nonzero()[0]) - 1
