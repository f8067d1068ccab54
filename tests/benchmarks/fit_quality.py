"""How good the optima are that `fit` finds: against hmmlearn with as many restarts, both to convergence.

`python tests/benchmarks/fit_quality.py [seeds]`, with the extra `bench`, prints tables: each problem is drawn anew for
each seed, and fitted at the default settings by maximum likelihood, and by message passing; `behind` is hmmlearn's
log-likelihood less ours, or its bound less ours, in nats, 0 where ours is at least as high. Its bound is that of our
fit when it starts where hmmlearn's variational Bayes ended under the same prior. Optima of the likelihood at which a
state has collapsed onto a point are left out on both sides: there it has no maximum. Where hmmlearn has no such
emission the peer is a longer fit with another seed. Single normals are also fitted by statsmodels.

With `--fresh SEED` the problems are drawn at random instead: see `fresh_problems`.
"""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from hmmlearn import hmm, vhmm
from samplehold import Bernoulli, Categorical, Markov, MultivariateNormal, Normal, Poisson, SwitchingSSM
from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

RESTARTS = 8
LONGEST = 10_000  # steps on which to wait for hmmlearn's variational Bayes
SMALL = 1e-6  # of the data's variance, below which a state counts as collapsed

Draw = Callable[[np.random.Generator], np.ndarray]


class Problem(NamedTuple):
    name: str
    emission: Any
    n_states: int
    draw: Draw


# ---- transitions ---------------------------------------------------------------------------------------------------


def sticky(k: int, stay: float = 0.95) -> np.ndarray:
    return np.full((k, k), (1 - stay) / max(1, k - 1)) + np.eye(k) * (stay - (1 - stay) / max(1, k - 1))


def cyclic(k: int, on: float = 0.9) -> np.ndarray:
    return on * np.roll(np.eye(k), 1, 1) + (1 - on) / k


def left_right(k: int, stay: float = 0.97) -> np.ndarray:
    return stay * np.eye(k) + (1 - stay) * np.roll(np.eye(k), 1, 1)


