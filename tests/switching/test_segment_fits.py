"""Fits of `Segments`, the Pyro program, and figures."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from matplotlib.figure import Figure
from oracles.every_segmentation import evidences, segmentations
from samplehold.switching.segments.hyperparameters import sites
from samplehold.switching.segments.rows import with_state
from torch import Tensor

FLOAT = torch.float64
X = torch.tensor([1, 0, 2, 1, 0, 1, 9, 12, 8, 11, 10], dtype=FLOAT)
QUIET: dict[str, Any] = {"progress": False, "seed": 0}


def poisson(hazard: Any = 0.1) -> sh.Segments:
    return sh.Segments(sh.Poisson(prior={"rate": dist.Gamma(1.0, 0.2)}), hazard)


@pytest.fixture(scope="module")
def fit() -> Any:
    """Of two sequences, all parameters free."""
    return poisson().fit(torch.stack([X, X.flip(0)]).unsqueeze(-1), restarts=2, **QUIET)


def test_a_fit_ends_where_the_objective_is_flat(fit):
    assert fit.converged
    problem = fit.model.scaled_to(fit.series).problem(fit.series)
    free = {name: value.log().requires_grad_() for name, value in fit.model.values.items()}
    height = problem.objective({name: value.exp() for name, value in free.items()})
    assert float(height.detach()) == pytest.approx(float(fit.objective[-1]), abs=1e-3)
    for gradient in torch.autograd.grad(height, list(free.values())):
        assert float(gradient.abs().max()) < 0.02
    assert float(height.detach()) > float(problem.objective(poisson().values))
    assert fit.n_parameters == 3
    assert fit.aic == pytest.approx(2 * 3 - 2 * float(fit.log_evidence().sum()))


def test_a_free_hazard_ends_at_the_fixed_point_of_em():
    known = {"shape": 1.0, "rate": 0.2}
    fit = poisson().with_prior({"hazard": dist.Beta(1.5, 4.0)}).fit(X, fixed=known, restarts=1, **QUIET)
    changes = float(fit.smooth().n_changes)
    expected = (0.5 + changes) / (0.5 + 3 + len(X) - 1)
    assert float(fit.model.values["hazard"]) == pytest.approx(expected, abs=1e-4)
    assert float(fit.model.values["rate"]) == pytest.approx(0.2)
    assert fit.fixed == ("shape", "rate")


def test_without_a_prior_the_evidence_is_maximised():
    fit = poisson().fit(X, fixed={"hazard": 0.1}, prior=None, restarts=1, **QUIET)
    assert float(fit.objective[-1]) == pytest.approx(fit.loglik, abs=1e-6)
    assert fit.loglik > float(poisson().log_evidence(X))


def test_draws_of_the_parameters():
    known = {"shape": 1.0, "rate": 0.2}
    fit = poisson().fit(X, "nuts", restarts=1, num_samples=2, warmup_steps=1, fixed=known, **QUIET)
    assert fit.posterior.draws["hazard"].shape == (2, 2)
    problem = replace(fit.model.scaled_to(X).problem(X), fixed=fit.held)
    draws = {name: table[0] for name, table in fit.posterior.draws.items()}
    torch.testing.assert_close(fit.objective[:2], problem.objective(draws).double(), rtol=1e-8, atol=1e-8)
    assert fit.posterior.interval(0.5).lower["hazard"].ndim == 0
    assert fit.forecast(2).mean.shape == (2, 1)


def test_a_fit_describes_and_draws_itself(fit):
    text = str(fit.summary())
    assert "shape[0]" in text
    assert "hazard" in text
    assert fit.segments.steps.tolist() == [6, 5, 5, 6]
    assert "2 of 2 starts" in str(fit.diagnose())
    for figure, panels in ((fit.plot(sequence=1), 2), (fit.forecast(3).plot(), 2)):
        assert isinstance(figure, Figure)
        assert len(figure.axes) == panels
        figure.savefig(BytesIO(), format="png", dpi=20)


def test_a_fit_goes_on_from_its_checkpoint(tmp_path):
    once = poisson().fit(X, restarts=1, max_steps=4, checkpoint=tmp_path / "fit", every=0.0, **QUIET)
    again = poisson().fit(X, restarts=1, max_steps=4, **QUIET)
    torch.testing.assert_close(once.objective, again.objective, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fixed": {"hazard": 0.1, "shape": 1.0, "rate": 1.0}}, "fixed: got all parameters"),
        ({"fixed": {"loc": 0.1}}, r"fixed: got unknown parameter\(s\) \['loc'\]"),
        ({"fixed": {"hazard": 2.0}}, "hazard: got 2.0, expected a probability"),
        ({"start": 3}, "start: got int"),
        ({"method": "vmp"}, "method: got 'vmp', expected one of 'em', 'nuts'"),
        ({"prior": None, "method": "nuts"}, "prior: got None"),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        poisson().fit(X, **QUIET, **options)


# ---- the program -----------------------------------------------------------------------------------------------------

PROGRAMS: dict[str, tuple[Any, dict[str, Any], Tensor]] = {
    "Normal": (sh.Normal(), {"loc": 1.0, "count": 0.3, "shape": 2.0, "rate": 1.5}, torch.tensor([[0.1], [2.0], [3.1]])),
    "Poisson": (sh.Poisson(), {"shape": 1.5, "rate": 0.4}, torch.tensor([[1.0], [float("nan")], [4.0]])),
    "Categorical": (sh.Categorical(3), {"concentration": [1.0, 2.0, 0.5]}, torch.tensor([[0.0], [2.0], [2.0]])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_has_the_density_of_the_engine(name):
    """With the same parameters theta at every step, p(z, x) is the joint density over p(theta) at each step, times
    p(theta) / p(theta | x) of each segment."""
    emission, prior, x = PROGRAMS[name]
    x, hazard = x.double(), 0.3
    model = sh.Segments(emission, hazard).with_prior(prior)
    tables = with_state(emission, {key: value.double() for key, value in model.values.items() if key != "hazard"})
    theta, before = emission.start(tables), emission.natural(tables)
    family, point = emission.family, emission.point(theta)
    log_prior = family.log_prob(point, before).sum()
    joints = []
    for one in segmentations(evidences(emission, tables, x), [hazard] * len(x)):
        known = {f"{key}_{t}": value for key, value in theta.items() for t in range(1, len(x) + 1)}
        known |= {f"z_{t}": torch.tensor(float(t - 1 in one.begins), dtype=FLOAT) for t in range(2, len(x) + 1)}
        trace = pyro.poutine.trace(pyro.condition(model, known)).get_trace(x)
        ratio = trace.log_prob_sum() - len(x) * log_prior
        for begin, end in zip(one.begins, (*one.begins[1:], len(x)), strict=True):
            after = before + emission.message(x[begin:end], x.new_ones(end - begin, 1))
            ratio = ratio + log_prior - family.log_prob(point, after).sum()
        torch.testing.assert_close(ratio, one.log_joint, rtol=1e-9, atol=1e-9)
        joints.append(ratio)
    torch.testing.assert_close(torch.stack(joints).logsumexp(0), model.log_evidence(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "emission", [sh.Normal(2), sh.MultivariateNormal(2), sh.LinearRegression(1, 1), sh.Bernoulli(2)]
)
def test_without_values_the_program_draws_them_from_their_prior(emission):
    model = sh.Segments(emission)
    inputs = {"inputs": torch.zeros(2, 3, 1).double()} if emission.n_inputs else {}
    with pyro.poutine.trace() as tracer:
        x = model(n_steps=3, batch_shape=(2,), **inputs)
    assert x.shape == (2, 3, emission.n_features)
    nodes, problem = tracer.trace.nodes, model.problem(x.double(), **inputs)
    drawn = {name: nodes[name]["value"] for name in model.known}
    total = sum(nodes[site.name]["fn"].log_prob(drawn[site.name]) for site in sites(problem.parameters, model.prior))
    torch.testing.assert_close(problem.log_prior(drawn), total)


def test_simulated_series_have_the_moments_of_the_model():
    model = sh.Segments(sh.Poisson(2), 0.2).with_prior({"shape": [4.0, 2.0], "rate": 0.5})
    drawn = model.simulate(6, (500,), seed=1)
    assert float(drawn.redraw[:, 1:].double().mean()) == pytest.approx(0.2, abs=0.02)
    torch.testing.assert_close(drawn.x.mean((0, 1)), torch.tensor([8.0, 4.0], dtype=FLOAT), rtol=0.1, atol=0)
    held = ~drawn.redraw[:, 1:]
    rate = drawn.parameters["rate"]
    assert bool((rate[:, 1:][held] == rate[:, :-1][held]).all())
    assert int(drawn.path.max()) == int(drawn.redraw.sum(-1).max()) - 1
    shared = sh.Segments(sh.Normal(), dist.Poisson(1.0), shared=True).scaled_to(X).simulate(5, (3,), seed=0)
    assert bool((shared.path == shared.path[:1]).all())
    assert model.simulate(4, (0,)).parameters["rate"].shape == (0, 4, 2)
