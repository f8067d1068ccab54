r"""Semi-Markov chains: a hidden state that lasts for a number of steps drawn from a distribution of any form.

A path is a row of segments. The first state is drawn from an initial table, every next one from a row of transitions to
*other* states, and a segment of state k lasts d steps with probability $p_k(d)$, $1 \le d \le D$:

$$P(s, d, x) = P(s_1) \prod_i p_{s_i}(d_i) \prod_{i \ge 2} A(s_{i-1}, s_i) \prod_t p(x_t \mid s_t)$$

The sequence may end within a segment: its last one then counts with $P(d \ge \text{its steps})$ (right-censoring). It
may begin within one: the duration of its first segment then has a distribution of its own (left-censoring), see
`equilibrium`. The recursions over segments take O(K D + K^2) a step and memory for O(T K) numbers (Guedon 2003,
*Estimating hidden semi-Markov chains from discrete sequences*; Yu 2010, *Hidden semi-Markov models*, section 2.2). If
durations are geometric, this is a Markov chain.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.checks import check_possible, check_same_kind, check_shape, check_start, check_weights
from ...numerics.threads import sum_of_steps
from ..contract import Filtered, Marginals, Smoothed, Viterbi
from ..discrete import DiscreteChain
from ..markov.chain import check_moves
from . import op
from .plain import survivors

PARTS = "depends on the steps left of a segment, not on the state alone"


class SemiMarkovChain(DiscreteChain):
    r"""The posterior over paths of a semi-Markov chain, from its tables of log-weights.

    Arguments:
        log_initial: [*b, K], $\log P(s_1)$, the state of the first segment.
        log_transition: [*b, K, K], $\log A(old, new)$ of the next segment's state; its diagonal is -inf, as two
            segments of one state would be a longer one. [*b, T-1, K, K]: of segments that begin at steps 2 to T.
        log_duration: [*b, K, D], $\log p_k(d)$ at index d - 1.
        log_likelihood: [*b, T, K], $\log p(x_t \mid s_t)$.
        lengths: [*b], each sequence's number of steps; None: all have T. Likelihoods after the end are ignored.
        log_first_duration: [*b, K, D], of the rest of the first segment at the first step. None: it begins there, with
            the durations of all segments. `equilibrium(log_duration)`: the sequence was cut out of a long one.
        censored: whether the last segment may go on after the end of the sequence; False: it ends there.

    Weights are numbers, or -inf for an impossible event. Each row of durations adds up to 1 or less; other weights need
    not be normalised. Batch axes broadcast; a table shared by sequences is not copied.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device; lengths that are not
            integers.
        ValueError: shapes or lengths that do not fit together; a table with NaN or +inf, or transitions of a state to
            itself. From every method: an observation that is impossible under every state, NaN or +inf, with its
            sequence and step; so is the last step if no segments of these durations can end there.

    Guedon 2003, *Estimating hidden semi-Markov chains from discrete sequences*; Yu 2010, *Hidden semi-Markov models*.

    See Also:
        `MarkovChain`, whose durations are geometric; `SemiMarkov`, the dynamics of a model; docs/guides/durations.md.

    >>> import torch, samplehold as sh
    >>> seen = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1, 1])  # one of two states, observed correctly four times in five
    >>> likelihood = torch.where(seen.unsqueeze(-1) == torch.arange(2), 0.8, 0.2).log()
    >>> other = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).log()
    >>> three_to_six = torch.tensor([0.0, 0.0, 0.25, 0.25, 0.25, 0.25]).log().expand(2, 6)
    >>> chain = sh.chains.SemiMarkovChain(torch.tensor([0.5, 0.5]).log(), other, three_to_six, likelihood)
    >>> chain.viterbi().path
    tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    """

    _operators = op

    def __init__(
        self,
        log_initial: Tensor,
        log_transition: Tensor,
        log_duration: Tensor,
        log_likelihood: Tensor,
        lengths: Any = None,
        *,
        log_first_duration: Tensor | None = None,
        censored: bool = True,
    ):
        tables = {"log_initial": log_initial, "log_transition": log_transition, "log_duration": log_duration}
        first = {} if log_first_duration is None else {"log_first_duration": log_first_duration}
        check_same_kind(**tables, log_likelihood=log_likelihood, **first)
        self._size("log_likelihood", log_likelihood)
        k, longest = self.n_states, log_duration.shape[-1] if log_duration.dim() else 0
        self.varies: bool = check_moves(log_transition, log_likelihood)
        moves = log_transition.shape[-3 if self.varies else -2 :]
        sizes = {"log_initial": (k,), "log_transition": moves, "log_duration": (k, max(1, longest))}
        batches = {name: check_shape(name, table, sizes[name]) for name, table in tables.items()}
        if log_first_duration is not None:
            batches["log_first_duration"] = check_shape("log_first_duration", log_first_duration, (k, longest))
        self._share(
            lengths,
            log_likelihood.device,
            **batches,
            log_likelihood=log_likelihood.shape[:-2],
        )
        check_start(log_initial)
        for name, table in {**tables, **first}.items():
            check_weights(name, table)
        _check_stays(log_transition)
        self.log_initial = log_initial
        self.log_transition = log_transition
        self.log_duration = log_duration
        self.log_likelihood = log_likelihood
        self.log_first_duration = log_first_duration
        self.censored = censored

    def filter(self) -> Filtered:
        """The belief after each observation, [*b, T, K]; at the last one it includes that the sequence ends there.

        >>> import torch, samplehold as sh
        >>> other = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]])
        >>> two_or_three = torch.tensor([0.0, 0.5, 0.5]).log().expand(2, 3)
        >>> start = torch.tensor([1.0, 0.0]).log()
        >>> sh.chains.SemiMarkovChain(start, other, two_or_three, torch.zeros(5, 2)).filter().state[:, 0]
        tensor([1.0000, 1.0000, 0.5000, 0.0000, 0.2500])
        """
        total, state, predicted, increment = self._results(op.filter)
        return Filtered(total, increment, state, predicted=predicted)

    def smooth(self) -> Smoothed:
        """The belief given all observations, [*b, T, K], and expected numbers of moves between segments, [*b, K, K].

        >>> import torch, samplehold as sh
        >>> other = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]])
        >>> start, two = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log().expand(2, 2)
        >>> sh.chains.SemiMarkovChain(start, other, two, torch.zeros(5, 2)).smooth().state[:, 0]
        tensor([1., 1., 0., 0., 1.])
        """
        total, state, _, moves, _, _ = self._posterior()
        return Smoothed(total, state, transition=moves.sum(-3) if self.varies else moves)

    def marginals(self) -> Marginals:
        """The posterior of each table, shaped like it: the expected counts of EM.

        If a segment reaches the end of the sequence, `duration` has the distribution given that it lasts so long.
        """
        total, state, begins, moves, counts, _ = self._posterior()
        duration, first = self._duration_counts(counts)
        return Marginals(
            total, state, initial=begins[..., 0, :], transition=moves, duration=duration, first_duration=first
        )

    def segment_probability(self) -> Float[Tensor, "*b T K"]:
        """P(a segment of state k begins at step t | x), [*b, T, K]."""
        return self._posterior()[2]

    def viterbi(self) -> Viterbi:
        """The best path; its segments are the runs of equal states.

        >>> import torch, samplehold as sh
        >>> other = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]])
        >>> two = torch.tensor([-torch.inf, 0.0]).expand(2, 2)
        >>> likelihood = torch.tensor([[0.0, -3.0], [-1.0, 0.0], [0.0, -3.0], [0.0, -1.0]])
        >>> best = sh.chains.SemiMarkovChain(torch.zeros(2), other, two, likelihood).viterbi()
        >>> best.path, best.log_probability
        (tensor([1, 1, 0, 0]), tensor(-3.))
        """
        path, failed = op.viterbi(*self._tables())
        value = self._log_probability(path)
        self._check(failed, value)
        return Viterbi(path, value)

    def entropy(self) -> Float[Tensor, "*b"]:
        """Entropy of the posterior over paths, in nats, [*b]: the sum of the entropies of each choice of a state and a
        duration, so large numbers do not cancel.

        >>> import torch, samplehold as sh
        >>> other = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]])
        >>> chain = sh.chains.SemiMarkovChain(torch.zeros(2), other, torch.zeros(2, 1), torch.zeros(5, 2))
        >>> chain.entropy().exp()  # two paths
        tensor(2.)
        """
        return self._posterior()[5]

    def change_probability(self) -> Float[Tensor, "*b T"]:
        """P(a segment begins at t | x); 0 at the first step, which has no previous state, and after the end."""
        change = self._posterior()[2].sum(-1).clamp(0.0, 1.0)
        return change.index_fill(-1, torch.zeros(1, dtype=torch.int64, device=change.device), 0.0)

    def between(self, before: Tensor | None, after: Tensor | None) -> "SemiMarkovChain":
        """Not possible: the past of a part is summarised by a state and the steps left of its segment."""
        raise TypeError(f"chain: a part of a semi-Markov chain {PARTS}; give whole sequences.")

    def predictive(self, belief: Tensor) -> Float[Tensor, "*b T"]:
        """Not possible: the next state does not follow from a belief about the state."""
        raise TypeError(f"chain: the next state of a semi-Markov chain {PARTS}; see `filter().log_increment`.")

    def mean_field(self, state: Tensor | None = None, sweeps: int = 5) -> Marginals:
        """Not possible: most sequences of independent steps are no paths."""
        raise TypeError("chain: the steps of a semi-Markov chain are not independent; use the chain's own marginals.")

    def _tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows = _rows(self.log_duration, self.log_first_duration, censored=self.censored)
        moves = self.log_transition if self.varies else self.log_transition.unsqueeze(-3)
        return self.log_initial, moves, rows, self.log_likelihood, self.lengths

    def _posterior(self) -> list[Tensor]:
        total, state, begins, moves, *others = self._results(op.posterior)
        return [total, state, begins, moves if self.varies else moves.squeeze(-3), *others]

    def _check(self, failed: Tensor, total: Tensor | None = None) -> None:
        ends = "" if self.censored else ", or none can end at the last one"
        longest = self.log_duration.shape[-1]
        hint = f" Or no row of segments of {longest} steps at most reaches it{ends}; give longer durations."
        check_possible(failed, total, hint, log_likelihood=self.log_likelihood)

    def _duration_counts(self, counts: Tensor) -> tuple[Tensor, Tensor | None]:
        """The expected numbers of durations, [*b, K, D], and of those of first segments if they have their own."""
        with torch.enable_grad():
            shape = (*self.batch_shape, *self.log_duration.shape[-2:])
            tables = self.log_duration, self.log_first_duration
            leaves = [None if x is None else x.detach().double().expand(shape).clone().requires_grad_() for x in tables]
            assert leaves[0] is not None
            rows = _rows(leaves[0], leaves[1], censored=self.censored)
            sources = [x for x in leaves if x is not None]
            total = (torch.where(rows.isneginf(), 0.0, rows) * counts.detach()).sum()
            found = [x.to(counts) for x in torch.autograd.grad(total, sources)]
        return found[0], found[1] if len(found) > 1 else None

    def _log_probability(self, path: Tensor) -> Tensor:
        """log P(path, x), summed in float64."""
        initial, transition, rows, likelihood, lengths = self._tables()
        shape, k = path.shape, self.n_states
        t = torch.arange(self.n_steps, device=path.device).expand(shape)
        taken, real = path.clamp_min(0), path >= 0
        before, after = taken.roll(1, -1), taken.roll(-1, -1)
        begins, last = real & ((t == 0) | (before != taken)), t == lengths.unsqueeze(-1) - 1
        ends = real & (last | (after != taken))
        begin = torch.where(begins, t, 0).cummax(-1).values  # of the segment of each step
        place = 2 * (begin == 0) + last.long()
        longest = rows.shape[-1]
        duration = (t - begin).clamp_max(longest - 1)
        table = rows.double().expand(*shape[:-1], *rows.shape[-3:]).flatten(-3)
        lasting = table.gather(-1, (place * k + taken) * longest + duration)
        lasting = torch.where(t - begin < longest, lasting, -torch.inf)
        start = initial.double().expand(*shape[:-1], k).gather(-1, taken)
        into = transition.double().flatten(-2)
        if self.varies:
            into = torch.nn.functional.pad(into, (0, 0, 1, 0))  # the first step has no move
        moved = into.expand(*shape, k * k).gather(-1, (before * k + taken).unsqueeze(-1)).squeeze(-1)
        seen = likelihood.double().expand(*shape, k).gather(-1, taken.unsqueeze(-1)).squeeze(-1)
        enter = torch.where(t == 0, start, moved)
        terms = [seen.where(real, 0.0), enter.where(begins, 0.0), lasting.where(ends, 0.0)]
        return sum_of_steps(sum(terms[1:], terms[0])).to(self.log_likelihood.dtype)


def equilibrium(log_duration: Float[Tensor, "*b K D"]) -> Float[Tensor, "*b K D"]:
    r"""log-probabilities of what is left of a segment at a step chosen at random: $P(d \ge r) / E[d]$.

    >>> equilibrium(torch.tensor([[0.0, 0.0, 1.0]]).log()).exp()  # of three steps, 1, 2 or 3 are left
    tensor([[0.3333, 0.3333, 0.3333]])
    """
    left = survivors(log_duration)
    return left - left.logsumexp(-1, keepdim=True)


def _rows(log_duration: Tensor, log_first: Tensor | None, *, censored: bool) -> Tensor:
    """The rows of durations by place, [*b, 4, K, D]."""
    middle, first = torch.broadcast_tensors(log_duration, log_duration if log_first is None else log_first)
    last, only = (survivors(middle), survivors(first)) if censored else (middle, first)
    return torch.stack([middle, last, first, only], -3)


def _check_stays(log_transition: Tensor) -> None:
    stays = log_transition.detach().diagonal(dim1=-2, dim2=-1) > -torch.inf
    if bool(stays.any()):
        state = int(stays.nonzero()[0, -1])
        raise ValueError(
            f"log_transition: state {state} may follow itself, but log_duration decides how long a segment lasts; set "
            "the diagonal to -inf."
        )
