"""Tables beside observations, in any form, as tables of a `Series`: inputs, gaps, known states, weights and noise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .design import as_columns, named_columns, places_of
from .frames import is_ragged_list, labelled, plain, to_tensor
from .matching import Places, has_labels, labelled_by, matched, places, places_ahead
from .packed import Packed, padded, stored
from .series import Series
from .stacked import Stacked, panel_of
from .timeline import time_index

DRIVEN_AXES = {"inputs": (2,), "dt": (1,), "time": (1,)}  # numbers of axes of rows of inputs, gaps and times


def with_steps_to_come(series: Series, horizon: int, inputs: Any, input_names: Any, dt: Any) -> Series:
    """The series with inputs `[*batch, horizon, C]` and gaps `[*batch, horizon]` of the steps after its end.

    Without axes for the batch, all sequences get the same.

    Raises:
        ValueError: inputs or gaps that the series itself does not have, of another shape, or under other names.
    """
    fields: dict[str, Any] = {}
    for name, table in (("inputs", plain(inputs, "inputs")), ("dt", plain(dt, "dt"))):
        if table is None:
            continue
        if getattr(series, name) is None:
            raise ValueError(f"{name}: was given for future steps, but the series has none; leave them out.")
        names = None
        if name == "inputs":
            table = labelled_by(table, _keys(series))
            table, names = named_columns(table, input_names, None)
        table = _to_come(table, series, name, horizon)
        if names is not None and series.drivers is not None:
            table = to_tensor(table, name)[..., places_of(series.drivers, names)]
        past, axis = padded(getattr(series, name)), len(series.batch_shape)
        ahead = to_tensor(table, name).to(past)
        expected = (*past.shape[:axis], horizon, *past.shape[axis + 1 :])
        if name == "inputs" and expected[-1] == 1 and ahead.shape in (expected[:-1], expected[axis:-1]):
            ahead = ahead.unsqueeze(-1)
        if ahead.shape not in (expected, expected[axis:]):
            raise ValueError(
                f"{name}: got shape {tuple(ahead.shape)}, expected {expected}: those of the {horizon} future steps."
            )
        fields[name] = torch.cat([past.narrow(axis, 0, series.n_steps), ahead.expand(expected)], axis)
    return replace(series, **fields, checked=None) if fields else series


def _keys(series: Series) -> list[Any]:
    """The names of the columns that name the rows of data, or of their index."""
    if series.frame is not None and series.frame.keys is not None:
        return list(plain(series.frame.keys, "x").columns)
    index = None if series.stacked is not None else series.index_of()
    return [] if index is None else list(index.names)


def _to_come(table: Any, series: Series, name: str, horizon: int) -> Any:
    """Numbers of the steps after the end of a series in the order of their labels: of a panel `[B, horizon, ...]`."""
    if not labelled(table) or len(table) % horizon:
        return table
    indexes = [time_index(series.index_of(i), series.n_steps) for i in range(series.n_sequences)]
    lengths = (series.last + 1).flatten().tolist()
    times = tuple(index[:n] for index, n in zip(indexes, lengths, strict=True))
    if names_sequences(table.index):
        ours = Stacked(table.index, tuple(map(np.arange, lengths)), times, series.sequences)
        rows = _panel_rows(panel_of(table.index, name), ours, name, places_ahead)
        counts = torch.full((len(times),), len(table) // max(1, len(times)), device="cpu")
        return rows.split(to_tensor(table, name), counts, 0.0)
    for index in times if isinstance(series.index, tuple) else times[:1]:
        table = table.iloc[places_ahead(index, table.index, name)]
    return table


def like_x(table: Tensor | Packed, name: str, x: Tensor | Packed) -> Tensor | Packed:
    """A table beside x in the dtype and on the device of x."""
    like = x.rows if isinstance(x, Packed) else x

    def placed(table: Tensor, n_axes: int) -> Tensor:
        if name == "time":  # whose differences are read
            return table.to(like.device, torch.float64)
        numbers = table.to(like)
        if bool((numbers.isinf() & table.isfinite().to(numbers.device)).any()):
            largest = float(table.detach().nan_to_num(0.0).abs().amax())
            raise ValueError(
                f"{name}: got {largest:g}, which {like.dtype}, the dtype of x, cannot represent; give smaller numbers, "
                "or x in float64."
            )
        return as_columns(numbers, n_axes) if name == "inputs" else numbers

    if isinstance(table, Packed):
        return table.map(lambda rows: placed(rows, 2))
    return placed(table, len(x.shape))


def in_rows(table: Any, name: str, beyond: float, *, rows: Stacked, counts: Tensor) -> Tensor | Packed:
    """A table beside rows of several sequences: rows as those of x, a list of tables, or a batch; of weights also a
    number for each sequence. `beyond` stands after the end of each sequence."""
    listed = isinstance(table, list | tuple) and len(table) > 0
    if listed and (all(map(labelled, table)) if name in DRIVEN_AXES else is_ragged_list(table)):
        return of_list(table, name, beyond, counts=counts, times=rows.times)
    numbers, n_rows = to_tensor(table, name), sum(rows.lengths)
    numbers = as_columns(numbers, 2) if name == "inputs" else numbers
    if labelled(table) and not table.index.equals(rows.index):
        if names_sequences(table.index):
            return _panel_rows(panel_of(table.index, name), rows, name, places).split(numbers, counts, beyond)
        if len(numbers) == n_rows and has_labels(table.index) and has_labels(rows.index):
            if names_sequences(rows.index):
                raise ValueError(
                    f"{name}: has an index of one level, but that of x has sequence and time; give both the same "
                    f"index, or {name} as an array, whose rows are read in order."
                )
            numbers = numbers[torch.from_numpy(places(rows.index, table.index, name))]
    by_panel = labelled(table) and names_sequences(table.index)
    of_sequences = name == "weights" and numbers.ndim == 1 and len(numbers) == len(counts) and not by_panel
    by_row = numbers.ndim in DRIVEN_AXES.get(name, (1, 2)) and len(numbers) == n_rows and not of_sequences
    return rows.split(numbers, counts, beyond) if by_row else numbers


def _panel_rows(theirs: Stacked, ours: Stacked, name: str, order: Callable[..., Places]) -> Stacked:
    """The rows of another panel in the order of the sequences of x, those of each by its labels.

    Arguments:
        order: `places`, or `places_ahead` for steps to come.
    """
    names = tuple(map(str, range(len(ours.members)))) if ours.names is None else ours.names
    number = {sequence: i for i, sequence in enumerate(theirs.names or ())}
    if set(number) != set(names):
        odd = next(iter(set(number) ^ set(names)))
        raise ValueError(
            f"{name}: {'has no row of' if odd in names else 'has rows of'} sequence {odd}, and x has "
            f"{len(names)} sequences, with{'' if odd in names else 'out'} it; give rows of these."
        )
    members, times = [], []
    for sequence, index in zip(names, ours.times, strict=True):
        i = number[sequence]
        rows = order(index, theirs.times[i], f"{name}: sequence {sequence}")
        members.append(theirs.members[i][rows])
        times.append(theirs.times[i][rows])
    return Stacked(theirs.index, tuple(members), tuple(times), ours.names)


def of_list(
    driver: Any, name: str, beyond: float = 0.0, *, counts: Tensor, times: Sequence[pd.Index | None]
) -> Tensor | Packed:
    """Numbers beside a list of sequences: if they are a list of tables too, one table, with `beyond` after their
    ends, and the rows of each in the order of the labels of its sequence."""
    if not isinstance(driver, list | tuple) or not driver or not is_ragged_list(driver):
        return of_one(driver, name, index=None)
    parts = [matched(part, index, f"{name}[{i}]") for i, (part, index) in enumerate(zip(driver, times, strict=False))]
    tables = [to_tensor(part, f"{name}[{i}]") for i, part in enumerate([*parts, *driver[len(parts) :]])]
    for i, (table, steps) in enumerate(zip(tables, counts.tolist(), strict=False)):
        if table.ndim != tables[0].ndim or len(table) < steps:
            raise ValueError(f"{name}[{i}]: got shape {tuple(table.shape)}, expected a row for each of {steps} steps.")
    if len(tables) != len(counts):
        raise ValueError(f"{name}: got {len(tables)} tables for {len(counts)} sequences; give one for each.")
    if len({table.shape[1:] for table in tables}) > 1:
        raise ValueError(f"{name}: got tables of {[*{table.shape[-1] for table in tables}]} columns; give equal ones.")
    return stored(tables, counts, beyond)


def of_one(table: Any, name: str, beyond: float = 0.0, *, index: pd.Index | None) -> Tensor:
    """A table beside one sequence, in the order of its labels."""
    if labelled(table) and names_sequences(table.index):
        raise ValueError(f"{name}: has an index of sequence and time, but x does not; give both the same index.")
    return to_tensor(matched(table, index, name), name)


def names_sequences(index: Any) -> TypeGuard[pd.MultiIndex]:
    return isinstance(index, pd.MultiIndex) and index.nlevels > 1
