"""Data without spread, or with one far outlier: every model ends in a bounded fit, or in words that say why not."""

import numpy as np
import pytest
import samplehold as sh
import torch

from tests.examples import slow

N = 30
WAVE, NOISE = np.sin(np.arange(N)), np.random.default_rng(0).normal(size=N)
MARKOV = sh.Markov(2)
DATA = {
    "constant": np.full(N, 3.0),
    "zeros": np.zeros(N),
    "two equal values": np.full(2, 3.0),
    "two levels": np.repeat([0.0, 1.0], N // 2),
    "a spike": np.eye(N)[N // 2],
    "an outlier": np.r_[NOISE[: N - 1], 1e6],
    "equal values among others": np.r_[NOISE[: N // 3], np.full(N - N // 3, 0.5)],
}
BEYOND = 1e14  # no value of a fit under a prior exceeds it


def unit(x):
    return 0.25 + 0.5 * (x - x.min()) / max(np.ptp(x), 1.0)


SWITCHING = {
    "Normal": (sh.Normal(), None),
    "tied": (sh.Normal(tied={"scale": "all states"}), None),
    "vector": (sh.MultivariateNormal(2), lambda x: np.c_[x, NOISE[: len(x)]]),
    "spherical": (sh.Normal(2, covariance="spherical"), lambda x: np.c_[x, x]),
    "Student t": (sh.StudentT(), None),
    "Gamma": (sh.Gamma(), lambda x: np.abs(x) + 0.5),
    "LogNormal": (sh.LogNormal(), lambda x: np.abs(x) + 0.5),
    "Beta": (sh.Beta(), unit),
    "angles": (sh.VonMises(), lambda x: np.clip(x, -3.0, 3.0)),
    "autoregression": (sh.AutoRegressive(1), None),
    "shared coefficients": (sh.AutoRegressive(1, switching=["scale"]), None),
    "regression": (sh.LinearRegression(inputs=["wave"]), None),
    "factors": (sh.FactorAnalysis(2, 1), lambda x: np.c_[x, NOISE[: len(x)]]),
    "mixture": (sh.Mixture(sh.Normal(), 2), None),
    "joint": (sh.Joint(one=sh.Normal(), two=sh.Gamma()), lambda x: np.c_[x, np.abs(x) + 0.5]),
}
FLAT = {"constant", "zeros", "two equal values", "two levels", "a spike"}
QUICK = {("Normal", "an outlier"), ("Gamma", "constant"), ("angles", "two levels"), ("shared coefficients", "constant")}


def fitted(model, x, **options):
    given = {"inputs": {"wave": WAVE[: len(x)]}} if model.inputs else {}
    return model.fit(x, restarts=1, progress=False, **options, **given)


def check(fit):
    assert np.isfinite(fit.loglik)
    most = torch.inf if fit.prior is None else BEYOND
    for name, value in fit.model.values.items():
        assert bool((value.isfinite() & (value.abs() <= most)).all()), (name, value)
    fit.summary()


CASES = [(kind, data) for kind in SWITCHING for data in DATA]
MARKED = [case if case in QUICK else slow(*case) for case in CASES]


@pytest.mark.parametrize(("kind", "data"), MARKED)
@pytest.mark.parametrize("prior", ["weak", None])
def test_a_fit_is_bounded_and_says_where_the_likelihood_is_not(kind, data, prior):
    emission, arranged = SWITCHING[kind]
    x = DATA[data] if arranged is None else arranged(DATA[data])
    fit = fitted(sh.SwitchingSSM(MARKOV, emission), x, prior=prior)
    check(fit)
    assert "fell by" not in fit.reason
    if prior is None and data in FLAT:
        assert bool(fit.collapsed_states.any())
        assert "starts ended with a state on a single point, where the likelihood is unbounded" in fit.reason


SEGMENTS = {
    "Normal": (sh.Normal(), None),
    "vector": (sh.MultivariateNormal(2), lambda x: np.c_[x, NOISE[: len(x)]]),
    "regression": (sh.LinearRegression(inputs=["wave"]), None),
    "waiting times": (sh.Exponential(), lambda x: x.round(3) if x.min() >= 0 else np.abs(x)),
    "counts": (sh.Poisson(), lambda x: np.abs(x).round()),
}
EMPTY = {"waiting times": {"zeros", "two levels", "a spike"}, "counts": set()}


FEW = {"constant", "a spike", "an outlier"}  # of the kinds whose fits take seconds
OF_SEGMENTS = [
    (kind, data) for kind in SEGMENTS for data in DATA if data in FEW or kind not in ("vector", "regression")
]


@pytest.mark.parametrize(
    ("kind", "data"),
    [case if case in {("Normal", "constant"), ("Normal", "a spike")} else slow(*case) for case in OF_SEGMENTS],
)
@pytest.mark.parametrize("prior", ["weak", None])
def test_segments_say_so_too(kind, data, prior):
    emission, arranged = SEGMENTS[kind]
    x, model = DATA[data] if arranged is None else arranged(DATA[data]), sh.Segments(emission)
    fit = fitted(model, x, prior=prior)
    check(fit)
    said = "segments on single points, where the likelihood is unbounded (this one too): fixed={"
    if data in EMPTY.get(kind, FLAT - ({"two equal values"} if prior else set())):
        assert said in fit.reason
    if said in fit.reason:  # and the cure works
        scale = {"df": 4.0, "inverse_scale": torch.eye(2)} if kind == "vector" else {"shape": [1.5], "rate": [0.5]}
        cured = fitted(model, x, prior=prior, fixed=scale)
        assert "unbounded" not in cured.reason
        assert cured.converged


def test_a_scale_of_segments_that_is_fixed_stays_below_the_floor():
    scale = {"shape": [2.0], "rate": [1e-30]}
    fit = fitted(sh.Segments(sh.Normal()), DATA["constant"], fixed=scale)
    assert float(fit.model.values["rate"]) == 1e-30
    assert "unbounded" not in fit.reason


PAIR = sh.LinearSSM(1, 2), sh.SwitchingLinearSSM(2, 1, 2)


@pytest.mark.parametrize("model", PAIR, ids=["linear", "switching linear"])
def test_linear_models_say_which_features_are_constant(model):
    x = np.c_[DATA["constant"], NOISE]
    for prior in ("weak", None):
        fit = fitted(model, x, prior=prior, max_steps=5)
        check(fit)
        said = 'constant data (feature 0) the likelihood is unbounded: prior="weak" bounds it'
        assert (said in fit.reason) == (prior is None)


CHAINS = {
    "layers": sh.LayeredSSM([2, 2], sh.Normal()),
    "factors": sh.FactorialSSM([2, 2], sh.MultivariateNormal(2)),
}


@pytest.mark.parametrize(("kind", "data"), [("layers", "constant"), *(slow(k, d) for k in CHAINS for d in DATA)])
def test_several_chains_say_so_too(kind, data):
    x, model = DATA[data], CHAINS[kind]
    x = x if model.n_features == 1 else np.c_[x, NOISE[: len(x)]]
    check(fitted(model, x, max_steps=50))
    try:
        fit = fitted(model, x, max_steps=50, prior=None)
    except ValueError as error:
        assert "x: rounding decides the bound of this fit" in str(error)  # noqa: PT017
    else:
        assert "likelihood is unbounded" in fit.reason or data not in FLAT


SMOOTH = {
    "sine": np.sin(np.arange(100) / 20),
    "line": 0.1 * np.arange(100),
    "parabola": (np.arange(100) / 50) ** 2,
    "growth": np.exp(np.arange(100) / 60),
}


@pytest.mark.parametrize("data", ["line", *map(slow, ["sine", "parabola", "growth"])])
def test_the_cure_of_an_autoregression_of_smooth_data_works(data):
    x, options = SMOOTH[data], {"progress": False}
    with pytest.raises(ValueError, match=r"give a lower order, such as 1, or a LocalLevel\(\) in its place"):
        sh.LinearSSM(sh.Autoregression(3)).fit(x, **options)
    for structure in (sh.Autoregression(1), sh.LocalLevel()):
        assert sh.LinearSSM(structure).fit(x, **options).converged


STRUCTURES = [sh.Autoregression(1), sh.Autoregression(2) + sh.LocalLevel(), sh.LocalLinearTrend()]


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("data", ["constant", "zeros"])
def test_a_structure_of_a_constant_is_refused_and_a_prior_cures(structure, data):
    import pyro.distributions as dist

    model, options = sh.LinearSSM(structure), {"restarts": 2, "progress": False}
    with pytest.raises(ValueError, match=r"^x: is constant, so the likelihood .* a prior such as dist\.InverseGamma"):
        model.fit(DATA[data], **options)
    prior = {name: dist.InverseGamma(2.0, 1.0) for name in model.known if name.startswith("sigma2")}
    assert model.fit(DATA[data], prior=prior, **options).converged
