"""Fits of sequences that are in a file, of which memory holds a part at a time, against fits in memory."""

from pathlib import Path

import pytest
import samplehold as sh
import torch
from oracles.files import in_file
from oracles.models import KINDS, random_model
from oracles.processes import printed
from samplehold.switching.data.scratch import Scratch, blocks_of
from samplehold.switching.fitting import EM, EMInParts, Whole, chunked, first_guesses, whole
from torch.testing import assert_close

SUMS = [(dynamics, emission) for dynamics, emission in KINDS if dynamics in ("copy", "markov")]
LENGTHS = torch.tensor([13, 5, 1, 9, 10, 12])


def test_a_table_in_a_file_is_the_one_that_was_written():
    rows = torch.randn(50, 3)
    table = Scratch(torch.float32, (3,))
    for block in rows.split(7):
        table.append(block)
    assert len(table) == 50
    assert torch.equal(table.rows(), rows)
    table.release()
    assert torch.equal(table.rows()[20:33], rows[20:33])
    assert Scratch(torch.float64, (2,)).rows().shape == (0, 2)


def test_sequences_in_a_file_are_read_in_part(monkeypatch):
    monkeypatch.setattr("samplehold.switching.data.scratch.BLOCK", 4)
    series = random_model("copy", "normal").read(torch.randn(6, 13, 2), lengths=LENGTHS)
    stored = in_file(series)
    assert stored.on_disk
    assert not series.on_disk
    for members in (torch.tensor([1]), torch.tensor([0, 3, 4])):
        assert_close(stored.part(members).observations, series.part(members).observations, equal_nan=True)
    doubled = stored.double()
    assert doubled.on_disk
    assert doubled.like.dtype == torch.float64
    assert torch.equal(doubled.rows, series.rows.double())
    assert [len(block) for block in blocks_of(stored.rows)] == [4] * 12 + [2]


@pytest.mark.parametrize("kind", ["dense", "packed", "in a file"])
def test_some_sequences_are_a_series_of_their_own(kind):
    model, weights = random_model("copy", "normal"), torch.arange(1.0, 7.0)
    parts = [torch.randn(n, 2) for n in (13, 1, 1, 2, 1, 1)]
    if kind == "packed":
        series = model.read(parts, weights=weights)
    else:
        series = model.read(torch.randn(6, 13, 2), lengths=LENGTHS, weights=weights)
    assert series.packed is (kind == "packed")
    series = in_file(series) if kind == "in a file" else series
    some, none = series.subset(torch.tensor([1, 3])), series.subset(torch.tensor([], dtype=torch.long))
    assert (some.on_disk, none.on_disk) == (series.on_disk, series.on_disk)
    for i, member in enumerate((1, 3)):
        one, wanted = some.part(torch.tensor([i])), series.part(torch.tensor([member]))
        assert torch.equal(one.observations, wanted.observations)
        assert torch.equal(one.weights, wanted.weights)
    assert (some.n_sequences, none.n_sequences) == (2, 0)


def test_none_of_one_sequence_without_a_batch_axis_is_a_series():
    one = random_model("copy", "normal").read(torch.randn(5, 2), weights=2.0)
    none = one.subset(torch.tensor([], dtype=torch.long))
    assert (none.n_sequences, none.n_features, none.weights.shape) == (0, 2, (0,))


@pytest.mark.few(4)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("dynamics", "emission"), SUMS)
def test_each_step_of_em_is_that_in_memory(monkeypatch, dynamics, emission, flat):
    model = random_model(dynamics, emission, seed=2)
    x = model.simulate(13, (6,), seed=0).x.double()
    x[0, 2, 0] = x[1, 3] = torch.nan
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.5, 1.0]).double()
    problem = model.problem(x, lengths=LENGTHS, weights=weights).double()
    start = first_guesses(problem, 3, 0).values
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 3 * 2 * 20 * 2)
    one = type(problem)(problem.dynamics, problem.emission, problem.series, None if flat else problem.prior)
    expected, found = EM(one, start), EMInParts(one, Whole.of(in_file(one.series)), start)
    assert_close(found.run(3).elbo, expected.run(3).elbo, rtol=1e-10, atol=1e-10)
    for name, table in expected.tables.items():
        assert_close(found.tables[name], table, rtol=1e-8, atol=1e-8)
    assert_close(found.occupancy, expected.occupancy, rtol=1e-8, atol=1e-8)
    some = torch.tensor([2, 0])
    assert_close(found.select(some).height(), expected.select(some).height(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", [0, 2])
def test_a_long_sequence_is_taken_in_stretches(monkeypatch, order):
    emission = sh.AutoRegressive(order, 2) if order else sh.Normal(2)
    model = sh.SwitchingSSM(sh.Markov(2), emission)
    x = torch.randn(90, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(0)
    stored = in_file(model.scaled_to(x).read(x[None]))
    monkeypatch.setattr("samplehold.switching.data.lags.BLOCK", 11)
    stored = model.scaled_to(x).read(stored)
    problem = model.scaled_to(x).problem(x[None])
    assert order == 0 or torch.equal(stored.past.rows.nan_to_num(), problem.series.past[0].nan_to_num())
    start = first_guesses(problem, 2, 0).values
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 2 * 7)
    monkeypatch.setattr(chunked, "LONG", 8)
    found, expected = EMInParts(problem, Whole.of(stored), start).run(3), EM(problem, start).run(3)
    assert_close(found.elbo, expected.elbo, rtol=1e-10, atol=1e-10)


def data(n: int = 30, n_steps: int = 40) -> torch.Tensor:
    truth = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.9, 0.1], [0.2, 0.8]],
        loc=[[0.0, 1.0], [4.0, -2.0]],
        scale=[[1.0, 0.5], [0.7, 1.0]],
    )
    return 1e4 + 10 * truth.simulate(n_steps, (n,), seed=0).x.double()


