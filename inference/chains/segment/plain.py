r"""Segments in torch alone, for all families and devices: a loop over steps forward, blocks of beginnings backward.

With $a_j$ the probability of a change before j given $x_{1..j-1}$, and $w_t(j)$ that of a segment since j given
$x_{1..t}$, all tables hold numbers relative to the evidence so far:

$$w_t(j) = a_j \prod_{s=j}^t p(x_s \mid x_{j..s-1}) (1 - h_s) / c_s, \qquad a_{t+1} = \sum_j w_t(j)\, h_{t+1}(j), \qquad
P_j = \sum_{t \ge j} P_{t+1}\, w_t(j)\, h_{t+1}(j) / a_{t+1}$$

$P_j$ is the probability of a change before j given x, and $P_{T+1} = a_{T+1} = h_{T+1} = 1$. The terms of its sum are
the probabilities of the segments j..t. The statistics of a segment are summed from its beginning, so memory is linear
in T.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...numerics.logs import log_sum_exp
from ...numerics.threads import sum_of_steps
from .tables import Filtered, Tables

Function = Callable[[Tensor], Tensor]  # kernels know it by its `kernel`, if it has that, as families have
Functions = tuple[Function, ...]  # by block
PAIRS = 1 << 20  # numbers of a block of beginnings and ends, for the sake of memory
_ROWS = 256  # beginnings of a block at most
EVERY = 8  # steps after which beginnings are left out


class Forward(NamedTuple):
    log_increment: Tensor  # [N, T], log c_t
    log_change: Tensor  # [N, T], log a_t
    death: Tensor  # [N, T], the step after which the beginning j is left out; T if it never is
    left_out: Tensor  # [N]
    failed: Tensor  # [N], the first impossible step, or -1
    entropy: Tensor  # [N, T], of the beginning before a change before t
    weight: Tensor  # [N, T], log, of a beginning of the last segment; -inf if it is left out


class Live(NamedTuple):
    """The beginnings that are kept, R of them."""

    start: Tensor  # [R]
    sums: tuple[Tensor, ...]  # [N, R, F, D]
    normalizer: Tensor  # [N, R]
    weight: Tensor  # [N, R], log


def empty(tables: Tables) -> Live:
    none = tables.log_base[:, :0]
    sums = tuple(prior.new_zeros(len(prior), 0, *prior.shape[1:]) for prior in tables.priors)
    return Live(torch.zeros(0, dtype=torch.int64, device=none.device), sums, none, none)


def grown(tables: Tables, live: Live, t: int, log_change: Tensor, hold: Tensor, prior: Tensor) -> Live:
    """The beginnings after step t, before which there was a change with probability exp(log_change [N]); `prior [N]` is
    the log-normalizer of the priors."""
    sums = tuple(
        torch.cat([old, torch.zeros_like(step).unsqueeze(1)], 1) + step.unsqueeze(1)
        for old, step in zip(live.sums, (table[:, t] for table in tables.statistics), strict=True)
    )
    before = torch.cat([live.normalizer, prior.unsqueeze(-1)], -1)
    normalizer = tables.evidence(sums)
    weight = torch.cat([live.weight + hold, log_change.unsqueeze(-1)], -1)
    weight = weight + (normalizer - before) + tables.log_base[:, t, None]
    start = torch.cat([live.start, live.start.new_tensor([t])])
    return Live(start, sums, normalizer, weight)


def log_normalizer(tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """log p(x) [N], left_out [N], failed [N]."""
    found, _ = forward(tables)
    return total(found), found.left_out, found.failed


def total(found: Forward) -> Tensor:
    """log p(x) [N]."""
    return sum_of_steps(found.log_increment)


def forward(tables: Tables, expect: Sequence[Function] | None = None) -> tuple[Forward, Filtered | None]:
    """The pass over all steps; what the filter says, with expectations by block, if some are wanted."""
    N, T = tables.log_base.shape
    device = tables.log_base.device
    live, a = empty(tables), torch.zeros_like(tables.log_base[:, 0])
    increments, changes, entropies, looks = [], [], [], []
    death, spent = torch.full((N, T), T, device=device), torch.zeros_like(a)
    failed = torch.full((N,), -1, device=device)
    hold, shares = live.weight, live.weight
    bound, prior = None if tables.tol == 0 else Bound(tables), tables.prior_evidence()
    for t in range(T):
        if t:
            change, hold = tables.change(torch.tensor(t, device=device), t - live.start)
            shares = live.weight + change
            a = log_sum_exp(shares, -1)
        changes.append(a)
        conditional = (shares - a.unsqueeze(-1)).exp().nan_to_num(0.0)
        entropies.append(-torch.xlogy(conditional, conditional).sum(-1))
        live = grown(tables, live, t, a, hold, prior)
        increment = log_sum_exp(live.weight, -1)
        impossible = ~(increment.abs() < torch.inf)
        failed = torch.where((failed < 0) & impossible, t, failed)
        increments.append(torch.where(impossible, 0.0, increment))
        live = live._replace(weight=live.weight - increments[-1].unsqueeze(-1))
        if expect is not None:
            looks.append(_look(tables, live, t, expect))
        if bound is not None and t % EVERY == EVERY - 1 and t + 1 < T:
            live, spent = bound.shortened(live, t, spent, death)
    stack = lambda parts: torch.stack(parts, -1)
    weight = torch.full_like(tables.log_base, -torch.inf).index_copy(1, live.start, live.weight)
    found = Forward(stack(increments), stack(changes), death, spent, failed, stack(entropies), weight)
    if expect is None:
        return found, None
    begun, run, *expected = zip(*looks, strict=True)
    return found, Filtered(stack(begun), stack(run), tuple(torch.stack(parts, 1) for parts in expected))


def _look(tables: Tables, live: Live, t: int, expect: Sequence[Function]) -> list[Tensor]:
    """What the filter says after step t: P(a segment begins at t), the expected run, and expectations by block."""
    weight = live.weight.exp()
    result, by_entry = [weight[:, -1], (weight * (t + 1 - live.start)).sum(-1)], weight[..., None, None]
    for function, prior, sums in zip(expect, tables.priors, live.sums, strict=True):
        values = function(prior.unsqueeze(1) + sums)
        result.append(torch.where(by_entry > 0, by_entry * values, 0.0).sum(1))
    return result


class Bound:
    r"""Leaves beginnings out, so that their paths have a share of at most `tol` in the posterior.

    Let G be the evidence of all that follows step t if there is a change before t+1, and $\rho_j$ the greatest ratio of
    the posterior and the prior density of the parameter of a segment j..t. The density of the parameter after step t
    given a change is the prior, so all that follows t has the evidence of at most $\rho_j G$ under a segment since j,
    whose hazards are those of a new one. So what a path left out with the filtered probability w has in p(x) is at most

    $$w_t(j)\, \rho_j\, G \le \frac{w_t(j)\, \rho_j}{a_{t+1}}\, p(x), \qquad
    \log \rho_j = \sup_\theta \log p(x_{j..t} \mid \theta) - \log p(x_{j..t}).$$

    Hazards that depend on the run change the evidence by a factor: `of_hazards`.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.prior: Tensor = tables.prior_evidence().unsqueeze(-1)
        self.by_run: Tensor | None = of_hazards(tables.log_change, tables.log_hold) if tables.by_run else None

    def cost(self, live: Live, t: int, total: Callable[[Tensor, int], Tensor] = log_sum_exp) -> Tensor:
        """[N, R], log of the bound of the share of each beginning; `total` sums the weights of changes."""
        tables, run = self.tables, t + 1 - live.start
        next_step = torch.tensor(t + 1, device=run.device)
        change, hold = tables.change(next_step, run)
        likelihood = (tables.suprema(live.sums) - (live.normalizer - self.prior)).clamp_min(0.0)
        if self.by_run is not None:
            likelihood = likelihood + self.by_run[:, run.clamp(max=self.by_run.shape[-1]) - 1]
            likelihood = torch.logaddexp(likelihood + hold, change)
        cost = live.weight + likelihood - total(live.weight + change, -1).unsqueeze(-1)
        within = (next_step < tables.lengths).unsqueeze(-1)
        return torch.where(within & (live.weight > -torch.inf), cost, torch.inf).nan_to_num(torch.inf, posinf=torch.inf)

    def shortened(self, live: Live, t: int, spent: Tensor, death: Tensor) -> tuple[Live, Tensor]:
        """The beginnings without those that an equal share of the budget up to step t allows to leave out, which
        `death` gets; and what has been left out so far."""
        share = (self.tables.tol * (t + 1) / self.tables.n_steps - spent) / (live.weight > -torch.inf).sum(-1)
        cost = self.cost(live, t).exp()
        out = cost < share.unsqueeze(-1)
        spent = spent + torch.where(out, cost, 0.0).sum(-1)
        rows, places = out.nonzero(as_tuple=True)
        death[rows, live.start[places]] = t
        return without(live, out), spent


