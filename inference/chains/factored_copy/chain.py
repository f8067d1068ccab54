r"""Copy chains whose tables are products: gates that all states share, states, and one likelihood per step and state.

$$P(s_{1:T}, z_{1:T}, x) = state(s_1)\, likelihood_1(s_1) \prod_{t > 1} likelihood_t(s_t)
\begin{cases} redraw_t\, state(s_t) & z_t = 1 \\ hold_t\,[s_t = s_{t-1}] & z_t = 0 \end{cases}$$

The tables have this form if an observation depends on the gate only through the state. This is the chain of
`copy.chain` with $fresh_t = redraw_t \cdot state \odot likelihood_t$ and $held_t = hold_t\, likelihood_t$. Its
recursions read one table instead of two, and take one exponential instead of two.
"""

from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_possible, check_same_kind, check_shape, check_weights, naming
from ...numerics.randomness import Seed
from ..contract import Filtered, Marginals, Sampled, Smoothed, Viterbi, inside
from ..copy.chain import CopyChain
from ..discrete import DiscreteChain
from . import op
from .plain import multiplied_out


class FactoredCopyChain(DiscreteChain):
    r"""The posterior over paths of a copy chain whose tables are products; it reads one table instead of two.

    Arguments:
        log_redraw: [*b, T], $\log P(z_t{=}1)$ of every step, or [*b, 1] for all steps. The first step redraws, and its
            gates are ignored.
        log_hold: [*b, T] or [*b, 1], $\log P(z_t{=}0)$.
        log_state: [*b, K], $\log P(s_t{=}s \mid z_t{=}1)$, also for the first state.
        log_likelihood: [*b, T, K], $\log p(x_t \mid s_t)$.
        lengths: [*b], each sequence's number of steps; None: all have T. Table entries after the end are ignored.

    Weights are numbers of size up to 1e290 or -inf, an impossible event, and results are right to the rounding of their
    size. They need not be normalised. Batch axes broadcast, and no table is copied for the batch axes of another.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes or lengths that do not fit together. From every method: an observation that is impossible
            under every state, or a table with NaN or +inf, with its sequence and step; log p(x) out of range of the
            dtype.

    See Also:
        `CopyChain`, whose tables are free; `Copy`, the dynamics of a model; docs/background/copy_chain.md.

    >>> import torch, samplehold as sh
    >>> seen = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1, 1])  # one of two states, observed correctly four times in five
    >>> likelihood = torch.where(seen.unsqueeze(-1) == torch.arange(2), 0.8, 0.2)
    >>> redraw, state = torch.tensor([0.1]), torch.tensor([0.5, 0.5])
    >>> chain = sh.chains.FactoredCopyChain(redraw.log(), (1 - redraw).log(), state.log(), likelihood.log())
    >>> chain.viterbi().path
    tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    >>> chain.smooth().state[:, 1]
    tensor([0.1474, 0.1653, 0.2769, 0.2852, 0.3892, 0.8251, 0.9329, 0.9570, 0.9520])
    """

    _operators = op

    log_redraw: Tensor
    log_hold: Tensor
    log_state: Tensor
    log_likelihood: Tensor

    def __init__(
        self, log_redraw: Tensor, log_hold: Tensor, log_state: Tensor, log_likelihood: Tensor, lengths: Any = None
    ):
        tables = {"log_redraw": log_redraw, "log_hold": log_hold, "log_state": log_state}
        check_same_kind(**tables, log_likelihood=log_likelihood)
        self._size("log_likelihood", log_likelihood)
        self.log_redraw, self.log_hold = log_redraw, log_hold
        self.log_state, self.log_likelihood = log_state, log_likelihood
        self._share(
            lengths,
            log_likelihood.device,
            log_redraw=check_shape("log_redraw", log_redraw, (self.n_steps,), (1,)),
            log_hold=check_shape("log_hold", log_hold, (self.n_steps,), (1,)),
            log_state=check_shape("log_state", log_state, (self.n_states,)),
            log_likelihood=log_likelihood.shape[:-2],
        )

    @cached_property
    def multiplied_out(self) -> CopyChain:
        """The same chain with multiplied tables."""
        there = inside(self)
        tables = {
            name: gate if gate.shape[-1] == 1 else torch.where(there, gate, 0.0)
            for name, gate in (("log_redraw", self.log_redraw), ("log_hold", self.log_hold))
        }
        tables["log_state"] = self.log_state
        tables["log_likelihood"] = torch.where(there.unsqueeze(-1), self.log_likelihood, 0.0)
        for name, table in tables.items():
            check_weights(name, table)
        fresh, held = (table.expand(*self.batch_shape, *table.shape[-2:]) for table in multiplied_out(**tables))
        return CopyChain(None, fresh, held, self.lengths)

    @property
    def log_fresh(self) -> Float[Tensor, "*b T K"]:
        """The table of `CopyChain` of that name."""
        return self.multiplied_out.log_fresh

    @property
    def log_held(self) -> Float[Tensor, "*b T K"]:
        """The table of `CopyChain` of that name."""
        return self.multiplied_out.log_held

    def filter(self) -> Filtered:
        """The belief after each observation, [*b, T, K], and the probability that the step redrew, [*b, T]."""
        value, state, increment, redraw = self._results(op.filter)
        return Filtered(value, increment, state, redraw)

    def smooth(self) -> Smoothed:
        """The belief given all observations, [*b, T, K], and the probability that the step redrew, [*b, T]."""
        value, state, redraw, _, _ = self._results(op.posterior)
        return Smoothed(value, state, redraw)

    def marginals(self) -> Marginals:
        """The posterior of each table: the expected counts of EM and message passing.

        >>> import torch, samplehold as sh
        >>> one = torch.zeros(1)
        >>> counts = sh.chains.FactoredCopyChain(one, one, torch.zeros(2), torch.zeros(3, 2)).marginals()
        >>> counts.gates  # of both moves
        tensor([[1.3333, 0.6667]])
        """
        value, state, redraw, held, drawn = self._results(op.posterior)
        like = self.log_redraw if self.log_redraw.shape[-1] >= self.log_hold.shape[-1] else self.log_hold
        gates = torch.stack([op.of_moves(redraw, like), op.of_moves(held, like)], -1)
        return Marginals(value, state, gates=gates, drawn=drawn)

    def viterbi(self) -> Viterbi:
        return self._multiplied_out("viterbi")

    def sample(self, n: int, seed: Seed = None) -> Sampled:
        return self._multiplied_out("sample", n, seed)

    def entropy(self) -> Float[Tensor, "*b"]:
        return self._multiplied_out("entropy")

    def between(self, before: Tensor | None, after: Tensor | None) -> CopyChain:
        """These steps as a part of a longer chain; see `Chain.between`. The first step counts as redrawn."""
        return self._multiplied_out("between", before, after)

    def change_probability(self) -> Float[Tensor, "*b T"]:
        return self._multiplied_out("change_probability")

    def predictive(self, belief: Tensor) -> Float[Tensor, "*b T"]:
        return self._multiplied_out("predictive", belief)

    def mean_field(self, state: Tensor | None = None, sweeps: int = 5) -> Marginals:
        return self._multiplied_out("mean_field", state, sweeps)

    def _multiplied_out(self, verb: str, *arguments: Any) -> Any:
        """The result of a method of the chain with multiplied tables; errors name the tables of this chain."""
        with naming("log_redraw, log_hold, log_state, log_likelihood", "log_fresh"):
            return getattr(self.multiplied_out, verb)(*arguments)

    def _tables(self) -> tuple[Tensor, ...]:
        return self.log_redraw, self.log_hold, self.log_state, self.log_likelihood, self.lengths

    def _check(self, failed: Tensor, total: Tensor | None = None) -> None:
        steps = self.n_steps
        gates = {"log_redraw": self.log_redraw, "log_hold": self.log_hold}
        by_step = {name: table.expand(*table.shape[:-1], steps).unsqueeze(-1) for name, table in gates.items()}
        state = self.log_state.unsqueeze(-2).expand(*self.log_state.shape[:-1], steps, self.n_states)
        check_possible(failed, total, log_likelihood=self.log_likelihood, log_state=state, **by_step)
