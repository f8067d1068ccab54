"""The results of a linear Gaussian chain: means and covariances."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ...numerics.records import Record


@dataclass(frozen=True, repr=False)
class GaussianFiltered(Record):
    r"""The belief before and after each observation; 0 beyond the end of a sequence.

    With a diffuse start, covariances are $P_* + \kappa P_\infty$ with $\kappa \to \infty$: `covariance` is $P_*$, and
    `diffuse` $P_\infty$, 0 from the step on at which the observations determine all (Durbin & Koopman 2012, 5.2).
    """

    log_normalizer: Float[Tensor, "*b"]  # log p(x)
    log_increment: Float[Tensor, "*b T"]  # log p(x_t | x_1..t-1)
    mean: Float[Tensor, "*b T L"]  # of s_t given x_1..t
    covariance: Float[Tensor, "*b T L L"]
    predicted_mean: Float[Tensor, "*b T L"]  # of s_t given x_1..t-1
    predicted_covariance: Float[Tensor, "*b T L L"]
    diffuse: Float[Tensor, "*b T L L"] | None = None
    predicted_diffuse: Float[Tensor, "*b T L L"] | None = None


@dataclass(frozen=True, repr=False)
class GaussianSmoothed(Record):
    """The belief given the whole sequence; 0 beyond its end."""

    log_normalizer: Float[Tensor, "*b"]
    mean: Float[Tensor, "*b T L"]  # of s_t given x
    covariance: Float[Tensor, "*b T L L"]
    cross_covariance: Float[Tensor, "*b T-1 L L"]  # of s_t+1 (rows) and s_t given x


@dataclass(frozen=True, repr=False)
class GaussianSampled(Record):
    """Independent draws of the latents given x."""

    latent: Float[Tensor, "n *b T L"]  # 0 beyond the end of a sequence


@dataclass(frozen=True, repr=False)
class GaussianForecast(Record):
    """States and observations of the steps after each sequence's last."""

    state_mean: Float[Tensor, "*b horizon L"]
    state_covariance: Float[Tensor, "*b horizon L L"]
    mean: Float[Tensor, "*b horizon F"]
    covariance: Float[Tensor, "*b horizon F F"]
