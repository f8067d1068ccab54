"""How often 90 % intervals of a hidden Markov model of choices, driven by inputs, hold the truth.

`python tests/benchmarks/choice_coverage.py [sets]` draws data sets of 20 sessions of 150 choices, which are Bernoulli
given one of three states and four inputs, as in models of the choices of animals (Ashwood et al. 2022). Each set is
fitted by EM with the weak prior, from the truth, so that states have its numbers. Intervals are those of the summary.
"""

import sys

import numpy as np
import pandas as pd
from samplehold import Bernoulli, Fit, Markov, SwitchingSSM

INPUTS = ("stimulus", "previous choice", "previous reward", "block")
SESSIONS, TRIALS, LEVEL = 20, 150, 0.9
TRUTH = SwitchingSSM(Markov(3), Bernoulli(1, inputs=INPUTS)).with_values(
    initial_probs=[0.6, 0.2, 0.2],
    transition_probs=[[0.96, 0.02, 0.02], [0.03, 0.95, 0.02], [0.02, 0.03, 0.95]],
    probs=[[0.5], [0.2], [0.8]],
    coefficients=[[[2.5, 0.2, 0.0, 0.3]], [[0.6, 0.8, 0.0, -0.2]], [[0.5, 0.0, 0.8, 0.4]]],
)


def fitted(seed: int) -> Fit:
    """A fit of the data set of a seed."""
    inputs = np.random.default_rng(seed).normal(size=(SESSIONS, TRIALS, len(INPUTS)))
    x = TRUTH.simulate(TRIALS, (SESSIONS,), seed=seed, inputs=inputs, input_names=INPUTS).x
    model = SwitchingSSM(TRUTH.dynamics, TRUTH.emission)
    return model.fit(x, inputs=inputs, input_names=INPUTS, start=TRUTH, restarts=1, seed=seed, progress=False)


def covered(fit: Fit) -> pd.Series:
    """Whether the interval of each number holds the truth, by its name."""
    table = fit.summary(level=LEVEL).parameters
    truth = pd.Series([_truth(name) for name in table.index], table.index)
    inside = (table["lower"] <= truth) & (truth <= table["upper"])
    return inside.astype(float).where(table["lower"].notna())


def _truth(name: str) -> float:
    """The true value of a number, such as `coefficients[0, 0, stimulus]`."""
    parameter, _, place = name.rstrip("]").partition("[")
    at = tuple(INPUTS.index(label) if label in INPUTS else int(label) for label in place.split(", "))
    return float(TRUTH.values[parameter][at])


def main(n_sets: int = 50) -> None:
    shares = pd.DataFrame([covered(fitted(seed)) for seed in range(n_sets)])
    groups = shares.columns.str.partition("[").get_level_values(0)
    print("| parameter | numbers | share of intervals with the truth | least of a number |")
    print("|---|---|---|---|")
    for name in dict.fromkeys(groups):
        some = shares.loc[:, groups == name]
        print(f"| {name} | {some.shape[1]} | {some.stack().mean():.1%} | {some.mean().min():.0%} |")
    print(f"\n{n_sets} data sets, level {LEVEL}.")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
