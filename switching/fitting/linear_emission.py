r"""Linear regressions whose states share coefficients or scales, under message passing.

The numbers M of all states are normal under q, and the precisions are gamma variables, independent of M. With m and V
the mean and variance of $M_s^\top d_t$,

$$E \log N(x_t;\, M_s^\top d_t,\, 1/\tau_s) = \big(E \log \tau_s - \log 2\pi - E[\tau_s] ((x_t - m)^2 + V)\big)/2$$

is affine in the moments of M and in those of the precisions. The prior of locations is that of `Normal`,
$\mu_s \mid \tau_s \sim N(m_0, 1/(\kappa_0 \tau_s))$, so it joins the two blocks too. Coefficients have normal priors.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...inference.families import Gamma, VectorFamily
from ...inference.message_passing.factor_graph import Factor
from ..emissions.generalized import GeneralizedLinear
from ..parameters import Parameter, Parameters
from ..priors import Conjugate
from .linked_emission import LinkedEmission, predicted


@dataclass(frozen=True)
class LinearEmission(LinkedEmission):
    """The locations and coefficients of linear regressions, as one block beside that of their precisions."""

    of_constants = "loc"

    def beside(self, block: str) -> dict[str, Conjugate]:
        return {f"{block}_precision": Precisions(self.emission)}

    def bounded(self, factor: Factor, block: str) -> Factor:
        return factor

    def given(self, known: Parameters) -> VectorFamily[Any]:
        return self.family if set(known) == {"precision"} else super().given(known)

    def known_density(self, prior: Parameters, known: Parameters) -> Tensor:
        if set(known) == {"precision"}:
            return torch.zeros((), device="cpu")
        precisions = Gamma().statistics(known["precision"])
        return self._expected_prior(prior)(self.statistics(known), precisions)

    def prior_of_rows(self, prior: Parameters) -> Callable[..., Tensor]:
        loc, count = prior["loc"], prior["count"]
        at_zero = torch.eye(1, self.n_columns).to(loc)[0]

        def expected(moments: Tensor, precisions: Tensor) -> Tensor:
            mean, variance = (table.unflatten(-1, loc.shape) for table in predicted(at_zero, moments))
            log_precision, precision = precisions.unbind(-1)
            square = precision * count * ((mean - loc).square() + variance)
            return (log_precision + count.log() - math.log(2 * math.pi) - square).sum((-2, -1)) / 2

        return expected

    def expected_of_rows(self, observed: Tensor, design: Tensor, moments: Tensor, *beside: Tensor) -> Tensor:
        mean, variance = (table.unflatten(-1, (-1, self.n_rows)) for table in predicted(design, moments))
        n_axes = design.ndim - 1
        log_precision, precision = (
            table.reshape(*table.shape[:-2], *[1] * n_axes, *table.shape[-2:]) for table in beside[0].unbind(-1)
        )
        seen = (~torch.isnan(observed)).unsqueeze(-2)
        square = (observed.nan_to_num(0.0).unsqueeze(-2) - mean).square() + variance
        terms = (log_precision - math.log(2 * math.pi) - precision * square) / 2
        return torch.where(seen, terms, 0.0).sum(-1)


@dataclass(frozen=True)
class Precisions(Conjugate):
    """The precisions of linear regressions."""

    emission: GeneralizedLinear
    family = Gamma()

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {"precision": self.emission.parameters["precision"]}

    def natural(self, prior: Parameters) -> Tensor:
        return self.family.natural(prior["shape"], prior["rate"])
