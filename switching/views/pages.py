"""HTML for notebooks: models, fits, posteriors, forecasts and stacks, each with a heading and a table."""

from typing import Any

import numpy as np
import pandas as pd

from ..data.timeline import label_text
from ..parameters import SINGLE
from .estimates import drawn_parameters
from .forecasts import LEVEL, table_of, title_of
from .tables import by_state, coordinates, html

DRAWS = 2000


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
    if fit.labels is None:
        return html(title, by_state(fit.model, {dim: range(size) for dim, size in _sizes(fit.model).items()}))
    return html(title, by_state(fit.model, coordinates(fit.labels, fit.model)))


def posterior_page(posterior: Any) -> str:
    """Mean, standard deviation and central interval of every number; of a fit's, those of its summary."""
    if posterior.labels is not None:
        model, series = posterior.labels
        table = drawn_parameters(posterior, model, series, LEVEL).drop(columns="state")
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
    table = table_of(forecast.first(), LEVEL)
    times, *features = (table.index.get_level_values(level) for level in range(table.index.nlevels))
    texts = pd.Index([label_text(time) for time in times], name=times.name)
    table.index = pd.MultiIndex.from_arrays([texts, *features]) if features else texts
    return html(title_of(forecast, LEVEL), table)


def _sizes(model: Any) -> dict[str, int]:
    return dict.fromkeys(SINGLE, 1) | model.sizes