GAPS = {"dt": 0.5 + torch.rand(30, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("dynamics", "options", "given", "close"),
    [
        (sh.Markov(2), {}, {}, 1e-8),
        (sh.Copy(2), {}, GAPS, 1e-8),
        (sh.Markov(2), {"prior": None}, {}, 1e-8),
        (sh.Markov(2), {"method": "vmp"}, {}, 1e-8),
        (sh.Markov(2), {"method": "vmp", "batch_size": 10, "max_steps": 40}, {}, 1e-4),
    ],
)
def test_a_fit_from_a_sample_ends_where_the_fit_in_memory_does(monkeypatch, dynamics, options, given, close):
    monkeypatch.setattr(whole, "SAMPLE", 200)
    monkeypatch.setattr("samplehold.switching.data.series.TURN", 100)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2**9)
    model, x = sh.SwitchingSSM(dynamics, sh.Normal(2)), data()
    model = model if "prior" in options else model.with_prior(dict(model.scaled_to(x).prior))
    options = {"restarts": 2, "tol": 1e-10, "progress": False} | options
    expected, found = model.fit(x, **options, **given), model.fit(in_file(model.read(x, **given)), **options)
    assert found.converged or "batch_size" in options
    assert found.objective[-1] == pytest.approx(float(expected.objective[-1]), rel=close)
    assert_close(found.model.loc, expected.model.loc, rtol=1e-5, atol=0)
    assert found.loglik == pytest.approx(expected.loglik, rel=close)
    assert found.empty_states.tolist() == [False, False]
    assert found.agreeing >= 1
    assert found.objective[-1] < found.restarts.objective.max() < 0  # the restarts are those of a sample


def test_an_error_names_the_place_among_all(monkeypatch):
    monkeypatch.setattr("samplehold.switching.data.series.TURN", 100)
    x = data(6).abs().round()
    x[5, 7, 1] = -3.0
    stored = in_file(sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).read(x))
    with pytest.raises(ValueError, match=r"x: got -3 at sequence 5, step 7, feature 1;"):
        sh.SwitchingSSM(sh.Markov(2), sh.Poisson(2)).fit(stored, progress=False)


def test_the_sample_is_a_part_of_the_data_and_depends_on_the_seed(monkeypatch):
    monkeypatch.setattr(whole, "SAMPLE", 200)
    series = in_file(sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).read(data()))
    here = Whole.of(series)
    one, same, other = here.sample(0), here.sample(0), here.sample(1)
    assert one.n_sequences == 5
    assert torch.equal(one.observations, same.observations)
    assert not torch.equal(one.observations, other.observations)
    assert all(bool((series.rows == row).all(-1).any()) for row in one.rows[:10])
    assert here.n_observed == 1200


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"method": "nuts"}, "method: got 'nuts', but x is in a file"),
        (sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)), {"pooled": "none"}, "pooled: got 'none', but x is in a file"),
    ],
)
def test_a_fit_that_needs_all_data_at_once_says_so(model, options, said):
    x = in_file(model.read(data(4).abs()))
    with pytest.raises((TypeError, ValueError), match=said):
        model.fit(x, progress=False, **options)


MEMORY = """
import sys, torch
import samplehold as sh
from dataclasses import replace
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
    sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).fit(x, restarts=1, max_steps=2, progress=False)
fit(5)
before = status("VmHWM")
fit(int(sys.argv[1]))
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_memory_is_that_of_a_part():
    assert float(printed(MEMORY, "160")) < 60  # MB; the observations of the second fit are 118 MB more
