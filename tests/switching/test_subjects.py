"""Parameters by subject."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import scipy.optimize
import torch
from oracles.models import enumerate_evidence, trace_log_prob
from samplehold.switching.emissions.by_subject import SubjectEmission
from samplehold.switching.fitting.posterior import VariationalPosterior

NAMES = ("anna", "ben", "cleo")
EMISSIONS = {
    "normal": sh.Normal(1),
    "tied": sh.Normal(1, tied={"scale": "all states"}),
    "multivariate": sh.MultivariateNormal(1),
    "poisson": sh.Poisson(1),
    "bernoulli": sh.Bernoulli(1),
    "categorical": sh.Categorical(3),
}


def panel(emission, dynamics, n_steps=(40, 30, 35), seed=0):
    """Sequences of subjects, drawn from a model at values near typical ones."""
    generator = torch.Generator().manual_seed(seed)
    discrete = not isinstance(emission, sh.Normal | sh.MultivariateNormal)
    x = {}
    for i, (name, n) in enumerate(zip(NAMES, n_steps, strict=True)):
        state = torch.arange(n) // 7 % 2
        noise = torch.randn(n, 1, generator=generator, dtype=torch.float64)
        x[name] = (6.0 + 0.5 * i) * state[:, None] + noise
        if discrete:
            top = {"Bernoulli": 1, "Categorical": 2}.get(emission.name, 99)
            x[name] = x[name].round().clamp(0, top)
    return x


def fitted(dynamics, emission, x, **options):
    return sh.SwitchingSSM(dynamics, emission).fit(x, restarts=1, progress=False, **options)


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("kind", EMISSIONS)
def test_parameters_of_each_subject_are_those_of_separate_fits(kind, method):
    emission, dynamics = EMISSIONS[kind], sh.Copy(2) if kind == "poisson" else sh.Markov(2)
    x = panel(emission, dynamics)
    common = fitted(dynamics, emission, x, method=method, tol=1e-11)
    fit = fitted(dynamics, emission, x, method=method, tol=1e-11, pooled="none")
    total = 0.0
    for name in NAMES:
        alone = fitted(
            dynamics, emission, x[name], method=method, tol=1e-11, start=common.model, prior=common.model.prior
        )
        total += float(alone.objective[-1])
        for parameter, value in fit.model.of(name).values.items():
            torch.testing.assert_close(value, alone.values[parameter], rtol=1e-3, atol=1e-4)
    slow = kind in ("bernoulli", "categorical", "poisson")  # EM is: its ends are less exact
    assert float(fit.objective[-1]) == pytest.approx(total, abs=1e-6 if slow else 1e-8)
    assert bool((fit.objective.diff() >= -1e-9).all())


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("pooled", [{"emission": "none"}, {"dynamics": "none"}, {"transition": "none"}])
def test_blocks_that_are_pooled_completely_are_common(pooled, method):
    x = panel(sh.Normal(1), sh.Markov(2))
    fit = fitted(sh.Markov(2), sh.Normal(1), x, method=method, pooled=pooled)
    common, none = (fitted(sh.Markov(2), sh.Normal(1), x, method=method, pooled=p) for p in ("complete", "none"))
    own = {"emission": {"loc", "precision"}, "dynamics": {"initial_probs", "transition_probs"}}
    names = own.get(next(iter(pooled)), {"transition_probs"})
    for name, value in fit.values.items():
        assert (value.shape[0] == 3 and value.ndim == common.values[name].ndim + 1) == (name in names)
    if method == "em":
        assert common.loglik < fit.loglik < none.loglik
    assert bool((fit.objective.diff() >= -1e-9).all())


@pytest.mark.few(3)
@pytest.mark.parametrize("dynamics", [sh.Copy(2), sh.Markov(2), sh.Markov(2, initial="stationary")], ids=repr)
@pytest.mark.parametrize("emission", [sh.Normal(1), sh.Gated(sh.Normal(1), sh.Normal(1))], ids=repr)
def test_the_evidence_is_that_of_each_subject_and_of_the_program(dynamics, emission):
    if isinstance(emission, sh.Gated) and not dynamics.holds:
        pytest.skip("held steps need copy dynamics")
    x = panel(sh.Normal(1), dynamics)
    model = fitted(dynamics, emission, x, pooled="none", max_steps=5).model
    few = {name: table[:3] for name, table in x.items()}
    expected = torch.stack([enumerate_evidence(model.of(name), few[name]) for name in NAMES])
    torch.testing.assert_close(model.log_evidence(few), expected, rtol=1e-10, atol=1e-10)
    one = torch.stack([few[name] for name in NAMES])
    density = trace_log_prob(model.collapsed, one, subjects=NAMES)
    torch.testing.assert_close(density, expected.sum(), rtol=1e-10, atol=1e-10)
    swapped = model.log_evidence(one[[2, 0]], subjects=["cleo", "anna"])
    torch.testing.assert_close(swapped, expected[[2, 0]], rtol=1e-10, atol=1e-10)


def test_the_prior_is_that_of_each_subject():
    x = panel(sh.Normal(1), sh.Markov(2))
    model = fitted(sh.Markov(2), sh.Normal(1), x, pooled={"emission": "none", "transition": "none"}).model
    of_each = sum(model.of(name).log_prior(model.of(name).values) for name in NAMES)
    start = {"initial_probs": model.values["initial_probs"]}
    block = model.dynamics.blocks["initial"]
    once = sum(site.log_prob(start, inside=True) for site in block.sites(model.prior))
    torch.testing.assert_close(model.log_prior(model.values), of_each - 2 * once)


def test_a_subject_may_have_several_sequences():
    x = panel(sh.Normal(1), sh.Copy(2))
    parts = [part for table in x.values() for part in (table[:20], table[20:])]
    labels = np.repeat(NAMES, 2)
    shuffled = [0, 2, 4, 1, 3, 5]
    fit = fitted(sh.Copy(2), sh.Normal(1), [parts[i] for i in shuffled], subjects=labels[shuffled], pooled="none")
    assert fit.model.subjects == NAMES
    frames = [pd.DataFrame({"x": part[:, 0].numpy()}) for part in parts]
    keys = list(zip(labels, [0, 1] * 3, strict=True))
    rows = pd.concat(frames, keys=keys)
    rows.index = rows.index.set_names(["subject", "session", "time"])
    by_panel = fitted(sh.Copy(2), sh.Normal(1), rows, pooled="none")
    assert by_panel.model.subjects == NAMES
    for name, value in fit.values.items():
        torch.testing.assert_close(value, by_panel.values[name], rtol=1e-3, atol=1e-4)
    assert fit.subject("ben").smooth().state.shape == (2, 20, 2)


@pytest.fixture(scope="module")
def by_messages():
    x = panel(sh.Normal(1), sh.Markov(2))
    return x, fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled="none")


def test_results_are_those_of_the_subject(by_messages, tmp_path):
    x, fit = by_messages
    model, ben = fit.model, fit.model.of("ben")
    torch.testing.assert_close(model.smooth(x)["ben"].state, ben.smooth(x["ben"]).state)
    torch.testing.assert_close(model.filter({"ben": x["ben"]})["ben"].state, ben.filter(x["ben"]).state)
    forecast, alone = model.forecast(x, 3), ben.forecast(x["ben"], 3)
    torch.testing.assert_close(forecast.mean[1], alone.mean)
    torch.testing.assert_close(forecast.interval(0.8).upper[1], alone.interval(0.8).upper)
    torch.testing.assert_close(forecast.one(1).variance, alone.variance)
    assert "loc[ben, 0, 0]" in fit.summary().parameters.index
    data = fit.to_arviz(draws=4)
    assert data["posterior"]["loc"].dims == ("chain", "draw", "subject", "state", "feature")
    assert data["posterior"]["subject"].to_numpy().tolist() == list(NAMES)
    fit.save(tmp_path)
    again = sh.load(tmp_path).model
    assert again.subjects == NAMES
    torch.testing.assert_close(again.log_evidence(x), model.log_evidence(x))
    assert fit.plot(sequence=1).axes
    assert forecast.plot(sequence=1).axes
    assert "with 3 subjects" in repr(model)


def test_the_fit_of_a_subject_has_its_part_of_the_posterior(by_messages):
    x, fit = by_messages
    ben = fit.subject("ben")
    torch.testing.assert_close(ben.posterior.mean["loc"], fit.posterior.mean["loc"][1])
    draws = ben.posterior.sample(5)
    assert draws["transition_probs"].shape == (5, 2, 2)
    torch.testing.assert_close(ben.smooth().state, fit.model.of("ben").smooth(x["ben"]).state)
    assert ben.posterior.refined is not ben.posterior
    assert ben.summary().parameters["standard error"].notna().all()


@pytest.mark.slow
@pytest.mark.parametrize("emission", [sh.Normal(1), sh.AutoRegressive(1)], ids=["normal", "lags"])
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_samplers_draw_the_parameters_of_each_subject(method, emission):
    x = panel(sh.Normal(1), sh.Markov(2))
    budget = {"max_steps": 20} if method == "svi" else {"num_samples": 8, "warmup_steps": 8}
    fit = fitted(sh.Markov(2), emission, x, method=method, pooled={"emission": "none"}, **budget)
    assert fit.posterior.sample(3)["loc"].shape == (3, 3, 2, 1)
    assert fit.posterior.forecast(x, 2, draws=3).mean.shape == (3, 2, 1)
    assert fit.subject("ben").posterior.sample(3)["loc"].shape == (3, 2, 1)


def test_inputs_and_gaps_belong_to_the_subject():
    x = panel(sh.Normal(1), sh.Copy(2), n_steps=(30, 30, 30))
    generator = torch.Generator().manual_seed(1)
    drive = {name: torch.randn(30, 1, generator=generator, dtype=torch.float64) for name in NAMES}
    normal, markov = sh.Normal(1), sh.Markov(2)
    regression = sh.LinearRegression(1, inputs=1)
    for dynamics, emission in ((sh.Copy(2, inputs=1), normal), (sh.Markov(2, inputs=1), normal), (markov, regression)):
        pooled = "none" if dynamics.inputs else {"emission": "none"}
        common = fitted(dynamics, emission, x, inputs=list(drive.values()))
        fit = fitted(dynamics, emission, x, inputs=list(drive.values()), pooled=pooled)
        assert fit.loglik > common.loglik
        for i, name in enumerate(NAMES):
            own = fit.model.of(name).log_evidence(x[name], inputs=drive[name])
            torch.testing.assert_close(fit.log_evidence()[i], own)
        gained = fit.objective.diff()
        assert bool((gained >= -1e-9).all())


U = torch.linspace(-1, 1, 90, dtype=torch.float64).sin().reshape(3, 30, 1)


@pytest.mark.parametrize(
    ("dynamics", "pooled", "given"),
    [
        (sh.Markov(2, inputs=1), {"emission": "none"}, {"inputs": U}),
        (sh.Copy(2, inputs=1), {"emission": "none"}, {"inputs": U}),
        (sh.Markov(2, initial="stationary"), {"emission": "none"}, {}),
        (sh.Copy(2), {"emission": "none"}, {"dt": torch.arange(90).reshape(3, 30) % 3 + 1.0}),
        (sh.Copy(2), {"redraw": "none"}, {"dt": torch.arange(90).reshape(3, 30) % 3 + 1.0}),
    ],
)
def test_common_dynamics_without_a_closed_form_climb(dynamics, pooled, given):
    x = torch.stack([*panel(sh.Normal(1), dynamics, n_steps=(30, 30, 30)).values()])
    fit = fitted(dynamics, sh.Normal(1), x, pooled=pooled, **given)
    assert bool((fit.objective.diff() >= -1e-9).all())
    for name, value in fit.values.items():
        own = dynamics.blocks["redraw"].parameters if "redraw" in pooled else sh.Normal(1).parameters
        assert value.ndim == len(fit.model.known[name].dims)
        assert ("subject" in fit.model.known[name].dims) == (name in own)


def test_messages_of_a_regression_read_the_rows_of_each_subject():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 6, 4, generator=generator, dtype=torch.float64)  # 2 features, 2 inputs
    rows[1, 2, 0] = torch.nan
    plain, subjects = sh.LinearRegression(2, 2), [2, 0, 2, 0]  # subject 1 has no sequence
    emission = SubjectEmission(plain, 3)
    numbers = torch.tensor(subjects, dtype=torch.float64)[:, None, None].expand(4, 6, 1)
    weight = torch.tensor([1.0, 1.5, 3.0]).reshape(3, 1, 1, 1)
    eta = emission.natural(plain.default_prior(2, rows.flatten(0, 1))) * weight
    statistics = torch.stack([emission.family.mean(eta), emission.family.mean(2 * eta)])  # two restarts
    table = emission.expected_table(torch.cat([rows, numbers], -1), statistics)
    for sequence, subject in enumerate(subjects):
        expected = plain.expected_table(rows[sequence : sequence + 1], statistics[:, subject])[:, 0]
        torch.testing.assert_close(table[:, sequence], expected, rtol=1e-12, atol=1e-12)


def test_the_bound_of_regressions_by_subject_is_that_of_plain_fits():
    x = panel(sh.Normal(1), sh.Markov(2), n_steps=(30, 30, 30))
    emission = sh.LinearRegression(1, inputs=1)
    options = {"method": "vmp", "tol": 1e-10, "max_steps": 300}
    fit = fitted(sh.Markov(2), emission, x, inputs=list(U), pooled="none", **options)
    total = 0.0
    for i, name in enumerate(NAMES):
        start = fit.model.of(name)
        alone = fitted(sh.Markov(2), emission, x[name], inputs=U[i], start=start, prior=start.prior, **options)
        total += float(alone.objective[-1])
    assert float(fit.objective[-1]) == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooled": "partially"}, "pooled: got 'partially', expected"),
        ({"pooled": {"loc": "none"}}, r"pooled: got \['loc'\], expected blocks of this model"),
        ({"pooled": {"emission": "some"}}, r"pooled\['emission'\]: got 'some'"),
        ({"pooled": "none", "subjects": ["anna", "ben"]}, "subjects: got 2 names, but x has 3 sequences"),
        ({"pooled": "none", "subjects": ["anna"] * 3}, "subjects: got only 'anna'"),
        ({"pooled": "none", "subjects": ["anna", None, "ben"]}, "subjects: got a missing name"),
    ],
)
def test_bad_subjects_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(sh.Markov(2), sh.Normal(1), panel(sh.Normal(1), sh.Markov(2)), **options)


def test_a_subject_with_one_step_is_named():
    x = panel(sh.Normal(1), sh.Markov(2)) | {"dora": torch.zeros(1, 1, dtype=torch.float64)}
    with pytest.raises(ValueError, match="subjects: 'dora' has 1 observed step"):
        fitted(sh.Markov(2), sh.Normal(1), x, pooled="none")


def test_other_subjects_are_named(by_messages):
    x, fit = by_messages
    with pytest.raises(ValueError, match="subjects: got 'zoe', but the model has 'anna'"):
        fit.model.filter({"zoe": x["ben"]})
    with pytest.raises(ValueError, match="subject: got 'zoe', expected one of"):
        fit.model.of("zoe")
    with pytest.raises(ValueError, match="model: has parameters by subject"):
        fit.model.start()
    with pytest.raises(ValueError, match="model: has parameters by subject already"):
        fit.model.fit(x, progress=False)


def test_sequences_without_names_are_refused_unless_subjects_are_numbers(by_messages):
    x, fit = by_messages
    unnamed = torch.stack([table[:5] for table in x.values()])
    for some in (unnamed, unnamed[:2], unnamed[0]):
        with pytest.raises(ValueError, match=r"subjects: got \d sequence\(s\) without names, .*subjects="):
            fit.model.log_evidence(some)
    by_number = fitted(sh.Markov(2), sh.Normal(1), unnamed, pooled="none", max_steps=3).model
    named = fit.model.log_evidence(unnamed, subjects=NAMES)
    torch.testing.assert_close(named, fit.model.log_evidence(dict(zip(NAMES, unnamed, strict=True))))
    own = torch.stack([by_number.of(str(i)).log_evidence(table) for i, table in enumerate(unnamed)])
    torch.testing.assert_close(by_number.log_evidence(unnamed), own)
    with pytest.raises(ValueError, match="subjects: got 2 sequence"):
        by_number.log_evidence(unnamed[:2])


def test_durations_are_those_of_the_subjects_of_x(by_messages):
    x, fit = by_messages
    each = [fit.model.of(name).durations(x[name]) for name in NAMES]
    assert not torch.allclose(each[1], each[2])
    torch.testing.assert_close(fit.model.durations(x["ben"], subjects="ben"), each[1])
    torch.testing.assert_close(fit.model.durations(x), torch.stack(each).mean(0))
    twice = fit.model.durations([x["ben"], x["cleo"], x["ben"]], subjects=["ben", "cleo", "ben"])
    torch.testing.assert_close(twice, (each[1] + each[2]) / 2)


def test_durations_with_inputs_are_those_of_the_subjects_of_x():
    x = panel(sh.Normal(1), sh.Copy(2), n_steps=(30, 20, 30))
    inputs = [u[: len(table)] for u, table in zip(U, x.values(), strict=True)]
    model = fitted(sh.Copy(2, inputs=1), sh.Normal(1), x, inputs=inputs, pooled="none", max_steps=5).model
    each = [model.of(n).durations(table, inputs=u) for (n, table), u in zip(x.items(), inputs, strict=True)]
    torch.testing.assert_close(model.durations(x, inputs=inputs), torch.stack(each).mean(0))


@pytest.mark.parametrize(
    ("dynamics", "given"),
    [(sh.Markov(2, mask=[[True, True], [False, True]]), {}), (sh.Markov(2, inputs=1), {"inputs": U})],
)
def test_summaries_have_the_rows_of_each_subject(dynamics, given):
    x = torch.stack([*panel(sh.Normal(1), dynamics, n_steps=(30, 30, 30)).values()])
    fit = fitted(dynamics, sh.Normal(1), x, pooled={"dynamics": "none"}, max_steps=20, **given)
    table = fit.summary().parameters
    shown = [row for row in table.index if row.startswith("transition_probs[2, ")]
    assert len(shown) == (4 if dynamics.inputs else 3)
    estimate = float(fit.values["transition_probs"][2, 0, 1])
    assert float(table.loc["transition_probs[2, 0, 1]", "estimate"]) == pytest.approx(estimate)


def test_the_fit_of_one_named_sequence_goes_to_arviz():
    x = panel(sh.Normal(1), sh.Markov(2))
    fit = fitted(sh.Markov(2), sh.Normal(1), x, pooled="none", max_steps=5)
    ben = fit.subject("ben")
    data = ben.to_arviz(draws=2)
    assert data["posterior" if "posterior" in data.groups() else "estimates"]["loc"].shape[-2:] == (2, 1)
    np.testing.assert_allclose(data["observed_data"]["x"].to_numpy().reshape(-1, 1), x["ben"].numpy())


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_known_entries_are_those_of_all_subjects(method):
    x = panel(sh.Normal(1), sh.Markov(2))
    known = {"loc": [[0.0], [6.0]], "transition_probs": [[0.9, 0.1], [float("nan"), float("nan")]]}
    fit = fitted(sh.Markov(2), sh.Normal(1), x, method=method, fixed=known, pooled="none")
    expected = torch.tensor(known["loc"], dtype=torch.float64).expand(3, 2, 1)
    torch.testing.assert_close(fit.values["loc"], expected)
    torch.testing.assert_close(fit.values["transition_probs"][:, 0, 0], torch.full((3,), 0.9, dtype=torch.float64))
    assert fit.values["transition_probs"][:, 1, 0].unique().numel() == 3
    ben = fit.subject("ben")
    assert ben.n_parameters == 1 + 1 + 2
    torch.testing.assert_close(ben.values["loc"], expected[1])


def test_a_known_weight_of_redraws_is_that_of_all_subjects():
    x = torch.stack([*panel(sh.Normal(1), sh.Copy(2), n_steps=(30, 30, 30)).values()])
    inputs = torch.cat([U, U.square()], -1)
    known = {"redraw_weights": [0.0, float("nan")]}
    fit = fitted(
        sh.Copy(2, inputs=2), sh.Normal(1), x, method="vmp", inputs=inputs, fixed=known, pooled="none", max_steps=20
    )
    weights = fit.values["redraw_weights"]
    assert weights.shape == (3, 2)
    assert bool((weights[:, 0] == 0).all())
    assert weights[:, 1].unique().numel() == 3


# ---- populations -----------------------------------------------------------------------------------------------------


def population_panel(n_subjects=40, n_steps=12):
    """Subjects whose locations come from normals of standard deviation 0.5, and their locations."""
    generator = torch.Generator().manual_seed(3)
    x, levels = {}, []
    for i in range(n_subjects):
        level = torch.tensor([0.0, 6.0]) + 0.5 * torch.randn(2, generator=generator, dtype=torch.float64)
        state = (torch.rand(n_steps, generator=generator) < 0.3).long()
        noise = torch.randn(n_steps, generator=generator, dtype=torch.float64)
        x[f"subject {i}"] = (level[state] + noise).unsqueeze(-1)
        levels.append(level)
    return x, torch.stack(levels)


@pytest.fixture(scope="module")
def partial():
    x, levels = population_panel()
    return x, levels, fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled="partial")


@pytest.mark.slow
def test_a_population_is_recovered_and_helps_its_members(partial):
    x, levels, fit = partial
    none = fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled="none")
    prior = fit.model.prior
    torch.testing.assert_close(prior["loc"][:, 0], torch.tensor([0.0, 6.0], dtype=torch.float64), atol=0.5, rtol=0)
    spread = (prior["count"] * prior["shape"] / prior["rate"]).rsqrt()
    assert bool(((spread > 0.2) & (spread < 1.0)).all())
    error, alone = ((f.values["loc"][..., 0] - levels).square().mean().sqrt() for f in (fit, none))
    assert error < 0.9 * alone
    assert fit.values["loc"].var(0).sum() < none.values["loc"].var(0).sum()
    assert bool((fit.objective.diff() >= -1e-8).all())
    assert fit.converged


@pytest.mark.slow
def test_a_new_subject_has_the_population_as_prior(partial, tmp_path):
    x, _, fit = partial
    fit.save(tmp_path)
    for model in (fit.model, sh.load(tmp_path).model):
        new = model.population
        torch.testing.assert_close(new.values["loc"], model.prior["loc"])
        again = new.fit(x["subject 3"], method="vmp", prior=new.prior, restarts=1, start=new, progress=False)
        torch.testing.assert_close(again.values["loc"], model.of("subject 3").values["loc"], atol=1e-3, rtol=0)


def test_hyperparameters_are_the_optimum_of_the_evidence():
    """With one state there is no path, so the bound is the evidence, which is in closed form."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 8, 1, generator=generator, dtype=torch.float64)
    x = x * (0.2 + 2 * torch.rand(12, 1, 1, generator=generator)) + 2 * torch.randn(12, 1, 1, generator=generator)
    fit = fitted(sh.Markov(1), sh.Normal(1), x, method="vmp", pooled={"emission": "partial"}, tol=1e-7, max_steps=300)
    emission = sh.Normal(1)
    messages = torch.stack([emission.message(one, torch.ones(8, 1, dtype=torch.float64)) for one in x])

    def evidence(numbers):
        loc, count, shape, rate = (torch.as_tensor(n, dtype=torch.float64).reshape(1, 1) for n in numbers)
        prior = emission.natural({"loc": loc, "count": count.exp(), "shape": shape.exp(), "rate": rate.exp()})
        gained = emission.family.log_normalizer(prior + messages) - emission.family.log_normalizer(prior)
        return float(gained.sum() - x.numel() / 2 * np.log(2 * np.pi))

    prior = {
        name: float(table) for name, table in fit.model.prior.items() if table.numel() == 1 and name in "loc count"
    }
    prior |= {name: float(fit.model.prior[name]) for name in ("shape", "rate")}
    here = [prior["loc"], *(np.log(prior[name]) for name in ("count", "shape", "rate"))]
    best = scipy.optimize.minimize(lambda numbers: -evidence(numbers), here, tol=1e-10)
    assert float(fit.objective[-1]) == pytest.approx(evidence(here), abs=1e-4)
    assert evidence(here) == pytest.approx(-best.fun, abs=1e-3)


