"""A linear model's dynamics, emission and prior, and a series, as one input for inference."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.linear_gaussian.chain import LinearGaussianChain
from ...inference.chains.linear_gaussian.factors import factor_of
from ...inference.numerics.placement import constant
from ..data.series import Series
from ..fitting.units import Units
from ..parameters import Parameter, Parameters, check_parameters, read_tables, widened
from ..problem import SeriesProblem
from .contract import LinearDynamics
from .emission import Irregular, LinearEmission
from .priors import log_prior, units_of

AXES = {
    "transition_offset": 1,
    "emission_offset": 1,
    "initial_mean": 1,
}  # numbers of axes of tables of a chain; the others have 2


@dataclass(frozen=True, repr=False)
class LinearProblem(SeriesProblem):
    """As `Problem`, for a linear model.

    Attributes:
        dynamics, emission: as in the model.
        series, prior, fixed: as in `Problem`.
    """

    dynamics: LinearDynamics
    emission: LinearEmission | Irregular
    series: Series
    prior: Parameters | None = None
    fixed: Parameters = field(default_factory=dict)

    @property
    def n_states(self) -> int:
        """The size of the tables of one step."""
        return self.dynamics.n_latent**2

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The axes and supports of the parameters, by name."""
        return known(self.dynamics, self.emission)

    def values_of(self, values: Mapping[str, Any]) -> Parameters:
        """Parameters from numbers by name; names with a dot come in a dictionary.

        Raises:
            ValueError: a parameter is missing, unknown, of another shape, or outside its space.
        """
        unknown = [name for name in values if name not in self.parameters]
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {unknown}; this model has {list(self.parameters)}.")
        tables, lengths = read_tables(values), sizes(self.dynamics, self.emission)
        checked = self.dynamics.check_values(tables)
        return checked | check_parameters(self.emission.parameters, tables, lengths, "linear model")

    def chain(self, values: Parameters) -> LinearGaussianChain:
        """The chain over latent paths under these parameters."""
        tables, lead = self.tables(values)
        x = self.series.observations
        diffuse = constant(tuple(self.dynamics.diffuse), torch.bool, x.device)
        x = x.reshape(*[1] * lead, *x.shape)
        return LinearGaussianChain(x, **tables, diffuse=diffuse, lengths=self.series.lengths)

    def after(
        self, values: Parameters, mean: Float[Tensor, "*b L"], covariance: Float[Tensor, "*b L L"]
    ) -> LinearGaussianChain:
        """The chain of the series after a belief about the state before it."""
        (tables, _), x = self.tables(values), self.series.observations
        moves = tables["transition"]
        mean = (moves @ mean.to(x).unsqueeze(-1)).squeeze(-1) + tables.get("transition_offset", 0.0)
        covariance = moves @ covariance.to(x) @ moves.mT + tables["state_noise"]
        first = {"initial_mean": mean, "initial_covariance": (covariance + covariance.mT) / 2}
        return LinearGaussianChain(x, **(tables | first))

    def tables(self, values: Parameters) -> tuple[dict[str, Tensor], int]:
        """The arguments of a chain under parameters `[*r, ...]`, with axes for sequences, and the number of axes *r."""
        sights = self.emission.sights(values, self.series.drive.inputs)
        tables = self.dynamics.moves(values)._asdict() | sights._asdict()
        arguments, lead = {}, 0
        for name, table in tables.items():
            n_axes = AXES.get(name, 2)
            if name == "emission" and self.varies:
                arguments[name] = table
            elif table is not None:
                lead = max(lead, table.ndim - n_axes)
                arguments[name] = widened(table, n_axes, len(self.series.batch_shape))
        if self.varies:
            arguments["emission"] = arguments["emission"].reshape(*[1] * lead, *arguments["emission"].shape)
        return arguments, lead

    @property
    def varies(self) -> bool:
        """Whether the emission varies with the step; it then has an axis of steps."""
        return self.series.inputs is not None

    def draw(self, values: Parameters, mean: Tensor, covariance: Tensor | None, n: int) -> Float[Tensor, "n *rb T F"]:
        """Observations for latents with means `[..., *r, *b, T, L]` and covariances, by torch's global generator."""
        tables, _ = self.tables(values)
        emission, noise = tables["emission"], tables["observation_noise"].unsqueeze(-3)
        emission = emission if self.varies else emission.unsqueeze(-3)
        loc = (emission @ mean.unsqueeze(-1)).squeeze(-1)
        if "emission_offset" in tables:
            loc = loc + tables["emission_offset"].unsqueeze(-2)
        spread = noise if covariance is None else emission @ covariance @ emission.mT + noise
        factor, _ = factor_of(spread)
        normal = torch.randn(n, *loc.shape, dtype=loc.dtype, device=loc.device)
        return loc + (factor @ normal.unsqueeze(-1)).squeeze(-1)

    def draws_ahead(self, values: Parameters, filtered: Any, each: int) -> Float[Tensor, "total *b T F"]:
        drawn = self.draw(values, filtered.predicted_mean, filtered.predicted_covariance, each)
        return drawn.transpose(0, 1).flatten(0, 1)

    def draws_along(self, values: Parameters, drawn: Any) -> Float[Tensor, "total *b T F"]:
        return self.draw(values, drawn.latent, None, 1).squeeze(0).transpose(0, 1).flatten(0, 1)

    def log_prior(self, values: Parameters) -> Float[Tensor, "*r"]:
        """Log density of the parameters; 0 without a prior."""
        if self.prior is None:
            return self.series.like.new_zeros(())
        return log_prior(self.dynamics, self.emission, self.prior, values)

    @property
    def units(self) -> Units:
        """The units of a fit: those of the prior, or without one those of the data."""
        if self.prior is None:
            return units_of(self.emission, self.series)
        return Units(self.emission, self.prior["center"].double(), self.prior["spread"].double())

    def in_units(self, units: Units) -> "LinearProblem":
        """The problem with the series in these units, where the prior has location 0 and scale 1."""
        plain = {
            "center": torch.zeros_like(units.about),
            "spread": torch.ones_like(units.unit),
            "unit": units.unit,
            "about": units.about,
        }
        prior = None if self.prior is None else plain
        return replace(self, series=units.series(self.series), prior=prior, fixed=units.values(self.fixed))


