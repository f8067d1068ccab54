r"""Predictive states: coordinates of each step that predict its future from its past, and its past from its future.

The window up to a step belongs to a cluster i, the window after it to a cluster j. Given the state, the two are
independent. So the table $C_{ij}$ of their joint counts has rank K at most, except for noise, and its singular vectors
span the dependence of both windows on the state (Hsu, Kakade & Zhang 2012, *A spectral algorithm for learning hidden
Markov models*; Boots, Siddiqi & Gordon 2011, *Closing the learning-planning loop with predictive state
representations*). With the margins r and c of the table,

$$C_{ij} / \sqrt{(r_i + \bar r)(c_j + \bar c)} = \sum_k u_{ik} \sigma_k v_{jk},$$

where the means of the margins prevent singular vectors of single rare windows (Qin & Rohe 2013, *Regularized spectral
clustering under the degree-corrected stochastic blockmodel*). The first K vectors give a step the coordinates
$\sqrt{\sigma_k} u_{ik} / \sqrt{r_i + \bar r}$ from its past and $\sqrt{\sigma_k} v_{jk} / \sqrt{c_j + \bar c}$ from its
future. These are its canonical variates (Bach & Jordan 2005, *A probabilistic interpretation of canonical correlation
analysis*).
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..emissions.clusters import clusters_among

WINDOW = 2, 4  # steps of a past or a future: minimum and maximum
SYMBOLS = 4  # clusters of windows for each state
MAX_LEARNT = 2_000  # windows from which the clusters are learnt


def predictive_states(
    points: Float[Tensor, "N E"], known: Bool[Tensor, "N"], n_steps: int, n_states: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "N Q"], Bool[Tensor, "N"]]:
    """Coordinates of every step, Q <= K, the mean of those from its past and its future, and the steps that have any.

    If no step has both, the coordinates are the points themselves.

    Arguments:
        points: the steps of all sequences one after another, `n_steps` of each.
        known: which steps were observed; a window counts if all of its steps were.
    """
    drawn = rng.integers(*WINDOW, 2, endpoint=True).tolist()
    for before, after in (drawn, (1, 1)):
        past, has_past = _windows(points, known, n_steps, range(1 - before, 1))
        future, has_future = _windows(points, known, n_steps, range(1, after + 1))
        both = has_past & has_future
        if bool(both.any()):
            break
    else:
        return points, known
    i = clusters_among(past, has_past, SYMBOLS * n_states, rng, MAX_LEARNT)
    j = clusters_among(future, has_future, SYMBOLS * n_states, rng, MAX_LEARNT)
    n_past, n_future = (int(number) + 1 for number in torch.stack([i.max(), j.max()]).tolist())
    pairs = points.new_zeros(n_past * n_future).index_add(0, i * n_future + j, both.to(points))
    by_past, by_future = _variates(pairs.reshape(n_past, n_future), n_states)
    n_windows = has_past.to(points) + has_future
    total = by_past[i] * has_past.unsqueeze(-1) + by_future[j] * has_future.unsqueeze(-1)
    return total / n_windows.clamp_min(1).unsqueeze(-1), n_windows > 0


def _windows(
    points: Float[Tensor, "N E"], known: Bool[Tensor, "N"], n_steps: int, shifts: range
) -> tuple[Float[Tensor, "N W"], Bool[Tensor, "N"]]:
    """The points at these shifts from each step, and whether all of them are known and in the same sequence."""
    number, shift = (
        torch.arange(len(points), device=points.device).unsqueeze(-1),
        torch.arange(shifts.start, shifts.stop, device=points.device),
    )
    step = number % n_steps + shift
    within = (step >= 0) & (step < n_steps)
    there = torch.where(within, number + shift, number)
    return points[there].flatten(1), (within & known[there]).all(-1)


def _variates(pairs: Float[Tensor, "I J"], most: int) -> tuple[Float[Tensor, "I Q"], Float[Tensor, "J Q"]]:
    """The leading coordinates of every past and of every future, from their joint counts."""
    of_past, of_future = ((margin + margin.mean()).sqrt().unsqueeze(-1) for margin in (pairs.sum(1), pairs.sum(0)))
    u, sigma, v = torch.linalg.svd(pairs / (of_past * of_future.mT), full_matrices=False)
    root = sigma[:most].sqrt()
    return u[:, :most] * root / of_past, v[:most].mT * root / of_future
