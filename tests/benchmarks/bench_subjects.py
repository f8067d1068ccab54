"""Fits of many subjects: parameters by subject beside a pooled fit, in processor time of one thread.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_subjects.py [subjects] [steps]

Each time is a whole `fit` with the default search; that by subject contains the pooled fit from which it starts.
"""

import sys
import time

import samplehold as sh
import torch

K = 4
FITS = (("em", "none"), ("vmp", "none"), ("vmp", "partial"))


def main(n_subjects: int = 1000, n_steps: int = 1000) -> None:
    stay = 0.9 * torch.eye(K, dtype=torch.float64) + 0.1 / K
    truth = sh.SwitchingSSM(sh.Markov(K), sh.Normal(1)).with_values(
        initial_probs=[1 / K] * K, transition_probs=stay, loc=[[-4.0], [-1.0], [2.0], [5.0]], scale=[[1.0]] * K
    )
    generator = torch.Generator().manual_seed(0)
    level = 0.5 * torch.randn(n_subjects, 1, 1, generator=generator, dtype=torch.float64)
    x = truth.simulate(n_steps, (n_subjects,), seed=1).x + level
    model = sh.SwitchingSSM(sh.Markov(K), sh.Normal(1))
    print(f"{n_subjects} subjects, {n_steps} steps, {K} states")
    for method, pooled in FITS:
        times = []
        model.fit(x[:20], method=method, pooled=pooled, progress=False)  # compiles
        for how in ("complete", pooled):
            begin = time.process_time()
            fit = model.fit(x, method=method, pooled=how, progress=False)
            times.append(time.process_time() - begin)
        print(
            f'{method}: pooled {times[0]:.1f} s, "{pooled}" {times[1]:.1f} s, {times[1] / times[0]:.2f} times,', end=" "
        )
        print(f"{fit.steps} steps", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
