"""Clusters of points."""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.native.library import function, integers, library, pointer
from ...inference.numerics.op import Variants
from ...inference.numerics.randomness import generator_of, invert

MAX_CLUSTERED = 20_000  # the most points for k-means; of more points it uses a random subset
WIDEST = 64  # the most coordinates for k-means; of more coordinates it uses random projections
ITERATIONS = 20
AT_ONCE = 2**16  # points whose distances are in memory at once
ROOM = 2**24  # the most differences between points and means in memory at once


def clusters_among(
    points: Float[Tensor, "N E"],
    among: Bool[Tensor, "N"],
    n_clusters: int,
    rng: np.random.Generator,
    most: int = MAX_CLUSTERED,
) -> Int[Tensor, "N"]:
    """The cluster of each point, by k-means on at most `MAX_CLUSTERED` of the points `among`."""
    if points.shape[-1] > WIDEST:
        points = points @ torch.from_numpy(rng.standard_normal((points.shape[-1], WIDEST))).to(points)
    known = points[among]
    if len(known) > most:
        known = known[torch.from_numpy(rng.choice(len(known), most, replace=False)).to(points.device)]
    return clusters(points, known, n_clusters, int(rng.integers(2**31)))


def clusters(
    points: Float[Tensor, "N E"], learn_from: Float[Tensor, "M E"], n_clusters: int, seed: int
) -> Int[Tensor, "N"]:
    """The cluster of each point, by k-means on the points to learn from, from one start."""
    if n_clusters == 1 or not len(learn_from):
        return torch.zeros(len(points), dtype=torch.long, device=points.device)
    return kmeans(points, learn_from, n_clusters, seed)


def by_torch(points: Tensor, learn_from: Tensor, n_clusters: int, seed: int) -> Tensor:
    """A fixed number of iterations, none of which waits for the device. An empty cluster restarts from a point that is
    far from its mean."""
    size = learn_from.abs().amax().clamp_min(torch.finfo(points.dtype).tiny)
    about = (learn_from / size).mean(0)
    x = learn_from / size - about
    means = _far_apart(x, n_clusters, generator_of(seed))
    number = torch.arange(n_clusters, device=x.device).unsqueeze(-1)
    for _ in range(ITERATIONS):
        least, label = _squares(x, means).min(-1)
        members = (label == number).to(x)  # [K, M]
        count = members.sum(-1, keepdim=True)
        far = x[least.topk(min(n_clusters, len(x))).indices]
        turn = ((count == 0).cumsum(0) - 1).clamp(0, len(far) - 1).squeeze(-1)
        means = torch.where(count > 0, members @ x / count.clamp_min(1), far[turn])
    return _squares(points / size - about, means).argmin(-1)


kmeans: Variants = Variants(by_torch)
"""The nearest of K means for each of the points `[N, E]`; k-means++ starts the means on some points to learn from."""


@kmeans.kernel("cpu", lambda *given: library() is not None)
def _by_library(points: Tensor, learn_from: Tensor, n_clusters: int, seed: int) -> Tensor:
    """Until no mean moves, or for as many iterations."""
    size = learn_from.abs().amax().clamp_min(torch.finfo(points.dtype).tiny)
    about = (learn_from / size).mean(0)
    x = (learn_from / size - about).mT.contiguous()
    draws = _draws(n_clusters, generator_of(seed), x)
    means, label = x.new_empty(n_clusters, len(x)), torch.empty(len(points), dtype=torch.long, device=points.device)
    sizes = integers(x.shape[1], len(x), n_clusters, draws.shape[1], ITERATIONS)
    function("kmeans", x.dtype)(pointer(x), sizes, pointer(draws), pointer(means))
    for part, found in zip(points.split(AT_ONCE), label.split(AT_ONCE), strict=True):
        some = (part / size - about).mT.contiguous()
        sizes = integers(len(part), len(x), n_clusters)
        function("nearest", x.dtype)(pointer(some), sizes, pointer(means), pointer(found))
    return label


def _draws(n: int, generator: torch.Generator | None, like: Tensor) -> Float[Tensor, "K trials"]:
    """By which k-means++ chooses points. The host draws: a seed gives the same ones on every device."""
    return torch.rand(n, 2 + int(math.log(n)), generator=generator, dtype=like.dtype, device="cpu").to(like.device)


def _far_apart(x: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Points `[n, E]` of x. Each is the best of several that are drawn by their squared distance from the points before
    it (Arthur & Vassilvitskii 2007, *k-means++: The advantages of careful seeding*)."""
    draws = _draws(n, generator, x)
    centers = x[(draws[0, :1] * len(x)).long().clamp_max(len(x) - 1)]
    least = _squares(x, centers).mT  # [1, M]
    for draw in draws[1:]:
        tried = x[invert(least[0], draw)]
        remaining = torch.minimum(least, _squares(x, tried).mT)
        best = remaining.sum(-1).argmin(0, keepdim=True)
        least, centers = remaining[best], torch.cat([centers, tried[best]])
    return centers


def _squares(x: Tensor, means: Tensor) -> Tensor:
    """Squared distances `[N, K]`, from differences, so equal points have equal distances."""
    some = x.split(max(1, ROOM // max(1, means.numel())))
    return torch.cat([(part.unsqueeze(-2) - means).square().sum(-1) for part in some])
