"""Learning of switching linear models from data alone: `python tests/benchmarks/bench_switching_learning.py`.

The first table has two scalar chains with F = .9 and .7, Q = 2 and 10, R = .1, and a regime that stays with probability
.95. There are two series of each length T, and each is fitted with three seeds at the default settings. *Right* is the
share of steps with the right regime after labels are aligned. It has three numbers: the mean over all fits, the mean
over the fits with the best `loglik` of their series, and the share of `smooth` at the true parameters. *Evidence* is
log p(x) by GPB(4) at the best fit less its value at the true parameters, in nats. *Bound given up* is the highest bound
of all starts of that fit less the bound of the kept start. *Same* counts the fits that end within a nat of the best
`loglik` of their series.

The second table has a point that runs through a track (after Linderman et al. 2017), with four regimes, two latents,
ten features and 10,000 steps. Beyond |s_0| = 2 the point turns about (2, 0) by pi/24 or about (-2, 0) by pi/48 a step.
Between them it drifts by .1 to the right if s_1 <= 0, and by .25 to the left if s_1 > 0. The noise has variance 1e-4 in
transitions and 1e-2 in observations. R2 measures how well the best affine map of the smoothed latents predicts the true
ones. `--figures` draws the flow of the best recurrent fit, in the basis of the true one, into `docs/figures`. `--track`
and `--chains 100 400` run parts. Seconds are medians of processor time on one thread in the first table, and of wall
time in the second.
"""

import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imsave
from samplehold import SwitchingLinearSSM
from scipy.optimize import linear_sum_assignment
from torch import Tensor

LENGTHS = (100, 200, 400, 800, 1600, 3200)
N_SERIES, N_SEEDS = 2, 3
SAME = 1.0  # nats
TRACK_STEPS, TRACK_SEEDS, TRACK_RESTARTS = 10_000, 3, 2
IMAGE = Path(__file__).parents[2] / "docs" / "figures" / "flow_of_a_track.png"


def right(state: Tensor, path: Tensor) -> float:
    """The share of steps whose regime is the most probable one, under the best naming of the regimes."""
    k = state.shape[-1]
    counts = torch.bincount(state.argmax(-1) * k + path, minlength=k * k).reshape(k, k)
    return int(counts[linear_sum_assignment(counts, maximize=True)].sum()) / len(path)


# ---- two chains ------------------------------------------------------------------------------------------------------


def two_chains() -> SwitchingLinearSSM:
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    noise = torch.tensor([2.0, 10.0], dtype=torch.float64).reshape(2, 1, 1)
    return SwitchingLinearSSM(2, 1, shared="chain per regime").with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.95, 0.05], [0.05, 0.95]],
        initial_mean=[[0.0], [0.0]],
        initial_covariance=noise,
        transition=[[[0.9]], [[0.7]]],
        transition_offset=[[0.0], [0.0]],
        state_noise=noise,
        emission=one,
        emission_offset=[[0.0], [0.0]],
        observation_noise=[[0.1], [0.1]],
    )


def learning(lengths: Sequence[int]) -> None:
    truth = two_chains()
    heads = "T", "method", "right, all", "right, best", "right, true values", "evidence", "bound given up", "same"
    print(f"| {' | '.join(heads)} | cpu s a fit |\n|---:|---|{'---:|' * 7}")
    for n_steps in lengths:
        drawn = [truth.simulate(n_steps, seed=number) for number in range(N_SERIES)]
        told = statistics.mean(right(truth.smooth(some.x).state, some.path) for some in drawn)
        for method in ("vmp", "em"):
            shares, best_shares, gains, given, seconds, same = [], [], [], [], [], 0
            for some in drawn:
                fits = []
                for seed in range(N_SEEDS):
                    start = time.process_time()
                    fits.append(
                        SwitchingLinearSSM(2, 1, shared="chain per regime").fit(
                            some.x, method, seed=seed, progress=False
                        )
                    )
                    seconds.append(time.process_time() - start)
                found = [right(fit.model.smooth(some.x).state, some.path) for fit in fits]
                ends = [fit.loglik for fit in fits]
                best = ends.index(max(ends))
                shares += found
                best_shares.append(found[best])
                gains.append(float(fits[best].model.log_evidence(some.x, 4) - truth.log_evidence(some.x, 4)))
                given.append(float(fits[best].restarts.objective.max() - fits[best].objective[-1]))
                same += sum(end > ends[best] - SAME for end in ends)
            means = [f"{100 * statistics.mean(part):.0f} %" for part in (shares, best_shares)]
            gain = ", ".join(f"{gain:+.0f}" for gain in gains)
            bound = ", ".join(f"{less:.0f}" for less in given)
            cells = (n_steps, method, *means, f"{100 * told:.0f} %", gain, bound, f"{same} of {len(shares)}")
            print(f"| {' | '.join(map(str, cells))} | {statistics.median(seconds):.1f} |", flush=True)


# ---- a track ---------------------------------------------------------------------------------------------------------


