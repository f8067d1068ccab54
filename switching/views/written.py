"""`model.write`: results with a row for each row of the data, written to a Parquet or CSV file one part after another.

States and best paths of a sequence longer than a part are computed in stretches (see `stretches`).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...inference.numerics.checks import naming
from ...inference.numerics.extras import needs
from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_choice, check_integer, check_path
from ..data.ragged import seeds_of
from ..data.series import Given, Series, numbered_from
from ..data.timeline import time_index
from ..data.writing import whole_file
from .states import columns_of, state_columns, states
from .stretches import Stretches

STEPS = 2**17  # of a part
RESULTS = ("states", "viterbi", "forecast", "draws")
Columns = dict[str, Any]


def write(
    model: Any,
    x: Any,
    path: str | Path,
    result: str,
    horizon: int,
    seed: Seed,
    names: tuple[str, ...] | None = None,
    **given: Unpack[Given],
) -> None:
    """See `model.write`; `names` are labels of the states, if the series has none."""
    result, horizon = check_choice("result", result, RESULTS), check_integer("horizon", horizon)
    file = check_path("path", path)
    if not file.parent.is_dir():
        raise ValueError(f"path: there is no folder {file.parent}; make it first.")
    if file.is_dir():
        raise ValueError(f"path: {file} is a folder; give the path of a file.")
    as_text = file.suffix.lower() == ".csv"
    if not as_text:
        with needs("pyarrow", "parquet"):
            import pyarrow.parquet  # noqa: F401 before any work
    series = replace(model.read(x, **given), frame=None)
    if not series.n_sequences:
        raise ValueError("x: has no sequences, so there is nothing to write.")
    names = names if series.state_names is None else series.state_names
    seeds = seeds_of(seed)

    def table(part: Series) -> Columns:
        if result == "states":
            if hasattr(model, "_of_steps"):  # a model without states
                return {str(n): column.to_numpy() for n, column in states(model, part, names).items()}
            return {str(n): column for n, column in state_columns(model, part, names).items()}
        if result == "viterbi":
            return _best(model, part, names)
        if result == "forecast":
            return _ahead(model, part, horizon, series)
        return _drawn(model, part, next(seeds), names, series)

    with whole_file(file.resolve()) as new:
        frames = map(pd.DataFrame, _tables(model, series, table, result, horizon, names))
        (_write_csv if as_text else _write_parquet)(new, frames)


def _write_csv(file: Path, frames: Iterator[pd.DataFrame]) -> None:
    with open(file, "w", encoding="utf-8", newline="") as text:
        for number, frame in enumerate(frames):
            frame.to_csv(text, index=False, header=number == 0)


def _write_parquet(file: Path, frames: Iterator[pd.DataFrame]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = pa.Table.from_pandas(next(frames), preserve_index=False)
    few: Any = [column.name for column in first.schema if not pa.types.is_floating(column.type)]  # distinct numbers
    with pq.ParquetWriter(file, first.schema, compression="zstd", use_dictionary=few) as writer:
        writer.write_table(first)
        for frame in frames:
            writer.write_table(pa.Table.from_pandas(frame, schema=first.schema, preserve_index=False))


def _tables(
    model: Any,
    series: Series,
    table: Callable[[Series], Columns],
    result: str,
    horizon: int,
    names: tuple[str, ...] | None,
) -> Iterator[Columns]:
    """The columns of each part, those that name the rows first."""
    with torch.no_grad():
        for first, step, part in series.turns(STEPS) if series.on_disk else [(0, 0, series)]:
            if step:
                continue  # of a sequence that is taken at once
            members = range(first, first + part.n_sequences)
            keys = _keys(series, members, result, horizon)
            if not series.on_disk or int(series.last[first]) < STEPS:
                with numbered_from(first, 0), naming("x"):
                    columns = table(part)
                yield _beside(keys, columns)
                continue
            with numbered_from(first, 0), naming("x"):
                for columns in _columns_of_one(
                    model, series.part(torch.tensor([first], device="cpu")), table, result, names
                ):
                    size = len(next(iter(columns.values())))
                    yield _beside({name: column[:size] for name, column in keys.items()}, columns)
                    keys = {name: column[size:] for name, column in keys.items()}


def _columns_of_one(
    model: Any, series: Series, table: Callable[[Series], Columns], result: str, names: tuple[str, ...] | None
) -> Iterator[Columns]:
    """The columns of a sequence longer than a part, those of some steps at a time."""
    stretches = Stretches(model, series, STEPS - 1)
    if result == "states" and stretches.exist:
        yield from (columns_of(model, steps, axes, names) for steps, axes in stretches.smoothed())
    elif result == "viterbi" and stretches.exist:
        yield from (_path_columns(steps, names) for steps in stretches.best())
    else:
        yield table(series)


def _beside(keys: Columns, columns: Columns) -> Columns:
    for name in keys:
        if name in columns:
            raise ValueError(f"x: has the key column {name!r}, as the results have; give it another name.")
    return keys | columns


def _keys(series: Series, members: range, result: str, horizon: int) -> Columns:
    """The columns that name the rows of some sequences: the sequence, and the time or the horizon."""
    called = list(members) if series.sequences is None else series.sequences[members.start : members.stop]
    sizes = (series.last.flatten()[members.start : members.stop] + 1).tolist()
    repeats = [horizon] * len(sizes) if result == "forecast" else sizes
    keys: Columns = {"sequence": np.repeat(np.asarray(called), repeats)} if series.batch_shape else {}
    if result == "forecast":
        return keys | {"horizon": np.tile(np.arange(1, horizon + 1), len(sizes))}
    times = [time_index(series.index_of(i), series.n_steps)[:n] for i, n in zip(members, sizes, strict=True)]
    keys[str(times[0].name or "step")] = times[0].append(times[1:])
    if series.stacked is None:
        return keys
    order = series.in_rows(torch.arange(sum(sizes), device=series.like.device)).cpu().numpy()
    return {name: column[order] for name, column in keys.items()}


# ---- results of one part ---------------------------------------------------------------------------------------------


def _best(model: Any, part: Series, names: tuple[str, ...] | None) -> Columns:
    """The most probable path."""
    if not hasattr(model, "viterbi"):
        raise TypeError(f'result: got "viterbi", but a {model.name} has no states; expected "states".')
    steps = model.problem(part).steps(lambda group: _paths(model.viterbi(group.series, ragged=False)))
    return _path_columns(steps, names)


def _paths(record: Any) -> dict[str, Tensor]:
    tables = {"path": record.path, "redraw": getattr(record, "redraw", None)}
    return {name: table for name, table in tables.items() if table is not None}


def _path_columns(steps: dict[str, Tensor], names: tuple[str, ...] | None) -> Columns:
    """Columns `state` and `redraw`; of several chains `state_1`, `redraw_1`, ..."""
    columns: Columns = {}
    for name, table in steps.items():
        rows, short = table.cpu().numpy(), "state" if name == "path" else name
        labelled = rows if names is None or short != "state" else np.asarray(names, dtype=object)[rows]
        if rows.ndim == 1:
            columns[short] = labelled
        else:
            columns |= {f"{short}_{d}": column for d, column in enumerate(labelled.T, start=1)}
    return columns


def _ahead(model: Any, part: Series, horizon: int, series: Series) -> Columns:
    """Means and standard deviations of the observations to come, and the beliefs about states."""
    forecast = model.forecast(part, horizon)
    n_features, columns = part.n_features, {}
    mean, sd = (table.reshape(-1, n_features).cpu().numpy() for table in (forecast.mean, forecast.variance.sqrt()))
    for place, name in enumerate(series.features_of()):
        columns |= {name: mean[:, place], f"{name}_sd": sd[:, place]}
    return columns | {name: belief.reshape(-1).cpu().numpy() for name, belief in forecast.beliefs.items()}


def drawn_like(model: Any, series: Series, seed: Any, **given: Any) -> Any:
    """A draw with the sequences, steps, inputs and gaps of a series."""
    driven = {"inputs": series.drive.inputs, "dt": series.drive.gaps}
    given = {name: table for name, table in driven.items() if table is not None} | given
    return model.simulate(series.n_steps, tuple(series.batch_shape), seed=seed, **given)


def _drawn(model: Any, part: Series, seed: Any, names: tuple[str, ...] | None, series: Series) -> Columns:
    """New sequences with the lengths, inputs and gaps of the data."""
    draw = drawn_like(model, part, seed)
    x = part.steps_of(draw.x).cpu().numpy()
    columns: Columns = {name: x[:, place] for place, name in enumerate(series.features_of())}
    if not hasattr(draw, "path"):
        return columns
    return columns | _path_columns({name: part.steps_of(table) for name, table in _paths(draw).items()}, names)
