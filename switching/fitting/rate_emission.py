r"""Counts with inputs, under message passing: the numbers of the logarithms of their rates are normal.

With $\psi = b^\top d_t$ of mean m and variance v under q,

$$E \log p(x_t \mid s, u_t) = x_t m - e^{m + v/2} - \log x_t!$$

is exact. The prior of a rate where all inputs are 0 is one more count: $a \psi - b\,e^\psi$ plus a constant. In the
moments of q, $v = E \psi^2 - m^2$, the expectation is neither affine nor convex, so q takes guarded steps (Knowles &
Minka 2011). Such a step is one of Newton's method on the mean, beside the precision
$\sum_t q(s_t) e^{m + v/2} d_t d_t^\top$ plus that of the prior. The first one begins near the parameters of a start.
Far from these it would be far too long.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..parameters import Parameters
from .linked_emission import LinkedEmission, predicted

BEGIN = 100.0  # the precision of each number under q at the start of a fit, relative to the mean square of its input
LEAST_RATE = 1e-3  # at the start of a fit, so that the first step is not far too long


@dataclass(frozen=True)
class RateEmission(LinkedEmission):
    """The parameters of a Poisson emission with inputs, as one block."""

    of_constants = "shape"
    is_curved = True

    def near(self, values: Parameters, rows: Callable[[], Tensor]) -> Tensor:
        loc = self.point(values | {"rate": values["rate"].clamp_min(LEAST_RATE)})
        design = self.emission.design(self.emission.split(rows())[1].nan_to_num(0.0))
        of_columns = design.square().flatten(0, -2).mean(0)
        own, of_all = torch.where(of_columns > 0, of_columns, 1.0).tensor_split([self._n_own])
        times = (loc.shape[-1] - len(of_all)) // self._n_own
        return self.family.natural(loc, BEGIN * torch.cat([own.repeat(times), of_all]).diag())

    def prior_of_rows(self, prior: Parameters) -> Callable[..., Tensor]:
        shape, rate = prior["shape"].flatten(-2), prior["rate"].flatten(-2)
        normalizer = (torch.lgamma(shape) - shape * rate.log()).sum()
        at_zero = torch.eye(1, self.n_columns).to(shape)[0]

        def expected(moments: Tensor) -> Tensor:
            log_rate, mean = expected_rates(at_zero, moments)
            return (shape * log_rate - rate * mean).sum(-1) - normalizer

        return expected

    def expected_of_rows(self, observed: Tensor, design: Tensor, moments: Tensor, *beside: Tensor) -> Tensor:
        log_rate, rate = (table.unflatten(-1, (-1, self.n_rows)) for table in expected_rates(design, moments))
        seen = (~torch.isnan(observed)).unsqueeze(-2)
        counts = observed.nan_to_num(0.0).unsqueeze(-2)
        terms = counts * log_rate - rate - torch.lgamma(counts + 1)
        return torch.where(seen, terms, 0.0).sum(-1)


def expected_rates(
    design: Float[Tensor, "*b D"], moments: Float[Tensor, "*r I P"]
) -> tuple[Float[Tensor, "*rb I"], Float[Tensor, "*rb I"]]:
    """The expected log rates of all rows, and their expected rates.

    Beyond the root of the largest number, an expected rate goes on as a straight line. So it is finite and has a slope.
    """
    mean, variance = predicted(design, moments)
    power = mean + variance / 2
    most = 0.5 * math.log(torch.finfo(power.dtype).max)
    return mean, power.clamp_max(most).exp() * (1 + (power - most).clamp_min(0.0))
