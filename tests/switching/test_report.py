"""What a fit tells ArviZ is what the model computes, under names that a reader knows."""

import itertools

import arviz as az
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from samplehold import (
    Bernoulli,
    Categorical,
    Copy,
    Gated,
    Markov,
    MultivariateNormal,
    Normal,
    Poisson,
    SwitchingLinearSSM,
    SwitchingSSM,
)
from samplehold.switching import problem
from samplehold.switching.views import arviz as report
from torch.testing import assert_close

DRAWN = ("chain", "draw")


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def nile_fit(nile):
    return SwitchingSSM(Copy(2), Normal(1)).fit(nile, restarts=4, progress=False)


@pytest.fixture(scope="module")
def nile_data(nile, nile_fit):
    return nile_fit.to_arviz(nile)


def copy_model(n_states: int = 3) -> SwitchingSSM:
    return SwitchingSSM(Copy(n_states), Normal(1)).with_values(
        redraw_prob=tensor(0.3),
        state_probs=tensor([0.5, 0.3, 0.2])[:n_states] / tensor([0.5, 0.3, 0.2])[:n_states].sum(),
        loc=tensor([[-1.0], [0.5], [2.0]])[:n_states],
        scale=tensor([[1.0], [0.7], [1.5]])[:n_states],
    )


def markov_model() -> SwitchingSSM:
    return SwitchingSSM(Markov(3), Normal(1)).with_values(
        initial_probs=tensor([0.6, 0.4, 0.0]),
        transition_probs=tensor([[0.7, 0.2, 0.1], [0.0, 0.9, 0.1], [0.3, 0.3, 0.4]]),
        loc=tensor([[-1.0], [0.5], [2.0]]),
        scale=tensor([[1.0], [0.7], [1.5]]),
    )


def data_of(model: SwitchingSSM, x, draws: int = 4, **keywords) -> az.InferenceData:
    """The InferenceData of a model with known values, as of a fit that found them."""
    series = model.read(x, **{name: keywords.pop(name, None) for name in ("lengths", "inputs", "dt")})
    point = {name: value.unsqueeze(0) for name, value in model.values_like(series.observations).items()}
    return az.InferenceData(**report.groups_of(model, point, (1, draws), series, **keywords))


def test_series_are_drawn_only_where_they_are_wanted(nile, nile_fit, nile_data):
    without = report.to_arviz(nile_fit, nile, predictive=False)
    assert set(nile_data.groups()) - set(without.groups()) == {"posterior_predictive", "replicated"}
    for name in without.groups():
        xr.testing.assert_identical(without[name], nile_data[name])


def test_from_version_1_of_arviz_on_groups_are_a_tree_of_the_same_datasets(nile, nile_fit, nile_data, monkeypatch):
    monkeypatch.setattr(az, "__version__", "1.3.0")
    tree = report.to_arviz(nile_fit, nile, seed=0)
    assert isinstance(tree, xr.DataTree)
    assert tree.attrs == nile_data.attrs
    assert set(tree.children) == set(nile_data.groups())
    for name in nile_data.groups():
        xr.testing.assert_identical(tree[name].to_dataset(), nile_data[name])


# ---- names ---------------------------------------------------------------------------------------------------------


