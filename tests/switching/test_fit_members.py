"""A fit has the verbs of its model, its Tab key offers what it can answer, and what it lacks is answered by what to
write."""

from inspect import signature

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.operators import unchecked
from samplehold.switching.of_model import OfModel, Verb
from samplehold.switching.offers import conditions
from torch.testing import assert_close

X = torch.tensor([1.0, 1.1, 0.9, 4.0, 4.2, 4.1, 1.2, 0.8, 1.0, 4.1], dtype=torch.float64)
EFFORT = {"restarts": 1, "max_steps": 5, "progress": False}
VERBS = {name: member for name, member in vars(OfModel).items() if isinstance(member, Verb)}
NEEDED = {"update": {"x": X}, "transition_table": {"times": 1.0}}
MODELS = {
    "copy": sh.SwitchingSSM(sh.Copy(2), sh.Normal()),
    "continuous": sh.SwitchingSSM(sh.ContinuousMarkov(2), sh.Normal()),
    "linear": sh.LinearSSM(sh.LocalLevel()),
    "segments": sh.Segments(sh.Normal()),
    "factorial": sh.FactorialSSM((2, 2), sh.Poisson()),
}


@pytest.fixture(scope="module", params=MODELS)
def fit(request) -> sh.Fit:
    return MODELS[request.param].fit(X.round() if request.param == "factorial" else X, **EFFORT)


@pytest.fixture(scope="module")
def copy() -> sh.Fit:
    return MODELS["copy"].fit(X, **EFFORT)


def test_verbs_of_the_model_read_the_fitted_series(copy):
    model = copy.model
    assert_close(copy.smooth().state, model.smooth(X).state)
    assert_close(copy.filter().state, model.filter(X).state)
    assert_close(copy.durations(), model.durations(X))
    assert_close(copy.log_evidence(), model.log_evidence(X))
    assert torch.equal(copy.viterbi().path, model.viterbi(X).path)
    assert torch.equal(copy.viterbi([1.0, 4.0]).path, model.viterbi([1.0, 4.0]).path)
    assert copy.describe().keys() == model.describe().keys()
    assert [len(one.state) for one in copy.smooth([X, X[:3]], ragged=True)] == [10, 3]


def test_a_number_in_place_of_x_is_a_number_of_steps_or_draws(copy):
    assert copy.forecast(4).mean.shape == copy.forecast(horizon=4).mean.shape == (4, 1)
    assert copy.forecast(X[:5], 4).mean.shape == (4, 1)
    assert copy.forecast().mean.shape == (1, 1)
    assert copy.sample_posterior(7).path.shape == (7, 10)
    for call in (lambda: copy.forecast(4, horizon=2), lambda: copy.sample_posterior(4, n=2)):
        with pytest.raises(ValueError, match=r"^x: got 4, a single number, and (horizon|n)=2; give one of the two"):
            call()


def test_a_draw_has_the_sequences_inputs_and_steps_of_the_data():
    x, inputs = X.expand(3, 10)[..., None], torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(3, 10, 1)
    fit = sh.SwitchingSSM(sh.Markov(2, inputs=1), sh.Normal()).fit(x, inputs=inputs, **EFFORT)
    assert_close(fit.simulate(seed=1).x, fit.model.simulate(10, (3,), seed=1, inputs=inputs).x)
    assert_close(fit.simulate(4, seed=1, inputs=inputs[0, :4]).x, fit.model.simulate(4, seed=1, inputs=inputs[0, :4]).x)
    assert MODELS["linear"].fit(X, **EFFORT).simulate(seed=0).x.shape == (10, 1)


def test_signatures_are_those_of_the_model_without_x(copy):
    assert str(signature(copy.forecast)).startswith("(x: Any = None, horizon: int = None")
    assert copy.smooth.__doc__ == copy.model.smooth.__doc__
    for name, verb in VERBS.items():
        assert getattr(sh.Fit, name).__doc__ == verb.__doc__


def test_tab_offers_what_the_fit_can_answer(fit):
    offered = [name for name in dir(fit) if not name.startswith("_")]
    assert len(offered) == len(set(offered))
    for name in set(offered) & (VERBS.keys() | conditions(fit).keys()):
        member = getattr(fit, name)  # properties compute
        if callable(member) and not name.startswith("plot"):
            member(**NEEDED.get(name, {}))


