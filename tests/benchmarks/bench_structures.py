"""Default fits of structures of one series against statsmodels: `python tests/benchmarks/bench_structures.py`.

Each fit is the default of its library, with an exact diffuse start. `LinearSSM(...).fit(x)` searches from a start of
each kind of solution. `UnobservedComponents(...).fit()` has one start. Times are processor time on one core, the least
of several runs, after one run that is not counted. The last row fits 100 series under shared parameters, against 100
fits of statsmodels. Below the table are the log-likelihoods of samplehold minus those of statsmodels.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import samplehold as sh
import torch
from statsmodels.datasets import co2, macrodata, nile
from statsmodels.tsa.statespace.structural import UnobservedComponents
from threadpoolctl import threadpool_limits
from timing import HEADER, Row

AIM, AIM_AT_ONCE = 1 / 3, 20.0
RUNS = 9  # of which the least counts: other work on the processors disturbs some


def seasonal(n_steps: int = 240) -> np.ndarray:
    """A level whose drift drifts, with a season of 12 steps."""
    draws = np.random.default_rng(0)
    drift = np.cumsum(0.05 * draws.normal(size=n_steps))
    level = np.cumsum(drift + draws.normal(size=n_steps))
    return level + draws.normal(size=n_steps) + np.tile(3 * draws.normal(size=12), n_steps // 12)


def cases() -> list[tuple[str, Any, np.ndarray, dict[str, Any]]]:
    """What is fitted: a name, the structure, the series, and the arguments of statsmodels."""
    trend, keywords = sh.LocalLinearTrend() + sh.Seasonal(12), {"level": "lltrend", "seasonal": 12}
    carbon = co2.load_pandas().data["co2"].resample("MS").mean().interpolate().to_numpy()
    inflation = macrodata.load_pandas().data["infl"].to_numpy()
    flow = nile.load_pandas().data["volume"].to_numpy(dtype=float)
    ar = {"level": "llevel", "autoregressive": 1}
    return [
        ("level, Nile", sh.LocalLevel(), flow, {"level": "llevel"}),
        ("trend, Nile", sh.LocalLinearTrend(), flow, {"level": "lltrend"}),
        ("level and AR(1), inflation", sh.LocalLevel() + sh.Autoregression(1), inflation, ar),
        ("trend and 12 seasons", trend, seasonal(), keywords),
        ("trend and 12 seasons, CO2", trend, carbon, keywords),
    ]


def processor_time(function: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """The least milliseconds of several runs after the first, and the last result."""
    result, times = function(), []
    for _ in range(runs):
        start = time.process_time()
        result = function()
        times.append(1e3 * (time.process_time() - start))
    return min(times), result


def peer_fit(x: np.ndarray, keywords: dict[str, Any]) -> Any:
    return UnobservedComponents(x, use_exact_diffuse=True, **keywords).fit(disp=False)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(HEADER)
    notes = []
    with threadpool_limits(1):
        for name, structure, x, keywords in cases():
            mine, fit = processor_time(lambda s=structure, x=x: sh.LinearSSM(s).fit(x, progress=False), RUNS)
            theirs, peer = processor_time(lambda x=x, k=keywords: peer_fit(x, k), RUNS)
            print(Row(f"fit, {name}", f"T={len(x)}", "statsmodels", mine, theirs, AIM), flush=True)
            notes.append(f"- {name}: {fit.loglik - peer.llf:+.4f} nats")
        draws = np.random.default_rng(1)
        many = np.cumsum(draws.normal(size=(100, 200)), 1) + draws.normal(size=(100, 200))
        together = many[..., None]
        mine, _ = processor_time(lambda: sh.LinearSSM(sh.LocalLevel()).fit(together, progress=False), 3)
        theirs, _ = processor_time(lambda: [peer_fit(x, {"level": "llevel"}) for x in many], 1)
        print(Row("fit, level, at once", "(100, 200)", "statsmodels", mine, theirs, AIM_AT_ONCE))
    print("", *notes, sep="\n")


if __name__ == "__main__":
    main()
