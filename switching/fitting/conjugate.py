r"""Parameters as blocks of message passing: conjugate families, and the likelihood that an expected log-likelihood is.

For an exponential family the expected log-likelihood under q is a log-likelihood at representative parameters
$\theta'$, up to a constant:

$$E_q[\log p(x \mid \theta)] = \log p(x \mid \theta') + c$$

| emission | q | $\theta'$ | c of each observed feature |
|---|---|---|---|
| Normal | normal-gamma | $E[\tau\mu]/E[\tau], E[\tau]$ | $(E[\log\tau] - \log E[\tau] - 1/\kappa)/2$ |
| Bernoulli | beta | $\propto e^{E \log p}, e^{E \log(1-p)}$ | log of their sum |
| Poisson | gamma | $e^{E \log \lambda}$ | $e^{E\log\lambda} - E[\lambda]$ |
| Categorical | Dirichlet | $\propto e^{E \log p}$ | log of their sum |

MultivariateNormal is as Normal, under a normal-Wishart, with log determinants and $F/\kappa$ in a c of the whole step.
So what EM has (tables of log-likelihoods, weighted moments) is what message passing needs. Missing features of a full
normal are one more latent variable, $q(x_{mis} \mid s)$, integrated out:
$\log \int e^{E_q[\log p(x \mid \theta)]} dx_{mis}$ is the likelihood of the observed features under $\theta'$, plus c.
A step that misses all features is left out.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import (
    Beta,
    Dirichlet,
    Gamma,
    Gaussian,
    LocPrecision,
    NormalGamma,
    NormalWishart,
)
from ...inference.families.numerics import log_det, pack
from ..emissions import Bernoulli, Categorical, Emission, Gated, MultivariateNormal, Normal, Poisson, StateEmission
from ..emissions.gated import PREFIX
from ..parameters import Parameters


class Piece(ABC):
    """Some parameters of a model as one block: their family, their prior, and their names in the program."""

    family: Any  # a VectorFamily

    @abstractmethod
    def prior(self, prior: Parameters) -> Tensor:
        """Natural parameters of the prior."""

    @abstractmethod
    def mean(self, eta: Tensor) -> Parameters:
        """Expected parameters."""

    @abstractmethod
    def named(self, point: Tensor | LocPrecision) -> Parameters:
        """A point of the family under the program's names."""

    @abstractmethod
    def statistics(self, values: Parameters) -> Tensor:
        """The family's statistics at given parameters."""


@dataclass(frozen=True)
class Probabilities(Piece):
    """The rows of a table of probabilities, Dirichlet each."""

    name: str
    hyperparameter: str
    family = Dirichlet()

    def prior(self, prior: Parameters) -> Tensor:
        return prior[self.hyperparameter]

    def mean(self, eta: Tensor) -> Parameters:
        return {self.name: eta / eta.sum(-1, keepdim=True)}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, Tensor)
        return {self.name: point}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(values[self.name])


class RedrawProbability(Piece):
    """The probability of a redraw."""

    family = Beta()

    def prior(self, prior: Parameters) -> Tensor:
        return prior["redraw_concentration"]

    def mean(self, eta: Tensor) -> Parameters:
        return {"redraw_prob": eta[..., 0] / eta.sum(-1)}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, Tensor)
        return {"redraw_prob": point}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(values["redraw_prob"])


@dataclass(frozen=True)
class RedrawWeights(Piece):
    """Intercept and weights of the redraw's logit. What makes their density is not conjugate: see `trajectories`."""

    n_covariates: int
    family = Gaussian()

    def prior(self, prior: Parameters) -> Tensor:
        """Where q starts; the prior itself is a part of the trajectories."""
        like = prior["redraw_concentration"]
        size = 1 + self.n_covariates
        return self.family.natural(like.new_zeros(size), torch.eye(size, dtype=like.dtype, device=like.device))

    def mean(self, eta: Tensor) -> Parameters:
        return self.named(self.family.usual(eta).loc)

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, Tensor)
        return {"redraw_intercept": point[..., 0], "redraw_weights": point[..., 1:]}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(torch.cat([values["redraw_intercept"][..., None], values["redraw_weights"]], -1))


class Representative(NamedTuple):
    """Parameters theta' `[*r, K, ...]` and the constant c, `[*r, K, F]`, or `[*r, K, 1]` for a whole step."""

    values: Parameters
    constant: Float[Tensor, "*r K C"]


class EmissionPiece(Piece):
    """The parameters of an emission in all states."""

    @abstractmethod
    def representative(self, statistics: Tensor) -> Representative:
        """The parameters at which the likelihood is the expected one; see the module's table."""

    @abstractmethod
    def message(self, moments: Parameters) -> Tensor:
        """What weighted moments, as `StateEmission.moments` gives them, add to the natural parameters."""


class NormalPiece(EmissionPiece):
    family = NormalGamma()

    def prior(self, prior: Parameters) -> Tensor:
        return self.family.natural(prior["loc"], prior["count"], prior["shape"], prior["rate"])

    def mean(self, eta: Tensor) -> Parameters:
        q = self.family.usual(eta)
        return {"loc": q.loc, "precision": q.shape / q.rate}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, LocPrecision)
        return {"loc": point.loc, "precision": point.precision}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(LocPrecision(values["loc"], values["precision"]))

    def representative(self, statistics: Tensor) -> Representative:
        first, second, log_precision, precision = statistics.unbind(-1)
        loc = first / precision
        constant = (log_precision - precision.log() - (second - first * loc)) / 2
        return Representative({"loc": loc, "precision": precision}, constant)

    def message(self, moments: Parameters) -> Tensor:
        half, first = moments["count"] / 2, moments["count"] * moments["mean"]
        second = moments["scatter"] + first * moments["mean"]
        return torch.stack([first, -half, half, -second / 2], -1)


