"""Observations in any form, as one `Series`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.checks import check_integers
from ...inference.numerics.records import made
from .beside import in_rows, like_x, names_sequences, of_list, of_one
from .design import named_columns
from .frames import is_ragged_list, labelled, to_tensor
from .knowledge import by_name, coded, with_noise, with_states, with_weights
from .matching import labelled_by, matched_columns
from .packed import Packed, stored
from .series import Series, number, place
from .stacked import Stacked, check_levels, common_index, name_of, panel_of
from .subjects import with_subjects
from .timeline import check_times
from .times import numbered_times, with_gaps

Layout = tuple[dict[str, Any], Callable[..., Tensor | Packed]]
"""Fields of a series, and `placed(table, name, beyond)`, which lays out a table as that of x, with the number `beyond`
after the end of each sequence."""


def read_series(x: Any, n_features: int, *, lengths: Any = None, input_names: Any = None, **beside: Any) -> Series:
    """Read observations in any form.

    Arguments:
        x: `[T]` (one feature), `[T, F]` or `[*batch, T, F]` as a tensor, a numpy array or nested numbers; a pandas
            Series or DataFrame (columns are features, the index is time); a panel, whose index has levels of sequence
            and time; a list of sequences of unequal length, or a dictionary of them by name; rows `[N, F]` of several
            sequences, one after another, with `lengths [B]` that sum to N. NaN is missing. Numbers become float64,
            except tensors and arrays of float32.
        n_features: F, the required number of features of `x`.
        lengths, input_names, beside: see `Given`: inputs, dt or time, states, weights and noise. Inputs, gaps and times
            may extend beyond T. For a panel, rows `[N, F]` or a list, tables have the form of x, or are `[B, T, C]` and
            `[B, T]`.

    Raises:
        ValueError: wrong rank or number of features, infinite values, no steps, lengths that do not fit, an index that
            goes back in time or has a step twice.
        TypeError: values that are not numbers.

    Warns:
        UserWarning: an index whose labels are not evenly spaced, if no gaps are given.
    """
    if isinstance(x, Tensor | np.ndarray) and lengths is input_names is None and not beside:  # at once, as it is usual
        series = made(Series, x=_values(x, n_features, "x"))
        check_finite(series)
        return series
    beside, drivers = {name: table for name, table in beside.items() if table is not None}, None
    if {"dt", "time"} <= beside.keys():
        raise ValueError("time: was given with dt, the gaps between the times; give one of the two.")
    if "time" in beside:
        beside["time"] = numbered_times(beside["time"])
    if labelled(x):
        beside |= {name: labelled_by(beside[name], x.index.names) for name in ("inputs", "noise") if name in beside}
    if "inputs" in beside or input_names is not None:
        inputs, drivers = named_columns(beside.get("inputs"), input_names, list(x) if isinstance(x, dict) else None)
        beside |= {} if inputs is None else {"inputs": inputs}
    names = None
    if isinstance(x, dict):
        names, x = tuple(map(name_of, x)), list(x.values())
    if labelled(x) and names_sequences(x.index):
        if lengths is not None:
            raise ValueError("lengths: was given with a panel, but its index names the sequences; leave it out.")
        check_levels(x.index, "x")
        rows = panel_of(x.index, "x")
        layout = of_rows(x, rows, n_features)
    elif isinstance(x, list | tuple) and len(x) > 0 and not np.isscalar(x[0]) and (names or is_ragged_list(x)):
        if lengths is not None:
            raise ValueError(
                "lengths: got both a list of sequences and lengths; a list carries its own lengths, so leave it out."
            )
        layout = _of_list(x, names, n_features)
    else:
        layout = _of_table(x, lengths, n_features)
    return with_beside(*layout, beside, drivers)


def _of_table(x: Any, lengths: Any, n_features: int) -> Layout:
    """One sequence, or a batch with padding; or rows of several sequences, whose lengths sum to their number."""
    values, index = _values(x, n_features, "x"), x.index if labelled(x) else None
    if lengths is not None and values.ndim == 2 and _counts(lengths, values).ndim == 1:
        return of_rows(x, Stacked.by_lengths(_summing(lengths, values), index), n_features)
    fields = {"index": index, "features": _features(x)} if labelled(x) else {}
    return fields | {"x": values, "lengths": _read_lengths(lengths, values)}, partial(of_one, index=index)


def _of_list(x: Sequence[Any], names: tuple[str, ...] | None, n_features: int) -> Layout:
    """A list of sequences."""
    x = [_alone(part, f"x[{i}]") for i, part in enumerate(x)]
    times = tuple([part.index if labelled(part) else None for part in x])
    fields = {"index": times, "features": _features_of_each(x)} if all(map(labelled, x)) else {}
    parts = [_values(part, n_features, f"x[{i}]") for i, part in enumerate(x)]
    for i, part in enumerate(parts):
        if part.ndim != 2:
            raise ValueError(f"x[{i}]: got shape {tuple(part.shape)}; each sequence of a list is [T] or [T, F].")
    fields |= _joined(parts, names) | {"listed": True}
    return fields, partial(of_list, counts=fields["lengths"], times=times)


def of_rows(x: Any, rows: Stacked, n_features: int) -> Layout:
    """Rows of several sequences, as a batch."""
    fields = _joined(rows.parts(_values(x, n_features, "x")), rows.names)
    if labelled(x):
        fields |= {"index": common_index(rows.times), "features": _features(x), "stacked": rows}
    return fields, partial(in_rows, rows=rows, counts=fields["lengths"])


def _joined(parts: Sequence[Tensor], names: tuple[str, ...] | None) -> dict[str, Any]:
    """The fields of several sequences, whose table has NaN after their ends."""
    dtype = torch.float64 if torch.float64 in {part.dtype for part in parts} else torch.float32
    lengths = torch.tensor([len(part) for part in parts], device=parts[0].device)
    x = stored([part.to(dtype) for part in parts], lengths, torch.nan)
    return {"x": x, "lengths": lengths, "sequences": names}


def with_beside(
    fields: dict[str, Any],
    placed: Callable[..., Tensor | Packed],
    beside: Mapping[str, Any],
    drivers: tuple[str, ...] | None,
) -> Series:
    """The series of some fields, with the tables beside it.

    Arguments:
        beside: inputs, dt or time, states, weights, noise and subjects, by name.
        drivers: the names of the inputs.
    """
    x, clock = fields["x"], "time" if "time" in beside else "dt"
    if "index" in fields:
        _check_labels(fields, cured=clock in beside)

    def like(name: str, table: Any, beyond: float = 0.0) -> Tensor | Packed:
        return like_x(placed(table, name, beyond), name, x)

    driven = {"inputs": "inputs", clock: "dt"}
    tables = {field: like(name, beside[name]) for name, field in driven.items() if name in beside}
    series = _finished(made(Series, **fields, **tables, drivers=drivers), clock)

    def known(name: str) -> Any:
        return by_name(beside[name], series, name)

    if "states" in beside:
        numbers, names = coded(known("states"))
        series = with_states(series, like("states", numbers, torch.nan), names)
    for name, beyond, put in (("weights", 1.0, with_weights), ("noise", 0.0, with_noise)):
        if name in beside:
            series = put(series, like(name, matched_columns(known(name), series.features, name), beyond))
    return with_subjects(series, known("subjects")) if "subjects" in beside else series


def _check_labels(fields: Mapping[str, Any], cured: bool) -> None:
    """See `check_times`."""
    stacked, listed, index = fields.get("stacked"), "listed" in fields, fields["index"]
    times = stacked.times if stacked else index if listed else (index,)
    called = "x: sequence {}" if stacked else "x[{!r}]" if listed else "x"
    check_times(times, [called.format(name) for name in fields.get("sequences") or range(len(times))], cured)


def _finished(series: Series, clock: str) -> Series:
    """The series without infinite values, and with NaN after the end of each sequence."""
    if series.packed:
        _check_beside_packed(series, clock)
    series = with_gaps(series) if clock == "time" else series
    check_finite(series)
    if series.lengths is None or series.packed:
        return series
    inside = series.inside.unsqueeze(-1)
    if bool((inside | series.observations.isnan()).all()):
        return series
    return replace(series, x=torch.where(inside, series.observations, torch.nan))


def _check_beside_packed(series: Series, clock: str) -> None:
    """ValueError if padded inputs or gaps lack sequences or steps of packed observations."""
    steps = (series.n_sequences, series.n_steps)
    for name, table, axes in (("inputs", series.inputs, 3), (clock, series.dt, 2)):
        if not isinstance(table, Tensor):
            continue
        if table.ndim != axes or len(table) != steps[0] or table.shape[1] < steps[1]:
            expected = f"[{steps[0]}, {steps[1]}{', C' * (axes - 2)}]"
            raise ValueError(f"{name}: got shape {list(table.shape)}, expected {expected}, or a list like x.")


def _alone(part: Any, name: str) -> Any:
    """One sequence from a list; the level of sequences is removed from its index."""
    if not (labelled(part) and names_sequences(part.index)):
        return part
    rows = panel_of(part.index, name)
    if len(rows.members) > 1:
        raise ValueError(f"{name}: got {len(rows.members)} sequences in one part of a list; give the whole frame as x.")
    return part.set_axis(rows.times[0])


def _features_of_each(x: Sequence["pd.DataFrame | pd.Series"]) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
    columns = tuple(map(_features, x))
    for i, names_of in enumerate(columns):
        if names_of != columns[0] and set(names_of) == set(columns[0]):
            raise ValueError(f"x[{i}]: got columns {list(names_of)}, but x[0] has {list(columns[0])}; use one order.")
    return columns[0] if len(set(columns)) == 1 else columns


def _summing(lengths: Any, values: Tensor) -> Tensor:
    """Lengths of the sequences whose rows are `values [N, F]`, one after another."""
    counts = _counts(lengths, values)
    if int(counts.sum()) != len(values) or bool((counts < 1).any()):
        raise ValueError(
            f"lengths: got {_few(counts)}, which sum to {int(counts.sum())}, for {len(values)} rows; give each "
            "sequence's number of rows, at least 1, which sum to all; or x as [*batch, T, F]."
        )
    return counts


def _few(counts: Tensor) -> str:
    numbers = counts.flatten().tolist()
    return f"[{', '.join(map(str, numbers[:5]))}{', ...' if len(numbers) > 5 else ''}]"


def _counts(lengths: Any, values: Tensor) -> Tensor:
    return check_integers(lengths, "lengths", "each sequence's number of steps").to(values.device)


def _features(x: "pd.DataFrame | pd.Series") -> tuple[str, ...]:
    return tuple(map(str, x.columns)) if isinstance(x, pd.DataFrame) else (str(x.name or "x"),)


def _values(x: Any, n_features: int, name: str) -> Tensor:
    """Observations `[..., T, F]`."""
    if isinstance(x, pd.DataFrame) and len(x.columns) != n_features:
        raise ValueError(
            f"{name}: got {len(x.columns)} column(s) ({', '.join(map(str, x.columns)) or 'none'}), but the emission "
            f"has {n_features} feature(s); select those to model (`read_panel` takes those of times and sequences by "
            "name)."
        )
    x = to_tensor(x, name)
    shape = tuple(x.shape)
    if x.ndim == 0:
        raise ValueError(f"{name}: got a single number, expected a sequence [T], [T, F] or [*batch, T, F].")
    if x.ndim == 1:
        if n_features != 1:
            raise ValueError(
                f"{name}: got shape {shape}, but the emission has {n_features} features; give [T, {n_features}]."
            )
        x = x.unsqueeze(-1)
    if x.shape[-1] != n_features:
        raise ValueError(
            f"{name}: got shape {shape}, whose last axis is not the emission's {n_features} feature(s); "
            f"give [T, {n_features}] or [*batch, T, {n_features}]"
            + (" (several sequences of one feature: [B, T, 1] or a list)." if n_features == 1 else ".")
        )
    if x.shape[-2] == 0:
        raise ValueError(f"{name}: got shape {shape}, a sequence without any step; give at least one.")
    return x


def _read_lengths(lengths: Any, values: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    counts = _counts(lengths, values)
    if counts.shape != values.shape[:-2]:
        raise ValueError(
            f"lengths: got shape {tuple(counts.shape)}, expected one length a sequence: {tuple(values.shape[:-2])}."
        )
    n_steps = values.shape[-2]
    bad = (counts < 1) | (counts > n_steps)
    if bad.any():
        where = tuple(torch.nonzero(bad)[0].tolist())
        raise ValueError(
            f"lengths: got {int(counts[where])} for sequence {number(where)}, but the series has {n_steps} steps; "
            "give each sequence's number of observed steps, between 1 and T."
        )
    return counts.to(torch.int64)


def check_finite(series: Series) -> None:
    """Raise ValueError with the place if a step of a sequence is infinite."""
    x = series.like
    if math.isfinite(x.item() if x.numel() == 1 else x.sum().item()):
        return
    above, below = x == torch.inf, x == -torch.inf  # `isinf` makes a table of floats
    if bool(above.any()) or bool(below.any()):
        series.check(_check_finite)


def _check_finite(series: Series) -> None:
    infinite = torch.isinf(series.observations) & series.inside.unsqueeze(-1)
    if bool(infinite.any()):
        raise ValueError(f"x: got an infinite value at {place(infinite)}; mark missing values with NaN.")


def read_row(x_t: Any, batch: tuple[int, ...], n_features: int) -> Float[Tensor, "*b F"]:
    """One observation of each stream: `[*batch, F]`, or `[*batch]` for one feature."""
    row = to_tensor(x_t, "x_t")
    if n_features == 1 and tuple(row.shape) == batch:
        row = row.unsqueeze(-1)
    if tuple(row.shape) != (*batch, n_features):
        raise ValueError(f"x_t: got shape {tuple(row.shape)}, expected {(*batch, n_features)}.")
    return row


def read_states(states: Any, row: Float[Tensor, "*b F"]) -> Tensor:
    """The known states `[*batch, 1]`, or their weights `[*batch, 1, K]`, beside one observation of each stream."""
    axes, table = row.ndim - 1, to_tensor(coded(states)[0], "states").to(row)
    if table.ndim < axes or table.shape[:axes] != row.shape[:-1]:
        raise ValueError(
            f"states: got shape {tuple(table.shape)}, expected {tuple(row.shape[:-1])}: the states of this step."
        )
    return table.unsqueeze(axes)