def test_every_group_has_named_dims_and_the_coordinates_of_the_data(nile, nile_data):
    assert set(nile_data.groups()) == {
        "posterior",
        "posterior_predictive",
        "replicated",
        "log_likelihood",
        "observed_data",
        "sample_stats",
        "smoothed",
    }
    assert {name: value.dims for name, value in nile_data.posterior.data_vars.items()} == {
        "redraw_prob": DRAWN,
        "state_probs": (*DRAWN, "state"),
        "loc": (*DRAWN, "state", "feature"),
        "scale": (*DRAWN, "state", "feature"),
    }
    assert nile_data.posterior_predictive["x"].dims == (*DRAWN, "time")
    assert nile_data.replicated["x"].dims == (*DRAWN, "time", "feature")
    assert nile_data.log_likelihood["x"].dims == (*DRAWN, "time")
    assert nile_data.observed_data["x"].dims == ("time",)
    assert {name: value.dims for name, value in nile_data.smoothed.data_vars.items()} == {
        "state_probability": ("time", "state"),
        "redraw_probability": ("time",),
        "change_probability": ("time",),
    }
    for group in ("posterior_predictive", "replicated", "log_likelihood", "observed_data", "smoothed"):
        assert nile_data[group]["time"].values.tolist() == list(range(1871, 1971))
    assert nile_data.posterior["feature"].values.tolist() == ["volume"]
    assert nile_data.posterior.sizes["draw"] == nile_data.posterior_predictive.sizes["draw"] == 100


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            SwitchingSSM(Markov(2), MultivariateNormal(2)),
            {
                "initial_probs": ("state",),
                "transition_probs": ("state", "state_new"),
                "loc": ("state", "feature"),
                "covariance": ("state", "feature", "feature_new"),
            },
        ),
        (
            SwitchingSSM(Copy(2), Poisson(2)),
            {"redraw_prob": (), "state_probs": ("state",), "rate": ("state", "feature")},
        ),
        (
            SwitchingSSM(Copy(2), Bernoulli(2)),
            {"redraw_prob": (), "state_probs": ("state",), "probs": ("state", "feature")},
        ),
        (
            SwitchingSSM(Copy(2), Categorical(3)),
            {"redraw_prob": (), "state_probs": ("state",), "probs": ("state", "category")},
        ),
        (
            SwitchingSSM(Copy(2), Gated(Poisson(1), Categorical(3))),
            {
                "redraw_prob": (),
                "state_probs": ("state",),
                "rate": ("state", "feature"),
                "background_probs": ("category",),
            },
        ),
    ],
)
def test_parameters_of_every_family_have_their_dims(model, expected):
    x = np.random.default_rng(0).integers(0, 2, (30, model.emission.n_features)).astype(float)
    data = model.fit(x, method="vmp", restarts=2, max_steps=20, progress=False).to_arviz(x, draws=4)
    assert {name: value.dims[2:] for name, value in data.posterior.data_vars.items()} == expected
    assert np.isfinite(data.posterior.to_array().values).all()
    assert az.summary(data, kind="stats").shape[0] == sum(value[0, 0].size for value in data.posterior.values())


def test_inputs_are_named_and_gaps_are_taken():
    rng = np.random.default_rng(1)
    x, inputs = rng.normal(size=40), pd.DataFrame({"heat": rng.normal(size=40), "rain": rng.normal(size=40)})
    dt = np.full(40, 2.0)
    fit = SwitchingSSM(Copy(2, inputs=2), Normal(1)).fit(
        x, restarts=1, max_steps=3, progress=False, inputs=inputs.to_numpy(copy=True), dt=dt
    )
    data = fit.to_arviz(x, inputs=inputs, dt=dt, draws=4)
    assert data.estimates["redraw_weights"].dims == ("input",)
    assert data.estimates["input"].values.tolist() == ["heat", "rain"]
    evidence = fit.model.log_evidence(x, inputs=inputs.to_numpy(copy=True), dt=dt)
    assert float(data.log_density["x"].sum()) == pytest.approx(float(evidence), rel=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("index", "stored"),
    [
        (pd.date_range("2020-01-31", periods=5, freq="ME"), "2020-01-31"),
        (pd.date_range("2020-01-01", periods=5, freq="D", tz="Europe/Berlin"), "2019-12-31T23"),
        (pd.period_range("2020Q1", periods=5, freq="Q"), "2020Q1"),
        (pd.Index(["a", "b", "c", "d", "e"]), "a"),
        (pd.Index([0.5, 1.5, 2.5, 3.5, 7.0]), "0.5"),
    ],
)
def test_any_pandas_index_survives_netcdf(index, stored, tmp_path):
    x = pd.DataFrame({"up": [0.0, 1.0, np.nan, 3.0, 9.0]}, index=index)
    data = data_of(copy_model(2), x)
    data.to_netcdf(str(tmp_path / "posterior.nc"))
    assert str(az.from_netcdf(tmp_path / "posterior.nc").smoothed["time"].values[0]).startswith(stored)


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nile_point(nile, nile_fit):
    return nile_fit.model.to_arviz(nile, draws=10)


def test_a_model_without_a_fit_is_a_point_with_nothing_to_compare_it_by(nile_data, nile_point):
    others = {"posterior_predictive", "replicated", "observed_data", "sample_stats", "smoothed"}
    assert set(nile_point.groups()) == {"estimates", "log_density", *others}
    assert nile_point.attrs["posterior"].startswith("left out")
    assert "normal around the estimates, with the curvature of the log posterior" in nile_data.attrs["posterior"]
    with pytest.raises(TypeError):
        az.loo(nile_point)
    with pytest.raises(TypeError):
        az.waic(nile_point)


