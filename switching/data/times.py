"""Times of steps, as the gaps between them."""

from dataclasses import replace

import torch
from torch import Tensor

from .packed import Packed
from .series import Series


def with_gaps(series: Series) -> Series:
    """The series whose `dt` are times, with the gaps before its steps instead; that of the first step is 0.

    Raises:
        ValueError: times of another shape than the steps, that are missing, that go back, or that repeat.
    """
    times, like = series.dt, series.like
    assert times is not None
    if isinstance(times, Packed):
        gaps = _differences(times.rows)
        first = torch.zeros_like(gaps, dtype=torch.bool)
        first[times.starts] = True
        gaps, inside = torch.where(first, 0.0, gaps), torch.ones_like(first)
        number, step = series.sequence_of_rows, torch.arange(len(first), device=first.device)
        step = step - times.starts.to(step)[number]
    else:
        if not times.ndim or times.shape[:-1] != series.batch_shape or times.shape[-1] < series.n_steps:
            expected = (*series.batch_shape, series.n_steps)
            raise ValueError(f"time: got shape {tuple(times.shape)}, expected {expected}: the time of each step.")
        gaps, inside = _differences(times), torch.ones_like(times, dtype=torch.bool)
        inside[..., : series.n_steps] = series.inside
        number = torch.arange(series.n_sequences, device=gaps.device).reshape(*series.batch_shape, 1).expand(gaps.shape)
        step = torch.arange(gaps.shape[-1], device=gaps.device).expand(gaps.shape)
    rows = times.rows if isinstance(times, Packed) else times
    _check(rows, gaps, inside, number, step, alone=not series.batch_shape)
    gaps = torch.where(inside, gaps, 0.0).to(like)
    if bool(((gaps == 0) & inside & (step > 0)).any()):
        raise ValueError(
            f"time: got times whose differences {like.dtype} cannot represent; use other units, or float64."
        )
    return replace(series, dt=replace(times, rows=gaps) if isinstance(times, Packed) else gaps)


def _differences(times: Tensor) -> Tensor:
    return torch.nn.functional.pad(times[..., 1:] - times[..., :-1], (1, 0))


def _check(times: Tensor, gaps: Tensor, inside: Tensor, number: Tensor, step: Tensor, alone: bool) -> None:
    """ValueError with the place if times inside the sequences do not rise."""
    wrong = inside & (~times.isfinite() | ~((gaps > 0) | (step == 0)))
    if not bool(wrong.any()):
        return
    place = tuple(wrong.nonzero()[0].tolist())
    where = f"step {int(step[place])}" + ("" if alone else f" of sequence {int(number[place])}")
    if not bool(times[place].isfinite()):
        raise ValueError(f"time: got {float(times[place]):g} at {where}, expected the time of the step, a number.")
    before = float(times[(*place[:-1], place[-1] - 1)])
    kind = "repeats" if float(gaps[place]) == 0 else "goes back"
    raise ValueError(
        f"time: {kind} at {where}, where {float(times[place]):g} follows {before:g}; sort the steps by time, and leave "
        "one step at each time."
    )
