r"""Features that depend on a few factors: $x_t = \mu_s + W_s f_t + \epsilon_t$ with $f_t \sim N(0, I)$ and
$\epsilon_t \sim N(0, \Psi_s)$, where $\Psi_s$ is diagonal; so $x_t \mid s \sim N(\mu_s,\; W_s W_s^\top + \Psi_s)$.

**Density.** With $M = I + W^\top \Psi^{-1} W$, a residual $r = x - \mu$ and $\hat f = M^{-1} W^\top \Psi^{-1} r$,

$$r^\top \Sigma^{-1} r = (r - W \hat f)^\top \Psi^{-1} (r - W \hat f) + \hat f^\top \hat f, \qquad
|\Sigma| = |\Psi|\, |M|.$$

Missing features drop out of the sums over features. A sum of squares loses no digits where the noise is small.

**M-step.** Missing features are imputed in the moments, as in `multivariate_normal`. Given these moments, some steps of
EM follow, whose latent variables are the factors (Ghahramani & Hinton 1996, *The EM algorithm for mixtures of factor
analyzers*): $f \mid x \sim N(\hat f, M^{-1})$, and each feature has a regression on f and a residual variance.
Locations are the best ones at the current covariance, and factors may have a covariance during a step, so few steps
suffice (Liu, Rubin & Wu 1998, *Parameter expansion to accelerate EM: the PX-EM algorithm*).

**Rotation.** Loadings W R have the same density for every orthogonal R, also under the default prior. A triangular W is
unique up to the signs of its columns if its diagonal has no 0 (Geweke & Zhou 1996, *Measuring the pricing error of the
arbitrage pricing theory*).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import biject_to, constraints

from ...inference.families.peak import NEAR_FLOOR
from ...inference.gaussian.op import Moments
from ...inference.numerics.cholesky import cholesky, cholesky_inverse, cholesky_solve, log_det
from ...inference.numerics.scalars import check_integer
from ..entries import Entries, KnownEntries, KnownTransform
from ..known import KnownDistribution
from ..parameters import Parameter, Parameters, kept
from ..priors import Site
from .contract import Emission, Maximized
from .multivariate_normal import weighted_moments
from .spread import spread

STEPS = 20  # of EM on the factors in one M-step


def turned(loadings: Float[Tensor, "*n F q"]) -> Float[Tensor, "*n F q"]:
    """Loadings with the same covariance, 0 above the diagonal and not negative on it."""
    lower = torch.linalg.qr(loadings.mT)[1].mT
    sign = torch.where(lower.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return (lower * sign.to(lower).unsqueeze(-2)).tril()


class _Triangular(Entries):
    """Loadings that are 0 above the diagonal. Others are turned."""

    def checked(self, value: Tensor, name: str) -> Tensor:
        return turned(value) if bool((value != 0)[..., ~self.free.to(value.device)].any()) else value


biject_to.register(_Triangular)(KnownTransform)


@dataclass(frozen=True, repr=False)
class FactorAnalysis(Emission):
    """Normal vectors whose covariance is that of a few factors and of independent noise.

    Parameters `loc [K, F]`, `loadings [K, F, q]` and `noise [K, F]`, the variances of the noise. The covariance of a
    state is `loadings @ loadings.mT + diag(noise)`. It determines loadings up to a rotation: those of a fit are 0 above
    the diagonal and not negative on it, so the first feature depends on the first factor alone. Loadings in any
    rotation are read, and turned. If (F - q)^2 < F + q, the same covariance has other noises and loadings too.

    Weak priors are normal for `loc` and `loadings` and inverse gamma for `noise`. They do not depend on the rotation.

    Arguments:
        n_features: F.
        n_factors: q, less than F.
        prior: distributions of Pyro by name of a parameter, in place of its default prior; each is of one number or of
            a whole table. EM, SVI and NUTS accept any. Message passing does not support this emission.

    Raises:
        TypeError: a size that is not an integer.
        ValueError: a size below 1; as many factors as features, or more; a prior of another parameter.

    Ghahramani & Hinton 1996, *The EM algorithm for mixtures of factor analyzers*.

    See Also:
        `MultivariateNormal`, with a free covariance; `SwitchingLinearSSM`, whose factors last in time;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.FactorAnalysis(n_features=4, n_factors=1))
        >>> fit = model.fit(x + x[:, :1], restarts=2, max_steps=20, progress=False)
        >>> fit.model.loadings.shape, fit.model.noise.shape
        (torch.Size([2, 4, 1]), torch.Size([2, 4]))
    """

    n_features: int = 2
    n_factors: int = 1
    prior: Any = field(default=None, kw_only=True, repr=False, compare=False)
    have_unit = True
    normal = True

    def __post_init__(self, *_: Any) -> None:
        q, n = check_integer("n_factors", self.n_factors), check_integer("n_features", self.n_features)
        if q >= n:
            raise ValueError(
                f"n_factors: got {q} for {n} feature(s), expected fewer factors than features; use MultivariateNormal, "
                "which has any covariance."
            )
        object.__setattr__(self, "n_factors", q)
        free = torch.ones(n, q, dtype=torch.bool, device="cpu").tril()
        loadings = Parameter(("state", "feature", "factor"), _Triangular(free, "loadings are triangular"))
        known = {
            "loc": Parameter(("state", "feature")),
            "loadings": loadings,
            "noise": Parameter(("state", "feature"), constraints.positive),
        }
        object.__setattr__(self, "parameters", known)
        super().__post_init__()

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"factor": self.n_factors}

    # ---- the prior ---------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        """Locations and loadings within some spreads of the data; noises near the variance within a state."""
        known = spread(x, n_states, self.n_features)
        rows = {
            "loc": known.center,
            "loc_scale": 10 * known.scale,
            "loadings_scale": known.scale,
            "noise_shape": torch.full_like(known.scale, 1.5),
            "noise_rate": known.within / 2,
        }
        return {name: row.expand(n_states, -1) for name, row in rows.items()}

    def priors(self, prior: Parameters) -> Mapping[str, TorchDistributionMixin]:
        place: Any = KnownTransform(cast(Entries, self.parameters["loadings"].support))
        scale = place.inv(prior["loadings_scale"].unsqueeze(-1).expand(-1, -1, self.n_factors))
        loadings: Any = dist.TransformedDistribution(dist.Normal(torch.zeros_like(scale), scale).to_event(1), [place])
        return {
            "loc": dist.Normal(prior["loc"], prior["loc_scale"]).to_event(2),
            "loadings": loadings.to_event(1),
            "noise": dist.InverseGamma(prior["noise_shape"], prior["noise_rate"]).to_event(2),
        }

    def sites(self, prior: Parameters) -> list[Site]:
        sites = super().sites(prior)
        return [_triangular(site, self._free) if site.name in self.user_priors else site for site in sites]

    @property
    def _free(self) -> Bool[Tensor, "F q"]:
        """The loadings that are not always 0."""
        return cast(Entries, self.parameters["loadings"].support).free

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        factors = dict.fromkeys(("loc", "loc_scale", "loadings_scale"), 1 / unit)
        factors |= {"loadings": 1 / unit.unsqueeze(-1), "noise": unit**-2, "noise_rate": unit**-2}
        return {name: value * factors[name] if name in factors else value for name, value in table.items()}

    # ---- the density -------------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        seen, loadings, noise = ~torch.isnan(x), values["loadings"], values["noise"]
        residual = torch.where(seen, torch.where(seen, x, 0.0) - values["loc"], 0.0)
        complete = bool(seen.all())
        weight = 1 / noise if complete else torch.where(seen, 1 / noise, 0.0)
        if complete:
            squares = loadings.mT @ (loadings * weight.unsqueeze(-1))
        else:
            pairs = (loadings.unsqueeze(-1) * loadings.unsqueeze(-2)).flatten(-2)
            squares = (weight.unsqueeze(-2) @ pairs).squeeze(-2).unflatten(-1, (self.n_factors, self.n_factors))
        chol = cholesky(squares + torch.eye(self.n_factors).to(squares))
        moved = (weight * residual).unsqueeze(-2) @ loadings @ cholesky_inverse(chol)  # the expected factors [*n, 1, q]
        rest = residual - (moved @ loadings.mT).squeeze(-2)
        square = (weight * rest.square()).sum(-1) + moved.square().sum((-2, -1))
        volume = torch.where(seen, noise.log() + math.log(2 * math.pi), 0.0).sum(-1) + log_det(chol)
        return -0.5 * (square + volume)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return dist.LowRankMultivariateNormal(values["loc"], values["loadings"], values["noise"])

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        return values["loc"], values["loadings"].square().sum(-1) + values["noise"]

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        """A noise of 0 does not make the covariance singular by itself."""
        scaled, noise = values["loadings"] / floor.sqrt().unsqueeze(-1), values["noise"] / floor
        if not bool((noise <= NEAR_FLOOR).any()):
            return torch.zeros_like(noise[..., 0], dtype=torch.bool)
        covariance = scaled @ scaled.mT + torch.diag_embed(noise)
        return torch.linalg.eigvalsh(covariance)[..., 0] <= NEAR_FLOOR

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        mean, variance = self.moments(values)
        return torch.special.ndtr((x - mean) / variance.sqrt())

    # ---- the M-step --------------------------------------------------------------------------------------------------

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        """Some steps of EM on the factors; without a prior, noises stay at the floor or above it."""
        if prior is not None and self.user_priors:
            return self.maximize_beside({}, x, weights, near, prior, floor)
        return self.maximize_sums(self.sums(x, weights, near), near, prior, floor)

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return not self.user_priors

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        return self._moments(x, weights, near)._asdict()

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        known, now, floor = Moments(**sums), {n: v.double() for n, v in near.items()}, floor.double()
        values = now | {"loc": torch.zeros_like(now["loc"])}  # relative to those at hand, as the moments
        values |= _begun(known, values, floor)
        own = None if prior is None else {name: prior[name].double() for name in prior}
        own = None if own is None else own | {"loc": own["loc"] - now["loc"]}
        for _ in range(STEPS):
            values = kept(_improved(known, values, own, floor), values)
        values |= {"loc": values["loc"] + now["loc"], "loadings": turned(values["loadings"])}
        return Maximized({name: values[name].to(near[name]) for name in self.parameters})

    def maximize_beside(
        self,
        fixed: Parameters,
        x: Tensor,
        weights: Tensor,
        near: Parameters,
        prior: Parameters | None,
        floor: Tensor,
    ) -> Maximized:
        if "loadings" not in fixed:
            values = {"loadings": near["loadings"].double(), "noise": near["noise"].double()}
            begun = _begun(self._moments(x, weights, near), values, floor.double())
            near = near | {"loadings": begun["loadings"].to(near["loadings"])}
        return super().maximize_beside(fixed, x, weights, near, prior, floor)

    def _moments(self, x: Tensor, weights: Tensor, near: Parameters) -> Moments:
        """Moments about the locations, in float64, with missing features imputed under the parameters."""
        loadings, noise = near["loadings"], near["noise"]
        unit = torch.eye(self.n_features).to(loadings)

        def completed(observed: Tensor) -> tuple[Tensor, Tensor]:
            gain, inverse = _expected(loadings[..., observed, :], noise[..., observed])
            missing = torch.ones_like(unit[0], dtype=torch.bool).index_fill(0, observed, False)
            spread = loadings @ inverse @ loadings.mT + torch.diag_embed(noise)
            both = missing.unsqueeze(-1) & missing
            whole = torch.where(missing.unsqueeze(-1), loadings @ gain, unit[:, observed])
            return whole, torch.where(both, spread, 0.0)

        return Moments(*(table.double() for table in weighted_moments(x, weights, near["loc"], completed)))


def _triangular(site: Site, free: Bool[Tensor, "F q"]) -> Site:
    """A user's prior; that of loadings is one of tables that are 0 except at the free entries."""
    if site.name != "loadings":
        return site
    table = torch.where(free, torch.nan, 0.0)

    def distribution(values: Parameters) -> Any:
        whole: Any = site.distribution(values)
        return KnownDistribution(whole, KnownEntries(constraints.real, table.expand(whole.event_shape)))

    return Site(site.name, distribution)


