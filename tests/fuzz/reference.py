"""What answers must be: recursions over log-weights in float64, without any trick, and the densities of torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, MultivariateNormal, Normal, Poisson


def close(found: Any, expected: Any, digits: float = 1e-5) -> bool:
    """Whether two answers agree to a share of the greatest number in them, infinities alike."""
    found, expected = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (found, expected))
    if found.shape != expected.shape:
        return False
    sizes = expected.nan_to_num(posinf=0, neginf=0).abs()
    size = 1 + (float(sizes.amax()) if sizes.numel() else 0)
    return bool(torch.isclose(found, expected, rtol=digits, atol=digits * size, equal_nan=True).all())


def lengths_of(lengths: Any) -> Tensor:
    """Lengths in any form as integers."""
    return lengths if isinstance(lengths, Tensor) else torch.from_numpy(np.asarray(lengths).astype(np.int64))


class Log(NamedTuple):
    """A log-weight as a sum of two numbers, of which the second has what rounding takes from the first."""

    high: Tensor
    low: Tensor

    def plus(self, other: "Log") -> "Log":
        high, lost = _sum(self.high, other.high)
        return Log(*_sum(high, self.low + other.low + lost))

    def view(self, change: Callable[[Tensor], Tensor]) -> "Log":
        """With other axes."""
        return Log(change(self.high), change(self.low))

    def total(self, axis: int) -> "Log":
        """log sum exp over an axis."""
        top = self.high.amax(axis, keepdim=True)
        second = torch.where(self.high == top, self.low, -torch.inf).amax(axis, keepdim=True)
        rest = torch.where(self.high.isneginf(), -torch.inf, (self.high - top) + (self.low - second))
        number = torch.where(top.isneginf(), 0.0, rest.exp().sum(axis, keepdim=True).log() + second)
        return Log(*_sum(top, number)).view(lambda table: table.squeeze(axis))

    @property
    def number(self) -> Tensor:
        return self.high + self.low


def _sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The sum and what rounding takes from it (Knuth)."""
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)
    return total, torch.where(lost.isfinite(), lost, 0.0)


def log(table: Tensor) -> Log:
    table = table.detach().double()
    return Log(table, torch.zeros_like(table))


def product(a: Log, b: Log) -> Log:
    """[K] and [K, L] to [L]."""
    return a.view(lambda table: table.unsqueeze(-1)).plus(b).total(-2)


def chain(first: Log, moves: Sequence[Log], length: int) -> tuple[Tensor, Tensor]:
    """log-normaliser and P(s_t | x) [T, K] of weights [K] of the first step and [K, K] of each of the others."""
    T, K = len(moves) + 1, len(first.high)
    before, after = [first], [log(torch.zeros(K))]
    for move in moves[: length - 1]:
        before.append(product(before[-1], move))
    for move in reversed(moves[: length - 1]):
        after.insert(0, product(after[0], move.view(lambda table: table.mT)))
    states = [a.plus(b) for a, b in zip(before, after, strict=True)]
    shares = [(s.high - s.total(0).high) + (s.low - s.total(0).low) for s in states]
    state = torch.stack([torch.where(s.high.isneginf(), 0.0, p.exp()) for s, p in zip(states, shares, strict=True)])
    return before[-1].total(0).number, torch.cat([state, torch.zeros(T - length, K, dtype=torch.float64)])


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
        first = log(fresh[i, 0]) if start is None else product(log(start[i]), log(moves[0]))
        total, state = chain(first, [log(move) for move in moves[1:]], int(ends[i]))
        totals.append(total)
        states.append(state)
    empty = torch.zeros(0, dtype=torch.float64)
    total = torch.stack(totals) if totals else empty
    state = torch.stack(states) if states else empty
    return total.reshape(batch), state.reshape(*batch, T, K)


def factored_copy_chain(
    log_redraw: Tensor, log_hold: Tensor, log_state: Tensor, log_likelihood: Tensor, lengths: Any = None
) -> tuple[Tensor, Tensor]:
    """log-normaliser [*b] and P(s_t | x) [*b, T, K] of a factored copy chain."""
    first = torch.arange(log_likelihood.shape[-2]) == 0
    redraw = torch.where(first, 0.0, log_redraw.detach().double()).unsqueeze(-1)
    likelihood = log_likelihood.detach().double()
    fresh = likelihood + redraw + log_state.detach().double().unsqueeze(-2)
    return copy_chain(None, fresh, likelihood + log_hold.detach().double().unsqueeze(-1), lengths)


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
    found = []
    for i in range(len(flat)):
        moves = [log(table).plus(log(row)) for row in flat[i, 1:]]
        found.append(chain(log(start[i]).plus(log(flat[i, 0])), moves, int(ends[i])))
    empty = torch.zeros(0, dtype=torch.float64)
    total = torch.stack([total for total, _ in found]) if found else empty
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
    if dynamics == "Continuous":
        generator = own["rates"] - torch.diag(own["rates"].sum(-1))
        return markov_chain(own["initial_probs"].log(), torch.linalg.matrix_exp(generator).log(), table, lengths)
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
