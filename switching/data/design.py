"""The design of a series: inputs in any form, as the named columns that a model reads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..inputs import Inputs, columns_of, count_inputs, named_or_counted, select_columns
from .frames import is_ragged_list, labelled, to_tensor
from .matching import has_labels, matched
from .packed import Packed
from .series import Series, number

CONSTANT = 1e-13  # spread of an input, relative to its size, below which it is constant
DEPENDENT = 1e-10  # ratio of singular values of standardised inputs, below which they are dependent


def named_columns(inputs: Any, names: Any, sequences: list[Any] | None) -> tuple[Any, tuple[str, ...] | None]:
    """Inputs as one table, or as a list of one for each sequence, and the names of their columns if there are any.

    Arguments:
        names: the user's names of the columns.
        sequences: the names of the sequences of x, if it is a mapping.
    """
    if isinstance(inputs, Mapping) and sequences is not None and set(inputs) == set(sequences):
        inputs = [inputs[name] for name in sequences]
    if isinstance(inputs, Mapping):
        of_mapping = tuple(map(str, inputs))
        parts = list(inputs.values())
        if not parts:
            raise ValueError("inputs: got an empty mapping, expected a column for each input.")
        if any(isinstance(part, list | tuple) and part and is_ragged_list(part) for part in parts):
            inputs = [_columns_beside(of_mapping, columns) for columns in zip(*parts, strict=True)]
        else:
            inputs = _columns_beside(of_mapping, parts)
    else:
        if isinstance(inputs, pd.Series) and inputs.name is not None:
            inputs = inputs.to_frame()
        if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], pd.DataFrame):
            inputs = _in_one_order(inputs)
        table = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
        of_mapping = tuple(map(str, table.columns)) if isinstance(table, pd.DataFrame) else None
    if names is None:
        return inputs, of_mapping
    chosen = named_or_counted(names, "input_names", least=1)
    if isinstance(chosen, int):
        raise TypeError(f"input_names: got {names!r}, expected a name for each column of inputs.")
    return inputs, chosen


def _in_one_order(tables: Sequence[Any]) -> list[Any]:
    """Frames, one for each sequence, with the columns in the order of the first; tables without names unchanged."""
    expected, found = list(tables[0].columns), []
    for i, table in enumerate(tables):
        names = list(table.columns) if isinstance(table, pd.DataFrame) else expected
        if sorted(map(str, names)) != sorted(map(str, expected)):
            raise ValueError(f"inputs[{i}]: got columns {names}, but inputs[0] has {expected}; give all the same.")
        found.append(table if names == expected else table[expected])
    return found


def _columns_beside(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """Columns `[*b, T]` as one table `[*b, T, C]`; a frame if some have labels, by which the others are matched."""
    index = next((column.index for column in columns if labelled(column) and has_labels(column.index)), None)
    columns = [matched(column, index, f"inputs[{name!r}]") for name, column in zip(names, columns, strict=True)]
    tables = [to_tensor(column, f"inputs[{name!r}]") for name, column in zip(names, columns, strict=True)]
    for name, table in zip(names, tables, strict=True):
        if table.shape != tables[0].shape:
            raise ValueError(
                f"inputs[{name!r}]: got shape {tuple(table.shape)}, but {names[0]!r} has {tuple(tables[0].shape)}; "
                "give all inputs for the same steps."
            )
    table = torch.stack(tables, -1)
    if index is None or table.shape[:-1] != (len(index),) or table.requires_grad:
        return table
    return pd.DataFrame(table.numpy(force=True), index, list(names))


def as_columns(table: Tensor, n_axes: int) -> Tensor:
    """Inputs `[*n, C]` with so many axes; numbers `[*n]` are one input."""
    return table.unsqueeze(-1) if table.ndim == n_axes - 1 else table


def places_of(inputs: Sequence[str], names: Sequence[str]) -> list[int]:
    """The columns of these inputs in a table with these names."""
    for name in inputs:
        if names.count(name) != 1:
            there = ", ".join(map(repr, names)) or "none"
            raise ValueError(f"inputs: {name!r} is {'given twice' if name in names else 'missing'}; got {there}.")
    return [names.index(name) for name in inputs]


def with_inputs(series: Series, inputs: Inputs) -> Series:
    """The series with the inputs of a model alone, by name and in the model's order.

    Raises:
        ValueError: an input that the series does not have.
    """
    names, table = series.drivers, series.inputs
    if isinstance(inputs, int) or table is None or names == inputs:
        return series
    n_columns = table.shape[-1]
    if names is None:
        if n_columns != len(inputs):
            return series  # an error of `check_design`
        return replace(series, drivers=inputs)
    if len(names) != n_columns:
        raise ValueError(
            f"input_names: got {len(names)} name(s) for {n_columns} column(s) of inputs; give each a name."
        )
    places = places_of(inputs, names)
    some = table.map(lambda rows: rows[..., places]) if isinstance(table, Packed) else table[..., places]
    return replace(series, inputs=some, drivers=inputs, checked=None)


def check_design(design: Tensor | None, expected: tuple[int, ...], inputs: Inputs, reading: str) -> None:
    """Raise ValueError unless inputs have this shape and are finite.

    Arguments:
        inputs: those that the model reads.
        reading: the part of such a model that reads inputs.
    """
    names = "" if isinstance(inputs, int) else f" ({', '.join(inputs)})"
    if not expected[-1]:
        cure = f"name them in a part, as in {reading}, or leave them out" if reading else "leave them out"
        raise ValueError(f"inputs: was given, but no part of the model reads any; {cure}.")
    if design is None:
        raise ValueError(f"inputs: missing; the model reads {expected[-1]}{names}; give them, of shape {expected}.")
    if tuple(design.shape) != expected:
        raise ValueError(
            f"inputs: got shape {tuple(design.shape)}, expected {expected}: a row for each step, a column for each "
            f"input{names}."
        )
    bad = ~torch.isfinite(design)
    if bool(bad.any()):
        *batch, step, column = torch.nonzero(bad)[0].tolist()
        name = column if isinstance(inputs, int) else repr(inputs[column])
        where = f"sequence {number(batch)}, " if batch else ""
        raise ValueError(
            f"inputs: got NaN or infinite values, first at {where}step {step}, input {name}; fill or drop them, they "
            "cannot be missing."
        )


def check_rank(series: Series, inputs: Inputs, owner: str, constant: str, first: bool = False) -> None:
    """Raise ValueError if some inputs and a constant are linearly dependent; names them.

    Arguments:
        inputs: those that one part of a model reads.
        owner, constant: the part in words, and the name of its constant.
        first: whether it reads them at the first step of each sequence alone.
    """
    if not count_inputs(inputs) or series.inputs is None:
        return
    names = inputs if isinstance(inputs, int) else series.drivers
    places = columns_of(inputs, names if names is not None else count_inputs(inputs))
    tables = ((part.drive.inputs, part.inside) for part in series.parts())
    steps = slice(0, 1) if first else slice(None)
    columns = ((select_columns(table, places), inside) for table, inside in tables if table is not None)
    rows = torch.cat([table[..., steps, :][inside[..., steps]] for table, inside in columns]).double()
    # what a start reads may be alike in all sequences, as one that matters to another part of the model too
    kept = (rows.amax(0) > rows.amin(0)).nonzero().flatten().tolist() if first else [*range(len(places))]
    rows = rows[:, kept]
    if len(rows) <= len(kept) or not kept:
        return
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    for place in (scale <= CONSTANT * rows.abs().amax(0)).nonzero().flatten().tolist():
        raise ValueError(
            f"inputs: {_called(inputs, place)} is constant; {owner} has a constant of its own (`{constant}` at inputs "
            "0). Drop the column."
        )
    _, sizes, directions = torch.linalg.svd((rows - mean) / scale, full_matrices=False)
    if float(sizes[-1]) > DEPENDENT * float(sizes[0]):
        return
    shares = directions[-1] * (mean / scale)  # of the constant that the dependent inputs add up to
    dependent = (directions[-1].abs() > 1e-6).nonzero().flatten().tolist()
    called = ["a constant"] if float(shares.sum().abs()) > 1e-6 * float(shares.abs().sum()) else []
    called += [repr(_input_name(inputs, kept[place])) for place in dependent]
    raise ValueError(
        f"{'initial_' * first}inputs: {' and '.join(called)} are linearly dependent, so their coefficients are not "
        "identified; leave one of them out."
    )


def _called(inputs: Inputs, place: int) -> str:
    return f"column {place}" if isinstance(inputs, int) else repr(inputs[place])


def _input_name(inputs: Inputs, place: int) -> int | str:
    return place if isinstance(inputs, int) else inputs[place]


def read_inputs(inputs: Any, row: Float[Tensor, "*b F"], names: Inputs) -> Float[Tensor, "*b 1 C"] | None:
    """The inputs `[*batch, C]` beside one observation of each stream, if there are any; a mapping is read by name."""
    if inputs is None:
        return None
    if isinstance(inputs, Mapping | pd.Series) and not isinstance(names, int):
        places_of(names, list(inputs.keys()))
        inputs = _columns_beside(names, [inputs[name] for name in names])
    table, expected = as_columns(to_tensor(inputs, "inputs").to(row), row.ndim), (*row.shape[:-1], count_inputs(names))
    if tuple(table.shape) != expected:
        raise ValueError(f"inputs: got shape {tuple(table.shape)}, expected {expected}: the inputs of this step.")
    return table.unsqueeze(-2)
