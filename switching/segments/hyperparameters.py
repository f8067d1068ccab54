r"""The prior of a segment's parameters: the emissions that have a conjugate one, and the prior of its hyperparameters.

The hyperparameters are values of a `Segments` model, by the names that they have in the prior of a `SwitchingSSM`:

| emission | prior of a segment's parameters | hyperparameters |
|---|---|---|
| Normal | precision ~ Gamma(shape, rate), loc ~ N(loc, 1 / (count precision)) | loc, count, shape, rate `[F]` |
| LinearRegression | coefficients ~ N(0, 1 / (count precision inputs_scale^2)), the rest the same | the same |
| MultivariateNormal | precision ~ Wishart(df, inverse_scale^-1), loc as above | loc, count, df, inverse_scale |
| Poisson, Exponential | rate ~ Gamma(shape, rate) | shape, rate `[F]` |
| Bernoulli | probs ~ Beta(successes, failures) | successes, failures `[F]` |
| Categorical | probs ~ Dirichlet(concentration) | concentration `[C]` |

In a fit they have weak priors about the emission's weak default $c$, which is scaled to the data: positive numbers
$\log h \sim N(\log c + \sigma^2, \sigma^2)$ with $\sigma = 1.5$, whose mode is c; locations $N(c, v)$ with their
variance v under the default; a matrix a Wishart distribution of mean c.

The prior of a regression is for inputs about the model's `origin`, with the spreads `inputs_scale` of `model.prior`. A
fit sets both to the means and spreads of the data, so that it does not depend on the origin and unit of inputs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform

from ...inference.numerics.scalars import check_probability
from ..definite import Wishart
from ..emissions.contract import Emission
from ..emissions.discrete import Bernoulli, Categorical, Poisson
from ..emissions.multivariate_normal import MultivariateNormal
from ..emissions.normal import Normal
from ..emissions.positive import Exponential
from ..emissions.regression import LinearRegression
from ..inputs import count_inputs
from ..parameters import Parameter, Parameters
from ..priors import Site
from ..responses import stated_sites
from ..user_priors import hyperparameters as numbers_of
from .hazards import HAZARD, OF_HAZARD, inputs_of, of_hazard, responses_of, sites_of

OF_LOCATION = "count"  # the weight of the prior of a location
WIDE = 1.5  # the standard deviation of the logarithm of a hyperparameter under its weak prior
FEATURE = ("feature",)
LOC, SIZE = Parameter(FEATURE), Parameter(FEATURE, constraints.positive)
OF_NORMAL = {"loc": LOC, "count": SIZE, "shape": SIZE, "rate": SIZE}
OF_RATE = {"shape": SIZE, "rate": SIZE}


def _of_vector(emission: Any) -> dict[str, Parameter]:
    above = constraints.greater_than(emission.n_features - 1)
    matrix = Parameter((*FEATURE, "feature_new"), constraints.positive_definite)
    number = Parameter((), constraints.positive)
    return {"loc": LOC, "count": number, "df": Parameter((), above), "inverse_scale": matrix}


KINDS: Mapping[type[Emission], Callable[[Any], dict[str, Parameter]]] = {
    Normal: lambda emission: OF_NORMAL,
    Poisson: lambda emission: OF_RATE,
    Bernoulli: lambda emission: {"successes": SIZE, "failures": SIZE},
    Categorical: lambda emission: {"concentration": Parameter(("category",), constraints.positive)},
    Exponential: lambda emission: OF_RATE,
    MultivariateNormal: _of_vector,
    LinearRegression: lambda emission: OF_NORMAL,
}


def check_emission(emission: Any) -> None:
    """Raise an error unless the emission and its prior are conjugate."""
    works = ", ".join(kind.name for kind in KINDS)
    if type(emission) not in KINDS:
        shown = repr(emission) if isinstance(emission, Emission) else type(emission).__name__
        raise TypeError(
            f"emission: got {shown}, but exact segments need a conjugate prior, as these emissions have: {works}."
        )
    if getattr(emission, "tied", None) is not None:
        raise ValueError(
            f"emission: got {emission!r}, but segments have parameters of their own; leave out tied and covariance."
        )
    if not emission.is_conjugate:
        raise ValueError(
            f"emission: got priors of {', '.join(emission.user_priors)} that are not of the conjugate form; give the "
            f"hyperparameters {', '.join(KINDS[type(emission)](emission))} by with_prior(...)."
        )


def hyperparameters(emission: Emission) -> dict[str, Parameter]:
    """The hyperparameters of an emission, by name."""
    return KINDS[type(emission)](emission)


def known(emission: Emission, hazard: Any) -> dict[str, Parameter]:
    """The parameters of a model: those of the hazard, and the hyperparameters."""
    return of_hazard(hazard) | hyperparameters(emission)


def sizes_of(emission: Emission, hazard: Any) -> dict[str, int]:
    """The lengths of the parameters' axes."""
    return emission.sizes | {"input": count_inputs(inputs_of(hazard))}


