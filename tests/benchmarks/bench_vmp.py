"""Message passing against hmmlearn's variational HMM and BayesPy, restarts as a batch, and the cost of more data:
`python tests/benchmarks/bench_vmp.py`.

The model is a hidden Markov model with full normals of two features. The table times one iteration: an E-step under
expected logs, the update of every block, and the bound. hmmlearn runs with scaling, its faster form, from the same data
and start. BayesPy is skipped if it is not installed; 0.6.6 works with numpy 2.4. Run it on a quiet machine. On a busy
one, two threads that wait for each other can take ten times as long as one.
"""

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from portable_cases import Size, hmmlearn_sweep, levels
from samplehold import Copy, Markov, MultivariateNormal, Normal, SwitchingSSM
from samplehold.inference.message_passing import VMP
from samplehold.switching.fitting import ChainGraph, engine_from, first_guesses
from timing import HEADER, Row, paired

SIZES = [(1, 10_000, 4, 1.5), (64, 1000, 4, 5.0), (256, 1000, 4, 4.0), (64, 1000, 16, 8.0)]
RESTARTS = 32
GROWTH = [(100, 1000), (1000, 1000), (10_000, 1000), (1, 100_000), (1, 1_000_000), (1, 10_000_000)]


def engine_of(model: SwitchingSSM, x: torch.Tensor, restarts: int) -> VMP:
    problem = model.scaled_to(x).problem(x)
    engine = engine_from(ChainGraph.of(problem), first_guesses(problem, restarts, seed=0).values)
    assert isinstance(engine, VMP)
    return engine


def iteration(engine: VMP) -> Callable[[], object]:
    def ours() -> object:
        engine.step()
        return engine.elbo()

    return ours


def against_hmmlearn() -> Iterator[Row]:
    for n_sequences, n_steps, n_states, target in SIZES:
        x = levels(Size(n_sequences, n_steps, n_states))
        model = SwitchingSSM(Markov(n_states), MultivariateNormal(2))
        times = paired(iteration(engine_of(model, x, 1)), hmmlearn_sweep(x, n_states))
        size = f"{n_sequences} x {n_steps}, K={n_states}"
        yield Row("VMP iteration, full normal", size, "hmmlearn, scaling", *times, target)


def bayespy_iteration(x: torch.Tensor, n_states: int) -> Callable[[], object]:
    with warnings.catch_warnings():  # it is older than the Python it runs on
        warnings.simplefilter("ignore")
        from bayespy.inference import VB
        from bayespy.nodes import CategoricalMarkovChain, Dirichlet, Gaussian, Mixture, Wishart
    (n_sequences, n_steps, dim), flat = x.shape, np.ones(n_states)
    start, rows = Dirichlet(flat), Dirichlet(flat, plates=(n_states,))
    states = CategoricalMarkovChain(start, rows, states=n_steps, plates=(n_sequences,))
    loc = Gaussian(np.zeros(dim), 0.01 * np.eye(dim), plates=(n_states,))
    precision = Wishart(dim + 2, np.eye(dim), plates=(n_states,))
    data = Mixture(states, Gaussian, loc, precision)
    data.observe(x.numpy())
    loc.initialize_from_random()
    engine = VB(data, loc, precision, states, start, rows)
    return lambda: engine.update(repeat=1, verbose=False)


def against_bayespy() -> Iterator[Row]:
    if importlib.util.find_spec("bayespy") is None:
        return
    for n_sequences, n_steps, n_states, _ in SIZES:
        x = levels(Size(n_sequences, n_steps, n_states))
        model = SwitchingSSM(Markov(n_states), MultivariateNormal(2))
        times = paired(iteration(engine_of(model, x, 1)), bayespy_iteration(x, n_states))
        yield Row("VMP iteration, full normal", f"{n_sequences} x {n_steps}, K={n_states}", "BayesPy", *times, 50.0)


def batch_against_loop() -> Iterator[Row]:
    for dynamics, emission in ((Copy(4), Normal(2)), (Markov(4), MultivariateNormal(2))):
        x = levels(Size(1, 1000, 4))[0]
        model = SwitchingSSM(dynamics, emission)
        together = iteration(engine_of(model, x, RESTARTS))
        one_by_one = [iteration(engine_of(model, x, 1)) for _ in range(RESTARTS)]
        times = paired(together, lambda fits=one_by_one: [fit() for fit in fits])
        name = f"{type(dynamics).__name__}, {type(emission).__name__}"
        yield Row(f"{RESTARTS} restarts as a batch, {name}", "1 x 1000, K=4", "a loop over them", *times, 1.3)


# A process of its own for each size, since a peak is that of a process. The first fit compiles and warms up.
ONE_SIZE = """
import gc, sys, time
from samplehold import Markov, MultivariateNormal, SwitchingSSM
from portable_cases import Size, levels

def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

def fit(x, steps):
    start = time.process_time()
    steps = model.fit(x, method="vmp", restarts=1, max_steps=steps, tol=0, progress=False).steps
    return time.process_time() - start, steps

n_sequences, n_steps = map(int, sys.argv[1:])
model = SwitchingSSM(Markov(4), MultivariateNormal(2))
fit(levels(Size(16, 500, 4)), 2)
x = levels(Size(n_sequences, n_steps, 4))
gc.collect()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
n, size = n_sequences * n_steps, x.numel() * x.element_size() / 2**20
more = max(2, 10**7 // n)  # iterations, so many that the difference is not one of the starts
(long, many), (short, few) = fit(x, 1 + more), fit(x, 1)  # it may settle before
rate = (long - short) / (many - few) / n * 1e9
print(f"- VMP on {n_sequences} x {n_steps}, K=4: {rate:.0f} ns an observation and iteration, "
      f"{status('VmHWM') - before:.0f} MiB beyond the input's {size:.0f}")
"""


def growth() -> Iterator[str]:
    """Processor time and peak memory of fits to ever more data; memory on Linux alone."""
    for size in GROWTH if sys.platform == "linux" else []:
        command = [sys.executable, "-c", ONE_SIZE, *map(str, size)]
        folder = str(Path(__file__).parent)
        yield subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.strip()


if __name__ == "__main__":
    print(HEADER, flush=True)
    for rows in (against_hmmlearn(), against_bayespy(), batch_against_loop()):
        for row in rows:
            print(row, flush=True)
    print()
    for line in growth():
        print(line, flush=True)
