"""Supports of tables of which some entries are known, and free coordinates of the others.

Free coordinates are those of the free numbers or matrices, one after another. Those of rows of probabilities are
logarithms of ratios to the last free probability of the row. Their Jacobian is the product of the shares of the free
probabilities in their sum.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints
from torch.distributions.constraints import Constraint

from .definite import free_coordinates


class KnownEntries(Constraint):
    """Tables of which some entries are known.

    Arguments:
        base: the support of the whole table.
        table: the known entries, NaN elsewhere. Matrices are known or free as a whole.

    Attributes:
        free: which numbers or matrices are not known.
    """

    base: Constraint
    table: Tensor
    free: Tensor
    event_dim: int

    is_discrete = False

    def __init__(self, base: Constraint, table: Tensor) -> None:
        while isinstance(base, constraints.independent):
            base = base.base_constraint
        if isinstance(base, KnownEntries):
            table, base = torch.where(base.table.to(table).isnan(), table, base.table.to(table)), base.base
        self.base, self.table, self.event_dim = base, table, table.ndim  # pyright: ignore[reportIncompatibleMethodOverride]
        free = table.isnan()
        self.free = free.flatten(free.ndim - base.event_dim).any(-1) if base.event_dim else free

    def check(self, value: Tensor) -> Tensor:
        lead = value.shape[: value.ndim - self.event_dim]
        fits = (value == self.table.to(value)) | self.table.isnan().to(value.device)
        return fits.reshape(*lead, -1).all(-1) & self.base.check(value).reshape(*lead, -1).all(-1)

    def fitted(self, table: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """A table with the known entries in their places."""
        known = self.table.to(table)
        return torch.where(known.isnan(), table, known)


class Entries(KnownEntries):
    """Tables of numbers that are 0 except at `free` entries.

    Attributes:
        reason: why the others are 0, for errors.
        relative: whether the first row is the reference of the others; it stays 0 if states are reordered.
        base: the support of the free entries: real numbers, or those that are not negative.
    """

    reason: str
    relative: bool

    def __init__(
        self, free: Bool[Tensor, "..."], reason: str, relative: bool = False, of: Constraint = constraints.real
    ) -> None:
        super().__init__(of, torch.where(free.cpu(), torch.nan, 0.0))
        self.reason, self.relative = reason, relative

    def checked(self, value: Tensor, name: str) -> Tensor:
        """The table `[...]`, if it is one of these; otherwise ValueError with the place."""
        wrong = (value != 0) & ~self.free.to(value.device)
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(f"{name}: got {float(value[place]):g} at {list(place)}, expected 0: {self.reason}.")
        below = ~self.base.check(value)
        if bool(below.any()):
            place = tuple(below.nonzero()[0].tolist())
            raise ValueError(f"{name}: got {float(value[place]):g} at {list(place)}, expected a number of at least 0.")
        return value


class PossibleRows(Constraint):
    """Tables whose rows are probabilities, of which some entries are known.

    Arguments:
        table: the known entries, NaN elsewhere.
        reason: why entries are known, for errors.

    Attributes:
        free: which entries are not known.
        known: the known entries, 0 elsewhere.
        rest: the probability that the free entries of each row share, `[..., 1]`; 1 in rows without any.
    """

    table: Tensor
    reason: str

    is_discrete = False

    def __init__(self, table: Float[Tensor, "*i K"], reason: str) -> None:
        self.table, self.reason = table.cpu(), reason
        self.free: Tensor = self.table.isnan()
        self.known: Tensor = self.table.nan_to_num(0.0)
        rest = 1 - self.known.sum(-1, keepdim=True)
        self.rest: Tensor = torch.where(self.free.any(-1, keepdim=True), rest, torch.ones_like(rest))
        self.event_dim: int = table.ndim  # pyright: ignore[reportIncompatibleMethodOverride]

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


def of_free(support: Constraint) -> Constraint:
    """The support of the free entries of a table."""
    return support.base if isinstance(support, KnownEntries) else support


# ---- free coordinates ------------------------------------------------------------------------------------------------


class _FromVector(Transform):
    """From the free coordinates `[P]` to the table."""

    domain = constraints.real_vector
    bijective = True
    n_coordinates: int

    def __init__(self, support: KnownEntries | PossibleRows) -> None:
        super().__init__()
        self.support = support

    @property
    def codomain(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.support

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        return torch.equal(*(one.support.table.nan_to_num(torch.inf) for one in (self, cast(_FromVector, other))))

    def forward_shape(self, shape: Any) -> torch.Size:
        return torch.Size([*shape[:-1], *self.support.table.shape])

    def inverse_shape(self, shape: Any) -> torch.Size:
        return torch.Size([*shape[: len(shape) - self.support.event_dim], self.n_coordinates])


class KnownTransform(_FromVector):
    """From free coordinates of each free number or matrix."""

    support: KnownEntries

    def __init__(self, support: KnownEntries) -> None:
        super().__init__(support)
        self._inner = free_coordinates(support.base)
        self._event = support.table.shape[support.free.ndim :]
        self._domain = self._inner.inverse_shape(self._event)
        self._places = support.free.flatten().nonzero().flatten()
        self.n_coordinates = len(self._places) * self._domain.numel()

    def _apart(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], len(self._places), *self._domain)

    def _free(self, y: Tensor) -> Tensor:
        lead = y.shape[: y.ndim - self.support.event_dim]
        return y.reshape(*lead, -1, *self._event).index_select(len(lead), self._places.to(y.device))

    def _call(self, x: Tensor) -> Tensor:
        known, lead = self.support.table.nan_to_num(0.0).to(x), x.shape[:-1]
        flat = known.reshape(-1, *self._event).expand(*lead, -1, *self._event)
        completed = flat.index_copy(len(lead), self._places.to(x.device), cast(Tensor, self._inner(self._apart(x))))
        return completed.reshape(*lead, *known.shape)

    def _inverse(self, y: Tensor) -> Tensor:
        free = cast(Tensor, self._inner.inv(self._free(y)))
        return free.reshape(*y.shape[: y.ndim - self.support.event_dim], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._inner.log_abs_det_jacobian(self._apart(x), self._free(y)).sum(-1)


class RowsTransform(_FromVector):
    """From logarithms of ratios."""

    support: PossibleRows

    def __init__(self, support: PossibleRows) -> None:
        super().__init__(support)
        free = support.free
        self._last = free.shape[-1] - 1 - free.flip(-1).byte().argmax(-1, keepdim=True)
        self._moving = free.scatter(-1, self._last, False)
        self.n_coordinates = int(self._moving.sum())
        self._place = torch.full(free.shape, self.n_coordinates, device="cpu")  # of each coordinate; the last one is 0
        self._place[self._moving] = torch.arange(self.n_coordinates, device="cpu")

    def _call(self, x: Tensor) -> Tensor:
        logs = torch.nn.functional.pad(x, (0, 1))[..., self._place.to(x.device)]
        closed = ~self.support.free & self.support.free.any(-1, keepdim=True)  # a row without a free entry stays finite
        return self.support.spread(torch.softmax(logs.masked_fill(closed.to(x.device), -torch.inf), -1))

    def _inverse(self, y: Tensor) -> Tensor:
        logs = y.log()
        ratios = logs - logs.gather(-1, self._last.to(y.device).expand(*y.shape[:-1], 1))
        return ratios[..., self._moving.to(y.device)]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.support.shares(y).log().flatten(-self.support.event_dim).sum(-1)


biject_to.register(KnownEntries, KnownTransform)
biject_to.register(Entries, KnownTransform)
biject_to.register(PossibleRows, RowsTransform)
