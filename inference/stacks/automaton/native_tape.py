"""The weighted pushdown recursion one step at a time on the CPU, for weights that depend on earlier readings.

The steps of one run share one set of tables, so forward and backward over n steps take O(n^2) memory although every
step reads all steps before it. An operator cannot do this: its results depend only on its arguments, and it has its own
derivatives. So each step is a node of the autograd graph, tied to the previous step by the weights so far (`history`).
The nodes run backward strictly in order, as the shared adjoint tables require. If a derivative is to be differentiated
again, the plain recursion over the history of each step computes it, and only then does a history have gradients.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...numerics.native_calls import check_given
from ...numerics.op import Call, beyond_kernels, replay
from . import plain
from .native_steps import Tables, Weights, advance, check_states, new_tables, retreat


class _Memory:
    """The weights of all pushes of a run, and its tables; or their adjoints."""

    def __init__(self, push: Tensor, tables: Tables) -> None:
        self.push, self.tables = push, tables

    def weights(self, replace: Tensor, pop: Tensor) -> Weights:
        """The weights of one step: no evidence, and the bottom is replaced as any other element."""
        replaced = replace.detach().unsqueeze(1).contiguous()
        return Weights(self.push, replaced, replaced, pop.detach().unsqueeze(1).contiguous(), None)

    def until(self, t: int) -> list[Tensor]:
        """The parts that belong to times 0..t."""
        (segment, matched, below, log_top), n = self.tables, t + 1
        parts = [self.push[:, :t], segment[:, :n, :, :n], below[:, :n], log_top[:, :n, :n]]
        return parts if matched is None else [*parts, matched[:, :n, :, :, :n]]


class _Run:
    """The memory that the steps of one run share, and its adjoint while a backward pass is under way."""

    def __init__(self, log_initial: Tensor, n_states: int, capacity: int):
        B, K = log_initial.shape
        new = partial(torch.empty, dtype=torch.float64, device="cpu")
        self.memory = _Memory(new(B, capacity, K, K), new_tables(log_initial, n_states, capacity))
        self.capacity, self.n_states = capacity, n_states
        self._weights = new(B, K + capacity * K * (2 * K + n_states))
        self._weights[:, :K] = log_initial
        self.filled = 0
        self.source: _Run | None = None  # the run that this one was copied from, and up to which step
        self.copied = 0
        self._adjoint: _Memory | None = None
        self._pass: int | None = None

    def copy(self, t: int, differentiable: bool) -> "_Run":
        """The first t steps, with room for t more; later steps of the original are not shared."""
        new = _Run(self.memory.tables.below[:, 0], self.n_states, max(16, 2 * t))
        for copied, original in zip(new.memory.until(t), self.memory.until(t), strict=True):
            copied.copy_(original)
        new._weights[:, : self._end(t)] = self._weights[:, : self._end(t)]
        new.filled = new.copied = t
        new.source = self if differentiable else None
        return new

    def _end(self, t: int) -> int:
        K = self.memory.tables.below.shape[-1]
        return K + t * K * (2 * K + self.n_states)

    def write(self, t: int, *weights: Tensor) -> Tensor:
        """The history with the weights of step t."""
        self._weights[:, self._end(t - 1) : self._end(t)] = torch.cat([x.detach().flatten(1) for x in weights], 1)
        return self.history(t)

    def history(self, t: int) -> Tensor:
        """Initial weights and the weights of steps 1..t, [B, ...], in memory that later steps do not change."""
        return torch.from_numpy(self._weights.numpy()[:, : self._end(t)])  # to autograd, no view of all weights

    def adjoint(self) -> _Memory:
        """The gradients collected by the backward pass that is running now; zeros when it begins."""
        current = torch._C._current_graph_task_id()  # pyright: ignore[reportAttributeAccessIssue]
        if self._adjoint is None or self._pass != current:
            (segment, _, below, log_top), zeros = self.memory.tables, torch.zeros_like
            tables = Tables(zeros(segment), None, zeros(below), zeros(log_top))  # no step reads `matched`
            self._adjoint, self._pass = _Memory(zeros(self.memory.push), tables), current
        return self._adjoint

    def hand_back(self) -> None:
        """Add the gradients that this copy has collected for the shared steps to the original."""
        if self.source is not None:
            theirs, mine = self.source.adjoint().until(self.copied), self.adjoint().until(self.copied)
            for total, part in zip(theirs, mine, strict=True):
                total += part


class _Begin(torch.autograd.Function):
    """Step 0: a history whose backward returns the gradient of the initial weights, the last thing to be known."""

    @staticmethod
    def forward(ctx: Any, log_initial: Tensor, run: _Run) -> Tensor:
        ctx.run, ctx.dtype = run, log_initial.dtype
        ctx.set_materialize_grads(False)
        return run.history(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        if beyond_kernels(grad):
            return None if grad is None else grad.to(ctx.dtype), None
        adjoint = ctx.run.adjoint()
        gradient = adjoint.tables.below[:, 0] + adjoint.tables.log_top[:, 0, 0]
        return (gradient if grad is None else gradient + grad).to(ctx.dtype), None


class _Step(torch.autograd.Function):
    """One step of the recursion: from its weights to the log-weight of every element on top."""

    @staticmethod
    def forward(
        ctx: Any, history: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, run: _Run, t: int
    ) -> tuple[Tensor, Tensor]:
        replace, pop, memory = log_replace.double(), log_pop.double(), run.memory
        memory.push[:, t - 1] = log_push
        run.filled = t
        advance((t, t), memory.weights(replace, pop), memory.tables)
        ctx.save_for_backward(history, log_push, log_replace, log_pop)
        ctx.set_materialize_grads(False)
        ctx.run, ctx.t = run, t
        return memory.tables.log_top[:, t, : t + 1].to(log_push.dtype, copy=True), run.write(t, log_push, replace, pop)

    @staticmethod
    def backward(ctx: Any, grad_top: Tensor | None, grad_history: Tensor | None) -> tuple[Tensor | None, ...]:
        (history, *weights), run, t = ctx.saved_tensors, ctx.run, ctx.t
        if beyond_kernels(grad_top, grad_history):
            inputs = (history, *weights, run.n_states)
            return *replay(_replayed, Call(inputs, (), ctx.needs_input_grad[:5]), (grad_top, grad_history)), None
        memory, adjoint, dtype = run.memory, run.adjoint(), weights[0].dtype
        if grad_top is not None:
            adjoint.tables.log_top[:, t, : t + 1] += grad_top
        replace, pop = (x.double() for x in weights[1:])
        g_replace, g_pop = torch.zeros_like(replace), torch.zeros_like(pop)
        g_weights = adjoint.weights(g_replace, g_pop)
        retreat((t, t), memory.weights(replace, pop), memory.tables, g_weights, adjoint.tables)
        gradients = [adjoint.push[:, t - 1].clone(), g_replace, g_pop]
        if t == run.copied + 1:
            run.hand_back()
        if grad_history is not None:  # the second derivative of a later step
            sizes = [history.shape[1], *(x.shape[1:].numel() for x in gradients)]
            grad_history, *parts_here = grad_history.split(sizes, 1)
            gradients = [x + part.view_as(x) for x, part in zip(gradients, parts_here, strict=True)]
        return grad_history, *(x.to(dtype) for x in gradients), None, None


def _replayed(
    history: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, n_states: int
) -> tuple[Tensor, Tensor]:
    """What `_Step` computes, as a function of all weights up to its step."""
    K = log_push.shape[1]
    sizes = K * K, K * K, K * n_states
    step = torch.cat([x.double().flatten(1) for x in (log_push, log_replace, log_pop)], 1)
    log_top, tape = step[:, :0], plain.start(history[:, :K], n_states)
    for now in torch.cat([history[:, K:], step], 1).split(step.shape[1], 1):
        log_top, tape = tape.advance(*(part.unflatten(1, (K, -1)) for part in now.split(sizes, 1)))
    return log_top.to(log_push.dtype), torch.cat([history, step], 1)


class Tape:
    """A run after some steps: the memory its steps share, how far it has come, and all weights until then."""

    run: _Run
    step: int
    history: Tensor

    def __init__(self, run: _Run, step: int, history: Tensor) -> None:
        self.run, self.step, self.history = run, step, history

    def advance(self, log_push: Tensor, log_replace: Tensor, log_pop: Tensor) -> tuple[Tensor, "Tape"]:
        """log_top [B, t + 1, K] after one more step, and the longer run. This one stays valid, and can branch."""
        run, t = self.run, self.step
        if run.filled != t or t == run.capacity:
            run = run.copy(t, self.history.requires_grad)
        weights, (B, K) = (log_push, log_replace, log_pop), run.memory.tables.below.shape[::2]
        columns = K, K, run.n_states
        for name, table, n in zip(("log_push", "log_replace", "log_pop"), weights, columns, strict=True):
            check_given(name, table, (B, K, n), log_push.dtype)
        log_top, history = _Step.apply(self.history, *weights, run, t + 1)  # pyright: ignore[reportGeneralTypeIssues]
        return log_top, Tape(run, t + 1, history)

    def detach(self) -> "Tape":
        """The same run, whose steps so far no gradient reaches."""
        run = self.run.copy(self.step, differentiable=False)
        return Tape(run, self.step, run.history(self.step))


def start(log_initial: Tensor, n_states: int, n_steps: int = 16) -> Tape:
    """A run before its first step, with room for `n_steps` (more are made when needed). log_initial [B, K]."""
    check_states(log_initial.shape[1], n_states)
    run = _Run(log_initial.detach().double(), n_states, max(1, n_steps))
    return Tape(run, 0, _Begin.apply(log_initial, run))  # pyright: ignore[reportArgumentType]
