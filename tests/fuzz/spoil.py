"""Arguments that are valid, arguments that are not, and some of which nobody would say at once which they are."""

import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import torch
from torch import Tensor

JUNK: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: "text",
    lambda: b"bytes",
    lambda: object(),
    lambda: {1.0, 2.0},
    dict,
    list,
    lambda: (),
    lambda: [[]],
    lambda: [[1.0], [2.0, 3.0]],
    lambda: [None],
    lambda: ["a", "b"],
    lambda: [1.0, "a"],
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 3,
    lambda: 2**70,
    lambda: 1.5,
    lambda: 2.0,
    lambda: -0.5,
    lambda: 1e300,
    lambda: 1e-300,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: -float("inf"),
    lambda: 1j,
    lambda: Decimal("1.5"),
    lambda: np.int64(2),
    lambda: np.float32(0.5),
    lambda: np.bool_(True),
    lambda: np.array(2),
    lambda: np.array("2020-01-01", dtype="M8[D]"),
    lambda: np.array([1, 2], dtype="m8[s]"),
    lambda: np.array(["a", "b"]),
    lambda: np.array([1.0, None], dtype=object),
    lambda: np.array([1 + 1j, 2.0]),
    lambda: np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]),
    lambda: np.ma.array([1, 2], mask=[True, False]),
    lambda: date(2020, 1, 1),
    lambda: timedelta(1),
    lambda: [date(2020, 1, 1)],
    lambda: pd.NA,
    lambda: pd.NaT,
    lambda: pd.Series([1.0, 2.0]),
    lambda: pd.Series(["a", "b"]),
    lambda: pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"])),
    lambda: pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}),
    lambda: pl.DataFrame({"a": [1.0, None], "b": ["x", "y"]}),
    lambda: pl.LazyFrame({"a": [1.0, 2.0]}),
    lambda: torch.tensor(2),
    lambda: torch.tensor(0.5),
    lambda: torch.tensor([]),
    lambda: torch.zeros(0, 3, 1),
    lambda: torch.ones(3),
    lambda: torch.ones(2, 3),
    lambda: torch.ones(2, 3, 1, dtype=torch.float64),
    lambda: torch.ones(2, dtype=torch.bool),
    lambda: torch.ones(2, dtype=torch.int64),
    lambda: torch.tensor([1 + 1j, 2.0]),
    lambda: torch.ones(2).to_sparse(),
    lambda: torch.ones(2, 3, device="meta"),
    lambda: torch.Generator().manual_seed(1),
    lambda: lambda *given: None,
    lambda: torch.nn.Linear(2, 2),
)

