"""Formulas on tables: observations, and inputs with the state of their transformations."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pandas as pd

from ...inference.numerics.extras import needs
from ...inference.numerics.scalars import check_kind
from .frames import Frame, plain

CONSTANT = "Intercept"  # a column that no part of a model reads; every part has its own constant


class Formula:
    """Observations and inputs from a table, by a formula of `formulaic`: "count ~ bs(day, df=4) + site".

    Knots, levels and means of transformations come from this table, and `at` applies them to another one.

    Arguments:
        formula: left of "~" the observed columns, right of it the inputs. Without "~" there are only inputs.
        table: a frame with the columns that the formula names; others are ignored. Its index stays, and results are
            frames of the same library.

    Attributes:
        x: the observations, a frame; None if the formula has none.
        inputs: a column for each term, without a constant; None if there is none.
        names: the names of these columns, for the parts of a model that read them.

    Raises:
        TypeError: `formula` is no text, or `table` no frame.
        ValueError: a formula that cannot be read, or a column that is not there.
        ModuleNotFoundError: formulaic is not installed.

    See Also:
        `GeneralizedLinear` and `Markov`, which read the inputs; `read_panel`, for several sequences;
        docs/guides/inputs.md.

    Example:
        >>> import pandas as pd
        >>> import samplehold as sh
        >>> table = pd.DataFrame({"count": [1, 0, 2, 9, 8, 7], "day": range(6), "site": list("aabbab")})
        >>> read = sh.Formula("count ~ day + site", table)
        >>> read.names
        ('day', 'site[T.b]')
        >>> model = sh.SwitchingSSM(sh.Markov(2), sh.Poisson(1, inputs=read.names))
        >>> fit = model.fit(read.x, inputs=read.inputs, restarts=1, max_steps=5, progress=False)
        >>> fit.forecast(2, inputs=read.at(pd.DataFrame({"day": [6, 7], "site": ["a", "b"]}))).mean.shape
        torch.Size([2, 1])
    """

    def __init__(self, formula: str, table: Any) -> None:
        with needs("formulaic", "formulas"):
            from formulaic import model_matrix

        self.formula: str = check_kind("formula", formula, str, 'text such as "count ~ day"')
        read, frame = _read(table), Frame.of(table)
        with _readable(f"formula: got {formula!r}, which cannot be read on this table"):
            matrices: Any = model_matrix(formula, read, na_action="ignore")
        right = getattr(matrices, "rhs", matrices)
        self.x: Any = _framed(pd.DataFrame(matrices.lhs), frame) if hasattr(matrices, "lhs") else None
        self._specification = right.model_spec
        inputs = _without_constant(right)
        self.inputs: Any = None if inputs is None else _framed(inputs, frame)
        self.names: tuple[()] | tuple[str, ...] = () if inputs is None else tuple(map(str, inputs.columns))

    def __repr__(self) -> str:
        return f"Formula({self.formula!r}, inputs={self.names})"

    def at(self, table: Any) -> Any:
        """The inputs of another table, such as future steps, with the same knots and levels.

        Arguments:
            table: a frame with the columns that the formula reads.

        Raises:
            ValueError: a column that is not there, or a level that the first table does not have.
        """
        read = _read(table)
        with _readable(f"table: {self.formula!r} cannot be read on it"):
            columns = _without_constant(self._specification.get_model_matrix(read, na_action="ignore"))
        return None if columns is None else _framed(columns, Frame.of(table))


def _read(table: Any) -> pd.DataFrame:
    read = check_kind("table", plain(table, "table"), pd.DataFrame, "a frame of pandas, polars or pyarrow")
    numbers = {Decimal, float, type(None)}
    decimals = [name for name, column in read.items() if column.dtype == object and {*map(type, column)} <= numbers]
    return read.astype(dict.fromkeys(decimals, float)) if decimals else read  # formulaic takes objects for categories


def _framed(table: pd.DataFrame, frame: Frame | None) -> Any:
    return table if frame is None else frame.like(table)


def _without_constant(columns: Any) -> pd.DataFrame | None:
    table = pd.DataFrame(columns).drop(columns=CONSTANT, errors="ignore")
    return table if len(table.columns) else None


@contextmanager
def _readable(problem: str) -> Iterator[None]:
    """What formulaic cannot read, and levels that it does not know, are a ValueError."""
    from formulaic.errors import DataMismatchWarning, FormulaicError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DataMismatchWarning)
            yield
    except (FormulaicError, DataMismatchWarning, SyntaxError, NameError, KeyError, TypeError) as error:
        reason = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", " ".join(str(error).split()))  # without colours
        raise ValueError(f"{problem}: {reason}") from None
