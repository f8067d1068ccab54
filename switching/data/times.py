"""Times of steps, as the gaps between them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .packed import Packed
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
    if isinstance(times, Packed):
        gaps = _differences(times.rows)
        first = torch.zeros_like(gaps, dtype=torch.bool)
        first[times.starts] = True
        gaps, inside = torch.where(first, 0.0, gaps), torch.ones_like(first)
        number, step = series.sequence_of_rows, torch.arange(len(first), device=first.device)
        step = step - times.starts.to(step)[number]
    else:
        if not times.ndim or times.shape[:-1] != series.batch_shape or times.shape[-1] < series.n_steps:
            expected = (*series.batch_shape, series.n_steps)
            raise ValueError(f"time: got shape {tuple(times.shape)}, expected {expected}: the time of each step.")
        gaps, inside = _differences(times), torch.ones_like(times, dtype=torch.bool)
        inside[..., : series.n_steps] = series.inside
        number = torch.arange(series.n_sequences, device=gaps.device).reshape(*series.batch_shape, 1).expand(gaps.shape)
        step = torch.arange(gaps.shape[-1], device=gaps.device).expand(gaps.shape)
    rows = times.rows if isinstance(times, Packed) else times
    _check(rows, gaps, inside, number, step, alone=not series.batch_shape)
    gaps = torch.where(inside, gaps, 0.0).to(like)
    if bool(((gaps == 0) & inside & (step > 0)).any()):
        raise ValueError(
            f"time: got times whose differences {like.dtype} cannot represent; use other units, or float64."
        )
    return replace(series, dt=replace(times, rows=gaps) if isinstance(times, Packed) else gaps)


def _differences(times: Tensor) -> Tensor:
    return torch.nn.functional.pad(times[..., 1:] - times[..., :-1], (1, 0))


def _check(times: Tensor, gaps: Tensor, inside: Tensor, number: Tensor, step: Tensor, alone: bool) -> None:
    """ValueError with the place if times inside the sequences do not rise."""
    wrong = inside & (~times.isfinite() | ~((gaps > 0) | (step == 0)))
    if not bool(wrong.any()):
        return
    place = tuple(wrong.nonzero()[0].tolist())
    where = f"step {int(step[place])}" + ("" if alone else f" of sequence {int(number[place])}")
    if not bool(times[place].isfinite()):
        raise ValueError(f"time: got {float(times[place]):g} at {where}, expected the time of the step, a number.")
    before = float(times[(*place[:-1], place[-1] - 1)])
    kind = "repeats" if float(gaps[place]) == 0 else "goes back"
    raise ValueError(
        f"time: {kind} at {where}, where {float(times[place]):g} follows {before:g}; sort the steps by time, and leave "
        "one step at each time."
    )
