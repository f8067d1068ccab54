r"""Semi-Markov chains in plain torch: all sequences, states and run lengths of a step at once, in logarithms.

With $m_t(k, r)$ the weight of all that ends at step t in a run of r steps of state k, $e_t$ that of a segment which
ends there, and $b_t$ that of one which begins at the next step,

$$m_t(k, 1) = b_{t-1}(k)\, l_t(k), \quad m_t(k, r) = m_{t-1}(k, r - 1)\, l_t(k), \quad
e_t(k) = \sum_r m_t(k, r)\, p_k(r), \quad b_t(k) = \sum_j e_t(j) A_{jk}$$

Backward, with $\gamma_t(k)$ the weight of all that follows if a segment of k begins after t, and $\beta_t(j)$ if one
of j ends at t,

$$\gamma_t(k) = \sum_d p_k(d) \prod_{u = t + 1}^{t + d} l_u(k)\, \beta_{t + d}(k), \qquad
\beta_t(j) = \sum_k A_{jk} \gamma_t(k)$$

The runs of the first segment have one length, the number of steps so far, and a row of durations of their own; so have
segments that reach the end. Each step is divided by its evidence $c_t$, in which runs may go on. Computed in float64.
Runs on any device, and autograd differentiates it any number of times. Arguments and results are those of `op`.
"""

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.logs import log_matmul, log_sum_exp
from ...numerics.randomness import invert
from ...numerics.threads import sum_of_steps


class Place(IntEnum):
    """The row of durations for a segment at some place of the sequence."""

    MIDDLE = 0
    LAST = 1
    FIRST = 2
    ONLY = 3


class _Steps(NamedTuple):
    """The tables in float64; a step after its sequence's end has likelihood 1 everywhere."""

    log_initial: Tensor  # [*B, K]
    transition: Tensor  # [.., S, K, K], where S is 1 if all moves have one table, or T - 1
    durations: Tensor  # [4, .., K, R], with R the smaller of D and T
    survivors: Tensor  # [2, .., K, R], of the rows MIDDLE and FIRST: that a run has lasted r steps or longer
    likelihood: Tensor  # [T, *B, K]
    lengths: Tensor  # [*B]

    def into(self, step: int) -> Tensor:
        """The transitions into a step but the first, [.., K, K]."""
        return self.transition[..., min(step, self.transition.shape[-3]) - 1, :, :]

    @property
    def never(self) -> Tensor:
        """The weight of runs of which there are none, [*B, K, R]."""
        return self.likelihood.new_full((*self.log_initial.shape, self.durations.shape[-1]), -torch.inf)


def survivors(log_duration: Tensor) -> Tensor:
    """log P(duration >= d), [.., D]."""
    top = log_duration.detach().amax(-1, keepdim=True)
    top = torch.where(top.isneginf(), 0.0, top)
    mass = (log_duration - top).exp().flip(-1).cumsum(-1).flip(-1)
    some = mass > 0
    return torch.where(some, torch.where(some, mass, 1.0).log(), -torch.inf) + top


