r"""Regimes one by one given all others and x, with the latents summed out, on the CPU.

$$P(z_t \mid z_{-t}, x) \propto P(z_t \mid z_{t-1})\, P(z_{t+1} \mid z_t)\, p(x_t \mid x_{<t}, z_{\le t})
\int p(s_t \mid x_{\le t}, z_{\le t})\, p(x_{>t} \mid s_t, z_{>t})\, ds_t$$

The last factor is $\exp(-\frac12 s^\top \Omega_t s + \mu_t^\top s)$ up to a constant, told by a pass backward; the
Kalman filter goes forward with every regime that is drawn, so that a sweep costs O(T K L^3) (Carter & Kohn 1996,
*Markov chain Monte Carlo in conditionally Gaussian state space models*; Gerlach, Carter & Kohn 2000, *Efficient
Bayesian inference for dynamic mixture models*). Moves are taken together with the observation that follows: noises may
be singular as long as together they leave each observation a density.
"""

import math

import numpy as np

from ...numerics.compilation import kernel, lean_kernel
from .cpu_steps import log_sum, observe, predict, root_of, work_of


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


@kernel
def sweep(part, x, lengths, p, uniform, path, state, failed):
    """Draws every regime of the paths [B, T] in place, and writes what it was drawn from, [B, T, K]."""
    n_steps, n_features = x.shape[1], x.shape[2]
    k, n = p.emission.shape[0], p.emission.shape[2]
    work = work_of(n_features, n)
    omega, mu = np.zeros((n_steps, n, n)), np.zeros((n_steps, n))
    m, v, root, factor, turned = np.empty(n), np.empty((n, n)), np.empty((n, n)), np.empty((n, n)), np.empty((n, n))
    means, spreads, log_weight = np.empty((k, n)), np.empty((k, n, n)), np.empty(k)
    before, before_spread, gone, row = np.empty(n), np.empty((n, n)), np.empty(n), np.empty((n_features, n))
    for b in range(part[0], part[1]):
        s, end = b % x.shape[0], lengths[b]
        omega[end - 1] = 0.0
        mu[end - 1] = 0.0
        for t in range(end - 2, -1, -1):
            z = path[b, t + 1]
            m[:] = p.transition_offset[z]
            v[:] = p.state_noise[z]
            density = observe(p, z, x[s, t + 1], m, v, work)
            if math.isnan(density):
                failed[b] = t + 1
                break
            a = p.transition[z]
            root_of(v, root)
            _condense(omega[t + 1], root, factor, turned)
            left = omega[t + 1] @ turned.T  # Omega G = left turned
            less = omega[t + 1] - left @ (turned @ omega[t + 1])
            into = work.rest @ a
            gone[:] = mu[t + 1] - left @ (turned @ mu[t + 1]) - less @ m
            omega[t] = into.T @ (less @ into)
            mu[t] = into.T @ gone
            e = 0
            for f in range(n_features):
                if math.isnan(x[s, t + 1, f]):
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
        if failed[b] >= 0:
            continue
        for t in range(end):
            for z in range(k):
                log_weight[z] = p.log_initial[z] if t == 0 else p.log_transition[path[b, t - 1], z]
                if t + 1 < end:
                    log_weight[z] += p.log_transition[z, path[b, t + 1]]
                if log_weight[z] == -np.inf:
                    continue
                if t == 0:
                    means[z] = p.initial_mean[z]
                    spreads[z] = p.initial_covariance[z]
                else:
                    predict(p, z, before, before_spread, work, means[z], spreads[z])
                density = observe(p, z, x[s, t], means[z], spreads[z], work)
                if math.isnan(density):
                    failed[b] = t
                root_of(spreads[z], root)
                log_weight[z] += density - _condense(omega[t], root, factor, turned)
                for i in range(n):
                    gone[i] = mu[t, i]
                    for j in range(n):
                        gone[i] -= omega[t, i, j] * means[z, j]
                for i in range(n):
                    log_weight[z] += 0.5 * means[z, i] * (mu[t, i] + gone[i])
                    value = 0.0
                    for j in range(n):
                        value += turned[i, j] * gone[j]
                    log_weight[z] += 0.5 * value * value
            total = log_sum(log_weight, k)
            if failed[b] >= 0 or not abs(total) < np.inf:
                failed[b] = t
                break
            left_over, chosen = uniform[b, t], -1
            for z in range(k):
                state[b, t, z] = math.exp(log_weight[z] - total)
                if state[b, t, z] > 0.0 and (chosen < 0 or left_over >= 0.0):
                    chosen = z
                left_over -= state[b, t, z]
            path[b, t] = chosen
            before[:] = means[chosen]
            before_spread[:] = spreads[chosen]
