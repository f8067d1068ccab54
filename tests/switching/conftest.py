"""Data that several tests of models read."""

from pathlib import Path

import pandas as pd
import pytest
import samplehold as sh


@pytest.fixture(scope="module")
def nile() -> pd.DataFrame:
    """The yearly flow of the Nile at Aswan."""
    return pd.read_csv(Path(sh.__file__).parent / "notebooks" / "data" / "nile.csv", index_col="year")
