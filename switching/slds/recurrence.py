r"""Regimes that the states choose by stick-breaking logistic regressions, with a bound that is quadratic in the states.

$$P(z_{t+1} = k \mid z_t = j, s_t) = \sigma(u_{jk}) \prod_{i < k} \sigma(-u_{ji}), \qquad u_{ji} = w_i^\top (s_t, e_j)$$

A Polya-Gamma variable for each logistic (Polson, Scott & Windle 2013) and the tangent of its logarithm in $u^2$
(Jaakkola & Jordan 2000) give the same bound. Its free number is optimal at $\xi^2 = E u^2$:

$$E \log \sigma(\pm u) \ge \pm \tfrac12 E u - \log 2 \cosh \tfrac12 \sqrt{E u^2},$$

It is convex in the expected squares, so it lies above its tangents. Linderman et al. 2017 sample the variables instead.
"""

import torch
from torch import Tensor

from ...inference.families import GaussianTables, MarkovTables
from ...inference.message_passing.factor_graph import Factor
from ..dynamics.factors import named
from ..dynamics.gates import log_two_cosh
from ..linear.factors import wide


def recurrence(block: str, chain: str, switch: str, inside: Tensor) -> Factor:
    """The bound on E log P(z_t+1 | z_t, s_t), [R, *b, T-1]; `inside` is [*b, T]. The block is [R, K-1, P]."""

    def elog(paths: GaussianTables, table: Tensor, moved: MarkovTables) -> Tensor:
        n, k = paths.linear.shape[-1], moved.transition.shape[-1]
        mean, square = table.split([n + k, (n + k) ** 2], -1)
        mean, square = wide(mean, inside), wide(square.unflatten(-1, (n + k, n + k)), inside)
        states = paths.linear.squeeze(-3)[..., :-1, :]  # [R, *b, T-1, L]
        squares = paths.square.squeeze(-4)[..., :-1, :, :]
        # by the previous regime, [R, *b, T-1, K, K-1]
        u = (states @ mean[..., :n].mT).unsqueeze(-2) + mean[..., n:].mT.unsqueeze(-3)
        of_states = squares.flatten(-2) @ square[..., :n, :n].flatten(-2).mT
        crossed = square[..., :n, n:] + square[..., n:, :n].mT  # [R, 1, K-1, L, K]
        both = torch.einsum("...tl,...ilj->...tji", states, crossed)
        alone = square[..., n:, n:].diagonal(dim1=-2, dim2=-1).mT.unsqueeze(-3)
        cost = log_two_cosh(of_states.unsqueeze(-2) + both + alone)
        pairs = moved.transition
        beyond = pairs.flip(-1).cumsum(-1).flip(-1)  # probability of regime i or a later one
        at, reached = pairs[..., :-1], beyond[..., :-1]
        return ((2 * at - reached) * u / 2 - reached * cost).sum((-2, -1))

    convex = (chain, block)
    return Factor(named(block, elog), (chain, block, switch), mask=inside[..., 1:], convex=convex)
