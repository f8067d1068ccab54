r"""Markov dynamics: $s_1 \sim \text{Categorical}(p)$, $s_t \sim \text{Categorical}(A_{s_{t-1}})$, Dirichlet rows.

Rows may depend on inputs, as a multinomial logit: see `rows`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from ..inputs import Inputs, named_or_counted
from ..parameters import Parameters, concentration, kept, widened
from ..priors import Conjugate, Probabilities
from .contract import PATHS, Dynamics, draw_state
from .factors import by_state, first_state, moves
from .rows import Rows, TransitionWeights, log_rows


@dataclass(frozen=True)
class Markov(Dynamics):
    """A hidden Markov chain.

    Parameters `initial_probs [K]` and `transition_probs [K, K]`, indexed [old, new]; with inputs also
    `transition_weights [K, K, C]`. The probability of a move from i to j into step t is proportional to
    `transition_probs[i, j] * exp(transition_weights[i, j] @ inputs[t])`. The weights of staying are 0.

    Arguments:
        n_states: K.
        initial_prior: Dirichlet concentration of the first state, scalar or [K].
        transition_prior: Dirichlet concentration of each row, scalar, [K] or [K, K].
        sticky: added to the concentration of staying (Fox et al. 2011).
        inputs: the inputs of the transitions: C names, or their number. The priors above are then those at inputs 0;
            the weights have normal priors of scale 2.5, so use inputs of about unit variance.

    Raises:
        TypeError: a number of states or inputs that is not an integer.
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
    inputs: Inputs | Sequence[str] = 0  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_states", check_integer("n_states", self.n_states))
        object.__setattr__(self, "inputs", named_or_counted(self.inputs))
        object.__setattr__(self, "sticky", check_number("sticky", self.sticky, least=0))
        self.default_prior()

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        return {
            "initial": Probabilities("initial_probs", "initial_concentration", ("state",)),
            "transition": Probabilities("transition_probs", "transition_concentration", ("state", "state_new")),
        } | ({"weights": TransitionWeights(self.n_states, self.n_inputs)} if self.n_inputs else {})

    @property
    def not_conjugate(self) -> str | None:
        return "its transitions depend on inputs" if self.n_inputs else None

    @property
    def table_size(self) -> int:
        return self.n_states**2 if self.n_inputs else self.n_states

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
        initial = log_probability(widened(values["initial_probs"], 1, n_batch))
        if self.n_inputs:
            transition = self._log_rows(values, drive.at(slice(1, None)), n_batch)
        else:
            transition = log_probability(widened(values["transition_probs"], 2, n_batch))
        return MarkovChain(initial, transition, table, lengths)

    def _log_rows(self, values: Parameters, drive: Drive, n_batch: int) -> Tensor:
        """The logarithm of the table of each step, [*r, *b, S, K, K]."""
        assert drive.inputs is not None
        weights = values["transition_weights"]
        return log_rows(values["transition_probs"], weights, drive.inputs[..., : self.n_inputs], n_batch)

    def _tables(self, values: Parameters, n_batch: int, drive: Drive, horizon: int) -> Iterator[Tensor]:
        """The transition table of each of the `horizon` steps, [*r, *b, K, K]."""
        if self.n_inputs:
            yield from self._log_rows(values, drive, n_batch).exp().unbind(-3)
        else:
            yield from [widened(values["transition_probs"], 2, n_batch)] * horizon

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor]:
        return (log_probability(self.propagate(values, belief, drive, 1).redrawn),)

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        n_batch, beliefs = belief.ndim - 1 - (values["transition_probs"].ndim - 2), []
        for transition in self._tables(values, n_batch, drive, horizon):
            belief = (belief.unsqueeze(-2) @ transition).squeeze(-2)
            beliefs.append(belief)
        state = torch.stack(beliefs, -2)
        return ByGate(state, torch.zeros_like(state))

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        if not self.n_inputs:
            return 1 / (1 - values["transition_probs"].diagonal(dim1=-2, dim2=-1))
        if drive.inputs is None or not drive.inputs.numel():
            raise ValueError("inputs: got no step, but durations are averaged over steps; give a sequence.")
        stay = self._log_rows(values, drive, 0).diagonal(dim1=-2, dim2=-1).exp()
        return 1 / (1 - stay.flatten(0, -2).mean(0))

    def first(self, values: Parameters) -> Tensor:
        return values["initial_probs"]

    def draw(self, values: Parameters, step: int, previous: Tensor | None, drive: Drive) -> tuple[Tensor, Tensor]:
        if previous is None:
            state = draw_state(step, values["initial_probs"])
        elif self.n_inputs:
            table = self._log_rows(values, drive.at(slice(step - 1, step)), 0).exp().squeeze(-3)
            old = torch.nn.functional.one_hot(previous, self.n_states).to(table)
            state = draw_state(step, (old.unsqueeze(-2) @ table).squeeze(-2))
        else:
            state = draw_state(step, values["transition_probs"][previous])
        return torch.ones_like(state), state  # every step is drawn afresh, from a row that depends on the state before

    # ---- fits ------------------------------------------------------------------------------------------------------

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        assert marginals.initial is not None
        assert marginals.transition is not None
        moved = marginals.transition.reshape(*lead, -1, self.n_states, self.n_states).sum(-3)
        return {"initial": by_state(marginals.initial, lead), "transition": moved}

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Collection[str] = (),
    ) -> Parameters:
        if not self.n_inputs:
            return super().maximize(marginals, prior, values, drive, fixed)
        assert marginals.initial is not None
        assert marginals.transition is not None
        lead = self._lead(values)
        modes = kept(self.blocks["initial"].mode(prior, by_state(marginals.initial, lead)), values)
        return self._driven(marginals.transition, lead, prior, values, drive, fixed) | {
            name: values[name] if name in fixed else mode for name, mode in modes.items()
        }

    def _driven(
        self,
        pairs: Tensor,
        lead: torch.Size,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Collection[str],
    ) -> Parameters:
        """The M-step of transitions with inputs."""
        assert drive.inputs is not None
        names, weights = ("transition_probs", "transition_weights"), self.blocks["weights"]
        assert isinstance(weights, TransitionWeights)
        probs_free, weights_free = (name not in fixed for name in names)
        rows = Rows(values[names[0]], values[names[1]], probs_free, weights_free)
        pairs = pairs.reshape(*lead, -1, self.n_states, self.n_states)
        inputs = drive.inputs[..., 1:, : self.n_inputs].reshape(-1, self.n_inputs)
        concentration = None if prior is None else prior["transition_concentration"]
        return dict(zip(names, rows.maximized(pairs, inputs, concentration, weights.support), strict=True))

    def start(self, labels: Tensor, series: Series) -> Parameters:
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * series.inside.unsqueeze(-1)
        lead = labels.shape[: labels.ndim - 1 - len(series.batch_shape)]
        pairs = (one_hot[..., :-1, :].mT @ one_hot[..., 1:, :]).reshape(*lead, -1, self.n_states, self.n_states)
        stay = torch.eye(self.n_states).to(one_hot) * self.n_states  # persistence in states without labels
        pairs, first = pairs.sum(-3) + 1 + stay, by_state(one_hot[..., 0, :], lead) + 1
        return {
            "initial_probs": first / first.sum(-1, keepdim=True),
            "transition_probs": pairs / pairs.sum(-1, keepdim=True),
        } | ({"transition_weights": pairs.new_zeros(*pairs.shape, self.n_inputs)} if self.n_inputs else {})

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
