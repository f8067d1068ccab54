"""Iterations of EM and message passing by the kernels of small tables against the same by the plain forms in torch."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from oracles.models import DYNAMICS, EMISSIONS, drive
from samplehold import MultivariateNormal, SwitchingSSM
from samplehold.inference.families.family import relative
from samplehold.inference.families.normal import expected_normal, mean_point
from samplehold.inference.families.peak import peak
from samplehold.inference.numerics.cholesky import cholesky
from samplehold.switching.fitting import EM, ChainGraph, engine_from, first_guesses
from samplehold.switching.fitting.chunked import parameters_of
from samplehold.switching.priors import prefixed_sites
from samplehold.switching.problem import Problem
from torch import Tensor
from torch.testing import assert_close

STEPS = 6
SOME = [  # every family that has a kernel
    ("markov", "full", False),
    ("markov", "full", True),
    ("copy", "normal", True),
    ("copy", "poisson", False),
    ("markov", "categorical", False),
    ("copy", "gated", True),
    ("inputs", "bernoulli", False),
    ("copy", "gated_tied", True),
    ("markov", "tied_full", True),
]


def by_plain_forms(monkeypatch: pytest.MonkeyPatch, run: Callable[[], tuple]) -> tuple:
    with monkeypatch.context() as patched:
        for function in (relative, expected_normal, mean_point, peak, cholesky):
            patched.setattr(function, "_kernels", {})
        return run()


def problem_of(dynamics: str, emission: str, missing: bool, dtype: torch.dtype = torch.float64) -> Problem:
    """Of three ragged sequences that change their level every eight steps."""
    generator = torch.Generator().manual_seed(1)
    n_steps, symbols = 40, emission in ("categorical", "gated_symbols")
    level = torch.tensor([1.0, 4.0], dtype=dtype)[(torch.arange(n_steps) // 8) % 2, None].expand(3, n_steps, 2)
    x = torch.poisson(level, generator=generator)
    if symbols:
        x = x[..., :1].clamp(max=2)
    elif emission == "bernoulli":
        x = (x > 2).to(dtype)
    elif emission != "poisson":
        x = x + torch.randn(x.shape, generator=generator).to(dtype)
    if missing:
        x = x.masked_fill(torch.rand(x.shape, generator=generator) < 0.2, torch.nan)
        x[0, 5] = torch.nan
    given = {name: table.to(dtype) for name, table in drive(dynamics, (3,), n_steps).items()}
    model = SwitchingSSM(DYNAMICS[dynamics], EMISSIONS[emission]).scaled_to(x, **given)
    return model.problem(x, lengths=[40, 31, 38], **given)


@pytest.mark.few(2)
@pytest.mark.parametrize(("dynamics", "emission", "missing"), SOME)
def test_iterations_are_those_of_the_plain_forms(dynamics, emission, missing, monkeypatch):
    problem = problem_of(dynamics, emission, missing)
    start = first_guesses(problem, 3, seed=0).values

    def em(given: Problem) -> tuple:
        climb = EM(given, start)
        run = climb.run(STEPS)
        return run.elbo, climb.tables

    def passing() -> tuple:
        engine = engine_from(ChainGraph.of(problem), start)
        return engine.run(STEPS, 0.0).elbo, parameters_of(engine)

    for run in (lambda: em(problem), lambda: em(replace(problem, prior=None)), passing):
        (bound, tables), (plain_bound, plain) = run(), by_plain_forms(monkeypatch, run)
        assert_close(bound, plain_bound, rtol=1e-10, atol=1e-10)
        assert (bound.diff(dim=0) >= -1e-9 * bound[1:].abs()).all()
        for name, table in plain.items():
            assert_close(tables[name], table, rtol=1e-8, atol=1e-8)  # six steps widen a rounding


@pytest.mark.parametrize("emission", ["normal", "full", "poisson"])
def test_iterations_stay_in_float32(emission):
    problem = problem_of("copy", emission, missing=True, dtype=torch.float32)
    start = {name: value.float() for name, value in first_guesses(problem, 2, seed=0).values.items()}
    climb = EM(problem, start)
    climb.run(2)
    engine = engine_from(ChainGraph.of(problem), start)
    engine.run(2, 0.0)
    assert {table.dtype for table in (*climb.tables.values(), *parameters_of(engine).values())} == {torch.float32}


@pytest.mark.parametrize(("dynamics", "emission"), [kind[:2] for kind in SOME])
def test_log_prior_without_distributions_is_theirs(dynamics, emission):
    problem = problem_of(dynamics, emission, missing=False)
    values = first_guesses(problem, 3, seed=0).values
    assert_close(problem.log_prior(values, inside=True), problem.log_prior(values), rtol=1e-12, atol=1e-12)
    named = prefixed_sites(problem.emission.sites(problem.prior), "own_")
    for site in named:
        own = {"own_" + name: value for name, value in values.items()}
        assert_close(site.log_prob(own, inside=True), site.log_prob(own, inside=False), rtol=1e-12, atol=1e-12)


def test_log_prior_of_values_outside_their_support_is_refused():
    problem = problem_of("markov", "normal", missing=False)
    values = {name: -value for name, value in first_guesses(problem, 1, seed=0).values.items()}
    with pytest.raises(ValueError, match="support"):
        problem.log_prior(values)


def conditional(row: Tensor, loc: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a whole row given what is seen of it."""
    seen, covariance = ~row.isnan(), precision.inverse()
    gain = covariance[:, seen] @ covariance[seen][:, seen].inverse()
    return loc + gain @ (row - loc)[seen], covariance - gain @ covariance[seen]


@pytest.mark.parametrize("n_features", [3, 40])  # more than one integer holds the pattern of
def test_steps_that_miss_features_are_counted_as_the_textbook_has_it(n_features):
    torch.manual_seed(0)
    emission, n = MultivariateNormal(n_features), 12
    x, weights = torch.randn(n, n_features, dtype=torch.float64), torch.rand(n, 2, dtype=torch.float64)
    x[torch.rand(x.shape) < 0.3] = torch.nan
    x[1], x[2], x[4] = x[0], 1.0, torch.nan
    root = torch.randn(2, n_features, n_features, dtype=torch.float64) / n_features**0.5
    values = {
        "loc": torch.randn(2, n_features, dtype=torch.float64),
        "precision": root @ root.mT + torch.eye(n_features),
    }
    table, message = emission.table(x, values), emission.message(x, weights, values)
    assert torch.equal(table[4], torch.zeros(2).double())
    for k in range(2):
        loc, precision = values["loc"][k], values["precision"][k]
        first, second, count = torch.zeros(n_features).double(), torch.zeros(n_features, n_features).double(), 0.0
        for row, weight, log_prob in zip(x, weights[:, k], table[:, k], strict=True):
            seen, covariance = ~row.isnan(), precision.inverse()
            if not seen.any():
                continue
            normal = torch.distributions.MultivariateNormal(loc[seen], covariance[seen][:, seen])
            assert_close(log_prob, normal.log_prob(row[seen]), rtol=1e-10, atol=1e-10)
            mean, spread = conditional(row, loc, precision)
            count, first = count + weight, first + weight * (mean - loc)
            second = second + weight * (torch.outer(mean - loc, mean - loc) + spread)
        expected = torch.cat([first, -count[None] / 2, count[None] / 2, -second.flatten() / 2])
        assert_close(message[k], expected, rtol=1e-10, atol=1e-10)
