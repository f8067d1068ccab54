"""Starts are made where the data lie: what comes from there to the host are a few numbers, however long the series."""

import pytest
import samplehold as sh
import torch
from oracles.fake_gpu import fake_gpu, taken, waits
from oracles.operators import unchecked
from samplehold.switching.fitting import EM, ChainGraph, End, Starts, engine_from, first_guesses, sample_of
from samplehold.switching.fitting.perturbation import perturbed
from samplehold.switching.fitting.starts import SAMPLE, first_labels
from samplehold.switching.problem import Problem
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("it sets up a device of its own")

MODELS = {
    "normal": (sh.Markov(3), sh.Normal(2)),
    "multivariate": (sh.Copy(3), sh.MultivariateNormal(2)),
    "gated": (sh.Copy(3), sh.Gated(sh.Normal(2), sh.Normal(2))),
    "counts": (sh.Markov(3), sh.Poisson(2)),
    "symbols": (sh.Markov(3), sh.Categorical(3)),
}
FEW = 9  # numbers that may come at once


def levels(*shape: int, missing: bool = False) -> Tensor:
    """Sequences `[*b, T, 2]` of three levels, which are also counts."""
    generator = torch.Generator().manual_seed(0)
    state = (torch.rand(shape, generator=generator) < 0.1).cumsum(-1) % 3
    x = 20.0 * state.unsqueeze(-1) + torch.poisson(torch.full((*shape, 2), 4.0), generator=generator)
    if missing:
        x[..., 3, 0] = x[..., 7, :] = torch.nan
    return x.double()


def problem_of(name: str, x: Tensor) -> Problem:
    dynamics, emission = MODELS[name]
    return sh.SwitchingSSM(dynamics, emission).problem(
        x[..., :1].div(20).floor().clamp(0, 2) if name == "symbols" else x
    )


def both(problem: Problem) -> tuple[Starts, Starts]:
    """Eight guesses of either kind."""
    state = torch.full((*problem.series.inside.shape, 3), 1 / 3, dtype=torch.float64, device=problem.series.last.device)
    starts = first_guesses(problem, 8, 0)
    ends = [End({name: value[r] for name, value in starts.values.items()}, state) for r in range(2)]
    return starts, perturbed(problem, ends, 8, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_starts_bring_few_numbers_to_the_host_and_wait_for_few_things_however_long_the_series(name):
    with fake_gpu() as device:
        counts = []
        for shape in ((60,), (600,), (40, 60)):
            problem = problem_of(name, levels(*shape, missing=True).to(device))
            with waits() as seen, taken() as numbers, unchecked():
                both(problem)
            counts.append(sum("_linalg" not in line for line in seen))
            assert max(numbers) <= FEW
        assert max(counts) < 16 * 10  # ten for each start, beside what torch looks at for itself


def test_a_long_series_is_cut_where_it_lies():
    with fake_gpu() as device:
        for shape in ((SAMPLE + 1,), (SAMPLE // 50, 60)):
            series = problem_of("normal", levels(*shape).to(device)).series
            with taken() as numbers:
                sample_of(series, 0)
            assert max(numbers, default=0) <= FEW


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_starts_on_a_device_lie_there_and_are_valid(name):
    with fake_gpu() as device:
        problem = problem_of(name, levels(3, 50, missing=True).to(device))
        for starts in both(problem):
            for key, parameter in problem.parameters.items():
                assert starts.values[key].device.type == device.type
                assert bool(parameter.support.check(starts.values[key]).all()), key
            assert bool(problem.objective(starts.values).isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_on_a_device_ends_where_one_on_the_host_does(name, method):
    x = levels(2, 120)
    model, x = sh.SwitchingSSM(*MODELS[name]), problem_of(name, x).series.observations
    here = model.fit(x, method, restarts=1, progress=False)
    with fake_gpu() as device:
        there = model.fit(x.to(device), method, restarts=1, progress=False)
        assert_close(float(there.objective[-1]), float(here.objective[-1]), rtol=0, atol=0.05)


def test_labels_for_models_of_several_chains_are_made_there_too():
    with fake_gpu() as device:
        problem = problem_of("normal", levels(4, 60).to(device))
        with taken() as numbers, unchecked():
            labels = first_labels(problem.emission, problem.series, 3, 4, 0)
        assert labels.device.type == device.type
        assert labels.shape == (4, 4, 60)
        assert max(numbers) <= FEW


@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "restarts"), [((300, 20), 2), ((20,), 64)], ids=["sequences", "restarts"])
def test_an_iteration_waits_once_however_many_sequences_and_restarts_there_are(shape, restarts):
    with fake_gpu() as device:
        problem = problem_of("normal", levels(*shape).to(device))
        values = first_guesses(problem, restarts, 0).values
        climb, engine = EM(problem, values), engine_from(ChainGraph.of(problem), values)
        for run in (lambda: climb.run(4), lambda: engine.run(4, 0.0)):
            run()
            with waits() as seen, unchecked():
                steps = run().steps
            assert 1 <= len(seen) <= steps + 1  # and for the bound from which it sets out
