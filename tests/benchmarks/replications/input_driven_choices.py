r"""Choices of a mouse that alternates between three strategies, drawn from published parameters and fitted again.

`python tests/benchmarks/replications/input_driven_choices.py [sessions]` prints the numbers of
docs/replications/input_driven_choices.md.

Ashwood et al. 2022, *Mice alternate between discrete strategies during perceptual decision-making*, Nature Neuroscience
25:201-212. The choice is Bernoulli given one of three states, and its log odds are linear in four inputs:

    stimulus          signed contrast, right less left, divided by its standard deviation
    bias              1
    previous choice   1 right, -1 left
    win-stay          the previous choice if it was rewarded, otherwise the other side

`TRANSITIONS` are the numbers in figure 2d. `WEIGHTS` are read from figure 2e, as in the documentation of nemos, so they
are good to about 0.1. The contrasts, their frequencies and the number of sessions are ours.
"""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import samplehold as sh
import torch

STATES = ("engaged", "biased left", "biased right")
BY_BIAS = (1, 0, 2)  # the number of each in a fit, whose states are in the order of their bias
INPUTS = ("stimulus", "previous choice", "win-stay")
TRANSITIONS = np.array([[0.98, 0.01, 0.01], [0.04, 0.94, 0.02], [0.04, 0.01, 0.96]])  # the last row sums to 1.01
WEIGHTS = np.array(  # stimulus, bias, previous choice, win-stay
    [[6.6, -0.1, 0.35, 0.15], [1.5, -2.55, -0.15, 0.1], [1.6, 2.2, 0.55, 0.35]]
)
CONTRASTS = np.array([-1, -0.25, -0.125, -0.0625, 0, 0.0625, 0.125, 0.25, 1])
SESSIONS, TRIALS, FOLDS, MOST_STATES = 60, 90, 5, 5


class Mouse(NamedTuple):
    """Sessions `[S, T]` of a simulated mouse."""

    choice: np.ndarray  # 1 right, 0 left
    inputs: np.ndarray  # [S, T, 3], in the order of INPUTS
    state: np.ndarray
    correct: np.ndarray  # whether the choice is the side of the stimulus; at contrast 0 that side is drawn


def model(n_states: int) -> sh.SwitchingSSM:
    """The model of the paper with a number of states; its bias is the log odds at inputs 0."""
    return sh.SwitchingSSM(sh.Markov(n_states), sh.Bernoulli(1, inputs=INPUTS))


def published_moves() -> torch.Tensor:
    """The published transition matrix, with rows that sum to 1."""
    return torch.from_numpy(TRANSITIONS / TRANSITIONS.sum(1, keepdims=True))


def truth() -> sh.SwitchingSSM:
    """The model at the published parameters, from its stationary distribution."""
    transitions = published_moves()
    return model(3).with_values(
        initial_probs=torch.linalg.matrix_power(transitions, 1000)[0],
        transition_probs=transitions,
        probs=1 / (1 + np.exp(-WEIGHTS[:, 1:2])),
        coefficients=WEIGHTS[:, None, [0, 2, 3]],
    )


def simulated(n_sessions: int, seed: int = 0) -> Mouse:
    """Sessions of 90 trials. Inputs follow from earlier choices, so choices are drawn trial by trial."""
    draw, shape = np.random.default_rng(seed), (n_sessions, TRIALS)
    state = truth().simulate(TRIALS, (n_sessions,), seed=seed, inputs=np.zeros((*shape, 3))).path.numpy()
    contrast = draw.choice(CONTRASTS, shape)
    side = np.where(contrast == 0, draw.choice([-1, 1], shape), np.sign(contrast))
    inputs, choice = np.zeros((*shape, 3)), np.zeros(shape)
    inputs[..., 0] = contrast / CONTRASTS.std()
    before, rewarded = draw.choice([-1, 1], (2, n_sessions))  # a trial before the first one
    for t in range(TRIALS):
        inputs[:, t, 1:] = np.stack([before, before * rewarded], -1)
        of = WEIGHTS[state[:, t]]
        odds = of[:, 1] + (of[:, [0, 2, 3]] * inputs[:, t]).sum(-1)
        choice[:, t] = draw.random(n_sessions) < 1 / (1 + np.exp(-odds))
        before = 2 * choice[:, t] - 1
        rewarded = np.where(before == side[:, t], 1, -1)
    return Mouse(choice, inputs, state, 2 * choice - 1 == side)


def fitted(mouse: Mouse, n_states: int, **options: Any) -> sh.Fit:
    """The mode under the weak prior, by EM; its states are in the order of their bias."""
    return model(n_states).fit(mouse.choice[..., None], inputs=mouse.inputs, progress=False, **options)


