"""Exact segments of 1e4 steps, certified segments of 1e5 and 1e6 steps, and a stream: warm, on two threads.

The model's smoothing has means and standard deviations of parameters.
"""

import math
import time
from collections.abc import Callable

import torch
from samplehold import Normal, Segments, kernels
from samplehold.face.chains import Block, SegmentChain, SegmentStream
from samplehold.inference.families import NormalGamma


def series(n_steps: int, every: int = 300, seed: int = 0) -> torch.Tensor:
    """Normal numbers whose mean and scale change every few hundred steps."""
    generator = torch.Generator().manual_seed(seed)
    change = torch.rand(n_steps, generator=generator) < 1 / every
    segment = change.long().cumsum(0)
    loc = 3 * torch.randn(int(segment[-1]) + 1, generator=generator, dtype=torch.float64)
    scale = torch.rand(len(loc), generator=generator, dtype=torch.float64) + 0.5
    return loc[segment] + scale[segment] * torch.randn(n_steps, generator=generator, dtype=torch.float64)


def normal_chain(x: torch.Tensor, tol: float = 0.0, every: int = 300) -> SegmentChain:
    half = torch.full_like(x, 0.5)
    number = lambda value: torch.tensor([value], dtype=x.dtype)
    prior = NormalGamma().natural(number(0.0), number(0.1), number(2.0), number(2.0))
    block = Block(NormalGamma(), prior, torch.stack([x, -half, half, -x.square() / 2], -1).unsqueeze(-2))
    return SegmentChain(block, number(1 / every).log(), torch.full_like(x, -math.log(2 * math.pi) / 2), tol=tol)


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The least of a few runs, the first of which is not counted."""
    work()
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def row(name: str, found: str) -> None:
    print(f"| {name} | {found} |", flush=True)


def report(name: str, x: torch.Tensor, tol: float, times: int) -> None:
    chain = lambda: normal_chain(x, tol)
    row(name, f"evidence {seconds(lambda: chain().log_normalizer(), times):.3f} s")
    row(name, f"left out {float(chain().runs().left_out):.2g}")
    row(name, f"smoothing {seconds(lambda: chain().smooth(), times):.3f} s")
    row(name, f"best path {seconds(lambda: chain().viterbi(), times):.3f} s")


def report_model(name: str, x: torch.Tensor, tol: float, times: int) -> None:
    model = Segments(Normal(), hazard=1 / 300, tol=tol).scaled_to(x)
    for verb in (model.log_evidence, model.smooth, model.filter):
        row(f"{name}, the model", f"{verb.__name__} {seconds(lambda verb=verb: verb(x), times):.3f} s")


def report_stream(n_runs: int = 100, n_steps: int = 300, n_more: int = 1000) -> None:
    chain = normal_chain(series(n_runs + n_more, every=10 * n_steps))
    (block,) = chain.blocks
    stream = SegmentStream((block.family,), (block.prior,), chain.log_hazard, most=n_runs)
    runs, _ = stream.extend(stream.start(), (block.statistics[:n_runs],))
    later = block.statistics[n_runs:]

    def updates() -> None:
        now = runs
        for t in range(n_steps - n_runs):
            now, _ = stream.update(now, (later[t],))

    name, each = f"stream of {n_runs} run lengths", 1e6 / (n_steps - n_runs)
    row(name, f"{each * seconds(updates):.0f} us an update")
    row(name, f"{1e6 / n_more * seconds(lambda: stream.extend(runs, (later,))):.1f} us each of {n_more} at once")
    x = series(n_runs + n_more, every=10 * n_steps)
    model = Segments(Normal(), hazard=1 / 300).scaled_to(x)
    state, _ = model.extend(model.start(most=n_runs, tol=0.0), x[:n_runs])
    numbers = x[n_runs:n_steps].tolist()

    def steps(read: bool) -> None:
        now = state
        for number in numbers:
            now, output = model.update(now, number)
            if read:
                _ = output.change, output.mean

    row(f"{name}, the model", f"{each * seconds(lambda: steps(False)):.0f} us an update")
    row(f"{name}, the model", f"{each * seconds(lambda: steps(True)):.0f} us an update whose change and means are read")
    row(
        f"{name}, the model",
        f"{1e6 / n_more * seconds(lambda: model.extend(state, x[n_runs:])):.1f} us each of {n_more}",
    )


def main() -> None:
    torch.set_num_threads(2)
    print("| series | time |\n|---|---|")
    with kernels("native"):
        report("T=1e4, exact", series(10_000), 0.0, 3)
        report("T=1e6, tol 1e-9", series(1_000_000), 1e-9, 1)
        report_model("T=1e4, exact", series(10_000), 0.0, 3)
        report_model("T=1e5, tol 1e-9", series(100_000), 1e-9, 3)
        report_stream()


if __name__ == "__main__":
    main()