def few_sweeps(monkeypatch, n):
    """Shorten Gibbs sampling of populations."""
    for name in ("SWEEPS", "LEAST"):
        monkeypatch.setattr(f"samplehold.switching.fitting.population_posterior.{name}", n)


def test_intervals_of_few_subjects_include_the_spread_of_their_population(monkeypatch):
    few_sweeps(monkeypatch, 3)
    x = panel(sh.Normal(1), sh.Markov(2))
    fit = fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled="partial", max_steps=50)
    known = VariationalPosterior(**{f.name: getattr(fit.posterior, f.name) for f in fields(VariationalPosterior)})
    wide, narrow = (q.interval(n=1000, correct=False) for q in (fit.posterior, known))
    for name in ("loc", "transition_probs"):
        assert (wide.upper[name] - wide.lower[name]).mean() > (narrow.upper[name] - narrow.lower[name]).mean()
    draws = fit.posterior.refined.sample(20)
    of_ben = fit.subject("ben").posterior.refined.sample(20)
    torch.testing.assert_close(of_ben["loc"], draws["loc"][:, NAMES.index("ben")])


def test_without_paths_gibbs_sampling_of_a_population_has_the_intervals_of_q(monkeypatch):
    """With one state there is no path, so that draws of q under draws of hyperparameters are from the posterior."""
    few_sweeps(monkeypatch, 24)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 8, 1, generator=generator, dtype=torch.float64)
    x = x + torch.randn(6, 1, 1, generator=generator, dtype=torch.float64)
    fit = fitted(sh.Markov(1), sh.Normal(1), x, method="vmp", pooled={"emission": "partial"})
    exact, drawn = (fit.posterior.interval(correct=correct) for correct in (False, True))
    assert fit.posterior.refined is not fit.posterior
    for name in ("loc", "precision"):
        width = (exact.upper[name] - exact.lower[name]).mean()
        assert float((drawn.upper[name] - drawn.lower[name]).mean() / width) == pytest.approx(1.0, abs=0.15)
        assert float((drawn.upper[name] - exact.upper[name]).abs().mean()) < 0.1 * float(width)