def kept(tables: Tables, found: Forward) -> Live:
    """The beginnings at the end, of all sequences."""
    start = ((found.death == tables.n_steps) & tables.inside).any(0).nonzero().squeeze(-1)
    first = int(start[0]) if len(start) else 0
    sums = tuple(table[:, first:].flip(1).cumsum(1).flip(1)[:, start - first] for table in tables.statistics)
    return Live(start, sums, tables.evidence(sums), found.weight[:, start])


def without(live: Live, out: Tensor) -> Live:
    """The beginnings without some [N, R]."""
    weight = live.weight.masked_fill(out, -torch.inf)
    if not len(weight):
        return live
    kept = (weight > -torch.inf).any(0).nonzero().squeeze(-1)
    sums = tuple(part[:, kept] for part in live.sums)
    return Live(live.start[kept], sums, live.normalizer[:, kept], weight[:, kept])


def of_hazards(log_change: Tensor, log_hold: Tensor) -> Tensor:
    """[N, H], log of the greatest ratio of the probabilities of an end in d steps after a run of r steps that did not
    end, and of a new segment that ends after d steps; d >= 1, and a segment may also not end."""
    H = log_change.shape[-1]
    survived = pad(log_hold.cumsum(-1), (1, 0))  # log P(more than r steps), r = 0..H
    result, d = torch.empty_like(log_change), torch.arange(1, H + 1, device=log_change.device)
    for r in range(1, H + 1):
        later = torch.minimum(r + d, d.new_tensor(H))
        beyond = (r + d - H).clamp_min(0).to(log_hold)
        last = torch.where(beyond > 0, beyond * log_hold[:, -1:], 0.0)
        lasting = survived[:, later] + last - survived[:, r : r + 1]
        ends = pad(lasting[:, :-1], (1, 0)) + log_change[:, later - 1]
        new_lasting, new_ends = survived[:, 1:], survived[:, :-1] + log_change
        ratio = torch.maximum(_excess(lasting, new_lasting), _excess(ends, new_ends)).amax(-1)
        result[:, r - 1] = ratio.clamp_min(0.0)
    return result


