"""Kalman filters and smoothers against statsmodels, dynamax and filterpy, and the cost of longer series:
`python tests/benchmarks/bench_kalman.py`.

A smoother computes the evidence, means, covariances and covariances of neighbours. All libraries read the same arrays:
F = 4, 4 and 8 features, constant parameters, no missing values. The peer dynamax compiles once, maps over sequences and
runs in float32. In its rows samplehold runs in float32 too. The peers statsmodels and filterpy run in float64, sequence
by sequence; filterpy is written in Python and is timed once. If sequences share their parameters, samplehold and
dynamax compute the covariances once. When they are steady, samplehold stops computing them. In one further row a tenth
of the features is missing, so covariances cannot be shared. Only statsmodels supports missing values too. The
first rows are processor time on one core, as the least of several runs. Other work on the machine hardly changes it.
The other rows are wall time.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax
import numpy as np
import torch
from dynamax.linear_gaussian_ssm import lgssm_smoother
from dynamax.linear_gaussian_ssm.inference import make_lgssm_params
from filterpy.kalman import KalmanFilter
from samplehold.face.chains import LinearGaussianChain
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother
from threadpoolctl import threadpool_limits
from timing import HEADER, Row, paired

SIZES = [((1, 100_000, 4), 4, 10.0), ((256, 1000, 4), 4, 3.0), ((16, 1000, 32), 8, 1.0)]
GROWTH = [10_000, 100_000, 1_000_000]
Arrays = dict[str, np.ndarray]


def arrays(n_sequences: int, n_steps: int, n_states: int, n_features: int) -> Arrays:
    """A stable system with some noise everywhere, and numbers to filter."""
    rng = np.random.default_rng(0)
    move = rng.normal(size=(n_states, n_states))
    return {
        "x": rng.normal(size=(n_sequences, n_steps, n_features)),
        "transition": 0.95 * move / np.abs(np.linalg.eigvals(move)).max(),
        "state_noise": 0.1 * np.eye(n_states),
        "emission": rng.normal(size=(n_features, n_states)) / np.sqrt(n_states),
        "observation_noise": 0.5 * np.eye(n_features),
        "initial_covariance": np.eye(n_states),
    }


def ours(given: Arrays, dtype: torch.dtype = torch.float64) -> Callable[[], object]:
    tables = {name: torch.tensor(table, dtype=dtype) for name, table in given.items()}
    return lambda: LinearGaussianChain(**tables).smooth()


def statsmodels_smoother(given: Arrays) -> list[object]:
    found = []
    for x in given["x"]:
        peer = KalmanSmoother(k_endog=x.shape[1], k_states=len(given["transition"]))
        peer.bind(np.ascontiguousarray(x))
        peer["design"], peer["transition"] = given["emission"], given["transition"]
        peer["selection"], peer["state_cov"] = np.eye(len(given["transition"])), given["state_noise"]
        peer["obs_cov"] = given["observation_noise"]
        peer.initialize_known(np.zeros(len(given["transition"])), given["initial_covariance"])
        found.append(peer.smooth())
    return found


def dynamax_smoother(given: Arrays) -> Callable[[], object]:
    single = {name: jax.numpy.asarray(table, dtype="float32") for name, table in given.items()}
    params = make_lgssm_params(
        jax.numpy.zeros(len(given["transition"]), dtype="float32"),
        single["initial_covariance"],
        single["transition"],
        single["state_noise"],
        single["emission"],
        single["observation_noise"],
    )
    smoother = jax.jit(jax.vmap(lgssm_smoother, in_axes=(None, 0)))
    return lambda: jax.block_until_ready(smoother(params, single["x"]))


def filterpy_smoother(given: Arrays) -> list[np.ndarray]:
    n_states, n_features = len(given["transition"]), len(given["emission"])
    means = []
    for x in given["x"]:
        peer = KalmanFilter(dim_x=n_states, dim_z=n_features)
        peer.x, peer.P = np.zeros((n_states, 1)), given["initial_covariance"].copy()
        peer.F, peer.Q, peer.H = given["transition"], given["state_noise"], given["emission"]
        peer.R = given["observation_noise"]
        filtered, covariances, *_ = peer.batch_filter(x[..., None], update_first=True)
        means.append(peer.rts_smoother(filtered, covariances)[0][..., 0])
    return means


def once(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def processor_time(function: Callable[[], object], runs: int = 5) -> float:
    """The least milliseconds of several runs, after one that is not counted."""
    function()
    times = []
    for _ in range(runs):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return min(times)


def on_one_core() -> Iterator[Row]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for size, n_features, target in SIZES:
            given = arrays(*size, n_features)
            for name, dtype, peer in (
                ("statsmodels", torch.float64, partial(statsmodels_smoother, given)),
                ("dynamax", torch.float32, dynamax_smoother(given)),
            ):
                pair = processor_time(ours(given, dtype)), processor_time(peer, 3)
                yield Row("smoother, processor time", str(size), name, *pair, target)
    torch.set_num_threads(before)


def smoothers() -> Iterator[Row]:
    for size, n_features, target in SIZES:
        given = arrays(*size, n_features)
        double, single, shown = ours(given), ours(given, torch.float32), str(size)
        found = double()
        expected = statsmodels_smoother({**given, "x": given["x"][:1]})[0]
        assert np.abs(found.mean[0].T.numpy() - expected.smoothed_state).max() < 1e-8
        assert np.abs(found.covariance[0].permute(1, 2, 0).numpy() - expected.smoothed_state_cov).max() < 1e-8
        yield Row("smoother", shown, "statsmodels", *paired(double, partial(statsmodels_smoother, given)), target)
        yield Row("smoother", shown, "dynamax", *paired(single, dynamax_smoother(given)), target)
        mine, _ = paired(double, double, 1.0)
        yield Row("smoother", shown, "filterpy", mine, once(partial(filterpy_smoother, given)), target)
    given = arrays(1, 100_000, 4, 4)
    given["x"][np.random.default_rng(1).random(given["x"].shape) < 0.1] = np.nan
    size, peer = str(SIZES[0][0]), partial(statsmodels_smoother, given)
    yield Row("smoother, a tenth missing", size, "statsmodels", *paired(ours(given), peer), 0)


ONE_SIZE = """
import gc, sys, time
import numpy as np, torch
from bench_kalman import arrays
from samplehold.face.chains import LinearGaussianChain

