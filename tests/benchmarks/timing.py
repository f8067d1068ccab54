"""Paired timing of two functions: medians over alternating runs, after warm-up, and rows of a markdown table."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, ours against a peer, and the ratio aimed at."""

    work: str
    size: str
    peer: str
    ours_ms: float
    peer_ms: float
    target: float

    def __str__(self) -> str:
        ratio = self.peer_ms / self.ours_ms
        mark = "" if ratio >= self.target else " (missed)"
        aim = f"{self.target:.3g}x{mark}" if self.target else ""
        cells = (self.work, self.size, self.peer, f"{self.ours_ms:.3g}", f"{self.peer_ms:.3g}", f"{ratio:.2g}x", aim)
        return f"| {' | '.join(cells)} |"


HEADER = "| work | size | peer | samplehold, ms | peer, ms | ratio | aim |\n|---|---|---|---:|---:|---:|---:|"


def paired(ours: Callable[[], object], peer: Callable[[], object], seconds: float = 6.0) -> tuple[float, float]:
    """Median milliseconds of both, taken in turns for about `seconds`, three times at least.

    Threads of one library stay awake after their work, up to 0.1 s in OpenBLAS, and would take the processors of the
    other; so each turn begins with a rest. After it, a virtual machine may wake threads milliseconds late; so runs of
    0.04 s follow, two at least. The first is not counted, and the least of the others is the time of the turn.
    """
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for function, record in ((ours, times[0]), (peer, times[1])):
            time.sleep(0.1)
            edges = [time.perf_counter()]
            while len(edges) < 3 or edges[-1] < edges[0] + 0.04:
                function()
                edges.append(time.perf_counter())
            record.append(1e3 * min(later - earlier for earlier, later in pairwise(edges[1:])))
    return statistics.median(times[0]), statistics.median(times[1])
