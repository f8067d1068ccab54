r"""Predictive states: what the past of a step says of its future, and its future of its past.

The window up to a step is in one of some clusters i, the window after it in one of some clusters j. Given the state the
two are independent, so that the table $C_{ij}$ of how often they meet is, but for noise, of rank K at most, and its
singular vectors span what the state says of either (Hsu, Kakade & Zhang 2012, *A spectral algorithm for learning hidden
Markov models*; Boots, Siddiqi & Gordon 2011, *Closing the learning-planning loop with predictive state
representations*). With its margins r and c,

$$C_{ij} / \sqrt{(r_i + \bar r)(c_j + \bar c)} = \sum_k u_{ik} \sigma_k v_{jk},$$

where the means of the margins keep rare windows from a vector of their own (Qin & Rohe 2013, *Regularized spectral
clustering under the degree-corrected stochastic blockmodel*). The first K of these give a step the coordinates
$\sqrt{\sigma_k} u_{ik} / \sqrt{r_i + \bar r}$ by its past and $\sqrt{\sigma_k} v_{jk} / \sqrt{c_j + \bar c}$ by its
future, which are its canonical variates (Bach & Jordan 2005, *A probabilistic interpretation of canonical correlation
analysis*).
"""

import numpy as np

from ..emissions.clusters import clusters_among

WINDOW = 2, 4  # steps of a past or a future, at least and at most
SYMBOLS = 4  # clusters of windows for each state
MAX_LEARNT = 2_000  # windows that these are learnt from


def predictive_states(
    points: np.ndarray, known: np.ndarray, n_steps: int, n_states: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates `[N, <= K]` of every step, the mean of those by its past and by its future, and which steps have any.

    Where no step has both, these are the points themselves.

    Arguments:
        points: `[N, E]`, the steps of all sequences below each other, `n_steps` of each.
        known: `[N]`, which of them were observed; a window counts where all of it was.
    """
    drawn = rng.integers(*WINDOW, 2, endpoint=True)
    for before, after in (drawn, (1, 1)):
        past, has_past = _windows(points, known, n_steps, np.arange(1 - before, 1))
        future, has_future = _windows(points, known, n_steps, np.arange(1, after + 1))
        both = has_past & has_future
        if both.any():
            break
    else:
        return points, known
    i = clusters_among(past, has_past, SYMBOLS * n_states, rng, MAX_LEARNT)
    j = clusters_among(future, has_future, SYMBOLS * n_states, rng, MAX_LEARNT)
    pairs = np.zeros((i.max() + 1, j.max() + 1))
    np.add.at(pairs, (i[both], j[both]), 1.0)
    by_past, by_future = _variates(pairs, n_states)
    told = has_past.astype(float) + has_future
    total = by_past[i] * has_past[:, None] + by_future[j] * has_future[:, None]
    return total / np.maximum(told, 1.0)[:, None], told > 0


def _windows(points: np.ndarray, known: np.ndarray, n_steps: int, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points that many steps from each step `[N, W E]`, and where all of them are known, in the same sequence."""
    number = np.arange(len(points))[:, None]
    within = (number % n_steps + shifts >= 0) & (number % n_steps + shifts < n_steps)
    there = np.where(within, number + shifts, number)
    return points[there].reshape(len(points), -1), np.logical_and.reduce(within & known[there], axis=-1)


def _variates(pairs: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading coordinates of every past and of every future, from how often they meet."""
    of_past, of_future = (np.sqrt(margin + margin.mean()) for margin in (pairs.sum(1), pairs.sum(0)))
    u, sigma, v = np.linalg.svd(pairs / np.outer(of_past, of_future), full_matrices=False)
    root = np.sqrt(sigma[:most])
    return u[:, :most] * root / of_past[:, None], v[:most].T * root / of_future[:, None]