def test_estimates_are_the_point_in_a_readers_form(nile_fit, nile_point):
    for name, value in nile_fit.model.describe().items():
        assert (nile_point.estimates[name].values == value.numpy()).all()


def test_the_log_density_is_one_step_ahead_and_sums_to_the_evidence(nile, nile_fit, nile_point):
    increments = nile_fit.model.filter(nile).log_increment.numpy()
    np.testing.assert_allclose(nile_point.log_density["x"].values, increments, rtol=0)
    assert float(nile_point.log_density["x"].sum()) == pytest.approx(
        float(nile_fit.model.log_evidence(nile)), rel=1e-12
    )


def test_smoothed_group_is_what_the_model_smooths(nile, nile_fit, nile_point):
    smoothed = nile_fit.model.smooth(nile)
    np.testing.assert_allclose(nile_point.smoothed["state_probability"].values, smoothed.state.numpy(), rtol=1e-12)
    np.testing.assert_allclose(nile_point.smoothed["redraw_probability"].values, smoothed.redraw.numpy(), rtol=1e-12)


def test_the_nile_changes_in_1899(nile_point):
    loc = np.sort(nile_point.estimates["loc"].values[:, 0])
    np.testing.assert_allclose(loc, [850, 1100], atol=10)
    redraw = nile_point.smoothed["redraw_probability"].sel(time=slice(1872, None))
    assert int(redraw.idxmax()) == 1899
    assert 0.7 < float(redraw.max()) < 0.9
    assert float(redraw.sel(time=[1898, 1899]).sum()) > 0.85
    change = nile_point.smoothed["change_probability"]
    assert float(change[0]) == 0
    assert (change.values[1:] <= redraw.values).all()
    best = nile_point.smoothed["state_probability"].argmax("state")
    assert (np.diff(best.values) != 0).nonzero()[0].tolist() == [1898 - 1871]


@pytest.mark.parametrize("model", [copy_model(), copy_model(2), markov_model()], ids=["copy", "copy2", "markov"])
def test_change_probability_equals_enumeration_of_all_paths(model):
    x = tensor([0.3, -1.2, 2.5, float("nan"), 0.1])
    likelihood = model.emission.log_likelihood(x.unsqueeze(-1), model.values).redrawn.exp().numpy()
    values = {name: value.numpy() for name, value in model.values.items()}
    if "redraw_prob" in values:
        first = values["state_probs"]
        table = (1 - values["redraw_prob"]) * np.eye(model.n_states) + values["redraw_prob"] * first
    else:
        first, table = values["initial_probs"], values["transition_probs"]
    total, changed = 0.0, np.zeros(5)
    for path in itertools.product(range(model.n_states), repeat=5):
        weight = first[path[0]] * likelihood[0, path[0]]
        for t in range(1, 5):
            weight *= table[path[t - 1], path[t]] * likelihood[t, path[t]]
        total += weight
        changed[1:] += weight * (np.diff(path) != 0)
    chain = model.chain(x)
    np.testing.assert_allclose(chain.change_probability().numpy(), changed / total, rtol=1e-10)
    data = data_of(model, x)
    np.testing.assert_allclose(data.smoothed["change_probability"].values, changed / total, rtol=1e-10)


def test_missing_steps_have_no_log_likelihood_and_are_filled_in_by_replicates():
    x = pd.DataFrame({"up": [0.3, np.nan, 2.5, np.nan, 0.1]}, index=[10, 20, 30, 40, 50])
    model = copy_model()
    data = data_of(model, x)
    assert data.log_likelihood["time"].values.tolist() == [10, 30, 50]
    assert float(data.log_likelihood["x"][0, 0].sum()) == pytest.approx(float(model.log_evidence(x)), rel=1e-12)
    assert np.isfinite(data.replicated["x"].values).all()
    assert data.replicated["time"].values.tolist() == [10, 20, 30, 40, 50]
    assert data.observed_data["x"].values.tolist() == [0.3, 2.5, 0.1]
    assert data.posterior_predictive["x"].shape == (1, 4, 3)
    with pytest.warns(UserWarning, match="Pareto"):
        assert az.loo(data)["elpd_loo"] == pytest.approx(float(model.log_evidence(x)), rel=1e-12)


