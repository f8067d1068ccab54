"""What a fit is asked to do, checked once."""

import math
from dataclasses import dataclass, field
from typing import Any

from ...inference.numerics.randomness import Seed
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
        if self.method not in METHODS:
            raise ValueError(f"method: got {self.method!r}, expected one of {', '.join(METHODS)}.")
        if self.prior not in ("scaled", "own", None):
            raise ValueError(f'prior: got {self.prior!r}, expected "scaled", "own", or None for maximum likelihood.')
        if self.method != "em" and self.prior is None:
            raise ValueError(
                f'prior: got None; method="{self.method}" has a posterior only under a prior: "scaled" or "own".'
            )
        for name in ("restarts", "max_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1.")
        if not (self.tol >= 0 and math.isfinite(self.tol)):
            raise ValueError(f"tol: got {self.tol!r}, expected a small number of at least 0, such as 1e-6.")
        if self.factorization not in ("structured", "mean_field"):
            raise ValueError(f'factorization: got {self.factorization!r}, expected "structured" or "mean_field".')
        size = self.batch_size
        if size is not None and self.method != "vmp":
            raise ValueError(f'batch_size: got {size}, but method="{self.method}" takes all data; use method="vmp".')
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"batch_size: got {size!r}, expected a number of sequences of at least 1.")
        object.__setattr__(self, "number", number_of(self.seed))
