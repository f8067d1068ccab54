"""One observation more, in torch alone: the step of `plain` with run lengths of their own in each sequence."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .plain import Functions, of_hazards
from .records import Conjugate
from .tables import Tables, log_one_less


@dataclass(frozen=True, eq=False)
class Rules:
    """What does not change in a stream of N sequences."""

    tables: Tables  # without steps
    by_hazards: Tensor | None  # [N, H], see `plain.of_hazards`
    evidence: Tensor  # [N, 1], log-normalizers of the priors
    most: int | None
    constants: dict[Any, Any] = field(default_factory=dict)  # of kernels, by expectation

    @property
    def bounded(self) -> bool:
        """Whether anything may be left out."""
        return self.tables.tol > 0 or self.most is not None

    @property
    def priors(self) -> tuple[Tensor, ...]:
        return self.tables.priors


class Belief(NamedTuple):
    """The beginnings that are kept."""

    length: Tensor  # [N, R]
    weight: Tensor  # [N, R], log
    sums: tuple[Tensor, ...]  # [N, R, F, D]
    evidence: Tensor  # [N, R], log-normalizers of the posteriors


class Memory(NamedTuple):
    """What a stream remembers, as kernels read it."""

    rows: Tensor  # [N, 3 + D, R]: length, log weight and evidence of each beginning, and its statistics
    found: Tensor  # [N, 5 + M], of the last step

    def belief(self, rules: Rules) -> Belief:
        length, weight, evidence = self.rows[:, :3].unbind(1)
        parts = self.rows[:, 3:].mT.split([prior.shape[1:].numel() for prior in rules.priors], -1)
        sums = tuple(part.unflatten(-1, prior.shape[1:]) for part, prior in zip(parts, rules.priors, strict=True))
        return Belief(length.long(), weight, sums, evidence)


TOTAL, LEFT_OUT, INCREMENT, CHANGE, RUN, EXPECTED = range(6)
"""Columns of what is found at each step: the log evidence so far and the bound of what was left out so far, log p(x_t |
x_1..t-1), the probability of a segment that begins there, the expected run length, and expectations by block."""


def rules_of(
    families: tuple[Conjugate, ...],
    priors: tuple[Tensor, ...],
    log_hazard: Tensor,
    by_run: bool,
    tol: float,
    most: int | None,
) -> Rules:
    lengths = torch.zeros(len(log_hazard), dtype=torch.int64, device=log_hazard.device)
    hold = log_one_less(log_hazard)
    tables = Tables(families, priors, (), log_hazard[:, :0], log_hazard, hold, by_run, lengths, tol)
    return Rules(tables, of_hazards(log_hazard, hold) if by_run else None, tables.prior_evidence().unsqueeze(-1), most)


def update(x: Tensor, memory: Memory, rules: Rules, expect: Functions | None) -> tuple[Memory, Tensor]:
    """Some observations more, and what is found at each step [N, S, 5 + M].

    Arguments:
        x: [N, S, D + 1], the statistics of each observation side by side, and log h; or [N, S, D + 3], with log P(a
            change before it) and log P(none) if those of the rules do not count.
        expect: expectations by block, in `EXPECTED` and the columns after it.
    """
    belief, last, looks = memory.belief(rules), memory.found, []
    sizes = [prior.shape[1:].numel() for prior in rules.priors]
    for row in x.unbind(1):
        *parts, base, hazard = row.split([*sizes, 1, row.shape[-1] - sum(sizes) - 1], -1)
        steps = tuple(part.reshape_as(prior) for part, prior in zip(parts, rules.priors, strict=True))
        hazards = None if not hazard.shape[-1] else hazard.unsqueeze(1).unbind(-1)
        belief, increment, left_out = _advanced(base.squeeze(-1), belief, rules, steps, hazards)
        weight = belief.weight.exp()
        total, lost = last[:, TOTAL] + increment, (last[:, LEFT_OUT] + left_out).clamp_max(1.0)
        change = torch.where(belief.length == 1, weight, 0.0).sum(-1)
        look = [total, lost, increment, change, (weight * belief.length).sum(-1)]
        for function, prior, sums in zip(expect or (), rules.priors, belief.sums, strict=expect is not None):
            by_run = weight[..., None, None]
            values = torch.where(by_run > 0, by_run * function(prior.unsqueeze(1) + sums), 0.0).sum(1)
            look += values.flatten(1).unbind(-1)
        last = torch.stack(look, -1)
        looks.append(last)
    numbers = belief.length.to(belief.weight), belief.weight, belief.evidence
    rows = torch.cat([torch.stack(numbers, 1), *(table.flatten(2).mT for table in belief.sums)], 1)
    return Memory(rows, last), torch.stack(looks, 1)


def _advanced(
    base: Tensor, belief: Belief, rules: Rules, steps: tuple[Tensor, ...], hazards: tuple[Tensor, ...] | None
) -> tuple[Belief, Tensor, Tensor]:
    """The new belief, log p(x_t | x_1..t-1) [N], and the bound of what was left out [N].

    Arguments:
        base: [N], log h of the observation.
        steps: by block its statistics [N, F, D].
        hazards: [N, 1], log P(a change before it) and log P(none); None: those of the rules.
    """
    length, weight, sums, evidence = belief
    before, left_out = torch.zeros_like(base), torch.zeros_like(base)
    if length.shape[-1]:
        change, hold = _hazards(rules, length, hazards)
        kept, left_out = _kept(rules, belief, change, hold)
        tables = length, weight, evidence, change, hold
        length, weight, evidence, change, hold = (table.gather(-1, kept) for table in tables)
        sums = tuple(table.gather(1, kept[..., None, None].expand(-1, -1, *table.shape[2:])) for table in sums)
        before, weight = (weight + change).logsumexp(-1), weight + hold
    old = torch.cat([evidence, rules.evidence], -1)
    sums = tuple(pad(table, (0, 0, 0, 0, 0, 1)) + step.unsqueeze(1) for table, step in zip(sums, steps, strict=True))
    evidence = rules.tables.evidence(sums)
    weight = torch.cat([weight, before.unsqueeze(-1)], -1) + evidence - old + base.unsqueeze(-1)
    increment = weight.logsumexp(-1)
    belief = Belief(pad(length, (0, 1)) + 1, weight - increment.unsqueeze(-1), sums, evidence)
    return belief, increment, left_out


def _hazards(rules: Rules, length: Tensor, given: tuple[Tensor, ...] | None) -> tuple[Tensor, Tensor]:
    """log P(change) and log P(none) [N, R]."""
    tables = rules.tables
    if tables.by_run:
        index = length.clamp(1, tables.log_change.shape[-1]) - 1
        return tables.log_change.gather(-1, index), tables.log_hold.gather(-1, index)
    change, hold = (tables.log_change, tables.log_hold) if given is None else given
    return change.expand_as(length), hold.expand_as(length)


def _kept(rules: Rules, belief: Belief, change: Tensor, hold: Tensor) -> tuple[Tensor, Tensor]:
    """Which beginnings `tol` and `most` leave, [N, R'], and the bound of the share of the others; see `plain.Bound`."""
    length, weight, sums, evidence = belief
    tables, size = rules.tables, length.shape[-1]
    if tables.tol == 0 and (rules.most is None or rules.most >= size):
        return torch.arange(size, device=length.device).expand_as(length), torch.zeros_like(weight[:, 0])
    ratio = (tables.suprema(sums) - (evidence - rules.evidence)).clamp_min(0.0)
    if rules.by_hazards is not None:
        ratio = ratio + rules.by_hazards.gather(-1, length.clamp(1, rules.by_hazards.shape[-1]) - 1)
        ratio = torch.logaddexp(ratio + hold, change)
    cost = (weight + ratio - (weight + change).logsumexp(-1, keepdim=True)).exp()
    cost = torch.where(weight > -torch.inf, cost.nan_to_num(torch.inf, posinf=torch.inf), 0.0)
    out = cost < tables.tol / size
    n_kept = int((~out).sum(-1).amax()) if len(out) else size
    n_kept = max(1, n_kept if rules.most is None else min(n_kept, rules.most))
    kept = torch.where(out, -torch.inf, weight).topk(n_kept, -1).indices.sort(-1).values
    gone = torch.ones_like(out).scatter(-1, kept, False)
    return kept, torch.where(gone, cost, 0.0).sum(-1)
