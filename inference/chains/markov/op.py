"""The operators of Markov chains; `MarkovChain` returns their values and raises their errors.

All take `log_initial [*b, K]`, `log_transition [*b, S, K, K]` with S = 1 (constant) or T - 1, `log_likelihood
[*b, T, K]` and `lengths [*B]`, the batch axes of all tables broadcasting to *B. The last result is `failed [*B]`, the
first step of each sequence whose observation is impossible or not a number, or -1; other results of that sequence are
invalid.

The gradient of log p(x) is the posterior of each table, a result of `posterior`.

If the rows of a chain depend on inputs, `rows_filter` and `rows_posterior` read `log_base [*b, K, K]`, `weights
[*b, K, K, C]` and `inputs [*b, T - 1, C]` of the moves instead of a transition table.
"""

import torch
from torch import Tensor

from ...numerics.op import Call, Gradients, Op, Variants, blank, differentiated, replay, tensors
from . import plain, plain_rows

Results = tuple[Tensor, ...]


def _by_posterior(call: Call, d_total: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of log p(x) alone."""
    if d_total is None or any(grad is not None for grad in others):
        return None
    if torch.is_grad_enabled():  # these gradients may be differentiated
        return replay(plain.log_normalizer, call, (d_total, None))
    _, state, pairs, _ = call.outputs
    return weighted(call, d_total, (state[..., 0, :], pairs, state, None))


def _by_row_sums(call: Call, d_total: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of log p(x) alone, and not in the inputs."""
    if d_total is None or call.wanted[3] or torch.is_grad_enabled() or any(grad is not None for grad in others):
        return None
    _, state, moves, expected, _ = call.outputs
    gap = moves - expected
    return weighted(call, d_total, (state[..., 0, :], gap[..., 0], gap[..., 1:], None, state, None))


def weighted(call: Call, d_total: Tensor, beliefs: tuple[Tensor | None, ...]) -> Gradients:
    """The gradients of log p(x) in all tables, times that of log p(x)."""
    return tuple(
        (d_total.view(*d_total.shape, *[1] * (belief.dim() - d_total.dim())) * belief).sum_to_size(table.shape)
        if wanted and belief is not None
        else None
        for table, belief, wanted in zip(call.inputs, beliefs, call.wanted, strict=True)
    )


def _fake_filter(initial: Tensor, transition: Tensor, likelihood: Tensor, lengths: Tensor) -> Results:
    steps, states = likelihood.shape[-2:]
    shapes = (lengths.shape, (*lengths.shape, steps, states), (*lengths.shape, steps))
    return *(blank(likelihood, shape) for shape in shapes), blank(lengths)


def _fake_posterior(initial: Tensor, transition: Tensor, likelihood: Tensor, lengths: Tensor) -> Results:
    shapes = (lengths.shape, (*lengths.shape, *likelihood.shape[-2:]), (*lengths.shape, *transition.shape[-3:]))
    return *(blank(likelihood, shape) for shape in shapes), blank(lengths)


def _fake_viterbi(initial: Tensor, transition: Tensor, likelihood: Tensor, lengths: Tensor) -> Results:
    return blank(lengths, (*lengths.shape, likelihood.shape[-2])), blank(lengths)


def _fake_sample(initial: Tensor, transition: Tensor, likelihood: Tensor, lengths: Tensor, uniform: Tensor) -> Results:
    return blank(lengths, uniform.shape), blank(lengths)


def _fake_rows_filter(initial: Tensor, base: Tensor, weights: Tensor, inputs: Tensor, *others: Tensor) -> Results:
    return _fake_filter(initial, base, *others)


def _fake_rows(initial: Tensor, base: Tensor, weights: Tensor, inputs: Tensor, *others: Tensor) -> Results:
    likelihood, lengths = others
    moves = (*lengths.shape, *base.shape[-2:], 1 + inputs.shape[-1])
    shapes = (lengths.shape, (*lengths.shape, *likelihood.shape[-2:]), moves, moves)
    return *(blank(likelihood, shape) for shape in shapes), blank(lengths)


_TABLES = "Tensor log_initial, Tensor log_transition, Tensor log_likelihood, Tensor lengths"
filter: Op = Op(f"markov_filter({_TABLES}) -> {tensors(4)}", plain.filter, _fake_filter)
posterior: Op = Op(f"markov_posterior({_TABLES}) -> {tensors(4)}", plain.posterior, _fake_posterior, _by_posterior)
viterbi: Op = Op(f"markov_viterbi({_TABLES}) -> {tensors(2)}", plain.viterbi, _fake_viterbi)
sample: Op = Op(f"markov_sample({_TABLES}, Tensor uniform) -> {tensors(2)}", plain.sample, _fake_sample)

_ROWS = "Tensor log_initial, Tensor log_base, Tensor weights, Tensor inputs, Tensor log_likelihood, Tensor lengths"
rows_filter: Op = Op(f"markov_rows_filter({_ROWS}) -> {tensors(4)}", plain_rows.filter, _fake_rows_filter)
rows_posterior: Op = Op(
    f"markov_rows_posterior({_ROWS}) -> {tensors(5)}", plain_rows.posterior, _fake_rows, _by_row_sums
)
"""log p(x) [*B], P(s_t | x) [*B, T, K]; sums over all moves of n(i, j) (1, c) and of m(i) A(i, j) (1, c), both
[*B, K, K, 1 + C], where n are the probabilities of the moves, and m of leaving each state; failed."""
row_sums: Variants = Variants(plain_rows.row_sums)
"""The sums of a step of Newton's method on rows that depend on inputs.

Arguments: log_base [R, I, K], changes [R, I, K, D] by which its entries respond to the design [N, D], and the weights
leaving [R, N, I] of the I rows at each step. Results, with p the rows of a step, m their weights and x the design: sums
of m(i) p(i, j) x x', [R, I, K, D, D], and of m(i) p(i, j) x p(i, k) x', [R, I, K, D, K, D].
"""


def log_normalizer(*tables: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) [*B], and failed; computed with the gradient if one may be needed."""
    total, *_, failed = (posterior if differentiated(*tables) else filter)(*tables)
    return total, failed


def rows_log_normalizer(*tables: Tensor) -> tuple[Tensor, Tensor]:
    """`log_normalizer` of a chain whose rows depend on inputs."""
    total, *_, failed = (rows_posterior if differentiated(*tables) else rows_filter)(*tables)
    return total, failed