class MultivariateNormalPiece(EmissionPiece):
    family = NormalWishart()

    def prior(self, prior: Parameters) -> Tensor:
        scale_matrix = torch.cholesky_inverse(torch.linalg.cholesky(prior["inverse_scale"]))
        return self.family.natural(prior["loc"], prior["count"], prior["df"], scale_matrix)

    def mean(self, eta: Tensor) -> Parameters:
        q = self.family.usual(eta)
        return {"loc": q.loc, "precision": q.df[..., None, None] * q.scale_matrix}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, LocPrecision)
        return {"loc": point.loc, "precision": point.precision}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(LocPrecision(values["loc"], values["precision"]))

    def representative(self, statistics: Tensor) -> Representative:
        dim = math.isqrt(statistics.shape[-1] - 2)
        first, second, log_volume, flat = statistics.split([dim, 1, 1, dim * dim], -1)
        precision = flat.unflatten(-1, (dim, dim))
        chol = torch.linalg.cholesky(precision)
        loc = torch.cholesky_solve(first[..., None], chol)[..., 0]
        spread = second - (first * loc).sum(-1, keepdim=True)
        return Representative(
            {"loc": loc, "precision": precision}, (log_volume - log_det(chol)[..., None] - spread) / 2
        )

    def message(self, moments: Parameters) -> Tensor:
        count, mean = moments["count"][..., None], moments["mean"]
        first = count * mean
        second = moments["scatter"] + first[..., :, None] * mean[..., None, :]
        return pack(first, -count / 2, count / 2, -second.flatten(-2) / 2)


class BernoulliPiece(EmissionPiece):
    family = Beta()

    def prior(self, prior: Parameters) -> Tensor:
        return self.family.natural(prior["successes"], prior["failures"])

    def mean(self, eta: Tensor) -> Parameters:
        return {"probs": eta[..., 0] / eta.sum(-1)}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, Tensor)
        return {"probs": point}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(values["probs"])

    def representative(self, statistics: Tensor) -> Representative:
        constant = statistics.logsumexp(-1)
        return Representative({"probs": torch.sigmoid(statistics[..., 0] - statistics[..., 1])}, constant)

    def message(self, moments: Parameters) -> Tensor:
        return torch.stack([moments["total"], moments["count"] - moments["total"]], -1)


class PoissonPiece(EmissionPiece):
    family = Gamma()

    def prior(self, prior: Parameters) -> Tensor:
        return self.family.natural(prior["shape"], prior["rate"])

    def mean(self, eta: Tensor) -> Parameters:
        q = self.family.usual(eta)
        return {"rate": q.shape / q.rate}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, Tensor)
        return {"rate": point}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(values["rate"])

    def representative(self, statistics: Tensor) -> Representative:
        rate = statistics[..., 0].exp()
        return Representative({"rate": rate}, rate - statistics[..., 1])

    def message(self, moments: Parameters) -> Tensor:
        return torch.stack([moments["total"], -moments["count"]], -1)


class CategoricalPiece(EmissionPiece):
    family = Dirichlet()

    def prior(self, prior: Parameters) -> Tensor:
        return prior["concentration"]

    def mean(self, eta: Tensor) -> Parameters:
        return {"probs": eta / eta.sum(-1, keepdim=True)}

    def named(self, point: Tensor | LocPrecision) -> Parameters:
        assert isinstance(point, Tensor)
        return {"probs": point}

    def statistics(self, values: Parameters) -> Tensor:
        return self.family.statistics(values["probs"])

    def representative(self, statistics: Tensor) -> Representative:
        constant = statistics.logsumexp(-1, keepdim=True)
        return Representative({"probs": (statistics - constant).exp()}, constant)

    def message(self, moments: Parameters) -> Tensor:
        return moments["counts"]


PIECES: dict[type[StateEmission], EmissionPiece] = {
    Normal: NormalPiece(),
    MultivariateNormal: MultivariateNormalPiece(),
    Bernoulli: BernoulliPiece(),
    Poisson: PoissonPiece(),
    Categorical: CategoricalPiece(),
}


class Emitter(NamedTuple):
    """An emission of single states in a model: the block of its parameters, and the prefix of their names."""

    block: str
    prefix: str
    emission: StateEmission
    piece: EmissionPiece


def emitters(emission: Emission) -> list[Emitter]:
    """The emission itself; of a gated one, its emission at redrawn steps and its background at held ones."""
    if isinstance(emission, Gated):
        background = Emitter("background", PREFIX, emission.background, _piece(emission.background))
        return [*emitters(emission.emission), background]
    assert isinstance(emission, StateEmission)
    return [Emitter("emission", "", emission, _piece(emission))]


def _piece(emission: StateEmission) -> EmissionPiece:
    if type(emission) not in PIECES:
        known = ", ".join(kind.__name__ for kind in PIECES)
        raise TypeError(f"emission: got {type(emission).__name__}, which has no conjugate prior here; use {known}.")
    return PIECES[type(emission)]
