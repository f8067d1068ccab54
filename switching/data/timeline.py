"""The time axis of a series: the labels of its steps, and their continuation."""

import re
import warnings
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pandas as pd

from ...inference.numerics.user_warnings import warn_user

TIME_NAMES = frozenset(
    "time date datetime timestamp year quarter month week weekday day hour minute second period step t".split()  # noqa: SIM905
)
QUARTER = re.compile(r"\d{4}-?[Qq][1-4]")
YEAR = re.compile(r"(?<!\d)\d{4}(?!\d)")
DAY_AND_MONTH = re.compile(r"\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].*)?)?")


def rows_by(keys: pd.Index) -> tuple[tuple[np.ndarray, ...], pd.Index]:
    """The rows with each key, in the order of their first rows, and these keys."""
    codes, unique = keys.factorize()
    order, counts = np.argsort(codes, kind="stable"), np.bincount(codes)
    return tuple(np.split(order, np.cumsum(counts)[:-1])), unique


def time_index(index: pd.Index | None, n_steps: int) -> pd.Index:
    """The pandas index of a series; 0, 1, 2, ... if it has none."""
    return pd.RangeIndex(n_steps, name="step") if index is None else pd.Index(index)


def storable(index: pd.Index) -> pd.Index:
    """The same index in a form for netCDF: numbers, dates without a time zone (in UTC), or text."""
    if isinstance(index.dtype, pd.ArrowDtype | pd.CategoricalDtype):
        index = calendar(index)
    if isinstance(index, pd.DatetimeIndex):
        return index if index.tz is None else index.tz_convert(None)
    if pd.api.types.is_numeric_dtype(index) and not pd.api.types.is_bool_dtype(index):
        return index
    return pd.Index([str(label) for label in index])


def calendar(index: pd.Index) -> pd.Index:
    """Text such as 1959Q1, 1959-01 or 1959-01-31 as quarters, months or dates; dates of arrow or in categories as those
    of pandas; decimals as floats; any other index unchanged."""
    kinds = index.categories.dtype if isinstance(index, pd.CategoricalIndex) else index.dtype
    if kinds.kind in "Mm" and (kinds != index.dtype or isinstance(kinds, pd.ArrowDtype)):
        return pd.Index(index.to_list(), name=index.name)
    numeric = pd.api.types.is_numeric_dtype(index) and index.dtype.kind != "O"  # not decimals of arrow
    if numeric or isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        return index
    labels = list(index)
    if labels and all(type(label) is date for label in labels):
        return pd.DatetimeIndex(pd.to_datetime(labels), name=index.name)
    if labels and all(isinstance(label, Decimal) for label in labels):
        return pd.Index([float(label) for label in labels], name=index.name)
    if not labels or not all(isinstance(label, str) for label in labels):
        return index
    if all(QUARTER.fullmatch(label) for label in labels):
        return pd.PeriodIndex([label.upper().replace("-", "") for label in labels], freq="Q", name=index.name)
    if all(ISO_DATE.fullmatch(label) for label in labels):
        try:
            return pd.DatetimeIndex(pd.to_datetime(labels, format="ISO8601"), name=index.name)
        except ValueError:  # looks like a date but is not, such as 2020-13-01: an ordinary label
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
    """The next dates at the frequency that pandas infers, or on the same day of the month; None for any other
    spacing."""
    if len(index) < 3 or not (index.is_monotonic_increasing and index.is_unique):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it will return an offset, which serves as well
        frequency = pd.infer_freq(index)
    if frequency is not None:
        return pd.date_range(index[-1], periods=horizon + 1, freq=frequency)[1:]
    months = np.diff(np.asarray(index.year * 12 + index.month))
    if (months == months[0]).all() and index.day.nunique() == 1:
        ahead = int(months[0]) * np.arange(1, horizon + 1)
        return pd.DatetimeIndex([index[-1] + pd.DateOffset(months=step) for step in ahead.tolist()])
    return None


def evenly_spaced(index: pd.Index) -> bool:
    """Whether numbers, dates or periods have equal distances; text counts as even."""
    index = calendar(index)
    known = isinstance(index, pd.PeriodIndex | pd.DatetimeIndex) or pd.api.types.is_numeric_dtype(index)
    return len(index) < 3 or not known or not str(following(index, 1)[0]).startswith("+")


def distances(index: pd.Index) -> np.ndarray | None:
    """The distances between consecutive numbers, dates or periods, `[T - 1]`; None for text."""
    if isinstance(index, pd.PeriodIndex | pd.DatetimeIndex | pd.TimedeltaIndex):
        empty = index.isna()
        return np.where(empty[1:] | empty[:-1], np.nan, np.diff(index.asi8))
    if pd.api.types.is_signed_integer_dtype(index) and not index.hasnans:
        return np.diff(index.to_numpy(dtype=np.int64)).astype(np.float64)
    if pd.api.types.is_numeric_dtype(index) and not pd.api.types.is_bool_dtype(index):
        return np.diff(index.to_numpy(dtype=np.float64, na_value=np.nan))
    return None


