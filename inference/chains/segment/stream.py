"""The filter of segments, one observation at a time, in bounded memory."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_same_kind, check_shape, check_table, common_batch
from ...numerics.records import late
from ...numerics.scalars import check_choice, check_integer, check_probability
from . import op
from .checks import check_hazard, check_prior
from .plain import Functions
from .plain_stream import CHANGE, EXPECTED, INCREMENT, LEFT_OUT, RUN, TOTAL, Memory, rules_of
from .records import Conjugate, FilteredSegments, Runs
from .tables import log_one_less


class SegmentStream:
    """The belief about the segment in force, updated by one observation at a time.

    Arguments:
        families: by block, as in `Block`.
        priors: by block, natural parameters [*b, F, D].
        log_hazard: as in `SegmentChain`; `by="step"`: [*b, 1], of the steps that `update` gives none.
        tol: how much each update may leave out: a bound on the change in total variation. 0 keeps all beginnings.
        most: the beginnings that are kept at most; None: any number. `Runs.left_out` has the bound of all that was left
            out.

    Raises:
        TypeError, ValueError: as `SegmentChain`.

    Adams & MacKay 2007, for the filter over run lengths.

    See Also:
        `SegmentChain`, of a whole series; `Segments`, the model; docs/guides/segments.md.

    >>> import torch, samplehold as sh
    >>> from samplehold.inference.families import Gamma
    >>> stream = sh.chains.SegmentStream((Gamma(),), (torch.tensor([[1.0, -0.5]]),), torch.tensor([0.1]).log())
    >>> runs = stream.start()
    >>> for count in (1.0, 0.0, 2.0, 9.0):
    ...     runs, log_increment = stream.update(runs, (torch.tensor([[count, -1.0]]),))
    >>> runs.length[runs.log_weight.argmax()]
    tensor(1)
    """

    families: tuple[Conjugate, ...]
    priors: tuple[Tensor, ...]

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
        self.by: str = check_choice("by", by, ("step", "run"))
        self.tol: float = check_probability("tol", tol)
        self.most: int | None = None if most is None else check_integer("most", most)
        tables = {f"priors[{i}]": prior for i, prior in enumerate(self.priors)}
        check_same_kind(log_hazard=log_hazard, **tables)
        sizes = (1,) if by == "step" else (max(1, log_hazard.shape[-1] if log_hazard.dim() else 1),)
        shapes = {name: check_shape(name, prior, tuple(prior.shape[-2:])) for name, prior in tables.items()}
        self.batch_shape: torch.Size = common_batch(log_hazard=check_shape("log_hazard", log_hazard, sizes), **shapes)
        check_hazard("log_hazard", log_hazard)
        for i, (family, prior) in enumerate(zip(self.families, self.priors, strict=True)):
            check_prior(f"priors[{i}]", family, prior)
        self._dtype = log_hazard.dtype
        hazard, flat = self._flat(log_hazard.detach(), 1), tuple(self._flat(p.detach(), 2) for p in self.priors)
        self._no_base: Tensor = hazard.new_zeros(1)
        self._rules = rules_of(self.families, flat, hazard, self.by == "run", self.tol, self.most)

    def start(self) -> Runs:
        """The belief before any observation: no segment yet."""
        shape, priors = self.batch_shape, self._rules.priors
        none = tuple(prior.new_zeros(*shape, 0, *prior.shape[1:], dtype=self._dtype) for prior in priors)
        zero = priors[0].new_zeros(shape, dtype=self._dtype)
        count = torch.zeros(shape, dtype=torch.int64, device=zero.device)
        empty = zero.unsqueeze(-1)[..., :0]
        return Runs(count.unsqueeze(-1)[..., :0], empty, none, none, empty, zero, zero, count)

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
        memory, found = self.advance(self.memory(runs), self._row(statistics, log_base, log_hazard))
        return self.runs(memory, runs.n_steps + 1), self.shaped(found.select(1, 0).select(1, INCREMENT))

    def _row(self, statistics: Sequence[Tensor], log_base: Tensor | None, log_hazard: Tensor | None) -> Tensor:
        """The `table` of one observation."""
        usual = self.batch_shape == () and log_base is None and log_hazard is None
        if usual and all(x.shape == prior.shape[1:] for x, prior in zip(statistics, self._rules.priors, strict=True)):
            parts = [check_table(f"statistics[{i}]", x).detach().double().reshape(-1) for i, x in enumerate(statistics)]
            return torch.cat([*parts, self._no_base]).view(1, 1, -1)
        one = (None if table is None else table.unsqueeze(-1) for table in (log_base, log_hazard))
        return self.table(tuple(step.unsqueeze(-3) for step in statistics), *one)

    @torch.no_grad()
    def extend(
        self,
        runs: Runs,
        statistics: Sequence[Tensor],
        log_base: Tensor | None = None,
        log_hazard: Tensor | None = None,
        expect: Functions | None = None,
    ) -> tuple[Runs, FilteredSegments]:
        """The belief after S more observations, and the results after each. Arguments as in `update`, with an axis of
        steps after `*b`.

        Arguments:
            runs: the belief so far.
            statistics: by block, of S steps.
            log_base: of S steps; None: 0.
            log_hazard: of S steps; None: as at the start.
            expect: by block, a function of natural parameters, as in `SegmentChain.filter`; None: no expectations.
        """
        memory, found = self.advance(self.memory(runs), self.table(statistics, log_base, log_hazard), expect)
        increment, change, run = (self.shaped(found[..., i]) for i in (INCREMENT, CHANGE, RUN))
        expected, first = [], EXPECTED
        for function, prior in zip(expect or (), self._rules.priors, strict=expect is not None):
            shape = function(prior[:1]).shape[1:]
            part = found[..., first : first + shape.numel()].unflatten(-1, shape)
            expected, first = [*expected, self.shaped(part)], first + shape.numel()
        total, left_out = (self.shaped(memory.found[:, i]) for i in (TOTAL, LEFT_OUT))
        filtered = FilteredSegments(total, increment, change, run, tuple(expected), left_out)
        return self.runs(memory, runs.n_steps + found.shape[1]), filtered

    def advance(self, memory: Memory, x: Tensor, expect: Functions | None = None) -> tuple[Memory, Tensor]:
        """See `plain_stream.update`.

        Arguments:
            memory: the belief so far.
            x: a `table` of observations.
            expect: whether expectations of the parameters are computed.

        Raises:
            ValueError: an observation that is impossible or not a number.
        """
        memory, found = op.update(x, memory, self._rules, expect)
        if not all(math.isfinite(row[TOTAL]) for row in memory.found.tolist()):
            sequence, step = (~found[..., INCREMENT].isfinite()).nonzero()[0].tolist()
            where = f" at step {step}" if len(found[0]) > 1 else ""
            raise ValueError(
                f"statistics: the observation of sequence {sequence}{where} is impossible or not a number; make it "
                "missing (all statistics 0)."
            )
        return memory, found

    @torch.no_grad()
    def table(
        self, statistics: Sequence[Tensor], log_base: Tensor | None = None, log_hazard: Tensor | None = None
    ) -> Tensor:
        """[N, S, D + 1] or [N, S, D + 3], as `advance` reads observations.

        Arguments:
            statistics, log_base, log_hazard: as in `extend`.
        """
        S = max((step.shape[-3] for step in statistics if step.dim() > 2), default=1)
        parts = [
            self._flat(check_table(f"statistics[{i}]", step, S, *prior.shape[-2:]), 3).flatten(2)
            for i, (step, prior) in enumerate(zip(statistics, self.priors, strict=True))
        ]
        numbers = [torch.zeros_like(parts[0][..., 0]) if log_base is None else self._flat(log_base, 1)]
        if log_hazard is not None and self.by == "step":
            check_hazard("log_hazard", log_hazard)
            hazard = self._flat(log_hazard, 1)
            numbers += [hazard, log_one_less(hazard)]
        return torch.cat([*parts, torch.stack([number.expand_as(numbers[0]) for number in numbers], -1)], -1)

    def runs(self, memory: Memory, n_steps: Tensor) -> Runs:
        """The belief that is remembered, after so many steps [*b].

        Arguments:
            memory: what `memory` returned.
            n_steps: `[*b]`, the steps so far.
        """
        return late(Runs, partial(self._fields, memory), _memory=memory, n_steps=n_steps)

    def memory(self, runs: Runs) -> Memory:
        """What is remembered of a belief.

        Arguments:
            runs: the belief.
        """
        kept = vars(runs).get("_memory")
        if kept is not None:
            return kept
        tables = runs.length.to(runs.log_weight), runs.log_weight, runs.evidence
        sums = (self._flat(table, 3).flatten(2).mT for table in runs.statistics)
        rows = torch.cat([torch.stack([self._flat(table, 1) for table in tables], 1), *sums], 1)
        found = rows.new_zeros(len(rows), EXPECTED)
        found[:, TOTAL], found[:, LEFT_OUT] = self._flat(runs.log_normalizer, 0), self._flat(runs.left_out, 0)
        return Memory(rows, found)

    def _fields(self, memory: Memory, name: str) -> dict[str, Any]:
        """Of `Runs`."""
        belief = memory.belief(self._rules)
        natural = (prior.unsqueeze(1) + part for prior, part in zip(self._rules.priors, belief.sums, strict=True))
        total, left_out = (self.shaped(memory.found[:, i]) for i in (TOTAL, LEFT_OUT))
        return {
            "length": belief.length.reshape(*self.batch_shape, belief.length.shape[-1]),
            "log_weight": self.shaped(belief.weight),
            "statistics": tuple(map(self.shaped, belief.sums)),
            "natural": tuple(map(self.shaped, natural)),
            "evidence": self.shaped(belief.evidence),
            "log_normalizer": total,
            "left_out": left_out,
        }

    def shaped(self, table: Tensor) -> Tensor:
        """A table `[N, ...]` as `[*b, ...]`, in the dtype of the stream.

        Arguments:
            table: `[N, ...]`.
        """
        if self.batch_shape == () and table.dtype == self._dtype:  # at once: a stream has many updates
            return table.squeeze(0)
        return table.reshape((*self.batch_shape, *table.shape[1:])).to(self._dtype)

    def _flat(self, table: Tensor, n_trailing: int) -> Tensor:
        if table.dim() == n_trailing and self.batch_shape == ():
            return table.double().unsqueeze(0)
        trailing = table.shape[table.dim() - n_trailing :]
        return table.double().expand((*self.batch_shape, *trailing)).reshape(self.batch_shape.numel(), *trailing)
