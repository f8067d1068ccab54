"""Maximum likelihoods of published data sets, from other packages: the table of docs/quality/published_maxima.md.

Each is reached by the default search in every one of three seeds. The data are fetched by `tests/data/fetch.py`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import samplehold as sh
import torch
from data.fetch import how_to_get, table

SEEDS = (0, 1, 2)
PAGE = Path(sh.__file__).parent / "docs" / "quality" / "published_maxima.md"


class Published(NamedTuple):
    """A row of the table."""

    data: str
    model: str
    maximum: float
    by: str
    here: float | None


def rows() -> list[Published]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[1].startswith("`"):
            here = None if cells[4] == "-" else float(cells[4])
            found.append(Published(cells[0], cells[1].strip("`"), float(cells[2]), cells[3], here))
    return found


def column(name: str, which: str) -> np.ndarray:
    return np.array([float(value or "nan") for value in words(name, which)])


def words(name: str, which: str) -> list[str]:
    data = table(name)
    if data is None or which not in data:
        pytest.skip(how_to_get(name))
    return data[which]


def coal() -> np.ndarray:
    """Disasters in each year from 1851 to 1962."""
    return np.bincount(np.floor(column("coal", "date")).astype(int) - 1851, minlength=112).astype(float)


def payoff() -> torch.Tensor:
    """The scaled payoff. Inputs drive the move into their step; those of depmixS4 drive the move out of it."""
    paid = column("speed", "Pacc")
    return torch.from_numpy((paid - paid.mean()) / paid.std(ddof=1)).unsqueeze(-1).roll(1, 0)


def with_correctness() -> list[np.ndarray]:
    """Response times, and whether the response was correct, in three series."""
    both = np.stack([column("speed", "rt"), [word == "cor" for word in words("speed", "corr")]], -1)
    return np.split(both, np.cumsum([168, 134]))


def tracks(name: str) -> list[np.ndarray]:
    """The steps and turning angles of each animal."""
    animals, steps, angles = (column(name, which) for which in ("ID", "step", "angle"))
    both = np.stack([steps, angles], -1)
    return [both[animals == animal] for animal in dict.fromkeys(animals)]


def transplants() -> dict[str, Any]:
    """The states of each patient at the visits, of which the last may be the time of death."""
    patients, states = column("cav", "PTNUM"), column("cav", "state") - 1
    lengths = np.unique(patients, return_counts=True)[1]
    return {
        "x": states,
        "states": states,
        "lengths": lengths,
        "time": column("cav", "years"),
        "fixed": {"probs": np.eye(4)},
    }


def given(data: str) -> dict[str, Any]:
    """What a fit reads."""
    readers = {
        "coal": coal,
        "geyser": lambda: column("geyser", "waiting"),
        "SP500": lambda: column("SP500", "r500"),
        "speed": lambda: column("speed", "rt"),
        "seizures": lambda: column("seizures", "count"),
        "elk": lambda: tracks("elk"),
        "haggis": lambda: tracks("haggis"),
    }
    if data == "speed, correct":
        return {"x": with_correctness()}
    if data == "cav":
        return transplants()
    name, *inputs = data.split(", ")
    return {"x": readers[name]()} | ({"inputs": payoff()} if inputs else {})


def reached(row: Published) -> float:
    """The lowest maximum of three seeds."""
    model, read = eval(row.model, {"sh": sh}), given(row.data)
    return min(model.fit(**read, prior=None, seed=seed, progress=False).loglik for seed in SEEDS)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.data} {row.model}")
def test_the_published_maximum_is_reached(row):
    assert reached(row) == pytest.approx(row.maximum, abs=0.01)


def test_values_of_the_table_are_the_published_ones():
    table = rows()
    assert len(table) > 20
    assert all(row.here is None or row.here == pytest.approx(row.maximum, abs=0.01) for row in table)