def _excess(log_p: Tensor, log_q: Tensor) -> Tensor:
    return torch.where(log_p == -torch.inf, -torch.inf, log_p - log_q).nan_to_num(torch.inf, neginf=-torch.inf)


class Smoothed(NamedTuple):
    change: Tensor  # [N, T], P_j
    expected: tuple[Tensor, ...]  # by block [N, T, F, M]
    first: tuple[Tensor, ...]  # by block [N, F, M], sums over beginnings of the expectation at the first step
    ended: (
        Tensor | None
    )  # [N, T], expected number of segments of 1, 2, ... steps that a change ended, of hazards by run
    last: Tensor | None  # [N, T], probability that the last segment has 1, 2, ... steps


def smooth(tables: Tables, found: Forward, expect: Sequence[Function]) -> Smoothed:
    """The posterior of changes and expectations given all steps, from the last beginnings to the first; of no
    expectations, if `expect` is empty."""
    T = tables.n_steps
    found = found._replace(death=found.death.clamp(0, T))
    change = pad(torch.zeros_like(tables.log_base), (0, 1), value=1.0)
    expected: list[Any] = [0.0] * len(expect)
    first: list[Any] = [0.0] * len(expect)
    ended, last = torch.zeros_like(tables.log_base), torch.zeros_like(tables.log_base)
    for begin, end in reversed(_parts(tables, found.death)):
        start = torch.arange(begin, end, device=change.device)
        stop = int(found.death[:, begin:end].amax()) if len(change) else T
        sums, to_change, to_end = columns(tables, found, start, stop)
        share = _shares(to_change, to_end, change, start, stop)
        ends = torch.arange(begin, stop, device=change.device)
        run = (ends - start.unsqueeze(-1)).clamp_min(0).expand_as(share)
        final = share * (ends == (tables.lengths - 1)[:, None, None])
        last.scatter_add_(1, run.flatten(1), final.flatten(1))
        ended.scatter_add_(1, run.flatten(1), (share - final).flatten(1))
        for k, (function, prior, table) in enumerate(zip(expect, tables.priors, sums, strict=bool(expect))):
            values = function(prior[:, None, None] + table)
            by_end = torch.where(share[..., None, None] > 0, share[..., None, None] * values, 0.0)
            later = by_end.flip(2).cumsum(2).flip(2)  # of ends at a step or after it
            begun = (ends >= start.unsqueeze(-1))[..., None, None]
            by_step = torch.where(begun, later, 0.0).sum(1)
            expected[k] = expected[k] + pad(by_step, (0, 0, 0, 0, begin, T - stop))
            first[k] = first[k] + by_end.sum((1, 2))
    expected = [table * tables.inside[..., None, None] for table in expected]
    return Smoothed(change[:, :T], tuple(expected), tuple(first), ended, last)


