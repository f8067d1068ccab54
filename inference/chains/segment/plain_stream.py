"""One observation more, in torch alone: the step of `plain` with run lengths of their own in each sequence."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .plain import of_hazards
from .records import Conjugate
from .tables import Tables, log_one_less


@dataclass(frozen=True, eq=False)
class Rules:
    """What does not change in a stream of N sequences."""

    tables: Tables  # without steps
    by_hazards: Tensor | None  # [N, H], see `plain.of_hazards`
    evidence: Tensor  # [N, 1], log-normalizers of the priors
    most: int | None

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


Updated = tuple[Belief, tuple[Tensor, ...], Tensor, Tensor]


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


def update(base: Tensor, belief: Belief, rules: Rules, steps: tuple[Tensor, ...], log_hazard: Tensor | None) -> Updated:
    """The new belief with natural parameters by block, log p(x_t | x_1..t-1) [N], and the bound of what was left out
    [N].

    Arguments:
        base: [N], log h of the observation.
        steps: by block its statistics [N, F, D].
        log_hazard: [N], of a change before it; None: that of the rules.
    """
    length, weight, sums, evidence = belief
    before, left_out = torch.zeros_like(base), torch.zeros_like(base)
    if length.shape[-1]:
        change, hold = _hazards(rules, length, log_hazard)
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
    natural = tuple(prior.unsqueeze(1) + table for prior, table in zip(rules.priors, sums, strict=True))
    belief = Belief(pad(length, (0, 1)) + 1, weight - increment.unsqueeze(-1), sums, evidence)
    return belief, natural, increment, left_out


def _hazards(rules: Rules, length: Tensor, log_hazard: Tensor | None) -> tuple[Tensor, Tensor]:
    """log P(change) and log P(none) [N, R]."""
    tables = rules.tables
    if tables.by_run:
        index = length.clamp(1, tables.log_change.shape[-1]) - 1
        return tables.log_change.gather(-1, index), tables.log_hold.gather(-1, index)
    if log_hazard is None:
        return tables.log_change.expand_as(length), tables.log_hold.expand_as(length)
    hazard = log_hazard.unsqueeze(-1)
    return hazard.expand_as(length), log_one_less(hazard).expand_as(length)


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
