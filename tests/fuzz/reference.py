"""What answers must be: recursions over log-weights in float64, without any trick, and the densities of torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, MultivariateNormal, Normal, Poisson


def close(found: Any, expected: Any, digits: float = 1e-5) -> bool:
    """Whether two answers agree to a share of the greatest number in them, infinities alike."""
    found, expected = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).detach().double()
    if found.shape != expected.shape:
        return False
    sizes = expected.nan_to_num(posinf=0, neginf=0).abs()
    size = 1 + (float(sizes.amax()) if sizes.numel() else 0)
    return bool(torch.isclose(found, expected, rtol=digits, atol=digits * size, equal_nan=True).all())


def lengths_of(lengths: Any) -> Tensor:
    """Lengths in any form as integers."""
    return lengths if isinstance(lengths, Tensor) else torch.from_numpy(np.asarray(lengths).astype(np.int64))


def log_product(a: Tensor, b: Tensor) -> Tensor:
    """[..., K] and [..., K, K] to [..., K]."""
    return torch.logsumexp(a.unsqueeze(-1) + b, -2)


def centred(table: Tensor) -> tuple[Tensor, Tensor]:
    """Log-weights counted from the greatest of them, and that one.

    What all have in common is no preference, but beside 1e30 the preferences would be rounded away.
    """
    top = table.amax()
    return (table - top, top) if bool(top.isfinite()) else (table, torch.zeros_like(top))


def chain(first: Tensor, moves: Sequence[Tensor], length: int) -> tuple[Tensor, Tensor]:
    """log-normaliser and P(s_t | x) [T, K] of weights [K] of the first step and [K, K] of each of the others."""
    T, K = len(moves) + 1, len(first)
    first, total = centred(first)
    before, after, own = [first], [torch.zeros(K, dtype=torch.float64)], []
    for move in moves[: length - 1]:
        move, common = centred(move)
        reached, more = centred(log_product(before[-1], move))
        own.append(move)
        before.append(reached)
        total = total + common + more
    for move in reversed(own):
        after.insert(0, centred(log_product(after[0], move.mT))[0])
    total = total + before[-1].logsumexp(0)
    state = torch.stack([a + b for a, b in zip(before, after, strict=True)]).softmax(-1)
    return total, torch.cat([state, torch.zeros(T - length, K, dtype=torch.float64)])


def stepped(start: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
    """Log-weights after a move, counted from what all have in common, and that."""
    (first, common), (move, each) = centred(start), centred(move)
    return log_product(first, move), common + each


def copy_chain(
    log_initial: Tensor | None, log_fresh: Tensor, log_held: Tensor, lengths: Any = None
) -> tuple[Tensor, Tensor]:
    """log-normaliser [*b] and P(s_t | x) [*b, T, K] of a copy chain."""
    fresh, held = log_fresh.detach().double(), log_held.detach().double()
    T, K = fresh.shape[-2:]
    batch = torch.broadcast_shapes(
        fresh.shape[:-2], held.shape[:-2], () if log_initial is None else log_initial.shape[:-1]
    )
    if lengths is not None:
        batch = torch.broadcast_shapes(batch, lengths_of(lengths).shape)
    fresh, held = fresh.expand(*batch, T, K).reshape(-1, T, K), held.expand(*batch, T, K).reshape(-1, T, K)
    n = len(fresh)
    ends = torch.full((n,), T) if lengths is None else lengths_of(lengths).expand(batch).reshape(-1)
    start = None if log_initial is None else log_initial.detach().double().expand(*batch, K).reshape(-1, K)
    same = torch.eye(K, dtype=torch.bool)
    totals, states = [], []
    for i in range(n):
        stay = torch.where(same, held[i].unsqueeze(-2), -torch.inf)
        moves = torch.logaddexp(fresh[i].unsqueeze(-2).expand(T, K, K), stay)
        first, common = (fresh[i, 0], 0.0) if start is None else stepped(start[i], moves[0])
        total, state = chain(first, moves[1:], int(ends[i]))
        totals.append(total + common)
        states.append(state)
    empty = torch.zeros(0, dtype=torch.float64)
    total = torch.stack(totals) if totals else empty
    state = torch.stack(states) if states else empty
    return total.reshape(batch), state.reshape(*batch, T, K)


def markov_chain(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Any = None
) -> tuple[Tensor, Tensor]:
    """The same of a Markov chain of one or several sequences, whose transitions are the same at every step."""
    likelihood = log_likelihood.detach().double()
    T, K = likelihood.shape[-2:]
    batch = torch.broadcast_shapes(likelihood.shape[:-2], log_initial.shape[:-1])
    if lengths is not None:
        batch = torch.broadcast_shapes(batch, lengths_of(lengths).shape)
    flat = likelihood.expand(*batch, T, K).reshape(-1, T, K)
    start = log_initial.detach().double().expand(*batch, K).reshape(-1, K)
    ends = torch.full((len(flat),), T) if lengths is None else lengths_of(lengths).expand(batch).reshape(-1)
    table = log_transition.detach().double()
    found, commons = [], []
    for i in range(len(flat)):
        rows = [centred(row) for row in flat[i]]
        (first, common), (move, each) = centred(start[i]), centred(table)
        found.append(chain(first + rows[0][0], [move + row for row, _ in rows[1:]], int(ends[i])))
        commons.append(common + each * (int(ends[i]) - 1) + sum(top for _, top in rows[: int(ends[i])]))
    empty = torch.zeros(0, dtype=torch.float64)
    total = torch.stack([total + more for (total, _), more in zip(found, commons, strict=True)]) if found else empty
    state = torch.stack([state for _, state in found]) if found else empty
    return total.reshape(batch), state.reshape(*batch, T, K)


def log_likelihood(emission: str, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """log p(x_t | s) [*b, T, K] of independent features, NaN left out."""
    seen = ~x.isnan()
    filled = torch.where(seen, x, 0.0).unsqueeze(-2).double()
    own = {name: value.double() for name, value in values.items()}
    if emission == "Normal":
        table = Normal(own["loc"], own["precision"].rsqrt()).log_prob(filled)
    elif emission == "Poisson":
        table = Poisson(own["rate"]).log_prob(filled)
    elif emission == "Bernoulli":
        table = Bernoulli(own["probs"], validate_args=False).log_prob(filled)
    else:
        table = Categorical(own["probs"]).log_prob(filled.squeeze(-1)).unsqueeze(-1)
    return torch.where(seen.unsqueeze(-2), table, 0.0).sum(-1)


def model(
    dynamics: str, emission: str, values: Mapping[str, Tensor], x: Tensor, lengths: Any, gaps: Tensor | None
) -> tuple[Tensor, Tensor]:
    """log p(x) and P(s_t | x) of a model of these parts."""
    if lengths is not None:
        inside = torch.arange(x.shape[-2]) < lengths_of(lengths).unsqueeze(-1)
        x = torch.where(inside.unsqueeze(-1), x, torch.nan)
    table = log_likelihood(emission, values, x)
    own = {name: value.double() for name, value in values.items()}
    if dynamics == "Markov":
        return markov_chain(own["initial_probs"].log(), own["transition_probs"].log(), table, lengths)
    stay = torch.log1p(-own["redraw_prob"]) * (torch.ones_like(table[..., 0]) if gaps is None else gaps.double())
    redraw = torch.log(-torch.expm1(stay))
    fresh = table + redraw.unsqueeze(-1) + own["state_probs"].log()
    fresh[..., 0, :] = table[..., 0, :] + own["state_probs"].log()
    return copy_chain(None, fresh, table + stay.unsqueeze(-1), lengths)


def factorial(given: Mapping[str, Any], x: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
    """log p(x) and joint states of two copy chains that add up to a mean, or to a log rate."""
    rho, probs, loc = given["redraw_prob"].double(), given["state_probs"], given["loc"]
    one, two = (
        (1 - r) * torch.eye(len(p), dtype=torch.float64) + r * p.double().expand(len(p), -1)
        for r, p in zip(rho, probs, strict=True)
    )
    eta = (loc[0].double().unsqueeze(1) + loc[1].double()).flatten(0, 1)
    if given["precision"] is None:
        table = Poisson(eta.exp()).log_prob(x.double().unsqueeze(-2)).sum(-1)
    else:
        table = MultivariateNormal(eta, precision_matrix=given["precision"].double()).log_prob(x.double().unsqueeze(-2))
    first = torch.kron(probs[0].double(), probs[1].double())
    return markov_chain(first.log(), torch.kron(one, two).log(), table, lengths)


def recurrence(hold: Tensor, draw: Tensor, h0: Tensor | None) -> Tensor:
    """h_t = hold_t h_t-1 + draw_t, step by step in float64."""
    hold, draw = torch.broadcast_tensors(hold.detach().double(), draw.detach().double())
    h = draw.new_zeros(*draw.shape[:-2], draw.shape[-1]) if h0 is None else h0.detach().double()
    states = []
    for t in range(draw.shape[-2]):
        h = hold[..., t, :] * h + draw[..., t, :]
        states.append(h)
    if not states:
        shape = torch.broadcast_shapes(h.shape[:-1], draw.shape[:-2])
        return h.new_zeros(*shape, *draw.shape[-2:])
    return torch.stack(states, -2)
