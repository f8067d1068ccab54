"""What users hand over, as one tensor: sequences of observations with missing values and ragged lengths.

A tensor, a numpy array, a pandas object or a list of sequences becomes `Sequences`: values `[*batch, T, F]` in which
NaN means missing, and the number of steps of each sequence. Nothing is imputed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Observed sequences, and the names that a plot or a table gives to their axes."""

    values: Float[Tensor, "*b T F"]
    lengths: Int[Tensor, "*b"] | None = None
    time: pd.Index | None = None
    features: Sequence[str] | None = None

    @property
    def batch_shape(self) -> torch.Size:
        return self.values.shape[:-2]

    @property
    def inside(self) -> Tensor:
        """[*b, T]: which steps belong to their sequence."""
        n_steps = self.values.shape[-2]
        if self.lengths is None:
            return torch.ones(self.values.shape[:-1], dtype=torch.bool, device=self.values.device)
        return torch.arange(n_steps, device=self.values.device) < self.lengths.unsqueeze(-1)


def read_sequences(x: Any, n_features: int, lengths: Any = None) -> Sequences:
    """Read observations in any form that users hold them in.

    Arguments:
        x: `[T]` (one feature), `[T, F]` or `[*batch, T, F]` as a tensor, a numpy array or nested numbers; a pandas
            Series or DataFrame (columns are features, the index is time); or a list of sequences of unequal length.
            NaN is missing. Integers become float64; floating types are kept.
        n_features: F, which `x` must have.
        lengths: `[*batch]`, the number of steps of each sequence; the steps beyond it are ignored.

    Raises:
        ValueError: wrong rank or number of features, infinite values, no steps, lengths that do not fit.
        TypeError: not numbers.
    """
    if isinstance(x, Sequences):
        return x
    time = features = None
    if isinstance(x, pd.DataFrame | pd.Series):
        time = x.index
        features = [str(c) for c in x.columns] if isinstance(x, pd.DataFrame) else [str(x.name or "x")]
        x = _pandas_values(x, "x")
    if isinstance(x, list | tuple) and len(x) > 0 and not np.isscalar(x[0]) and _is_ragged_list(x):
        if lengths is not None:
            raise ValueError(
                "lengths: got both a list of sequences and lengths; a list carries its own, so leave it out."
            )
        parts = [_with_feature_axis(to_tensor(part, f"x[{i}]"), n_features, f"x[{i}]") for i, part in enumerate(x)]
        _check_steps(parts)
        dtype = parts[0].dtype
        for part in parts:
            dtype = torch.promote_types(dtype, part.dtype)
        values = torch.nn.utils.rnn.pad_sequence(
            [part.to(dtype) for part in parts], batch_first=True, padding_value=float("nan")
        )
        counts = torch.tensor([part.shape[0] for part in parts], device=values.device)
    else:
        values = _with_feature_axis(to_tensor(x, "x"), n_features, "x")
        counts = _read_lengths(lengths, values)
    series = Sequences(values, counts, time, features)
    _check_finite(series)
    if counts is not None:  # what lies beyond a sequence's end never reaches a computation
        series = Sequences(torch.where(series.inside.unsqueeze(-1), values, torch.nan), counts, time, features)
    return series


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


def _check_steps(parts: Sequence[Tensor]) -> None:
    for i, part in enumerate(parts):
        if part.ndim != 2:
            raise ValueError(f"x[{i}]: got shape {tuple(part.shape)}; each sequence of a list is [T] or [T, F].")


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
        sequence = where[0] if len(where) == 1 else where
        raise ValueError(
            f"lengths: got {int(counts[where])} for sequence {sequence}, but the series has {n_steps} steps; "
            "give each sequence's number of observed steps, between 1 and T."
        )
    return counts.to(torch.int64)


def _check_finite(series: Sequences) -> None:
    infinite = torch.isinf(series.values) & series.inside.unsqueeze(-1)
    if infinite.any():
        *batch, step, feature = torch.nonzero(infinite)[0].tolist()
        place = f"sequence {batch[0] if len(batch) == 1 else tuple(batch)}, " if batch else ""
        raise ValueError(
            f"x: got an infinite value at {place}step {step}, feature {feature}; mark missing values with NaN."
        )
