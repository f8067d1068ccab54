"""`Series`: what a user hands over, read once: observations with missing values, what drives them, their labels.

A tensor, a numpy array, a pandas object or a list of sequences becomes one record with observations `[*batch, T, F]` in
which NaN means missing. Nothing is imputed here, and nothing beyond a sequence's end reaches a computation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.numerics.records import Record


class Given(TypedDict, total=False):
    """What may be given beside observations, as keywords of every method that takes x.

    Entries:
        lengths: [*batch], each sequence's number of steps; a list of sequences carries its own.
        covariates: [*batch, T, C], what moves the redraw probability at each step.
        dt: [*batch, T], the gap before each step, in steps; that before the first is ignored.
    """

    lengths: Any
    covariates: Any
    dt: Any


@dataclass(frozen=True, repr=False)
class Drive(Record):
    """What drives the dynamics from outside at some steps; None where nothing does."""

    covariates: Float[Tensor, "*b T C"] | None = None
    gaps: Float[Tensor, "*b T"] | None = None

    def at(self, steps: slice) -> "Drive":
        """The same for a range of steps."""
        covariates = None if self.covariates is None else self.covariates[..., steps, :]
        return Drive(covariates, None if self.gaps is None else self.gaps[..., steps])


@dataclass(frozen=True, repr=False)
class Series(Record):
    """Observed sequences, what drives them, and the labels that they came with.

    Made by `model.read(x, ...)`, and taken by every method in place of x.

    Attributes:
        observations: NaN where missing, and beyond a sequence's end.
        lengths: each sequence's number of steps; None: all have T.
        covariates: of all T steps, and of the steps to come where a forecast is wanted: N >= T.
        gaps: the gap before each step, in steps.
        index: what the steps are called: one index for all sequences, or one for each.
        features: what the features are called: in all sequences, or one tuple for each.
        sequences: what the sequences are called.
        drivers: what the covariates are called.
    """

    observations: Float[Tensor, "*b T F"]
    lengths: Int[Tensor, "*b"] | None = None
    covariates: Float[Tensor, "*b N C"] | None = None
    gaps: Float[Tensor, "*b N"] | None = None
    index: pd.Index | tuple[pd.Index, ...] | None = None
    features: tuple[str, ...] | tuple[tuple[str, ...], ...] | None = None
    sequences: tuple[str, ...] | None = None
    drivers: tuple[str, ...] | None = None
    checked: Any = field(default=None, repr=False, compare=False)  # what the observations were checked against

    @property
    def batch_shape(self) -> torch.Size:
        return self.observations.shape[:-2]

    @property
    def n_steps(self) -> int:
        return self.observations.shape[-2]

    @property
    def n_sequences(self) -> int:
        return self.batch_shape.numel()

    @property
    def n_observed(self) -> int:
        """How many steps have an observed value."""
        return int((~torch.isnan(self.rows)).any(-1).sum())

    @property
    def rows(self) -> Float[Tensor, "n F"]:
        """All steps of all sequences below each other."""
        return self.observations.reshape(-1, self.observations.shape[-1])

    @property
    def inside(self) -> Bool[Tensor, "*b T"]:
        """Which steps belong to their sequence."""
        steps = torch.arange(self.n_steps, device=self.observations.device)
        if self.lengths is None:
            return torch.ones_like(steps, dtype=torch.bool).expand(*self.batch_shape, -1)
        return steps < self.lengths.unsqueeze(-1)

    @property
    def last(self) -> Int[Tensor, "*b"]:
        """The last step of each sequence, counted from 0."""
        if self.lengths is None:
            return torch.full(self.batch_shape, self.n_steps - 1, device=self.observations.device)
        return self.lengths - 1

    @property
    def whole_drive(self) -> Drive:
        """What drives the observed steps and those to come."""
        return Drive(self.covariates, self.gaps)

    @property
    def drive(self) -> Drive:
        """What drives the observed steps."""
        return self.whole_drive if self.n_driven == self.n_steps else self.whole_drive.at(slice(0, self.n_steps))

    @property
    def ahead(self) -> Drive:
        """What drives the steps after the last observed one, where it was given."""
        return self.whole_drive.at(slice(self.n_steps, None))

    @property
    def n_driven(self) -> int:
        """N, the number of steps that covariates and gaps are given for; T where there are none."""
        if self.covariates is not None:
            return self.covariates.shape[-2]
        return self.n_steps if self.gaps is None else self.gaps.shape[-1]

    def check_ahead(self, horizon: int) -> None:
        """Raise ValueError unless the steps to come are driven as the others are, after sequences of equal length."""
        if self.covariates is None and self.gaps is None:
            return
        if self.n_driven != self.n_steps + horizon:
            raise ValueError(
                f"horizon: got {horizon}, but covariates or dt are given for {self.n_driven} steps and x has "
                f"{self.n_steps}; give them for the steps to come too."
            )
        if self.lengths is not None:
            raise ValueError(
                "lengths: forecasts with covariates or dt need sequences of equal length; forecast one at a time."
            )

    def index_of(self, sequence: int = 0) -> pd.Index | None:
        """What the steps of a sequence are called; None where they came without names."""
        return self.index[sequence] if isinstance(self.index, tuple) else self.index

    def features_of(self, sequence: int = 0) -> tuple[str, ...]:
        """What the features of a sequence are called: by their names, or x, or x[0], x[1], ..."""
        n = self.observations.shape[-1]
        if self.features is None:
            return ("x",) if n == 1 else tuple(f"x[{feature}]" for feature in range(n))
        own = self.features[sequence] if isinstance(self.features[0], tuple) else self.features
        return tuple(map(str, own))

    def shifted(self, by: Float[Tensor, "F"]) -> "Series":
        """The same with observations counted from elsewhere."""
        return replace(self, observations=self.observations - by, checked=None)

    def part(self, which: Int[Tensor, "n"]) -> "Series":
        """Some of the sequences, given by their numbers, on one batch axis; views where they follow each other."""
        first, n = int(which[0]), len(which)
        in_order = int(which[-1]) - first + 1 == n and bool((which.diff() == 1).all())

        def some(table: Tensor | None) -> Tensor | None:
            if table is None:
                return None
            flat = table.reshape(self.n_sequences, *table.shape[len(self.batch_shape) :])
            return flat[first : first + n] if in_order else flat[which.to(flat.device)]

        observations = some(self.observations)
        assert observations is not None
        return Series(observations, some(self.lengths), some(self.covariates), some(self.gaps), checked=self.checked)

    def stretch(self, first: int, size: int) -> "Series":
        """The steps from `first` on, `size` at most; a sequence that has ended before keeps one."""
        observations = self.observations[..., first : first + size, :]
        ends = self.last + 1 - first
        lengths = ends.clamp(1, observations.shape[-2])
        drive = self.drive.at(slice(first, first + size))
        return Series(observations, lengths, drive.covariates, drive.gaps, checked=self.checked)

    def cpu(self) -> "Series":
        """The same in the memory of the host, cut off from what is differentiated."""
        tables = {name: getattr(self, name) for name in ("observations", "lengths", "covariates", "gaps")}
        return replace(self, **{name: None if t is None else t.detach().cpu() for name, t in tables.items()})

    def double(self) -> "Series":
        """The same in double precision."""
        tables = {name: getattr(self, name) for name in ("observations", "covariates", "gaps")}
        return replace(self, **{name: None if t is None else t.double() for name, t in tables.items()})

    def one(self, sequence: int) -> "Series":
        """One sequence without batch axes, cut to its length, with its labels and what drives the steps to come.

        Raises:
            ValueError: there is no such sequence.
        """
        if not -self.n_sequences <= sequence < self.n_sequences:
            raise ValueError(f"sequence: got {sequence}, but x holds {self.n_sequences} sequence(s), counted from 0.")
        alone = self.part(torch.tensor([sequence % self.n_sequences]))
        n = int(alone.last[0]) + 1
        if n < self.n_steps < self.n_driven:
            raise ValueError(
                "lengths: forecasts with covariates or dt need sequences of equal length; forecast one at a time."
            )
        index = self.index_of(sequence)
        keep = slice(None) if n == self.n_steps else slice(0, n)
        return replace(
            self,
            observations=alone.observations[0, :n],
            lengths=None,
            covariates=None if alone.covariates is None else alone.covariates[0, keep],
            gaps=None if alone.gaps is None else alone.gaps[0, keep],
            index=None if index is None else index[:n],
            features=None if self.features is None else self.features_of(sequence),
            sequences=None if self.sequences is None else (self.sequences[sequence],),
        )


def read_series(x: Any, n_features: int, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Series:
    """Read observations in any form that users hold them in.

    Arguments:
        x: `[T]` (one feature), `[T, F]` or `[*batch, T, F]` as a tensor, a numpy array or nested numbers; a pandas
            Series or DataFrame (columns are features, the index is time); a list of sequences of unequal length, or a
            dictionary of them by name. NaN is missing. Integers become float64; floating types are kept.
        n_features: F, which `x` must have.
        lengths, covariates, dt: see `Given`; covariates and gaps may reach beyond T.

    Raises:
        ValueError: wrong rank or number of features, infinite values, no steps, lengths that do not fit.
        TypeError: not numbers.
    """
    names, labels = None, {}
    if isinstance(x, dict):
        names, x = tuple(map(str, x)), list(x.values())
    if isinstance(x, pd.DataFrame | pd.Series):
        labels = {"index": x.index, "features": _features(x)}
        x = _pandas_values(x, "x")
    if isinstance(x, list | tuple) and len(x) > 0 and not np.isscalar(x[0]) and (names or _is_ragged_list(x)):
        if lengths is not None:
            raise ValueError(
                "lengths: got both a list of sequences and lengths; a list carries its own, so leave it out."
            )
        if all(isinstance(part, pd.DataFrame | pd.Series) for part in x):
            own = tuple(_features(part) for part in x)
            for i, names_of in enumerate(own):
                if names_of != own[0] and set(names_of) == set(own[0]):
                    raise ValueError(
                        f"x[{i}]: got columns {list(names_of)}, but x[0] has {list(own[0])}; use one order."
                    )
            labels = {"index": tuple(part.index for part in x), "features": own[0] if len(set(own)) == 1 else own}
        values, counts = _padded(x, n_features)
    else:
        values = _with_feature_axis(to_tensor(x, "x"), n_features, "x")
        counts = _read_lengths(lengths, values)
    drivers = tuple(map(str, covariates.columns)) if isinstance(covariates, pd.DataFrame) else None
    driven = [None if d is None else to_tensor(d, n).to(values) for n, d in (("covariates", covariates), ("dt", dt))]
    series = Series(values, counts, driven[0], driven[1], sequences=names, drivers=drivers, **labels)
    _check_finite(series)
    if counts is not None:
        series = replace(series, observations=torch.where(series.inside.unsqueeze(-1), values, torch.nan))
    return series


def _features(x: "pd.DataFrame | pd.Series") -> tuple[str, ...]:
    return tuple(map(str, x.columns)) if isinstance(x, pd.DataFrame) else (str(x.name or "x"),)


def _pandas_values(x: "pd.DataFrame | pd.Series", name: str) -> np.ndarray:
    try:
        return x.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: the pandas object holds values that are not numbers ({error}); select numeric columns."
        ) from None


def _is_ragged_list(x: Sequence[Any]) -> bool:
    """A list of arrays is a list of sequences; nested plain lists are too, unless they are rows of one sequence."""
    if isinstance(x[0], Tensor | np.ndarray | pd.Series | pd.DataFrame):
        return not all(getattr(part, "ndim", 1) == 0 for part in x)
    return any(not np.isscalar(value) for part in x for value in list(part)[:1]) or len({len(part) for part in x}) > 1


def _padded(x: Sequence[Any], n_features: int) -> tuple[Tensor, Tensor]:
    """A list of sequences as one tensor with NaN beyond their ends, and their lengths."""
    parts = [_with_feature_axis(to_tensor(part, f"x[{i}]"), n_features, f"x[{i}]") for i, part in enumerate(x)]
    for i, part in enumerate(parts):
        if part.ndim != 2:
            raise ValueError(f"x[{i}]: got shape {tuple(part.shape)}; each sequence of a list is [T] or [T, F].")
    dtype = parts[0].dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    values = torch.nn.utils.rnn.pad_sequence([part.to(dtype) for part in parts], True, padding_value=float("nan"))
    return values, torch.tensor([part.shape[0] for part in parts], device=values.device)


def to_tensor(x: Any, name: str) -> Tensor:
    """Numbers in any form as a tensor: floating types are kept, anything else becomes float64."""
    if isinstance(x, pd.DataFrame | pd.Series):
        x = _pandas_values(x, name)
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.kind not in "fiubc":
            try:
                array = array.astype(np.float64)
            except (TypeError, ValueError):
                raise TypeError(
                    f"{name}: got {type(x).__name__} of {array.dtype}, expected numbers; convert text and dates first."
                ) from None
        x = torch.from_numpy(np.array(array))  # a copy: the caller's array may be read-only
    if x.is_complex():
        raise TypeError(
            f"{name}: got complex numbers, expected real ones; give real and imaginary parts as two features."
        )
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float64)


def _with_feature_axis(x: Tensor, n_features: int, name: str) -> Tensor:
    shape = tuple(x.shape)
    if x.ndim == 0:
        raise ValueError(f"{name}: got a single number, expected a sequence [T], [T, F] or [*batch, T, F].")
    if x.ndim == 1:
        if n_features != 1:
            raise ValueError(
                f"{name}: got shape {shape}, but the emission has {n_features} features; give [T, {n_features}]."
            )
        x = x.unsqueeze(-1)
    if x.shape[-1] != n_features:
        raise ValueError(
            f"{name}: got shape {shape}, whose last axis is not the emission's {n_features} feature(s); "
            f"give [T, {n_features}] or [*batch, T, {n_features}]"
            + (" (several sequences of one feature: [B, T, 1] or a list)." if n_features == 1 else ".")
        )
    if x.shape[-2] == 0:
        raise ValueError(f"{name}: got shape {shape}, a sequence without any step; give at least one.")
    return x


def _read_lengths(lengths: Any, values: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    counts = torch.as_tensor(lengths, device=values.device)
    if counts.is_floating_point() or counts.dtype == torch.bool or counts.is_complex():
        raise TypeError(f"lengths: got {counts.dtype}, expected integers: each sequence's number of steps.")
    if counts.shape != values.shape[:-2]:
        raise ValueError(
            f"lengths: got shape {tuple(counts.shape)}, expected one length a sequence: {tuple(values.shape[:-2])}."
        )
    n_steps = values.shape[-2]
    bad = (counts < 1) | (counts > n_steps)
    if bad.any():
        where = tuple(torch.nonzero(bad)[0].tolist())
        raise ValueError(
            f"lengths: got {int(counts[where])} for sequence {_number(where)}, but the series has {n_steps} steps; "
            "give each sequence's number of observed steps, between 1 and T."
        )
    return counts.to(torch.int64)


def _check_finite(series: Series) -> None:
    infinite = torch.isinf(series.observations) & series.inside.unsqueeze(-1)
    if infinite.any():
        raise ValueError(f"x: got an infinite value at {place(infinite)}; mark missing values with NaN.")


def place(bad: Bool[Tensor, "*b T F"]) -> str:
    """The first step and feature that is marked, in words."""
    *batch, step, feature = torch.nonzero(bad)[0].tolist()
    return f"{f'sequence {_number(batch)}, ' if batch else ''}step {step}, feature {feature}"


def _number(index: Sequence[int]) -> int | tuple[int, ...]:
    return index[0] if len(index) == 1 else tuple(index)
