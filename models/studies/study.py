"""A study: one question about networks, answered by tables and figures, at a quick and at a full scale."""

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import torch

from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_integer

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

T = TypeVar("T")
Track = Callable[[Iterable[T], str], Iterable[T]]
"""Passes on its items, and shows the progress: `for seed in track(range(3), "seeds"): ...`."""

SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "replications"
SCALES = ("quick", "full")
STUDIES: dict[str, str] = {
    "bridge": "claims",
    "truncation": "truncation",
    "joined": "joined",
    "state-regularized": "state_regularized",
    "automata": "extraction",
    "counting": "counting",
    "doubling": "doubling",
    "turing": "turing",
    "updates": "updates",
    "information": "information",
    "gradients": "gradients",
    "input-driven": "input_driven",
}
"""The module of each study, in this folder or a script of a checkout: it has `study(scale, track, seed) -> Findings`.
Its docstring is the question."""

HARDLY_TRAINED = "At scale quick, networks are hardly trained, and their numbers are no results; use scale full."


@dataclass(frozen=True, repr=False)
class Findings(Record):
    """What a study found.

    Arguments:
        tables: by file name without its ending; files have no index, so all that names a row is a column.
        figures: by name, in the same way.
        seeds: of everything random in it.
        note: a warning about the numbers, to be shown with them.
    """

    tables: dict[str, pd.DataFrame]
    figures: "dict[str, Figure]" = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            if not isinstance(table.index, pd.RangeIndex):
                raise ValueError(
                    f"tables: the index of {name!r} would not be written; make it columns by reset_index()."
                )


def untracked(items: Iterable[T], label: str) -> Iterable[T]:
    """As `Track` wants it, and shows nothing."""
    return items


def note_of(scale: str) -> str:
    """The warning of a study that trains networks."""
    return HARDLY_TRAINED if scale == "quick" else ""


def ticks_at(axis: "Axis", values: Iterable[float]) -> None:
    """Ticks of a logarithmic axis at these values alone, each written as a plain number."""
    values = list(values)
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def seeds_from(seed: int, scale: str) -> tuple[int, ...]:
    """A single seed at scale "quick", and three in a row at scale "full"."""
    return tuple(range(seed, seed + (1 if scale == "quick" else 3)))


def file_of(module: str) -> Path:
    """The file of a study: in this folder, or in the scripts of a checkout, which may not be there."""
    here = Path(__file__).with_name(f"{module}.py")
    return here if here.exists() else SCRIPTS / here.name


def module_of(module: str) -> Any:
    """The module of a study; ValueError if it is a script, and this is no checkout."""
    file = file_of(module)
    if file.parent != SCRIPTS:
        return import_module(f".{module}", __package__)
    if not file.exists():
        raise ValueError(f"study: its script, docs/replications/{file.name}, is not installed; run it from a checkout.")
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return import_module(module)


def study(name: str, scale: str = "quick", track: Track[Any] = untracked, seed: int = 0) -> Findings:
    """Run a study, on the CPU.

    Arguments:
        name: one of those that `samplehold study --list` explains.
        scale: "quick": under a minute on two cores; "full": the tables of the documentation.
        track: shows progress; see `Track`.
        seed: of networks, their training, and drawn words and sequences, from 0. Where a study repeats its experiment,
            this is the first seed, and the next ones follow. The documentation has seed 0.

    Raises:
        ValueError: a name or a scale that is not there, a negative seed, or a study that is a script of a checkout,
            without a checkout.
    """
    check_choice("name", name, tuple(STUDIES))
    check_choice("scale", scale, SCALES)
    seed = check_integer("seed", seed, least=0, most=2**32)
    module = module_of(STUDIES[name])
    elsewhere = torch.get_default_device().type != "cpu"
    with torch.device("cpu") if elsewhere else nullcontext():  # a mode, which makes every call of torch dearer
        return module.study(scale, track, seed)