@pytest.mark.slow
def test_a_population_of_too_much_data_has_the_intervals_of_q(partial, monkeypatch):
    monkeypatch.setattr("samplehold.switching.fitting.population_posterior.MOST", 0)
    posterior = replace(partial[2].posterior)
    assert posterior.refined is posterior


def subjects_of_a_population(seed, n_subjects=6, n_steps=50):
    """Series of subjects from a population of two states, and their parameters."""
    rng = np.random.default_rng(seed)
    loc, precision = rng.normal([0.0, 3.0], 0.5, (n_subjects, 2)), rng.gamma(8.0, 1 / 8.0, (n_subjects, 2))
    rows = np.stack([rng.dirichlet(counts, n_subjects) for counts in ([9.0, 1.0], [2.0, 8.0])], 1)
    x = {}
    for i in range(n_subjects):
        states = [rng.integers(2)]
        for _ in range(n_steps - 1):
            states.append(rng.choice(2, p=rows[i, states[-1]]))
        x[f"subject {i}"] = rng.normal(loc[i, states], precision[i, states] ** -0.5)[:, None]
    return x, {"loc": loc, "precision": precision, "transition_probs": rows}


@pytest.mark.slow
def test_intervals_of_a_population_contain_the_parameters():
    """Intervals without the uncertainty of the paths contain 79 % in these data sets."""
    contained = []
    for seed in range(4):
        x, values = subjects_of_a_population(seed)
        fit = fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled="partial")
        interval = fit.posterior.interval(0.9)
        for name, true in values.items():
            lower, upper = (ends[name].numpy().reshape(true.shape) for ends in interval)
            contained.append((lower <= true) & (true <= upper))
    assert 0.84 < np.mean([share.mean() for share in contained]) < 0.97


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["multivariate", "poisson", "bernoulli", "categorical"])
def test_every_plain_emission_has_a_population(kind):
    x = panel(EMISSIONS[kind], sh.Copy(2))
    few = {name: table[:15] for name, table in x.items()}
    fit = fitted(sh.Copy(2), EMISSIONS[kind], few, method="vmp", pooled="partial", max_steps=30)
    assert bool((fit.objective.diff() >= -1e-8).all())
    assert fit.model.population.values.keys() == fit.values.keys()


