r"""The distribution of an observation under a belief about its segment's parameters, which are integrated out.

| emission | posterior | observation |
|---|---|---|
| Normal, LinearRegression | normal-gamma $(m, \kappa, a, b)$ | t of $2a$ degrees of freedom, precision $a \kappa / (b (\kappa + 1))$ |
| MultivariateNormal | normal-Wishart $(m, \kappa, \nu, W)$ | t of $\nu - F + 1$, scale $W^{-1} (\kappa + 1) / (\kappa (\nu - F + 1))$ |
| Poisson | gamma $(a, b)$ | negative binomial of mean $a / b$ and dispersion $1 / a$ |
| Exponential | gamma $(a, b)$ | Lomax: $P(x > y) = (1 + y / b)^{-a}$ |
| Bernoulli, Categorical | beta, Dirichlet | of the mean probabilities |

At inputs $u$ of a regression $1 / \kappa$ is $d^\top V^{-1} d$ with $d = (1, u)$.
"""  # noqa: E501

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform

from ...inference.numerics.cholesky import cholesky, cholesky_inverse
from ...inference.numerics.delegation import delegated
from ..emissions.contract import ByGate, Emission
from ..emissions.counts import NegativeBinomial
from ..emissions.discrete import Poisson
from ..emissions.drawn import Drawn
from ..emissions.multivariate_normal import MultivariateNormal
from ..emissions.positive import Exponential
from ..emissions.regression import LinearRegression
from ..emissions.student_t import StudentT
from ..parameters import Parameters
from .beliefs import moments


class Predicted(Drawn):
    """Observations under M beliefs, each of which stands for a state.

    Arguments:
        plain: the emission of one belief.
        tables: its parameters `[*b, H, M, ...]`.
    """

    normal = False
    support = delegated("_plain")
    sizes = delegated("_plain")

    def __init__(self, plain: Any, tables: Parameters) -> None:
        self.n_features, self._plain, self._tables = plain.n_features, plain, tables

    def cut(self, part: Callable[[Tensor], Tensor]) -> "Predicted":
        return Predicted(self._plain, {name: part(table) for name, table in self._tables.items()})

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        return self._plain.reach(self._tables, p)

    def category_probs(self, values: Parameters) -> ByGate:
        return self._plain.category_probs(self._tables)


class _Marginal(Emission):
    """An emission that is never fitted."""

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        raise TypeError(f"{self.name}: is the distribution of an observation to come, and has no prior.")


class Lomax(_Marginal):
    """Independent waiting times whose rate has a gamma distribution; parameters `shape` and `rate`."""

    support = constraints.nonnegative

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        shape, rate, seen = values["shape"], values["rate"], ~x.isnan()
        beyond = torch.log1p(torch.where(seen, x, 0.0) / rate)
        return torch.where(seen, shape.log() - rate.log() - (shape + 1) * beyond, 0.0).sum(-1)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        pareto = dist.Pareto(values["rate"], values["shape"])
        return dist.TransformedDistribution(pareto, [AffineTransform(-values["rate"], 1.0)]).to_event(1)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        shape, rate = values["shape"], values["rate"]
        mean = torch.where(shape > 1, rate / (shape - 1).abs(), torch.inf)
        variance = rate.square() * shape / ((shape - 1).square() * (shape - 2).abs())
        return mean, torch.where(shape > 2, variance, torch.inf)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return -torch.expm1(-values["shape"] * torch.log1p(x.clamp_min(0.0) / values["rate"]))

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        quantile = values["rate"] * torch.expm1(-math.log1p(-p) / values["shape"])
        low, high = 0.999 * quantile, 1.001 * quantile
        return ByGate(low, low), ByGate(high, high)


class VectorT(_Marginal):
    """Vectors of Student's t distribution; parameters `loc [F]`, `scale_matrix [F, F]` and `df`."""

    def __init__(self, n_features: int) -> None:
        self.n_features, self._single = n_features, StudentT(n_features)

    def _law(self, values: Parameters) -> Any:
        return dist.MultivariateStudentT(values["df"], values["loc"], cholesky(values["scale_matrix"]))

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen = ~x.isnan().any(-1)
        filled = torch.where(seen.unsqueeze(-1), x, values["loc"])
        return torch.where(seen, self._law(values).log_prob(filled), 0.0)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return self._law(values)

    def _each(self, values: Parameters) -> Parameters:
        """The parameters of each feature alone."""
        loc, spread = values["loc"], values["scale_matrix"].diagonal(dim1=-2, dim2=-1)
        return {"loc": loc, "precision": 1 / spread, "df": values["df"].unsqueeze(-1).expand_as(loc)}

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        return self._single.moments(self._each(values))

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return self._single.marginal_cdf(x, self._each(values))

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        return self._single.reach(self._each(values), p)


def predicted(
    emission: Any, eta: Float[Tensor, "*#b M G D"], about: Float[Tensor, "F"], inputs: Float[Tensor, "*#b H C"] | None
) -> Predicted:
    """The observation under each of M beliefs about the parameters, at H steps with these inputs, or at one."""
    n, eta = emission.n_features, eta.unsqueeze(-4)
    q: Any = emission.family.usual(eta)
    if isinstance(emission, LinearRegression):
        assert inputs is not None
        return Predicted(StudentT(n), _of_regression(q, about, inputs))
    if isinstance(emission, MultivariateNormal):
        return Predicted(VectorT(n), _of_vectors(q, about))
    if isinstance(emission, Poisson):
        return Predicted(NegativeBinomial(n), {"mean": q.shape / q.rate, "dispersion": 1 / q.shape})
    if isinstance(emission, Exponential):
        return Predicted(Lomax(n), {"shape": q.shape, "rate": q.rate})
    if "probs" in emission.parameters:
        return Predicted(emission, {"probs": moments(emission.family, eta)["probs"][0].flatten(-2)})
    precision = q.shape * q.kappa / (q.rate * (q.kappa + 1))
    return Predicted(StudentT(n), {"loc": q.loc + about, "precision": precision, "df": 2 * q.shape})


def _of_vectors(q: Any, about: Tensor) -> Parameters:
    loc = q.loc.squeeze(-2) + about
    df, wider = (q.df - loc.shape[-1] + 1).squeeze(-1), ((q.kappa + 1) / q.kappa).squeeze(-1)
    scale = cholesky_inverse(cholesky(q.scale_matrix)).squeeze(-3) * (wider / df)[..., None, None]
    return {"loc": loc, "scale_matrix": scale, "df": df}


def _of_regression(q: Any, about: Tensor, inputs: Tensor) -> Parameters:
    design = torch.nn.functional.pad(inputs, (1, 0), value=1.0)[..., None, None, :].unsqueeze(-1)  # [*b, H, 1, 1, K, 1]
    covariance = cholesky_inverse(cholesky(q.weight))
    spread = (design.mT @ covariance @ design)[..., 0, 0]
    loc = (design.mT @ q.loc)[..., 0, 0] + about
    shape, rate = q.df / 2, 0.5 / q.scale_matrix[..., 0, 0]
    return {"loc": loc, "precision": shape / (rate * (1 + spread)), "df": (2 * shape).expand_as(loc)}
