"""Knowledge about single steps beside observations: known states, and weights of sequences and of steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from .matching import has_labels
from .packed import Packed, rows_of
from .series import BEYOND, UNKNOWN, Series, number
from .timeline import is_number

WEIGHTS = "finite weights of at least 0"


# ---- states in any form ----------------------------------------------------------------------------------------------


def coded(states: Any, names: tuple[str, ...] | None = None) -> tuple[Any, tuple[str, ...] | None]:
    """States with numbers in place of labels, in the same form, and the labels in the order of their numbers.

    Text and categories are labels. Those of categories have their order, others are sorted. A label that is missing
    becomes NaN.

    Arguments:
        names: the labels in this order, if they are known.

    Raises:
        TypeError: labels of text and numbers together; numbers as text, which are not categories.
        ValueError: columns of several sequences with unequal categories; a label that is not among the names.
    """
    if isinstance(states, Mapping):
        numbers, names = coded(list(states.values()), names)
        return dict(zip(states, numbers, strict=True)), names
    several = isinstance(states, list | tuple) and len(states) > 0 and _is_sequence(states[0])
    parts = list(states) if several else [states]
    labels = [_labels(part) for part in parts]
    there = [column for column in labels if column is not None]
    if not there:
        cleaned = [_without_none(part) for part in parts]
        return (cleaned if several else cleaned[0]), None
    order = _names(there) if names is None else _among(there, names)
    number_of = {label: place for place, label in enumerate(order)}
    numbered = [
        part if column is None else _like(part, column.map(number_of, na_action="ignore"))
        for part, column in zip(parts, labels, strict=True)
    ]
    return (numbered if several else numbered[0]), tuple(map(str, order))


def _is_sequence(part: Any) -> bool:
    return isinstance(part, list | tuple | pd.DataFrame | pd.Categorical) or getattr(part, "ndim", 0) > 0


def _labels(part: Any) -> pd.Series | None:
    """The labels of one sequence, one after another, missing ones as NaN; None if there are only numbers."""
    if isinstance(part, pd.DataFrame | Tensor) or not _is_sequence(part):
        return None
    if isinstance(part, pd.Series | pd.Index | pd.Categorical):
        column = pd.Series(part).reset_index(drop=True)
    else:
        column = pd.Series(_objects(part).ravel(), dtype=object)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    if pd.api.types.is_numeric_dtype(column):
        return None
    column = column.astype(object)
    column = column.where(column.notna() & (column != UNKNOWN), np.nan)
    text = column.map(lambda label: isinstance(label, str))
    if not text.any():
        return None
    for label in column[~text & column.notna()][:1]:
        raise TypeError(f"states: got text and {type(label).__name__} together, expected labels of one kind.")
    return column


def _objects(part: Any) -> np.ndarray:
    try:
        return np.asarray(part, dtype=object)
    except ValueError:
        raise ValueError(
            "states: got nested lists of unequal lengths, expected a table; give rows of one length."
        ) from None


def _names(columns: Sequence[pd.Series]) -> list[Any]:
    of_first = columns[0].dtype
    if isinstance(of_first, pd.CategoricalDtype):
        if not all(isinstance(c.dtype, pd.CategoricalDtype) and c.dtype == of_first for c in columns):
            raise ValueError("states: got sequences of unequal categories; give all of them the same.")
        return list(of_first.categories)
    return ordered_labels(label for column in columns for label in column.dropna())


def ordered_labels(labels: Iterable[str]) -> list[str]:
    """The different labels of states in the order of their numbers.

    Raises:
        TypeError: numbers as text.
    """
    labels = sorted(set(labels))
    if all(map(is_number, labels)):
        raise TypeError(
            f"states: got text {labels[0]!r}, expected numbers or labels; convert text of numbers, or give categories."
        )
    return labels


def _among(columns: Sequence[pd.Series], names: Sequence[str]) -> list[Any]:
    """The labels of these names, as they are in the columns, in the order of the names."""
    labels = {str(label): label for column in columns for label in column.dropna().unique()}
    unknown = [name for name in labels if name not in names]
    if unknown:
        raise ValueError(f"states: got label {unknown[0]!r}, expected one of {', '.join(names)}, those of the fit.")
    return [labels.get(name, name) for name in names]


def _like(part: Any, column: pd.Series) -> Any:
    """Numbers in the form of the labels from which they come."""
    numbers = column.astype(object).where(column.notna(), np.nan).to_numpy(dtype=np.float64)
    if isinstance(part, pd.Series):
        return pd.Series(numbers, index=part.index, name=part.name)
    return numbers.reshape(_objects(part).shape)


def _without_none(part: Any) -> Any:
    """Numbers with NaN in place of None."""
    if not isinstance(part, list | tuple | np.ndarray) or (isinstance(part, np.ndarray) and part.dtype.kind != "O"):
        return part
    table = _objects(part)
    missing = pd.isna(table)
    return np.where(missing, np.nan, table) if table.ndim and missing.any() else part


def by_name(table: Any, series: Series, argument: str) -> Any:
    """A mapping, or a column with the names of sequences as its index, as a list in the order of the sequences.

    Raises:
        ValueError: other names than those of the sequences.
    """
    names = series.sequences
    if isinstance(table, pd.Series) and names is not None and table.index.nlevels == 1 and not table.empty:
        keys = [str(key) for key in table.index]
        of_rows = not has_labels(table.index) or (series.stacked and table.index.equals(series.stacked.index))
        if len(keys) != len(names) or (set(keys) != set(names) and of_rows):
            return table
        table = dict(zip(keys, table, strict=True))
    if not isinstance(table, Mapping):
        return table
    entries = {str(key): value for key, value in table.items()}
    if names is None or set(entries) != set(names):
        there = "no names" if names is None else f"the names {', '.join(names)}"
        raise ValueError(
            f"{argument}: got entries for {', '.join(entries)}, but the sequences of x have {there}; use these."
        )
    return [entries[name] for name in names]


# ---- as tables of a series -------------------------------------------------------------------------------------------


def beside(table: Tensor | Packed, argument: str, series: Series, beyond: float, extra: str = "") -> Tensor | Packed:
    """A table `[*b, T]` of the steps of a series, or `[*b, T, K]`, stored as the observations are.

    Arguments:
        beyond: the number after the end of a sequence.
        extra: another shape that the argument may have, for an error.
    """
    axes = len(series.batch_shape)
    expected = (*series.batch_shape, series.n_steps)
    if tuple(table.shape[: axes + 1]) != expected:
        raise ValueError(
            f"{argument}: got shape {tuple(table.shape)}, expected {extra}{expected}: an entry for each step of x."
        )
    if isinstance(table, Packed):
        return table
    inside = series.inside.reshape(*expected, *[1] * (table.ndim - axes - 1))
    if isinstance(series.x, Packed):
        return Packed(table[series.inside], series.x.lengths, beyond)
    return torch.where(inside, table, beyond)


def with_states(series: Series, table: Tensor | Packed, names: tuple[str, ...] | None) -> Series:
    """The series with known states, from numbers with NaN where unknown, or from weights of the states."""
    axes = len(series.batch_shape)
    if len(table.shape) not in (axes + 1, axes + 2):
        raise ValueError(
            f"states: got shape {tuple(table.shape)}, expected {(*series.batch_shape, series.n_steps)}, a state for "
            "each step, or weights with one more axis, of the states."
        )
    table = beside(table, "states", series, torch.nan)
    if len(table.shape) == axes + 1:
        known = _rows(series, "states", table)
        return _put(series, known, state_names=names) if bool((known["states"] >= 0).any()) else series
    rows, weights = rows_of(table), "weights of at least 0, or NaN for all states of a step"
    rows = torch.where(rows.isnan().all(-1, keepdim=True), 1.0, rows)
    _refuse(series, _impossible(rows), rows, "states", weights)
    _refuse(series, (rows == 0).all(-1), rows, "states", "a state of positive weight")
    return series if bool((rows == rows[..., :1]).all()) else _put(series, {"states": rows.log()})


def with_weights(series: Series, table: Tensor | Packed) -> Series:
    """The series with weights of sequences `[*b]` or of steps `[*b, T]`; a step of weight 0 becomes missing."""
    batch = tuple(series.batch_shape)
    if isinstance(table, Tensor) and tuple(table.shape) == batch:
        _refuse(series, _impossible(table), table, "weights", WEIGHTS, of_steps=False)
        if series.n_sequences and not bool(table.any()):
            raise ValueError("weights: got only zeros; give some sequence a positive weight.")
        return replace(series, weights=table)
    table = beside(table, "weights", series, 1.0, f"{batch}, a weight of each sequence, or ")
    if len(table.shape) != len(batch) + 1:
        raise ValueError(f"weights: got shape {tuple(table.shape)}, expected {batch} or {(*batch, series.n_steps)}.")
    return _put(series, _rows(series, "weights", table))


def with_noise(series: Series, table: Tensor | Packed) -> Series:
    """The series with variances of noise, of steps `[*b, T]` or of each feature of a step `[*b, T, F]`; those of
    missing values may be missing too."""
    axes, n_features = len(series.batch_shape), series.n_features
    expected = (*series.batch_shape, series.n_steps)
    if tuple(table.shape[axes + 1 :]) not in ((), (n_features,)):
        raise ValueError(f"noise: got shape {tuple(table.shape)}, expected {expected} or {(*expected, n_features)}.")
    return _put(series, _rows(series, "noise", beside(table, "noise", series, 0.0)))


def _rows(series: Series, argument: str, table: Tensor | Packed) -> dict[str, Tensor]:
    return rows_beside(argument, rows_of(table), rows_of(series.x), partial(_refuse, series))


def rows_beside(
    argument: str, rows: Shaped[Tensor, "*n"], x: Float[Tensor, "*m F"], refuse: Callable[..., None]
) -> dict[str, Tensor]:
    """Rows of a table beside the observations x as a series stores them, by the name of its table.

    With weights comes x too, whose observations of weight 0 are missing.

    Arguments:
        refuse: raises an error if some entries are bad: `refuse(bad, rows, argument, expected)`.
    """
    if argument == "states":
        numbers = rows.double().nan_to_num(nan=UNKNOWN)
        bad = (numbers % 1 != 0) | (numbers < UNKNOWN)
        refuse(bad, rows, argument, "whole numbers from 0, or -1 where unknown")
        return {"states": numbers.long()}
    if argument == "weights":
        refuse(_impossible(rows), rows, argument, WEIGHTS)
        zero = rows == 0
        return {"x": x.masked_fill(zero.unsqueeze(-1), torch.nan), "step_weights": torch.where(zero, 1.0, rows)}
    if argument == "noise":
        wide = (rows if rows.ndim == x.ndim else rows.unsqueeze(-1)).expand_as(x)
        known = torch.where(x.isnan() & wide.isnan(), 0.0, wide)
        refuse(_impossible(known), wide, argument, "finite variances of at least 0")
        return {"noise": known}
    return {argument: rows}


def _impossible(rows: Tensor) -> Tensor:
    """Which weights or variances cannot be."""
    return ~((rows >= 0) & rows.isfinite())


def check_states(series: Series, n_states: int) -> Series:
    """The series with a label for each of the states of a model.

    Raises:
        ValueError: more states or labels than the model has.
    """
    names, table = series.state_names, series.states
    if names is not None and len(names) > n_states:
        raise ValueError(
            f"states: got {len(names)} labels ({', '.join(names)}) for {n_states} states; use a model with more "
            "states, or fewer labels."
        )
    if table is not None:
        rows = rows_of(table)
        if rows.is_floating_point() and rows.shape[-1] != n_states:
            raise ValueError(
                f"states: got weights of {rows.shape[-1]} states, but the model has {n_states}; give one for each."
            )
        if not rows.is_floating_point():
            series.check(lambda part: _check_numbers(part, n_states))
    if names is None or len(names) == n_states:
        return series
    others = (str(state) for state in range(len(names), n_states))
    return replace(series, state_names=(*names, *others))


def _check_numbers(series: Series, n_states: int) -> None:
    assert series.states is not None
    rows = rows_of(series.states)
    _refuse(series, rows >= n_states, rows, "states", f"states 0 to {n_states - 1}, or -1 where unknown")


def _put(series: Series, rows: Mapping[str, Tensor], **others: Any) -> Series:
    """The series with tables of these rows, by name."""
    x, tables = series.x, dict[str, Any](rows)
    if isinstance(x, Packed):
        tables = {name: Packed(table, x.lengths, BEYOND[name]) for name, table in rows.items()}
    return replace(series, **tables, **others)


def _refuse(
    series: Series, bad: Bool[Tensor, "..."], rows: Tensor, argument: str, expected: str, of_steps: bool = True
) -> None:
    """Raise ValueError with the place and the value of the first bad entry of rows of steps, or of sequences."""
    if not bool(bad.any()):
        return
    first = tuple(bad.nonzero()[0].tolist())
    value = rows[first]
    shown = f"[{', '.join(f'{one:g}' for one in value.tolist())}]" if value.ndim else f"{float(value):g}"
    if isinstance(series.x, Packed) and of_steps:
        batch, steps = series.x.at(first[0])[:1], (series.x.at(first[0])[1], *first[1:])
    else:
        batch, steps = first[: len(series.batch_shape)], first[len(series.batch_shape) :]
    places = zip(("step", "feature" if argument == "noise" else "state"), steps, strict=False)
    where = [*([f"sequence {number(batch)}"] if batch else []), *(f"{axis} {place}" for axis, place in places)]
    raise ValueError(f"{argument}: got {shown}{' at ' * bool(where)}{', '.join(where)}; expected {expected}.")