def known(dynamics: LinearDynamics, emission: LinearEmission | Irregular) -> dict[str, Parameter]:
    """The axes and supports of the parameters of both, by name; for a structure those of the emission come first."""
    both = dynamics.parameters, emission.parameters
    first, second = both if isinstance(emission, LinearEmission) else both[::-1]
    return dict(first) | dict(second)


def sizes(dynamics: LinearDynamics, emission: LinearEmission | Irregular) -> dict[str, int]:
    """The lengths of the parameters' axes."""
    latent, feature = dynamics.n_latent, emission.n_features
    return {"latent": latent, "latent_new": latent, "feature": feature, "feature_new": feature}


def typical(dynamics: LinearDynamics, emission: LinearEmission | Irregular) -> Parameters:
    """Valid values of the parameters, in the middle of ranges."""
    lengths, values = sizes(dynamics, emission), {}
    narrow = emission.ranges if isinstance(emission, Irregular) else {}
    for name, parameter in known(dynamics, emission).items():
        shape = [lengths[dim] for dim in parameter.dims]
        zero = torch.zeros(shape, dtype=torch.float64, device="cpu")
        ends = narrow.get(name) or [getattr(parameter.support, f"{end}_bound", None) for end in ("lower", "upper")]
        if None not in ends:
            values[name] = zero + sum(map(float, ends)) / 2  # type: ignore[arg-type]
            continue
        one = torch.eye(shape[0]).to(zero) if parameter.support is constraints.positive_definite else zero + 1
        values[name] = zero if parameter.support is constraints.real else one
    return values
