"""Parameters: their names, axes and supports.

Values and hyperparameters are dictionaries of tensors by name, with leading axes `*r` for restarts or draws. The
`Parameter` of the same name describes their axes, so checks, files, tables and the order of the states do not depend on
a model.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.distributions import constraints

from ..inference.chains.linear_gaussian.factors import factor_of
from ..inference.numerics.arrays import floating, numbers
from .entries import Entries, PossibleRows
from .peers import Explaining

Parameters = dict[str, Tensor]

PREFIX = "background_"
"""Prefix of the names of parameters of a gated emission's held steps."""


SINGLE = ("background", "shared")
"""Axes of length one, in the place of an axis of states; tables of results omit them."""

MOST_SHOWN = 24  # the most numbers of a table that is printed in full
HARMLESS = 10_000_000  # numbers of a model in a file whose tensors may be fewer, as without values


# ---- what is known of a parameter ------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """Another form of a parameter, for input and output."""

    name: str
    support: constraints.Constraint
    of: Callable[[Tensor], Tensor]  # from the parameter to this form
    back: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parameter:
    """The description of a parameter of a model: its axes and the set of its values.

    Attributes:
        dims: the names of its axes, without those of restarts: "state", "feature", "category", ...
        support: the set of its values.
        shown: another form for input and output, if there is one.

    See Also:
        `Emission.parameters`, which are of this type; docs/guides/own_emission.md, which writes some.

    Example:
        >>> import samplehold as sh
        >>> scale = sh.Parameter(("state", "feature"), constraints.positive)
        >>> sh.SwitchingSSM(sh.Copy(2), sh.Normal()).known["loc"].dims == scale.dims
        True
    """

    dims: tuple[str, ...]
    support: constraints.Constraint = constraints.real
    shown: Shown | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dims, str):
            raise TypeError(f"dims: got {self.dims!r}, expected a tuple of names of axes, such as ({self.dims!r},).")

    def renamed(self, dims: Mapping[str, str | None]) -> "Parameter":
        """The same parameter with other names of some axes; axes whose name is None are removed."""
        names = [dims.get(dim, dim) for dim in self.dims]
        return replace(self, dims=tuple(name for name in names if name is not None))


SYMMETRIC = (constraints.positive_definite, constraints.positive_semidefinite)
"""The supports of symmetric matrices."""

EXPECTED = {
    "positive": "a number greater than 0",
    "nonnegative": "a number of at least 0",
    "unit_interval": "a probability",
}


def check_parameters(
    known: Mapping[str, Parameter],
    values: Parameters,
    sizes: Mapping[str, int],
    owner: str,
) -> Parameters:
    """The parameters under their names, if their shapes and supports are right.

    Arguments:
        sizes: the length of each known one of the `dims`.
        owner: the object that needs them, for error messages.

    Raises:
        ValueError: a parameter is missing, of another shape, not finite, or outside its support.
    """
    checked = {}
    for name, parameter in known.items():
        shown = parameter.shown
        if shown is not None and shown.name in values and name in values:
            raise ValueError(f"{shown.name}: got {name} too, another form of the same parameter; give one of the two.")
        if shown is not None and shown.name in values:
            value = _checked(shown.name, shown.support, parameter, values[shown.name], sizes, owner)
            try:
                checked[name] = _checked(name, parameter.support, parameter, shown.back(value), sizes, owner)
            except ValueError:
                raise ValueError(
                    f"{shown.name}: got {value.tolist()}, but {value.dtype} cannot represent its {name}; use other "
                    "units, or numbers nearer to each other."
                ) from None
        elif name in values:
            checked[name] = _checked(name, parameter.support, parameter, values[name], sizes, owner)
        else:
            raise ValueError(f"{name}: missing; {owner} needs it, of shape {_shape(parameter, sizes)}.")
    return checked


def _checked(
    name: str,
    support: constraints.Constraint,
    parameter: Parameter,
    value: Tensor,
    sizes: Mapping[str, int],
    owner: str,
) -> Tensor:
    tail = tuple(sizes.get(dim, -1) for dim in parameter.dims)
    fits = value.ndim == len(tail) and value.numel() > 0
    if not fits or any(n not in (-1, have) for n, have in zip(tail, value.shape, strict=True)):
        raise ValueError(f"{name}: got shape {tuple(value.shape)}; {owner} needs {_shape(parameter, sizes)}.")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name}: got values that are not finite; give finite parameters.")
    if _is(support, "simplex"):
        return check_simplex(value, name)
    if isinstance(support, PossibleRows):
        return support.checked(check_simplex(value, name), name)
    if isinstance(support, Entries):
        return support.checked(value, name)
    semi = _is(support, "positive_semidefinite")
    if semi or _is(support, "positive_definite"):
        failed = factor_of(value)[1] if semi else torch.linalg.cholesky_ex(value).info
        if bool(failed.any()) or bool((value - value.mT).abs().amax() > 1e-6 * value.abs().amax()):
            kind = "semidefinite" if semi else "definite"
            raise ValueError(f"{name}: got a matrix that is not symmetric positive {kind}; check each state's matrix.")
        return value
    bad = ~support.check(value)
    if bool(bad.any()):
        expected = next((text for known, text in EXPECTED.items() if _is(support, known)), f"a value in {support}")
        got = float(value[tuple(bad.nonzero()[0].tolist())]) if bad.shape == value.shape else value.tolist()
        raise ValueError(f"{name}: got {got}, expected {expected}.")
    return value


