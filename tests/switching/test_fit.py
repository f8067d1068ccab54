"""Fitting: what is maximised rises, restarts help, and nothing turns into NaN."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, random_model
from samplehold.switching.fitting import EM, first_guesses
from torch.testing import assert_close

DATA = Path(sh.__file__).parent / "notebooks" / "data"


@pytest.mark.few(3)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
@pytest.mark.parametrize("prior", ["weak", None])
def test_the_objective_never_falls(dynamics, emission, prior):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (3,), 40)
    x = model.simulate(40, (3,), seed=0, **keywords).x
    if emission in ("normal", "full", "spherical"):
        x[0, 5, 0] = x[1, 7:9] = torch.nan
    fit = model.fit(x, restarts=1, max_steps=20, tol=0, progress=False, prior=prior, **keywords)
    rises = fit.objective.diff()
    assert len(fit.objective) > (2 if "tied" in emission or emission == "spherical" else 5)
    assert float(rises.min()) > -1e-9 * float(fit.objective.abs().max())
    assert bool(torch.isfinite(fit.objective).all())
    for value in fit.model.values.values():
        assert bool(torch.isfinite(value).all())


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("dynamics", "emission"), [("copy", "normal"), ("inputs", "normal"), ("markov", "full"), ("copy", "gated")]
)
def test_the_objective_is_the_log_joint_at_the_fitted_values(dynamics, emission):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (2,), 30)
    x = model.simulate(30, (2,), seed=0, **keywords).x
    fit = model.fit(x, restarts=2, progress=False, **keywords)
    joint = fit.model.log_evidence(x, **keywords).sum() + fit.model.log_prior(fit.model.values)
    assert_close(fit.objective[-1], joint, rtol=1e-10, atol=0)
    assert float(fit.objective[-1]) >= fit.restarts.objective.max() - 1e-3
    likelihood = model.fit(x, restarts=2, progress=False, prior=None, **keywords)
    assert_close(likelihood.objective[-1], likelihood.model.log_evidence(x, **keywords).sum(), rtol=1e-10, atol=0)


def test_nile_changes_in_1899(nile):
    fit = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1)).fit(nile, progress=False)
    assert fit.converged
    high, low = fit.model.loc.flatten().sort(descending=True).values.tolist()
    assert abs(high - 1100) < 20
    assert abs(low - 850) < 20
    redraw = fit.model.smooth(nile).redraw
    year = int(nile.index[1 + int(redraw[1:].argmax())])
    assert year == 1899
    assert float(redraw[1:].max()) > 0.5
    path = fit.model.viterbi(nile).path
    changes = [int(nile.index[t]) for t in range(1, len(path)) if path[t] != path[t - 1]]
    assert changes == [1899]


@pytest.mark.few(2)
@pytest.mark.parametrize("emission", [sh.Poisson(1), sh.Normal(1)])
@pytest.mark.parametrize("dynamics", [sh.Copy(3), sh.Markov(3)])
def test_sunspots_have_quiet_and_busy_years(emission, dynamics):
    spots = pd.read_csv(DATA / "sunspots.csv", index_col="year").round()
    fit = sh.SwitchingSSM(dynamics, emission).fit(spots, progress=False)
    assert fit.converged
    means = fit.model.emission.mean(fit.model.values).redrawn.flatten().sort().values
    assert float(means[0]) < 25
    assert float(means[2]) > 80
    busiest = fit.model.smooth(spots).state[spots["activity"].to_numpy().argmax()]
    assert float(busiest.max()) > 0.99


def test_us_macro_has_a_stagflation():
    macro = pd.read_csv(DATA / "us_macro.csv", index_col="quarter")[["infl", "unemp"]]
    fit = sh.SwitchingSSM(sh.Copy(3), sh.MultivariateNormal(2)).fit(macro, progress=False)
    assert fit.converged
    inflation = fit.model.loc[:, 0]
    state = fit.model.smooth(macro).state
    highest = int(inflation.argmax())
    during = [str(q).startswith(("1974", "1980")) for q in macro.index]
    assert float(state[during, highest].mean()) > 0.8
    assert float(inflation.max()) > 5


def test_missing_years_can_be_fitted(nile):
    holes = nile.astype(float).copy()
    holes.iloc[10:20] = np.nan
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(holes, progress=False)
    without = pd.concat([holes.iloc[:10], holes.iloc[20:]])
    dt = torch.ones(len(without))
    dt[10] = 11
    same = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(without, progress=False, dt=dt, tol=1e-12, max_steps=3000)
    assert_close(fit.model.loc.sort(0).values, same.model.loc.sort(0).values, rtol=1e-2, atol=0)
    assert_close(same.model.log_evidence(without, dt=dt), same.model.log_evidence(holes), rtol=1e-12, atol=0)


def test_the_same_seed_gives_the_same_fit_and_restarts_differ(nile):
    model = sh.SwitchingSSM(sh.Copy(3), sh.Normal(1))
    first, again = (model.fit(nile, seed=3, max_steps=5, progress=False) for _ in range(2))
    assert_close(first.model.values, again.model.values, rtol=0, atol=0)
    assert first.restarts.equals(again.restarts)
    assert first.restarts.objective.nunique() > 4


def test_restarts_as_a_batch_equal_restarts_one_by_one(nile):
    problem = sh.SwitchingSSM(sh.Copy(3), sh.Normal(1)).scaled_to(nile).problem(nile)
    values = first_guesses(problem, 4, 0).values
    together = EM(problem, values).run(50).elbo
    for r in range(4):
        alone = EM(problem, {n: v[r : r + 1] for n, v in values.items()}).run(50).elbo
        assert_close(together[:, r], alone[:, 0], rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize(
    "model", [sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(1))]
)
def test_float32_data_give_a_float32_fit_close_to_that_in_float64(nile, model, method):
    x = torch.from_numpy(nile.to_numpy(dtype=np.float32))
    single, double = (model.fit(y, method, restarts=2, progress=False) for y in (x, x.double()))
    assert single.model.loc.dtype == torch.float32
    assert_close(single.model.loc.double().sort(0).values, double.model.loc.sort(0).values, rtol=1e-3, atol=0)


def test_a_state_that_collapses_is_said_and_not_preferred():
    x = torch.tensor([0.0] * 30, dtype=torch.float64) + torch.randn(
        30, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    x[17] = 1000.0  # a single outlier: the likelihood grows without bound as a state shrinks onto it
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(x, prior=None, restarts=4, progress=False)
    assert bool(torch.isfinite(fit.objective).all())
    assert bool(fit.collapsed_states.any())
    penalised = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(x, restarts=4, progress=False)
    assert not bool(penalised.collapsed_states.any())


def test_states_without_any_mass_are_said_and_stay_finite():
    x = torch.tensor([0.0, 1.0] * 10, dtype=torch.float64)
    fit = sh.SwitchingSSM(sh.Copy(5), sh.Categorical(2)).fit(x, restarts=2, progress=False)
    assert bool(torch.isfinite(fit.objective).all())
    for value in fit.model.values.values():
        assert bool(torch.isfinite(value).all())
    constant = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit([1.0] * 20, restarts=2, progress=False, prior=None)
    assert bool(torch.isfinite(constant.objective).all())
    assert bool((constant.collapsed_states | constant.empty_states).any())


def test_interrupting_a_fit_returns_the_best_so_far(nile, monkeypatch):
    from samplehold.switching.fitting import em

    calls = []
    true_step = em.maximized

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return true_step(*args)

    monkeypatch.setattr(em, "maximized", interrupted)
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(nile, progress=False)
    assert fit.interrupted
    assert not fit.converged
    assert len(fit.objective) == 2
    assert_close(
        fit.objective[-1], fit.model.log_evidence(nile) + fit.model.log_prior(fit.model.values), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "mcmc"}, "method: got 'mcmc'"),
        ({"restarts": 0}, "restarts: got 0"),
        ({"max_steps": 0}, "max_steps: got 0"),
        ({"tol": float("nan")}, "tol: got nan"),
        ({"prior": "flat"}, "prior: got 'flat', expected .weak., None, or distributions by name"),
        ({"x": [1.0, float("nan")]}, "got 1 observed step.* for 2 states"),
        ({"x": [float("nan")] * 5}, "feature 0 has no observed value"),
    ],
)
def test_bad_arguments_are_named(change, said):
    keywords = {"x": [0.0, 1.0, 2.0], "progress": False} | change
    with pytest.raises(ValueError, match=said):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(**keywords)


def test_priors_without_a_mode_are_refused_by_em():
    with pytest.raises(ValueError, match="state_concentration: got a concentration below 1"):
        sh.SwitchingSSM(sh.Copy(2, state_prior=0.5), sh.Normal(1)).fit([0.0, 1.0, 2.0], progress=False)


def test_the_log_likelihood_of_a_long_float32_series_is_added_up_in_float64():
    """float32 has a distance of 0.004 between numbers of this size."""
    x = (torch.randn(40_000, generator=torch.Generator().manual_seed(0)) + 5).unsqueeze(-1)
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1)).fit(x, restarts=1, max_steps=1, progress=False)
    assert fit.model.loc.dtype == torch.float32
    assert_close(fit.loglik, float(fit.model.log_evidence(x.double())), rtol=0, atol=1e-8)


def test_the_evidence_of_many_float32_sequences_is_added_up_in_float64():
    """float32 would miss 0.01 nats."""
    x = torch.randn(1, 200, 1, generator=torch.Generator().manual_seed(0)).expand(1000, -1, -1)
    problem = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1)).problem(x)
    values = {"redraw_prob": 0.5, "state_probs": [1.0], "loc": [[0.1]], "precision": [[1.0]]}
    evidence = problem.evidence({name: torch.tensor(value) for name, value in values.items()})
    assert_close(problem.total(evidence), 1000 * evidence[0].double(), rtol=1e-12, atol=0)
