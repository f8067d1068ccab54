"""Priors of covariance and precision matrices: their densities, units, methods, and what is refused."""

import math
import re
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from samplehold.switching.definite import DefiniteTransform
from samplehold.switching.fitting import sampling
from samplehold.switching.fitting.density import Density
from torch import Tensor
from torch.testing import assert_close

DOUBLE = torch.float64
ONE = {"progress": False, "restarts": 1}
TIED = {"covariance": "all states"}


def series() -> Tensor:
    normal = torch.randn(24, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    x = normal @ torch.tensor([[1.0, 0.5], [0.0, 0.3]], dtype=DOUBLE)
    x[12:] += 5
    return x.index_put((torch.tensor([3]), torch.tensor([1])), torch.tensor(math.nan, dtype=DOUBLE))


X = series()
SHAPE = torch.tensor([[0.4, 0.1], [0.1, 0.2]], dtype=DOUBLE)
WISHART = dist.Wishart(torch.tensor(5.0), covariance_matrix=torch.eye(2))
Priors = dict[str, Any]


def priors(kind: str, unit: Tensor) -> Priors:
    """Priors for values in another unit of each feature."""
    loc = {"loc": dist.Normal(unit, 3.0 * unit)}
    df, both = torch.tensor(5.0, dtype=DOUBLE), unit * unit.unsqueeze(-1)
    if kind == "precision":
        return loc | {"precision": dist.Wishart(df, covariance_matrix=SHAPE / both)}
    if kind == "covariance":
        return loc | {"covariance": dist.Wishart(df, covariance_matrix=SHAPE * both)}
    return loc | {"scale": dist.HalfNormal(0.8 * unit), "correlation": dist.LKJ(2, torch.tensor(1.5, dtype=DOUBLE))}


KINDS = ["precision", "covariance", "correlation"]
PLAIN = torch.ones(2, dtype=DOUBLE)
VALUES = {
    "redraw_prob": 0.2,
    "state_probs": [0.4, 0.6],
    "loc": [[0.1, -0.2], [5.0, 4.0]],
    "covariance": [[[0.9, 0.3], [0.3, 0.4]], [[1.3, -0.2], [-0.2, 0.6]]],
}


def lower(matrix: Tensor) -> Tensor:
    rows, columns = torch.tril_indices(2, 2)
    return matrix[..., rows, columns]


def whole(entries: Tensor) -> Tensor:
    return torch.stack([entries[:2], entries[1:]])


def numbers(kind: str, precision: Tensor) -> Tensor:
    """The numbers whose density the prior is, of one matrix."""
    covariance = torch.linalg.inv(precision)
    scale = covariance.diagonal().sqrt()
    correlation = (covariance[1, 0] / scale.prod()).unsqueeze(0)
    return {
        "precision": lower(precision),
        "covariance": lower(covariance),
        "correlation": torch.cat([scale, correlation]),
    }[kind]


def textbook(kind: str, precision: Tensor) -> Tensor:
    """The log density of one precision, with the Jacobian by differentiation."""
    found, prior = numbers(kind, precision), priors(kind, PLAIN)
    slopes = torch.autograd.functional.jacobian(lambda entries: numbers(kind, whole(entries)), lower(precision))
    volume = torch.linalg.slogdet(slopes)[1]
    if kind != "correlation":
        return prior[kind].log_prob(whole(found)) + volume
    matrix = torch.eye(2, dtype=DOUBLE) + found[2] * torch.eye(2, dtype=DOUBLE).flip(0)
    return prior["scale"].log_prob(found[:2]).sum() + prior["correlation"].log_prob(matrix) + volume


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_is_the_density_of_its_distribution(kind: str) -> None:
    model = sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2, prior=priors(kind, PLAIN))).with_values(**VALUES)
    expected = torch.stack([textbook(kind, precision) for precision in model.precision]).sum()
    expected = expected + priors(kind, PLAIN)["loc"].log_prob(model.loc).sum()
    if kind == "precision":  # hyperparameters of the default prior, which is one of both
        assert_close(model.prior["inverse_scale"], torch.linalg.inv(SHAPE).expand(2, 2, 2))
    assert_close(model.log_prior(model.values), expected, rtol=1e-10, atol=1e-10)
    free = model.without_values()
    trace = pyro.poutine.trace(pyro.poutine.condition(free.collapsed, model.values)).get_trace(X)
    assert_close(trace.log_prob_sum(), model.log_evidence(X) + expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_of_samplers_is_that_of_the_model(kind: str) -> None:
    """Up to a constant, in free coordinates and units of the spread."""
    model = sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2, prior=priors(kind, PLAIN))).with_values(**VALUES)
    density = Density(model.problem(X), model.values)
    y = density.point
    points = y + 0.2 * torch.randn(4, len(y), generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    found, expected = density.at(points), []
    for point in points:
        here = density.by_name(point)
        there = model.with_values(density.values(here))
        rows = here["precision"]
        volume = DefiniteTransform().log_abs_det_jacobian(rows, there.precision).sum()
        probs = there.redraw_prob.log() + torch.log1p(-there.redraw_prob) + there.state_probs.log().sum()
        expected.append(there.log_evidence(X) + there.log_prior(there.values) + volume + probs)
    assert_close(found - found[0], torch.stack(expected) - expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "tied"), [*((kind, None) for kind in KINDS), ("correlation", TIED)])
