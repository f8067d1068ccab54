r"""Markov dynamics: $s_1 \sim \text{Categorical}(p)$, $s_t \sim \text{Categorical}(A_{s_{t-1}})$, Dirichlet rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.markov.chain import MarkovChain
from ...inference.families import MarkovPaths, MarkovTables
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.logs import log_probability
from ...inference.numerics.scalars import check_integer, check_number
from ..data.series import Drive, Series
from ..emissions.contract import ByGate
from ..parameters import Parameters, concentration, widened
from ..priors import Conjugate, Probabilities
from .contract import PATHS, Dynamics, draw_state
from .factors import by_state, first_state, moves


@dataclass(frozen=True)
class Markov(Dynamics):
    """A hidden Markov chain.

    Parameters `initial_probs [K]` and `transition_probs [K, K]`, indexed [old, new].

    Arguments:
        n_states: K.
        initial_prior: Dirichlet concentration of the first state, scalar or [K].
        transition_prior: Dirichlet concentration of each row, scalar, [K] or [K, K].
        sticky: added to the concentration of staying (Fox et al. 2011).

    Raises:
        TypeError: a number of states that is not an integer.
        ValueError: no states, concentrations that are not positive, a negative `sticky`.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.Poisson())
        >>> table = [[0.9, 0.1], [0.2, 0.8]]
        >>> model = model.with_values(initial_probs=[0.5, 0.5], transition_probs=table, rate=[[1.0], [9.0]])
        >>> model.viterbi([0, 2, 1, 8, 11]).path
        tensor([0, 0, 0, 1, 1])
    """

    n_states: int
    initial_prior: float | Sequence = 1.0
    transition_prior: float | Sequence = 1.0
    sticky: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_states", check_integer("n_states", self.n_states))
        object.__setattr__(self, "sticky", check_number("sticky", self.sticky, least=0))
        self.default_prior()

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        return {
            "initial": Probabilities("initial_probs", "initial_concentration", ("state",)),
            "transition": Probabilities("transition_probs", "transition_concentration", ("state", "state_new")),
        }

    def default_prior(self) -> Parameters:
        rows = concentration(self.transition_prior, (self.n_states, self.n_states), "transition_prior")
        return {
            "initial_concentration": concentration(self.initial_prior, (self.n_states,), "initial_prior"),
            "transition_concentration": rows + self.sticky * torch.eye(self.n_states, dtype=rows.dtype, device="cpu"),
        }

    # ---- paths -----------------------------------------------------------------------------------------------------

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
    ) -> Chain:
        table = likelihood.redrawn
        n_batch = table.ndim - 2 - (values["initial_probs"].ndim - 1)
        transition = widened(values["transition_probs"], 2, n_batch)
        initial = widened(values["initial_probs"], 1, n_batch)
        return MarkovChain(log_probability(initial), log_probability(transition), table, lengths)

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor]:
        n_batch = belief.ndim - 1 - (values["transition_probs"].ndim - 2)
        return (log_probability(_moved(belief, widened(values["transition_probs"], 2, n_batch))).unsqueeze(-2),)

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        n_batch = belief.ndim - 1 - (values["transition_probs"].ndim - 2)
        transition, beliefs = widened(values["transition_probs"], 2, n_batch), []
        for _ in range(horizon):
            belief = _moved(belief, transition)
            beliefs.append(belief)
        state = torch.stack(beliefs, -2)
        return ByGate(state, torch.zeros_like(state))

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        return 1 / (1 - values["transition_probs"].diagonal(dim1=-2, dim2=-1))

    def first(self, values: Parameters) -> Tensor:
        return values["initial_probs"]

    def draw(self, values: Parameters, step: int, previous: Tensor | None, drive: Drive) -> tuple[Tensor, Tensor]:
        probs = values["initial_probs"] if previous is None else values["transition_probs"][previous]
        state = draw_state(step, probs)
        return torch.ones_like(
            state
        ), state  # every step is drawn afresh, from a row that depends on the previous state

    # ---- fits ------------------------------------------------------------------------------------------------------

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        assert marginals.initial is not None
        assert marginals.transition is not None
        moved = marginals.transition.reshape(*lead, -1, self.n_states, self.n_states).sum(-3)
        return {"initial": by_state(marginals.initial, lead), "transition": moved}

    def start(self, labels: Tensor, series: Series) -> Parameters:
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * series.inside.unsqueeze(-1)
        lead = labels.shape[: labels.ndim - 1 - len(series.batch_shape)]
        pairs = (one_hot[..., :-1, :].mT @ one_hot[..., 1:, :]).reshape(*lead, -1, self.n_states, self.n_states)
        stay = torch.eye(self.n_states).to(one_hot) * self.n_states  # persistence in states without labels
        pairs, first = pairs.sum(-3) + 1 + stay, by_state(one_hot[..., 0, :], lead) + 1
        return {
            "initial_probs": first / first.sum(-1, keepdim=True),
            "transition_probs": pairs / pairs.sum(-1, keepdim=True),
        }

    def paths(
        self, series: Series, lead: tuple[int, ...], gated: bool, alike: bool
    ) -> tuple[MarkovPaths, MarkovTables]:
        shape, k = (*lead, *series.batch_shape), self.n_states
        zero = series.like.new_zeros(())
        tables = MarkovTables(zero.expand(*shape, k), zero.expand(*shape, k, k), zero.expand(*shape, series.n_steps, k))
        return MarkovPaths(series.lengths), tables

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        n_axes = len(series.batch_shape) + 1
        return [first_state("initial", PATHS, n_axes, counted), moves("transition", PATHS, n_axes)]


def _moved(belief: Tensor, transition: Tensor) -> Tensor:
    """The belief one step later, before the observation."""
    return (belief.unsqueeze(-2) @ transition).squeeze(-2)
