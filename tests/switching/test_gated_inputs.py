"""Gated emissions whose parts read inputs, each its own."""

import pytest
import samplehold as sh
import torch
from oracles.models import enumerate_evidence, enumerated_by_pyro, numbers, trace_log_prob
from samplehold.switching.emissions.driven import rows_read
from torch import Tensor
from torch.testing import assert_close

PARTS = {
    "redrawn": sh.Gated(sh.LinearRegression(2, inputs=["a"]), sh.Normal(2)),
    "held": sh.Gated(sh.MultivariateNormal(2), sh.LinearRegression(2, inputs=["b"])),
    "both": sh.Gated(
        sh.LinearRegression(2, inputs=["a", "c"]), sh.LinearRegression(2, inputs=["b", "a"]), by_state=True
    ),
    "binary": sh.Gated(sh.Bernoulli(2, inputs=["a"]), sh.Bernoulli(2, inputs=["a", "b"])),
    "counts": sh.Gated(sh.Poisson(2), sh.Poisson(2, inputs=["b"])),
    "shared": sh.Gated(sh.Categorical(3, inputs=["a", "b"], shared=["b"]), sh.Categorical(3, inputs=["a"])),
}
each = pytest.mark.parametrize("name", PARTS)


def made(name: str, n: int, steps: int, dynamics: sh.Copy | None = None) -> tuple[sh.SwitchingSSM, Tensor, dict]:
    """A model with values, a series from it, and its inputs by name."""
    emission = PARTS[name]
    model = sh.SwitchingSSM(dynamics or sh.Copy(2), emission)
    values = {"redraw_prob": torch.tensor(0.3).double(), "state_probs": torch.tensor([0.4, 0.6]).double()}
    sizes = emission.sizes | {"state": 2, "background": 1, "shared": 1}
    for number, (key, parameter) in enumerate(emission.parameters.items()):
        table = numbers(*(sizes[dim] for dim in parameter.dims), seed=number)
        kind = key.removeprefix("background_")
        if kind == "probs":
            table = table.softmax(-1) if "category" in parameter.dims else table.sigmoid()
        elif kind == "rate" or (kind == "precision" and table.shape[-1] != table.shape[-2]):
            table = table.exp()
        elif kind == "precision":
            table = torch.diag_embed(table[..., 0].exp()) if parameter.dims[-1] != "feature" else table.exp()
        values[key] = table
    model = model.with_values(values)
    inputs = {key: numbers(n, steps, seed=7 + place) for place, key in enumerate(model.inputs)}
    return model, model.simulate(steps, (n,), seed=0, inputs=inputs).x, inputs


def one(inputs: dict[str, Tensor], place: int = 0) -> dict[str, Tensor]:
    return {key: table[place] for key, table in inputs.items()}


@pytest.mark.few(2)
@each
def test_all_forms_are_one_density(name):
    model, x, inputs = made(name, 2, 4)
    x[0, 2, 0] = torch.nan
    expected = torch.stack([enumerate_evidence(model, x[i], inputs=one(inputs, i)) for i in range(2)])
    assert_close(model.log_evidence(x, inputs=inputs), expected, rtol=1e-10, atol=0)
    assert_close(trace_log_prob(model.collapsed, x, inputs=inputs), expected.sum(), rtol=1e-10, atol=0)
    assert_close(enumerated_by_pyro(model, x, inputs=inputs), expected.sum(), rtol=1e-10, atol=0)


@pytest.mark.few(2)
@each
def test_each_part_reads_its_own_inputs(name):
    model, x, inputs = made(name, 2, 5)
    series = model.problem(x, inputs=inputs).series
    rows = rows_read(model.emission, series)
    for part in model.emission.parts:
        alone = part.emission.table(rows_read(part.emission, series), part.own(model.values))
        assert_close(part.emission.table(part.rows(rows), part.own(model.values)), alone, rtol=0, atol=0)


@pytest.mark.few(1)
@each
def test_fits_raise_their_objective_and_the_bound_lies_below_the_evidence(name):
    model, x, inputs = made(name, 6, 50)
    few = {"inputs": inputs, "start": model, "restarts": 1, "max_steps": 40, "progress": False}
    mode = model.fit(x, **few)
    assert float(mode.objective.diff().min()) > -1e-9 * float(mode.objective.abs().max())
    assert mode.loglik > float(model.log_evidence(x, inputs=inputs).sum()) - 5
    fit = model.fit(x, "vmp", **few)
    assert float(fit.objective.diff().min()) > -1e-8 * float(fit.objective.abs().max())
    assert float(fit.objective[-1]) < fit.loglik < mode.loglik + 3


@pytest.mark.slow
def test_coefficients_are_found():
    model, _, _ = made("both", 1, 1)
    known = {"loc": [[-4.0, 0.0], [4.0, 0.0]], "background_loc": [[0.0, 3.0], [0.0, -3.0]], "redraw_prob": 0.3}
    scales = {name: torch.ones(2, 2).double() for name in ("precision", "background_precision")}
    model = model.with_values(model.values | scales | {n: torch.tensor(v).double() for n, v in known.items()})
    inputs = {name: numbers(20, 100, seed=9 + place) for place, name in enumerate(model.inputs)}
    x = model.simulate(100, (20,), seed=1, inputs=inputs).x
    fit = model.fit(x, inputs=inputs, start=model, restarts=1, progress=False)
    for name in ("coefficients", "background_coefficients"):
        assert_close(fit.model.values[name], model.values[name], rtol=0, atol=0.2)


