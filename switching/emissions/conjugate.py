"""Emissions with a conjugate prior: the contract that `Conjugate` blocks and emissions share.

The prior of a `ConjugateEmission` is a member of an exponential `family`, and the `message` of the data adds to the
natural parameters. So its M-step is exact, and message passing can fit it. See `priors.Conjugate`.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import Dirichlet
from ...inference.numerics.op import Variants
from ...inference.numerics.remembered import remembered
from ..known import block_beside
from ..parameters import Parameters, moved, widened
from ..priors import Conjugate, Site
from .contract import Emission, Maximized


class Representative(NamedTuple):
    r"""Parameters that turn an expected log-likelihood into one: $E_q[\log p(x \mid \theta)] = \log p(x \mid \theta') +
    c$.

    `values` are $\theta'$ `[*r, K, ...]`. `constant` is c for each observed feature `[*r, K, F]`, or for a whole step
    `[*r, K, 1]`.
    """

    values: Parameters
    constant: Float[Tensor, "*r K C"]


class ConjugateEmission(Conjugate, Emission):
    """The base class of emissions with a conjugate prior, from which EM, message passing and starts follow.

    A subclass defines `log_prob`, `distribution`, `default_prior`, `natural` (see `Conjugate`), `message`,
    `representative` and its `family`. Its parameters are in the order of the parts of the family's point.

    See Also:
        `Emission`, its base, which needs no conjugate prior; `Poisson`, a short example; docs/guides/own_emission.md.

    Example:
        The M-step is the mode of prior and weighted observations, here of a rate under a gamma prior:

        >>> import samplehold as sh
        >>> emission = sh.Poisson(n_features=1)
        >>> x, weights = torch.tensor([[3.0], [5.0]]), torch.ones(2, 1)
        >>> prior = {"shape": torch.tensor([[2.0]]), "rate": torch.tensor([[1.0]])}
        >>> emission.maximize(x, weights, emission.start(prior), prior, floor=torch.zeros(1)).values["rate"]
        tensor([[3.]])
    """

    @property
    def has_default_priors(self) -> bool:
        """Whether hyperparameters of the default prior give all user priors."""
        names = set(self.default_prior(1, None)) if self.user_priors else set()
        return all(one.numbers(names) for one in self.user_priors.values())

    @property
    def is_conjugate(self) -> bool:
        return not self.not_conjugate and self.has_default_priors

    fills_in: ClassVar[bool] = False
    """Whether missing features of a step are imputed under the parameters. The expected log-likelihood is then convex
    in their statistics, and linear only if no step has missing single features."""

    mixes: ClassVar[bool] = False
    """Whether the message has expectations of hidden variables of each step, beside the state."""

    @abstractmethod
    def message(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], near: Parameters | None = None
    ) -> Float[Tensor, "*plates P"]:
        """The term that the weighted observations add to the natural parameters.

        Arguments:
            near: parameters whose locations are the origin of the message, so it loses no digits. Missing features are
                imputed under them. None: the origin is 0.
        """

    @abstractmethod
    def representative(self, statistics: Float[Tensor, "*plates P"]) -> Representative:
        """The parameters at which the log-likelihood equals the expected one."""

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return self.has_default_priors

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        """The mode of the prior and the weighted observations; without a prior the limit, with variances above the
        floor.

        NaN for a state without weight, if there is no prior.
        """
        if prior is not None and not self.adds_up:
            return self.maximize_beside({}, x, weights, near, prior, floor)
        return self.maximize_sums(self.sums(x, weights, near), near, prior, floor)

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        return {"message": self.message(x, weights, near)}

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        message, about = sums["message"], near.get("loc")
        if prior is None:
            maximized = self.limit(message, floor)
        else:
            maximized = Maximized(self.mode(prior if about is None else moved(prior, -about), message))
        return maximized if about is None else replace(maximized, values=moved(maximized.values, about))

    def maximize_beside(
        self,
        fixed: Parameters,
        x: Tensor,
        weights: Tensor,
        near: Parameters,
        prior: Parameters | None,
        floor: Tensor,
    ) -> Maximized:
        if not fixed or not isinstance(self.family, Dirichlet) or not (prior is None or self.is_conjugate):
            return super().maximize_beside(fixed, x, weights, near, prior, floor)
        best = block_beside(self, fixed).mode(prior, self.message(x, weights, near))
        return Maximized({name: value.expand_as(near[name]) for name, value in best.items()})

    def default_sites(self, prior: Parameters) -> list[Site]:
        """The default prior as Pyro sites."""
        return super().sites(prior)

    def sites(self, prior: Parameters) -> list[Site]:
        sites = self.default_sites(prior)
        return self._with_user_priors(sites, prior, self.start(prior)) if self.user_priors else sites

    def limit(self, message: Float[Tensor, "*plates P"], floor: Float[Tensor, "F"]) -> Maximized:
        """The maximum likelihood under the message alone, with variances of at least the floor."""
        return Maximized(self.mode(None, message))

    def start(self, prior: Parameters) -> Parameters:
        about = prior.get("loc")
        if about is None:
            return self.expected(self.natural(prior))
        return moved(self.expected(self.natural(moved(prior, -about))), about)

    def expected_table(
        self, x: Float[Tensor, "*b T F"], statistics: Float[Tensor, "*plates P"]
    ) -> Float[Tensor, "*rb T K"]:
        """E log p(x_t | s) of every step and state, with missing features summed out."""
        values, constant = self.representative(statistics)
        table = self.table(x, values)
        add = table.add if table.requires_grad else table.add_  # a density may keep its values for the backward pass
        if is_complete(x):
            return add(widened(constant.sum(-1), 1, x.ndim - 1))
        seen = ~torch.isnan(x.reshape(-1, x.shape[-1]))
        seen = seen if constant.shape[-1] == x.shape[-1] else seen.any(-1, keepdim=True)
        total = seen.to(x) @ constant.mT
        return add(total.reshape(*total.shape[:-2], *x.shape[:-1], total.shape[-1]))

    def expected_message(
        self, x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], statistics: Float[Tensor, "*plates P"]
    ) -> Float[Tensor, "*plates P"]:
        """The gradient of the weighted `expected_table` with respect to the statistics."""
        near = self.representative(statistics).values
        message = self.message(x, weights, near)
        return self.family.moved(message, self.point(near).loc) if "loc" in near else message


class UsualEmission(ConjugateEmission):
    """A conjugate emission whose prior is stated by the usual parameters of its family."""

    stated_by: ClassVar[tuple[str, ...]]
    """The hyperparameters, in the order of the usual parameters."""

    def natural(self, prior: Parameters) -> Tensor:
        return self.family.natural(*(prior[name] for name in self.stated_by))

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        return dict(zip(self.stated_by, vars(self.family.usual(eta)).values(), strict=True))


is_complete: Variants = Variants(remembered(lambda x: not bool(torch.isnan(x).any())))
"""Whether no value is missing."""


@is_complete.kernel("cpu")
def _is_complete(x: Tensor) -> bool:
    """In one pass by numpy, because torch would wake its threads, which then stay awake."""
    return not np.isnan(x.detach().numpy().min(initial=0.0))
