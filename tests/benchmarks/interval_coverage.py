"""How often the 90 % intervals of `fit.conf_int()` contain the parameters that the data were drawn with.

`python tests/benchmarks/interval_coverage.py [data sets] [words of titles]` draws as many data sets of each kind of
model, fits them with two restarts and the default priors, and prints the share of intervals that contain the truth, by
parameter and method.
"""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import samplehold as sh
import torch
from samplehold.switching.views.tables import coordinates, rows

LEVEL = 0.9
BOTH = ("em", "vmp")
CHAIN = {"initial_probs": [0.5, 0.5], "transition_probs": [[0.9, 0.1], [0.15, 0.85]]}
RATES = {"loc": [[-2.0], [2.0]], "scale": [[1.0], [1.5]]}


class Case(NamedTuple):
    """A model with the values of the truth, the size of its data, and the methods that fit it."""

    truth: Any
    n_steps: int
    methods: tuple[str, ...] = BOTH
    n_sequences: int = 0  # 0: one, without an axis
    given: Callable[[np.random.Generator, int], dict[str, Any]] = lambda rng, n: {}


def switching(emission: Any, dynamics: Any = None, **values: Any) -> Any:
    return sh.SwitchingSSM(dynamics or sh.Markov(2), emission).with_values(
        **(CHAIN if dynamics is None else {}), **values
    )


def wave(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return {"inputs": {"dose": rng.normal(size=n)}}


COPY = {"redraw_prob": 0.2, "state_probs": [0.4, 0.6]}
STAYS = sh.SemiMarkov(2, sh.Poisson())
CASES = {
    "copy, normal": Case(switching(sh.Normal(), sh.Copy(2), **COPY, **RATES), 100),
    "copy, counts": Case(switching(sh.Poisson(), sh.Copy(2), **COPY, rate=[[2.0], [10.0]]), 100),
    "Markov, normal": Case(switching(sh.Normal(), **RATES), 100),
    "Markov, 20 sequences of 10 steps": Case(switching(sh.Normal(), **RATES), 10, BOTH, 20),
    "Markov, full normal": Case(
        switching(
            sh.MultivariateNormal(2),
            loc=[[-2.0, 0.0], [2.0, 0.0]],
            covariance=[[[1.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 1.0]]],
        ),
        100,
    ),
    "Markov, coins": Case(switching(sh.Bernoulli(3), probs=[[0.2, 0.3, 0.2], [0.8, 0.7, 0.7]]), 100),
    "Markov, Student t": Case(switching(sh.StudentT(), **RATES, df=[[5.0], [5.0]]), 200),
    "Markov, negative binomial": Case(
        switching(sh.NegativeBinomial(), mean=[[2.0], [15.0]], dispersion=[[0.3], [0.3]]), 200, ("em",)
    ),
    "Markov, gamma": Case(switching(sh.Gamma(), shape=[[2.0], [6.0]], rate=[[2.0], [1.0]]), 200, ("em",)),
    "Markov, regression": Case(
        switching(sh.LinearRegression(inputs=["dose"]), **RATES, coefficients=[[[0.5]], [[-1.0]]]), 100, BOTH, 0, wave
    ),
    "Markov, autoregression": Case(
        switching(sh.AutoRegressive(1), loc=[[-0.5], [1.0]], coefficients=[[[0.8]], [[0.3]]], scale=[[0.4], [0.8]]),
        200,
    ),
    "Markov, moves by inputs": Case(
        sh.SwitchingSSM(sh.Markov(2, inputs=["dose"]), sh.Normal()).with_values(
            **CHAIN, **RATES, transition_weights=[[[0.0], [1.0]], [[-1.0], [0.0]]]
        ),
        300,
        BOTH,
        0,
        wave,
    ),
    "semi-Markov, normal": Case(
        sh.SwitchingSSM(STAYS, sh.Normal()).with_values(
            initial_probs=[0.5, 0.5], transition_probs=[[0.0, 1.0], [1.0, 0.0]], duration_rate=[[4.0], [8.0]], **RATES
        ),
        150,
    ),
    "segments, normal": Case(
        sh.Segments(sh.Normal()).with_values(hazard=0.05, loc=[0.0], count=[0.1], shape=[4.0], rate=[3.0]),
        300,
        ("em",),
    ),
    "local level": Case(
        sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 1.0, "sigma2.level": 0.3}), 100, ("em",)
    ),
}


