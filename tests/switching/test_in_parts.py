"""Data in parts: groups of sequences, stretches of a long one, and minibatches, against all of it at once."""

from pathlib import Path

import pytest
import samplehold as sh
import torch
from oracles.models import CONJUGATE, drive, random_model
from oracles.processes import printed
from samplehold.switching.dynamics.contract import PATHS
from samplehold.switching.fitting import (
    ChainGraph,
    ChunkedVMP,
    Options,
    chunked,
    engine_of,
    first_guesses,
    sample_of,
    starts,
)
from samplehold.switching.fitting.chunked import occupancy_of, parameters_of
from samplehold.switching.fitting.minibatches import run_batches
from torch import Tensor
from torch.testing import assert_close

Etas = dict[str, Tensor]


def graph_of(model: sh.SwitchingSSM, x: Tensor, factorization="structured", **keywords) -> ChainGraph:
    return ChainGraph.of(model.problem(x, **keywords), factorization == "mean_field")


def start_of(graph: ChainGraph, restarts: int = 2) -> Etas:
    return graph.point(first_guesses(graph.problem, restarts, 0).values)


def started(graph: ChainGraph, under: Etas):
    n = len(next(iter(under.values())))
    return engine_of(graph, {name: prior.expand(n, *prior.shape) for name, prior in graph.priors.items()}, under)


def stepped(graph: ChainGraph, under: Etas) -> tuple[Tensor, Etas, Tensor]:
    """The bound, the parameters and the steps in each state after two steps."""
    engine = started(graph, under)
    bound = engine.run(2, tol=0).elbo
    occupancy = engine.occupancy if isinstance(engine, ChunkedVMP) else occupancy_of(engine)
    return bound, parameters_of(engine), occupancy


def check_same(found, expected) -> None:
    assert_close(found[0], expected[0], rtol=1e-11, atol=1e-10)
    assert_close(found[2], expected[2], rtol=1e-9, atol=1e-10)
    for name, eta in found[1].items():
        assert_close(eta, expected[1][name], rtol=1e-9, atol=1e-9)


PARTS = [(*kind, False) for kind in CONJUGATE]
# a long sequence is cut by its chain, which is of another kind if redrawn and held steps have observations of their own
PARTS += [(*kind, True) for kind in CONJUGATE if kind[1] in ("normal", "gated", "gated_by_state")]


@pytest.mark.few(2)
@pytest.mark.parametrize(("dynamics", "emission", "long"), PARTS)
def test_sums_over_groups_of_sequences_and_over_stretches_equal_the_whole(monkeypatch, dynamics, emission, long):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (2, 3), 13)
    x = model.simulate(13, (2, 3), seed=0, **keywords).x
    x[0, 0, 2, 0] = x[1, 1, 3:5] = torch.nan
    graph = graph_of(model, x, lengths=torch.tensor([[13, 5, 1], [9, 10, 12]]), **keywords)
    start = start_of(graph)
    expected = stepped(graph, start)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 4 * 2 * (1 if long else 13))  # stretches of 4 steps, or 4 sequences
    monkeypatch.setattr(chunked, "LONG", 8 if long else 10**6)
    assert isinstance(started(graph, start), ChunkedVMP)
    check_same(stepped(graph, start), expected)


def test_stretches_of_a_path_that_some_states_cannot_take_equal_the_whole(monkeypatch):
    model = sh.SwitchingSSM(sh.Markov(3), sh.Categorical(3)).with_values(
        initial_probs=[1.0, 0.0, 0.0],
        transition_probs=[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]],
        probs=[[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.1, 0.0, 0.9]],
    )
    graph = graph_of(model, model.simulate(40, seed=1).x)
    values = {name: value.double() for name, value in model.values.items()}
    start = {name: statistics[None].clamp_min(-1e4) for name, statistics in graph.point(values).items()}
    expected = stepped(graph, start)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 9)
    monkeypatch.setattr(chunked, "LONG", 8)
    check_same(stepped(graph, start), expected)


def test_steps_on_their_own_in_groups_of_sequences_rise_to_the_same_bound(monkeypatch):
    model = random_model("copy", "normal", seed=2)
    graph = graph_of(model, model.simulate(10, (6,), seed=0).x, factorization="mean_field")
    start = start_of(graph)
    expected = started(graph, start).run(10, tol=0).elbo
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 10 * 2 * 2)
    engine = started(graph, start)
    assert isinstance(engine, ChunkedVMP)
    assert_close(engine.run(10, tol=0).elbo, expected, rtol=1e-10, atol=0)


