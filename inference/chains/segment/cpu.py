"""Segments on the CPU: the kernels of `cpu_sweeps` and `cpu_backward` behind `op`, sequence by sequence.

They know `NormalGamma` with one observation or none in each entry, `Gamma`, `Beta` and `Dirichlet`. Other families and
statistics, and numbers that are not finite, which the plain form names, are left to the plain form.
"""

import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.gammas import inverse_moments, log_rising
from ...numerics.threads import in_parallel, ranges, sum_of_steps
from . import op, paths, plain
from .cpu_backward import Back, backward
from .cpu_plates import GAMMA, NEGLIGIBLE, NORMAL, SIMPLEX, Plates
from .cpu_stream import Hazards, Kinds, advance, kinds_of
from .cpu_sweeps import Passed, Steps, forward
from .plain import Forward, Functions, Live, Smoothed
from .plain_stream import EXPECTED, Memory, Rules
from .tables import Filtered, Tables

_KINDS = {"normal_gamma": NORMAL, "gamma": GAMMA, "simplex": SIMPLEX}
_LARGEST = 1e150  # of numbers whose squares are finite


def _takes(steps: Tensor, tables: Tables, *others: Any) -> bool:
    return all(_KINDS.get(family.kernel or "") is not None for family in tables.families)


def _knows(tables: Tables, expect: Functions | None) -> bool:
    """Whether kernels have these expectations."""
    return expect is None or expect == op.means(tables) or _are_moments(expect)


def _are_moments(expect: Functions) -> bool:
    return all(getattr(function, "kernel", None) == "moments" for function in expect)


@op.forwards.kernel("cpu", takes=_takes)
def passes(steps: Tensor, tables: Tables, expect: Functions | None) -> tuple[Forward, Filtered | None]:
    if not _knows(tables, expect) or not _is_ordinary(tables):
        return op.plain_forward(steps, tables, expect)
    passed, kept = _forward(tables, best=False, expect=expect)
    filtered = None
    if expect is not None:
        filtered = Filtered(passed.begun, passed.run, _apart(passed.expected, _shapes(tables, expect)))
    return _found(tables, passed, kept), filtered


