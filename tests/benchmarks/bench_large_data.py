"""Steps of EM over data in a file and over data shared by processes, beside those in memory.

    python tests/benchmarks/bench_large_data.py [observations]

Eight states, two features, two restarts, sequences of 1,000 steps; and the search on a sample, with eight restarts.
With a number of observations, a fit of so many in float32 from a file, with `max_steps=2`, and the peak of its memory.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import samplehold as sh
import torch
from samplehold import kernels
from samplehold.inference.numerics.ranks import Ranks
from samplehold.switching.fitting import EM, EMInParts, End, Options, Whole, first_guesses
from samplehold.switching.fitting.search import search
from samplehold.switching.fitting.spread import spread
from samplehold.switching.fitting.whole import jointly
from samplehold.switching.parameters import Parameters

K, RESTARTS, LENGTH, STEPS, TURNS = 8, 2, 1000, 5, 3
MODEL = sh.SwitchingSSM(sh.Markov(K), sh.Normal(2))


def sequences(n: int, seed: int = 0) -> torch.Tensor:
    """n sequences in which a state lasts about 20 steps."""
    generator = torch.Generator().manual_seed(seed)
    state = (torch.rand(n, LENGTH, generator=generator) < 0.05).long().cumsum(1) % K
    noise = torch.randn(n, LENGTH, 2, generator=generator, dtype=torch.float64)
    return noise + torch.stack([state * 1.0, (state % 3) * 2.0], -1)


def seconds_a_step(em: EM) -> float:
    """The shortest of some turns."""
    em.run(1)
    times = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        em.run(STEPS)
        times.append((time.perf_counter() - begin) / STEPS)
    return min(times)


def step(rank: int, n: int) -> float:
    """The seconds of a step with all data."""
    x = sequences(1000)
    model = MODEL.scaled_to(x[:20])
    small, share = model.problem(x[:20]), x[len(x) * rank // n : len(x) * (rank + 1) // n]
    whole = Whole.of(model.read(share), Ranks.of(None))
    return seconds_a_step(EMInParts(small, whole, first_guesses(small, RESTARTS, 0).values))


def searched(rank: int, n: int) -> float:
    """The seconds of the search on a sample, without those in which kernels are loaded."""
    x = sequences(65)
    model = MODEL.scaled_to(x)
    problem, options = model.problem(x), Options(restarts=8, max_steps=60, progress=False)
    whole = Whole.of(model.read(x[rank:]), Ranks.of(None))

    def end(values: Parameters) -> End:
        return End(values, problem.chain(values).smooth().state)

    begin = spread(partial(EM, problem), whole)
    for _ in range(2):
        at = time.perf_counter()
        jointly(whole, lambda: search(problem, begin, end, options, lambda step, best: None))
        took = time.perf_counter() - at
    return took


def in_a_process(
    rank: int, n: int, meeting: str, job: Callable[[int, int], float], put: Callable[[float], None]
) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=n)
    with kernels("native"):
        took = job(rank, n)
    torch.distributed.destroy_process_group()
    if rank == 0:
        put(took)


def shared(n: int, job: Callable[[int, int], float]) -> float:
    """The seconds of something that n processes with one thread each do."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        there = [
            context.Process(target=in_a_process, args=(rank, n, f"{folder}/meeting", job, results.put))
            for rank in range(n)
        ]
        for process in there:
            process.start()
        took = results.get()
        for process in there:
            process.join()
    return took


def main() -> None:
    torch.set_num_threads(1)
    x = sequences(1000)
    model = MODEL.scaled_to(x[:20])
    small, problem = model.problem(x[:20]), model.problem(x)
    start = first_guesses(small, RESTARTS, 0).values
    with kernels("native"):
        memory = seconds_a_step(EM(problem, start))
        file = seconds_a_step(EMInParts(small, Whole.of(sh.open_sequences(x.numpy())), start))
    each = x.shape[:2].numel() * RESTARTS
    print("| 1,000,000 observations | s a step | ns for an observation and restart | |\n|---|---:|---:|---|")
    print(f"| in memory, one thread | {memory:.3f} | {1e9 * memory / each:.0f} | |")
    print(
        f"| from a file, one thread | {file:.3f} | {1e9 * file / each:.0f} | {file / memory:.2f} of memory (aim 1.3) |"
    )
    turns = [(shared(1, step), shared(2, step)) for _ in range(TURNS)]
    one, two = (median(took) for took in zip(*turns, strict=True))
    ratios = ", ".join(f"{one / two:.2f}" for one, two in turns)
    print(f"| one process, one thread | {one:.3f} | {1e9 * one / each:.0f} | |")
    print(f"| two processes, one thread each | {two:.3f} | {1e9 * two / each:.0f} | {ratios} times (aim 1.7) |")
    one, two = shared(1, searched), shared(2, searched)
    print(f"| search on a sample, one process | {one:.1f} in all | | |")
    print(f"| search on a sample, two processes | {two:.1f} in all | | {one / two:.2f} times |")


def large(n: int) -> None:
    def some():
        for first in range(0, n // LENGTH, 100):
            yield from sequences(min(100, n // LENGTH - first), seed=first).float().numpy()

    begin = time.perf_counter()
    series = sh.open_sequences(some())
    opened = time.perf_counter()
    with kernels("native"):
        fit = MODEL.fit(series, max_steps=2, progress=False)
    ended, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{n:,} observations: made and read in {opened - begin:.0f} s, {fit.steps} steps and the passes around them in "
        f"{ended - opened:.0f} s, peak of memory {peak:.2f} GB"
    )


if __name__ == "__main__":
    large(int(float(sys.argv[1]))) if len(sys.argv) > 1 else main()
