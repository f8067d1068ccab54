"""The options of a fit, checked once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_kind, check_number, check_path
from ..seeding import number_of
from .checkpoint import Checkpoint

METHODS = ("em", "vmp", "svi", "nuts", "gibbs")
SAMPLERS = ("nuts", "gibbs")
TRIALS = 4  # brief runs for each restart
SAMPLES = 500  # the default number of steps, and of draws in each chain
KEPT = 0.25  # of the restarts are run to convergence at least


@dataclass(frozen=True)
class Options:
    """How to fit: see `SwitchingSSM.fit`.

    Raises:
        ValueError: an option that is not one of its choices, or a number out of range.
    """

    method: str = "em"
    restarts: int = 8
    max_steps: int = SAMPLES
    tol: float = 1e-6
    seed: Seed = 0
    prior: str | Mapping[str, Any] | None = "weak"
    progress: bool = True
    factorization: str = "structured"
    batch_size: int | None = None
    start: Any = None
    fixed: Any = None
    num_samples: int | None = None
    warmup_steps: int | None = None
    pooled: Any = "complete"
    group: Any = None
    checkpoint: Any = None
    every: float = 60.0
    saving: Checkpoint = field(default=Checkpoint(), repr=False, compare=False)  # the open file
    number: int = field(init=False)  # the seed as an integer

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        if not isinstance(self.prior, Mapping | None) and not (isinstance(self.prior, str) and self.prior == "weak"):
            kinds = 'expected "weak", None, or distributions by name, such as {"loc": dist.Normal(0.0, 1.0)}'
            raise ValueError(f"prior: got {self.prior!r}, {kinds}.")
        if self.method != "em" and self.prior is None:
            raise ValueError(f'prior: got None; method="{self.method}" needs a prior for its posterior; use "weak".')
        for name in ("restarts", "max_steps"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name)))
        for name in ("tol", "every"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), least=0))
        if self.checkpoint is not None:
            object.__setattr__(self, "checkpoint", check_path("checkpoint", self.checkpoint))
        check_flag("progress", self.progress)
        if self.fixed is not None:
            check_kind("fixed", self.fixed, Mapping, 'values by name, such as {"loc": [[0.0], [1.0]]}')
        check_choice("factorization", self.factorization, ("structured", "mean_field"))
        self._check_draws()
        size = self.batch_size
        if size is not None and self.method != "vmp":
            raise ValueError(f'batch_size: got {size}, but method="{self.method}" uses all data; use method="vmp".')
        if size is not None:
            object.__setattr__(self, "batch_size", check_integer("batch_size", size))
        object.__setattr__(self, "number", number_of(self.seed))

    def _check_draws(self) -> None:
        words = {name: getattr(self, name) for name in ("num_samples", "warmup_steps")}
        for name, value in words.items():
            if value is not None and self.method not in SAMPLERS:
                raise ValueError(
                    f'{name}: got {value}, but method="{self.method}" is no sampler; use method="nuts" or "gibbs".'
                )
            if value is not None:
                object.__setattr__(self, name, check_integer(name, value))
        if self.method in SAMPLERS and self.max_steps != SAMPLES:
            raise ValueError(
                f'max_steps: got {self.max_steps}, but method="{self.method}" uses num_samples, the draws of each '
                "chain, and warmup_steps before them."
            )

    def before_subjects(self) -> "Options":
        """Those of the fit with common parameters, from which a fit by subject starts."""
        by_draws = self.method in ("svi", *SAMPLERS)
        return replace(self.before_draws("em") if by_draws else self, pooled="complete")

    def before_draws(self, method: str) -> "Options":
        """Those of the silent fit from which draws start."""
        return replace(self, method=method, max_steps=SAMPLES, progress=False, num_samples=None, warmup_steps=None)

    @property
    def n_draws(self) -> int:
        """The number of draws in each chain of a sampler."""
        return SAMPLES if self.num_samples is None else self.num_samples

    @property
    def n_warmup(self) -> int:
        """The number of draws of each chain of a sampler that are thrown away."""
        return max(1, self.n_draws // 2) if self.warmup_steps is None else self.warmup_steps

    @property
    def n_tried(self) -> int:
        """The number of starts that are tried briefly; with one restart there is one start."""
        return self.restarts if self.restarts == 1 else TRIALS * self.restarts

    @property
    def n_kept(self) -> int:
        """The number of starts that are run to convergence."""
        return math.ceil(KEPT * self.restarts)
