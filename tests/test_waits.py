"""On a GPU the host waits once an iteration: for the number that says whether to go on, and for all checks with it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from linecache import getline
from typing import Any

import pyro
import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of, layered_of
from oracles.effort import short_starts
from oracles.fake_gpu import a_gpu as gpu
from oracles.fake_gpu import waits
from oracles.operators import unchecked
from samplehold.face.chains import CopyChain, MarkovChain
from samplehold.inference.numerics.deferred import add_context, deferred, refuse_if
from samplehold.inference.numerics.remembered import remembered
from samplehold.switching.ascent import Ascent
from samplehold.switching.fitting import (
    EM,
    ChainGraph,
    ChunkedVMP,
    Options,
    Passing,
    Starts,
    chunked,
    engine_from,
    first_guesses,
)
from samplehold.switching.fitting.sampling import fit_svi
from samplehold.switching.problem import Problem
from samplehold.switching.slds import graph as slds_graph
from torch import Tensor

ON_CUDA = torch.cuda.is_available()


@contextmanager
def counted() -> Iterator[list[str]]:
    """What waits for the device: by torch's own debugging where there is one, else by the device that is not there."""
    if not ON_CUDA:
        with waits() as found:
            yield found
        return
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    told = "called a synchronizing CUDA operation"
    places = [(warning.filename, warning.lineno) for warning in caught if told in str(warning.message)]
    for (file, line), repeats in groupby(places):
        text = getline(file, line).strip()
        if "linalg" in text:  # it waits several times within itself
            found.append(f"_linalg at {file}:{line}: {text}")
        else:
            found += [f"{file}:{line}: {text}" for _ in repeats]


def looks(function: Callable[[], Any]) -> list[str]:
    """How often a call waits, without what it does but once."""
    function()
    with counted() as found, unchecked():
        function()
    return found


pytestmark = [*([] if ON_CUDA else [pytest.mark.cpu("it sets up a device of its own")])]

MODELS = {
    "copy": (sh.Copy(2), sh.Normal(2)),
    "markov": (sh.Markov(2), sh.MultivariateNormal(2)),
    "missing": (sh.Markov(2), sh.MultivariateNormal(2)),
    "gated": (sh.Copy(2), sh.Gated(sh.Normal(2), sh.Normal(2))),
    "counts": (sh.Markov(2), sh.Poisson(2)),
    "symbols": (sh.Copy(2), sh.Categorical(3)),
    "binary": (sh.Copy(2), sh.Bernoulli(2)),
}
each_model = pytest.mark.parametrize("name", MODELS)


def problem_of(name: str, device: torch.device) -> Problem:
    dynamics, emission = MODELS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 30, 2, generator=generator, dtype=torch.float64)
    x[:, 15:] += 4
    if name in ("counts", "symbols", "binary"):
        x = (x[..., : emission.n_features] > 0.5).double() * (1 if name == "binary" else 2)
    if name == "missing":
        x[0, 3, 0] = x[1, 7] = x[2, 9, 1] = torch.nan
    return sh.SwitchingSSM(dynamics, emission).problem(x.to(device))


def starts_of(problem: Problem) -> Starts:
    return first_guesses(problem, 2, 0)


@pytest.mark.few(3)
@each_model
def test_a_step_of_em_waits_once(name):
    with gpu() as device:
        problem = problem_of(name, device)
        climb = EM(problem, starts_of(problem).values)
        assert len(looks(lambda: climb.run(2))) == 2


@pytest.mark.few(3)
@each_model
def test_a_sweep_of_message_passing_waits_once(name):
    with gpu() as device:
        problem = problem_of(name, device)
        engine = engine_from(ChainGraph.of(problem), starts_of(problem).values)
        assert len(looks(lambda: engine.run(3, 0.0))) == 3


def test_a_sweep_in_parts_waits_once(monkeypatch):
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 20)
    with gpu() as device:
        problem = problem_of("copy", device)
        engine = engine_from(ChainGraph.of(problem), starts_of(problem).values)
        assert isinstance(engine, ChunkedVMP)
        assert len(looks(lambda: engine.run(3, 0.0))) == 3


@pytest.mark.slow
def test_a_step_of_svi_waits_once():
    with gpu() as device:
        problem = problem_of("copy", device)
        start = {name: value[0] for name, value in starts_of(problem).values.items()}

        def climb(steps: int) -> int:
            with counted() as found, unchecked():
                fit_svi(problem, Options("svi", 1, steps, 1e-6, 0, progress=False), start)
            return len(found)

        climb(2)
        assert climb(12) - climb(9) == 3


def sample_of(n_features: int, device: torch.device, whole: bool = False) -> Tensor:
    x = torch.randn(3, 20, n_features, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 10:] += 4
    return (x.abs().round() if whole else x).to(device)


def factorial(device: torch.device, counts: bool) -> Any:
    even, low = torch.tensor([0.5, 0.5], device=device).double(), torch.eye(2, device=device).double()
    return factorial_of(even / 5, [even, even], [low, 2 * low], None if counts else low)


