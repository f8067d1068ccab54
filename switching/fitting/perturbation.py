"""Starts from the best ends of a search, which are changed so far that they may lead to better ones.

    crossed      some states of one end, and the others of another
    redrawn      one state takes a random share of every step
    shaken       all parameters moved at random in their free coordinates
    remixed      the emissions of an end, transition parameters drawn from their prior
    rearranged   one state removed, and another split in two (Ueda, Nakano, Ghahramani & Hinton 2000, *SMEM algorithm
                 for mixture models*)

Changed copies of good optima can reach better ones that new guesses miss (Lourenço, Martin & Stützle 2003, *Iterated
local search*). How often is measured in docs/quality/fit_quality.md.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import constraints

from ..data.series import Series
from ..emissions.clusters import clusters_among
from ..known import FreeCoordinates
from ..parameters import Parameters, reordered
from ..problem import Problem
from .density import IMPOSSIBLE
from .starts import (
    Guess,
    Starts,
    counts_of,
    drawn_moves,
    embedded,
    guessed,
    labelled,
    occupy,
    opened,
    stacked,
    typical,
    with_context,
)

BEST = 0.5  # the probability that a start is from the best end, whatever the others are
SHAKES = 0.2, 2.0  # standard deviation of a move in free coordinates: minimum and maximum


class End(NamedTuple):
    """Where a restart ended: parameters, and the smoothed probabilities of its states."""

    values: Parameters
    state: Float[Tensor, "*b T K"]


class Draws(NamedTuple):
    """What all kinds of change use: coordinates of the steps, typical parameters, the ends, and random numbers."""

    problem: Problem
    points: Float[Tensor, "N E"] | None
    near: Parameters
    ends: Sequence[End]
    rng: np.random.Generator
    generator: torch.Generator


def perturbed(problem: Problem, ends: Sequence[End], n: int, seed: int) -> Starts:
    """n starts, of all kinds in turn, from ends of which the first is the best; fewer if some cannot be made."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    draws = Draws(problem, embedded(problem.emission, problem.series), typical(problem), ends, rng, generator)
    kinds = [list(CHANGES)[(seed + number) % len(CHANGES)] for number in range(n)]
    changed, made = [], []
    for kind in kinds:
        end = ends[0] if rng.random() < BEST else ends[int(rng.integers(len(ends)))]
        try:
            values = CHANGES[kind](draws, end)
            changed.append(opened(problem, {name: values[name].unsqueeze(0) for name in ends[0].values}))
        except IMPOSSIBLE:
            continue
        made.append(kind)
    return Starts(stacked(problem, changed) if made else {}, tuple(made))


def _crossed(draws: Draws, end: End) -> Parameters:
    rng, known, n_states = draws.rng, draws.problem.parameters, draws.problem.n_states
    device = draws.problem.series.like.device
    order, taken = rng.permutation(n_states), rng.random(n_states) < 0.5
    order = np.arange(n_states) if draws.problem.numbered else order
    other = draws.ends[int(rng.integers(len(draws.ends)))].values
    other = reordered(known, other, torch.from_numpy(order).to(device))
    take = torch.from_numpy(taken).to(device)

    def mixed(name: str, value: Tensor) -> Tensor:
        dims = known[name].dims
        if not dims or dims[0] != "state" or (len(dims) == 1 and known[name].support is constraints.simplex):
            return value
        return torch.where(take.reshape(-1, *[1] * (value.ndim - 1)), other[name], value)

    return {name: mixed(name, value) for name, value in end.values.items()}


def _redrawn(draws: Draws, end: End) -> Parameters:
    problem, rng, n_states = draws.problem, draws.rng, draws.problem.n_states
    weights, out = end.state.reshape(-1, n_states), int(rng.integers(n_states))
    share = torch.from_numpy(rng.random((len(weights), 1))).to(weights) / n_states
    chosen = torch.arange(n_states, device=weights.device) == out
    others = torch.where(chosen, 0.0, weights + torch.finfo(weights.dtype).tiny)
    weights = torch.where(chosen, share, (1 - share) * others / others.sum(-1, keepdim=True))
    at = torch.from_numpy(rng.random((len(weights), 1))).to(weights)
    labels = (at > weights.cumsum(-1)).sum(-1).clamp_max(n_states - 1)
    moves = labelled(problem, labels).moves
    return _from_guess(draws, Guess(_by_sequence(problem, weights), moves))


def _shaken(draws: Draws, end: End) -> Parameters:
    rng, known = draws.rng, draws.problem.parameters
    size = float(np.exp(rng.uniform(*np.log(SHAKES))))
    some = opened(draws.problem, end.values)
    coordinates = FreeCoordinates({name: known[name].support for name in some}, some)

    def moved(name: str, here: Tensor) -> Tensor:
        step = size / draws.problem.n_states if known[name].support is constraints.real else size
        return here + step * torch.from_numpy(rng.standard_normal(here.shape)).to(here)

    return coordinates.values({name: moved(name, here) for name, here in coordinates.start.items()})


def _remixed(draws: Draws, end: End) -> Parameters:
    moves = drawn_moves(draws.problem, draws.generator)
    return {name: moves[name][0].to(value) if name in moves else value for name, value in end.values.items()}


def _rearranged(draws: Draws, end: End) -> Parameters:
    problem, rng = draws.problem, draws.rng
    n_states, inside, weights = (
        problem.n_states,
        problem.series.inside.flatten(),
        end.state.reshape(-1, problem.n_states),
    )
    mass = np.array(torch.where(inside.unsqueeze(-1), weights, 0.0).sum(0).tolist())
    out = int(rng.choice(n_states, p=_shares(1 / (mass + 1))))
    others = torch.where(torch.arange(n_states, device=weights.device) == out, 0.0, weights)
    nowhere = int(rng.choice(np.delete(np.arange(n_states), out)))
    labels = torch.where(others.sum(-1) > 0, others.argmax(-1), nowhere)
    split = int(rng.choice(n_states, p=_shares(counts_of(labels, inside, n_states))))
    members = (inside & (labels == split)).nonzero().flatten()
    labels[members] = torch.where(_half(draws.points, members, problem.series, rng), out, split)
    occupy(labels, inside, n_states, rng)
    return _from_guess(draws, labelled(problem, labels))


CHANGES: dict[str, Callable[[Draws, End], Parameters]] = {
    "crossed": _crossed,
    "redrawn": _redrawn,
    "shaken": _shaken,
    "remixed": _remixed,
    "rearranged": _rearranged,
}
"""The kinds of change: each makes the parameters of a start from an end."""


def _from_guess(draws: Draws, guess: Guess) -> Parameters:
    return {name: value[0] for name, value in guessed(draws.problem, [guess], (), draws.near).values.items()}


def _by_sequence(problem: Problem, weights: Float[Tensor, "N K"]) -> Float[Tensor, "1 *b T K"]:
    inside = problem.series.inside
    return weights.reshape(1, *inside.shape, -1) * inside.unsqueeze(-1)


def _half(
    points: Float[Tensor, "N E"] | None, members: Int[Tensor, "n"], series: Series, rng: np.random.Generator
) -> Bool[Tensor, "n"]:
    """Which of these steps form one half, by their level or by their context."""
    by_level = rng.random() < 0.5
    if points is None or len(members) < 2:
        return torch.from_numpy(rng.random(len(members)) < 0.5).to(members.device)
    wide = (points if by_level else with_context(points, series, rng))[members]
    return clusters_among(wide, torch.ones_like(members, dtype=torch.bool), 2, rng).bool()


def _shares(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()
