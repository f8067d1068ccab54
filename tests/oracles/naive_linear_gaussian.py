r"""A linear Gaussian chain as one dense normal distribution of all states and observations, in float64.

The path of one sequence is $s = \mu + B \delta + \Phi \epsilon$ with $\epsilon \sim N(0, \mathrm{blockdiag}(P_1, Q_1,
\dots))$, and what is seen of it $x = C s + d + v$. Given the diffuse $\delta$ all is normal; $\delta$ itself has a flat
prior, so that it is estimated by generalised least squares. With $S = B^\top C^\top \Sigma^{-1} C B$ the evidence is

$$\lim_{\kappa \to \infty} \log p(x) + \tfrac r2 \log \kappa = \log N(x; \hat x, \Sigma) - \tfrac12 \log |S|_+$$

with r the rank of S and $|S|_+$ the product of its positive eigenvalues. Everything can be differentiated.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Sequence(NamedTuple):
    """One sequence of T steps with its own parameters for each, covariances among them."""

    x: Tensor  # [T, F] with NaN
    transition: Tensor  # [T-1, L, L]
    transition_offset: Tensor  # [T-1, L]
    state_noise: Tensor  # [T-1, L, L]
    emission: Tensor  # [T, F, L]
    emission_offset: Tensor  # [T, F]
    observation_noise: Tensor  # [T, F, F]
    initial_mean: Tensor  # [L]
    initial_covariance: Tensor  # [L, L]
    directions: Tensor  # [L, q]


class Posterior(NamedTuple):
    log_normalizer: Tensor  # []
    mean: Tensor  # [T, L]
    covariance: Tensor  # [T, L, T, L] of the whole path
    diffuse: Tensor  # [T, L, T, L], the factor of kappa


def posterior(sequence: Sequence, n_seen: int) -> Posterior:
    """The path given the first `n_seen` steps."""
    n_steps, n_states = sequence.x.shape[0], sequence.emission.shape[-1]
    mean, design, covariance = _path(sequence)
    emission = torch.block_diag(*sequence.emission)
    noise = torch.block_diag(*sequence.observation_noise)
    seen = ~sequence.x.isnan()
    seen = torch.where((torch.arange(n_steps) < n_seen).unsqueeze(-1), seen, False).flatten()
    emission, noise = emission[seen], noise[seen][:, seen]
    gap = sequence.x.flatten()[seen] - sequence.emission_offset.flatten()[seen] - emission @ mean
    sigma, effect = emission @ covariance @ emission.mT + noise, emission @ design
    precision = torch.linalg.inv(sigma)
    information = effect.mT @ precision @ effect
    values, vectors = torch.linalg.eigh(information.detach())
    free = vectors[:, values <= 1e-11 * values.clamp_min(0).sum()]
    open_directions = free @ free.mT
    inverse = torch.linalg.inv(information + open_directions) - open_directions
    delta = inverse @ effect.mT @ precision @ gap
    rest = gap - effect @ delta
    log_det = torch.linalg.slogdet(sigma)[1] + torch.linalg.slogdet(information + open_directions)[1]
    total = -0.5 * (len(gap) * math.log(2 * math.pi) + log_det + rest @ precision @ rest)
    gain = covariance @ emission.mT @ precision
    remainder = design - gain @ effect
    means = mean + design @ delta + gain @ rest
    shape = (n_steps, n_states, n_steps, n_states)
    spread = covariance - gain @ emission @ covariance + remainder @ inverse @ remainder.mT
    diffuse = remainder @ open_directions @ remainder.mT
    return Posterior(total, means.reshape(n_steps, n_states), spread.reshape(shape), diffuse.reshape(shape))


def _path(sequence: Sequence) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [T L], design [T L, q] of the diffuse coordinates and covariance [T L, T L] of the path a priori."""
    n_states = sequence.emission.shape[-1]
    means, designs = [sequence.initial_mean], [sequence.directions]
    row = [torch.eye(n_states, dtype=torch.float64)]  # of Phi, block by block
    rows = [row]
    for transition, offset in zip(sequence.transition, sequence.transition_offset, strict=True):
        means.append(transition @ means[-1] + offset)
        designs.append(transition @ designs[-1])
        row = [*(transition @ block for block in row), torch.eye(n_states, dtype=torch.float64)]
        rows.append(row)
    blank = torch.zeros(n_states, n_states, dtype=torch.float64)
    phi = torch.cat([torch.cat([*row, *[blank] * (len(rows) - len(row))], 1) for row in rows])
    noise = torch.block_diag(sequence.initial_covariance, *sequence.state_noise)
    return torch.cat(means), torch.cat(designs), phi @ noise @ phi.mT
