r"""A finite Markov chain in plain torch as a scan over time: small tables take about $2 \log_2 T$ operations, not T.

With $E_t(i, j) = A_{t-1}(i, j)\, p(x_t \mid s_t = j)$ the messages of both directions are products of such matrices,

$$a_t = a_1 E_2 \cdots E_t, \qquad b_t = E_{t+1} \cdots E_T 1,$$

and products are associative. Each is held as the logarithms of a matrix whose rows sum to one, and of what the rows
were divided by, so that no weight is lost beside another. A step beyond the end of a sequence is the identity. A
product costs $K^3$, so that `serves` takes few states alone. Arguments and results are those of `op`.
"""

import torch
from torch import Tensor

from ...numerics.op import differentiated, transformed
from ...numerics.prefixes import Elements, prefixes
from . import plain

_STEP = 1 << 11  # numbers of a product beyond which a loop over steps is as fast
_WHOLE = 1 << 22  # numbers of all products at once, for the sake of memory


def serves(*tables: Tensor) -> bool:
    """Whether the scan is faster than a loop, and is not differentiated, for which it would keep all products."""
    n_steps, n_states = tables[2].shape[-2:]
    step = tables[3].numel() * n_states**3
    return 0 < step <= _STEP and step * n_steps <= _WHOLE and not (differentiated(*tables) or transformed())


def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T) [*B], P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K] as `plain.posterior`; failed."""
    log_initial, log_transition, log_likelihood, lengths = tables
    n_steps, n_states = log_likelihood.shape[-2:]
    active = torch.arange(n_steps, device=lengths.device) < lengths.unsqueeze(-1)
    likelihood = torch.where(active.unsqueeze(-1), log_likelihood, 0.0)
    shift = likelihood.amax(-1)
    likelihood = likelihood - shift.unsqueeze(-1)
    start = log_initial + likelihood[..., 0, :]
    identity = torch.eye(n_states, dtype=likelihood.dtype, device=likelihood.device).log()
    moves = torch.where(active[..., 1:, None, None], log_transition + likelihood[..., 1:, None, :], identity)
    forward, backward = _messages(start, moves)
    gain = torch.cat(
        [start.logsumexp(-1, keepdim=True), torch.logsumexp(forward[..., :-1, :, None] + moves, (-1, -2))], -1
    )
    failed = plain.first_true(active & ~(gain.isfinite() & shift.isfinite()))
    state = torch.where(active.unsqueeze(-1), torch.softmax(forward + backward, -1), 0.0)
    pair = forward[..., :-1, :, None] + moves + backward[..., 1:, None, :]
    pair = torch.softmax(pair.flatten(-2), -1).unflatten(-1, (n_states, n_states))
    pair = torch.where(active[..., 1:, None, None], pair, 0.0)
    if log_transition.shape[-3] != n_steps - 1:
        pair = pair.sum(-3, keepdim=True)
    return plain.total(torch.where(active, gain, 0.0), torch.where(active, shift, 0.0)), state, pair, failed


def _messages(start: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """log P(s_t | x_1..t) and, but for a number of each step, log p(x_t+1..T | s_t), both [*B, T, K]."""
    steps = _over_rows(moves.movedim(-3, 0), moves.new_zeros(()))
    rows, scale = prefixes(_product, steps)
    after = torch.logsumexp((start + scale).unsqueeze(-1) + rows, -2)
    forward = torch.cat([start.unsqueeze(0), after]).movedim(0, -2)
    _, scale = prefixes(lambda later, earlier: _product(earlier, later), tuple(part.flip(0) for part in steps))
    backward = torch.cat([torch.zeros_like(start).unsqueeze(0), scale]).flip(0).movedim(0, -2)
    return forward - forward.logsumexp(-1, keepdim=True), backward


def _product(earlier: Elements, later: Elements) -> Elements:
    (rows, scale), (rows_later, scale_later) = earlier, later
    onward = scale_later.unsqueeze(-1) + rows_later
    return _over_rows(torch.logsumexp(rows.unsqueeze(-1) + onward.unsqueeze(-3), -2), scale)


def _over_rows(matrix: Tensor, scale: Tensor) -> Elements:
    """Rows that sum to one, and their logarithms of scale, of which the largest is 0."""
    total = matrix.logsumexp(-1)
    scale = scale + total
    top = scale.amax(-1, keepdim=True)
    return matrix - _finite(total).unsqueeze(-1), scale - _finite(top)


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isneginf(), 0.0, x)
