"""The fit of a `Segments` model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..fit import Fit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False, kw_only=True)
class SegmentFit(Fit[Any]):
    """A fit of the hazard and the hyperparameters of `Segments`."""

    @property
    def segments(self) -> "pd.DataFrame":
        """The most probable segments of the fitted series: see `Segments.segments`."""
        return self.model.segments(self._given(None))
