"""The tables of sequences as the library reads them: those that sequences or steps share exist once."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...native.library import function, integers
from ...numerics.native_calls import check_ends, refuse_lack, run
from ...numerics.threads import worthwhile

_BESIDE = 12  # states at most of sequences that lie beside each other in vectors, as `BESIDE` of `markov.cpp`
_MOVE, _STEP = 5e-10, 2e-8  # seconds of an entry of a table at one step, and of a step
_TASK = 0.1  # seconds of a task, so that an interrupt is soon heard


class Chains(NamedTuple):
    """The tables of some sequences as the library reads them."""

    block: Any  # `Chains` of `inference/native/markov.h`; its last number says whether memory was lacking
    kept: tuple[Any, ...]  # the memory that it points to
    n: int
    group: int
    seconds: float  # that a sequence takes one thread

    def run(self, name: str, dtype: torch.dtype | None, *others: Any) -> None:
        """Call a function of the library for ranges of whole groups."""
        groups = -(-self.n // self.group)
        seconds = self.n * self.seconds
        parts = min(groups, max(worthwhile(seconds), int(seconds / _TASK)))
        edges = [min(self.n, groups * i // parts * self.group) for i in range(parts + 1)] if parts else []
        run(function(name, dtype), [integers(*ends, self.group) for ends in pairwise(edges)], self.block, *others)
        refuse_lack(self.block[-1])

    def of_parts(self, n: int, share: float, dtype: torch.dtype) -> "Chains":
        """The same tables for n parts of sequences, each of which is such a share of one."""
        group = group_of(n, self.block[-4], dtype)
        return self._replace(n=n, group=group, seconds=self.seconds * share)


def read(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> Chains:
    """Tables whose batch axes broadcast to those of `lengths`."""
    (n_steps, n_states), batch, dtype = log_likelihood.shape[-2:], lengths.shape, log_likelihood.dtype
    n, by_step = lengths.numel(), log_transition.shape[-3] != 1
    if not n_steps * n_states:
        raise ValueError(f"log_likelihood: got shape {list(log_likelihood.shape)}, expected steps and states.")
    moves = n_steps - 1 if by_step else 1, n_states, n_states
    check_ends(dtype, log_initial=(log_initial, (n_states,)), log_transition=(log_transition, moves))
    if lengths.dtype != torch.int64:
        raise TypeError(f"lengths: got {lengths.dtype}, expected int64.")
    tables = [entries(x, own, batch) for x, own in ((log_initial, 1), (log_transition, 3), (log_likelihood, 2))]
    flat, of, apart = zip(*tables, strict=True)
    lengths = lengths.contiguous()
    group = 1 if by_step else group_of(n, n_states, dtype)
    order = _order(lengths, of[1]) if group > 1 else None
    step = n_states**2 if flat[1].shape[-3] > 1 else 0
    addresses = (*(x.data_ptr() for x in flat), *map(address, of), lengths.data_ptr(), address(order))
    block = integers(*addresses, *apart, n_steps, n_states, by_step, step, 0)
    return Chains(block, (flat, of, lengths, order), n, group, n_steps * (_STEP + _MOVE * n_states**2))


def group_of(n: int, n_states: int, dtype: torch.dtype) -> int:
    """How many of n sequences are swept at once; few of many states are left to several threads."""
    if n_states <= _BESIDE:
        return 1 if n < 3 else 4 if dtype == torch.float64 else 8
    return 4 if n >= 8 else 1


def entries(table: Tensor, n_own: int, batch: torch.Size) -> tuple[Tensor, np.ndarray | None, int]:
    """A contiguous table without repetitions; the number of each sequence's entry, or None if sequences have their own
    or share one; and the numbers of an entry, 0 if it is shared."""
    n_axes = table.dim() - n_own
    if not table.is_contiguous():
        for axis in range(n_axes + (n_own == 3)):
            if table.stride(axis) == 0 and table.shape[axis] > 1:
                table = table.narrow(axis, 0, 1)
        table = table.contiguous()
    axes = table.shape[:n_axes]
    n = axes.numel()
    if n == 1:
        return table, None, 0
    of = None if axes == batch else np.broadcast_to(np.arange(n).reshape(axes), batch).ravel()
    return table, of, table.numel() // max(n, 1)


def _order(lengths: Tensor, table_of: np.ndarray | None) -> np.ndarray | None:
    """Sequences that are alike beside each other: with equal tables, and of similar lengths."""
    steps = lengths.view(-1).numpy()
    if table_of is None and (steps == steps[0]).all():
        return None
    return np.lexsort((-steps,) if table_of is None else (-steps, table_of))


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data
