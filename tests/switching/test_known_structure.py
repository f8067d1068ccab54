"""Fits of linear models that hold single entries of tables: they stay, the others are those of a smaller regression."""

import math

import pytest
import samplehold as sh
import torch
from oracles.linear_models import model_of
from oracles.switching_linear import KINDS, values_of
from samplehold.switching.parameters import Parameters
from samplehold.switching.slds import starts
from samplehold.switching.slds.graph import blank_states, graph_of, priors_of
from samplehold.switching.slds.layout import LinearRegimes
from torch import Tensor
from torch.testing import assert_close

N = math.nan
QUIET = {"restarts": 1, "progress": False}
STRUCTURE = {
    "emission": [[1.0, 0.0], [N, N]],
    "emission_offset": [0.0, N],
    "transition": [[N, N], [0.0, N]],
    "transition_offset": [N, 0.0],
    "state_noise": [[N, 0.0], [0.0, 0.5]],
}


@pytest.fixture(autouse=True)
def _cooled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "AT_ONCE", 1)


def held_part(values: Parameters, layout: LinearRegimes, seed: int) -> Parameters:
    """Some entries of every table, the others NaN; covariances without covariances."""
    generator, tables = torch.Generator().manual_seed(seed), {}
    for name, value in values.items():
        keep = torch.rand(value.shape, generator=generator) < 0.4
        support = str(layout.known[name].support)
        if "Simplex" in support:
            keep[..., -2:] = False
        if "Semidefinite" in support:
            unit = torch.eye(value.shape[-1], dtype=torch.bool)
            tables[name] = torch.where(unit, torch.where(keep, value, torch.nan), 0.0)
        else:
            tables[name] = torch.where(keep, value, torch.nan)
    return tables


def same_where_held(values: Parameters, tables: Parameters) -> None:
    for name, table in tables.items():
        assert torch.equal(values[name], torch.where(table.isnan(), values[name], table)), name


