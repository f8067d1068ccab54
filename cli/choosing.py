"""The work of `samplehold select`: a fit for each number of states, and a table of criteria."""

import re
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..switching.data.tables import TableSeries
    from ..switching.judging.selection import Selection
    from ..switching.model import SwitchingSSM

MOST = 100  # states


def numbers_of(text: str) -> list[int]:
    """The numbers in text such as 1-6 or 1,2,4."""
    numbers: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,3})(?:\s*-\s*(\d{1,3}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= MOST:
            raise ValueError(f"--states: got {text}, expected numbers from 1 to {MOST}, such as 1-6 or 1,2,4.")
        numbers += range(first, last + 1)
    return list(dict.fromkeys(numbers))


def select_states(
    make: "Callable[[int], SwitchingSSM]", series: "TableSeries", numbers: list[int], criterion: str, **options: Any
) -> "Selection":
    """The choice among numbers of states, of which `make` makes a model."""
    from ..switching.judging.selection import select
    from .console import read_with_inputs

    observed, _ = read_with_inputs(make(numbers[0]), series)
    return select(make, observed, numbers, criterion, **options)


def show(chosen: "Selection") -> None:
    """Print the criteria of each number of states, and the best."""
    from .printing import print_whole

    console = Console(highlight=False)
    table = Table(title=f"Criteria of {len(chosen.candidates)} numbers of states", title_justify="left")
    names = {"candidate": "states", "n_parameters": "parameters", "agreeing": "same optimum"}
    columns = [str(name) for name in chosen.table if name != "n_kinds"]
    for name in columns:
        table.add_column(names.get(name, name), justify="right", no_wrap=True)
    for row in chosen.table.to_dict("records"):
        agree = f"{row['agreeing']} of {row['n_kinds']}"
        shown = row | {"agreeing": agree, "converged": "yes" if row["converged"] else "no"}
        cells = [f"{shown[n]:.2f}" if isinstance(shown[n], float) else str(shown[n]) for n in columns]
        table.add_row(*cells, style="bold" if row["candidate"] == chosen.best else "none")
    print_whole(console, table)
    console.print(f"Best by {chosen.criterion}: {chosen.best} state(s).")
