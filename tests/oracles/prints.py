"""Whether what is printed is short."""

from dataclasses import is_dataclass

LINES, LETTERS = 10, 1000
ROWS = 17  # of a table with its headings


def short(value: object) -> bool:
    text, n = repr(value), ROWS if hasattr(value, "to_frame") else LINES
    return len(text.splitlines()) <= n and len(text) <= n * LETTERS / LINES and "tensor(" not in text


def is_ours(value: object) -> bool:
    return type(value).__module__.split(".")[0] == "samplehold"


def reached(value: object) -> dict[str, object]:
    """An object of ours, and those in its fields."""
    found = {type(value).__name__: value}
    if is_dataclass(value):
        found |= {
            f"{type(value).__name__}.{name}": own
            for name, own in vars(value).items()
            if is_ours(own) and name[0] != "_"
        }
    return found
