"""What a call returns, shortly: shapes, some entries and a norm of real tables; whole numbers and texts as they are."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

SHOWN = 3  # entries of a table of real numbers
WHOLE = 48  # the most entries of a table of whole numbers that is kept as it is

RELATIVE = 1e-6  # to the norm of a table: what differs between kernels after a few steps of a fit


def summary(value: Any) -> Any:
    """The value in JSON."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, torch.Tensor):
        return _array(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value))
    if isinstance(value, pd.DataFrame):
        return {"rows": str(value.index[:2].tolist()), "columns": {str(name): summary(value[name]) for name in value}}
    if isinstance(value, pd.Series):
        return _array(value.to_numpy())
    if isinstance(value, Mapping):
        return {str(name): summary(part) for name, part in value.items()}
    if hasattr(value, "_asdict"):
        return summary(value._asdict())
    if isinstance(value, list | tuple):
        return [summary(part) for part in value]
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name not in ("series", "source")]
        return {name: summary(getattr(value, name)) for name in names}
    return repr(value).split(" at 0x")[0]


def _array(table: np.ndarray) -> Any:
    kind, flat = [str(table.dtype), list(table.shape)], table.ravel()
    if table.dtype.kind in "biu":
        kept = flat.astype(int).tolist()
        return [*kind, "".join(map(str, kept[:WHOLE])) if set(kept) <= set(range(10)) else kept[:WHOLE]]
    if table.dtype.kind != "f":
        return [*kind, [str(part) for part in flat[:SHOWN].tolist()]]
    finite = flat[np.isfinite(flat)]
    ends = np.linspace(0, len(flat) - 1, min(SHOWN, len(flat))).astype(int)
    shown = [float(f"{part:.9g}") for part in (*flat[ends].tolist(), float(np.linalg.norm(finite)))]
    return [*kind, [len(flat) - len(finite)], shown if len(flat) > 1 else shown[:1]]


def difference(got: Any, stored: Any, where: str = "") -> str | None:
    """The first place at which two summaries differ, or None."""
    if isinstance(got, dict) and isinstance(stored, dict):
        if list(got) != list(stored):
            return f"{where}: names {list(got)} for {list(stored)}"
        return next((text for name in got if (text := difference(got[name], stored[name], f"{where}.{name}"))), None)
    if isinstance(got, list) and isinstance(stored, list) and len(got) == len(stored):
        size = max((abs(part) for part in stored if isinstance(part, float) and math.isfinite(part)), default=0.0)
        pairs = enumerate(zip(got, stored, strict=True))
        found = (None if _close(a, b, size) else difference(a, b, f"{where}[{place}]") for place, (a, b) in pairs)
        return next((text for text in found if text), None)
    return None if _close(got, stored, 0.0) else f"{where}: {got!r} for {stored!r}"


def _close(got: Any, stored: Any, size: float) -> bool:
    """Whether two leaves agree: numbers to the size of their table, all else exactly."""
    if not (isinstance(got, float) and isinstance(stored, float)):
        return type(got) is type(stored) and got == stored
    if not (math.isfinite(got) and math.isfinite(stored)):
        return got == stored or (math.isnan(got) and math.isnan(stored))
    return abs(got - stored) <= RELATIVE * max(size, abs(stored)) + 1e-9
