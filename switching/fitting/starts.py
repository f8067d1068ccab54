"""Starts of fits: first guesses of the parameters, of several kinds in turn, a different one for each restart.

    clusters   k-means of the observations: states that differ in level
    contexts   k-means of each observation together with its neighbours: states with equal observations that differ in
               the observations before or after them
    pairs      k-means of each step's predictive state, from pairs of symbols around it (see `spectral`): states that
               differ in the distribution of the observations before and after them
    spreads    k-means as in contexts, of distances from the middle too: states that differ in scale
    few steps  each state from a few steps, transition parameters drawn from their prior
    soft       shares of the states at each step from a random linear function of the observation, transition
               parameters drawn from their prior: states that differ little from each other at first
    free       clusters, transition parameters drawn from their prior
    stretches  random stretches of time: states that last, with any other differences
    known      the known states, and equal shares of all states at other steps; the first kind, if some are known

In all kinds, a step whose state is known is in this state.

All are computed on the device of the data. The host only draws numbers and reads counts of states. Starts without
clusters are cheap: beyond the first starts there are only such. See `perturbation` for starts from ends of others.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.quantiles import quantiles
from ..data.series import Series, concatenated
from ..emissions.clusters import clusters_among
from ..emissions.contract import Emission
from ..emissions.driven import rows_read
from ..emissions.spread import typical_square
from ..entries import Entries, PossibleRows, of_free
from ..known import with_known
from ..parameters import Parameters, is_simplex, prefixed
from ..problem import Problem
from .spectral import predictive_states

KINDS = ("clusters", "contexts", "few steps", "pairs", "soft", "stretches", "spreads", "free")
CHEAP = ("few steps", "soft")  # kinds without clusters
SHARPNESS = 0.3, 3.0  # of soft shares: minimum and maximum
MAX_NUMBERS = 2**24  # numbers in the weights of starts that are computed together
AROUND = 3  # the context of a step has at most this many steps on either side
OPEN = 1e-3  # the total probability that a start spreads evenly over all events
SAMPLE = 2**18  # steps from which a start is computed
STRETCH = 2**12  # steps of each stretch that is used from a longer sequence
FIRST_STEPS = 4  # M-steps in which all states have equal shares
VARIANCE_FLOOR = 1e-10  # share of the data's variance below which a state has collapsed onto a point


class Starts(NamedTuple):
    """First guesses of the parameters `[R, ...]`, and the kind of each."""

    values: Parameters
    kinds: tuple[str, ...]


class Guess(NamedTuple):
    """A first guess: weights `[1, *b, T, K]` of the states at each step, and parameters `[1, ...]` of the dynamics."""

    weights: Float[Tensor, "1 *b T K"]
    moves: Parameters


def first_guesses(
    problem: Problem, n: int, seed: int, user_start: Parameters | None = None, n_varied: int | None = None
) -> Starts:
    """n first guesses; the user's start, if there is one, replaces the first.

    Arguments:
        n_varied: the number of the first ones, of all kinds in turn; the others are of cheap kinds. None: all.
    """
    if user_start is not None:
        alone = Starts(stacked(problem, [user_start]), ("own",))
        if n == 1:
            return alone
        more = first_guesses(problem, n - 1, seed, n_varied=n_varied)
        return Starts(
            {name: torch.cat([alone.values[name], more.values[name]]) for name in user_start}, ("own", *more.kinds)
        )
    problem = problem.of(sample_of(problem.series, seed))
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    points, n_varied = embedded(problem.emission, problem.series), n if n_varied is None else n_varied
    kinds = [KINDS[i % len(KINDS)] if i < n_varied else CHEAP[i % len(CHEAP)] for i in range(n)]
    if points is None:
        kinds = ["few steps" if kind in CHEAP else "stretches" for kind in kinds]
    if problem.series.states is not None:
        kinds[0] = "known"
    return guessed(problem, (_guess(kind, problem, points, rng, generator) for kind in kinds), kinds)


def _guess(
    kind: str,
    problem: Problem,
    points: Float[Tensor, "N E"] | None,
    rng: np.random.Generator,
    generator: torch.Generator,
) -> Guess:
    known = problem.series.likely_states
    if kind == "known" and known is not None:
        return from_known(problem, known)
    if kind == "few steps":
        return Guess(_directed(_in_time(problem, _few(problem, rng)), problem), drawn_moves(problem, generator))
    if kind == "soft" and points is not None:
        soft = _in_time(problem, _soft(problem, points, rng))
        return Guess(_directed(soft, problem), drawn_moves(problem, generator))
    labels = _labels(kind, problem.series, problem.n_states, points, rng)
    if problem.dynamics.forward:
        one_hot = torch.nn.functional.one_hot(labels, problem.n_states).to(problem.series.like)
        labels = _in_time(problem, one_hot.reshape(1, *problem.series.inside.shape, -1)).flatten(0, -2).argmax(-1)
    labels = labels if known is None else matched(labels, known.flatten(), problem.n_states)
    return labelled(problem, labels, drawn_moves(problem, generator) if kind == "free" else None)


def _in_time(problem: Problem, weights: Float[Tensor, "1 *b T K"]) -> Float[Tensor, "1 *b T K"]:
    """The weights with states in the order of their mean steps, if the chain only moves forward."""
    if not problem.dynamics.forward:
        return weights
    used = weights * problem.series.inside.unsqueeze(-1)
    steps = torch.arange(weights.shape[-2], device=weights.device).to(weights).unsqueeze(-1)
    axes = tuple(range(weights.ndim - 1))
    return weights[..., ((used * steps).sum(axes) / used.sum(axes)).argsort()]


def labelled(problem: Problem, labels: Int[Tensor, "N"], moves: Parameters | None = None) -> Guess:
    """A guess from a state for every step, of the parameters of the dynamics too if `moves` is None."""
    series = problem.series
    by_sequence = labels.reshape(1, *series.inside.shape)
    moves = problem.dynamics.start(by_sequence, series) if moves is None else moves
    return Guess(softened(by_sequence, problem.n_states, series), moves)


def guessed(problem: Problem, guesses: Iterable[Guess], kinds: Sequence[str], near: Parameters | None = None) -> Starts:
    """The parameters of guesses, many at a time.

    Arguments:
        near: the `typical` ones, if they are known.
    """
    size = problem.series.inside.numel() * problem.n_states
    near = typical(problem) if near is None else near
    like, waiting, tables = problem.series.observations, iter(guesses), []
    while some := list(itertools.islice(waiting, max(1, MAX_NUMBERS // size))):
        moves = {name: torch.cat([guess.moves[name].to(like) for guess in some]) for name in some[0].moves}
        tables.append(_from_weights(problem, near, torch.cat([guess.weights for guess in some]), moves))
    return Starts(stacked(problem, tables), tuple(kinds))


def typical(problem: Problem) -> Parameters:
    """Parameters of the emission `[1, ...]` near all observations, from which weighted moments start.

    A vague prior may be far from the data, and an M-step that is not exact does not lead far. So a few of them come
    first, in which all states have equal shares.
    """
    values: Parameters = {}
    for part in problem.emission.parts:
        default = part.emission.default_prior(1 if part.alike else problem.n_states, problem.series.rows)
        start = {name: value.unsqueeze(0) for name, value in part.emission.start(default).items()}
        values |= prefixed(start, part.prefix)
    values = {name: values[name] for name in problem.emission.parameters}
    if not all(part.emission.is_conjugate for part in problem.emission.parts):
        inside = problem.series.inside.unsqueeze(-1).to(problem.series.like)
        shares = (inside / problem.n_states).expand(1, *inside.shape[:-1], problem.n_states)
        for _ in range(FIRST_STEPS):
            values = _from_shares(problem, values, shares)
    return values


def _from_weights(
    problem: Problem, near: Parameters, weights: Float[Tensor, "R *b T K"], moves: Parameters
) -> Parameters:
    return opened(problem, dict(moves) | _from_shares(problem, near, weights))


def _from_shares(problem: Problem, near: Parameters, weights: Float[Tensor, "R *b T K"]) -> Parameters:
    """The emission after an M-step without a prior."""
    series, n = problem.series, len(weights)
    rows = rows_read(problem.emission, replace(series, noise=None)).flatten(0, -2)
    start = {name: value.expand(n, *value.shape[1:]) for name, value in near.items()}
    flat = [
        series.powered(table.reshape(n, len(rows), -1)) for table in problem.emission.weights(weights, 0.1 * weights)
    ]
    floor, fixed = variance_floor(series), problem.fixed
    values = problem.emission.maximize_parts(rows, flat, start, None, floor).values
    beside = [name for one in problem.emission.responses if one.constant in fixed for name in one.coefficients]
    if beside:  # coefficients beside another constant would lead far from the data
        plain = with_known(
            values | {name: torch.zeros_like(values[name]) for name in beside}, fixed, problem.parameters
        )
        values = problem.emission.maximize_parts(rows, flat, plain, None, floor, fixed).values
    return values


def _opened(value: Tensor, support: Any) -> Tensor:
    """The value without a probability or a rate at an end of its range, which no update could change."""
    numbers = of_free(support)
    if is_simplex(support):
        possible = support.free.to(value) if isinstance(support, PossibleRows) else torch.ones_like(value)
        return (1 - OPEN) * value + OPEN * possible / possible.sum(-1, keepdim=True)
    if isinstance(numbers, constraints.interval):
        return (1 - OPEN) * value + OPEN * (numbers.lower_bound + numbers.upper_bound) / 2
    if isinstance(support, Entries) and numbers is constraints.nonnegative:
        return torch.where(support.free.to(value.device), value.clamp_min(OPEN * float(value.mean())), value)
    return value.clamp_min(OPEN) if numbers is constraints.nonnegative else value


def drawn_moves(problem: Problem, generator: torch.Generator) -> Parameters:
    """Parameters of the dynamics, drawn from their default prior."""
    prior, values = problem.dynamics.default_prior(problem.series), {}
    for block in problem.dynamics.blocks.values():
        values |= block.drawn_start(prior, generator)
    return values


def stacked(problem: Problem, guesses: list[Parameters]) -> Parameters:
    """All guesses `[R, ...]`, with the fixed parameters at their values."""
    tables = {name: torch.cat([guess[name] for guess in guesses]) for name in guesses[0]}
    return problem.admitted(tables)


def from_labels(problem: Problem, labels: Int[Tensor, "*b T"]) -> Parameters:
    """Parameters `[1, ...]` from a state for every step, -1 if it is not known."""
    return guessed(problem, [from_known(problem, labels.to(problem.series.like.device))], ()).values


def from_known(problem: Problem, labels: Int[Tensor, "*b T"]) -> Guess:
    """A guess from a state for every step, -1 if it is not known: all states then have equal shares."""
    series, n_states, labels = problem.series, problem.n_states, labels.unsqueeze(0)
    weights = torch.where((labels >= 0).unsqueeze(-1), softened(labels.clamp_min(0), n_states, series), 1 / n_states)
    moves = problem.dynamics.start(labels.clamp_min(0), series)
    return Guess(weights * series.inside.unsqueeze(-1), moves)


def matched(labels: Int[Tensor, "N"], known: Int[Tensor, "N"], n_states: int) -> Int[Tensor, "N"]:
    """Labels with the numbers of the known states that they share most steps with, and at these steps the known
    ones."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    both = known >= 0
    pairs = torch.bincount(labels[both] * n_states + known[both], minlength=n_states**2).reshape(n_states, n_states)
    number_of = torch.from_numpy(linear_sum_assignment(pairs.cpu().numpy(), maximize=True)[1]).to(labels)
    return torch.where(both, known, number_of[labels])


