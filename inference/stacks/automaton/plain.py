"""The weighted pushdown recursion in plain torch: a step at a time over all sequences, elements and split points.

For any device, and differentiable any number of times.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.logs import log_sum_exp


def _largest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.amax(dims)


class Tape(NamedTuple):
    """A run after some steps; element c is the one pushed at step c, the bottom is element 0.

    Arguments:
        segments: for each time t, [B, t + 1, K, K]: from c newly on top in some configuration to c on top at t.
        below: for each element, [B, K]: everything that ends with pushing it in a configuration.
        log_push: for each step, [B, K, K].
        matched: [B, t - 1, K, Q], elements pushed at each step before the last and popped at the last.
        log_top: [B, t + 1, K], all runs with an element on top at the last time.
    """

    segments: tuple[Tensor, ...]
    below: tuple[Tensor, ...]
    log_push: tuple[Tensor, ...]
    matched: Tensor
    log_top: Tensor
    best: bool

    def advance(self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> tuple[Tensor, "Tape"]:
        """See the function `advance`."""
        return advance(self, log_push, log_replace, log_pop)

    def detach(self) -> "Tape":
        """The same run, whose steps so far no gradient reaches."""
        segments, below, pushes = (tuple(map(Tensor.detach, x)) for x in (self.segments, self.below, self.log_push))
        return Tape(segments, below, pushes, self.matched.detach(), self.log_top.detach(), self.best)


def advance(
    tape: Tape,
    log_push: Float[Tensor, "B K K"],
    log_replace: Float[Tensor, "B K K"],
    log_pop: Float[Tensor, "B K Q"],
    log_bottom: Float[Tensor, "B K K"] | None = None,
    log_evidence: Float[Tensor, "B C K"] | None = None,
) -> tuple[Float[Tensor, "B n K"], Tape]:
    """log_top [B, t + 1, K] after one more step, and the longer run."""
    add: Callable[[Tensor, tuple[int, ...]], Tensor] = _largest if tape.best else log_sum_exp
    t, Q = len(tape.segments), log_pop.shape[-1]
    (B, K), G = tape.below[0].shape, tape.below[0].shape[1] // Q
    last = tape.segments[-1]
    held = log_replace[:, None].expand(B, t, K, K)
    if log_bottom is not None:
        held = torch.cat([log_bottom[:, None], held[:, 1:]], 1)
    terms = [add(last[..., None] + held[:, :, None], (-2,))[..., None]]
    matched = tape.matched[:, :0]
    if t > 1:
        back = add(last[:, 1:, ..., None] + log_pop[:, None, None], (-2,))
        matched = add(torch.stack(tape.log_push, 1)[..., None] + back[:, :, None], (-2,))
        spans = torch.stack([_padded(s, t) for s in tape.segments[:-1]], 2)  # [B, c, k, K, K]
        spans = spans.unflatten(-1, (Q, G)).unsqueeze(-2)  # [B, c, k, a, u, 1, y]
        split = spans + matched.unflatten(2, (Q, G)).transpose(-1, -2)[:, None, :, None]
        terms.append(add(split, (2, 4)).flatten(-2)[..., None])
    segment = torch.cat([add(torch.cat(terms, -1), (-1,)), _identity(log_push[:, 0])], 1)
    if log_evidence is not None:
        segment = segment + log_evidence[:, : t + 1, None]
    reached = add(tape.log_top, (1,))
    below = (*tape.below, add(reached[..., None] + log_push, (-2,)))
    log_top = add(torch.stack(below, 1)[..., None] + segment, (-2,))
    segments, pushes = (*tape.segments, segment), (*tape.log_push, log_push)
    return log_top, Tape(segments, below, pushes, matched, log_top, tape.best)


def start(log_initial: Float[Tensor, "B K"], n_states: int, n_steps: int = 0, best: bool = False) -> Tape:
    """A run before its first step."""
    B, K = log_initial.shape
    none = log_initial.new_zeros(B, 0, K, n_states)
    return Tape((_identity(log_initial),), (log_initial,), (), none, log_initial[:, None], best)


def pushdown(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tables of all steps; see `op.pushdown`."""
    log_initial, log_push, log_replace, log_bottom, log_pop, log_evidence, best = arguments
    n = log_push.shape[1] + 1
    tape = start(log_initial, int(log_pop.shape[-1]), best=best)
    matched, log_top = [_padded(tape.matched, n)], [_padded(tape.log_top, n)]
    evidence = [None] * (n - 1) if log_evidence is None else log_evidence.unbind(1)
    weights = (x.unbind(1) for x in (log_push, log_replace, log_pop, log_bottom))
    for push, replace, pop, bottom, e in zip(*weights, evidence, strict=True):
        top, tape = advance(tape, push, replace, pop, bottom, e)
        matched.append(_padded(torch.cat([_padded(tape.matched[:, :0], 1), tape.matched], 1), n))
        log_top.append(_padded(top, n))
    segment = torch.stack([_padded(s, n).permute(0, 3, 1, 2) for s in tape.segments], 1)
    return segment, torch.stack(matched, 1).movedim(2, -1), torch.stack(tape.below, 1), torch.stack(log_top, 1)


def _identity(like: Tensor) -> Tensor:
    """[B, 1, K, K]: an element newly on top is in the configuration it was pushed in."""
    K = like.shape[-1]
    eye = torch.eye(K, dtype=torch.bool, device=like.device)
    table = torch.where(eye, 0.0, -torch.inf).to(like.dtype)
    return table.expand(like.shape[0], 1, K, K)


def _padded(x: Tensor, n: Any) -> Tensor:
    """x [B, m, ...] with -inf appended along axis 1 up to length n, which may be symbolic."""
    return torch.cat([x, x.new_full((x.shape[0], n - x.shape[1], *x.shape[2:]), -torch.inf)], 1)
