"""Switching linear models by enumeration: every path of regimes, and the dense normal distribution that each gives.

In the recurrent kind regimes depend on the latents, so that no path leaves a normal distribution; there, with one
latent, `on_grid` sums over a fine grid of its values instead, and takes as many steps as one likes.
"""

from dataclasses import dataclass
from itertools import product

import torch
from samplehold.switching.slds.joint import Regimes, side_by_side
from torch import Tensor


@dataclass(frozen=True)
class Paths:
    """All paths of one sequence, with what x says of each, in float64."""

    path: Tensor  # [P, T]
    log_weight: Tensor  # [P], log p(path, x)
    mean: Tensor  # [P, T, L] of the latents given path and x
    covariance: Tensor  # [P, T, L, L]
    n_regimes: int

    @property
    def log_normalizer(self) -> Tensor:
        return self.log_weight.logsumexp(0)

    @property
    def weight(self) -> Tensor:
        return (self.log_weight - self.log_normalizer).exp()

    @property
    def state(self) -> Tensor:
        """P(z_t | x), [T, K]."""
        return torch.einsum("p,ptk->tk", self.weight, self._one_hot())

    @property
    def pairs(self) -> Tensor:
        """P(z_t, z_t+1 | x), [T-1, K, K]."""
        chosen = self._one_hot()
        return torch.einsum("p,ptj,ptk->tjk", self.weight, chosen[:, :-1], chosen[:, 1:])

    def moments(self) -> tuple[Tensor, Tensor]:
        """E[s_t | x] [T, L] and Cov[s_t | x] [T, L, L]."""
        mean = torch.einsum("p,ptl->tl", self.weight, self.mean)
        gap = self.mean - mean
        spread = self.covariance + gap.unsqueeze(-1) * gap.unsqueeze(-2)
        return mean, torch.einsum("p,ptlm->tlm", self.weight, spread)

    def best(self) -> tuple[Tensor, Tensor]:
        """The path of most weight, [T], and log p(path, x)."""
        top = self.log_weight.argmax()
        return self.path[top], self.log_weight[top]

    def _one_hot(self) -> Tensor:
        return torch.nn.functional.one_hot(self.path, self.n_regimes).double()


def enumerate_paths(regimes: Regimes, x: Tensor) -> Paths:
    """Of one sequence [T, F], NaN missing; its first steps alone give what is known after these."""
    assert regimes.recurrence is None
    k, n_steps = regimes.n_regimes, len(x)
    path = torch.tensor(list(product(range(k), repeat=n_steps)))
    log_prior = regimes.initial_probs.double().log()[path[:, 0]]
    for t in range(1, n_steps):
        log_prior = log_prior + regimes.transition_probs.double().log()[path[:, t - 1], path[:, t]]
    return Paths(path, *_condition(regimes, x.double(), path, log_prior), k)