def test_tab_offers_nothing_that_the_fit_cannot_answer(fit):
    offered, hidden = set(dir(fit)), {name for name in dir(sh.Fit) if name[0] != "_"} - set(dir(fit))
    assert offered.isdisjoint({"of", "reported", "running"})
    for name in sorted(hidden & VERBS.keys() - {"transition_table"}):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(fit, name)
    for name in sorted(hidden - VERBS.keys() - {"of", "reported", "running", "held", "paths"}):
        given = [X] if name == "update" else ["a"] if name in ("subject", "plot_effect") else []
        with pytest.raises((TypeError, ValueError, AttributeError)):
            getattr(fit, name)(*given)


def test_a_posterior_offers_no_criteria_of_a_point(copy):
    fit = MODELS["copy"].fit(X, "vmp", **EFFORT)
    assert {"aic", "aicc", "bic", "hqic", "icl"} <= set(dir(copy)) - set(dir(fit))
    assert {"cov_params", "conf_int", "nobs", "posterior"} <= set(dir(fit))


def test_what_is_of_the_model_alone_is_written_out(copy):
    for name in ("loc", "with_values", "n_states"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; use fit\.model\.{name}\.$"):
            getattr(copy, name)
    for name in ("aicc", "conf_int", "summary", "nobs"):
        with pytest.raises(AttributeError, match=rf"use fit\.{name}, where fit = model\.fit\(x\)\.$"):
            getattr(MODELS["copy"], name)


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_changes_are_those_of_the_states_with_their_dates():
    dates = pd.date_range("2020-01-31", periods=10, freq="ME")
    fit = MODELS["copy"].fit(pd.Series(X.numpy(), dates), progress=False)
    found, states = fit.changes(), fit.states()
    assert found.index.tolist() == [dates[3], dates[6], dates[9]]
    assert found[["from", "to"]].to_numpy().tolist() == [[0, 1], [1, 0], [0, 1]]
    np.testing.assert_allclose(found["probability"], states.loc[found.index, "change"], rtol=1e-12)


def test_changes_of_several_sequences_are_within_each_and_carry_labels():
    two = [X, X[3:8]]
    labels = [["low", *[None] * 2, "high", *[None] * 6], ["high", *[None] * 4]]
    fit = MODELS["copy"].fit(two, states=labels, restarts=2, progress=False)
    assert fit.changes().index.tolist() == [(0, 3), (0, 6), (0, 9), (1, 3)]
    assert fit.changes()["to"].tolist() == ["high", "low", "high", "low"]
    table = pd.DataFrame(
        {"who": [*"ab"] * 5, "t": np.repeat(range(5), 2), "x": [1.0, 4.0] * 2 + [4.0, 4.1] * 2 + [1, 1]}
    )
    panel = MODELS["copy"].fit(sh.read_panel(table, "who", "t", ["x"]), restarts=2, progress=False)
    assert panel.changes().index.tolist() == [4, 8, 9]


def test_changes_of_chains_and_of_segments():
    chains = MODELS["factorial"].fit(X.round(), **EFFORT)
    found, states = chains.changes(), chains.states()
    for d in (1, 2):
        moved = states[f"state_{d}"].diff().fillna(0) != 0
        assert found.index[found["chain"] == d].tolist() == states.index[moved].tolist()
    assert found.index.is_monotonic_increasing
    segments = MODELS["segments"].fit(X, progress=False)
    assert segments.changes().index.tolist() == segments.segments["begin"].tolist()[1:]
    with pytest.raises(TypeError, match=r"^changes: a LinearSSM has no states"):
        MODELS["linear"].fit(X, **EFFORT).changes()


def test_changes_have_the_kind_of_frame_of_the_data():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"t": range(10), "x": X.numpy()})
    fit = MODELS["copy"].fit(sh.read_panel(frame, None, "t", ["x"]), progress=False)
    assert isinstance(fit.changes(), polars.DataFrame)
    assert fit.changes()["t"].to_list() == [3, 6, 9]


def test_a_class_in_place_of_an_object_is_named():
    with (
        unchecked(),
        pytest.raises(TypeError, match=r"^dynamics: got the class Markov, expected dynamics such as Copy"),
    ):
        sh.SwitchingSSM(sh.Markov, sh.Normal())  # pyright: ignore[reportArgumentType]
