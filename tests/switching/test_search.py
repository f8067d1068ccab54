"""A fit finds what is there: states that look alike, in any unit, beside outliers; and says how it came about."""

import math
from typing import Any

import numpy as np
import pytest
import samplehold as sh
import torch
from samplehold.inference.families import tree_parts
from samplehold.switching.ascent import Ascent
from samplehold.switching.fitting import End, Starts, em, first_guesses, perturbation
from samplehold.switching.fitting import search as search_module
from samplehold.switching.fitting.climbs import Climb, SearchResult, merged
from samplehold.switching.fitting.em import _ahead
from samplehold.switching.fitting.message_passing import Passing
from samplehold.switching.fitting.perturbation import CHANGES, perturbed
from samplehold.switching.fitting.starts import KINDS
from torch.distributions import constraints
from torch.testing import assert_close

# ---- states that look alike ------------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pattern", [[0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 1, 2, 2]])
def test_symbols_that_stand_for_several_states_are_told_apart_by_what_is_around_them(pattern, seed):
    x = np.tile(pattern, 300 // len(pattern)).astype(float)
    model = sh.SwitchingSSM(sh.Markov(len(pattern)), sh.Categorical(max(pattern) + 1))
    fit = model.fit(x, prior=None, seed=seed, progress=False)
    assert float(fit.objective[-1]) > -1e-3  # every step is certain
    assert fit.converged


def test_message_passing_finds_a_period_too():
    fit = sh.SwitchingSSM(sh.Markov(3), sh.Categorical(2)).fit(np.tile([0.0, 0, 1], 100), "vmp", progress=False)
    assert float(fit.objective[-1]) > -40.6


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_normals_of_a_period_are_told_apart(seed):
    x = np.tile([0, 0, 1, 1, 2, 2], 50) + 0.1 * np.random.default_rng(seed).standard_normal(300)
    model = sh.SwitchingSSM(sh.Markov(6), sh.Normal())
    truth = model.with_values(
        initial_probs=[1.0, 0, 0, 0, 0, 0],
        transition_probs=torch.eye(6).roll(1, 1),
        loc=[[0.0], [0], [1], [1], [2], [2]],
        scale=[[0.1]] * 6,
    )
    fit = model.fit(x, seed=seed, progress=False)
    assert float(fit.model.log_evidence(x)) > float(truth.log_evidence(x))


# ---- units and outliers ----------------------------------------------------------------------------------------------


def two_levels(n_steps: int, gap: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return gap * ((rng.random(n_steps) < 0.05).cumsum() % 2) + rng.standard_normal(n_steps)


@pytest.mark.few(3)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("emission", [sh.Normal(1), sh.MultivariateNormal(1)])
@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 1e6), (1e6, 1e6)])
def test_another_unit_gives_the_same_fit_in_that_unit(scale, shift, emission, method):
    x = two_levels(300, 3.0)
    model = sh.SwitchingSSM(sh.Markov(2), emission)
    one, other = (model.fit(y, method, restarts=4, progress=False).model for y in (x, scale * x + shift))
    assert_close(other.transition_probs, one.transition_probs, rtol=1e-6, atol=1e-9)
    assert_close((other.loc - shift) / scale, one.loc, rtol=1e-6, atol=1e-8)
    assert_close(other.precision * scale**2, one.precision, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [0.25, 1e6])
def test_a_fit_of_a_long_series_stops_at_the_same_height_in_any_unit(scale):
    x, model = two_levels(20_000, 1.5), sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    ends = [
        float(model.fit(y, prior=None, restarts=1, progress=False).objective[-1]) + len(x) * np.log(c)
        for c, y in ((1.0, x), (scale, scale * x))
    ]
    long = model.fit(x, prior=None, restarts=1, tol=1e-12, max_steps=2000, progress=False)
    assert abs(ends[0] - ends[1]) < 1e-6
    assert float(long.objective[-1]) - ends[0] < 0.02  # tol nats for each step


