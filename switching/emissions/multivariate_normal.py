r"""Full-covariance normal vectors: $x_t \mid s \sim N(\mu_s, \Lambda_s^{-1})$ with a normal-Wishart prior.

$$\Lambda \sim \text{Wishart}(\nu_0, W_0), \qquad \mu \mid \Lambda \sim N(m_0, (\kappa_0 \Lambda)^{-1})$$

With weighted count $n$, mean $\bar x$ and scatter $S$ the posterior has $\kappa = \kappa_0 + n$,
$m = (\kappa_0 m_0 + n \bar x)/\kappa$, $\nu = \nu_0 + n$ and
$W^{-1} = W_0^{-1} + S + \kappa_0 n (\bar x - m_0)(\bar x - m_0)^\top / \kappa$; its joint mode is $\mu = m$,
$\Lambda = (\nu - F) W$ (Murphy 2007, section 8). Under a normal-Wishart q

$$\theta' = (E[\Lambda]^{-1} E[\Lambda\mu],\; E[\Lambda]), \qquad
c = (E\log|\Lambda| - \log|E[\Lambda]| - F/\kappa)/2.$$

Missing features are integrated out: the likelihood of a step is that of its observed features, and the moments take the
conditional mean and covariance of the missing ones under the current parameters (Ghahramani & Jordan 1994). Under a q
they are one more latent variable, $q(x_{mis} \mid s)$, and $\log \int e^{E_q[\log p(x \mid \theta)]} dx_{mis}$ is the
likelihood of the observed features under $\theta'$, plus c. Steps that miss the same features share their
factorisation; a step that misses all is left out.
"""

import math
from dataclasses import dataclass
from functools import reduce

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import NormalWishart
from ...inference.families.numerics import log_det, pack
from ...inference.gaussian.op import Moments, multivariate_normal_log_density, multivariate_normal_moments
from ...inference.numerics.cholesky import cholesky, rounding
from ..parameters import Parameter, Parameters, Shown, widened
from .contract import ConjugateEmission, Maximized, Representative, is_complete
from .spread import spread


def _inverse(matrix: Tensor) -> Tensor:
    return torch.cholesky_inverse(cholesky(matrix))


