r"""Factors between paths of real vectors and the linear regressions of their transitions and emissions.

With inputs $u_t = (s_t, 1)$ and coefficients M, a transition is $s_{t+1} \sim N(M^\top u_t, \Lambda^{-1})$, and an
observation $x_t \sim N(M^\top u_t, \Lambda^{-1})$. Their expected log density is the product of the statistics of a
`MatrixNormalWishart` block and the path's expected products of inputs u and outputs y,

$$\langle (M \Lambda,\; M \Lambda M^\top,\; \log|\Lambda|,\; \Lambda),\;
(u y^\top,\; -\tfrac12 u u^\top,\; \tfrac12,\; -\tfrac12 y y^\top) \rangle - \tfrac D2 \log 2\pi.$$

Axes: R restarts, *b sequences, K regimes. Paths are `GaussianTables [R, *b, C, T, ...]` with a chain for each regime
(C = K) or one for all (C = 1), parameters `[R, K, P]`. If a switch joins a factor, a step counts for regime k with the
probability of regime k, and the step from t-1 to t uses the parameters of the regime at t. All messages have closed
forms.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...inference.families import GaussianTables, MarkovTables, MatrixNormalWishart
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.cholesky import cholesky, log_det
from ..data.series import Series
from ..dynamics.factors import named

LOG_2PI = math.log(2 * math.pi)


def moves(block: str, chain: str, inside: Tensor, switch: str | None = None) -> Factor:
    """E log N(s_t+1; M' u_t, inv(Lambda)).

    Arguments:
        inside: [*b, T], 1 at steps inside their sequence.
    """
    mask = inside[..., None, 1:]

    def design(paths: GaussianTables) -> Tensor:
        """The factors of the parameters' statistics, [R, *b, C, T-1, P]."""
        _, squares = _inputs(paths)
        crossed = torch.cat([paths.cross.mT, paths.linear[..., 1:, None, :]], -2)  # u_t s_t+1'
        return _design(crossed, squares[..., :-1, :, :], paths.square[..., 1:, :, :])

    def elog(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> Tensor:
        n = paths.linear.shape[-1]
        value = (design(paths) @ wide(table, inside).unsqueeze(-1)).squeeze(-1) - n * LOG_2PI / 2
        return value * _shares(switched)[..., 1:] if switched else value

    def to_block(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> Tensor:
        weights = (_shares(switched)[..., 1:] if switched else 1.0) * mask
        return _over_sequences(weights.unsqueeze(-2) @ design(paths), table)

    def to_chain(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> GaussianTables:
        n = paths.linear.shape[-1]
        weights = (_shares(switched)[..., 1:] if switched else 1.0) * mask
        used = _weighted(wide(table, inside).unsqueeze(-2), weights, table.shape[1] == paths.linear.shape[-3])
        first, second, _, precision = MatrixNormalWishart(n + 1).parts(used)
        return GaussianTables(
            pad(first[..., n, :], (0, 0, 1, 0)) - pad(_column(second), (0, 0, 0, 1)),
            -(pad(second[..., :n, :n], (0, 0, 0, 0, 0, 1)) + pad(precision, (0, 0, 0, 0, 1, 0))) / 2,
            first[..., :n, :].mT,
        )

    def to_switch(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> MarkovTables:
        return _likelihood(pad(elog(paths, table) * mask, (1, 0)))

    return _factor(block, chain, switch, elog, (to_chain, to_block, to_switch), mask)


def sights(block: str, chain: str, x: Tensor, inside: Tensor, switch: str | None = None) -> Factor:
    r"""E log N(x_t; M' u_t, inv(Lambda)), [R, K, P].

    Missing features m of a step are summed out, given the states and the regime. With $\Phi, \Psi, l, \Lambda$ for
    the expected statistics of the block, this replaces them by those of the other features,

    $$\Phi_o - \Phi_m \Lambda_{mm}^{-1} \Lambda_{mo}, \quad \Psi - \Phi_m \Lambda_{mm}^{-1} \Phi_m^\top, \quad
    l - \log|\Lambda_{mm}|, \quad \Lambda_{oo} - \Lambda_{om} \Lambda_{mm}^{-1} \Lambda_{mo},$$

    which is a bound, convex in the statistics, and exact at a point. A step without any feature is left out.
    """
    seen = ~x.isnan() & (inside > 0).unsqueeze(-1)
    some = seen.any(-1)
    mask, filled = some.to(x).unsqueeze(-2), torch.where(seen, x, 0.0).unsqueeze(-3)
    outer, constant = filled.unsqueeze(-1) * filled.unsqueeze(-2), seen.sum(-1).to(x).unsqueeze(-2) * LOG_2PI / 2
    partly = bool((some & ~seen.all(-1)).any())
    patterns, pattern = torch.unique(seen.reshape(-1, x.shape[-1]), dim=0, return_inverse=True)

    def rows(table: Tensor, n: int) -> Tensor:
        """The block's statistics for each step, [R, *b, K, T, P], or for all steps, [R, *1, K, 1, P]."""
        if not partly:
            return wide(table, inside).unsqueeze(-2)
        each = _without_missing(table, patterns, n)[:, :, pattern]
        return each.unflatten(2, x.shape[:-1]).movedim(1, -3)

    def design(paths: GaussianTables) -> Tensor:
        means, squares = _inputs(paths)
        return _design(means.unsqueeze(-1) * filled.unsqueeze(-2), squares, outer)

    def expected(paths: GaussianTables, table: Tensor) -> Tensor:
        used, known = design(paths), rows(table, paths.linear.shape[-1] + 1)
        return ((used * known).sum(-1) if partly else (used @ known.mT).squeeze(-1)) - constant

    def elog(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> Tensor:
        value = expected(paths, table)
        return value * _shares(switched) if switched else value

    def to_block(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> Tensor:
        weights = (_shares(switched) if switched else 1.0) * mask
        if not partly:
            return _over_sequences(weights.unsqueeze(-2) @ design(paths), table)
        steps = (weights.unsqueeze(-1) * design(paths)).movedim(-3, 1).flatten(2, -2)  # [R, K, N, P]
        total = steps.new_zeros(*steps.shape[:2], len(patterns), steps.shape[-1]).index_add(2, pattern, steps)
        with torch.enable_grad():
            leaf = table.detach().requires_grad_()
            each = _without_missing(leaf, patterns, paths.linear.shape[-1] + 1)
        return torch.autograd.grad(each, leaf, total.expand_as(each))[0]

    def to_chain(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> GaussianTables:
        n = paths.linear.shape[-1]
        weights = (_shares(switched) if switched else 1.0) * mask
        used = _weighted(rows(table, n + 1), weights, table.shape[1] == paths.linear.shape[-3])
        first, second, _, _ = MatrixNormalWishart(n + 1).parts(used)
        linear = (first[..., :n, :] @ filled.unsqueeze(-1)).squeeze(-1) - _column(second)
        return _of_states(linear, -second[..., :n, :n] / 2)

    def to_switch(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> MarkovTables:
        return _likelihood(expected(paths, table) * mask)

    factor = _factor(block, chain, switch, elog, (to_chain, to_block, to_switch), mask)
    return replace(factor, convex=(block,)) if partly else factor


def features(block: str, chain: str, x: Tensor, inside: Tensor, switch: str | None = None) -> Factor:
    """`sights` with independent noise in each feature, [R, K, F, P] with D = 1; missing features are left out."""
    seen = (inside.unsqueeze(-1) * ~x.isnan()).unsqueeze(-3)  # [*b, 1, T, F]
    filled = torch.where(x.isnan(), 0.0, x).unsqueeze(-3)

    def parts(table: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Parts with features on the last axis: [R, 1, K, n+1, F], one with (n+1)^2 rows, and two of [R, 1, K, 1,
        F]."""
        first, second, log_volume, precision = MatrixNormalWishart(n + 1).parts(wide(table, inside))
        rows = first.squeeze(-1).mT, second.flatten(-2).mT
        return *rows, log_volume.unsqueeze(-2), precision[..., 0, 0].unsqueeze(-2)

    def by_feature(paths: GaussianTables, table: Tensor) -> Tensor:
        first, second, log_volume, precision = parts(table, paths.linear.shape[-1])
        means, squares = _inputs(paths)
        value = filled * (means @ first) - squares.flatten(-2) @ second / 2
        return (value + (log_volume - precision * filled.square() - LOG_2PI) / 2) * seen

    def elog(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> Tensor:
        value = by_feature(paths, table).sum(-1)
        return value * _shares(switched) if switched else value

    def weights(switched: tuple[MarkovTables, ...]) -> Tensor:
        return _shares(switched).unsqueeze(-1) * seen if switched else seen

    def to_block(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> Tensor:
        means, squares = _inputs(paths)
        used = weights(switched)
        first, second = (used * filled).mT @ means, used.mT @ squares.flatten(-2)
        rest = torch.stack([used.sum(-2), -(used * filled.square()).sum(-2)], -1)
        shape = broadcast_shapes(first.shape[:-1], rest.shape[:-1])
        message = torch.cat([first, -second / 2, rest.expand(*shape, 2) / 2], -1)
        return _over_sequences(message, table)

    def to_chain(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> GaussianTables:
        n = paths.linear.shape[-1]
        first, second, _, _ = parts(table, n)
        used = weights(switched)
        linear, square = (used * filled) @ first.mT, used @ second.mT
        if linear.shape[-3] != paths.linear.shape[-3]:
            linear, square = linear.sum(-3, keepdim=True), square.sum(-3, keepdim=True)
        square = square.unflatten(-1, (n + 1, n + 1))
        return _of_states(linear[..., :n] - _column(square), -square[..., :n, :n] / 2)

    def to_switch(paths: GaussianTables, table: Tensor, *switched: MarkovTables) -> MarkovTables:
        return _likelihood(by_feature(paths, table).sum(-1))

    return _factor(block, chain, switch, elog, (to_chain, to_block, to_switch), None)


def first_state(block: str, chain: str, n_axes: int) -> Factor:
    """E log N(s_1; m, inv(Lambda)) of each chain; the block [R, C, P] is a `NormalWishart`.

    Arguments:
        n_axes: the number of axes of sequences.
    """

    def design(paths: GaussianTables) -> Tensor:
        mean, square = paths.linear[..., 0, :], paths.square[..., 0, :, :].flatten(-2)
        half = torch.full_like(mean[..., :1], 0.5)
        return torch.cat([mean, -half, half, -square / 2], -1)

    def wide(table: Tensor) -> Tensor:
        return table.reshape(table.shape[0], *(1,) * n_axes, *table.shape[1:])

    def elog(paths: GaussianTables, table: Tensor) -> Tensor:
        return (design(paths) * wide(table)).sum(-1) - paths.linear.shape[-1] * LOG_2PI / 2

    def to_block(paths: GaussianTables, table: Tensor) -> Tensor:
        return _over_sequences(design(paths), table)

    def to_chain(paths: GaussianTables, table: Tensor) -> GaussianTables:
        n, steps = paths.linear.shape[-1], paths.linear.shape[-2]
        first, _, _, last = wide(table).split([n, 1, 1, n * n], -1)
        linear = pad(first.unsqueeze(-2), (0, 0, 0, steps - 1))
        square = pad(last.unflatten(-1, (n, n)).unsqueeze(-3), (0, 0, 0, 0, 0, steps - 1))
        return _of_states(linear, -square / 2)

    return Factor(named(block, elog), (chain, block), {chain: to_chain, block: to_block})


def of_blocks(
    chain: str, series: Series, full: bool, moved: str | None = None, seen: str | None = None
) -> dict[str, Factor]:
    """The factor of each block of parameters; `moved` and `seen` are the switches of transitions and of emissions."""
    x, inside = series.observations, series.inside.to(series.observations)
    return {
        "moves": moves("moves", chain, inside, moved),
        "sights": (sights if full else features)("sights", chain, x, inside, seen),
        "first": first_state("first", chain, len(series.batch_shape)),
    }


# ---- shared parts ---------------------------------------------------------------------------------------------------


def _inputs(paths: GaussianTables) -> tuple[Tensor, Tensor]:
    """E u and E u u', [..., T, L+1] and [..., T, L+1, L+1]."""
    means = pad(paths.linear, (0, 1), value=1.0)
    rows = torch.cat([paths.square, paths.linear.unsqueeze(-2)], -2)
    return means, torch.cat([rows, means.unsqueeze(-1)], -1)


def _design(crossed: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """The factors of the parameters' statistics, [..., P], from E u y', E u u' and E y y'."""
    parts = [crossed.flatten(-2), -inputs.flatten(-2) / 2, -outputs.flatten(-2) / 2]
    shape = broadcast_shapes(*(part.shape[:-1] for part in parts))
    first, second, last = (part.expand(*shape, -1) for part in parts)
    return torch.cat([first, second, torch.full_like(first[..., :1], 0.5), last], -1)


def _column(second: Tensor) -> Tensor:
    """The entries of a symmetric table [..., L+1, L+1] for states times 1, [..., L]."""
    return (second[..., :-1, -1] + second[..., -1, :-1]) / 2


def wide(table: Tensor, inside: Tensor) -> Tensor:
    """A table [R, K, ...] with axes for sequences, to broadcast with [R, *b, K, ...]."""
    return table.reshape(table.shape[0], *(1,) * (inside.ndim - 1), *table.shape[1:])


def _shares(switched: tuple[MarkovTables, ...]) -> Tensor:
    """The probabilities of the regimes, [R, *b, K, T]."""
    return switched[0].likelihood.mT


def _likelihood(table: Tensor) -> MarkovTables:
    """A message [R, *b, K, T] to the steps of the switch."""
    return MarkovTables.of_steps(table.mT, None)


def _of_states(linear: Tensor, square: Tensor) -> GaussianTables:
    """A message to single states, without dependence between neighbours."""
    return GaussianTables(linear, square, None)  # type: ignore[arg-type]


def _weighted(rows: Tensor, weights: Tensor, separate: bool) -> Tensor:
    """The parameters of each chain's steps, [R, *b, C, T, P]: its own, or those of all regimes by their weights."""
    if separate:
        return weights.unsqueeze(-1) * rows
    if rows.shape[-2] == 1:
        return (weights.mT @ rows.squeeze(-2)).unsqueeze(-3)
    return (weights.unsqueeze(-1) * rows).sum(-3, keepdim=True)


def _without_missing(table: Tensor, patterns: Tensor, n_inputs: int) -> Tensor:
    """Statistics [R, K, M, P] without the features that each pattern [M, F] misses, from those of all, [R, K, P]."""
    first, second, log_volume, precision = MatrixNormalWishart(n_inputs).parts(table.unsqueeze(-2))
    seen, missing = patterns.to(table), (~patterns).to(table)
    precision = (precision + precision.mT) / 2  # its message is then symmetric, too
    both = missing.unsqueeze(-1) * missing.unsqueeze(-2)
    chol = cholesky(precision * both + torch.diag_embed(seen))  # of the missing features, and 1 elsewhere
    crossed, between = first * missing.unsqueeze(-2), precision * missing.unsqueeze(-1) * seen.unsqueeze(-2)
    rest = torch.linalg.solve_triangular(chol, torch.cat([crossed.mT, between], -1), upper=False)
    of_inputs, of_seen = rest.split([n_inputs, first.shape[-1]], -1)
    parts = [
        first * seen.unsqueeze(-2) - of_inputs.mT @ of_seen,
        second - of_inputs.mT @ of_inputs,
        log_volume[..., None, None] - log_det(chol)[..., None, None],
        precision * seen.unsqueeze(-1) * seen.unsqueeze(-2) - of_seen.mT @ of_seen,
    ]
    return torch.cat([part.flatten(-2) for part in parts], -1)


def _over_sequences(message: Tensor, table: Tensor) -> Tensor:
    """A message [R, *b, K, ..., P] to the parameters [R, K, ..., P]."""
    return message.reshape(table.shape[0], -1, *table.shape[1:]).sum(1)


def _factor(
    block: str,
    chain: str,
    switch: str | None,
    elog: Callable[..., Tensor],
    messages: tuple[Callable, Callable, Callable],
    mask: Tensor | None,
) -> Factor:
    names = (chain, block) if switch is None else (chain, block, switch)
    return Factor(named(block, elog), names, dict(zip(names, messages, strict=False)), mask=mask)
