r"""Emissions of a latent vector: $x_t = C s_t + d + N(0, R)$, with tables that are parameters or constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.placement import constant
from ...inference.numerics.scalars import check_integer
from ..parameters import Named, Parameter, Parameters
from ..user_priors import UserPrior, read
from .structure import VARIANCE, Structure
from .user_priors import form, ranges, read_priors

IN_ANY_BASIS = ("emission_offset", "observation_noise")
"""The tables that no linear change of the latent vector changes. A shift of it moves the offset."""


class ObservationParameters(NamedTuple):
    """The arguments of a `LinearGaussianChain` for its emission, [*r, ...]; None: 0."""

    emission: Tensor
    observation_noise: Tensor
    emission_offset: Tensor | None = None


@dataclass(frozen=True)
class LinearEmission(Named):
    """Features that are linear in the latent vector.

    Arguments:
        n_features: F.
        full: whether the noises of the features are correlated.
        prior: priors of the tables `IN_ANY_BASIS`, distributions of Pyro by name.
    """

    n_features: int
    full: bool
    prior: Any = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_features", check_integer("n_features", self.n_features))
        _ = self.user_priors  # raises an error if they do not fit

    @property
    def forms(self) -> dict[str, Parameter]:
        """The parameters that take priors."""
        return {name: self.parameters[name] for name in IN_ANY_BASIS}

    @cached_property
    def user_priors(self) -> dict[str, UserPrior]:
        """The user's priors, by parameter."""
        sizes = {"feature": self.n_features, "feature_new": self.n_features}
        return {} if self.prior is None else read(self.prior, self.forms, "LinearSSM that have one", sizes)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        noise = Parameter(("feature",), constraints.positive)
        if self.full:
            noise = Parameter(("feature", "feature_new"), constraints.positive_definite)
        return {
            "emission": Parameter(("feature", "latent")),
            "emission_offset": Parameter(("feature",)),
            "observation_noise": noise,
        }

    def sights(self, values: Parameters, inputs: Tensor | None = None) -> ObservationParameters:
        """The tables under parameters `[*r, ...]`."""
        noise = values["observation_noise"]
        return ObservationParameters(
            values["emission"], noise if self.full else torch.diag_embed(noise), values["emission_offset"]
        )

    def in_units(self, values: Parameters, unit: Tensor) -> Parameters:
        """Parameters of x as those of x / unit."""
        by = unit.unsqueeze(-1)
        change = {
            "emission": lambda table: table / by,
            "emission_offset": lambda table: table / unit,
            "observation_noise": lambda table: table / (by * unit if self.full else unit * unit),
        }
        return {name: change[name](table) if name in change else table for name, table in values.items()}


@dataclass(frozen=True)
class Irregular(Named):
    """One series, the sum of a structure and noise of the variance `sigma2.irregular`, if the structure has some.

    Arguments:
        prior: priors of parameters of both, distributions of Pyro by name: see `linear.user_priors`.
    """

    structure: Structure
    prior: Any = None

    n_features = 1

    def __post_init__(self) -> None:
        _ = self.user_priors  # raises an error if they do not fit

    @cached_property
    def user_priors(self) -> dict[str, UserPrior]:
        """The user's priors, by parameter."""
        return {} if self.prior is None else read_priors(self.prior, self.structure, self.forms)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The structure's `ranges`, within the supports of the user's priors."""
        return ranges(self.structure, self.user_priors)

    @property
    def forms(self) -> dict[str, Parameter]:
        """The parameters of both, with the supports of their priors."""
        return {name: form(name, self.structure) for name in (*self.parameters, *self.structure.parameters)}

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"sigma2.irregular": VARIANCE} if self.structure.irregular else {}

    def sights(self, values: Parameters, inputs: Tensor | None = None) -> ObservationParameters:
        """The tables under parameters `[*r, ...]`; with inputs `[*b, T, C]` the emission is `[*b, T, 1, L]`."""
        like = next(iter(values.values()))
        noise = values["sigma2.irregular"] if self.structure.irregular else torch.zeros_like(like)
        emission = constant((tuple(self.structure.seen),), noise.dtype, noise.device)
        if inputs is not None:
            places = constant(self.structure.driven, torch.long, noise.device)
            steps = inputs.to(noise).unsqueeze(-2)
            emission = emission.expand(*steps.shape[:-1], -1).index_copy(-1, places, steps)
        return ObservationParameters(emission, noise[..., None, None])

    def in_units(self, values: Parameters, unit: Tensor) -> Parameters:
        """Parameters of x as those of x / unit; a structure has mean 0 or a diffuse start, so only variances change."""
        square = (unit * unit).squeeze(-1)
        return {name: value / square if name.startswith("sigma2.") else value for name, value in values.items()}
