"""SVI over data in files, of which memory holds a part at a time, against SVI in memory and enumeration."""

from pathlib import Path
from typing import Any

import pytest
import samplehold as sh
import torch
from oracles.files import in_file
from oracles.models import CONJUGATE, drive, enumerate_evidence, random_model
from oracles.processes import printed
from samplehold.switching.fitting import Options, Whole, chunked, first_guesses, fit, whole
from samplehold.switching.fitting.chains_in_parts import log_evidence, occupancy
from samplehold.switching.fitting.sampling import fit_svi
from samplehold.switching.problem import Problem
from torch import Tensor
from torch.testing import assert_close

LENGTHS = torch.tensor([13, 5, 1, 9, 10, 12])
QUICK: dict[str, Any] = {"restarts": 1, "progress": False}


def small_parts(monkeypatch: pytest.MonkeyPatch, numbers: int, longest: int = chunked.LONG) -> None:
    """Tables of so many numbers in a part, and sequences with more than `longest` numbers in stretches."""
    monkeypatch.setattr(chunked, "MAX_NUMBERS", numbers)
    monkeypatch.setattr(chunked, "LONG", longest)


def whole_of(problem: Problem, model: sh.SwitchingSSM) -> Whole:
    return Whole.of(model.read(in_file(problem.series)))


def leaves(model: sh.SwitchingSSM) -> dict[str, Tensor]:
    return {name: value.clone().requires_grad_() for name, value in model.values.items()}


def gradients(evidence: Tensor, values: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(evidence, list(values.values()), materialize_grads=True)


def check_evidence(problem: Problem, model: sh.SwitchingSSM) -> None:
    values = leaves(model)
    expected = problem.total(problem.evidence(values))
    found = log_evidence(problem, whole_of(problem, model), values)
    assert_close(found, expected, rtol=1e-12, atol=1e-10)
    for there, here in zip(gradients(found, values), gradients(expected, values), strict=True):
        assert_close(there, here, rtol=1e-10, atol=1e-10)
    counts = occupancy(problem, whole_of(problem, model), model.values)
    assert_close(counts, problem.padded().chain(model.values).smooth().state.sum((-3, -2)), rtol=1e-10, atol=1e-10)


@pytest.mark.few(6)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("dynamics", "emission"), CONJUGATE)
def test_the_evidence_of_parts_and_its_gradient_are_those_in_memory(monkeypatch, dynamics, emission, cut):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (6,), 13)
    x = model.simulate(13, (6,), seed=0, **keywords).x
    x[0, 2, 0] = x[1, 3] = torch.nan
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.5, 0.0]).double()
    problem = model.problem(x, lengths=LENGTHS, weights=weights, **keywords)
    numbers = problem.n_states * problem.series.n_features
    small_parts(monkeypatch, 4 * numbers if cut else 20 * numbers, 8 * numbers if cut else chunked.LONG)
    check_evidence(problem, model)


@pytest.mark.parametrize("cut", [False, True])
def test_knowledge_about_steps_and_lags_stay_in_their_places(monkeypatch, cut):
    generator = torch.Generator().manual_seed(0)
    x, steps = (torch.randn(6, 13, *axes, generator=generator, dtype=torch.float64) for axes in ((2,), ()))
    states = torch.full((6, 13), -1).index_put((torch.tensor([0, 0, 3]), torch.tensor([0, 6, 5])), torch.tensor(1))
    small_parts(monkeypatch, 16 if cut else 80, 32 if cut else chunked.LONG)
    lagged = sh.SwitchingSSM(sh.Markov(2), sh.AutoRegressive(2, 2))
    known = {"states": states, "weights": steps.abs(), "lengths": LENGTHS.clamp_min(3)}
    for model, given in [(random_model("copy", "normal"), {"noise": x.square()}), (lagged, {})]:
        problem = model.problem(x, **known, **given)
        start = {name: table[0] for name, table in first_guesses(problem, 1, 0).values.items()}
        check_evidence(problem, model.with_values(problem.admitted(start)))


@pytest.mark.parametrize(("dynamics", "emission"), [("markov", "normal"), ("copy", "gated"), ("inputs", "categorical")])
def test_the_evidence_of_stretches_is_the_sum_over_all_paths(monkeypatch, dynamics, emission):
    model, keywords = random_model(dynamics, emission, seed=1), drive(dynamics, (), 5)
    x = model.simulate(5, seed=0, **keywords).x
    problem = model.problem(x[None], **{name: table[None] for name, table in keywords.items()})
    small_parts(monkeypatch, 2 * problem.n_states * problem.series.n_features, 1)
    found = log_evidence(problem, whole_of(problem, model), model.values)
    assert_close(found, enumerate_evidence(model, x, **keywords), rtol=1e-10, atol=1e-10)


def test_no_sequence_has_no_evidence():
    model = random_model("markov", "normal")
    problem, none = model.problem(torch.zeros(1, 3, 2)), model.read(torch.zeros(0, 3, 2))
    values = leaves(model)
    found = log_evidence(problem, Whole.of(none), values)
    assert float(found.detach()) == 0
    assert all(not bool(table.any()) for table in gradients(found, values))
    assert occupancy(problem, Whole.of(none), model.values).tolist() == [0, 0]


@pytest.mark.parametrize("cut", [False, True])
def test_an_impossible_step_is_named_by_its_place_among_all(monkeypatch, cut):
    model = random_model("markov", "normal").with_values(
        {"transition_probs": [[1.0, 0.0], [0.5, 0.5]], "initial_probs": [0.5, 0.5]} | emission_values()
    )
    states = torch.full((6, 13), -1)
    states[4, 7], states[4, 11] = 0, 1
    problem = model.problem(torch.zeros(6, 13, 2), states=states)
    small_parts(monkeypatch, 16 if cut else 120, 1 if cut else chunked.LONG)
    with pytest.raises(ValueError, match=r"^x: the observation at step 11 of sequence 4 is impossible"):
        log_evidence(problem, whole_of(problem, model), model.values)