@pytest.mark.few(3)
@pytest.mark.parametrize("dynamics", [sh.Copy(2), sh.Markov(2)])
@pytest.mark.parametrize("emission", [sh.Normal(1), sh.MultivariateNormal(1)])
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_the_prior_is_weak_beside_states_far_apart(dynamics, emission, method):
    x = np.repeat([0.0, 100.0], 100) + 0.5 * np.random.default_rng(0).standard_normal(200)
    model = sh.SwitchingSSM(dynamics, emission)
    weak, none = model.fit(x, method, progress=False).model, model.fit(x, prior=None, progress=False).model
    order = weak.loc[:, 0].argsort()
    assert_close(weak.loc[order], none.loc[none.loc[:, 0].argsort()], rtol=0, atol=1e-2)
    ratio = weak.precision[order].flatten() / none.precision[none.loc[:, 0].argsort()].flatten()
    assert bool(((ratio.rsqrt() > 0.95) & (ratio.rsqrt() < 1.05)).all())


def test_one_outlier_does_not_hide_the_regimes():
    x = two_levels(300, 5.0)
    x[150] = 999.0
    model = sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)).fit(x, progress=False).model
    low, high, far = model.loc[:, 0].sort().values.tolist()
    assert abs(low) < 0.4
    assert abs(high - 5) < 0.4
    assert far > 900
    assert float(model.describe()["scale"][model.loc[:, 0].argsort()[:2]].max()) < 1.3


def test_rare_steps_far_away_are_a_state_of_their_own():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, generator=generator, dtype=torch.float64)
    rare = torch.arange(600) % 50 == 7
    x[rare] += 1000.0
    for emission in (sh.Normal(1), sh.MultivariateNormal(1)):
        loc = sh.SwitchingSSM(sh.Markov(2), emission).fit(x, progress=False).model.loc
        assert_close(loc.max(), x[rare].mean(), rtol=1e-3, atol=0)


# ---- how it came about -----------------------------------------------------------------------------------------------


def test_a_fall_is_said():
    def reason(*trace: float) -> str:
        climb = Climb("clusters", list(trace), ended="converged")
        return SearchResult([climb], climb, False, tol=1e-3).reason

    assert "fell" not in reason(-9.0, -5.0, -5.0005)
    assert reason(-9.0, -5.0, -5.5, -4.0).endswith("the objective fell by 0.5 nats at a step")


def test_every_restart_is_told_of():
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(two_levels(100, 3.0), restarts=4, progress=False)
    table = fit.restarts
    assert set(table.start[table.independent]) == set(KINDS)
    assert set(table.start[~table.independent]) <= set(CHANGES)
    assert set(table.ended) <= {"converged", "left behind", "merged", "max_steps"}
    assert fit.agreeing == table.start[table.agrees & table.independent].nunique() > 1
    assert int(table.agrees.sum()) > 4
    ends = table.agrees & (table.ended != "merged")
    assert (table.objective[ends] >= table.objective.max() - 0.02).all()
    assert len(sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit([0.0, 1, 5, 6], restarts=1, progress=False).restarts) == 1


def test_the_reason_doubts_an_optimum_that_few_kinds_of_start_have_reached():
    def reason(*heights: float, independent: tuple[bool, ...] = ()) -> str:
        kinds = ("clusters", "contexts", "pairs", "soft")
        climbs = [Climb(kind, [height], ended="converged") for kind, height in zip(kinds, heights, strict=True)]
        climbs += [Climb("shaken", [0.5], ended="converged", independent=False)] if independent else []
        best = max(climbs, key=lambda climb: climb.final)
        return SearchResult(climbs, best, False, tol=1e-3).reason

    assert "better one" not in reason(-1.0, -1.005, -9.0, -9.0)
    few = "only 1 of 4 kinds of start reached this optimum, so a better one may exist, within about 8 nats: raise"
    assert few in reason(-1, -2, -9, -10)
    assert "may exist: raise restarts=" in reason(-1, -2, -math.inf, -math.inf)
    none = "none of the 4 kinds of first guess reached this optimum, only changed copies of other ends did"
    assert none in reason(-1, -1, -1, -1, independent=(False,))


def test_restarts_that_merge_reach_what_their_leader_reaches():
    leader = Climb("clusters", [-5.0, -3.0])
    follower = Climb("soft", [-5.005], leader=leader)
    assert follower.reached(-3.0)
    assert not follower.reached(-5.005)
    assert follower.raised(2.0).reached(-1.0)


