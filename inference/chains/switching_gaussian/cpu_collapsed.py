r"""Regimes one by one given all others and x, with the latents summed out, on the CPU.

$$P(z_t \mid z_{-t}, x) \propto P(z_t \mid z_{t-1})\, P(z_{t+1} \mid z_t)\, p(x_t \mid x_{<t}, z_{\le t})
\int p(s_t \mid x_{\le t}, z_{\le t})\, p(x_{>t} \mid s_t, z_{>t})\, ds_t$$

The Kalman filter goes forward with every regime that is drawn, so that a sweep costs O(T K L^3) (Carter & Kohn 1996,
*Markov chain Monte Carlo in conditionally Gaussian state space models*; Gerlach, Carter & Kohn 2000, *Efficient
Bayesian inference for dynamic mixture models*); `cpu_future` says what the last factor is.
"""

import math

import numpy as np

from ...numerics.compilation import kernel
from .cpu_future import backward_sweep, future_of, log_mean_future
from .cpu_steps import log_sum, observe, predict, put


@kernel
def sweep(part, work, x, lengths, p, uniform, path, state, failed):
    """Draws every regime of the paths [B, T] in place, and writes its distribution, [B, T, K]."""
    n_steps, n_features = x.shape[1], x.shape[2]
    k, n = p.emission.shape[0], p.emission.shape[2]
    future = future_of(n_steps, n_features, n)
    means, spreads, log_weight = np.empty((k, n)), np.empty((k, n, n)), np.empty(k)
    before, before_spread = np.empty(n), np.empty((n, n))
    for b in range(part[0], part[1]):
        s, end = b % x.shape[0], lengths[b]
        failed[b] = backward_sweep(p, x[s], path[b], end, future, work)
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
                    put(p.initial_mean[z], p.initial_covariance[z], means[z], spreads[z])
                else:
                    predict(p, z, before, before_spread, work, means[z], spreads[z])
                log_weight[z] += observe(p, z, x[s, t], means[z], spreads[z], work)
                log_weight[z] += log_mean_future(future, t, means[z], spreads[z])
            total = log_sum(log_weight, k)
            if not abs(total) < np.inf:
                failed[b] = t
                break
            left_over, chosen = uniform[b, t], -1
            for z in range(k):
                state[b, t, z] = math.exp(log_weight[z] - total)
                if state[b, t, z] > 0.0 and (chosen < 0 or left_over >= 0.0):
                    chosen = z
                left_over -= state[b, t, z]
            path[b, t] = chosen
            put(means[chosen], spreads[chosen], before, before_spread)