def _directed(weights: Float[Tensor, "1 *b T K"], problem: Problem) -> Float[Tensor, "1 *b T K"]:
    """Weights of the states, at steps with a known state near it alone."""
    known = problem.series.likely_states
    if known is None:
        return weights
    certain = softened(known.clamp_min(0).unsqueeze(0), problem.n_states, problem.series)
    return torch.where((known >= 0).unsqueeze(-1), certain, weights)


def opened(problem: Problem, values: Parameters) -> Parameters:
    """The values without probabilities of 0, so that every probability can rise."""
    return problem.admitted({name: _opened(value, problem.parameters[name].support) for name, value in values.items()})


# ---- labels and weights of the steps ---------------------------------------------------------------------------------


def first_labels(emission: Emission, series: Series, n_states: int, restarts: int, seed: int) -> Int[Tensor, "R *b T"]:
    """A state for every step and restart: clusters and stretches in turn."""
    rng, points = np.random.default_rng(seed), embedded(emission, series)
    by_restart = [_labels(("clusters", "stretches")[i % 2], series, n_states, points, rng) for i in range(restarts)]
    return torch.stack(by_restart).reshape(restarts, *series.inside.shape)


def _labels(
    kind: str, series: Series, n_states: int, points: Float[Tensor, "N E"] | None, rng: np.random.Generator
) -> Int[Tensor, "N"]:
    """A state for every step; each state occurs at least once."""
    inside = series.inside.flatten()
    if kind == "stretches" or points is None:
        labels = _stretches(inside, n_states, rng)
    elif kind == "contexts":
        labels = clusters_among(with_context(points, series, rng), inside, n_states, rng)
    elif kind == "spreads":
        wide = with_context(points, series, rng)
        labels = clusters_among(torch.cat([wide, wide.abs()], -1), inside, n_states, rng)
    elif kind == "pairs":
        known = inside & ~series.padded_rows.isnan().all(-1)
        predictive, has_windows = predictive_states(points, known, series.n_steps, n_states, rng)
        labels = clusters_among(predictive, has_windows, n_states, rng)
    else:
        labels = clusters_among(points, inside, n_states, rng)
    occupy(labels, inside, n_states, rng)
    return labels


