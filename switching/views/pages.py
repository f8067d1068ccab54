"""HTML for notebooks: models, fits, posteriors, forecasts and stacks, each with a heading and a table."""

from typing import Any

import numpy as np
import pandas as pd

from ..data.timeline import continued, label_text, time_index
from ..parameters import SINGLE
from .summary import parameters_of
from .tables import by_state, coordinates, html

LEVEL, DRAWS = 0.9, 2000


def model_page(model: Any) -> str:
    """The specification of a model, and its values by state."""
    title = repr(model).splitlines()[0]
    if not model.values:
        return html(title, pd.DataFrame(index=["no values yet: fit it, or give it some"]))
    return html(title, by_state(model, {dim: range(size) for dim, size in _sizes(model).items()}))


def fit_page(fit: Any) -> str:
    """The end of a fit, and its model."""
    lines = repr(fit).splitlines()
    title = "\n".join(lines[: 1 + next(i for i, line in enumerate(lines) if line == repr(fit.model).splitlines()[0])])
    if fit.series is None:
        return html(title, by_state(fit.model, {dim: range(size) for dim, size in _sizes(fit.model).items()}))
    return html(title, by_state(fit.model, coordinates(fit.series, fit.model)))


def posterior_page(posterior: Any) -> str:
    """Mean, standard deviation and central interval of every number; of a fit's, those of its summary."""
    if posterior.labels is not None:
        model, series = posterior.labels
        table = parameters_of(posterior, model, series, LEVEL).drop(columns="state")
        ends = [f"{100 * p:g}%" for p in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
        return html(type(posterior).__name__, table.set_axis(["estimate", "sd", *ends], axis=1).rename_axis(None))
    draws, mean = posterior.sample(DRAWS), posterior.mean
    lower, upper = posterior.interval(LEVEL, n=DRAWS)
    ends = [f"{100 * p:g}%" for p in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    numbers = {}
    for name, table in mean.items():
        for index in np.ndindex(*table.shape):
            label = f"{name}[{', '.join(map(str, index))}]" if index else name
            tables = table, draws[name].std(0), lower[name], upper[name]
            numbers[label] = [float(values[index]) for values in tables]
    table = pd.DataFrame.from_dict(numbers, orient="index", columns=["mean", "sd", *ends])
    return html(type(posterior).__name__, table)


def forecast_page(forecast: Any) -> str:
    """Mean and interval, and the belief about states, at each horizon of the first sequence."""
    horizon, columns = forecast.mean.shape[-2], {}
    names = [f"x[{f}]" for f in range(forecast.mean.shape[-1])] if forecast.mean.shape[-1] > 1 else ["x"]
    index = pd.RangeIndex(1, horizon + 1, name="horizon")
    if forecast.series is not None:
        alone, names = forecast.one(0), list(forecast.series.features_of())
        assert alone.series is not None
        labels = continued(time_index(alone.series.index_of(), alone.series.n_steps), horizon)[-horizon:]
        index = pd.Index([label_text(label) for label in labels], name=labels.name)

    def first(table: Any) -> np.ndarray:
        return table.detach().cpu().reshape(-1, *table.shape[-2:])[0].numpy()

    ends = forecast.interval(LEVEL)
    for f, name in enumerate(names):
        columns[name] = first(forecast.mean)[:, f]
        columns |= {f"{name}, {end}": first(table)[:, f] for end, table in zip(ends._fields, ends, strict=True)}
    columns |= {name: first(column.unsqueeze(-1))[:, 0] for name, column in forecast.beliefs.items()}
    n = forecast.mean.shape[:-2].numel()
    title = f"Forecast, with intervals of {100 * LEVEL:g}%{f'; the first of {n} sequences' if n > 1 else ''}"
    return html(title, pd.DataFrame(columns, index=index))


def _sizes(model: Any) -> dict[str, int]:
    return dict.fromkeys(SINGLE, 1) | model.sizes
