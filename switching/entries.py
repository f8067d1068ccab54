"""Tables whose entries are 0 except at some places, and their free coordinates.

The coordinates of numbers are these numbers, or their logarithms if they are not negative, one after another. Those of
rows of probabilities are logarithms of ratios to the last free probability of the row. Their Jacobian is the product of
the shares of the free probabilities in their sum.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints
from torch.distributions.constraints import Constraint


class Entries(Constraint):
    """Tables of numbers that are 0 except at `free` entries.

    Attributes:
        free: which entries may be other than 0.
        reason: why the others are 0, for errors.
        relative: whether the first row is the reference of the others; it stays 0 if states are reordered.
        of: the support of the free entries: real numbers, or those that are not negative.
    """

    free: Tensor
    reason: str
    relative: bool
    of: Constraint

    is_discrete = False

    def __init__(
        self, free: Bool[Tensor, "..."], reason: str, relative: bool = False, of: Constraint = constraints.real
    ) -> None:
        self.free, self.reason, self.relative, self.of = free.cpu(), reason, relative, of
        self.event_dim: int = free.ndim  # pyright: ignore[reportIncompatibleMethodOverride]

    def check(self, value: Tensor) -> Tensor:
        fits = (value == 0) | (self.free.to(value.device) & value.isfinite() & self.of.check(value))
        return fits.flatten(fits.ndim - self.event_dim).all(-1)

    def checked(self, value: Tensor, name: str) -> Tensor:
        """The table `[...]`, if it is one of these; otherwise ValueError with the place."""
        wrong = (value != 0) & ~self.free.to(value.device)
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(f"{name}: got {float(value[place]):g} at {list(place)}, expected 0: {self.reason}.")
        below = ~self.of.check(value)
        if bool(below.any()):
            place = tuple(below.nonzero()[0].tolist())
            raise ValueError(f"{name}: got {float(value[place]):g} at {list(place)}, expected a number of at least 0.")
        return value


class PossibleRows(Constraint):
    """Tables whose rows are probabilities, known except at `free` entries: 0 unless `known` says otherwise.

    Attributes:
        free: which entries are not known.
        reason: why the others are 0, for errors.
        known: the known entries, 0 elsewhere.
        rest: the probability that the free entries of each row share, `[..., 1]`; 1 in rows without any.
    """

    free: Tensor
    reason: str

    is_discrete = False

    def __init__(self, free: Bool[Tensor, "*i K"], reason: str, known: Float[Tensor, "*i K"] | None = None) -> None:
        self.free, self.reason = free.cpu(), reason
        self.known: Tensor = (
            torch.zeros(free.shape, dtype=torch.float64, device="cpu") if known is None else known.cpu()
        )
        rest = 1 - self.known.sum(-1, keepdim=True)
        self.rest: Tensor = torch.where(self.free.any(-1, keepdim=True), rest, torch.ones_like(rest))
        self.event_dim: int = free.ndim  # pyright: ignore[reportIncompatibleMethodOverride]

    def check(self, value: Tensor) -> Tensor:
        fits = self.free.to(value.device) | (value == self.known.to(value))
        lead = value.shape[: value.ndim - self.event_dim]
        rows = constraints.simplex.check(value).reshape(*lead, -1).all(-1)
        return rows & fits.reshape(*lead, -1).all(-1)

    def spread(self, shares: Float[Tensor, "*r K"]) -> Float[Tensor, "*r K"]:
        """The tables whose free entries have these shares of the rest of their rows."""
        return torch.where(self.free.to(shares.device), self.rest.to(shares) * shares, self.known.to(shares))

    def shares(self, table: Float[Tensor, "*r K"]) -> Float[Tensor, "*r K"]:
        """The share of each free entry in the rest of its row; 1 at known entries."""
        return torch.where(self.free.to(table.device), table / self.rest.to(table), 1.0)

    def fitted(self, table: Float[Tensor, "*r K"]) -> Float[Tensor, "*r K"]:
        """The nearest table of this kind: free entries in their ratios, equal ones if all are 0."""
        free = self.free.to(table)
        part = torch.where(free > 0, table, 0.0)
        total, count = part.sum(-1, keepdim=True), free.sum(-1, keepdim=True).clamp_min(1)
        return self.spread(torch.where(total > 0, part / total, free / count))

    def checked(self, value: Tensor, name: str) -> Tensor:
        """The table, if its rows, which are probabilities, are 0 where they have to be; otherwise ValueError."""
        return Entries(self.free, self.reason).checked(value, name)


class _Placed(Transform):
    """From numbers `[P]` to a table that has them at some entries."""

    domain = constraints.real_vector
    bijective = True

    def __init__(self, support: Entries | PossibleRows, moving: Bool[Tensor, "..."]) -> None:
        super().__init__()
        self.support, self._moving = support, moving
        self._n = int(moving.sum())
        self._place = torch.full(moving.shape, self._n, device="cpu")  # the number of each entry; the last one is 0
        self._place[moving] = torch.arange(self._n, device="cpu")

    @property
    def codomain(self) -> Entries | PossibleRows:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.support

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        ours, theirs = self.support, other.support  # pyright: ignore[reportAttributeAccessIssue]
        same = not isinstance(ours, PossibleRows) or torch.equal(ours.known, theirs.known)  # pyright: ignore[reportAttributeAccessIssue]
        return same and torch.equal(ours.free, theirs.free)

    def _call(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1))[..., self._place.to(x.device)]

    def _inverse(self, y: Tensor) -> Tensor:
        return y[..., self._moving.to(y.device)]

    def forward_shape(self, shape: Any) -> torch.Size:
        return torch.Size([*shape[:-1], *self._place.shape])

    def inverse_shape(self, shape: Any) -> torch.Size:
        return torch.Size([*shape[: len(shape) - self._place.ndim], self._n])


class EntriesTransform(_Placed):
    """From the free entries `[P]`, or their logarithms, to the table."""

    def __init__(self, support: Entries) -> None:
        super().__init__(support, support.free)
        self._each: Any = biject_to(support.of)

    def _call(self, x: Tensor) -> Tensor:
        return super()._call(self._each(x))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._each.inv(super()._inverse(y))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._each.log_abs_det_jacobian(x, self._each(x)).sum(-1)


class RowsTransform(_Placed):
    """From logarithms of ratios to the table."""

    def __init__(self, support: PossibleRows) -> None:
        free = support.free
        last = free.shape[-1] - 1 - free.flip(-1).byte().argmax(-1, keepdim=True)
        super().__init__(support, free.scatter(-1, last, False))
        self.support: PossibleRows = support  # pyright: ignore[reportIncompatibleVariableOverride]
        self._last = last

    def _call(self, x: Tensor) -> Tensor:
        closed = ~self.support.free & self.support.free.any(-1, keepdim=True)  # a row without a free entry stays finite
        shares = torch.softmax(super()._call(x).masked_fill(closed.to(x.device), -torch.inf), -1)
        return self.support.spread(shares)

    def _inverse(self, y: Tensor) -> Tensor:
        logs = y.log()
        return super()._inverse(logs - logs.gather(-1, self._last.to(y.device).expand(*y.shape[:-1], 1)))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.support.shares(y).log().flatten(-self.support.event_dim).sum(-1)


@biject_to.register(PossibleRows)
def _(support: PossibleRows) -> RowsTransform:
    return RowsTransform(support)


@biject_to.register(Entries)
def _(support: Entries) -> EntriesTransform:
    return EntriesTransform(support)
