"""Clusters of points."""

from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from ..seeding import undrawn

MAX_CLUSTERED = 20_000  # points that k-means looks at; beyond that, a random subset
WIDEST = 64  # coordinates that k-means looks at; beyond that, as many random projections


def clusters(points: np.ndarray, n_clusters: int, seed: int, learn_from: np.ndarray | None = None) -> np.ndarray:
    """The cluster of each point `[N]`, by k-means of the points, or of those to `learn_from`, from one start.

    On one thread: scikit-learn's stay awake after their work, and keep those of torch waiting for a processor.
    """
    with undrawn():
        from sklearn.cluster import KMeans  # loads for longer than much of what is done without it takes

    means = KMeans(n_clusters, n_init=1, max_iter=20, random_state=seed)  # pyright: ignore[reportArgumentType]
    with _teams().limit(limits=1, user_api="openmp"):
        found = means.fit(points if learn_from is None else learn_from).predict(points)
    return np.asarray(found, dtype=np.int64)


def clusters_among(
    points: np.ndarray, among: np.ndarray, n_clusters: int, rng: np.random.Generator, most: int = MAX_CLUSTERED
) -> np.ndarray:
    """The cluster of each point, by k-means of those `among [N]` them, of which it looks at so many at most."""
    if points.shape[-1] > WIDEST:
        points = points @ rng.standard_normal((points.shape[-1], WIDEST))
    known = points[among]
    if len(known) > most:
        known = known[rng.choice(len(known), most, replace=False)]
    return clusters(points, distinct(known, n_clusters), int(rng.integers(2**31)), known)


def distinct(points: np.ndarray, most: int) -> int:
    """How many different points there are, counted up to `most`."""
    few = len(np.unique(points[: 16 * most], axis=0))
    return most if few >= most else min(most, len(np.unique(points, axis=0)))


@cache
def _teams() -> ThreadpoolController:
    """The threads of every library that is loaded by now."""
    return ThreadpoolController()
