"""Libraries that a plain install leaves out are named with the extra that installs them."""

import sys

import pandas as pd
import pytest
import samplehold as sh
import torch
from samplehold.models.automata.tomita import tomita
from samplehold.switching.data.tables import read_table


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """As if a library were not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)


def test_machines_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    network = sh.automata.Acceptor(sh.GRU(2, 3), torch.nn.Linear(3, 1), "01")
    without(monkeypatch, "aalpy")
    with pytest.raises(ModuleNotFoundError, match=r"^AALpy is not installed; pip install 'samplehold\[machines\]'"):
        sh.automata.extract_automaton(network)
    without(monkeypatch, "automata")
    with pytest.raises(ModuleNotFoundError, match=r"^automata-lib is not installed; .*\[machines\]'"):
        tomita(1)
    with pytest.raises(ModuleNotFoundError, match=r"^automata-lib is not installed"):
        sh.automata.extract_automaton(network, method="clusters")


def test_formulas_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "formulaic")
    with pytest.raises(ModuleNotFoundError, match=r"^formulaic is not installed; .*\[formulas\]'"):
        sh.Formula("count ~ day", pd.DataFrame({"count": [1.0], "day": [2.0]}))


def test_parquet_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"PAR1")
    without(monkeypatch, "pyarrow")
    with pytest.raises(ValueError, match=r"^data: .*data.parquet is a Parquet file, .*'samplehold\[parquet\]'"):
        read_table(tmp_path / "data.parquet")
