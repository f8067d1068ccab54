"""Studies run from the command line: their tables and figures, each study in a folder of its own."""

import time
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..models.studies.study import STUDIES, Findings, study
from .questions import question
from .results import replacing

ROWS = 30  # the most printed rows of a table
BAR = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()


def run_studies(names: list[str], scale: str, seed: int, out: Path, console: Console) -> None:
    """Run studies one after the other. Each is written when it ends, so an interruption keeps the earlier ones."""
    for name in names:
        begun = time.perf_counter()
        with Progress(*BAR, console=console, transient=True) as bar:
            track = lambda items, label, bar=bar: bar.track(list(items), description=label)
            findings = study(name, scale, track, seed)
        seeds = ", ".join(map(str, findings.seeds)) or "none"
        about = f"# {name}\n\n{question(name)}\n\nScale {scale}, seeds {seeds}.\n\n{findings.note}".rstrip() + "\n"
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