def test_only_restarts_at_the_same_point_merge():
    climbs = [Climb("clusters", [height]) for height in (-3.0, -3.005, -3.006, -4.0)]
    points = torch.tensor([[1.0, 2.0], [1.01, 2.0], [1.5, 2.0], [1.0, 2.0]], dtype=torch.float64)
    assert merged(climbs, points) == [None, climbs[0], None, None]


def test_the_search_leaves_a_poor_end(monkeypatch):
    """The only first guess leads to an end at which two states share a symbol's places at random."""
    x = np.tile([0.0, 0, 1, 1, 2, 2], 40)
    model = sh.SwitchingSSM(sh.Markov(6), sh.Categorical(3))
    whole = search_module.first_guesses
    monkeypatch.setattr(search_module, "first_guesses", lambda problem, n, *_: whole(problem, 1, 0))
    fit = model.fit(x, prior=None, progress=False)
    first = fit.restarts[fit.restarts.independent].objective.max()
    assert first < -1.0
    assert float(fit.objective[-1]) > -1e-3
    assert fit.agreeing == 0


@pytest.mark.parametrize(
    ("agreement", "max_steps", "rounds"),
    [((1, 8), 500, search_module.PATIENCE), ((2, 8), 500, 1), ((1, 2), 500, 1), ((1, 8), 1, 1)],
)
def test_changes_are_tried_for_longer_where_the_best_end_is_doubted(agreement, max_steps, rounds, monkeypatch):
    made: list[int] = []

    def copies(problem, ends, n, seed):
        made.append(n)
        return Starts({name: torch.stack([value] * n) for name, value in ends[0].values.items()}, ("shaken",) * n)

    monkeypatch.setattr(search_module, "perturbed", copies)
    monkeypatch.setattr(SearchResult, "agreement", agreement)
    x = two_levels(100, 3.0)
    sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, restarts=4, max_steps=max_steps, progress=False)
    assert len(made) == rounds


def test_what_is_left_to_gain_is_extrapolated():
    rises = 0.5 ** np.arange(10)
    climb = Climb("clusters", list(-100 + rises.cumsum()))
    assert_close(climb.remaining_gain(0.0), rises[-1])  # the sum of all that follow
    assert Climb("clusters", [0.0, 1.0, 2.0]).remaining_gain(0.0) == np.inf  # not slowing down
    assert Climb("clusters", [0.0, 1.0]).remaining_gain(0.0) == np.inf
    assert Climb("clusters", [5.0, 5.0, 5.0]).remaining_gain(0.0) == 0.0


def test_a_leap_goes_as_far_as_its_last_rises_say():
    climb = Climb("clusters", list(-100 - 0.81 ** np.arange(10)))  # of rate 0.9 in the parameters
    assert_close(climb.extrapolation(0.0, 8), 0.9**8 / (1 - 0.9**8))
    assert Climb("clusters", [0.0, 1.0, 2.0]).extrapolation(0.0, 8) == 0.0  # not slowing down
    assert Climb("clusters", [0.0, 1.0, 0.5]).extrapolation(0.0, 8) == 0.0  # falling
    assert Climb("clusters", [0.0, 1.0, 1.0 + 1e-14]).extrapolation(1e-13, 8) == 0.0  # at rest