def test_a_population_makes_subjects_with_one_step_possible():
    x = panel(sh.Normal(1), sh.Markov(2)) | {"dora": torch.zeros(1, 1, dtype=torch.float64)}
    fit = fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled="partial", max_steps=50)
    assert fit.model.of("dora").values["loc"].isfinite().all()


@pytest.mark.slow
def test_a_population_without_spread_is_named():
    x = panel(sh.Normal(1), sh.Markov(2)) | {"dora": torch.ones(20, 1, dtype=torch.float64)}
    for emission in (sh.Normal(1), sh.MultivariateNormal(1)):
        with pytest.raises(ValueError, match="pooled: the population of 'emission' has no spread left"):
            fitted(sh.Markov(2), emission, x, method="vmp", pooled="partial")


@pytest.mark.parametrize(("count", "alike"), [(1e9, True), (1e-9, False)])
def test_a_concentrated_prior_pools_and_a_vague_one_does_not(count, alike):
    x = panel(sh.Normal(1), sh.Markov(2))
    common = fitted(sh.Markov(2), sh.Normal(1), x, method="vmp")
    prior = {"loc": common.values["loc"], "count": torch.full((2, 1), count, dtype=torch.float64)}
    fit = fitted(sh.Markov(2), sh.Normal(1), x, method="vmp", pooled={"emission": "none"}, prior=prior)
    if alike:
        torch.testing.assert_close(fit.values["loc"], common.values["loc"].expand(3, 2, 1), atol=1e-4, rtol=0)
        return
    smoothed = fit.smooth()
    for i, name in enumerate(NAMES):
        used = smoothed[name].state
        mean = (used * x[name]).sum(0) / used.sum(0)
        torch.testing.assert_close(fit.values["loc"][i, :, 0], mean, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("dynamics", "emission", "options", "message"),
    [
        (sh.Markov(2), sh.Normal(1), {"method": "em"}, 'method: got "em", whose estimates have no spread'),
        (sh.Markov.left_right(2), sh.Normal(1), {"method": "vmp"}, "pooled: got 'partial' for 'transition'"),
        (sh.Markov(2), EMISSIONS["tied"], {"method": "vmp"}, "pooled: got 'partial' for 'emission'"),
        (sh.Markov(2), sh.AutoRegressive(1), {"method": "em"}, "pooled: got 'partial' for 'emission'"),
    ],
)
def test_blocks_without_a_population_are_named(dynamics, emission, options, message):
    with pytest.raises(ValueError, match=message):
        fitted(dynamics, emission, panel(sh.Normal(1), dynamics), pooled="partial", **options)


