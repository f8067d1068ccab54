"""The operators of semi-Markov chains; `SemiMarkovChain` returns their values and raises their errors.

All take `log_initial [*b, K]`, `log_transition [*b, S, K, K]`, where S is 1 if all moves have one table and T - 1
otherwise, `log_durations [*b, 4, K, D]`, `log_likelihood [*b, T, K]` and `lengths [*B]`, the batch axes of all tables
broadcasting to *B. The rows of durations are those of segments in the middle, of the
last one, of the first one, and of one that is first and last (`plain.Place`). The last result is `failed [*B]`, the
first step of each sequence whose observation is impossible or not a number, or -1; other results of that sequence are
invalid.

The gradient of log p(x) is the posterior of each table, a result of `posterior`.
"""

import torch
from torch import Tensor

from ...numerics.op import Call, Gradients, Op, blank, differentiated, replay, tensors
from ..markov.op import weighted
from . import plain

Results = tuple[Tensor, ...]


def _by_posterior(call: Call, d_total: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of log p(x) alone."""
    if d_total is None or any(grad is not None for grad in others):
        return None
    if torch.is_grad_enabled():  # these gradients may be differentiated
        return replay(plain.log_normalizer, call, (d_total, None))
    _, state, begins, moves, durations, _, _ = call.outputs
    return weighted(call, d_total, (begins[..., 0, :], moves, durations, state, None))


def _fake_filter(
    initial: Tensor, transition: Tensor, durations: Tensor, likelihood: Tensor, lengths: Tensor
) -> Results:
    steps, states = likelihood.shape[-2:]
    by_step = (*lengths.shape, steps, states)
    shapes = (lengths.shape, by_step, by_step, (*lengths.shape, steps))
    return *(blank(likelihood, shape) for shape in shapes), blank(lengths)


def _fake_posterior(
    initial: Tensor, transition: Tensor, durations: Tensor, likelihood: Tensor, lengths: Tensor
) -> Results:
    by_step, batch = (*lengths.shape, *likelihood.shape[-2:]), lengths.shape
    tables = (*batch, *transition.shape[-3:]), (*batch, *durations.shape[-3:])
    return *(blank(likelihood, shape) for shape in (batch, by_step, by_step, *tables, batch)), blank(lengths)


def _fake_paths(*tables: Tensor) -> Results:
    likelihood, lengths = tables[3:5]
    shape = (*lengths.shape, likelihood.shape[-2]) if len(tables) == 5 else tables[5].shape[:-1]
    return blank(lengths, shape), blank(lengths)


_TABLES = "Tensor log_initial, Tensor log_transition, Tensor log_durations, Tensor log_likelihood, Tensor lengths"
filter: Op = Op(f"semi_markov_filter({_TABLES}) -> {tensors(5)}", plain.filter, _fake_filter)
posterior: Op = Op(f"semi_markov_posterior({_TABLES}) -> {tensors(7)}", plain.posterior, _fake_posterior, _by_posterior)
viterbi: Op = Op(f"semi_markov_viterbi({_TABLES}) -> {tensors(2)}", plain.viterbi, _fake_paths)
sample: Op = Op(f"semi_markov_sample({_TABLES}, Tensor uniform) -> {tensors(2)}", plain.sample, _fake_paths)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) [*B], and failed; computed with the gradient if one may be needed."""
    total, *_, failed = (posterior if differentiated(*tables) else filter)(*tables)
    return total, failed
