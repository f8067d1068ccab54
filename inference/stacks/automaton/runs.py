"""Whole runs of a weighted pushdown automaton, traced back from the last step: samples, or the best run.

The top at step t has one of three origins. An element pushed at t has no past; before it, the element below it was on
top. An older element either stayed in place (its configuration was replaced), or reappeared because an element k above
it was popped at t; before that, k was on top. Each time the trace chooses the term of the table's entry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...numerics.randomness import draw_index
from .tables import Inside, Weights

PUSH, POP, REPLACE = 0, 1, 2
Choose = Callable[[Float[Tensor, "*m X"]], Int[Tensor, "*m"]]


@dataclass(frozen=True)
class Runs:
    """Whole runs of an automaton: 0 push, 1 pop, 2 replace; configuration and element on top are after the step.

    Arguments:
        log_weight: sum of the log-weights of all that the run did.
    """

    action: Int[Tensor, "n B T"]
    configuration: Int[Tensor, "n B T"]
    top: Int[Tensor, "n B T"]
    log_weight: Float[Tensor, "n B"]


def draw(generator: torch.Generator | None) -> Choose:
    """Pick with probability proportional to exp(option); makes `trace` sample."""
    return lambda options: draw_index(options, generator)


def largest(options: Float[Tensor, "*m X"]) -> Int[Tensor, "*m"]:
    """Pick the best; on the tables of best runs it makes `trace` find the best run."""
    return options.argmax(-1)


class _Top(NamedTuple):
    """The element on top of each of M runs at some step: its number, the configurations it was pushed in and is in."""

    element: Tensor
    pushed_in: Tensor
    now: Tensor


class _Past(NamedTuple):
    """What an element that was there before the step was made of: it stayed, or another one was popped off it."""

    old: Tensor  # the configuration before, if it stayed
    log_replace: Tensor  # the log-weight of that
    uncovered: Tensor  # whether another one was popped off it
    popped: Tensor  # that one
    under: Tensor  # the configuration that it was pushed on


def trace(weights: Weights, tables: Inside, n: int, choose: Choose) -> Runs:
    """n runs of each of B sequences, all M = n B at once in T turns.

    Arguments:
        choose: from the log-weights of options to the index of one of them: `draw` or `largest`.
    """
    trace_back = _TraceBack(weights, tables, n, choose)
    log_weight, steps = weights.log_pop.new_zeros(len(trace_back.run)), []
    top = trace_back.open(trace_back.n_steps, weights.log_pop.new_zeros(len(trace_back.run), weights.log_pop.shape[2]))
    for t in range(trace_back.n_steps, 0, -1):
        if weights.log_evidence is not None:
            log_weight = log_weight + weights.log_evidence[trace_back.sequence, t - 1, top.element, top.now]
        past = trace_back.past(t, top)
        pushed = top.element == t
        popped = past.uncovered & ~pushed
        steps.append((torch.where(pushed, PUSH, torch.where(popped, POP, REPLACE)), top.now, top.element))
        below, log_push = trace_back.below(t, top)
        inner, log_pop = trace_back.popped(t, top, past)
        trace_back.note(popped, pushed, _Top(top.element, top.pushed_in, past.under))
        stayed = _Top(top.element, top.pushed_in, past.old)
        top = _either(pushed, below, _either(popped, inner, stayed))
        log_weight = log_weight + torch.where(pushed, log_push, torch.where(popped, log_pop, past.log_replace))
    log_weight = log_weight + weights.log_initial[trace_back.sequence, top.now]
    action, configuration, element = (torch.stack(x[::-1], -1).unflatten(0, (n, -1)) for x in zip(*steps, strict=True))
    return Runs(action, configuration, element, log_weight.unflatten(0, (n, -1)))


class _TraceBack:
    """M runs on their way back, and for each a pile of elements that wait to be on top again.

    An element waits while one that was pushed on it, and popped later, is on top. What is on top while none waits stays
    forever, and is chosen from all that can be there.
    """

    def __init__(self, weights: Weights, tables: Inside, n: int, choose: Choose):
        B, self.n_steps, _, self.n_states = weights.log_pop.shape
        self.weights, self.tables, self.choose = weights, tables, choose
        self.sequence = torch.arange(B, device=weights.log_pop.device).repeat(n)
        self.run = torch.arange(n * B, device=self.sequence.device)
        self._waiting = torch.zeros(self.n_steps + 1, n * B, 3, dtype=torch.int64, device=self.sequence.device)
        self._n_waiting = torch.zeros_like(self.run)

    def open(self, t: int, following: Float[Tensor, "M K"]) -> _Top:
        """An element on top at t that stays forever, given the weight of later steps, by its configuration."""
        below, segment = self.tables.below[self.sequence], self.tables.segment[self.sequence, ..., t]
        index = self.choose((below[..., None] + segment + following[:, None, None]).flatten(1))
        K = following.shape[1]
        return _Top(index // (K * K), index // K % K, index % K)

    def past(self, t: int, top: _Top) -> _Past:
        """What the element on top at t was made of, if it was there before."""
        b, m, weights = self.sequence, self.run, self.weights
        of_bottom, of_others = weights.log_bottom[b, t - 1, :, top.now], weights.log_replace[b, t - 1, :, top.now]
        replace = torch.where((top.element == 0)[:, None], of_bottom, of_others)
        K, G = replace.shape[1], replace.shape[1] // self.n_states
        state, symbol = top.now // G, top.now % G
        before = self.tables.segment[b, top.element, top.pushed_in]  # [M, K, C], by configuration and time
        closed = self.tables.matched[b, t].unflatten(1, (-1, G))[m, :, symbol, state, 1:]  # [M, Q, T], by k = 1..T
        split = before.unflatten(1, (-1, G))[m, :, symbol, :-1] + closed
        index = self.choose(torch.cat([before[..., t - 1] + replace, split.flatten(1)], 1))
        old, other = index.clamp_max(K - 1), (index - K).clamp_min(0)
        popped, under = other % self.n_steps + 1, other // self.n_steps * G + symbol
        return _Past(old, replace[m, old], index >= K, popped, under)

    def popped(self, t: int, top: _Top, past: _Past) -> tuple[_Top, Tensor]:
        """The element that was popped at t as it was before, and the log-weight of the pop."""
        b, G = self.sequence, self.weights.log_pop.shape[2] // self.n_states
        pop = self.weights.log_pop[b, t - 1, :, top.now // G]
        push = self.weights.log_push[b, past.popped - 1, past.under]
        inner = self.tables.segment[b, past.popped, :, :, t - 1]
        index = self.choose((push[..., None] + inner + pop[:, None]).flatten(1))
        below = _Top(past.popped, index // pop.shape[1], index % pop.shape[1])
        return below, pop[self.run, below.now]

    def below(self, t: int, top: _Top) -> tuple[_Top, Tensor]:
        """What was on top before the element was pushed at t, and the log-weight of the push."""
        push = self.weights.log_push[self.sequence, t - 1, :, top.pushed_in]
        last = _Top._make(self._waiting[(self._n_waiting - 1).clamp_min(0), self.run].unbind(-1))
        next_below = _either(self._n_waiting > 0, last, self.open(t - 1, push))
        return next_below, push[self.run, next_below.now]

    def note(self, popped: Tensor, pushed: Tensor, under: _Top) -> None:
        """For runs that popped, the inner element comes next and the element below it waits; the other runs pushed
        it."""
        self._waiting[self._n_waiting[popped], self.run[popped]] = torch.stack(under, -1)[popped]
        self._n_waiting += popped.long() - (pushed & (self._n_waiting > 0)).long()


def _either(condition: Tensor, x: _Top, y: _Top) -> _Top:
    return _Top._make(torch.where(condition, a, b) for a, b in zip(x, y, strict=True))