def _is(support: constraints.Constraint, name: str) -> bool:
    """Whether this is torch's constraint of this name."""
    known: Any = getattr(constraints, name)
    return type(support) is type(known) and repr(support) == repr(known)


def is_simplex(support: constraints.Constraint) -> bool:
    """Whether a table has rows of probabilities."""
    return isinstance(support, PossibleRows) or _is(support, "simplex")


def _shape(parameter: Parameter, sizes: Mapping[str, int]) -> str:
    return f"[{', '.join(str(sizes.get(dim, 'K')) for dim in parameter.dims)}]"


def check_simplex(probs: Tensor, name: str) -> Tensor:
    """The table, if its last axis holds probabilities that sum to 1 to rounding; otherwise ValueError."""
    total = probs.sum(-1, keepdim=True)
    for place in (~(probs >= 0)).nonzero()[:1].tolist():
        raise ValueError(f"{name}: got {float(probs[tuple(place)]):g} at {place}, expected probabilities, from 0 to 1.")
    if not bool(((total - 1).abs() <= 1e-6).all()):
        sums = total.flatten().tolist()[:4]
        raise ValueError(f"{name}: got rows that are not probabilities (sums {sums}); normalise them.")
    exact = (total - 1).abs() <= 8 * torch.finfo(probs.dtype).eps
    return torch.where(exact, probs, probs / total)


def read_table(value: Any, name: str) -> Tensor:
    """Numbers in any form as a tensor of float32 or float64; booleans raise TypeError."""
    table = numbers(value, name)
    if table.dtype == torch.bool:
        raise TypeError(f"{name}: got booleans, expected numbers.")
    return floating(table, name)


def read_tables(numbers: Mapping[str, Any]) -> Parameters:
    """Numbers in any form by name, as tensors of one dtype. Values with a dtype decide it, if there are any. Values
    that are not tensors go to the device of the first tensor."""
    tables = {name: read_table(value, name) for name, value in numbers.items()}
    typed = [tables[name].dtype for name, value in numbers.items() if hasattr(value, "dtype")]
    dtype = reduce(torch.promote_types, typed or [table.dtype for table in tables.values()])
    device = next((value.device for value in numbers.values() if isinstance(value, Tensor)), None)
    placed = {name: table if isinstance(numbers[name], Tensor) else table.to(device) for name, table in tables.items()}
    return {name: table.to(dtype) for name, table in placed.items()}


