"""The options of a fit, checked once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_kind, check_number
from ..seeding import number_of

METHODS = ("em", "vmp", "svi", "nuts")
TRIALS = 4  # brief runs for each restart
KEPT = 0.25  # of the restarts are run to convergence at least


@dataclass(frozen=True)
class Options:
    """How to fit: see `SwitchingSSM.fit`.

    Raises:
        ValueError: an option that is not one of its choices, or a number out of range.
    """

    method: str = "em"
    restarts: int = 8
    max_steps: int = 500
    tol: float = 1e-6
    seed: Seed = 0
    prior: str | Mapping[str, Any] | None = "weak"
    progress: bool = True
    factorization: str = "structured"
    batch_size: int | None = None
    start: Any = None
    fixed: Any = None
    number: int = field(init=False)  # the seed as an integer

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        if not isinstance(self.prior, Mapping):
            check_choice("prior", self.prior, ("weak", None))
        if self.method != "em" and self.prior is None:
            raise ValueError(f'prior: got None; method="{self.method}" needs a prior for its posterior; use "weak".')
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

    @property
    def n_tried(self) -> int:
        """The number of starts that are tried briefly; with one restart there is one start."""
        return self.restarts if self.restarts == 1 else TRIALS * self.restarts

    @property
    def n_kept(self) -> int:
        """The number of starts that are run to convergence."""
        return math.ceil(KEPT * self.restarts)
