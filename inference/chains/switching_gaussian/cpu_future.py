r"""The information of later observations about the latents at a step, given the later regimes, on the CPU.

$$p(x_{>t} \mid s_t, z_{>t}) \propto \exp(-\tfrac12 s_t^\top \Omega_t s_t + \mu_t^\top s_t)$$

goes backward without an inverse of a noise. A move is taken together with the observation that follows it: with the
gain K and the covariance S of that observation under the move's noise alone,

$$s_{t+1} \mid s_t, x_{t+1} \sim N\bigl((1 - K C)(A s_t + c) + K (x - d),\; (1 - K C) Q\bigr), \qquad
x_{t+1} \mid s_t \sim N(C (A s_t + c) + d, S)$$

so that noises may be singular, as long as together they leave each observation a density.
"""

import math
from typing import NamedTuple

import numpy as np

from ...numerics.compilation import kernel, lean_kernel
from ...numerics.small_matrices import copy_row, multiply, multiply_transposed
from .cpu_steps import observe, put, root_of


class Future(NamedTuple):
    """Omega and mu of each step, and working memory."""

    omega: np.ndarray  # [T, L, L]
    mu: np.ndarray  # [T, L]
    mean: np.ndarray  # [L]
    covariance: np.ndarray  # [L, L]
    root: np.ndarray  # [L, L]
    chol: np.ndarray  # [L, L]
    turned: np.ndarray  # [L, L]
    gone: np.ndarray  # [L]
    row: np.ndarray  # [F, L]


@kernel
def future_of(n_steps, n_features, n):
    omega, mu = np.zeros((n_steps, n, n)), np.zeros((n_steps, n))
    square = np.empty((4, n, n))
    mean, gone, row = np.empty(n), np.empty(n), np.empty((n_features, n))
    return Future(omega, mu, mean, square[0], square[1], square[2], square[3], gone, row)


@lean_kernel
def _condense(omega, root, chol, turned):
    """Of 1 + Z' Omega Z the Cholesky factor, and in `turned` its inverse times Z'; the factor's log determinant."""
    n, log_det = omega.shape[0], 0.0
    for i in range(n):
        for j in range(n):
            value = 0.0
            for k in range(n):
                value += omega[i, k] * root[k, j]
            turned[i, j] = value
    for i in range(n):
        for j in range(i + 1):
            value = 1.0 if i == j else 0.0
            for k in range(n):
                value += root[k, i] * turned[k, j]
            for k in range(j):
                value -= chol[i, k] * chol[j, k]
            chol[i, j] = math.sqrt(value) if i == j else value / chol[j, j]
        log_det += math.log(chol[i, i])
    for i in range(n):
        for j in range(n):
            value = root[j, i]
            for k in range(i):
                value -= chol[i, k] * turned[k, j]
            turned[i, j] = value / chol[i, i]
    return log_det


@lean_kernel
def _multiply_vector(matrix, vector, out):
    for i in range(len(out)):
        out[i] = 0.0
        for j in range(len(vector)):
            out[i] += matrix[i, j] * vector[j]


@lean_kernel
def backward_sweep(p, x, path, end, future, work):
    """Fills `future` of a sequence x [T, F] and its path [T]; the step whose observation has no density, or -1."""
    omega, mu, m, v, root, chol, turned, gone, row = future
    n_features, n = row.shape
    omega[end - 1] = 0.0
    mu[end - 1] = 0.0
    for t in range(end - 2, -1, -1):
        z = path[t + 1]
        put(p.transition_offset[z], p.state_noise[z], m, v)
        if math.isnan(observe(p, z, x[t + 1], m, v, work)):
            return t + 1
        a = p.transition[z]
        root_of(v, root)
        _condense(omega[t + 1], root, chol, turned)
        explained, less, into, half, inner = v, root, chol, turned, m
        multiply(turned, omega[t + 1], explained)
        _multiply_vector(turned, mu[t + 1], gone)
        for i in range(n):  # less = Omega - Omega G Omega, with G the covariance given later observations
            mu[t, i] = mu[t + 1, i]
            for j in range(n):
                less[i, j] = omega[t + 1, i, j]
                for k in range(n):
                    less[i, j] -= explained[k, i] * explained[k, j]
                mu[t, i] -= explained[j, i] * gone[j] + less[i, j] * m[j]
        multiply(work.rest, a, into)
        multiply(less, into, half)
        multiply_transposed(into, half, omega[t])
        copy_row(mu[t], inner)
        _multiply_vector(into.T, inner, mu[t])
        e = 0
        for f in range(n_features):
            if math.isnan(x[t + 1, f]):
                continue
            for j in range(n):
                value = 0.0
                for i in range(n):
                    value += p.emission[z, f, i] * a[i, j]
                for d in range(e):
                    value -= work.chol[e, d] * row[d, j]
                row[e, j] = value / work.chol[e, e]
            for i in range(n):
                mu[t, i] += row[e, i] * work.gap[e]
                for j in range(n):
                    omega[t, i, j] += row[e, i] * row[e, j]
            e += 1
    return -1


@lean_kernel
def log_mean_future(future, t, mean, covariance):
    """The logarithm of the mean of exp(-s' Omega s / 2 + mu' s) over a normal density of s_t, which may be singular."""
    omega, mu, _, _, root, chol, turned, gone, _ = future
    n = mean.shape[0]
    root_of(covariance, root)
    value = -_condense(omega[t], root, chol, turned)
    for i in range(n):
        gone[i] = mu[t, i]
        for j in range(n):
            gone[i] -= omega[t, i, j] * mean[j]
        value += 0.5 * mean[i] * (mu[t, i] + gone[i])
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += turned[i, j] * gone[j]
        value += 0.5 * total * total
    return value