def _parts(tables: Tables, death: Tensor) -> list[tuple[int, int]]:
    """Ranges of beginnings, of which a block with all ends is not too large."""
    N, T = tables.log_base.shape
    size, parts, begin = N * sum(prior.shape[1:].numel() for prior in tables.priors), [], 0
    while begin < T:
        rows = min(T - begin, _ROWS)
        while rows > 1 and size > 0 and size * rows * (int(death[:, begin : begin + rows].amax()) - begin) > PAIRS:
            rows //= 2
        parts.append((begin, begin + rows))
        begin += rows
    return parts


def columns(tables: Tables, found: Forward, start: Tensor, stop: int) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Segments that begin at `start [C]` and end at W steps, start[0] to stop - 1: the sums of their statistics, the
    log probability [N, C, W] that a segment began at `start` given a change after the end and all steps until it; and
    given that the sequence ends there."""
    begin, T = int(start[0]), tables.n_steps
    ends = torch.arange(begin, stop, device=start.device)
    run = ends - start.unsqueeze(-1) + 1  # [C, W]
    begun = run > 0
    sums = tuple(
        torch.where(begun[..., None, None], table[:, None, begin:stop], 0.0).cumsum(2) for table in tables.statistics
    )
    prior = tables.prior_evidence()[:, None, None]
    hold = tables.change(ends, (run - 1).clamp_min(1))[1]
    step = torch.where(run > 1, hold, 0.0) + (tables.log_base - found.log_increment)[:, None, begin:stop]
    weight = tables.evidence(sums) - prior + torch.where(begun, step, 0.0).cumsum(-1)
    weight = weight + found.log_change[:, start].unsqueeze(-1)
    kept = begun & (ends < found.death[:, start].unsqueeze(-1))
    after = (ends + 1).clamp(max=T - 1)
    change = torch.where(ends + 1 < T, tables.change(after, run.clamp_min(1))[0], -torch.inf)
    total = found.log_change[:, None, after]  # -inf if no segment ends here
    to_change = torch.where(kept & (change > -torch.inf) & (total > -torch.inf), weight + (change - total), -torch.inf)
    to_end = torch.where(kept & (ends == (tables.lengths - 1)[:, None, None]), weight, -torch.inf)
    return sums, to_change, to_end


def _shares(to_change: Tensor, to_end: Tensor, change: Tensor, start: Tensor, stop: int) -> Tensor:
    """The probabilities [N, C, W] of segments given x; `change [N, T + 1]` gets those of their beginnings."""
    begin, share = int(start[0]), to_end.exp()
    conditional = to_change.exp()
    for c in reversed(range(len(start))):
        share[:, c] += conditional[:, c] * change[:, begin + 1 : stop + 1]
        change[:, begin + c] = share[:, c].sum(-1)
    return share
