"""`Series`: the user's data, read once: observations with missing values, inputs, gaps, and labels.

A tensor, a numpy array, a pandas object or a list of sequences becomes one record with observations `[*batch, T, F]`,
where NaN means missing. No value is imputed here, and no value after a sequence's end is used in a computation.
Sequences of different lengths are stored one after another, and padded only when a table is asked for: see
`Packed`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ...inference.numerics.checks import ImpossibleError
from ...inference.numerics.clock import READING, during
from ...inference.numerics.deferred import recompute
from ...inference.numerics.records import Record, made
from ...inference.numerics.scalars import MOST, check_integer
from .frames import Frame
from .packed import Packed, ahead, consecutive, padded, rows_of, wasteful
from .scratch import blocks_of
from .stacked import Stacked
from .timeline import time_index

PADDED = 100  # the most steps of a padded table of results, for each step of the data
LARGE = 10**6  # steps of a padded table that is always made
TURN = 2**19  # steps of a part of a series that is in a file
UNKNOWN = -1.0  # the number of a state that is not known

# The tables of a series, each with the number after the end of a sequence: `[*b, T, ...]`, `[*b, N, ...]`, `[*b]`.
OF_STEPS = {"x": torch.nan, "states": UNKNOWN, "step_weights": 1.0, "noise": 0.0, "past": torch.nan}
DRIVEN = {"inputs": 0.0, "dt": 0.0}
OF_SEQUENCES = ("lengths", "weights", "subjects")
BEYOND = OF_STEPS | DRIVEN
TABLES = (*BEYOND, *OF_SEQUENCES)
PLACES = ("lengths", "states", "subjects")  # whose numbers are not in the dtype of x
NUMBERS = tuple(name for name in TABLES if name not in PLACES)
KEPT = ("drivers", "scaling", "subject_names", "checked")  # by a part of a series

Change = Callable[[Any], Any]


class Given(TypedDict, total=False):
    """Optional inputs beside observations, as keywords of every method with an argument x.

    If x and such a table have an index of pandas, rows are matched by label; a label that is missing or occurs twice is
    an error. If one of them has none, or only the default numbers of rows, rows are read in order.

    Entries:
        lengths: [*batch], the number of steps of each sequence; lists and panels have their own. For rows `[N, F]` of B
        sequences: [B], with sum N.
        inputs: [*batch, T, C], or [*batch, T] for one input; or a frame or a mapping with a column for each input, of
            which columns that no part of the model names are ignored.
        input_names: the names of the columns of `inputs`, if it has none. Without names, the columns are those that the
            model reads, in the order of `model.inputs`.
        dt: [*batch, T], the gap before each step, in steps; the gap before the first step is ignored.
        time: [*batch, T], the times of the steps, which rise, in place of dt. Gaps are their differences:
            of numbers, of dates in days, of periods in periods.
        states: knowledge about the states of a `SwitchingSSM`. `[*batch, T]` has the number or the label of the state
            of each step, and NaN, None, NA or -1 where it is unknown. Labels (text or categories) are states 0, 1, ...
            in sorted order, or in the order of the categories. `[*batch, T, K]` has weights, which multiply
            p(x_t | s_t); a state of weight 0 is impossible.
        weights: for a `SwitchingSSM`, numbers of at least 0. `[*batch]` has a weight of each sequence, by which a fit
            multiplies its log evidence. `[*batch, T]` has a weight of each step, the power of p(x_t | s_t, z_t); an
            observation of weight 0 is missing.
        noise: `[*batch, T]` or `[*batch, T, F]`, the known variances of the noise of measurements, for a `SwitchingSSM`
            of `Normal` emissions: x_t ~ N(loc, scale^2 + noise_t).
        subjects: `[*batch]`, the name of the subject of each sequence, for a `SwitchingSSM` with parameters by subject.
        before: `[*batch, P, F]` (or `[P]`), the observations before the first step, the latest last, for an
            `AutoRegressive` emission; for a list of sequences, a list of such tables. Without them the first steps of a
            sequence have no lags.
    """

    lengths: Any
    inputs: Any
    input_names: Any
    dt: Any
    time: Any
    states: Any
    weights: Any
    noise: Any
    subjects: Any
    before: Any


@dataclass(frozen=True, repr=False)
class Drive(Record):
    """The external inputs of the dynamics at some steps, and the observations before each; None if there are none.

    `subjects` are the numbers of the sequences' subjects, which broadcast against the steps. `states` are the numbers
    of the states that observed steps are known to have, -1 where unknown.
    """

    inputs: Float[Tensor, "*n C"] | None = None
    gaps: Float[Tensor, "*n"] | None = None
    subjects: Int[Tensor, "*#n"] | None = None
    past: Float[Tensor, "*observed P F"] | None = None
    states: Int[Tensor, "*observed"] | None = None

    def at(self, steps: slice | int) -> "Drive":
        """The inputs at a range of steps, or at one step."""
        inputs = None if self.inputs is None else self.inputs[..., steps, :]
        subjects = self.subjects if self.subjects is None or isinstance(steps, slice) else self.subjects[..., 0]
        past = None if self.past is None else self.past[..., steps, :, :]
        gaps = None if self.gaps is None else self.gaps[..., steps]
        return Drive(inputs, gaps, subjects, past, None if self.states is None else self.states[..., steps])


NO_DRIVE = Drive()


class Scaling(NamedTuple):
    """The numbers of inputs that a model reads: (inputs - origin) / unit, with a number of each column."""

    origin: Float[Tensor, "C"]
    unit: Float[Tensor, "C"]

    def of(self, inputs: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
        """The inputs in these numbers."""
        origin, unit = (number.to(inputs.device) for number in self)
        return ((inputs.double() - origin) / unit).to(inputs)

    def then(self, origin: Float[Tensor, "C"], unit: Float[Tensor, "C"]) -> "Scaling":
        """These numbers, with another origin and unit of theirs."""
        return Scaling(self.origin + self.unit * origin, self.unit * unit)


@dataclass(frozen=True, repr=False)
class Series(Record):
    """Observed sequences, their inputs and gaps, and their labels.

    Made by `model.read(x, ...)` and `read_panel`, and accepted by every method in place of x.

    Attributes:
        x: the observations, NaN where missing, and after a sequence's end; packed if padding would waste memory.
        lengths: the number of steps of each sequence; None: all have T.
        inputs: the inputs of all T steps, and for a forecast those of the future steps: N >= T.
        dt: the gap before each step, in steps.
        index: the labels of the steps: one index for all sequences, or one for each.
        features: the names of the features: for all sequences, or one tuple for each.
        sequences: the names of the sequences.
        drivers: the names of the inputs.
        scaling: the origin and the unit of the inputs that a model or a fit reads; None: 0 and 1.
        states: the number of the known state of each step, -1 where unknown; or log weights of the states at each step.
        state_names: the labels of the states, if they have some.
        weights: the weight of each sequence in a fit.
        step_weights: the power of the density of each observation.
        noise: the known variance of the noise of each observation.
        past: the P observations before each step, the latest first, NaN where there are none: see `lags`.
        subjects: the number of the subject of each sequence, if parameters differ between subjects.
        subject_names: the names of the subjects.
        stacked: the rows of the table from which the steps come, if they come from one table.
        frame: the kind of the user's frame, if it is not of pandas.
        listed: whether the sequences came as a list or a mapping; then results are a list or a mapping too.
    """

    x: Float[Tensor, "*b T F"] | Packed
    lengths: Int[Tensor, "*b"] | None = None
    inputs: Float[Tensor, "*b N C"] | Packed | None = None
    dt: Float[Tensor, "*b N"] | Packed | None = None
    index: pd.Index | Sequence[pd.Index] | None = None
    features: tuple[str, ...] | tuple[tuple[str, ...], ...] | None = None
    sequences: tuple[str, ...] | None = None
    drivers: tuple[str, ...] | None = None
    scaling: Scaling | None = None
    states: Int[Tensor, "*b T"] | Float[Tensor, "*b T K"] | Packed | None = None
    state_names: tuple[str, ...] | None = None
    weights: Float[Tensor, "*b"] | None = None
    step_weights: Float[Tensor, "*b T"] | Packed | None = None
    noise: Float[Tensor, "*b T F"] | Packed | None = None
    subjects: Int[Tensor, "*b"] | None = None
    subject_names: tuple[str, ...] | None = None
    past: Float[Tensor, "*b T P F"] | Packed | None = None
    stacked: Stacked | None = field(default=None, repr=False, compare=False)
    frame: Frame | None = field(default=None, repr=False, compare=False)
    listed: bool = field(default=False, repr=False, compare=False)
    checked: Any = field(default=None, repr=False, compare=False)  # the model parts that have checked the observations

    def _repr_html_(self) -> str:
        """The HTML for notebooks: a row for each sequence."""
        from .page import series_page

        return series_page(self)

    @property
    def observations(self) -> Float[Tensor, "*b T F"]:
        """NaN where missing, and after a sequence's end. A packed series makes this table each time."""
        return padded(self.x)

    @property
    def design(self) -> Float[Tensor, "*b N C"] | None:
        """The inputs of all steps, 0 after a sequence's end in a packed series, which makes this table each
        time."""
        return None if self.inputs is None else padded(self.inputs)

    @property
    def gaps(self) -> Float[Tensor, "*b N"] | None:
        """The gap before each step, as `inputs`."""
        return None if self.dt is None else padded(self.dt)

    def log_states(self, n_states: int) -> Float[Tensor, "*b T K"] | None:
        """Log weights of the states at each step, -inf where a state is impossible; None if nothing is known."""
        if self.states is None:
            return None
        table = padded(self.states)
        if table.is_floating_point():
            return table.to(self.like)
        numbers = torch.arange(n_states, device=table.device)
        possible = (table.unsqueeze(-1) == numbers) | (table < 0).unsqueeze(-1)
        return torch.where(possible, self.like.new_zeros(()), -torch.inf)

    @property
    def likely_states(self) -> Int[Tensor, "*b T"] | None:
        """The known state of each step, or the only one of greatest weight, and -1 where there is none."""
        return self._only(lambda weights: weights == weights.amax(-1, keepdim=True))

    @property
    def certain_states(self) -> Int[Tensor, "*b T"] | None:
        """The known state of each step, or the only possible one, and -1 where there is none."""
        return self._only(lambda weights: weights > -torch.inf)

    def _only(self, chosen: Callable[[Tensor], Tensor]) -> Int[Tensor, "*b T"] | None:
        """The known state of each step, or the only one whose log weight is chosen, and -1 where there is none."""
        if self.states is None:
            return None
        table = padded(self.states)
        if not table.is_floating_point():
            return table
        those = chosen(table)
        return torch.where(those.sum(-1) == 1, those.long().argmax(-1), -1)

    @property
    def knows_states(self) -> Bool[Tensor, "B"]:
        """Whether something is known about the states of each sequence."""
        none = torch.zeros(self.n_sequences, dtype=torch.bool, device="cpu")
        if self.states is None or rows_of(self.states).is_floating_point():
            return none if self.states is None else ~none
        states = self.states.rows if isinstance(self.states, Packed) else self.states[self.inside]
        return self.counted(lambda rows: (rows >= 0).long(), states).cpu() > 0

    @property
    def powers(self) -> Float[Tensor, "*b T"] | None:
        """The power of the density of each observation; None: all are 1."""
        return None if self.step_weights is None else padded(self.step_weights)

    @property
    def variances(self) -> Float[Tensor, "*b T F"] | None:
        """The known variances of the noise; None: there is none."""
        return None if self.noise is None else padded(self.noise)

    def with_noise(self, draws: Float[Tensor, "*n F"]) -> Float[Tensor, "*n F"]:
        """Draws of all steps `[..., *b, T, F]`, with a draw of the noise of their measurements."""
        return draws if self.variances is None else draws + self.variances.sqrt() * torch.randn_like(draws)

    def weighed(self, numbers: Tensor) -> Tensor:
        """Numbers of the sequences `[*b]`, times their weights."""
        return numbers if self.weights is None else numbers * self.weights

    def powered(self, table: Float[Tensor, "*r m K"]) -> Float[Tensor, "*r m K"]:
        """A table of all `padded_rows`, times the powers of their densities."""
        return table if self.powers is None else table * self.powers.reshape(-1, 1)

    @property
    def packed(self) -> bool:
        """Whether the steps are stored without padding."""
        return isinstance(self.x, Packed)

    @property
    def on_disk(self) -> bool:
        """Whether the steps are in a file, so that memory should never hold all of them."""
        return isinstance(self.x, Packed) and self.x.scratch is not None

    @property
    def like(self) -> Float[Tensor, "..."]:
        """The stored observations, for their dtype and device."""
        return self.x.rows if isinstance(self.x, Packed) else self.x

    @property
    def batch_shape(self) -> torch.Size:
        return self.x.shape[:-2]

    @property
    def n_steps(self) -> int:
        return self.x.shape[-2]

    @property
    def n_features(self) -> int:
        return self.x.shape[-1]

    @property
    def n_sequences(self) -> int:
        return self.batch_shape.numel()

    @property
    def n_observed(self) -> int:
        """The number of steps with an observed value."""
        return sum(int((~rows.isnan()).any(-1).sum()) for rows in blocks_of(self.rows))

    @property
    def n_seen(self) -> Int[Tensor, "*b"]:
        """The number of steps of each sequence with an observed value."""
        return self.counted(lambda rows: (~rows.isnan()).any(-1).long()).reshape(self.batch_shape)

    def counted(
        self, count: Callable[[Shaped[Tensor, "n *f"]], Int[Tensor, "n"]], table: Shaped[Tensor, "N *f"] | None = None
    ) -> Int[Tensor, "B"]:
        """The sum over the steps of each sequence of a number of each step, computed block by block from the rows of a
        table; None: the observations."""
        ends, first = (self.last.flatten() + 1).cumsum(0), 0
        total = torch.zeros_like(ends)
        for rows in blocks_of(self.rows if table is None else table):
            places = torch.arange(first, first + len(rows), device=ends.device)
            total.index_add_(0, torch.searchsorted(ends, places, right=True), count(rows))
            first += len(rows)
        return total

    @property
    def rows(self) -> Float[Tensor, "n F"]:
        """The steps of all sequences, one sequence after another."""
        if isinstance(self.x, Packed):
            return self.x.rows
        return self.padded_rows if self.lengths is None else self.x[self.inside]

    @property
    def design_rows(self) -> Float[Tensor, "n C"] | None:
        """The inputs of the steps of all sequences, one sequence after another; None if there are none."""
        if self.inputs is None:
            return None
        drives = [(part.drive.inputs, part.inside) for part in self.parts()]
        return self.joined([inputs[inside] for inputs, inside in drives if inputs is not None])

    @property
    def sequence_of_rows(self) -> Int[Tensor, "n"]:
        """The number of the sequence of each of `rows`."""
        lengths = (self.last + 1).flatten()
        return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)

    @property
    def padded_rows(self) -> Float[Tensor, "m F"]:
        """The same with the steps after the end of each sequence."""
        return self.observations.flatten(0, -2)

    @property
    def inside(self) -> Bool[Tensor, "*b T"]:
        """Whether each step belongs to its sequence."""
        steps = torch.arange(self.n_steps, device=self.like.device)
        if self.lengths is None:
            return torch.ones_like(steps, dtype=torch.bool).expand(*self.batch_shape, -1)
        return steps < self.lengths.unsqueeze(-1)

    @property
    def last(self) -> Int[Tensor, "*b"]:
        """The last step of each sequence, counted from 0."""
        if self.lengths is None:
            return torch.full(self.batch_shape, self.n_steps - 1, device=self.like.device)
        return self.lengths - 1

    @property
    def whole_drive(self) -> Drive:
        """The inputs and gaps of the observed steps and of future steps."""
        if self.inputs is self.dt is self.subjects is self.past is self.states is None:
            return NO_DRIVE
        subjects = None if self.subjects is None else self.subjects.unsqueeze(-1)
        past = None if self.past is None else padded(self.past)
        inputs = self.design if self.scaling is None else self._read
        return Drive(inputs, self.gaps, subjects, past, None if self.states is None else self.certain_states)

    @property
    def _read(self) -> Float[Tensor, "*b N C"] | None:
        """The inputs that are read; after a sequence's end, those of the origin."""
        if self.scaling is None or self.inputs is None:
            return self.design
        inputs = self.scaling.of(padded(self.inputs))
        if self.lengths is None:
            return inputs
        steps = torch.arange(inputs.shape[-2], device=inputs.device)
        ended = (steps >= self.lengths.unsqueeze(-1)) & (steps < self.n_steps)
        return inputs.masked_fill(ended.unsqueeze(-1), 0.0)

    def rescaled(self, origin: Float[Tensor, "C"], unit: Float[Tensor, "C"]) -> "Series":
        """The series with another origin and unit of the inputs that are read."""
        here = Scaling(torch.zeros_like(origin), torch.ones_like(unit)) if self.scaling is None else self.scaling
        return replace(self, scaling=here.then(origin, unit))

    @property
    def drive(self) -> Drive:
        """The inputs and gaps of the observed steps."""
        drive = self.whole_drive
        return drive if drive is NO_DRIVE or self.n_driven == self.n_steps else drive.at(slice(0, self.n_steps))

    @property
    def ahead(self) -> Drive:
        """The inputs and gaps of future steps, if they are given."""
        return self.whole_drive.at(slice(self.n_steps, None))

    @property
    def n_driven(self) -> int:
        """N, the number of steps with inputs or gaps; T if there are none."""
        if self.inputs is not None:
            return self.inputs.shape[-2]
        return self.n_steps if self.dt is None else self.dt.shape[-1]

    @property
    def at_once(self) -> bool:
        """Whether there is a gap of 0 steps between two observations; then the state is certainly held."""
        if self.dt is None:
            return False
        if isinstance(self.dt, Packed):
            first = self.dt.rows[self.dt.starts]
            return sum(int((rows == 0).sum()) for rows in blocks_of(self.dt.rows)) > int((first == 0).sum())
        gaps = [(part.drive.gaps, part.inside) for part in self.parts()]
        return any(bool(((table == 0) & inside)[..., 1:].any()) for table, inside in gaps if table is not None)

    def check_ahead(self, horizon: int) -> None:
        """Raise ValueError unless future steps have the inputs and gaps of the others, and sequences have equal
        length."""
        if self.inputs is None and self.dt is None:
            return
        if self.n_driven != self.n_steps + horizon:
            raise ValueError(
                f"horizon: got {horizon}, but inputs or dt are given for {self.n_driven} steps and x has "
                f"{self.n_steps}; give them for the future steps too, as in forecast({horizon}, {self._to_come})."
            )
        if self.lengths is not None and bool((self.lengths != self.n_steps).any()):
            raise _unequal(int(self.lengths.min()), self.n_steps)

    @property
    def _to_come(self) -> str:
        """The arguments that describe steps to come."""
        return ", ".join(f"{name}=..." for name in ("inputs", "dt") if getattr(self, name) is not None)

    def index_of(self, sequence: int = 0) -> pd.Index | None:
        """The labels of the steps of a sequence; None if there are none."""
        return self.index if self.index is None or isinstance(self.index, pd.Index) else self.index[sequence]

    def features_of(self, sequence: int = 0) -> tuple[str, ...]:
        """The names of the features of a sequence; without names x, or x[0], x[1], ..."""
        n = self.n_features
        if self.features is None:
            return ("x",) if n == 1 else tuple(f"x[{feature}]" for feature in range(n))
        names = self.features[sequence] if isinstance(self.features[0], tuple) else self.features
        return tuple(map(str, names))

    @property
    def labels(self) -> pd.Index:
        """The labels of the steps of all sequences, in the order of `steps_of`: the index of their table, or sequence
        and time."""
        if self.stacked is not None:
            return self.stacked.index
        n = len(self.batch_shape)
        if not n:
            return time_index(self.index_of(), self.n_steps)[: int(self.last) + 1]
        names = ["sequence"] if n == 1 else [f"sequence_{axis}" for axis in range(n)]
        where = pd.MultiIndex.from_product([range(size) for size in self.batch_shape], names=names)
        lengths = (self.last + 1).flatten().tolist()
        if not lengths:
            return pd.MultiIndex.from_arrays([[]] * (n + 1), names=[*names, "step"])
        times = [time_index(self.index_of(i), self.n_steps)[:length] for i, length in enumerate(lengths)]
        levels = [where.get_level_values(axis).repeat(lengths) for axis in range(n)]
        if self.sequences is not None:
            levels = [pd.Index(self.sequences).repeat(lengths)]
        return pd.MultiIndex.from_arrays([*levels, times[0].append(times[1:])], names=[*names, times[0].name or "step"])

    def framed(self, table: pd.DataFrame) -> Any:
        """A table with a row for each of `labels`, as a frame of the kind from which the series was read."""
        return table if self.frame is None else self.frame.like(table)

    def as_table(self, cure: str = "use ragged=True for a list of results, or give") -> "Series":
        """The series, for results that are padded tables of all sequences.

        Arguments:
            cure: the beginning of the cure in the error, before "sequences of similar length together".

        Raises:
            ValueError: nearly all of such a table would be padding.
        """
        if self.packed and (steps := self.n_sequences * self.n_steps) > max(LARGE, PADDED * len(self.like)):
            raise ValueError(
                f"x: got {self.n_sequences} sequences of {int(self.last.min()) + 1} to {self.n_steps} steps, whose "
                f"padded table has {steps} steps, {steps // len(self.like)} times as many as the data; {cure} "
                "sequences of similar length together."
            )
        return replace(self, listed=False) if self.listed else self

    def steps_of(self, table: Shaped[Tensor, "..."]) -> Shaped[Tensor, "N *f"]:
        """The entries `[*b, T, ...]` of all steps inside their sequences, one sequence after another: `[N, ...]`."""
        return self.in_rows(table[self.inside])

    def in_rows(self, steps: Shaped[Tensor, "N *f"]) -> Shaped[Tensor, "N *f"]:
        """Steps, one sequence after another, in the order of the rows of their table."""
        return steps if self.stacked is None else self.stacked.back(steps)

    def shifted(self, by: Float[Tensor, "F"]) -> "Series":
        """The series with `by` subtracted from the observations."""
        return replace(self.mapped(lambda x: x - by), checked=None)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Series":
        """The series with a change of its observations `[..., F]`, which does not depend on the step."""
        return self._mapped(change, "x", "past")

    def part(self, members: Int[Tensor, "n"]) -> "Series":
        """Some of the sequences, given by their numbers, on one batch axis, with the length of the longest of them.

        Tables are views if the sequences are consecutive.
        """
        first, n = int(members[0]), len(members)
        in_order = int(members[-1]) - first + 1 == n and bool((members.diff() == 1).all())

        def some(table: Tensor | Packed) -> Tensor:
            if isinstance(table, Packed):
                return table.part(members)
            flat = table.reshape(self.n_sequences, *table.shape[len(self.batch_shape) :])
            return flat[first : first + n] if in_order else flat[members.to(flat.device)]

        longest = self.n_steps if self.lengths is None else int(some(self.lengths).max())
        if longest < self.n_steps and not self.packed:
            return self.stretch(0, longest).part(members)
        driven = some if longest == self.n_steps else lambda table: some(table)[:, :longest]
        frame = self.frame and replace(self.frame, keys=None)
        return made(Series, **self._tables(some, driven, some), **self._kept(), frame=frame)

    def subset(self, members: Int[Tensor, "n"]) -> "Series":
        """Some of the sequences, perhaps none; those of a file are copied to another one."""
        if not self.on_disk and len(members):
            return self.part(members)

        def some(table: Tensor | Packed) -> Tensor | Packed:
            if isinstance(table, Packed):
                return table.subset(members)
            flat = table.reshape(self.n_sequences, *table.shape[len(self.batch_shape) :])
            return flat[members.to(table.device)]

        nothing: Any = dict.fromkeys(("index", "sequences", "stacked", "frame"))
        return replace(self, **self._tables(some, some, some), **nothing)

    def groups(self) -> list[Int[Tensor, "n"]]:
        """Numbers of the sequences in groups, in which none is more than twice as long as another; one group of all if
        there is little padding; of steps in a file, consecutive groups that fit in memory."""
        if self.on_disk:
            return list(consecutive((self.last + 1).flatten().cpu(), TURN))
        if self.lengths is None or not wasteful(self.lengths, self.n_steps):
            return [torch.arange(self.n_sequences, device="cpu")]
        classes = self.lengths.flatten().cpu().double().log2().floor()
        return [(classes == size).nonzero().flatten() for size in classes.unique()]

    def by_group(self, rows: Shaped[Tensor, "n *f"]) -> list[Tensor]:
        """Numbers of all steps inside, one sequence after another, as a table `[*b, T, ...]` for each of `groups`; 0
        after the end of a sequence."""
        groups = self.groups()
        if len(groups) > 1:
            steps = Packed(rows, self.last.flatten() + 1, 0.0)
            return [steps.part(members) for members in groups]
        table = rows.new_zeros(*self.inside.shape, *rows.shape[1:])
        table[self.inside] = rows
        return [table]

    def joined(self, by_group: Sequence[Shaped[Tensor, "_ *f"]]) -> Shaped[Tensor, "n *f"]:
        """Numbers of the steps inside of each of `groups`, as those of all steps, one sequence after another."""
        if len(by_group) == 1:
            return by_group[0]
        lengths = self.last.flatten().cpu() + 1
        number = torch.cat([members.repeat_interleave(lengths[members]) for members in self.groups()])
        return torch.cat(list(by_group))[number.argsort(stable=True).to(by_group[0].device)]

    def parts(self) -> Iterator["Series"]:
        """The series of each of `groups`; the series itself if there is one group."""
        groups = self.groups()
        yield from [self] if len(groups) == 1 else map(self.part, groups)

    def turns(self, steps: int | None = None) -> Iterator[tuple[int, int, "Series"]]:
        """Consecutive parts of at most so many steps, with padding; the number of the first sequence of each, and its
        first step there.

        A longer sequence comes in stretches, alone. Each begins with the last step of the one before.

        Arguments:
            steps: at least 2; None: those of a usual part.
        """
        steps = check_integer("steps", TURN if steps is None else steps, least=2)
        lengths = (self.last.flatten() + 1).cpu()
        features = None if self.features and isinstance(self.features[0], tuple) else self.features
        for members, later in ahead(consecutive(lengths, steps)):
            with self.reading():
                part, first = replace(self.part(members), features=features), int(members[0])
                self.fetch(later)
            if part.n_steps <= steps or len(members) > 1:
                yield first, 0, part
            else:
                for step in range(0, int(lengths[first]) - 1, steps - 1):
                    yield first, step, replace(part.stretch(step, steps), features=features)
                    self.release()
            self.release()

    def reading(self) -> AbstractContextManager[None]:
        """A block whose time is that of reading, if the steps are in a file."""
        return during(READING) if self.on_disk else nullcontext()

    def fetch(self, members: Int[Tensor, "n"] | None, first: int = 0, size: int = MOST) -> None:
        """Have the system read at most `size` steps of some sequences, from `first` on, while others are in use."""
        if members is None or not self.on_disk:
            return
        for table in vars(self).values():
            if isinstance(table, Packed):
                table.fetch(members, first, size)

    def release(self) -> None:
        """Give the memory of steps that were read from a file back to the system."""
        for table in vars(self).values():
            if isinstance(table, Packed) and table.scratch is not None:
                table.scratch.release()

    @property
    def known(self) -> list[str]:
        """The names in `Given` of what is known about steps and sequences."""
        weights = self.step_weights if self.weights is None else self.weights
        known = {"states": self.states, "weights": weights, "noise": self.noise, "subjects": self.subjects}
        return [name for name, table in known.items() if table is not None]

    def check_plain(self, reader: str) -> None:
        """Raise ValueError if there is knowledge about steps, which this reader of the series does not use."""
        for name in self.known:
            raise ValueError(f"{name}: was given, but {reader} does not support it; leave it out.")

    def checked_by(self, parts: Sequence[Any]) -> "Series":
        """The same series, which these parts of a model have checked. `replace` would take longer than many checks."""
        return made(Series, **vars(self) | {"checked": parts})

    def check(self, check: Callable[["Series"], None]) -> None:
        """Call a function that raises a ValueError if something is wrong, for each of `parts`. An error has the number
        of a sequence among all sequences."""
        if not self.packed:
            check(self)
            return
        if self.on_disk:
            for first, step, part in self.turns():
                with numbered_from(first, step):
                    check(part)
            return
        for part in self.parts():
            with recompute(lambda: check(self), ValueError):
                check(part)

    def stretch(self, first: int, size: int) -> "Series":
        """At most `size` steps from `first` on; a sequence that has ended before keeps one step."""
        size = min(size, self.n_steps - first)

        def here(table: Tensor | Packed) -> Tensor:
            return padded(table).narrow(len(self.batch_shape), first, size)

        lengths = (self.last + 1 - first).clamp(1, size)
        return made(Series, **self._tables(here) | {"lengths": lengths}, **self._kept())

    def cut(self, first: int, stop: int, ahead: int = 0) -> "Series":
        """The steps from `first` up to `stop` of one sequence without batch axes, with their labels, what was observed
        before them, and the inputs and gaps of `ahead` more steps."""
        here, driven, index = slice(first, stop), slice(first, stop + ahead), self.index_of()
        tables = self._tables(lambda table: padded(table)[here], lambda table: padded(table)[driven])
        return replace(
            self,
            **tables | {"lengths": None},
            index=None if index is None else index[here],
            stacked=None,
            frame=self.frame and self.frame.rows(here),
        )

    def _tables(
        self, of_steps: Change, driven: Change | None = None, of_sequences: Change = lambda table: table
    ) -> dict[str, Any]:
        """Changes of the tables that there are, by name.

        Arguments:
            driven: the change of inputs and gaps; None: that of the observed steps.
        """
        changes = (OF_STEPS, of_steps), (DRIVEN, driven or of_steps), (OF_SEQUENCES, of_sequences)
        there = vars(self)
        return {n: change(there[n]) for names, change in changes for n in names if there.get(n) is not None}

    def _kept(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KEPT}

    def cpu(self) -> "Series":
        """The series in the memory of the host, detached from the graph of gradients."""
        return self._mapped(lambda table: table.detach().cpu(), *NUMBERS, *PLACES)

    def detached(self) -> "Series":
        """The series, detached from the graph of gradients."""
        there = [rows_of(table) for table in map(self.__getattribute__, NUMBERS) if table is not None]
        return self._mapped(Tensor.detach, *NUMBERS) if any(table.requires_grad for table in there) else self

    def to(self, table: Tensor) -> "Series":
        """The series in the dtype and on the device of a table."""
        there = self._mapped(lambda number: number.to(table), *NUMBERS)
        return there._mapped(lambda number: number.to(table.device), *PLACES)

    def double(self) -> "Series":
        """The series in float64."""
        return self._mapped(Tensor.double, *NUMBERS)

    def _mapped(self, change: Callable[[Tensor], Tensor], *names: str) -> "Series":
        """The series with a change of some of its tables, if they are not None."""

        def changed(table: Any) -> Any:
            return table.map(change) if isinstance(table, Packed) else None if table is None else change(table)

        return replace(self, **{name: changed(getattr(self, name)) for name in names})

    def one(self, sequence: int) -> "Series":
        """One sequence without batch axes, cut to its length, with its labels and the inputs and gaps of future
        steps.

        Raises:
            ValueError: there is no such sequence.
        """
        sequence = check_integer("sequence", sequence, least=-MOST)
        if not -self.n_sequences <= sequence < self.n_sequences:
            raise ValueError(f"sequence: got {sequence}, but x holds {self.n_sequences} sequence(s), counted from 0.")
        alone = self.part(torch.tensor([sequence % self.n_sequences], device="cpu"))
        n = int(alone.last[0]) + 1
        if n < self.n_steps < self.n_driven:
            raise _unequal(n, self.n_steps)
        index = self.index_of(sequence)
        first = lambda table: table[0]
        return replace(
            self,
            **alone._tables(first, first, first) | {"lengths": None},
            index=None if index is None else index[:n],
            stacked=None,
            frame=self.frame and self.frame.rows(slice(n) if self.stacked is None else self.stacked.members[sequence]),
            features=None if self.features is None else self.features_of(sequence),
            sequences=None if self.sequences is None else (self.sequences[sequence],),
            listed=False,
        )


