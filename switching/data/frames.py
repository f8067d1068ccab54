"""Data in any form as tensors: arrays, nested lists, and frames of pandas, polars, pyarrow and other libraries that
narwhals reads. Results become frames of the same library.

Frames of other libraries than pandas have no index. Their key columns, which `read_panel` names, stand in its place.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader

from ...inference.numerics.arrays import floating


@dataclass(frozen=True)
class Frame:
    """The user's kind of frame, for results that have a row for each row of the data.

    Attributes:
        library: the name of its library: "polars", "pyarrow", ...
        keys: a frame of that library with the columns that name the rows; None if there are none.
    """

    library: str
    keys: Any = None

    @staticmethod
    def of(x: Any, keys: Sequence[str] = ()) -> "Frame | None":
        """The kind of frame x, or of the first one of a list or a mapping; None for those of pandas, and other data.

        Arguments:
            keys: the names of the columns that name the rows.
        """
        first = list(x.values())[:1] if isinstance(x, Mapping) else x
        read = _read(first[0] if isinstance(first, list | tuple) and first else first, "x")
        if read is None:
            return None
        return Frame(read.implementation.value, read.select(*keys).to_native() if keys else None)

    def rows(self, places: "Int[np.ndarray, '_'] | slice") -> "Frame":
        """The same for some of the rows."""
        return self if self.keys is None else replace(self, keys=_read(self.keys, "x")[places].to_native())

    def like(self, table: pd.DataFrame) -> Any:
        """A table of results, a row for each row of the data, as such a frame, with the key columns first.

        Without key columns, rows of several sequences have the levels of the table's index, sequence and step, which
        are called sequence_number and step_number beside columns of these names. Missing numbers become null.

        Raises:
            ValueError: a key column with the name of a column of the results.
        """
        import narwhals.stable.v2 as nw

        keys: dict[str, Any] = {}
        if self.keys is not None:
            keys = {column.name: column for column in _read(self.keys, "x").iter_columns()}
        elif isinstance(table.index, pd.MultiIndex):
            levels = {str(name): np.asarray(table.index.get_level_values(name)) for name in table.index.names}
            keys = {f"{name}_number" if name in table else name: labels for name, labels in levels.items()}
        columns = {str(name): column.to_numpy() for name, column in table.items()}
        for name in keys:
            if name in columns:
                raise ValueError(f"x: has the key column {name!r}, as the results have; give it another name.")
        library: Any = self.library
        frame = nw.from_dict({**keys, **columns}, backend=library)
        numbers = [nw.col(name) for name, column in columns.items() if column.dtype.kind == "f"]
        return frame.with_columns(*(nw.when(~number.is_nan()).then(number) for number in numbers)).to_native()


def is_foreign(x: Any) -> bool:
    """Whether x is a frame or a column of another library than pandas."""
    return not _of_pandas(x) and (
        hasattr(x, "__arrow_c_stream__")  # frames and columns
        or hasattr(x, "__arrow_c_array__")  # arrays of arrow
        or hasattr(x, "collect_schema")  # lazy frames
    )


def _of_pandas(x: Any) -> bool:
    return isinstance(x, pd.DataFrame | pd.Series)


def plain(x: Any, name: str) -> Any:
    """Frames and columns of other libraries as those of pandas, also in a list or a mapping; other data unchanged.

    Numbers keep their type; if some are missing, they become float64. Times keep their zone, and categories of a fixed
    order that order.

    Raises:
        TypeError: a frame that is not computed yet.
        ValueError: two columns of one name.
    """
    if isinstance(x, Mapping) and any(map(is_foreign, x.values())):
        return {key: plain(part, f"{name}[{key!r}]") for key, part in x.items()}
    if isinstance(x, list | tuple) and x and (is_foreign(x[0]) or (_of_pandas(x[0]) and any(map(is_foreign, x)))):
        return [plain(part, f"{name}[{i}]") for i, part in enumerate(x)]
    read = _read(x, name)
    if read is None:
        return x
    if not hasattr(read, "iter_columns"):
        return _column(read)
    return pd.DataFrame({column.name: _column(column) for column in read.iter_columns()}, index=range(len(read)))


def _read(x: Any, name: str) -> Any:
    """A frame or a column in the form of narwhals; None for those of pandas, and other data."""
    if not is_foreign(x):
        return None
    import narwhals.stable.v2 as nw

    arrow: Any = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(x, arrow.Table | arrow.RecordBatch):
        name_of, n = Counter(x.schema.names).most_common(1)[0] if x.schema.names else ("", 1)
        if n > 1:
            raise ValueError(f"{name}: got {n} columns called {name_of!r}; give each a different name.")
        x = arrow.table(x)
    if arrow is not None and isinstance(x, arrow.Array):
        x = arrow.chunked_array([x])
    read = nw.from_native(x, allow_series=True, pass_through=True)
    if isinstance(read, nw.LazyFrame):
        raise TypeError(f"{name}: got {type(x).__name__}, a frame that is not computed yet; collect() it first.")
    return read if isinstance(read, nw.DataFrame | nw.Series) else None


def _column(column: Any) -> pd.Series:
    """A column of narwhals as one of pandas."""
    import narwhals.stable.v2 as nw

    dtype, name = column.dtype, column.name or None
    if dtype == nw.Boolean or (dtype.is_numeric() and not dtype.is_decimal()):
        wide = column.null_count() or dtype in (nw.Int128, nw.UInt128)
        return pd.Series((column.cast(nw.Float64()) if wide else column).to_numpy(), name=name)
    if dtype.is_temporal() and dtype != nw.Time:
        times, zone = pd.Series(column.to_numpy(), name=name), getattr(dtype, "time_zone", None)
        return times if zone is None else times.dt.tz_localize("UTC").dt.tz_convert(zone)
    cells = column.to_list()
    if dtype == nw.Enum:
        cells = pd.Categorical(cells, categories=list(dtype.categories))
    elif dtype == nw.Categorical and column.implementation.is_pyarrow():  # a dictionary has an order
        cells = pd.Categorical(cells, categories=column.cat.get_categories().to_list())
    return pd.Series(cells, name=name)


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
    others: list[tuple[Any, Any]] = []
    if not isinstance(x, Tensor) and labelled(x := plain(x, name)):
        columns = x.items() if isinstance(x, pd.DataFrame) else [(x.name, x)]
        kinds = [(label, column.dtype) for label, column in columns]
        others = [(n, kind) for n, kind in kinds if not pd.api.types.is_numeric_dtype(kind) or kind.kind == "c"]
        x = x.to_numpy(dtype=object if others else np.float64, na_value=np.nan)  # None is missing too
    try:
        return floating(x, name)
    except TypeError:
        if not others:
            raise
        label, kind = others[0]
        cure = "give its codes, or " if isinstance(kind, pd.CategoricalDtype) else ""
        column = "a column" if label is None else f"column {label!r}"
        raise TypeError(
            f"{name}: got {column} of {kind}, which holds values that are not numbers; {cure}"
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