def test_the_mode_is_flat_and_the_same_in_other_units(kind: str, tied: Any) -> None:
    unit = torch.tensor([1e-3, 1e4], dtype=DOUBLE)
    options = ONE | {"max_steps": 40, "tol": 1e-9}
    one, other = (
        sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2, prior=priors(kind, c), tied=tied)).fit(X * c, **options)
        for c in (PLAIN, unit)
    )
    model = one.model
    assert_close(one.objective[-1], model.log_evidence(X) + model.log_prior(model.values), rtol=1e-9, atol=1e-9)
    scaled = other.model.describe()["covariance"] / (unit * unit.unsqueeze(-1))
    assert_close(scaled, model.describe()["covariance"], rtol=1e-4, atol=1e-5)
    leaf = torch.stack([lower(matrix) for matrix in model.precision]).requires_grad_()
    values = dict(model.values) | {"precision": torch.stack([whole(entries) for entries in leaf])}
    height = model.problem(X).chain(values).log_normalizer() + model.log_prior(values)
    (slope,) = torch.autograd.grad(height, leaf)
    assert float((slope * leaf).abs().max()) < 2e-2


def test_a_wishart_of_a_precision_serves_message_passing() -> None:
    prior, model = priors("precision", PLAIN), sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2))
    own = {"precision": prior["precision"]}
    tables = {"df": [5.0, 5.0], "inverse_scale": torch.linalg.inv(SHAPE).expand(2, 2, 2)}
    for method in ("em", "vmp"):
        fit, other = (model.fit(X, method, prior=given, max_steps=20, **ONE) for given in (own, tables))
        for name, value in fit.model.values.items():
            assert_close(value, other.model.values[name], rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["covariance", "correlation"])
@pytest.mark.parametrize("method", ["svi", pytest.param("nuts", marks=pytest.mark.slow)])
def test_samplers_take_any(kind: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHAINS", 1)
    model = sh.SwitchingSSM(sh.Copy(1), sh.MultivariateNormal(2, prior=priors(kind, PLAIN)))
    options = {"num_samples": 10, "warmup_steps": 10} if method == "nuts" else {"max_steps": 150}
    fit = model.fit(X, method, **options, **ONE)
    mode = model.fit(X, **ONE).model.describe()["covariance"]
    assert float((fit.model.describe()["covariance"] / mode).diagonal(dim1=-2, dim2=-1).log().abs().max()) < 1.0
    with pytest.raises(TypeError, match=r"^prior: MultivariateNormal has priors of loc, precision that are not of its"):
        model.fit(X, "vmp", **ONE)


def test_programs_draw_from_them() -> None:
    for kind in KINDS:
        model = sh.SwitchingSSM(sh.Copy(3), sh.MultivariateNormal(2, prior=priors(kind, PLAIN)))
        with pyro.poutine.trace() as trace:
            model(n_steps=2)
        assert trace.trace.nodes["precision"]["value"].shape == (3, 2, 2)


def test_files_hold_them(tmp_path) -> None:
    for kind in KINDS:
        prior = priors(kind, PLAIN)
        if kind != "correlation":
            assert prior[kind].precision_matrix.shape == (2, 2)  # the distribution keeps it beside its argument
        model = sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2, prior=prior)).with_values(**VALUES)
        model.save(tmp_path / "model")
        again = sh.load(tmp_path / "model")
        assert_close(again.log_prior(again.values), model.log_prior(model.values), rtol=1e-12, atol=1e-12)