def concatenated(parts: Sequence[Series]) -> Series:
    """The sequences of several padded series as one; a table that some of them lack is left out."""
    first, n_steps = parts[0], max(part.n_steps for part in parts)

    def whole(name: str) -> Tensor | None:
        tables = [getattr(part, name) for part in parts]
        if any(table is None for table in tables):
            return None
        if name in BEYOND:
            wide = [table.new_full((len(table), n_steps, *table.shape[2:]), BEYOND[name]) for table in tables]
            for table, place in zip(tables, wide, strict=True):
                place[:, : table.shape[1]] = table
            tables = wide
        return torch.cat(tables)

    lengths = torch.cat([part.last + 1 for part in parts])
    tables: dict[str, Any] = {name: whole(name) for name in TABLES if name != "lengths"}
    tables["lengths"] = None if bool((lengths == n_steps).all()) else lengths
    return Series(**tables, drivers=first.drivers, scaling=first.scaling, features=first.features)


def _unequal(least: int, most: int) -> ValueError:
    return ValueError(
        f"x: got sequences of {least} to {most} steps; forecasts with inputs or dt need sequences of equal length: "
        "forecast one at a time."
    )


@contextmanager
def numbered_from(sequence: int, step: int) -> Iterator[None]:
    """Inside, errors of a part have the numbers of a sequence and a step among all."""

    def among_all(text: str) -> str:
        text = re.sub(r"\bsequence (\d+)", lambda found: f"sequence {int(found[1]) + sequence}", text)
        return re.sub(r"\bstep (\d+)", lambda found: f"step {int(found[1]) + step}", text)

    try:
        yield
    except ImpossibleError as error:
        raise ImpossibleError("x", among_all(error.message), error.failed) from None
    except ValueError as error:
        raise ValueError(among_all(str(error))) from None


def place(bad: Bool[Tensor, "*b T F"]) -> str:
    """The first marked step and feature, as text."""
    *batch, step, feature = torch.nonzero(bad)[0].tolist()
    return f"{f'sequence {number(batch)}, ' if batch else ''}step {step}, feature {feature}"


def number(index: Sequence[int]) -> int | tuple[int, ...]:
    """The number of a sequence on one batch axis, or its numbers on several."""
    return index[0] if len(index) == 1 else tuple(index)