def tensors(fixed: dict) -> Parameters:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in fixed.items()}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_no_update_lowers_the_bound_beside_known_entries(kind: str, method: str) -> None:
    layout = KINDS[kind]
    values = values_of(layout)
    tables = held_part(values, layout, 3)
    x = layout.regimes(values).simulate(12, (2,), seed=1).x
    series = sh.SwitchingLinearSSM(2, 2, x.shape[-1]).read(x)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, 2, 12, layout.n_regimes, generator=generator, dtype=torch.float64)
    moved = torch.ones(layout.n_latent, dtype=torch.float64)
    graph = graph_of(layout, series, priors_of(layout, moved), blank_states(layout, series, 2), weights, layout.values)
    graph = graph.fixed_at(layout.known_points(tables))
    graph = graph.at_points(flat=False) if method == "em" else graph
    engine = graph.engine(graph.start(2))  # tests every message
    engine.update("chain")
    run = engine.run(12, 0.0, record=True)  # raises where one falls
    assert bool((run.elbo[1:] >= run.elbo[:-1] - 1e-9 * run.elbo[:-1].abs()).all())
    points = {name: family.expected(engine.blocks[name].eta) for name, family in graph.families.items()}
    found = layout.values(points)
    for name, table in tables.items():
        close = torch.where(table.isnan(), found[name], table)
        assert_close(found[name], close, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_fits_of_switching_models_keep_what_is_known(method: str) -> None:
    true = sh.SwitchingLinearSSM(2, 2, 2, common_emission=True).with_values(
        values_of(LinearRegimes(2, 2, 2, one_chain=True, common_emission=True))
    )
    x = true.simulate(40, (2,), seed=1).x
    fixed = STRUCTURE | {"transition_probs": [[N, N], [0.0, 1.0]], "initial_probs": [1.0, 0.0]}
    model = sh.SwitchingLinearSSM(2, 2, 2, common_emission=True)
    fit = model.fit(x, method, fixed=fixed, max_steps=8, **QUIET)
    whole = {name: table.expand(fit.model.values[name].shape) for name, table in tensors(fixed).items()}
    same_where_held(fit.model.values, whole)
    assert bool((fit.objective.diff() > -1e-9 * fit.objective.abs()[1:]).all())
    assert fit.fixed == tuple(fixed)
    # probabilities 1, first state 2 + 3, moves (3 + 1 + 1) each, sights 2 + 1 + 2; no other basis keeps what is known
    assert fit.n_parameters == 1 + 5 + 10 + 5
    if method == "vmp":
        for draws in (fit.posterior.sample(3), fit.posterior.mean):
            for name, table in whole.items():
                assert_close(draws[name], torch.where(table.isnan(), draws[name], table), rtol=1e-12, atol=1e-12)


def test_regimes_keep_numbers_that_known_entries_give_them() -> None:
    z = (torch.arange(60) % 20 >= 5).long()  # the second regime is the more frequent one
    x = torch.where(z == 0, 5.0, -5.0).double() + 0.3 * torch.randn(60, generator=torch.Generator().manual_seed(0))
    model = sh.SwitchingLinearSSM(2, 1)
    fixed = {"emission": 0.0, "emission_offset": [[5.0], [-5.0]]}
    fit = model.fit(x, fixed=fixed, max_steps=10, **QUIET)
    assert torch.equal(fit.smooth().state.argmax(-1), z)


def test_a_step_of_em_beside_known_entries_is_the_textbooks() -> None:
    model = model_of(2, 2, full=False)
    start = model.values | {
        "emission": torch.tensor([[1.0, 0.0], [0.4, -0.3]]).double(),
        "emission_offset": torch.tensor([0.0, 1.0]).double(),
        "transition": torch.tensor([[0.5, 0.2], [0.0, 0.7]]).double(),
        "transition_offset": torch.tensor([0.3, 0.0]).double(),
        "state_noise": torch.tensor([[0.4, 0.0], [0.0, 0.5]]).double(),
    }
    model = model.with_values(start)
    x = model.simulate(30, seed=2).x
    found = sh.LinearSSM(2, 2).fit(x, fixed=STRUCTURE, start=model, prior=None, max_steps=1, **QUIET).model.values
    smoothed = model.smooth(x)
    mean, square = smoothed.mean, smoothed.covariance + smoothed.mean.unsqueeze(-1) * smoothed.mean.unsqueeze(-2)
    cross = smoothed.cross_covariance + mean[1:].unsqueeze(-1) * mean[:-1].unsqueeze(-2)
    before, after, crossed = square[:-1].sum(0), square[1:].sum(0), cross.sum(0)
    n = len(x) - 1
    total, one = mean[:-1].sum(0), torch.ones(1, dtype=torch.float64)
    inputs = torch.cat([torch.cat([before, total[:, None]], 1), torch.cat([total, n * one])[None]])  # of old and 1
    outputs = torch.cat([crossed, mean[1:].sum(0)[:, None]], 1)  # [new, old and 1]
    first = torch.linalg.solve(inputs, outputs[0])
    tight = {"rtol": 1e-6, "atol": 1e-6}  # to the ridge of maximum likelihood
    assert_close(torch.cat([found["transition"][0], found["transition_offset"][:1]]), first, **tight)
    assert_close(found["state_noise"][0, 0], (after[0, 0] - first @ outputs[0]) / n, **tight)
    assert_close(found["transition"][1, 1], crossed[1, 1] / before[1, 1], **tight)
    residual = (x[:, 0] - mean[:, 0]).square() + smoothed.covariance[:, 0, 0]
    assert_close(found["observation_noise"][0], residual.mean(), **tight)
    same_where_held(found, tensors(STRUCTURE))


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [sh.LinearSSM(2, 2), sh.SwitchingLinearSSM(2, 2, 2, common_emission=True)])
def test_fits_beside_known_loadings_do_not_depend_on_the_unit(model: sh.LinearSSM | sh.SwitchingLinearSSM) -> None:
    x = model_of(2, 2, full=False).simulate(40, seed=4).x
    fixed = {"emission": [[1.0, 0.0], [N, N]], "state_noise": [[N, 0.0], [0.0, N]]}
    fits = [model.fit(unit * x, fixed=fixed, max_steps=5, **QUIET) for unit in (1.0, 1e5)]
    first, second = (fit.model.values for fit in fits)
    assert_close(second["transition"], first["transition"], rtol=1e-6, atol=1e-6)
    assert_close(second["state_noise"], 1e10 * first["state_noise"], rtol=1e-6, atol=1e-6)
    assert_close(second["emission"], first["emission"], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_standard_errors_are_of_the_free_entries_alone() -> None:
    x = model_of(2, 2, full=False).simulate(60, seed=4).x
    held = {"initial_mean": 0.0, "initial_covariance": [[1.0, 0.0], [0.0, 1.0]]}
    fit = sh.LinearSSM(2, 2).fit(x, fixed=STRUCTURE | held, prior=None, **QUIET)
    table = fit.summary().parameters
    errors = table["standard error"]
    assert bool(errors[[name.startswith("initial_") for name in errors.index]].isna().all())
    free = sum(int(value.isnan().sum()) for value in fit.held.values()) + 2
    assert fit.n_parameters == free
    assert int(errors.notna().sum()) <= free
    assert "emission in part" in str(fit.summary())


def test_what_cannot_be_held_is_refused_by_name() -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)).double()
    model, single = sh.SwitchingLinearSSM(2, 2, 2), sh.LinearSSM(2, 2)
    for fixed, said in (
        ({"loc": 1.0}, r"^fixed: got unknown parameter 'loc'"),
        ({"transition": [[1.0, N, 0.0]]}, r"^fixed\['transition'\]: got shape \(1, 3\), expected \(2, 2, 2\)"),
        ({"transition": [[math.inf, N], [N, N]]}, r"^fixed\['transition'\]: got an infinite number"),
        (
            {"observation_noise": [-1.0, N]},
            r"^fixed\['observation_noise'\]: got -1.0, expected a number of at least",
        ),
        (
            {"state_noise": [[1.0, N], [N, N]]},
            r"^fixed\['state_noise'\]: got coordinates \[0, 1\] with some covariances",
        ),
        ({"state_noise": [[1.0, 2.0], [2.0, 1.0]]}, "not positive semidefinite"),
        ({"state_noise": [[N, 0.0], [1.0, N]]}, "not symmetric"),
        ({"transition_probs": [[0.7, 0.7], [N, N]]}, "^fixed.*known entries sum to"),
        ({"transition": [[1.0, N], [N, N]]}, "state_noise is free and joint; set state_noise to 0 between them"),
    ):
        with pytest.raises(ValueError, match=said):
            model.fit(x, fixed=fixed, **QUIET)
    with pytest.raises(ValueError, match=r'got .* in part, which method="nuts" cannot hold; use "em" or "vmp"'):
        single.fit(x, "nuts", fixed={"transition": [[1.0, N], [N, N]], "state_noise": [[N, 0], [0, N]]}, **QUIET)
    with pytest.raises(ValueError, match=r"fixed: got \['emission'\] without the rest"):
        single.fit(x, "svi", fixed={"emission": torch.eye(2)}, **QUIET)
    with pytest.raises(ValueError, match=r"^fixed: got all parameters"):
        model.fit(x, fixed=values_of(model.layout), **QUIET)


def test_a_single_free_probability_is_the_rest() -> None:
    model = sh.SwitchingLinearSSM(2, 1)
    x = model.with_values(values_of(model.layout)).simulate(30, seed=0).x
    fit = model.fit(x, fixed={"transition_probs": [[0.9, N], [N, 0.8]]}, max_steps=3, **QUIET)
    expected: Tensor = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    assert_close(fit.model.values["transition_probs"], expected, rtol=1e-12, atol=1e-12)