def test_a_fit_in_turns_is_the_fit_at_once(monkeypatch):
    truth = random_model("markov", "full", seed=1)
    x = truth.simulate(60, (5,), seed=0).x
    model = sh.SwitchingSSM(sh.Markov(2), sh.MultivariateNormal(2))
    expected = model.fit(x, method="vmp", restarts=3, tol=1e-12, progress=False)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 3 * 60 * 2 * 2)
    found = model.fit(x, method="vmp", restarts=3, tol=1e-12, progress=False)
    assert_close(found.objective[-1], expected.objective[-1], rtol=1e-9, atol=0)
    loc, other = (fit.model.loc.sort(0).values for fit in (found, expected))  # the best of equals may be another
    assert_close(loc, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(300, 40), (2, 6000), (1, 12_000)])
def test_a_start_looks_at_a_sample_of_many_steps(monkeypatch, shape):
    truth = random_model("inputs", "normal", seed=1)
    keywords = drive("inputs", shape[:1], shape[1])
    x = truth.simulate(shape[1], shape[:1], seed=0, **keywords).x
    monkeypatch.setattr(starts, "SAMPLE", 2000)
    monkeypatch.setattr(starts, "STRETCH", 100)
    series = truth.read(x, **keywords)
    sample = sample_of(series, 0)
    values = sample.observations
    assert values.shape[:-1].numel() == 2000
    assert tuple(sample.drive.inputs.shape) == (*values.shape[:-1], 2)
    rows = (series.rows == values[1, 7]).all(-1)
    assert int(rows.sum()) == 1  # observations as they are
    assert_close(sample.drive.gaps[1, 7], keywords["dt"].reshape(-1)[rows.nonzero()[0, 0]])
    assert bool(sample_of(series, 0).observations.equal(values))


