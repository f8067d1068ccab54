"""Blocks of parameters of a segment, and what is known about the segments of a series."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ...numerics.records import Record


@runtime_checkable
class Conjugate(Protocol):
    """What a chain asks of a `VectorFamily` of `inference.families`."""

    kernel: ClassVar[str | None]

    def usual(self, eta: Tensor) -> Any: ...

    def log_normalizer(self, eta: Tensor) -> Tensor: ...

    def mean(self, eta: Tensor) -> Tensor: ...

    def supremum(self, message: Tensor) -> Tensor: ...

    def check(self, eta: Tensor) -> None: ...

    def sample(self, eta: Tensor, n: int, generator: Generator | None = None) -> Any: ...


@dataclass(frozen=True, repr=False)
class Block(Record):
    """The parameters of segments that have one conjugate prior: F of them in each segment, independent given the
    changes.

    Statistics are those of one observation at each step, in the order of the family's natural parameters.

    Arguments:
        family: the conjugate family of the prior.
        prior: its natural parameters, `[*b, F, P]`.
        statistics: the sufficient statistics of each observation, `[*b, T, F, P]`.

    See Also:
        `SegmentChain`, which takes blocks; `SegmentStream`, which takes their families; docs/guides/segments.md, on the
        model.

    >>> import torch, samplehold as sh
    >>> from samplehold.inference.families import Beta
    >>> toss = torch.tensor([1.0, 0.0, 1.0])
    >>> sh.chains.Block(Beta(), torch.ones(1, 2), torch.stack([toss, 1 - toss], -1).unsqueeze(-2)).statistics.shape
    torch.Size([3, 1, 2])
    """

    family: Conjugate  # of their conjugate prior
    prior: Float[Tensor, "*#b F D"]  # its natural parameters
    statistics: Float[Tensor, "*#b T F D"]  # which each observation adds to them; 0 where it is missing


@dataclass(frozen=True, repr=False)
class FilteredSegments(Record):
    """The belief after each observation; 0 after the end of a sequence."""

    log_normalizer: Float[Tensor, "*b"]  # log p(x)
    log_increment: Float[Tensor, "*b T"]  # log p(x_t | x_1..t-1)
    change: Float[Tensor, "*b T"]  # P(a segment begins at t | x_1..t), 1 at the first step
    run: Float[Tensor, "*b T"]  # expected steps since the segment began, t included
    expected: tuple[Float[Tensor, "*b T _ _"], ...]  # by block, E[f(parameter at t) | x_1..t]
    left_out: Float[Tensor, "*b"]  # bound of the total variation from the exact belief; 0 if exact


@dataclass(frozen=True, repr=False)
class SmoothedSegments(Record):
    """The belief given the whole sequence; 0 after its end."""

    log_normalizer: Float[Tensor, "*b"]
    change: Float[Tensor, "*b T"]  # P(a segment begins at t | x), 1 at the first step
    n_changes: Float[Tensor, "*b"]  # expected number, the first beginning excluded
    expected: tuple[Float[Tensor, "*b T _ _"], ...]  # by block, E[f(parameter at t) | x]
    left_out: Float[Tensor, "*b"]


@dataclass(frozen=True, repr=False)
class SampledSegments(Record):
    """Independent draws of the segmentation given x, and of the parameter of each segment."""

    path: Int[Tensor, "n *b T"]  # the number of the segment, from 0; -1 after the end
    redraw: Bool[Tensor, "n *b T"]  # whether a segment begins
    parameters: tuple[Any, ...]  # by block a point of its family, [n, *b, T, F, ...]; NaN after the end


@dataclass(frozen=True, repr=False)
class Runs(Record):
    """The belief about the segment in force at the end of a sequence: R possible beginnings."""

    length: Int[Tensor, "*b R"]  # steps since the beginning
    log_weight: Float[Tensor, "*b R"]  # log P(length | x); -inf if it is left out
    statistics: tuple[Float[Tensor, "*b R _ _"], ...]  # by block, the sum over these steps
    natural: tuple[Float[Tensor, "*b R _ _"], ...]  # by block, of the posterior of the parameter
    evidence: Float[Tensor, "*b R"]  # the log-normalizers of these posteriors, summed over all parameters
    log_normalizer: Float[Tensor, "*b"]
    left_out: Float[Tensor, "*b"]
    n_steps: Int[Tensor, "*b"]  # seen so far


@dataclass(frozen=True, repr=False)
class Later(Record):
    """What the later steps say about the segment in force, by its end: E possible ends.

    With e the sum of statistics of its later steps, the weight of all later steps at a parameter theta is the sum over
    ends of exp(log_weight + <e, t(theta)>).
    """

    log_weight: Float[Tensor, "*b R E"]  # after runs of 1, 2, ..., R or more steps; R is 1 for hazards by step
    statistics: tuple[Float[Tensor, "*b E _ _"], ...]  # by block, the sum over the later steps of this segment


def tables_of(point: Any) -> tuple[Tensor, ...]:
    """The tensors of a point of a family."""
    return (point,) if isinstance(point, torch.Tensor) else tuple(vars(point).values())
