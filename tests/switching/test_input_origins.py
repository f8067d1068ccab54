"""A fit does not depend on the origin and the unit of its inputs."""

import numpy as np
import pyro
import pytest
import samplehold as sh
import statsmodels.api as sm
import torch
from oracles.streams import assert_stream_is_filter, streamed
from samplehold.switching.responses import Frame

T = 160


def column(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).unsqueeze(-1)


def choices(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A state that stays, an input, and uniform numbers."""
    rng = np.random.default_rng(seed)
    state = (rng.random(T) < 0.05).cumsum() % 2
    return state, rng.normal(size=T), rng.random(T)


def binary() -> tuple[np.ndarray, np.ndarray]:
    state, z, chance = choices()
    return (chance < 1 / (1 + np.exp(-np.where(state, 3 * z, -2 * z)))).astype(float), z


def counts() -> tuple[np.ndarray, np.ndarray]:
    state, z, chance = choices()
    return np.floor(-np.log(chance) * np.exp(np.where(state, 2 + 0.5 * z, 0.5 - 0.3 * z))), z


def symbols() -> tuple[np.ndarray, np.ndarray]:
    state, z, chance = choices()
    return np.digitize(chance + 0.2 * np.where(state, z, -z), [0.35, 0.7]).astype(float), z


def numbers() -> tuple[np.ndarray, np.ndarray]:
    state, z, chance = choices()
    return np.where(state, 1 + 2 * z, -1 - z) + np.log(chance / (1 - chance)) / 2, z


def moved() -> tuple[np.ndarray, np.ndarray]:
    """A state that the input moves, under noise."""
    rng = np.random.default_rng(1)
    z, state = rng.normal(size=T).cumsum() / 6, np.zeros(T, int)
    for t in range(1, T):
        leaves = rng.random() < 1 / (1 + np.exp(2 - 2 * z[t]))
        state[t] = rng.integers(2) if leaves else state[t - 1]
    return 4.0 * state + rng.normal(size=T), z


MARKOV, NORMAL = sh.Markov(2), sh.Normal(1)
PARTS = {
    "Bernoulli": (MARKOV, sh.Bernoulli(1, inputs=["u"]), binary, ("em", "vmp")),
    "Poisson": (MARKOV, sh.Poisson(1, inputs=["u"]), counts, ("em", "vmp")),
    "Categorical": (MARKOV, sh.Categorical(3, inputs=["u"]), symbols, ("em", "vmp")),
    "shared": (MARKOV, sh.Bernoulli(1, inputs=["u"], shared=["u"]), binary, ("em", "vmp")),
    "regression": (MARKOV, sh.LinearRegression(1, inputs=["u"]), numbers, ("em", "vmp")),
    "tied regression": (MARKOV, sh.LinearRegression(1, ["u"], tied={"scale": "all states"}), numbers, ("em", "vmp")),
    "autoregression": (MARKOV, sh.AutoRegressive(1, inputs=["u"]), numbers, ("em", "vmp")),
    "vector autoregression": (
        MARKOV, sh.AutoRegressive(1, 1, inputs=["u"], covariance="full"), numbers, ("em", "vmp"),
    ),
    "gate": (sh.Copy(2, inputs=["u"]), NORMAL, moved, ("em", "vmp")),
    "transitions": (sh.Markov(2, inputs=["u"]), NORMAL, moved, ("em", "vmp")),
    "stationary": (sh.Markov(2, inputs=["u"], initial="stationary"), NORMAL, moved, ("em", "vmp")),
    "segments": (sh.SemiMarkov(3, sh.Poisson(), inputs=["u"]), NORMAL, moved, ("em",)),
    "rates": (sh.ContinuousMarkov(2, inputs=["u"]), NORMAL, moved, ("em",)),
    "gated": (
        sh.Copy(2), sh.Gated(sh.LinearRegression(1, ["u"]), sh.LinearRegression(1, ["u"])), numbers, ("em", "vmp"),
    ),
}  # fmt: skip
ORIGINS = {"1e6 spreads": (1.0, 1e6), "a year": (10.0, 2000.0), "small": (1e-3, 0.0), "large": (1e3, -3e3)}
EASY = {"Bernoulli": "em", "regression": "vmp", "transitions": "em", "gate": "vmp", "rates": "em"}


def fitted(name: str, method: str, scale: float, origin: float, **options):
    dynamics, emission, data, _ = PARTS[name]
    y, z = data()
    options = {"restarts": 1, "progress": False, "max_steps": 300} | options
    return sh.SwitchingSSM(dynamics, emission).fit(y, method, inputs={"u": origin + scale * z}, **options)


def log_evidence(fit, name: str, scale: float, origin: float) -> float:
    y, z = PARTS[name][2]()
    return float(fit.model.log_evidence(y, inputs={"u": origin + scale * z}))


def check(name: str, method: str, prior, **options):
    plain = fitted(name, method, 1.0, 0.0, prior=prior, **options)
    for scale, origin in ORIGINS.values():
        other = fitted(name, method, scale, origin, prior=prior, **options)
        assert other.loglik == pytest.approx(plain.loglik, abs=1e-6), (scale, origin)
        assert log_evidence(other, name, scale, origin) == pytest.approx(other.loglik, abs=1e-6)
        if method == "vmp":
            assert float(other.objective[-1]) == pytest.approx(float(plain.objective[-1]), abs=1e-6)


@pytest.mark.parametrize(("name", "method"), EASY.items())
def test_a_fit_is_the_same_for_other_origins_and_units_of_inputs(name, method):
    check(name, method, "weak", max_steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("prior", ["weak", None])
@pytest.mark.filterwarnings("ignore:.*without end")
def test_every_part_is_the_same_for_other_origins_and_units_of_inputs(name, prior):
    for method in PARTS[name][3]:
        if prior is not None or method == "em":
            check(name, method, prior)


POOLED = {
    "none": "none",
    "partial": {"transition": "partial"},
    "both": {"transition": "partial", "emission": "none"},
}


def check_by_subject(pooled: str, **options):
    y, z = (table.reshape(4, -1) for table in numbers())
    model = sh.SwitchingSSM(MARKOV, sh.LinearRegression(1, inputs=["u"]))
    options = {"pooled": POOLED[pooled], "restarts": 1, "progress": False} | options
    plain, *others = (
        model.fit(y[..., None], "vmp", inputs={"u": a + s * z}, **options) for s, a in [(1.0, 0.0), *ORIGINS.values()]
    )
    for other in others:
        assert other.loglik == pytest.approx(plain.loglik, abs=1e-6)
        assert float(other.objective[-1]) == pytest.approx(float(plain.objective[-1]), abs=1e-6)


def test_parameters_by_subject_are_the_same_after_a_few_steps_for_other_origins_and_units_of_inputs():
    check_by_subject("both", max_steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("pooled", POOLED)
def test_parameters_by_subject_are_the_same_for_other_origins_and_units_of_inputs(pooled):
    check_by_subject(pooled)


@pytest.mark.parametrize("prior", ["weak", pytest.param(None, marks=pytest.mark.slow)])
def test_hazards_are_the_same_for_other_origins_and_units_of_inputs(prior):
    y, z = moved()
    model = sh.Segments(sh.Normal(1), ["u"])
    plain, *others = (
        model.fit(y[:40], inputs={"u": a + s * z[:40]}, prior=prior, restarts=1, progress=False)
        for s, a in ((1.0, 0.0), (5.0, 400.0), (1e-3, 1e3))
    )
    for fit in others:
        assert fit.loglik == pytest.approx(plain.loglik, abs=1e-6)


SEGMENTS = {
    "regression": lambda: sh.Segments(sh.LinearRegression(1, ["u"])),
    "regression and hazard": lambda: sh.Segments(sh.LinearRegression(1, ["u"]), ["u"]),
}


@pytest.mark.parametrize(
    ("name", "prior"),
    [pytest.param(name, prior, marks=pytest.mark.slow) for name in SEGMENTS for prior in ("weak", None)],
)
def test_regressions_of_segments_are_the_same_for_other_origins_and_units_of_inputs(name, prior):
    (y, z), options = numbers(), {"prior": prior, "restarts": 1, "progress": False}
    plain = SEGMENTS[name]().fit(y[:40], inputs={"u": z[:40]}, **options)
    for scale, origin in ORIGINS.values():
        u = {"u": origin + scale * z[:40]}
        fit = SEGMENTS[name]().fit(y[:40], inputs=u, **options)
        assert fit.loglik == pytest.approx(plain.loglik, abs=1e-6), (scale, origin)
        assert float(fit.model.log_evidence(y[:40], inputs=u)) == pytest.approx(fit.loglik, abs=1e-9)


def test_methods_of_segments_read_inputs_about_their_origin(tmp_path):
    y, z = numbers()
    ahead = np.r_[z[:16], 0.5, -2.0]
    far, near = 2000 + 10 * ahead, ahead
    options = {"restarts": 1, "max_steps": 1, "progress": False}
    fits = [SEGMENTS["regression"]().fit(y[:16], inputs={"u": u[:16]}, **options) for u in (far, near)]
    assert fits[0].loglik == pytest.approx(fits[1].loglik, abs=1e-8)
    assert "constants at inputs u = " in repr(fits[0].model)
    fits[0].model.save(tmp_path)
    far_model, near_model = sh.load(tmp_path), fits[1].model
    assert float(far_model.log_evidence(y[:16], inputs={"u": far[:16]})) == fits[0].loglik
    smooth = [m.smooth(y[:16], inputs={"u": u[:16]}).mean for m, u in ((far_model, far), (near_model, near))]
    torch.testing.assert_close(smooth[0]["loc"], smooth[1]["loc"])
    torch.testing.assert_close(smooth[0]["coefficients"] * 10, smooth[1]["coefficients"])
    means = [m.forecast(y[:16], 2, inputs={"u": u}).mean for m, u in ((far_model, far), (near_model, near))]
    torch.testing.assert_close(*means)
    assert_stream_is_filter(far_model, column(y[:9]), "mean", inputs=column(far[:9]))
    drawn = [m.simulate(9, seed=1, inputs={"u": u[:9]}).x for m, u in ((far_model, far), (near_model, near))]
    torch.testing.assert_close(*drawn)


@pytest.mark.parametrize("stated", [{"fixed": {"loc": [0.0]}}, {"prior": {"loc": [0.0]}}])
def test_a_stated_location_of_segments_is_that_at_inputs_0(stated):
    y, z = numbers()
    options = {"restarts": 1, "max_steps": 3, "progress": False}
    assert SEGMENTS["regression"]().fit(y[:20], inputs={"u": 3 + z[:20]}, **options, **stated).model.origin is None


# ---- one state: the maximum of a generalised linear model ------------------------------------------------------------

FAR = {"mean 0": (0.0, 1.0), "age": (60.0, 5.0), "year": (2000.0, 10.0)}


@pytest.mark.parametrize(("origin", "scale"), FAR.values(), ids=FAR)
@pytest.mark.parametrize("name", ["Bernoulli", "Poisson", "Categorical"])
def test_one_state_has_the_maximum_of_a_generalised_linear_model(name, origin, scale):
    emission, (y, z) = PARTS[name][1], PARTS[name][2]()
    oracle = {"Bernoulli": sm.Logit, "Poisson": sm.Poisson, "Categorical": sm.MNLogit}[name]
    best = oracle(y, sm.add_constant(z)).fit(disp=0)
    given = {"inputs": {"u": origin + scale * z}, "prior": None, "restarts": 1, "progress": False}
    fit = sh.SwitchingSSM(sh.Markov(1), emission).fit(y, **given)
    assert fit.loglik == pytest.approx(best.llf, abs=1e-6)
    slopes = fit.model.coefficients.flatten() * scale
    np.testing.assert_allclose(slopes, np.atleast_1d(best.params[1]), atol=1e-3)


def test_least_squares_on_a_year_is_near_its_maximum_under_the_weak_prior():
    y, z = numbers()
    best = sm.OLS(y, sm.add_constant(z)).fit().llf
    fit = sh.SwitchingSSM(sh.Markov(1), sh.LinearRegression(1, ["u"])).fit(
        y, inputs={"u": 2000 + 10 * z}, restarts=1, progress=False
    )
    assert best - 0.1 < fit.loglik < best


# ---- constants that are not stated at inputs 0 -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_year():
    return fitted("Bernoulli", "em", 10.0, 2000.0)


def test_a_model_states_its_constants_at_the_mean_inputs_if_they_would_round_at_0(by_year, tmp_path):
    model, (y, z) = by_year.model, binary()
    given = {"inputs": {"u": 2000 + 10 * z}}
    assert float(model.origin) == pytest.approx(2000 + 10 * z.mean())
    assert "constants at inputs u = 1998.81" in repr(model)
    assert "inputs u = 1998.81" in " ".join(str(by_year.summary()).split())
    assert torch.equal(model.describe()["inputs_origin"], model.origin)
    model.save(tmp_path)
    for same in (sh.load(tmp_path), model.with_values(model.values), model.scaled_to(y, **given)):
        assert float(same.log_evidence(y, **given)) == by_year.loglik
    again = model.fit(y, **given, start=model, restarts=1, max_steps=1, progress=False)
    assert by_year.loglik - 0.1 < float(again.model.log_evidence(y, **given)) < by_year.loglik + 0.1


def test_all_methods_of_such_a_model_agree_with_those_at_centred_inputs(by_year):
    (y, z), centred = binary(), fitted("Bernoulli", "em", 1.0, 0.0)
    model, plain, ahead = by_year.model, centred.model, np.concatenate([z, [0.0, 0.5, -2.0]])
    far, near = {"inputs": {"u": 2000 + 10 * z}}, {"inputs": {"u": z}}
    torch.testing.assert_close(model.smooth(y, **far).state, plain.smooth(y, **near).state, rtol=0, atol=1e-9)
    mean = model.forecast(y, 3, inputs={"u": 2000 + 10 * ahead}).mean
    torch.testing.assert_close(mean, plain.forecast(y, 3, inputs={"u": ahead}).mean, rtol=0, atol=1e-9)
    drawn = (each.simulate(50, seed=1, inputs={"u": u[:50]}).x for each, u in ((model, 2000 + 10 * z), (plain, z)))
    torch.testing.assert_close(*drawn)
    state, _ = streamed(model, column(y[:9]), inputs=column(2000 + 10 * z[:9]))
    torch.testing.assert_close(state.log_evidence, plain.log_evidence(y[:9], inputs={"u": z[:9]}))
    errors = [fit.summary().parameters["standard error"] for fit in (by_year, centred)]
    slope = "coefficients[0, 0, u]"
    assert errors[0][slope] * 10 == pytest.approx(errors[1][slope], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_draws_of_such_a_model_have_the_origin_of_its_values(method):
    y, z = binary()
    options = {"max_steps": 100} if method == "svi" else {"num_samples": 10, "warmup_steps": 10}
    model = sh.SwitchingSSM(MARKOV, sh.Bernoulli(1, inputs=["u"]))
    far, near = (
        model.fit(y, method, inputs={"u": a + s * z}, restarts=1, progress=False, **options)
        for a, s in ((2000.0, 10.0), (0.0, 1.0))
    )
    assert far.model.origin is not None
    given = ({"inputs": {"u": 2000 + 10 * z}}, {"inputs": {"u": z}})
    found = [float(fit.posterior.smooth(y, **u).log_normalizer) for fit, u in zip((far, near), given, strict=True)]
    assert found[0] == pytest.approx(found[1], abs=1e-3)


# ---- priors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Bernoulli", "Poisson", "Categorical", "regression", "gate", "transitions", "rates"])
def test_a_prior_at_other_inputs_is_the_density_of_the_program(name):
    """A density of constants at the mean inputs, as one of constants at inputs 0."""
    dynamics, emission, data, _ = PARTS[name]
    y, z = data()
    given = {"inputs": {"u": 3 + z[:20]}}
    model = sh.SwitchingSSM(dynamics, emission).scaled_to(y[:20], **given)
    assert float(model.prior["inputs_center"]) == pytest.approx(3 + z[:20].mean())
    with pyro.poutine.trace() as tracer:
        pyro.set_rng_seed(0)
        model(y[:20], **given)
    values = {site: tracer.trace.nodes[site]["value"] for site in model.known}
    total = sum(tracer.trace.nodes[site]["fn"].log_prob(values[site]).sum() for site in model.known)
    torch.testing.assert_close(model.log_prior(values), total)
    problem = model.problem(y[:20], **given)
    frame = Frame(problem.responses, problem.inputs, model.prior["inputs_center"], torch.ones(1).double())
    there = problem.in_frame(frame)
    moved = frame.into(values)
    (response,) = problem.responses
    volume = response.range.log_volume(values[response.constant], moved[response.constant]).sum()
    torch.testing.assert_close(there.log_prior(moved) + volume, model.log_prior(values))
    torch.testing.assert_close(there.evidence(moved), problem.evidence(values))


def test_a_prior_that_the_user_has_set_stays_at_inputs_0_and_in_their_unit():
    y, z = binary()
    model = sh.SwitchingSSM(MARKOV, sh.Bernoulli(1, inputs=["u"]))
    given = {"inputs": {"u": 3 + 2 * z}}
    scales = model.with_prior({"coefficients_scale": [[[0.1]], [[0.2]]]}).scaled_to(y, **given)
    assert scales.prior["coefficients_scale"].flatten().tolist() == [0.1, 0.2]
    assert float(scales.prior["inputs_center"]) == pytest.approx(3 + 2 * z.mean())
    constants = model.with_prior({"successes": [[2.0], [2.0]], "failures": [[5.0], [5.0]]}).scaled_to(y, **given)
    assert float(constants.prior["inputs_center"]) == 0
    whole = model.fit(y, **given, prior=model.prior, restarts=1, max_steps=8, progress=False)
    assert float(whole.model.prior["inputs_center"]) == 0
    height = whole.loglik + float(whole.model.log_prior(whole.model.values))
    assert float(whole.objective[-1]) == pytest.approx(height, abs=1e-6)


def test_fixed_constants_are_those_at_inputs_0():
    y, z = binary()
    model = sh.SwitchingSSM(MARKOV, sh.Bernoulli(1, inputs=["u"]))
    for prior in ("weak", None):
        given = {"fixed": {"probs": [[0.4], [float("nan")]]}, "prior": prior, "restarts": 1, "progress": False}
        fit = model.fit(y[:30], inputs={"u": 1 + z[:30]}, max_steps=3, **given)
        assert float(fit.model.probs[0]) == 0.4
        again = float(fit.model.log_evidence(y[:30], inputs={"u": 1 + z[:30]}))
        assert again == pytest.approx(fit.loglik, abs=1e-9)


@pytest.mark.parametrize(("origin", "scale"), FAR.values(), ids=FAR)
@pytest.mark.parametrize(("name", "fixed"), [("Bernoulli", {"probs": [[0.5]]}), ("Poisson", {"rate": [[1.0]]})])
def test_a_fit_beside_a_fixed_constant_has_the_maximum_through_inputs_0(name, fixed, origin, scale):
    emission, (y, z) = PARTS[name][1], PARTS[name][2]()
    u = origin + scale * z
    best = {"Bernoulli": sm.Logit, "Poisson": sm.Poisson}[name](y, u[:, None]).fit(disp=0, maxiter=200).llf
    given = {"inputs": {"u": u}, "prior": None, "restarts": 1, "progress": False, "fixed": fixed}
    assert sh.SwitchingSSM(sh.Markov(1), emission).fit(y, **given).loglik == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("origin", [0.0, 2000.0, 1e6])
def test_a_regression_beside_a_fixed_location_has_the_least_squares_through_inputs_0(origin):
    y, z = numbers()
    best = sm.OLS(y, origin + z).fit().llf
    given = {"inputs": {"u": origin + z}, "prior": None, "restarts": 1, "progress": False, "fixed": {"loc": [[0.0]]}}
    fit = sh.SwitchingSSM(sh.Markov(1), sh.LinearRegression(1, ["u"])).fit(y, **given)
    assert fit.loglik == pytest.approx(best, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["weak", None])
@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("Bernoulli", {"probs": [[0.4], [0.6]]}),
        ("Poisson", {"rate": [[1.0], [2.0]]}),
        ("regression", {"loc": [[1.0], [0.0]]}),
    ],
)
def test_a_fit_beside_fixed_constants_is_the_same_for_other_units_of_inputs(name, fixed, prior):
    fits = [fitted(name, "em", scale, 0.0, prior=prior, fixed=fixed, max_steps=50).loglik for scale in (1.0, 1e-3, 1e3)]
    assert fits == pytest.approx([fits[0]] * 3, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("origin", "scale"), [(2000.0, 10.0), (0.0, 1e-3), (1e6, 1.0)])
def test_constant_coefficients_of_a_structure_are_the_same_for_other_origins_and_units_of_inputs(origin, scale):
    """Their flat prior has the unit of the input, so that the density of x has its inverse."""
    rng = np.random.default_rng(0)
    z, level = rng.normal(size=60), rng.normal(size=60).cumsum() * 0.3
    y, model = level + z + 0.3 * rng.normal(size=60), sh.LinearSSM(sh.LocalLevel() + sh.Regression(["u"]))
    plain, other = (model.fit(y, inputs={"u": u}, progress=False) for u in (z, origin + scale * z))
    assert other.loglik + np.log(scale) == pytest.approx(plain.loglik, abs=1e-6)


def test_a_column_of_ones_is_refused_with_the_name_of_the_constant():
    y, z = binary()
    design = np.column_stack([z, np.ones(T)])
    said = r"^inputs: column 1 is constant; the emission has a constant of its own \(`probs` at inputs 0\)\. Drop the"
    with pytest.raises(ValueError, match=said):
        sh.SwitchingSSM(MARKOV, sh.Bernoulli(1, inputs=2)).fit(y, inputs=design, progress=False)
    with pytest.raises(ValueError, match=r"^inputs: 'one' is constant; Copy has .* \(`redraw_intercept` at inputs 0\)"):
        sh.SwitchingSSM(sh.Copy(2, inputs=["z", "one"]), sh.Bernoulli(1)).fit(y, inputs=design, progress=False)


def test_the_objective_of_em_has_the_density_of_constants_at_the_mean_inputs():
    rng = np.random.default_rng(0)
    u = torch.from_numpy(5 + rng.standard_normal((200, 1)))
    x = torch.from_numpy(rng.random((200, 1))).lt((u - 5).sigmoid()).double()
    model = sh.SwitchingSSM(sh.Markov(1), sh.Bernoulli(1, inputs=1))
    fit = model.fit(x, "em", inputs=u, restarts=1, progress=False)
    prior, slope = fit.model.prior, fit.values["coefficients"].reshape(())
    constant = (fit.values["probs"].logit() + slope * prior["inputs_center"]).sigmoid()
    expected = torch.distributions.Beta(prior["successes"], prior["failures"]).log_prob(constant).sum()
    expected += torch.distributions.Normal(0.0, prior["coefficients_scale"]).log_prob(slope).sum()
    assert float(fit.objective[-1]) - fit.loglik == pytest.approx(float(expected), abs=1e-8)
