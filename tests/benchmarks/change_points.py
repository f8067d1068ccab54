"""Changes that `Segments` finds, beside PELT and binary segmentation of ruptures, on annotated and simulated series.

`python tests/benchmarks/change_points.py [seeds]`, with the extra `bench`, prints the tables of
docs/replications/change_points.md; `--well-log` those of `replications/well_log.py` alone.

The annotations are those of the Turing Change Point Dataset (van den Burg & Williams 2020, MIT licence): the changes
that five people saw in a series. The monthly numbers of drivers are in the cache folder of `tests/data/fetch.py`.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ruptures
import samplehold as sh
from replications import well_log
from samplehold.switching.judging.changes import covering, f1

sys.path.insert(0, str(Path(__file__).parents[1]))
from data import fetch

N_STEPS, HAZARD, MOST_SHOWN = 200, 1 / 40, 8
ANNOTATED = {
    "Nile": {"6": [], "7": [28], "8": [], "12": [28], "13": [28]},
    "drivers": {"7": [61, 169], "8": [60, 169], "10": [], "12": [60, 169], "13": [60, 79, 169]},
}
NILE = Path(sh.__file__).parent / "notebooks" / "data" / "nile.csv"
Method = Callable[[np.ndarray, Any], list[int]]


def segments(**options: Any) -> Method:
    """The most probable segmentation of a fit, at the default settings beside the options."""

    def found(x: np.ndarray, emission: Any) -> list[int]:
        fit = sh.Segments(emission).fit(x, progress=False, **options)
        return fit.viterbi().redraw.nonzero().flatten().tolist()[1:]

    return found


def of_ruptures(kind: Any, cost: str, jump: int) -> Method:
    """A search of ruptures with the penalty of Schwarz: the logarithm of the length for each number of a segment, its
    place included. The noise of "l2" has the scale of the differences; changes are at multiples of `jump`."""

    def found(x: np.ndarray, emission: Any) -> list[int]:
        (there,) = np.nonzero(~np.isnan(x))  # it takes no missing values
        z = x[there] / (well_log.noise_of(x) or x.std())
        penalty = (2 if cost == "l2" else 3) * np.log(len(z))
        return there[kind(model=cost, min_size=2, jump=jump).fit(z).predict(pen=penalty)[:-1]].tolist()

    return found


def searches(jump: int) -> dict[str, Method]:
    """The two searches of ruptures with two costs."""
    kinds = {"PELT": ruptures.Pelt, "binary": ruptures.Binseg}
    return {
        f"{name}, {cost}": of_ruptures(kind, cost, jump) for name, kind in kinds.items() for cost in ("l2", "normal")
    }


METHODS: dict[str, Method] = {
    "`Segments`": segments(),
    "`Segments`, hazard 0.01": segments(fixed={"hazard": 0.01}),
    **searches(jump=1),
}


# ---- series ----------------------------------------------------------------------------------------------------------


def changed(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """The number of the segment at each step, and the changes."""
    begun = draw.random(N_STEPS) < HAZARD
    begun[0] = False
    return begun.cumsum(), begun.nonzero()[0].tolist()


def means(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    path, changes = changed(draw)
    return draw.normal(0, 3, N_STEPS)[path] + draw.normal(0, 1, N_STEPS), changes


def scales(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    path, changes = changed(draw)
    return np.exp(draw.normal(0, 1, N_STEPS))[path] * draw.normal(0, 1, N_STEPS), changes


def counts(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    path, changes = changed(draw)
    return draw.poisson(draw.gamma(2.0, 3.0, N_STEPS)[path]).astype(float), changes


def heavy(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    path, changes = changed(draw)
    return draw.normal(0, 3, N_STEPS)[path] + draw.standard_t(3, N_STEPS), changes


def autoregressive(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    x = np.zeros(N_STEPS)
    for t in range(1, N_STEPS):
        x[t] = 0.5 * x[t - 1] + draw.normal()
    return x, []


def theirs(draw: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    x, ends = ruptures.pw_constant(N_STEPS, 1, 5, noise_std=1.0, delta=(1, 5), seed=int(draw.integers(2**31)))
    return x[:, 0], ends[:-1]


SIMULATED: dict[str, tuple[Callable[..., Any], Any]] = {
    "means": (means, sh.Normal()),
    "means of `ruptures`": (theirs, sh.Normal()),
    "standard deviations": (scales, sh.Normal()),
    "rates of counts": (counts, sh.Poisson()),
    "means, noise of Student's t with 3": (heavy, sh.Normal()),
    "none, autoregressive noise": (autoregressive, sh.Normal()),
}


def annotated_series() -> Iterator[tuple[str, np.ndarray]]:
    yield "Nile", np.loadtxt(NILE, delimiter=",", skiprows=1)[:, 1]
    table = fetch.table("drivers")
    if table is None:
        print(fetch.how_to_get("drivers"), file=sys.stderr)
        return
    drivers = np.array(table["UKDriverDeaths"], dtype=float)
    yield "drivers", drivers
    years = drivers.reshape(-1, 12)
    yield "drivers, less the means of the months", (years - years.mean(0)).flatten()


# ---- tables ----------------------------------------------------------------------------------------------------------


def of_annotators() -> None:
    for name, x in annotated_series():
        people = ANNOTATED[name.partition(",")[0]]
        print(f"\n{name}, {len(x)} steps; covering and F1 by annotator and of all\n")
        print("| method | changes | " + " | ".join(f"{who}: {at}" for who, at in people.items()) + " | all |")
        print("|---|---|" + "---|" * (len(people) + 1))
        for method, found in METHODS.items():
            changes = found(x, sh.Normal())
            groups = [*([at] for at in people.values()), list(people.values())]
            cells = [f"{covering(group, changes, len(x)):.2f}, {f1(group, changes, len(x)):.2f}" for group in groups]
            shown = f"{changes}" if len(changes) <= MOST_SHOWN else f"{len(changes)} of them"
            print(f"| {method} | {shown} | " + " | ".join(cells) + " |", flush=True)


def of_simulations(n_seeds: int) -> None:
    print(f"\n{n_seeds} series of {N_STEPS} steps; mean covering, mean F1, and the mean number of changes found\n")
    print("| what changes | true changes | " + " | ".join(METHODS) + " |")
    print("|---|---:|" + "---|" * len(METHODS))
    for name, (simulate, emission) in SIMULATED.items():
        drawn = [simulate(np.random.default_rng(seed)) for seed in range(n_seeds)]
        cells = []
        for method in METHODS.values():
            found = [method(x, emission) for x, _ in drawn]
            pairs = list(zip(found, (changes for _, changes in drawn), strict=True))
            scores = [np.mean([score([truth], ours, N_STEPS) for ours, truth in pairs]) for score in (covering, f1)]
            cells.append(f"{scores[0]:.2f}, {scores[1]:.2f}, {np.mean([len(ours) for ours in found]):.1f}")
        truth = np.mean([len(changes) for _, changes in drawn])
        print(f"| {name} | {truth:.1f} | " + " | ".join(cells) + " |", flush=True)


def of_well_logs(n_seeds: int) -> None:
    methods: dict[str, Method] = {
        "`Segments`": lambda x, _: well_log.segments(x),
        "`Segments`, hazard 0.01": lambda x, _: well_log.segments(x, fixed={"hazard": 0.01}),
        **searches(jump=5),  # its default; all steps would take PELT some minutes
    }
    logs = [well_log.simulated(np.random.default_rng(seed)) for seed in range(n_seeds)]
    print(f"\n{n_seeds} logs of {well_log.N_STEPS} steps, {np.mean([len(log.changes) for log in logs]):.1f} changes\n")
    print("| method | spikes missing: changes, covering, F1 | as they are: changes, covering, F1 |\n|---|---|---|")
    for method, found in methods.items():
        cells = [method]
        for prepared in (well_log.without_spikes, np.asarray):
            scores = []
            for log in logs:
                ours = found(prepared(log.x), sh.Normal())
                scores.append([len(ours), *(score([log.changes], ours, len(log.x)) for score in (covering, f1))])
            number, share, agreed = np.mean(scores, axis=0)
            cells.append(f"{number:.1f}, {share:.2f}, {agreed:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "New behaviour in v1.1.5", UserWarning)
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    if "--well-log" not in sys.argv:
        of_annotators()
        of_simulations(*numbers or (20,))
    of_well_logs(*numbers or (5,))
