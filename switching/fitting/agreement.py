"""What the processes that share a fit have in common. A difference would end in wrong sums, or without an end."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from torch import Tensor

from ...inference.numerics.ranks import Ranks
from ..data.series import Series
from .initialization import values_of_model

OF_EACH = ("progress", "seed", "group", "checkpoint", "every", "saving")  # options that may differ; the seed: `number`
LONGEST = 200  # text of an argument that an error shows


def check_alike(ranks: Ranks, model: Any, options: Any, series: Series) -> None:
    """Raise ValueError if the processes do not agree on what they fit: on the model, the options, or the columns."""
    check_equal(ranks.gathered(lambda: _described(model, options, series)))


def check_equal(there: Sequence[dict[str, str]]) -> None:
    """Raise ValueError if an argument in words differs between processes; `there` has those of each."""
    for name in dict.fromkeys(name for one in there for name in one):
        known = [(rank, one[name]) for rank, one in enumerate(there) if name in one]
        first, mine = known[0]
        for rank, other in known[1:]:
            if other != mine:
                raise ValueError(
                    f"{name}: process {rank} has {_short(other)}, but process {first} has {_short(mine)}; "
                    "all processes of a group fit the same model with the same arguments to sequences of the same "
                    "columns."
                )


def _described(model: Any, options: Any, series: Series) -> dict[str, str]:
    """What all processes have in common, in words by argument."""
    chosen = {f.name: repr(_plain(getattr(options, f.name))) for f in fields(options) if f.name not in OF_EACH}
    described = {"model": repr(model), "model.prior": repr(_plain(model.prior))} | chosen
    number = described.pop("number")
    described["seed"] = "None" if options.seed is None else number
    described["checkpoint"] = repr(options.checkpoint and "a path")
    if series.n_sequences:
        tables = ("inputs", "dt", "states", "weights", "step_weights", "noise", "past")
        there = [name for name in tables if getattr(series, name) is not None]
        described["x"] = f"columns {series.features_of()} of {series.like.dtype}"
        described["beside x"] = f"{there} {series.drivers or ()}"
    return described


def _plain(value: Any) -> Any:
    """An argument with all its numbers, as `repr` shows them."""
    value = values_of_model(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist()
    return value


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