PATHS = ("", "file", "file/model", "empty", "a\0b", "\ud800", "a" * 300, Path("file"), "/proc/none", "/dev/null")
"""Of no model, from a folder that has such a file and such a folder."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool)
EXTREMES = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 0.5, 1e30, -1e30, 1e300, 1e-30, 1e-300)


def spoiled(value: Any, random: random.Random) -> Any:
    """Another value in the place of a valid one: something else altogether, or nearly the same."""
    if isinstance(value, Tensor) and random.random() < 0.75:
        return _tensor(value, random)
    if isinstance(value, Path) and random.random() < 0.6:
        return random.choice(PATHS)
    if type(value) in (list, tuple) and value and random.random() < 0.6:
        return _list(value, random)
    if isinstance(value, dict) and value and random.random() < 0.75:
        name = random.choice(sorted(value))
        if random.random() < 0.2:
            return {own: table for own, table in value.items() if own != name}
        return value | {name: spoiled(value[name], random)}
    return random.choice(JUNK)()


def _list(value: Any, random: random.Random) -> Any:
    kind = random.choice(("part", "part", "shorter", "longer", "array", "masked"))
    if kind == "part":
        i = random.randrange(len(value))
        return type(value)([*value[:i], spoiled(value[i], random), *value[i + 1 :]])
    if kind == "shorter":
        return value[:-1]
    if kind == "longer":
        return type(value)([*value, value[0]])
    try:
        array = np.asarray(value)
    except (ValueError, RuntimeError, TypeError):
        return value[:0]
    return array if kind == "array" else np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) == 0)


def _tensor(table: Tensor, random: random.Random) -> Any:
    kind = random.choice(tuple(_CHANGES))
    try:
        return _CHANGES[kind](table, random)
    except (RuntimeError, TypeError, ValueError, IndexError, OverflowError):
        return random.choice(JUNK)()


def _holding(table: Tensor, random: random.Random) -> Tensor:
    """With an extreme number at one place, or everywhere."""
    number = random.choice(EXTREMES)
    table = table.detach().clone()
    if not table.numel() or not table.is_floating_point():
        return torch.full_like(table, number if number == number and abs(number) < 100 else -1)
    if random.random() < 0.3:
        return torch.full_like(table, number)
    table.reshape(-1)[random.randrange(table.numel())] = number
    return table


def _resized(table: Tensor, random: random.Random) -> Tensor:
    if not table.dim():
        return table.expand(random.choice(((1,), (2,), (0,), (1, 1))))
    axis, n = random.randrange(table.dim()), random.choice((-1, 0, 1))
    size = table.shape[axis]
    if n == 0:
        return table.narrow(axis, 0, 0)
    return table.narrow(axis, 0, size - 1) if n < 0 and size else torch.cat([table, table], axis)


def _reshaped(table: Tensor, random: random.Random) -> Tensor:
    return random.choice(
        (
            lambda: table.unsqueeze(0),
            lambda: table.unsqueeze(-1),
            lambda: table.flatten(),
            lambda: table.squeeze(),
            lambda: table.mT if table.dim() > 1 else table.unsqueeze(-1),
            lambda: table.expand(2, *table.shape),
            lambda: table[None, :0] if table.dim() else table[None],
            lambda: table.new_zeros(0, *table.shape),
        )
    )()


def _negative_bit(table: Tensor, random: random.Random) -> Tensor:
    if not table.is_floating_point():
        return table
    table = table.detach()
    return torch.complex(torch.zeros_like(table), -table).conj().imag


def _inference(table: Tensor, random: random.Random) -> Tensor:
    with torch.inference_mode():
        return table.detach().clone()


def _masked(table: Tensor, random: random.Random) -> Any:
    array = table.detach().numpy()
    return np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) == 0)


def _labelled(table: Tensor, random: random.Random) -> Any:
    """Rows with dates, in order or not, some perhaps missing or twice."""
    array = table.detach().numpy().reshape(len(table), -1)
    days = pd.date_range("2026-01-01", periods=len(array)).to_numpy()
    rows = [*range(len(array))]
    kind = random.choice(("rising", "falling", "shuffled", "later", "twice"))
    if kind in ("falling", "shuffled"):
        rows = rows[::-1] if kind == "falling" else random.sample(rows, len(rows))
    days = days + np.timedelta64(1, "D") if kind == "later" else days
    days = np.concatenate([days[:1], days[:-1]]) if kind == "twice" else days
    return pd.DataFrame(array[rows], index=pd.Index(days[rows], name="day"))


def _with_none(table: Tensor, random: random.Random) -> Any:
    rows = table.detach().numpy().astype(object)
    rows.reshape(-1)[random.randrange(rows.size)] = None
    return rows if random.random() < 0.5 else rows.tolist()


_CHANGES: dict[str, Callable[[Tensor, random.Random], Any]] = {
    "number": _holding,
    "another number": _holding,
    "third number": _holding,
    "size": _resized,
    "another size": _resized,
    "shape": _reshaped,
    "scale": lambda table, random: table * random.choice((1e-30, 1e-10, -1, 1e10, 1e30, 1e200)),
    "dtype": lambda table, random: table.detach().to(random.choice(DTYPES)),
    "complex": lambda table, random: table.detach() + 1j,
    "sparse": lambda table, random: table.detach().to_sparse(),
    "without values": lambda table, random: table.to("meta"),
    "list": lambda table, random: table.tolist(),
    "list of sequences": lambda table, random: [*table],
    "one step each": lambda table, random: table.reshape(-1, 1, table.shape[-1]),
    "labels": _labelled,
    "None": _with_none,
    "array": lambda table, random: table.detach().numpy(),
    "other byte order": lambda table, random: (lambda a: a.astype(a.dtype.newbyteorder(">")))(table.detach().numpy()),
    "masked": _masked,
    "objects": lambda table, random: table.detach().numpy().astype(object),
    "text": lambda table, random: table.detach().numpy().astype(str),
    "negative bit": _negative_bit,
    "inference": _inference,
    "grad": lambda table, random: table.detach().clone().requires_grad_(table.is_floating_point()),
    "reversed": lambda table, random: table.flip(-1) if table.dim() else table,
}
