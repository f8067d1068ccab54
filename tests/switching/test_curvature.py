"""Standard errors where the objective ends at a boundary that the parameters have in common."""

import math

import numpy as np
import pytest
import samplehold as sh
import torch
from samplehold import Parameter
from samplehold.switching.fitting.curvature import Curvature, errors_of

FLOAT = torch.float64


@pytest.mark.parametrize("at", [0.5, 1.0 - 1e-9])
def test_a_step_beyond_the_boundary_leaves_no_error_and_no_traceback(at: float) -> None:
    known = {"a": Parameter(()), "b": Parameter(())}

    def objective(values: dict[str, torch.Tensor]) -> torch.Tensor:
        a, b = values["a"], values["b"]
        if bool((a.detach() >= 1).any()):
            raise ValueError("a: got a number of 1 or more.")
        return -2 * (a - at).square() - 8 * (b - 3.0).square()

    values = {"a": torch.tensor(at, dtype=FLOAT), "b": torch.tensor(3.0, dtype=FLOAT)}
    curvature = Curvature.of(objective, lambda points: iter([points]), known, values, torch.ones(1, dtype=FLOAT))
    errors = errors_of(curvature.error_factors())
    assert float(errors["b"]) == pytest.approx(0.25, rel=1e-6)
    assert float(errors["a"]) == pytest.approx(0.5, rel=1e-6) if at < 0.9 else math.isnan(float(errors["a"]))


@pytest.mark.parametrize("prior", ["weak", None])
def test_probabilities_at_the_boundary_are_the_same_in_all_draws(prior):
    """Other entries have the spread of their standard errors, which are of first order in the free coordinates."""
    x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x + 1.5 * (torch.arange(300) // 30 % 2).unsqueeze(-1)
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(x, restarts=1, prior=prior, progress=False)
    assert float(fit.model.initial_probs.amin()) < 1e-6
    data = fit.to_arviz(draws=1000)
    assert "same in all draws: initial_probs" in data.attrs["posterior"]
    draws = data["posterior"]
    assert np.ptp(draws["initial_probs"].values, axis=1).max() == 0
    table = fit.summary().to_frame()
    for name in ("loc", "transition_probs"):
        spread = draws[name].std(("chain", "draw")).values.flatten()
        errors = table[table.index.str.startswith(f"{name}[")]["standard error"]
        assert sorted(spread) == pytest.approx(sorted(errors), rel=0.25)


def test_a_state_without_steps_leaves_no_draws():
    """Its parameters are not at the boundary; the data say nothing of them."""
    x = torch.randn(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = {"loc": [[0.0], [500.0]], "transition_probs": [[1.0, 0.0], [0.5, 0.5]], "initial_probs": [1.0, 0.0]}
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(
        x, restarts=1, start=start, prior=None, max_steps=30, progress=False
    )
    assert fit.empty_states.tolist() == [False, True]
    assert fit.to_arviz().attrs["posterior"].startswith("left out")
