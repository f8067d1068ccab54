"""Every kind of model on small data that are written here: short fits, and what their models say."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import pandas as pd
import samplehold as sh
import torch
from torch import Tensor

Call = Callable[[], Any]

CALLS: dict[str, Call] = {}
QUIET = {"progress": False, "restarts": 1, "max_steps": 3, "seed": 0}


# ---- data: steps of two regimes --------------------------------------------------------------------------------------

T = 24
STEPS = torch.arange(T, dtype=torch.float64)
REGIME = (STEPS // 6 % 2).long()
WAVE = torch.stack([torch.sin(1.7 * STEPS), torch.cos(2.3 * STEPS)], -1)
REAL = WAVE + 3.0 * REGIME.unsqueeze(-1)
ONE = REAL[:, :1]
COUNTS = ((STEPS * 7 % 5) + 4 * REGIME).unsqueeze(-1)
BITS = ((STEPS * 3 % 4 + REGIME) > 2).double().unsqueeze(-1)
WORDS = ((STEPS * 5 % 7 + REGIME) % 3).unsqueeze(-1)
POSITIVE = ONE.exp()
SHARES = torch.sigmoid(ONE)
TOTALS = torch.stack([COUNTS.squeeze(-1).clamp(max=5), 5 - COUNTS.squeeze(-1).clamp(max=5)], -1)
ZEROS = torch.where(STEPS.unsqueeze(-1) % 3 == 0, 0.0, POSITIVE)
HOLES = REAL.clone()
HOLES[3], HOLES[7, 0] = torch.nan, torch.nan
DRIVE = torch.cos(0.9 * STEPS).unsqueeze(-1)
GAPS = 0.5 + (STEPS % 3) / 2
PANEL = torch.stack([ONE, ONE.flip(0) + 0.3])
WALK = torch.cumsum(WAVE[:, :1], 0)
FRAME = pd.DataFrame(REAL.numpy(), columns=["a", "b"], index=pd.RangeIndex(1990, 1990 + T, name="year"))


# ---- kinds of models, each with its data -----------------------------------------------------------------------------

Kind = tuple[Any, Tensor, dict[str, Any]]


def kind(dynamics: Any, emission: Any, x: Tensor, **given: Any) -> Kind:
    return sh.SwitchingSSM(dynamics, emission), x, given


DYNAMICS: Mapping[str, Kind] = {
    "Copy": kind(sh.Copy(2), sh.Normal(1), ONE),
    "Copy, gaps": kind(sh.Copy(2), sh.Normal(1), ONE, dt=GAPS),
    "Copy, inputs": kind(sh.Copy(2, inputs=1), sh.Normal(1), ONE, inputs=DRIVE),
    "Copy, prior": kind(sh.Copy(2, (2, 5), 3.0), sh.Normal(1), ONE),
    "Markov": kind(sh.Markov(2), sh.Normal(1), ONE),
    "Markov, inputs": kind(sh.Markov(2, inputs=1), sh.Normal(1), ONE, inputs=DRIVE),
    "Markov, stationary": kind(sh.Markov(2, initial="stationary"), sh.Normal(1), ONE),
    "Markov, sticky": kind(sh.Markov(3, sticky=5.0), sh.Normal(1), ONE),
    "Markov, left to right": kind(sh.Markov.left_right(3), sh.Normal(1), ONE),
    "Markov, known states": kind(sh.Markov(2), sh.Normal(1), ONE, states=torch.where(STEPS < 4, REGIME, -1)),
    "Markov, weights": kind(sh.Markov(2), sh.Normal(1), ONE, weights=1.0 + STEPS % 2),
    "Markov, noise": kind(sh.Markov(2), sh.Normal(1), ONE, noise=0.1 * GAPS),
    "ContinuousMarkov": kind(sh.ContinuousMarkov(2), sh.Normal(1), ONE, dt=GAPS),
    "SemiMarkov": kind(sh.SemiMarkov(2), sh.Normal(1), ONE),
    "SemiMarkov, Poisson": kind(sh.SemiMarkov(2, sh.Poisson()), sh.Normal(1), ONE),
    "SemiMarkov, table": kind(sh.SemiMarkov(2, sh.Categorical(8)), sh.Normal(1), ONE),
    "StickyHDP": kind(sh.StickyHDP(3), sh.Normal(1), ONE),
}
EMISSIONS: Mapping[str, Kind] = {
    "Normal": kind(sh.Markov(2), sh.Normal(2), HOLES),
    "Normal, spherical": kind(sh.Markov(2), sh.Normal(2, covariance="spherical"), REAL),
    "Normal, tied": kind(sh.Markov(2), sh.Normal(2, tied={"scale": "all states"}), REAL),
    "MultivariateNormal": kind(sh.Markov(2), sh.MultivariateNormal(2), HOLES),
    "MultivariateNormal, tied": kind(sh.Markov(2), sh.MultivariateNormal(2, covariance="tied"), REAL),
    "FactorAnalysis": kind(sh.Markov(2), sh.FactorAnalysis(2, 1), REAL),
    "Bernoulli": kind(sh.Markov(2), sh.Bernoulli(1), BITS),
    "Categorical": kind(sh.Markov(2), sh.Categorical(3), WORDS),
    "Poisson": kind(sh.Markov(2), sh.Poisson(1), COUNTS),
    "NegativeBinomial": kind(sh.Markov(2), sh.NegativeBinomial(1), COUNTS),
    "Geometric": kind(sh.Markov(2), sh.Geometric(1), COUNTS),
    "Multinomial": kind(sh.Markov(2), sh.Multinomial(2, 5), TOTALS),
    "StudentT": kind(sh.Markov(2), sh.StudentT(1), ONE),
    "Gamma": kind(sh.Markov(2), sh.Gamma(1), POSITIVE),
    "Exponential": kind(sh.Markov(2), sh.Exponential(1), POSITIVE),
    "LogNormal": kind(sh.Markov(2), sh.LogNormal(1), POSITIVE),
    "Beta": kind(sh.Markov(2), sh.Beta(1), SHARES),
    "VonMises": kind(sh.Markov(2), sh.VonMises(1), WAVE[:, :1]),
    "ZeroInflated": kind(sh.Markov(2), sh.ZeroInflated(sh.Gamma(1)), ZEROS),
    "Mixture": kind(sh.Markov(2), sh.Mixture(sh.Normal(1), 2), ONE),
    "Joint": kind(sh.Markov(2), sh.Joint(step=sh.Normal(1), count=sh.Poisson(1)), torch.cat([ONE, COUNTS], -1)),
    "Gated": kind(sh.Copy(2), sh.Gated(sh.Normal(1), sh.Normal(1)), ONE),
    "Gated, by state": kind(sh.Copy(2), sh.Gated(sh.Poisson(1), sh.Poisson(1), by_state=True), COUNTS),
    "LinearRegression": kind(sh.Markov(2), sh.LinearRegression(1, inputs=1), ONE, inputs=DRIVE),
    "Poisson, inputs": kind(sh.Markov(2), sh.Poisson(1, inputs=1), COUNTS, inputs=DRIVE),
    "Bernoulli, inputs": kind(sh.Markov(2), sh.Bernoulli(1, inputs=1), BITS, inputs=DRIVE),
    "Categorical, inputs": kind(sh.Markov(2), sh.Categorical(3, inputs=1), WORDS, inputs=DRIVE),
    "AutoRegressive": kind(sh.Markov(2), sh.AutoRegressive(2), ONE),
    "AutoRegressive, vector": kind(sh.Markov(2), sh.AutoRegressive(1, 2, covariance="full"), REAL),
}
OTHERS: Mapping[str, Kind] = {
    "LinearSSM": (sh.LinearSSM(1, 2), HOLES, {}),
    "LinearSSM, level": (sh.LinearSSM(sh.LocalLevel()), WALK, {}),
    "LinearSSM, season": (sh.LinearSSM(sh.LocalLinearTrend() + sh.Seasonal(4)), WALK, {}),
    "LinearSSM, regression": (sh.LinearSSM(sh.LocalLevel() + sh.Regression(1)), WALK, {"inputs": DRIVE}),
    "SwitchingLinearSSM": (sh.SwitchingLinearSSM(2, 1), ONE[:10], {}),
    "SwitchingLinearSSM, chains": (sh.SwitchingLinearSSM(2, 1, shared="chain per regime"), ONE[:10], {}),
    "FactorialSSM": (sh.FactorialSSM([2, 2], sh.MultivariateNormal(2)), REAL, {}),
    "FactorialSSM, counts": (sh.FactorialSSM([2, 2], sh.Poisson(1)), COUNTS, {}),
    "LayeredSSM": (sh.LayeredSSM([2, 2], sh.Normal(1)), ONE, {}),
    "Segments": (sh.Segments(sh.Normal(1), 0.2), ONE, {}),
    "Segments, counts": (sh.Segments(sh.Poisson(1)), COUNTS, {}),
}
KINDS = {**DYNAMICS, **EMISSIONS, **OTHERS}
STRUCTURES = [name for name in OTHERS if name.startswith("LinearSSM,")]
"""Fitted by ascent, which is far from its optimum after three steps, wherever rounding leads it."""


@cache
def fit_of(name: str, method: str = "em") -> Any:
    model, x, given = KINDS[name]
    method = {"StickyHDP": "vmp"}.get(name, method)  # which has no maximum
    return model.fit(x, method=method, **QUIET, **given)


@cache
def model_of(name: str) -> Any:
    """The model with values: those of three steps of a fit, or chosen here."""
    if name not in STRUCTURES:
        return fit_of(name).model
    model = KINDS[name][0]
    shapes = {key: [model.sizes[dim] for dim in part.dims] for key, part in model.known.items()}
    return model.with_values({key: torch.full(shape, 0.5) for key, shape in shapes.items()})


def learned(name: str, method: str = "em") -> Any:
    if name in STRUCTURES:
        model, x, given = KINDS[name]
        return model.fit(x, method=method, **QUIET | {"max_steps": 500}, **given).loglik
    fit = fit_of(name, method)
    return fit.objective, fit.model.values, fit.steps, fit.reason


def ahead(given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs and gaps of four steps more."""
    return {name: torch.cat([table, table[:4]]) for name, table in given.items() if name in ("inputs", "dt")}