def concentration(prior: float | Sequence[Any] | Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """A table of positive concentrations from a scalar or a table that broadcasts to `shape`.

    Raises:
        TypeError: values that are not numbers.
        ValueError: a shape that does not fit, or a concentration that is not positive and finite.
    """
    table = read_table(prior, name).double()
    if not bool(((table > 0) & torch.isfinite(table)).all()):
        raise ValueError(f"{name}: got {table.tolist()}, expected positive, finite concentrations.")
    try:
        wide = table.expand(shape)
        if not wide.numel():
            raise RuntimeError
    except RuntimeError:
        raise ValueError(
            f"{name}: got shape {tuple(table.shape)}, expected a scalar or a table of shape {shape}."
        ) from None
    return allocated(name, wide)


def allocated(name: str, table: Tensor) -> Tensor:
    """A copy of a table that was expanded; ValueError if there is no memory for it."""
    try:
        return table.clone()
    except RuntimeError:
        size = table.numel() * table.element_size() / 2**30
        raise ValueError(
            f"{name}: a table of shape {tuple(table.shape)} takes {size:,.1f} GiB, and there is no memory for it; use "
            "fewer states."
        ) from None


def widened(table: Tensor, event_dims: int, n_axes: int) -> Tensor:
    """[*r, *event] as [*r, 1, ..., 1, *event] with `n_axes` axes for sequences (and steps)."""
    if not n_axes:
        return table
    split = table.ndim - event_dims
    return table.reshape(*table.shape[:split], *(1,) * n_axes, *table.shape[split:])


def kept(new: Parameters, old: Parameters) -> Parameters:
    """New values; where they are not finite the data contain no information, and the old values stay."""
    return {name: value.where(value.abs() < torch.inf, old[name]) for name, value in new.items()}


def of_subject(known: Mapping[str, Parameter], values: Parameters, subject: int, lead: int = 0) -> Parameters:
    """The values of one subject, where parameters differ between subjects, after `lead` axes of draws."""
    own = {name for name, parameter in known.items() if parameter.dims[:1] == ("subject",)}
    return {name: value.select(lead, subject) if name in own else value for name, value in values.items()}


def free_entries(values: Parameters, fixed: Iterable[str]) -> dict[str, Bool[Tensor, "..."]]:
    """Which entries are free beside fixed parameters: names, or tables by name with NaN where an entry is free."""
    tables, names = fixed if isinstance(fixed, Mapping) else {}, set(fixed)
    return {
        name: tables[name].isnan() if name in tables else torch.full_like(value, name not in names, dtype=torch.bool)
        for name, value in values.items()
    }


def places(support: constraints.Constraint, free: Bool[Tensor, "..."], value: Tensor) -> Bool[Tensor, "..."]:
    """The free entries that determine a table: without the greatest of a row of probabilities, as these sum to 1, the
    upper triangle of a symmetric matrix, and entries that are always 0."""
    if isinstance(support, Entries | PossibleRows):
        free = free & support.free.to(free.device)
    if is_simplex(support):
        greatest = torch.where(free, value.to(free.device), -1.0).argmax(-1)
        return free & ~torch.nn.functional.one_hot(greatest, value.shape[-1]).bool()
    return free.tril() if support in SYMMETRIC else free


def count_free(known: Mapping[str, Parameter], free: Mapping[str, Bool[Tensor, "..."]], values: Parameters) -> int:
    """The number of free numbers."""
    return sum(int(places(known[name].support, entries, values[name]).sum()) for name, entries in free.items())


def with_prefix(values: Mapping[str, Any], prefix: str | None) -> dict[str, Any]:
    """The entries whose names start with `prefix`, without it. An empty prefix: all entries except a background's.
    None: all entries."""
    if prefix is None:
        return dict(values)
    if not prefix:
        return {name: value for name, value in values.items() if not name.startswith(PREFIX)}
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def prefixed(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The same entries under names that start with `prefix`."""
    return {prefix + name: value for name, value in values.items()}


LOCATIONS = ("loc", "emission_offset")
"""The parameters that another origin of the observations moves."""


def moved(parameters: Parameters, by: Tensor) -> Parameters:
    """The same parameters or hyperparameters, with locations moved."""
    return {name: table + by if name.removeprefix(PREFIX) in LOCATIONS else table for name, table in parameters.items()}


def described(known: Mapping[str, Parameter], values: Parameters) -> Parameters:
    """The values in their displayed forms: scales and covariances instead of precisions."""
    forms = {name: parameter.shown for name, parameter in known.items()}
    pairs = [(name, forms.get(name), value) for name, value in values.items()]
    return {shown.name if shown else name: shown.of(value) if shown else value for name, shown, value in pairs}


def listed(known: Mapping[str, Parameter], values: Parameters) -> str:
    """A line for each parameter in its displayed form: its numbers, or only its shape if they are many."""
    lines = []
    for name, value in described(known, values).items():
        few = value.numel() <= MOST_SHOWN
        lines.append(f"  {name}: {_plain(value.tolist()) if few else f'of shape {list(value.shape)}'}")
    return "\n".join(lines)


def _plain(number: Any) -> str:
    return f"[{', '.join(map(_plain, number))}]" if isinstance(number, list) else f"{number:.4g}"


def reordered(known: Mapping[str, Parameter], values: Parameters, order: Int[Tensor, "*r K"]) -> Parameters:
    """The same parameters with state `order[..., k]` as state k. The model stays the same; only the numbers change."""

    def moved(name: str, value: Tensor) -> Tensor:
        dims = known[name].dims
        for axis, dim in enumerate(dims, start=-len(dims)):
            if dim in ("state", "state_new"):
                shape = [1] * -axis
                shape[0] = order.shape[-1]
                index = order.reshape(*order.shape[:-1], *[1] * (len(dims) + axis), *shape)
                value = value.take_along_dim(index, axis)
        support = known[name].support
        if isinstance(support, Entries) and support.relative:
            value = value - value.narrow(dims.index("state") - len(dims), 0, 1)
        return value

    return {name: moved(name, value) for name, value in values.items()}


class Named(metaclass=Explaining):
    """A class with a name in files: the class name, unless it sets `name`."""

    name: ClassVar[str]
    _by_name: ClassVar[dict[str, type["Named"]]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.name = cls.__dict__.get("name", cls.__name__)
        package, where = __name__.split(".")[0], (cls.__module__, cls.__qualname__)
        other = Named._by_name.get(cls.name)
        taken = other is not None and (other.__module__, other.__qualname__) != where
        ours = cls.__module__.split(".")[0] != package and cls.name in sys.modules[package].__all__
        if taken or ours:
            raise ValueError(
                f"name: {'.'.join(where)} is called {cls.name!r} in files, as another class is; give it another name "
                "with `name = ...`."
            )
        Named._by_name[cls.name] = cls

    @staticmethod
    def find(name: str) -> type["Named"] | None:
        """The class of this name, if it has been defined."""
        return Named._by_name.get(name)
