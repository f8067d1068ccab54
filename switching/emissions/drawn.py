"""Observations of steps to come whose lags are drawn: at each step a mixture of normals, one for each draw."""

from collections.abc import Callable

from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ..parameters import Parameters
from .contract import Emission
from .tied import NormalEmission


class Drawn(Emission):
    """Normal observations with locations `[*b, H, n, F]` and precisions, where each of the n draws stands for a state.

    Arguments:
        plain: the emission of a single state, independent features or vectors.
    """

    support = constraints.real
    normal = True

    def __init__(self, plain: NormalEmission, loc: Float[Tensor, "*b H n F"], precision: Tensor) -> None:
        self.n_features, self._tables = loc.shape[-1], {"loc": loc, "precision": precision}
        self._plain = plain

    def cut(self, part: Callable[[Tensor], Tensor]) -> "Drawn":
        return Drawn(self._plain, *map(part, self._tables.values()))

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return self.log_prob(x.unsqueeze(-2), values)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        return self._plain.log_prob(x, self._tables)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return self._plain.distribution(self._tables)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        return self._plain.moments(self._tables)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return self._plain.marginal_cdf(x, self._tables)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        chosen, axis = {}, next(iter(self._tables.values())).ndim - 2
        for name, table in self._tables.items():
            rest = table.shape[axis + 1 :]
            place = state.reshape(*state.shape, *[1] * (1 + len(rest)))
            wide = table.expand(*state.shape, *table.shape[axis:])
            chosen[name] = wide.gather(state.ndim, place.expand(*state.shape, 1, *rest)).squeeze(state.ndim)
        return self._plain.distribution(chosen).sample()

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        return self._plain.default_prior(n_states, x)
