r"""Copy chains: a hidden state that at every step is either drawn afresh or held.

$$P(s_{1:T}, z_{1:T}, x) = \sum_{s_0} P(s_0) \prod_t
\begin{cases} fresh_t(s_t) & z_t = 1 \\ held_t(s_t)\,[s_t = s_{t-1}] & z_t = 0 \end{cases}$$

The recursions cost O(K) per step, while those of a general chain cost O(K^2). With $a_{t-1}$ normalised:

$$a_t = (held_t \odot a_{t-1} + fresh_t) / c_t, \quad \log p(x) = \sum_t \log c_t, \quad
b_{t-1} = (held_t \odot b_t + \textstyle\sum_s fresh_t(s)\, b_t(s)) / c_t$$
$$P(s_t, z_t{=}1 \mid x) = fresh_t\, b_t / c_t, \qquad P(s_t, z_t{=}0 \mid x) = held_t\, a_{t-1}\, b_t / c_t$$

Adams & MacKay 2007 filter the same chain by run length instead of state. Its exact posterior draws are those of
Fearnhead 2006.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from ...numerics.checks import check_possible, check_same_kind, check_shape, check_start
from ...numerics.deferred import deferred
from ...numerics.threads import sum_of_steps
from ..contract import Filtered, Marginals, Smoothed, Viterbi, at_end, change_from_stay, inside
from ..discrete import DiscreteChain
from ..mean_field import check_finite, earlier, independent_steps, later
from . import op


class CopyChain(DiscreteChain):
    r"""The posterior over paths of a copy chain, from its tables of log-weights.

    Arguments:
        log_initial: [*b, K], $\log P(s_0)$, before the first observation. It need not be normalised: its sum is a
            factor of the evidence. None: the first step redraws, and its `log_held` is ignored.
        log_fresh: [*b, T, K], $\log P(z_t{=}1)\, P(s_t{=}s \mid z_t{=}1)\, p(x_t \mid s, z_t{=}1)$.
        log_held: [*b, T, K], or [*b, T, 1] if it is equal for all states, $\log P(z_t{=}0)\, p(x_t \mid s, z_t{=}0)$.
        lengths: [*b], each sequence's number of steps; None: all have T. Table entries after the end are ignored.

    Weights are numbers of size up to 1e290 or -inf, an impossible event, and results are right to the rounding of their
    size. Batch axes broadcast.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes or lengths that do not fit together. From every method: an observation that is impossible
            under every state, or a table with NaN or +inf, with its sequence and step; log p(x) out of range of the
            dtype.

    Adams & MacKay 2007 filter the same chain by run length; Fearnhead 2006 draws from it exactly.

    See Also:
        `FactoredCopyChain`, with one table; `MarkovChain`, with free rows; docs/background/copy_chain.md, with the
        derivation.

    >>> import torch, samplehold as sh
    >>> seen = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1, 1])  # one of two states, observed correctly four times in five
    >>> likelihood = torch.where(seen.unsqueeze(-1) == torch.arange(2), 0.8, 0.2)
    >>> chain = sh.chains.CopyChain(None, (0.1 * 0.5 * likelihood).log(), (0.9 * likelihood).log())  # rho = 0.1
    >>> chain.viterbi().path
    tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    >>> chain.smooth().state[:, 1]
    tensor([0.1474, 0.1653, 0.2769, 0.2852, 0.3892, 0.8251, 0.9329, 0.9570, 0.9520])
    """

    _operators = op

    def __init__(
        self,
        log_initial: Tensor | None,
        log_fresh: Tensor,
        log_held: Tensor,
        lengths: Any = None,
    ):
        check_same_kind("log_initial", log_fresh=log_fresh, log_held=log_held, log_initial=log_initial)
        self._size("log_fresh", log_fresh)
        self.log_fresh = log_fresh
        self.log_held = log_held
        self.log_initial = log_initial
        self._share(
            lengths,
            log_fresh.device,
            log_fresh=log_fresh.shape[:-2],
            log_held=check_shape("log_held", log_held, (self.n_steps, self.n_states), (self.n_steps, 1)),
            log_initial=check_shape("log_initial", log_initial, (self.n_states,)),
        )
        check_start(log_initial)

    def filter(self) -> Filtered:
        """The belief after each observation, [*b, T, K], and the probability that the step redrew, [*b, T].

        >>> import torch, samplehold as sh
        >>> sh.chains.CopyChain(None, torch.zeros(3, 2), torch.zeros(3, 1)).filter().redraw
        tensor([1.0000, 0.6667, 0.6667])
        """
        increment, state, redraw, failed = op.filter(*self._tables())
        total = sum_of_steps(increment).to(state)
        self._check(failed, total)
        return Filtered(*map(self._shaped, (total, increment.to(state), state, redraw)))

    def smooth(self) -> Smoothed:
        """The belief given all observations, [*b, T, K], and the probability that the step redrew, [*b, T].

        >>> import torch, samplehold as sh
        >>> log_fresh = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, -torch.inf]])  # ends in state 0, if it is redrawn
        >>> sh.chains.CopyChain(None, log_fresh, torch.zeros(3, 1)).smooth().state
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000],
                [0.7500, 0.2500]])
        """
        return Smoothed(*self._results(op.smooth))

    def marginals(self) -> Marginals:
        """Joint posteriors of state and gate, shaped like the tables: the expected counts of EM and message passing.

        >>> import torch, samplehold as sh
        >>> counts = sh.chains.CopyChain(None, torch.zeros(3, 2), torch.zeros(3, 1)).marginals()
        >>> counts.fresh.sum(), counts.held.sum()  # of three steps
        (tensor(2.3333), tensor(0.6667))
        """
        value, fresh, held, initial = self._results(op.marginals)
        return Marginals(value, fresh, held, None if self.log_initial is None else initial)

    @torch.no_grad()
    def viterbi(self) -> Viterbi:
        """The best path and gates; of equally good ones, one that holds, then the state of the least index.

        >>> import torch, samplehold as sh
        >>> log_fresh = torch.tensor([[0.0, -1.0], [-3.0, -2.0], [-3.0, -2.0]])
        >>> best = sh.chains.CopyChain(None, log_fresh, torch.tensor([[0.0], [-1.0], [0.0]])).viterbi()
        >>> best.path, best.redraw, best.log_probability
        (tensor([0, 0, 0]), tensor([ True, False, False]), tensor(-1.))
        """
        path, redraw, value, failed = op.viterbi(*self._tables())
        self._check(failed, value)
        return Viterbi(*map(self._shaped, (path, value, redraw)))

    def entropy(self) -> Float[Tensor, "*b"]:
        r"""Entropy of the posterior over (s_1..T, z_1..T), in nats, [*b].

        Backward in time the posterior is a chain: given later steps, the gate of step t depends on s_t alone, and
        before a redraw only the filtered belief matters. So no large numbers cancel:

        $$H = H(s_T \mid x) + \sum_t E[H(z_t \mid s_t, x)] + \sum_{t \ge 2} P(z_t{=}1 \mid x)\, H(a_{t-1})$$

        >>> import torch, samplehold as sh
        >>> sh.chains.CopyChain(None, torch.zeros(3, 2), torch.zeros(3, 1)).entropy().exp()  # equal histories
        tensor(18.)
        """
        initial, fresh, held, lengths = self._tables()
        initial, held = None if initial is None else initial.double(), held.double().expand_as(fresh)
        tables = initial, fresh.double(), held, lengths
        _, state, _, failed = op.filter(*tables)
        self._check(failed)
        _, fresh, held, *_ = op.marginals(*tables)
        belief = -torch.special.xlogy(state, state.clamp_min(torch.finfo(state.dtype).tiny)).sum(-1)
        last = belief.gather(-1, lengths.unsqueeze(-1) - 1).squeeze(-1)
        gates = sum_of_steps(_entropy_of_shares(fresh, held).sum(-1))
        total = last + gates + sum_of_steps(fresh[:, 1:].sum(-1) * belief[:, :-1])
        return self._shaped(total.to(self.log_fresh))

    def between(self, before: Tensor | None, after: Tensor | None) -> "CopyChain":
        """These steps as a stretch of a longer chain; see `Chain.between`. The first step counts as drawn."""
        log_initial, fresh, held = self.log_initial, self.log_fresh, self.log_held
        if before is not None:
            log_initial, fresh = None, fresh.expand(*self.batch_shape, self.n_steps, self.n_states)
            fresh = torch.cat([before.expand_as(fresh[..., 0, :]).unsqueeze(-2), fresh[..., 1:, :]], -2)
        if after is not None:
            fresh = at_end(fresh, after, self.lengths)
            held = at_end(held.expand(*held.shape[:-1], self.n_states), after, self.lengths)
        return CopyChain(log_initial, fresh, held, self.lengths)

    def change_probability(self) -> Float[Tensor, "*b T"]:
        r"""P(s_t != s_{t-1} | x), at most the probability of a redraw, which may draw the old state.

        With the filtered a it is

        $$1 - \sum_s P(s_t{=}s, z_t{=}0 \mid x) + P(s_t{=}s, z_t{=}1 \mid x)\, a_{t-1}(s).$$

        >>> import torch, samplehold as sh
        >>> sh.chains.CopyChain(None, torch.zeros(3, 2), torch.zeros(3, 1)).change_probability()
        tensor([0.0000, 0.3333, 0.3333])
        """
        with deferred():
            before, marginals = self.filter().state[..., :-1, :], self.marginals()
        assert marginals.held is not None
        stay = marginals.held[..., 1:, :].sum(-1) + (marginals.fresh[..., 1:, :] * before).sum(-1)
        return change_from_stay(stay, self)

    def predictive(self, belief: Tensor) -> Float[Tensor, "*b T"]:
        drawn, held, scale = self._first_step()
        first = torch.logaddexp(drawn, held).logsumexp(-1, keepdim=True) + scale
        kept = (self.log_held[..., 1:, :] + belief[..., :-1, :].log()).logsumexp(-1)
        later_ones = torch.logaddexp(self.log_fresh[..., 1:, :].logsumexp(-1), kept)
        return torch.cat([first.expand(*later_ones.shape[:-1], 1), later_ones], -1)

    def mean_field(self, state: Tensor | None = None, sweeps: int = 5) -> Marginals:
        r"""Independent steps, see `Chain.mean_field`: the gate is summed out of moves, $\log(1 + held_t / fresh_t)$."""
        shape = (*self.batch_shape, self.n_steps, self.n_states)
        within = inside(self).unsqueeze(-1).expand(shape)
        first = (torch.arange(self.n_steps, device=within.device) == 0).unsqueeze(-1)
        drawn, kept, scale = (weight.unsqueeze(-2) for weight in self._first_step())
        odds = torch.where(first, kept - drawn, self.log_held - self.log_fresh)
        local = torch.where(first, torch.logaddexp(drawn, kept), self.log_fresh)
        stay, local = torch.where(within & ~first, softplus(odds), 0.0), torch.where(within, local, 0.0)
        check_finite(log_fresh=local, log_held=stay)
        bound, q = independent_steps(
            local,
            lambda q: later(q) * stay,
            lambda q: earlier(q * stay),
            within[..., 0],
            torch.where(within, self.smooth().state, 1 / self.n_states) if state is None else state,
            sweeps,
        )
        held = torch.where(within, torch.where(first, 1.0, later(q)) * q * odds.sigmoid(), 0.0)
        fresh, initial = q - held, None
        if self.log_initial is not None:
            initial = held[..., 0, :] + fresh[..., :1, :].sum((-2, -1)).unsqueeze(-1) * self.log_initial.softmax(-1)
        return Marginals(bound + scale[..., 0, 0], fresh, held, initial)

    def _first_step(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights [*b, K] of drawing and of holding each state at the first step, and their
        common factor, [*b, 1]: the logarithm of the sum of `log_initial`."""
        fresh, held = self.log_fresh[..., 0, :], self.log_held[..., 0, :]
        if self.log_initial is None:
            return fresh, torch.full_like(fresh, -torch.inf), torch.zeros_like(fresh[..., :1])
        return fresh, held + self.log_initial.log_softmax(-1), self.log_initial.logsumexp(-1, keepdim=True)

    def _tables(self) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        """The tables with one batch axis: [N, K] or None, [N, T, K], [N, T, K or 1], [N]."""
        size = self.batch_shape.numel()

        def flat(table: Tensor, n_trailing: int) -> Tensor:
            axes, trailing = table.shape[: table.dim() - n_trailing], table.shape[table.dim() - n_trailing :]
            if len(axes) == 1 and axes == self.batch_shape:
                return table
            if not axes.numel() == 1 == size:
                table = table.expand(*self.batch_shape, *trailing)
            return table.reshape(size, *trailing)

        initial = None if self.log_initial is None else flat(self.log_initial, 1)
        return initial, flat(self.log_fresh, 2), flat(self.log_held, 2), flat(self.lengths, 0)

    def _results(self, operator: Callable[..., Any]) -> list[Tensor]:
        return [self._shaped(table) for table in super()._results(operator)]

    def _check(self, failed: Tensor, total: Tensor | None = None) -> None:
        failed = failed.reshape(self.batch_shape)
        check_possible(failed, total, log_fresh=self.log_fresh, log_held=self.log_held)

    def _shaped(self, table: Tensor) -> Tensor:
        return table.reshape((*self.batch_shape, *table.shape[1:]))


def _entropy_of_shares(x: Tensor, y: Tensor) -> Tensor:
    """(x + y) times the entropy of the shares of x and y in it; 0 if either is 0."""
    both = (x > 0) & (y > 0)
    x, y = x.where(both, 1.0), y.where(both, 1.0)
    total = (x + y).log()
    return torch.where(both, x * (total - x.log()) + y * (total - y.log()), 0.0)