@pytest.fixture(scope="module")
def flat_ridge():
    """Symbols of states that look much alike: steps of EM become small long before the top."""
    truth = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(4)).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.8, 0.2], [0.3, 0.7]],
        probs=[[0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]],
    )
    return truth.simulate(800, seed=0).x


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_leaps_shorten_a_slow_climb_and_never_lower_it(monkeypatch, flat_ridge, method):
    model = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(4))
    start = model.fit(flat_ridge, method, restarts=4, max_steps=8, progress=False).model
    options = {"start": start, "restarts": 1, "max_steps": 3000, "tol": 1e-9, "progress": False}
    leaping = model.fit(flat_ridge, method, **options)
    monkeypatch.setattr(search_module, "FIRST_EXTRAPOLATION", 10**9)
    walking = model.fit(flat_ridge, method, **options)
    assert leaping.converged
    assert float(leaping.objective.diff().min()) > -1e-9
    assert leaping.steps < 0.6 * walking.steps
    assert float(leaping.objective[-1]) > float(walking.objective[-1]) - 1e-4


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_what_has_converged_has_little_left_to_gain(flat_ridge, method):
    model = sh.SwitchingSSM(sh.Markov(2), sh.Categorical(4))
    fit = model.fit(flat_ridge, method, progress=False)
    assert fit.converged
    assert fit.reason.startswith("converged: the remaining gain is below 0.0008 nats")
    on = model.fit(flat_ridge, method, start=fit, restarts=1, max_steps=3000, tol=0.0, progress=False)
    assert float(on.objective[-1] - fit.objective[-1]) < 5e-3
    short = model.fit(flat_ridge, method, restarts=1, max_steps=10, progress=False)
    assert not short.converged
    assert "raise max_steps" in short.reason
    assert short.reason in repr(short)


def test_a_fit_whose_objective_stands_still_has_converged():
    """One state has no path to learn, so the second step changes nothing."""
    x = two_levels(12, 4.0)
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(x, "vmp", restarts=1, progress=False)
    assert fit.converged
    assert fit.steps < 10
    later = fit.update(x)
    assert later.converged
    assert later.steps < 10


def test_leaps_keep_what_is_impossible_and_stay_inside():
    now = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    before = torch.tensor([[0.9, 0.1, 0.0]], dtype=torch.float64)
    far = _ahead(before, now, torch.tensor([100.0]), constraints.simplex)
    assert_close(far.sum(-1), torch.ones(1, dtype=torch.float64))
    assert float(far[0, 2]) == 0.0
    assert float(far[0, 1]) > 0.99
    size = _ahead(now[:, :1], now[:, :1] / 2, torch.tensor([100.0]), constraints.positive)
    assert 0 < float(size) < 1e-20


@pytest.mark.parametrize("emission", [sh.Normal(2), sh.MultivariateNormal(2), sh.Poisson(2), sh.Bernoulli(2)])
def test_guesses_are_inside_their_supports_and_differ(emission):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 2, (2, 40, 2)).astype(float))
    x[0, 3] = x[1, 5, 0] = torch.nan
    model = sh.SwitchingSSM(sh.Markov(3), emission).scaled_to(x, lengths=[40, 25])
    problem = model.problem(x, lengths=[40, 25])
    starts = first_guesses(problem, 8, 0)
    state = x.new_full((2, 40, 3), 1 / 3)
    ends = [End({name: value[r] for name, value in starts.values.items()}, state) for r in range(3)]
    moved = perturbed(problem, ends, 10, 0)
    assert set(moved.kinds) == set(CHANGES)
    for values in (starts.values, moved.values):
        for name, parameter in problem.parameters.items():
            assert bool(parameter.support.check(values[name]).all()), name
            assert bool(values[name].isfinite().all())
    assert bool(problem.objective(starts.values).isfinite().all())
    assert len(problem.objective(starts.values).unique()) >= 5


def test_a_restart_that_fails_is_dropped_and_counted(monkeypatch):
    """The other restarts go on, and the fit fails only if all of them do."""
    true_step, x, bad = em.maximized, two_levels(60, 3.0), []

    def maximized(problem, marginals, values, floor):
        loc = values["loc"]
        bad[:] = bad or [loc[-1].clone()]
        if any(torch.equal(one, bad[0]) for one in loc):
            raise ValueError("log_likelihood: got nan")
        return true_step(problem, marginals, values, floor)

    monkeypatch.setattr(em, "maximized", maximized)
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, restarts=2, max_steps=20, progress=False)
    assert int((fit.restarts["ended"] == "failed").sum()) == 1
    assert f"1 of {len(fit.restarts)} starts failed and were dropped" in fit.reason
    assert bool(fit.objective.isfinite().all())
    bad.clear()
    with pytest.raises(ValueError, match="got nan"):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(x, restarts=1, start=fit.model, max_steps=2, progress=False)


