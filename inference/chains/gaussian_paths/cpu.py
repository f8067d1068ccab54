"""Gaussian paths on the CPU: fused over time, each sequence on its own, threads over sequences."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...numerics.compilation import kernel
from ...numerics.small_matrices import copy, factor, invert
from ...numerics.threads import in_parallel, ranges
from . import op
from .plain import LOG_2PI

_MIN_WORK = 1 << 15  # numbers of the square tables that repay a second thread


class Room(NamedTuple):
    """What a sequence is worked on in."""

    inverse: np.ndarray  # [T, L, L] of each step's precision, given the steps before
    gain: np.ndarray  # [T, L, L]
    mean: np.ndarray  # [T, L]
    chol: np.ndarray  # [T, L, L], the inverse factors of precisions; empty unless needed
    precision: np.ndarray  # [L, L]
    lower: np.ndarray  # [L, L]
    shift: np.ndarray  # [L]


def _room_of(n_steps: int, n: int, *, factors: bool) -> Room:
    tables = (np.empty((size, n, n)) for size in (n_steps, n_steps, n_steps if factors else 0))
    inverse, gain, chol = tables
    return Room(inverse, gain, np.empty((n_steps, n)), chol, np.empty((n, n)), np.zeros((n, n)), np.empty(n))


@kernel
def _eliminate(b, n_steps, linear, square, cross, room):
    """Forward over one sequence: log normaliser, and the step that failed or -1; see `plain`."""
    n, (inverse, gain, mean, chol, precision, lower, shift) = linear.shape[-1], room
    total = 0.5 * n_steps * n * LOG_2PI
    for t in range(n_steps):
        for i in range(n):
            shift[i] = linear[b, t, i]
            for j in range(i + 1):
                precision[i, j] = -(square[b, t, i, j] + square[b, t, j, i])
        if t > 0:
            for i in range(n):
                for k in range(n):
                    below = cross[b, t - 1, i, k]
                    shift[i] += below * mean[t - 1, k]
                    for j in range(i + 1):
                        precision[i, j] -= below * gain[t - 1, k, j]
        log_det = factor(precision, n)
        if math.isnan(log_det):
            return total, t
        invert(precision, lower, inverse[t])
        total -= 0.5 * log_det
        for i in range(n):
            value = 0.0
            for j in range(n):
                value += inverse[t, i, j] * shift[j]
            mean[t, i] = value
            total += 0.5 * shift[i] * value
        if chol.shape[0] > 0:
            copy(lower, chol[t])
        if t + 1 < n_steps:
            for i in range(n):
                for j in range(n):
                    value = 0.0
                    for k in range(n):
                        value += inverse[t, i, k] * cross[b, t, j, k]
                    gain[t, i, j] = value
    return total, -1


@kernel
def _moments(part, room, linear, square, cross, lengths, total, first, second, crossed, failed):
    n, (inverse, gain, mean, _, between, ahead, _) = linear.shape[-1], room
    for b in range(part[0], part[1]):
        length = lengths[b]
        value, failed[b] = _eliminate(b, length, linear, square, cross, room)
        total[b] = value
        if failed[b] >= 0:
            continue
        for t in range(length - 1, -1, -1):
            if t + 1 < length:
                for i in range(n):
                    value = mean[t, i]
                    for j in range(n):
                        value += gain[t, i, j] * mean[t + 1, j]
                    mean[t, i] = value
                for i in range(n):
                    for j in range(n):
                        value = 0.0
                        for k in range(n):
                            value += inverse[t + 1, i, k] * gain[t, j, k]
                        between[i, j] = value
                        crossed[b, t, i, j] = value + mean[t + 1, i] * mean[t, j]
                for i in range(n):
                    for j in range(i + 1):
                        value = inverse[t, i, j]
                        for k in range(n):
                            value += gain[t, i, k] * between[k, j]
                        ahead[i, j] = value
                        ahead[j, i] = value
                for i in range(n):
                    for j in range(n):
                        inverse[t, i, j] = ahead[i, j]
            for i in range(n):
                first[b, t, i] = mean[t, i]
                for j in range(n):
                    second[b, t, i, j] = inverse[t, i, j] + mean[t, i] * mean[t, j]


@kernel
def _sample(part, room, linear, square, cross, lengths, noise, path, failed):
    n, (_, gain, mean, lower, _, _, _) = linear.shape[-1], room
    for b in range(part[0], part[1]):
        length = lengths[b]
        _, failed[b] = _eliminate(b, length, linear, square, cross, room)
        if failed[b] >= 0:
            continue
        for draw in range(noise.shape[0]):
            for t in range(length - 1, -1, -1):
                for i in range(n):
                    value = mean[t, i]
                    for j in range(i, n):
                        value += lower[t, j, i] * noise[draw, b, t, j]
                    if t + 1 < length:
                        for j in range(n):
                            value += gain[t, i, j] * path[draw, b, t + 1, j]
                    path[draw, b, t, i] = value


def _over_sequences(run, tables: tuple[Tensor, ...], outputs: list[Tensor]) -> list[Tensor]:
    """Run a kernel over ranges of sequences, in float64."""
    *numbers, lengths = tables[:4]
    arrays = [x.detach().double().contiguous().numpy() for x in (*numbers, *tables[4:])]
    arrays.insert(3, lengths.contiguous().numpy())
    square = tables[1]
    pieces = ranges(len(lengths), max(1, -(-_MIN_WORK * len(lengths) // max(1, square.numel()))))
    room = partial(_room_of, *square.shape[1:3], factors=len(tables) > 4)
    in_parallel([partial(run, part, room(), *arrays, *(x.numpy() for x in outputs)) for part in pieces])
    return [x.to(square.dtype) if x.is_floating_point() else x for x in outputs]


@op.moments.kernel("cpu")
def moments(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    outputs = [torch.zeros(x.shape, dtype=torch.float64) for x in (lengths, linear, square, cross)]
    outputs.append(torch.full_like(lengths, -1))
    return tuple(_over_sequences(_moments, (linear, square, cross, lengths), outputs))


@op.sample.kernel("cpu")
def sample(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    outputs = [torch.zeros(noise.shape, dtype=torch.float64), torch.full_like(lengths, -1)]
    return tuple(_over_sequences(_sample, (linear, square, cross, lengths, noise), outputs))
