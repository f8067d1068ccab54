r"""Generalised linear emissions under message passing: the numbers of their predictors are normal.

A *row* has the numbers of the predictors of one state: of one feature, or of all categories after the first one. With
$d_t = (1, u_t, v_t)$, the predictors of a row at a step are linear in them. The rows of states and features are
independent under q, except if states share coefficients. Then one normal vector has the numbers of all states, and the
moments of a row are entries of its moments. So a bound that is convex in the moments of rows is convex in those of q.

Each kind of emission defines a bound of $E \log p(x_t \mid s, u_t)$ from the moments of rows, and one of the expected
log prior of constants. Coefficients have normal priors.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.families import Gaussian, VectorFamily, given_in_part
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.delegation import delegated
from ..dynamics.factors import named
from ..emissions.generalized import GeneralizedLinear
from ..parameters import Parameters
from ..priors import Conjugate


@dataclass(frozen=True)
class LinkedEmission(Conjugate):
    """The parameters of a generalised linear emission, as one block.

    Attributes:
        emission: the emission.
        of_constants: a hyperparameter `[K, ...]` of the constants.
        is_curved: whether the bounds are not convex in the moments of q: see `Factor`.

    An emission with other parameters than constants and coefficients has a block for these `beside` this one.
    """

    emission: GeneralizedLinear
    of_constants: ClassVar[str]
    is_curved: ClassVar[bool] = False
    family = Gaussian()
    prior_is_factor = True

    parameters = delegated("emission")
    sites = delegated("emission")

    @abstractmethod
    def expected_of_rows(
        self,
        observed: Float[Tensor, "*b T F"],
        design: Float[Tensor, "*b T D"],
        moments: Float[Tensor, "*r I P"],
        *beside: Tensor,
    ) -> Float[Tensor, "*rb T K"]:
        """Bounds on E log p(x_t | s) of every step and state, from the moments of rows and the statistics of the blocks
        beside this one."""

    @abstractmethod
    def prior_of_rows(self, prior: Parameters) -> Callable[..., Float[Tensor, "*r"]]:
        """The expected log prior of the constants, as a function of the same moments and statistics."""

    def beside(self, block: str) -> dict[str, Conjugate]:
        """The blocks of the other parameters, beside the block of this name."""
        return {}

    # ---- rows ------------------------------------------------------------------------------------------------------

    @property
    def n_columns(self) -> int:
        """Of a row, for each predictor: D."""
        return 1 + self.emission.sizes["regressor"] + self.emission.sizes["shared_regressor"]

    @property
    def n_rows(self) -> int:
        """Of one state."""
        return self.emission.n_features if self.emission.link.independent else 1

    @property
    def _n_outputs(self) -> int:
        """The predictors of one row."""
        return 1 if self.emission.link.independent else self.emission.sizes[self.emission.link.axis]

    @property
    def _n_own(self) -> int:
        """The numbers of a row that no other state has."""
        return self._n_outputs * (1 + self.emission.sizes["regressor"])

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.n_rows * self._n_outputs

    def _arranged(self, table: Float[Tensor, "*r B P"]) -> Float[Tensor, "*r I D"]:
        """Tables of the emission's `stacked` numbers as those of q: of one vector a row if states share nothing."""
        if self.emission.shared:
            return table
        return table.unflatten(-1, (-1, self._n_own)).transpose(-3, -2).flatten(-3, -2)

    def _stacked(self, table: Float[Tensor, "*r I D"]) -> Float[Tensor, "*r B P"]:
        """The inverse of `_arranged`."""
        if self.emission.shared:
            return table
        return table.unflatten(-2, (-1, self.n_rows)).transpose(-3, -2).flatten(-2)

    def _places(self, size: int) -> Int[Tensor, "K D"]:
        """The entries of one vector of all states that are those of a row."""
        n_all = self._n_outputs * self.emission.sizes["shared_regressor"]
        n_states = (size - n_all) // self._n_own
        own = torch.arange(n_states * self._n_own, device="cpu").reshape(n_states, self._n_outputs, -1)
        of_all = torch.arange(size - n_all, size, device="cpu").reshape(1, self._n_outputs, -1).expand(n_states, -1, -1)
        return torch.cat([own, of_all], -1).flatten(1)

    def of_rows(self, statistics: Float[Tensor, "*r J Q"]) -> Float[Tensor, "*r I P"]:
        """The moments of rows, state by state, from those of q."""
        if not self.emission.shared:
            return statistics
        size = math.isqrt(statistics.shape[-1])
        places = self._places(size).to(statistics.device)
        second = statistics[..., size:].unflatten(-1, (size, size))
        second = second[..., places.unsqueeze(-1), places.unsqueeze(-2)].flatten(-2)
        moments = torch.cat([statistics[..., :size][..., places], second], -1)  # [*r, B, K, P]
        return moments.transpose(-3, -2).flatten(-3, -2)

    # ---- the block -------------------------------------------------------------------------------------------------

    def natural(self, prior: Parameters) -> Tensor:
        """The start of q; the prior is not in the family."""
        like = self._precision(prior)
        return self.family.natural(torch.zeros_like(like), torch.eye(like.shape[-1]).to(like))

    def _precision(self, prior: Parameters) -> Float[Tensor, "J D"]:
        """Of the normal priors of coefficients, 0 for constants."""
        like = prior[self.of_constants]
        return self._arranged(self.emission.ridge(prior, like.shape[-2], like))

    def point(self, values: Parameters) -> Tensor:
        return self._arranged(self.emission.stacked(values))

    def values(self, point: Tensor) -> Parameters:
        return self.emission.unstacked(self._stacked(point))

    def given(self, known: Parameters) -> VectorFamily[Any]:
        if set(known) < set(self.parameters) or any(bool(table.isnan().any()) for table in known.values()):
            raise TypeError(
                f"fixed: got {', '.join(known)}, but message passing holds all parameters of "
                f'{self.emission.plain.name} or none; fix all of them, or use method="em", "svi" or "nuts".'
            )
        return given_in_part(self.family, self.point(known))

    def known_density(self, prior: Parameters, known: Parameters) -> Tensor:
        """The density of the predictors at inputs 0 and of the coefficients."""
        return self._expected_prior(prior)(self.statistics(known))

    def _expected_prior(self, prior: Parameters) -> Callable[..., Tensor]:
        of_constants, precision = self.prior_of_rows(prior), self._precision(prior)
        size, some = precision.shape[-1], precision[precision > 0]
        normalizer = (math.log(2 * math.pi) - some.log()).sum() / 2

        def expected(statistics: Tensor, *beside: Tensor) -> Tensor:
            squares = statistics[..., size:].unflatten(-1, (size, size)).diagonal(dim1=-2, dim2=-1)
            return (
                of_constants(self.of_rows(statistics), *beside) - (precision * squares).sum((-2, -1)) / 2 - normalizer
            )

        return expected

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        elog = named(f"{block}_prior", self._expected_prior(prior))
        return self.bounded(Factor(elog, (block, *self.beside(block)), scale=share), block)

    def bounded(self, factor: Factor, block: str) -> Factor:
        """A factor that declares how it depends on the block."""
        return replace(factor, curved=(block,)) if self.is_curved else replace(factor, convex=(block,))

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        if not self.emission.shared:
            by_state = eta.unflatten(-2, (-1, self.n_rows))
            if by_state.shape[-3] == 1:  # a background that is the same in all states
                return eta
            return by_state.index_select(-3, order).flatten(-3, -2)
        size = math.isqrt(eta.shape[-1])
        own = torch.arange(size - self._n_outputs * self.emission.sizes["shared_regressor"], device=order.device)
        own = own.reshape(-1, self._n_own)
        if len(own) == 1:
            return eta
        of_all = torch.arange(own.numel(), size, device=order.device)
        places = torch.cat([own[order].flatten(), of_all])
        second = eta[..., size:].unflatten(-1, (size, size))[..., places.unsqueeze(-1), places]
        return torch.cat([eta[..., places], second.flatten(-2)], -1)

    # ---- the bound -------------------------------------------------------------------------------------------------

    def expected_table(
        self, x: Float[Tensor, "*b T R"], statistics: Float[Tensor, "*r J Q"], *beside: Tensor
    ) -> Float[Tensor, "*rb T K"]:
        """Bounds on E log p(x_t | s) of every step and state, from rows of observations and their inputs."""
        observed, inputs = self.emission.split(x)
        return self.expected_of_rows(observed, self.emission.design(inputs), self.of_rows(statistics), *beside)


def predicted(
    design: Float[Tensor, "*b D"], moments: Float[Tensor, "*r I P"]
) -> tuple[Float[Tensor, "*rb I"], Float[Tensor, "*rb I"]]:
    """The mean and the variance of the predictor of each row that has one."""
    size = design.shape[-1]
    flat, mean_of = design.reshape(-1, size), moments[..., :size]
    covariance = moments[..., size:].unflatten(-1, (size, size)) - mean_of.unsqueeze(-1) * mean_of.unsqueeze(-2)
    mean = flat @ mean_of.mT  # [*r, N, I]
    variance = (flat.unsqueeze(-1) * flat.unsqueeze(-2)).flatten(1) @ covariance.flatten(-2).mT
    shape = *mean.shape[:-2], *design.shape[:-1], mean.shape[-1]
    return mean.reshape(shape), variance.reshape(shape)