ONE_SIZE = """
import sys, torch
from samplehold import Markov, Normal, SwitchingSSM
from samplehold.switching.fitting import chunked, starts
def status(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024
def fit(n):
    x = torch.randn(n, 400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    model.fit(x, method="vmp", restarts=2, max_steps=2, progress=False)
    return status("VmHWM") - before
chunked.MAX_NUMBERS = starts.SAMPLE = 2**16
model = SwitchingSSM(Markov(4), Normal(1))
fit(250)
print(fit(500), fit(8000))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are read where Linux has them")
def test_memory_grows_with_the_input_alone():
    small, large = map(float, printed(ONE_SIZE).split())
    more = 7500 * 400 * 8 / 2**20  # MiB of input, and about as much as two fits of one size differ by
    assert large - small < 4 * more  # a few copies of it; a table of four states and two restarts is 8 times as much


# ---- minibatches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dynamics", "emission"),
    [("copy", "normal"), ("inputs", "full"), ("markov", "categorical"), ("copy", "gated_tied")],
)
def test_a_whole_step_on_half_of_data_that_repeats_is_the_step_on_all(dynamics, emission):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (3,), 9)
    x = model.simulate(9, (3,), seed=0, **keywords).x
    both = graph_of(model, torch.cat([x, x]), **{n: torch.cat([k, k]) for n, k in keywords.items()})
    whole = started(both, start_of(both))
    whole.step()
    etas = parameters_of(whole)

    def half_of(step: float):
        half = both.to(both.problem.series.part(torch.arange(3)), share=0.5).engine(etas, step=step)
        half.update(PATHS)
        return half

    half = half_of(1.0)
    assert_close(2 * half.elbo(), whole.elbo(), rtol=1e-10, atol=0)
    whole.step()
    for name in etas:
        half.update(name)
        assert_close(half.blocks[name].eta, whole.blocks[name].eta, rtol=1e-9, atol=1e-9)
    part = half_of(0.25)
    for name in etas:
        part.update(name)
        expected = etas[name] + 0.25 * (whole.blocks[name].eta - etas[name])
        assert_close(part.blocks[name].eta, expected, rtol=1e-9, atol=1e-9)


def data(n_sequences: int = 120) -> Tensor:
    truth = sh.SwitchingSSM(sh.Copy(3), sh.Normal(2)).with_values(
        redraw_prob=0.1, state_probs=[0.2, 0.3, 0.5], loc=[[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], scale=[[1.0, 1.0]] * 3
    )
    return truth.simulate(30, (n_sequences,), seed=0).x.double()


@pytest.mark.slow
def test_minibatches_end_near_the_posterior_of_all_data():
    model, x = sh.SwitchingSSM(sh.Copy(3), sh.Normal(2)), data()
    whole = model.fit(x, method="vmp", restarts=4, progress=False)
    found = model.fit(x, method="vmp", restarts=4, batch_size=20, progress=False)
    order, own = (f.model.loc.sum(-1).argsort() for f in (whole, found))
    assert found.converged
    spread = {name: u - whole.posterior.interval().lower[name] for name, u in whole.posterior.interval().upper.items()}
    assert_close(found.model.loc[own], whole.model.loc[order], rtol=0, atol=0.1 * float(spread["loc"].min()))
    gap = (found.model.redraw_prob - whole.model.redraw_prob).abs()
    assert float(gap) < 0.1 * float(spread["redraw_prob"])
    # the last entry is the bound itself, which no posterior raises above that of the fit to all data
    assert 0 <= float(whole.objective[-1] - found.objective[-1]) < 0.1
    units = found.posterior.units
    graph = ChainGraph.of(units.problem(model.scaled_to(x).problem(x)))
    again = engine_of(graph, {name: eta[None] for name, eta in found.posterior.blocks.items()})
    volume = units.log_volume(model.read(x)).sum()
    assert_close(again.elbo()[0] - volume, found.objective[-1], rtol=1e-10, atol=0)
    assert found.active_states.all()


def test_minibatches_are_repeatable_and_differ_by_seed():
    model, x = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), data(30)
    keywords = {"method": "vmp", "restarts": 2, "batch_size": 7, "max_steps": 4, "progress": False}
    before = torch.random.get_rng_state()
    first, second, other = (model.fit(x, seed=seed, **keywords) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.objective, second.objective)
    assert not torch.equal(first.objective, other.objective)
    assert first.steps == 5  # four passes, and the bound at the end
    assert not first.converged


def test_a_batch_of_all_sequences_is_the_ordinary_fit():
    model, x = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)), data(10)
    whole, batch = (model.fit(x, method="vmp", restarts=2, batch_size=size, progress=False) for size in (None, 10))
    assert torch.equal(whole.objective, batch.objective)


def test_passes_keep_the_better_restarts_and_an_interrupt_keeps_the_best_so_far():
    graph, kept = graph_of(sh.SwitchingSSM(sh.Copy(3), sh.Normal(2)), data(40)), []

    def report(step: int, best: float) -> None:
        kept.append(best)
        if step == 3:
            raise KeyboardInterrupt

    starts = first_guesses(graph.problem, 9, 0)
    ended = run_batches(graph, starts, Options("vmp", 9, 50, 0.0, batch_size=10), report)
    assert ended.interrupted
    assert_close(ended.objective, kept)
    assert len(ended.kept) == 1  # 9, 3, 1
    assert len(ended.etas["redraw"]) == 1
    assert ended.final.isfinite().all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 0}, "batch_size: got 0, expected an integer of at least 1"),
        ({"batch_size": -2}, "batch_size: got -2"),
        ({"batch_size": 2, "method": "em"}, 'batch_size: got 2, but method="em"'),
    ],
)
def test_bad_batch_sizes_are_named(change, said):
    with pytest.raises(ValueError, match=said):
        sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)).fit(data(4), **({"method": "vmp", "progress": False} | change))


def test_sequences_of_like_length_go_together():
    """Short ones beside a long one are not padded to its length, in the turns and in what a start looks at."""
    lengths = [10] * 300 + [5000] + [200] * 20
    series = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).read([torch.randn(n, 1) for n in lengths])
    groups = chunked.alike(series, 2**12)
    parts = [series.part(some) for some in groups]
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    assert all(part.n_sequences * part.n_steps <= 2**12 or part.n_sequences == 1 for part in parts)
    assert sum(part.n_sequences * part.n_steps for part in parts) < 1.3 * sum(lengths)
    assert all(bool(part.inside[:, -1].any()) for part in parts)
