"""Records of streams of linear models."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.records import Record


@dataclass(frozen=True, repr=False)
class LinearStreamState(Record):
    """The memory of a stream: the belief about the last state. While a diffuse start is undetermined, `pending` has the
    observations so far instead, and `pending_inputs` their inputs."""

    mean: Float[Tensor, "*b L"] | None
    covariance: Float[Tensor, "*b L L"] | None
    log_evidence: Float[Tensor, "*b"]
    steps: int
    pending: Float[Tensor, "*b n F"] | None = None
    pending_inputs: Float[Tensor, "*b n C"] | None = None


@dataclass(frozen=True, repr=False)
class LinearStreamOutput(Record):
    """The result of one observation of a stream; NaN while a diffuse start is undetermined."""

    mean: Float[Tensor, "*b L"]
    covariance: Float[Tensor, "*b L L"]
    log_increment: Float[Tensor, "*b"]