def embedded(emission: Emission, series: Series) -> Float[Tensor, "N E"] | None:
    """Standardised coordinates of every step, missing values at the median; None if all steps are equal.

    Coordinates are clamped, so that no outlier forms a cluster.
    """
    rows = series.padded_rows
    typical = rows.nanmedian(0).values  # an observed value, so that it lies in the emission's support
    points = emission.embed(torch.where(rows.isnan(), typical, rows)).double()
    inside = points[series.inside.flatten()]
    low, middle, high = quantiles(inside, (0.05, 0.5, 0.95))
    spread = torch.where(high > low, high - low, inside.std(0, correction=0))
    if not bool((spread > 0).any()):
        return None
    return ((points - middle) / torch.where(spread > 0, spread, 1.0)).clamp(-3.0, 3.0)


def with_context(points: Float[Tensor, "N E"], series: Series, rng: np.random.Generator) -> Float[Tensor, "N W"]:
    """Each step's coordinates with those of its neighbours; outside the sequence its own are repeated."""
    before, after = int(rng.integers(0, AROUND + 1)), int(rng.integers(0, AROUND + 1))
    if before == after == 0:
        before = after = 1
    number = torch.arange(len(points), device=points.device).reshape(series.inside.shape)
    step, wide = number % series.n_steps, [points]
    for shift in [*range(-before, 0), *range(1, after + 1)]:
        there = (step + shift >= 0) & (step + shift <= series.last.unsqueeze(-1))
        wide.append(points[torch.where(there, number + shift, number).flatten()])
    return torch.cat(wide, -1)


