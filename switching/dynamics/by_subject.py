r"""Dynamics of which some blocks of parameters differ between subjects.

Parameters of these blocks have an axis of subjects before all others, `[*r, S, ...]`. The inner dynamics get those of
the subject of each sequence, `[*r, N, ...]`, so that no chain knows subjects. The messages to a block are sums over the
sequences of a subject, or over all sequences if the block is common.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.delegation import delegated
from ..data.series import Drive, Series
from ..emissions.contract import ByGate
from ..parameters import Parameters, of_subject
from ..priors import BySubject, Conjugate
from .contract import NOTHING, Drawn, Dynamics
from .factors import named


class Alone(Series):
    """A series seen by factors whose statistics have the axes of its sequences already."""

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()


@dataclass(frozen=True)
class SubjectDynamics(Dynamics):
    """Dynamics with parameters of each subject; made by `fit(x, pooled=...)`.

    Arguments:
        dynamics: the dynamics of one subject.
        subjects: the names of the subjects.
        common: the names of the blocks that all subjects share.
        partial: the names of the blocks of the model that have a population: the prior of the model.
    """

    dynamics: Dynamics
    subjects: tuple[str, ...]
    common: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    n_states = delegated("dynamics")
    inputs = delegated("dynamics")
    reads = delegated("dynamics")
    inputs_of = delegated("dynamics")
    responses = delegated("dynamics")
    holds = delegated("dynamics")
    forward = delegated("dynamics")
    not_conjugate = delegated("dynamics")
    default_prior = delegated("dynamics")
    hyperparameters = delegated("dynamics")
    check_drive = delegated("dynamics")
    marginals = delegated("dynamics")
    paths = delegated("dynamics")

    @property
    def n_subjects(self) -> int:
        """S, the number of subjects."""
        return len(self.subjects)

    @property
    def numbered(self) -> bool:
        """True: states keep the numbers that they have in the fit of all subjects, so that they mean the same."""
        return True

    @property
    def no_messages(self) -> str | None:
        return self.dynamics.no_messages or self.dynamics.not_conjugate

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        return {
            name: block if name in self.common else BySubject(block, self.n_subjects)
            for name, block in self.dynamics.blocks.items()
        }

    @property
    def sizes(self) -> dict[str, int]:
        return {"subject": self.n_subjects} | self.dynamics.sizes

    # ---- the parameters of each sequence ---------------------------------------------------------------------------

    @cached_property
    def _of_subjects(self) -> frozenset[str]:
        """The names of the parameters that differ between subjects."""
        names = [n for name, block in self.dynamics.blocks.items() if name not in self.common for n in block.parameters]
        return frozenset(names)

    def _wide(self, values: Parameters, subjects: Int[Tensor, "*b"]) -> Parameters:
        """The parameters of the subject of each sequence, `[*r, *b, ...]`; common ones have axes of length one."""
        wide = {}
        for name, parameter in self.parameters.items():
            lead = values[name].ndim - len(parameter.dims)
            if name in self._of_subjects:
                wide[name] = values[name][(*[slice(None)] * lead, subjects)]
            else:
                wide[name] = values[name][(*[slice(None)] * lead, *[None] * subjects.ndim)]
        return wide

    def _of(self, values: Parameters, drive: Drive) -> Parameters:
        if not self._of_subjects:
            return values
        assert drive.subjects is not None
        return self._wide(values, drive.subjects[..., 0])

    def chain(self, values: Parameters, likelihood: ByGate, drive: Drive, lengths: Tensor | None = None) -> Chain:
        return self.dynamics.chain(self._of(values, drive), likelihood, drive, lengths)

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor, ...]:
        return self.dynamics.log_ahead(self._of(values, drive), belief, drive)

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        return self.dynamics.propagate(self._of(values, drive), belief, drive, horizon)

    def first(self, values: Parameters, drive: Drive) -> Tensor:
        return self.dynamics.first(self._of(values, drive), drive)

    def ahead(self, values: Parameters, chain: Chain, drive: Drive, horizon: int) -> ByGate:
        return self.dynamics.ahead(self._of(values, drive), chain, drive, horizon)

    def draw(self, values: Parameters, step: int, previous: Drawn | None, drive: Drive, n_steps: int) -> Drawn:
        return self.dynamics.draw(self._of(values, drive), step, previous, drive, n_steps)

    def log_gate(self, values: Parameters, drive: Drive, n_batch: int) -> tuple[Tensor, Tensor]:
        return self.dynamics.log_gate(self._of(values, drive), drive, 0)

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        """The mean over the subjects of the steps, `[M]`."""
        assert drive.subjects is not None
        each = []
        for i in drive.subjects.unique().tolist():
            inputs = None if drive.inputs is None else drive.inputs[drive.subjects == i]
            each.append(self.dynamics.durations(self.one(values, i), Drive(inputs)))
        return torch.stack(each).mean(0)

    def one(self, values: Parameters, subject: int) -> Parameters:
        """The parameters of one subject: `[*r, ...]`."""
        one = {}
        for name, parameter in self.parameters.items():
            own = name in self._of_subjects
            one[name] = values[name].select(values[name].ndim - len(parameter.dims), subject) if own else values[name]
        return one

    # ---- fits ------------------------------------------------------------------------------------------------------

    def adds_up(self, drive: Drive) -> bool:
        return False

    def alike(self, name: str, tables: list[Tensor], values: Parameters) -> list[Tensor]:
        return self.dynamics.alike(name, tables, values)

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        raise TypeError(f"{self.name}: counts need subjects; see `maximize`.")

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters = NOTHING,
    ) -> Parameters:
        assert drive.subjects is not None
        subjects = drive.subjects[..., 0].flatten()
        if not self.dynamics.adds_up(drive):
            own = self._one_by_one(marginals, prior, values, drive, fixed) if self._of_subjects else {}
            if not self.common:
                return own
            of_all = {name: table for name, table in fixed.items() if name not in self._of_subjects}
            alike = Drive(drive.inputs, drive.gaps, states=drive.states)
            common = self.dynamics.maximize(marginals, prior, self.one(values, 0), alike, of_all)
            return {name: own[name] if name in self._of_subjects else common[name] for name in self.parameters}
        lead = self._lead(values)
        counts = self.dynamics.counts(marginals, torch.Size((*lead, len(subjects))))
        totals = {
            name: some.sum(len(lead)) if name in self.common else self._summed(some, len(lead), subjects)
            for name, some in counts.items()
        }
        return self.maximize_counts(totals, prior, values, fixed)

    def _summed(self, table: Tensor, axis: int, subjects: Int[Tensor, "N"]) -> Tensor:
        """Numbers of the sequences on an axis, summed over those of each subject."""
        n = self.n_subjects
        if len(subjects) == n and bool((subjects == torch.arange(n, device=subjects.device)).all()):
            return table
        shape = (*table.shape[:axis], n, *table.shape[axis + 1 :])
        return table.new_zeros(shape).index_add(axis, subjects, table)

    def _one_by_one(
        self, marginals: Marginals, prior: Parameters | None, values: Parameters, drive: Drive, fixed: Parameters
    ) -> Parameters:
        """The M-step of each subject, where there is no closed form."""
        assert drive.subjects is not None
        subjects, modes = drive.subjects[..., 0], []
        axis = marginals.log_normalizer.ndim - 1
        for i in range(self.n_subjects):
            members = (subjects == i).nonzero().flatten()

            def some(table: Tensor | None, axis: int = axis, members: Tensor = members) -> Tensor | None:
                return None if table is None else table.index_select(axis, members)

            part = Marginals(**{f.name: some(getattr(marginals, f.name)) for f in fields(marginals)})  # pyright: ignore[reportArgumentType]
            of_part = Drive(some(drive.inputs, 0), some(drive.gaps, 0), states=some(drive.states, 0))
            known = of_subject(self.parameters, fixed, i)
            modes.append(self.dynamics.maximize(part, prior, self.one(values, i), of_part, known))
        return {name: torch.stack([mode[name] for mode in modes], axis) for name in modes[0]}

    def start(self, labels: Tensor, series: Series) -> Parameters:
        lead = labels.ndim - 1 - len(series.batch_shape)
        started = self.dynamics.start(labels, series)
        return {
            name: value.unsqueeze(lead).expand(*value.shape[:lead], self.n_subjects, *value.shape[lead:])
            if name in self._of_subjects
            else value
            for name, value in started.items()
        }

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        alone = Alone(**{field.name: getattr(series, field.name) for field in fields(series)})
        pairs = zip(
            self.dynamics.factors(series, counted, gated), self.dynamics.factors(alone, counted, gated), strict=True
        )
        return [self._factor(common, own, series) for common, own in pairs]

    def _factor(self, common: Factor, own: Factor, series: Series) -> Factor:
        """The factor of a block: of all sequences, or with the statistics of the subject of each."""
        block = next((name for name in common.blocks if name in self.blocks), None)
        if block is None or block in self.common:
            return common
        assert series.subjects is not None
        subjects, axis = series.subjects, -1 - self.dynamics.blocks[block].natural(self.default_prior()).ndim

        def gathered(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda paths, statistics: function(paths, statistics.index_select(axis, subjects))

        def to_block(paths: Any, statistics: Tensor) -> Tensor:
            each = gathered(own.messages[block])(paths, statistics)
            return self._summed(each, each.ndim + axis, subjects)

        messages = {name: gathered(message) for name, message in own.messages.items() if name != block}
        messages |= {block: to_block} if block in own.messages else {}
        elog = named(own.name, gathered(own.elog))
        return replace(own, elog=elog, messages=messages)
