"""What is printed is short: of every public object, and of what its methods return."""

import re

import arviz as az
import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.coupled import layered_of
from oracles.effort import effort
from oracles.prints import short


def levels(n_states: int = 12, n_features: int = 9) -> sh.SwitchingSSM:
    """A model of many numbers."""
    even = torch.full((n_states,), 1 / n_states, dtype=torch.float64)
    loc = torch.arange(n_states, dtype=torch.float64)[:, None].expand(n_states, n_features)
    emission = sh.Normal(n_features)
    return sh.SwitchingSSM(sh.Copy(n_states), emission).with_values(
        redraw_prob=0.1, state_probs=even, loc=loc, scale=torch.ones_like(loc)
    )


def layered() -> sh.LayeredSSM:
    values = {"loc": torch.tensor([[0.0], [4.0]]).double(), "precision": torch.ones(2, 1).double()}
    table, half = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double(), torch.tensor([0.5, 0.5]).double()
    return layered_of(sh.Normal(), values, torch.tensor([0.5, 0.05]).double(), [table], half)


def test_models_of_many_numbers_and_all_that_they_return_are_short():
    for model in (levels(), layered()):
        drawn = model.simulate(50, (3,), seed=0)
        series = model.read(drawn.x)
        results = [
            *(model, drawn, series, model.problem(series), series.drive),
            *(model.filter(series), model.smooth(series), model.viterbi(series)),
            *(model.sample_posterior(series, 5, 0), model.forecast(series, 4), model.forecast(series, 4).interval()),
            *(model.start((3,)), model.update(model.start((3,)), drawn.x[:, 0])[1]),
        ]
        for result in results:
            assert short(result), repr(result)
    assert short(levels().chain(drawn.x.expand(3, 50, 9)).marginals())


@pytest.mark.slow
def test_fits_of_many_numbers_are_short_and_notebooks_get_tables():
    model = levels(3, 4)
    x = model.simulate(60, seed=0).x
    fits = [
        model.fit(x, method=method, restarts=1, progress=False, **effort(method, 5)) for method in ("em", "vmp", "nuts")
    ]
    coupled = [
        layered().fit(x[:, :1], method=method, restarts=1, max_steps=5, progress=False) for method in ("em", "vmp")
    ]
    posteriors = [fit.posterior for fit in (*fits, *coupled) if fit.posterior is not None]
    forecasts = [model.forecast(x, 4), layered().forecast(x[:, :1], 4), fits[1].posterior.forecast(x, 4)]
    assert len(posteriors) == 3
    for value in (model, model.without_values(), layered(), *fits, *coupled, *posteriors, *forecasts):
        assert short(value), repr(value)
        page = value._repr_html_()
        assert page.count("<table") == 1
        assert "nan" not in page.lower()


def test_tables_hold_the_numbers_under_their_names():
    model = levels(3, 2)
    page = model._repr_html_()
    assert all(text in page for text in ("redraw_prob", "loc[1]", "state 2", "Copy(3 states)"))
    forecast = model.forecast(model.simulate(20, seed=0).x, 2)
    page = forecast._repr_html_()
    assert f"{float(forecast.mean[1, 0]):.4g}" in page
    assert f"{float(forecast.interval(0.9).lower[1, 1]):.4g}" in page
    assert all(text in page for text in ("20", "x[1]", "lower", "state_2", "redraw"))
    fit = model.fit(model.simulate(20, seed=0).x, method="vmp", restarts=1, max_steps=5, progress=False)
    page = fit.posterior._repr_html_()
    assert f"{float(fit.posterior.mean['loc'][2, 1]):.4g}" in page
    assert "loc[2, 1]" in page


def test_one_parameter_has_one_name_everywhere():
    """In the summary, the page of the posterior and ArviZ's tables."""
    x = pd.DataFrame({"volume": [1.0, 1.2, 0.9, 4.0, 4.2, 4.1, 1.1]})
    for model in (sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), sh.LinearSSM(1)):
        fit = model.fit(x, "vmp", restarts=1, max_steps=5, progress=False)
        names = fit.summary().parameters.index.tolist()
        page = fit.posterior._repr_html_()
        assert all(f"<th>{name}</th>" in page for name in names)
        assert set(names) == set(az.summary(fit.to_arviz(draws=4), kind="stats").index)
    assert "volume" in "".join(names)


def test_a_series_has_a_page():
    frame = pd.DataFrame({"who": list("aab"), "t": [3, 4, 7], "v": [1.0, None, 2.0]})
    page = sh.read_panel(frame, "who", "t", ["v"])._repr_html_()
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", page)
    assert cells == ["", "steps", "from", "to", "missing values", "a", "2", "3", "4", "1", "b", "1", "7", "7", "0"]
    assert "Series of 2 sequences, features v" in page
    many = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).read(torch.zeros(100, 3, 2))
    assert many._repr_html_().count("<tr") == 61
    assert "the first 60" in many._repr_html_()


def test_comparisons_and_stacks_have_tables():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
    model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1], [1]], scale=[[1], [1]])
    report = sh.compare(model, sh.GRU(1, 8), model.simulate(30, (4,), seed=0).x)
    assert short(report)
    assert short(report.network)
    page = report._repr_html_()
    assert "message passing" in page
    assert "<table" in page
    mixture = sh.stacks.StackMixture(torch.randn(4, 200, 3).log_softmax(-1), torch.randn(4, 200, 5))
    assert repr(mixture) == (
        "StackMixture(sequences: 4, steps: 200, actions: 3, numbers in a cell: 5, initial cells: 0, "
        "pop of the empty stack: noop, evidence: none)"
    )
    assert "200" in mixture._repr_html_()
    assert short(mixture.sample(10, seed=0))
