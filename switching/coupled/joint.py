"""A model of several chains as one chain over their joint states, for exact inference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...inference.numerics.delegation import delegated
from ...inference.numerics.placement import constant
from ...inference.numerics.records import Record
from ..emissions.contract import ByGate, Emission
from ..parameters import Parameters


@dataclass(frozen=True, eq=False, repr=False)
class Indexed(Record, Emission):
    """An emission of joint states; each emits like one state of another emission, redrawn or held.

    Arguments:
        emission: the other emission.
        n_states: its number of states.
        state: for each joint state, the state of the other emission.
        redrawn: for each joint state, whether it emits as a redrawn step or as a held one.
    """

    emission: Emission
    n_states: int
    state: tuple[int, ...]
    redrawn: tuple[bool, ...]

    n_features = delegated("emission")
    support = delegated("emission")
    normal = delegated("emission")
    parameters = delegated("emission")
    sizes = delegated("emission")
    check = delegated("emission")
    sites = delegated("emission")
    log_prob = delegated("emission")
    distribution = delegated("emission")

    def check_values(self, values: Parameters, n_states: int) -> Parameters:
        return self.emission.check_values(values, self.n_states)

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        return self.emission.default_prior(self.n_states, x)

    def log_likelihood(self, x: Tensor, values: Parameters) -> ByGate:
        return self._chosen(self.emission.log_likelihood(x, values), -1)

    def mean(self, values: Parameters) -> ByGate:
        return self._chosen(self.emission.mean(values), -2)

    def variance(self, values: Parameters) -> ByGate:
        return self._chosen(self.emission.variance(values), -2)

    def cdf(self, x: Tensor, values: Parameters) -> ByGate:
        return self._chosen(self.emission.cdf(x, values), -2)

    def category_probs(self, values: Parameters) -> ByGate:
        return self._chosen(self.emission.category_probs(values), -2)

    def log_prob_at(self, x: Tensor, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        return self.emission.log_prob_at(x, values, *self._at(state))

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        return self.emission.sample_at(values, *self._at(state))

    def _at(self, joint: Tensor) -> tuple[Tensor, Tensor]:
        """The emission's state of each joint state, and whether it is redrawn."""
        state, redrawn = self._tables(joint.device)
        return state[joint], redrawn[joint]

    def _tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return constant(self.state, torch.long, device), constant(self.redrawn, torch.bool, device)

    def _chosen(self, by_gate: ByGate, axis: int) -> ByGate:
        """A quantity of states and gates, for each joint state."""
        state, is_redrawn = self._tables(by_gate.redrawn.device)
        redrawn = by_gate.redrawn.index_select(axis, state)
        alike = by_gate.held.shape[axis] == 1
        held = by_gate.held if alike else by_gate.held.index_select(axis, state)
        table = torch.where(is_redrawn.reshape(-1, *[1] * (-axis - 1)), redrawn, held)
        return ByGate(table, table)


def marginals(joint: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The beliefs about each axis, from beliefs `[*b, J]` about joint states; J is the product of the sizes."""
    split, n = joint.unflatten(-1, sizes), len(sizes)
    return tuple(split.sum([a for a in range(-n, 0) if a != axis]) if n > 1 else split for axis in range(-n, 0))


def coordinates(path: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Joint states `[*b]` as one number for each axis, `[*b, D]`; -1, after the end of a sequence, stays."""
    where = torch.stack(torch.unravel_index(path.clamp_min(0), sizes), -1)
    return torch.where((path < 0).unsqueeze(-1), -1, where)
