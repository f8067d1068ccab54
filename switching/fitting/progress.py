"""The progress of a fit: steps, and if its data are in a file or shared, rows a second and the time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...inference.numerics.clock import showing
from ..progress import Progress, RowRate
from .options import Options
from .whole import Whole

Reporting = Callable[[int, float], None]
"""Takes the number of steps and the best objective so far."""


@contextmanager
def reported(
    options: Options, shift: float, whole: Whole | None = None, title: str | None = None
) -> Iterator["Reporter"]:
    """The progress of a fit, which the first process shows; `shift`: the increase of the objective in the user's
    units."""
    title = f"{options.method.upper()}, {options.restarts} restarts" if title is None else title
    show = options.progress and (whole is None or whole.ranks.rank == 0)
    with Progress(title, options.max_steps, show) as shown:
        reporter = Reporter(shown, shift, whole, options.max_steps)
        with showing(reporter.passed):
            yield reporter


class Reporter:
    """The progress of a fit: its steps, and between them the name of its stage.

    Arguments:
        whole: all data, if they are in a file or shared.
    """

    def __init__(self, shown: Progress, shift: float, whole: Whole | None, max_steps: int) -> None:
        self._shown, self._shift, self._whole, self._max_steps = shown, shift, whole, max_steps
        self._rate: RowRate | None = None  # since the first rows, whose own time is not known
        self._rows = 0  # after these
        self._first: tuple[int, RowRate] | None = None  # the first number of steps with all data, and the time since
        self._left = ""  # of the fit

    def __call__(self, step: int, best: float) -> None:
        if self._rate is not None and self._first is None:
            self._first = step, RowRate()
        elif self._first is not None:
            first, rate = self._first
            self._left = f", all <= {rate.left(step - first, self._max_steps - step)}"
        self._shown(step, best + self._shift)

    def passed(self, rows: int) -> None:
        """Further rows have gone through a step with all data; shown are the time left of the pass, and of all steps at
        most."""
        if self._whole is None or self._rate is None:
            self._rate = RowRate()
            self._shown.rows("", 0)
            return
        self._rows += rows
        here = self._whole.by_rank[self._whole.ranks.rank].n_rows
        rate = self._rate.rate(self._rows) * self._whole.n_rows / here  # of all processes
        left = self._rate.left(self._rows, here - self._rows % here)
        self._shown.rows(f"{rate:,.0f} rows/s, pass {left}{self._left}")

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """A part of the fit without steps, under its own title."""
        self._shown.name(title)
        yield
        self._shown.name(None)
