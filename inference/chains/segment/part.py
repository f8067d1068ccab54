r"""Some steps of a longer series of segments: the segment in force at the first step may have begun before it.

Consecutive parts share a step, as those of every chain (`Chain.between`). The state at a step is the parameter and the
length of the run. Before the first step it is a mixture of R beginnings (`Runs`). All that follows the last step has a
weight for each state, a mixture over the end of the segment in force: with e more steps of it, whose statistics are
$S_e$,

$$\beta(\theta, r) = \sum_e w_e(r)\, e^{\langle S_e, t(\theta) \rangle}, \qquad
w_e(r) = \prod_{s \le e} h(x_s)\,(1 - h_s)\; h_{e+1} B_{e+1},$$

where $B_{e+1}$ is the evidence of later steps given a change before the first of them (`Later`). All segments stand in
one table, so memory is O((R + T) T); parts are short.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ...numerics.checks import check_possible
from ...numerics.logs import log_sum_exp
from ...numerics.randomness import Seed, generator_of, invert
from ...numerics.scalars import check_integer
from ..contract import Viterbi
from .plain import Function
from .records import FilteredSegments, Later, Runs, SampledSegments, SmoothedSegments, tables_of
from .tables import Tables


@dataclass(frozen=True)
class EverySegment:
    """Every segment of N series: B beginnings, R of them before or at the first step, and T ends.

    `start [B]` is the first step of the part in a segment; `first [N, B]` its run at that step.
    """

    start: Tensor
    first: Tensor
    begun: Tensor  # [N, B], log weight of a beginning at the first step; of later ones -inf
    sums: tuple[Tensor, ...]  # by block [N, B, T, F, D]
    evidence: Tensor  # [N, B, T], sums of the log-normalizers
    weight: Tensor  # [N, B, T], log weight of the steps from the beginning to the end
    change: Tensor  # [N, B, T], log P(change after the end)


def segments_of(tables: Tables, before: Runs | None) -> EverySegment:
    T, N, device = tables.n_steps, len(tables.lengths), tables.lengths.device
    steps = torch.arange(T, device=device)
    prior = tables.prior_evidence()
    if before is None:
        sums = tuple(table[:, :1] for table in tables.statistics)
        length, at_start = torch.ones(N, 1, dtype=torch.int64, device=device), tables.evidence(sums)
        begun = at_start - prior.unsqueeze(-1) + tables.log_base[:, :1]
    else:
        sums = tuple(table.double().reshape(N, *table.shape[-3:]) for table in before.statistics)
        length, begun = (table.reshape(N, table.shape[-1]) for table in (before.length, before.log_weight.double()))
        at_start = tables.evidence(sums)
    R = length.shape[-1]
    start = torch.cat([steps.new_zeros(R), steps[1:]])
    first = pad(length, (0, T - 1), value=1)
    added = steps >= torch.cat([steps.new_ones(R), steps[1:]]).unsqueeze(-1)  # [B, T]
    of_start = (pad(part, (0, 0, 0, 0, 0, T - 1)).unsqueeze(2) for part in sums)
    each = (torch.where(added[..., None, None], table.unsqueeze(1), 0.0) for table in tables.statistics)
    total = tuple(old + new.cumsum(2) for old, new in zip(of_start, each, strict=True))
    evidence = tables.evidence(total)
    run = first.unsqueeze(-1) + (steps - start.unsqueeze(-1)).clamp_min(0)  # at each end
    hold = gates(tables, steps, (run - 1).clamp_min(1))[1]
    later = (steps > start.unsqueeze(-1)) & added
    step = torch.where(added, tables.log_base.unsqueeze(1), 0.0) + torch.where(later, hold, 0.0)
    from_prior = torch.cat([at_start, prior.unsqueeze(-1).expand(N, T - 1)], -1).unsqueeze(-1)
    return EverySegment(
        start,
        first,
        pad(begun, (0, T - 1), value=-torch.inf),
        total,
        evidence,
        evidence - from_prior + step.cumsum(-1),
        gates(tables, steps + 1, run)[0],
    )


def gates(tables: Tables, step: Tensor, run: Tensor) -> tuple[Tensor, Tensor]:
    """log P(change before `step [T]`) and log P(none) after runs [N, X, T]; as `Tables.change`."""
    within = step < tables.lengths[:, None, None]
    size = tables.log_change.shape[-1]
    index = run.clamp(1, size) - 1 if tables.by_run else step.clamp(max=size - 1).expand_as(run)
    change, hold = (t.gather(1, index.flatten(1)).reshape(run.shape) for t in (tables.log_change, tables.log_hold))
    return torch.where(within, change, -torch.inf), torch.where(within, hold, 0.0)


class SegmentPart:
    """The posterior over the segments of some steps of a longer series; made by `SegmentChain.between`.

    Methods are those of `SegmentChain`, exact, and differentiable in `log_normalizer`. Beginnings before the first step
    are distinguished: `viterbi` takes the best one, `entropy` counts them. The number of the segment at the first step
    is 0.
    """

    chain: Any
    after: Later | None
    batch_shape: Any
    n_steps: Any
    lengths: Any

    def __init__(self, chain: Any, before: Runs | None, after: Later | None) -> None:
        self.chain, self.after, self.batch_shape, self.n_steps = chain, after, chain.batch_shape, chain.n_steps
        self.lengths, self._tables, self._before = chain.lengths, chain._tables(), before
        self._all = segments_of(self._tables, before)

    # ---- messages ----------------------------------------------------------------------------------------------------

    @cached_property
    def _later(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """By segment in force at the end and by its later end, the log weight [N, B, E] and the sums of statistics
        [N, B, E, F, D]."""
        every, N = self._all, len(self._tables.lengths)
        ends = tuple(table[:, :, -1:] for table in every.sums)
        if self.after is None:
            return torch.zeros_like(every.weight[..., -1:]), ends
        weight = self.after.log_weight.double().reshape(N, *self.after.log_weight.shape[-2:])
        run = every.first + (self._tables.lengths.unsqueeze(-1) - 1 - every.start).clamp_min(0)
        row = run.clamp(1, weight.shape[1]) - 1
        weight = weight.gather(1, row.unsqueeze(-1).expand(*row.shape, weight.shape[-1]))
        later = (table.double().reshape(N, 1, *table.shape[-3:]) for table in self.after.statistics)
        sums = tuple(end + more for end, more in zip(ends, later, strict=True))
        return weight + self._tables.evidence(sums) - every.evidence[..., -1:], sums

    @cached_property
    def _gain(self) -> Float[Tensor, "N B"]:
        return log_sum_exp(self._later[0], -1)

    def _forward(self, total: Any = log_sum_exp) -> tuple[Tensor, list[Tensor]]:
        """The log weight of each beginning [N, B], and by change the weights [N, <B] of the segments before it."""
        every, R = self._all, self._all.start.numel() - self.n_steps + 1
        begun, before = every.begun[:, :R], []
        for step in range(1, self.n_steps):
            rows = R + step - 1
            before.append(begun + every.weight[:, :rows, step - 1] + every.change[:, :rows, step - 1])
            begun = torch.cat([begun, total(before[-1], -1).unsqueeze(-1)], -1)
        return begun, before

    @cached_property
    def _posterior(self) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        """P(beginning | x) [N, B], P(the last segment) [N, B], the shares of the segments before each change, and
        P(a segment and a change after it | x) [N, B, T]."""
        begun, before = self._forward()
        last = _softmax(begun + self._all.weight[..., -1] + self._gain)
        shares = [_softmax(weight) for weight in before]
        total, ended = last.clone(), torch.zeros_like(self._all.weight)
        for step in reversed(range(1, self.n_steps)):
            share = shares[step - 1]
            n = share.shape[-1]
            ended[:, :n, step - 1] = share * total[:, n : n + 1]
            total[:, :n] += ended[:, :n, step - 1]
        return total, last, shares, ended

    # ---- the contract ------------------------------------------------------------------------------------------------

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log p of the steps of this part after the first given `before`, and of what follows: [*b]. Without `before`,
        that of the first step too."""
        value = log_sum_exp(self._forward()[0] + self._all.weight[..., -1] + self._gain, -1)
        self._check(value.detach())
        return self._shaped(value)

    @torch.no_grad()
    def filter(self, expect: Any = None) -> FilteredSegments:
        """The belief after each step; at the last one given what follows too."""
        every, functions, inside = self._all, self._functions(expect), self._tables.inside
        steps = torch.arange(self.n_steps, device=every.start.device)
        last = steps == (self._tables.lengths - 1).unsqueeze(-1)
        table = self._forward()[0].unsqueeze(-1) + every.weight
        table = torch.where(last.unsqueeze(1), table + self._gain.unsqueeze(-1), table)
        table = torch.where(every.start.unsqueeze(-1) <= steps, table, -torch.inf)
        total = log_sum_exp(table, 1)
        self._check(total[:, -1], total)
        weight = (table - total.unsqueeze(1)).exp() * inside.unsqueeze(1)
        run = every.first.unsqueeze(-1) + (steps - every.start.unsqueeze(-1)).clamp_min(0)
        expected = []
        for k, function in enumerate(functions):
            prior, final = self._tables.priors[k][:, None, None], self._final(k, function, _softmax(self._later[0]))
            values = function(prior + every.sums[k])
            values = torch.where(last[:, None, :, None, None], final.unsqueeze(2), values)
            entry = weight[..., None, None]
            expected.append(self._shaped(torch.where(entry > 0, entry * values, 0.0).sum(1)))
        increment = (total - pad(total[:, :-1], (1, 0))) * inside
        begun = torch.where(run == 1, weight, 0.0).sum(1)
        value, increment, begun, run = map(self._shaped, (total[:, -1], increment, begun, (weight * run).sum(1)))
        return FilteredSegments(value, increment, begun, run, tuple(expected), self._left_out())

    @torch.no_grad()
    def smooth(self, expect: Any = None) -> SmoothedSegments:
        """The belief given all steps of the series."""
        every, (begun, last, _, ended) = self._all, self._checked_posterior()
        steps = torch.arange(self.n_steps, device=every.start.device)
        inside, expected = self._tables.inside, []
        for k, function in enumerate(self._functions(expect)):
            values = function(self._tables.priors[k][:, None, None] + every.sums[k])
            by_end = torch.where(ended[..., None, None] > 0, ended[..., None, None] * values, 0.0)
            by_end[:, :, -1] += self._final(k, function, last.unsqueeze(-1) * _softmax(self._later[0]))
            later = by_end.flip(2).cumsum(2).flip(2)
            there = (every.start.unsqueeze(-1) <= steps)[..., None, None]
            expected.append(self._shaped(torch.where(there, later, 0.0).sum(1) * inside[..., None, None]))
        R = every.start.numel() - self.n_steps + 1
        first = torch.where(every.first[:, :R] == 1, begun[:, :R], 0.0).sum(-1, keepdim=True)
        change = torch.cat([first, begun[:, R:]], -1)
        evidence = self._shaped(self._value)
        n_changes = self._shaped(change[:, 1:].sum(-1))
        return SmoothedSegments(evidence, self._shaped(change), n_changes, tuple(expected), self._left_out())

    def change_probability(self) -> Float[Tensor, "*b T"]:
        """P(a segment begins at t | x); 0 at the first step, as of all chains."""
        change = self.smooth().change
        return torch.cat([torch.zeros_like(change[..., :1]), change[..., 1:]], -1)

    @torch.no_grad()
    def entropy(self) -> Float[Tensor, "*b"]:
        """Entropy of the posterior over beginnings of segments, in nats, [*b]."""
        begun, last, shares, _ = self._checked_posterior()
        total = -torch.xlogy(last, last).sum(-1)
        for share in shares:
            total = total - begun[:, share.shape[-1]] * torch.xlogy(share, share).sum(-1)
        return self._shaped(total)

    @torch.no_grad()
    def viterbi(self) -> Viterbi:
        """The most probable beginnings of segments, parameters and later steps integrated out, and their log joint."""
        begun, before = self._forward(torch.amax)
        value, row = (begun + self._all.weight[..., -1] + self._gain).max(-1)
        self._check(value)
        sources = [weight.argmax(-1) for weight in before]
        return Viterbi(*self._path(row.unsqueeze(0), lambda step: sources[step - 1].unsqueeze(0), value))

    @torch.no_grad()
    def sample(self, n: int, seed: Seed = None) -> SampledSegments:
        """n independent draws of the segmentation and the parameters given all steps of the series."""
        n, device = check_integer("n", n), self.lengths.device
        generator, (_, last, shares, _) = generator_of(seed, device), self._checked_posterior()

        def drawn(weight: Tensor) -> Tensor:
            uniform = torch.rand(len(weight), n, generator=generator, dtype=torch.float64, device=device)
            return invert(weight, uniform).mT  # [n, N]

        rows, begun = self._traced(drawn(last), lambda step: drawn(shares[step - 1]))
        end = drawn(_softmax(self._later[0]).flatten(0, 1)).reshape(n, *last.shape)
        points = tuple(self._points(k, rows, begun, end, generator) for k in range(len(self.chain.blocks)))
        path = self._numbered(begun)
        shape = n, *self.batch_shape, self.n_steps
        return SampledSegments(path.reshape(shape), begun.reshape(shape), points)

    @torch.no_grad()
    def runs(self) -> Runs:
        """The belief about the segment in force at the end of this part, without what follows: `before` of the next
        part."""
        every, tables = self._all, self._tables
        weight = self._forward()[0] + every.weight[..., -1]
        value = log_sum_exp(weight, -1)
        self._check(value)
        run = every.first + (tables.lengths.unsqueeze(-1) - 1 - every.start).clamp_min(0)
        sums = tuple(self._shaped(table[:, :, -1]) for table in every.sums)
        natural = tuple(
            self._shaped(prior.unsqueeze(1) + table[:, :, -1])
            for prior, table in zip(tables.priors, every.sums, strict=True)
        )
        belief = self._shaped(weight - value.unsqueeze(-1))
        known = self._shaped(every.evidence[..., -1]), self._shaped(value), self._left_out()
        return Runs(run.reshape(*self.batch_shape, run.shape[-1]), belief, sums, natural, *known, self.lengths)

    @torch.no_grad()
    def later(self) -> Later:
        """The weight of all that follows the first step, given the segment in force there: `after` of the part before.

        The segment in force goes on for 0, 1, ... steps of this part, or to its end and beyond.
        """
        every, tables, T = self._all, self._tables, self.n_steps
        N, R, device = len(tables.lengths), every.start.numel() - T + 1, every.start.device
        fresh = torch.full((N, T + 1), -torch.inf, dtype=torch.float64, device=device)  # evidence from a change on
        for step in reversed(range(1, T)):
            weight = every.weight[:, R + step - 1, step:]
            ends = weight + every.change[:, R + step - 1, step:] + fresh[:, step + 1 :]
            fresh[:, step] = log_sum_exp(
                torch.cat([ends, (weight[:, -1] + self._gain[:, R + step - 1])[:, None]], -1), -1
            )
        steps, H = torch.arange(T, device=device), tables.log_change.shape[-1] if tables.by_run else 1
        run = torch.arange(1, H + 1, device=device).unsqueeze(-1) + steps  # at each end
        hold = gates(tables, steps, (run - 1).clamp_min(1).expand(N, H, T))[1]
        passed = (torch.where(steps > 0, hold + tables.log_base.unsqueeze(1), 0.0)).cumsum(-1)
        ended = passed + gates(tables, steps + 1, run.expand(N, H, T))[0] + fresh[:, None, 1:]
        sums = tuple(torch.where((steps > 0)[:, None, None], table, 0.0).cumsum(1) for table in tables.statistics)
        if self.after is None:
            beyond, more = torch.zeros(N, H, 1, dtype=torch.float64, device=device), [table[:, -1:] for table in sums]
        else:
            beyond = self.after.log_weight.double().reshape(N, *self.after.log_weight.shape[-2:])
            row = (run[:, :1] + tables.lengths - 1).mT.clamp(1, beyond.shape[1]) - 1  # [N, H]
            beyond = beyond.gather(1, row.unsqueeze(-1).expand(N, H, beyond.shape[-1]))
            flat = (table.double().reshape(N, *table.shape[-3:]) for table in self.after.statistics)
            more = [table[:, -1:] + after for table, after in zip(sums, flat, strict=True)]
        weight = torch.cat([ended, passed[..., -1:] + beyond], -1)
        both = tuple(self._shaped(torch.cat([a, b], 1)) for a, b in zip(sums, more, strict=True))
        return Later(self._shaped(weight), both)

    # ---- in detail ---------------------------------------------------------------------------------------------------

    @cached_property
    def _value(self) -> Tensor:
        return log_sum_exp(self._forward()[0] + self._all.weight[..., -1] + self._gain, -1).detach()

    def _checked_posterior(self) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        self._check(self._value)
        return self._posterior

    def _final(self, k: int, function: Function, weight: Tensor) -> Tensor:
        """Sums over the later ends of the last segments [N, B, F, M], from weights [N, B, E]."""
        values = function(self._tables.priors[k][:, None, None] + self._later[1][k])
        entry = weight[..., None, None]
        return torch.where(entry > 0, entry * values, 0.0).sum(2)

    def _traced(self, row: Tensor, source: Any) -> tuple[Tensor, Tensor]:
        """The segment in force at each step, and where segments begin, [n, N, T], from the last segments [n, N]."""
        start = self._all.start
        rows = row.unsqueeze(-1).repeat(*(1,) * row.dim(), self.n_steps)
        begun = torch.zeros_like(rows, dtype=torch.bool)
        for step in reversed(range(1, self.n_steps)):
            begun[..., step] = start[row] == step
            row = torch.where(begun[..., step], source(step).expand_as(row), row)
            rows[..., :step] = row.unsqueeze(-1)
        sequence = torch.arange(row.shape[-1], device=row.device)
        begun[..., 0] = self._all.first[sequence, row] == 1
        return rows, begun

    def _numbered(self, begun: Tensor) -> Tensor:
        path = pad(begun[..., 1:], (1, 0)).cumsum(-1)
        return torch.where(self._tables.inside, path, -1)

    def _path(self, row: Tensor, source: Any, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        begun = self._traced(row, source)[1].squeeze(0)
        shape = *self.batch_shape, self.n_steps
        return self._numbered(begun).reshape(shape), self._shaped(value), begun.reshape(shape)

    def _points(self, k: int, rows: Tensor, begun: Tensor, end: Tensor, generator: Any) -> Any:
        """Draws of the parameters of a block at each step, as a point [n, *b, T, F, ...]."""
        n, N, T = rows.shape
        number = pad(begun[..., 1:], (1, 0)).cumsum(-1)
        stops = torch.cat([begun[..., 1:], torch.ones_like(begun[..., :1])], -1)  # the last step of each segment
        stops[..., -1] = True
        draw, sequence, step = stops.nonzero(as_tuple=True)
        row = rows[draw, sequence, step]
        later = end.gather(-1, rows[..., -1:]).squeeze(-1)[draw, sequence]
        sums = self._all.sums[k][sequence, row, step]
        final = (step == T - 1)[:, None, None]
        sums = torch.where(final, self._later[1][k][sequence, row, later], sums)
        drawn = self._tables.families[k].sample(self._tables.priors[k][sequence] + sums, 1, generator)
        offset = (number[..., -1] + 1).flatten().cumsum(0) - number[..., -1].flatten() - 1
        place = number + offset.reshape(n, N, 1)
        inside, shape = self._tables.inside.expand(n, N, T), (n, *self.batch_shape, T)

        def by_step(part: Tensor) -> Tensor:
            table = part[0][place.flatten()].reshape(n, N, T, *part.shape[2:])
            seen = inside.reshape(n, N, T, *(1,) * (table.dim() - 3))
            return torch.where(seen, table, torch.nan).reshape(*shape, *part.shape[2:]).to(self.chain.log_hazard.dtype)

        parts = tuple(map(by_step, tables_of(drawn)))
        return parts[0] if isinstance(drawn, Tensor) else type(drawn)(*parts)

    def _functions(self, expect: Any) -> tuple[Function, ...]:
        if expect is None:
            return tuple(family.mean for family in self._tables.families)
        return self.chain._functions(expect)

    def _left_out(self) -> Tensor:
        nothing = self._shaped(torch.zeros_like(self._tables.log_base[:, 0]))
        return nothing if self._before is None else self._before.left_out.to(nothing)

    def _check(self, value: Tensor, by_step: Tensor | None = None) -> None:
        """Raise the error of an impossible step; without a table of steps, of the last one."""
        good = value.abs() < torch.inf
        at = self._tables.lengths - 1 if by_step is None else (~(by_step.abs() < torch.inf)).long().argmax(-1)
        check_possible(torch.where(good, -1, at).reshape(self.batch_shape), self._shaped(value))

    def _shaped(self, table: Tensor) -> Tensor:
        return table.reshape((*self.batch_shape, *table.shape[1:])).to(self.chain.log_hazard.dtype)


def _softmax(weight: Tensor) -> Tensor:
    return (weight - log_sum_exp(weight, -1).unsqueeze(-1)).exp().nan_to_num(0.0)
