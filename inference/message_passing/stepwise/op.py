r"""Message passing one step at a time: mean field on the gate and the state of each step, in logit space.

The belief $Q_{t-1}(s)$ is carried forward. The joint probability of $(z_t, s_t)$ given this belief,

$$P(s, z{=}1, x_t) = \rho\, e^{j_1(s)}, \quad P(s, z{=}0, x_t) = (1-\rho)\, e^{j_0(s)}, \qquad
j_1 = \log \pi(s) + \log p(x_t \mid s, 1), \quad j_0 = \log Q_{t-1}(s) + \log p(x_t \mid s, 0),$$

is approximated by $Q(z)\,Q(s)$, with $q = Q(z_t{=}1)$:

$$\log Q(s) = q\, j_1(s) + (1-q)\, j_0(s) + \text{const}, \qquad
\text{logit}\, q = \text{logit}\, \rho + E_{Q(s)}[j_1(s) - j_0(s)].$$

Each line is the maximum of the bound of the step, given the other:

$$B_t = \log \textstyle\sum_s e^{q j_1 + (1-q) j_0} - KL(q \| \rho) \;\le\; \log P(x_t \mid Q_{t-1}).$$

It bounds the evidence of one step given the incoming belief, so the sum over steps is not a bound in general. The first
q is the exact posterior of the gate given $Q_{t-1}$. If no state is possible both when drawn and when held, it is the
more probable of 0 and 1.

**The conditional form.** The updates of $Q(z \mid x)\, Q(s \mid x, z)$ are also written without the effect of the gate
on the state,

$$\log Q(z \mid x) = E_{Q(s \mid x, z)}[\log P(x \mid s, z)] + \log P(z), \qquad
\log Q(s \mid x, z) = E_{Q(z \mid x)}[\log P(x \mid s, z)] + \log P(s),$$

up to constants. The right-hand side of the second does not depend on z, and the past enters $s_t$ only through $P(s) =
\rho\, \pi(s) + (1-\rho)\, Q_{t-1}(s)$. So these are the two lines above with $\log P(s)$ in place of both $\log \pi(s)$
and $\log Q_{t-1}(s)$: mean field in a model in which gate and state are independent before the observation. If held and
drawn states emit alike, its Q(s) is the exact filter, while its gate learns nothing and stays at $\rho$. In the first
form, "mean_field", the gate learns, and the state has errors.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import (
    check_lengths,
    check_possible,
    check_same_kind,
    check_shape,
    check_start,
    check_steps,
    common_batch,
)
from ...numerics.deferred import deferred, refuse_if
from ...numerics.op import Op, blank, tensors
from ...numerics.records import Record
from ...numerics.scalars import check_choice, check_integer
from . import plain

Form = Literal["mean_field", "conditional"]


def _fake(redrawn: Tensor, *others: Any) -> tuple[Tensor, ...]:
    by_step = (blank(redrawn, redrawn.shape[:2]) for _ in range(3))
    return blank(redrawn), *by_step, blank(others[5])


filter: Op = Op(
    "filter_vmp(Tensor log_redrawn, Tensor log_held, Tensor log_state, Tensor log_odds, Tensor log_initial, "
    f"Tensor? gate, Tensor lengths, int sweeps, bool independent) -> {tensors(5)}",
    plain.filter,
    _fake,
)
"""state [N, T, K], redraw, bound and change [N, T], and the first impossible step or -1 [N].

