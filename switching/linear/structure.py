r"""The contract of structures, the dynamics of one series with a known emission, and their sum."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import torch
from torch.distributions import constraints

from ...inference.numerics.placement import constant
from ...inference.numerics.scalars import check_kind
from ..inputs import Inputs, all_inputs
from ..parameters import Parameter, Parameters
from .contract import LinearDynamics, TransitionParameters

VARIANCE = Parameter((), constraints.nonnegative)

Rows = Sequence[Sequence[float | str]]
"""A matrix whose entries are constants, or names of numbers that depend on parameters."""


class Tables(NamedTuple):
    """The matrices [L, L] of a structure; see `TransitionParameters`."""

    transition: Rows
    state_noise: Rows
    initial_covariance: Rows


class _Layout(NamedTuple):
    """How matrices of L rows are filled from one row of numbers: its constants, then numbers by name.

    `places` has for each entry of each matrix its place in that row.
    """

    size: int
    constants: tuple[float, ...]
    names: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]


class Structure(LinearDynamics):
    """Dynamics of one series with a known emission; a frozen dataclass.

    Attributes:
        irregular: whether observations have noise besides the structure, of the variance `sigma2.irregular`.
        has_level: whether the structure follows a change of the location of the series.
    """

    irregular: bool = True
    has_level: bool = False

    @property
    def n_latent(self) -> int:  # type: ignore[override]
        """L, the length of the latent vector."""
        return len(self.latents)

    def __add__(self, other: "Structure") -> "Sum":
        """The sum of two structures."""
        check_kind("structure", other, Structure, "a structure such as LocalLevel()")
        return Sum((*_terms(self), *_terms(other)))

    @property
    @abstractmethod
    def seen(self) -> tuple[float, ...]:
        """[L], the coefficient of each entry in the series."""

    @property
    @abstractmethod
    def tables(self) -> Tables:
        """The matrices, whose entries name parameters or other `numbers`."""

    def numbers(self, values: Parameters) -> Parameters:
        """Numbers `[*r]` by name: the parameters, and functions of them that matrices contain."""
        return values

    def moves(self, values: Parameters) -> TransitionParameters:
        """The tables under parameters `[*r, ...]`; a matrix of constants lacks the axes *r."""
        layout, numbers, like = self._layout, self.numbers(values), next(iter(values.values()))
        constants = everything = constant(layout.constants, like.dtype, like.device)
        if layout.names:
            varying = torch.stack(torch.broadcast_tensors(*[numbers[name] for name in layout.names]), -1)
            everything = torch.cat([constants.expand(*varying.shape[:-1], -1), varying], -1)
        filled = []
        for places in layout.places:
            entries = everything if max(places) >= len(constants) else constants
            table = entries.index_select(-1, constant(places, torch.long, like.device))
            filled.append(table.reshape(*entries.shape[:-1], layout.size, layout.size))
        transition, noise, start = filled
        return TransitionParameters(transition, noise, None, start)

    @cached_property
    def _layout(self) -> _Layout:
        flat = [tuple(chain.from_iterable(rows)) for rows in self.tables]
        entries = dict.fromkeys(chain.from_iterable(flat))
        constants = tuple(entry for entry in entries if not isinstance(entry, str))
        names = tuple(entry for entry in entries if isinstance(entry, str))
        place = {entry: i for i, entry in enumerate((*constants, *names))}
        return _Layout(self.n_latent, constants, names, tuple(tuple(place[entry] for entry in some) for some in flat))

    @property
    def driven(self) -> tuple[int, ...]:
        """[C], the entry whose coefficient at each step is each input."""
        return ()

    @property
    def shown(self) -> tuple[int, ...]:
        return tuple(place for place, share in enumerate(self.seen) if share)

    @property
    def variances(self) -> tuple[str, ...]:
        """The names of the variances."""
        return tuple(name for name in self.parameters if name.startswith("sigma2."))

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        """The names of the coefficients of each autoregression, by the name of its variance."""
        return {}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest value of each parameter that is neither a variance nor such a coefficient."""
        return {}

    def __repr__(self) -> str:
        """The call that makes it, without arguments that have their defaults."""
        given = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]  # type: ignore[arg-type]
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value, default in given if value != default)})"


