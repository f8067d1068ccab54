"""Data that several tests of models read."""

from pathlib import Path

import pandas as pd
import pytest
import samplehold as sh
import torch
from samplehold.switching.fitting import whole


@pytest.fixture(scope="module")
def nile() -> pd.DataFrame:
    """The yearly flow of the Nile at Aswan."""
    return pd.read_csv(Path(sh.__file__).parent / "notebooks" / "data" / "nile.csv", index_col="year")


@pytest.fixture
def group_of_one(tmp_path, monkeypatch):
    """This process alone in a group."""
    monkeypatch.setattr(whole, "SAMPLE", whole.SAMPLE)  # which a test may set
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
