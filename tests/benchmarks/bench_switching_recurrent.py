"""Learning of recurrent switching linear models: `python tests/benchmarks/bench_switching_recurrent.py`.

Each problem has three series of 1,000 steps, fitted at the default settings of both methods. In *thermostat* the only
latent rises towards 1.5 until it is near 1, then falls towards -1.5 until it is near -1. In *three drifts* it rises in
two regimes and falls in the third; each regime has its own emission. In *two speeds* a point turns about 0, by pi/6 a
step on the right and by pi/24 on the left. *Held out* is the evidence of 4,000 other steps at the true parameters less
that at the fit, in nats a step, by GPB(2). *Own* is the same difference for the series of the fit. It is negative if
the fit is above the true parameters. *p / 2T* is the number of parameters over twice the number of steps. The held out
difference of maximum likelihood is about this large. *Starts* counts, over all fits of a row, the starts whose bound is
within 10 nats of the highest of their fit. Seconds are medians of processor time. Names of problems, or `track` for
2,000 steps of the track of `bench_switching_learning` and two starts, run parts.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from bench_switching_learning import TRACK_RESTARTS, track
from samplehold import SwitchingLinearSSM

N_STEPS, N_HELD_OUT, N_SERIES = 1000, 4000, 3
TRACK_STEPS = 2000
NEAR = 10.0  # nats


def thermostat() -> SwitchingLinearSSM:
    return SwitchingLinearSSM(2, 1, 2, recurrent=True, common_emission=True).with_values(
        initial_probs=[0.5, 0.5],
        recurrence=[[-4.0]],
        recurrence_offset=[[4.0], [-4.0]],
        initial_mean=[0.0],
        initial_covariance=[[0.25]],
        transition=[[[0.9]], [[0.9]]],
        transition_offset=[[0.15], [-0.15]],
        state_noise=[[[0.01]], [[0.01]]],
        emission=[[1.0], [0.5]],
        emission_offset=[0.0, 0.0],
        observation_noise=[0.05, 0.05],
    )


def three_drifts() -> SwitchingLinearSSM:
    return SwitchingLinearSSM(3, 1, 2, recurrent=True).with_values(
        initial_probs=[1 / 3] * 3,
        recurrence=[[-3.0], [-3.0]],
        recurrence_offset=[[3.0, 3.0], [0.0, 6.0], [-6.0, -3.0]],
        initial_mean=[0.0],
        initial_covariance=[[0.25]],
        transition=[[[0.95]], [[0.8]], [[0.9]]],
        transition_offset=[[0.15], [0.5], [-0.3]],
        state_noise=[[[0.02]], [[0.01]], [[0.05]]],
        emission=[[[1.0], [0.5]], [[1.0], [-0.5]], [[1.0], [0.0]]],
        emission_offset=[[0.0, 0.0]] * 3,
        observation_noise=[[0.05, 0.05]] * 3,
    )


def two_speeds() -> SwitchingLinearSSM:
    turns = [
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        for angle in (math.pi / 6, math.pi / 24)
    ]
    unit = torch.eye(2, dtype=torch.float64)
    return SwitchingLinearSSM(2, 2, 4, recurrent=True, common_emission=True).with_values(
        initial_probs=[0.5, 0.5],
        recurrence=[[5.0, 0.0]],
        recurrence_offset=[[0.0], [0.0]],
        initial_mean=[0.0, 1.0],
        initial_covariance=0.1 * unit,
        transition=0.995 * torch.tensor(turns, dtype=torch.float64),
        transition_offset=[[0.0, 0.0]] * 2,
        state_noise=(0.01 * unit).expand(2, 2, 2),
        emission=torch.from_numpy(np.random.default_rng(3).normal(size=(4, 2))),
        emission_offset=[0.0] * 4,
        observation_noise=[0.1] * 4,
    )


PROBLEMS: dict[str, Callable[[], SwitchingLinearSSM]] = {
    "thermostat": thermostat,
    "three drifts": three_drifts,
    "two speeds": two_speeds,
    "track": track,
}


def measure(name: str, method: str) -> None:
    truth, options = PROBLEMS[name](), {"restarts": TRACK_RESTARTS} if name == "track" else {}
    n_steps = TRACK_STEPS if name == "track" else N_STEPS
    behind, own, seconds, near, tried, share = [], [], [], 0, 0, 0.0
    for number in range(N_SERIES):
        x, other = (truth.simulate(n, seed=seed).x for n, seed in ((n_steps, number), (N_HELD_OUT, 100 + number)))
        start = time.process_time()
        fit = truth.without_values().fit(x, method, seed=0, progress=False, **options)
        seconds.append(time.process_time() - start)
        behind.append(float(truth.log_evidence(other) - fit.model.log_evidence(other)) / N_HELD_OUT)
        own.append(float(truth.log_evidence(x) - fit.model.log_evidence(x)) / n_steps)
        ends = fit.restarts[fit.restarts.independent].objective
        near, tried, share = near + int((ends > ends.max() - NEAR).sum()), tried + len(ends), fit.n_parameters / n_steps
    each = ", ".join(f"{gap:.3f}" for gap in behind)
    cells = f"{statistics.mean(behind):.3f}", each, f"{statistics.mean(own):.3f}", f"{share / 2:.3f}"
    print(
        f"| {name} | {method} | {' | '.join(cells)} | {near} of {tried} | {statistics.median(seconds):.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    heads = "problem", "method", "held out, mean", "each series", "own, mean", "p / 2T", "starts", "cpu s a fit"
    print(f"| {' | '.join(heads)} |\n|---|---|{'---:|' * (len(heads) - 2)}")
    asked = [name for name in PROBLEMS if name in sys.argv[1:]] or [name for name in PROBLEMS if name != "track"]
    for some in asked:
        for how in ("em", "vmp"):
            measure(some, how)