def _expected(loadings: Float[Tensor, "*n O q"], noise: Float[Tensor, "*n O"]) -> tuple[Tensor, Tensor]:
    """The gain `[*n, q, O]` and the covariance `[*n, q, q]` of the factors, given features with these parameters."""
    scaled = loadings / noise.unsqueeze(-1)
    square = loadings.mT @ scaled + torch.eye(loadings.shape[-1]).to(scaled)
    inverse = cholesky_inverse(cholesky(square))
    return inverse @ scaled.mT, inverse


def _begun(known: Moments, values: Parameters, floor: Tensor) -> Parameters:
    """The values; where all loadings are 0, from which no step of EM leads away, those of the greatest axes of the
    moments, whose noise is half of each variance."""
    nothing = (values["loadings"] == 0).all(-1).all(-1)
    if not bool(nothing.any()):
        return values
    count = known.count[..., None, None].clamp_min(torch.finfo(known.count.dtype).tiny)
    mean = known.first / count.squeeze(-1)
    covariance = known.second / count - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    noise = (covariance.diagonal(dim1=-2, dim2=-1) / 2).maximum(floor).clamp_min(torch.finfo(floor.dtype).tiny)
    covariance = torch.where(nothing[..., None, None], covariance, torch.diag_embed(noise))
    size = noise.sqrt()
    square, axes = torch.linalg.eigh(covariance / size.unsqueeze(-1) / size.unsqueeze(-2))
    q = values["loadings"].shape[-1]
    loadings = size.unsqueeze(-1) * axes[..., -q:] * (square[..., None, -q:] - 1).clamp_min(0.01).sqrt()
    return values | {
        "loadings": torch.where(nothing[..., None, None], turned(loadings), values["loadings"]),
        "noise": torch.where(nothing.unsqueeze(-1), noise, values["noise"]),
    }


