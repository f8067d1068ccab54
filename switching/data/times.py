"""Times of steps, as the gaps between them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .packed import Packed, rows_of
from .series import Series
from .timeline import calendar

DAY = pd.Timedelta(days=1)


def numbered_times(times: Any) -> Any:
    """Times with numbers in place of dates and periods, in the same form: dates and durations in days, periods in
    periods. Other times are unchanged."""
    if isinstance(times, Mapping):
        return {name: numbered_times(part) for name, part in times.items()}
    if isinstance(times, list | tuple) and len(times) and not isinstance(times[0], str) and np.ndim(times[0]):
        return [numbered_times(part) for part in times]
    if isinstance(times, Tensor | pd.DataFrame) or not np.ndim(times) or getattr(times, "dtype", None) in (float, int):
        return times
    if isinstance(times, pd.Series):
        numbers = _numbers(calendar(pd.Index(times.to_list())))
        return times if numbers is None else pd.Series(numbers, times.index)
    table = np.asarray(times, dtype=object) if isinstance(times, list | tuple) else np.asarray(times)
    labels = times if isinstance(times, pd.Index) else pd.Index(table.ravel())
    numbers = _numbers(calendar(labels.infer_objects()))
    return times if numbers is None else numbers.reshape(table.shape)


def _numbers(index: pd.Index) -> np.ndarray | None:
    """Dates, durations and periods as numbers, NaN where missing; None for other labels."""
    if isinstance(index, pd.PeriodIndex):
        return np.where(index.isna(), np.nan, index.asi8.astype(np.float64))
    if isinstance(index, pd.DatetimeIndex):
        index = index.tz_convert(None) if index.tz is not None else index
        index = index - pd.Timestamp(0)
    return np.asarray(index / DAY, dtype=np.float64) if isinstance(index, pd.TimedeltaIndex) else None


def with_gaps(series: Series) -> Series:
    """The series whose `dt` are times, with the gaps before its steps instead; that of the first step is 0.

    Raises:
        ValueError: times of another shape than the steps, that are missing, that go back, or that repeat.
    """
    times, like = series.dt, series.like
    assert times is not None
    if not times.shape or times.shape[:-1] != series.batch_shape or times.shape[-1] < series.n_steps:
        expected = (*series.batch_shape, series.n_steps)
        raise ValueError(f"time: got shape {tuple(times.shape)}, expected {expected}: the time of each step.")
    rows = rows_of(times)
    first, inside = torch.zeros_like(rows, dtype=torch.bool), torch.ones_like(rows, dtype=torch.bool)
    if isinstance(times, Packed):
        first[times.starts] = True
    else:
        first[..., 0] = True
        inside[..., : series.n_steps] = series.inside
    gaps = torch.nn.functional.pad(rows[..., 1:] - rows[..., :-1], (1, 0))
    wrong = inside & (~rows.isfinite() | ~((gaps > 0) | first))
    if bool(wrong.any()):
        raise _wrong(series, times, tuple(wrong.nonzero()[0].tolist()))
    gaps = torch.where(inside & ~first, gaps, 0.0).to(like)
    if bool(((gaps == 0) & inside & ~first).any()):
        raise ValueError(
            f"time: got times whose differences {like.dtype} cannot represent; use other units, or float64."
        )
    return replace(series, dt=replace(times, rows=gaps) if isinstance(times, Packed) else gaps)


def _wrong(series: Series, times: Tensor | Packed, place: tuple[int, ...]) -> ValueError:
    """The error for a time that does not rise."""
    rows, step = rows_of(times), place[-1]
    if isinstance(times, Packed):
        sequence, step = times.at(step)
    else:
        sequence = int(torch.arange(series.n_sequences, device="cpu").reshape(series.batch_shape)[place[:-1]])
    where = f"step {step}" + (f" of sequence {sequence}" if series.batch_shape else "")
    here, before = float(rows[place]), float(rows[(*place[:-1], place[-1] - 1)])
    if not math.isfinite(here):
        return ValueError(f"time: got {here:g} at {where}, expected the time of the step, a number.")
    kind = "repeats" if here == before else "goes back"
    return ValueError(
        f"time: {kind} at {where}, where {here:g} follows {before:g}; sort the steps by time, and leave one step at "
        "each time."
    )
