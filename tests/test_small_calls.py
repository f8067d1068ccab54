"""Calls on a few steps: how many functions of the package they call, which is most of what they cost."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import samplehold as sh
import torch
from oracles.operators import unchecked

PACKAGE = str(Path(sh.__file__).parent)
TESTS = str(Path(__file__).parent)


def calls_of_the_package(function: Callable[[], object]) -> int:
    for _ in range(2):  # kernels are loaded, and constants computed
        function()
    n = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal n
        file = frame.f_code.co_filename
        n += event == "call" and file.startswith(PACKAGE) and not file.startswith(TESTS) and "site-packages" not in file

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with unchecked():
            function()
    finally:
        sys.setprofile(before)
    return n


@pytest.fixture(scope="module")
def model() -> sh.SwitchingSSM:
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    values = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.9, 0.1], [0.2, 0.8]], "loc": [[0.0], [3.0]]}
    return model.with_values(**values, scale=[[1.0], [1.0]])


def test_a_chain_of_ten_steps():
    tables = torch.zeros(2).double(), torch.zeros(2, 2).double(), torch.zeros(10, 2).double()
    assert calls_of_the_package(lambda: sh.chains.MarkovChain(*tables).smooth()) <= 80


def test_a_model_on_ten_steps(model):
    x = torch.zeros(10, 1).double()
    assert calls_of_the_package(lambda: model.smooth(x)) <= 190


def test_a_step_of_a_stream(model):
    state, x_t = model.start(), torch.zeros(1).double()
    assert calls_of_the_package(lambda: model.update(state, x_t)) <= 85