def _stretches(inside: Bool[Tensor, "N"], n_states: int, rng: np.random.Generator) -> Int[Tensor, "N"]:
    n_steps = len(inside)
    n_breaks = int(rng.integers(n_states - 1, max(n_states, min(n_steps - 1, 6 * n_states)) + 1))
    breaks = 1 + rng.choice(n_steps - 1, min(n_breaks, n_steps - 1), replace=False) if n_steps > 1 else np.arange(0)
    states = rng.permutation(np.resize(rng.permutation(n_states), len(breaks) + 1))
    begin, of_stretch = (torch.from_numpy(table).to(inside.device) for table in (np.sort(breaks), states))
    return of_stretch[torch.searchsorted(begin, torch.arange(n_steps, device=inside.device), right=True)]


def _few(problem: Problem, rng: np.random.Generator) -> Float[Tensor, "1 *b T K"]:
    """Weights that give each state a few steps, and a small part of all steps."""
    series, n_states = problem.series, problem.n_states
    inside, n_features = series.inside.flatten().nonzero().flatten(), series.observations.shape[-1]
    weights = (series.inside.flatten().double() / (len(inside) * n_states)).unsqueeze(-1).repeat(1, n_states)
    for state in range(n_states):
        some = rng.integers(len(inside), size=min(len(inside), int(rng.integers(2, 6)) + n_features))
        weights[inside[torch.from_numpy(some).to(inside.device)], state] += 1.0
    return weights.reshape(1, *series.inside.shape, n_states).to(series.observations)