def readings(index: pd.Index) -> list[pd.DatetimeIndex]:
    """The possible dates of text in other forms, such as 1/31/2020 or Jan 2020: none, one, or two if day and month may
    be exchanged. Text without a year in four digits is not a date."""
    labels = list(index)
    if not labels or not all(isinstance(label, str) and YEAR.search(label) for label in labels):
        return []
    candidates = []
    for day_first in (False, True) if DAY_AND_MONTH.match(labels[0]) else (False,):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that each may be read in a form of its own
            try:
                candidates.append(pd.DatetimeIndex(pd.to_datetime(labels, dayfirst=day_first)))
            except (ValueError, OverflowError):
                continue
    return candidates


def is_time(index: pd.Index) -> bool:
    """Whether labels are dates or periods, or text that can be read as such."""
    index = calendar(index)
    return isinstance(index, pd.PeriodIndex | pd.DatetimeIndex) or bool(readings(index))


def out_of_order(index: pd.Index) -> int | None:
    """The first step whose label is not after the label before it; None if all are in order, or are no times."""
    index = calendar(index)
    gaps = distances(index)
    known = [np.diff(times.asi8) for times in readings(index)] if gaps is None else [gaps]
    if not known or any(bool((gap > 0).all()) for gap in known):
        return None
    return int((known[0] > 0).argmin()) + 1


def uneven(times: Sequence[pd.Index]) -> tuple[int, int] | None:
    """Sequence and step of the most prominent gap, if the steps of some sequences (in order) are not equally spaced.
    Dates of a calendar are equally spaced: months, working days."""
    times = [calendar(index) for index in times]
    gaps = [distance if (distance := distances(index)) is not None else np.empty(0) for index in times]
    every = np.concatenate(gaps)
    if not every.size or np.allclose(every, every[0], rtol=1e-9, atol=0):
        return None
    if all(isinstance(index, pd.DatetimeIndex) for index in times) and _on_one_calendar(times):
        return None
    apart = [np.abs(np.log(distance / np.median(every))) for distance in gaps]
    worst = max(range(len(apart)), key=lambda i: float(apart[i].max(initial=-1.0)))
    return worst, int(apart[worst].argmax()) + 1


def _on_one_calendar(times: Sequence[pd.Index]) -> bool:
    """Whether dates are evenly spaced: all together and without a gap in any, or each sequence alone, on its own
    days."""
    union = pd.DatetimeIndex(pd.concat([pd.Series(index) for index in times]).drop_duplicates().sort_values())
    if evenly_spaced(union):
        return all(bool((np.diff(union.get_indexer(index)) == 1).all()) for index in times)
    return all(evenly_spaced(index) for index in times)


def check_times(times: Sequence[pd.Index], names: Sequence[str], cured: bool = False) -> None:
    """Check the labels of sequences.

    Arguments:
        times: the index of each sequence.
        names: the names of the sequences in an error.
        cured: whether the gaps between steps are given; then labels need not be evenly spaced.

    Raises:
        ValueError: numbers, dates or periods that go back or occur twice.

    Warns:
        UserWarning: they are not evenly spaced, and their rows are read as consecutive steps.
    """
    for index, name in zip(times, names, strict=True):
        step = out_of_order(index)
        if step is not None:
            raise ValueError(
                f"{name}: its {_axis(index)} does not rise at step {step}, where {label_text(index[step])} follows "
                f"{label_text(index[step - 1])}; sort the rows by time (`sort_index`, or `sort_values` or `sort` of a "
                "column), or if the order is right, give increasing labels."
            )
    gap = None if cured else uneven(times)
    if gap is not None:
        sequence, step = gap
        index = times[sequence]
        warn_user(
            f"{names[sequence]}: its {_axis(index)} is not evenly spaced, as from {label_text(index[step - 1])} to "
            f"{label_text(index[step])}; rows are read as consecutive steps. Insert empty rows for steps that are "
            "missing, or give Copy or ContinuousMarkov dynamics the gaps, dt."
        )


def _axis(index: pd.Index) -> str:
    return "index" if index.name is None else f"index {index.name}"


def continued(index: pd.Index, horizon: int) -> pd.Index:
    """The index with the next `horizon` labels after it."""
    index, ahead = calendar(index), following(index, horizon)
    if type(index) is type(ahead) or index.dtype == ahead.dtype:
        return index.append(ahead)
    return pd.Index([*map(label_text, index), *map(label_text, ahead)], name=index.name)


def label_text(label: object) -> str:
    """A time label as text: dates without midnight, whole numbers without a point."""
    if isinstance(label, pd.Timestamp):
        return label.strftime("%Y-%m-%d") if label == label.normalize() else str(label)
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return str(int(label))
    return str(label)


def is_number(text: str) -> bool:
    """Whether text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
