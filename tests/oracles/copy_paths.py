"""The posterior of a copy chain by enumeration: every (s_0, s_1..T, z_1..T), its weight multiplied out, in float64."""

from dataclasses import dataclass
from itertools import product
from math import exp, inf, log

import torch
from torch import Tensor


@dataclass(frozen=True)
class Enumerated:
    log_normalizer: Tensor  # [N]
    log_increment: Tensor  # [N, T]
    filtered_state: Tensor  # [N, T, K]
    filtered_redraw: Tensor  # [N, T]
    fresh: Tensor  # [N, T, K]
    held: Tensor  # [N, T, K]
    initial: Tensor  # [N, K]
    log_best: Tensor  # [N], of (s_1..T, z_1..T), s_0 summed out
    entropy: Tensor  # [N], of (s_1..T, z_1..T), s_0 summed out
    paths: list[dict[tuple[tuple[int, ...], tuple[int, ...]], float]]  # the joint weight of each (s_1..T, z_1..T)

    @property
    def state(self) -> Tensor:
        return self.fresh + self.held

    @property
    def redraw(self) -> Tensor:
        return self.fresh.sum(-1)


def enumerate_paths(log_fresh: Tensor, log_held: Tensor, log_initial: Tensor | None, lengths: Tensor) -> Enumerated:
    """Everything about chains with tables [N, T, K], [N, T, K] or [N, T, 1], [N, K] or None, and lengths [N]."""
    n, steps, states = log_fresh.shape
    zeros = torch.zeros(n, steps, states, dtype=torch.float64)
    found = Enumerated(
        log_normalizer=zeros[:, 0, 0].clone(),
        log_increment=zeros[:, :, 0].clone(),
        filtered_state=zeros.clone(),
        filtered_redraw=zeros[:, :, 0].clone(),
        fresh=zeros.clone(),
        held=zeros.clone(),
        initial=zeros[:, 0].clone(),
        log_best=zeros[:, 0, 0].clone(),
        entropy=zeros[:, 0, 0].clone(),
        paths=[],
    )
    held = log_held.expand_as(log_fresh)
    for i, length in enumerate(lengths.tolist()):
        initial = None if log_initial is None else log_initial[i].tolist()
        _one(log_fresh[i, :length].tolist(), held[i, :length].tolist(), initial, i, found)
    return found


def _weights(fresh: list[list[float]], held: list[list[float]], initial: list[float] | None):
    """Every (s_0, s, z) with a positive weight, and that weight."""
    steps, states = len(fresh), len(fresh[0])
    for s_0 in range(states if initial is not None else 1):
        for s in product(range(states), repeat=steps):
            for z in product((0, 1), repeat=steps):
                weight, before = (1.0, None) if initial is None else (exp(initial[s_0]), s_0)
                for t in range(steps):
                    weight *= exp(fresh[t][s[t]]) if z[t] else exp(held[t][s[t]]) * (s[t] == before)
                    before = s[t]
                if weight > 0:
                    yield s_0, s, z, weight


def _one(fresh: list[list[float]], held: list[list[float]], initial: list[float] | None, i: int, found: Enumerated):
    before = 0.0
    for t in range(len(fresh)):
        total = 0.0
        for _, s, z, weight in _weights(fresh[: t + 1], held[: t + 1], initial):
            total += weight
            found.filtered_state[i, t, s[t]] += weight
            found.filtered_redraw[i, t] += weight * z[t]
        found.filtered_state[i, t] /= total or 1.0
        found.filtered_redraw[i, t] /= total or 1.0
        found.log_increment[i, t] = (log(total) if total else -inf) - before
        before = log(total) if total else -inf
    found.log_normalizer[i] = before

    paths: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for s_0, s, z, weight in _weights(fresh, held, initial):
        share = weight / total
        found.initial[i, s_0] += share
        for t in range(len(fresh)):
            (found.fresh if z[t] else found.held)[i, t, s[t]] += share
        paths[s, z] = paths.get((s, z), 0.0) + weight
    found.paths.append(paths)
    found.log_best[i] = log(max(paths.values())) if paths else -inf
    found.entropy[i] = -sum(w / total * log(w / total) for w in paths.values())
