r"""Fisher scoring of generalised linear models of all states, features and restarts at once.

The predictors of state k at step t are $\eta_{tkj} = \theta_{kj}^\top d_t$ for outputs j, where some entries of
$\theta_{kj}$ may be common to all states. Features are independent blocks of one output, and a categorical symbol of C
categories is one block of C - 1 outputs. With weights w, slopes $s = \partial \ell / \partial \eta$ and expected
curvatures h of the log-likelihood of a step,

$$\nabla_{kj} = \sum_t w_{tk}\, s_{tkj}\, d_t, \qquad H_{kj,ki} = \sum_t w_{tk}\, h_{tkji}\, d_t d_t^\top,$$

plus those of the prior. Each step solves $H\,\delta = \nabla$ and is halved until the objective rises. Sums are over
chunks of steps whose tables fit in the caches of a CPU.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..ascent import chunk_size, inside, newton, shortened

MAX_STEPS = 25


class Curve(NamedTuple):
    """A function of predictors: its value `[*n]`, and what computes its slopes `[*n, J]` and its expected negative
    curvatures `[*n, J, J]`."""

    value: Float[Tensor, "*n"]
    slopes: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Scoring:
    """The expected log-likelihood of B blocks as a function of their coefficients, and the prior's.

    Attributes:
        likelihood: from observations, the function of predictors `[*r, B, N, K, J]` whose values `[*r, B, N, K]` are
            the log-likelihoods of each step and state.
        x: the observations.
        prior: of the predictors at inputs 0, `[*r, B, K]` from `[*r, B, K, J]`.
        design: d_t, whose first column is 1 and whose last `n_shared` have common coefficients.
        weights: `[*r, B, N, K]`, 0 where an output is missing.
        ridge: the precision of the normal prior of each coefficient; 0 for the first column, whose prior is `prior`.
        n_outputs: J.
        bounded: whether predictors are logarithms or log odds, which may not grow without end.
    """

    likelihood: Callable[[Tensor], Callable[[Tensor], Curve]]
    x: Float[Tensor, "N F"]
    prior: Callable[[Tensor], Curve]
    design: Float[Tensor, "N Q"]
    weights: Float[Tensor, "*r B N K"]
    ridge: Float[Tensor, "B P"]
    n_outputs: int
    n_shared: int
    bounded: bool

    @cached_property
    def places(self) -> Float[Tensor, "K J Q P"]:
        """1 where an entry of the coefficients of a state is an entry of the whole vector."""
        k, j, q = self.weights.shape[-1], self.n_outputs, self.design.shape[-1]
        alone = q - self.n_shared
        order = torch.arange(k * j * alone + j * self.n_shared, device=self.design.device)
        number, common = order.split([k * j * alone, j * self.n_shared])
        common = common.reshape(1, j, self.n_shared).expand(k, -1, -1)
        index = torch.cat([number.reshape(k, j, alone), common], -1)
        return torch.nn.functional.one_hot(index, k * j * alone + j * self.n_shared).to(self.design)

    def local(self, flat: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r B K J Q"]:
        """The coefficients of each state."""
        return torch.einsum("kjqp,...bp->...bkjq", self.places, flat)

    def value(self, flat: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r B"]:
        """The objective of each block."""
        local = self.local(flat)
        total = self.prior(local[..., 0]).value.sum(-1) - (self.ridge * flat.square()).sum(-1) / 2
        for x, design, weights in self._chunks:
            each = self.likelihood(x)(_predictors(local, design)).value
            total = total + torch.where(weights > 0, weights * each, 0.0).sum((-2, -1))
        return inside(total, flat) if self.bounded else total

    @cached_property
    def _chunks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Observations, design and weights of chunks of steps."""
        n_numbers = math.prod((*self.weights.shape[:-2], self.weights.shape[-1])) * self.n_outputs**2
        size = chunk_size(len(self.x), n_numbers, self.x.device)
        return list(zip(self.x.split(size), self.design.split(size), self.weights.split(size, -2), strict=True))

    def step(self, flat: Float[Tensor, "*r B P"]) -> tuple[Float[Tensor, "*r B P"], Float[Tensor, "*r B"]]:
        """The scoring step, and the gain that its slope promises."""
        local, places = self.local(flat), self.places
        (slope, curvature), q = self.prior(local[..., 0]).slopes(), self.design.shape[-1]
        gradient = torch.nn.functional.pad(slope.unsqueeze(-1), (0, q - 1))
        hessian = torch.nn.functional.pad(curvature.unsqueeze(-1), (0, q * q - 1))
        for x, design, weights in self._chunks:
            weights = weights.unsqueeze(-1)
            slope, curvature = self.likelihood(x)(_predictors(local, design)).slopes()
            slope = torch.where(weights > 0, weights * slope, 0.0)  # a slope of weight 0 may be infinite
            gradient = gradient + torch.einsum("...bnkj,nq->...bkjq", slope, design)
            weights = weights.unsqueeze(-1)
            curvature = torch.where(weights > 0, weights * curvature, 0.0)
            squares = (design.unsqueeze(-1) * design.unsqueeze(-2)).flatten(1)
            hessian = hessian + curvature.movedim(-4, -1) @ squares
        hessian = hessian.unflatten(-1, (q, q))  # [*r, B, K, J, J, Q, Q]
        gradient = torch.einsum("kjqp,...bkjq->...bp", places, gradient) - self.ridge * flat
        whole = torch.einsum("kjqp,...bkjiqc,kico->...bpo", places, hessian, places)
        diagonal = whole.diagonal(dim1=-2, dim2=-1)
        whole = whole + torch.diag_embed(self.ridge + 1e-12 * (diagonal + 1e-3))
        step = torch.linalg.solve_ex(whole, gradient.unsqueeze(-1))[0].squeeze(-1).nan_to_num(0.0)
        if self.n_shared:
            step = shortened(step)
        else:  # states do not depend on each other, so none shortens the steps of others
            step = shortened(step.unflatten(-1, (self.weights.shape[-1], -1))).flatten(-2)
        return step, (step * gradient).sum(-1)

    def climbed(self, flat: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r B P"]:
        """The coefficients at the maximum, or near it after many steps; no step lowers the objective."""
        return newton(self.value, self.step, flat, MAX_STEPS)


def _predictors(local: Float[Tensor, "*r B K J Q"], design: Float[Tensor, "n Q"]) -> Float[Tensor, "*r B n K J"]:
    return torch.einsum("...bkjq,nq->...bnkj", local, design)