def layered(device: torch.device) -> Any:
    even, table = torch.tensor([0.5, 0.5], device=device).double(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()
    values = {"loc": 4 * torch.eye(2, device=device).double(), "scale": torch.ones(2, 2, device=device).double()}
    return layered_of(sh.Normal(2), values, even / 5, [table.to(device)], even)


GRAPH_FITS = {
    "linear": lambda device: sh.LinearSSM(2, 2),
    "linear-diagonal": lambda device: sh.LinearSSM(2, 2, "diagonal"),
    "factorial": lambda device: factorial(device, counts=False),
    "factorial-counts": lambda device: factorial(device, counts=True),
    "layered": layered,
    "switching-linear": lambda device: sh.SwitchingLinearSSM(2, 2, 2),
    "switching-linear-recurrent": lambda device: sh.SwitchingLinearSSM(2, 2, 2, "one chain", recurrent=True),
}


STRIDE = 3  # sweeps from one search for a basis to the next; those of users are longer


def without_a_slow_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slds_graph, "COLD", 1.0)
    short_starts(patch)


class EnoughError(Exception):
    """What was to be seen has been seen."""


def strides_of(model: Any, x: Tensor, method: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, list[str]]]:
    """What a fit climbs with, and what it waits for in each stride of it."""
    found: list[tuple[Any, list[str]]] = []
    usual = Passing.run

    def run(self: Passing, max_steps: int) -> Any:
        with counted() as own:
            ran = usual(self, max_steps)
        found.append((self, own))
        if len(found) == 2:
            raise EnoughError
        return ran

    with monkeypatch.context() as patch, unchecked(), suppress(EnoughError):
        patch.setattr(Passing, "run", run)
        patch.setattr(Passing, "stride", STRIDE)
        without_a_slow_start(patch)
        model.fit(x, method, restarts=1, max_steps=2 * STRIDE, tol=1e-300, progress=False)
    return found


SLOW = {("switching-linear", "em"), ("switching-linear-recurrent", "vmp")}  # what the other two show
SWEEPS = [(name, method) for name in GRAPH_FITS for method in ("em", "vmp") if (name, method) not in SLOW]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), SWEEPS)
def test_a_sweep_of_several_blocks_of_paths_waits_once(name, method, monkeypatch):
    with gpu() as device:
        x = sample_of(2, device, whole=name == "factorial-counts")
        *_, (climber, found) = strides_of(GRAPH_FITS[name](device), x, method, monkeypatch)
        # where another basis is looked for, once a stride: for the way to the host and back, and what is there
        rebased = climber.graph.rebase is not None
        assert len(found) == STRIDE + 3 * rebased
        # a leap waits for by how much, and for whether all are densities there, however many restarts there are
        before, few = climber.tables, torch.full((1,), 1e-3, dtype=torch.float64)
        assert len(looks(lambda: climber.extrapolated(before, few))) == 2


@pytest.mark.slow
def test_a_try_of_a_structure_waits_for_whether_it_is_possible_there_and_who_has_risen(monkeypatch):
    with gpu() as device:
        found: list[int] = []
        usual = Ascent._step

        def step(self: Ascent) -> torch.Tensor:
            tries: list[int] = []
            climb = self.density.climb
            self.density.climb = lambda at: tries.append(1) or climb(at)  # pyright: ignore[reportAttributeAccessIssue]
            with counted() as own:
                heights = usual(self)
            self.density.climb = climb
            # and once for who rests
            assert len([one for one in own if "_linalg" not in one]) == 1 + 2 * len(tries), own
            # torch looks whether eigenvalues were found, of covariances and of what tells a diffuse start
            assert len(own) <= 1 + 5 * len(tries), own
            found.append(len(tries))
            return heights

        monkeypatch.setattr(Ascent, "_step", step)
        with unchecked():
            sh.LinearSSM(sh.LocalLevel()).fit(sample_of(1, device), restarts=1, max_steps=6, tol=1e-300, progress=False)
        assert len(found) > 3


@pytest.mark.parametrize("gate", ["posterior", "input", "given"])
def test_the_variational_filter_waits_once(gate):
    with gpu() as device:
        problem = problem_of("copy", device)
        values = {name: value[0] for name, value in starts_of(problem).values.items()}
        model = sh.SwitchingSSM(*MODELS["copy"]).with_values(values)
        given = torch.full(problem.series.observations.shape[:-1], 0.3, device=device).double()
        assert len(looks(lambda: sh.filter_vmp(model, problem.series, given if gate == "given" else gate))) == 1


@pytest.mark.parametrize(
    "method", ["filter", "smooth", "marginals", "viterbi", "entropy", "change_probability", "log_normalizer"]
)
@pytest.mark.parametrize("kind", ["copy", "markov"])
def test_a_chain_waits_once_for_whether_its_observations_are_possible(kind, method):
    with gpu() as device:
        zero = lambda *shape: torch.zeros(*shape, device=device)
        chain = (
            CopyChain(None, zero(5, 9, 3), zero(5, 9, 1))
            if kind == "copy"
            else MarkovChain(zero(3), zero(3, 3), zero(5, 9, 3))
        )
        assert len(looks(getattr(chain, method))) == 1


