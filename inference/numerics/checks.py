"""Checks of the arguments of scans and chains. Every message names the argument, the value and the cure."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .arrays import numbers, ordinary
from .deferred import refuse_if
from .remembered import remembered

DTYPES = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


class ImpossibleError(ValueError):
    """Log-weights that allow no path; `failed` [*b] marks the sequences for which this is so."""

    message: str
    failed: Tensor

    def __init__(self, names: str, message: str, failed: Tensor) -> None:
        super().__init__(f"{names}: {message}")
        self.message, self.failed = message, failed


class naming:
    """Inside, errors about impossible log-weights, x or `given` use the name that the caller used."""

    def __init__(self, name: str, given: str = "x") -> None:
        self._name, self._given = name, given

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        name, given, text = self._name, self._given, str(error)
        if isinstance(error, ImpossibleError):
            raise ImpossibleError(name, error.message, error.failed) from None
        named = text.startswith((f"{given}:", f"{given}.", f"{given}["))
        if isinstance(error, ValueError | TypeError) and named and name != given:
            raise type(error)(name + text[len(given) :]) from None


def check_same_kind(*optional: str, **tables: object) -> None:
    """Raise `TypeError` unless all tables are dense float32 or float64 tensors of one dtype, on one device.

    Those in `optional` may be None.
    """
    check_same_dtype(tables, DTYPES, optional)


def check_same_dtype(
    tables: Mapping[str, object], dtypes: Sequence[torch.dtype], optional: Sequence[str] = (), values: bool = True
) -> None:
    """Raise `TypeError` unless all tables are dense tensors of one dtype, on one device; those in `optional` may be
    None. Unless `values`, they may be on torch's device "meta"."""
    present = {name: table for name, table in tables.items() if table is not None or name not in optional}
    first = next(iter(present))
    like: Any = present[first]
    if _is_at_hand(like) and like.dtype in dtypes and all(_is_alike(x, like) for x in present.values()):
        return
    for name, table in present.items():
        table = check_table(name, table, dtypes=dtypes, values=values)
        other = present[first]
        assert isinstance(other, Tensor)
        if table.dtype != other.dtype or table.device != other.device:
            raise TypeError(
                f"{name}: got {table.dtype} on {table.device}, but {first} is {other.dtype} on {other.device}; "
                f"convert it with `{name}.to({first})`."
            )


