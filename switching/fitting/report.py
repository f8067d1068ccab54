"""`Report`: the time that a fit took, and the data that it went through."""

from dataclasses import dataclass

from ...inference.numerics.clock import READING, WAITING, Clock
from ..data.series import Series


@dataclass(frozen=True, repr=False)
class Report:
    """Time and work of a fit in this process; it prints as one line.

    Attributes:
        seconds: from the call of `fit` to its end. Time before a checkpoint was resumed is not counted.
        reading: seconds spent reading parts of the data from files and scaling them. The system reads the next part
            during computation, so this is only the time that the fit waited.
        waiting: seconds spent waiting for the sums of other processes.
        rows: rows processed in steps of the fit, in this process. A row counts once for each step that uses it. The
            search on a sample is not counted. Data in memory that are not shared count once, with padding.
        steps: see `Fit`.

    Example:
        >>> Report(seconds=2.5, reading=0.5, waiting=0.25, rows=1000, steps=10)
        10 steps in 2.5 s: computing 1.75 s, reading 0.5 s, waiting 0.25 s; 1,000 rows, 400 rows/s
    """

    seconds: float = 0.0
    reading: float = 0.0
    waiting: float = 0.0
    rows: int = 0
    steps: int = 0

    @staticmethod
    def of(clock: Clock, series: Series, steps: int) -> "Report":
        """The report of a fit that has ended."""
        seconds, rows = clock.seconds, clock.rows or series.like.shape[:-1].numel()
        return Report(sum(seconds.values()), seconds[READING], seconds[WAITING], rows, steps)

    @property
    def computing(self) -> float:
        """All other seconds."""
        return self.seconds - self.reading - self.waiting

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {getattr(self, name):.3g} s" for name in ("computing", "reading", "waiting"))
        rows = f"{self.rows:,} rows, {self.rows_per_second:,.0f} rows/s"
        return f"{self.steps} steps in {self.seconds:.3g} s: {parts}; {rows}"