def track() -> SwitchingLinearSSM:
    unit = torch.eye(2, dtype=torch.float64)
    turns = [(math.pi / 24, [2.0, 0.0]), (math.pi / 48, [-2.0, 0.0])]
    rotations = [[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]] for a, _ in turns]
    transition = torch.cat([torch.tensor(rotations, dtype=torch.float64), unit.expand(2, 2, 2)])
    around = torch.tensor([center for _, center in turns], dtype=torch.float64)
    drifts = torch.tensor([[-0.25, 0.0], [0.1, 0.0]], dtype=torch.float64)
    emission = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 2)))
    return SwitchingLinearSSM(4, 2, 10, recurrent=True, common_emission=True).with_values(
        initial_probs=[0.25] * 4,
        recurrence=[[100.0, 0.0], [-100.0, 0.0], [0.0, 100.0]],
        recurrence_offset=[[-200.0, -200.0, 0.0]] * 4,
        initial_mean=[0.0, 1.0],
        initial_covariance=0.01 * unit,
        transition=transition,
        transition_offset=torch.cat([((unit - transition[:2]) @ around.unsqueeze(-1)).squeeze(-1), drifts]),
        state_noise=(1e-4 * unit).expand(4, 2, 2),
        emission=emission,
        emission_offset=[0.0] * 10,
        observation_noise=[0.01] * 10,
    )


def affine(smoothed: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, float]:
    """B and a with latents near B s + a, and the share of their variance that this says."""
    inputs = torch.cat([smoothed, torch.ones_like(smoothed[:, :1])], -1)
    table = torch.linalg.lstsq(inputs, latents).solution
    left = (latents - inputs @ table).square().sum() / (latents - latents.mean(0)).square().sum()
    return table[:-1].mT, table[-1], 1 - float(left)


def in_basis(model: SwitchingLinearSSM, basis: Tensor, offset: Tensor) -> SwitchingLinearSSM:
    """The same recurrent model with states B s + a in the place of s."""
    own, inverse = model.values, torch.linalg.inv(basis)
    moved, seen, chosen = (own[name] @ inverse for name in ("transition", "emission", "recurrence"))
    return model.with_values(
        own
        | {
            "transition": basis @ moved,
            "transition_offset": own["transition_offset"] @ basis.mT + offset - basis @ moved @ offset,
            "state_noise": basis @ own["state_noise"] @ basis.mT,
            "initial_mean": basis @ own["initial_mean"] + offset,
            "initial_covariance": basis @ own["initial_covariance"] @ basis.mT,
            "emission": seen,
            "emission_offset": own["emission_offset"] - seen @ offset,
            "recurrence": chosen,
            "recurrence_offset": own["recurrence_offset"] - chosen @ offset,
        }
    )


def draw(models: dict[str, SwitchingLinearSSM], x: Tensor, to: Path) -> None:
    """The flows of some models beside each other."""
    images = []
    for title, model in models.items():
        figure = model.plot_flow(x)
        figure.axes[0].set_title(title, fontsize=10)
        figure.set_dpi(80)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        images.append(np.asarray(canvas.buffer_rgba()))
    to.parent.mkdir(exist_ok=True)
    imsave(to, np.concatenate(images, 1))


def laps(figures: bool) -> None:
    truth = track()
    drawn = truth.simulate(TRACK_STEPS, seed=1)
    found = truth.smooth(drawn.x)
    r2 = affine(found.mean[0], drawn.latent)[2]
    print("| regimes | seed | right | R2 | bound | steps | s |\n|---|---:|---:|---:|---:|---:|---:|")
    print(f"| true values | | {100 * right(found.state, drawn.path):.1f} % | {r2:.4f} | | | |", flush=True)
    best, height = truth, -math.inf
    for recurrent in (True, False):
        model = SwitchingLinearSSM(4, 2, 10, recurrent=recurrent, common_emission=True)
        for seed in range(TRACK_SEEDS):
            start = time.perf_counter()
            fit = model.fit(drawn.x, "vmp", restarts=TRACK_RESTARTS, seed=seed, progress=False)
            seconds, end = time.perf_counter() - start, float(fit.objective[-1])
            found = fit.model.smooth(drawn.x)
            basis, offset, r2 = affine(found.mean[0], drawn.latent)
            cells = (f"{100 * right(found.state, drawn.path):.1f} %", f"{r2:.4f}", f"{end:.0f}", fit.steps)
            kind = "recurrent" if recurrent else "Markov"
            print(f"| {kind} | {seed} | {' | '.join(map(str, cells))} | {seconds:.0f} |", flush=True)
            if recurrent and end > height:
                best, height = in_basis(fit.model, basis, offset), end
    if figures:
        draw({"The true flow": truth, "The learned flow": best}, drawn.x, IMAGE)


PARTS = ("--chains", "--track")

if __name__ == "__main__":
    asked = [part for part in PARTS if part in sys.argv] or PARTS
    if "--chains" in asked:
        learning([int(word) for word in sys.argv[1:] if word.isdigit()] or LENGTHS)
        print()
    if "--track" in asked:
        laps("--figures" in sys.argv)
