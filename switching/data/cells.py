"""Numbers in arrays, nested lists and frames, as tensors."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
from torch import Tensor
from torch.utils.data import DataLoader

from ...inference.numerics.arrays import floating
from .frames import plain


def labelled(x: Any) -> TypeGuard[pd.DataFrame | pd.Series]:
    return isinstance(x, pd.DataFrame | pd.Series)


def check_data(x: Any) -> None:
    """Raise TypeError with a cure if x only leads to data: the name of a file, a loader of batches, groups of rows."""
    kind, cure = type(x).__name__, ""
    if isinstance(x, str | Path):
        kind = f"text {str(x)[:60]!r}" if isinstance(x, str) else f"the path {x}"
        cure = "read the file first, as by pandas.read_csv, or by sh.open_sequences if it is larger than memory"
    elif isinstance(x, DataLoader):
        cure = (
            "its items are batches; give its dataset, as sh.open_sequences(x.dataset), or the tensor of all sequences"
        )
    elif isinstance(x, pd.api.typing.DataFrameGroupBy | pd.api.typing.SeriesGroupBy):
        cure = "give the frame itself: sh.read_panel(frame, sequence=...) groups its rows; or dict(list(x))"
    elif isinstance(x, Iterator):
        cure = "give a list of sequences, as list(x), or sh.open_sequences(x) if they are larger than memory"
    if cure:
        raise TypeError(f"x: got {kind}, expected numbers; {cure}.")


def to_tensor(x: Any, name: str) -> Tensor:
    """Numbers in any form as a tensor: float32 of tensors and arrays is kept, all others become float64, and masked
    values or NA become NaN."""
    if isinstance(x, Tensor):
        return floating(x, name)
    x = plain(x, name)
    return floating(_pandas_values(x, name) if labelled(x) else x, name)


def _pandas_values(x: "pd.DataFrame | pd.Series", name: str) -> Any:
    """The cells of a pandas object, in which None is missing too."""
    columns = x.items() if isinstance(x, pd.DataFrame) else [(x.name, x)]
    dtypes = {label: column.dtype for label, column in columns}
    if all(pd.api.types.is_numeric_dtype(dtype) and dtype.kind != "c" for dtype in dtypes.values()):
        return x.to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        return floating(x.to_numpy(dtype=object, na_value=np.nan), name)
    except TypeError:
        numeric = pd.api.types.is_numeric_dtype
        label_of = next(label for label, dtype in dtypes.items() if not numeric(dtype) or dtype.kind == "c")
        cure = "give its codes, or " if isinstance(dtypes[label_of], pd.CategoricalDtype) else ""
        column = "a column" if label_of is None else f"column {label_of!r}"
        raise TypeError(
            f"{name}: got {column} of {dtypes[label_of]}, which holds values that are not numbers; {cure}"
            "select numeric columns (`read_panel` takes those of times and sequences by name)."
        ) from None


def is_ragged_list(x: Sequence[Any]) -> bool:
    """Whether a list holds sequences: a list of arrays does, and so do nested plain lists, unless they are rows of
    one."""
    if hasattr(x[0], "__array__") and not isinstance(x[0], np.generic):
        return any(getattr(part, "ndim", 0) > 0 for part in x)
    if not all(isinstance(part, list | tuple) for part in x):
        return any(getattr(part, "ndim", 0) > 0 for part in x)
    first = (value for part in x for value in part[:1])
    return any(not (value is None or np.isscalar(value)) for value in first) or len({len(part) for part in x}) > 1
