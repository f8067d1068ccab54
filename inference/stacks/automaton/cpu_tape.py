"""The weighted pushdown recursion one step at a time on the CPU, for weights that depend on what was read before.

The steps of one run share one set of tables instead of handing them on, so forward and backward over n steps take
O(n^2) memory although every step reads all steps before it. An operator could not do that: what it computes depends on
its arguments alone, and its derivatives are its own. So each step is a node of the autograd graph, tied to the step
before by an empty tensor (`link`): the nodes run backward strictly in order, as the shared adjoint tables need.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...numerics.threads import in_parallel, ranges
from .cpu_recursion import Tables, Weights, backward, forward

_MIN_WORK = 200_000  # terms a thread should have before a second one pays


def new_tables(log_initial: Tensor, n_states: int, n_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """segment, matched, below and log_top before the first step: one element, the bottom, on top of nothing."""
    B, K = log_initial.shape
    times = n_steps + 1
    full = partial(torch.full, fill_value=-torch.inf, dtype=torch.float64)
    segment, matched = full((B, times, K, times, K)), full((B, times, K, n_states, times))
    below, log_top = full((B, times, K)), full((B, times, times, K))
    segment[:, 0, :, 0].diagonal(dim1=-2, dim2=-1).zero_()
    below[:, 0] = log_initial
    log_top[:, 0, 0] = log_initial
    return segment, matched, below, log_top


def arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(x.detach().contiguous().numpy() for x in tensors)


def shares(tables: tuple[Tensor, ...], pairs: float) -> list[tuple[int, int]]:
    """Sequences for each thread, given the pairs of times that are summed over in each."""
    B, _, K, Q = tables[1].shape[:4]
    return ranges(B, at_least=int(_MIN_WORK / (K * K * Q * pairs / 2 + 1)) + 1)


def _of_step(push: Tensor, replace: Tensor, pop: Tensor) -> Weights:
    """The weights of one step, or their adjoints: no evidence, and the bottom is replaced as any other element."""
    pushed, replaced, popped = arrays(push, replace.unsqueeze(1), pop.unsqueeze(1))
    return Weights(pushed, replaced, replaced, popped, np.empty((len(pushed), 1, 0, 0)))


class _Tables:
    """The shared tables of one run, filled up to some step, and their adjoint while a backward pass is under way."""

    def __init__(self, log_initial: Tensor, n_states: int, capacity: int):
        B, K = log_initial.shape
        self.inside = new_tables(log_initial, n_states, capacity)
        self.log_push = torch.full((B, capacity, K, K), -torch.inf, dtype=torch.float64)
        self.filled = 0
        self.source: _Tables | None = None  # the tables this one was copied from, and up to which step
        self.copied = 0
        self._adjoint: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._pass: int | None = None

    def copy(self, t: int, differentiable: bool) -> "_Tables":
        """The first t steps, with room for as many again: the original's later steps stay its own."""
        segment, matched, below, log_top = self.inside
        new = _Tables(below[:, 0], matched.shape[3], max(16, 2 * t))
        n = t + 1
        new.inside[0][:, :n, :, :n] = segment[:, :n, :, :n]
        new.inside[1][:, :n, :, :, :n] = matched[:, :n, :, :, :n]
        new.inside[2][:, :n] = below[:, :n]
        new.inside[3][:, :n, :n] = log_top[:, :n, :n]
        new.log_push[:, :t] = self.log_push[:, :t]
        new.filled = new.copied = t
        new.source = self if differentiable else None
        return new

    def adjoint(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients collected by the backward pass that is running now; zeros when it has just begun."""
        current = torch._C._current_graph_task_id()  # pyright: ignore[reportAttributeAccessIssue]
        if self._adjoint is None or self._pass != current:
            segment, _, below, log_top = self.inside
            zeros = torch.zeros_like
            self._adjoint, self._pass = (zeros(segment), zeros(below), zeros(log_top), zeros(self.log_push)), current
        return self._adjoint

    def hand_back(self) -> None:
        """Add what this copy has collected about the steps it was copied with to the original."""
        if self.source is not None:
            n = self.copied + 1
            g_segment, g_below, g_top, g_push = self.adjoint()
            s_segment, s_below, s_top, s_push = self.source.adjoint()
            s_segment[:, :n, :, :n] += g_segment[:, :n, :, :n]
            s_below[:, :n] += g_below[:, :n]
            s_top[:, :n, :n] += g_top[:, :n, :n]
            s_push[:, : n - 1] += g_push[:, : n - 1]


class _Begin(torch.autograd.Function):
    """Step 0: an empty link whose backward returns the gradient of the initial weights, the last thing to be known."""

    @staticmethod
    def forward(ctx: Any, log_initial: Tensor, tables: _Tables) -> Tensor:
        ctx.tables, ctx.dtype = tables, log_initial.dtype
        return log_initial.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        _, g_below, g_top, _ = ctx.tables.adjoint()
        return (g_below[:, 0] + g_top[:, 0, 0]).to(ctx.dtype), None


class _Step(torch.autograd.Function):
    """One step of the recursion: from its weights to the log-weight of every element on top."""

    @staticmethod
    def forward(
        ctx: Any, link: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, tables: _Tables, t: int
    ) -> tuple[Tensor, Tensor]:
        replace, pop = log_replace.double(), log_pop.double()
        tables.log_push[:, t - 1] = log_push
        tables.filled = t
        arguments = (t, t), 0, _of_step(tables.log_push, replace, pop), Tables(*arrays(*tables.inside))
        in_parallel([partial(forward, part, *arguments) for part in shares(tables.inside, t**2)])
        ctx.save_for_backward(replace, pop)
        ctx.tables, ctx.t, ctx.dtype = tables, t, log_push.dtype
        return tables.inside[3][:, t, : t + 1].to(log_push.dtype, copy=True), link.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_top: Tensor, grad_link: Tensor) -> tuple[Tensor | None, ...]:
        replace, pop = ctx.saved_tensors
        tables, t = ctx.tables, ctx.t
        adjoint = tables.adjoint()
        adjoint[2][:, t, : t + 1] += grad_top
        g_replace, g_pop = torch.zeros(replace.shape, dtype=replace.dtype), torch.zeros(pop.shape, dtype=pop.dtype)
        segment, below, log_top = arrays(*adjoint[:3])
        arguments = (
            (t, t),
            _of_step(tables.log_push, replace, pop),
            Tables(*arrays(*tables.inside)),
            _of_step(adjoint[3], g_replace, g_pop),
            Tables(segment, np.empty((len(segment), 0, 0, 0, 0)), below, log_top),
        )
        in_parallel([partial(backward, part, *arguments) for part in shares(tables.inside, t**2)])
        g_push = adjoint[3][:, t - 1].to(ctx.dtype, copy=True)
        if t == tables.copied + 1:
            tables.hand_back()
        return grad_link, g_push, g_replace.to(ctx.dtype), g_pop.to(ctx.dtype), None, None


@dataclass(frozen=True)
class Tape:
    """A run after some steps: the shared tables, how far it has come, and the link to its last step."""

    tables: _Tables
    step: int
    link: Tensor

    def advance(self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> tuple[Tensor, "Tape"]:
        """log_top [B, t + 1, K] after one more step, and the longer run. This one stays valid, and can branch."""
        tables, t = self.tables, self.step
        if tables.filled != t or t == tables.log_push.shape[1]:
            tables = tables.copy(t, self.link.requires_grad)
        weights = log_push, log_replace, log_pop
        log_top, link = _Step.apply(self.link, *weights, tables, t + 1)  # pyright: ignore[reportGeneralTypeIssues]
        return log_top, Tape(tables, t + 1, link)


def start(log_initial: Tensor, n_states: int, n_steps: int = 16) -> Tape:
    """A run before its first step, with room for `n_steps` (more are made when needed). log_initial [B, K]."""
    tables = _Tables(log_initial.detach().double(), n_states, max(1, n_steps))
    return Tape(tables, 0, _Begin.apply(log_initial, tables))  # pyright: ignore[reportArgumentType]
