r"""Semi-Markov dynamics: a state lasts for a number of steps from a distribution of any form, then another one begins.

$s_1 \sim \text{Categorical}(p)$, a segment of state k lasts d steps with $d - 1 \sim$ `duration`, and the next segment
has another state, $\sim \text{Categorical}(A_k)$ with $A_{kk} = 0$. See `chains.semi_markov`.

A belief that carries all that is known of the future is about the state and the steps r that are left of its segment
after this one. After the next step, with the probability $b(k, r)$ before it,

$$b'(k, r) = b(k, r + 1) + \sum_j b(j, 0) A_{jk}\, p_k(r + 1).$$

Forecasts need no such belief: they are the smoothed states of the same chain with more steps, of which nothing is seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.semi_markov.chain import SemiMarkovChain
from ...inference.families import SemiMarkovPaths, SemiMarkovTables
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.logs import log_probability
from ...inference.numerics.products import with_ones
from ...inference.numerics.scalars import check_choice, check_integer, check_states
from ..data.series import Drive, Series
from ..emissions.conjugate import ConjugateEmission
from ..emissions.contract import ByGate, Emission
from ..emissions.counts import NegativeBinomial
from ..inputs import Inputs, named_or_counted
from ..parameters import Parameters, kept, prefixed, widened, with_prefix
from ..priors import Conjugate
from ..responses import Response
from .contract import NOTHING, PATHS, Drawn, Dynamics, at_last, draw_state, pushed
from .durations import AXES, PREFIX, DurationBlock, Durations, check_law, longest_of
from .factors import segment_lengths
from .initial import given_start
from .markov import Markov
from .possible import check_paths
from .rates import read_moves, read_states

ROWS = "transition_probs"
REACH = 2  # message passing counts durations of up to so many times the steps of the series


@dataclass(frozen=True, repr=False)
class SemiMarkov(Dynamics):
    """A hidden semi-Markov chain: the steps in a state have a distribution of their own.

    Parameters `initial_probs [K]`, `transition_probs [K, K]` of the next segment's state, indexed [old, new] with a
    diagonal of 0, and those of the duration with the prefix `duration_`, such as `duration_rate [K, 1]`. A segment
    lasts one step more than the count that `duration` describes.

    Arguments:
        n_states: K, at least 2.
        duration: the distribution of the steps after a segment's first one: `NegativeBinomial()`, the default,
            `Poisson()`, `Geometric()`, which is a Markov chain, `Categorical(max)` for any durations up to max steps,
            or another emission of one count. Its prior is that of the parameters.
        first_segment: "whole": the first segment begins at the first step. "cut": it may have begun before, as in a
            part of a long series, so what is left of it has the probability P(d >= r) / E[d].
        last_segment: "cut": the last segment may go on after the end. "whole": it ends there.
        max_duration: a segment ends after so many steps at the latest; None: there is no limit. A step costs as many
            operations as a segment may have steps, so give one for a long series.
        initial: the distribution of the first state. "free": a parameter, `initial_probs`. Or K probabilities.
        initial_prior: Dirichlet concentration of the first state, scalar or [K].
        transition_prior: Dirichlet concentration of each row, scalar, [K] or [K, K]; its diagonal is ignored.
        mask: [K, K], False where a move is impossible; the diagonal is ignored. None: all moves are possible, except
            from absorbing states.
        inputs: the inputs of the moves between segments: C names, or their number. The state of a segment that begins
            at step t is drawn with probabilities proportional to `transition_probs[i, j] *
            exp(transition_weights[i, j] @ inputs[t])`; see `Markov`. The weights of the first possible move of each row
            are 0, so the states of a fit keep their order.
        absorbing: the numbers of the states that are never left, such as the last phase of a trial. Their segments have
            no end, so their parameters of durations are not used and keep to the prior. A state without an exit has to
            be one of them.

    EM, SVI and NUTS accept any duration. Message passing accepts those with a conjugate prior (`Poisson`, `Geometric`,
    `Categorical`), a first segment that is "whole", and no absorbing states. It counts durations of up to twice the
    series' length, so its bound is a little lower than it could be where segments are longer.

    Raises:
        TypeError: a number of states that is not an integer; a duration that is not an emission.
        ValueError: fewer than two states; a duration that is not one count; a state without an exit that is not
            absorbing; an absorbing state with one, or with `last_segment="whole"`; other words.

    Guedon 2003, *Estimating hidden semi-Markov chains from discrete sequences*; Yu 2010, *Hidden semi-Markov models*.

    See Also:
        `Markov`, whose durations are geometric; `chains.SemiMarkovChain`, its inference; docs/guides/durations.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.SemiMarkov(2, sh.Poisson()), sh.Normal())
        >>> other = [[0.0, 1.0], [1.0, 0.0]]
        >>> model = model.with_values(
        ...     initial_probs=[0.5, 0.5], transition_probs=other, duration_rate=[[2.0], [4.0]],
        ...     loc=[[0.0], [1.0]], scale=[[0.4], [0.4]],
        ... )
        >>> model.viterbi([0.1, -0.3, 0.6, 0.2, 0.9, 1.1, 0.4, 1.3]).path
        tensor([0, 0, 0, 0, 1, 1, 1, 1])
    """

    n_states: int
    duration: Emission = NegativeBinomial()  # noqa: RUF009 it is frozen
    first_segment: str = "whole"
    last_segment: str = "cut"
    max_duration: int | None = None
    initial: str | Sequence[float] = "free"
    initial_prior: float | Sequence[Any] = 1.0
    transition_prior: float | Sequence[Any] = 1.0
    mask: Sequence[Sequence[bool]] | Any = None
    inputs: Inputs | Sequence[str] = 0  # type: ignore[assignment]
    absorbing: Sequence[int] = ()
    paths_tell: ClassVar[bool] = False  # not the duration of a segment that is cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_states", check_states("n_states", self.n_states, least=2))
        check_law(self.duration)
        check_choice("first_segment", self.first_segment, ("whole", "cut"))
        check_choice("last_segment", self.last_segment, ("cut", "whole"))
        if self.max_duration is not None:
            object.__setattr__(self, "max_duration", check_integer("max_duration", self.max_duration))
            if longest_of(self.duration):
                raise ValueError(
                    f"max_duration: got {self.max_duration}, but {self.duration!r} has a limit already; leave it out."
                )
        object.__setattr__(self, "initial", given_start(self.initial, self.n_states, ("free",)))
        object.__setattr__(self, "inputs", named_or_counted(self.inputs))
        object.__setattr__(self, "absorbing", read_states(self.absorbing, "absorbing", self.n_states))
        moves = read_moves(self.mask, self.absorbing, self.n_states, "move")
        object.__setattr__(self, "mask", None if self.mask is None else moves)
        if self.absorbing and self.last_segment == "whole":
            raise ValueError(
                f"absorbing: got {list(self.absorbing)}, whose segments have no end, but last_segment is "
                '"whole"; use last_segment="cut".'
            )
        self.default_prior()

    @cached_property
    def possible(self) -> Bool[Tensor, "K K"]:
        """Which moves between segments are possible."""
        return torch.tensor(read_moves(self.mask, self.absorbing, self.n_states), device="cpu")

    @cached_property
    def _endless(self) -> Bool[Tensor, "K"]:
        """Which states are absorbing."""
        return torch.tensor([state in self.absorbing for state in range(self.n_states)], device="cpu")

    @cached_property
    def _durations(self) -> Durations:
        return Durations(self.duration, self.max_duration)

    @cached_property
    def _moves(self) -> Markov:
        """The states of the segments, as a Markov chain without stays, except in absorbing states."""
        return Markov(
            self.n_states,
            self.initial_prior,
            self.transition_prior,
            inputs=self.inputs,
            initial=self.initial,
            mask=tuple(map(tuple, (self.possible | self._endless.diag()).tolist())),
        )

    @property
    def responses(self) -> tuple[Response, ...]:
        return self._moves.responses

    @property
    def forward(self) -> bool:
        return self._moves.forward

    @property
    def numbered(self) -> bool:
        known = self.mask is not None or bool(self.absorbing)
        return known or not isinstance(self.initial, str) or bool(self.n_inputs)

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        return {**self._moves.blocks, "duration": DurationBlock(self.duration)}

    @cached_property
    def message_blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        return {**self._moves.message_blocks, "duration": DurationBlock(self.duration)}

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {AXES[dim]: n for dim, n in self.duration.sizes.items() if dim in AXES}

    @property
    def not_conjugate(self) -> str | None:
        return self._moves.not_conjugate or self.no_messages

    @property
    def no_messages(self) -> str | None:
        law = self.duration
        if self.first_segment == "cut":
            return "its first segment is cut"
        if self.absorbing:
            return "segments of its absorbing states have no end"
        if not isinstance(law, ConjugateEmission) or not law.is_conjugate:
            return f"its durations are {law.name} without a conjugate prior"
        return None

    def default_prior(self, series: Series | None = None) -> Parameters:
        of_durations = self.duration.prior_scaled(self.n_states, self._typical(series))
        return self._moves.default_prior(series) | prefixed(of_durations, PREFIX)

    def _typical(self, series: Series | None) -> Float[Tensor, "N 1"] | None:
        """Counts of vague durations in a series."""
        if series is None or longest_of(self.duration):
            return None
        mean = max(1.0, series.n_steps / (2 * self.n_states))
        return torch.tensor([[0.0], [2 * mean]], dtype=torch.float64, device="cpu")

    # ---- paths -----------------------------------------------------------------------------------------------------

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
    ) -> Chain:
        table = likelihood.redrawn
        n_batch = table.ndim - values[ROWS].ndim
        first = self._first_rows(values, n_batch, table.shape[-2])
        return SemiMarkovChain(
            log_probability(self._start(values, n_batch)).to(table),
            self._log_exits(values, drive.at(slice(1, None)), n_batch).to(table),
            self._lasting(self._rows(values, n_batch, table.shape[-2]), table.shape[-2]).to(table),
            table,
            lengths,
            log_first_duration=None if first is None else self._lasting(first, table.shape[-2]).to(table),
            censored=self.last_segment == "cut",
        )

    def _start(self, values: Parameters, n_batch: int) -> Float[Tensor, "*rb K"]:
        """P(s_1); the axes *b have length 1."""
        if not isinstance(self.initial, str):
            return torch.tensor(self.initial, dtype=torch.float64).to(values[ROWS])
        return widened(values["initial_probs"], 1, n_batch)

    def _log_moves(self, values: Parameters, drive: Drive, n_batch: int) -> Tensor:
        """The logarithms of the transitions, [*r, *b, K, K]; with inputs of each step, [*r, *b, S, K, K]."""
        if self.n_inputs:
            return self._moves.log_rows_at(values, drive, n_batch)
        return log_probability(widened(values[ROWS], 2, n_batch))

    def _log_exits(self, values: Parameters, drive: Drive, n_batch: int) -> Tensor:
        """The same without stays in absorbing states, whose segments have no end."""
        moves = self._log_moves(values, drive, n_batch)
        return torch.where(self._endless.diag().to(moves.device), -torch.inf, moves) if self.absorbing else moves

    def _lasting(self, rows: Float[Tensor, "*rb K D"], n_steps: int) -> Float[Tensor, "*rb K longest"]:
        """log p(d) of segments in a series of so many steps, in which those of absorbing states last to the end.

        The rows themselves serve programs and streams, in which an absorbing state follows itself.
        """
        if not self.absorbing:
            return rows
        rows = torch.nn.functional.pad(rows, (0, n_steps + 1 - rows.shape[-1]), value=-torch.inf)
        forever = torch.full_like(rows[..., :1, :], -torch.inf)
        forever[..., -1] = 0.0
        return torch.where(self._endless.unsqueeze(-1).to(rows.device), forever, rows)

    def _rows(self, values: Parameters, n_batch: int, n_steps: int) -> Float[Tensor, "*rb K D"]:
        """log p(d) of segments in a series of so many steps."""
        table = self._durations.log_table(with_prefix(values, PREFIX), self._durations.n_entries(n_steps))
        return widened(table, 2, n_batch)

    def _first_rows(self, values: Parameters, n_batch: int, n_steps: int) -> Float[Tensor, "*rb K D"] | None:
        """The same of the first segment, if it has a distribution of its own."""
        if self.first_segment == "whole":
            return None
        table = self._durations.log_first(with_prefix(values, PREFIX), self._durations.n_entries(n_steps))
        return widened(table, 2, n_batch)

    def first(self, values: Parameters, drive: Drive) -> Tensor:
        return self._start(values, 0)

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        mean = self._durations.mean(with_prefix(values, PREFIX))
        return mean.masked_fill(self._endless.to(mean.device), torch.inf)

    def ahead(self, values: Parameters, chain: Any, drive: Drive, horizon: int) -> ByGate:
        table, lengths, moves = chain.log_likelihood, chain.lengths, chain.log_transition
        n_batch, n_steps = table.ndim - values[ROWS].ndim, table.shape[-2]
        later = self._log_exits(values, drive, n_batch).to(table)
        start, first, n_seen = chain.log_initial, self._first_rows(values, n_batch, n_steps + horizon), lengths
        if self.last_segment == "whole":  # another segment begins after the end
            state = at_last(chain.filter().state, lengths)
            into = later[..., 0, :, :] if self.n_inputs else later
            start, first = log_probability((state.unsqueeze(-2) @ into.exp()).squeeze(-2)), None
            table, n_steps, n_seen = table.new_zeros(*lengths.shape, 0, self.n_states), 0, torch.zeros_like(lengths)
            moves = later[..., 1:, :, :] if self.n_inputs else later
        elif self.n_inputs:
            moves = torch.cat([moves, later], -3)
        steps = torch.arange(n_steps + horizon, device=table.device)
        seen = torch.nn.functional.pad(table, (0, 0, 0, horizon))
        seen = torch.where((steps < n_seen.unsqueeze(-1)).unsqueeze(-1), seen, 0.0)
        rows = self._lasting(self._rows(values, n_batch, n_steps + horizon), n_steps + horizon).to(table)
        first = None if first is None else self._lasting(first, n_steps + horizon).to(table)
        extended = SemiMarkovChain(start, moves, rows, seen, n_seen + horizon, log_first_duration=first)
        place = n_seen.unsqueeze(-1) + steps[:horizon]
        state = extended.smooth().state.take_along_dim(place.unsqueeze(-1), -2)
        return ByGate(state, torch.zeros_like(state))

    def log_start(self, values: Parameters, drive: Drive) -> Tensor:
        n = self._n_left()
        first = self._first_rows(values, 0, n)
        rows = self._rows(values, 0, n) if first is None else first
        return (log_probability(self._start(values, 0)).unsqueeze(-1) + rows).flatten(-2).to(values[ROWS])

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor]:
        (table,) = self._moves.tables(values, self._n_batch(values, belief), drive, 1)
        return (log_probability(self._moved(values, belief, table)),)

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        """After a belief about the states alone, of segments that end, P(next state) of one step."""
        tables, states = self._moves.tables(values, self._n_batch(values, belief), drive, horizon), []
        if belief.shape[-1] == self.n_states:
            return pushed(belief, tables)
        for table in tables:
            belief = self._moved(values, belief, table)
            states.append(belief.unflatten(-1, (self.n_states, -1)).sum(-1))
        state = torch.stack(states, -2)
        return ByGate(state, torch.zeros_like(state))

    def _n_batch(self, values: Parameters, belief: Tensor) -> int:
        return belief.ndim + 1 - values[ROWS].ndim

    def _moved(self, values: Parameters, belief: Float[Tensor, "*b M"], table: Tensor) -> Float[Tensor, "*b M"]:
        """The belief about the state and the steps left one step later."""
        by_left = belief.unflatten(-1, (self.n_states, -1))
        enter = (by_left[..., :1].mT @ table.to(belief)).mT
        new = enter * self._rows(values, self._n_batch(values, belief), self._n_left()).exp().to(belief)
        return torch.nn.functional.pad(by_left[..., 1:], (0, 1)).add(new).flatten(-2)

    def _n_left(self) -> int:
        """The number of possible numbers of steps that are left of a segment."""
        if self._durations.longest is None:
            raise ValueError(
                f"max_duration: got None, but a stream of {self!r} remembers how many steps a segment may still last; "
                "give the longest duration."
            )
        return self._durations.longest

    def draw(self, values: Parameters, step: int, previous: Drawn | None, drive: Drive, n_steps: int) -> Drawn:
        rows = self._rows(values, 0, n_steps).exp()
        if previous is None:
            first = self._first_rows(values, 0, n_steps)
            state = draw_state(f"s_{step}", self.first(values, drive))
            lasting = of_state(rows if first is None else first.exp(), state)
        else:
            assert previous.left is not None
            ends, old = (previous.left == 0).unsqueeze(-1), torch.nn.functional.one_hot(previous.state, self.n_states)
            table = self._log_moves(values, drive.at(slice(step - 1, step)), 0).exp()
            moves = of_state(table.squeeze(-3) if self.n_inputs else table, previous.state)
            state = draw_state(f"s_{step}", torch.where(ends, moves, old.to(moves)))
            less = torch.nn.functional.one_hot((previous.left - 1).clamp_min(0), rows.shape[-1])
            lasting = torch.where(ends, of_state(rows, state), less.to(rows))
        return Drawn(torch.ones_like(state), state, draw_state(f"left_{step}", lasting))

    def log_end(self, last: Drawn) -> Tensor | None:
        assert last.left is not None
        return None if self.last_segment == "cut" else torch.where(last.left == 0, 0.0, -torch.inf)

    def used(self, values: Parameters) -> Mapping[str, Bool[Tensor, "..."]]:
        names = self.blocks["duration"].parameters if self.absorbing else ()
        return {name: (~self._endless).unsqueeze(-1).to(values[name].device) for name in names}

    def check_states(self, series: Series, fixed: Parameters = NOTHING) -> None:
        moves = self.possible
        if ROWS in fixed:
            moves = moves & (fixed[ROWS].cpu() != 0)
        check_paths(series, self.initial, moves | torch.eye(self.n_states, dtype=torch.bool, device="cpu"), fixed)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def marginals(self, chain: Any, drive: Drive) -> Marginals:
        marginals = chain.marginals()
        if not self.n_inputs:
            return marginals
        assert drive.inputs is not None
        moved, design = marginals.transition, with_ones(drive.inputs[..., 1:, : self.n_inputs])
        sums = torch.einsum("...sij,...sd->...ijd", moved, design.to(moved))
        return replace(marginals, transition=None, moves=sums, leaving=moved.sum(-1))

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        """Those of the states of segments; durations have no counts of one size: see `maximize`."""
        return self._moves.counts(marginals, lead)

    def alike(self, name: str, tables: list[Tensor], values: Parameters) -> list[Tensor]:
        """Durations of all parts up to the longest one of any, beyond which the last entry counts."""
        n, of_durations, own = max(table.shape[-1] for table in tables), self._durations, with_prefix(values, PREFIX)
        laws = {"duration": of_durations.log_table, "first_duration": of_durations.log_first}
        if name not in laws:
            return tables
        rows = self._lasting(laws[name](own, min(n, of_durations.n_entries(n))), n - 1)
        return [_longer(table, rows) for table in tables]

    def adds_up(self, drive: Drive) -> bool:
        return False

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters = NOTHING,
    ) -> Parameters:
        modes = self._moves.maximize(marginals, prior, values, drive, fixed)
        lead, own = values[ROWS].shape[:-2], with_prefix(values, PREFIX)
        tables = [marginals.duration, marginals.first_duration]
        counts, first = (None if t is None else self._counted(t.reshape(*lead, -1, *t.shape[-2:])) for t in tables)
        assert counts is not None
        step = own, None if prior is None else with_prefix(prior, PREFIX), with_prefix(fixed, PREFIX)
        of_durations = self._durations
        best = of_durations.maximal(counts, *step) if first is None else of_durations.climbed(counts, first, *step)
        return modes | kept(prefixed(best, PREFIX), values)

    def _counted(self, counts: Float[Tensor, "*r b K longest"]) -> Float[Tensor, "*r K D"]:
        """The numbers of segments of all sequences by duration, without those that have no end."""
        counts = counts.sum(-3)
        if not self.absorbing:
            return counts
        counts = counts[..., : self._durations.n_entries(counts.shape[-1] - 1)]
        return counts.masked_fill(self._endless.unsqueeze(-1).to(counts.device), 0.0)

    def start(self, labels: Tensor, series: Series) -> Parameters:
        runs = _runs_of(labels, series.inside, self.n_states, self._durations.n_entries(series.n_steps))
        prior = with_prefix(self.default_prior(series), PREFIX)
        return self._moves.start(labels, series) | prefixed(self._durations.start(runs, prior), PREFIX)

    def paths(
        self, series: Series, lead: tuple[int, ...], gated: bool, alike: bool
    ) -> tuple[SemiMarkovPaths, SemiMarkovTables]:
        family, of_moves = self._moves.paths(series, lead, gated, alike)
        assert family.base is not None
        initial, moves, steps = of_moves
        durations = steps.new_zeros(()).expand(*steps.shape[:-2], self.n_states, self._n_counted(series))
        first, possible, none = family.base
        base = SemiMarkovTables(first, possible, none, none)
        paths = SemiMarkovPaths(series.lengths, base, censored=self.last_segment == "cut")
        return paths, SemiMarkovTables(initial, moves, durations, steps)

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        law, n_axes = self.duration, len(series.batch_shape) + 1
        assert isinstance(law, ConjugateEmission)
        x = torch.arange(self._n_counted(series)).to(series.like).unsqueeze(-1)
        of_moves = self._moves.factors(series, counted, gated)
        return [*of_moves, segment_lengths("duration", PATHS, n_axes, law, x)]

    def _n_counted(self, series: Series) -> int:
        """The longest duration that message passing counts."""
        longest = REACH * series.n_steps
        return longest if self._durations.longest is None else min(longest, self._durations.longest)


def of_state(table: Float[Tensor, "*b K n"], state: Tensor) -> Float[Tensor, "*c n"]:
    """The rows of a table at states that broadcast against its batch axes."""
    old = torch.nn.functional.one_hot(state, table.shape[-2]).to(table)
    return (old.unsqueeze(-2) @ table).squeeze(-2)


def _longer(counts: Float[Tensor, "*r b K n"], log_probs: Float[Tensor, "*r K D"]) -> Float[Tensor, "*r b K D"]:
    """Counts of durations, with that of n steps or more divided among the durations of a longer table."""
    n, tail = counts.shape[-1], log_probs[..., counts.shape[-1] - 1 :]
    shares = tail.softmax(-1).nan_to_num(0.0).unsqueeze(-3)
    return torch.cat([counts[..., : n - 1], counts[..., -1:] * shares.to(counts)], -1)


def _runs_of(
    labels: Int[Tensor, "*rb T"], inside: Bool[Tensor, "*b T"], n_states: int, n_entries: int
) -> Float[Tensor, "*r K D"]:
    """How often each state lasts so many steps; longer runs count at the end."""
    lead, t = labels.shape[: labels.ndim - inside.ndim], torch.arange(labels.shape[-1], device=labels.device)
    inside = inside.expand_as(labels)
    begins = inside & ((t == 0) | (labels.roll(1, -1) != labels))
    ends = inside & (~inside.roll(-1, -1) | (t == t[-1]) | (labels.roll(-1, -1) != labels))
    lasted = (t - torch.where(begins, t, 0).cummax(-1).values).clamp_max(n_entries - 1)
    place = (labels * n_entries + lasted).reshape(*lead, -1)
    count = torch.zeros(*lead, n_states * n_entries, dtype=torch.float64, device=labels.device)
    return count.scatter_add(-1, place, ends.reshape(*lead, -1).double()).unflatten(-1, (n_states, n_entries))