NETWORKS = {
    "MinGRU": sh.MinGRU,
    "MinLSTM": sh.MinLSTM,
    "QRNN": sh.QRNN,
    "superposition": partial(sh.stacks.SuperpositionStackRNN, controller=sh.MinGRU),
    "stratification": partial(sh.stacks.StratificationStackRNN, controller=sh.MinGRU),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_network_and_its_gradient_wait_for_nothing(network):
    with gpu() as device:
        layer, x = network(2, 4).to(device), torch.zeros(3, 9, 2, device=device)

        def forward_and_backward() -> None:
            out: Tensor = layer(x)[0]
            out.sum().backward()

        assert looks(forward_and_backward) == []


def test_what_a_check_refuses_later_it_refuses_in_the_same_words_and_order():
    yes, no, went_on = torch.tensor(True), torch.tensor(False), []

    def later(*words: str, told: type[Exception] | None = None, broken: bool = False) -> None:
        with deferred(), add_context(partial(complain, "more of it"), *[told] * (told is not None)):
            refuse_if(no, partial(complain, "never"))
            for word in words:
                refuse_if(yes, partial(complain, word))
            went_on.append(True)
            if broken:
                raise IndexError("a consequence")

    def complain(word: str) -> None:
        raise ValueError(word)

    with pytest.raises(ValueError, match="now"):
        refuse_if(yes, partial(complain, "now"))
    with pytest.raises(ValueError, match="first"):
        later("first", "second")
    with pytest.raises(ValueError, match="the cause"):
        later("the cause", broken=True)
    with pytest.raises(ValueError, match="more of it"):
        later("less of it", told=ValueError)
    with pytest.raises(ValueError, match="as it is"):
        later("as it is", told=RuntimeError)
    assert len(went_on) == 4
    with deferred() as checks:
        refuse_if(no, partial(complain, "never"))
        assert checks.settle(torch.tensor(2.5), yes) == [2.5, 1.0]


def test_an_impossible_sequence_of_a_ragged_fit_is_told_by_its_number_among_all():
    model = sh.SwitchingSSM(sh.Markov(1), sh.Bernoulli(1))
    x = [[1.0] * 60, [1.0, 1.0], [1.0] * 60, [1.0, 0.0, 1.0]]
    with pytest.raises(ValueError, match=r"^x: the observation at step 1 of sequence \(0, 3\) is impossible"):
        model.fit(x, progress=False, restarts=1, fixed={"probs": [[1.0]]})


def test_what_is_known_of_a_table_is_forgotten_with_its_values():
    with gpu() as device:
        seen = []
        total = remembered(lambda x: seen.append(1) or float(x.sum()))
        x = torch.ones(4, device=device)
        assert [total(x), total(x), total(x[:2]), total(x.view(2, 2))] == [4, 4, 2, 4]
        assert len(seen) == 3
        x[0] = 3.0
        assert total(x) == 6
    here = torch.ones(2)
    assert total(here) + total(here) == 4
    assert len(seen) == 6


FITS = {
    "level": lambda device: (sh.LinearSSM(sh.LocalLevel()), 1),
    "switching-linear-recurrent": lambda device: (sh.SwitchingLinearSSM(2, 1, 1, "one chain", recurrent=True), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_fit_ends_on_the_device_of_its_series(fit, monkeypatch):
    without_a_slow_start(monkeypatch)
    with gpu() as device, unchecked():
        model, n_features = fit(device)
        found = model.fit(sample_of(n_features, device), restarts=1, max_steps=2, progress=False)
        assert {value.device.type for value in found.model.values.values()} == {device.type}


@pytest.mark.slow
def test_what_a_fit_is_given_may_lie_elsewhere_than_its_series():
    with gpu() as device, unchecked():
        x, few = sample_of(2, device), {"restarts": 1, "max_steps": 2, "progress": False}
        start = sh.LinearSSM(2, 2).fit(x.cpu(), **few).model
        fixed = {name: start.values[name] for name in ("emission", "emission_offset", "observation_noise")}
        for given in ({"start": start}, {"prior": start.prior}, {"fixed": fixed}):
            found = start.fit(x, "vmp", **few, **given)
            drawn = found.posterior.sample(3, seed=0)
            assert {value.device.type for value in (*found.model.values.values(), *drawn.values())} == {device.type}


def test_what_starts_anywhere_is_drawn_where_its_series_lies():
    with gpu() as device:
        x = sample_of(1, device)
        model = sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 0.5, "sigma2.level": 0.3})
        chain, program = model.chain(x), pyro.poutine.trace(model).get_trace(x)
        found = [
            model.sample_posterior(x, 2, seed=0).latent,
            model.forecast(x, 3).variance,
            chain.filter().diffuse,
            chain.smooth().covariance,
            chain.entropy(),
            program.nodes["s_1"]["value"],
            program.log_prob_sum(),
        ]
        assert {table.device.type for table in found} == {device.type}
        state, output = model.update(model.start((3,)), x[:, 0])
        assert output.mean.device.type == state.log_evidence.device.type == device.type
