"""Results of a `Segments` model on a series."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.numerics.records import Record

ByName = dict[str, Float[Tensor, "*b T"] | Float[Tensor, "*b T F"] | Float[Tensor, "*b T F G"]]
"""Numbers of each parameter of the segment in force, by name, in its displayed form."""


@dataclass(frozen=True, repr=False)
class SegmentsFiltered(Record):
    """The belief after each observation; 0 after the end of a sequence."""

    log_normalizer: Float[Tensor, "*b"]  # log p(x)
    log_increment: Float[Tensor, "*b T"]  # log p(x_t | x_1..t-1)
    change: Float[Tensor, "*b T"]  # P(a segment begins at t | x_1..t), 1 at the first step
    run: Float[Tensor, "*b T"]  # expected steps since the segment began, t included
    mean: ByName  # of the parameters at t, given x_1..t
    sd: ByName  # their standard deviations; infinite where the prior has none
    left_out: Float[Tensor, "*b"]  # bound of the total variation from the exact belief; 0 if it is exact


@dataclass(frozen=True, repr=False)
class SegmentsSmoothed(Record):
    """The belief given the whole sequence; 0 after its end."""

    log_normalizer: Float[Tensor, "*b"]
    change: Float[Tensor, "*b T"]  # P(a segment begins at t | x), 1 at the first step
    n_changes: Float[Tensor, "*b"]  # expected number, the first beginning excluded
    mean: ByName  # of the parameters at t, given x
    sd: ByName
    left_out: Float[Tensor, "*b"]


@dataclass(frozen=True, repr=False)
class SegmentsSampled(Record):
    """Independent draws of the segmentation and of the parameters given x."""

    path: Int[Tensor, "n *b T"]  # the number of the segment, from 0; -1 after the end of a sequence
    redraw: Bool[Tensor, "n *b T"]  # whether a segment begins
    parameters: dict[str, Float[Tensor, "n *b T F"] | Float[Tensor, "n *b T F G"]]  # at each step; NaN after the end


@dataclass(frozen=True, repr=False)
class SegmentsSimulated(Record):
    """A draw of the whole model."""

    x: Float[Tensor, "*b T F"]
    path: Int[Tensor, "*b T"]
    redraw: Bool[Tensor, "*b T"]
    parameters: dict[str, Tensor]  # [*b, T, ...]
