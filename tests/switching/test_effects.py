"""Figures of what an input does to the parts of a model."""

from dataclasses import replace

import numpy as np
import pytest
import samplehold as sh
import torch

T = 80


def inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(T, generator=generator, dtype=torch.float64) for name in ("a", "b", "c")}


@pytest.fixture(scope="module")
def gated() -> sh.Fit:
    model = sh.SwitchingSSM(sh.Copy(2, inputs=["a", "b"]), sh.LinearRegression(2, inputs=["c", "a"]))
    truth = model.with_values(
        redraw_intercept=-1.0, redraw_weights=[1.0, -1.0], state_probs=[0.5, 0.5], loc=[[-1.0, 0.0], [1.0, 2.0]],
        coefficients=[[[1.0, 0.5], [0.0, 0.0]], [[-1.0, 0.0], [0.0, 1.0]]], scale=[[0.5, 0.5], [0.5, 0.5]],
    )  # fmt: skip
    return model.fit(truth.simulate(T, seed=0, inputs=inputs()).x, inputs=inputs(), restarts=1, progress=False)


def test_lines_are_the_model_at_the_input_and_bands_surround_them(gated):
    figure, values = gated.plot_effect("a"), gated.model.values
    panels = [panel for panel in figure.axes if panel.lines]
    assert [panel.get_title(loc="left") for panel in panels] == ["P(redraw)", "mean of x[0]", "mean of x[1]"]
    (line,) = panels[0].lines
    grid, mean = torch.as_tensor(line.get_xdata()), {name: float(column.mean()) for name, column in inputs().items()}
    logit = values["redraw_intercept"] + values["redraw_weights"][0] * grid + values["redraw_weights"][1] * mean["b"]
    np.testing.assert_allclose(line.get_ydata(), logit.sigmoid(), rtol=1e-12)
    for feature, panel in enumerate(panels[1:]):
        for state, line in enumerate(panel.lines):
            c, a = values["coefficients"][state, feature]
            expected = values["loc"][state, feature] + c * mean["c"] + a * grid
            np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-10, atol=1e-12)
    band = panels[0].collections[0].get_paths()[0].vertices
    inside = [band[np.isclose(band[:, 0], x), 1] for x in grid[[0, 50, 100]]]
    for ends, height in zip(inside, panels[0].lines[0].get_ydata()[[0, 50, 100]], strict=True):
        assert ends.min() < height < ends.max()


def test_the_mean_of_a_state_that_is_not_in_use_has_no_band(gated):
    some = replace(gated, empty_states=torch.tensor([False, True]))
    gate, *means = [panel for panel in some.plot_effect("a").axes if panel.lines]
    assert [len(panel.lines) for panel in (gate, *means)] == [1, 2, 2]
    assert [len(panel.collections) for panel in (gate, *means)] == [1, 1, 1]


@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.slow
def test_transitions_and_starts_have_panels_of_their_own(method):
    starts = ["b"] if method == "em" else 0
    moves = sh.Markov(2, inputs=["a"], initial_inputs=starts) if method == "em" else sh.Copy(2, inputs=["a"])
    model = sh.SwitchingSSM(moves, sh.Normal())
    x = torch.randn(3, T, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = {name: column.expand(3, -1) for name, column in inputs().items()}
    fit = model.fit(x, method, inputs=given, prior="weak", restarts=1, max_steps=10, progress=False)
    titles = [panel.get_title(loc="left") for panel in fit.plot_effect("a").axes if panel.lines]
    assert titles == (["P(next state | state 0)", "P(next state | state 1)"] if method == "em" else ["P(redraw)"])
    if method == "em":
        (panel,) = fit.plot_effect("b").axes
        lines = [line.get_ydata() for line in panel.lines]
        np.testing.assert_allclose(np.sum(lines, 0), 1, rtol=1e-12)


def test_a_fit_without_a_prior_has_lines_alone_and_wrong_arguments_are_named(gated):
    fit = gated.model.fit(gated.series, prior=None, restarts=1, max_steps=3, progress=False)
    assert not fit.plot_effect("b").axes[0].collections
    with pytest.raises(ValueError, match=r"^inputs: 'd' is missing; got 'a', 'b', 'c'"):
        gated.plot_effect("d")
    with pytest.raises(ValueError, match=r"^level: got 1"):
        gated.plot_effect("a", level=1.0)
    plain = sh.SwitchingSSM(sh.Copy(2), sh.Normal()).fit([0.0, 0.1, 5.0, 5.1], progress=False)
    with pytest.raises(ValueError, match=r"^name: got 'a', but the model reads no inputs"):
        plain.plot_effect("a")


def test_effects_of_subjects_are_drawn_one_by_one():
    x = torch.randn(2, 30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs, x = {"a": x[..., 1]}, x[..., :1]
    model = sh.SwitchingSSM(sh.Copy(2), sh.LinearRegression(1, inputs=["a"]))
    few = {"restarts": 1, "max_steps": 3, "progress": False}
    fit = model.fit(x, inputs=inputs, subjects=["anna", "bo"], pooled="none", **few)
    with pytest.raises(ValueError, match=r"^fit: .* fit.subject\('anna'\).plot_effect\('a'\)"):
        fit.plot_effect("a")
    assert fit.subject("anna").plot_effect("a").axes[0].lines
