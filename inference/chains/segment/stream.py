"""The filter of segments, one observation at a time, in bounded memory."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_same_kind, check_shape, check_table, common_batch
from ...numerics.scalars import check_choice, check_integer, check_probability
from . import op
from .checks import check_hazard, check_prior
from .plain_stream import Belief, rules_of
from .records import Conjugate, Runs


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

    >>> import torch, samplehold as sh
    >>> from samplehold.inference.families import Gamma
    >>> stream = sh.chains.SegmentStream((Gamma(),), (torch.tensor([[1.0, -0.5]]),), torch.tensor([0.1]).log())
    >>> runs = stream.start()
    >>> for count in (1.0, 0.0, 2.0, 9.0):
    ...     runs, log_increment = stream.update(runs, (torch.tensor([[count, -1.0]]),))
    >>> runs.length[runs.log_weight.argmax()]
    tensor(1)
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
        tables = {f"priors[{i}]": prior for i, prior in enumerate(self.priors)}
        check_same_kind(log_hazard=log_hazard, **tables)
        sizes = (1,) if by == "step" else (max(1, log_hazard.shape[-1] if log_hazard.dim() else 1),)
        shapes = {name: check_shape(name, prior, tuple(prior.shape[-2:])) for name, prior in tables.items()}
        self.batch_shape = common_batch(log_hazard=check_shape("log_hazard", log_hazard, sizes), **shapes)
        check_hazard("log_hazard", log_hazard)
        for i, (family, prior) in enumerate(zip(self.families, self.priors, strict=True)):
            check_prior(f"priors[{i}]", family, prior)
        self._dtype = log_hazard.dtype
        hazard, flat = self._flat(log_hazard, 1), tuple(self._flat(prior, 2) for prior in self.priors)
        self._rules = rules_of(self.families, flat, hazard, self.by == "run", self.tol, self.most)

    def start(self) -> Runs:
        """The belief before any observation: no segment yet."""
        shape, priors = self.batch_shape, self._rules.priors
        none = tuple(prior.new_zeros(*shape, 0, *prior.shape[1:], dtype=self._dtype) for prior in priors)
        zero = priors[0].new_zeros(shape, dtype=self._dtype)
        count = torch.zeros(shape, dtype=torch.int64, device=zero.device)
        empty = zero.unsqueeze(-1)[..., :0]
        return Runs(count.unsqueeze(-1)[..., :0], empty, none, none, empty, zero, zero, count)

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
        rules, N, size = self._rules, self.batch_shape.numel(), runs.length.shape[-1]
        steps = tuple(
            self._flat(check_table(f"statistics[{i}]", step, *prior.shape[-2:]), 2)
            for i, (step, prior) in enumerate(zip(statistics, self.priors, strict=True))
        )
        base = rules.evidence.new_zeros(N) if log_base is None else self._flat(log_base, 0)
        sums = tuple(self._flat(table, 3) for table in runs.statistics)
        weight, evidence = (self._flat(table, 1) for table in (runs.log_weight, runs.evidence))
        belief = Belief(runs.length.reshape(N, size), weight, sums, evidence)
        hazard = None
        if log_hazard is not None:
            check_hazard("log_hazard", log_hazard)
            hazard = self._flat(log_hazard, 0)
        belief, natural, increment, left_out = op.update(belief, rules, steps, base, hazard)
        impossible = [n for n, value in enumerate(increment.tolist()) if not math.isfinite(value)]
        if impossible:
            raise ValueError(
                f"statistics: the observation of sequence {impossible[0]} is impossible or not a number; make it "
                "missing (all statistics 0)."
            )
        increment, lost = self._shaped(increment), runs.left_out
        if rules.bounded:
            lost = (lost + self._shaped(left_out)).clamp_max(1.0)
        length = self._numbers(belief.length)
        weight, evidence = self._shaped(belief.weight), self._shaped(belief.evidence)
        sums, naturals = tuple(map(self._shaped, belief.sums)), tuple(map(self._shaped, natural))
        total = runs.log_normalizer + increment
        return Runs(length, weight, sums, naturals, evidence, total, lost, runs.n_steps + 1), increment

    def _numbers(self, table: Tensor) -> Tensor:
        return table.squeeze(0) if self.batch_shape == () else table.reshape(*self.batch_shape, table.shape[-1])

    def _shaped(self, table: Tensor) -> Tensor:
        if self.batch_shape == () and table.dtype == self._dtype:  # at once: a stream has many updates
            return table.squeeze(0)
        return table.reshape((*self.batch_shape, *table.shape[1:])).to(self._dtype)

    def _flat(self, table: Tensor, n_trailing: int) -> Tensor:
        if table.dim() == n_trailing and self.batch_shape == ():
            return table.double().unsqueeze(0)
        trailing = table.shape[table.dim() - n_trailing :]
        return table.double().expand((*self.batch_shape, *trailing)).reshape(self.batch_shape.numel(), *trailing)
