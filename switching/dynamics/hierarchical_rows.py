r"""Rows of probabilities under a common base whose concentrations are learned, as one exponential family.

K rows of moves $\pi_j$ and the row $\pi_0$ of the first state have

$$\beta \sim \text{Dir}(\gamma/K, \dots), \quad \pi_j \sim \text{Dir}(c_j), \quad
c_j = \alpha \beta + \kappa e_j, \quad c_0 = \alpha \beta, \quad s = \alpha + \kappa, \quad \rho = \kappa / s.$$

Their density times the Gamma densities of $\gamma$ and s and the Beta density of $\rho$ is $h \exp \langle \eta_0, t
\rangle$, where t has the logarithms of the rows, $\log \gamma, \gamma, \log s, s, \log \rho, \log (1 - \rho)$, and h is
the density of $\beta$ and the rows. So paths add their counts n of moves to $\eta$. Given $\beta, \gamma, s, \rho$ the
rows are Dirichlet with $c + n$, and integrate out. The rest is at its mode in free coordinates:

$$A(\eta) = \max_\phi \sum_j \log \frac{B(c_j + n_j)}{B(c_j)} - \gamma\, KL(1/K \| \beta)
+ \langle \eta_h, t_h \rangle, \qquad \nabla A = E[t].$$

The second term is the density of $\beta$ in free coordinates relative to its peak. The height of this peak grows as
$\gamma^{(K-1)/2}$, so with it the joint mode would have a $\gamma$ of about K/2 and a nearly uniform base, whatever the
data.

A is a maximum of convex functions, so it is convex, and message passing with it never lowers its bound: that of the
evidence at the best $\phi$, times the density of $\phi$ relative to its highest under the prior. The coordinates $\phi
= (\log \alpha\beta, \log \kappa, \log \gamma)$ differ from $(\log (\beta_k / \beta_K), \log s, \text{logit} \rho, \log
\gamma)$ by a map of volume 1, and the terms of $c$ are sums over its columns, so steps of Newton's method are cheap.

References: Fox, Sudderth, Jordan & Willsky 2011 for the model; Minka 2000, *Estimating a Dirichlet distribution*;
Johnson & Willsky 2014, *Stochastic variational inference for Bayesian time series models*, for a point $\beta$.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...inference.families import Dirichlet, VectorFamily
from ...inference.numerics.randomness import generator_of
from ..newton import capped_inverse

N_HYPER = 6  # numbers of eta behind the counts
STEPS, HALVINGS = 100, 30  # of Newton's method
GAIN = 1e-14  # relative to the height: a smaller promised gain ends it
FARTHEST = 3.0  # longest step along an axis of the curvature, in logarithms
LEAST = 1e-30  # concentration that stands for smaller ones, which float32 does not have


@dataclass(frozen=True)
class HierarchicalPoint:
    """Values of a hierarchy of rows; all have leading axes `*r`."""

    base_concentration: Float[Tensor, "*r"]
    row_concentration: Float[Tensor, "*r"]
    stickiness: Float[Tensor, "*r"]
    base_probs: Float[Tensor, "*r K"]
    initial_probs: Float[Tensor, "*r K"]
    transition_probs: Float[Tensor, "*r K K"]


def concentrations(
    base_probs: Float[Tensor, "*r K"], row_concentration: Float[Tensor, "*r"], stickiness: Float[Tensor, "*r"]
) -> tuple[Float[Tensor, "*r K K"], Float[Tensor, "*r K"]]:
    """The Dirichlet concentrations of the rows of moves, and of the row of the first state."""
    total, share = row_concentration[..., None], stickiness[..., None]
    first = total * (1 - share) * base_probs
    stay = (total * share).unsqueeze(-1) * torch.eye(base_probs.shape[-1]).to(base_probs)
    return (first.unsqueeze(-2) + stay).clamp_min(LEAST), first.clamp_min(LEAST)


class _Hyper(NamedTuple):
    """A point of phi: x = alpha beta, kappa, gamma, with leading axes."""

    x: Tensor  # [*r, K]
    kappa: Tensor
    gamma: Tensor

    @property
    def alpha(self) -> Tensor:
        return self.x.sum(-1)

    @property
    def rows(self) -> Tensor:
        """c, [*r, K + 1, K]; the last row is that of the first state."""
        stay = self.kappa[..., None, None] * _staying(self.x)
        return (self.x.unsqueeze(-2) + stay).clamp_min(LEAST)


def _staying(x: Tensor) -> Tensor:
    """[K + 1, K], 1 where a move stays."""
    k = x.shape[-1]
    return torch.eye(k + 1, k, dtype=x.dtype, device=x.device)


class HierarchicalRows(VectorFamily[HierarchicalPoint]):
    """The rows given the paths, with base and concentrations at their mode: see the module's equations.

    Natural parameters `[*r, (K + 1) K + 6]`: counts of moves, then of first states, then the shape and minus the rate
    of gamma, those of s, and the two concentrations of rho.

    Arguments:
        known: values at which base and concentrations are held; None: they are at their mode.
    """

    n_states: int
    known: HierarchicalPoint | None

    def __init__(self, n_states: int, known: HierarchicalPoint | None = None) -> None:
        self.n_states, self.known = n_states, known

    def natural(
        self, base: Float[Tensor, "2"], row: Float[Tensor, "2"], stickiness: Float[Tensor, "2"]
    ) -> Float[Tensor, "P"]:
        """Those of the prior, from shapes and rates, and the concentrations of rho."""
        sign = torch.tensor([1.0, -1.0]).to(base)
        counts = base.new_zeros(self.n_states * (self.n_states + 1))
        return torch.cat([counts, base * sign, row * sign, stickiness])

    def counts(self, eta: Float[Tensor, "*r P"]) -> Float[Tensor, "*r J K"]:
        """The counts of moves, and in the last row of first states."""
        return eta[..., :-N_HYPER].unflatten(-1, (self.n_states + 1, self.n_states))

    def check(self, eta: Tensor) -> None:
        if not bool(eta.isfinite().all()) or bool((self.counts(eta) < 0).any()):
            raise ValueError(f"counts: got {float(self.counts(eta).min()):g}, expected numbers that are not negative.")
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0]).to(eta)
        if not bool((eta[..., -N_HYPER:] * signs > 0).all()):
            raise ValueError("concentrations: their priors have shapes or rates that are not positive.")

    def log_normalizer(self, eta: Float[Tensor, "*r P"]) -> Float[Tensor, "*r"]:
        wide = eta.double()
        return self._height(self._best(wide), wide).to(eta)

    def mean(self, eta: Float[Tensor, "*r P"]) -> Float[Tensor, "*r P"]:
        wide = eta.double()
        return self._mean(self._best(wide), wide).to(eta)

    def kl(self, eta: Float[Tensor, "*#r P"], eta0: Float[Tensor, "*#r P"]) -> Float[Tensor, "*out"]:
        return self.relative(eta, eta0)[0]

    def relative(self, eta: Float[Tensor, "*r P"], eta0: Float[Tensor, "*#r P"]) -> tuple[Tensor, Tensor]:
        wide, wide0 = eta.double(), eta0.double()
        best = self._best(wide)
        mean = self._mean(best, wide)
        gap = self._height(best, wide) - self._height(self._best(wide0), wide0)
        return (((wide - wide0) * mean).sum(-1) - gap).to(eta), mean.to(eta)

    def statistics(self, point: HierarchicalPoint) -> Float[Tensor, "*r P"]:
        rows = torch.cat([point.transition_probs, point.initial_probs.unsqueeze(-2)], -2)
        log_rows = rows.clamp_min(LEAST).log().flatten(-2)
        return torch.cat([log_rows, _of_hyper(point)], -1)

    def sample(self, eta: Float[Tensor, "*r P"], n: int, generator: Generator | None = None) -> HierarchicalPoint:
        best = self._best(eta.double())
        rows = Dirichlet().sample(best.rows + self.counts(eta.double()), n, generator_of(generator, eta.device))
        return self._point(best, rows, eta)

    def expected(self, eta: Float[Tensor, "*r P"]) -> HierarchicalPoint:
        best = self._best(eta.double())
        return self._point(best, Dirichlet().expected(best.rows + self.counts(eta.double())), eta)

    def mode(self, eta: Float[Tensor, "*r P"]) -> HierarchicalPoint:
        raise ValueError("concentration: got values below 1, so the rows have no mode; take the mean instead.")

    def _point(self, hyper: _Hyper, rows: Tensor, like: Tensor) -> HierarchicalPoint:
        if self.known is None:
            total = hyper.alpha + hyper.kappa
            some = hyper.gamma, total, hyper.kappa / total, hyper.x / hyper.alpha.unsqueeze(-1)
        else:
            known = self.known
            some = known.base_concentration, known.row_concentration, known.stickiness, known.base_probs
        lead, k = rows.shape[:-2], self.n_states
        sized = zip(some, (lead, lead, lead, (*lead, k)), strict=True)
        tables = *(table.expand(shape) for table, shape in sized), rows[..., -1, :], rows[..., :-1, :]
        return HierarchicalPoint(*(table.to(like) for table in tables))

    # ---- the mode of base and concentrations -----------------------------------------------------------------------

    def _height(self, hyper: _Hyper, eta: Tensor) -> Tensor:
        """The maximised function, with each density of base and concentrations if they are free: [*r]."""
        n, c, rows = self.counts(eta), hyper.rows, Dirichlet()
        gain = (rows.log_normalizer(c + n) - rows.log_normalizer(c)).sum(-1)
        if self.known is not None:
            return gain
        return gain + _log_base(hyper) + (eta[..., -N_HYPER:] * _of_phi(hyper)).sum(-1)

    def _mean(self, hyper: _Hyper, eta: Tensor) -> Tensor:
        log_rows = Dirichlet().mean(hyper.rows + self.counts(eta)).flatten(-2)
        return torch.cat([log_rows, _of_phi(hyper).expand(*log_rows.shape[:-1], N_HYPER)], -1)

    @torch.no_grad()
    def _best(self, eta: Tensor) -> _Hyper:
        if self.known is not None:
            p = self.known
            total, share = p.row_concentration.double(), p.stickiness.double()
            x = (total * (1 - share)).unsqueeze(-1) * p.base_probs.double()
            return _Hyper(x.to(eta), (total * share).to(eta), p.base_concentration.to(eta))
        flat = eta.reshape(-1, eta.shape[-1])
        phi = self._climbed(self._begin(flat), flat)
        x, kappa, gamma = phi.exp().split([self.n_states, 1, 1], -1)
        lead = eta.shape[:-1]
        return _Hyper(x.reshape(*lead, -1), kappa.reshape(lead), gamma.reshape(lead))

    def _begin(self, eta: Float[Tensor, "R P"]) -> Float[Tensor, "R Q"]:
        """phi near the means of the prior, with the base at a rough number of draws from it."""
        a, b, row, rate, stay, move = eta[:, -N_HYPER:].unbind(-1)
        gamma, total, share = a / -b, row / -rate, stay / (stay + move)
        n = self.counts(eta)
        tables = (n * (1 - _staying(n))).clamp_max(1.0).sum(-2) + gamma.unsqueeze(-1) / self.n_states
        x = (total * (1 - share)).unsqueeze(-1) * tables / tables.sum(-1, keepdim=True)
        return torch.cat([x, (total * share).unsqueeze(-1), gamma.unsqueeze(-1)], -1).log()

    def _climbed(self, phi: Tensor, eta: Tensor) -> Tensor:
        """The end of Newton's method from phi, [R, Q]."""
        height, rests = self._at(phi, eta), torch.zeros_like(phi[:, 0], dtype=torch.bool)
        for _ in range(STEPS):
            slope, curvature = self._slopes(phi, eta)
            step = (capped_inverse(curvature, slope, FARTHEST) @ slope.unsqueeze(-1)).squeeze(-1)
            going = ~rests & ((step * slope).sum(-1) > GAIN * (1 + height.abs()))
            rests = ~going
            for _ in range(HALVINGS):
                if not bool(going.any()):
                    break
                tried = self._at(phi + step, eta)
                risen = going & (tried > height)
                phi = torch.where(risen.unsqueeze(-1), phi + step, phi)
                height, going, step = torch.where(risen, tried, height), going & ~risen, step / 2
            rests = rests | going  # no part of the step rises: rounding hides the rest
            if bool(rests.all()):
                break
        return phi

    def _at(self, phi: Tensor, eta: Tensor) -> Tensor:
        x, kappa, gamma = phi.exp().split([self.n_states, 1, 1], -1)
        return self._height(_Hyper(x, kappa.squeeze(-1), gamma.squeeze(-1)), eta).nan_to_num(-torch.inf)

    def _slopes(self, phi: Float[Tensor, "R Q"], eta: Tensor) -> tuple[Float[Tensor, "R Q"], Float[Tensor, "R Q Q"]]:
        """Gradient and Hessian of the maximised function in phi."""
        k = self.n_states
        x, kappa, gamma = phi.exp().split([k, 1, 1], -1)
        kappa, gamma, alpha = kappa.squeeze(-1), gamma.squeeze(-1), x.sum(-1)
        a, b, row, rate, stay, move = eta[:, -N_HYPER:].unbind(-1)
        # in u = (x, kappa) and gamma; log x, log kappa and log gamma alone have constant slopes
        of_total, of_alpha, of_entries = self._derivatives(_Hyper(x, kappa, gamma), self.counts(eta))
        total, u = alpha + kappa, torch.cat([x, kappa.unsqueeze(-1)], -1)
        by_total = of_total[0] + (row - stay - move) / total + rate
        by_alpha = of_alpha[0] + (move - gamma) / alpha
        slope_u = of_entries[0] + by_total.unsqueeze(-1)
        slope_u[:, :k] += by_alpha.unsqueeze(-1)
        curve = of_entries[1] + (of_total[1] - (row - stay - move) / total.square())[:, None, None]
        curve[:, :k, :k] += (of_alpha[1] - (move - gamma) / alpha.square())[:, None, None]
        curve = curve * u.unsqueeze(-1) * u.unsqueeze(-2) + torch.diag_embed(slope_u * u)
        by_gamma = gamma * (phi[:, :k].mean(-1) - alpha.log() + math.log(k) + b)
        mixed = gamma.unsqueeze(-1) * (1 / k - x / alpha.unsqueeze(-1))
        side = torch.cat([mixed, torch.zeros_like(mixed[:, :1])], -1).unsqueeze(-1)
        ends = torch.cat([(gamma / k).unsqueeze(-1).expand(-1, k), stay.unsqueeze(-1)], -1)
        slope = torch.cat([slope_u * u + ends, (by_gamma + a).unsqueeze(-1)], -1)
        return slope, torch.cat([torch.cat([curve, side], -1), torch.cat([side.mT, by_gamma[:, None, None]], -1)], -2)

    def _derivatives(self, hyper: _Hyper, n: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """First and second derivatives of the rows' normalisers by the total, by alpha, and by (x, kappa)."""
        c, stay, total, k = hyper.rows, _staying(hyper.x), hyper.alpha + hyper.kappa, self.n_states
        moved, begun = n[:, :-1].sum(-1), n[:, -1].sum(-1)

        def by(i: int) -> tuple[Tensor, Tensor, Tensor]:
            of_total = k * torch.polygamma(i, total) - torch.polygamma(i, total.unsqueeze(-1) + moved).sum(-1)
            first = torch.polygamma(i, hyper.alpha) - torch.polygamma(i, hyper.alpha + begun)
            return of_total, first, torch.polygamma(i, c + n) - torch.polygamma(i, c)

        totals, alphas, entries = (list(parts) for parts in zip(by(0), by(1), strict=True))
        kept = (entries[1] * stay).sum(-2)
        slope = torch.cat([entries[0].sum(-2), (entries[0] * stay).sum((-2, -1)).unsqueeze(-1)], -1)
        column = kept.unsqueeze(-1)
        own = kept.sum(-1)[:, None, None]
        curve = torch.cat([torch.diag_embed(entries[1].sum(-2)), column], -1)
        return totals, alphas, [slope, torch.cat([curve, torch.cat([column.mT, own], -1)], -2)]


def _log_base(hyper: _Hyper) -> Tensor:
    """log p(beta | gamma) in free coordinates of beta, relative to its peak: minus gamma KL(1/K || beta)."""
    return hyper.gamma * (hyper.x.log().mean(-1) - hyper.alpha.log() + math.log(hyper.x.shape[-1]))


def _of_phi(hyper: _Hyper) -> Float[Tensor, "*r 6"]:
    """log gamma, gamma, log s, s, log rho, log(1 - rho)."""
    total = hyper.alpha + hyper.kappa
    log_total = total.log()
    parts = (
        hyper.gamma.log(),
        hyper.gamma,
        log_total,
        total,
        hyper.kappa.log() - log_total,
        hyper.alpha.log() - log_total,
    )
    return torch.stack(torch.broadcast_tensors(*parts), -1)


def _of_hyper(point: HierarchicalPoint) -> Float[Tensor, "*r 6"]:
    gamma, total, share = point.base_concentration, point.row_concentration, point.stickiness
    return torch.stack([gamma.log(), gamma, total.log(), total, share.log(), torch.log1p(-share)], -1)
