"""A progress bar for fits: steps, steps a second and the objective; silent where nobody watches."""

import sys
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Context manager; call it with the step and the best objective so far."""

    def __init__(self, title: str, total: int, show: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("objective {task.fields[objective]}"),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, disable=not (show and sys.stderr.isatty()), transient=True)
        self._task = self._bar.add_task(title, total=total, rate="", objective="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, step: int, objective: float) -> None:
        if self._bar.disable:
            return
        speed = self._bar.tasks[0].speed
        rate = "" if speed is None else f"{speed:.0f} steps/s"
        self._bar.update(self._task, completed=step, rate=rate, objective=f"{objective:.6g}")