def test_without_coefficients_it_is_the_gated_emission_without_inputs():
    model, x, inputs = made("held", 3, 20)
    values = {name: table for name, table in model.values.items() if name != "background_coefficients"}
    nothing = torch.zeros_like(model.values["background_coefficients"])
    plain = sh.SwitchingSSM(sh.Copy(2), sh.Gated(sh.MultivariateNormal(2), sh.Normal(2))).with_values(values)
    model = model.with_values(values | {"background_coefficients": nothing})
    assert_close(model.log_evidence(x, inputs=inputs), plain.log_evidence(x), rtol=1e-12, atol=0)


@pytest.mark.few(1)
@each
def test_what_is_asked_of_a_fit(name, tmp_path):
    model, x, inputs = made(name, 2, 30)
    fit = model.fit(x, inputs=inputs, restarts=1, max_steps=8, progress=False)
    assert "coefficients" in repr(fit.summary())
    held = [table for table in fit.model.values if table.startswith("background_coefficients")]
    assert (held or ["coefficients"])[0] in fit.to_arviz(draws=2).estimates
    fit.save(tmp_path / "fit")
    again = sh.load(tmp_path / "fit").model
    assert again.inputs == model.inputs
    assert_close(again.log_evidence(x, inputs=inputs), fit.model.log_evidence(x, inputs=inputs), rtol=0, atol=0)
    ahead = {key: table[:, :3] for key, table in inputs.items()}
    assert fit.forecast(3, inputs=ahead).state.shape == (2, 3, 2)
    assert fit.viterbi().path.shape == (2, 30)
    fit.plot()
    assert fit.plot_effect("b" if "b" in model.inputs else "a").axes[0].lines
    state = fit.model.start(())
    for t in range(3):
        state, output = fit.model.update(state, x[0, t], inputs=one({k: v[:, t] for k, v in inputs.items()}))
    alone = fit.model.filter(x[0, :3], inputs={key: table[0, :3] for key, table in inputs.items()})
    assert_close(output.state, alone.state[-1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_driven_gate_beside_driven_parts_and_sequences_of_their_own_lengths():
    emission = sh.Gated(sh.LinearRegression(1, inputs=["a"]), sh.Normal(1))
    model = sh.SwitchingSSM(sh.Copy(2, inputs=["b"]), emission)
    inputs = {name: [numbers(n, seed=place) for n in (30, 4, 17)] for place, name in enumerate(("a", "b"))}
    x = [numbers(n, 1, seed=5) for n in (30, 4, 17)]
    for method in ("em", "vmp"):
        fit = model.fit(x, method, inputs=inputs, restarts=1, max_steps=10, progress=False)
        assert float(fit.objective.diff().min()) > -1e-8


@pytest.mark.slow
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_subjects_have_parameters_of_their_own(method):
    model, x, inputs = made("held", 2, 40)
    few = {"restarts": 1, "max_steps": 5, "start": model, "progress": False}
    fit = model.fit(x, method, inputs=inputs, subjects=["anna", "bo"], pooled={"emission": "none"}, **few)
    assert fit.model.values["background_coefficients"].shape == (2, 1, 2, 1)
    assert float(fit.objective.diff().min()) > -1e-8
    alone = [
        float(fit.model.of(name).log_evidence(x[i], inputs=one(inputs, i))) for i, name in enumerate(("anna", "bo"))
    ]
    assert_close(sum(alone), fit.loglik, rtol=1e-9, atol=1e-9)


def test_what_cannot_read_inputs_is_refused_by_name():
    driven = sh.LinearRegression(1, inputs=["a"])
    refused = {
        r"^emission: got AutoRegressive\(order=1": lambda: sh.Gated(sh.AutoRegressive(1), sh.Normal(1)),
        r"^inputs: got 1 in one part and names in another": lambda: sh.Gated(driven, sh.LinearRegression(1, inputs=1)),
    }
    for said, make in refused.items():
        with pytest.raises(ValueError, match=said):
            sh.SwitchingSSM(sh.Copy(2), make()).fit(torch.zeros(9, 1), progress=False)


@pytest.mark.parametrize("which", [0, 1])
def test_intervals_of_forecasts_are_quantiles_where_one_part_alone_reads_inputs(which):
    read, plain = sh.LinearRegression(1, inputs=["u"]), sh.Normal(1)
    model = sh.SwitchingSSM(sh.Copy(2), sh.Gated(read, plain) if which == 0 else sh.Gated(plain, read))
    x, u = numbers(12, 1), numbers(14, 1, seed=1)
    fit = model.fit(x, inputs=u[:12], input_names=["u"], restarts=1, max_steps=2, progress=False)
    ahead = fit.forecast(2, inputs=u[12:], input_names=["u"])
    for p, end in zip((0.1, 0.9), ahead.interval(0.8), strict=True):
        assert_close(ahead.observation.cdf(end), torch.full_like(end, p))
    weight, mean, variance = ahead.observation.components
    assert_close((weight.unsqueeze(-1) * mean).sum(-2), ahead.mean)
    assert_close((weight.unsqueeze(-1) * (variance + mean**2)).sum(-2) - ahead.mean**2, ahead.variance)
