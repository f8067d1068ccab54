"""The cost of inputs in fits by EM: a markdown table.

    python tests/benchmarks/bench_inputs.py

64 sequences of 1000 steps, K = 4 states, normal observations of one feature, drawn from a model without inputs. "one
start" is 30 steps of EM from the true values; "default" is the whole search of a default fit. Ratios are those of
seconds of processor time with inputs to those without; the aim is at most 3.
"""

from collections.abc import Callable
from statistics import median
from time import process_time

import samplehold as sh
import torch

K, SHAPE = 4, (64, 1000)


def models() -> dict[str, tuple[sh.SwitchingSSM, sh.SwitchingSSM]]:
    """Models with inputs, and the same without."""
    markov, copy, normal = sh.Markov(K), sh.Copy(K), sh.Normal()
    return {
        "Markov, transitions": (sh.SwitchingSSM(sh.Markov(K, inputs=1), normal), sh.SwitchingSSM(markov, normal)),
        "Copy, gate": (sh.SwitchingSSM(sh.Copy(K, inputs=1), normal), sh.SwitchingSSM(copy, normal)),
        "Markov, LinearRegression": (
            sh.SwitchingSSM(markov, sh.LinearRegression(1, inputs=1)),
            sh.SwitchingSSM(markov, normal),
        ),
    }


def truth() -> sh.SwitchingSSM:
    """A model whose states are told apart within a few steps."""
    table = 0.96 * torch.eye(K) + 0.01
    loc = torch.arange(float(K)).unsqueeze(-1) * 1.5
    return sh.SwitchingSSM(sh.Markov(K), sh.Normal()).with_values(
        initial_probs=torch.full((K,), 1 / K), transition_probs=table, loc=loc, scale=torch.ones(K, 1)
    )


def seconds(run: Callable[[], object], turns: int) -> float:
    """The median, after one run that is not counted."""
    times = []
    for turn in range(turns + (turns > 1)):
        start = process_time()
        run()
        if turn or turns == 1:
            times.append(process_time() - start)
    return median(times)


def main() -> None:
    """Print the table."""
    x = truth().simulate(SHAPE[1], SHAPE[:1], seed=0).x
    drive = torch.randn(*SHAPE, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = (x[..., 0] / 1.5).round().clamp(0, K - 1).long()
    print("| model | fit | with inputs, s | without, s | ratio |\n|---|---|---:|---:|---:|")
    for name, (driven, plain) in models().items():
        for fit, options, turns in (
            ("one start, 30 steps", {"restarts": 1, "start": labels, "max_steps": 30, "tol": 1e-15}, 3),
            ("default", {}, 1),
        ):
            ours = seconds(lambda m=driven, o=options: m.fit(x, inputs=drive, progress=False, **o), turns)
            without = seconds(lambda m=plain, o=options: m.fit(x, progress=False, **o), turns)
            print(f"| {name} | {fit} | {ours:.2f} | {without:.2f} | {ours / without:.1f} |", flush=True)


if __name__ == "__main__":
    main()