@dataclass(frozen=True)
class MultivariateNormal(ConjugateEmission):
    """Normal vectors with a full covariance for each state.

    Parameters `loc [K, F]` and `precision [K, F, F]` (inverse covariance); `covariance` is accepted in its place.

    Arguments:
        n_features: F.

    Example:
        >>> import samplehold as sh
        >>> x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.MultivariateNormal(n_features=2))
        >>> fit = model.fit(x, progress=False)
        >>> fit.model.describe()["covariance"].shape
        torch.Size([2, 2, 2])
    """

    n_features: int
    family = NormalWishart()
    have_unit = True
    fills_in = True
    parameters = {  # noqa: RUF012 the same for all instances
        "loc": Parameter(("state", "feature")),
        "precision": Parameter(
            ("state", "feature", "feature_new"),
            constraints.positive_definite,
            Shown("covariance", constraints.positive_definite, _inverse, _inverse),
        ),
    }

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Half an observation, of the spread within a state; locations anywhere within ten times that of the data."""
        found = spread(x, n_states, self.n_features)
        return {
            "loc": found.center.expand(n_states, -1),
            "count": (0.01 * found.within / found.total).min().expand(n_states),
            "df": torch.full_like(found.center[:1], self.n_features + 0.5).expand(n_states),
            "inverse_scale": torch.diag(found.within / 2).expand(n_states, -1, -1),
        }

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        squares = unit.unsqueeze(-1) * unit
        factors = {"loc": 1 / unit, "precision": squares, "inverse_scale": 1 / squares}
        return {name: value * factors[name] if name in factors else value for name, value in table.items()}

    def natural(self, prior: Parameters) -> Tensor:
        return self.family.natural(prior["loc"], prior["count"], prior["df"], _inverse(prior["inverse_scale"]))

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed = ~torch.isnan(x)
        residual = torch.where(observed, x, 0.0) - values["loc"]
        if bool(observed.all()):
            return _log_density(residual, cholesky(values["precision"]))
        # a missing feature becomes a standard normal at its mean, independent of the rest, and its density is taken out
        seen = observed.to(x.dtype)
        covariance = _inverse(values["precision"])
        covariance = covariance * seen.unsqueeze(-1) * seen.unsqueeze(-2) + torch.diag_embed(1 - seen)
        chol = cholesky(_inverse(covariance))
        missing = (1 - seen).sum(-1)
        return _log_density(torch.where(observed, residual, 0.0), chol) + 0.5 * math.log(2 * math.pi) * missing

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        rows = x.reshape(-1, self.n_features)
        parts = []
        patterns = _patterns(rows)
        for observed, which in patterns:
            if observed is None:
                chol = cholesky(values["precision"])
                parts.append(multivariate_normal_log_density(rows[which], values["loc"], chol))
            else:
                wide = {name: widened(values[name], len(p.dims), 1) for name, p in self.parameters.items()}
                parts.append(self.log_prob(rows[which].unsqueeze(-2), wide))
        table = parts[0]
        if len(patterns) > 1:
            order = torch.cat([torch.as_tensor(which) for _, which in patterns]).argsort()
            table = torch.cat(parts, -2).index_select(-2, order)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def expected_table(self, x: Tensor, statistics: Tensor) -> Tensor:
        if not is_complete(x):
            return super().expected_table(x, statistics)
        values, constant = self.representative(statistics)
        chol = cholesky(values["precision"])
        rows, log_volume = x.reshape(-1, self.n_features), log_det(chol) + 2 * constant[..., 0]
        table = multivariate_normal_log_density(rows, values["loc"], chol, log_volume)
        return table.reshape(*table.shape[:-2], *x.shape[:-1], table.shape[-1])

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.MultivariateNormal(values["loc"], precision_matrix=values["precision"])

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        mean, variance = self.moments(values)
        return torch.special.ndtr((x - mean) / variance.sqrt())

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        if near is None:
            zero = x.new_zeros(weights.shape[-1], self.n_features)
            near = {"loc": zero, "precision": torch.diag_embed(torch.ones_like(zero))}
        parts = [
            _pattern_moments(x[rows], observed, weights[..., rows, :], near)
            for observed, rows in _patterns(x)
            if observed is None or bool(observed.any())
        ]
        count, first, second = (reduce(torch.add, part) for part in zip(*parts, strict=True))
        half = count[..., None] / 2
        return pack(first, -half, half, -_symmetric(second).flatten(-2) / 2)

    def limit(self, message: Tensor, floor: Tensor) -> Maximized:
        first, half, _, second = message.split([self.n_features, 1, 1, self.n_features**2], -1)
        n = -2 * half
        mean = first / n
        scatter = -2 * second.unflatten(-1, (self.n_features, self.n_features)) / n.unsqueeze(-1)
        covariance = scatter - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        # in units of the floor's square root a covariance with an eigenvalue below 1 has collapsed
        unit, any_mass = floor.sqrt(), n.unsqueeze(-1) > 0
        scaled = torch.where(any_mass, covariance, 0.0) / (unit.unsqueeze(-1) * unit)
        variance, axes = torch.linalg.eigh(scaled.double())
        inverse = _inverse_of(axes, variance.clamp(min=1.0), scaled) / (unit.unsqueeze(-1) * unit)
        inverse = torch.where(any_mass, _symmetric(inverse), torch.nan)  # no estimate: the caller keeps what it had
        return Maximized({"loc": mean, "precision": inverse}, (variance <= 1.0).any(-1))

    def representative(self, statistics: Tensor) -> Representative:
        dim = self.n_features
        first, second, log_volume, flat = statistics.split([dim, 1, 1, dim * dim], -1)
        precision = flat.unflatten(-1, (dim, dim))
        chol = cholesky(precision)
        loc = torch.cholesky_solve(first[..., None], chol)[..., 0]
        spread = second - (first * loc).sum(-1, keepdim=True)
        constant = (log_volume - log_det(chol)[..., None] - spread) / 2
        return Representative({"loc": loc, "precision": precision}, constant)


def _log_density(residual: Tensor, chol_precision: Tensor) -> Tensor:
    """log N(x; loc, precision) from x - loc [..., F] and the Cholesky factor of the precision."""
    whitened = (chol_precision * residual.unsqueeze(-1)).sum(-2)
    half_log_det = chol_precision.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return half_log_det - 0.5 * (whitened.square().sum(-1) + residual.shape[-1] * math.log(2 * math.pi))


def _patterns(x: Tensor) -> list[tuple[Tensor | None, Tensor | slice]]:
    """Each pattern of observed features in x [N, F], None where all are, and an index of the rows that have it."""
    if is_complete(x):
        return [(None, slice(None))]
    patterns, which = torch.unique(~torch.isnan(x), dim=0, return_inverse=True)
    rows = [torch.nonzero(which == i)[:, 0] for i in range(len(patterns))]
    return [(None if bool(p.all()) else p, index) for p, index in zip(patterns, rows, strict=True)]


def _pattern_moments(x: Tensor, observed: Tensor | None, weights: Tensor, values: Parameters) -> Moments:
    """Expected moments about the state's mean of rows that miss the same features."""
    if observed is None:
        return multivariate_normal_moments(x, weights, values["loc"])
    filled, spread = _conditional(x, observed, values)
    count, residual = weights.sum(-2), filled - values["loc"].unsqueeze(-2)
    weighted = residual * weights.mT.unsqueeze(-1)
    return Moments(count, weighted.sum(-2), weighted.mT @ residual + count[..., None, None] * spread)


def _conditional(x: Tensor, observed: Tensor, values: Parameters) -> tuple[Tensor, Tensor]:
    """Mean [*r, K, n, F] of rows x [n, F] given their observed features, and covariance [*r, K, F, F] of the missing.

    Given the observed, the missing features have precision `precision[m, m]` and mean
    `loc[m] - precision[m, m]^-1 precision[m, o] (x[o] - loc[o])`.
    """
    loc, precision = values["loc"].unsqueeze(-2), values["precision"]
    missing = ~observed
    residual = torch.where(observed, torch.where(observed, x, 0.0) - loc, 0.0)
    both = missing.unsqueeze(-1) & missing
    block = torch.where(both, precision, torch.diag(observed.to(x.dtype)))
    inverse = torch.cholesky_inverse(cholesky(block))
    spread = torch.where(both, inverse, 0.0)
    return loc + residual - torch.where(missing, (residual @ precision) @ spread, 0.0), spread


def _inverse_of(axes: Tensor, variance: Tensor, like: Tensor) -> Tensor:
    """The inverse of the covariance with these axes, where the dtype of the result tells the eigenvalues of its
    correlations from 0; where not, of one that it does."""
    covariance = (axes * variance.unsqueeze(-2)) @ axes.mT
    unit = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    both, least = unit.unsqueeze(-1) * unit.unsqueeze(-2), rounding(like)
    level, turned = torch.linalg.eigh(covariance / both)
    held = (turned / level.clamp(min=least).unsqueeze(-2)) @ turned.mT / both
    singular = (level[..., :1] < least).unsqueeze(-1)
    return torch.where(singular, held, (axes / variance.unsqueeze(-2)) @ axes.mT).to(like)


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.mT)
