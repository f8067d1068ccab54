r"""The tables of a switching linear model, and the probabilities of the next regime under a belief about its latents.

In the recurrent kind that depends on $u = W s + w_j$. Given $s = m + Z \epsilon$ with standard normal $\epsilon$ and
orthonormal $\Theta$ that spans the rows of $W Z$, all that is asked are means over $\eta = \Theta^\top \epsilon$,
$d = \min(K - 1, L)$ numbers; with $\pi_k$ the k-th piece of the stick,

$$P(k \mid j) = E\,\pi_k(\eta), \quad E[\epsilon \mid j, k] = \Theta\, E[\eta\, \pi_k] / P(k \mid j), \quad
\mathrm{Cov}[\epsilon \mid j, k] = I + \Theta\,(\mathrm{Cov}[\eta \mid j, k] - I)\,\Theta^\top$$

The means are sums over equal steps in each direction. They are exact to rounding for normal densities times functions
that are smooth within a step; Gauss-Hermite sums with the same number of points lose digits for steep regressions. With
a the standard deviation of a regression's argument under the belief, the errors of probabilities and moments are at
most

    a                       1        3        10       30
    d = 1, 161 points       1e-12    1e-12    1e-8     5e-4
    d = 2, 41 each          1e-9     1e-8     2e-3     3e-2
    d = 3, 17 each          1e-5     2e-4     3e-2     1e-1

and beyond three directions, where 4096 points of a Sobol sequence serve, by about 1e-3.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.logs import log_sigmoid, log_sum_exp
from ..linear_gaussian.factors import factor_of

GRIDS = {1: (161, 8.5), 2: (41, 6.5), 3: (17, 5.0)}  # directions: points in each, and how far they reach
SOBOL = 4096


class Tables(NamedTuple):
    """A model of K regimes, L latents and F features, in float64; see `switching.slds.joint.Regimes`."""

    log_initial: Tensor  # [K]
    log_transition: Tensor  # [K, K], [old, new]
    initial_mean: Tensor  # [K, L]
    initial_covariance: Tensor  # [K, L, L]
    transition: Tensor  # [K, L, L]
    transition_offset: Tensor  # [K, L]
    state_noise: Tensor  # [K, L, L]
    emission: Tensor  # [K, F, L]
    emission_offset: Tensor  # [K, F]
    observation_noise: Tensor  # [K, F, F]
    recurrence: Tensor | None = None  # [K-1, L]
    recurrence_offset: Tensor | None = None  # [K, K-1]

    @property
    def n_regimes(self) -> int:
        return self.emission.shape[0]

    @property
    def n_latent(self) -> int:
        return self.emission.shape[-1]


class Chosen(NamedTuple):
    """The probabilities of the next regime under normal beliefs, and their information about the latents."""

    log_prob: Tensor  # [*b, K]
    mean: Tensor  # [*b, K, L]
    covariance: Tensor  # [*b, K, L, L]


def stick_breaking(u: Tensor) -> Tensor:
    r"""$\log \sigma(u_k) + \sum_{i < k} \log \sigma(-u_i)$: log-probabilities [*b, J + 1] of the pieces, from [*b, J].

    >>> stick_breaking(torch.zeros(2)).exp()
    tensor([0.5000, 0.2500, 0.2500])
    """
    taken = torch.nn.functional.pad(log_sigmoid(u), (0, 1))
    remaining = torch.nn.functional.pad(log_sigmoid(-u).cumsum(-1), (1, 0))
    return taken + remaining


def choose(tables: Tables, regime: Tensor, mean: Tensor, covariance: Tensor) -> Chosen:
    """Of beliefs [*b, L], [*b, L, L] in regimes that broadcast to [*b]."""
    k = tables.n_regimes
    means = mean.unsqueeze(-2).expand(*mean.shape[:-1], k, -1)
    spread = covariance.unsqueeze(-3).expand(*mean.shape[:-1], k, -1, -1)
    if tables.recurrence is None or tables.recurrence_offset is None:
        return Chosen(tables.log_transition[regime].expand(*mean.shape[:-1], k), means, spread)
    if k == 1:
        return Chosen(torch.zeros_like(mean[..., :1]), means, spread)
    factor, _ = factor_of(covariance)
    slopes = tables.recurrence @ factor
    directions, triangle = torch.linalg.qr(slopes.mT)
    nodes, log_weight = grid(directions.shape[-1], mean)
    centre = (mean @ tables.recurrence.mT) + tables.recurrence_offset[regime]
    pieces = stick_breaking(centre.unsqueeze(-2) + nodes @ triangle) + log_weight.unsqueeze(-1)
    log_prob = log_sum_exp(pieces, -2)
    weight = torch.where(
        log_prob.unsqueeze(-2).isneginf(), log_weight.unsqueeze(-1), pieces - log_prob.unsqueeze(-2)
    ).exp()
    first = weight.mT @ nodes
    second = torch.einsum("...pk,pd,pe->...kde", weight, nodes, nodes)
    unit = torch.eye(nodes.shape[-1], dtype=mean.dtype, device=mean.device)
    bent = second - first.unsqueeze(-1) * first.unsqueeze(-2) - unit
    into = (factor @ directions).unsqueeze(-3)
    return Chosen(log_prob, means + (into @ first.unsqueeze(-1)).squeeze(-1), spread + into @ bent @ into.mT)


def grid(n_directions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Points [P, d] and log-weights [P] of means over d standard normal numbers."""
    if n_directions in GRIDS:
        points, reach = GRIDS[n_directions]
        line = torch.linspace(-reach, reach, points, dtype=like.dtype, device=like.device)
        nodes = torch.cartesian_prod(*[line] * n_directions).reshape(-1, n_directions)
        return nodes, (-nodes.square().sum(-1) / 2).log_softmax(-1)
    drawn = torch.quasirandom.SobolEngine(n_directions, scramble=True, seed=0).draw(SOBOL, dtype=torch.float64)
    nodes = torch.special.ndtri(drawn.clamp(1e-12, 1 - 1e-12)).to(like)
    return nodes, torch.zeros_like(nodes[:, 0]).log_softmax(-1)