AUTOREGRESSIONS = {
    "one": sh.AutoRegressive(1),
    "vector": sh.AutoRegressive(1, 2),
    "own": sh.AutoRegressive(1, 2, lags="own"),
    "scale": sh.AutoRegressive(1, switching=["scale"]),
    "inputs": sh.AutoRegressive(1, inputs=["dose"]),
}


def lagged_panel(emission, n_steps=(60, 50, 45), seed=0):
    """Sequences of subjects with two levels and a lag, and their inputs."""
    generator, x, dose = torch.Generator().manual_seed(seed), {}, {}
    for i, (name, n) in enumerate(zip(NAMES, n_steps, strict=True)):
        noise = torch.randn(n, emission.n_features, generator=generator, dtype=torch.float64)
        rows = [torch.zeros(emission.n_features, dtype=torch.float64)]
        for t in range(n):
            rows.append((3.0 + 0.5 * i) * (t // 10 % 2) + (0.3 + 0.1 * i) * rows[-1] + 0.5 * noise[t])
        x[name] = torch.stack(rows[1:])
        dose[name] = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, {"inputs": {"dose": [dose[name] for name in NAMES]}} if emission.n_inputs else {}


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("kind", AUTOREGRESSIONS)
def test_autoregressions_of_each_subject_are_those_of_separate_fits(kind, method):
    emission = AUTOREGRESSIONS[kind]
    if method == "vmp" and emission.not_conjugate:
        pytest.skip("message passing needs all parts to switch")
    x, given = lagged_panel(emission)
    model = sh.SwitchingSSM(sh.Markov(2), emission)
    options = {"method": method, "tol": 1e-11, "restarts": 1, "progress": False}
    common, fit = (model.fit(x, pooled=pooled, **options, **given) for pooled in ("complete", "none"))
    total = 0.0
    for i, name in enumerate(NAMES):
        own = {"inputs": {"dose": given["inputs"]["dose"][i]}} if given else {}
        alone = model.fit(x[name], start=common.model, prior=common.model.prior, **options, **own)
        total += float(alone.objective[-1])
        for parameter, value in fit.model.of(name).values.items():
            torch.testing.assert_close(value, alone.values[parameter], rtol=1e-3, atol=1e-3)
    assert float(fit.objective[-1]) == pytest.approx(total, abs=1e-6)
    assert bool((fit.objective.diff() >= -1e-9).all())


@pytest.fixture(scope="module", params=["complete", "none"])
def lagged(request):
    """A fit of autoregressions by subject, whose dynamics are common or not."""
    x, _ = lagged_panel(AUTOREGRESSIONS["vector"])
    x["ben"][-1, 0] = torch.nan
    model = sh.SwitchingSSM(sh.Markov(2), AUTOREGRESSIONS["vector"])
    pooled = {"dynamics": request.param, "emission": "none"}
    return x, model.fit(x, pooled=pooled, restarts=1, max_steps=20, progress=False)


def test_forecasts_of_autoregressions_are_those_of_the_subject(lagged):
    x, fit = lagged
    model = fit.model
    ahead = model.forecast(x, 4)
    for i, name in enumerate(NAMES):
        alone = model.of(name).forecast(x[name], 4)
        torch.testing.assert_close(ahead.mean[i], alone.mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(ahead.variance[i], alone.variance, rtol=1e-10, atol=1e-12)
        one, other = ahead.interval(0.5), alone.interval(0.5)
        torch.testing.assert_close(one.upper[i], other.upper, rtol=0.1, atol=0.1)
    assert fit.forecast(4).mean.shape == (3, 4, 2)


def test_every_method_takes_autoregressions_of_subjects(lagged, tmp_path):
    x, fit = lagged
    model = fit.model
    for i, name in enumerate(NAMES):
        alone = model.of(name)
        torch.testing.assert_close(model.log_evidence(x)[i], alone.log_evidence(x[name]), rtol=1e-10, atol=0)
        torch.testing.assert_close(model.smooth(x)[name].state, alone.smooth(x[name]).state, rtol=1e-9, atol=1e-10)
    drawn = model.simulate(30, (3,), subjects=list(NAMES), seed=0).x
    assert drawn.shape == (3, 30, 2)
    assert bool(drawn.isfinite().all())
    names = fit.summary().parameters.index
    assert any("lag 1 of 1" in str(name) for name in names)
    data = fit.to_arviz()
    dims = data.posterior["coefficients"].dims
    assert dims == ("chain", "draw", "subject", "state", "feature", "regressor")
    assert data.posterior_predictive["x"].shape[2:] == (152, 2)  # the first step of each has no density
    model.save(tmp_path / "model")
    again = sh.load(tmp_path / "model")
    torch.testing.assert_close(again.log_evidence(x), model.log_evidence(x), rtol=0, atol=0)
    short = {"anna": x["anna"][:4], "ben": x["ben"][:5]}
    total = model.log_evidence(short).sum()
    torch.testing.assert_close(trace_log_prob(model.collapsed, model.read(short)).sum(), total, rtol=1e-10, atol=0)


def test_draws_of_autoregressions_follow_the_subject():
    x, _ = lagged_panel(AUTOREGRESSIONS["one"])
    model = sh.SwitchingSSM(sh.Markov(2), AUTOREGRESSIONS["one"])
    fit = model.fit(x, pooled="none", restarts=1, max_steps=3, progress=False)
    loc = torch.tensor([0.0, 10.0, 20.0], dtype=torch.float64)[:, None, None].expand(3, 2, 1)
    values = fit.model.values | {"loc": loc, "precision": torch.full((3, 2, 1), 1e6, dtype=torch.float64)}
    values["coefficients"] = torch.full((3, 2, 1, 1), 0.5, dtype=torch.float64)
    made = fit.model.with_values(values)
    drawn = made.simulate(5, (3,), subjects=list(NAMES), seed=0).x
    torch.testing.assert_close(drawn, 2 * loc[:, :1].expand(3, 5, 1), rtol=0, atol=0.02)


@pytest.mark.slow
def test_a_prior_of_autoregressions_is_that_of_each_subject():
    import pyro.distributions as dist

    own = {"coefficients": dist.Normal(0.4, 0.05), "loc": dist.Normal(0.0, 5.0)}
    x, _ = lagged_panel(AUTOREGRESSIONS["one"])
    model = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(1, prior=own))
    fit = model.fit(x, pooled="none", restarts=1, max_steps=30, progress=False)
    total = fit.model.log_evidence(x).sum() + fit.model.log_prior(fit.values)
    torch.testing.assert_close(fit.objective[-1], total, rtol=1e-9, atol=1e-9)
    with pytest.raises(TypeError, match=r"prior: .* has priors of coefficients, loc that are not of its conjugate"):
        model.fit(x, "vmp", pooled="none", restarts=1, progress=False)


def test_autoregressions_of_subjects_that_cannot_be_are_named():
    x, _ = lagged_panel(AUTOREGRESSIONS["one"])
    model = sh.SwitchingSSM(sh.Markov(2), AUTOREGRESSIONS["one"])
    with pytest.raises(
        ValueError, match="pooled: got 'partial' for 'emission', but the prior of loc, coefficients, pre"
    ):
        model.fit(x, "vmp", pooled="partial", restarts=1, progress=False)
    few = x | {"dora": x["anna"][:2]}
    with pytest.raises(ValueError, match=r"subjects: 'dora' has 1 observed step\(s\)"):
        model.fit(few, pooled="none", restarts=1, progress=False)


def offset_panel():
    """Subjects of which one differs from the others by much more than the states differ."""
    rng = np.random.default_rng(0)
    x = {name: 4.0 * (np.arange(40) // 10 % 2) + rng.normal(size=40) for name in NAMES}
    return x | {"cleo": x["cleo"] + 12}


@pytest.mark.parametrize("prior", ["weak", pytest.param(None, marks=pytest.mark.slow)])
def test_a_subject_with_an_offset_has_the_states_of_its_separate_fit(prior):
    x, model, quiet = offset_panel(), sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)), {"prior": prior, "progress": False}
    fit = model.fit(x, pooled="none", restarts=1 if prior else 2, **quiet)
    if prior is None:
        total = sum(model.fit(one, restarts=2, **quiet).loglik for one in x.values())
        assert fit.loglik == pytest.approx(total, abs=0.01)
    for name, offset in zip(NAMES, (0, 0, 12), strict=True):
        loc = fit.model.of(name).values["loc"].flatten().tolist()
        assert loc == pytest.approx([offset, offset + 4], abs=0.8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_an_offset_leaves_a_common_block_as_it_is(method):
    x, model = offset_panel(), sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    fit = model.fit(x, method, pooled={"emission": "none"}, restarts=2, progress=False)
    assert fit.model.of("cleo").values["loc"].flatten().sort().values.tolist() == pytest.approx([12, 16], abs=0.8)
    assert float(fit.values["transition_probs"].diagonal().min()) > 0.7
