"""Problems that nobody tuned to: drawn anew from each seed, and fitted at the default settings.

`python tests/benchmarks/fit_quality.py --fresh SEED [--problems N] [--first M] [--method em] [--out FOLDER]` runs in
one process on one thread; `--first` and `--problems` choose a slice, so several processes, each with a folder of its
own, can share the work. Markov, copy and semi-Markov chains and eight kinds of observations come in equal shares, with
2 to 7 states and 30 to 2,000 steps; moves are sticky, fast, cyclic, left-right or to a rare state, and in three of ten
problems some states have the same emission ("tied"). The best known objective is the highest of all ends here: of our
fits, of a wide search of ours with 32 restarts, of the best three of hmmlearn's 30 restarts, and of the states that the
data were drawn from, these two continued under our objective by one fit that starts there. Priors are the default ones,
so that the objective has a maximum. FOLDER keeps finished problems, and a second run continues. Without its
`fits.jsonl` the fits are made again, against the same references.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fit_quality import cyclic, left_right, path, sticky
from hmmlearn import hmm
from samplehold import (
    Bernoulli,
    Categorical,
    Copy,
    Gamma,
    Joint,
    Markov,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    SemiMarkov,
    StudentT,
    SwitchingSSM,
)

SEEDS = 3  # fits of each problem
WIDE = 32  # restarts of the wide search: four times as many starts
PEER = 30  # restarts of hmmlearn
CONTINUED = 3  # of them, under our objective
TIMED = 10  # default fits of hmmlearn that the time is compared with
NEAR = 0.01  # nats


class Fresh(NamedTuple):
    """A problem: its name, the model, the sequences, and the states that they were drawn from."""

    name: str
    model: SwitchingSSM
    series: list[np.ndarray]
    states: list[np.ndarray]

    @property
    def has_peer(self) -> bool:
        kinds = Normal | MultivariateNormal | Categorical | Poisson
        return isinstance(self.model.dynamics, Markov) and isinstance(self.model.emission, kinds)


# ---- draws -----------------------------------------------------------------------------------------------------------

MOVES = ("sticky", "fast", "cyclic", "left-right", "rare")
CHAINS = ("Markov", "copy", "semi-Markov")
OBSERVED = ("normal", "full normal", "Poisson", "categorical", "Bernoulli", "Student t", "gamma", "joint")
LONGEST = 40  # steps of a segment, in a semi-Markov model


def draw(seed: int, number: int) -> Fresh:
    """Problem `number` of this seed. Chains and observations take turns, so that all pairs are equally frequent."""
    rng = np.random.default_rng([seed, number])
    chain, kind = CHAINS[number % len(CHAINS)], OBSERVED[number % len(OBSERVED)]
    n_states, moves = int(rng.integers(2, 8)), str(rng.choice(MOVES))
    n_steps = int(10 ** rng.uniform(np.log10(max(30, 8 * n_states)), np.log10(2000)))
    match chain:
        case "copy":
            redraw, moves = 10.0 ** rng.uniform(-1.7, -0.3), "redraw"
            table = (1 - redraw) * np.eye(n_states) + redraw * rng.dirichlet(np.full(n_states, 2.0))
            state, dynamics = path(table, n_steps, rng), Copy(n_states)
        case "semi-Markov":
            counted = str(rng.choice(["Poisson", "negative binomial"]))
            state = segments(n_states, n_steps, moves == "cyclic", counted == "Poisson", rng)
            moves = "cyclic" if moves == "cyclic" else "any"
            counts = Poisson() if counted == "Poisson" else NegativeBinomial()
            dynamics = SemiMarkov(n_states, counts, max_duration=min(LONGEST, n_steps))
        case _:
            state, dynamics = path(moves_of(moves, n_states, rng), n_steps, rng), Markov(n_states)
    tied = rng.random() < 0.3
    like = rng.integers(0, n_states, n_states) if tied else np.arange(n_states)  # the state whose emission each has
    emission, x = observed(kind, like[state], n_states, rng)
    n_sequences = int(rng.integers(2, 7)) if rng.random() < 0.25 and n_steps > 60 else 1
    name = f"{kind}, {chain}, {moves}{', tied' if tied else ''}"
    parts = (np.array_split(table, n_sequences) for table in (x, state))
    return Fresh(name, SwitchingSSM(dynamics, emission), *parts)


def moves_of(kind: str, k: int, rng: np.random.Generator) -> np.ndarray:
    """A random transition table."""
    match kind:
        case "sticky":
            table = sticky(k, rng.uniform(0.6, 0.99))
        case "fast":
            table = rng.dirichlet(np.full(k, 10.0 ** rng.uniform(-0.7, 0.5)), k)
        case "cyclic":
            table = cyclic(k, rng.uniform(0.1, 0.95))
        case "left-right":
            table = left_right(k, rng.uniform(0.7, 0.98))
        case _:
            table = sticky(k, rng.uniform(0.7, 0.95))
            table[:-1, -1] = rng.uniform(0.003, 0.02)
    table = table + 1e-12
    return table / table.sum(1, keepdims=True)


def segments(k: int, n: int, in_turn: bool, plain: bool, rng: np.random.Generator) -> np.ndarray:
    """States of n steps, in segments whose durations are counts of one more than a Poisson or a negative binomial."""
    rates, state, states = 10.0 ** rng.uniform(0.0, 1.2, k), int(rng.integers(k)), []
    while len(states) < n:
        rate = rates[state] if plain else rates[state] * rng.gamma(3.0) / 3
        states += [state] * min(1 + int(rng.poisson(rate)), LONGEST)
        state = (state + 1) % k if in_turn else (state + int(rng.integers(1, k))) % k
    return np.array(states[:n])


def observed(kind: str, state: np.ndarray, k: int, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """A random emission of this kind, and observations `[n, F]`."""
    n, gap, features = len(state), 10.0 ** rng.uniform(-0.3, 0.7), int(rng.integers(1, 4))
    levels = np.stack([rng.permutation(k) for _ in range(features)], 1)
    match kind:
        case "normal" | "Student t":
            scales = 10.0 ** rng.uniform(-0.5, 0.5, (k, features)) if rng.random() < 0.5 else np.ones((k, features))
            freedom = 10.0 ** rng.uniform(0.3, 1.0) if kind == "Student t" else np.inf
            noise = rng.standard_normal((n, features)) if np.isinf(freedom) else rng.standard_t(freedom, (n, features))
            x = gap * levels[state] + scales[state] * noise
            return Normal(features) if kind == "normal" else StudentT(features), x
        case "full normal":
            features = min(features + 1, 3)
            roots = rng.standard_normal((k, features, features)) / np.sqrt(features) + 0.3 * np.eye(features)
            means = gap * rng.standard_normal((k, features))
            noise = np.einsum("nij,nj->ni", roots[state], rng.standard_normal((n, features)))
            return MultivariateNormal(features), means[state] + noise
        case "Poisson":
            rates = np.geomspace(0.5, 2.0 * gap * k, k)[levels]
            return Poisson(features), rng.poisson(rates[state]).astype(float)
        case "categorical":
            n_letters = int(rng.integers(2, 13))
            sums = rng.dirichlet(np.full(n_letters, 10.0 ** rng.uniform(-1, 0.3)), k).cumsum(1)
            x = (rng.random((n, 1)) > sums[state]).sum(1, keepdims=True).clip(max=n_letters - 1)
            return Categorical(n_letters), x.astype(float)
        case "Bernoulli":
            probs = rng.beta(0.5, 0.5, (k, features + 1))
            return Bernoulli(features + 1), (rng.random((n, features + 1)) < probs[state]).astype(float)
        case "gamma":
            shapes, means = 10.0 ** rng.uniform(-0.2, 1.2, (k, features)), np.exp(0.4 * gap * levels)
            return Gamma(features), rng.gamma(shapes[state], (means / shapes)[state]).clip(1e-6)
        case _:
            rates = np.geomspace(0.5, 2.0 * gap * k, k)[rng.permutation(k)]
            level = gap * levels[state][:, :1] + rng.standard_normal((n, 1))
            both = Joint({"level": Normal(), "count": Poisson()})
            return both, np.hstack([level, rng.poisson(rates[state])[:, None]])


# ---- both sides ------------------------------------------------------------------------------------------------------


def objective(problem: Fresh, method: str, **options: Any) -> float:
    return float(problem.model.fit(problem.series, method, progress=False, **options).objective[-1])


def peer(problem: Fresh, **options: Any) -> Any:
    """hmmlearn's model, fitted."""
    x, lengths = np.concatenate(problem.series), [len(x) for x in problem.series]
    k, emission = problem.model.dynamics.n_states, problem.model.emission
    match emission:
        case Normal():
            model = hmm.GaussianHMM(k, **options)
        case MultivariateNormal():
            model = hmm.GaussianHMM(k, covariance_type="full", **options)
        case Categorical():
            model = hmm.CategoricalHMM(k, n_features=emission.n_categories, **options)
        case _:
            model = hmm.PoissonHMM(k, **options)
    return model.fit(x if isinstance(model, hmm.GaussianHMM) else x.astype(int), lengths)


