"""What a linear Gaussian chain is computed from, and which of its batch axes covariances have."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.checks import broadcast_shapes

# the faults of a sequence: `fault` is 4 times the step plus one of these, or -1
OVERFLOW = 0  # a variance is not finite
SINGULAR = 1  # a feature without noise of its own, or that others fix
OPEN = 2  # the observations do not determine all diffuse states


class Tables(NamedTuple):
    """Parameters with an axis of steps (of one entry if it is the same for all), and factors instead of covariances.

    No table is expanded to the batch axes of the others. Covariances depend on no observation: they have the batch
    axes of the fields that they are made of alone, one set of them for all sequences of the same parameters.
    """

    x: Tensor  # [*b, T, F], 0 where nothing is seen
    seen: Tensor | None  # [*b, T, F]; None: all of it
    lengths: Tensor | None  # [*b]; None: all have T steps
    transition: Tensor  # [*b, S, L, L]
    transition_offset: Tensor  # [*b, S, L]
    state_factor: Tensor  # [*b, S, L, L]
    emission: Tensor  # [*b, S, F, L]
    emission_offset: Tensor  # [*b, S, F]
    observation_factor: Tensor  # [*b, S, F, F]
    initial_mean: Tensor  # [*b, L]
    initial_factor: Tensor  # [*b, L, L]
    directions: Tensor  # [L, q], the diffuse ones

    @property
    def n_steps(self) -> int:
        return self.x.shape[-2]

    @property
    def n_diffuse(self) -> int:
        return self.directions.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        return _broadcast(self, OWN_AXES)

    @property
    def shared_shape(self) -> torch.Size:
        """The batch axes of covariances."""
        return _broadcast(self, OF_COVARIANCES)

    @property
    def active(self) -> Tensor | None:
        """[*b, T], whether a sequence has this step; None: all have."""
        if self.lengths is None:
            return None
        return torch.arange(self.n_steps, device=self.x.device) < self.lengths.unsqueeze(-1)


OWN_AXES = {
    "x": 2,
    "seen": 2,
    "lengths": 0,
    "transition": 3,
    "transition_offset": 2,
    "state_factor": 3,
    "emission": 3,
    "emission_offset": 2,
    "observation_factor": 3,
    "initial_mean": 1,
    "initial_factor": 2,
}
OF_COVARIANCES = {
    name: n_axes
    for name, n_axes in OWN_AXES.items()
    if name not in ("x", "transition_offset", "emission_offset", "initial_mean")
}


def _broadcast(tables: Tables, axes: dict[str, int]) -> torch.Size:
    present = [(table.shape, n) for name, n in axes.items() if (table := getattr(tables, name)) is not None]
    return broadcast_shapes(*[shape[: len(shape) - n] for shape, n in present])
