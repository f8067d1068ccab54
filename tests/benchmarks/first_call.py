"""Processor time of new processes: one with an empty cache of kernels, then one with the cache that the first left.

A row is a script as a user would write it, run on two threads in a new process. "compiled" counts the functions that
numba compiled in the first process, its helpers included. The first row imports torch, Pyro and pandas alone. Aims are
in brackets; they hold for a machine on which the first row takes 2.3 s.
"""

import os
import resource
import subprocess
import sys
import tempfile
from statistics import median

TURNS = 3  # with a filled cache; an empty one is filled once

COUNTED = """
import atexit, sys
from numba.core import event
class _Count(event.Listener):
    n = 0
    def on_start(self, found): _Count.n += 1
    def on_end(self, found): pass
event.register("numba:compile", _Count())
atexit.register(lambda: print(f"compiled {_Count.n}", file=sys.stderr))
"""
SERIES = """
import numpy as np
import samplehold as sh
x = np.random.default_rng(0).normal(size=(200, 2)) + np.repeat([0.0, 3.0, 0.0, 3.0], 50)[:, None]
"""
NILE = """
import pandas as pd
import samplehold as sh
nile = pd.read_csv("notebooks/data/nile.csv", index_col="year")
"""
CASES = {
    "torch, Pyro and pandas alone": "import torch, pyro, pandas",
    "import and a model class": "import samplehold as sh; sh.SwitchingSSM",
    "Nile, copy, normal, EM": NILE + "sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(nile, progress=False)",
    "Nile, local level": NILE + "sh.LinearSSM(sh.LocalLevel()).fit(nile, progress=False)",
    "full normal, 2-d, T=200, message passing": SERIES
    + "sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2)).fit(x, method='vmp', progress=False)",
    "`SwitchingLinearSSM(2, 1)`, T=200": SERIES + "sh.SwitchingLinearSSM(2, 1).fit(x[:, :1], progress=False)",
    "`samplehold fit` on the Nile": None,
}
AIMS = {
    "import and a model class": (2.7, 2.7),
    "Nile, copy, normal, EM": (6.0, 4.5),
    "Nile, local level": (7.0, 4.5),
    "full normal, 2-d, T=200, message passing": (8.0, 5.0),
    "`SwitchingLinearSSM(2, 1)`, T=200": (18.0, 9.0),
    "`samplehold fit` on the Nile": (10.0, 5.0),
}
COMMAND = ["-m", "samplehold", "fit", "notebooks/data/nile.csv", "--columns", "volume", "--states", "2", "--force"]


def processor_seconds(arguments: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """User and system time of one child process, and what it said on stderr."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{arguments} failed:\n{done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stderr


def measure(code: str | None) -> tuple[float, float, str]:
    """With an empty cache, with a filled one (median), functions compiled in the former."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": f"{folder}/kernels", "OMP_NUM_THREADS": "2"}
        if code is None:
            arguments = [sys.executable, *COMMAND, "--out", f"{folder}/results"]
        else:
            arguments = [sys.executable, "-W", "ignore", "-c", code]
        cold, _ = processor_seconds(arguments, environment)
        warm = median(processor_seconds(arguments, environment)[0] for _ in range(TURNS))
        compiled = ""
        if code is not None:
            counting = {**environment, "NUMBA_CACHE_DIR": f"{folder}/counted"}
            _, said = processor_seconds([*arguments[:-1], COUNTED + code], counting)
            compiled = next(line for line in said.splitlines() if line.startswith("compiled")).split()[1]
    return cold, warm, compiled


def main() -> None:
    print("| a new process | empty cache (s) | filled (s) | compiled |\n|---|---|---|---|")
    for name, code in CASES.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        cold, warm, compiled = measure(code)
        cold_aim, warm_aim = (f" ({aim:.1f})" for aim in AIMS[name]) if name in AIMS else ("", "")
        print(f"| {name} | {cold:.1f}{cold_aim} | {warm:.1f}{warm_aim} | {compiled} |", flush=True)


if __name__ == "__main__":
    main()
