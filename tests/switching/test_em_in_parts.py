"""EM over data in files, of emissions without a conjugate prior and of dynamics with inputs, against EM in memory."""

from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.files import in_file
from samplehold.switching.fitting import EM, EMInParts, Whole, chunked, first_guesses, whole
from samplehold.switching.fitting.ascent_in_parts import AscentInParts
from samplehold.switching.fitting.chains_in_parts import log_evidence
from samplehold.switching.fitting.em_in_parts import adds_up
from samplehold.switching.fitting.starts import variance_floor
from torch import Tensor
from torch.testing import assert_close

KNOWN: dict[str, Any] = {
    "lengths": torch.tensor([13, 5, 1, 9, 10, 12]),
    "weights": torch.tensor([1.0, 2.0, 0.5, 1.0, 1.5, 1.0], dtype=torch.float64),
}


def data(n: int = 6, n_steps: int = 13) -> Tensor:
    """Positive numbers of two kinds, some of them missing."""
    generator = torch.Generator().manual_seed(0)
    level = 1.0 + 3 * (torch.arange(n_steps) // 4 % 2).double()[:, None]
    x = level * (0.3 + torch.rand(n, n_steps, 2, generator=generator, dtype=torch.float64))
    x[0, 2, 0] = x[1, 3] = torch.nan
    return x


def proportions() -> Tensor:
    return data() / 6


def zeros() -> Tensor:
    x = data()
    return torch.where(x < 0.8, 0.0, x)


TIED = sh.AutoRegressive(1, 2, switching=["intercept"])
SUMS: dict[str, tuple[sh.Emission, Tensor, dict[str, Any]]] = {
    "gamma": (sh.Gamma(2), data(), {}),
    "beta": (sh.Beta(2), proportions(), {}),
    "angles": (sh.VonMises(2), data() - 3, {}),
    "a table's prior": (sh.Gamma(2, prior={"shape": dist.LogNormal(torch.zeros(2, 2), 1.0).to_event(2)}), data(), {}),
    "columns": (sh.Joint(level=sh.Gamma(), angle=sh.VonMises()), data() - torch.tensor([0.0, 3.0]), {}),
    "zeros": (sh.ZeroInflated(sh.Gamma(2)), zeros(), {}),
    "components": (sh.Mixture(sh.Normal(2), 2), data(), {}),
    "factors": (sh.FactorAnalysis(2, 1), data(), {}),
    "shared lags": (TIED, data(), {"lengths": torch.tensor([13, 5, 3, 9, 10, 12])}),
    "noise": (sh.Normal(2), data(), {"noise": data().nan_to_num(1.0) / 9}),
    "background": (sh.Gated(sh.Normal(2), sh.Normal(2)), data(), {}),
}


def small_parts(monkeypatch: pytest.MonkeyPatch, problem: Any, steps: int, cut: bool) -> None:
    numbers = 2 * problem.n_states * problem.series.n_features
    monkeypatch.setattr(chunked, "MAX_NUMBERS", steps * numbers)
    monkeypatch.setattr(chunked, "LONG", 8 * numbers if cut else chunked.LONG)


@pytest.mark.few(8)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("kind", list(SUMS))
def test_each_step_is_that_in_memory(monkeypatch, kind, cut):
    emission, x, given = SUMS[kind]
    dynamics = sh.Copy(2) if kind in ("gamma", "zeros", "background") else sh.Markov(2)
    model = sh.SwitchingSSM(dynamics, emission).scaled_to(x)
    problem = model.problem(x, **KNOWN | given)
    start = first_guesses(problem, 2, 0).values
    start = apart(start) if kind == "components" else start
    small_parts(monkeypatch, problem, 5 if cut else 20, cut)
    expected, found = EM(problem, start), EMInParts(problem, Whole.of(model.read(in_file(problem.series))), start)
    assert adds_up(problem)
    assert_close(found.run(3).elbo, expected.run(3).elbo, rtol=1e-10, atol=1e-10)
    for name, table in expected.tables.items():
        assert_close(found.tables[name], table, rtol=1e-8, atol=1e-8)
    assert torch.equal(found.collapsed, expected.collapsed)
    assert_close(found.occupancy, expected.occupancy, rtol=1e-10, atol=1e-10)


def apart(start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Components at different places; in memory equal ones are told apart by all data."""
    return start | {"loc": start["loc"] + torch.arange(2.0, dtype=torch.float64)[:, None]}


# ---- models whose M-step is no sum ---------------------------------------------------------------------------------

INPUTS = torch.linspace(-1, 1, 13, dtype=torch.float64).sin().expand(6, 13)[..., None]
GAPS = 0.5 + torch.rand(6, 13, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
DEGREES = torch.full((2, 2), 4.0, dtype=torch.float64)
CLIMBS: dict[str, tuple[sh.SwitchingSSM, Tensor, dict[str, Any], dict[str, Tensor] | None]] = {
    "heavy tails": (sh.SwitchingSSM(sh.Markov(2), sh.StudentT(2)), data(), {}, {}),
    "counts": (sh.SwitchingSSM(sh.Copy(2), sh.NegativeBinomial(2)), (9 * data()).round(), {}, {}),
    "inputs": (
        sh.SwitchingSSM(sh.Markov(2, inputs=1), sh.Poisson(2, inputs=1)),
        data().round(),
        {"inputs": INPUTS},
        {},
    ),
    "gaps": (sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)), data(), {"dt": GAPS}, {}),
    "known in part": (
        sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)),
        data(),
        {},
        {"loc": torch.tensor([[0.8, torch.nan], [3.0, 3.0]], dtype=torch.float64)},
    ),
    "most likely": (sh.SwitchingSSM(sh.Markov(2), sh.StudentT(2)), data(), {}, None),
}


def climb_of(monkeypatch: pytest.MonkeyPatch, kind: str, n: int) -> tuple[Any, AscentInParts]:
    """A problem, and n restarts that climb in parts of its data."""
    model, x, given, fixed = CLIMBS[kind]
    model = model.scaled_to(x)
    problem = model.problem(x, **KNOWN | given)
    prior, fixed = (None, {"df": DEGREES}) if fixed is None else (problem.prior, fixed)
    problem = replace(problem, prior=prior, fixed=fixed)
    assert not adds_up(problem)
    start = problem.admitted(first_guesses(problem, n, 0).values)
    small_parts(monkeypatch, problem, 20, cut=False)
    return problem, AscentInParts(problem, Whole.of(model.read(in_file(problem.series))), start, 1e-9)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", list(CLIMBS))
def test_other_models_climb_the_objective_of_em(monkeypatch, kind):
    problem, climb = climb_of(monkeypatch, kind, 2)
    first = climb.height()
    assert_close(first, problem.objective(climb.tables), rtol=1e-10, atol=1e-10)
    leaves = {name: table.clone().requires_grad_() for name, table in climb.tables.items()}
    expected = torch.autograd.grad(problem.objective(leaves).sum(), list(leaves.values()), materialize_grads=True)
    whole = climb._whole
    found = (log_evidence(problem, whole, leaves) + problem.log_prior(leaves)).sum()
    for there, here in zip(
        torch.autograd.grad(found, list(leaves.values()), materialize_grads=True), expected, strict=True
    ):
        assert_close(there, here, rtol=1e-9, atol=1e-9)
    trace = climb.run(2).elbo
    assert bool((trace > first).all())
    assert_close(climb.occupancy, EM(problem, climb.tables).occupancy, rtol=1e-10, atol=1e-10)
    assert climb.collapsed.tolist() == [[False, False]] * 2
    one = climb.select(torch.tensor([1]))
    assert_close(one.at(one.tables).height(), trace[-1, 1:], rtol=1e-10, atol=1e-10)
    resumed = climb.at({name: table[[1, 0]] for name, table in climb.tables.items()}).resumed(climb.state())
    assert torch.equal(resumed.run(1).elbo, climb.run(1).elbo)


def most_likely(model: sh.SwitchingSSM, x: Tensor, **given: Any) -> tuple[Any, AscentInParts]:
    """The problem without a prior, and a start that climbs."""
    model = model.scaled_to(x)
    problem = replace(model.problem(x, **KNOWN | given), prior=None)
    start = first_guesses(problem, 1, 0).values
    return problem, AscentInParts(problem, Whole.of(model.read(in_file(problem.series))), start)


def test_a_state_that_gives_one_symbol_is_no_collapsed_one():
    x = (data()[..., :1] > 1.3).double()
    problem, climb = most_likely(sh.SwitchingSSM(sh.Copy(2), sh.Bernoulli()), x, dt=GAPS)
    there = climb.at(climb.tables | {"probs": torch.tensor([[[1e-12], [0.6]]], dtype=torch.float64)})
    assert_close(there.height(), problem.objective(there.tables), rtol=1e-10, atol=1e-10)
    assert there.collapsed.tolist() == [[False, False]]


def test_a_climb_begins_where_inputs_make_a_symbol_certain():
    x = (INPUTS > 0).double()
    problem, climb = most_likely(sh.SwitchingSSM(sh.Markov(2), sh.Bernoulli(1, inputs=1)), x, inputs=INPUTS)
    there = climb.at(climb.tables | {"coefficients": torch.full((1, 2, 1, 1), 400.0, dtype=torch.float64)})
    assert_close(there.height(), problem.objective(there.tables), rtol=1e-10, atol=1e-10)


def test_a_climb_begins_at_a_state_on_a_point():
    problem, climb = most_likely(sh.SwitchingSSM(sh.Markov(2), sh.StudentT(2)), data())
    narrow = torch.stack([climb.tables["precision"][:, 0], 1 / variance_floor(problem.series).expand(1, 2)], 1)
    there = AscentInParts(problem, climb._whole, climb.tables | {"precision": narrow})
    first = there.height()
    assert_close(first, problem.objective(there.tables), rtol=1e-10, atol=1e-10)
    assert there.collapsed.tolist() == [[False, True]]
    assert bool((there.run(3).elbo[-1] > first).all())
    assert there.at(there.tables | {"precision": 2 * narrow}).height().tolist() == [-torch.inf]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heavy tails", "inputs", "known in part"])
def test_their_climb_ends_where_em_in_memory_rests(monkeypatch, kind):
    problem, climb = climb_of(monkeypatch, kind, 1)
    end = climb.run(140).elbo[-1]
    assert_close(EM(problem, climb.tables).run(2).elbo[-1], end, rtol=0, atol=1e-6)
    for name, table in problem.fixed.items():
        assert bool(((climb.tables[name] == table) | table.isnan()).all())


FITS: dict[str, tuple[sh.SwitchingSSM, Tensor, dict[str, Any]]] = {
    "gamma": (sh.SwitchingSSM(sh.Markov(2), sh.Gamma(2)), data(), {}),
    "heavy tails": (sh.SwitchingSSM(sh.Copy(2), sh.StudentT(2)), data(), {"max_steps": 20}),
}


@pytest.mark.parametrize("kind", list(FITS))
@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_process_fits_emissions_without_a_conjugate_prior_from_a_file(monkeypatch, kind):
    model, x, options = FITS[kind]
    monkeypatch.setattr(whole, "SAMPLE", 30)
    options = {"restarts": 1, "tol": 1e-4, "progress": False} | options
    stored = in_file(model.read(x.float()))
    fit = model.fit(stored, **options)
    assert {table.dtype for table in fit.model.values.values()} == {torch.float32}
    assert fit.loglik == pytest.approx(fit.model.log_evidence(x.float()).sum().item(), rel=1e-5)
    assert fit.objective[-1] > fit.objective[0] - 1e-4
