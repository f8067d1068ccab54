r"""What a model says of the future: a mixture over states and gates at every horizon.

$$p(x_{T+h} \mid x_{1:T}) = \sum_{s, z} P(s_{T+h} = s, z_{T+h} = z \mid x_{1:T})\, p(x \mid s, z)$$
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from .emissions import Emission
from .emissions.contract import ByGate
from .parameters import Parameters


class StateMixture(TorchDistribution):
    """An observation whose state and gate have the probabilities `weights`: batch `[*b, H]`, event `[F]`."""

    arg_constraints: dict = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, emission: Emission, values: Parameters, weights: ByGate) -> None:
        self.emission, self.values, self.weights = emission, values, weights
        batch_shape = weights.redrawn.shape[:-1]
        super().__init__(batch_shape, torch.Size((emission.n_features,)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        value = value.expand(torch.broadcast_shapes(value.shape, self.batch_shape + self.event_shape))
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
        return self._expect(self.emission.mean(self.values))

    @property
    def variance(self) -> Tensor:
        mean, variance = self.emission.mean(self.values), self.emission.variance(self.values)
        centre = self.mean.unsqueeze(-2)
        spread = ByGate(*(v + (m - centre) ** 2 for m, v in zip(mean, variance, strict=True)))
        return self._expect(spread)

    def _expect(self, quantity: ByGate) -> Tensor:
        """The mixture's expectation of a quantity [..., K, F] of states and gates: [*b, H, F]."""
        return sum((w.unsqueeze(-1) * q).sum(-2) for w, q in zip(self.weights, quantity, strict=True))  # type: ignore[return-value]


@dataclass(frozen=True)
class Forecast:
    """State and observation at horizons 1..H after the last step of each sequence."""

    state: Float[Tensor, "*b H K"]
    redraw: Float[Tensor, "*b H"]
    observation: StateMixture
    mean: Float[Tensor, "*b H F"]
    variance: Float[Tensor, "*b H F"]

    @staticmethod
    def of(emission: Emission, values: Parameters, weights: ByGate) -> "Forecast":
        """The forecast whose states and gates have the joint probabilities `weights`, each `[*b, H, K]`."""
        observation = StateMixture(emission, values, weights)
        state = weights.redrawn + weights.held
        return Forecast(state, weights.redrawn.sum(-1), observation, observation.mean, observation.variance)

    def interval(self, level: float = 0.9, n: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the central interval of each feature, `[*b, H, F]` twice, from n draws."""
        if not 0 < level < 1:
            raise ValueError(f"level: got {level}, expected a probability between 0 and 1, such as 0.9.")
        like = self.state
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            torch.random.manual_seed(seed)
            draws = self.observation.sample((n,))
        ordered = draws.sort(dim=0).values
        tail = round((1 - level) / 2 * (n - 1))
        return ordered[tail], ordered[n - 1 - tail]