def values_of(model: Any) -> dict[str, Any]:
    """hmmlearn's parameters under our names."""
    values = {"initial_probs": model.startprob_, "transition_probs": model.transmat_}
    if isinstance(model, hmm.CategoricalHMM):
        return values | {"probs": model.emissionprob_}
    if isinstance(model, hmm.PoissonHMM):
        return values | {"rate": model.lambdas_}
    if model.covariance_type == "full":
        return values | {"loc": model.means_, "covariance": model.covars_}
    return values | {"loc": model.means_, "precision": 1 / np.diagonal(model.covars_, axis1=-2, axis2=-1)}


def peer_ends(problem: Fresh, method: str) -> Iterator[float]:
    """Our objective where hmmlearn's best restarts lead."""
    ends = []
    for seed in range(PEER):
        try:
            model = peer(problem, n_iter=300, tol=1e-3, random_state=seed, implementation="scaling")
        except ValueError:  # a covariance that is not positive definite
            continue
        ends.append((model.monitor_.history[-1], model))
    best = sorted((end for end in ends if np.isfinite(end[0])), key=lambda end: -end[0])
    apart = [end for i, end in enumerate(best) if all(abs(end[0] - other[0]) > NEAR for other in best[:i])]
    for _, model in apart[:CONTINUED]:
        try:
            yield objective(problem, method, start=values_of(model), restarts=1, max_steps=2000)
        except ValueError:  # parameters at the bounds of their support
            continue