@pytest.mark.parametrize("model", [copy_model(), markov_model()], ids=["copy", "markov"])
def test_ragged_sequences_get_an_axis_and_end_where_they_end(model):
    parts = [tensor([0.3, -1.2, 2.5, 0.0]), tensor([1.0, 2.0])]
    data = data_of(model, parts, lengths=None)
    assert data.smoothed["state_probability"].dims == ("sequence", "time", "state")
    likelihood = data.log_likelihood["x"][0, 0]
    assert likelihood.dims == ("observation",)
    assert likelihood["of_time"].values.tolist() == [0, 1, 2, 3, 0, 1]  # without the steps that are not there
    by_sequence = likelihood.groupby("of_sequence").sum().values
    np.testing.assert_allclose(by_sequence, model.log_evidence(parts).numpy(), rtol=1e-12)
    with pytest.warns(UserWarning, match="Pareto"):
        assert az.loo(data).n_data_points == 6
    for i, part in enumerate(parts):
        n = len(part)
        smoothed = data.smoothed["state_probability"].values[i]
        np.testing.assert_allclose(smoothed[:n], model.smooth(part).state.numpy(), rtol=1e-10)
        assert np.isnan(smoothed[n:]).all()
        assert np.isnan(data.smoothed["change_probability"].values[i, n:]).all()
        replicates = data.replicated["x"].values[:, :, i]
        assert np.isfinite(replicates[:, :, :n]).all()
        assert np.isnan(replicates[:, :, n:]).all()


def test_replicates_follow_the_smoothed_mixture():
    model, x = copy_model(), tensor([0.3, -1.2, 2.5, float("nan"), 0.1])
    drawn = data_of(model, x, draws=20_000).replicated["x"].values[0, :, :, 0]
    state = model.smooth(x).state.numpy()
    mean = state @ model.values["loc"].numpy()[:, 0]
    second = state @ (1 / model.values["precision"] + model.values["loc"] ** 2).numpy()[:, 0]
    spread = np.sqrt(second - mean**2)
    assert (np.abs(drawn.mean(0) - mean) < 5 * spread / np.sqrt(20_000)).all()
    np.testing.assert_allclose(drawn.std(0), spread, rtol=0.03)


