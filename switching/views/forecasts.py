"""Forecasts and their intervals as tables: a row for each step to come and each feature."""

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from ..data.series import Series
from ..data.timeline import following, time_index
from .tables import number

LEVEL = 0.9  # of the intervals that are printed
MOST_ROWS, MOST_COLUMNS = 12, 8  # that are printed


def table_of(forecast: Any, level: float) -> pd.DataFrame:
    """See `Forecast.table`."""
    n_features = forecast.mean.shape[-1]
    columns = {"mean": forecast.mean, **forecast.interval(level)._asdict()}
    found = {name: _flat(table) for name, table in columns.items()}
    found |= {name: _flat(column).repeat(n_features) for name, column in forecast.beliefs.items()}
    return pd.DataFrame(found, index=labels_of(forecast))


def labels_of(forecast: Any) -> pd.Index:
    """The labels of the numbers `[*b, H, F]` of a forecast: the sequence, if there are several, the time, and the
    feature, if there are several."""
    series, (*batch, horizon, n_features) = forecast.series, forecast.mean.shape
    if series is None:
        times = pd.RangeIndex(1, horizon + 1, name="horizon")
        levels = pd.MultiIndex.from_product([*map(range, batch), times])
        levels = levels.set_names([f"batch_{axis}" for axis in range(len(batch))], level=list(range(len(batch))))
        features: tuple[str, ...] = tuple(f"x[{f}]" for f in range(n_features))
    else:
        levels, features = _steps(series, horizon), series.features_of()
    arrays = [levels.get_level_values(level).repeat(n_features) for level in range(levels.nlevels)]
    if n_features > 1:
        arrays.append(pd.Index(np.tile(features, len(levels)), name="feature"))
    return arrays[0] if len(arrays) == 1 else pd.MultiIndex.from_arrays(arrays)


def _steps(series: Series, horizon: int) -> pd.Index:
    """The labels of the steps to come of all sequences."""
    batch = series.batch_shape
    alike = not batch or (series.lengths is None and (series.index is None or isinstance(series.index, pd.Index)))
    ends = (series.last + 1).flatten().tolist()
    ahead = [
        following(time_index(series.index_of(i), series.n_steps)[:end], horizon)
        for i, end in enumerate(ends[:1] if alike else ends)
    ]
    if not batch:
        return ahead[0]
    times = (ahead * len(ends) if alike else ahead)[: len(ends)]
    names = ["sequence"] if len(batch) == 1 else [f"sequence_{axis}" for axis in range(len(batch))]
    called = pd.MultiIndex.from_product([range(size) for size in batch], names=names)
    levels = [called.get_level_values(axis).repeat(horizon) for axis in range(len(batch))]
    if series.sequences is not None:
        levels = [pd.Index(series.sequences, name="sequence").repeat(horizon)]
    joined = times[0].append(times[1:]) if times else pd.RangeIndex(0)
    return pd.MultiIndex.from_arrays([*levels, joined.rename(times[0].name if times else "step")])


def printed(table: pd.DataFrame, title: str) -> str:
    """A heading and a table as text, with numbers of four digits."""
    shown = table.map(number)
    return "\n".join([title, shown.to_string(max_rows=MOST_ROWS, max_cols=MOST_COLUMNS)])


def title_of(forecast: Any, level: float = LEVEL) -> str:
    """What the printed table of a forecast is called."""
    n = forecast.mean.shape[:-2].numel()
    several = f"; the first of {n} sequences" if n > 1 else ""
    return f"{type(forecast).__name__} of {forecast.mean.shape[-2]} steps, with intervals of {100 * level:g}%{several}"


def _flat(table: Tensor) -> np.ndarray:
    return table.detach().cpu().reshape(-1).numpy()
