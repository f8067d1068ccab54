"""The operators of factored copy chains; `FactoredCopyChain` returns their values and raises their errors.

All take `log_redraw` and `log_hold` [*b, T] or [*b, 1], `log_state [*b, K]`, `log_likelihood [*b, T, K]` and `lengths
[*B]`, the batch axes of all tables broadcasting to *B. The last result is `failed [*B]`: the first step of each
sequence whose observation is impossible or not a number, or -1; other results of a failed sequence are invalid.

The gradient of log p(x) is the posterior of each table, a result of `posterior`.
"""

import torch
from torch import Tensor

from ...numerics.op import Call, Gradients, Op, blank, differentiated, replay, tensors
from ...numerics.threads import sum_of_steps
from . import plain

Results = tuple[Tensor, ...]


def of_moves(table: Tensor, like: Tensor) -> Tensor:
    """Posteriors [*b, T] of gates as those of a table [.., T] or [.., 1], which has no move into the first step."""
    moved = torch.nn.functional.pad(table[..., 1:], (1, 0))
    return sum_of_steps(moved).unsqueeze(-1) if like.shape[-1] == 1 else moved


def _by_posterior(call: Call, d_value: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of log p(x) alone."""
    if d_value is None or any(grad is not None for grad in others):
        return None
    if torch.is_grad_enabled():  # these gradients may be differentiated
        return replay(plain.log_normalizer, call, (d_value, None))
    _, state, redraw, held, fresh, _ = call.outputs
    beliefs = of_moves(redraw, call.inputs[0]), of_moves(held, call.inputs[1]), fresh, state
    weighted = (
        (d_value.view(*d_value.shape, *[1] * (belief.dim() - d_value.dim())) * belief).sum_to_size(table.shape)
        if wanted
        else None
        for table, belief, wanted in zip(call.inputs, beliefs, call.wanted, strict=False)
    )
    return *weighted, None


def _fake_filter(redraw: Tensor, hold: Tensor, state: Tensor, likelihood: Tensor, lengths: Tensor) -> Results:
    steps, states = likelihood.shape[-2:]
    shapes = lengths.shape, (*lengths.shape, steps, states), (*lengths.shape, steps), (*lengths.shape, steps)
    return *(blank(likelihood, shape) for shape in shapes), blank(lengths)


def _fake_posterior(redraw: Tensor, hold: Tensor, state: Tensor, likelihood: Tensor, lengths: Tensor) -> Results:
    batch, (steps, states) = lengths.shape, likelihood.shape[-2:]
    shapes = batch, (*batch, steps, states), (*batch, steps), (*batch, steps), (*batch, states)
    return *(blank(likelihood, shape) for shape in shapes), blank(lengths)


_TABLES = "Tensor log_redraw, Tensor log_hold, Tensor log_state, Tensor log_likelihood, Tensor lengths"
filter: Op = Op(f"factored_copy_filter({_TABLES}) -> {tensors(5)}", plain.filter, _fake_filter)
posterior: Op = Op(
    f"factored_copy_posterior({_TABLES}) -> {tensors(6)}", plain.posterior, _fake_posterior, _by_posterior
)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) [*B], and failed; computed with the gradient if one may be needed."""
    value, *_, failed = (posterior if differentiated(*tables) else filter)(*tables)
    return value, failed
