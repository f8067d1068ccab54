"""The weighted pushdown recursion one step at a time on the CPU, for weights that depend on earlier readings.

The steps of one run share one set of tables, so forward and backward over n steps take O(n^2) memory although every
step reads all steps before it. An operator cannot do this: its results depend only on its arguments, and it has its own
derivatives. So each step is a node of the autograd graph, tied to the previous step by the weights so far (`history`).
The nodes run backward strictly in order, as the shared adjoint tables require. If a derivative is to be differentiated
again, the plain recursion over the history of each step computes it, and only then does a history have gradients.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.op import Call, beyond_kernels, replay
from ...numerics.threads import in_parallel, ranges
from . import plain
from .cpu_recursion import Tables, Weights, backward, forward

_MIN_WORK = 200_000  # terms a thread should have before a second one pays


def new_tables(log_initial: Tensor, n_states: int, n_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """segment, matched, below and log_top before the first step: one element, the bottom, on top of nothing."""
    B, K = log_initial.shape
    times = n_steps + 1
    full = partial(torch.full, fill_value=-torch.inf, dtype=torch.float64, device="cpu")
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _Memory, self.all  # the arrays of a copy lie on the copy's tensors

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
        push = torch.full((B, capacity, K, K), -torch.inf, dtype=torch.float64, device="cpu")
        self.memory = _Memory(push, *new_tables(log_initial, n_states, capacity))
        self.capacity, self.n_states = capacity, n_states
        self._weights = np.empty((B, K + capacity * K * (2 * K + n_states)))
        self._weights[:, :K] = arrays(log_initial)[0]
        self.filled = 0
        self.source: _Run | None = None  # the run that this one was copied from, and up to which step
        self.copied = 0
        self._adjoint: _Memory | None = None
        self._pass: int | None = None

    def copy(self, t: int, differentiable: bool) -> "_Run":
        """The first t steps, with room for t more; later steps of the original are not shared."""
        new = _Run(self.memory.below[:, 0], self.n_states, max(16, 2 * t))
        for copied, original in zip(new.memory.until(t), self.memory.until(t), strict=True):
            copied.copy_(original)
        new._weights[:, : self._end(t)] = self._weights[:, : self._end(t)]
        new.filled = new.copied = t
        new.source = self if differentiable else None
        return new

    def _end(self, t: int) -> int:
        K = self.memory.below.shape[-1]
        return K + t * K * (2 * K + self.n_states)

    def write(self, t: int, *weights: Tensor) -> Tensor:
        """The history with the weights of step t."""
        self._weights[:, self._end(t - 1) : self._end(t)] = torch.cat([x.flatten(1) for x in weights], 1).numpy()
        return self.history(t)

    def history(self, t: int) -> Tensor:
        """Initial weights and the weights of steps 1..t, [B, ...], in memory that later steps do not change."""
        return torch.from_numpy(self._weights[:, : self._end(t)])

    def adjoint(self) -> _Memory:
        """The gradients collected by the backward pass that is running now; zeros when it begins."""
        current = torch._C._current_graph_task_id()  # pyright: ignore[reportAttributeAccessIssue]
        if self._adjoint is None or self._pass != current:
            push, segment, matched, below, log_top = self.memory.all
            unused = matched[:, :0, :, :, :0]  # no step reads `matched`
            zeros = (torch.zeros_like(x) for x in (push, segment, unused, below, log_top))
            self._adjoint, self._pass = _Memory(*zeros), current
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
        gradient = adjoint.below[:, 0] + adjoint.log_top[:, 0, 0]
        return (gradient if grad is None else gradient + grad).to(ctx.dtype), None


class _Step(torch.autograd.Function):
    """One step of the recursion: from its weights to the log-weight of every element on top."""

    @staticmethod
    def forward(
        ctx: Any, history: Tensor, log_push: Tensor, log_replace: Tensor, log_pop: Tensor, run: _Run, t: int
    ) -> tuple[Tensor, Tensor]:
        replace, pop, memory = log_replace.double(), log_pop.double(), run.memory
        memory.all[0][:, t - 1] = log_push
        run.filled = t
        arguments = (t, t), 0, memory.weights(replace, pop), memory.tables
        in_parallel([partial(forward, part, *arguments) for part in shares(pop, t**2)])
        ctx.save_for_backward(history, log_push, log_replace, log_pop)
        ctx.set_materialize_grads(False)
        ctx.run, ctx.t = run, t
        return memory.log_top[:, t, : t + 1].to(log_push.dtype, copy=True), run.write(t, log_push, replace, pop)

    @staticmethod
    def backward(ctx: Any, grad_top: Tensor | None, grad_history: Tensor | None) -> tuple[Tensor | None, ...]:
        (history, *weights), run, t = ctx.saved_tensors, ctx.run, ctx.t
        if beyond_kernels(grad_top, grad_history):
            inputs = (history, *weights, run.n_states)
            return *replay(_replayed, Call(inputs, (), ctx.needs_input_grad[:5]), (grad_top, grad_history)), None
        memory, adjoint, dtype = run.memory, run.adjoint(), weights[0].dtype
        if grad_top is not None:
            adjoint.log_top[:, t, : t + 1] += grad_top
        replace, pop = (x.double() for x in weights[1:])
        g_replace, g_pop = replace.new_zeros(replace.shape), pop.new_zeros(pop.shape)
        inputs = memory.weights(replace, pop), memory.tables, adjoint.weights(g_replace, g_pop), adjoint.tables
        in_parallel([partial(backward, part, (t, t), *inputs) for part in shares(pop, t**2)])
        gradients = [adjoint.all[0][:, t - 1].clone(), g_replace, g_pop]
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
        weights = log_push, log_replace, log_pop
        log_top, history = _Step.apply(self.history, *weights, run, t + 1)  # pyright: ignore[reportGeneralTypeIssues]
        return log_top, Tape(run, t + 1, history)

    def detach(self) -> "Tape":
        """The same run, whose steps so far no gradient reaches."""
        run = self.run.copy(self.step, differentiable=False)
        return Tape(run, self.step, run.history(self.step))


def start(log_initial: Tensor, n_states: int, n_steps: int = 16) -> Tape:
    """A run before its first step, with room for `n_steps` (more are made when needed). log_initial [B, K]."""
    run = _Run(log_initial.detach().double(), n_states, max(1, n_steps))
    return Tape(run, 0, _Begin.apply(log_initial, run))  # pyright: ignore[reportArgumentType]
