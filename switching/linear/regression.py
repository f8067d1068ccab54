r"""Regression on covariates, whose coefficients are states.

$$x_t = \sum_j u_{tj} \beta_{tj} + \dots, \qquad \beta_{t+1,j} = \beta_{tj} + N(0, \sigma_j^2)$$

Coefficients have a diffuse start, which is a flat prior: smoothed constant coefficients are those of generalised least
squares (Durbin & Koopman 2012, 6.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...inference.numerics.scalars import check_flag, check_integer
from .structure import Diffuse


@dataclass(frozen=True, repr=False)
class Regression(Diffuse):
    """Coefficients of covariates, `beta.x1`, `beta.x2`, ..., which are latents.

    Methods then take `covariates [*batch, T, C]`; a forecast takes those of the steps to come too.

    Arguments:
        n_covariates: C, the number of covariates.
        varying: whether coefficients are random walks, with the parameters `sigma2.beta.x1`, `sigma2.beta.x2`, ...;
            otherwise they are constant and have no parameters.

    Raises:
        TypeError, ValueError: n_covariates is not a positive whole number; `varying` is not True or False.

    >>> import samplehold as sh
    >>> model = sh.LinearSSM(sh.LocalLevel(stochastic=False) + sh.Regression(1)).with_values({"sigma2.irregular": 1.0})
    >>> model.smooth([1.0, 3.0, 5.0], covariates=[[0.0], [1.0], [2.0]]).mean[0].round(decimals=6)
    tensor([1., 2.], dtype=torch.float64)
    """

    n_covariates: int = 1
    varying: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_covariates", check_integer("n_covariates", self.n_covariates))
        object.__setattr__(self, "varying", check_flag("varying", self.varying))

    @property
    def latents(self) -> tuple[str, ...]:
        return tuple(f"beta.x{number}" for number in range(1, self.n_covariates + 1))

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        return torch.eye(self.n_covariates, device="cpu").tolist()

    @property
    def noisy(self) -> tuple[str | None, ...]:
        return tuple(f"sigma2.{name}" if self.varying else None for name in self.latents)

    @property
    def seen(self) -> tuple[float, ...]:
        return (0.0,) * self.n_latent

    @property
    def shown(self) -> tuple[int, ...]:
        return tuple(range(self.n_latent))

    @property
    def driven(self) -> tuple[int, ...]:
        return tuple(range(self.n_latent))
