"""Processor time of first tries, each a new process with defaults: `python tests/benchmarks/bench_first_tries.py`.

"now" is the less of two processes. "before" is of other days, before these fits were made shorter and kernels native;
for the first fits of the Nile the cache of compiled kernels was full. Both count user and system time, imports and
child processes. The first row imports torch, Pyro and pandas alone: it takes 2.3 s on a quiet machine, and more where
other processes share the processors.
"""

import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TURNS = 2
DATA = Path(__file__).parents[2] / "notebooks" / "data"
START = f"""
import sys
import numpy as np
import pandas as pd
import samplehold as sh
rng = np.random.default_rng(0)
folder, quiet = {str(DATA)!r}, dict(progress=False, seed=0)
"""
LINEAR = """
def turn(angle, radius): return radius * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
moves, noises = [turn(0.1, 0.98), turn(0.6, 0.9)], [0.05, 0.3]
readouts, state, s, x = [rng.normal(size=(2, 2)), rng.normal(size=(2, 2))], 0, np.zeros(2), []
for _ in range(600):
    state = 1 - state if rng.random() < 0.03 else state
    s = moves[state] @ s + noises[state] * rng.normal(size=2)
    x.append(readouts[state] @ s + 0.1 * rng.normal(size=2))
sh.SwitchingLinearSSM(2, 2, 2).fit(np.array(x), **quiet)
"""
NUTS = """
x = (100 * np.log(pd.read_csv(f"{folder}/us_macro.csv", index_col=0)["realgdp"]).diff()).dropna().to_frame("growth")
sh.SwitchingSSM(sh.Markov(2), sh.Normal()).fit(x, method="nuts", **quiet)
"""
SEMI_MARKOV = """
x, state = [], 0
while len(x) < 500:
    n = 1 + rng.negative_binomial(5, 5 / (5 + [8, 15, 25][state]))
    x += list(rng.normal([0.0, 1.5, 3.0][state], [0.7, 0.6, 0.9][state], n))
    state = (state + rng.integers(1, 3)) % 3
sh.SwitchingSSM(sh.SemiMarkov(3), sh.Normal()).fit(np.array(x[:500]), **quiet)
"""
CHOICES = """
weights = np.array([[5.0, -0.1], [1.2, -2.0], [1.2, 2.0]])
table = np.array([[0.98, 0.01, 0.01], [0.03, 0.96, 0.01], [0.03, 0.01, 0.96]])
stimulus, state, choices = rng.normal(size=(2000, 1)) * 0.6, 0, []
for u in stimulus[:, 0]:
    state = rng.choice(3, p=table[state])
    choices.append(rng.random() < 1 / (1 + np.exp(-(weights[state, 0] * u + weights[state, 1]))))
sh.SwitchingSSM(sh.Markov(3), sh.Bernoulli(1, inputs=1)).fit(np.array(choices, float), inputs=stimulus, **quiet)
"""
OWN = """
import pyro.distributions as dist
import torch
class Laplace(sh.Emission):
    n_features = 1
    parameters = {
        "loc": sh.Parameter(("state", "feature")),
        "scale": sh.Parameter(("state", "feature"), dist.constraints.positive),
    }
    def log_prob(self, x, values):
        each = dist.Laplace(values["loc"], values["scale"]).log_prob(x.nan_to_num())
        return torch.where(x.isnan(), 0.0, each).sum(-1)
    def distribution(self, values): return dist.Laplace(values["loc"], values["scale"]).to_event(1)
    def default_prior(self, n_states, x):
        x = torch.tensor([[-1.0], [1.0]]).double() if x is None else x
        median = x.nanmedian(0).values
        return {"median": median.expand(n_states, -1), "spread": (x - median).abs().nanmean(0).expand(n_states, -1)}
    def priors(self, prior):
        loc = dist.Laplace(prior["median"], 5 * prior["spread"]).to_event(2)
        return {"loc": loc, "scale": dist.LogNormal(prior["spread"].log(), 1.0).to_event(2)}
sh.SwitchingSSM(sh.Copy(2), Laplace()).fit(pd.read_csv(f"{folder}/nile.csv", index_col="year"), **quiet)
"""
SERIES = "x = rng.normal(size=(200, 2)) + np.repeat([0.0, 3.0, 0.0, 3.0], 50)[:, None]\n"
NILE = 'nile = pd.read_csv(f"{folder}/nile.csv", index_col="year")\n'
FULL = "sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2)).fit(x, method='vmp', progress=False)"
FIT = ["-m", "samplehold", "fit", f"{DATA}/nile.csv", "--columns", "volume", "--states", "2", "--force", "--out"]
SELECT = ["-m", "samplehold", "select", f"{DATA}/sunspots.csv", "--columns", "activity", "--dynamics", "markov"]
WRONG = f"import subprocess, sys; subprocess.run([sys.executable, '-m', 'samplehold', 'fit', '{DATA}/nile.csv', "
CASES: list[tuple[str, list[str], str, float]] = [  # what it is, its process, seconds before, the aim
    ("torch, Pyro and pandas alone", ["-c", "import torch, pyro, pandas"], "", math.inf),
    ("import and a model class", ["-c", "import samplehold as sh; sh.SwitchingSSM"], "3.0", 2.7),
    (
        "Nile, copy, normal, EM",
        ["-c", START + NILE + "sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(nile, progress=False)"],
        "6.9",
        4.2,
    ),
    (
        "Nile, local level",
        ["-c", START + NILE + "sh.LinearSSM(sh.LocalLevel()).fit(nile, progress=False)"],
        "5.8",
        4.2,
    ),
    ("full normal, 2-d, T=200, message passing", ["-c", START + SERIES + FULL], "8.3", 4.5),
    (
        "`SwitchingLinearSSM(2, 1)`, T=200",
        ["-c", START + SERIES + "sh.SwitchingLinearSSM(2, 1).fit(x[:, :1], progress=False)"],
        "20.9",
        8.0,
    ),
    ("`samplehold fit` on the Nile", [*FIT, f"{tempfile.gettempdir()}/samplehold-first-try"], "6", 5.0),
    ("`SwitchingLinearSSM`, 600 x 2, 2 regimes", ["-c", START + LINEAR], "96", 15.0),
    ("NUTS of 202 quarters, 2 states", ["-c", START + NUTS], "more than 185", 40.0),
    ("`SemiMarkov`, negative binomial durations, 500 steps", ["-c", START + SEMI_MARKOV], "34", 8.0),
    ("3 regressions of 2,000 choices", ["-c", START + CHOICES], "18", 5.0),
    ("an emission by `log_prob`, 100 years", ["-c", START + OWN], "15 to 26", 3.0),
    ("`samplehold select`, 1 to 4 states, the sunspots", [*SELECT, "--states", "1-4"], "38", 8.0),
    ("`samplehold fit --states 0`, an error", ["-c", WRONG + "'--states', '0', '--out', 'out'])"], "4", 1.0),
]


def processor_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """User and system time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{arguments} failed:\n{done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    print("| first try | before (s) | now (s) | aim (s) |\n|---|---:|---:|---:|")
    for what, arguments, before, aim in CASES:
        if sys.argv[1:] and not any(word in what for word in sys.argv[1:]):
            continue
        command = [sys.executable, "-W", "ignore", *arguments]
        now = min(processor_seconds(command, environment) for _ in range(TURNS))
        aimed = f"{aim:g}{' (missed)' if now > aim else ''}" if aim < math.inf else ""
        print(f"| {what} | {before} | {now:.1f} | {aimed} |", flush=True)


if __name__ == "__main__":
    main()
