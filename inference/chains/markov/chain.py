r"""Markov chains: a hidden state with a K x K table of transition probabilities.

$$P(s_{1:T}, x) = P(s_1) \prod_{t \ge 2} A_t(s_{t-1}, s_t) \prod_t p(x_t \mid s_t)$$

The chain is an exponential family in the logarithms of its tables, and $\log p(x)$ is its log-normaliser: the gradient
with respect to each table is the posterior probability that its entry is used. The forward-backward recursions compute
it in one more pass (Rabiner 1989, *A tutorial on hidden Markov models*, section III):

$$a_t = l_t \odot (A_t^\top a_{t-1}) / c_t, \quad b_{t-1} = A_t (l_t \odot b_t) / c_t, \quad p(x) = \prod_t c_t$$
$$P(s_t \mid x) = a_t \odot b_t, \quad P(s_{t-1} = i, s_t = j \mid x) = a_{t-1}(i)\, A_t(i, j)\, l_t(j)\, b_t(j) / c_t$$

The first state is drawn from the initial table and meets the first observation without a transition; Pyro's
`DiscreteHMM` applies one before the first observation.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_possible, check_same_kind, check_shape, check_start, check_weights
from ...numerics.deferred import deferred
from ...numerics.threads import sum_of_steps
from ..contract import Filtered, Marginals, Smoothed, Viterbi, at_end, change_from_stay, inside
from ..discrete import DiscreteChain
from ..mean_field import check_finite, independent_steps
from . import op

LOST = 1e-290  # below it, a predicted probability may miss parts that underflow to 0 in float64
LARGE = 100  # nats per step that may cancel in an entropy; this costs the rounding of their square


class MarkovChain(DiscreteChain):
    r"""The posterior over paths of a Markov chain, from its tables of log-weights.

    Arguments:
        log_initial: [*b, K], $\log P(s_1)$.
        log_transition: $\log P(s_{t+1} = new \mid s_t = old)$ as [*b, K, K], one table [old, new] for all steps, or as
            [*b, T-1, K, K], one for each. It varies by step if it has one axis more than `log_likelihood`, and is
            constant if it has as many or fewer.
        log_likelihood: [*b, T, K], $\log p(x_t \mid s_t)$.
        lengths: [*b], each sequence's number of steps; None: all have T. Likelihoods after the end are ignored.

    Weights are numbers of size up to 1e290 or -inf, an impossible event, and need not be normalised; results are right
    to the rounding of their size. Batch axes broadcast; a table shared by sequences is not copied.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes or lengths that do not fit together; an initial or transition table with NaN or +inf. From
            every method: an observation that is impossible under every state, NaN or +inf, with its sequence and step.

    Rabiner 1989, *A tutorial on hidden Markov models*, section III.

    See Also:
        `CopyChain`, faster if all rows share one fresh state; `Markov`, the dynamics; `SemiMarkovChain`, of other
        durations.

    >>> import torch, samplehold as sh
    >>> seen = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1, 1])  # one of two states, observed correctly four times in five
    >>> likelihood = torch.where(seen.unsqueeze(-1) == torch.arange(2), 0.8, 0.2)
    >>> transition = torch.tensor([[0.95, 0.05], [0.05, 0.95]])
    >>> chain = sh.chains.MarkovChain(torch.tensor([0.5, 0.5]).log(), transition.log(), likelihood.log())
    >>> chain.viterbi().path
    tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    >>> chain.log_normalizer()
    tensor(-6.5439)
    """

    _operators, _choices = op, ()

    def __init__(
        self,
        log_initial: Tensor,
        log_transition: Tensor,
        log_likelihood: Tensor,
        lengths: Any = None,
    ):
        check_same_kind(log_initial=log_initial, log_transition=log_transition, log_likelihood=log_likelihood)
        self._size("log_likelihood", log_likelihood)
        self.varies: bool = check_moves(log_transition, log_likelihood)
        self.log_initial = log_initial
        self.log_transition = log_transition
        self.log_likelihood = log_likelihood
        self._share(
            lengths,
            log_likelihood.device,
            log_initial=check_shape("log_initial", log_initial, (self.n_states,)),
            log_transition=log_transition.shape[: -3 if self.varies else -2],
            log_likelihood=log_likelihood.shape[:-2],
        )
        check_start(log_initial)
        check_weights("log_transition", log_transition)

    def filter(self) -> Filtered:
        """The belief after each observation, [*b, T, K].

        >>> import torch, samplehold as sh
        >>> never_back = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).log()
        >>> sh.chains.MarkovChain(torch.tensor([1.0, 0.0]).log(), never_back, torch.zeros(4, 2)).filter().state[:, 0]
        tensor([1.0000, 0.5000, 0.2500, 0.1250])
        """
        total, state, increment = self._results(op.filter)
        return Filtered(total, increment, state)

    def smooth(self) -> Smoothed:
        """The belief given all observations, [*b, T, K], and the expected numbers of moves, [*b, K, K].

        >>> import torch, samplehold as sh
        >>> likelihood = torch.tensor([[0.0, 0.0], [0.0, 0.0], [-torch.inf, 0.0]])  # ends in state 1
        >>> never_back = torch.tensor([[0.5, 0.5], [0.0, 1.0]]).log()
        >>> smoothed = sh.chains.MarkovChain(torch.tensor([1.0, 0.0]).log(), never_back, likelihood).smooth()
        >>> smoothed.state[:, 0], smoothed.transition[0]
        (tensor([1.0000, 0.3333, 0.0000]), tensor([0.3333, 1.0000]))
        """
        total, state, transition = self._results(op.posterior)
        moves = transition.sum(-3) if self.varies else transition.squeeze(-3)
        return Smoothed(total, state, transition=moves)

    def marginals(self) -> Marginals:
        """The posterior of each table, shaped like it: the expected counts of EM and message passing.

        >>> import torch, samplehold as sh
        >>> chain = sh.chains.MarkovChain(torch.zeros(2), torch.zeros(2, 2), torch.zeros(5, 2))
        >>> chain.marginals().transition  # expected counts of 4 transitions
        tensor([[1., 1.],
                [1., 1.]])
        """
        total, state, transition = self._results(op.posterior)
        moves = transition if self.varies else transition.squeeze(-3)
        return Marginals(total, state, initial=state.select(-2, 0), transition=moves)

    def viterbi(self) -> Viterbi:
        """The best path; of equally good ones, the one whose last state has the least index, then the one before.

        >>> import torch, samplehold as sh
        >>> likelihood = torch.tensor([[0.0, -3.0], [-1.0, 0.0], [0.0, -3.0]])
        >>> best = sh.chains.MarkovChain(torch.zeros(2), torch.tensor([[0.0, -2.0], [-2.0, 0.0]]), likelihood).viterbi()
        >>> best.path, best.log_probability
        (tensor([0, 0, 0]), tensor(-1.))
        """
        path, failed = op.viterbi(*self._tables())
        value = self._log_probability(path)
        self._check(failed, value)
        return Viterbi(path, value)

    def entropy(self) -> Float[Tensor, "*b"]:
        r"""Entropy of the posterior over paths, in nats, [*b].

        $$H = \log p(x) - E[\log P(s_{1:T}, x)]$$

        where tables are divided by their largest entry, likelihoods by the largest of their step. If large numbers
        would cancel all the same, it is the sum of $H(s_T \mid x)$ and every $E[H(s_{t-1} \mid s_t, x)]$.

        >>> import torch, samplehold as sh
        >>> sh.chains.MarkovChain(torch.zeros(2), torch.zeros(2, 2), torch.zeros(5, 2)).entropy().exp()
        tensor(32.)
        """
        tables = [table.double() for table in self._tables()[:3]]
        tables = [table - _largest(table, dims) for table, dims in zip(tables, (1, 3, 1), strict=True)]
        log_initial, log_transition, log_likelihood = tables
        with deferred() as checks:
            total, state, transition, failed = op.posterior(*tables, self.lengths)
            self._check(failed)
            initial = _expectation(state[..., 0, :], log_initial).sum(-1)
            moves = sum_of_steps(_expectation(transition, log_transition).sum((-2, -1)))
            steps = sum_of_steps(_expectation(state, log_likelihood).sum(-1))
            large = (total.abs() + initial.abs() + moves.abs() + steps.abs()) / self.lengths
            (cancels,) = checks.settle((large > LARGE).any())
        if cancels:
            return self._entropy_of_pairs()
        return (total - initial - moves - steps).to(self.log_likelihood.dtype)

    def between(self, before: Tensor | None, after: Tensor | None) -> "MarkovChain":
        initial, table = self._ends(before, after)
        return MarkovChain(initial, self.log_transition, table, self.lengths)

    def _ends(self, before: Tensor | None, after: Tensor | None) -> tuple[Tensor, Tensor]:
        """The tables of the first state and of likelihoods, as a part of a longer chain."""
        initial, table = self.log_initial, self.log_likelihood
        if before is not None:
            initial, table = torch.zeros_like(initial), table.expand(*self.batch_shape, self.n_steps, self.n_states)
            table = torch.cat([before.expand_as(table[..., 0, :]).unsqueeze(-2), table[..., 1:, :]], -2)
        if after is not None:
            table = at_end(table, after, self.lengths)
        return initial, table

    def change_probability(self) -> Float[Tensor, "*b T"]:
        r"""P(s_t != s_{t-1} | x).

        With the filtered a it is

        $$1 - \sum_s P(s_t{=}s \mid x)\, \frac{a_{t-1}(s) A_{ss}}{\sum_{s'} a_{t-1}(s') A_{s's}}.$$

        >>> import torch, samplehold as sh
        >>> sh.chains.MarkovChain(torch.zeros(2), torch.zeros(2, 2), torch.zeros(3, 2)).change_probability()
        tensor([0.0000, 0.5000, 0.5000])
        """
        initial, moves, likelihood, lengths = (t.double() if t.is_floating_point() else t for t in self._tables())
        with deferred() as checks:
            _, filtered, _, failed = op.filter(initial, moves, likelihood, lengths)
            self._check(failed)
            before, after = filtered[..., :-1, :], op.posterior(initial, moves, likelihood, lengths)[1][..., 1:, :]
            greatest = moves.amax(-2, keepdim=True)  # of the moves to each state; this scale cancels
            table = (moves - torch.where(greatest.isfinite(), greatest, 0.0)).exp()
            kept = before * table.diagonal(dim1=-2, dim2=-1)
            alike = table.shape[-3] == 1  # in all steps
            predicted = before @ table.squeeze(-3) if alike else (before.unsqueeze(-2) @ table).squeeze(-2)
            (lost,) = checks.settle(((after > 0) & (predicted < LOST)).any())
        if lost:  # the predicted probability underflows
            stay = self._pairs()[1].diagonal(dim1=-2, dim2=-1).sum(-1)
        else:
            stay = (after * torch.where(predicted > 0, kept, 0.0) / torch.where(predicted > 0, predicted, 1.0)).sum(-1)
        return change_from_stay(stay.to(self.log_likelihood), self)

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """P(s_t | x) [*b, T, K] and P(s_t, s_t+1 | x) [*b, T-1, K, K], in float64."""
        initial, moves, likelihood, lengths = self._tables()
        moves = moves.double().expand(*moves.shape[:-3], self.n_steps - 1, *moves.shape[-2:])
        _, state, pairs, failed = op.posterior(initial.double(), moves, likelihood.double(), lengths)
        self._check(failed)
        return state, pairs

    def _entropy_of_pairs(self) -> Tensor:
        state, pairs = self._pairs()
        total = pairs.sum(-2, keepdim=True)
        there = pairs > 0
        shares = torch.where(there, pairs, 1.0).log() - torch.where(there, total, 1.0).log()
        last = state.gather(-2, (self.lengths - 1)[..., None, None].expand(*state.shape[:-2], 1, self.n_states))
        ends = -torch.special.xlogy(last, last.clamp_min(torch.finfo(last.dtype).tiny)).sum((-2, -1))
        return (ends - sum_of_steps((pairs * shares).sum((-2, -1)))).to(self.log_likelihood)

    def predictive(self, belief: Tensor) -> Float[Tensor, "*b T"]:
        moved = (belief[..., :-1, :].log().unsqueeze(-1) + self._moves()).logsumexp(-2)
        first = (self.log_initial.unsqueeze(-2) + self.log_likelihood[..., :1, :]).logsumexp(-1)
        later_ones = (moved + self.log_likelihood[..., 1:, :]).logsumexp(-1)
        return torch.cat([first.expand(*later_ones.shape[:-1], 1), later_ones], -1)

    def mean_field(self, state: Tensor | None = None, sweeps: int = 5) -> Marginals:
        shape = (*self.batch_shape, self.n_steps, self.n_states)
        within, moves = inside(self).unsqueeze(-1).expand(shape), self._moves()
        first = (torch.arange(self.n_steps, device=within.device) == 0).unsqueeze(-1)
        local = self.log_likelihood + torch.where(first, self.log_initial.unsqueeze(-2), 0.0)
        local = torch.where(within, local, 0.0)
        check_finite(log_likelihood=local, log_transition=moves)

        def forward(q: Tensor) -> Tensor:
            pushed = (q[..., :-1, :].unsqueeze(-2) @ moves).squeeze(-2)
            return torch.where(within, torch.nn.functional.pad(pushed, (0, 0, 1, 0)), 0.0)

        def backward(q: Tensor) -> Tensor:
            after = torch.where(within, q, 0.0)[..., 1:, :].unsqueeze(-1)
            return torch.nn.functional.pad((moves @ after).squeeze(-1), (0, 0, 0, 1))

        start = torch.where(within, self.smooth().state, 1 / self.n_states) if state is None else state
        bound, q = independent_steps(local, forward, backward, within[..., 0], start, sweeps)
        pairs = torch.einsum(
            "...ti,...tj->...tij" if self.varies else "...ti,...tj->...ij", q[..., :-1, :], q[..., 1:, :]
        )
        return Marginals(bound, q, initial=q[..., 0, :], transition=pairs)

    def _moves(self) -> Tensor:
        """Log-weights [*b, T-1 or 1, K, K] of the moves into each step but the first."""
        return self.log_transition if self.varies else self.log_transition.unsqueeze(-3)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tables and the lengths; transitions have an axis for steps, of length 1 if all steps share one table."""
        return self.log_initial, self._moves(), self.log_likelihood, self.lengths

    def _check(self, failed: Tensor, total: Tensor | None = None) -> None:
        check_possible(failed, total, log_likelihood=self.log_likelihood)

    def _log_probability(self, path: Tensor) -> Tensor:
        """log P(path, x), summed in float64."""
        log_initial, log_transition, log_likelihood, _ = self._tables()
        taken, real = path.clamp(0, self.n_states - 1), path >= 0  # the path of an impossible sequence may be anything
        start = log_initial.expand(*self.batch_shape, -1).gather(-1, taken[..., :1])
        steps = log_likelihood.expand(*self.batch_shape, -1, -1).gather(-1, taken.unsqueeze(-1)).squeeze(-1)
        moves = log_transition.flatten(-2).expand(*self.batch_shape, self.n_steps - 1, -1)
        moves = moves.gather(-1, (taken[..., :-1] * self.n_states + taken[..., 1:]).unsqueeze(-1)).squeeze(-1)
        terms = torch.cat([start, steps.where(real, 0), moves.where(real[..., 1:], 0)], -1)
        return sum_of_steps(terms.double()).to(path.device, terms.dtype)


def _largest(table: Tensor, n_own: int) -> Tensor:
    """The largest entry over the last `n_own` axes; 0 if there is none, or only -inf."""
    dims = tuple(range(-n_own, 0))
    if table.numel() == 0:
        return table.new_zeros(())
    top = table.detach().amax(dims, keepdim=True)
    return top.where(top.isfinite(), 0)


def _expectation(belief: Tensor, table: Tensor) -> Tensor:
    """belief * table, 0 where the belief is 0."""
    return belief * table.where(belief > 0, 0)


def check_moves(log_transition: Tensor, log_likelihood: Tensor) -> bool:
    """Raise `ValueError` unless both fit together; True if transitions vary with the step."""
    steps, states = log_likelihood.shape[-2:]
    varies = log_transition.dim() == log_likelihood.dim() + 1
    shape = (steps - 1, states, states) if varies else (states, states)
    if log_transition.dim() > log_likelihood.dim() + 1 or log_transition.shape[-len(shape) :] != shape:
        raise ValueError(
            f"log_transition: got shape {list(log_transition.shape)}, expected [*batch, {states}, {states}], one table "
            f"[old, new] for all steps, or [*batch, {steps - 1}, {states}, {states}], one for each move; it varies "
            f"by step if it has one axis more than log_likelihood, {list(log_likelihood.shape)}, so a batch of "
            "constant tables needs a log_likelihood with batch axes (of size 1, if it is shared)."
        )
    return varies
