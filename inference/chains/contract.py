r"""The contract of chains: exact inference over the paths of a hidden state, with one set of records for all chains.

A chain is the posterior over paths $s_{1:T}$ given observations, from tables of log-weights. It is an exponential
family in these tables. Its log-normaliser is $\log p(x)$, and the gradient of the log-normaliser is `marginals`. A
chain may have a gate $z_t$, which is 1 if a step drew its state afresh, and 0 if it held the old one. Without a gate,
`redraw` and `held` are None in every record.

Batch axes `*b` are those of the sequences, after axes of draws or restarts.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..numerics.randomness import Seed
from ..numerics.records import Record


@dataclass(frozen=True, repr=False)
class Filtered(Record):
    """The belief after each observation; 0 after the end of a sequence.

    Attributes:
        log_normalizer: `[*b]`, log p(x).
        log_increment: `[*b, T]`, log p(x_t | x_1..t-1).
        state: `[*b, T, K]`, P(s_t | x_1..t).
        redraw: `[*b, T]`, P(z_t = 1 | x_1..t); None: there is no gate.
        predicted: `[*b, T, K]`, P(s_t | x_1..t-1), where the belief before t does not give it.
    """

    log_normalizer: Float[Tensor, "*b"]
    log_increment: Float[Tensor, "*b T"]
    state: Float[Tensor, "*b T K"]
    redraw: Float[Tensor, "*b T"] | None = None
    predicted: Float[Tensor, "*b T K"] | None = None


@dataclass(frozen=True, repr=False)
class Smoothed(Record):
    """The belief given the whole sequence; 0 after its end.

    Attributes:
        log_normalizer: `[*b]`, log p(x).
        state: `[*b, T, K]`, P(s_t | x).
        redraw: `[*b, T]`, P(z_t = 1 | x); None: there is no gate.
        transition: `[*b, K, K]`, expected numbers of moves, if there is a transition table.
    """

    log_normalizer: Float[Tensor, "*b"]
    state: Float[Tensor, "*b T K"]
    redraw: Float[Tensor, "*b T"] | None = None
    transition: Float[Tensor, "*b K K"] | None = None


@dataclass(frozen=True, repr=False)
class Marginals(Record):
    """The expected use of each entry of the tables, the gradient of log p(x); 0 after the end of a sequence."""

    log_normalizer: Float[Tensor, "*b"]
    fresh: Float[Tensor, "*b T K"]  # P(s_t, z_t = 1 | x); P(s_t | x) without a gate, or with separate `gates`
    held: Float[Tensor, "*b T H"] | None = None  # P(s_t, z_t = 0 | x), summed over s_t if the table has one column
    initial: Float[Tensor, "*b K"] | None = None  # of the table of the first state
    transition: Float[Tensor, "..."] | None = None  # [*b, K, K] expected numbers, or [*b, T-1, K, K] by step
    gates: Float[Tensor, "*b G 2"] | None = None  # P(z_t = 1 | x), P(z_t = 0 | x) of moves, or G = 1: their sums
    drawn: Float[Tensor, "*b K"] | None = None  # of a separate table of drawn states, the first included
    moves: Float[Tensor, "*b K K D"] | None = None  # sums of moves times (1, inputs), in place of `transition`
    leaving: Float[Tensor, "*b S K"] | None = None  # beside `moves`: P(s_t-1 | x) at each step but the first
    duration: Float[Tensor, "*b K L"] | None = None  # expected numbers of segments by duration
    first_duration: Float[Tensor, "*b K L"] | None = None  # of first segments, if they have a table of their own


@dataclass(frozen=True, repr=False)
class Viterbi(Record):
    """The most probable path, with its gates if there are any.

    Attributes:
        path: `[*b, T]`, -1 after the end of a sequence.
        log_probability: `[*b]`, log P(path, redraw, x).
        redraw: `[*b, T]`, False after the end of a sequence; None: there is no gate.
    """

    path: Int[Tensor, "*b T"]
    log_probability: Float[Tensor, "*b"]
    redraw: Bool[Tensor, "*b T"] | None = None


@dataclass(frozen=True, repr=False)
class Sampled(Record):
    """Independent draws of the path given x, with its gates if there are any.

    Attributes:
        path: `[n, *b, T]`, -1 after the end of a sequence.
        redraw: `[n, *b, T]`, False after the end of a sequence; None: there is no gate.
    """

    path: Int[Tensor, "n *b T"]
    redraw: Bool[Tensor, "n *b T"] | None = None


@runtime_checkable
class Chain(Protocol):
    """The posterior over paths of a hidden state; every method is exact."""

    batch_shape: torch.Size
    n_steps: int
    n_states: int
    lengths: Int[Tensor, "*b"]

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log p(x); its gradient with respect to each table is the table's field of `marginals`."""
        ...

    def filter(self) -> Filtered:
        """The belief after each observation."""
        ...

    def smooth(self) -> Smoothed:
        """The belief given all observations."""
        ...

    def marginals(self) -> Marginals:
        """The posterior of each table, shaped like it: the expected counts of EM and message passing."""
        ...

    def viterbi(self) -> Viterbi:
        """The most probable path."""
        ...

    def sample(self, n: int, seed: Seed = None) -> Sampled:
        """n independent draws of the whole path given x.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """
        ...

    def entropy(self) -> Float[Tensor, "*b"]:
        """Entropy of the posterior over paths and gates, in nats."""
        ...

    def between(self, before: Float[Tensor, "*b K"] | None, after: Float[Tensor, "*b K"] | None) -> "Chain":
        """These steps as a part of a longer chain.

        Arguments:
            before: log P(s_1 | x_1 and all earlier observations); it replaces the tables' entries of the first step.
                None: there are none.
            after: log-weight of all later steps, given the state at each sequence's last step; None: there are none.
        """
        ...

    def change_probability(self) -> Float[Tensor, "*b T"]:
        """P(s_t != s_t-1 | x); 0 at the first step, which has no previous state, and after the end."""
        ...

    def predictive(self, belief: Float[Tensor, "*b T K"]) -> Float[Tensor, "*b T"]:
        """log p(x_t | Q_t-1): the evidence of each step given any belief about the previous one; the first step has
        none.

        Arguments:
            belief: the belief about the state at each step.
        """
        ...

    def mean_field(self, state: Float[Tensor, "*b T K"] | None = None, sweeps: int = 5) -> Marginals:
        """The best q(s_1) ... q(s_T) of independent steps near `state`, with its bound instead of log p(x).

        `fresh` and `held` sum to q; here `held` has all K columns.

        Arguments:
            state: where q starts; None: at the smoothed states.
            sweeps: the number of updates.
        """
        ...


