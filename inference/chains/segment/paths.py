"""The best segmentation, and draws of segmentations, in torch alone."""

from typing import Any

import torch
from torch import Tensor

from ...numerics.randomness import invert
from ...numerics.threads import sum_of_steps
from .plain import EVERY, Bound, Forward, empty, grown, without
from .tables import Tables


def viterbi(tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """begun [N, T], log_probability [N], failed [N].

    A beginning is left out if a change before the next step is better whatever follows, as in PELT (Killick et al.
    2012): the best that follows a segment is at most `Bound`'s ratio times the best that follows a change. So the path
    is exact.
    """
    N, T = tables.log_base.shape
    device = tables.log_base.device
    live, a, hold = empty(tables), torch.zeros_like(tables.log_base[:, 0]), tables.log_base[:, :0]
    bound, prior = Bound(tables), tables.prior_evidence()
    gains, sources = [], [torch.zeros_like(tables.lengths)]
    failed = torch.full((N,), -1, device=device)
    for t in range(T):
        if t:
            change, hold = tables.change(torch.tensor(t, device=device), t - live.start)
            a, best = (live.weight + change).max(-1)
            sources.append(live.start[best])
        live = grown(tables, live, t, a, hold, prior)
        top = live.weight.amax(-1)
        impossible = ~(top.abs() < torch.inf)
        failed = torch.where((failed < 0) & impossible, t, failed)
        gains.append(torch.where(impossible, 0.0, top))
        live = live._replace(weight=live.weight - gains[-1].unsqueeze(-1))
        if t % EVERY == EVERY - 1 and t + 1 < T:
            live = without(live, bound.cost(live, t, torch.amax) < 0)
    begun = traced(torch.stack(sources, -1), live.start[live.weight.argmax(-1)])
    return begun, sum_of_steps(torch.stack(gains, -1)), failed


def traced(source: Tensor, start: Tensor) -> Tensor:
    """Where segments begin [N, T], from the beginning `source [N, T]` of the segment before each, and that of the last
    segment [N]."""
    begun, rows = torch.zeros_like(source, dtype=torch.bool), torch.arange(len(source), device=source.device)
    while True:
        begun[rows, start] = True
        if not bool((start > 0).any()):
            return begun
        start = source[rows, start]


def sample(tables: Tables, found: Forward, uniform: Tensor) -> Tensor:
    """begun [n, N, T], from uniform numbers [n, N, T]: backward, the beginning of each segment given its end."""
    begun = torch.zeros(uniform.shape, dtype=torch.bool, device=uniform.device)
    for sequence in range(uniform.shape[1]):
        length = int(tables.lengths[sequence])
        one = _sequence(tables, sequence)
        death, changes = found.death[sequence], found.log_change[sequence]
        last = torch.full(uniform.shape[:1], length - 1, device=uniform.device)
        first = _first_kept(death)
        for t in reversed(range(length)):
            draws = (last == t).nonzero().squeeze(-1)
            if len(draws):
                weight = _beginnings(one, found.log_increment[sequence], changes, t, first[t])
                kept = death[first[t] : t + 1] > t
                start = first[t] + invert(torch.where(kept, weight, 0.0), uniform[draws, sequence, t])
                begun[draws, sequence, start] = True
                last[draws] = start - 1
    return begun


def _sequence(tables: Tables, n: int) -> Tables:
    return tables._replace(
        priors=tuple(prior[n : n + 1] for prior in tables.priors),
        statistics=tuple(table[n : n + 1] for table in tables.statistics),
        log_base=tables.log_base[n : n + 1],
        log_change=tables.log_change[n : n + 1],
        log_hold=tables.log_hold[n : n + 1],
        lengths=tables.lengths[n : n + 1],
    )


def _first_kept(death: Tensor) -> list[int]:
    """For each step, the first beginning that is kept after it."""
    first, result = 0, []
    ends = death.tolist()
    for t in range(len(ends)):
        while ends[first] <= t:
            first += 1
        result.append(first)
    return result


def _beginnings(tables: Tables, increments: Tensor, changes: Tensor, t: int, first: int) -> Tensor:
    """P(a segment that ends at t began at `first`, ..., t | x_1..t, and a change after t unless t is the last step), up
    to a factor."""
    start = torch.arange(first, t + 1, device=changes.device)
    run = t + 1 - start
    backward = lambda table: table.flip(0).cumsum(0).flip(0)  # sums from each beginning to t
    sums = tuple(backward(table[0, first : t + 1]).unsqueeze(0) for table in tables.statistics)
    weight = tables.evidence(sums)[0] - tables.prior_evidence() + changes[first : t + 1]
    weight = weight + backward(tables.log_base[0, first : t + 1] - increments[first : t + 1])
    if tables.by_run:
        survived = tables.log_hold[0].cumsum(0)
        index = (run - 2).clamp(0, len(survived) - 1)
        beyond = (run - 1 - len(survived)).clamp_min(0)
        held = survived[index] + torch.where(beyond > 0, beyond * tables.log_hold[0, -1], 0.0)
        weight = weight + torch.where(run > 1, held, 0.0)
    else:
        weight = weight + backward(torch.cat([tables.log_hold[0, first + 1 : t + 1], tables.log_hold.new_zeros(1)]))
    if t + 1 < tables.lengths:
        weight = weight + tables.change(torch.tensor(t + 1, device=run.device), run)[0][0]
    return (weight - weight.amax()).exp()


def parameters(tables: Tables, begun: Tensor, generator: Any) -> tuple[Any, ...]:
    """By block, draws of the parameter at each step, as the family's points of [n, N, T, F, ...]."""
    number = begun.flatten(0, 1).cumsum(-1)
    rows = torch.arange(len(number), device=begun.device).unsqueeze(-1) * (tables.n_steps + 1)
    segments, place = (rows + number).unique(return_inverse=True)
    of_segment = segments // (tables.n_steps + 1) % len(tables.lengths)
    inside = tables.inside.expand(*begun.shape)
    points = []
    for family, prior, table in tables.blocks():
        each = table.expand(len(begun), *table.shape).flatten(0, 2)
        sums = prior[of_segment].index_add(0, place.flatten(), each)
        drawn = family.sample(sums, 1, generator)
        by_step = lambda part, place=place: _spread(part[0][place.flatten()].unflatten(0, begun.shape), inside)
        points.append(by_step(drawn) if isinstance(drawn, Tensor) else type(drawn)(*map(by_step, vars(drawn).values())))
    return tuple(points)


def _spread(part: Tensor, inside: Tensor) -> Tensor:
    return torch.where(inside.reshape(*inside.shape, *(1,) * (part.dim() - inside.dim())), part, torch.nan)