def test_a_later_prior_of_a_matrix_replaces_an_earlier_one_in_any_form() -> None:
    both = {"scale": dist.HalfNormal(1.0), "correlation": dist.LKJ(2, 2.0)}
    model = sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2)).with_prior({"covariance": WISHART}).with_prior(both)
    assert model.emission.prior == both
    assert model.with_prior({"precision": WISHART}).emission.prior == {"precision": WISHART}


def emission(**prior: Any) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(2, prior=prior))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: emission(covariance=dist.HalfNormal(1.0)),
            "prior['covariance']: got HalfNormal, whose support does not fit",
        ),
        (lambda: emission(scale=dist.HalfNormal(1.0)), "prior: got 'scale' alone, expected 'scale', of the standard"),
        (lambda: emission(correlation=dist.LKJ(2, 1.0)), "prior: got 'correlation' alone"),
        (
            lambda: emission(scale=dist.HalfNormal(1.0), correlation=dist.LKJ(2, 1.0), covariance=WISHART),
            "prior: got 'covariance' and 'scale', 'correlation', two forms of one parameter; give one.",
        ),
        (
            lambda: emission(scale=dist.Normal(0.0, 1.0), correlation=dist.LKJ(2, 1.0)),
            "prior['scale']: got Normal, expected a distribution of positive numbers",
        ),
        (
            lambda: emission(scale=dist.HalfNormal(1.0), correlation=WISHART),
            "prior['correlation']: got Wishart, expected a distribution of correlation matrices",
        ),
        (
            lambda: emission(scale=dist.HalfNormal(torch.ones(3)), correlation=dist.LKJ(2, 1.0)),
            "prior['scale']: got a distribution of shape [3], expected one number's, or one for each of the 2 features",
        ),
        (
            lambda: emission(scale=dist.HalfNormal(torch.ones(3, 2)), correlation=dist.LKJ(2, torch.ones(2))),
            "prior['scale']: got a distribution of shape [3, 2], expected one number's, or one for each of the 2 "
            "features of prior['correlation'], which has the shape [2, 2, 2].",
        ),
        (
            lambda: emission(scale=dist.HalfNormal(1.0), correlation=dist.LKJ(2, torch.ones(3))).fit(X, **ONE),
            "prior['correlation']: got a distribution of shape [3, 2, 2], expected one number's, or a table [2, 2, 2]",
        ),
        (
            lambda: emission(loc=dist.Delta(torch.tensor(1.0))),
            "prior['loc']: got Delta, which has no density; hold the parameter with `fixed`.",
        ),
        (
            lambda: emission(scale=dist.HalfNormal(1.0), correlation=dist.LKJ(3, 1.0)).fit(X, **ONE),
            "prior['correlation']: got a distribution of shape [3, 3], expected one number's, or a table [2, 2, 2]",
        ),
        (lambda: emission(precision=WISHART, covariance=WISHART), "prior: got precision twice, in two forms"),
        (
            lambda: sh.SwitchingSSM(sh.Copy(2), sh.MultivariateNormal(3, prior={"precision": WISHART})),
            "prior['precision']: got a distribution of shape [2, 2], expected one number's, or a table [2, 3, 3]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make: Callable[[], Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(said)):
        make()
