"""What a fit is asked to do, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_kind, check_number
from ..seeding import number_of

METHODS = ("em", "vmp", "svi", "nuts")


@dataclass(frozen=True)
class Options:
    """How to fit: see `SwitchingSSM.fit`.

    Raises:
        ValueError: an option that is none of its choices, or numbers out of range.
    """

    method: str = "em"
    restarts: int = 8
    max_steps: int = 500
    tol: float = 1e-6
    seed: Seed = 0
    prior: str | None = "scaled"
    progress: bool = True
    factorization: str = "structured"
    batch_size: int | None = None
    start: Any = None
    fixed: Any = None
    number: int = field(init=False)  # that the seed stands for

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_choice("prior", self.prior, ("scaled", "own", None))
        if self.method != "em" and self.prior is None:
            raise ValueError(
                f'prior: got None; method="{self.method}" has a posterior only under a prior: "scaled" or "own".'
            )
        for name in ("restarts", "max_steps"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name)))
        object.__setattr__(self, "tol", check_number("tol", self.tol, least=0))
        check_flag("progress", self.progress)
        if self.fixed is not None:
            check_kind("fixed", self.fixed, Mapping, 'values by name, such as {"loc": [[0.0], [1.0]]}')
        check_choice("factorization", self.factorization, ("structured", "mean_field"))
        size = self.batch_size
        if size is not None and self.method != "vmp":
            raise ValueError(f'batch_size: got {size}, but method="{self.method}" takes all data; use method="vmp".')
        if size is not None:
            object.__setattr__(self, "batch_size", check_integer("batch_size", size))
        object.__setattr__(self, "number", number_of(self.seed))

    def check_points_and_densities(self, name: str) -> None:
        """Raise ValueError for what a model of that name, which learns by message passing alone, does not offer."""
        if self.method not in ("em", "vmp"):
            raise ValueError(
                f'method: got {self.method!r}, expected "em" or "vmp": the parameters of a {name} have no sites.'
            )
        if self.factorization != "structured" or self.batch_size is not None:
            raise ValueError(
                f'factorization, batch_size: got "{self.factorization}" and {self.batch_size}, but the chains of a '
                f"{name} are exact, and take all sequences at once; leave both out."
            )
        if self.fixed:
            raise ValueError(
                f"fixed: got {sorted(self.fixed)}, but a {name} learns all of its parameters; leave it out."
            )
        if self.prior == "own":
            raise ValueError(f'prior: got "own", but a {name} has no prior of its own; use "scaled", or None.')
