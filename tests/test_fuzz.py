"""Calls of every public function, in a process of their own: without the run-time type checks of the tests."""

import subprocess
import sys
from pathlib import Path

import pytest
from examples import slow

FUZZ = Path(__file__).parent / "fuzz"


@pytest.mark.parametrize("calls", [100, slow(1000)])
def test_every_call_ends_in_a_right_answer_or_an_error_that_names_an_argument(calls):
    command = [sys.executable, "-W", "ignore", str(FUZZ), str(calls), "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
