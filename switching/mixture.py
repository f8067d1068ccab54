"""An observation whose state and gate are uncertain."""

import math
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ..inference.numerics.checks import broadcast_shapes
from ..inference.numerics.scalars import check_probability
from .emissions.contract import ByGate, Emission
from .intervals import bisected
from .parameters import Parameters


class StateMixture(TorchDistribution):
    """An observation whose state and gate have the probabilities `weights`: batch `[*b, H]`, event `[F]`."""

    emission: Emission
    values: Parameters
    weights: ByGate

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, emission: Emission, values: Parameters, weights: ByGate) -> None:
        self.emission, self.values, self.weights = emission, values, weights
        batch_shape = weights.redrawn.shape[:-1]
        super().__init__(batch_shape, torch.Size((emission.n_features,)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        value = value.expand(broadcast_shapes(value.shape, self.batch_shape + self.event_shape))
        likelihood = self.emission.log_likelihood(value, self.values)
        joint = [(log + w.log()).logsumexp(-1) for log, w in zip(likelihood, self.weights, strict=True)]
        return torch.logaddexp(joint[0], joint[1])

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        n_states = self.weights.redrawn.shape[-1]
        joint = torch.cat(tuple(self.weights), -1)
        drawn = torch.distributions.Categorical(probs=joint).sample(torch.Size(sample_shape))
        return self.emission.sample_at(self.values, drawn % n_states, (drawn < n_states).to(joint.dtype))

    @property
    def mean(self) -> Tensor:
        return self.emission.center(self._expect(self.emission.averages(self.values)))

    @property
    def variance(self) -> Tensor:
        mean, variance = self.emission.mean(self.values), self.emission.variance(self.values)
        centre = self.mean.unsqueeze(-2)
        spread = ByGate(*(v + self.emission.away(m, centre) ** 2 for m, v in zip(mean, variance, strict=True)))
        return self._expect(spread)

    @property
    def probs(self) -> Tensor:
        """P(category), for categorical observations."""
        return self.category_probs(0)

    def category_probs(self, feature: int) -> Tensor:
        """P(category) of a categorical feature."""
        emission, values, _ = self.emission.of_feature(feature, self.values)
        return self._expect(emission.category_probs(values))

    def arc(self, level: float) -> Tensor:
        """The distances from the mean direction within which each feature, an angle, has the probability `level`."""
        mean = self.mean

        def inside(reach: Tensor) -> Tensor:
            low, high = mean - reach, mean + reach
            ends = (self.cdf(torch.remainder(end + math.pi, 2 * math.pi) - math.pi) for end in (high, low))
            wrapped = (low < -math.pi).to(mean) + (high >= math.pi).to(mean)
            return next(ends) - next(ends) + wrapped

        return bisected(inside, level, torch.zeros_like(mean), torch.full_like(mean, math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        """P(x_f <= value) of each feature separately."""
        return self._expect(self.emission.cdf(value.unsqueeze(-2), self.values)).clamp(0.0, 1.0)

    @property
    def components(self) -> tuple[Tensor, Tensor, Tensor]:
        """The probability `[*b, H, M]`, mean and variance `[..., M, F]` of each state; of each state and gate, if held
        steps emit differently."""
        mean, variance = self.emission.mean(self.values), self.emission.variance(self.values)
        if mean.held is mean.redrawn:
            return self.weights.redrawn + self.weights.held, mean.redrawn, variance.redrawn
        mean, variance = (torch.cat(torch.broadcast_tensors(*table), -2) for table in (mean, variance))
        return torch.cat([self.weights.redrawn, self.weights.held], -1), mean, variance

    def quantile(self, p: float) -> Tensor:
        """The p-quantile of each feature separately, p between 0 and 1: `[*b, H, F]`.

        Found by bisection of the distribution function, within the bounds of the support if it has two, otherwise
        within those of every state.

        Raises:
            NotImplementedError: the emission has no distribution function, or bounds are infinite.
        """
        p = check_probability("p", p, proper=True)
        lower, upper = self.emission.reach(self.values, p)
        low = torch.minimum(lower.redrawn.amin(-2), lower.held.amin(-2))
        high = torch.maximum(upper.redrawn.amax(-2), upper.held.amax(-2))
        integer_valued = torch.as_tensor(self.emission.whole, device=low.device)
        least, most = self.emission.ends(low)
        bounded = least.isfinite() & most.isfinite() & ~integer_valued
        low, high = (end.expand(*self.batch_shape, -1).clone() for end in (low, high))
        low, high = torch.where(bounded, least, low), torch.where(bounded, most, high)
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise NotImplementedError(f"{self.emission.name}: quantiles without bounds")
        low, high = torch.where(integer_valued, low.floor() - 1, low), torch.where(integer_valued, high.ceil(), high)
        least = least.expand_as(low)
        at_least = least.isfinite() & (self.cdf(least.nan_to_num(neginf=0.0)) >= p)  # a point mass at the end
        return least.where(at_least, bisected(self.cdf, p, low, high, integer_valued))

    def _expect(self, quantity: ByGate) -> Tensor:
        """The mixture's expectation of a quantity [..., K, F] of states and gates: [*b, H, F]."""
        return sum((w.unsqueeze(-1) * q).sum(-2) for w, q in zip(self.weights, quantity, strict=True))  # type: ignore[return-value]
