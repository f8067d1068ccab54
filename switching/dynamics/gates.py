r"""The gate's probability with gaps between steps or with inputs.

A gap of d steps holds with probability $(1 - \rho)^d$. Given the posterior weights $r_t = P(z_t = 1 \mid x)$ and
$h_t = P(z_t = 0 \mid x)$, the M-step of $\rho = \sigma(\psi)$, $\psi$ linear in inputs, maximises
$\sum_t r_t \log \rho_t + h_t \log(1 - \rho_t)$ plus the log prior by Fisher scoring on $\psi$, whose score and
information at a step are

$$d\,\sigma\,(r\,e^{du}/\rho - h), \qquad (r + h)\,(d\,\sigma)^2\,e^{du}/\rho, \qquad u = \log(1 - \sigma).$$

**Under a q of the parameters** the expected log probabilities are bounded below by functions that are convex in
expected statistics and hold with equality at a point: one more latent variable is summed out. With
$u = E \log \rho$, $v = E \log(1-\rho)$, $s = \log(e^u + e^v)$ a gap of d steps is held with log weight $d v$ and
redrawn with

$$\log\big(e^{ds} - e^{dv}\big) \;\; (d \ge 1), \qquad \log\big(1 - (1 - e^u)^d\big) \;\; (d \le 1).$$

The first sums out the number of redraws in the gap, exactly if d is whole and by Jensen's inequality otherwise, since
its slope in $u - v$ grows; the second expands in powers of $\rho$, all of whose coefficients are positive. With
inputs, summing out a Polya-Gamma variable gives (Jaakkola & Jordan 2000, eq. 12; Polson, Scott & Windle 2013)

$$u, v = \pm E[\psi]/2 - \log\big(2 \cosh(\sqrt{E[\psi^2]}/2)\big).$$
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from ...inference.numerics.logs import log_sigmoid
from ..ascent import chunk_size, newton, shortened

MAX_STEPS = 50
SMALL = 1e-4  # squares below which `log_two_cosh` is a series


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x <= 0 without cancellation (Mächler 2012); its gradient is finite below 0."""
    near = x > -0.6931471805599453
    small, large = torch.where(near, x, -1.0), torch.where(near, -1.0, x)
    return torch.where(near, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))


