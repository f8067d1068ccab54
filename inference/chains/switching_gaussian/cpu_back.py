"""Kim's smoother on the CPU: back over the beliefs that the filter of order 2 kept at each step; see `plain`."""

import math

import numpy as np

from ...numerics.compilation import kernel, lean_kernel
from ...numerics.small_matrices import copy, copy_row
from .cpu_steps import choose, log_sum, merge, predict, put

_EPS = float(np.finfo(np.float64).eps)
_SOUND = 1e-6  # of a variance, the share that the features before leave, to divide by it as it is


@lean_kernel
def _solved(gain, covariance, chol):
    """The rows of `gain` in place divided by the covariance; False where that is near to singular."""
    n = covariance.shape[0]
    for j in range(n):
        for i in range(j, n):
            value = covariance[i, j]
            for k in range(j):
                value -= chol[i, k] * chol[j, k]
            if i > j:
                chol[i, j] = value / chol[j, j]
            elif value > _SOUND * covariance[j, j]:
                chol[j, j] = math.sqrt(value)
            else:
                return False
    for row in range(n):
        for i in range(n):
            for k in range(i):
                gain[row, i] -= chol[i, k] * gain[row, k]
            gain[row, i] /= chol[i, i]
        for i in range(n - 1, -1, -1):
            for k in range(i + 1, n):
                gain[row, i] -= chol[k, i] * gain[row, k]
            gain[row, i] /= chol[i, i]
    return True


@kernel
def _gain(cross, covariance, chol):
    """cross times the inverse of a covariance, or its pseudoinverse, with the bound of `torch.linalg.pinv`."""
    gain = cross.copy()
    if _solved(gain, covariance, chol):
        return gain
    values, vectors = np.linalg.eigh(covariance)
    n, most = len(values), np.abs(values).max()
    turned = cross @ vectors
    for i in range(n):
        turned[:, i] *= 1.0 / values[i] if abs(values[i]) > n * _EPS * most else 0.0
    return turned @ vectors.T


@kernel
def back(part, work, lengths, p, recurrent, w, m, v, state, pairs, mean, covariance):
    """Over sequences of a range; w, m, v [N, T, K, ...] become those of the smoother."""
    k, n = p.emission.shape[0], p.emission.shape[2]
    log_prob, met_mean, met_covariance = np.empty((k, k)), np.empty((k, k, n)), np.empty((k, k, n, n))
    joint, moved, spread = np.empty((k, k)), np.zeros((k, k, n)), np.zeros((k, k, n, n))
    column, total = np.empty(k), np.empty(k)
    ahead, ahead_covariance = np.empty(n), np.empty((n, n))
    for s in range(part[0], part[1]):
        for t in range(lengths[s] - 1, -1, -1):
            if t < lengths[s] - 1:
                for j in range(k):
                    if recurrent is None:
                        copy_row(p.log_transition[j], log_prob[j])
                        for z in range(k):
                            put(m[s, t, j], v[s, t, j], met_mean[j, z], met_covariance[j, z])
                    else:
                        choose(p, j, m[s, t, j], v[s, t, j], log_prob[j], met_mean[j], met_covariance[j])
                    for z in range(k):
                        log_prob[j, z] += w[s, t, j]
                for z in range(k):
                    for j in range(k):
                        column[j] = log_prob[j, z]
                    total[z] = log_sum(column, k)
                for j in range(k):
                    for z in range(k):
                        joint[j, z] = -np.inf
                        if log_prob[j, z] == -np.inf or w[s, t + 1, z] == -np.inf:
                            continue
                        joint[j, z] = log_prob[j, z] - total[z] + w[s, t + 1, z]
                        pairs[s, t, j, z] = math.exp(joint[j, z])
                        predict(p, z, met_mean[j, z], met_covariance[j, z], work, ahead, ahead_covariance)
                        gain = _gain(met_covariance[j, z] @ p.transition[z].T, ahead_covariance, work.half)
                        copy_row(met_mean[j, z] + gain @ (m[s, t + 1, z] - ahead), moved[j, z])
                        copy(met_covariance[j, z] + gain @ (v[s, t + 1, z] - ahead_covariance) @ gain.T, spread[j, z])
                for j in range(k):
                    w[s, t, j] = merge(joint[j], 0, 1, k, moved[j], spread[j], m[s, t, j], v[s, t, j])
            for j in range(k):
                state[s, t, j] = math.exp(w[s, t, j])
            merge(w[s, t], 0, 1, k, m[s, t], v[s, t], mean[s, t], covariance[s, t])
