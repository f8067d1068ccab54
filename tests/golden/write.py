"""Writes the stored values anew: `python tests/golden/write.py`, after a change that is meant to change them."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.calls import CALLS
from golden.summaries import summary

FILE = Path(__file__).with_name("values.json")


def outcome(make: Callable[[], Any]) -> Any:
    """The summary of what the call returns or raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return summary(make())
        except Exception as error:
            return summary(error)


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(outcome(make), separators=(',', ':'))}" for name, make in CALLS.items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
