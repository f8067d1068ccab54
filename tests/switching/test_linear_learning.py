"""Learning of linear models: steps are those of the textbook, bounds rise, maxima are maxima."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import linear_regressions as textbook
from oracles.effort import effort
from oracles.linear_models import FLOAT, draw, model_of
from samplehold import Autoregression, LinearSSM, LocalLevel
from samplehold.inference.families import GaussianTables
from samplehold.switching.ascent import Ascent
from samplehold.switching.fitting import AtPoints
from samplehold.switching.linear.bases import axes_of, turned
from samplehold.switching.linear.coordinates import LinearDensity
from samplehold.switching.linear.learning import graph_of
from samplehold.switching.linear.priors import families, units_of, weak
from samplehold.switching.linear.starts import first_paths
from torch.testing import assert_close

QUIET = {"restarts": 1, "progress": False}


def series_of(model: LinearSSM, n_sequences: int = 4, n_steps: int = 7) -> torch.Tensor:
    """With a missing step, and two steps with a missing feature."""
    x = model.simulate(n_steps, (n_sequences,), seed=0).x.clone()
    x[0, 2] = torch.nan
    x[1, 3, 0] = x[1, 5, -1] = torch.nan
    return x


def fresh(model: LinearSSM, x: torch.Tensor) -> textbook.Expected:
    """The statistics of an observation's regression before any data, under maximum likelihood, in the units of x."""
    units = units_of(model.emission, model.read(x))
    graph = graph_of(model.problem(x).in_units(units), [GaussianTables(*[torch.zeros(1)] * 3)]).at_points(flat=True)
    point = graph.families["sights"].expected(graph.priors["sights"][0])
    loc, scale = point.loc.mT * units.unit.unsqueeze(-1), units.unit
    loc[..., -1] += units.about
    return textbook.at_point(loc, torch.linalg.inv(point.precision) * scale * scale.unsqueeze(-1))


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_steps_of_expectation_maximisation_are_those_of_the_textbook(full: bool) -> None:
    """Of dense posteriors and regressions; to the ridge that holds what the data leave open."""
    model = model_of(2, 2, full)
    x, expected = series_of(model), model.values
    unit = units_of(model.emission, model.read(x)).unit  # in which the latents are turned
    for n_steps in (1, 2, 3):
        expected = textbook.em_step(expected, list(x), fresh(model, x) if full and n_steps == 1 else None)
        fit = model.fit(x, prior=None, start=model, max_steps=n_steps, **QUIET)
        turn = axes_of(expected["emission"] / unit.unsqueeze(-1))
        shown = turned(expected, turn, torch.zeros(2, dtype=FLOAT))
        for name, value in fit.model.values.items():
            assert_close(value, shown[name], rtol=1e-6, atol=1e-6, msg=name)
        assert_close(fit.objective[-1], model.with_values(expected).log_evidence(x).sum(), rtol=1e-8, atol=1e-8)