def peer_seconds(problem: Fresh) -> float:
    begin = time.process_time()
    for seed in range(TIMED):
        try:
            peer(problem, n_iter=500, tol=1e-3, random_state=seed)
        except ValueError:
            continue
    return time.process_time() - begin


def truth(problem: Fresh, method: str) -> float:
    """Our objective where the states that the data were drawn from lead."""
    known = problem.model.fit(
        problem.series, method, states=problem.states, restarts=1, max_steps=1, progress=False
    ).model.values
    return objective(problem, method, start=known, restarts=1, max_steps=2000)


def reference(problem: Fresh, method: str) -> dict[str, float]:
    """The best of a wide search of ours, of hmmlearn's ends, and of the end that the truth leads to."""
    wide = objective(problem, method, restarts=WIDE, seed=10_000, max_steps=2000)
    theirs = max(peer_ends(problem, method), default=-np.inf) if problem.has_peer else -np.inf
    return {"wide": wide, "peer": theirs, "truth": truth(problem, method)}


def fits(problem: Fresh, method: str) -> dict[str, Any]:
    """Our default fits, one for each seed, and beside them the seconds of hmmlearn's."""
    rows = []
    for seed in range(SEEDS):
        begin = time.process_time()
        fit = problem.model.fit(problem.series, method, seed=seed, progress=False)
        seconds = time.process_time() - begin
        best = fit.restarts[fit.restarts.agrees]
        first = fit.restarts[fit.restarts.independent].groupby("start").objective.max().nlargest(3)
        end = float(fit.objective[-1])
        rows.append((end, seconds, fit.agreeing, sorted(set(best.start)), fit.converged, end - float(first.iloc[-1])))
    keys = "ends", "seconds", "agreeing", "kinds", "converged", "spacing"
    peer = {"peer_seconds": peer_seconds(problem) if problem.has_peer else None}
    return dict(zip(keys, map(list, zip(*rows, strict=True)), strict=True)) | peer


# ---- the report ------------------------------------------------------------------------------------------------------


