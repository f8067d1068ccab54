r"""Fisher scoring of generalised linear models of all states, features and restarts at once.

The predictors of state k at step t are $\eta_{tkj} = \theta_{kj}^\top d_t$ for outputs j, where some entries of
$\theta_{kj}$ may be common to all states. Features are independent blocks of one output, and a categorical symbol of C
categories is one block of C - 1 outputs. With weights w, slopes $s = \partial \ell / \partial \eta$ and expected
curvatures h of the log-likelihood of a step,

$$\nabla_{kj} = \sum_t w_{tk}\, s_{tkj}\, d_t, \qquad H_{kj,ki} = \sum_t w_{tk}\, h_{tkji}\, d_t d_t^\top,$$

plus those of the prior. Each step solves $H\,\delta = \nabla$ and is halved until the objective rises. Sums are over
chunks of steps whose tables fit in the caches of a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..ascent import chunk_size, inside, newton, share_left, shortened

MAX_STEPS = 25


class Curve(NamedTuple):
    """A function of predictors `[*n, J, N]`: what computes its value `[*n, N]`, and its slopes `[*n, J, N]` with its
    expected negative curvatures `[*n, J, J, N]`."""

    value: Callable[[], Tensor]
    slopes: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Scoring:
    """The expected log-likelihood of B blocks as a function of their coefficients, and the prior's.

    Attributes:
        likelihood: from observations, the function of predictors `[*r, B, K, J, N]` whose values `[*r, B, K, N]` are
            the log-likelihoods of each state and step.
        x: the observations.
        prior: of the predictors at inputs 0, `[*r, B, K, 1]` from `[*r, B, K, J, 1]`.
        design: d_t, whose first column is 1 and whose last `n_shared` have common coefficients.
        weights: `[*r, B, K, N]`, 0 where an output is missing.
        ridge: the precision of the normal prior of each coefficient; 0 for the first column, whose prior is `prior`.
        n_outputs: J.
        bounded: whether predictors are logarithms or log odds, which may not grow without end.
    """

    likelihood: Callable[[Tensor], Callable[[Tensor], Curve]]
    x: Float[Tensor, "N F"]
    prior: Callable[[Tensor], Curve]
    design: Float[Tensor, "N Q"]
    weights: Float[Tensor, "*r B K N"]
    ridge: Float[Tensor, "B P"]
    n_outputs: int
    n_shared: int
    bounded: bool

    @cached_property
    def places(self) -> Float[Tensor, "K JQ P"]:
        """1 where an entry of the coefficients of a state is an entry of the whole vector."""
        k, j, q = self.weights.shape[-2], self.n_outputs, self.design.shape[-1]
        alone = q - self.n_shared
        order = torch.arange(k * j * alone + j * self.n_shared, device=self.design.device)
        number, common = order.split([k * j * alone, j * self.n_shared])
        common = common.reshape(1, j, self.n_shared).expand(k, -1, -1)
        index = torch.cat([number.reshape(k, j, alone), common], -1)
        return torch.nn.functional.one_hot(index.flatten(1), len(order)).to(self.design)

    def local(self, flat: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r B K J Q"]:
        """The coefficients of each state."""
        sizes = self.weights.shape[-2], self.n_outputs, self.design.shape[-1]
        return (flat @ self.places.flatten(0, 1).mT).unflatten(-1, sizes)

    def value(self, flat: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r B"]:
        """The objective of each block."""
        local = self.local(flat)
        total = self.prior(local[..., :1]).value().sum((-2, -1)) - (self.ridge * flat.square()).sum(-1) / 2
        for curve, design, _, weights in self._chunks:
            total = total + (weights * curve(local @ design.mT).value()).sum((-2, -1))
        return inside(total, flat) if self.bounded else total

    @cached_property
    def _chunks(self) -> list[tuple[Callable[[Tensor], Curve], Tensor, Tensor, Tensor]]:
        """Of chunks of steps: the likelihood, the design, the products of its columns, and the weights."""
        size = chunk_size(len(self.x), self.weights[..., 0].numel() * self.n_outputs**2, self.x.device)
        chunks = zip(self.x.split(size), self.design.split(size), self.weights.split(size, -1), strict=True)
        return [(self.likelihood(x), d, (d.unsqueeze(-1) * d.unsqueeze(-2)).flatten(1), w) for x, d, w in chunks]

    def step(self, flat: Float[Tensor, "*r B P"]) -> tuple[Float[Tensor, "*r B P"], Float[Tensor, "*r B"]]:
        """The scoring step, and the gain that its slope promises."""
        local, places = self.local(flat), self.places
        q = self.design.shape[-1]
        gradient, hessian = 0 * local, local.new_zeros(())
        for curve, design, squares, weights in self._chunks:
            slope, curvature = curve(local @ design.mT).slopes()
            gradient = gradient + (weights.unsqueeze(-2) * slope) @ design
            hessian = hessian + (weights[..., None, None, :] * curvature) @ squares
        slope, curvature = self.prior(local[..., :1]).slopes()
        gradient[..., :1] += slope
        hessian[..., :1] += curvature
        hessian = hessian.unflatten(-1, (q, q)).transpose(-3, -2).flatten(-2).flatten(-3, -2)  # [*r, B, K, JQ, JQ]
        gradient = gradient.flatten(-3) @ places.flatten(0, 1) - self.ridge * flat
        whole = (places.mT @ hessian @ places).sum(-3)
        diagonal = whole.diagonal(dim1=-2, dim2=-1)
        diagonal += self.ridge + 1e-12 * (diagonal + 1e-3)
        step = torch.linalg.solve_ex(whole, gradient.unsqueeze(-1))[0].squeeze(-1).nan_to_num(0.0)
        if self.n_shared:
            step = shortened(step)
        else:  # states do not depend on each other, so none shortens the steps of others
            step = shortened(step.unflatten(-1, (self.weights.shape[-2], -1))).flatten(-2)
        return step, (step * gradient).sum(-1)

    def climbed(self, flat: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r B P"]:
        """The coefficients at the maximum, or near it after many steps; no step lowers the objective.

        If a step changes differences of predictors by at most 1, curvatures change along it at most by the factor e, so
        that it rises (see `dynamics.rows`). If the next M-step continues, such a step is enough, and needs no value.
        """
        if share_left.get():
            step = self.step(flat)[0]
            change = (self.local(step).abs() * self._reach).sum(-1).amax() * min(2, self.n_outputs)
            if bool(change <= 1) and not (self.bounded and bool(inside(flat[..., 0], flat + step).isinf().any())):
                return flat + step
        return newton(self.value, self.step, flat, MAX_STEPS)

    @cached_property
    def _reach(self) -> Float[Tensor, "Q"]:
        """The largest size of each column of the design."""
        return self.design.abs().amax(0)
