"""The time of a new process: `python tests/benchmarks/bench_startup.py`.

The table shows seconds of processor time, user and system, from the start of the interpreter to its end, as medians of
ten processes, after one that is not counted. The row of the fit runs `samplehold fit` on the sunspots and writes all
files.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

DATA = Path(__file__).parents[2] / "notebooks" / "data" / "sunspots.csv"
TURNS = 10
MISTYPED = 2  # the status of a command with an argument that is wrong
COMMAND = ["-m", "samplehold"]
FITTED = "import samplehold as sh; sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit([1.0, 2.0, 7.0, 8.0], progress=False)"
WORK = [
    ("import torch", ["-c", "import torch"], None),
    ("import samplehold", ["-c", "import samplehold"], None),
    ("a fit of four numbers", ["-c", FITTED], None),
    ("samplehold --help", [*COMMAND, "--help"], None),
    ("samplehold fit, a mistyped file name", [*COMMAND, "fit", "absent.csv", "--out", "out"], 0.5),
    ("samplehold fit, the sunspots", [*COMMAND, "fit", str(DATA), "--out", "out", "--force"], 4.0),
    ("samplehold forecast, the sunspots", [*COMMAND, "forecast", "out", str(DATA)], None),
]


def seconds(arguments: list[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=False)
    if ended.returncode != (MISTYPED if "absent.csv" in arguments else 0):
        raise RuntimeError(f"{arguments} ended with status {ended.returncode}: {ended.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    print("| process | s | aim |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for what, arguments, aim in WORK:
            seconds(arguments, folder)
            found = median(seconds(arguments, folder) for _ in range(TURNS))
            missed = " (missed)" if aim is not None and found > aim else ""
            print(f"| {what} | {found:.2f} | {'' if aim is None else aim}{missed} |", flush=True)


if __name__ == "__main__":
    main()