class Kept:
    """Records by the number of their problem, in a file that grows."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.records = file, {}
        if file is not None and file.exists():
            self.records = {row["number"]: row for row in map(json.loads, file.read_text().splitlines())}

    def get(self, number: int, make: Any) -> dict[str, Any]:
        if number not in self.records:
            self.records[number] = {"number": number, **make()}
            if self.file is not None:
                with self.file.open("a") as out:
                    out.write(json.dumps(self.records[number]) + "\n")
        return self.records[number]


class Row(NamedTuple):
    """What one problem shows: nats behind the best known, of our fits by seed and of both references."""

    number: int
    problem: Fresh
    behind: list[float]
    by_peer: float
    by_wide: float
    seconds: float
    ratio: float
    agreeing: list[int]
    spacing: list[float]

    @property
    def groups(self) -> list[str]:
        return [*self.problem.name.split(", "), f"K={self.problem.model.dynamics.n_states}"]

    def __str__(self) -> str:
        steps = "+".join(str(len(x)) for x in self.problem.series)
        cells = [
            str(self.number),
            self.problem.name,
            str(self.problem.model.dynamics.n_states),
            steps if len(steps) < 12 else f"{sum(map(len, self.problem.series))} in {len(self.problem.series)}",
            ", ".join(map(nats, self.behind)),
            nats(self.by_peer),
            nats(self.by_wide),
            f"{self.seconds:.2f}",
            f"{self.ratio:.1f}" if self.problem.has_peer else "",
        ]
        return f"| {' | '.join(cells)} |"


def nats(gap: float) -> str:
    return "" if np.isnan(gap) else f"{gap:.2g}" if gap > NEAR else "0"


def row_of(number: int, problem: Fresh, known: dict[str, Any], ours: dict[str, Any]) -> Row:
    best = max(known["wide"], known["peer"], known["truth"], *ours["ends"])
    return Row(
        number,
        problem,
        [max(0.0, best - end) for end in ours["ends"]],
        best - known["peer"] if problem.has_peer else float("nan"),
        best - known["wide"],
        float(np.median(ours["seconds"])),
        float(np.median(ours["seconds"])) / (ours["peer_seconds"] or float("nan")),
        ours["agreeing"],
        ours["spacing"],
    )


def share(gaps: list[float]) -> str:
    """The share of these that are near the best known; empty without any."""
    there = [gap <= NEAR for gap in gaps if not np.isnan(gap)]
    return f"{100 * np.mean(there):.0f} %" if there else ""


def summary(rows: list[Row]) -> Iterator[str]:
    """The table of all problems, and of those that have a kind or a number of states in common."""
    yield "| problems | number | ours | best of hmmlearn | 32 restarts | nats behind | seconds | ratio |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name in ["all", *sorted({name for row in rows for name in row.groups})]:
        some = [row for row in rows if name in ("all", *row.groups)]
        ratios = [row.ratio for row in some if not np.isnan(row.ratio)]
        cells = [
            name,
            str(len(some)),
            share([gap for row in some for gap in row.behind]),
            share([row.by_peer for row in some]),
            share([row.by_wide for row in some]),
            f"{np.mean([row.behind for row in some]):.2f}",
            f"{np.median([row.seconds for row in some]):.2f}",
            f"{np.median(ratios):.1f}" if ratios else "",
        ]
        yield f"| {' | '.join(cells)} |"


def doubts(rows: list[Row]) -> Iterator[str]:
    """How often fits are right, by the number of kinds of start that agree; and how often what is missed is less than
    the fit says."""
    fits = [one for row in rows for one in zip(row.agreeing, row.behind, row.spacing, strict=True)]
    yield "| kinds that agree | fits | near the best known | median nats behind of the others | within what is said |"
    yield "|---|---:|---:|---:|---:|"
    for name, few, most in (("none", 0, 0), ("1", 1, 1), ("2", 2, 2), ("3 or more", 3, 99)):
        some = [(gap, spacing) for n, gap, spacing in fits if few <= n <= most]
        missed = [gap for gap, _ in some if gap > NEAR]
        said = f"{100 * np.mean([gap <= spacing + NEAR for gap, spacing in some]):.0f} %" if some and most < 2 else ""
        median = f"{np.median(missed):.2g}" if missed else ""
        yield f"| {name} | {len(some)} | {share([gap for gap, _ in some])} | {median} | {said} |"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fresh", type=int, required=True, metavar="SEED")
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--method", choices=["em", "vmp"], default="em")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
    known, ours = (Kept(chosen.out and chosen.out / f"{name}.jsonl") for name in ("references", "fits"))
    print("| | problem | K | steps | behind, by seed | hmmlearn behind | 32 restarts behind | seconds | ratio |")
    print("|---:|---|---:|---:|---|---:|---:|---:|---:|")
    rows: list[Row] = []
    for number in range(chosen.first, chosen.first + chosen.problems):
        problem = draw(chosen.fresh, number)
        references = known.get(number, lambda: reference(problem, chosen.method))  # noqa: B023
        fitted = ours.get(number, lambda: fits(problem, chosen.method))  # noqa: B023
        rows.append(row_of(number, problem, references, fitted))
        print(rows[-1], flush=True)
    print(f"\nShares within {NEAR} nat of the best known, and times over those of {TIMED} default fits of hmmlearn:\n")
    print(*summary(rows), sep="\n")
    print("\nBy the number of kinds of first guess that reached the end of a fit:\n")
    print(*doubts(rows), sep="\n")