def fit_of(kind: str) -> Any:
    """A short fit by an optimizer of each kind."""
    x, options = two_levels(40, 3.0)[:, None], {"restarts": 4, "progress": False, "seed": 0}
    pairs, chain = np.concatenate([x, x[::-1]], -1), sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    fits = {
        "EM": lambda: chain.fit(x, "em", **options),
        "message passing": lambda: chain.fit(x, "vmp", **options),
        "Newton": lambda: sh.LinearSSM(sh.LocalLevel()).fit(x, **options),
        "BFGS": lambda: sh.Segments(sh.Normal(1)).fit(x, **options),
        "a linear graph": lambda: sh.SwitchingLinearSSM(2, 1, 2).fit(pairs, "vmp", **options),
    }
    return fits[kind]()


OPTIMIZERS = {"EM": em.EM, "message passing": Passing, "Newton": Ascent, "BFGS": Ascent, "a linear graph": Passing}


def poison(optimizer: Any, restarts: slice) -> None:
    for table in optimizer.tables.values():
        for part in tree_parts(table):
            part.detach()[restarts] = torch.nan


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_restart_whose_numbers_become_nan_is_dropped_and_counted(kind, monkeypatch):
    true_run, true_climb, searched = OPTIMIZERS[kind].run, search_module.MultiStart._risen, []

    def risen(self, *given):
        searched.append(True)
        return true_climb(self, *given)

    def run(self, max_steps):
        found = true_run(self, max_steps)
        if len(searched) == 1:
            poison(self, slice(1))
        return found

    monkeypatch.setattr(search_module.MultiStart, "_risen", risen)
    monkeypatch.setattr(OPTIMIZERS[kind], "run", run)
    fit = fit_of(kind)
    assert int((fit.restarts["ended"] == "failed").sum()) == 1
    assert f"1 of {len(fit.restarts)} starts failed and were dropped" in fit.reason
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


@pytest.mark.parametrize("kind", ["EM", "message passing"])
def test_a_fit_keeps_what_it_has_if_all_further_restarts_fail(kind, monkeypatch):
    true_run, true_batch, batches = OPTIMIZERS[kind].run, search_module.MultiStart.run, []

    def batch(self, *given, **named):
        batches.append(len(given[1]))
        return true_batch(self, *given, **named)

    def run(self, max_steps):
        found = true_run(self, max_steps)
        if len(batches) > 1:
            poison(self, slice(None))
        return found

    monkeypatch.setattr(search_module.MultiStart, "run", batch)
    monkeypatch.setattr(OPTIMIZERS[kind], "run", run)
    fit = fit_of(kind)
    assert fit.converged
    assert len(batches) > 1
    assert int((fit.restarts["ended"] == "failed").sum()) == sum(batches[1:])
    assert all(bool(value.isfinite().all()) for value in fit.model.values.values())


def test_if_all_numbers_become_nan_the_fit_says_so(monkeypatch):
    true_run = em.EM.run

    def run(self, max_steps):
        found = true_run(self, max_steps)
        poison(self, slice(None))
        return found

    monkeypatch.setattr(em.EM, "run", run)
    with pytest.raises(ValueError, match="the parameters of all restarts became NaN; scale x"):
        fit_of("EM")


def test_changes_that_cannot_be_made_are_left_out(monkeypatch):
    def refused(draws, end):
        raise ValueError("duration_rate: got nan")

    monkeypatch.setattr(perturbation, "CHANGES", dict.fromkeys(CHANGES, refused))
    assert fit_of("EM").converged
    monkeypatch.setattr(perturbation, "CHANGES", CHANGES | {"crossed": refused})
    assert "crossed" not in set(fit_of("EM").restarts["start"])


def test_a_mixture_without_weight_has_equal_shares():
    emission = sh.Mixture(sh.Normal(1), 2)
    x = torch.tensor([[0.0], [1.0], [5.0]]).double()
    near = emission.start(emission.default_prior(2, x))
    weights = torch.tensor([[1.0, 1e-320], [1.0, 1e-320], [1.0, 0.0]]).double()
    best = emission.maximize(x, weights, near, None, torch.full((1,), 1e-10).double()).values
    assert best["component_probs"][1].tolist() == [0.5, 0.5]
    assert_close(best["component_probs"].sum(-1), torch.ones(2).double())
