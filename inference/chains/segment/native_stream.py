"""Some observations more of one stream of segments, by the recursion of `native/segments_stream.h`."""

import struct
import sys

import torch
from torch import Tensor

from ...native.library import empty, integers
from ...numerics.native_calls import check_given, refuse_lack
from . import op
from .native_kinds import KINDS, are_moments, check_prior, number_from, takes, widths
from .plain import Functions
from .plain_stream import EXPECTED, Memory, Rules

_STRETCH = 4096  # steps of a call
_ROWS, _VECTOR = 3, 8  # rows before the statistics; beginnings up to a full vector


class _Constants:
    """What does not change in a stream: its rules as the kernel reads them."""

    def __init__(self, rules: Rules, expect: Functions | None) -> None:
        tables, size = rules.tables, max(1, rules.tables.log_change.shape[-1])
        for family, prior in zip(tables.families, tables.priors, strict=True):
            check_prior(family.kernel, prior, 1)
        hazards = {"log_change": tables.log_change, "log_hold": tables.log_hold, "by_hazards": rules.by_hazards}
        for name, x in hazards.items():
            if x is not None:
                check_given(name, x, (1, size), torch.float64)
        of = widths(tables, expect)
        self.priors = [prior[0].contiguous() for prior in tables.priors]
        self.hazards = [
            None if x is None else x[0].contiguous() for x in (tables.log_change, tables.log_hold, rules.by_hazards)
        ]
        self.rows: int = _ROWS + sum(prior.numel() for prior in self.priors)
        self.outs: int = sum(len(prior) * width for prior, width in zip(self.priors, of, strict=True))
        self.most: int = sys.maxsize if rules.most is None else rules.most
        blocks = []
        for family, prior, width in zip(tables.families, self.priors, of, strict=True):
            blocks += [KINDS[family.kernel or ""], *prior.shape, width // 2, width, 0, prior.data_ptr()]
        doubles = struct.unpack("2q", struct.pack("2d", tables.tol, float(rules.evidence[0, 0])))
        hazards = [0 if table is None else table.data_ptr() for table in self.hazards]
        sizes = (
            tables.log_change.shape[-1],
            int(tables.by_run),
            self.most,
            self.rows - _ROWS,
            self.outs,
            len(blocks) // 7,
        )
        self.words = integers(*sizes, *doubles, *hazards, *blocks)


def _takes_one(x: Tensor, memory: Memory, rules: Rules, expect: Functions | None) -> bool:
    if expect in rules.constants:
        return len(x) == 1
    return len(x) == 1 and takes(x, rules.tables) and (expect is None or are_moments(expect))


@op.updates.kernel("cpu", takes=_takes_one)
def update(x: Tensor, memory: Memory, rules: Rules, expect: Functions | None) -> tuple[Memory, Tensor]:
    constants = rules.constants.get(expect)
    if constants is None:
        constants = rules.constants[expect] = _Constants(rules, expect)
    x, last = x.resolve_neg().contiguous(), memory.found.contiguous()
    (_, steps, width), rows, of = x.shape, memory.rows, EXPECTED + constants.outs
    fit = rows.dim() == 3 and rows.shape[:2] == (1, constants.rows) and last.numel() >= EXPECTED
    if not fit or width - constants.rows + _ROWS not in (1, 3):
        raise ValueError(f"x, rows, found: got shapes {list(x.shape)}, {list(rows.shape)}, {list(last.shape)}.")
    if not all(table.is_cpu and table.dtype == torch.float64 for table in (x, rows, last)):
        raise TypeError(f"x, rows, found: got {x.dtype}, {rows.dtype}, {last.dtype}; expected float64, on cpu.")
    found = empty(1, steps, of, dtype=torch.float64)
    before, x_at, found_at = last.data_ptr(), x.data_ptr(), found.data_ptr()
    for first in range(0, steps, _STRETCH):
        size = min(_STRETCH, steps - first)
        here = found_at + 8 * of * first
        rows = _advanced(constants, rows, x_at + 8 * width * first, size, width, before, here)
        before = here + 8 * of * (size - 1)
    return Memory(rows, found.select(1, steps - 1)), found


def _advanced(constants: _Constants, old: Tensor, x: int, steps: int, width: int, last: int, found: int) -> Tensor:
    """The rows of the beginnings after some steps; x, last and found are addresses."""
    n = old.shape[2]
    capacity = min(n + steps, max(n, constants.most) + 1) + _VECTOR
    rows = empty(1, constants.rows, capacity, dtype=torch.float64)
    if old.stride(2) != 1:
        old = old.contiguous()
    task = integers(old.data_ptr(), old.stride(1), n, rows.data_ptr(), capacity, x, steps, width, last, found)
    n = number_from("segments_advance")(constants.words, task)
    refuse_lack(n < 0)
    return rows.narrow(2, 0, n)
