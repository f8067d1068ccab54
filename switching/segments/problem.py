"""The emission, the hazard and a series, as one input for inference about segments."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.chains.segment.chain import SegmentChain
from ..data.series import Drive, Series
from ..inputs import count_inputs
from ..parameters import Parameter, Parameters
from ..priors import Site, log_prior
from ..problem import SeriesProblem
from ..responses import Frame
from .ahead import draws_ahead, draws_along, limits_before
from .beliefs import Expectation, event_shapes, shown, summarised
from .durations import is_duration, log_hazards
from .hazards import inputs_of, log_change_in, log_gate
from .hyperparameters import known, sites
from .rows import Rows, block, natural


@dataclass(frozen=True, repr=False)
class SegmentProblem(SeriesProblem):
    """As `Problem`, for segments.

    Attributes:
        emission, hazard, tol, shared: as in the model.
        series, prior, fixed: as in `Problem`.
        about: the origin of locations; None: the mean of the series.
        scale: the spreads of the emission's inputs in the prior of coefficients; None: 1.
        frame: the coordinates of the inputs that the hazard reads; None: those of the model.
    """

    emission: Any
    series: Series
    hazard: Any = None
    tol: float = 0.0
    shared: bool = False
    prior: Parameters | None = None
    fixed: Parameters = field(default_factory=dict)
    about: Float[Tensor, "F"] | None = None
    scale: Float[Tensor, "C"] | None = None
    frame: Frame | None = None

    def in_frame(self, frame: Frame | None) -> "SegmentProblem":
        """The problem of parameters in other coordinates of the inputs of the hazard."""
        if frame is None:
            return self
        prior = None if self.prior is None else frame.into(self.prior)
        return replace(self, frame=frame, prior=prior, fixed=frame.into(self.fixed))

    @property
    def n_states(self) -> int:
        """The number of run lengths at the last step."""
        return self.series.n_steps

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The axes and supports of the parameters, by name."""
        return known(self.emission, self.hazard)

    @cached_property
    def sites(self) -> list[Site]:
        """The prior of the parameters as Pyro sites."""
        if self.prior is None:
            raise ValueError("prior: got None, but the parameters need a distribution; give a prior.")
        return [site for site in sites(self.parameters, self.prior, self.hazard) if site.name not in self.fixed]

    def log_prior(self, values: Parameters) -> Float[Tensor, "*r"]:
        if self.prior is None or not self.sites:
            return self.series.like.new_zeros(())
        return log_prior(self.sites, values)

    # ---- sequences that change together ------------------------------------------------------------------------------

    def each(self, table: Tensor, lead: int = 0, beyond: float | None = None) -> Tensor:
        """A table of segmentations `[*lead, *b, ...]`, for each sequence; numbers in the dtype of the series. One of
        steps, `[*lead, *b, T]`, has `beyond` after the end of a sequence."""
        table = table.to(self.series.like) if table.is_floating_point() else table
        if not self.shared:
            return table
        shape = self.series.batch_shape
        place = (*table.shape[:lead], *[1] * len(shape), *table.shape[lead:])
        table = table.reshape(place).expand(*table.shape[:lead], *shape, *table.shape[lead:])
        if beyond is None or self.series.lengths is None:
            return table
        return torch.where(self.series.inside, table, torch.tensor(beyond).to(table))

    def apart(self, table: Tensor, axis: int, lead: int = 0) -> Tensor:
        """A table `[*lead, *b, T, G, ...]` of groups of features, which are at `axis`, for each sequence."""
        shape = self.series.batch_shape
        if not self.shared or not shape:
            return table
        first = table.ndim + axis
        apart = table.unflatten(first, (*shape, -1))
        places = tuple(range(first, first + len(shape)))
        return apart.movedim(places, tuple(range(lead, lead + len(shape))))

    # ---- the chain ---------------------------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> torch.Size:
        """The batch axes of segmentations: none if all sequences change together."""
        return torch.Size() if self.shared else self.series.batch_shape

    @cached_property
    def groups(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As in `SeriesProblem`; sequences that change together are one group."""
        return [(torch.arange(self.series.n_sequences, device="cpu"), self)] if self.shared else super().groups

    def total(self, evidence: Tensor) -> Tensor:
        return evidence if self.shared else super().total(evidence)

    @cached_property
    def rows(self) -> Rows:
        """What each row adds to the belief about its segment. Sequences that change together are like features."""
        rows, n_batch = Rows.of(self.emission, self.series, self.about, self.scale), len(self.series.batch_shape)
        if not self.shared or not n_batch:
            return rows
        each = rows.statistics.flatten(0, n_batch - 1).movedim(0, 1)
        return Rows(each.flatten(1, 2), rows.log_base.flatten(0, n_batch - 1).sum(0), rows.about, rows.scale)

    def chain(self, values: Parameters) -> SegmentChain:
        """The chain over segmentations under these parameters."""
        double = {name: value.double() for name, value in values.items()}
        log_hazard, by = self.log_hazard(double)
        lengths = None if self.shared else self.series.lengths
        one = block(self.emission, double, self.rows)
        try:
            return SegmentChain(one, log_hazard, self.rows.log_base, by=by, lengths=lengths, tol=self.tol)
        except ValueError as error:
            reason = f"at the observations rounding leaves no prior of a segment ({error})"
            raise ValueError(f"prior: {reason}; see how far x lies from it, and use model.scaled_to(x).") from None

    @property
    def expectation(self) -> Any:
        """The function whose expectations `summarised` reads."""
        return Expectation(self.emission.family)

    @property
    def duration(self) -> Any:
        """The distribution of a segment's steps after the first; None if the hazard has parameters."""
        return self.hazard if is_duration(self.hazard) else None

    def log_hazard(self, values: Parameters) -> tuple[Tensor, str]:
        """log P(change): `[*rb, 1]`, or by step if there are gaps or inputs, or by the length of the run."""
        if self.duration is not None:
            return log_hazards(self.duration, self.series.n_steps).to(self.series.like.device), "run"
        log_change, log_hold = self.log_gate(values, self.series.drive)
        if self.series.gaps is None:
            return log_change, "step"
        gaps = self.series.drive.gaps.double().clone()  # type: ignore[union-attr]
        gaps[..., 0] = 1.0  # a segment begins at the first step
        return log_change_in(gaps, log_hold), "step"

    def log_gate(self, values: Parameters, drive: Drive) -> tuple[Tensor, Tensor]:
        """log P(change) and log P(no change) in a gap of one step, at the steps of a drive of this series."""
        inputs, n_inputs = None, count_inputs(inputs_of(self.hazard))
        if n_inputs:
            assert drive.inputs is not None
            inputs = drive.inputs[..., :n_inputs].double()
            if self.shared:  # those of all sequences are alike
                inputs = inputs.flatten(0, -3)[self.series.last.flatten().argmax()]
            if self.frame is not None:
                inputs = (inputs - self.frame.center) / self.frame.scale
        return log_gate(self.hazard, values, inputs, len(self.batch_shape))

    def summarised(self, expected: Float[Tensor, "*b T G M"]) -> tuple[Parameters, Parameters]:
        """Means and standard deviations of the parameters at each step, in the dtype of the series."""
        means, spreads = summarised(self.emission, self.apart(expected, -2), self.rows.about)
        like = self.series.like
        return {n: t.to(like) for n, t in means.items()}, {n: t.to(like) for n, t in spreads.items()}

    def own_at(self, point: Any, lead: int = 1) -> Parameters:
        """Parameters `[*lead, *b, T, ...]` as the emission reads them, from a point `[*lead, *b, T, G, ...]` of the
        family."""
        n_axes, tables = lead + len(self.series.batch_shape) + 1, {}
        shapes, values = event_shapes(self.emission), self.emission.values(point)
        for shape, (own, table) in zip(shapes.values(), values.items(), strict=True):
            table = self.apart(table, lead + 1 - table.ndim, lead)
            tables[own] = table.reshape(*table.shape[:n_axes], *shape)
        return tables | ({"loc": tables["loc"] + self.rows.about} if "loc" in tables else {})

    def parameters_at(self, point: Any, lead: int = 1) -> Parameters:
        """The same in their displayed form; NaN where the point is NaN."""
        names, own = event_shapes(self.emission), self.own_at(point, lead)
        tables = zip(names, own.items(), strict=True)
        return {name: shown(self.emission, key, table).to(self.series.like) for name, (key, table) in tables}

    def draws_ahead(self, values: Parameters, filtered: Any, each: int) -> Tensor:
        return draws_ahead(self, values, each)

    def draws_along(self, values: Parameters, drawn: Any) -> Tensor:
        return draws_along(self, drawn)

    def limits_before(self, values: Parameters) -> dict[str, Tensor]:
        """As `judging.residuals` wants them; see `ahead`."""
        return limits_before(self, values)

    def best(self, values: Parameters) -> tuple[Int[Tensor, "B T"], tuple[Parameters, Parameters]]:
        """The number of the segment at each step of the most probable segmentation, -1 after the end of a sequence; and
        the means and standard deviations of the parameters of each segment `[S, ...]`, one sequence after another."""
        path = self.each(self.chain(values).viterbi().path, beyond=-1).reshape(
            self.series.n_sequences, self.series.n_steps
        )
        rows = Rows.of(self.emission, self.series, scale=self.scale)
        number = path + torch.nn.functional.pad((path.amax(-1) + 1).cumsum(0)[:-1], (1, 0)).unsqueeze(-1)
        prior = natural(self.emission, {name: value.double() for name, value in values.items()}, rows)
        inside, table = path >= 0, rows.statistics.reshape(*path.shape, *rows.statistics.shape[-2:])
        sums = prior.repeat(int(number[inside].max()) + 1, 1, 1).index_add(0, number[inside], table[inside])
        means, spreads = summarised(self.emission, self.expectation(sums), rows.about)
        return path, (means, spreads)