def data_of(case: Case, seed: int) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    given = case.given(rng, case.n_steps)
    shape = {"batch_shape": (case.n_sequences,)} if case.n_sequences else {}
    return case.truth.simulate(case.n_steps, seed=seed, **shape, **given).x, given


def inside(fit: Any, truth: Any) -> dict[str, list[float]]:
    """1 or 0 for each number, NaN for one without an interval, by the names of tables."""
    table, values = fit.conf_int(LEVEL), truth.describe()
    found: dict[str, list[float]] = {}
    for (lower, upper), row in zip(table.to_numpy(), rows(fit.model, coordinates(fit.series, fit.model)), strict=True):
        at = float(torch.as_tensor(values[row.parameter])[row.index])
        held = float(lower <= at <= upper) if np.isfinite(lower) else np.nan
        found.setdefault(row.parameter, []).append(held)
    return found


def measured(
    fits: Callable[[int, str], tuple[Any, Any]], methods: tuple[str, ...], n: int
) -> dict[str, dict[str, Any]]:
    """The hits `[data sets, numbers]`, by parameter and method."""
    hits: dict[str, dict[str, Any]] = {}
    for seed in range(n):
        for method in methods:
            for name, some in inside(*fits(seed, method)).items():
                hits.setdefault(name, {}).setdefault(method, []).append(some)
    return hits


def printed(title: str, hits: dict[str, dict[str, Any]]) -> None:
    for name, by in hits.items():
        cells = []
        for method in BOTH:
            if method not in by:
                cells.append("")
                continue
            each = np.array(by[method])
            none = np.isnan(each).mean()
            shares = [np.nanmean(column) if np.isfinite(column).any() else np.nan for column in each.T]
            text = ", ".join("none" if np.isnan(share) else f"{100 * share:.0f} %" for share in shares)
            cells.append(text + f" ({100 * none:.0f} % without)" * bool(0.005 < none < 1))
        print(f"| {title} | {name} | {' | '.join(cells)} |", flush=True)


def of_case(case: Case) -> Callable[[int, str], tuple[Any, Any]]:
    blank = case.truth.without_values()

    def fits(seed: int, method: str) -> tuple[Any, Any]:
        x, given = data_of(case, seed)
        return blank.fit(x, method, restarts=2, progress=False, **given), case.truth

    return fits


N_SUBJECTS, STEPS_OF_SUBJECT = 8, 50


def of_subjects(seed: int, method: str) -> tuple[Any, Any]:
    """Subjects whose rows and emissions come from a population."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        beta = torch.distributions.Dirichlet(torch.tensor([[17.0, 3.0], [4.0, 16.0]]).double())
        rates = torch.distributions.Gamma(*torch.tensor([8.0, 8.0]).double()).sample((N_SUBJECTS, 2, 1))
        rows_of = beta.sample((N_SUBJECTS,))
    loc = torch.tensor([[-2.0], [2.0]]).double()
    loc = loc + torch.randn(N_SUBJECTS, 2, 1, generator=generator).double() * 0.5 / rates.sqrt()
    model, x = sh.SwitchingSSM(sh.Markov(2), sh.Normal()), []
    for i in range(N_SUBJECTS):
        own = model.with_values(initial_probs=[0.5, 0.5], transition_probs=rows_of[i], loc=loc[i], precision=rates[i])
        x.append(own.simulate(STEPS_OF_SUBJECT, seed=1000 * seed + i).x)
    options = {"subjects": list(range(N_SUBJECTS)), "pooled": {"emission": "partial", "transition": "partial"}}
    fit = model.fit(x, method, restarts=2, progress=False, **options)
    values = {
        "transition_probs": rows_of,
        "loc": loc,
        "scale": rates.rsqrt(),
        "initial_probs": torch.tensor([0.5, 0.5]),
    }
    return fit, type("Truth", (), {"describe": lambda self: values})()


def main(n: int = 100, *words: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | parameter | EM | message passing |\n|---|---|---|---|")
    everything = {title: (of_case(case), case.methods) for title, case in CASES.items()}
    everything["8 subjects, partial pooling"] = of_subjects, ("vmp",)
    for title, (fits, methods) in everything.items():
        if not words or any(word in title for word in words):
            begun = time.perf_counter()
            hits = measured(fits, methods, n)
            if title.startswith("8"):
                hits = {name: {m: np.array(t).reshape(-1, 1) for m, t in by.items()} for name, by in hits.items()}
            printed(title, hits)
            print(f"{title}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
