"""Progress bars of fits and of reading.

On a terminal it is rich's bar, on standard error. In a notebook it is a line of text, updated twice a second after the
first half second. Elsewhere there is no bar. At the end the bar disappears.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

from ..inference.numerics.interrupts import check_interrupt
from .seeding import undrawn

with undrawn():
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

INTERVAL = 0.5  # seconds between two lines in a notebook
CELLS = 30  # letters of its bar


class Progress:
    """A context manager. Call it with the step and the best objective so far; it raises an interrupt that was lost.

    Arguments:
        total: the number of steps; None: it is not known.
        show: whether there is a bar on a terminal or in a notebook.

    Attributes:
        bar: it, if there is one.
    """

    def __init__(self, title: str, total: int | None, show: bool) -> None:
        self._title, self._total, self._show = title, total, show
        self.bar: TerminalBar | NotebookBar | None = None
        self._step, self._objective, self._rate = 0, "", ""

    def __enter__(self) -> "Progress":
        if self._show and Console().is_jupyter:
            self.bar = NotebookBar(self._title, self._total)
        elif self._show and sys.stderr.isatty():
            self.bar = TerminalBar(self._title, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, step: int, objective: float) -> None:
        check_interrupt()
        self._step, self._objective = step, f"objective {objective:.6g}"
        self._update()

    def rows(self, rate: str, step: int | None = None) -> None:
        """Show the rate of rows in place of that of steps; `step`: their number so far, if the bar counts rows."""
        self._rate, self._step = rate, self._step if step is None else step
        self._update()

    def name(self, title: str | None) -> None:
        """Show another title; None: the first one."""
        if self.bar is not None:
            self.bar.name(self._title if title is None else title)

    def _update(self) -> None:
        if self.bar is not None:
            self.bar.update(self._step, self._rate, self._objective)


class RowRate:
    """Rows a second, since now."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def rate(self, n: int) -> float:
        """The mean rate of the first n rows, which have passed now."""
        return n / max(time.monotonic() - self._began, 1e-9)

    def left(self, n: int, more: float) -> str:
        """The time in which further rows will pass at this rate, in hours, minutes and seconds."""
        return str(timedelta(seconds=math.ceil(max(0, more) / self.rate(n)))) if n > 0 else "?"


@contextmanager
def reading(total: Callable[[], int | None], show: bool) -> Iterator[Callable[[int], None]]:
    """The progress of reading. Inside, call it with the number of further rows.

    Arguments:
        total: gives the number of rows, if it is known.
    """
    with Progress("Reading", None, show) as shown:
        if shown.bar is None:
            yield lambda rows: None
            return
        rate, n, n_rows = RowRate(), 0, total()
        shown.bar.resize(n_rows)

        def passed(rows: int) -> None:
            nonlocal n
            n += rows
            left = "" if n_rows is None else f", {rate.left(n, n_rows - n)} left"
            shown.rows(f"{rate.rate(n):,.0f} rows/s{left}", n)

        yield passed


class TerminalBar:
    """Rich's bar."""

    def __init__(self, title: str, total: int | None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[objective]}"),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=total, rate="", objective="")
        self._bar.start()

    def update(self, step: int, rate: str, objective: str) -> None:
        speed = self._bar.tasks[0].speed
        rate = rate or ("" if speed is None else f"{speed:.0f} steps/s")
        self._bar.update(self._task, completed=step, rate=rate, objective=objective)

    def name(self, title: str) -> None:
        self._bar.update(self._task, description=title)

    def resize(self, total: int | None) -> None:
        self._bar.update(self._task, total=total)

    def stop(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A line of text under the cell."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._began = self._last = time.monotonic()
        self._handle: Any = None

    def update(self, step: int, rate: str, objective: str) -> None:
        now = time.monotonic()
        if now - self._last < INTERVAL:
            return
        self._last = now
        rate = rate or f"{step / (now - self._began):.0f} steps/s"
        if self._total is None:
            self._write(f"{self._title} {step}  {rate}  {objective}")
            return
        done = round(CELLS * min(1.0, step / max(1, self._total)))
        bar = "█" * done + "░" * (CELLS - done)
        self._write(f"{self._title} {bar} {step}/{self._total}  {rate}  {objective}")

    def resize(self, total: int | None) -> None:
        self._total = total

    def name(self, title: str) -> None:
        self._title = title
        if time.monotonic() - self._began >= INTERVAL:
            self._write(title)

    def stop(self) -> None:
        if self._handle is not None:
            self._write("")

    def _write(self, text: str) -> None:
        from IPython.display import display  # only notebooks have it

        data = {"text/plain": text} if text else {"text/plain": "", "text/html": ""}  # empty text would show as a box
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
