"""Tables of a `Segments` model: the belief about each step, and the most probable segments."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...inference.numerics.checks import naming
from ..data.timeline import time_index


@torch.no_grad()
def states(model: Any, problem: Any) -> pd.DataFrame | Any:
    """See `Segments.states`."""
    series, values = problem.series, model.values_like(problem.series.like)

    def tables_of(part: Any) -> dict[str, Tensor]:
        found = part.chain(values).smooth(part.expectation)
        change = part.each(found.change).clone()
        change[..., 0] = 0.0
        return {"change": change} | columns(model, series, *part.summarised(found.expected[0]))

    with naming("x"):
        steps = problem.steps(tables_of)
    return series.framed(pd.DataFrame({name: table.cpu().numpy() for name, table in steps.items()}, series.labels))


@torch.no_grad()
def segments(model: Any, problem: Any) -> pd.DataFrame:
    """See `Segments.segments`."""
    series, parts = problem.series, []
    if not series.n_sequences:
        return pd.DataFrame(columns=["sequence", "begin", "end", "steps"])
    with naming("x"):
        for members, part in problem.groups:
            parts.append(_segments_of(model, part, members, series))
    table = pd.concat(parts).sort_values("sequence", kind="stable", ignore_index=True)
    if not series.batch_shape:
        return table.drop(columns="sequence")
    if series.sequences is not None:
        table["sequence"] = np.asarray(series.sequences, dtype=object)[table["sequence"].to_numpy()]
    return table


def _segments_of(model: Any, part: Any, members: Tensor, series: Any) -> pd.DataFrame:
    """The segments of one group of sequences."""
    path, moments = part.best(model.values_like(series.like))
    inside, n_steps = path >= 0, path.shape[-1]
    rows, steps = inside.nonzero(as_tuple=True)
    first = torch.ones_like(rows, dtype=torch.bool)
    number = path[inside]
    first[1:] = (number.diff() != 0) | (rows.diff() != 0)
    begin, sizes = first.nonzero().flatten(), None
    sizes = torch.diff(begin, append=begin.new_tensor([len(rows)]))
    sequence, start = members.to(rows.device)[rows[begin]].cpu().numpy(), steps[begin].cpu().numpy()
    count = sizes.cpu().numpy()
    labels = [time_index(series.index_of(int(i)), n_steps) for i in members.tolist()]
    of_row = dict(zip(members.tolist(), labels, strict=True))
    ends = {
        "begin": [of_row[i][t] for i, t in zip(sequence, start, strict=True)],
        "end": [of_row[i][t + n - 1] for i, t, n in zip(sequence, start, count, strict=True)],
    }
    of_parameters = {name: table.cpu().numpy() for name, table in columns(model, series, *moments).items()}
    return pd.DataFrame({"sequence": sequence, **ends, "steps": count, **of_parameters})


def columns(model: Any, series: Any, means: dict[str, Tensor], spreads: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean and the standard deviation of each number of the parameters `[*n, ...]`, by name."""
    found = {}
    for own, parameter in model.emission.parameters.items():
        name = parameter.shown.name if parameter.shown else own
        axes = [labels(model, series, dim) for dim in parameter.dims[1:]]
        for entry in np.ndindex(*map(len, axes)):
            called = [str(axis[i]) for axis, i in zip(axes, entry, strict=True) if len(axis) > 1]
            place, label = (..., *entry), "_".join([name, *called])
            found |= {label: means[name][place], f"{label}_sd": spreads[name][place]}
    return found


def labels(model: Any, series: Any, dim: str) -> list[Any]:
    """The labels of an axis of a parameter: the names of features and inputs, or numbers."""
    n = model.sizes[dim]
    if dim in ("feature", "feature_new") and series.features is not None and not isinstance(series.features[0], tuple):
        return list(series.features)
    if dim == "regressor" and not isinstance(model.inputs_of[dim], int):
        return list(model.inputs_of[dim])
    return list(range(n))
