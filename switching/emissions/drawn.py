"""Observations of steps to come whose lags are drawn: at each step a mixture of normals, one for each draw."""

from collections.abc import Callable

from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ..parameters import Parameters
from .contract import Emission
from .normal import Normal


class Drawn(Emission):
    """Normal features with locations and precisions `[*b, H, n, F]`, where each of the n draws stands for a state."""

    support = constraints.real

    def __init__(self, loc: Float[Tensor, "*b H n F"], precision: Float[Tensor, "*b H n F"]) -> None:
        self.n_features, self._tables = loc.shape[-1], {"loc": loc, "precision": precision}
        self._plain = Normal(self.n_features)

    def cut(self, part: Callable[[Tensor], Tensor]) -> "Drawn":
        return Drawn(*map(part, self._tables.values()))

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return self.log_prob(x.unsqueeze(-2), values)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        return self._plain.log_prob(x, self._tables)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return self._plain.distribution(self._tables)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        return self._tables["loc"], 1 / self._tables["precision"]

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return self._plain.marginal_cdf(x, self._tables)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        place = state[..., None, None].expand(*state.shape, 1, self.n_features)
        chosen = {
            name: table.expand(*state.shape, *table.shape[-2:]).gather(-2, place).squeeze(-2)
            for name, table in self._tables.items()
        }
        return self._plain.distribution(chosen).sample()

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        return self._plain.default_prior(n_states, x)
