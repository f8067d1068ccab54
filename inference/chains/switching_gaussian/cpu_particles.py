r"""Whole paths of regimes given x and the path before, with the latents summed out, on the CPU.

A particle filter that holds on to the path that there is: each of N particles is a path with its Kalman filter, and at
every step N - 1 of their N K continuations are drawn by weight, so that all particles weigh the same. The path that is
held takes its past from one of the particles, by how well these go on with all that it holds of the future. One of the
N is drawn in the end; that leaves $P(z \mid x)$ as it is for any N of two or more (Andrieu, Doucet & Holenstein 2010,
*Particle Markov chain Monte Carlo methods*; Lindsten, Jordan & Schön 2014, *Particle Gibbs with ancestor sampling*;
Whiteley, Andrieu & Doucet 2010 for switching models). Stretches change at once that single regimes cannot leave.
"""

import math

import numpy as np

from ...numerics.compilation import kernel, lean_kernel
from .cpu_future import backward_sweep, future_of, log_mean_future
from .cpu_polya_gamma import uniform
from .cpu_steps import log_sum, observe, predict, put


@lean_kernel
def _draw(log_weight, n, total, stream):
    """One index by weight, never one without."""
    left_over, chosen = uniform(stream), -1
    for i in range(n):
        share = math.exp(log_weight[i] - total)
        if share > 0.0 and (chosen < 0 or left_over >= 0.0):
            chosen = i
        left_over -= share
    return chosen


@kernel
def redraw(part, work, x, lengths, p, n_particles, seeds, path, failed):
    """Draws each of the paths [B, T] in place."""
    n_steps, n_features = x.shape[1], x.shape[2]
    k, n = p.emission.shape[0], p.emission.shape[2]
    future = future_of(n_steps, n_features, n)
    stream, held = np.empty(1, np.uint64), n_particles - 1
    means, spreads = np.zeros((n_particles, n)), np.zeros((n_particles, n, n))
    child_means, child_spreads = np.zeros((n_particles * k, n)), np.zeros((n_particles * k, n, n))
    log_weight, pasts = np.empty(n_particles * k), np.empty(n_particles)
    regimes, parents = np.empty((n_steps, n_particles), np.int64), np.empty((n_steps, n_particles), np.int64)
    for b in range(part[0], part[1]):
        s, end = b % x.shape[0], lengths[b]
        stream[0] = np.uint64(seeds[b])
        failed[b] = backward_sweep(p, x[s], path[b], end, future, work)
        if failed[b] >= 0:
            continue
        for t in range(end):
            roots = 1 if t == 0 else n_particles
            for i in range(roots):
                for z in range(k):
                    c = i * k + z
                    log_weight[c] = p.log_initial[z] if t == 0 else p.log_transition[regimes[t - 1, i], z]
                    if log_weight[c] == -np.inf:
                        continue
                    if t == 0:
                        put(p.initial_mean[z], p.initial_covariance[z], child_means[c], child_spreads[c])
                    else:
                        predict(p, z, means[i], spreads[i], work, child_means[c], child_spreads[c])
                    log_weight[c] += observe(p, z, x[s, t], child_means[c], child_spreads[c], work)
            total = log_sum(log_weight, roots * k)
            if not abs(total) < np.inf:
                failed[b] = t
                break
            for i in range(roots):
                c = i * k + path[b, t]
                pasts[i] = log_weight[c]
                if pasts[i] > -np.inf:
                    pasts[i] += log_mean_future(future, t, child_means[c], child_spreads[c])
            for i in range(n_particles):
                if i == held:
                    c = _draw(pasts, roots, log_sum(pasts, roots), stream) * k + path[b, t]
                else:
                    c = _draw(log_weight, roots * k, total, stream)
                regimes[t, i], parents[t, i] = c % k, c // k
            for i in range(n_particles):
                c = parents[t, i] * k + regimes[t, i]
                put(child_means[c], child_spreads[c], means[i], spreads[i])
        if failed[b] >= 0:
            continue
        i = min(int(uniform(stream) * n_particles), n_particles - 1)
        for t in range(end - 1, -1, -1):
            path[b, t] = regimes[t, i]
            i = parents[t, i]