def before(x: Tensor, given: Mapping[str, Any]) -> dict[str, Any]:
    """The series without the steps that inputs and gaps would lack ahead."""
    return {"x": x} | {name: table for name, table in given.items() if name not in ("inputs", "dt")} | ahead(given)


def verb(name: str, method: str, **more: Any) -> Any:
    _, x, given = KINDS[name]
    model = model_of(name)
    if method == "forecast":
        found = model.forecast(horizon=4, **before(x, given))
        return {part: getattr(found, part) for part in ("mean", "variance") if hasattr(found, part)}
    if method == "simulate":
        own = {part: given[part][:6] for part in given if part in ("inputs", "dt")}
        return model.simulate(6, seed=0, **own).x
    return getattr(model, method)(x, **given, **more)


for name in KINDS:
    CALLS[f"{name}: em"] = partial(learned, name)
    CALLS[f"{name}: log_evidence"] = partial(verb, name, "log_evidence")
    CALLS[f"{name}: simulate"] = partial(verb, name, "simulate")
for name in (*DYNAMICS, *OTHERS):
    CALLS[f"{name}: forecast"] = partial(verb, name, "forecast")
    CALLS[f"{name}: smooth"] = partial(verb, name, "smooth")
for name in (
    "Copy",
    "Markov",
    "SemiMarkov",
    "LinearSSM",
    "SwitchingLinearSSM",
    "FactorialSSM",
    "LayeredSSM",
    "Segments",
):
    CALLS[f"{name}: filter"] = partial(verb, name, "filter")
    if "Linear" not in name:  # whose draws turn with the square roots of kernels or plain forms
        CALLS[f"{name}: sample_posterior"] = partial(verb, name, "sample_posterior", n=2, seed=0)
for name in ("Copy", "Markov", "ContinuousMarkov", "SemiMarkov", "SwitchingLinearSSM", "LayeredSSM", "Segments"):
    CALLS[f"{name}: viterbi"] = partial(verb, name, "viterbi")
for name in ("Copy", "MultivariateNormal", "Categorical", "Poisson", "LinearRegression", "Gated", "FactorialSSM"):
    CALLS[f"{name}: vmp"] = partial(learned, name, "vmp")


MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
KNOWN = MODEL.with_values(redraw_prob=0.3, state_probs=[0.4, 0.6], loc=[[0.0], [3.0]], scale=[[1.0], [0.5]])

GATE = torch.sigmoid(WAVE)
LOG = torch.log_softmax(torch.sin(torch.arange(60.0, dtype=torch.float64)).reshape(20, 3), -1)


def call(make: Call) -> Call:
    CALLS[make.__name__.replace("_", " ")] = make
    return make
