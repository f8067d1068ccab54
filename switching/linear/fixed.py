r"""Known structure of linear models: parameters of which a fit holds all or some entries.

`fixed` has tables by name, with NaN where an entry is free. A table may lack its first axes, such as that of regimes.
The entries join conjugate blocks, so

    covariances     a group of coordinates is known or free as a whole; zeros part the groups
    coefficients    within a group with a free covariance, the same inputs are known for all outputs

as in `inference/families/entries`. Known entries of the emission determine the units of the states, so that a fit does
not depend on the units of the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.linear_gaussian.factors import factor_of
from ...inference.families import LocPrecision, columns_apart
from ..fitting.graph import Points
from ..fitting.units import Units
from ..known import known_rows
from ..parameters import SYMMETRIC, Parameter, Parameters, allocated, read_table
from .priors import NAMES

CURE = "give the whole group, or zeros that part it"


def read_fixed(known: Mapping[str, Parameter], sizes: Mapping[str, int], fixed: Any, like: Tensor) -> Parameters:
    """The tables of `fixed` in full shape, in float64 beside the data; NaN marks free entries.

    Raises:
        TypeError: values that are not numbers.
        ValueError: unknown names, shapes that do not fit, entries outside their support, or that are neither known nor
            free in a conjugate block; nothing is free.
    """
    tables = {}
    for name, value in dict(fixed or {}).items():
        if name not in known:
            raise ValueError(f"fixed: got unknown parameter {name!r}; this model has {list(known)}.")
        tables[name] = _read(f"fixed[{name!r}]", known[name], sizes, value).to(like.device)
    tables = {name: table for name, table in tables.items() if not bool(table.isnan().all())}
    if len(tables) == len(known) and not any(bool(table.isnan().any()) for table in tables.values()):
        raise ValueError("fixed: got all parameters, which leaves nothing to fit; use model.with_values(...).")
    return tables


def _read(called: str, parameter: Parameter, sizes: Mapping[str, int], value: Any) -> Tensor:
    table, shape = read_table(value, called).double(), tuple(sizes[dim] for dim in parameter.dims)
    try:
        table = table.broadcast_to(shape)
    except RuntimeError:
        raise ValueError(
            f"{called}: got shape {tuple(table.shape)}, expected {shape}, with NaN where an entry is free; the first "
            "axes may be absent."
        ) from None
    table = allocated(called, table)
    known = table[~table.isnan()]
    if bool(known.isinf().any()):
        raise ValueError(f"{called}: got an infinite number; give finite numbers, or NaN where an entry is free.")
    if parameter.support is constraints.simplex:
        return known_rows(called, table)
    if parameter.support in SYMMETRIC:
        _check_covariances(called, table, singular=parameter.support is constraints.positive_semidefinite)
    elif not bool(parameter.support.check(known).all()):
        expected = "a number greater than 0" if parameter.support is constraints.positive else "a number of at least 0"
        raise ValueError(f"{called}: got {float(known.min())}, expected {expected}, or NaN where it is free.")
    return table


def _check_covariances(called: str, table: Tensor, singular: bool) -> None:
    free = table.isnan()
    if bool((free != free.mT).any()) or bool((table != table.mT)[~free].any()):
        raise ValueError(f"{called}: got a matrix that is not symmetric; give the same entries on both sides.")
    for matrix in table.reshape(-1, *table.shape[-2:]):
        for group in columns_apart(matrix != 0):
            block = matrix[group][:, group]
            if bool(block.isnan().all()):
                continue
            if bool(block.isnan().any()):
                raise ValueError(
                    f"{called}: got coordinates {group.tolist()} with some covariances free and some known; {CURE}."
                )
            if bool(factor_of(block)[1] if singular else torch.linalg.cholesky_ex(block).info != 0):
                kind = "semidefinite" if singular else "definite"
                raise ValueError(
                    f"{called}: got coordinates {group.tolist()} whose covariance is not positive {kind}; check it."
                )


# ---- as points of the blocks ----------------------------------------------------------------------------------------


def open_values(known: Mapping[str, Parameter], sizes: Mapping[str, int], tables: Parameters) -> Parameters:
    """All parameters, NaN where they are free, from one or more tables."""
    shapes = {name: [sizes[dim] for dim in parameter.dims] for name, parameter in known.items()}
    like = next(iter(tables.values()))
    return {name: tables.get(name, like.new_full(shape, torch.nan)) for name, shape in shapes.items()}


def known_points(points: Points) -> Points:
    """The points of blocks with known entries.

    Raises:
        ValueError: outputs of one group, with a covariance that is free, for which different inputs are known.
    """
    some = {
        name: point for name, point in points.items() if not all(bool(table.isnan().all()) for table in _parts(point))
    }
    for name, names in NAMES.items():
        if name in some:
            _check_groups(names, some[name])
    return some


def _parts(point: Any) -> list[Tensor]:
    return [point] if isinstance(point, Tensor) else list(vars(point).values())


def _check_groups(names: tuple[str, ...], point: LocPrecision) -> None:
    *coefficients, noise = names
    loc = point.loc.unsqueeze(-2) if point.loc.ndim < point.precision.ndim else point.loc
    pairs = zip(loc.reshape(-1, *loc.shape[-2:]), point.precision.reshape(-1, *point.precision.shape[-2:]), strict=True)
    for table, precision in pairs:
        for group in columns_apart(precision != 0):
            free = table[:, group].isnan()
            if bool(precision[group][:, group].isnan().any()) and bool((free != free[:, :1]).any()):
                raise ValueError(
                    f"fixed: the coordinates {group.tolist()} have different known entries of "
                    f"{' and '.join(coefficients)}, but their {noise} is free and joint; set {noise} to 0 between "
                    "them, such as a matrix with NaN on its diagonal and 0 elsewhere, or fix all of it."
                )


def inverse_in_groups(matrix: Float[Tensor, "*b D D"]) -> Float[Tensor, "*b D D"]:
    """The inverse of matrices with 0 between groups of coordinates; NaN where a group is free."""
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    inverse = torch.zeros_like(flat)
    for number, one in enumerate(flat):
        for group in columns_apart(one != 0):
            block = one[group][:, group]
            inverse[number, group.unsqueeze(-1), group] = (
                block if bool(block.isnan().any()) else torch.linalg.inv(block)
            )
    return inverse.reshape(matrix.shape)


# ---- in the units of a fit ------------------------------------------------------------------------------------------

POWERS = {
    "transition_offset": -1,
    "state_noise": -2,
    "emission": 1,
    "initial_mean": -1,
    "initial_covariance": -2,
    "recurrence": 1,
}
"""The powers of the unit of the states in the parameters."""


@dataclass(frozen=True)
class Known:
    """The known entries of the parameters, in the units of the data, and the units of a fit.

    Known entries of an emission determine the unit of the states: in this unit they are near 1.
    """

    tables: Parameters
    units: Units

    @cached_property
    def unit(self) -> float:
        """The unit of the states; 1 without known entries of an emission."""
        if "emission" not in self.tables:
            return 1.0
        sizes = self.units.values(self.tables)["emission"].abs()
        sizes = sizes[sizes > 0]  # without free ones, which are NaN
        return float((-sizes.log().mean()).exp()) if len(sizes) else 1.0

    @cached_property
    def inner(self) -> Parameters:
        """The tables in the units of a fit."""
        return in_states(self.units.values(self.tables), self.unit)

    def back(self, values: Parameters) -> Parameters:
        """Values `[*r, ...]` in the units of the data, with the known entries in their places."""
        values = self.units.back(in_states(values, 1 / self.unit))
        filled = {name: torch.where(at.isnan(), values[name], at.to(values[name])) for name, at in self.tables.items()}
        return values | filled

    @property
    def fields(self) -> dict[str, Any]:
        """Their names and tables, as fields of a `Result`."""
        return {"fixed": tuple(self.tables), "held": self.tables}

    def numbers(self, known: Mapping[str, Parameter]) -> bool:
        """Whether the entries distinguish the regimes."""
        for name, table in self.tables.items():
            dims = known[name].dims
            if dims[0] != "state":
                continue
            first = table[:1].expand_as(table)
            same = (table == first) | (table.isnan() & first.isnan())
            if "state_new" in dims or len(dims) == 1 or not bool(same.all()):
                return True
        return False


def in_states(values: Parameters, unit: float) -> Parameters:
    """Parameters of states s as those of s / unit."""
    return {name: value * unit ** POWERS[name] if name in POWERS else value for name, value in values.items()}