def emission_values() -> dict[str, Any]:
    return {"loc": [[0.0, 0.0], [1.0, 1.0]], "scale": [[1.0, 1.0], [1.0, 1.0]]}


# ---- fits ------------------------------------------------------------------------------------------------------------


def data(n: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    states = (torch.arange(13) // 4 % 2).double()[:, None]
    x = 10 + 3 * (4 * states + torch.randn(n, 13, 2, generator=generator, dtype=torch.float64))
    x[0, 2, 0] = x[1, 3] = torch.nan
    return x


MODELS: dict[str, tuple[sh.SwitchingSSM, dict[str, Any]]] = {
    "normal": (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {}),
    "noise": (sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)), {"noise": data()[:2].nan_to_num(9.0).repeat(4, 1, 1).abs()}),
    "gamma": (sh.SwitchingSSM(sh.Markov(2), sh.Gamma(2)), {"weights": torch.arange(1.0, 9.0)}),
    "student": (sh.SwitchingSSM(sh.Copy(2), sh.StudentT(2)), {"lengths": torch.arange(6, 14)}),
    "inputs": (sh.SwitchingSSM(sh.Markov(2, inputs=1), sh.Normal(2)), {"inputs": data()[..., :1].nan_to_num(9.0)}),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float64) for name in MODELS), ("normal", torch.float32)])
def test_the_steps_are_those_in_memory(monkeypatch, name, dtype, cut):
    model, given = MODELS[name]
    x = data().to(dtype)
    problem = model.scaled_to(x).problem(x, **given)
    start = {name: table[0] for name, table in first_guesses(problem, 1, 0).values.items()}
    options, close = Options("svi", max_steps=3, progress=False), 1e-10 if dtype == torch.float64 else 1e-4
    expected = fit_svi(problem, options, start)
    small_parts(monkeypatch, *((24, 1) if cut else (60,)))
    found = fit_svi(problem, options, start, whole_of(problem, model))
    assert expected is not None
    assert found is not None
    assert_close(found.objective, expected.objective, rtol=close, atol=close)
    for part, table in expected.values.items():
        assert found.values[part].dtype == dtype
        assert_close(found.values[part], table, rtol=close, atol=close)
    assert found.empty_states.tolist() == expected.empty_states.tolist()


@pytest.mark.parametrize("name", ["normal", "gamma"])
def test_a_fit_of_few_data_is_that_in_memory(monkeypatch, name):
    model, given = MODELS[name]
    series = model.read(data(), **given)
    expected = model.fit(series, "svi", max_steps=3, **QUICK)
    small_parts(monkeypatch, 60)
    found = model.fit(in_file(series), "svi", max_steps=3, **QUICK)
    assert_close(found.objective, expected.objective, rtol=1e-10, atol=1e-10)
    assert_close(found.values, expected.values, rtol=1e-10, atol=1e-10)
    assert found.posterior.refined is found.posterior  # whose density would take all data
    assert found.report.rows == 4 * 8 * 13  # of three steps, and the states' numbers of steps
    assert_close(found.posterior.draws, expected.posterior.draws, rtol=1e-10, atol=1e-10)


def test_a_fit_of_many_data_starts_from_a_sample(monkeypatch):
    monkeypatch.setattr(whole, "SAMPLE", 40)
    model, begun = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), []
    original = fit.fit_svi

    def svi(problem: Problem, *arguments: Any) -> Any:
        begun.append(problem.series.n_sequences)
        return original(problem, *arguments)

    monkeypatch.setattr(fit, "fit_svi", svi)
    x = in_file(model.read(data(12)))
    found = model.fit(x, "svi", max_steps=60, fixed={"initial_probs": [0.5, 0.5]}, **QUICK)
    assert begun == [3]
    assert found.model.values["initial_probs"].tolist() == [0.5, 0.5]
    assert found.loglik > model.fit(x, "svi", max_steps=1, **QUICK).loglik
    truth = model.fit(data(12), "vmp", **QUICK)
    assert_close(found.model.loc.sort(0).values, truth.model.loc.sort(0).values, rtol=0.2, atol=0)


def test_an_interrupt_before_the_first_step_has_nothing_of_all_data(monkeypatch):
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2))
    series = in_file(model.read(data()))
    monkeypatch.setattr(fit, "fit_svi", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        model.fit(series, "svi", **QUICK)


MEMORY = """
import sys, torch
import samplehold as sh
from samplehold.switching.data.packed import Packed
from samplehold.switching.data.scratch import Scratch
from samplehold.switching.data import series
from samplehold.switching.data.series import Series
from samplehold.switching.fitting import chunked
chunked.MAX_NUMBERS, series.TURN = 2**17, 2**15
def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024
def fit(n):
    table, generator = Scratch(torch.float32, (2,)), torch.Generator().manual_seed(0)
    for _ in range(n):
        table.append(torch.randn(100_000, 2, generator=generator))
    x = Series(Packed.on_disk(table, torch.full((100 * n,), 1000), torch.nan), torch.full((100 * n,), 1000))
    sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).fit(x, "svi", restarts=1, max_steps=1, progress=False)
with sh.kernels("native"):
    fit(5)
    before = status("VmHWM")
    fit(int(sys.argv[1]))
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_memory_is_that_of_a_part():
    assert float(printed(MEMORY, "130")) < 60  # MB; the observations of the second fit are 96 MB more