def _improved(known: Moments, values: Parameters, prior: Parameters | None, floor: Tensor) -> Parameters:
    """The best locations, and one step of EM on the factors; moments and locations are about the same point."""
    loadings, noise = values["loadings"], values["noise"]
    total = known.count.clamp_min(torch.finfo(noise.dtype).tiny ** 0.5)
    count = total[..., None, None]
    loc = _located(known, values, prior)
    shift = known.first.unsqueeze(-1) * loc.unsqueeze(-2)
    scatter = known.second - shift - shift.mT + count * loc.unsqueeze(-1) * loc.unsqueeze(-2)
    gain, inverse = _expected(loadings, noise)
    cross = scatter @ gain.mT  # sums of x f', and then of f f'
    square = count * inverse + gain @ cross
    shrink = torch.zeros_like(noise) if prior is None else prior["loadings_scale"] ** -2
    penalty = torch.diag_embed((noise * shrink).unsqueeze(-1).expand_as(loadings))
    loadings = torch.linalg.solve(square.unsqueeze(-3) + penalty, cross.unsqueeze(-1)).squeeze(-1)
    residual = scatter.diagonal(dim1=-2, dim2=-1) + (loadings * (loadings @ square - 2 * cross)).sum(-1)
    if prior is None:
        noise = residual / total.unsqueeze(-1)
    else:
        noise = (prior["noise_rate"] + residual / 2) / (prior["noise_shape"] + 1 + total.unsqueeze(-1) / 2)
    return {"loc": loc, "loadings": _scaled(loadings, square, count, shrink), "noise": noise.maximum(floor)}


