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


def shares(log_pop: Tensor, pairs: float) -> list[tuple[int, int]]:
    """Sequences for each thread, given the pairs of times that are summed over in each, and weights of pops."""
    B, K, Q = log_pop.shape[0], *log_pop.shape[-2:]
    return ranges(B, at_least=int(_MIN_WORK / (K * K * Q * pairs / 2 + 1)) + 1)


class _Memory:
    """The tables of a run or their adjoints, as tensors and, on the same memory, as arrays for the kernels."""

    def __init__(self, push: Tensor, *tables: Tensor):
        self.all = push, *tables
        self.log_top, self.below = tables[3], tables[2]
        self._push, *rest = arrays(*self.all)
        self.tables = Tables(*rest)

    def weights(self, replace: Tensor, pop: Tensor) -> Weights:
        """What the kernels take of one step: no evidence, and the bottom is replaced as any other element."""
        replaced, popped = arrays(replace.unsqueeze(1), pop.unsqueeze(1))
        return Weights(self._push, replaced, replaced, popped, np.empty((len(popped), 1, 0, 0)))

    def until(self, t: int) -> tuple[Tensor, ...]:
        """The parts that belong to times 0..t."""
        push, segment, matched, below, log_top = self.all
        n = t + 1
        return push[:, :t], segment[:, :n, :, :n], matched[:, :n, :, :, :n], below[:, :n], log_top[:, :n, :n]


class _Run:
    """The memory that the steps of one run share, and its adjoint while a backward pass is under way."""

    def __init__(self, log_initial: Tensor, n_states: int, capacity: int):
        B, K = log_initial.shape
        push = torch.full((B, capacity, K, K), -torch.inf, dtype=torch.float64)
        self.memory = _Memory(push, *new_tables(log_initial, n_states, capacity))
        self.capacity, self.n_states = capacity, n_states
        self.filled = 0
        self.source: _Run | None = None  # the run that this one was copied from, and up to which step
        self.copied = 0
        self._adjoint: _Memory | None = None
        self._pass: int | None = None

    def copy(self, t: int, differentiable: bool) -> "_Run":
        """The first t steps, with room for as many again: the original's later steps stay its own."""
        new = _Run(self.memory.below[:, 0], self.n_states, max(16, 2 * t))
        for mine, given in zip(new.memory.until(t), self.memory.until(t), strict=True):
            mine.copy_(given)
        new.filled = new.copied = t
        new.source = self if differentiable else None
        return new

    def adjoint(self) -> _Memory:
        """The gradients collected by the backward pass that is running now; zeros when it has just begun."""
        current = torch._C._current_graph_task_id()  # pyright: ignore[reportAttributeAccessIssue]
        if self._adjoint is None or self._pass != current:
            push, segment, matched, below, log_top = self.memory.all
            unused = matched[:, :0, :, :, :0]  # nothing reads what was matched
            zeros = (torch.zeros_like(x) for x in (push, segment, unused, below, log_top))
            self._adjoint, self._pass = _Memory(*zeros), current
        return self._adjoint

    def hand_back(self) -> None:
        """Add what this copy has collected about the steps it was copied with to the original."""
        if self.source is not None:
            theirs, mine = self.source.adjoint().until(self.copied), self.adjoint().until(self.copied)
            for total, part in zip(theirs, mine, strict=True):
                total += part


class _Begin(torch.autograd.Function):
    """Step 0: an empty link whose backward returns the gradient of the initial weights, the last thing to be known."""

    @staticmethod
    def forward(ctx: Any, log_initial: Tensor, run: _Run) -> Tensor:
        ctx.run, ctx.dtype = run, log_initial.dtype
        return log_initial.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        adjoint = ctx.run.adjoint()
        return (adjoint.below[:, 0] + adjoint.log_top[:, 0, 0]).to(ctx.dtype), None


class _Step(torch.autograd.Function):
    """One step of the recursion: from its weights to the log-weight of every element on top."""

    @staticmethod
    def forward(
        ctx: Any, link: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, run: _Run, t: int
    ) -> tuple[Tensor, Tensor]:
        replace, pop, memory = log_replace.double(), log_pop.double(), run.memory
        memory.all[0][:, t - 1] = log_push
        run.filled = t
        arguments = (t, t), 0, memory.weights(replace, pop), memory.tables
        in_parallel([partial(forward, part, *arguments) for part in shares(pop, t**2)])
        ctx.save_for_backward(replace, pop)
        ctx.run, ctx.t, ctx.dtype = run, t, log_push.dtype
        return memory.log_top[:, t, : t + 1].to(log_push.dtype, copy=True), link.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_top: Tensor, grad_link: Tensor) -> tuple[Tensor | None, ...]:
        (replace, pop), run, t = ctx.saved_tensors, ctx.run, ctx.t
        memory, adjoint = run.memory, run.adjoint()
        adjoint.log_top[:, t, : t + 1] += grad_top
        g_replace, g_pop = torch.zeros(replace.shape, dtype=replace.dtype), torch.zeros(pop.shape, dtype=pop.dtype)
        given = memory.weights(replace, pop), memory.tables, adjoint.weights(g_replace, g_pop), adjoint.tables
        in_parallel([partial(backward, part, (t, t), *given) for part in shares(pop, t**2)])
        g_push = adjoint.all[0][:, t - 1].to(ctx.dtype, copy=True)
        if t == run.copied + 1:
            run.hand_back()
        return grad_link, g_push, g_replace.to(ctx.dtype), g_pop.to(ctx.dtype), None, None


@dataclass(frozen=True)
class Tape:
    """A run after some steps: the memory its steps share, how far it has come, and the link to its last step."""

    run: _Run
    step: int
    link: Tensor

    def advance(self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> tuple[Tensor, "Tape"]:
        """log_top [B, t + 1, K] after one more step, and the longer run. This one stays valid, and can branch."""
        run, t = self.run, self.step
        if run.filled != t or t == run.capacity:
            run = run.copy(t, self.link.requires_grad)
        weights = log_push, log_replace, log_pop
        log_top, link = _Step.apply(self.link, *weights, run, t + 1)  # pyright: ignore[reportGeneralTypeIssues]
        return log_top, Tape(run, t + 1, link)


def start(log_initial: Tensor, n_states: int, n_steps: int = 16) -> Tape:
    """A run before its first step, with room for `n_steps` (more are made when needed). log_initial [B, K]."""
    run = _Run(log_initial.detach().double(), n_states, max(1, n_steps))
    return Tape(run, 0, _Begin.apply(log_initial, run))  # pyright: ignore[reportArgumentType]