def test_steps_of_message_passing_are_those_of_the_textbook() -> None:
    """Natural parameters are the prior's and what dense posteriors under expected parameters add; so is the bound."""
    model = model_of(2, 2, full=True)
    x = series_of(model)
    etas = weak(2, model.emission, x)
    prior = {name: (family, etas[name][0]) for name, family in families(2).items()}
    moments = [textbook.posterior(model.values, one) for one in x]
    known = textbook.expected(prior["sights"][0].usual(prior["sights"][1]))
    for n_steps in (1, 2):
        fit = model.fit(x, "vmp", prior=model.prior, start=model, max_steps=n_steps, **QUIET)
        found = {name: eta[0] for name, eta in fit.posterior.blocks.items()}
        messages = {
            "moves": textbook.message(textbook.moves(moments)),
            "sights": textbook.message(textbook.sights(moments, list(x), [0, 1], known)),
            "first": textbook.first_message(moments),
        }
        for name, message in messages.items():
            assert_close(found[name], prior[name][1] + message, rtol=1e-9, atol=1e-9, msg=name)
        usual = {name: prior[name][0].usual(eta) for name, eta in found.items()}
        known = textbook.expected(usual["sights"])
        paths = [textbook.best_path(usual["moves"], usual["sights"], usual["first"], one) for one in x]
        moments = [own for _, own in paths]
        bound = torch.stack([height for height, _ in paths]).sum()
        for name, (family, eta) in prior.items():
            bound = bound - family.kl(found[name], eta)
        assert_close(fit.objective[-1], bound, rtol=1e-10, atol=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_the_objective_rises(method: str, full: bool) -> None:
    """At every step, between which the batch leaps and changes its basis."""
    model = model_of(2, 3, full)
    x = series_of(model, 3, 20)
    fit = LinearSSM(2, 3, "full" if full else "diagonal").fit(x, method, restarts=1, max_steps=48, progress=False)
    assert float(fit.objective.diff().min()) >= -1e-10 * float(fit.objective.abs().max())
    assert fit.objective[-1] > fit.objective[0]
    if method == "em":
        problem = fit.model.problem(x)
        assert_close(problem.objective(fit.model.values), fit.objective[-1], rtol=1e-9, atol=1e-9)


# ---- maxima ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["weak", None])
def test_the_maximum_of_em_is_that_of_gradient_ascent(prior: str | None) -> None:
    model = model_of(1, 2, full=False)
    x = series_of(model, 3, 6)
    fit = LinearSSM(1, 2).fit(x, prior=prior, restarts=1, start=model, max_steps=600, tol=1e-9, progress=False)
    problem = fit.model.problem(x)
    problem = problem if prior else replace(problem, prior=None)
    units = units_of(model.emission, problem.series)
    density = LinearDensity(problem.in_units(units), units, units.values(model.values), False)
    climb = Ascent(density, density.point[None])
    climb.run(40)
    reached = float(problem.objective(density.values({"y": climb.point[0]})))
    assert reached == pytest.approx(float(fit.objective[-1]), abs=1e-3)
    at = density.coordinates.of(units.values(fit.model.values))
    assert float(density.gradient(at[None]).abs().max()) < 0.05


@pytest.mark.slow
def test_a_slow_turn_is_found_from_scratch() -> None:
    """One that no start shows: two latents of which two features see mixtures under much noise."""
    angle, length = torch.tensor(0.25, dtype=FLOAT), 0.98
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    true = LinearSSM(2, 2).with_values(
        transition=length * turn,
        transition_offset=[0.0, 0.0],
        state_noise=0.05 * np.eye(2),
        emission=[[1.0, 0.2], [0.3, -0.8]],
        emission_offset=[0.0, 5.0],
        observation_noise=[0.5, 0.5],
        initial_mean=[0.0, 0.0],
        initial_covariance=np.eye(2),
    )
    x = true.simulate(300, seed=3).x
    fit = LinearSSM(2, 2).fit(x, prior=None, restarts=2, progress=False)
    assert fit.loglik > float(true.log_evidence(x))
    found = torch.linalg.eigvals(fit.model.values["transition"])
    assert_close(found.abs(), torch.full((2,), length, dtype=FLOAT), atol=0.03, rtol=0)
    assert_close(found.angle().abs(), angle.expand(2), atol=0.04, rtol=0)
    assert fit.converged


# ---- what is fixed, and where it starts ------------------------------------------------------------------------------


def test_what_is_fixed_stays() -> None:
    model = model_of(2, 2, full=False)
    x = series_of(model, 2, 15)
    held = {name: model.values[name] for name in ("emission", "emission_offset", "observation_noise")}
    for method in ("em", "vmp"):
        fit = LinearSSM(2, 2).fit(x, method, fixed=held, restarts=2, max_steps=6, progress=False)
        for name, value in held.items():
            assert_close(fit.model.values[name], value, rtol=1e-12, atol=1e-12)
        assert fit.n_parameters == 4 + 2 + 3 + 2 + 3
        assert float(fit.objective.diff().min()) >= -1e-9
    level = LinearSSM(LocalLevel() + Autoregression(1))
    fit = level.fit(x[0, :, 0], fixed={"sigma2.irregular": 0.0, "ar.L1": 0.4}, progress=False, restarts=1)
    assert float(fit.model.values["sigma2.irregular"]) == 0
    assert float(fit.model.values["ar.L1"]) == pytest.approx(0.4)
    assert fit.n_parameters == 2


def test_a_fit_goes_on_from_where_another_ended() -> None:
    model = model_of(1, 2, full=False)
    x = series_of(model, 2, 15)
    first = LinearSSM(1, 2).fit(x, prior=None, max_steps=10, **QUIET)
    again = LinearSSM(1, 2).fit(x, prior=None, start=first, max_steps=10, **QUIET)
    assert float(again.objective[0]) >= float(first.objective[-1]) - 1e-6
    assert list(again.restarts.start) == ["own"]
    by_name = LinearSSM(1, 2).fit(x, prior=None, start=first.model.values, max_steps=10, **QUIET)
    assert_close(by_name.objective, again.objective)


def test_a_series_without_change_and_very_short_ones_leave_finite_values() -> None:
    flat = torch.stack([torch.full((12,), 3.0).double(), draw(0, 12)], -1)
    for x in (flat, draw(1, 2, 2), draw(2, 3, 1, 2)):
        for prior in ("weak", None):
            fit = LinearSSM(1, 2).fit(x, prior=prior, restarts=1, max_steps=10, progress=False)
            assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
            assert bool(fit.smooth().mean.isfinite().all())


def test_options_that_a_linear_model_has_not_are_refused() -> None:
    x = draw(0, 10, 1)
    with pytest.raises(TypeError, match="fit: has no option 'batch_size'"):
        LinearSSM(1).fit(x, "vmp", batch_size=1, progress=False)
    with pytest.raises(ValueError, match='method: got "vmp"'):
        LinearSSM(LocalLevel()).fit(x, "vmp", progress=False)
    with pytest.raises(TypeError, match="start: got int"):
        LinearSSM(1).fit(x, start=3, progress=False)
    with pytest.raises(ValueError, match="start: got a model without values"):
        LinearSSM(1).fit(x, start=LinearSSM(1), progress=False)
    with pytest.raises(ValueError, match="prior: got None"):
        LinearSSM(LocalLevel()).fit(x, "nuts", prior=None, progress=False)


# ---- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("method", "n_steps"), [("nuts", 16), ("svi", 200)])
def test_draws_have_the_moments_of_a_grid(method: str, n_steps: int) -> None:
    """Of both standard deviations of a local level, within what 64 draws, or a normal guide, may miss."""
    x = torch.tensor([0.2, 0.9, 1.1, 0.4, 2.0, 2.4], dtype=FLOAT).unsqueeze(-1)
    level = LinearSSM(LocalLevel()).with_prior({"spread": [1.0]})
    axis = torch.linspace(0.01, 4.0, 80, dtype=FLOAT)
    irregular, own = (table.flatten() for table in torch.meshgrid(axis, axis, indexing="ij"))
    heights = level.problem(x).objective({"sigma2.irregular": irregular.square(), "sigma2.level": own.square()})
    weights = heights.softmax(0)
    fit = level.fit(x, method, prior=level.prior, restarts=1, progress=False, **effort(method, n_steps))
    drawn = {name: value.sqrt().flatten() for name, value in fit.posterior.draws.items()}
    for name, table in (("sigma2.irregular", irregular), ("sigma2.level", own)):
        mean = float(weights @ table)
        spread = float(weights @ (table - mean).square()) ** 0.5
        assert abs(float(drawn[name].mean()) - mean) < 0.8 * spread


@pytest.mark.slow
def test_the_guide_of_a_table_agrees_with_message_passing() -> None:
    model = model_of(1, 1, full=False)
    x = series_of(model, 2, 10)
    about = LinearSSM(1, 1).fit(x, "vmp", restarts=1, progress=False)
    drawn = LinearSSM(1, 1).fit(x, "svi", restarts=1, max_steps=60, progress=False)
    spread = drawn.posterior.draws["transition"].std()
    assert abs(float(about.model.values["transition"] - drawn.model.values["transition"])) < 1.5 * float(spread)


# ---- the end of EM ---------------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("prior", ["weak", None])
def test_gradients_at_points_are_those_of_the_log_posterior(full: bool, prior: str | None) -> None:
    """By Fisher's identity from one posterior of the path, beside central differences."""
    model = model_of(2, 2, full)
    x = series_of(model)
    units = units_of(model.emission, model.read(x))
    start, _ = first_paths(model.problem(x).in_units(units).series, 2, 1, 0)
    graph = graph_of(model.problem(x).in_units(units), start).at_points(flat=prior is None)
    engine = graph.engine(graph.start(1), check=False)
    engine.run(3, 0.0)
    surface = AtPoints(graph, {name: engine.blocks[name].eta for name in graph.kept})
    at = surface.start
    height, slope = surface.climb(at)
    assert_close(height, engine.elbo(), rtol=1e-9, atol=1e-9)
    for i in range(at.shape[-1]):
        step = torch.zeros_like(at)
        step[0, i] = 1e-5
        rise = (surface.climb(at + step)[0] - surface.climb(at - step)[0]) / 2e-5
        assert_close(rise[0], slope[0, i], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_default_fit_of_two_latents_converges_and_no_longer_em_gets_higher() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 1, generator=generator, dtype=FLOAT).cumsum(0)
    x = x + torch.randn(120, 1, generator=generator, dtype=FLOAT)
    fit = LinearSSM(2, 1).fit(x, progress=False)
    assert fit.converged
    assert len(fit.objective) < 200
    assert_close(fit.model.problem(x).objective(fit.model.values), fit.objective[-1], rtol=1e-9, atol=1e-9)
    again = LinearSSM(2, 1).fit(x, start=fit, restarts=1, max_steps=60, progress=False)
    assert float(again.objective[-1] - fit.objective[-1]) < 1e-3
