"""Fits that are called where torch keeps no gradients: they keep what they need, and give the same numbers."""

from functools import cache
from typing import Any

import pytest
import samplehold as sh
import torch
from oracles.effort import short_starts
from samplehold.inference.numerics.forms import mode

FEW = {"max_steps": 3, "progress": False}
DRAWS = {"num_samples": 2, "warmup_steps": 2, "progress": False}


def series(n_steps=30):
    generator = torch.Generator().manual_seed(0)
    level = torch.randn(n_steps, 1, generator=generator, dtype=torch.float64).cumsum(0)
    return level + torch.randn(n_steps, 1, generator=generator, dtype=torch.float64)


MODELS = {
    "em": (lambda: sh.SwitchingSSM(sh.Markov(2), sh.Normal()), FEW | {"restarts": 2}),
    "vmp": (lambda: sh.SwitchingSSM(sh.Markov(2), sh.Normal()), FEW | {"restarts": 2, "method": "vmp"}),
    "svi": (lambda: sh.SwitchingSSM(sh.Markov(2), sh.Normal()), FEW | {"restarts": 2, "method": "svi"}),
    "nuts": (lambda: sh.SwitchingSSM(sh.Markov(2), sh.Normal()), DRAWS | {"restarts": 1, "method": "nuts"}),
    "structure": (lambda: sh.LinearSSM(sh.LocalLevel()), FEW),
    "switching linear": (lambda: sh.SwitchingLinearSSM(2, 1), FEW | {"restarts": 1}),
    "factorial": (lambda: sh.FactorialSSM((2, 2), sh.MultivariateNormal(1)), FEW | {"restarts": 1}),
}


@cache
def values_with_gradients(kind: str, kernels: str) -> dict[str, Any]:
    """What both ways to do without are compared with, where the same kernels serve."""
    return dict(fitted(kind).model.values)


def fitted(kind: str) -> Any:
    make, options = MODELS[kind]
    with pytest.MonkeyPatch.context() as patch:
        short_starts(patch)
        return make().fit(series(8 if kind == "switching linear" else 30), **options)


@pytest.mark.few(5)
@pytest.mark.parametrize("within", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("kind", MODELS)
def test_a_fit_without_gradients_is_the_fit_with_them(kind, within):
    expected = values_with_gradients(kind, mode())
    with within():
        fit = fitted(kind)
    assert not any(value.is_inference() or value.requires_grad for value in fit.model.values.values())
    torch.testing.assert_close(fit.model.values, expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["em", "structure"])
def test_standard_errors_need_no_gradients_outside(kind):
    make, options = MODELS[kind]
    fit = make().fit(series(), **options)
    with torch.inference_mode():
        errors = fit.summary().parameters
    assert errors.equals(fit.summary().parameters)


@pytest.mark.slow
def test_profile_intervals_need_no_gradients_outside():
    fit = sh.LinearSSM(sh.LocalLevel()).fit(series(7), progress=False)
    with torch.inference_mode():
        ends = fit.profile_interval(0.9, "sigma2.irregular")
    expected = fit.profile_interval(0.9, "sigma2.irregular")
    torch.testing.assert_close((ends.lower, ends.upper), (expected.lower, expected.upper))  # maybe by kernels