def evidence(of: Any, mouse: Mouse) -> np.ndarray:
    """log p of each session under a model or a fit, nats [S]."""
    return of.log_evidence(mouse.choice[..., None], inputs=mouse.inputs).numpy()


# ---- tables ----------------------------------------------------------------------------------------------------------


def recovered(fit: sh.Fit) -> pd.DataFrame:
    """Weights and moves beside the published ones, with standard errors; a row for each number."""
    estimates, rows = fit.summary().parameters, []
    for state, (name, place) in enumerate(zip(STATES, BY_BIAS, strict=True)):
        for weight, truth in zip(("bias", *INPUTS), WEIGHTS[state, [1, 0, 2, 3]], strict=True):
            at = f"probs[{place}, 0]" if weight == "bias" else f"coefficients[{place}, 0, {weight}]"
            value, error = estimates.loc[at, ["estimate", "standard error"]]
            if weight == "bias":  # the log odds of a probability
                value, error = np.log(value / (1 - value)), error / (value * (1 - value))
            rows.append((name, weight, truth, value, error))
        for after, to in zip(STATES, BY_BIAS, strict=True):
            value, error = estimates.loc[f"transition_probs[{place}, {to}]", ["estimate", "standard error"]]
            rows.append((name, f"to {after}", float(published_moves()[state, STATES.index(after)]), value, error))
    return pd.DataFrame(rows, columns=["state", "number", "published", "recovered", "standard error"])


def standardised(numbers: pd.DataFrame) -> pd.Series:
    """The differences in standard errors."""
    return (numbers["recovered"] - numbers["published"]) / numbers["standard error"]


def gained(fit: sh.Fit, base: sh.Fit, mouse: Mouse) -> np.ndarray:
    """Bits a trial above another fit, of each session [S]."""
    return (evidence(fit, mouse) - evidence(base, mouse)) / (np.log(2) * TRIALS)


def by_states(mouse: Mouse, coming: Mouse, most: int) -> Iterator[dict[str, float]]:
    """For each number of states, bits a trial above the model of one state, of the fitted and of later sessions."""
    base = fitted(mouse, 1)
    for n_states in range(1, most + 1):
        fit = fitted(mouse, n_states) if n_states > 1 else base
        outside = gained(fit, base, coming)
        yield {
            "states": n_states,
            "fitted": gained(fit, base, mouse).mean(),
            "held out": outside.mean(),
            "error": standard_error(outside),
        }


def standard_error(numbers: np.ndarray) -> float:
    """That of the mean."""
    return float(numbers.std(ddof=1) / len(numbers) ** 0.5)


def best_states(of: Any, mouse: Mouse) -> np.ndarray:
    """The more probable state of each trial given its whole session, [S, T], by its number in the model."""
    return of.smooth(mouse.choice[..., None], inputs=mouse.inputs).state.argmax(-1).numpy()


def main(n_sessions: int = SESSIONS) -> None:
    mouse, coming = simulated(n_sessions, seed=0), simulated(n_sessions, seed=1)
    fit = fitted(mouse, 3)
    own, other = evidence(fit, mouse).sum(), evidence(truth(), mouse).sum()
    print(f"{n_sessions} sessions of {TRIALS} trials; {fit.agreeing} of {fit.n_kinds} kinds of start at the best\n")
    numbers = recovered(fit)
    print(numbers.round(3).to_markdown(index=False))
    print(f"\ngreatest difference: {standardised(numbers).abs().max():.1f} standard errors of {len(numbers)} numbers")
    print(f"log-likelihood, nats: fit {own:.1f}, published parameters {other:.1f}\n")
    print(pd.DataFrame(by_states(mouse, coming, MOST_STATES)).round(4).to_markdown(index=False))
    state = np.array(BY_BIAS).argsort()[best_states(fit, mouse)]
    print(f"\nright state: fit {(state == mouse.state).mean():.3f}, ", end="")
    print(f"published parameters {(best_states(truth(), mouse) == mouse.state).mean():.3f}\n")
    shown = mouse.inputs[..., 0] != 0
    print("| trials | all | " + " | ".join(STATES) + " |\n|---|" + "---:|" * 4)
    print(f"| share | 1 | {' | '.join(f'{(state == k).mean():.2f}' for k in range(3))} |")
    for name, some in (("right choices", shown | True), ("the same, contrast not 0", shown)):
        cells = [mouse.correct[some], *(mouse.correct[some & (state == k)] for k in range(3))]
        print(f"| {name} | {' | '.join(f'{100 * cell.mean():.0f} %' for cell in cells)} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