def loose(k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.dirichlet(np.ones(k), k)


def path(table: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    state, uniform, sums = np.zeros(n, dtype=int), rng.random(n), table.cumsum(1)
    state[0] = rng.integers(len(table))
    for t in range(1, n):
        state[t] = min(np.searchsorted(sums[state[t - 1]], uniform[t]), len(table) - 1)
    return state


# ---- problems ------------------------------------------------------------------------------------------------------


def normals(
    table: Callable, k: int, n: int, gap: float, features: int = 1, outliers: int = 0, unlike: bool = False
) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        state = path(table(k, rng) if table is loose else table(k), n, rng)
        means = gap * np.stack([rng.permutation(k) for _ in range(features)], 1)
        scales = 10.0 ** rng.uniform(-1, 1, (k, features)) if unlike else np.ones((k, features))
        x = means[state] + scales[state] * rng.standard_normal((n, features))
        x[rng.choice(n, outliers, replace=False)] *= 20
        return x * (10.0 ** np.arange(features) if unlike else 1.0)

    return draw


def full(k: int, n: int, features: int, table: Callable = sticky, gap: float = 2.0) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        state = path(table(k), n, rng)
        roots = rng.standard_normal((k, features, features)) / np.sqrt(features)
        x = gap * rng.standard_normal((k, features))[state]
        return x + np.einsum("nij,nj->ni", roots[state], rng.standard_normal((n, features)))

    return draw


def symbols(k: int, n: int, categories: int, table: Callable = sticky, sharp: float = 0.3) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        state = path(table(k, rng) if table is loose else table(k), n, rng)
        sums = rng.dirichlet(np.full(categories, sharp), k).cumsum(1)
        return (rng.random((n, 1)) > sums[state]).sum(1, keepdims=True).clip(max=categories - 1).astype(float)

    return draw


def period(pattern: list[int], n: int, noise: float) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        x = np.resize(pattern, n)
        swap = rng.random(n) < noise
        x[swap] = rng.integers(max(pattern) + 1, size=swap.sum())
        return x[:, None].astype(float)

    return draw


def counts(k: int, n: int, features: int = 1, table: Callable = sticky, top: float = 20.0) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        rates = np.stack([rng.permutation(np.geomspace(0.5, top, k)) for _ in range(features)], 1)
        return rng.poisson(rates[path(table(k), n, rng)]).astype(float)

    return draw


def coins(k: int, n: int, features: int, table: Callable = sticky) -> Draw:
    def draw(rng: np.random.Generator) -> np.ndarray:
        probs = rng.beta(0.5, 0.5, (k, features))
        return (rng.random((n, features)) < probs[path(table(k), n, rng)]).astype(float)

    return draw


def casino(rng: np.random.Generator) -> np.ndarray:
    state = path(np.array([[0.95, 0.05], [0.1, 0.9]]), 1000, rng)
    loaded = np.r_[np.full(5, 0.1), 0.5]
    return np.where(state == 0, rng.integers(6, size=1000), rng.choice(6, 1000, p=loaded))[:, None].astype(float)


def letters(rng: np.random.Generator) -> np.ndarray:
    """Two classes of letters that alternate more than they stay, as vowels and consonants do."""
    state = path(np.array([[0.1, 0.9], [0.6, 0.4]]), 5000, rng)
    probs = np.stack([np.r_[rng.dirichlet(np.ones(6)), np.zeros(20)], np.r_[np.zeros(6), rng.dirichlet(np.ones(20))]])
    return (rng.random((5000, 1)) > probs.cumsum(1)[state]).sum(1, keepdims=True).clip(max=25).astype(float)


def islands(rng: np.random.Generator) -> np.ndarray:
    """Four bases in two kinds of stretches, one rich in two of them, with the neighbour told by the base."""
    stay = np.kron(sticky(2, 0.995), np.ones((4, 4)))
    stay[:4, :4] *= rng.dirichlet(np.full(4, 5.0), 4)
    stay[4:, 4:] *= rng.dirichlet(np.full(4, 1.0), 4)
    stay[:4, 4:] /= 4
    stay[4:, :4] /= 4
    return (path(stay / stay.sum(1, keepdims=True), 4000, rng) % 4)[:, None].astype(float)


PROBLEMS = [
    Problem("normal, sticky", Normal(1), 2, normals(sticky, 2, 300, 2.0)),
    Problem("normal, sticky", Normal(1), 3, normals(sticky, 3, 1000, 2.0)),
    Problem("normal, sticky", Normal(2), 5, normals(sticky, 5, 2000, 1.5, 2)),
    Problem("normal, sticky", Normal(3), 8, normals(sticky, 8, 4000, 1.0, 3)),
    Problem("normal, overlapping", Normal(1), 3, normals(sticky, 3, 2000, 1.0)),
    Problem("normal, overlapping", Normal(2), 4, normals(sticky, 4, 3000, 0.7, 2)),
    Problem("normal, cyclic", Normal(1), 3, normals(cyclic, 3, 600, 2.0)),
    Problem("normal, cyclic", Normal(1), 4, normals(cyclic, 4, 1000, 1.0)),
    Problem("normal, cyclic", Normal(1), 7, normals(cyclic, 7, 2000, 1.0)),
    Problem("normal, left-right", Normal(1), 5, normals(left_right, 5, 500, 1.5)),
    Problem("normal, left-right", Normal(2), 12, normals(left_right, 12, 3000, 1.0, 2)),
    Problem("normal, loose", Normal(2), 6, normals(loose, 6, 3000, 1.0, 2)),
    Problem("normal, outliers", Normal(1), 3, normals(sticky, 3, 600, 3.0, outliers=6)),
    Problem("normal, unlike scales", Normal(3), 3, normals(sticky, 3, 1000, 3.0, 3, unlike=True)),
    Problem("normal, short", Normal(1), 2, normals(sticky, 2, 40, 4.0)),
    Problem("normal, very short", Normal(1), 2, normals(loose, 2, 20, 6.0)),
    Problem("normal, long", Normal(1), 3, normals(sticky, 3, 100_000, 1.5)),
    Problem("full normal, sticky", MultivariateNormal(2), 3, full(3, 1000, 2)),
    Problem("full normal, sticky", MultivariateNormal(3), 5, full(5, 2000, 3)),
    Problem("full normal, overlapping", MultivariateNormal(2), 4, full(4, 3000, 2, gap=0.5)),
    Problem("full normal, cyclic", MultivariateNormal(2), 6, full(6, 2000, 2, cyclic)),
    Problem("full normal, left-right", MultivariateNormal(4), 4, full(4, 1000, 4, left_right)),
    Problem("categorical, sticky", Categorical(4), 2, symbols(2, 1000, 4)),
    Problem("categorical, sticky", Categorical(6), 4, symbols(4, 3000, 6)),
    Problem("categorical, sticky", Categorical(10), 6, symbols(6, 5000, 10)),
    Problem("categorical, cyclic", Categorical(4), 4, symbols(4, 1000, 4, cyclic)),
    Problem("categorical, cyclic", Categorical(5), 6, symbols(6, 3000, 5, cyclic)),
    Problem("categorical, loose", Categorical(4), 3, symbols(3, 2000, 4, loose)),
    Problem("categorical, loose", Categorical(8), 5, symbols(5, 5000, 8, loose)),
    Problem("categorical, left-right", Categorical(6), 8, symbols(8, 2000, 6, left_right)),
    Problem("period 0 0 1, noisy", Categorical(2), 3, period([0, 0, 1], 300, 0.05)),
    Problem("period 0 1 0 2, noisy", Categorical(3), 4, period([0, 1, 0, 2], 400, 0.05)),
    Problem("period 0 0 1 1 2 2, noisy", Categorical(3), 6, period([0, 0, 1, 1, 2, 2], 600, 0.05)),
    Problem("casino", Categorical(6), 2, casino),
    Problem("letters", Categorical(26), 2, letters),
    Problem("letters", Categorical(26), 4, letters),
    Problem("islands", Categorical(4), 8, islands),
    Problem("Poisson, sticky", Poisson(1), 2, counts(2, 500)),
    Problem("Poisson, sticky", Poisson(2), 4, counts(4, 2000, 2)),
    Problem("Poisson, cyclic", Poisson(1), 3, counts(3, 1000, 1, cyclic)),
    Problem("Poisson, rare", Poisson(1), 3, counts(3, 3000, 1, lambda k: sticky(k, 0.998), 2.0)),
    Problem("Bernoulli, sticky", Bernoulli(4), 3, coins(3, 1000, 4)),
    Problem("Bernoulli, cyclic", Bernoulli(6), 5, coins(5, 2000, 6, cyclic)),
]


# ---- both sides ----------------------------------------------------------------------------------------------------


class Clock:
    """Seconds of processor time that went into each side."""

    def __init__(self) -> None:
        self.ours = self.theirs = 0.0

    def of_ours(self, work: Callable[[], float]) -> float:
        begin = time.process_time()
        found = work()
        self.ours += time.process_time() - begin
        return found

    def of_theirs(self, work: Callable[[], float]) -> float:
        begin = time.process_time()
        found = work()
        self.theirs += time.process_time() - begin
        return found


def fit(problem: Problem, x: np.ndarray, method: str, seed: int = 0, **options: Any) -> float:
    """Log-likelihood of a fit by EM, or the bound of one by message passing."""
    model = SwitchingSSM(Markov(problem.n_states), problem.emission)
    prior = None if method == "em" else "weak"
    found = model.fit(x, method, prior=prior, seed=seed, progress=False, **options)
    return float(found.model.log_evidence(x)) if method == "em" else float(found.objective[-1])


def likelihoods(problem: Problem, x: np.ndarray, seed: int) -> Iterator[float]:
    """Log-likelihoods of hmmlearn's restarts by EM, without those in which a state collapsed."""
    common = {"n_components": problem.n_states, "n_iter": 2000, "tol": 1e-4}
    for restart in range(RESTARTS):
        more = common | {"random_state": 1000 * seed + restart}
        match problem.emission:
            case Normal():
                model = hmm.GaussianHMM(covariance_type="diag", covars_prior=0, min_covar=1e-12, **more)
            case MultivariateNormal():
                model = hmm.GaussianHMM(covariance_type="full", covars_prior=0, min_covar=1e-12, **more)
            case Categorical():
                model = hmm.CategoricalHMM(n_features=problem.emission.n_categories, **more)
            case _:
                model = hmm.PoissonHMM(**more)
        given = x if isinstance(problem.emission, Normal | MultivariateNormal) else x.astype(int)
        try:
            score = model.fit(given).score(given)
        except ValueError:  # a covariance that is not positive definite
            continue
        if hasattr(model, "covars_"):
            least = np.linalg.eigvalsh(model.covars_ / x.var(0).mean()).min()
            if least < SMALL:
                continue
        yield score


def bounds(problem: Problem, x: np.ndarray, seed: int) -> Iterator[float]:
    """Bounds of hmmlearn's restarts by variational Bayes under our prior: ours from where each of them ended."""
    prior = SwitchingSSM(Markov(problem.n_states), problem.emission).scaled_to(x).prior
    table = {name: value.numpy() for name, value in prior.items()}
    common = {
        "n_components": problem.n_states,
        "n_iter": 2000,
        "tol": 1e-4,
        "startprob_prior": table["initial_concentration"],
        "transmat_prior": table["transition_concentration"],
    }
    for restart in range(RESTARTS):
        more = common | {"random_state": 1000 * seed + restart}
        match problem.emission:
            case Normal() | MultivariateNormal():
                full = isinstance(problem.emission, MultivariateNormal)
                model = vhmm.VariationalGaussianHMM(covariance_type="full" if full else "diag", **more).fit(x)
                values = {"loc": model.means_, "covariance" if full else "precision": model.covars_}
                if not full:
                    values["precision"] = 1 / np.diagonal(model.covars_, axis1=-2, axis2=-1)
            case _:
                given = float(table["concentration"].flat[0])  # it takes one number
                model = vhmm.VariationalCategoricalHMM(emissionprob_prior=given, **more).fit(x.astype(int))
                values = {"probs": model.emissionprob_}
        values |= {"initial_probs": model.startprob_, "transition_probs": model.transmat_}
        yield fit(problem, x, "vmp", start=values, restarts=1, max_steps=2000)


def switching_regression(problem: Problem, x: np.ndarray, seed: int) -> float:
    """Log-likelihood of statsmodels' regime switching of mean and variance, by EM and then by its gradient."""
    model = MarkovRegression(x[:, 0], problem.n_states, switching_variance=True)
    np.random.seed(seed)  # noqa: NPY002 as statsmodels draws its starts
    found = model.fit(search_reps=RESTARTS, maxiter=2000, disp=False)
    return float(found.llf)


# ---- the tables ----------------------------------------------------------------------------------------------------


def compare(method: str, seeds: int) -> None:
    """A row a problem: how far we are behind the best of the peer's restarts."""
    print(f"\n## By {'expectation-maximisation' if method == 'em' else 'message passing'}\n")
    print("| problem | K | steps | behind, by seed | ahead, by seed | seconds | theirs |")
    print("|---|---:|---:|---|---|---:|---:|")
    behind, worst, total = [], 0.0, Clock()
    for problem in PROBLEMS:
        kinds = (Normal, MultivariateNormal, Categorical) + ((Poisson,) if method == "em" else ())
        with_peer, restarts = isinstance(problem.emission, kinds), likelihoods if method == "em" else bounds
        gaps, clock = [], Clock()
        n = len(problem.draw(np.random.default_rng(0)))
        if method == "vmp" and n > LONGEST:
            continue
        for seed in range(seeds):
            x = problem.draw(np.random.default_rng(seed))
            found = clock.of_ours(partial(fit, problem, x, method, seed))
            if with_peer:
                best = clock.of_theirs(lambda: max(restarts(problem, x, seed), default=-np.inf))  # noqa: B023
            else:
                best = clock.of_theirs(partial(fit, problem, x, method, seed + 100, max_steps=3000))
            gaps.append(best - found)
            worst = max(worst, (best - found) / abs(best)) if np.isfinite(best) else worst
        behind += gaps
        total.ours, total.theirs = total.ours + clock.ours, total.theirs + clock.theirs
        shown = ", ".join(f"{max(gap, 0):.3g}" for gap in gaps), ", ".join(f"{max(-gap, 0):.3g}" for gap in gaps)
        times = f"{clock.ours:.1f} | {clock.theirs:.1f}"
        print(f"| {problem.name} | {problem.n_states} | {n} | {shown[0]} | {shown[1]} | {times} |", flush=True)
    good = np.mean([gap <= 0.01 for gap in behind])
    print(
        f"\nWithin 0.01 nat or better on {100 * good:.1f}% of {len(behind)} (aim: 95%), at worst {100 * worst:.3f}% "
        f"behind (aim: 0.1%); {total.ours:.0f} s of processor time against {total.theirs:.0f} s.",
        flush=True,
    )


def beside_statsmodels() -> None:
    """The same of single normals by EM, against statsmodels."""
    print("\n## Beside statsmodels\n\n| problem | K | steps | ours | statsmodels | seconds | theirs |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for problem in PROBLEMS:
        if problem.emission != Normal(1) or problem.n_states > 4:
            continue
        x = problem.draw(np.random.default_rng(0))
        if len(x) > 1000:
            continue
        clock = Clock()
        mine = clock.of_ours(partial(fit, problem, x, "em"))
        theirs = clock.of_theirs(partial(switching_regression, problem, x, 0))
        cells = f"{mine:.3f} | {theirs:.3f} | {clock.ours:.1f} | {clock.theirs:.1f}"
        print(f"| {problem.name} | {problem.n_states} | {len(x)} | {cells} |", flush=True)


def main(seeds: int = 3) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("hmmlearn").setLevel(logging.CRITICAL)
    compare("em", seeds)
    compare("vmp", seeds)
    beside_statsmodels()


if __name__ == "__main__":
    torch.manual_seed(0)
    if "--fresh" in sys.argv:
        warnings.simplefilter("ignore")
        logging.getLogger("hmmlearn").setLevel(logging.CRITICAL)
        import fresh_problems

        fresh_problems.main(sys.argv[1:])
    else:
        main(*map(int, sys.argv[1:]))
