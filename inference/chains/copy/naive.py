r"""Copy chains as a textbook writes them: one sequence after another, one step after another, in probabilities.

With $fresh_t$ and $held_t$ the exponentials of the tables, and a normalised belief $a_{t-1}$:

$$a_t = (held_t \odot a_{t-1} + fresh_t) / c_t, \qquad
b_{t-1} = (held_t \odot b_t + \textstyle\sum_s fresh_t(s)\, b_t(s)) / c_t$$

Any floating dtype; differentiable wherever the tables are, -inf included. A state less probable than the least number
of the dtype is lost.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Sequence(NamedTuple):
    fresh: Tensor  # [T, K], divided by exp(shift)
    held: Tensor  # [T, K], divided by exp(shift)
    shift: Tensor  # [T]
    start: Tensor  # [K], the normalised belief before the first step
    log_start: Tensor  # [], the logarithm of what it was divided by
    width: int  # the number of columns of the table that `held` was made of: K or 1

    def padded(self, table: Tensor, steps: int) -> Tensor:
        """`table` [T, ...] with rows of zeros up to `steps`."""
        return torch.cat([table, table.new_zeros(steps - len(table), *table.shape[1:])])


class _Forward(NamedTuple):
    before: list[Tensor]  # T beliefs [K]: what each step begins with
    after: list[Tensor]  # T beliefs [K]: what it ends with
    total: list[Tensor]  # c_t
    failed: int  # the first step without a positive, finite c_t, or -1


def _sequences(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> Iterator[_Sequence]:
    for n, length in enumerate(lengths.tolist()):
        fresh, held = log_fresh[n, :length], log_held[n, :length].expand(length, log_fresh.shape[-1])
        if log_initial is None:
            held = torch.cat([torch.full_like(held[:1], -torch.inf), held[1:]])
            start, log_start = torch.zeros_like(fresh[0]), torch.zeros_like(fresh[0, 0])
        else:
            start, log_start = log_initial[n].softmax(-1), log_initial[n].logsumexp(-1)
        shift = torch.maximum(fresh.amax(-1), held.amax(-1)).detach()
        shift = torch.where(shift == -torch.inf, 0, shift)
        fresh, held = ((table - shift.unsqueeze(-1)).exp() for table in (fresh, held))
        yield _Sequence(fresh, held, shift, start, log_start, log_held.shape[-1])


def _forward(sequence: _Sequence) -> _Forward:
    belief, before, after, total, failed = sequence.start, [], [], [], -1
    for t, (fresh, held) in enumerate(zip(sequence.fresh.unbind(0), sequence.held.unbind(0), strict=True)):
        before.append(belief)
        weight = held * belief + fresh
        c = weight.sum()
        if failed < 0 and not 0 < c < torch.inf:
            failed = t
        belief = weight / c
        after.append(belief)
        total.append(c)
    return _Forward(before, after, total, failed)


def _backward(sequence: _Sequence, forward: _Forward) -> tuple[list[Tensor], Tensor]:
    """b_t of every step, and that before the first."""
    b, after = torch.ones_like(sequence.start), []
    for fresh, held, c in zip(sequence.fresh.flip(0), sequence.held.flip(0), reversed(forward.total), strict=True):
        after.append(b)
        b = (held * b + (fresh * b).sum()) / c
    return after[::-1], b


def log_normalizer(*tables: Any) -> tuple[Tensor, ...]:
    """log_normalizer [N], and the step at which each sequence failed, or -1, [N]."""

    def one(sequence: _Sequence, steps: int) -> tuple[Tensor, ...]:
        forward = _forward(sequence)
        return _evidence(sequence, forward), torch.tensor(forward.failed)

    return _each(one, *tables)


def _evidence(sequence: _Sequence, forward: _Forward) -> Tensor:
    return torch.stack(forward.total).log().sum() + sequence.shift.sum() + sequence.log_start


def filter(*tables: Any) -> tuple[Tensor, ...]:
    """log_increment [N, T], state [N, T, K], redraw [N, T], failed [N]."""

    def one(sequence: _Sequence, steps: int) -> tuple[Tensor, ...]:
        forward = _forward(sequence)
        total = torch.stack(forward.total)
        increment = total.log() + sequence.shift
        increment = torch.cat([increment[:1] + sequence.log_start, increment[1:]])
        by_step = increment, torch.stack(forward.after), sequence.fresh.sum(-1) / total
        return *(sequence.padded(table, steps) for table in by_step), torch.tensor(forward.failed)

    return _each(one, *tables)


def marginals(*tables: Any) -> tuple[Tensor, ...]:
    """log_normalizer [N], fresh [N, T, K], held like its table, initial [N, K] (of the table, if any), failed [N]."""

    def one(sequence: _Sequence, steps: int) -> tuple[Tensor, ...]:
        forward = _forward(sequence)
        after, b = _backward(sequence, forward)
        future = torch.stack(after) / torch.stack(forward.total).unsqueeze(-1)
        held = sequence.held * torch.stack(forward.before) * future
        if sequence.width == 1:
            held = held.sum(-1, keepdim=True)
        by_step = (sequence.padded(table, steps) for table in (sequence.fresh * future, held))
        return _evidence(sequence, forward), *by_step, sequence.start * b, torch.tensor(forward.failed)

    return _each(one, *tables)


def smooth(log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """log_normalizer [N], state [N, T, K], redraw [N, T], failed [N]."""
    value, fresh, held, _, failed = marginals(log_initial, log_fresh, log_held.expand_as(log_fresh), lengths)
    return value, fresh + held, fresh.sum(-1), failed


def viterbi(*tables: Any) -> tuple[Tensor, ...]:
    """path [N, T], redraw [N, T], log_probability [N], failed [N]."""

    def one(sequence: _Sequence, steps: int) -> tuple[Tensor, ...]:
        best, total, decisions = sequence.start.log(), sequence.log_start, []
        for fresh, held, shift in zip(sequence.fresh.log(), sequence.held.log(), sequence.shift, strict=True):
            kept, drawn = held + best, fresh  # of all that a redraw forgets, the best has weight 1, as has all s_0
            best = torch.maximum(kept, drawn)
            decisions.append(((drawn > kept).tolist(), int(best.argmax())))
            total = total + shift + best.max()
            best = best - best.max()
        state, path, redraw = decisions[-1][1], [], []
        for t in reversed(range(len(decisions))):
            path.insert(0, state)
            redraw.insert(0, decisions[t][0][state])
            state = decisions[t - 1][1] if redraw[0] else state
        outside = [-1] * (steps - len(path)), [False] * (steps - len(path))
        failed = _forward(sequence).failed
        return torch.tensor(path + outside[0]), torch.tensor(redraw + outside[1]), total, torch.tensor(failed)

    return _each(one, *tables)


def sample(*arguments: Any) -> tuple[Tensor, ...]:
    """path [n, N, T], redraw [n, N, T], failed [N], from uniform numbers [n, N, T, 2]: the last of the arguments."""
    *tables, uniform = arguments
    path = torch.full(uniform.shape[:3], -1)
    redraw = torch.zeros(uniform.shape[:3], dtype=torch.bool)
    failed = []
    for index, sequence in enumerate(_sequences(*tables)):
        forward = _forward(sequence)
        failed.append(forward.failed)
        for draw in range(len(uniform)):
            s, drawn = 0, True
            for t in reversed(range(len(sequence.fresh))):
                if drawn:
                    cumulative = forward.after[t].cumsum(-1)
                    s = int((cumulative / cumulative[-1] > uniform[draw, index, t, 1]).int().argmax())
                fresh, kept = sequence.fresh[t, s], sequence.held[t, s] * forward.before[t][s]
                drawn = bool(uniform[draw, index, t, 0] < fresh / (fresh + kept))
                path[draw, index, t], redraw[draw, index, t] = s, drawn
    return path, redraw, torch.tensor(failed)


def _each(one: Callable[[_Sequence, int], tuple[Tensor, ...]], *tables: Any) -> tuple[Tensor, ...]:
    """The results of all sequences, stacked; `one` pads what has a time axis to the number of steps of the tables."""
    results = [one(sequence, tables[1].shape[1]) for sequence in _sequences(*tables)]
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