From log_redrawn [N, T, K], log_held [N, T, K] or [N, T, 1], log_state [N, K], log_odds [N, T], log_initial [N, K],
gate [N, T] or None, lengths [N], the number of sweeps, and whether gate and state are independent
(the conditional form).
"""


@dataclass(frozen=True, repr=False)
class VMPFiltered(Record):
    """The approximate belief after each observation; 0 beyond the end of a sequence."""

    state: Float[Tensor, "*b T K"]  # Q(s_t)
    redraw: Float[Tensor, "*b T"]  # Q(z_t = 1)
    bound: Float[Tensor, "*b T"]  # of the log evidence of the step, given the belief before it
    change: Float[Tensor, "*b T"]  # of Q(z_t = 1) in the last sweep


@deferred()
def filter_steps(
    log_redrawn: Tensor,
    log_held: Tensor,
    log_state: Tensor,
    log_odds: Tensor,
    log_initial: Tensor | None = None,
    gate: Tensor | None = None,
    lengths: Tensor | None = None,
    sweeps: int = 4,
    form: str = "mean_field",
) -> VMPFiltered:
    r"""The step-by-step filter from its tables, O(K) a step and sweep.

    Arguments:
        log_redrawn: [*b, T, K], $\log p(x_t \mid s, z_t{=}1)$.
        log_held: [*b, T, K], or [*b, T, 1] for all states alike, $\log p(x_t \mid s, z_t{=}0)$.
        log_state: [*b, K], $\log \pi(s)$, normalised.
        log_odds: [*b, T], $\text{logit}\, \rho_t$.
        log_initial: [*b, K], $\log P(s_0)$, normalised; None: the first step redraws, whatever
            `log_odds` and `gate` say.
        gate: [*b, T], $Q(z_t{=}1)$ where it is given and not inferred; there is nothing to sweep over then.
        lengths: [*b], each sequence's number of steps.
        sweeps: updates of gate and state at each step.
        form: "mean_field" or "conditional", see the module's equations.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device.
        ValueError: shapes that do not fit, gates outside [0, 1], sweeps < 1; an observation that is impossible.

    >>> import torch
    >>> log_redrawn = torch.tensor([[0.0, -5.0], [-5.0, 0.0]])  # the second observation fits the other state
    >>> found = filter_steps(log_redrawn, log_redrawn, torch.tensor([0.5, 0.5]).log(), torch.zeros(2))
    >>> found.redraw, found.state[1].argmax()
    (tensor([1.0000, 0.9863]), tensor(1))
    """
    check_same_kind(
        "log_initial",
        "gate",
        log_redrawn=log_redrawn,
        log_held=log_held,
        log_state=log_state,
        log_odds=log_odds,
        log_initial=log_initial,
        gate=gate,
    )
    _check_arguments(gate, sweeps, form)
    steps, states = check_steps("log_redrawn", log_redrawn)
    batch = common_batch(
        log_redrawn=log_redrawn.shape[:-2],
        log_held=check_shape("log_held", log_held, (steps, states), (steps, 1)),
        log_state=check_shape("log_state", log_state, (states,)),
        log_odds=check_shape("log_odds", log_odds, (steps,)),
        log_initial=check_shape("log_initial", log_initial, (states,)),
        gate=check_shape("gate", gate, (steps,)),
    )
    check_start(log_initial)
    counts = check_lengths(lengths, batch, steps, log_redrawn.device)
    if log_initial is None:
        first = torch.arange(steps, device=log_odds.device) == 0
        log_initial, log_odds = log_state, log_odds.masked_fill(first, torch.inf)
        gate = None if gate is None else gate.masked_fill(first, 1.0)

    def flat(table: Tensor, *axes: int) -> Tensor:
        return table.expand(*batch, *axes).reshape(-1, *axes)

    tables = (flat(log_redrawn, steps, states), flat(log_held, *log_held.shape[-2:]), flat(log_state, states))
    tables = (*tables, flat(log_odds, steps), flat(log_initial, states), None if gate is None else flat(gate, steps))
    results = filter(*tables, counts.reshape(-1), sweeps, form == "conditional")
    check_possible(results[-1].reshape(batch), log_redrawn=log_redrawn, log_held=log_held)
    return VMPFiltered(*(table.reshape(*batch, *table.shape[1:]) for table in results[:-1]))


def _check_arguments(gate: Tensor | None, sweeps: int, form: str) -> None:
    check_integer("sweeps", sweeps)
    check_choice("form", form, get_args(Form))
    if gate is None:
        return
    bad = ~((gate >= 0) & (gate <= 1))

    def complain() -> None:
        raise ValueError(f"gate: got {float(gate[bad][0])}, expected probabilities; pass logits through a sigmoid.")

    refuse_if(bad.any(), complain)
