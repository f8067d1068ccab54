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
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..emissions.clusters import clusters_among

WINDOW = 2, 4  # steps of a past or a future, at least and at most
SYMBOLS = 4  # clusters of windows for each state
MAX_LEARNT = 2_000  # windows that these are learnt from


def predictive_states(
    points: Float[Tensor, "N E"], known: Bool[Tensor, "N"], n_steps: int, n_states: int, rng: np.random.Generator
) -> tuple[Float[Tensor, "N Q"], Bool[Tensor, "N"]]:
    """Coordinates, Q <= K, of every step, the mean of those by its past and by its future, and which steps have any.

    Where no step has both, these are the points themselves.

    Arguments:
        points: the steps of all sequences below each other, `n_steps` of each.
        known: which of them were observed; a window counts where all of it was.
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
    told = has_past.to(points) + has_future
    total = by_past[i] * has_past.unsqueeze(-1) + by_future[j] * has_future.unsqueeze(-1)
    return total / told.clamp_min(1).unsqueeze(-1), told > 0


def _windows(
    points: Float[Tensor, "N E"], known: Bool[Tensor, "N"], n_steps: int, shifts: range
) -> tuple[Float[Tensor, "N W"], Bool[Tensor, "N"]]:
    """The points that many steps from each step, and where all of them are known, in the same sequence."""
    number, shift = (
        torch.arange(len(points), device=points.device).unsqueeze(-1),
        torch.arange(shifts.start, shifts.stop, device=points.device),
    )
    step = number % n_steps + shift
    within = (step >= 0) & (step < n_steps)
    there = torch.where(within, number + shift, number)
    return points[there].flatten(1), (within & known[there]).all(-1)


def _variates(pairs: Float[Tensor, "I J"], most: int) -> tuple[Float[Tensor, "I Q"], Float[Tensor, "J Q"]]:
    """The leading coordinates of every past and of every future, from how often they meet."""
    of_past, of_future = ((margin + margin.mean()).sqrt().unsqueeze(-1) for margin in (pairs.sum(1), pairs.sum(0)))
    u, sigma, v = torch.linalg.svd(pairs / (of_past * of_future.mT), full_matrices=False)
    root = sigma[:most].sqrt()
    return u[:, :most] * root / of_past, v[:most].mT * root / of_future
