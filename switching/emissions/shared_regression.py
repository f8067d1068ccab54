r"""The M-step of regressions, some of whose parts all states share.

Given the precisions $\tau$, the best coefficients of all states together solve one linear system for each feature,

$$\Big(\sum_k \tau_k E_k^\top S_k E_k + D^\top W D\Big)\, \theta = \sum_k \tau_k E_k^\top r_k + D^\top W m,$$

where $S_k = \sum_t w_{tk} d_t d_t^\top$, $r_k = \sum_t w_{tk} d_t x_t$, and $E_k$ picks the coefficients of state k.
Under the prior, $D \theta$ is near m, with the precisions W. The system is solved for the change of $\theta$, with the
residuals of x and m, so repeated M-steps lose no digits where x is far from 0. Then come the best precisions beside
these coefficients. So each M-step raises its objective, and is exact if the states share their scale or share nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.checks import broadcast_shapes
from ..parameters import Parameters
from .contract import Maximized

RIDGE = 1e-13  # relative to the diagonal, where the data leave a direction open


@dataclass(frozen=True)
class Sharing:
    """The M-step of an `AutoRegressive` emission under a prior, or without one."""

    emission: Any
    prior: Parameters | None

    def maximize(self, moments: tuple[Tensor, ...], near: Parameters, floor: Float[Tensor, "F"]) -> Maximized:
        """Better parameters than `near`, from the sums of a message about them."""
        first, half, half_count, rest = moments
        square, count = -2 * half, 2 * half_count  # [*r, K, F, Q, Q], [*r, K, F]
        first, total = first.squeeze(-1), -2 * rest[..., 0, 0]
        pick = self._pick(near, first.shape[-3])
        by = near["precision"].expand(*count.shape).unsqueeze(-1)
        system = torch.einsum("...kfpq,kpi,kqj->...fij", square * by.unsqueeze(-1), pick, pick)
        right = torch.einsum("...kfq,kqi->...fi", first * by, pick)
        old = torch.cat([near["loc"].mT, near["coefficients"].transpose(-3, -2).flatten(-2)], -1)
        if self.prior is not None:
            rows, weight, target = self._expected(near, pick)
            target = target - torch.einsum("efi,...fi->...ef", rows, old)
            system = system + torch.einsum("...ef,efi,efj->...fij", weight, rows, rows)
            right = right + torch.einsum("...ef,efi,...ef->...fi", weight, rows, target)
        scale = system.diagonal(dim1=-2, dim2=-1)
        ridge = torch.diag_embed(RIDGE * torch.where(scale > 0, scale, 1.0))
        change = torch.linalg.solve_ex(system + ridge, right.unsqueeze(-1))[0].squeeze(-1)
        of_state = torch.einsum("...fi,kqi->...kfq", change, pick)
        fitted = torch.einsum("...kfq,...kfqp,...kfp->...kf", of_state, square, of_state)
        residual = (total - 2 * (of_state * first).sum(-1) + fitted).clamp_min(0.0)
        values = self._tables(old + change, near) | {"precision": near["precision"]}
        variance = self._variance(residual, count, values)
        return Maximized(values | {"precision": 1 / variance.maximum(floor)})

    def _pick(self, near: Parameters, n_states: int) -> Float[Tensor, "K Q J"]:
        """E, which picks intercept and coefficients of each state from those of all."""
        n_loc, (n_rows, _, size) = near["loc"].shape[-2], near["coefficients"].shape[-3:]
        pick = near["loc"].new_zeros(n_states, 1 + size, n_loc + n_rows * size)
        for k in range(n_states):
            pick[k, 0, k if n_loc > 1 else 0] = 1.0
            place = n_loc + (k if n_rows > 1 else 0) * size
            pick[k, 1:, place : place + size] = torch.eye(size).to(pick)
        return pick

    def _tables(self, numbers: Float[Tensor, "*r F J"], near: Parameters) -> Parameters:
        n_loc, (n_rows, _, size) = near["loc"].shape[-2], near["coefficients"].shape[-3:]
        loc, coefficients = numbers[..., :n_loc].mT, numbers[..., n_loc:].unflatten(-1, (n_rows, size))
        return {"loc": loc, "coefficients": coefficients.transpose(-3, -2)}

    def _expected(self, near: Parameters, pick: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """D `[E, F, J]`, W `[*r, E, F]` and m `[E, F]` of the prior."""
        assert self.prior is not None
        prior, emission = self.prior, self.emission
        n_loc, (n_rows, n_features, size) = near["loc"].shape[-2], near["coefficients"].shape[-3:]
        lags = emission.of_lags(prior["loc"], 0.0).expand(-1, n_features, -1)
        row = torch.nn.functional.pad(lags, (1, 0), value=1.0).expand(len(pick), -1, -1)  # [K, F, Q]
        each = torch.einsum("kfq,kqi->kfi", row, pick)
        of_loc = each if n_loc > 1 else each.mean(0, keepdim=True)
        of_rest = torch.eye(pick.shape[-1]).to(pick)[n_loc:].unsqueeze(-2).expand(-1, n_features, -1)
        by_loc = prior["count"] * emission.precision_of("intercept", near, prior)
        by_rest = prior["coefficients_count"] * emission.precision_of("coefficients", near, prior).unsqueeze(-1)
        by_loc = by_loc.expand(*by_loc.shape[:-2], n_loc, n_features)
        by_rest = by_rest.transpose(-2, -1).reshape(*by_rest.shape[:-3], n_rows * size, n_features)
        lead = broadcast_shapes(by_loc.shape[:-2], by_rest.shape[:-2])
        weight = torch.cat([by_loc.expand(*lead, -1, -1), by_rest.expand(*lead, -1, -1)], -2)
        target = torch.cat([prior["loc"], prior["loc"].new_zeros(n_rows * size, n_features)])
        return torch.cat([of_loc, of_rest]), weight, target

    def _variance(self, residual: Tensor, count: Tensor, values: Parameters) -> Tensor:
        """The best variances beside the coefficients: of each state, or of all."""
        alone, prior = values["precision"].shape[-2] > 1, self.prior
        if not alone:
            residual, count = residual.sum(-2, keepdim=True), count.sum(-2, keepdim=True)
        if prior is None:
            return residual / count
        near_loc = prior["count"] * (values["loc"] - self.emission.prior_loc(values, prior)).square()
        near_zero = (prior["coefficients_count"] * values["coefficients"].square()).sum(-1)
        sizes = {"intercept": (near_loc, 1), "coefficients": (near_zero, values["coefficients"].shape[-1])}
        for part, (square, size) in sizes.items():
            if part in self.emission.switching or not alone:  # otherwise its prior does not depend on the precisions
                residual = residual + (square if alone else square.sum(-2, keepdim=True))
                count = count + size * (1 if alone else square.shape[-2])
        size = count + 2 * prior["shape"] - 2  # below 0 in a state almost without steps, which has no mode
        return torch.where(size > 0, (residual + 2 * prior["rate"]) / size, 1 / values["precision"])
