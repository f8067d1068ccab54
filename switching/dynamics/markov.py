r"""Markov dynamics: $s_1 \sim \text{Categorical}(p)$, $s_t \sim \text{Categorical}(A_{s_{t-1}})$, Dirichlet rows.

Rows may depend on inputs, as a multinomial logit: see `rows`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.markov.chain import MarkovChain
from ...inference.chains.markov.driven import DrivenMarkovChain
from ...inference.chains.markov.plain_rows import log_rows
from ...inference.families import MarkovPaths, MarkovTables
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.logs import log_probability
from ...inference.numerics.products import with_ones
from ...inference.numerics.scalars import check_integer, check_number, check_states
from ..data.series import Drive, Series
from ..emissions.contract import ByGate
from ..inputs import Inputs, all_inputs, columns_of, count_inputs, named_or_counted, select_columns
from ..parameters import Parameters, concentration, widened
from ..priors import Conjugate, Probabilities
from ..responses import Response, Shares
from .any_prior import check_prior, under_user_priors
from .contract import NOTHING, PATHS, Drawn, Dynamics, draw_state, pushed, stepped
from .factors import by_state, constant_start, first_state, moves
from .initial import StationaryRows, closed_class, given_start, has_one_class, initial_weights, stationary
from .logits import LogitRows, driven_moves, driven_start
from .possible import PossibleProbabilities, band, check_paths, possible_rows, read_mask, references
from .rows import InputWeights, Objective, Rows, transition_weights
from .trees import stationary_start

SEVERAL = (
    "several closed classes of states, so there is no single stationary distribution; make some moves between them "
    'possible, or use initial="free".'
)


@dataclass(frozen=True, repr=False)
class Markov(Dynamics):
    """A hidden Markov chain.

    Parameters `initial_probs [K]` and `transition_probs [K, K]`, indexed [old, new]; with inputs also
    `transition_weights [K, K, C]`. The probability of a move from i to j into step t is proportional to
    `transition_probs[i, j] * exp(transition_weights[i, j] @ inputs[t])`. The weights of staying are 0. With
    `initial_inputs` there are `initial_weights [K, C0]` too, and P(s_1 = k) is proportional to
    `initial_probs[k] * exp(initial_weights[k] @ inputs[0])`. The weights of state 0 are 0.

    Arguments:
        n_states: K.
        initial_prior: Dirichlet concentration of the first state, scalar or [K].
        transition_prior: Dirichlet concentration of each row, scalar, [K] or [K, K].
        sticky: added to the concentration of staying (Fox et al. 2011).
        inputs: the inputs of the transitions: C names, or their number. The priors above are then those at the mean
            inputs of a fit. The weights have normal priors of scale 2.5, for inputs of unit variance, to which a fit
            scales them.
        initial: the distribution of the first state. "free": a parameter, `initial_probs`. "stationary": the stationary
            distribution of `transition_probs`; with inputs, of the table at a sequence's first inputs. Or K
            probabilities. If it is not "free", there is no `initial_probs`.
        initial_inputs: the inputs of the first state: C0 names, or their number.
        mask: [K, K], False where a move is impossible, so that its probability is 0 in every method; None: all moves
            are possible. `Markov.left_right` and `Markov.banded` make common ones.
        prior: other priors of `initial_probs` and `transition_probs`, distributions of Pyro by name, such as
            {"transition_probs": dist.LogisticNormal(torch.zeros(1), torch.ones(1))}. EM, SVI and NUTS accept any,
            without inputs, a mask and a stationary start; message passing accepts Dirichlets.

    Fits order the states by their locations. If states are not exchangeable, because of a mask, `initial_inputs`,
    probabilities of the first state or a `prior` other than a Dirichlet, they keep the order of the fit.

    Raises:
        TypeError: a number of states or inputs that is not an integer.
        ValueError: no states, concentrations that are not positive, a negative `sticky`; another `initial`; a mask with
            a row without any True.

    Rabiner 1989, *A tutorial on hidden Markov models*; Fox, Sudderth, Jordan & Willsky 2011, for `sticky`.

    See Also:
        `Copy`, whose rows share one fresh state; `SemiMarkov`, with durations of other forms; `StickyHDP`, which finds
        K.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(n_states=2), sh.Poisson())
        >>> table = [[0.9, 0.1], [0.2, 0.8]]
        >>> model = model.with_values(initial_probs=[0.5, 0.5], transition_probs=table, rate=[[1.0], [9.0]])
        >>> model.viterbi([0, 2, 1, 8, 11]).path
        tensor([0, 0, 0, 1, 1])
    """

    n_states: int
    initial_prior: float | Sequence[Any] = 1.0
    transition_prior: float | Sequence[Any] = 1.0
    sticky: float = 0.0
    inputs: Inputs | Sequence[str] = 0  # type: ignore[assignment]
    initial: str | Sequence[float] = "free"
    initial_inputs: Inputs | Sequence[str] = 0
    mask: Sequence[Sequence[bool]] | Any = None
    prior: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "initial_probs": ("initial_prior",),
        "transition_probs": ("transition_prior", "sticky"),
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_states", check_states("n_states", self.n_states))
        object.__setattr__(self, "inputs", named_or_counted(self.inputs))
        object.__setattr__(self, "initial_inputs", named_or_counted(self.initial_inputs, "initial_inputs"))
        self._check_initial()
        if self.mask is not None:
            object.__setattr__(self, "mask", read_mask(self.mask, self.n_states))
        if self.initial == "stationary" and not has_one_class(self._possible):
            raise ValueError(f"mask: got {SEVERAL}")
        object.__setattr__(self, "sticky", check_number("sticky", self.sticky, least=0))
        object.__setattr__(self, "prior", dict(self.prior) if isinstance(self.prior, Mapping) else self.prior)
        check_prior(self, self._beside_priors)

    @classmethod
    def left_right(cls, n_states: int, skips: int = 0, **options: Any) -> "Markov":
        """A chain that only stays or moves forward, over at most `skips` states.

        Arguments:
            n_states: K.
            skips: the number of states that a move may pass over.

        >>> import samplehold as sh
        >>> sh.Markov.left_right(3).mask
        ((True, True, False), (False, True, True), (False, False, True))
        """
        n_states, skips = check_states("n_states", n_states), check_integer("skips", skips, least=0)
        return cls(n_states, mask=band(n_states, 0, 1 + skips), **options)

    @classmethod
    def banded(cls, n_states: int, width: int = 1, **options: Any) -> "Markov":
        """A chain that moves by at most `width` states up or down.

        Arguments:
            n_states: K.
            width: the greatest distance between successive states.

        >>> import samplehold as sh
        >>> sh.Markov.banded(3).mask
        ((True, True, False), (True, True, True), (False, True, True))
        """
        n_states, width = check_states("n_states", n_states), check_integer("width", width)
        return cls(n_states, mask=band(n_states, width, width), **options)

    @cached_property
    def _possible(self) -> Tensor:
        """Which moves are possible, [K, K]."""
        if self.mask is None:
            return torch.ones(self.n_states, self.n_states, dtype=torch.bool, device="cpu")
        return torch.tensor(self.mask, device="cpu")

    @property
    def forward(self) -> bool:
        return self.n_states > 1 and not bool(self._possible.tril(-1).any())

    def _check_initial(self) -> None:
        object.__setattr__(self, "initial", given_start(self.initial, self.n_states, ("free", "stationary")))
        if self.n_initial and self.initial != "free":
            raise ValueError(
                f'initial_inputs: got {self.initial_inputs} together with initial={self.initial!r}; use initial="free".'
            )
        _ = self.reads

    @property
    def n_initial(self) -> int:
        """C0, the number of inputs of the first state."""
        return count_inputs(self.initial_inputs)  # pyright: ignore[reportArgumentType]

    @property
    def reads(self) -> Inputs:
        return all_inputs((self.inputs, self.initial_inputs))  # pyright: ignore[reportArgumentType]

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        return {"input": self.inputs, "initial_input": self.initial_inputs}  # pyright: ignore[reportReturnType]

    @property
    def responses(self) -> tuple[Response, ...]:
        inputs = {"transition": self.inputs, "initial": self.initial_inputs}
        return tuple(
            Response(f"{name}_probs", Shares(), {f"{name}_weights": some}, (f"{name}_concentration",))  # pyright: ignore[reportArgumentType]
            for name, some in inputs.items()
            if count_inputs(some)  # pyright: ignore[reportArgumentType]
        )

    @property
    def numbered(self) -> bool:
        return bool(self.n_initial) or not isinstance(self.initial, str) or self.mask is not None or super().numbered

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        blocks: dict[str, Conjugate] = {}
        if self.initial == "free":
            blocks["initial"] = Probabilities("initial_probs", "initial_concentration", ("state",))
        if self.n_initial:
            blocks["initial_weights"] = initial_weights(self.n_states, self.n_initial)
        named = "transition_probs", "transition_concentration", ("state", "state_new")
        if self.mask is None:
            blocks["transition"] = Probabilities(*named)
        else:
            blocks["transition"] = PossibleProbabilities(*named, possible_rows(self.mask))  # pyright: ignore[reportArgumentType]
        if self.n_inputs:
            moves = self._possible & ~references(self._possible)
            blocks["weights"] = transition_weights(moves, self.n_inputs)
        return under_user_priors(blocks, self.prior, self.name)

    @property
    def _beside_priors(self) -> str:
        """An argument beside which priors have the form of the default."""
        if self.initial == "stationary":
            return 'initial="stationary"'
        given = {"inputs": self.n_inputs, "initial_inputs": self.n_initial, "mask": self.mask is not None}
        return next((name for name, some in given.items() if some), "")

    @cached_property
    def message_blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        blocks = dict(self.blocks)
        if self.n_initial:
            possible = torch.ones(1, self.n_states, dtype=torch.bool, device="cpu")
            reference = possible.clone().index_fill_(-1, torch.arange(1, self.n_states, device="cpu"), False)
            parts = blocks["initial"], blocks.pop("initial_weights")
            blocks["initial"] = LogitRows(*parts, possible, reference, self.n_initial)
        if self.n_inputs:
            parts = blocks["transition"], blocks.pop("weights")
            blocks["transition"] = LogitRows(*parts, self._possible, references(self._possible), self.n_inputs)
        return blocks

    @property
    def no_messages(self) -> str | None:
        return self.unusual_prior

    @property
    def not_conjugate(self) -> str | None:
        if self.n_inputs:
            return "its transitions depend on inputs"
        if self.n_initial:
            return "its first state depends on inputs"
        return "its first state has the stationary distribution" if self.initial == "stationary" else None

    def default_prior(self, series: Series | None = None) -> Parameters:
        rows = concentration(self.transition_prior, (self.n_states, self.n_states), "transition_prior")
        start = concentration(self.initial_prior, (self.n_states,), "initial_prior")
        default = {"initial_concentration": start} if self.initial == "free" else {}
        rows = rows + self.sticky * torch.eye(self.n_states, dtype=rows.dtype, device="cpu")
        default |= {"transition_concentration": rows}
        for block in self.blocks.values():
            default |= block.default_prior() if isinstance(block, InputWeights) else {}
        return default | self.hyperparameters(self.prior or {}, default)

    def check_values(self, values: Parameters) -> Parameters:
        checked = super().check_values(values)
        if self.initial == "stationary" and not has_one_class(checked["transition_probs"]):
            raise ValueError(f"transition_probs: got {SEVERAL}")
        return checked

    # ---- paths -----------------------------------------------------------------------------------------------------

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
    ) -> Chain:
        table = likelihood.redrawn
        n_batch = table.ndim - 2 - (values["transition_probs"].ndim - 2)
        initial = log_probability(self._start(values, drive, n_batch))
        transition = log_probability(widened(values["transition_probs"], 2, n_batch))
        if not self.n_inputs:
            return MarkovChain(initial, transition, table, lengths)
        assert drive.inputs is not None
        weights, inputs = widened(values["transition_weights"], 3, n_batch), drive.inputs[..., 1:, : self.n_inputs]
        return DrivenMarkovChain(initial, transition, weights, inputs, table, lengths)

    def _start(self, values: Parameters, drive: Drive, n_batch: int) -> Tensor:
        """P(s_1), [*r, *b, K]; the axes *b have length 1 if sequences start alike."""
        if not isinstance(self.initial, str):
            return torch.tensor(self.initial, dtype=torch.float64).to(values["transition_probs"])
        if self.initial == "stationary" and self.n_inputs:
            return stationary(self.log_rows_at(values, drive.at(slice(0, 1)), n_batch).exp().squeeze(-3))
        if self.initial == "stationary":
            return widened(stationary(values["transition_probs"]), 1, n_batch)
        probs = widened(values["initial_probs"], 1, n_batch)
        if not self.n_initial:
            return probs
        logits = self._first_inputs(drive).unsqueeze(-2) @ widened(values["initial_weights"], 2, n_batch).mT
        return torch.softmax(logits.squeeze(-2) + log_probability(probs), -1)

    def _first_inputs(self, drive: Drive) -> Tensor:
        """The inputs of the first state of each sequence, [*b, C0]."""
        assert drive.inputs is not None
        places = columns_of(self.initial_inputs, self.reads)  # pyright: ignore[reportArgumentType]
        return select_columns(drive.inputs[..., 0, :], places)

    def log_rows_at(self, values: Parameters, drive: Drive, n_batch: int) -> Tensor:
        """The logarithm of the table of each step, [*r, *b, S, K, K]."""
        assert drive.inputs is not None
        base = log_probability(widened(values["transition_probs"], 2, n_batch))
        weights = widened(values["transition_weights"], 3, n_batch)
        return log_rows(base, weights, drive.inputs[..., : self.n_inputs])

    def tables(self, values: Parameters, n_batch: int, drive: Drive, horizon: int) -> Iterator[Tensor]:
        """The transition table of each of the `horizon` steps, [*r, *b, K, K]."""
        if self.n_inputs:
            yield from self.log_rows_at(values, drive, n_batch).exp().unbind(-3)
        else:
            yield from [widened(values["transition_probs"], 2, n_batch)] * horizon

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor]:
        table = values["transition_probs"]
        if self.n_inputs:
            table = self.log_rows_at(values, drive, belief.ndim - 1).exp().squeeze(-3)
        return (log_probability(stepped(belief, table)),)

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        n_batch = belief.ndim - 1 - (values["transition_probs"].ndim - 2)
        return pushed(belief, self.tables(values, n_batch, drive, horizon))

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        if not self.n_inputs:
            return 1 / (1 - values["transition_probs"].diagonal(dim1=-2, dim2=-1))
        if drive.inputs is None or not drive.inputs.numel():
            raise ValueError("inputs: got no step, but durations are averaged over steps; give at least one step.")
        stay = self.log_rows_at(values, drive, 0).diagonal(dim1=-2, dim2=-1).exp()
        return 1 / (1 - stay.flatten(0, -2).mean(0))

    def first(self, values: Parameters, drive: Drive) -> Tensor:
        driven = self.n_initial or (self.initial == "stationary" and self.n_inputs)
        return self._start(values, drive, drive.inputs.ndim - 2 if driven and drive.inputs is not None else 0)

    def draw(self, values: Parameters, step: int, previous: Drawn | None, drive: Drive, n_steps: int) -> Drawn:
        if previous is None:
            state = draw_state(f"s_{step}", self.first(values, drive))
        elif self.n_inputs or values["transition_probs"].ndim > 2:
            if self.n_inputs:
                table = self.log_rows_at(values, drive.at(slice(step - 1, step)), 0).exp().squeeze(-3)
            else:
                table = values["transition_probs"]
            old = torch.nn.functional.one_hot(previous.state, self.n_states).to(table)
            state = draw_state(f"s_{step}", (old.unsqueeze(-2) @ table).squeeze(-2))
        else:
            state = draw_state(f"s_{step}", values["transition_probs"][previous.state])
        return Drawn(
            torch.ones_like(state), state
        )  # every step is drawn afresh, from a row that depends on the state before

    def check_states(self, series: Series, fixed: Parameters = NOTHING) -> None:
        moves = self._possible
        if "transition_probs" in fixed:
            moves = moves & (fixed["transition_probs"].cpu() != 0)
        check_paths(series, self.initial, moves, fixed)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def marginals(self, chain: Any, drive: Drive) -> Marginals:
        return chain.sums() if self.n_inputs else chain.marginals()

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        assert marginals.initial is not None
        assert marginals.transition is not None
        moved = marginals.transition.reshape(*lead, -1, self.n_states, self.n_states).sum(-3)
        counts = {"initial": by_state(marginals.initial, lead), "transition": moved}
        return {name: count for name, count in counts.items() if name in self.blocks}

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters = NOTHING,
    ) -> Parameters:
        if not self.not_conjugate:
            return super().maximize(marginals, prior, values, drive, fixed)
        assert marginals.initial is not None
        lead, k = self._lead(values), self.n_states
        starts, modes = marginals.initial.reshape(*lead, -1, k), {}
        if self.n_initial:
            modes |= self._maximal_start(starts, prior, values, drive, fixed)
        elif self.initial == "free":
            modes |= self.maximize_counts({"initial": starts.sum(-2)}, prior, values, fixed)
        if self.n_inputs or self.initial == "stationary":
            modes |= self._maximal_rows(starts, marginals, prior, values, drive, fixed)
        else:
            counts = self.counts(marginals, lead)["transition"]
            modes |= self.maximize_counts({"transition": counts}, prior, values, fixed)
        return modes

    def _maximal_start(
        self, starts: Tensor, prior: Parameters | None, values: Parameters, drive: Drive, fixed: Parameters
    ) -> Parameters:
        """The M-step of a start that depends on inputs: one row for all sequences."""
        names, block = ("initial_probs", "initial_weights"), self.blocks["initial_weights"]
        assert isinstance(block, InputWeights)
        probs, weights = (values[name].unsqueeze(-2 - i) for i, name in enumerate(names))
        at = [fixed[name].unsqueeze(0) if name in fixed else None for name in names]
        rows = Rows(probs, weights, *at)
        inputs = self._first_inputs(drive).reshape(-1, self.n_initial)
        concentration = None if prior is None else prior["initial_concentration"].unsqueeze(0)
        moves = (starts.mT.double() @ with_ones(inputs).double()).unsqueeze(1)
        scale = None if prior is None else prior[block.of_scale]
        given = starts.sum(-1, keepdim=True), inputs, concentration, scale, block.support
        likelihood, numbers = rows.likelihood(moves, *given)
        tables = rows.raised(likelihood, likelihood, numbers)
        return {name: table.squeeze(-2 - i) for i, (name, table) in enumerate(zip(names, tables, strict=True))}

    def _maximal_rows(
        self,
        starts: Tensor,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters,
    ) -> Parameters:
        """The M-step of transitions with inputs, or with a start that depends on them."""
        probs, block = values["transition_probs"], self.blocks.get("weights")
        weights = values["transition_weights"] if self.n_inputs else probs.new_empty(*probs.shape, 0)
        rows = Rows(probs, weights, fixed.get("transition_probs"), fixed.get("transition_weights"))
        lead, k, c = starts.shape[:1], self.n_states, self.n_inputs
        if c:
            assert drive.inputs is not None
            assert marginals.moves is not None
            assert marginals.leaving is not None
            first, inputs = (drive.inputs[..., part, :c].reshape(-1, c) for part in (slice(0, 1), slice(1, None)))
            moves = marginals.moves.reshape(*lead, -1, k, k, 1 + c).double().sum(1)
            leaving = marginals.leaving.reshape(*lead, -1, k)
        else:
            pairs, starts = self.counts(marginals, lead)["transition"], starts.sum(-2, keepdim=True)
            first = inputs = pairs.new_empty(1, 0)
            moves, leaving = pairs.unsqueeze(-1).double(), pairs.sum(-1).unsqueeze(1)
        concentration = None if prior is None else prior["transition_concentration"]
        support, scale = None, None
        if isinstance(block, InputWeights):
            support, scale = block.support, None if prior is None else prior[block.of_scale]
        likelihood, numbers = rows.likelihood(moves, leaving, inputs, concentration, scale, support)
        objective: Objective = likelihood
        if self.initial == "stationary":
            objective = StationaryRows(likelihood, with_ones(first).double(), starts.double())
        tables = rows.raised(objective, likelihood, numbers)
        return dict(zip(("transition_probs", "transition_weights")[: 1 + bool(self.n_inputs)], tables, strict=False))

    def start(self, labels: Tensor, series: Series) -> Parameters:
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * series.inside.unsqueeze(-1)
        lead = labels.shape[: labels.ndim - 1 - len(series.batch_shape)]
        pairs = (one_hot[..., :-1, :].mT @ one_hot[..., 1:, :]).reshape(*lead, -1, self.n_states, self.n_states)
        stay = torch.eye(self.n_states).to(one_hot) * self.n_states  # persistence in states without labels
        pairs = (pairs.sum(-3) + 1 + stay) * self._possible.to(pairs)
        first = by_state(one_hot[..., 0, :], lead) + 1
        values = {
            "initial_probs": first / first.sum(-1, keepdim=True),
            "initial_weights": first.new_zeros(*first.shape, self.n_initial),
            "transition_probs": pairs / pairs.sum(-1, keepdim=True),
            "transition_weights": pairs.new_zeros(*pairs.shape, self.n_inputs),
        }
        return {name: values[name] for name in self.parameters}  # only those that these dynamics have

    def paths(
        self, series: Series, lead: tuple[int, ...], gated: bool, alike: bool
    ) -> tuple[MarkovPaths, MarkovTables]:
        shape, k = (*lead, *series.batch_shape), self.n_states
        zero = series.like.new_zeros(())
        moved = (series.n_steps - 1, k, k) if self.n_inputs else (k, k)
        tables = MarkovTables(*(zero.expand(*shape, *size) for size in ((k,), moved, (series.n_steps, k))))
        first, moves = zero.new_zeros(k), torch.where(self._possible.to(zero.device), zero, -torch.inf)
        if not isinstance(self.initial, str):
            first = torch.where(torch.tensor(self.initial).to(zero) > 0, zero, -torch.inf)
        elif self.initial == "stationary":
            first = torch.where(closed_class(self._possible).to(zero.device), zero, -torch.inf)
        base = None
        if bool(moves.isinf().any() or first.isinf().any()):
            base = MarkovTables(first, moves, zero.new_zeros(1, 1))
        return MarkovPaths(series.lengths, base), tables

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        n_axes, blocks, drive = len(series.batch_shape) + 1, self.message_blocks, series.drive
        if not isinstance(self.initial, str):
            probs = torch.tensor(self.initial, dtype=torch.float64).to(series.like)
            start = constant_start(probs, PATHS, counted)
        elif self.n_initial:
            rows = cast(LogitRows, blocks["initial"])
            start = driven_start("initial", PATHS, rows, with_ones(self._first_inputs(drive)), counted)
        elif self.initial == "stationary":
            start = stationary_start("transition", PATHS, self._first_rows(drive, n_axes), self._possible, counted)
        else:
            start = first_state("initial", PATHS, n_axes, counted)
        if not self.n_inputs:
            return [start, moves("transition", PATHS, n_axes)]
        assert drive.inputs is not None
        design = with_ones(drive.inputs[..., 1:, : self.n_inputs])
        return [start, driven_moves("transition", PATHS, cast(LogitRows, blocks["transition"]), design)]

    def _first_rows(self, drive: Drive, n_axes: int) -> Callable[[Tensor], Tensor]:
        """Bounds of the expected logarithms of the transitions that a stationary start has, from their statistics."""
        if not self.n_inputs:
            return lambda statistics: widened(statistics, 2, n_axes - 1)
        assert drive.inputs is not None
        rows = cast(LogitRows, self.message_blocks["transition"])
        design = with_ones(drive.inputs[..., 0, : self.n_inputs])
        return lambda statistics: rows.expected_logs(statistics, design)