def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

torch.set_num_threads(1)  # others would stay awake, which counts
n_steps, dtype, missing = int(sys.argv[1]), getattr(torch, sys.argv[2]), float(sys.argv[3])
def tables(n):
    given = arrays(1, n, 4, 4)
    given["x"][np.random.default_rng(1).random(given["x"].shape) < missing] = np.nan
    given["transition"] = torch.tensor(given["transition"], dtype=dtype).requires_grad_()
    return {name: torch.as_tensor(table, dtype=dtype) for name, table in given.items()}

def smooth(given):
    with torch.no_grad():
        return LinearGaussianChain(**given).smooth()

def gradient(given):
    return torch.autograd.grad(LinearGaussianChain(**given).log_normalizer().sum(), given["transition"])

work = gradient if sys.argv[4] == "gradient" else smooth
work(tables(100))
given = tables(n_steps)
gc.collect()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
start = time.process_time()
kept = work(given)
spent = time.process_time() - start
what = f"{sys.argv[4]}, {sys.argv[2]}" + (", a tenth missing" if missing else "")
print(f"- {what}, T={n_steps}: {spent / n_steps * 1e9:.0f} ns a step, {status('VmHWM') - before:.0f} MiB")
"""


def growth() -> Iterator[str]:
    """Processor time and peak memory, results among it, of ever longer series; memory on Linux alone."""
    kinds = [("float64", "0", "smooth"), ("float32", "0", "smooth"), ("float64", "0.1", "smooth")]
    kinds += [("float64", "0", "gradient"), ("float64", "0.1", "gradient")]
    for kind in kinds if sys.platform == "linux" else []:
        for n_steps in GROWTH:
            command = [sys.executable, "-W", "ignore", "-c", ONE_SIZE, str(n_steps), *kind]
            folder = str(Path(__file__).parent)
            yield subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.strip()


if __name__ == "__main__":
    print(HEADER, flush=True)
    for rows in (on_one_core(), smoothers()):
        for row in rows:
            print(row, flush=True)
    print()
    for line in growth():
        print(line, flush=True)
