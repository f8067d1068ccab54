"""Fits to a series on a device, and what is asked of them: the same answers as on the CPU, and they lie there."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import samplehold as sh
import torch
from oracles.fake_gpu import a_gpu
from oracles.operators import unchecked
from torch import Tensor

pytestmark = [pytest.mark.cpu("it sets up a device of its own")] if not torch.cuda.is_available() else []

N, T = 3, 20
WORK = {"restarts": 1, "max_steps": 2, "progress": False, "seed": 0}


def numbers(*shape: int) -> Tensor:
    """The same numbers in every call."""
    generator = torch.Generator("cpu").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def series(n_features: int = 1) -> Tensor:
    """Two levels, each held for five steps, and noise."""
    level = (torch.arange(T, device="cpu") // 5 % 2).double().view(T, 1)
    return 3 * level + numbers(N, T, n_features)


def gaps(n_features: int = 1) -> Tensor:
    x = series(n_features)
    x[0, 3:5] = torch.nan
    return x


def counts() -> Tensor:
    return series().abs().round()


DRIVEN = {"inputs": numbers(N, T, 1)}
KNOWN = torch.full((N, T), -1, device="cpu").index_fill(1, torch.tensor([0], device="cpu"), 0)
NAMED = {"subjects": ["a", "b", "c"]}
ROWS = torch.tensor([[0.9, torch.nan, torch.nan], [torch.nan, 0.8, torch.nan], [torch.nan] * 3], device="cpu").double()


def ssm(dynamics: Any, emission: Any) -> Callable[[], sh.SwitchingSSM]:
    return lambda: sh.SwitchingSSM(dynamics, emission)


FITS: dict[str, tuple[Callable[[], Any], Tensor, str, dict[str, Any]]] = {
    "copy": (ssm(sh.Copy(2), sh.Normal(2)), gaps(2), "em", {"lengths": [20, 15, 7]}),
    "markov": (ssm(sh.Markov(2), sh.MultivariateNormal(2)), series(2), "em", {}),
    "vmp": (ssm(sh.Markov(2), sh.Normal(1)), gaps(), "vmp", {}),
    "svi": (ssm(sh.Copy(2), sh.Poisson(1)), counts(), "svi", {}),
    "gated": (ssm(sh.Copy(2), sh.Gated(sh.Normal(1), sh.Normal(1))), series(), "em", {}),
    "known states": (ssm(sh.Markov(2), sh.Normal(1)), series(), "em", {"states": KNOWN}),
    "known noise": (ssm(sh.Markov(2), sh.Normal(1)), series(), "em", {"noise": numbers(N, T, 1).square()}),
    "weights": (ssm(sh.Markov(2), sh.Normal(1)), series(), "vmp", {"weights": numbers(N, T).square()}),
    "known entries": (ssm(sh.Markov(3), sh.Normal(1)), series(), "em", {"fixed": {"transition_probs": ROWS}}),
    "driven gate": (ssm(sh.Copy(2, inputs=1), sh.Normal(1)), series(), "em", DRIVEN),
    "driven moves": (ssm(sh.Markov(2, inputs=1), sh.Normal(1)), series(), "em", DRIVEN),
    "driven moves by message passing": (ssm(sh.Markov(3, inputs=1), sh.Normal(1)), series(), "vmp", DRIVEN),
    "driven start": (ssm(sh.Markov(2, initial_inputs=1), sh.Normal(1)), series(), "em", DRIVEN),
    "stationary": (ssm(sh.Markov(2, initial="stationary"), sh.Normal(1)), series(), "em", {}),
    "regression": (ssm(sh.Markov(2), sh.LinearRegression(1, inputs=1)), gaps(), "vmp", DRIVEN),
    "driven counts": (ssm(sh.Markov(2), sh.Poisson(1, inputs=1)), counts(), "em", DRIVEN),
    "lags": (ssm(sh.Markov(2), sh.AutoRegressive(2)), gaps(), "em", {}),
    "lags by message passing": (ssm(sh.Copy(2), sh.AutoRegressive(1)), gaps(), "vmp", {}),
    "subjects": (ssm(sh.Markov(2), sh.Normal(1)), series(), "em", {"pooled": "none"} | NAMED),
    "population": (ssm(sh.Markov(2), sh.Normal(1)), series(), "vmp", {"pooled": "partial"} | NAMED),
    "factorial": (lambda: sh.FactorialSSM([2, 2], sh.MultivariateNormal(1)), series(), "vmp", {}),
    "linear": (lambda: sh.LinearSSM(2, 2), gaps(2), "em", {}),
    "structure": (lambda: sh.LinearSSM(sh.LocalLevel()), gaps()[:1, :10], "em", {}),
}


def answers(fit: Any, x: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    """What is asked of each fit, and the tables that it gave."""
    found: dict[str, Any] = {"log_evidence": fit.log_evidence(x, **given)}
    for verb in ("filter", "smooth"):
        found |= {f"{verb}.{name}": table for name, table in vars(getattr(fit, verb)(x, **given)).items()}
    found |= {f"values.{name}": value for name, value in fit.model.values.items()}
    return {name: table for name, table in found.items() if isinstance(table, Tensor)}


def on(device: torch.device, given: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}


TOLD = "lengths", "states", "noise", "weights", "inputs", "subjects"
DRAWN = {"svi"}  # with the random numbers of the device


def fitted(name: str, device: torch.device) -> tuple[Any, Tensor, dict[str, Any]]:
    make, x, method, options = FITS[name]
    x, options = x.to(device), on(device, options)
    fit = make().fit(x, method, **WORK, **options)
    return fit, x, {key: options[key] for key in TOLD if key in options}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FITS)
def test_a_fit_and_its_verbs_on_a_device_are_those_on_the_cpu(name):
    with warnings.catch_warnings(), unchecked():
        warnings.simplefilter("ignore")
        fit, x, given = fitted(name, torch.device("cpu"))
        expected = answers(fit, x, given)
        with a_gpu() as device:
            fit, x, given = fitted(name, device)
            found = answers(fit, x, given)
            places = {key: table.device.type for key, table in found.items()}
            assert set(places.values()) == {device.type}, places
            found = {key: table.cpu() for key, table in found.items()}
            assert fit.n_parameters > 0
            assert repr(fit.summary())
            assert len(fit.states(x, **given)) > 0
            fit.to_arviz(x, draws=2, **given)
            fit.plot(x, **given)
            if not given.keys() - {"weights"}:
                fit.model.plot_forecast(x, 2)
    if name in DRAWN and device.type != "fake":
        return
    for key, table in expected.items():
        torch.testing.assert_close(
            found[key], table, rtol=1e-6, atol=1e-8, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_the_effect_of_an_input_is_drawn_for_a_fit_on_a_device():
    with a_gpu() as device, unchecked():
        inputs, model = numbers(N, T, 1).to(device), sh.SwitchingSSM(sh.Copy(2, inputs=["dose"]), sh.Normal(1))
        fit = model.fit(series().to(device), inputs=inputs, input_names=["dose"], **WORK)
        assert fit.plot_effect("dose").axes[0].lines
