"""An LSTM cell that drives stacks, all steps in one node of the autograd graph, on the CPU.

With a small batch, a step in plain torch is a dozen calls of microseconds each. Here all steps are one call each way,
and the gradient of each weight matrix is one product over all steps at the end. If a gradient is to be differentiated
again, the plain form computes it.
"""

from ctypes import c_double
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....inference.native.library import addresses, function, integers
from ....inference.numerics.native_calls import run
from ....inference.numerics.op import Call, beyond_kernels, differentiated, replay
from ....inference.numerics.threads import ranges
from .op import Settings, Start, Weights, depth_after, passes

_VECTOR = 8  # numbers that are a whole number of vectors at every level of the library
_MIN_WORK = 100_000  # products that repay a second thread
_MOST_WORK = 100_000_000  # products of a call, so that an interrupt is heard
_NO_LIMIT = 1 << 40  # cells


class _Layout:
    """The sizes of a pass, and its weights. `units` is the number of hidden states, rounded up to whole vectors."""

    def __init__(self, x: Tensor, start: Start, weights: Weights, settings: Settings, kept: bool) -> None:
        self.T, self.B, n_inputs = x.shape
        self.dtype, self.settings, self.kept = x.dtype, settings, kept
        self.hidden, self.n_raw = start.hidden.shape[1], len(weights.actions_bias)
        self.units = -(-self.hidden // _VECTOR) * _VECTOR
        self.parts = n_inputs, start.reading.shape[1], self.hidden
        self.depths = [start.stacks.shape[1]]
        for _ in range(self.T):
            self.depths.append(depth_after(self.depths[-1], settings))
        self._actions = self.n_raw // settings.stacks - settings.width
        self._network = integers(
            self.B, self.T, n_inputs, self.hidden, self.units, settings.stacks, self._actions, settings.width,
            settings.n_read, self.depths[0], _NO_LIMIT if settings.capacity is None else settings.capacity,
            settings.layered, kept,
        )  # fmt: skip
        self._weights = [z.detach().contiguous() for z in weights]

    def size(self, cells: int) -> int:
        """The numbers of a stack's memory, given its cells, or layers, over some steps."""
        width = self.settings.width
        return max(self.depths) * width + cells if self.settings.layered else cells * width

    def write(self, memory: Tensor, stacks: Tensor) -> None:
        """Put stacks, or their gradients, where the first step of a memory is."""
        n, width = stacks.shape[1], self.settings.width
        if self.settings.layered:
            first = max(self.depths) * width
            memory[:, first : first + n] = stacks[..., 0]
            stacks = stacks[..., 1:]
        memory[:, : n * width] = stacks.flatten(1)

    def stacks(self, memory: Tensor, t: int, before: int = 0) -> Tensor:
        """The stacks, or their gradients, after t steps, before which the memory has so many cells."""
        n, width = self.depths[t], self.settings.width
        if not self.settings.layered:
            return memory[:, before * width :][:, : n * width].unflatten(1, (n, width))
        values, first = memory[:, : n * width].unflatten(1, (n, width)), max(self.depths) * width + before
        return torch.cat([memory[:, first : first + n, None], values], -1)

    def run(self, name: str, steps: "_Steps", gradients: Any = None) -> None:
        """Call a kernel for ranges of sequences, a stretch of steps after the other; the adjoint goes backward."""
        each = 4 * self.units * sum(self.parts) + self.n_raw * (self.hidden + (self._actions + 1) * max(self.depths))
        parts = ranges(self.B, _MIN_WORK // (each * self.T) + 1)
        at_once = max(1, _MOST_WORK // (each * max(1, -(-self.B // len(parts)))))
        stretches = [(t, min(t + at_once, self.T)) for t in range(0, self.T, at_once)]
        ends = [None if z is None else z.contiguous() for z in (self.settings.past, self.settings.idle)]
        record = addresses(*steps, steps.stacks.shape[1], *ends)
        arguments = self._network, c_double(self.settings.empty), addresses(*self._weights), record
        of = function(name, self.dtype)
        for stretch in stretches if gradients is None else reversed(stretches):
            tasks = [integers(*part, *stretch) for part in parts]
            run(of, tasks, *arguments, *([] if gradients is None else [gradients]))


class _Steps(NamedTuple):
    """What the steps compute, as the kernels name it. Inputs, gates and stacks have one step if they are not kept."""

    x: Tensor  # [T, B, I]
    inputs: Tensor  # [T + 1, B, I + R + H]
    gates: Tensor  # [T, B, 4 units]
    cell: Tensor  # [T + 1, B, units]
    hidden: Tensor  # [T, B, H]
    raw: Tensor  # [T, B, O]
    reading: Tensor  # [T, B, R]
    stacks: Tensor  # [B stacks, cells of all steps]; with layers, values of all and strengths of all steps


def _forward(of: _Layout, x: Tensor, start: Start) -> tuple[tuple[Tensor, ...], _Steps]:
    (T, B, H), n, new = (of.T, of.B, of.hidden), of.T if of.kept else 0, x.new_empty
    steps = _Steps(
        x.detach().contiguous(), new(n + 1, B, sum(of.parts)), new(max(n, 1), B, 4 * of.units),
        x.new_zeros(T + 1, B, of.units), new(T, B, H), new(T, B, of.n_raw), new(T, B, of.parts[1]),
        new(len(start.stacks), of.size(sum(of.depths) if of.kept else max(of.depths))),
    )  # fmt: skip
    _, read, fed = steps.inputs[0].split(of.parts, -1)
    for table, given in (read, start.reading), (fed, start.hidden), (steps.cell[0, :, :H], start.cell):
        table.copy_(given)
    of.write(steps.stacks, start.stacks)
    of.run("stack_lstm", steps)
    stacks = of.stacks(steps.stacks, T, sum(of.depths[:T]) if of.kept else 0)
    cell = steps.cell[1:, :, :H].clone(memory_format=torch.contiguous_format)
    return (steps.hidden, steps.reading, steps.raw, cell, stacks.clone()), steps


class _StackLSTM(torch.autograd.Function):
    """`apply(x, *start, *weights, settings)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        start, weights, ctx.settings = Start(*arguments[:4]), Weights(*arguments[4:8]), arguments[8]
        ctx.set_materialize_grads(False)
        results, steps = _forward(_Layout(x, start, weights, ctx.settings, kept=True), x, start)
        ctx.save_for_backward(x, *start, *weights, *steps[1:])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once, because checkpoints provide them once
        arguments, steps = saved[:9], _Steps(saved[0].contiguous(), *saved[9:])
        if beyond_kernels(*grads):
            return replay(passes.plain, Call((*arguments, ctx.settings), (), ctx.needs_input_grad), grads)
        of = _Layout(steps.x, Start(*arguments[1:5]), Weights(*arguments[5:9]), ctx.settings, kept=True)
        (T, B, H), (n_inputs, R, _) = steps.hidden.shape, of.parts
        logits, raw = steps.raw.new_empty(T, B, 4 * H), torch.empty_like(steps.raw)
        through, cell = raw.new_zeros(B, R + H), raw.new_zeros(B, of.units)
        stacks = raw.new_zeros(len(steps.stacks), of.size(max(of.depths)))
        *given, g_stacks = (None if z is None else z.contiguous() for z in grads)
        if g_stacks is not None:
            of.write(stacks, g_stacks)
        record = addresses(*given[:4], logits, raw, through, cell, stacks, stacks.shape[1])
        of.run("stack_lstm_adjoint", steps, record)
        by_gates, by_actions = logits.flatten(0, 1), raw.flatten(0, 1)
        return (
            (by_gates @ arguments[5][:, :n_inputs]).view_as(steps.x) if ctx.needs_input_grad[0] else None,
            through[:, R:], cell[:, :H], through[:, :R],
            of.stacks(stacks, 0),
            by_gates.t() @ steps.inputs[:T].flatten(0, 1), by_gates.sum(0),
            by_actions.t() @ steps.hidden.flatten(0, 1), by_actions.sum(0), None,
        )  # fmt: skip


def _fits(x: Tensor, *arguments: Any) -> bool:
    """Whether the arguments are those of a pass; if not, the plain form says what is wrong."""
    start, weights, settings = Start(*arguments[:4]), Weights(*arguments[4:8]), arguments[8]
    if x.dim() != 3 or start.hidden.dim() != 2 or start.stacks.dim() != 3 or weights.actions_bias.dim() != 1:
        return False
    (T, B, n_inputs), H, n_raw, n = x.shape, start.hidden.shape[1], len(weights.actions_bias), start.stacks.shape[1]
    stacks, width, read, _, capacity, layered, past, idle = settings
    if min(T, H, stacks, width, read) < 1 or n_raw % stacks or (capacity is not None and capacity < 1):
        return False
    R, actions = stacks * read * width, n_raw // stacks - width
    fits = (actions == 2 and read == 1 and capacity is None) if layered else actions >= 3
    shapes = (
        (B, H),
        (B, H),
        (B, R),
        (B * stacks, n, width + layered),
        (4 * H, n_inputs + R + H),
        (4 * H,),
        (n_raw, H),
        (n_raw,),
    )
    tables = *zip((*start, *weights), shapes, strict=True), (idle, (n_raw,))
    ends = past is None or (idle is not None and past.shape == (T, B) and past.dtype == torch.bool and past.is_cpu)
    alike = all(z is None or (z.shape == shape and z.dtype == x.dtype and z.is_cpu) for z, shape in tables)
    return fits and ends and alike


@passes.kernel("cpu")
def stack_lstm(x: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    if not _fits(x, *arguments):
        return passes.plain(x, *arguments)
    if differentiated(x, *arguments):
        return _StackLSTM.apply(x, *arguments)  # pyright: ignore[reportReturnType]
    start, weights, settings = Start(*arguments[:4]), Weights(*arguments[4:8]), arguments[8]
    return _forward(_Layout(x, start, weights, settings, kept=False), x, start)[0]
