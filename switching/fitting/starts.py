"""Where fits start: first labellings of the steps, a different one for each restart.

Half of the restarts cluster the observations (k-means++ and Lloyd steps), which finds states that differ in level; the
others label random stretches of time, which finds states that differ in anything else.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from torch import Tensor

from ..data.series import Series
from ..emissions.contract import Emission

MAX_CLUSTERED = 20_000  # observations that k-means looks at; beyond that, a random subset
SAMPLE = 2**18  # steps that a start of message passing looks at
STRETCH = 2**12  # steps of each stretch that is looked at of a longer sequence


def first_labels(emission: Emission, series: Series, n_states: int, restarts: int, seed: int) -> Int[Tensor, "R *b T"]:
    """A state for every step and restart; each state occurs at least once in every labelling."""
    rng = np.random.default_rng(seed)
    inside = series.inside.flatten().cpu().numpy()
    points = _embedded(emission, series.observations)
    labels = np.zeros((restarts, inside.size), dtype=np.int64)
    for restart in range(restarts):
        if restart % 2 == 0 and points is not None:
            labels[restart] = _clusters(points, inside, n_states, rng)
        else:
            labels[restart] = _stretches(inside.size, n_states, rng)
        _occupy(labels[restart], inside, n_states, rng)
    return torch.from_numpy(labels).reshape(restarts, *series.observations.shape[:-1]).to(series.observations.device)


def _embedded(emission: Emission, values: Tensor) -> np.ndarray | None:
    """Standardised coordinates of every step, missing values at the mean; None where no two steps differ."""
    rows = values.reshape(-1, values.shape[-1])
    typical = rows.nanmedian(0).values  # an observed value, so that it lies in the emission's support
    points = emission.embed(torch.where(torch.isnan(rows), typical, rows)).double()
    scale = points.std(0, correction=0)
    if not bool((scale > 0).any()):
        return None
    return ((points - points.mean(0)) / torch.where(scale > 0, scale, 1.0)).cpu().numpy()


def _clusters(points: np.ndarray, inside: np.ndarray, n_states: int, rng: np.random.Generator) -> np.ndarray:
    known = points[inside]
    if len(known) > MAX_CLUSTERED:
        known = known[rng.choice(len(known), MAX_CLUSTERED, replace=False)]
    n_clusters = min(n_states, len(np.unique(known, axis=0)))
    means = KMeans(n_clusters, n_init=1, max_iter=20, random_state=int(rng.integers(2**31)))  # pyright: ignore[reportArgumentType]
    return np.asarray(means.fit(known).predict(points), dtype=np.int64)


def _stretches(n_steps: int, n_states: int, rng: np.random.Generator) -> np.ndarray:
    n_breaks = int(rng.integers(n_states - 1, max(n_states, min(n_steps - 1, 6 * n_states)) + 1))
    breaks = (
        np.sort(rng.choice(np.arange(1, n_steps), min(n_breaks, n_steps - 1), replace=False)) if n_steps > 1 else []
    )
    stretch = np.searchsorted(breaks, np.arange(n_steps), side="right")
    return rng.permutation(np.resize(rng.permutation(n_states), len(breaks) + 1))[stretch]


def _occupy(labels: np.ndarray, inside: np.ndarray, n_states: int, rng: np.random.Generator) -> None:
    """Give every state that has no step one of its own, taken from a state that has several."""
    for state in range(n_states):
        if not (labels[inside] == state).any():
            counts = np.bincount(labels[inside], minlength=n_states)
            donors = np.flatnonzero(inside & (counts[labels] > 1))
            if donors.size:
                labels[rng.choice(donors)] = state


def softened(labels: Int[Tensor, "R *b T"], n_states: int, series: Series) -> Float[Tensor, "R *b T K"]:
    """Weights of the states at each step: of every state a little, so that none starts on a single point."""
    inside = series.inside.unsqueeze(-1)
    one_hot = torch.nn.functional.one_hot(labels, n_states).to(series.observations)
    return (0.9 * one_hot + 0.1 / n_states) * inside


def sample_of(series: Series, seed: int) -> Series:
    """The series or, of a very long one, about `SAMPLE` steps: some of the sequences, or stretches of a long one."""
    n_sequences, n_steps = series.n_sequences, series.n_steps
    if n_sequences * n_steps <= SAMPLE:
        return series
    order = torch.randperm(n_sequences, generator=torch.Generator().manual_seed(seed))
    few = series.part(order[: max(1, SAMPLE // n_steps)].sort().values)
    if n_steps <= SAMPLE:
        return few
    length = int(few.last[0]) + 1
    size = min(length, STRETCH)
    firsts = torch.linspace(0, length - size, min(SAMPLE // STRETCH, -(-length // size))).long().tolist()
    parts = [few.stretch(first, size) for first in firsts]

    def joined(tables: list[Tensor | None]) -> Tensor | None:
        there = [table for table in tables if table is not None]
        return torch.cat(there) if there else None

    observations = torch.cat([part.observations for part in parts])
    return Series(
        observations,
        covariates=joined([part.covariates for part in parts]),
        gaps=joined([part.gaps for part in parts]),
    )