def check_hazard(values: Parameters) -> None:
    """Raise ValueError unless the hazard, if it is among the values, is between 0 and 1."""
    if HAZARD in values:
        check_probability(HAZARD, values[HAZARD], proper=True)


def widened(emission: Emission, hazard: Any, tables: Parameters) -> Parameters:
    """Values or hyperparameters of which single numbers stand for all entries of their tables."""
    sizes = sizes_of(emission, hazard)
    shapes = {name: [sizes[dim] for dim in p.dims] for name, p in known(emission, hazard).items()}
    single = {name for name, table in tables.items() if name in shapes and not table.ndim}
    return {name: table.expand(shapes[name]).clone() if name in single else table for name, table in tables.items()}


def given_by(emission: Emission) -> frozenset[str]:
    """The names of the hyperparameters that the emission's own prior gives."""
    if isinstance(emission, Categorical) and not isinstance(emission.prior, Mapping):
        return frozenset() if emission.prior == 1.0 else frozenset(hyperparameters(emission))
    plain = emission.default_prior(1, None)
    return frozenset(name for prior in emission.user_priors.values() for name in numbers_of(prior, plain))


def of_scale(emission: Emission) -> list[str]:
    """The hyperparameters of the scale of observations within a segment; none if the evidence is bounded."""
    bounded = isinstance(emission, Poisson | Bernoulli | Categorical)
    return [] if bounded else [name for name in hyperparameters(emission) if name not in ("loc", OF_LOCATION)]


def above_floor(emission: Emission, values: Parameters, floor: Float[Tensor, "F"]) -> Parameters:
    """Values under which the typical variance of a segment, after an observation at its mean, is at least the floor.

    If the observations of a segment are all equal, the evidence is unbounded as this variance falls to 0.

    Arguments:
        floor: the least variance of each feature.
    """
    if isinstance(emission, MultivariateNormal):
        weight = floor.sqrt() * (values["df"] + 1).sqrt().unsqueeze(-1)
        scaled = values["inverse_scale"] / (weight.unsqueeze(-1) * weight.unsqueeze(-2))
        lacking = (1 - torch.linalg.eigvalsh(scaled)[..., :1]).clamp_min(0.0)
        return values | {"inverse_scale": values["inverse_scale"] + torch.diag_embed(lacking * weight.square())}
    least, one = (floor.sqrt(), 1.0) if isinstance(emission, Exponential) else (floor, 0.5)
    return values | {"rate": values["rate"].maximum(least * (values["shape"] + one))}


def sites(known: Mapping[str, Parameter], center: Parameters, hazard: Any = None) -> list[Site]:
    """The prior of the hyperparameters and of the hazard, as Pyro sites, about a default."""
    by_inputs = sites_of(hazard, center) if count_inputs(inputs_of(hazard)) else {}
    made = []
    for name, parameter in known.items():
        if name in by_inputs:
            made.append(by_inputs[name])
            continue
        if name == HAZARD:
            change, hold = center[OF_HAZARD].unbind(-1)
            prior: Any = dist.Beta(change, hold)
        elif parameter.support is constraints.real:
            prior = dist.Normal(center[name], _spread(center).sqrt())
        elif parameter.support is constraints.positive_definite:
            df = center[name].new_tensor(center[name].shape[-1] + 2.0)
            prior = Wishart(df, center[name] / df)
        else:
            prior = _about(center[name], parameter.support)
        placed = prior.to_event(len(prior.batch_shape))
        made.append(Site(name, lambda values, placed=placed: placed))
    return stated_sites(made, responses_of(hazard), inputs_of(hazard), center)


def _about(center: Tensor, support: Any) -> Any:
    """A positive number, or one above a bound, whose logarithm is normal."""
    least = float(support.lower_bound)
    log_normal = dist.LogNormal((center - least).log() + WIDE**2, WIDE)
    return dist.TransformedDistribution(log_normal, [AffineTransform(least, 1.0)]) if least else log_normal


def _spread(center: Parameters) -> Tensor:
    """The variance of a segment's location under the default."""
    if "df" in center:
        return center["inverse_scale"].diagonal(dim1=-2, dim2=-1) / (center["df"] * center["count"])
    return center["rate"] / (center["shape"] * center["count"])
