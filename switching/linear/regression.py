r"""Regression on inputs, whose coefficients are states.

$$x_t = \sum_j u_{tj} \beta_{tj} + \dots, \qquad \beta_{t+1,j} = \beta_{tj} + N(0, \sigma_j^2)$$

Coefficients have a diffuse start, which is a flat prior: smoothed constant coefficients are those of generalised least
squares (Durbin & Koopman 2012, 6.2). The flat prior has the unit of the coefficients, so the log evidence for inputs
$a u$ is less by $\log |a|$ of each coefficient; nothing else depends on the origin and unit of their inputs.

Coefficients that vary also move the level by inputs that are far from 0. So for inputs $u + c$ this is another model:
subtract a value at which the level is of interest, such as the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...inference.numerics.scalars import check_flag
from ..inputs import Inputs, named_or_counted
from .structure import Diffuse


@dataclass(frozen=True, repr=False)
class Regression(Diffuse):
    """A regression on inputs: the coefficients `beta.x1`, `beta.x2`, ..., or `beta.` and the names of inputs, are
    latents.

    Methods then need `inputs [*batch, T, C]`; a forecast also needs the inputs of future steps.

    Arguments:
        inputs: the names of C inputs, or their number.
        varying: whether coefficients are random walks, with the parameters `sigma2.beta.x1`, `sigma2.beta.x2`, ...;
            otherwise they are constant and have no parameters. Centre the inputs of varying coefficients, which else
            move the level too.

    Raises:
        TypeError, ValueError: inputs are neither names nor a positive number; `varying` is not True or False.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, 6.2.

    See Also:
        `LinearRegression`, an emission with coefficients of the state; `LinearSSM`, the model; docs/guides/linear.md.

    >>> import samplehold as sh
    >>> model = sh.LinearSSM(sh.LocalLevel(stochastic=False) + sh.Regression(1)).with_values({"sigma2.irregular": 1.0})
    >>> model.smooth([1.0, 3.0, 5.0], inputs=[[0.0], [1.0], [2.0]]).mean[0].round(decimals=6)
    tensor([1., 2.], dtype=torch.float64)
    """

    inputs: Inputs | Sequence[str] = 1
    varying: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", named_or_counted(self.inputs, least=1))
        object.__setattr__(self, "varying", check_flag("varying", self.varying))

    @property
    def latents(self) -> tuple[str, ...]:
        names = (f"x{n}" for n in range(1, self.inputs + 1)) if isinstance(self.inputs, int) else self.inputs
        return tuple(f"beta.{name}" for name in names)

    @property
    def transition(self) -> Sequence[Sequence[float]]:
        return torch.eye(self.n_latent, device="cpu").tolist()

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
