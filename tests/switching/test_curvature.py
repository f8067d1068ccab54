"""Standard errors where the objective ends at a boundary that the parameters have in common."""

import math

import pytest
import torch
from samplehold.switching.fitting.curvature import standard_errors
from samplehold.switching.parameters import Parameter

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
    errors = standard_errors(objective, lambda points: iter([points]), known, values, torch.ones(1, dtype=FLOAT))
    assert float(errors["b"]) == pytest.approx(0.25, rel=1e-6)
    assert float(errors["a"]) == pytest.approx(0.5, rel=1e-6) if at < 0.9 else math.isnan(float(errors["a"]))
