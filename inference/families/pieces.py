"""Families whose plates, or groups of columns of a regression, have known entries of their own: see `entries`.

Plates with the same known entries are updated together.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from ..numerics.checks import broadcast_shapes
from ..numerics.delegation import delegated
from .degrees import Degrees, Tailed
from .entries import GivenInputs, GivenNoise, GivenProbabilities
from .family import VectorFamily
from .normal import Gaussian, LocPrecision, NormalGamma, NormalWishart
from .numerics import pack
from .point import Held
from .positive import Beta, Dirichlet, Gamma
from .regression import MatrixNormalWishart
from .restricted import GivenCoordinates, given

SCALAR = (NormalGamma, Gamma, Beta, Degrees)  # families each plate of which has one number, or one of each part


@dataclass(frozen=True, eq=False)
class Piece:
    """Some plates, and of a regression some of its columns, that are independent of the rest."""

    family: VectorFamily[Any]
    plates: Int[Tensor, "n"]
    columns: Int[Tensor, "D"] | None = None


class InPieces(VectorFamily[Any]):
    """A family whose plates, or groups of columns of a regression, have known entries of their own.

    Arguments:
        family: of the whole.
        shape: of the plates.
        pieces: cover all plates and columns.
    """

    family: VectorFamily[Any]
    shape: torch.Size
    pieces: list[Piece]

    def __init__(self, family: VectorFamily[Any], shape: torch.Size, pieces: list[Piece]) -> None:
        self.family, self.shape, self.pieces = family, shape, pieces
        # a normal-Wishart density is a regression on the single input 1
        self._regression = family if isinstance(family, MatrixNormalWishart) else MatrixNormalWishart(1)

    latent = delegated("family")
    log_base = delegated("family")
    statistics = delegated("family")
    tilted = delegated("family")

    def _take(self, eta: Tensor, piece: Piece) -> Tensor:
        """Natural parameters [*lead, n, Q] of a piece."""
        flat = eta.reshape(*eta.shape[: eta.ndim - 1 - len(self.shape)], -1, eta.shape[-1])[..., piece.plates, :]
        if piece.columns is None:
            return flat
        first, second, log_volume, last = self._regression.parts(self.family.tilted(flat))
        last = last[..., piece.columns, :][..., piece.columns]
        part = pack(
            first[..., piece.columns].flatten(-2), second.flatten(-2), log_volume.unsqueeze(-1), last.flatten(-2)
        )
        return part - self._regression.tilted(torch.zeros_like(part))

    def _sum(self, values: list[Tensor], lead: torch.Size) -> Tensor:
        """Numbers [*lead, n] of each piece, summed in each plate: [*lead, *plates]."""
        total = values[0].new_zeros(*lead, self.shape.numel())
        for piece, value in zip(self.pieces, values, strict=True):
            total = total.index_add(-1, piece.plates, value.expand(*lead, len(piece.plates)))
        return total.unflatten(-1, self.shape) if self.shape else total.squeeze(-1)

    def _lead(self, *etas: Tensor) -> torch.Size:
        return broadcast_shapes(*(eta.shape[: eta.ndim - 1 - len(self.shape)] for eta in etas))

    def check(self, eta: Tensor) -> None:
        for piece in self.pieces:
            piece.family.check(self._take(eta, piece))

    def log_normalizer(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates"]:
        return self._sum([p.family.log_normalizer(self._take(eta, p)) for p in self.pieces], self._lead(eta))

    def kl(self, eta: Float[Tensor, "*#plates P"], eta0: Float[Tensor, "*#plates P"]) -> Float[Tensor, "*out"]:
        each = [p.family.kl(self._take(eta, p), self._take(eta0, p)) for p in self.pieces]
        return self._sum(each, self._lead(eta, eta0))

    def mean(self, eta: Float[Tensor, "*plates P"]) -> Float[Tensor, "*plates P"]:
        lead, n = self._lead(eta), self.shape.numel()
        total = eta.new_zeros(*lead, n, eta.shape[-1])
        for piece in self.pieces:
            part = piece.family.mean(self._take(eta, piece))
            total = total.index_add(
                -2, piece.plates, part if piece.columns is None else self._widened(part, piece.columns)
            )
        return total.reshape(eta.shape)

    def _widened(self, part: Tensor, columns: Tensor) -> Tensor:
        """Statistics of some columns as those of all, with 0 for the others."""
        first, second, log_volume, precision = self._regression.parts(part)
        into = torch.eye(self._n_columns).to(part)[columns]
        return pack(
            (first @ into).flatten(-2),
            second.flatten(-2),
            log_volume.unsqueeze(-1),
            (into.mT @ precision @ into).flatten(-2),
        )

    @property
    def _n_columns(self) -> int:
        return 1 + max(int(piece.columns.max()) for piece in self.pieces if piece.columns is not None)

    def expected(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self._joined([p.family.expected(self._take(eta, p)) for p in self.pieces])

    def peak(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self._joined([p.family.peak(self._take(eta, p)) for p in self.pieces])

    def mode(self, eta: Float[Tensor, "*plates P"]) -> Any:
        return self._joined([p.family.mode(self._take(eta, p)) for p in self.pieces])

    def sample(self, eta: Float[Tensor, "*plates P"], n: int, generator: Generator | None = None) -> Any:
        return self._joined([_draws(p.family, self._take(eta, p), n, generator) for p in self.pieces])

    def _joined(self, points: list[Any]) -> Any:
        """Points [*lead, n, ...] of the pieces as one point."""
        n = self.shape.numel()
        if self.pieces[0].columns is None:
            if isinstance(points[0], Tensor):
                return self._whole(points)
            return LocPrecision(
                *(self._whole(list(parts)) for parts in zip(*(vars(p).values() for p in points), strict=True))
            )
        lead = broadcast_shapes(*(point.loc.shape[:-3] for point in points))
        total = self._n_columns
        loc = points[0].loc.new_zeros(*lead, n, points[0].loc.shape[-2], total)
        full = LocPrecision(loc, loc.new_zeros(*lead, n, total, total))
        for piece, point in zip(self.pieces, points, strict=True):
            assert piece.columns is not None
            _put(full, point, piece.plates, piece.columns)
        loc, precision = (table.reshape(*lead, *self.shape, *table.shape[-2:]) for table in vars(full).values())
        return LocPrecision(loc.squeeze(-2) if isinstance(self.family, NormalWishart) else loc, precision)

    def _whole(self, tables: list[Tensor]) -> Tensor:
        """Tables `[*lead, n, *event]` of the pieces as one of all plates."""
        n_event = 0 if isinstance(self.family, SCALAR) else 1
        lead = broadcast_shapes(*(table.shape[: table.ndim - 1 - n_event] for table in tables))
        event = tables[0].shape[tables[0].ndim - n_event :]
        full = tables[0].new_zeros(*lead, self.shape.numel(), *event)
        for piece, table in zip(self.pieces, tables, strict=True):
            full = full.index_copy(len(lead), piece.plates, table.to(full).expand(*lead, len(piece.plates), *event))
        return full.reshape(*lead, *self.shape, *event)


def _draws(family: VectorFamily[Any], eta: Float[Tensor, "*lead n P"], n: int, generator: Generator | None) -> Any:
    """Draws [n, *lead, n, ...]; a known point is the same in all restarts."""
    if not isinstance(family, Held):
        return family.sample(eta, n, generator)
    point, lead = family.point, (n, *eta.shape[:-2])
    if isinstance(point, Tensor):
        return point.expand(*lead, *point.shape)
    return LocPrecision(*(table.expand(*lead, *table.shape) for table in vars(point).values()))


def _put(full: LocPrecision, part: LocPrecision, plates: Any, columns: Tensor) -> None:
    """Write the part of some columns, in place."""
    for place, column in enumerate(columns.tolist()):
        full.loc[..., plates, :, column] = part.loc[..., place]
        for beside, other in enumerate(columns.tolist()):
            full.precision[..., plates, column, other] = part.precision[..., place, beside]


# ---- the family of the free entries ---------------------------------------------------------------------------------


def given_in_part(family: VectorFamily[Any], point: Any) -> VectorFamily[Any]:
    """The family of the NaN entries of points `[*plates, ...]`, given the others, which may differ between plates.

    A part of a point that is free as a whole may be a single NaN.

    Raises:
        TypeError, ValueError: as `given` and `given_entries`.
    """
    if isinstance(family, Tailed):
        normal = LocPrecision(point.loc, point.precision)
        is_free = bool(point.loc.isnan().all() and point.precision.isnan().all())
        of_df = family.degrees if bool(point.df.isnan().all()) else given_in_part(family.degrees, point.df)
        return Tailed(family.normal if is_free else given_in_part(family.normal, normal), of_df)
    if isinstance(family, NormalWishart) and point.loc.ndim == 0:
        point = LocPrecision(torch.full_like(point.precision[..., 0], torch.nan), point.precision)
    elif isinstance(family, NormalWishart) and point.precision.ndim == 0:
        free = torch.full((*point.loc.shape, point.loc.shape[-1]), torch.nan).to(point.loc)
        point = LocPrecision(point.loc, free)
    parts = [point] if isinstance(point, Tensor) else list(vars(point).values())
    if not isinstance(family, SCALAR):
        alike = all(bool(table.isnan().all()) or not bool(table.isnan().any()) for table in parts)
        entries = isinstance(family, Dirichlet | Gaussian) or (isinstance(family, NormalWishart) and not alike)
        return given_entries(family, point) if entries else given(family, point)
    parts = list(torch.broadcast_tensors(*parts))
    groups = _alike(torch.stack([table.isnan().flatten() for table in parts], -1))
    if len(groups) == 1:
        return given(family, point)
    pieces = []
    for plates in groups:
        known = [table.flatten()[plates] for table in parts]
        free = all(bool(table.isnan().all()) for table in known)
        some = known[0] if isinstance(point, Tensor) else type(point)(*known)
        pieces.append(Piece(family if free else given(family, some), plates))
    return InPieces(family, parts[0].shape, pieces)


def given_entries(family: VectorFamily[Any], point: Any) -> VectorFamily[Any]:
    """The family of the NaN entries of points `[*plates, ...]`, given the others.

    A 0 in a precision parts the columns of a regression, so entries of a precision are known or free in whole groups.

    Raises:
        TypeError: a family whose entries cannot be known separately.
        ValueError: columns with a free precision, of which different inputs are known.
    """
    if isinstance(point, Tensor):
        if not bool(point.isnan().any()):
            return Held(family, point)
        flat, shape = point.reshape(-1, point.shape[-1]), point.shape[:-1]
        groups = _alike(flat.isnan())
        return InPieces(family, shape, [Piece(_of_vectors(family, flat[plates]), plates) for plates in groups])
    if not bool(point.loc.isnan().any() or point.precision.isnan().any()):
        return Held(family, point)
    vectors = isinstance(family, NormalWishart)
    if not vectors and not isinstance(family, MatrixNormalWishart):
        raise TypeError(
            f"point: a {type(family).__name__} cannot have only some known entries; give all of them, or none."
        )
    loc = point.loc.unsqueeze(-2) if vectors else point.loc
    shape, regression = loc.shape[:-2], MatrixNormalWishart(loc.shape[-2])
    loc, precision = loc.reshape(-1, *loc.shape[-2:]), point.precision.reshape(-1, *point.precision.shape[-2:])
    pieces = []
    for plates in _alike(
        torch.cat([loc.isnan().flatten(1), precision.isnan().flatten(1), (precision != 0).flatten(1)], 1)
    ):
        for columns in columns_apart(precision[plates[0]] != 0):
            known = LocPrecision(loc[plates][..., columns], precision[plates][..., columns, :][..., columns])
            pieces.append(Piece(_of_columns(regression, known), plates, columns))
    return InPieces(family, shape, pieces)


def columns_apart(joined: Bool[Tensor, "D D"]) -> list[Int[Tensor, "d"]]:
    """The groups of columns that are joined, directly or through others."""
    n = len(joined)
    reach = torch.linalg.matrix_power(joined.double() + torch.eye(n).to(joined.device), n) > 0
    return [columns for i, row in enumerate(reach) if int((columns := row.nonzero().flatten())[0]) == i]


def _alike(keys: Bool[Tensor, "N n"]) -> list[Int[Tensor, "m"]]:
    """The numbers of equal rows."""
    patterns, group = torch.unique(keys, dim=0, return_inverse=True)
    return [(group == number).nonzero().flatten() for number in range(len(patterns))]


def _of_vectors(family: VectorFamily[Any], vectors: Float[Tensor, "n D"]) -> VectorFamily[Any]:
    free = vectors[0].isnan()
    if bool(free.all()):
        return family
    if not bool(free.any()):
        return Held(family, vectors)
    if isinstance(family, Gaussian):
        return GivenCoordinates(family, vectors)
    if isinstance(family, Dirichlet):
        return GivenProbabilities(vectors)
    raise TypeError(f"point: a {type(family).__name__} cannot have only some known entries; give all of them, or none.")


def _of_columns(regression: MatrixNormalWishart, point: LocPrecision) -> VectorFamily[Any]:
    free = point.loc[0].isnan()
    if not bool(point.precision.isnan().any()):
        return GivenNoise(regression, point) if bool(free.any()) else Held(regression, point)
    if bool((free != free[:, :1]).any()):
        raise ValueError(
            "point: got columns with a free precision, of which different inputs are known; give the precision, or "
            "zeros in it between these columns."
        )
    return regression if bool(free.all()) else GivenInputs(regression, point.loc)