class Diffuse(Structure):
    """A structure with a known transition, noises with variances as parameters, and a diffuse start."""

    @property
    def diffuse(self) -> tuple[bool, ...]:
        return (True,) * self.n_latent

    @property
    @abstractmethod
    def transition(self) -> Sequence[Sequence[float]]:
        """[L, L], to the new state (rows) from the old one."""

    @property
    @abstractmethod
    def noisy(self) -> tuple[str | None, ...]:
        """[L], the name of the variance of each entry's noise; None: no noise."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {name: VARIANCE for name in dict.fromkeys(self.noisy) if name is not None}

    @property
    def tables(self) -> Tables:
        zeros = on_diagonal(self.n_latent * [0.0])
        return Tables(self.transition, on_diagonal([name or 0.0 for name in self.noisy]), zeros)


@dataclass(frozen=True, repr=False)
class Sum(Structure):
    """A sum of structures; made with `+`.

    Raises:
        ValueError: two structures with a parameter of the same name.

    >>> import samplehold as sh
    >>> (sh.LocalLevel() + sh.Seasonal(4) + sh.Autoregression(1)).variances
    ('sigma2.level', 'sigma2.seasonal', 'sigma2.ar')
    """

    terms: tuple[Structure, ...]

    def __post_init__(self) -> None:
        if not self.terms or not all(isinstance(term, Structure) for term in self.terms):
            raise TypeError(f"terms: got {self.terms!r}, expected structures, such as LocalLevel() + Seasonal(4).")
        names = [name for term in self.terms for name in dict.fromkeys([*term.parameters, *term.latents])]
        for name in [name for name in names if names.count(name) > 1][:1]:
            raise ValueError(
                f"structure: got two terms with {name}, which a series cannot separate; leave one out, give all "
                "inputs to one Regression, or a season as harmonics, Seasonal(period, trigonometric=True)."
            )

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))

    @property
    def irregular(self) -> bool:  # type: ignore[override]
        return all(term.irregular for term in self.terms)

    @property
    def has_level(self) -> bool:  # type: ignore[override]
        return any(term.has_level for term in self.terms)

    @property
    def latents(self) -> tuple[str, ...]:
        return tuple(name for term in self.terms for name in term.latents)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {name: known for term in self.terms for name, known in term.parameters.items()}

    @property
    def diffuse(self) -> tuple[bool, ...]:
        return tuple(flag for term in self.terms for flag in term.diffuse)

    @property
    def seen(self) -> tuple[float, ...]:
        return tuple(share for term in self.terms for share in term.seen)

    @property
    def inputs(self) -> Inputs:  # type: ignore[override]
        return all_inputs(term.inputs for term in self.terms)

    @property
    def driven(self) -> tuple[int, ...]:
        return self._places([term.driven for term in self.terms])

    @property
    def shown(self) -> tuple[int, ...]:
        return self._places([term.shown for term in self.terms])

    def _places(self, of_terms: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Places in each term as places in the whole vector."""
        places, before = [], 0
        for term, inside in zip(self.terms, of_terms, strict=True):
            places += [before + place for place in inside]
            before += term.n_latent
        return tuple(places)

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        return {name: weights for term in self.terms for name, weights in term.orders.items()}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {name: ends for term in self.terms for name, ends in term.ranges.items()}

    def check_values(self, values: Parameters) -> Parameters:
        return {name: value for term in self.terms for name, value in term.check_values(values).items()}

    @property
    def tables(self) -> Tables:
        return Tables(*map(_beside, zip(*(term.tables for term in self.terms), strict=True)))

    def numbers(self, values: Parameters) -> Parameters:
        return {name: number for term in self.terms for name, number in term.numbers(values).items()}


def _terms(structure: Structure) -> tuple[Structure, ...]:
    return structure.terms if isinstance(structure, Sum) else (structure,)


def on_diagonal(entries: Sequence[float | str]) -> Rows:
    """A diagonal matrix."""
    return _beside([((entry,),) for entry in entries])


def _beside(blocks: Sequence[Rows]) -> Rows:
    """A matrix with these blocks along its diagonal."""
    size, rows = sum(map(len, blocks)), []
    for block in blocks:
        before = len(rows)
        rows += [(*[0.0] * before, *row, *[0.0] * (size - before - len(block))) for row in block]
    return rows
