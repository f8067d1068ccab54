"""The operators of Markov chains; `MarkovChain` returns their values and raises their errors.

All take `log_initial [*b, K]`, `log_transition [*b, S, K, K]` with S = 1 (constant) or T - 1, `log_likelihood
[*b, T, K]` and `lengths [*B]`, the batch axes of all tables broadcasting to *B. The last result is `failed [*B]`, the
first step of each sequence whose observation is impossible or not a number, or -1; other results of that sequence are
invalid.

The gradient of log p(x) is the posterior of each table, a result of `posterior`.
"""

import torch
from torch import Tensor

from ...numerics.op import Call, Gradients, Op, blank, differentiated, replay, tensors
from . import plain

Results = tuple[Tensor, ...]


def _by_posterior(call: Call, d_total: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of log p(x) alone."""
    if d_total is None or any(grad is not None for grad in others):
        return None
    if torch.is_grad_enabled():  # these gradients may be differentiated
        return replay(plain.log_normalizer, call, (d_total, None))
    _, state, pairs, _ = call.outputs
    beliefs = zip(call.inputs, (state[..., 0, :], pairs, state), call.wanted, strict=False)
    weighted = (
        (d_total.view(*d_total.shape, *[1] * (belief.dim() - d_total.dim())) * belief).sum_to_size(table.shape)
        if wanted
        else None
        for table, belief, wanted in beliefs
    )
    return *weighted, None


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


_TABLES = "Tensor log_initial, Tensor log_transition, Tensor log_likelihood, Tensor lengths"
filter = Op(f"markov_filter({_TABLES}) -> {tensors(4)}", plain.filter, _fake_filter)
posterior = Op(f"markov_posterior({_TABLES}) -> {tensors(4)}", plain.posterior, _fake_posterior, _by_posterior)
viterbi = Op(f"markov_viterbi({_TABLES}) -> {tensors(2)}", plain.viterbi, _fake_viterbi)
sample = Op(f"markov_sample({_TABLES}, Tensor uniform) -> {tensors(2)}", plain.sample, _fake_sample)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) [*B], and failed; computed with the gradient if one may be needed."""
    total, *_, failed = (posterior if differentiated(*tables) else filter)(*tables)
    return total, failed
