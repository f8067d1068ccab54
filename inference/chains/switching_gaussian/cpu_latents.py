r"""Latents given regimes, and regimes' tables given latents, on the CPU: the steps of a Gibbs sampler.

A draw of the latents is one from their prior, with its observations, moved by what the smoother makes of the
difference to x (Durbin & Koopman 2002, *A simple and efficient simulation smoother*). The smoother goes back over

$$r_{t-1} = C^\top F^{-1} v_t + (I - K C)^\top A_{t+1}^\top r_t, \qquad E[s_t \mid x] = m_t + P_t r_{t-1}$$

so that no covariance of latents is inverted; they may be singular. In the recurrent kind, given Polya-Gamma numbers
$\omega$ the regression of each stick is one more observation of the latents (Linderman et al. 2017):
$\kappa / \omega \sim N(u, 1 / \omega)$ with $\kappa = \pm\frac12$.
"""

import math

import numpy as np

from ...numerics.compilation import kernel
from .cpu_steps import observe, predict, update, work_of


@kernel
def draw(part, x, lengths, path, p, roots, omega, noise, seen_noise, drawn, mean, covariance, failed):
    """Of each path [B, T], a draw [B, T, L] of the latents, and their means and covariances; b sees x[b % N].

    `roots` are the factors of initial_covariance, state_noise and observation_noise; `omega` [B, T, J] is 0 where a
    stick says nothing; the noises [B, T, L] and [B, T, F + J] are standard normal numbers.
    """
    n_steps, n_seen_by_regimes = x.shape[1], x.shape[2]
    n, n_sticks = p.emission.shape[2], omega.shape[2]
    n_rows = n_seen_by_regimes + n_sticks
    c, offset, r = np.zeros((n_rows, n)), np.zeros(n_rows), np.zeros((n_rows, n_rows))
    y, other = np.empty(n_rows), np.empty(n_rows)
    work, half = work_of(n_rows, n), np.empty((n, n))
    m, v, new_m, new_v = np.empty(n), np.empty((n, n)), np.empty(n), np.empty((n, n))
    gone, moved, prior = np.empty(n), np.empty(n), np.empty(n)  # by the difference to the prior's draw
    shifts = np.empty((n_steps, n))
    means, spreads, rests = np.empty((n_steps, n)), np.empty((n_steps, n, n)), np.empty((n_steps, n, n))
    whitened, scaled = np.empty((n_steps, n_rows, n)), np.empty((n_steps, 2, n_rows))
    back, back_square, square = np.empty((2, n)), np.empty((n, n)), np.empty((n, n))
    for f in range(n_sticks):
        c[n_seen_by_regimes + f] = p.recurrence[f]
    for b in range(part[0], part[1]):
        s, end = b % x.shape[0], lengths[b]
        for t in range(end):
            z = path[b, t]
            for i in range(n):
                prior[i] = p.initial_mean[z, i] if t == 0 else p.transition_offset[z, i]
                moved[i] = 0.0
                for j in range(n):
                    if t == 0:
                        prior[i] += roots[0][z, i, j] * noise[b, t, j]
                    else:
                        prior[i] += p.transition[z, i, j] * drawn[b, t - 1, j] + roots[1][z, i, j] * noise[b, t, j]
                        moved[i] += p.transition[z, i, j] * gone[j]
            drawn[b, t] = prior
            gone[:] = moved
            shifts[t] = moved
            if t == 0:
                m[:] = p.initial_mean[z]
                v[:] = p.initial_covariance[z]
            else:
                predict(p, z, m, v, work, new_m, new_v)
                m[:] = new_m
                v[:] = new_v
            means[t] = m
            spreads[t] = v
            for f in range(n_seen_by_regimes):
                c[f] = p.emission[z, f]
                offset[f] = p.emission_offset[z, f]
                y[f] = x[s, t, f]
                other[f] = y[f] - offset[f]
                for i in range(n):
                    other[f] -= c[f, i] * prior[i]
                for g in range(n_seen_by_regimes):
                    r[f, g] = p.observation_noise[z, f, g]
                    other[f] -= roots[2][z, f, g] * seen_noise[b, t, g]
            for i in range(n_sticks):
                f, weight = n_seen_by_regimes + i, omega[b, t, i]
                y[f] = np.nan
                if weight > 0.0:
                    offset[f] = p.recurrence_offset[z, i]
                    y[f] = (0.5 if path[b, t + 1] == i else -0.5) / weight
                    r[f, f] = 1.0 / weight
                    other[f] = y[f] - offset[f] - seen_noise[b, t, f] / math.sqrt(weight)
                    for j in range(n):
                        other[f] -= c[f, j] * prior[j]
            if math.isnan(update(y, c, offset, r, m, v, work)):
                failed[b] = t
                break
            rests[t] = work.rest
            k = 0
            for f in range(n_rows):
                scaled[t, 0, f] = scaled[t, 1, f] = 0.0
                if math.isnan(y[f]):
                    continue
                scaled[t, 0, k] = work.gap[k]
                value = other[f]
                for j in range(n):
                    value -= c[f, j] * moved[j]
                other[k] = value  # k <= f: nothing is lost
                for e in range(k):
                    value -= work.chol[k, e] * scaled[t, 1, e]
                scaled[t, 1, k] = value / work.chol[k, k]
                for j in range(n):
                    value = c[f, j]
                    for e in range(k):
                        value -= work.chol[k, e] * whitened[t, e, j]
                    whitened[t, k, j] = value / work.chol[k, k]
                    gone[j] += work.gain[j, k] * other[k]
                k += 1
            whitened[t, k:] = 0.0
            scaled[t, :, k:] = 0.0
        if failed[b] >= 0:
            continue
        back[:] = 0.0
        back_square[:] = 0.0
        for t in range(end - 1, -1, -1):
            back[:] = scaled[t] @ whitened[t] + back @ rests[t]
            square[:] = whitened[t].T @ whitened[t] + rests[t].T @ (back_square @ rests[t])
            for i in range(n):
                mean[b, t, i] = means[t, i]
                drawn[b, t, i] += shifts[t, i]
                for j in range(n):
                    mean[b, t, i] += spreads[t, i, j] * back[0, j]
                    drawn[b, t, i] += spreads[t, i, j] * back[1, j]
            half[:] = spreads[t] @ square
            for i in range(n):
                for j in range(n):
                    value = spreads[t, i, j]
                    for e in range(n):
                        value -= half[i, e] * spreads[t, e, j]
                    covariance[b, t, i, j] = value
            a = p.transition[path[b, t]]
            back[:] = back @ a
            back_square[:] = a.T @ (square @ a)


@kernel
def densities(part, x, lengths, latents, p, starts, moves, table):
    """log p(x_t, s_t | s_t-1, z_t) by regime, [B, T, K]; of s_t alone where regimes start (move) it differently."""
    k, n, n_features = p.emission.shape[0], p.emission.shape[2], p.emission.shape[1]
    work = work_of(max(n, n_features), n)
    m, v, unit, none = np.empty(n), np.zeros((n, n)), np.eye(n), np.zeros(n)
    for b in range(part[0], part[1]):
        s = b % x.shape[0]
        for t in range(lengths[b]):
            for z in range(k):
                m[:] = latents[b, t]
                v[:] = 0.0
                value = observe(p, z, x[s, t], m, v, work)
                v[:] = 0.0
                if t == 0 and starts:
                    m[:] = p.initial_mean[z]
                    value += update(latents[b, 0], unit, none, p.initial_covariance[z], m, v, work)
                elif t > 0 and moves:
                    m[:], q = latents[b, t - 1], p.state_noise[z]
                    value += update(latents[b, t], p.transition[z], p.transition_offset[z], q, m, v, work)
                table[b, t, z] = value