def _scaled(loadings: Tensor, square: Tensor, count: Tensor, shrink: Tensor) -> Float[Tensor, "*r K F q"]:
    r"""Loadings W after a step that lets the factors have a covariance R, which then goes into W.

    With C the sum of f f' and $A = \sum_f w_f w_f^\top / \tau_f^2$, the maximum of
    $-n \log|R| - \text{tr}(R^{-1} C) - \text{tr}(A R)$ has $R A R + n R = C$. So $R = L U z U^\top L^\top$, where
    $C = L L^\top$, $L^\top A L = U h U^\top$ and $h z^2 + n z = 1$.
    """
    chol = cholesky(square)
    prior = chol.mT @ (loadings * shrink.unsqueeze(-1)).mT @ loadings @ chol
    size, axes = torch.linalg.eigh(prior)
    share = 2 / (count.squeeze(-1) + (count.squeeze(-1).square() + 4 * size.clamp_min(0.0)).sqrt())
    return loadings @ (chol @ axes * share.sqrt().unsqueeze(-2))


def _located(known: Moments, values: Parameters, prior: Parameters | None) -> Float[Tensor, "*r K F"]:
    r"""The best locations at a covariance, $\bar x - \Sigma (\Sigma + n D)^{-1} (\bar x - m)$, for a prior N(m, D)."""
    count, loadings = known.count.unsqueeze(-1), values["loadings"]
    mean = known.first / count.clamp_min(torch.finfo(count.dtype).tiny)
    if prior is None:
        return mean
    covariance = loadings @ loadings.mT + torch.diag_embed(values["noise"])
    chol = cholesky(covariance + torch.diag_embed(count * prior["loc_scale"].square()))
    away = (mean - prior["loc"]).unsqueeze(-1)
    return mean - (covariance @ cholesky_solve(away, chol)).squeeze(-1)
