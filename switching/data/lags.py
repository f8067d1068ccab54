"""The observations before each step of a series, which an autoregressive emission reads."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .frames import to_tensor
from .matching import matched_before
from .packed import Packed
from .scratch import BLOCK
from .series import Series


def with_past(series: Series, order: int, before: Float[Tensor, "*b P F"] | None = None) -> Series:
    """The series with the `order` observations before each step, the latest first.

    Arguments:
        before: those before the first step, the latest last; None: those that the series has, or else none.
    """
    if before is None and series.past is not None:
        before = _before_first(series)
    if not isinstance(series.x, Packed):
        return replace(series, past=_windows(series.x, order, before))
    sequences = series.x.rows.split(series.x.lengths.tolist())
    firsts = [None] * len(sequences) if before is None else before.unbind(0)
    none = series.like.new_empty(0, order, series.n_features)

    def blocks() -> Iterator[Tensor]:
        yield none
        for x, first in zip(sequences, firsts, strict=True):
            for step in range(0, len(x), BLOCK):
                yield _windows(x[step : step + BLOCK], order, x[max(0, step - order) : step] if step else first)

    return replace(series, past=series.x.of(blocks(), series.x.lengths, torch.nan))


def _windows(
    x: Float[Tensor, "*b T F"], order: int, before: Float[Tensor, "*b P F"] | None
) -> Float[Tensor, "*b T order F"]:
    """The `order` rows before each row, the latest first; NaN where there are none."""
    missing = x.new_full((*x.shape[:-2], order, x.shape[-1]), torch.nan)
    first = missing if before is None else torch.cat([missing, before.to(x)], -2)[..., -order:, :]
    extended = torch.cat([first, x], -2)
    return extended.unfold(-2, order, 1)[..., : x.shape[-2], :, :].flip(-1).mT


def _before_first(series: Series) -> Float[Tensor, "*b P F"]:
    """The observations before the first step of each sequence, the latest last."""
    past = series.past
    assert past is not None
    return (past.rows[past.starts] if isinstance(past, Packed) else past[..., 0, :, :]).flip(-2)


def with_lags(series: Series, order: int, before: Any = None) -> Series:
    """The series with the `order` observations before each step, from those before the first step of each sequence, in
    any form of `Given`; None: those that the series has.

    Raises:
        ValueError: no emission reads them; another shape than `[*batch, P, F]`; infinite values.
    """
    if before is None:
        known = 0 if series.past is None else series.past.shape[-2]
        return with_past(series, order) if order and known != order else series
    if not order:
        raise ValueError(
            "before: was given, but no part of the model reads earlier observations; leave it out, or use "
            "AutoRegressive(order, n_features)."
        )
    shape = (*series.batch_shape, order, series.n_features)
    if isinstance(before, list | tuple) and before and len(shape) == 3 and not any(map(np.isscalar, before)):
        tables = [_of_one(part, f"before[{i}]", series, order, i) for i, part in enumerate(before)]
        longest = max(map(len, tables))
        table = torch.stack([torch.nn.functional.pad(t, (0, 0, longest - len(t), 0), value=torch.nan) for t in tables])
    else:
        table = to_tensor(before, "before") if series.batch_shape else _of_one(before, "before", series, order)
    if table.ndim < 2 or (*table.shape[:-2], order, table.shape[-1]) != shape or not table.shape[-2]:
        raise _wrong(table, "before", shape)
    if bool(table.isinf().any()):
        raise ValueError("before: got an infinite value; mark missing values with NaN.")
    return with_past(series, order, table.to(series.like))


def _of_one(before: Any, name: str, series: Series, order: int, sequence: int = 0) -> Float[Tensor, "P F"]:
    """The table of one sequence; one observation `[F]`, or `[P]` of one feature, needs no second axis."""
    index = series.index_of(sequence) if sequence < series.n_sequences else None
    table, n_features = to_tensor(matched_before(before, index, name), name), series.n_features
    if table.ndim < 2 and (n_features == 1 or table.shape == (n_features,)):
        return table.reshape(-1, n_features)
    if table.ndim != 2 or table.shape[-1] != n_features:
        raise _wrong(table, name, (order, n_features))
    return table


def _wrong(table: Tensor, name: str, expected: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"{name}: got shape {tuple(table.shape)}, expected {expected}: the {expected[-2]} observation(s) before the "
        "first step of each sequence, the latest last."
    )


def ahead_of(series: Series) -> Float[Tensor, "*b P F"]:
    """The observations before the step after the end of each sequence, the latest first."""
    past, last = series.drive.past, series.last[..., None, None]
    assert past is not None
    x = series.observations
    latest = x.gather(-2, last.expand(*x.shape[:-2], 1, x.shape[-1]))
    earlier = past.gather(-3, last.unsqueeze(-1).expand(*past.shape[:-3], 1, *past.shape[-2:])).squeeze(-3)
    return torch.cat([latest, earlier], -2)[..., : past.shape[-2], :]


def check_scored(scored: Bool[Tensor, "*b T F"], series: Series, order: int) -> None:
    """Raise ValueError if a feature, or a sequence that is too short, has no step that has all lags.

    Arguments:
        scored: the observed values whose lags are known.
    """
    if not series.n_sequences:
        return
    lengths = (series.last + 1).flatten()
    alone = (lengths <= order) & ~scored.reshape(len(lengths), -1).any(-1)
    if bool(alone.any()):
        sequence = int(alone.long().argmax())
        of = f"sequence {sequence} has" if series.batch_shape else "x has"
        raise ValueError(
            f"order: got {order} lags, but {of} {int(lengths[sequence])} step(s), so no step of it has all lags; use a "
            "smaller order, leave the sequence out, or give the observations before it by `before`."
        )
    if not bool(scored.flatten(0, -2).any(0).all()):
        raise ValueError(
            f"x: no step has both its observation and all of its {order} lags, so x has no density; use a smaller "
            "order, or fill the gaps."
        )
