"""Starts from moments of pairs: labels that tell look-alike states apart, valid parameters of any model and data."""

import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.models import DYNAMICS, EMISSIONS, KINDS, drive
from samplehold.switching.fitting import starts
from samplehold.switching.fitting.spectral import _variates, _windows, predictive_states
from samplehold.switching.problem import Problem
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.testing import assert_close

PERIODS = [[0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 1, 2, 2], [0, 0, 1, 0, 2], [0, 1, 2, 3]]


def labels_of(problem: Problem, seed: int) -> Tensor:
    points = starts.embedded(problem.emission, problem.series)
    return starts._labels("pairs", problem.series, problem.n_states, points, np.random.default_rng(seed))


def agreement(labels: Tensor, truth: np.ndarray, n_states: int) -> float:
    """The share of steps in their true state, after the best renumbering."""
    table = np.zeros((n_states, n_states))
    np.add.at(table, (labels.numpy(), truth), 1)
    return table[linear_sum_assignment(-table)].sum() / len(labels)


# ---- states that are found -------------------------------------------------------------------------------------------


@pytest.mark.few(8)
@pytest.mark.parametrize("n_steps", [50, 301])
@pytest.mark.parametrize("pattern", PERIODS)
@pytest.mark.parametrize("normal", [False, True])
def test_the_states_of_a_period_are_found_exactly(pattern, n_steps, normal):
    emission = sh.Normal() if normal else sh.Categorical(max(pattern) + 1)
    problem = sh.SwitchingSSM(sh.Markov(len(pattern)), emission).problem(np.resize(pattern, n_steps).astype(float))
    truth = np.arange(n_steps) % len(pattern)
    assert all(agreement(labels_of(problem, seed), truth, len(pattern)) == 1 for seed in range(5))


@pytest.mark.parametrize("pattern", PERIODS)
def test_the_states_of_a_noisy_period_are_found_but_for_a_few_steps(pattern):
    x = np.resize(pattern, 600) + 0.15 * np.random.default_rng(0).standard_normal(600)
    problem = sh.SwitchingSSM(sh.Markov(len(pattern)), sh.Normal()).problem(x)
    truth = np.arange(600) % len(pattern)
    assert np.median([agreement(labels_of(problem, seed), truth, len(pattern)) for seed in range(5)]) > 0.97


def test_overlapping_levels_that_follow_each_other_are_found():
    rng = np.random.default_rng(0)
    jumps = np.where(rng.random(2000) < 0.9, 1, rng.integers(4, size=2000))
    truth = jumps.cumsum() % 4
    x = 2.0 * np.array([0, 2, 1, 3])[truth] + rng.standard_normal(2000)
    problem = sh.SwitchingSSM(sh.Markov(4), sh.Normal()).problem(x)
    assert np.median([agreement(labels_of(problem, seed), truth, 4) for seed in range(5)]) > 0.85  # by level: 0.76


# ---- windows and variates --------------------------------------------------------------------------------------------


def test_windows_end_where_their_sequence_does_and_have_no_unknown_step():
    points = torch.arange(10.0)[:, None]  # two sequences of 5
    known = torch.arange(10) != 7
    past, has_past = _windows(points, known, 5, range(-1, 1))
    future, has_future = _windows(points, known, 5, range(1, 3))
    assert has_past.nonzero()[:, 0].tolist() == [1, 2, 3, 4, 6, 9]
    assert has_future.nonzero()[:, 0].tolist() == [0, 1, 2, 7]
    assert past[has_past].tolist() == [[t - 1, t] for t in (1, 2, 3, 4, 6, 9)]
    assert future[has_future].tolist() == [[t + 1, t + 2] for t in (0, 1, 2, 7)]


def test_variates_give_back_the_table_of_pairs():
    pairs = torch.from_numpy(np.random.default_rng(0).poisson(10.0, (4, 5)).astype(float))
    r, c = pairs.sum(1, keepdim=True), pairs.sum(0)
    by_past, by_future = _variates(pairs, 9)
    assert_close(by_past @ by_future.T * (r + r.mean()) * (c + c.mean()), pairs, rtol=0, atol=1e-10)
    few = _variates(pairs, 2)
    assert_close(few[0] @ few[1].T, by_past[:, :2] @ by_future[:, :2].T, rtol=0, atol=1e-12)


