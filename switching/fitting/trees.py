"""Trees of tensors and numbers, such as the state of an optimizer, as JSON and a table of tensors.

A tree is a tensor, a number, a text, None, or a list, a dictionary or tables of paths with trees. A tensor comes back
with its layout in memory too, on which the rounding of sums depends.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...inference.families import CopyTables, FactoredTables, GaussianTables, MarkovTables

TABLES: dict[str, Any] = {kind.__name__: kind for kind in (CopyTables, FactoredTables, GaussianTables, MarkovTables)}


def written(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The tree in JSON types; its tensors are added to `tensors`."""
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach()[tuple(slice(0, n) for n in _distinct(tree.shape, tree.stride()))]
        layout = {"shape": list(tree.shape), "stride": list(tree.stride()), "host": tree.device.type == "cpu"}
        return {"tensor": name} | layout
    if isinstance(tree, dict):
        return {"pairs": [[key, written(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return {"tables": type(tree).__name__, "parts": [written(part, tensors) for part in tree]}
    if isinstance(tree, list | tuple):
        return [written(part, tensors) for part in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": str(tree)}
    return tree


def read(plain: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """The tree that was written; `device`: of the tensors that were not on the host."""
    if isinstance(plain, list):
        return [read(part, tensors, device) for part in plain]
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        shape, stride = plain["shape"], plain["stride"]
        table = tensors[plain["tensor"]]
        where = torch.device("cpu") if plain["host"] else device
        table = torch.empty_strided(_distinct(shape, stride), stride, dtype=table.dtype, device=where).copy_(table)
        return table.expand(shape)
    if "pairs" in plain:
        pairs = [(tuple(key) if isinstance(key, list) else key, value) for key, value in plain["pairs"]]
        return {key: read(value, tensors, device) for key, value in pairs}
    if "float" in plain:
        return float(plain["float"])
    return TABLES[plain["tables"]](*(read(part, tensors, device) for part in plain["parts"]))


def copied(tree: Any, deep: bool = True) -> Any:
    """A copy of a tree, of whose tensors too if it is deep."""
    if isinstance(tree, dict):
        return {key: copied(value, deep) for key, value in tree.items()}
    if isinstance(tree, list):
        return [copied(part, deep) for part in tree]
    return tree.clone() if deep and isinstance(tree, Tensor) else tree


def _distinct(shape: Any, stride: Any) -> list[int]:
    """The shape without repetitions along expanded axes."""
    return [min(n, 1) if step == 0 else n for n, step in zip(shape, stride, strict=True)]