def log_belief_at_end(chain: Chain) -> Float[Tensor, "*b K"]:
    """log P(s_T | x) at the end of a part of a longer chain: `before` of the next part, see `Chain.between`."""
    return chain.filter().state[..., -1, :].log()


def log_evidence_after(chain: Chain, before: Float[Tensor, "*b K"]) -> Float[Tensor, "*b K"]:
    """The log-weight of all that comes after the first step of a part that begins with the belief `before`: `after` of
    the previous part, see `Chain.between`."""
    belief = chain.smooth().state[..., 0, :].log()
    return torch.where(before == -torch.inf, 0.0, belief - before)  # a state of probability 0 has no effect


def inside(chain: Chain) -> Bool[Tensor, "*b T"]:
    """Which steps belong to their sequence."""
    return torch.arange(chain.n_steps, device=chain.lengths.device) < chain.lengths.unsqueeze(-1)


def at_end(table: Float[Tensor, "*b T K"], weight: Float[Tensor, "*b K"], lengths: Int[Tensor, "*b"]) -> Tensor:
    """The table with a log-weight added at each sequence's last step."""
    shape = *lengths.shape, table.shape[-1]
    last = (lengths - 1)[..., None, None].expand(*lengths.shape, 1, table.shape[-1])
    return table.expand(*lengths.shape, *table.shape[-2:]).scatter_add(-2, last, weight.expand(shape).unsqueeze(-2))


def change_from_stay(stay: Float[Tensor, "*b n"], chain: Chain) -> Float[Tensor, "*b T"]:
    """Probabilities of a change at every step, from the probabilities of staying from the second step on."""
    change = torch.nn.functional.pad((1 - stay).clamp(0.0, 1.0), (1, 0))
    return torch.where(inside(chain), change, 0.0)
