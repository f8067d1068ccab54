"""A progress bar for fits: steps, steps per second and the objective.

On a terminal it is rich's bar, on standard error. In a notebook it is a line of text, updated twice a second after the
first half second. Elsewhere there is no bar. When the fit has ended, the bar disappears.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from ..seeding import undrawn

with undrawn():
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

from ...inference.numerics.interrupts import check_interrupt
from .options import Options

Report = Callable[[int, float], None]
"""Takes the number of steps and the best objective so far."""

INTERVAL = 0.5  # seconds between two lines in a notebook
CELLS = 30  # letters of its bar


@contextmanager
def reported(options: Options, shift: float) -> Iterator["Reporter"]:
    """The progress of a fit; `shift`: the increase of the objective in the user's units."""
    title = f"{options.method.upper()}, {options.restarts} restarts"
    with Progress(title, options.max_steps, options.progress) as shown:
        yield Reporter(shown, shift)


class Progress:
    """A context manager. Call it with the step and the best objective so far; it raises an interrupt that was lost."""

    def __init__(self, title: str, total: int, show: bool) -> None:
        self._title, self._total, self._show = title, total, show
        self._shown: TerminalBar | NotebookBar | None = None

    def __enter__(self) -> "Progress":
        if self._show and Console().is_jupyter:
            self._shown = NotebookBar(self._title, self._total)
        elif self._show and sys.stderr.isatty():
            self._shown = TerminalBar(self._title, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def __call__(self, step: int, objective: float) -> None:
        check_interrupt()
        if self._shown is not None:
            self._shown.update(step, objective)

    def name(self, title: str | None) -> None:
        """Show another title; None: the first one."""
        if self._shown is not None:
            self._shown.name(self._title if title is None else title)


class Reporter:
    """The progress of a fit: its steps, and between them the name of its stage."""

    def __init__(self, shown: Progress, shift: float) -> None:
        self._shown, self._shift = shown, shift

    def __call__(self, step: int, best: float) -> None:
        self._shown(step, best + self._shift)

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """A part of the fit without steps, under its own title."""
        self._shown.name(title)
        yield
        self._shown.name(None)


class TerminalBar:
    """Rich's bar."""

    def __init__(self, title: str, total: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("objective {task.fields[objective]}"),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=total, rate="", objective="")
        self._bar.start()

    def update(self, step: int, objective: float) -> None:
        speed = self._bar.tasks[0].speed
        rate = "" if speed is None else f"{speed:.0f} steps/s"
        self._bar.update(self._task, completed=step, rate=rate, objective=f"{objective:.6g}")

    def name(self, title: str) -> None:
        self._bar.update(self._task, description=title)

    def stop(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A line of text under the cell."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = title, total
        self._began = self._last = time.monotonic()
        self._handle: Any = None

    def update(self, step: int, objective: float) -> None:
        now = time.monotonic()
        if now - self._last < INTERVAL:
            return
        self._last = now
        done = round(CELLS * min(1.0, step / max(1, self._total)))
        bar = "█" * done + "░" * (CELLS - done)
        rate = f"{step / (now - self._began):.0f} steps/s"
        self._write(f"{self._title} {bar} {step}/{self._total}  {rate}  objective {objective:.6g}")

    def name(self, title: str) -> None:
        self._title = title
        if time.monotonic() - self._began >= INTERVAL:
            self._write(title)

    def stop(self) -> None:
        if self._handle is not None:
            self._write("")

    def _write(self, text: str) -> None:
        from IPython.display import display  # only notebooks have it

        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