def _is_at_hand(table: Any) -> bool:
    """Whether the numbers of a tensor can be read at once: it lies on the CPU, and nothing traces or maps it."""
    return (
        type(table) in (Tensor, torch.nn.Parameter)
        and table.is_cpu
        and table.layout == torch.strided
        and table.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def _is_alike(table: Any, other: Tensor) -> bool:
    """Whether an object is a dense tensor of the same dtype and device."""
    return (
        isinstance(table, Tensor)
        and table.dtype == other.dtype
        and table.device == other.device
        and table.layout == other.layout
    )


def _extremes(table: Tensor) -> tuple[float, float]:
    """The least and the largest number of a tensor that is there; NaN if it holds NaN."""
    if table.numel() == 1:
        only = table.item()
        return only, only
    least, most = table.detach().aminmax()
    return least.item(), most.item()


def check_table(
    name: str,
    table: object,
    *sizes: int | None,
    like: Tensor | None = None,
    finite: bool = False,
    alone: bool = False,
    dtypes: Sequence[torch.dtype] = DTYPES,
    values: bool = True,
) -> Tensor:
    """A dense tensor `[*batch, *sizes]` of floating numbers; if `alone`, without batch axes.

    Arguments:
        sizes: of the last axes; None: any.
        like: a tensor with the required dtype and device; None: one of `dtypes`, on any device.
        finite: whether NaN and infinite numbers are errors.
        values: whether a tensor on torch's device "meta" is an error, if `like` is not there too.

    Raises:
        TypeError: not a tensor, or a tensor of another kind.
        ValueError: another shape; numbers that are not finite.
    """
    if not isinstance(table, Tensor):
        raise TypeError(
            f"{name}: got {type(table).__name__}, expected a torch tensor; convert it with torch.as_tensor."
        )
    if table.layout != torch.strided or (values and table.is_meta and not (like is not None and like.is_meta)):
        raise TypeError(
            f"{name}: got layout {table.layout} on {table.device}, expected a dense tensor with values; convert it "
            "with `.to_dense()`."
        )
    if like is None and table.dtype not in dtypes:
        *others, last = map(str, dtypes)
        raise TypeError(
            f"{name}: got dtype {table.dtype}, expected {', '.join(others)} or {last}; convert it with `.to(...)`."
        )
    if like is not None and (table.dtype != like.dtype or table.device != like.device):
        raise TypeError(
            f"{name}: got {table.dtype} on {table.device}, expected {like.dtype} on {like.device}; convert it with "
            "`.to(...)`."
        )
    own_sizes = table.shape[table.dim() - len(sizes) :]
    fits = table.dim() == len(sizes) if alone else table.dim() >= len(sizes)
    if not fits or any(size not in (None, n) for size, n in zip(sizes, own_sizes, strict=True)):
        axes = ", ".join(["*batch"] * (not alone) + ["any" if size is None else str(size) for size in sizes])
        raise ValueError(f"{name}: got shape {list(table.shape)}, expected [{axes}].")
    if finite and not (_is_at_hand(table) and math.isfinite(float(table.detach().sum()))):

        def complain() -> None:
            raise ValueError(f"{name}: got numbers that are not finite; give finite ones.")

        refuse_if((0.0 * table.detach()).sum().isnan(), complain)  # 0 times what is not finite is NaN
    return ordinary(table)


def widened(x: Tensor) -> Tensor:
    """Half precision as single precision: sums need more digits. Other dtypes are unchanged."""
    return x if x.dtype in DTYPES else x.float()


def check_steps(name: str, table: Tensor) -> tuple[int, int]:
    """T and K of a table [*batch, T, K]; `ValueError` unless it has at least one step and one state."""
    if table.dim() < 2 or 0 in table.shape[-2:]:
        raise ValueError(
            f"{name}: got shape {list(table.shape)}, expected [*batch, T, K] with at least one step and one state."
        )
    return table.shape[-2], table.shape[-1]


def check_shape(name: str, table: Tensor | None, *allowed: tuple[int, ...]) -> Sequence[int] | None:
    """The batch axes of a table, if there is one; `ValueError` unless its last axes are among those allowed."""
    if table is None:
        return None
    n_axes = len(allowed[0])
    if tuple(table.shape[-n_axes:]) not in allowed:
        expected = " or ".join(f"[*batch, {', '.join(map(str, shape))}]" for shape in allowed)
        raise ValueError(f"{name}: got shape {list(table.shape)}, expected {expected}.")
    return table.shape[:-n_axes]


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape that all shapes broadcast to; ValueError if there is none.

    This is many times as fast as torch's function of this name, which also loads a library for algebra.
    """
    distinct = {tuple(shape) for shape in shapes if len(shape)}
    if len(distinct) <= 1:
        return torch.Size(*distinct)
    return torch.Size(np.broadcast_shapes(*distinct))


def common_batch(**shapes: Sequence[int] | None) -> torch.Size:
    """The batch shape that all named batch shapes broadcast to; `ValueError` with every shape if there is none."""
    present = {name: tuple(shape) for name, shape in shapes.items() if shape is not None}
    if len(set(present.values())) == 1:
        return torch.Size(next(iter(present.values())))
    try:
        return broadcast_shapes(*present.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in present.items())
        raise ValueError(
            f"{', '.join(present)}: the batch axes {shown} do not broadcast; make each equal to the others, or 1."
        ) from None


def check_integers(table: Any, name: str, meaning: str) -> Tensor:
    """A table of integers as int64; `TypeError` for other values, including booleans and missing values.

    Arguments:
        what: the meaning of the integers, for the message.
    """
    values = numbers(table, name)
    if values.dtype != torch.int64:
        got = getattr(table, "dtype", values.dtype)
        raise TypeError(f"{name}: got dtype {got}, expected integers; give {meaning}.")
    return values


def check_dtype(name: str, dtype: object) -> None:
    """Raise `TypeError` unless this is a floating dtype of torch, or None."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"{name}: got {dtype!r}, expected a floating dtype of torch, such as torch.float64, or None.")


def check_parts(name: str, parts: object, least: int = 1) -> list[Any]:
    """The parts of a sequence, at least `least`; `TypeError` if it is not a sequence."""
    if not isinstance(parts, list | tuple | Tensor | np.ndarray) or not getattr(parts, "ndim", 1):
        raise TypeError(f"{name}: got {type(parts).__name__}, expected a list.")
    if len(parts) < least:
        raise ValueError(f"{name}: got {len(parts)} parts, expected at least {least}.")
    return list(parts)


def check_call(name: str, function: Callable[..., Any], table: Tensor, *others: Any) -> Any:
    """The result of a caller's function or module for a table; `ValueError` if it fails on this kind of table."""
    try:
        return function(table, *others)
    except RuntimeError as error:
        dtype = str(table.dtype).removeprefix("torch.")
        raise ValueError(
            f"{name}: this function fails for {dtype} of shape {list(table.shape)}: {error}; give one that accepts "
            "them."
        ) from error


def check_each(name: str, values: object, most: float) -> list[float]:
    """The finite numbers of a list, each from 0 to `most`.

    Raises:
        TypeError: values that are not numbers.
        ValueError: an empty list, a table, or a number out of range.
    """
    table = numbers(values, name)
    if table.dtype == torch.bool:
        raise TypeError(f"{name}: got booleans, expected numbers.")
    within = (table >= 0) & (table <= most) & table.isfinite()
    if table.dim() != 1 or not table.numel() or not bool(within.all()):
        raise ValueError(f"{name}: got {table.tolist()}, expected a list of finite numbers from 0 to {most:g}.")
    return table.double().tolist()


def check_mask(name: str, mask: object, shape: Sequence[int]) -> Tensor:
    """A table of booleans of this shape."""
    table = numbers(mask, name)
    if table.dtype != torch.bool:
        raise TypeError(f"{name}: got {table.dtype}, expected booleans.")
    if tuple(table.shape) != tuple(shape):
        raise ValueError(f"{name}: got shape {list(table.shape)}, expected {list(shape)}.")
    return table


def read_lengths(lengths: object) -> Tensor | None:
    """Lengths in any form as int64; None if there are none; `TypeError` if they are not integers."""
    return None if lengths is None else check_integers(lengths, "lengths", "each sequence's number of steps")


def check_lengths(lengths: object, batch: Sequence[int], n_steps: int, device: torch.device) -> Tensor:
    """`lengths` as int64 of shape `batch` on `device`; None means that every sequence has all `n_steps`.

    Raises:
        TypeError: `lengths` are not integers.
        ValueError: they do not broadcast to `batch`, or one of them is not in 1..n_steps.
    """
    if lengths is None:
        return torch.full(tuple(batch), n_steps, dtype=torch.int64, device=device)
    counts = read_lengths(lengths)
    assert counts is not None
    try:
        expanded = counts.to(device).expand(tuple(batch))
    except RuntimeError:
        raise ValueError(
            f"lengths: got shape {list(counts.shape)}, but the batch axes are {list(batch)}; give one length for each "
            "sequence."
        ) from None
    least, most = _ends(counts)  # read now, before a kernel reads beyond the end of a table
    if counts.numel() and (least < 1 or most > n_steps):
        shown = expanded if expanded.numel() else counts  # one length for a batch without sequences
        index = tuple(((shown < 1) | (shown > n_steps)).nonzero()[0].tolist())
        raise ValueError(
            f"lengths: got {int(shown[index])}{_of_sequence(index)}, but the series has {n_steps} steps; "
            "give each sequence's number of observed steps, between 1 and T."
        )
    return expanded


@remembered
def _ends(lengths: Tensor) -> tuple[int, int]:
    """The least and the greatest length; 1 if there are none."""
    if not lengths.numel():
        return 1, 1
    least, most = torch.stack(lengths.aminmax()).tolist()
    return least, most


def shortest(lengths: Tensor) -> int:
    """The least length."""
    return _ends(lengths)[0]


def check_weights(name: str, log_weights: Tensor) -> None:
    """Raise `ValueError` if a log-weight is NaN or +inf."""
    if _is_at_hand(log_weights) and _extremes(log_weights)[1] < torch.inf:
        return
    bad = ~(log_weights.detach() < torch.inf)

    def complain() -> None:
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name}: got {log_weights[index].item()} at {list(index)}; log-weights are finite, or -inf (impossible)."
        )

    refuse_if(bad.any(), complain)


