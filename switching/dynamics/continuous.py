r"""A Markov chain in continuous time, seen at any times.

With a generator Q, $P(s_t \mid s_{t-1}) = (e^{Q d_t})_{s_{t-1} s_t}$ after a gap $d_t$. The steps are a Markov chain
whose table depends on the gap alone, so each distinct gap has one table: see `gaps`.

**Learning** (Hobolth & Jensen 2011, *Summary statistics for endpoint-conditioned continuous-time Markov chains*). With
the expected moves $n_t(i, j)$ of each step, the expected time in state k and the expected jumps from k to l are

$$E[T_k] = \frac{\partial L}{\partial Q_{kk}}, \qquad E[N_{kl}] = q_{kl} \frac{\partial L}{\partial Q_{kl}}, \qquad
L = \sum_t \sum_{ij} n_t(i, j) \log P_t(i, j),$$

where entries of Q are taken as independent (see `numerics.jumps`). The M-step is that of Gamma rates,
$(N_{kl} + a - 1) / (T_k + b)$.

With inputs, $q_{kl}(c) = q_{kl}\, e^{w_{kl}^\top c}$ with the inputs c of the step at the end of a gap, which hold
during the gap. The M-step is then that of Poisson regressions of the jumps, one for each rate (`rates.RateLikelihood`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyro
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.markov.chain import MarkovChain
from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.logs import log_probability
from ...inference.numerics.scalars import check_states
from ...inference.numerics.user_warnings import warn_user
from ..data.packed import rows_of
from ..data.series import Drive, Series
from ..emissions.contract import ByGate
from ..inputs import Inputs, named_or_counted
from ..parameters import Parameters, concentration, kept, read_table, widened
from ..priors import Conjugate, Probabilities
from ..responses import Positive, Response
from .contract import NOTHING, Drawn, Dynamics, draw_state, pushed, stepped
from .factors import by_state
from .gaps import Entered, Steps, after_gaps, check_gaps, gaps_of, mean_gap
from .initial import given_start
from .possible import check_paths
from .rates import (
    NAME,
    WEIGHTS,
    JumpRates,
    generator_of,
    maximal_rates,
    rate_weights,
    read_moves,
    read_states,
    without_diagonal,
)
from .rows import InputWeights

FORGOTTEN = 1e-3  # difference of the rows of a table, below which a step does not depend on the one before


@dataclass(frozen=True, repr=False)
class ContinuousMarkov(Dynamics):
    """A hidden Markov chain in continuous time.

    Parameters `rates [K, K]`, indexed [old, new] with a diagonal of 0, in jumps per unit of time, and `initial_probs
    [K]`, the distribution of the state at the first step. `with_values(rates=...)` accepts a generator too, whose
    diagonal is minus the sum of the others of its row. The unit of time is the unit of `dt` (gaps between steps) or of
    `time` (times of the steps). Without these all gaps are 1. With inputs there are `rates_weights [K, K, C]`, and the
    rate in the gap before step t is `rates[i, j] * exp(rates_weights[i, j] @ inputs[t])`.

    Arguments:
        n_states: K.
        mask: [K, K], False where a jump is impossible, so that its rate is 0 in every method; the diagonal is ignored.
            None: all jumps are possible, except from absorbing states.
        absorbing: the numbers of the states that are never left. A state without an exit has to be one of them.
        exact: absorbing states whose time of entry is known. At a step that is known to have such a state (by
            `states=`), the chain has entered it exactly then, or before the step before it. log p(x) is then a log
            density, in the unit of time. At other steps the state may have been entered at any time since the step
            before.
        inputs: the inputs of the rates: C names, or their number. Priors of rates are then those at the mean inputs of
            a fit. The weights have normal priors of scale 2.5, for inputs of unit variance; a fit scales inputs to it.
        initial: the distribution of the first state. "free": a parameter, `initial_probs`. Or K probabilities.
        initial_prior: Dirichlet concentration of the first state, scalar or [K].
        rate_prior: shape and rate of the Gamma prior of each rate; each is a number or [K, K]. They count shape - 1
            jumps, and a time in the state. None: 1, and the mean gap of the data.

    Fits order the states by their locations, unless a mask, absorbing states or probabilities of the first state tell
    them apart. EM, SVI and NUTS support these dynamics, message passing does not.

    Raises:
        TypeError: a number of states that is not an integer; a mask that has no truth values.
        ValueError: a state without an exit that is not absorbing; an absorbing state with one; a state in `exact` that
            is not absorbing; another `initial`; a prior that is not positive.

    Hobolth & Jensen 2011, *Summary statistics for endpoint-conditioned continuous-time Markov chains*, for learning.

    See Also:
        `Markov`, for steps of equal length; `Copy`, which also reads gaps; docs/guides/continuous_time.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.ContinuousMarkov(2), sh.Poisson())
        >>> model = model.with_values(initial_probs=[0.5, 0.5], rates=[[-0.1, 0.1], [0.3, -0.3]], rate=[[1.0], [9.0]])
        >>> model.smooth([0, 2, 1, 8], time=[0.0, 0.5, 4.0, 4.25]).state[:, 1].round(decimals=2)
        tensor([0.0000, 0.0000, 0.0300, 1.0000], dtype=torch.float64)
    """

    n_states: int
    mask: Sequence[Sequence[bool]] | Any = None
    absorbing: Sequence[int] = ()
    exact: Sequence[int] = ()
    inputs: Inputs | Sequence[str] = 0  # type: ignore[assignment]
    initial: str | Sequence[float] = "free"
    initial_prior: float | Sequence[Any] = 1.0
    rate_prior: Sequence[Any] | None = None
    counts_by_step: ClassVar[bool] = True
    at_once: ClassVar[bool] = False
    may_need_states: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_states", check_states("n_states", self.n_states))
        object.__setattr__(self, "inputs", named_or_counted(self.inputs))
        for name in ("absorbing", "exact"):
            object.__setattr__(self, name, read_states(getattr(self, name), name, self.n_states))
        moves = read_moves(self.mask, self.absorbing, self.n_states)
        object.__setattr__(self, "mask", None if self.mask is None else moves)
        for state in self.exact:
            if state not in self.absorbing:
                raise ValueError(
                    f"exact: got state {state}, which is not absorbing; name states of {list(self.absorbing)}."
                )
        object.__setattr__(self, "initial", given_start(self.initial, self.n_states, ("free",)))
        prior = self.rate_prior
        if prior is not None and (not isinstance(prior, list | tuple) or len(prior) != 2):
            raise ValueError(f"rate_prior: got {prior!r}, expected a shape and a rate, such as (2.0, 1.0).")
        self.default_prior()  # raises an error for numbers that are not positive

    @cached_property
    def possible(self) -> Bool[Tensor, "K K"]:
        """Which jumps are possible."""
        moves = read_moves(self.mask, self.absorbing, self.n_states)
        return torch.tensor(moves, dtype=torch.bool, device="cpu")

    @cached_property
    def _reachable(self) -> Bool[Tensor, "K K"]:
        """The states that may follow a gap."""
        reach = (self.possible | torch.eye(self.n_states, dtype=torch.bool, device="cpu")).double()
        for _ in range(self.n_states.bit_length()):
            reach = (reach @ reach > 0).double()
        return reach > 0

    @property
    def responses(self) -> tuple[Response, ...]:
        if not self.n_inputs:
            return ()
        inputs: Any = {WEIGHTS: self.inputs}
        return (Response(NAME, Positive(), inputs, ("rates_shape", "rates_time")),)

    @property
    def forward(self) -> bool:
        return self.n_states > 1 and not bool(self.possible.tril(-1).any())

    @property
    def numbered(self) -> bool:
        return self.mask is not None or bool(self.absorbing) or not isinstance(self.initial, str)

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        start = {"initial": Probabilities("initial_probs", "initial_concentration", ("state",))}
        weights = {WEIGHTS: rate_weights(self.possible, self.n_inputs)} if self.n_inputs else {}
        return (start if isinstance(self.initial, str) else {}) | {NAME: JumpRates(self.possible)} | weights

    @property
    def not_conjugate(self) -> str | None:
        return "its jumps between two steps are not seen"

    def default_prior(self, series: Series | None = None) -> Parameters:
        shape, time = (1.0, mean_gap(series)) if self.rate_prior is None else self.rate_prior
        table, start = (self.n_states, self.n_states), {}
        if isinstance(self.initial, str):
            start = {"initial_concentration": concentration(self.initial_prior, (self.n_states,), "initial_prior")}
        prior = {"rates_shape": shape, "rates_time": time}
        weights = self.blocks.get(WEIGHTS)
        start |= weights.default_prior() if isinstance(weights, InputWeights) else {}
        return start | {name: concentration(value, table, "rate_prior") for name, value in prior.items()}

    def check_values(self, values: Parameters) -> Parameters:
        given = {NAME: without_diagonal(values[NAME])} if NAME in values else {}
        return super().check_values({**values, **given})

    def check_drive(self, drive: Drive, batch_shape: torch.Size, n_steps: int) -> None:
        gaps, expected = drive.gaps, (*batch_shape, n_steps)
        if gaps is not None and tuple(gaps.shape) != expected:
            raise ValueError(f"dt: got shape {tuple(gaps.shape)}, expected {expected}: the gap before each step.")
        if gaps is not None and not bool(((gaps[..., 1:] >= 0) & torch.isfinite(gaps[..., 1:])).all()):
            raise ValueError("dt: got gaps that are negative or not finite; give the time since the step before.")

    # ---- tables ----------------------------------------------------------------------------------------------------

    def generators(
        self, values: Parameters, inputs: Float[Tensor, "*#b U C"] | None = None
    ) -> Float[Tensor, "*r #U K K"]:
        """The rates with minus the sum of each row on the diagonal, in float64: at inputs 0, or at each of some."""
        rates = values[NAME].double().unsqueeze(-3)
        if inputs is not None:
            logits = (inputs.double()[..., None, None, :] * values[WEIGHTS].double().unsqueeze(-4)).sum(-1)
            rates = rates * logits.exp()
        return generator_of(rates)

    def transition_table(self, values: Parameters, times: Any) -> Float[Tensor, "..."]:
        table = read_table(times, "times").to(values[NAME].device)
        if not bool(((table >= 0) & table.isfinite()).all()):
            raise ValueError(f"times: got {table.tolist()}, expected numbers of at least 0.")
        probs = after_gaps(self.generators(values), table.flatten())
        return probs.unflatten(-3, table.shape) if table.ndim else probs.squeeze(-3)

    def _log_table(self, values: Parameters, n_axes: int) -> Float[Tensor, "*rb K K"]:
        """The logarithm of the table of a gap of 1; values lack `n_axes` axes of sequences."""
        probs = after_gaps(self.generators(values), values[NAME].new_ones(1)).squeeze(-3)
        return widened(log_probability(probs), 2, n_axes)

    def _log_tables(
        self, values: Parameters, drive: Drive, n_axes: int, states: Int[Tensor, "*b S"] | None = None
    ) -> Float[Tensor, "*rb S K K"]:
        """The logarithm of the table of each step after a gap; `states` are known ones, for `exact`."""
        inputs, entered = self._read(drive), Entered(tuple(self.exact), states)
        gaps = gaps_of(drive, states if inputs is None else inputs[..., 0])
        if not n_axes and gaps.ndim > 1:  # values differ between sequences
            return entered.tables(self.generators(values, inputs), gaps)
        steps = Steps.of(gaps, inputs)
        return entered.distinct(self.generators(values, steps.inputs), steps).by_step()

    def _read(self, drive: Drive) -> Float[Tensor, "*n C"] | None:
        """The inputs of the rates."""
        return drive.inputs[..., : self.n_inputs] if self.n_inputs and drive.inputs is not None else None

    def _alike(self, drive: Drive, states: Tensor | None) -> bool:
        """Whether all steps have one table."""
        return drive.gaps is None and states is None and not self.n_inputs

    def _entered(self, drive: Drive) -> Int[Tensor, "*n"] | None:
        """The known states of the steps, if entries into some are exact."""
        return drive.states if self.exact else None

    # ---- paths -----------------------------------------------------------------------------------------------------

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
    ) -> Chain:
        table = likelihood.redrawn
        n_batch = table.ndim - values[NAME].ndim
        initial = log_probability(self._start(values, n_batch))
        later = drive.at(slice(1, None))
        states = self._entered(later)
        if self._alike(drive, states):
            moves = self._log_table(values, n_batch)
        else:
            moves = self._log_tables(values, later, n_batch, states)
        return MarkovChain(initial, moves.to(table), table, lengths)

    def _start(self, values: Parameters, n_batch: int) -> Tensor:
        """P(s_1), [*r, *b, K]; the axes *b have length 1."""
        if not isinstance(self.initial, str):
            return torch.tensor(self.initial, dtype=torch.float64).to(values[NAME])
        return widened(values["initial_probs"], 1, n_batch)

    def _tables(self, values: Parameters, drive: Drive, n_batch: int, horizon: int) -> list[Tensor]:
        """The transition table of each of the `horizon` steps, [*r, *b, K, K]."""
        if self._alike(drive, None):
            return [self._log_table(values, n_batch).exp()] * horizon
        return list(self._log_tables(values, drive, n_batch).exp().unbind(-3))

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor]:
        states, n_batch = self._entered(drive), belief.ndim + 1 - values[NAME].ndim
        if states is None:
            (table,) = self._tables(values, drive, n_batch, 1)
        else:
            table = self._log_tables(values, drive, n_batch, states).squeeze(-3).exp()
        return (log_probability(stepped(belief, table)),)

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        return pushed(belief, self._tables(values, drive, belief.ndim + 1 - values[NAME].ndim, horizon))

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        exits = self.generators(values, self._read(drive)).diagonal(dim1=-2, dim2=-1).neg()
        return 1 / exits.flatten(0, -2).mean(0).to(values[NAME])

    def first(self, values: Parameters, drive: Drive) -> Tensor:
        return self._start(values, 0)

    def draw(self, values: Parameters, step: int, previous: Drawn | None, drive: Drive, n_steps: int) -> Drawn:
        if previous is None:
            state = draw_state(f"s_{step}", self.first(values, drive))
            return Drawn(torch.ones_like(state), state)
        here = drive.at(slice(step - 1, step))
        states, inputs = self._entered(here), self._read(here)
        like = next((t for t in (here.gaps, states, None if inputs is None else inputs[..., 0]) if t is not None), None)
        n_batch = 0 if like is None or values[NAME].ndim > 2 else like.ndim - 1
        (table,) = self._tables(values, here, n_batch, 1)
        old = torch.nn.functional.one_hot(previous.state, self.n_states).to(values[NAME])
        rows = (old.unsqueeze(-2) @ table.to(old)).squeeze(-2)
        state = draw_state(f"s_{step}", rows)
        if states is not None:
            dense = self._log_tables(values, here, n_batch, states).squeeze(-3)
            ratio = torch.where(table > 0, dense - table.log(), 0.0).to(old)
            entered = (old.unsqueeze(-2) @ ratio).squeeze(-2)
            pyro.factor(f"entered_{step}", self._of_known(entered, states.squeeze(-1)))
        return Drawn(torch.ones_like(state), state)

    def _of_known(self, table: Float[Tensor, "*n K"], states: Int[Tensor, "*b"]) -> Tensor:
        """The entries of a table at known `exact` states, 0 at other steps."""
        exact = torch.zeros_like(states, dtype=torch.bool)
        for state in self.exact:
            exact = exact | (states == state)
        shape = broadcast_shapes(table.shape[:-1], states.shape)
        places = torch.where(exact, states, 0).expand(shape).unsqueeze(-1)
        return torch.where(exact, table.expand(*shape, -1).gather(-1, places).squeeze(-1), 0.0)

    def check_told(self, series: Series) -> None:
        if self.exact and series.states is None and series.n_observed:
            names = ", ".join(map(str, self.exact))
            raise ValueError(
                f"states: got none, but entries into state {names} are exact; say which steps are known to have this "
                "state, with -1 where the state is not known (if the states are seen, give x as states too)."
            )

    def check_states(self, series: Series, fixed: Parameters = NOTHING) -> None:
        check_gaps(series)
        check_paths(series, self.initial, self._reachable, fixed)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def check_fitted(self, values: Parameters, series: Series) -> None:
        """Warn also of rates of maximum likelihood that are infinite, because each step forgets the one before."""
        super().check_fitted(values, series)
        gaps = values[NAME].new_ones(1) if series.dt is None else rows_of(series.dt).flatten()
        if self.n_inputs or not bool((gaps > 0).any()):
            return
        gap = float(gaps[gaps > 0].min())
        rows = after_gaps(self.generators(values), values[NAME].new_full((1,), gap)).squeeze(-3)
        if float((rows.amax(-2) - rows.amin(-2)).max()) < FORGOTTEN:
            warn_user(
                f"{NAME}: after the shortest gap ({gap:g}) the state no longer depends on the one before, so the "
                f"likelihood has no maximum and rates grow without end, to {float(values[NAME].max()):.3g} so far. "
                "Fit with prior='weak', which keeps them finite."
            )

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters = NOTHING,
    ) -> Parameters:
        modes, lead = {}, values[NAME].shape[:-2]
        if isinstance(self.initial, str):
            assert marginals.initial is not None
            starts = by_state(marginals.initial, lead)
            modes |= self.maximize_counts({"initial": starts}, prior, values, fixed)
        jumps, times, inputs = self._expected(marginals, values, drive)
        if inputs is None:
            message = torch.stack([jumps, -times.unsqueeze(-1).expand_as(jumps)], -1).squeeze(-4).to(values[NAME])
            modes |= self.blocks[NAME].mode(prior, message)
        else:
            modes |= maximal_rates(jumps, times, inputs, prior, values, fixed)
        return kept(modes, values)

    def expected_path(
        self, marginals: Marginals, values: Parameters, drive: Drive
    ) -> tuple[Float[Tensor, "*r K K"], Float[Tensor, "*r K"]]:
        """The expected number of jumps from state to state, and the expected time in each state, in all sequences."""
        jumps, times, _ = self._expected(marginals, values, drive)
        return jumps.sum(-3), times.sum(-2)

    @torch.enable_grad()
    def _expected(
        self, marginals: Marginals, values: Parameters, drive: Drive
    ) -> tuple[Float[Tensor, "*r U K K"], Float[Tensor, "*r U K"], Float[Tensor, "U C"] | None]:
        """The expected jumps and times in gaps with equal inputs, and these inputs; U is 1 without inputs."""
        assert marginals.transition is not None
        lead, later = values[NAME].shape[:-2], drive.at(slice(1, None))
        pairs = marginals.transition.detach().double().reshape(*lead, -1, self.n_states, self.n_states)
        states, read = self._entered(later), self._read(later)
        if self._alike(drive, states):
            generator, inputs = self.generators(values).detach().requires_grad_(), None
            counts = pairs.sum(-3, keepdim=True)
            tables = log_probability(after_gaps(generator, counts.new_ones(1)))
        else:
            steps = Steps.of(gaps_of(later, states if read is None else read[..., 0]), read)
            inputs = steps.inputs
            generator = self.generators(values, inputs).detach().requires_grad_()
            tables, which = Entered(tuple(self.exact), states).distinct(generator, steps)
            counts = torch.zeros_like(tables).index_add(-3, which.flatten(), pairs)
        total = (counts * torch.where(counts > 0, tables, 0.0)).sum()
        (slope,) = torch.autograd.grad(total, generator)
        rates = generator.detach().clamp_min(0.0)  # without the diagonal
        return slope * rates, slope.diagonal(dim1=-2, dim2=-1), inputs

    def start(self, labels: Tensor, series: Series) -> Parameters:
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * series.inside.unsqueeze(-1)
        lead = labels.shape[: labels.ndim - 1 - len(series.batch_shape)]
        drive = series.drive.at(slice(1, None))
        gaps = gaps_of(drive, one_hot[0, ..., 1:, 0] if lead else one_hot[..., 1:, 0])
        inside = series.inside[..., 1:].unsqueeze(-1)
        pairs = (one_hot[..., :-1, :].mT @ one_hot[..., 1:, :]).reshape(*lead, -1, self.n_states, self.n_states)
        times = by_state(one_hot[..., :-1, :] * inside * gaps.unsqueeze(-1), lead).unsqueeze(-1)
        typical = mean_gap(series) * self.n_states
        rates = torch.where(self.possible.to(pairs.device), (pairs.sum(-3) + 1) / (times + typical), 0.0)
        first = by_state(one_hot[..., 0, :], lead) + 1
        values = {"initial_probs": first / first.sum(-1, keepdim=True), NAME: rates}
        values[WEIGHTS] = rates.new_zeros(*rates.shape, self.n_inputs)
        return {name: values[name] for name in self.parameters}