def _prior(regimes: Regimes, path: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [P, T L] and covariance [P, T L, T L] of the latents, given each path."""
    means = [regimes.initial_mean.double()[path[:, 0]].unsqueeze(-1)]
    rows = [[regimes.initial_covariance.double()[path[:, 0]]]]
    for z in path[:, 1:].mT:
        move = regimes.transition.double()[z]
        means.append(move @ means[-1] + regimes.transition_offset.double()[z].unsqueeze(-1))
        crosses = [move @ block for block in rows[-1]]
        rows.append([*crosses, crosses[-1] @ move.mT + regimes.state_noise.double()[z]])
    steps = range(len(rows))
    blocks = [torch.cat([rows[i][j] if j <= i else rows[j][i].mT for j in steps], -1) for i in steps]
    return torch.cat(means, -2).squeeze(-1), torch.cat(blocks, -2)


def _condition(regimes: Regimes, x: Tensor, path: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, covariance = _prior(regimes, path)
    n_steps, n = len(x), regimes.n_latent
    emission = torch.stack([torch.block_diag(*regimes.emission.double()[z]) for z in path])
    noise = torch.stack([torch.block_diag(*regimes.observation_noise.double()[z]) for z in path])
    seen = ~x.flatten().isnan()
    emission, noise = emission[:, seen], noise[:, seen][:, :, seen]
    offset = regimes.emission_offset.double()[path].flatten(1)[:, seen]
    gap = x.flatten()[seen] - offset - (emission @ mean.unsqueeze(-1)).squeeze(-1)
    spread = emission @ covariance @ emission.mT + noise
    if bool(seen.any()):
        log_prior = log_prior + torch.distributions.MultivariateNormal(torch.zeros_like(gap), spread).log_prob(gap)
    gain = torch.linalg.solve(spread, emission @ covariance).mT
    mean = mean + (gain @ gap.unsqueeze(-1)).squeeze(-1)
    covariance = (covariance - gain @ emission @ covariance).unflatten(-2, (n_steps, n)).unflatten(-1, (n_steps, n))
    return log_prior, mean.unflatten(-1, (n_steps, n)), torch.einsum("patbt->ptab", covariance.permute(0, 2, 1, 4, 3))


@dataclass(frozen=True)
class Grid:
    """What a sequence of one latent says, each integral a sum over a grid, in float64."""

    log_normalizer: Tensor  # []
    log_increment: Tensor  # [T]
    filtered: Tensor  # [T, K]
    state: Tensor  # [T, K]
    filtered_mean: Tensor  # [T]
    mean: Tensor  # [T] of s_t given x


def on_grid(regimes: Regimes, x: Tensor, reach: float = 30.0, points: int = 2001) -> Grid:
    """Of one sequence [T, F] with nothing missing, with noise everywhere, of either kind; latents within `reach` of 0.

    Sums over equal steps are exact to rounding where densities are smooth and vanish at both ends.
    """
    assert regimes.n_latent == 1
    k, values = regimes.n_regimes, torch.linspace(-reach, reach, points, dtype=torch.float64)
    step = values[1] - values[0]

    def density(at: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
        return torch.distributions.Normal(mean, covariance.sqrt()).log_prob(at).exp() * step

    first = density(values, regimes.initial_mean, regimes.initial_covariance[:, 0])  # [K, V]
    moved = regimes.transition[:, 0] * values + regimes.transition_offset  # [K, V]
    moves = torch.stack([density(values, moved[j, :, None], regimes.state_noise[j, 0]) for j in range(k)])
    chosen = regimes.log_transition(values.unsqueeze(-1)).exp().expand(points, k, k)  # [V, old, new]
    shown = values[:, None, None] * regimes.emission.squeeze(-1) + regimes.emission_offset  # [V, K, F]
    seen = torch.distributions.MultivariateNormal(shown, regimes.observation_noise).log_prob(x[:, None, None]).exp()
    before = [(regimes.initial_probs[:, None] * first).mT * seen[0]]
    increments = [before[0].sum().log()]
    before[0] = before[0] / before[0].sum()
    for t in range(1, len(x)):
        into = torch.einsum("vj,vjk->vk", before[-1], chosen)
        weight = torch.einsum("vk,kvw->wk", into, moves) * seen[t]
        increments.append(weight.sum().log())
        before.append(weight / weight.sum())
    after = [torch.ones_like(before[0])]
    for t in reversed(range(1, len(x))):
        weight = torch.einsum("vjk,kvw,wk->vj", chosen, moves, seen[t] * after[-1])
        after.append(weight / weight.max())
    joint = torch.stack([a * b for a, b in zip(before, reversed(after), strict=True)])
    joint = joint / joint.sum((1, 2), keepdim=True)
    filtered = torch.stack(before)
    return Grid(
        log_normalizer=torch.stack(increments).sum(),
        log_increment=torch.stack(increments),
        filtered=filtered.sum(1),
        state=joint.sum(1),
        filtered_mean=filtered.sum(2) @ values,
        mean=joint.sum(2) @ values,
    )


def random_regimes(seed: int, regimes=2, latent=2, features=1, rank=None, recurrent=False) -> Regimes:
    """A model in float64; `rank` of the latents' own noise."""
    generator, k, n = torch.Generator().manual_seed(seed), regimes, latent
    rank = n if rank is None else rank

    def table(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def covariance(size: int, n_factors: int) -> Tensor:
        factor = table(k, size, n_factors)
        return factor @ factor.mT

    more = {"recurrence": 2 * table(k - 1, n), "recurrence_offset": table(k, k - 1)} if recurrent else {}
    noise = covariance(features, features) + 0.1 * torch.eye(features, dtype=torch.float64)
    return Regimes(
        initial_probs=table(k).softmax(-1),
        transition_probs=(table(k, k) + 2 * torch.eye(k)).softmax(-1),
        initial_mean=table(k, n),
        initial_covariance=covariance(n, n) + 0.1 * torch.eye(n, dtype=torch.float64),
        transition=0.7 * table(k, n, n) / n**0.5,
        transition_offset=table(k, n),
        state_noise=covariance(n, rank) + (0.1 if rank == n else 0.0) * torch.eye(n, dtype=torch.float64),
        emission=table(k, features, n),
        emission_offset=table(k, features),
        observation_noise=noise,
        **more,
    )


def tables(regimes: Regimes) -> dict[str, Tensor]:
    """The parameters that there are, by name."""
    return {name: table for name, table in vars(regimes).items() if table is not None}


def two_chains() -> Regimes:
    """Ghahramani & Hinton 2000, section 4.1."""
    moves = torch.tensor([0.99, 0.9], dtype=torch.float64).view(2, 1, 1)
    noises = torch.tensor([1.0, 10.0], dtype=torch.float64).view(2, 1, 1)
    none, one = torch.zeros(2, 1, dtype=torch.float64), torch.ones(2, 1, 1, dtype=torch.float64)
    stay = torch.tensor([[0.95, 0.05], [0.05, 0.95]], dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    alone = Regimes(half, stay, none, noises, moves, none, noises, one, none, 0.1 * one)
    return Regimes(**side_by_side(vars(alone)))