# ---- at a point ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateLikelihood:
    """The expected log probability of the gates as a function of the logit's weights `[*r, P]`, and the prior's.

    `alpha log sigma(w_0) + beta log sigma(-w_0) - shrink w^2 / 2` is the log prior of intercept and other weights.
    Weights whose `free` is 0 keep their values; the others' is 1.
    """

    design: Float[Tensor, "#N P"]
    gaps: Tensor  # [N], or one number
    redrawn: Float[Tensor, "*r N"]
    held: Float[Tensor, "*r N"]
    alpha: Tensor
    beta: Tensor
    shrink: Float[Tensor, "C"]
    free: Float[Tensor, "*r P"]

    @cached_property
    def _chunks(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Design, gaps and posterior weights of chunks of steps."""
        lead, n = self.redrawn.shape[:-1], self.redrawn.shape[-1]
        size = chunk_size(n, lead.numel(), self.redrawn.device)
        by_step = self.design.expand(n, -1), self.gaps.expand(n)
        designs, gaps = (table.split(size) for table in by_step)
        redrawn, held = (table.split(size, -1) for table in (self.redrawn, self.held))
        return list(zip(designs, gaps, redrawn, held, strict=True))

    @property
    def _even(self) -> bool:
        """Whether all gaps are single steps."""
        return not self.gaps.ndim

    def value(self, weights: Float[Tensor, "*r P"]) -> Float[Tensor, "*r"]:
        """The objective."""
        first, others = weights[..., 0], weights[..., 1:]
        total = self.alpha * log_sigmoid(first) + self.beta * log_sigmoid(-first)
        total = total - (self.shrink * others**2).sum(-1) / 2
        for design, gaps, redrawn, held in self._chunks:
            logit = weights @ design.mT
            if self._even:
                total = total + (redrawn * logit + (redrawn + held) * log_sigmoid(-logit)).sum(-1)
            else:
                log_hold = gaps * log_sigmoid(-logit)
                of_redraws = torch.where(redrawn > 0, redrawn * log1mexp(log_hold), 0.0)
                total = total + (of_redraws + held * log_hold).sum(-1)
        return total

    def slopes(self, weights: Float[Tensor, "*r P"]) -> tuple[Float[Tensor, "*r P"], Float[Tensor, "*r P P"]]:
        """The gradient of the objective, and its expected curvature."""
        size = weights.shape[-1]
        gradient, flat = torch.zeros_like(weights), weights.new_zeros(*weights.shape[:-1], size * size)
        for design, gaps, redrawn, held in self._chunks:
            logit, total = weights @ design.mT, redrawn + held
            slope = torch.sigmoid(logit)
            if self._even:
                score, information = redrawn - total * slope, total * slope * (1 - slope)
            else:
                log_hold, slope = gaps * log_sigmoid(-logit), gaps * slope
                odds = torch.where(log_hold < 0, torch.exp(log_hold) / -torch.expm1(log_hold), 0.0)
                score, information = slope * (redrawn * odds - held), total * slope**2 * odds
            gradient = gradient + score @ design
            flat = flat + information @ (design.unsqueeze(-1) * design.unsqueeze(-2)).flatten(1)
        curvature = flat.unflatten(-1, (size, size))
        first = torch.sigmoid(weights[..., :1])
        gradient[..., :1] += self.alpha * (1 - first) - self.beta * first
        gradient[..., 1:] -= self.shrink * weights[..., 1:]
        bend = (self.alpha + self.beta).clamp(min=0) * first * (1 - first)
        ridge = torch.cat([bend, self.shrink.expand(*first.shape[:-1], -1)], -1)
        ridge = ridge + 1e-12 * (1 + curvature.diagonal(dim1=-2, dim2=-1))
        both = self.free.unsqueeze(-1) * self.free.unsqueeze(-2)
        return gradient * self.free, (curvature + torch.diag_embed(ridge)) * both + torch.diag_embed(1 - self.free)


def fisher_scoring(likelihood: GateLikelihood, weights: Float[Tensor, "*r P"]) -> Float[Tensor, "*r P"]:
    """The weights that maximise the likelihood."""

    def step_from(weights: Tensor) -> tuple[Tensor, Tensor]:
        gradient, curvature = likelihood.slopes(weights)
        step = shortened(torch.linalg.solve(curvature, gradient.unsqueeze(-1)).squeeze(-1))
        return step, (gradient * step).sum(-1)

    return newton(likelihood.value, step_from, weights, MAX_STEPS)


# ---- under a q -------------------------------------------------------------------------------------------------------


def logistic_bounds(
    statistics: Float[Tensor, "*r Q"], design: Float[Tensor, "*b P"]
) -> tuple[Float[Tensor, "*rb"], Float[Tensor, "*rb"]]:
    """Bounds on E log sigma(psi), E log sigma(-psi) for psi = design @ w, from the means of w and ww'."""
    size = design.shape[-1]
    first, second = statistics[..., :size], statistics[..., size:].unflatten(-1, (size, size))
    square = ((design.unsqueeze(-2) @ second).squeeze(-2) * design).sum(-1)
    return bounds_of_logit((design * first).sum(-1), square)


def bounds_of_logit(
    mean: Float[Tensor, "*b"], square: Float[Tensor, "*b"]
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Bounds on E log sigma(psi), E log sigma(-psi), from the means of psi and of its square."""
    cost = log_two_cosh(square)
    return mean / 2 - cost, -mean / 2 - cost


def log_two_cosh(square: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    r"""$\log 2 \cosh(\xi / 2)$ as a function of $\xi^2$; by a series near 0, where $\xi$ has no derivative."""
    root = square.clamp_min(SMALL).sqrt()
    near = math.log(2) + square / 8 - square.square() / 192
    return torch.where(square < SMALL, near, root / 2 + softplus(-root))


def log_redraw_in_gap(u: Tensor, v: Tensor, gap: Tensor) -> Tensor:
    """Bound on the expected log probability of a redraw in a gap; 0 for a gap of 0, in which no redraw is possible."""
    total, long = torch.logaddexp(u, v), torch.where(gap >= 1, gap, 1.0)
    several = long * total + log1mexp(long * (v - total))
    short = torch.where((gap > 0) & (gap < 1), gap, 0.5)
    part = log1mexp(short * log1mexp(u.clamp_max(-torch.finfo(u.dtype).eps)))
    return torch.where(gap >= 1, several, torch.where(gap > 0, part, 0.0))
