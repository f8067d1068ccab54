"""Public calls give what they gave: values, draws by seed, names in files, and the texts of errors."""

import json

import pytest
from golden.calls import CALLS
from golden.summaries import difference
from golden.write import FILE, outcome

STORED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.few(60)
@pytest.mark.cpu("draws by seed are those of the CPU's generator")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_is_stored(name: str) -> None:
    assert (text := difference(outcome(CALLS[name]), STORED[name], name)) is None, text


def test_all_that_is_stored_is_called() -> None:
    assert list(STORED) == list(CALLS)


def test_a_difference_is_found() -> None:
    stored = STORED["linear_scan"]
    changed = [*stored[:3], [*stored[3][:-1], stored[3][-1] * (1 + 1e-5)]]
    assert difference(changed, stored)
    assert difference(stored, stored) is None
