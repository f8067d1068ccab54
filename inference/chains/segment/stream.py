"""The filter of segments, one observation at a time, in bounded memory."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_same_kind, check_shape, check_table, common_batch, naming
from ...numerics.scalars import check_choice, check_integer, check_probability
from .checks import check_hazard
from .plain import of_hazards
from .records import Conjugate, Runs
from .tables import Tables, log_one_less


class SegmentStream:
    """The belief about the segment in force, updated by one observation at a time.

    Arguments:
        families: by block, as in `Block`.
        priors: by block, natural parameters [*b, F, D].
        log_hazard: as in `SegmentChain`; `by="step"`: [*b, 1], of the steps that `update` gives none.
        tol: what each update may leave out, as a bound of the total variation; 0 keeps all beginnings.
        most: the beginnings that are kept at most; None: any number. `Runs.left_out` has the bound of all that was left
            out.

    Raises:
        TypeError, ValueError: as `SegmentChain`.
    """

    def __init__(
        self,
        families: Sequence[Conjugate],
        priors: Sequence[Tensor],
        log_hazard: Tensor,
        by: str = "step",
        tol: float = 0.0,
        most: int | None = None,
    ):
        self.families, self.priors = tuple(families), tuple(priors)
        if len(self.families) != len(self.priors) or not self.families:
            raise ValueError(
                f"families, priors: got {len(self.families)} and {len(self.priors)}; give one of each for each block."
            )
        self.by = check_choice("by", by, ("step", "run"))
        self.tol = check_probability("tol", tol)
        self.most = None if most is None else check_integer("most", most)
        tables = {f"prior of block {i}": prior for i, prior in enumerate(self.priors)}
        check_same_kind(log_hazard=log_hazard, **tables)
        sizes = (1,) if by == "step" else (max(1, log_hazard.shape[-1] if log_hazard.dim() else 1),)
        shapes = {name: check_shape(name, prior, tuple(prior.shape[-2:])) for name, prior in tables.items()}
        self.batch_shape = common_batch(log_hazard=check_shape("log_hazard", log_hazard, sizes), **shapes)
        check_hazard("log_hazard", log_hazard)
        for i, (family, prior) in enumerate(zip(self.families, self.priors, strict=True)):
            with naming(f"prior of block {i}", "eta"):
                family.check(prior)
        self._dtype = log_hazard.dtype
        hazard = self._flat(log_hazard, 1)
        self._tables = self._of(hazard, tuple(self._flat(prior, 2) for prior in self.priors))
        self._by_run = of_hazards(hazard, self._tables.log_hold) if by == "run" else None
        self._evidence = self._tables.prior_evidence().unsqueeze(-1)

    def start(self) -> Runs:
        """The belief before any observation: no segment yet."""
        shape, priors = self.batch_shape, self._tables.priors
        none = tuple(prior.new_zeros(*shape, 0, *prior.shape[1:], dtype=self._dtype) for prior in priors)
        zero = priors[0].new_zeros(shape, dtype=self._dtype)
        count = torch.zeros(shape, dtype=torch.int64, device=zero.device)
        empty = zero.unsqueeze(-1)[..., :0]
        return Runs(count.unsqueeze(-1)[..., :0], empty, none, none, zero, zero, count)

    @torch.no_grad()
    def update(
        self,
        runs: Runs,
        statistics: Sequence[Tensor],
        log_base: Tensor | None = None,
        log_hazard: Tensor | None = None,
    ) -> tuple[Runs, Float[Tensor, "*b"]]:
        """The belief after one more observation, and log p(x_t | x_1..t-1), [*b].

        Arguments:
            runs: the belief before it.
            statistics: by block [*b, F, D], 0 where it is missing.
            log_base: [*b]; None: 0.
            log_hazard: [*b], log P(a change before this step); None: that of the stream.

        Raises:
            ValueError: shapes that do not fit; an observation that is impossible or not a number.
        """
        N = self.batch_shape.numel()
        steps = tuple(
            self._flat(check_table(f"statistics of block {i}", step, *prior.shape[-2:]), 2)
            for i, (step, prior) in enumerate(zip(statistics, self.priors, strict=True))
        )
        base = torch.zeros(N, dtype=torch.float64) if log_base is None else self._flat(log_base, 0)
        length, weight = runs.length.reshape(N, -1), runs.log_weight.double().reshape(N, -1)
        sums = tuple(self._flat(table, 3) for table in runs.statistics)
        spent = runs.left_out.double().reshape(N)
        before = torch.zeros(N, dtype=torch.float64)
        if length.shape[-1]:
            change, hold = self._hazards(length, log_hazard)
            length, weight, sums, spent, change, hold = self._shortened(length, weight, sums, spent, change, hold)
            before, weight = (weight + change).logsumexp(-1), weight + hold
        old = torch.cat([self._tables.evidence(sums), self._evidence], -1)
        sums = tuple(
            torch.cat([table, torch.zeros_like(step).unsqueeze(1)], 1) + step.unsqueeze(1)
            for table, step in zip(sums, steps, strict=True)
        )
        weight = torch.cat([weight, before.unsqueeze(-1)], -1) + self._tables.evidence(sums) - old + base.unsqueeze(-1)
        increment = weight.logsumexp(-1)
        if not bool((increment.abs() < torch.inf).all()):
            place = int((~(increment.abs() < torch.inf)).nonzero()[0])
            raise ValueError(
                f"statistics: the observation of sequence {place} is impossible or not a number; make it missing (all "
                "statistics 0)."
            )
        length = torch.nn.functional.pad(length, (0, 1)) + 1
        return self._runs(runs, length, weight - increment.unsqueeze(-1), sums, spent, increment)

    def _runs(
        self, runs: Runs, length: Tensor, weight: Tensor, sums: tuple[Tensor, ...], spent: Tensor, increment: Tensor
    ) -> tuple[Runs, Tensor]:
        shaped = lambda table: table.reshape((*self.batch_shape, *table.shape[1:]))
        to = lambda table: shaped(table).to(self._dtype)
        natural = tuple(prior.unsqueeze(1) + part for prior, part in zip(self._tables.priors, sums, strict=True))
        increment = to(increment)
        return Runs(
            shaped(length),
            to(weight),
            tuple(map(to, sums)),
            tuple(map(to, natural)),
            runs.log_normalizer + increment,
            to(spent),
            runs.n_steps + 1,
        ), increment

    def _hazards(self, length: Tensor, log_hazard: Tensor | None) -> tuple[Tensor, Tensor]:
        """log P(change) and log P(none) [N, R]."""
        tables = self._tables
        if self.by == "run":
            index = length.clamp(1, tables.log_change.shape[-1]) - 1
            return tables.log_change.gather(-1, index), tables.log_hold.gather(-1, index)
        if log_hazard is None:
            return tables.log_change.expand_as(length), tables.log_hold.expand_as(length)
        check_hazard("log_hazard", log_hazard)
        hazard = self._flat(log_hazard, 0).unsqueeze(-1)
        return hazard.expand_as(length), log_one_less(hazard).expand_as(length)

    def _shortened(self, length: Any, weight: Any, sums: Any, spent: Any, change: Any, hold: Any) -> Any:
        """Without the beginnings that `tol` and `most` leave out; see `plain.Bound`."""
        R = length.shape[-1]
        if self.tol == 0 and (self.most is None or self.most >= R):
            return length, weight, sums, spent, change, hold
        ratio = (self._tables.suprema(sums) - (self._tables.evidence(sums) - self._evidence)).clamp_min(0.0)
        if self._by_run is not None:
            ratio = ratio + self._by_run.gather(-1, length.clamp(1, self._by_run.shape[-1]) - 1)
            ratio = torch.logaddexp(ratio + hold, change)
        cost = (weight + ratio - (weight + change).logsumexp(-1, keepdim=True)).exp()
        cost = torch.where(weight > -torch.inf, cost.nan_to_num(torch.inf, posinf=torch.inf), 0.0)
        out = cost < self.tol / R
        n_kept = int((~out).sum(-1).amax())
        n_kept = max(1, n_kept if self.most is None else min(n_kept, self.most))
        kept = torch.where(out, -torch.inf, weight).topk(n_kept, -1).indices.sort(-1).values
        gone = torch.ones_like(out).scatter(-1, kept, False)
        spent = (spent + torch.where(gone, cost, 0.0).sum(-1)).clamp_max(1.0)
        weight = weight.gather(-1, kept)
        sums = tuple(table.gather(1, kept[..., None, None].expand(-1, -1, *table.shape[2:])) for table in sums)
        return length.gather(-1, kept), weight, sums, spent, change.gather(-1, kept), hold.gather(-1, kept)

    def _of(self, hazard: Tensor, priors: tuple[Tensor, ...]) -> Tables:
        base = hazard[:, :0]
        lengths = torch.zeros(len(hazard), dtype=torch.int64, device=hazard.device)
        return Tables(
            self.families, priors, (), base, hazard, log_one_less(hazard), self.by == "run", lengths, self.tol
        )

    def _flat(self, table: Tensor, n_trailing: int) -> Tensor:
        trailing = table.shape[table.dim() - n_trailing :]
        return table.double().expand((*self.batch_shape, *trailing)).reshape(self.batch_shape.numel(), *trailing)
