"""A series like the well log of Ó Ruanaidh & Fitzgerald 1996: 4,050 measurements of levels, with noise and spikes.

All parameters are ours, chosen by the look of published figures. `change_points.py` compares `Segments` with ruptures
on such series.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import samplehold as sh

N_STEPS, HAZARD = 4050, 1 / 250
MEAN, SPREAD, NOISE = 115_000.0, 10_000.0, 2_500.0  # of levels; of measurements about their level
SPIKE, LASTING = 0.004, 4.0  # P(a spike begins), and its mean length in steps
DEPTH = (20_000.0, 60_000.0)  # by which each measurement of a spike is lower
WINDOW, FAR = (
    21,
    4.0,
)  # of a running median; the distance in standard deviations of noise beyond which values are spikes


class WellLog(NamedTuple):
    """A simulated log."""

    x: np.ndarray
    changes: list[int]  # the first step of each level after the first one
    level: np.ndarray  # at each step


def simulated(draw: np.random.Generator, n_steps: int = N_STEPS) -> WellLog:
    """Levels are drawn afresh with the hazard; a spike lowers the measurements of some steps."""
    begun = draw.random(n_steps) < HAZARD
    begun[0] = False
    level = draw.normal(MEAN, SPREAD, n_steps)[begun.cumsum()]
    low = np.zeros(n_steps, dtype=bool)
    for start in np.flatnonzero(draw.random(n_steps) < SPIKE):
        low[start : start + draw.geometric(1 / LASTING)] = True
    x = level + draw.normal(0, NOISE, n_steps) - low * draw.uniform(*DEPTH, n_steps)
    return WellLog(x, begun.nonzero()[0].tolist(), level)


def noise_of(x: np.ndarray) -> float:
    """The standard deviation of the noise, from the differences of neighbours that are there."""
    return float(np.nanmedian(np.abs(np.diff(x))) / (0.6745 * np.sqrt(2)))


def without_spikes(x: np.ndarray) -> np.ndarray:
    """The series with NaN where it is far from its running median."""
    median = pd.Series(x).rolling(WINDOW, center=True, min_periods=1).median().to_numpy()
    return np.where(np.abs(x - median) > FAR * noise_of(x), np.nan, x)


def segments(x: np.ndarray, **options: object) -> list[int]:
    """The changes of the most probable segmentation by `Segments`, fitted with a certified bound."""
    fit = sh.Segments(sh.Normal(), tol=1e-9).fit(x, progress=False, **options)
    return fit.viterbi().redraw.nonzero().flatten().tolist()[1:]
