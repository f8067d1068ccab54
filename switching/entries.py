"""Tables whose entries are 0 except at some places, and their free coordinates: these entries one after another."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints
from torch.distributions.constraints import Constraint


class Entries(Constraint):
    """Tables of numbers that are 0 except at `free` entries.

    Attributes:
        free: which entries may be other than 0.
        reason: why the others are 0, for errors.
    """

    is_discrete = False

    def __init__(self, free: Bool[Tensor, "..."], reason: str) -> None:
        self.free, self.reason = free.cpu(), reason
        self.event_dim = free.ndim  # pyright: ignore[reportIncompatibleMethodOverride]

    def check(self, value: Tensor) -> Tensor:
        fits = (value == 0) | (self.free.to(value.device) & value.isfinite())
        return fits.flatten(fits.ndim - self.event_dim).all(-1)

    def checked(self, value: Tensor, name: str) -> Tensor:
        """The table `[...]`, if it is one of these; otherwise ValueError with the place."""
        wrong = (value != 0) & ~self.free.to(value.device)
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(f"{name}: got {float(value[place]):g} at {list(place)}, expected 0: {self.reason}.")
        return value


class EntriesTransform(Transform):
    """From the free entries `[P]` to the table."""

    domain = constraints.real_vector
    bijective = True

    def __init__(self, support: Entries) -> None:
        super().__init__()
        self.support = support
        free = support.free
        self._n = int(free.sum())
        self._place = torch.full(free.shape, self._n, device="cpu")  # the number of each entry; the last one is 0
        self._place[free] = torch.arange(self._n, device="cpu")

    @property
    def codomain(self) -> Entries:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.support

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntriesTransform) and torch.equal(self.support.free, other.support.free)

    def _call(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1))[..., self._place.to(x.device)]

    def _inverse(self, y: Tensor) -> Tensor:
        return y[..., self.support.free.to(y.device)]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])

    def forward_shape(self, shape: Any) -> torch.Size:
        return torch.Size([*shape[:-1], *self._place.shape])

    def inverse_shape(self, shape: Any) -> torch.Size:
        return torch.Size([*shape[: len(shape) - self._place.ndim], self._n])


@biject_to.register(Entries)
def _(support: Entries) -> EntriesTransform:
    return EntriesTransform(support)
