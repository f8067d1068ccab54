"""The subject of each sequence: a subject is one or several sequences with the same name."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from .series import Series

SHOWN = 5  # names in an error


def with_subjects(series: Series, labels: Any) -> Series:
    """The series with the names of the subjects of its sequences.

    Raises:
        ValueError: as many names as there are sequences are expected; a name is missing.
    """
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    names = [labels] if isinstance(labels, str | int) else list(labels)
    if len(names) != series.n_sequences:
        raise ValueError(
            f"subjects: got {len(names)} names, but x has {series.n_sequences} sequences; give the subject of each."
        )
    if bool(np.asarray(pd.isna(np.asarray(names, dtype=object))).any()):
        raise ValueError("subjects: got a missing name; give the subject of each sequence.")
    return _named(series, [str(name) for name in names])


def named(series: Series) -> Series:
    """The series with subjects: those given, or the outer level of a panel, or each sequence."""
    if series.subjects is not None and series.subject_names is not None:
        return series
    stacked = series.stacked
    if stacked is not None and isinstance(stacked.index, pd.MultiIndex) and stacked.index.nlevels > 2:
        outer = stacked.index.get_level_values(0)
        return _named(series, [str(outer[rows[0]]) for rows in stacked.members])
    numbers = map(str, range(series.n_sequences))
    return _named(series, list(series.sequences) if series.sequences is not None else list(numbers))


def numbered(series: Series, names: tuple[str, ...]) -> Series:
    """The series with the numbers of its subjects among `names`.

    Raises:
        ValueError: a subject that is not among them; sequences without names, unless the names are their numbers.
    """
    if series.subject_names == names or (series.subjects is not None and series.subject_names is None):
        return series
    unnamed = series.subjects is None and series.sequences is None and series.stacked is None
    if unnamed and names != tuple(map(str, range(series.n_sequences))):
        raise ValueError(
            f"subjects: got {series.n_sequences} sequence(s) without names, but the model has {_few(names)}; name the "
            f"subject of each sequence with subjects=, or take the model of one, `of({names[0]!r})`."
        )
    series = named(series)
    assert series.subjects is not None
    assert series.subject_names is not None
    place = {name: i for i, name in enumerate(names)}
    unknown = [name for name in series.subject_names if name not in place]
    if unknown:
        raise ValueError(
            f"subjects: got {_few(unknown)}, but the model has {_few(names)}; name the subject of each sequence, or "
            f"take the model of one, `of({names[0]!r})`."
        )
    places = torch.tensor([place[name] for name in series.subject_names], device=series.subjects.device)
    return replace(series, subjects=places[series.subjects], subject_names=names)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def _named(series: Series, names: list[str]) -> Series:
    unique = tuple(dict.fromkeys(names))
    place = {name: i for i, name in enumerate(unique)}
    numbers: Tensor = torch.tensor([place[name] for name in names], dtype=torch.long, device=series.like.device)
    return replace(series, subjects=numbers.reshape(series.batch_shape), subject_names=unique)