def test_without_any_pair_the_points_stand_for_themselves():
    points, known = torch.arange(4.0)[:, None], torch.ones(4, dtype=torch.bool)
    found, told = predictive_states(points, known, 1, 2, np.random.default_rng(0))
    assert torch.equal(found, points)
    assert told.all()


# ---- any model, any data ---------------------------------------------------------------------------------------------


def check_guesses(problem: Problem) -> None:
    found = starts.first_guesses(problem, 3, 0)
    for name, parameter in problem.parameters.items():
        assert bool(found.values[name].isfinite().all()), name
        assert bool(parameter.support.check(found.values[name]).all()), name
    assert bool(problem.objective(found.values).isfinite().all())


@pytest.fixture
def only_pairs(monkeypatch):
    monkeypatch.setattr(starts, "KINDS", ("pairs",))


@pytest.mark.few(8)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_guesses_are_valid_for_every_model(only_pairs, dynamics, emission):
    model, generator = sh.SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission]), torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (3, 30, model.emission.n_features), generator=generator).double()
    x[0, 3:6] = x[1, 5, 0] = torch.nan
    given = {"lengths": torch.tensor([30, 17, 1])} | drive(dynamics, (3,), 30)
    check_guesses(model.scaled_to(x, **given).problem(x, **given))


@pytest.mark.parametrize("emission", [sh.Normal(), sh.Poisson(), sh.Categorical(3)])
@pytest.mark.parametrize(
    "x",
    [
        np.ones((40, 1)),
        np.array([[2.0]]),
        np.array([[0.0], [1.0]]),
        np.array([[0.0], [np.nan], [1.0], [np.nan], [2.0]]),
        np.array([[[0.0]], [[1.0]], [[2.0]], [[1.0]]]),
    ],
    ids=["constant", "T = 1", "T < K", "no two steps together", "sequences of one step"],
)
def test_guesses_are_valid_where_little_is_there(only_pairs, x, emission):
    model = sh.SwitchingSSM(sh.Markov(3), emission)
    check_guesses(model.scaled_to(x).problem(x))


def test_constant_data_start_from_stretches(only_pairs):
    problem = sh.SwitchingSSM(sh.Markov(2), sh.Normal()).problem(np.ones(40))
    assert starts.first_guesses(problem, 3, 0).kinds == ("stretches",) * 3


# ---- the same again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 0.04])
@pytest.mark.parametrize("emission", [sh.Normal(2), sh.Bernoulli(2), sh.Poisson(2)])
def test_a_seed_gives_one_start_and_padding_changes_nothing(only_pairs, emission, share):
    x = torch.from_numpy((np.random.default_rng(0).random((3, 40, 2)) < share).astype(float))
    x[0, 7], x[1, 4, 1] = torch.nan, torch.nan
    lengths, model = torch.tensor([40, 25, 8]), sh.SwitchingSSM(sh.Markov(3), emission)
    wide = torch.cat([x, x.new_full((3, 7, 2), torch.nan)], 1)
    once, again, padded = (model.problem(y, lengths=lengths) for y in (x, x, wide))
    assert torch.equal(labels_of(once, 1), labels_of(again, 1))
    found = labels_of(padded, 1)[padded.series.inside.flatten()]
    assert torch.equal(labels_of(once, 1)[once.series.inside.flatten()], found)
    guesses = [starts.first_guesses(p, 2, 1).values for p in (once, again, padded)]
    for name, value in guesses[0].items():
        assert torch.equal(value, guesses[1][name])
        torch.testing.assert_close(value, guesses[2][name], rtol=1e-12, atol=1e-12)


def test_the_table_of_restarts_tells_of_pairs():
    x = np.tile([0.0, 0, 1], 40)
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Categorical(2)).fit(x, restarts=2, progress=False)
    assert "pairs" in set(fit.restarts.start)
