"""The states of every step of a series, as a table beside the data."""

from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...inference.numerics.checks import naming
from ..data.series import Given, Series
from ..problem import SeriesProblem


def states(model: Any, x: Any, names: tuple[str, ...] | None = None, **given: Unpack[Given]) -> pd.DataFrame | Any:
    """See `model.states`; `names` are labels of the states, if the series has none."""
    series, of_steps = model.read(x, **given), getattr(model, "_of_steps", None)
    if of_steps is not None:  # a model without states
        with torch.no_grad():
            return of_steps(series)
    return series.framed(pd.DataFrame(state_columns(model, series, names), index=series.labels))


@torch.no_grad()
def state_columns(model: Any, series: Series, names: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """The columns of `model.states`."""
    state_names = names if series.state_names is None else series.state_names
    problem, values = model.problem(series), model.values_like(series.like)
    axes: dict[str, tuple[str, ...]] = {}

    def tables_of(part: SeriesProblem) -> dict[str, Tensor]:
        tables = model.probabilities(part.chain(model.product_of(values)), values)
        axes.update({name: names for name, (_, names) in tables.items()})
        return {name: table for name, (table, _) in tables.items()}

    with naming("x"):
        steps = problem.steps(tables_of)
    return columns_of(model, steps, axes, state_names)


def columns_of(
    model: Any, steps: dict[str, Tensor], axes: dict[str, tuple[str, ...]], state_names: tuple[str, ...] | None
) -> dict[str, np.ndarray]:
    """The columns of `model.states`, from tables `[N, ...]` by name, the names of their axes, and labels of states."""
    columns = {}
    for name, table in steps.items():
        rows, short = table.cpu().numpy(), name.replace("_probability", "")
        if name.startswith("state"):  # state, or state_1, state_2, ... of several chains
            best = rows.argmax(-1)
            columns[short] = best if state_names is None else np.asarray(state_names, dtype=object)[best]
            of_states = range(rows.shape[-1]) if state_names is None else state_names
            columns |= {f"{short}_{k}": column for k, column in zip(of_states, rows.T, strict=True)}
        elif axes[name]:
            labels: dict[Any, Any] = {("latent",): model.latents, ("chain_latent",): range(rows.shape[-1])}
            entries = labels.get(axes[name], range(1, rows.shape[-1] + 1))
            columns |= {f"{short}_{label}": rows[:, place] for place, label in enumerate(entries)}
        else:
            columns[short] = rows
    return columns