def _steps(
    log_initial: Tensor, log_transition: Tensor, log_durations: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> _Steps:
    n_steps, n_states = log_likelihood.shape[-2:]
    active = torch.arange(n_steps, device=lengths.device) < lengths.unsqueeze(-1)
    rows = log_durations.double().movedim(-3, 0)
    rows = rows.reshape(4, *[1] * (lengths.dim() + 3 - rows.dim()), *rows.shape[1:])
    lasting = survivors(rows[:: Place.FIRST])
    return _Steps(
        log_initial.double().expand(*lengths.shape, n_states),
        log_transition.double(),
        rows[..., :n_steps],
        lasting[..., :n_steps],
        torch.where(active.unsqueeze(-1), log_likelihood.double(), 0.0).movedim(-2, 0),
        lengths,
    )


def _plus(a: Tensor, b: Tensor) -> Tensor:
    """log(e^a + e^b)."""
    return log_sum_exp(torch.stack(torch.broadcast_tensors(a, b)), 0)


def _at(rows: Tensor, step: int, like: Tensor) -> Tensor:
    """The entries of runs of so many steps plus one, shaped like a table [*B, K]; -inf if they are too long."""
    return rows[..., step].expand_as(like) if step < rows.shape[-1] else torch.full_like(like, -torch.inf)


class _Forward(NamedTuple):
    begins: Tensor  # [T, *B, K], log-weight of all before a segment that begins at a step
    ends: Tensor  # [T, *B, K], of all up to a segment that ends at a step
    predicted: Tensor  # [T, *B, K], log P(s_t | x_1..t-1)
    increment: Tensor  # [T, *B], log c_t
    end: Tensor  # [*B], log-weight of the end of the sequence, given all observations
    last: Tensor  # [*B, K], its parts by the last state


def _forward(steps: _Steps) -> _Forward:
    """Each weight is divided by the evidence of all steps up to the segment's last one, or before its first one."""
    begins, ends, predicted, increments = [], [], [], []
    (middle, last, first, only), (middle_lasts, first_lasts) = steps.durations, steps.survivors
    runs, since, enter = steps.never, steps.log_initial, steps.log_initial
    stops, at_end = set(steps.lengths.flatten().tolist()), torch.full_like(steps.log_initial, -torch.inf)
    for t, likelihood in enumerate(steps.likelihood.unbind(0)):
        if t:
            enter = log_matmul(ends[-1], steps.into(t))
            runs = torch.cat([enter.unsqueeze(-1), runs[..., :-1]], -1)
        state = _plus(log_sum_exp(runs + middle_lasts, -1), since + _at(first_lasts, t, since))
        scale = log_sum_exp(state + likelihood, -1)
        seen = likelihood - torch.where(scale.isfinite(), scale, 0.0).unsqueeze(-1)
        runs, since = runs + seen.unsqueeze(-1), since + seen
        end = _plus(log_sum_exp(runs + middle, -1), since + _at(first, t, since))
        if t + 1 in stops:
            final = _plus(log_sum_exp(runs + last, -1), since + _at(only, t, since))
            at_end = torch.where((steps.lengths == t + 1).unsqueeze(-1), final, at_end)
        begins.append(enter)
        ends.append(end)
        predicted.append(state)
        increments.append(scale)
    by_step = torch.stack(begins), torch.stack(ends), torch.stack(predicted), torch.stack(increments)
    return _Forward(*by_step, log_sum_exp(at_end, -1), at_end)


def _failed(steps: _Steps, forward: _Forward) -> Tensor:
    """The first step whose evidence is 0 or not a number, the last one if no segment can end there; or -1."""
    scale, t = forward.increment.movedim(0, -1), torch.arange(len(forward.increment), device=steps.lengths.device)
    last = steps.lengths.unsqueeze(-1) - 1
    bad = (t <= last) & ~scale.isfinite() | (t == last) & ~forward.end.isfinite().unsqueeze(-1)
    return torch.where(bad.any(-1), bad.byte().argmax(-1), -1)


def _increments(steps: _Steps, forward: _Forward) -> Tensor:
    """log p(x_t | x_1..t-1) [*B, T]; the last step's includes the end of the sequence."""
    t = torch.arange(len(forward.increment), device=steps.lengths.device)
    last = steps.lengths.unsqueeze(-1) - 1
    end = torch.where(t == last, forward.end.unsqueeze(-1), 0.0)
    return torch.where(t <= last, forward.increment.movedim(0, -1), 0.0) + end


def _scaled(steps: _Steps, forward: _Forward) -> Tensor:
    """Likelihoods divided by the evidence of their step, [T, *B, K]."""
    return steps.likelihood - torch.where(forward.increment.isfinite(), forward.increment, 0.0).unsqueeze(-1)


def log_normalizer(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T), [*B]; failed."""
    steps = _steps(*tables)
    forward = _forward(steps)
    return sum_of_steps(_increments(steps, forward)).to(tables[3].dtype), _failed(steps, forward)


def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    """log p(x_1..T) [*B]; P(s_t | x_1..t) and P(s_t | x_1..t-1), [*B, T, K]; log p(x_t | x_1..t-1) [*B, T]; failed."""
    steps = _steps(*tables)
    forward, dtype = _forward(steps), tables[3].dtype
    t = torch.arange(len(forward.increment), device=steps.lengths.device)
    last = (steps.lengths - 1)[..., None, None]
    step = t.unsqueeze(-1)
    state = (forward.predicted + _scaled(steps, forward)).movedim(0, -2)
    at_end = (forward.last - forward.end.unsqueeze(-1)).unsqueeze(-2)
    state = torch.where(step < last, state.exp(), torch.where(step == last, at_end.exp(), 0.0))
    predicted = torch.where(step <= last, forward.predicted.movedim(0, -2).exp(), 0.0)
    increment = _increments(steps, forward)
    results = sum_of_steps(increment), state, predicted, increment
    return *(x.to(dtype) for x in results), _failed(steps, forward)


def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    """What EM counts: log p(x) [*B]; P(s_t | x) and P(a segment of s begins at t | x), [*B, T, K]; expected numbers of
    moves [*B, S, K, K] and of segments by place, state and duration [*B, 4, K, D]; the entropy of the path [*B];
    failed.
    """
    steps = _steps(*tables)
    forward = _forward(steps)
    n_steps, n_rows = len(steps.likelihood), steps.durations.shape[-1]
    scaled = _scaled(steps, forward)
    end = torch.where(forward.end.isfinite(), forward.end, 0.0)[..., None]
    ahead, tail, after = (
        steps.never,
        torch.zeros_like(steps.log_initial),
        torch.full_like(steps.log_initial, -torch.inf),
    )
    begins, ends = [], []
    moves, n_tables = [], steps.transition.shape[-3]
    entropy = torch.zeros_like(forward.end)
    middle, last = torch.zeros_like(steps.never), torch.zeros_like(steps.never)
    first, only = middle, last
    for t in reversed(range(n_steps)):
        inside = (t < steps.lengths).unsqueeze(-1)
        ahead = torch.cat([after.unsqueeze(-1), ahead[..., :-1]], -1) + scaled[t].unsqueeze(-1)
        ahead = torch.where(inside.unsqueeze(-1), ahead, -torch.inf)
        tail = torch.where(inside, tail + scaled[t], 0.0)
        left = steps.lengths - t - 1  # the place of a segment's duration if it lasts to the end
        lasts = torch.nn.functional.one_hot(left.clamp(0, n_rows - 1), n_rows).bool()
        lasts = (lasts & ((left >= 0) & (left < n_rows)).unsqueeze(-1)).unsqueeze(-2)
        place = (Place.FIRST, Place.ONLY) if t == 0 else (Place.MIDDLE, Place.LAST)
        going = ahead + steps.durations[place[0]]
        ending = torch.where(lasts, tail.unsqueeze(-1) + steps.durations[place[1]], -torch.inf)
        follows = _plus(log_sum_exp(going, -1), log_sum_exp(ending, -1))
        before = forward.begins[t] - end
        begin = torch.where(inside, (before + follows).exp(), 0.0)
        norm = torch.where(follows.isneginf(), 0.0, follows).unsqueeze(-1)
        shares = [torch.where(inside.unsqueeze(-1), (part - norm).exp(), 0.0) for part in (going, ending)]
        entropy = entropy - (begin * sum(torch.special.xlogy(w, _floored(w)).sum(-1) for w in shares)).sum(-1)
        counted = [begin.unsqueeze(-1) * share for share in shares]
        if t:
            middle, last = middle + counted[0], last + counted[1]
            after = log_matmul(follows, steps.into(t).mT)
            ended = torch.where(inside, (forward.ends[t - 1] - end + after).exp(), 0.0)
            norm = torch.where(after.isneginf(), 0.0, after).unsqueeze(-1)
            to = torch.where(inside.unsqueeze(-1), (steps.into(t) + follows.unsqueeze(-2) - norm).exp(), 0.0)
            entropy = entropy - (ended * torch.special.xlogy(to, _floored(to)).sum(-1)).sum(-1)
            moved = ended.unsqueeze(-1) * to
            moves = [moves[0] + moved] if moves and n_tables == 1 else [*moves, moved]
        else:
            first, only, ended = *counted, torch.zeros_like(begin)
            entropy = entropy - torch.special.xlogy(begin, _floored(begin)).sum(-1)
        begins.append(begin)
        ends.append(ended)
    starts, stops = torch.stack(begins[::-1], -2), torch.stack(ends[::-1], -2)
    state = (starts - stops).cumsum(-2).clamp(0.0, 1.0)
    within = torch.arange(n_steps, device=state.device).unsqueeze(-1) < steps.lengths[..., None, None]
    possible = ~(forward.predicted + steps.likelihood).movedim(0, -2).isneginf()
    state = torch.where(within & possible, state, 0.0)
    counts = torch.stack([middle, last, first, only], -3)
    counts = torch.nn.functional.pad(counts, (0, tables[2].shape[-1] - n_rows))
    total, dtype = sum_of_steps(_increments(steps, forward)), tables[3].dtype
    none = state.new_zeros(*state.shape[:-2], n_tables, *counts.shape[-2:-1], *counts.shape[-2:-1])
    results = total, state, starts, torch.stack(moves[::-1], -3) if moves else none, counts, entropy
    return *(x.to(dtype) for x in results), _failed(steps, forward)


def _floored(p: Tensor) -> Tensor:
    """Probabilities of which a logarithm can be taken."""
    return p.clamp_min(torch.finfo(p.dtype).tiny)


def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    """The most probable path [*B, T], -1 after a sequence's end; failed. Among equally good ones, the last
    segment has the least state, then the shortest duration; then the segment before it."""
    steps = _steps(*tables)
    (middle, last, first, only), runs, since = steps.durations, steps.never, steps.log_initial
    lengths, stops = steps.lengths, set(steps.lengths.flatten().tolist())
    best, froms, begins, ends = None, [], [], []
    final, final_begin = torch.full_like(since, -torch.inf), torch.zeros_like(since, dtype=torch.int64)
    for t, likelihood in enumerate(steps.likelihood.unbind(0)):
        since = since + likelihood
        if best is not None:
            enter, origin = (best.unsqueeze(-1) + steps.into(t)).max(-2)
            froms.append(origin)
            runs = torch.cat([enter.unsqueeze(-1), runs[..., :-1]], -1) + likelihood.unsqueeze(-1)
        best, begin = _longest(runs + middle, since + _at(first, t, since), t)
        ends.append(best)
        begins.append(begin)
        if t + 1 in stops:
            here, at = _longest(runs + last, since + _at(only, t, since), t)
            stop = (lengths == t + 1).unsqueeze(-1)
            final, final_begin = torch.where(stop, here, final), torch.where(stop, at, final_begin)
    state = final.argmax(-1)
    begin = final_begin.gather(-1, state.unsqueeze(-1)).squeeze(-1)
    path = []
    for t in reversed(range(len(ends))):
        path.append(torch.where(t < lengths, state, -1))
        if t:
            jump = (t == begin) & (t < lengths)
            before = froms[t - 1].gather(-1, state.unsqueeze(-1)).squeeze(-1)
            state = torch.where(jump, before, state)
            begin = torch.where(jump, begins[t - 1].gather(-1, state.unsqueeze(-1)).squeeze(-1), begin)
    return torch.stack(path[::-1], -1), _failed(steps, _forward(steps))


def _longest(runs: Tensor, since: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The best weight of a segment that ends at a step, and the step where it begins."""
    weight, place = runs.max(-1)
    return torch.maximum(weight, since), torch.where(since > weight, 0, step - place)


def sample(*tables_and_uniform: Tensor) -> tuple[Tensor, ...]:
    """Paths [n, *B, T] drawn from the posterior, backward, by inverting the distributions of each segment's state and
    duration at uniform numbers [n, *B, T, 2] of its last step; failed."""
    *tables, uniform = tables_and_uniform
    steps = _steps(*tables)
    forward, lengths, shape = _forward(steps), steps.lengths, uniform.shape[:-2]
    scaled = _scaled(steps, forward)
    state, begin = torch.zeros(shape).to(lengths), torch.full(shape, len(scaled)).to(lengths)
    path = []
    for t in reversed(range(len(scaled))):
        ending = (lengths == t + 1).expand(shape)
        drawn = ending | ((begin == t + 1) & (t < lengths))
        if bool(drawn.any()):
            from_state = _entry(forward.ends[t].unsqueeze(-2) + steps.into(t + 1).mT, state)
            weight = torch.where(ending.unsqueeze(-1), forward.last, from_state)
            state = torch.where(drawn, _draw(weight, uniform[..., t, 0]), state)
            since = slice(max(0, t + 1 - steps.durations.shape[-1]), t + 1)
            ran = (forward.begins[since].flip(0) + scaled[since].flip(0).cumsum(0)).movedim(0, -1)
            parts = [
                ran + _rows(steps, t, *places) for places in ((Place.MIDDLE, Place.FIRST), (Place.LAST, Place.ONLY))
            ]
            going, at_end = (_entry(part, state) for part in parts)
            duration = _draw(torch.where(ending.unsqueeze(-1), at_end, going), uniform[..., t, 1])
            begin = torch.where(drawn, t - duration, begin)
        path.append(torch.where(t < lengths, state, -1))
    return torch.stack(path[::-1], -1), _failed(steps, forward)


def _rows(steps: _Steps, t: int, place: Place, first: Place) -> Tensor:
    """The weights of durations 1, 2, .. of a segment that ends at step t, [.., K, R]."""
    n = steps.durations.shape[-1]
    rows = steps.durations[place][..., : t + 1]
    return rows if t >= n else torch.cat([rows[..., :-1], steps.durations[first][..., t : t + 1]], -1)


def _entry(table: Tensor, state: Tensor) -> Tensor:
    """The row [n, *B, X] of each draw's state in a table [*B, K, X]."""
    table = table.expand(*state.shape, *table.shape[-2:])
    return table.gather(-2, state[..., None, None].expand(*state.shape, 1, table.shape[-1])).squeeze(-2)


def _draw(log_weight: Tensor, uniform: Tensor) -> Tensor:
    """One index for each row; 0 if no weight is finite."""
    top = log_weight.amax(-1, keepdim=True)
    weight = (log_weight - torch.where(top.isfinite(), top, 0.0)).exp()
    return invert(weight, uniform.unsqueeze(-1)).squeeze(-1)