@op.viterbis.kernel("cpu", takes=_takes)
def viterbi(steps: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    if not _is_ordinary(tables):
        return paths.viterbi(tables)
    passed, kept = _forward(tables, best=True)
    start = torch.tensor([int(start[weight.argmax()]) for start, weight in kept], dtype=torch.int64)
    begun = paths.traced(passed.source, start)
    return begun, sum_of_steps(passed.increment), passed.numbers[:, 1].long()


@op.smooths.kernel("cpu", takes=_takes)
def smooth(steps: Tensor, tables: Tables, found: Forward, expect: Functions) -> Smoothed:
    if not _knows(tables, expect) or not _is_ordinary(tables):
        return op.plain_smooth(steps, tables, found, expect)
    (N, T), shapes = tables.log_base.shape, _shapes(tables, expect)
    M = sum(shape.numel() for shape in shapes)
    zeros = partial(torch.zeros, dtype=torch.float64)
    back = Back(zeros(N, T + 1), zeros(N, T, M), zeros(N, M), zeros(N, T), zeros(N, T))
    none = zeros(N, 0)
    passed = Passed(
        found.log_increment, found.log_change, found.death, found.entropy, none, none, none, none[..., None], none
    )

    def task(first: int, end: int) -> None:
        for n in range(first, end):
            backward(_steps(tables, n), _plates(tables, n, expect), _row(passed, n), _row(back, n))

    in_parallel([partial(task, *part) for part in ranges(N)])
    expected, first = _apart(back.expected, shapes), _apart(back.first, shapes)
    return Smoothed(back.change[:, :T], expected, first, back.ended, back.last)


def _forward(tables: Tables, best: bool, expect: Functions | None = None) -> tuple[Any, list[tuple[Any, Any]]]:
    N, T = tables.log_base.shape
    zeros = partial(torch.zeros, dtype=torch.float64)
    looked, M = (0, 0) if expect is None else (T, sum(shape.numel() for shape in _shapes(tables, expect)))
    passed = Passed(
        zeros(N, T),
        torch.full((N, T), -math.inf, dtype=torch.float64),
        torch.full((N, T), T),
        zeros(N, T),
        torch.zeros(N, T if best else 0, dtype=torch.int64),
        zeros(N, looked),
        zeros(N, looked),
        zeros(N, looked, M),
        zeros(N, 2),
    )
    kept: list[Any] = [None] * N

    def task(first: int, end: int) -> None:
        for n in range(first, end):
            plates = _plates(tables, n, expect)
            kept[n] = forward(_steps(tables, n, best or tables.tol > 0), plates, best, _row(passed, n))

    in_parallel([partial(task, *part) for part in ranges(N)])
    return passed, kept


def _found(tables: Tables, passed: Any, kept: list[tuple[Any, Any]]) -> Forward:
    """With the beginnings that some sequence keeps at its end."""
    start = torch.from_numpy(np.unique(np.concatenate([np.zeros(0, np.int64), *(start for start, _ in kept)])))
    weight = tables.log_base.new_full((len(kept), len(start)), -math.inf)
    for n, (own, log_weight) in enumerate(kept):
        weight[n, torch.searchsorted(start, torch.from_numpy(own))] = torch.from_numpy(log_weight)
    first = int(start[0]) if len(start) else 0
    sums = tuple(table[:, first:].flip(1).cumsum(1).flip(1)[:, start - first] for table in tables.statistics)
    live = Live(start, sums, tables.evidence(sums), weight)
    left_out, failed = passed.numbers.unbind(-1)
    return Forward(passed.increment, passed.change, passed.death, left_out, failed.long(), passed.entropy, live)


def _is_ordinary(tables: Tables) -> bool:
    """Whether all numbers are finite, and each normal entry has one observation, or none."""
    for family, prior, table in tables.blocks():
        if not bool((table.abs() < _LARGEST).all() & (prior.abs() < _LARGEST).all()):
            return False
        if _KINDS[family.kernel or ""] == NORMAL:
            first, half, count, square = table.unbind(-1)
            seen = half != 0
            one = (half == -0.5) & (count == 0.5) & ((square + first.square() / 2).abs() <= 1e-12 * first.square())
            if not bool(torch.where(seen, one, (table == 0).all(-1)).all()):
                return False
    return bool((tables.log_base < math.inf).all())


def _row(table: Any, n: int) -> Any:
    return type(table)(*(part[n].numpy() for part in table))


def _steps(tables: Tables, n: int, bounded: bool = False) -> Steps:
    by_hazards = np.zeros(0)
    if tables.by_run and bounded:
        by_hazards = plain.of_hazards(tables.log_change[n : n + 1], tables.log_hold[n : n + 1])[0].numpy()
    x = torch.cat([table[n].flatten(1) for table in tables.statistics], -1).contiguous().resolve_neg().numpy()
    parts = tables.log_base[n], tables.log_change[n], tables.log_hold[n]
    base, change, hold = (part.contiguous().resolve_neg().numpy() for part in parts)
    return Steps(x, base, change, hold, tables.by_run, int(tables.lengths[n]), by_hazards, tables.tol)


def _plates(tables: Tables, n: int, expect: Functions | None) -> Plates:
    kinds = [_KINDS[family.kernel or ""] for family in tables.families]
    count = torch.arange(tables.n_steps + 1 if NORMAL in kinds else 1, dtype=torch.float64)
    moments = expect is not None and _are_moments(expect)
    shapes = [prior.shape[1:] for prior in tables.priors] if expect is None else _shapes(tables, expect)
    plates, priors, column, out = [], [], 0, 0
    for kind, (family, eta, _), (_, width) in zip(kinds, tables.blocks(), shapes, strict=True):
        for plate in eta[n]:
            kappa, shape, by_count = 1.0, 1.0, [torch.zeros_like(count)] * 4
            if kind == NORMAL:
                q = family.usual(plate)
                kappa, shape = float(q.kappa), float(q.shape)
                numbers = [float(q.loc), float(q.rate), math.log(q.rate), 0.0]
                rise = log_rising(q.shape, count / 2) + count / 2 * q.shape.log()
                constant = rise - (1 + count / q.kappa).log() / 2
                shapes_then = q.shape + count / 2
                by_count = [constant, torch.digamma(shapes_then), *inverse_moments(shapes_then)]
            elif kind == GAMMA:
                numbers = [float(plate[0]), -float(plate[1]), math.log(-plate[1])]
            else:
                numbers = [*plate.tolist(), float(plate.sum())]
            tables_of = [table.numpy() for table in by_count]
            plates.append((kind, column, len(priors), len(plate), kappa, shape, *tables_of, out, width // 2))
            priors, column, out = priors + numbers, column + len(plate), out + width
    columns: Any = [np.array(part) for part in zip(*plates, strict=True)]
    return Plates(*columns, prior=np.array(priors), moments=moments, least=NEGLIGIBLE[moments])


def _shapes(tables: Tables, expect: Functions) -> list[torch.Size]:
    """[F, M] of the expectations by block."""
    return [function(prior[:1]).shape[1:] for function, prior in zip(expect, tables.priors, strict=True)]


def _apart(table: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
    """Columns [..., D] by block, [..., F, D]."""
    if len(shapes) == 1:
        return (table.view(*table.shape[:-1], *shapes[0]),)
    parts = table.split([shape.numel() for shape in shapes], -1)
    return tuple(part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True))


def _takes_one(x: Tensor, memory: Memory, rules: Rules, expect: Functions | None) -> bool:
    return len(x) == 1 and _takes(x, rules.tables) and (expect is None or _are_moments(expect))


@op.updates.kernel("cpu", takes=_takes_one)
def update(x: Tensor, memory: Memory, rules: Rules, expect: Functions | None) -> tuple[Memory, Tensor]:
    kinds, hazards = _constants(rules, expect)
    steps, old, last = x.numpy()[0], memory.rows.numpy()[0], memory.found.numpy()[0]
    most = sys.maxsize if rules.most is None else rules.most
    rows = np.empty((min(len(old) + len(steps), max(len(old), most) + 1), old.shape[1]))
    rows[: len(old)] = old
    found = np.zeros((len(steps), EXPECTED + 2 * kinds.n_means))
    n = advance(kinds, hazards, rows, len(old), steps, last, rules.tables.tol, most, found)
    memory = Memory(torch.from_numpy(rows[None, :n]), torch.from_numpy(found[-1:]))
    return memory, torch.from_numpy(found[None])


def _array(table: Tensor) -> Any:
    return table.resolve_neg().numpy()


def _constants(rules: Rules, expect: Functions | None) -> tuple[Kinds, Hazards]:
    """Computed once for each stream."""
    found = rules.constants.get(expect)
    if found is None:
        tables, plates = rules.tables, []
        widths = [0] * len(tables.priors) if expect is None else [shape[1] for shape in _shapes(tables, expect)]
        for family, prior, width in zip(tables.families, tables.priors, widths, strict=True):
            plates += [(_KINDS[family.kernel or ""], prior.shape[2], width // 2)] * prior.shape[1]
        eta = torch.cat([prior[0].flatten() for prior in tables.priors])
        by_hazards = np.zeros(0) if rules.by_hazards is None else rules.by_hazards[0].numpy()
        hazards = Hazards(_array(tables.log_change)[0], _array(tables.log_hold)[0], by_hazards, tables.by_run)
        found = rules.constants[expect] = kinds_of(plates, eta), hazards
    return found