def check_start(log_initial: Tensor | None) -> None:
    """Raise `ValueError` unless each row of `log_initial` [*b, K] has a finite entry, and none is NaN or +inf."""
    if log_initial is None:
        return
    largest = log_initial.detach().amax(-1)
    if _is_at_hand(largest) and max(map(abs, _extremes(largest))) < torch.inf:
        return
    bad = ~(largest.abs() < torch.inf)

    def complain() -> None:
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"log_initial: got {log_initial[index].tolist()}{_of_sequence(index)}; "
            "give log-probabilities without NaN and +inf, at least one of them above -inf."
        )

    refuse_if(bad.any(), complain)


def check_possible(
    failed_step: Tensor, total: Tensor | None = None, hint: str = "", /, **tables: Tensor | None
) -> None:
    """Raise `ImpossibleError` if the total weight of a step is not a positive finite number, and `ValueError` if its
    dtype cannot represent a log-normalizer.

    Arguments:
        failed_step: [*b], the first such step of each sequence, or -1.
        total: the log-normalizers, if there are any.
        hint: another reason for an impossible step, in words.
        tables: log-weights by step, [*b, T, n] with batch axes that broadcast. They are searched for NaN and +inf, so
            the message can distinguish a bad number from an impossible observation.
    """
    finite = total is None or (_is_at_hand(total) and max(map(abs, _extremes(total))) < torch.inf)
    if finite and _is_at_hand(failed_step) and _extremes(failed_step)[1] < 0:
        return
    bad = (failed_step >= 0).any()
    beyond = None if total is None else total.isinf().any()

    def complain() -> None:
        if bool(bad):
            _raise_impossible(failed_step, tables, hint)
        assert total is not None
        raise ValueError(
            f"log p(x): overflows {str(total.dtype).removeprefix('torch.')}; give smaller log-weights"
            f"{' or tables in float64' if total.dtype == torch.float32 else ''}."
        )

    refuse_if(bad if beyond is None else bad | beyond, complain)


def _raise_impossible(failed_step: Tensor, tables: dict[str, Tensor | None], hint: str) -> NoReturn:
    failed = failed_step >= 0
    index = tuple(failed.nonzero()[0].tolist())
    step = int(failed_step[index])
    present = {name: table for name, table in tables.items() if table is not None}
    for name, table in present.items():
        row = table.detach().expand(*failed_step.shape, *table.shape[-2:])[index][step]
        if row.isnan().any() or row.isposinf().any():
            raise ImpossibleError(
                name,
                f"holds {'NaN' if row.isnan().any() else '+inf'} at step {step}{_of_sequence(index)}; "
                "log-weights are finite numbers, or -inf for an impossible event.",
                failed,
            )
    raise ImpossibleError(
        ", ".join(present),
        f"the observation at step {step}{_of_sequence(index)} is impossible under every state that "
        "can be reached; give it a positive probability, or make the step missing (all log-likelihoods 0)."
        f"{hint}",
        failed,
    )


def _of_sequence(index: tuple[int, ...]) -> str:
    if not index:
        return ""
    return f" of sequence {index[0] if len(index) == 1 else index}"
