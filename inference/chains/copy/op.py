"""The operators of copy chains; `CopyChain` returns their values and raises their errors.

All take `log_initial [N, K]` or None, `log_fresh [N, T, K]`, `log_held [N, T, K]` or `[N, T, 1]`, `lengths [N]`. The
last result is `failed [N]`: the first step of each sequence whose observation is impossible or not a number, or -1;
other results of a failed sequence are invalid.

The gradient of log p(x) is the posterior share of each table's entries, from the same pass.
"""

import torch
from torch import Tensor

from ...numerics.op import Call, Gradients, Op, blank, differentiated, replay, tensors
from . import plain

Results = tuple[Tensor, ...]


def _by_shares(call: Call, d_value: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of log p(x) alone: the marginals, which are already computed."""
    if d_value is None or any(grad is not None for grad in others):
        return None
    if torch.is_grad_enabled():  # these gradients may be differentiated
        return replay(plain.log_normalizer, call, (d_value, None))
    _, fresh, held, initial, _ = call.outputs
    by_step = d_value[:, None, None]
    return None if call.inputs[0] is None else d_value[:, None] * initial, by_step * fresh, by_step * held, None


def _fake_value(initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor) -> Results:
    return blank(fresh[:, 0, 0]), blank(lengths)


def _fake_filter(initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor) -> Results:
    by_step = fresh[:, :, 0]
    return blank(by_step, dtype=torch.float64), blank(fresh), blank(by_step), blank(lengths)


def _fake_smooth(initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor) -> Results:
    return blank(fresh[:, 0, 0]), blank(fresh), blank(fresh[:, :, 0]), blank(lengths)


def _fake_marginals(initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor) -> Results:
    return blank(fresh[:, 0, 0]), blank(fresh), blank(held), blank(fresh[:, 0]), blank(lengths)


def _fake_viterbi(initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor) -> Results:
    path = blank(lengths, fresh.shape[:2])
    return path, blank(path, dtype=torch.bool), blank(fresh[:, 0, 0]), blank(lengths)


def _fake_sample(initial: Tensor | None, fresh: Tensor, held: Tensor, lengths: Tensor, uniform: Tensor) -> Results:
    path = blank(lengths, uniform.shape[:3])
    return path, blank(path, dtype=torch.bool), blank(lengths)


_TABLES = "Tensor? log_initial, Tensor log_fresh, Tensor log_held, Tensor lengths"
evidence: Op = Op(f"copy_log_normalizer({_TABLES}) -> {tensors(2)}", plain.log_normalizer, _fake_value)
filter: Op = Op(f"copy_filter({_TABLES}) -> {tensors(4)}", plain.filter, _fake_filter)
smooth: Op = Op(f"copy_smooth({_TABLES}) -> {tensors(4)}", plain.smooth, _fake_smooth)
marginals: Op = Op(f"copy_marginals({_TABLES}) -> {tensors(5)}", plain.marginals, _fake_marginals, _by_shares)
viterbi: Op = Op(f"copy_viterbi({_TABLES}) -> {tensors(4)}", plain.viterbi, _fake_viterbi)
sample: Op = Op(f"copy_sample({_TABLES}, Tensor uniform) -> {tensors(3)}", plain.sample, _fake_sample)


def log_normalizer(*tables: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p(x) [N], and failed; computed with the gradient if one may be needed."""
    if differentiated(*tables):
        value, *_, failed = marginals(*tables)
        return value, failed
    return evidence(*tables)
