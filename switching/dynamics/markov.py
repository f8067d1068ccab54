r"""Markov dynamics: $s_1 \sim \text{Categorical}(p)$, $s_t \sim \text{Categorical}(A_{s_{t-1}})$, Dirichlet rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.markov.chain import MarkovChain
from ..emissions.contract import ByGate
from ..parameters import Parameters, Site, concentration
from .contract import Drive, Dynamics, check_n_states, check_probs, draw_state, widened


@dataclass(frozen=True)
class Markov(Dynamics):
    """A hidden Markov chain.

    Parameters `initial_probs [K]` and `transition_probs [K, K]`, indexed [old, new].

    Arguments:
        n_states: K.
        initial_prior: Dirichlet concentration of the first state, scalar or [K].
        transition_prior: Dirichlet concentration of each row, scalar, [K] or [K, K].
        sticky: added to the concentration of staying (Fox et al. 2011).
    """

    n_states: int
    initial_prior: float | Sequence = 1.0
    transition_prior: float | Sequence = 1.0
    sticky: float = 0.0

    def __post_init__(self) -> None:
        check_n_states(self.n_states)
        if not self.sticky >= 0:
            raise ValueError(f"sticky: got {self.sticky}, expected a concentration of at least 0.")
        self.default_prior()

    def check_values(self, values: Parameters) -> Parameters:
        return {
            "initial_probs": check_probs(values, "initial_probs", (self.n_states,)),
            "transition_probs": check_probs(values, "transition_probs", (self.n_states, self.n_states)),
        }

    def check_drive(self, drive: Drive, batch_shape: torch.Size, n_steps: int) -> None:
        for name in ("covariates", "dt"):
            if getattr(drive, name) is not None:
                raise ValueError(
                    f"{name}: Markov dynamics take none; use Copy dynamics, whose redraw probability it moves."
                )

    def default_prior(self) -> Parameters:
        rows = concentration(self.transition_prior, (self.n_states, self.n_states), "transition_prior")
        return {
            "initial_concentration": concentration(self.initial_prior, (self.n_states,), "initial_prior"),
            "transition_concentration": rows + self.sticky * torch.eye(self.n_states, dtype=rows.dtype),
        }

    def sites(self, prior: Parameters) -> list[Site]:
        return [
            Site("initial_probs", lambda v: dist.Dirichlet(prior["initial_concentration"])),
            Site("transition_probs", lambda v: dist.Dirichlet(prior["transition_concentration"]).to_event(1)),
        ]

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
        belief: Tensor | None = None,
    ) -> Chain:
        table = likelihood.redrawn
        n_batch = table.ndim - 2 - (values["initial_probs"].ndim - 1)
        transition = widened(values["transition_probs"], 2, n_batch)
        initial = widened(values["initial_probs"], 1, n_batch) if belief is None else _moved(belief, transition)
        return MarkovChain(initial.log(), transition.log(), table, lengths)

    def maximize(self, marginals: Marginals, prior: Parameters | None, values: Parameters, drive: Drive) -> Parameters:
        assert marginals.initial is not None
        assert marginals.transition is not None
        n_restarts = values["initial_probs"].ndim - 1
        sequences = tuple(range(n_restarts, marginals.initial.ndim - 1))
        initial = marginals.initial.sum(sequences) if sequences else marginals.initial
        transition = marginals.transition.sum(sequences) if sequences else marginals.transition
        if prior is not None:
            initial = initial + prior["initial_concentration"] - 1
            transition = transition + prior["transition_concentration"] - 1
        return {
            "initial_probs": normalised(initial, values["initial_probs"]),
            "transition_probs": normalised(transition, values["transition_probs"]),
        }

    def start(self, labels: Tensor, n_batch: int, inside: Tensor) -> Parameters:
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * inside.unsqueeze(-1)
        pairs = one_hot[..., :-1, :].mT @ one_hot[..., 1:, :]
        first = one_hot[..., 0, :]
        for _ in range(n_batch):
            pairs, first = pairs.sum(-3), first.sum(-2)
        stay = torch.eye(self.n_states, dtype=torch.float64) * self.n_states  # persistence where labels say nothing
        pairs, first = pairs + 1 + stay, first + 1
        return {
            "initial_probs": first / first.sum(-1, keepdim=True),
            "transition_probs": pairs / pairs.sum(-1, keepdim=True),
        }

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        n_batch = belief.ndim - 1 - (values["transition_probs"].ndim - 2)
        transition, beliefs = widened(values["transition_probs"], 2, n_batch), []
        for _ in range(horizon):
            belief = _moved(belief, transition)
            beliefs.append(belief)
        state = torch.stack(beliefs, -2)
        return ByGate(state, torch.zeros_like(state))

    def first(self, values: Parameters) -> Tensor:
        return values["initial_probs"]

    def draw(self, values: Parameters, step: int, previous: Tensor | None, drive: Drive) -> tuple[Tensor, Tensor]:
        probs = values["initial_probs"] if previous is None else values["transition_probs"][previous]
        state = draw_state(step, probs)
        return torch.ones_like(state), state  # every step is drawn anew, from a row that depends on the last


def _moved(belief: Tensor, transition: Tensor) -> Tensor:
    """The belief one step later, before anything is observed."""
    return (belief.unsqueeze(-2) @ transition).squeeze(-2)


def normalised(counts: Tensor, otherwise: Tensor) -> Tensor:
    """Counts over their sum; where a row has no counts at all, the probabilities it had."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total, otherwise)
