"""Calls of every public function, in a process of their own: without the run-time type checks of the tests."""

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parent / "fuzz"


def test_every_call_ends_in_a_right_answer_or_an_error_that_names_an_argument():
    command = [sys.executable, "-W", "ignore", str(FUZZ), "2000", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
