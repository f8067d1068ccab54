"""What keeps the time short between a command and its first answer."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 100_000  # new objects between two collections: loading the libraries makes several times as many


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely: imports make many objects and hardly any garbage, and a walk sees all of them."""
    before = gc.get_threshold()
    gc.set_threshold(MANY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
