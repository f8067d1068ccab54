"""The time axis of a series: what its steps are called, and how it goes on after the last one."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd

QUARTER = re.compile(r"\d{4}-?[Qq][1-4]")
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].*)?)?")


def time_index(index: pd.Index | None, n_steps: int) -> pd.Index:
    """The pandas index that a series came with; 0, 1, 2, ... where it came without."""
    return pd.RangeIndex(n_steps, name="step") if index is None else pd.Index(index)


def storable(index: pd.Index) -> pd.Index:
    """The same index in a form that netCDF can hold: numbers, dates without a time zone (in UTC), or text."""
    if isinstance(index, pd.DatetimeIndex):
        return index if index.tz is None else index.tz_convert(None)
    if pd.api.types.is_numeric_dtype(index) and not pd.api.types.is_bool_dtype(index):
        return index
    return pd.Index([str(label) for label in index])


def calendar(index: pd.Index) -> pd.Index:
    """Text that reads as quarters (1959Q1), months or dates (1959-01-31) as such; any other index as it is."""
    labels = list(index)
    if not labels or not all(isinstance(label, str) for label in labels):
        return index
    if all(QUARTER.fullmatch(label) for label in labels):
        return pd.PeriodIndex([label.upper().replace("-", "") for label in labels], freq="Q", name=index.name)
    if all(ISO_DATE.fullmatch(label) for label in labels):
        try:
            return pd.DatetimeIndex(pd.to_datetime(labels, format="ISO8601"), name=index.name)
        except ValueError:  # looks like a date and is none, such as 2020-13-01: a label like any other
            return index
    return index


def following(index: pd.Index, horizon: int) -> pd.Index:
    """The next `horizon` labels of an evenly spaced index; "+1", "+2", ... for any other."""
    index = calendar(index)
    ahead = np.arange(1, horizon + 1)
    if isinstance(index, pd.PeriodIndex):
        if all(after == before + 1 for before, after in pairwise(index)):
            return pd.PeriodIndex([index[-1] + int(step) for step in ahead], name=index.name)
    elif isinstance(index, pd.DatetimeIndex):
        dates = _following_dates(index.tz_localize(None), horizon)
        if dates is not None:
            return dates.rename(index.name)
    elif pd.api.types.is_numeric_dtype(index) and len(index) >= 2:
        gaps = np.diff(index.to_numpy())
        if gaps[0] > 0 and np.allclose(gaps, gaps[0], rtol=1e-9, atol=0):
            return pd.Index(index[-1] + gaps[0] * ahead, name=index.name)
    return pd.Index([f"+{step}" for step in ahead], name=index.name)


def _following_dates(index: pd.DatetimeIndex, horizon: int) -> pd.DatetimeIndex | None:
    """The next dates at the frequency that pandas sees, or on the same day of the month; None for any other spacing."""
    if len(index) < 3 or not (index.is_monotonic_increasing and index.is_unique):
        return None
    frequency = pd.infer_freq(index)
    if frequency is not None:
        return pd.date_range(index[-1], periods=horizon + 1, freq=frequency)[1:]
    months = np.diff(np.asarray(index.year * 12 + index.month))
    if (months == months[0]).all() and index.day.nunique() == 1:
        ahead = int(months[0]) * np.arange(1, horizon + 1)
        return pd.DatetimeIndex([index[-1] + pd.DateOffset(months=step) for step in ahead.tolist()])
    return None


def evenly_spaced(index: pd.Index) -> bool:
    """Whether numbers, dates or periods follow each other at one distance; text says nothing, and counts as even."""
    index = calendar(index)
    known = isinstance(index, pd.PeriodIndex | pd.DatetimeIndex) or pd.api.types.is_numeric_dtype(index)
    return len(index) < 3 or not known or not str(following(index, 1)[0]).startswith("+")


def continued(index: pd.Index, horizon: int) -> pd.Index:
    """The index with the next `horizon` labels after it."""
    index, ahead = calendar(index), following(index, horizon)
    if type(index) is type(ahead) or index.dtype == ahead.dtype:
        return index.append(ahead)
    return pd.Index([*map(label_text, index), *map(label_text, ahead)], name=index.name)


def label_text(label: object) -> str:
    """A time label as people write it: dates without midnight, whole numbers without a point."""
    if isinstance(label, pd.Timestamp):
        return label.strftime("%Y-%m-%d") if label == label.normalize() else str(label)
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return str(int(label))
    return str(label)
