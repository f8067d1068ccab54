"""`Report`: the time that a fit took, and the data that it went through."""

from dataclasses import dataclass

from ...inference.numerics.clock import READING, WAITING, Clock
from ..data.series import Series


@dataclass(frozen=True, repr=False)
class Report:
    """What a fit took in this process; printed, a line.

    Attributes:
        seconds: from the call of `fit` to its end. Those before a checkpoint was resumed are not known.
        reading: seconds in which parts of the data came out of files, into the units of the fit. While one part is
            computed the system reads the next, so these are the seconds for which the fit had to wait for it.
        waiting: seconds in which other processes computed their sums, or these were sent.
        rows: the rows of this process that went through steps of the fit, each as often as it did, without those of
            the search on a sample. Data in memory that are not shared count once, with padding.
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
