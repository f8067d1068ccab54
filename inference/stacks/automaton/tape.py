"""The weighted pushdown recursion one step at a time on the CPU, for weights that depend on what was read before.

The steps of one run share one set of tables instead of handing them on, so forward and backward over n steps take
O(n^2) memory although every step reads all steps before it. Each step is a node of the autograd graph, tied to the step
before by an empty tensor (`link`): so the nodes run backward strictly in order, as the shared adjoint tables need.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...numerics.workers import in_parallel, kernel
from .cpu import advance as advance_tables
from .cpu import arrays, new_tables, retreat, shares


@kernel
def _forward(lo, hi, t, log_push, log_replace, log_pop, segment, matched, below, log_top):
    nothing = np.empty((0, 0))
    for b in range(lo, hi):
        advance_tables(
            t, 0, log_push[b], log_replace[b], log_replace[b], log_pop[b], nothing,
            segment[b], matched[b], below[b], log_top[b],
        )  # fmt: skip


@kernel
def _backward(lo, hi, t, log_push, log_replace, log_pop, tables, adjoint, g_replace, g_pop):
    nothing = np.empty((0, 0))
    segment, matched, below, log_top = tables
    g_segment, g_below, g_top, g_push = adjoint
    for b in range(lo, hi):
        retreat(
            t, log_push[b], log_replace[b], log_replace[b], log_pop[b], nothing,
            segment[b], matched[b], below[b], log_top[b], g_segment[b], g_below[b], g_top[b],
            g_push[b], g_replace[b], g_replace[b], g_pop[b], nothing,
        )  # fmt: skip


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
        weights = arrays(tables.log_push, replace, pop)
        run = [
            partial(_forward, lo, hi, t, *weights, *arrays(*tables.inside)) for lo, hi in shares(tables.inside, t**2)
        ]
        in_parallel(run)
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
        args = (
            *arrays(tables.log_push, replace, pop), arrays(*tables.inside), arrays(*adjoint), *arrays(g_replace, g_pop)
        )  # fmt: skip
        in_parallel([partial(_backward, lo, hi, t, *args) for lo, hi in shares(tables.inside, t**2)])
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


def start(log_initial: Tensor, n_states: int, n_steps: int = 16) -> Tape:
    """A run before its first step, with room for `n_steps` (more are made when needed). log_initial [B, K]."""
    tables = _Tables(log_initial.detach().double(), n_states, max(1, n_steps))
    return Tape(tables, 0, _Begin.apply(log_initial, tables))  # pyright: ignore[reportArgumentType]


def advance(tape: Tape, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> tuple[Tensor, Tape]:
    """log_top [B, t + 1, K] after one more step, and the longer run. The run given stays valid, and can branch."""
    tables, t = tape.tables, tape.step
    if tables.filled != t or t == tables.log_push.shape[1]:
        tables = tables.copy(t, tape.link.requires_grad)
    log_top, link = _Step.apply(tape.link, log_push, log_replace, log_pop, tables, t + 1)  # pyright: ignore
    return log_top, Tape(tables, t + 1, link)
