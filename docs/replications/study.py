"""A study: one question about networks, answered by tables and figures, at a quick and at a full scale."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from samplehold.cli.results import replacing
from samplehold.cli.studies import question
from samplehold.inference.numerics.records import Record
from samplehold.inference.numerics.scalars import check_choice, check_integer

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

T = TypeVar("T")
Track = Callable[[Iterable[T], str], Iterable[T]]
"""Passes on its items, and shows the progress: `for seed in track(range(3), "seeds"): ...`."""

ROWS = 30  # the most printed rows of a table
BAR = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
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
"""The script of each study, in this folder: it has `study(scale, track, seed) -> Findings`. Its docstring is the
question."""

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


def study(name: str, scale: str = "quick", track: Track[Any] = untracked, seed: int = 0) -> Findings:
    """Run a study, on the CPU.

    Arguments:
        name: one of those that `samplehold study --list` explains.
        scale: "quick": under a minute on two cores; "full": the tables of the documentation.
        track: shows progress; see `Track`.
        seed: of networks, their training, and drawn words and sequences, from 0. Where a study repeats its experiment,
            this is the first seed, and the next ones follow. The documentation has seed 0.

    Raises:
        ValueError: a name or a scale that is not there, or a negative seed.
    """
    check_choice("name", name, tuple(STUDIES))
    check_choice("scale", scale, SCALES)
    seed = check_integer("seed", seed, least=0, most=2**32)
    module: Any = import_module(STUDIES[name])
    elsewhere = torch.get_default_device().type != "cpu"
    with torch.device("cpu") if elsewhere else nullcontext():  # a mode, which makes every call of torch dearer
        return module.study(scale, track, seed)


# ---- from the command line -----------------------------------------------------------------------------------------


def run_studies(names: list[str], scale: str, seed: int, out: Path, console: Console) -> None:
    """Run studies one after the other. Each is written when it ends, so an interruption keeps the earlier ones."""
    for name in names:
        begun = time.perf_counter()
        with Progress(*BAR, console=console, transient=True) as bar:
            track = lambda items, label, bar=bar: bar.track(list(items), description=label)
            findings = study(name, scale, track, seed)
        seeds = ", ".join(map(str, findings.seeds)) or "none"
        about = (
            f"# {name}\n\n{question(STUDIES[name])}\n\nScale {scale}, seeds {seeds}.\n\n{findings.note}".rstrip() + "\n"
        )
        with replacing(out / name) as folder:
            (folder / "README.md").write_text(about, encoding="utf-8")
            _write(findings, folder)
        for table in findings.tables.values():
            console.print(escape(_text(table.head(ROWS))), soft_wrap=True, highlight=False)
            more = f"The first {ROWS} of {len(table)} rows.\n" if len(table) > ROWS else ""
            console.print(more, highlight=False)
        taken = time.perf_counter() - begun
        console.print(f"{name}: {taken:.0f} s, seeds {seeds}, in {escape(str(out / name))}", soft_wrap=True)
        if findings.note:
            console.print(escape(findings.note), soft_wrap=True, highlight=False)


def check_studies(names: list[str]) -> list[str]:
    """All studies for "all"; ValueError for an unknown name."""
    if "all" in names:
        return list(STUDIES)
    for name in names:
        if name not in STUDIES:
            raise ValueError(f"study: got {name!r}, expected one of {', '.join(STUDIES)}, or all.")
    return list(dict.fromkeys(names))


def _write(findings: Findings, folder: Path) -> None:
    for name, table in findings.tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.md").write_text(_text(table) + "\n", encoding="utf-8")
    for name, figure in findings.figures.items():
        figure.savefig(folder / f"{name}.png", dpi=120)


def _text(table: pd.DataFrame) -> str:
    return str(table.to_markdown(index=False, floatfmt=".4g"))
