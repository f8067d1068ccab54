"""Checks of what a caller hands to a scan or a chain: every message names the argument, what came and the cure."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)


class ImpossibleError(ValueError):
    """Log-weights from which no path can be made; `failed` [*b] says of which sequences that is so."""

    def __init__(self, message: str, failed: Tensor) -> None:
        super().__init__(message)
        self.failed = failed


def check_same_kind(**tables: object) -> None:
    """Raise `TypeError` unless all given tables are float32 or float64 tensors of one dtype, on one device.

    A table that is None is left out.
    """
    given = {name: table for name, table in tables.items() if table is not None}
    first = next(iter(given))
    for name, table in given.items():
        if not isinstance(table, Tensor):
            raise TypeError(
                f"{name}: got {type(table).__name__}, expected a torch tensor; convert it with torch.as_tensor."
            )
        if table.dtype not in DTYPES:
            raise TypeError(
                f"{name}: got dtype {table.dtype}, expected torch.float32 or torch.float64; convert it with `.to(...)`."
            )
        other = given[first]
        assert isinstance(other, Tensor)
        if table.dtype != other.dtype or table.device != other.device:
            raise TypeError(
                f"{name}: got {table.dtype} on {table.device}, but {first} is {other.dtype} on {other.device}; "
                f"convert it with `{name}.to({first})`."
            )


def check_steps(name: str, table: Tensor) -> tuple[int, int]:
    """T and K of a table [*batch, T, K]; `ValueError` unless it has at least one step and state."""
    if table.dim() < 2 or 0 in table.shape[-2:]:
        raise ValueError(
            f"{name}: got shape {list(table.shape)}, expected [*batch, T, K] with at least one step and one state."
        )
    return table.shape[-2], table.shape[-1]


def check_shape(name: str, table: Tensor | None, *allowed: tuple[int, ...]) -> Sequence[int] | None:
    """The batch axes of a table, if any; `ValueError` unless its last axes are one of those that are allowed."""
    if table is None:
        return None
    own = len(allowed[0])
    if tuple(table.shape[-own:]) not in allowed:
        expected = " or ".join(f"[*batch, {', '.join(map(str, shape))}]" for shape in allowed)
        raise ValueError(f"{name}: got shape {list(table.shape)}, expected {expected}.")
    return table.shape[:-own]


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """What the shapes broadcast to; ValueError if they do not.

    Many times as fast as torch's function of that name, which besides loads a library for algebra.
    """
    return torch.Size(np.broadcast_shapes(*map(tuple, shapes)))


def common_batch(**shapes: Sequence[int] | None) -> torch.Size:
    """The batch shape that all named batch shapes broadcast to; `ValueError` with every shape if there is none."""
    given = {name: tuple(shape) for name, shape in shapes.items() if shape is not None}
    try:
        return broadcast_shapes(*given.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in given.items())
        raise ValueError(
            f"{', '.join(given)}: the batch axes {shown} do not broadcast; make each equal to the others, or 1."
        ) from None


def check_lengths(lengths: object, batch: Sequence[int], n_steps: int, device: torch.device) -> Tensor:
    """`lengths` as int64 of shape `batch` on `device`; None means that every sequence has all `n_steps`.

    Raises:
        TypeError: `lengths` are not integers.
        ValueError: they do not broadcast to `batch`, or one of them is not in 1..n_steps.
    """
    if lengths is None:
        return torch.full(tuple(batch), n_steps, dtype=torch.int64, device=device)
    given = torch.as_tensor(lengths, device=device)
    if given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
        raise TypeError(f"lengths: got dtype {given.dtype}, expected integers; give each sequence's number of steps.")
    try:
        expanded = given.to(torch.int64).expand(tuple(batch))
    except RuntimeError:
        raise ValueError(
            f"lengths: got shape {list(given.shape)}, but the batch axes are {list(batch)}; give one length a sequence."
        ) from None
    outside = ((expanded < 1) | (expanded > n_steps)).nonzero()
    if len(outside):
        index = tuple(outside[0].tolist())
        raise ValueError(
            f"lengths: got {int(expanded[index])}{_of_sequence(index)}, but the series has {n_steps} steps; "
            "give each sequence's number of observed steps, between 1 and T."
        )
    return expanded


def check_start(log_initial: Tensor | None) -> None:
    """Raise `ValueError` unless each row of `log_initial` [*b, K] has a finite entry and none that is NaN or +inf."""
    if log_initial is None:
        return
    bad = (~log_initial.detach().amax(-1).isfinite()).nonzero()
    if len(bad):
        index = tuple(bad[0].tolist())
        raise ValueError(
            f"log_initial: got {log_initial[index].tolist()}{_of_sequence(index)}; "
            "give log-probabilities, of which at least one is above -inf and none is NaN or +inf."
        )


def check_possible(failed_step: Tensor, **tables: Tensor | None) -> None:
    """Raise `ImpossibleError` if a recursion met a step whose total weight is not a positive finite number.

    Arguments:
        failed_step: [*b], the first such step of each sequence, or -1.
        tables: log-weights by step, [*b, T, n] with batch axes that broadcast: searched for NaN and +inf, so that the
            message can tell a bad number from an impossible observation.
    """
    failed = failed_step >= 0
    if not failed.any():
        return
    index = tuple(failed.nonzero()[0].tolist())
    step = int(failed_step[index])
    given = {name: table for name, table in tables.items() if table is not None}
    for name, table in given.items():
        row = table.detach().expand(*failed_step.shape, *table.shape[-2:])[index][step]
        if row.isnan().any() or row.isposinf().any():
            raise ImpossibleError(
                f"{name}: holds {'NaN' if row.isnan().any() else '+inf'} at step {step}{_of_sequence(index)}; "
                "log-weights are finite numbers, or -inf for an impossible event.",
                failed,
            )
    raise ImpossibleError(
        f"{', '.join(given)}: the observation at step {step}{_of_sequence(index)} is impossible under every state that "
        "can be reached; give it a positive probability, or make the step missing (all log-likelihoods 0).",
        failed,
    )


def check_held(total: Tensor) -> Tensor:
    """The log-normalizers themselves; `ValueError` if one is beyond what their dtype holds."""
    if bool(total.isinf().any()):
        raise ValueError(
            f"log p(x): lies beyond what {str(total.dtype).removeprefix('torch.')} holds; give smaller log-weights"
            f"{' or tables in float64' if total.dtype == torch.float32 else ''}."
        )
    return total


def _of_sequence(index: tuple[int, ...]) -> str:
    if not index:
        return ""
    return f" of sequence {index[0] if len(index) == 1 else index}"
