r"""Few long chains on a GPU: parts of their time run through the kernels as separate sequences.

The kernels process a sequence step by step. If there are too few sequences to keep a device busy, each is cut into
windows: a stretch whose results are used, and a margin before and after it. A chain forgets its start
(`chains.parts` explains this), and the results are checked where windows meet. At the step before a stretch, the
beliefs of a filter must agree, entry by entry, with those of the previous window, which started much earlier. At its
first step, the beliefs of the smoother must agree too; they are the filter's times the messages from later steps.

The host does not wait for the device: sequences that disagree are processed again, and the others then have no steps.

A chain defines the windows of its tables, and how their results become those of whole sequences; `in_stretches` does
the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..numerics.gpu import BUSY, INTERPRETED, processors

Kernel = Callable[..., tuple[Tensor, ...]]

_SHORT = 8 if INTERPRETED else 1024  # steps of a stretch, at least
_MARGIN = 4  # least ratio of the length of a stretch to its margin
_FORGOTTEN = 1 << 12  # steps of a margin, at most
_AGREED = 64  # roundings


class Stretches(NamedTuple):
    """Windows of every sequence, of `size` steps with a margin on each side; the first stretch begins a margin
    early."""

    count: int
    size: int
    margin: int
    steps: int  # of a sequence

    def cut(self, table: Tensor) -> Tensor:
        """The windows [n, W, L, ...] of a table [n, T, ...], zeros after its end."""
        length = self.size + 2 * self.margin
        wide = table.new_zeros(len(table), (self.count - 1) * self.size + length, *table.shape[2:])
        wide[:, : self.steps] = table
        return wide.unfold(1, length, self.size).movedim(-1, 2).contiguous()

    def starts(self, initial: Tensor) -> Tensor:
        """The initial tables [n, W, K] of windows; only the first of each sequence, from [n, K], is used."""
        anything = initial.new_zeros(len(initial), self.count - 1, initial.shape[-1])
        return torch.cat([initial.unsqueeze(1), anything], 1)

    def lengths(self, lengths: Tensor) -> Tensor:
        """The steps [n, W] of every window; 0 for those after the end of a sequence [n]."""
        first = self.size * torch.arange(self.count, device=lengths.device)
        return (lengths.unsqueeze(-1) - first).clamp(0, self.size + 2 * self.margin)

    def join(self, table: Tensor) -> Tensor:
        """The results [n, T, ...] of the stretches of windows [n, W, L, ...]."""
        stretches = table[:, :, self.margin : self.margin + self.size].flatten(1, 2)
        return torch.cat([table[:, 0, : self.margin], stretches], 1)[:, : self.steps]

    def agree(self, filtered: Tensor, smoothed: Tensor | None, lengths: Tensor) -> Tensor:
        """Whether windows of sequences [n] agree where they meet, by their beliefs [n, W, L, K]."""
        agreed = self._alike(filtered, self.margin - 1)
        if smoothed is not None:
            agreed = agreed & self._alike(smoothed, self.margin)
        return (agreed | (self.lengths(lengths)[:, 1:] <= self.margin)).all(-1)

    def _alike(self, belief: Tensor, step: int) -> Tensor:
        begun, gone = belief[:, 1:, step], belief[:, :-1, self.size + step]
        return ((begun - gone).abs() <= _AGREED * torch.finfo(belief.dtype).eps * gone).all(-1)


def _stretches_of(likelihood: Tensor, lengths: Tensor) -> Stretches | None:
    """The windows of sequences [*b] with tables [.., T, K]; None if cutting is not worth while."""
    n, steps = lengths.numel(), likelihood.shape[-2]
    count = min(BUSY * processors(lengths) // max(1, n), steps // _SHORT)
    if count < 2:
        return None
    size = -(-steps // count)
    margin = max(1, min(_FORGOTTEN, size // _MARGIN))
    return Stretches(-(-(steps - margin) // size), size, margin, steps)


def whole(tables: Sequence[Tensor], n_own: Sequence[int], batch: torch.Size) -> list[Tensor]:
    """Tables with all batch axes expanded and flattened into one; `n_own` has the number of other axes of each."""
    event_shapes = [table.shape[table.dim() - n :] for table, n in zip(tables, n_own, strict=True)]
    return [table.expand(*batch, *o).reshape(batch.numel(), *o) for table, o in zip(tables, event_shapes, strict=True)]


class WindowResults(NamedTuple):
    """The results of a kernel for windows, and for the sequences of these windows."""

    failed: Tensor  # [n, W]
    filtered: Tensor  # [n, W, L, K]
    smoothed: Tensor | None
    results: list[Tensor]  # as of the kernel for whole sequences, without `failed`, with one batch axis


def in_stretches(kernel: Kernel, find: Callable[..., WindowResults], *arguments: Any) -> tuple[Tensor, ...]:
    """The results of a kernel for whole sequences, or for stretches of them if these are few and long.

    `arguments` are tables (likelihoods last) and lengths. `find` gets the kernel and the stretches before them.
    """
    *tables, lengths = arguments
    stretches = _stretches_of(tables[-1], lengths)
    if stretches is None:
        return kernel(*arguments)
    failed, filtered, smoothed, pieces = find(kernel, stretches, *arguments)
    agreed = (failed < 0).all(-1) & stretches.agree(filtered, smoothed, lengths.reshape(-1))
    agreed = agreed.view(lengths.shape)
    *whole_results, failed = kernel(*tables, torch.where(agreed, 0, lengths))
    both = [
        torch.where(agreed.view(agreed.shape + (1,) * (y.dim() - agreed.dim())), x.view(y.shape).to(y.dtype), y)
        for x, y in zip(pieces, whole_results, strict=True)
    ]
    return *both, torch.where(agreed, -1, failed)