def test_the_seed_alone_decides_the_replicates_and_torch_is_left_as_it_was():
    model, x = copy_model(), tensor([0.3, -1.2, 2.5])
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = data_of(model, x, seed=3).replicated["x"].values
    assert_close(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    assert (data_of(model, x, seed=3).replicated["x"].values == first).all()
    assert (data_of(model, x, seed=4).replicated["x"].values != first).all()


@pytest.mark.parametrize("table_size", [1, 2**24])
def test_several_parameter_draws_are_averaged_and_kept_apart_where_they_should_be(table_size, monkeypatch):
    monkeypatch.setattr(problem, "TABLE_SIZE", table_size)
    x = tensor([[0.3, -1.2, 2.5], [0.0, 0.5, float("nan")]]).unsqueeze(-1)
    models = [
        copy_model(),
        *(copy_model().with_values(copy_model().values | {"redraw_prob": tensor(p)}) for p in (0.1, 0.5, 0.9)),
    ]
    values = {name: torch.stack([model.values[name] for model in models]) for name in models[0].values}
    data = az.InferenceData(**report.groups_of(models[0], values, (2, 2), models[0].read(x)))
    assert data.posterior["redraw_prob"].values.tolist() == [[0.3, 0.1], [0.5, 0.9]]
    expected = np.mean([model.smooth(x).state.numpy() for model in models], 0)
    np.testing.assert_allclose(data.smoothed["state_probability"].values, expected, rtol=1e-12)
    for i, model in enumerate(models):
        own = model.filter(x).log_increment[~x[..., 0].isnan()].numpy()
        np.testing.assert_allclose(data.log_likelihood["x"].values[i // 2, i % 2], own, rtol=1e-12)
    assert data.replicated["x"].shape == (2, 2, 2, 3, 1)
    assert len(np.unique(data.replicated["x"].values)) == 24
    assert len(np.unique(data.posterior_predictive["x"].values)) == 4 * 5  # what was observed


# ---- ArviZ ---------------------------------------------------------------------------------------------------------


def test_a_fit_by_em_enters_by_draws_with_its_standard_errors(nile, nile_fit):
    summary, draws = nile_fit.summary().parameters, nile_fit.to_arviz(nile, draws=4000, predictive=False)
    table = az.summary(draws, kind="stats", round_to="none")
    for name in ("loc[0, volume]", "loc[1, volume]"):  # real numbers are their own free coordinates
        estimate, error = summary.loc[name, ["estimate", "standard error"]]
        assert table.loc[name, "mean"] == pytest.approx(estimate, abs=5 * error / 4000**0.5)
        assert table.loc[name, "sd"] == pytest.approx(error, rel=0.05)
    probs = draws.posterior["state_probs"].values
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-12)
    assert float(draws.posterior["scale"].min()) > 0


def test_loo_of_a_fit_by_em_is_that_of_its_posterior(nile, nile_fit):
    by_em = az.loo(nile_fit.to_arviz(nile, draws=1000, predictive=False))
    drawn = SwitchingSSM(Copy(2), Normal(1)).fit(nile, method="vmp", restarts=2, progress=False)
    exact = az.loo(drawn.to_arviz(nile, draws=1000, predictive=False))
    assert by_em["elpd_loo"] == pytest.approx(exact["elpd_loo"], abs=0.7)
    assert by_em["elpd_loo"] < nile_fit.loglik - 5  # what a point would claim
    assert by_em["p_loo"] > 5


def fit_before_a_maximum(x):
    return SwitchingSSM(Copy(2), Normal(1)).fit(x, restarts=1, max_steps=1, progress=False)


def fit_without_a_curvature(x):
    return SwitchingLinearSSM(2, 1).fit(x, restarts=1, max_steps=2, progress=False)


@pytest.mark.parametrize("fit_of", [fit_before_a_maximum, fit_without_a_curvature])
def test_a_fit_without_a_definite_curvature_has_no_posterior(nile, fit_of):
    data = fit_of(nile[:60]).to_arviz(draws=4)
    assert {"estimates", "log_density"} <= set(data.groups())
    assert not {"posterior", "log_likelihood"} & set(data.groups())
    assert "left out" in data.attrs["posterior"]


def test_parameters_that_are_held_stay_so_in_draws_around_a_fit_by_em(nile):
    held = {"loc": [[850.0], [float("nan")]], "redraw_prob": 0.05}
    fit = SwitchingSSM(Copy(2), Normal(1)).fit(nile, fixed=held, restarts=2, progress=False)
    drawn = fit.to_arviz(draws=50, predictive=False).posterior
    assert (drawn["redraw_prob"].values == 0.05).all()
    assert (drawn["loc"].values[..., 0, 0] == 850.0).all()
    assert drawn["loc"].values[..., 1, 0].std() > 5


def test_a_fit_with_a_posterior_enters_by_its_draws(nile):
    fit = SwitchingSSM(Copy(2), Normal(1)).fit(nile, method="vmp", restarts=2, progress=False)
    data = fit.to_arviz(nile, draws=200, seed=3)
    assert_close(torch.from_numpy(data.posterior["loc"].values[0]), fit.posterior.refined.chains(200)[0]["loc"])
    spread = az.summary(data, var_names=["loc"], kind="stats")["sd"].to_numpy()
    assert (spread > 5).all()
    assert az.loo(data)["p_loo"] > 1
    assert_close(torch.from_numpy(data.sample_stats["objective"].values), fit.objective, rtol=0, atol=0)


def test_netcdf_gives_back_every_group(nile_data, tmp_path):
    nile_data.to_netcdf(str(tmp_path / "posterior.nc"))
    loaded = az.from_netcdf(tmp_path / "posterior.nc")
    assert set(loaded.groups()) == set(nile_data.groups())
    for group in nile_data.groups():
        xr.testing.assert_equal(loaded[group], nile_data[group])
    assert loaded.attrs["method"] == "em"
    assert loaded.attrs["converged"] == 1


def test_series_that_carry_gradients_enter_as_numbers(nile_fit):
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert nile_fit.to_arviz(x, draws=2).observed_data["x"].values.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("draws", [0, 1, True])
def test_too_few_draws_are_refused(nile, nile_fit, draws):
    with pytest.raises((ValueError, TypeError), match=r"draws: got .*, expected an integer of at least 2"):
        nile_fit.to_arviz(nile, draws=draws)


# ---- what would have been predicted --------------------------------------------------------------------------------


SERIES = {
    "one": tensor([0.3, -1.2, 2.5, 0.9, 0.1, 1.1, -0.4, 2.2]),
    "missing": tensor([0.3, float("nan"), 2.5, float("nan"), 0.1, 1.1, -0.4, 2.2]),
    "several": tensor([[[0.3], [-1.2], [2.5], [0.0]], [[1.0], [2.0], [0.2], [0.1]]]),
    "ragged": [tensor([0.3, -1.2, 2.5, 0.0]), tensor([1.0, 2.0])],
    "ragged and missing": [tensor([0.3, float("nan"), 2.5, 0.0]), tensor([1.0, float("nan"), 2.0])],
}


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.parametrize("kind", SERIES)
@pytest.mark.parametrize("model", [copy_model(), markov_model()], ids=["copy", "markov"])
def test_observed_data_their_density_and_their_prediction_have_one_shape(model, kind):
    data = data_of(model, SERIES[kind], draws=20)
    observed = data.observed_data["x"]
    assert np.isfinite(observed.values).all()
    assert data.posterior_predictive["x"].dims == data.log_likelihood["x"].dims == (*DRAWN, *observed.dims)
    assert data.posterior_predictive["x"].shape == data.log_likelihood["x"].shape == (1, 20, *observed.shape)
    values = az.loo_pit(data, y="x")
    assert values.shape == observed.shape
    assert ((values >= 0) & (values <= 1)).all()
    assert az.plot_loo_pit(data, y="x") is not None
    assert az.plot_loo_pit(data, y="x", ecdf=True) is not None
    assert az.loo(data).n_data_points == observed.size


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.parametrize("model", [copy_model(), markov_model()], ids=["copy", "markov"])
def test_predictions_are_uniform_beside_what_the_model_made(model):
    data = data_of(model, model.simulate(400, seed=2).x, draws=400)
    values = np.sort(az.loo_pit(data, y="x"))
    assert np.abs(values - (np.arange(400) + 0.5) / 400).max() < 2.0 / 400**0.5  # Kolmogorov: 1 of 1500 seeds is more
    replicated = data.replicated["x"].values[0, :, :, 0]
    seen = (replicated <= data.observed_data["x"].values).mean(0)
    assert seen.std() < values.std()  # which have seen what they are compared with


def test_predictions_are_draws_of_the_density_one_step_ahead():
    x, rho = tensor([0.3, -1.2, 2.5, float("nan"), 0.1]), 0.3
    model, dt = copy_model(), tensor([1.0, 1.0, 3.0, 1.0, 2.0])
    filtered = model.filter(x, dt=dt).state
    rate = 1 - (1 - rho) ** dt[1:, None]
    state = torch.cat([model.state_probs[None], rate * model.state_probs + (1 - rate) * filtered[:-1]])
    drawn = data_of(model, x, draws=20_000, dt=dt).posterior_predictive["x"].values[0]
    mean = (state @ model.loc)[[0, 1, 2, 4], 0].numpy()
    second = (state @ (1 / model.precision + model.loc**2))[[0, 1, 2, 4], 0].numpy()
    spread = np.sqrt(second - mean**2)
    assert (np.abs(drawn.mean(0) - mean) < 5 * spread / np.sqrt(20_000)).all()
    np.testing.assert_allclose(drawn.std(0), spread, rtol=0.03)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_of_several_features_each_is_judged_by_itself():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    frame = pd.DataFrame(x.numpy(), columns=["up", "down"])
    fit = SwitchingSSM(Copy(2), Normal(2)).fit(frame, method="vmp", restarts=1, max_steps=50, progress=False)
    data = fit.to_arviz(draws=50)
    assert data.posterior_predictive["x"].dims == (*DRAWN, "time", "feature")
    y = data.observed_data["x"].sel(feature="up")
    y_hat = data.posterior_predictive["x"].sel(feature="up").stack(__sample__=DRAWN)
    assert az.plot_loo_pit(data, y=y, y_hat=y_hat) is not None


def test_predictions_of_inputs_and_background_follow_them():
    model = SwitchingSSM(Copy(2, inputs=1), Gated(Normal(1), Normal(1))).with_values(
        redraw_intercept=tensor(0.0),
        redraw_weights=tensor([50.0]),
        state_probs=tensor([0.5, 0.5]),
        loc=tensor([[-5.0], [5.0]]),
        scale=tensor([[0.1], [0.1]]),
        background_loc=tensor([[0.0]]),
        background_scale=tensor([[0.1]]),
    )
    inputs = tensor([[0.0], [-1.0], [1.0]])  # the second step is held, the third redrawn
    drawn = data_of(model, tensor([5.0, 0.1, -5.0]), draws=50, inputs=inputs).posterior_predictive["x"].values[0]
    assert (np.abs(drawn[:, [0, 2]]) > 3).all()
    assert (np.abs(drawn[:, 1]) < 1).all()
