"""The contract of a graph that message passing takes a piece of the data at a time: see `chunked`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.series import Series
from .graph import Etas, Graph
from .whole import Whole


@dataclass(frozen=True, kw_only=True)
class SeriesGraph(Graph, ABC):
    """The graph of a problem that has one for each part of a series, so that memory may hold the paths of one part.

    Attributes:
        problem: of a series.
        independent: whether all steps of a path are independent under q.
        whole: all data, if the series of the problem is a sample of them.
    """

    problem: Any
    independent: bool = False
    whole: Whole | None = None

    @abstractmethod
    def to(self, series: Series, share: float = 1.0, before: Tensor | None = None, after: Tensor | None = None) -> Any:
        """The graph for another piece of the data, with the same families and priors; see `Piece`."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The numbers for each step and state in the widest table of an update."""

    @property
    def data(self) -> Whole:
        """All data, in the units of the fit."""
        return Whole.of(self.problem.series) if self.whole is None else self.whole

    def linear(self, etas: Etas) -> frozenset[str]:
        """`VMP.linear` of the engine; its blocks and factors are tested on two steps."""
        first = self.problem.series.part(torch.zeros(1, dtype=torch.long, device="cpu"))
        return self.to(first.stretch(0, 2)).engine(etas).linear
