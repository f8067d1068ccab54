"""How often 90 % intervals of a variational fit hold the truth: as they are, and corrected.

`python tests/benchmarks/interval_coverage.py [series]` draws as many series of 60 steps from each of some models, fits
each by message passing at the default settings, and prints the share of intervals that hold the parameter that the
series was drawn with.
"""

import sys
import warnings

import torch
from samplehold import Bernoulli, Copy, Markov, MultivariateNormal, Normal, Poisson, SwitchingSSM
from samplehold.switching.fitting.alignment import match_states
from samplehold.switching.parameters import reordered

N_STEPS = 60
LEVEL = 0.9

TRANSITIONS = [[0.85, 0.15], [0.2, 0.8]]
MODELS = {
    "copy, normal": SwitchingSSM(Copy(2), Normal(1)).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1.5], [1.5]], scale=[[1.0], [1.0]]
    ),
    "copy, counts": SwitchingSSM(Copy(2), Poisson(1)).with_values(
        redraw_prob=0.2, state_probs=[0.4, 0.6], rate=[[2.0], [10.0]]
    ),
    "Markov, normal": SwitchingSSM(Markov(2), Normal(1)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=TRANSITIONS, loc=[[-2.0], [2.0]], scale=[[1.0], [1.5]]
    ),
    "Markov, full normal": SwitchingSSM(Markov(2), MultivariateNormal(2)).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=TRANSITIONS,
        loc=[[-2.5, 0.0], [2.5, 0.0]],
        covariance=[[[1.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 1.0]]],
    ),
    "Markov, coins": SwitchingSSM(Markov(2), Bernoulli(4)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=TRANSITIONS, probs=[[0.2, 0.3, 0.7, 0.2], [0.8, 0.7, 0.4, 0.7]]
    ),
}


def main(n_series: int = 200) -> None:
    warnings.simplefilter("ignore")
    print("| model | parameter | as they are | corrected |")
    print("|---|---|---|---|")
    ks = []
    for title, truth in MODELS.items():
        held: dict[str, dict[bool, list[torch.Tensor]]] = {}
        for seed in range(n_series):
            x = truth.simulate(N_STEPS, seed=seed).x
            fit = SwitchingSSM(truth.dynamics, truth.emission).fit(x, "vmp", seed=seed, progress=False)
            fitted = {name: value.unsqueeze(0) for name, value in fit.model.values.items()}
            order = match_states(truth.problem(x), fitted, truth.values)[0]
            for correct in (False, True):
                ends = [reordered(truth.known, end, order) for end in fit.posterior.interval(LEVEL, correct=correct)]
                for name, value in truth.values.items():
                    if name != "initial_probs":  # one series says next to nothing of them
                        inside = (ends[0][name] <= value) & (value <= ends[1][name])
                        held.setdefault(name, {}).setdefault(correct, []).append(inside.double())
            ks.append(fit.posterior.refined.pareto_k)
        for name, by in held.items():
            shares = [torch.stack(by[correct]).mean(0).flatten() for correct in (False, True)]
            cells = (", ".join(f"{100 * share:.0f} %" for share in some) for some in shares)
            print(f"| {title} | {name} | {' | '.join(cells)} |", flush=True)
    reliable = sum(k < 0.7 for k in ks) / len(ks)
    print(f"\n{n_series} series of each, {N_STEPS} steps, level {LEVEL}; weights reliable in {100 * reliable:.1f} %.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