def _soft(problem: Problem, points: Float[Tensor, "N E"], rng: np.random.Generator) -> Float[Tensor, "1 *b T K"]:
    """Weights from a random linear function of each step's coordinates."""
    series, n_states = problem.series, problem.n_states
    slopes = 10.0 ** rng.uniform(*np.log10(SHARPNESS)) * rng.standard_normal((points.shape[-1], n_states))
    shares = torch.softmax(points @ torch.from_numpy(slopes).to(points), -1)
    return (shares.reshape(1, *series.inside.shape, n_states) * series.inside.unsqueeze(-1)).to(series.observations)


def counts_of(labels: Int[Tensor, "N"], inside: Bool[Tensor, "N"], n_states: int) -> np.ndarray:
    """The number of steps inside their sequence in each state."""
    none = torch.zeros(n_states, dtype=torch.long, device=inside.device)
    return np.array(none.index_add(0, labels, inside.long()).tolist())


def occupy(labels: Int[Tensor, "N"], inside: Bool[Tensor, "N"], n_states: int, rng: np.random.Generator) -> None:
    """Give every state without steps one step of a state that has several."""
    counts = counts_of(labels, inside, n_states)
    for state in np.flatnonzero(counts == 0):
        several = torch.from_numpy(counts > 1).to(labels.device)
        donors = (inside & several[labels]).nonzero().flatten()
        if len(donors):
            one = int(rng.integers(len(donors)))
            labels[donors[one : one + 1]] = int(state)
            counts = counts_of(labels, inside, n_states)


def softened(labels: Int[Tensor, "R *b T"], n_states: int, series: Series) -> Float[Tensor, "R *b T K"]:
    """Weights of the states at each step, all above 0, so that no state starts on a single point."""
    inside = series.inside.unsqueeze(-1)
    one_hot = torch.nn.functional.one_hot(labels, n_states).to(series.observations)
    return (0.9 * one_hot + 0.1 / n_states) * inside


def variance_floor(series: Series) -> Float[Tensor, "F"]:
    """The variance of each feature below which a state has collapsed onto a point."""
    return VARIANCE_FLOOR * typical_square(series.rows)


def sample_of(series: Series, seed: int, most: int | None = None) -> Series:
    """The series or, of a longer one, about `most` steps: some of the sequences, or stretches of a long one."""
    most = SAMPLE if most is None else most
    n_sequences, n_steps = series.n_sequences, series.n_steps
    if n_sequences * n_steps <= most:
        return series
    order = torch.randperm(n_sequences, generator=torch.Generator().manual_seed(seed), device="cpu")
    order = order[(~series.knows_states[order]).long().argsort(stable=True)]  # they tell the numbers of the states
    few = series.part(first_of(order, series.last.flatten()[order.to(series.last.device)] + 1, most))
    return few if few.n_steps <= most else stretches_of(few, most)


def first_of(order: Int[Tensor, "n"], lengths: Int[Tensor, "n"], most: int) -> Int[Tensor, "m"]:
    """The first sequences of an order that have at most `most` steps with padding, or the next one alone if it is
    longer than all of them."""
    places = torch.arange(1, len(order) + 1, device=lengths.device)
    n = max(1, int((lengths.cummax(0).values * places <= most).sum()))
    alone = n < len(order) and bool(lengths[n] > lengths[:n].sum())
    return order[n : n + 1] if alone else order[:n].sort().values


def stretches_of(alone: Series, most: int) -> Series:
    """Stretches of one long sequence, with about `most` steps together, as sequences."""
    length = int(alone.last[0]) + 1
    size = min(length, STRETCH)
    firsts = torch.linspace(0, length - size, min(most // STRETCH, -(-length // size)), device="cpu").long().tolist()
    alone = replace(alone, weights=None, noise=None, subjects=None)
    return concatenated([alone.stretch(first, size) for first in firsts])
