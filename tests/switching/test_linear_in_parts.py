"""Fits of linear models to sequences in a file, of which memory holds a part at a time, against fits in memory."""

from dataclasses import replace
from functools import partial
from typing import Any

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.files import in_file
from samplehold.inference.families import tree_map
from samplehold.switching.fitting import AtPoints, ChunkedVMP, Passing, Whole, chunked, engine_of, whole
from samplehold.switching.fitting.graph import Etas, Graph
from samplehold.switching.linear.coordinates import LinearDensity
from samplehold.switching.linear.learning import LinearGraph, graph_of
from samplehold.switching.linear.problem import typical
from samplehold.switching.linear.rebasing import rebase
from samplehold.switching.linear.starts import first_paths
from torch import Tensor
from torch.testing import assert_close

LENGTHS = torch.tensor([3, 12, 7, 12, 5, 11])


def data(n_features: int) -> Tensor:
    """Six sequences."""
    noise = torch.randn(6, 12, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steps = torch.arange(12) + torch.arange(6).unsqueeze(-1)
    x = 0.3 * noise + torch.stack([2.0 * (steps % 7 < 3), 3.0 * (2 * steps % 11 < 4)], -1)
    x[1, 5] = x[3, 2, 0] = torch.nan
    return x[..., :n_features]


def file(model: sh.LinearSSM, x: Tensor) -> Any:
    return in_file(model.read(x, lengths=LENGTHS))


def graphs(monkeypatch: pytest.MonkeyPatch, method: str, flat: bool = False) -> tuple[Graph, Graph, Etas]:
    """The graph of all data in memory, that in parts of a file, and parameters of two restarts."""
    model = sh.LinearSSM(1, 2).scaled_to(data(2))
    problem = model.problem(data(2), lengths=LENGTHS)
    start, _ = first_paths(problem.series, 1, 2, 0)
    first, blank = (graph_of(problem, paths) for paths in (start, [tree_map(lambda p: p[0], some) for some in start]))
    parts = LinearGraph.of(problem, Whole.of(file(model, data(2))))
    both = [replace(blank, alike=True, follow=True), parts]
    both = [replace(graph, rebase=partial(rebase, paths=[block.name for block in graph.paths])) for graph in both]
    first, *both = [graph.at_points(flat) if method == "em" else graph for graph in (first, *both)]
    engine = first.engine(first.start(2))
    engine.run(3, 0.0)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 2 * 20 * parts.width)
    return both[0], both[1], {name: engine.blocks[name].eta for name in first.families}


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_each_step_of_message_passing_is_that_in_memory(monkeypatch, method):
    memory, parts, etas = graphs(monkeypatch, method)
    sizes = noted(monkeypatch)
    expected, found = (Passing(engine_of(graph, etas), graph, fresh=False) for graph in (memory, parts))
    assert isinstance(found.engine, ChunkedVMP)
    for _ in range(2):  # each run begins in another basis
        assert_close(found.run(3).elbo, expected.run(3).elbo, rtol=1e-10, atol=1e-10)
    assert max(sizes) <= 20 < 72
    assert len(sizes) > 12
    like = parts.data.double().like  # no copy of the data
    assert (like.dtype, like.numel()) == (torch.float64, 0)
    for name, table in expected.tables.items():
        assert_close(found.tables[name], table, rtol=1e-8, atol=1e-8)
    some = torch.tensor([1])
    assert_close(found.select(some).height(), expected.select(some).height(), rtol=1e-10, atol=1e-10)
    resumed = Passing(found.engine, parts).resumed(found.state())
    assert torch.equal(resumed.run(1).elbo, found.run(1).elbo)


@pytest.mark.parametrize("flat", [False, True])
def test_quasi_newton_steps_see_the_same_surface(monkeypatch, flat):
    memory, parts, etas = graphs(monkeypatch, "em", flat)
    expected, found = (AtPoints(graph, etas) for graph in (memory, parts))
    for surface in (expected, found):
        surface.climb(surface.start)  # paths are now those of these points
    for step in (0.0, 0.01):
        for there, here in zip(found.climb(found.start + step), expected.climb(found.start + step), strict=True):
            assert_close(there, here, rtol=1e-9, atol=1e-9)
    (tables, heights), (others, other_heights) = (surface.tables(found.start) for surface in (found, expected))
    assert_close(heights, other_heights, rtol=1e-9, atol=1e-9)
    for name, table in tables.items():
        assert_close(table, others[name], rtol=1e-7, atol=1e-7)


STRUCTURES: dict[str, sh.LinearSSM] = {
    "level": sh.LinearSSM(sh.LocalLevel()),
    "prior": sh.LinearSSM(sh.LocalLevel()).with_prior({"sigma2.level": dist.InverseGamma(3.0, 1.0)}),
    "tables": sh.LinearSSM(1, 2).with_prior({"emission_offset": dist.Normal(torch.zeros(2), 1.0).to_event(1)}),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", list(STRUCTURES))
def test_the_density_of_a_structure_is_that_in_memory(monkeypatch, kind):
    model = STRUCTURES[kind].scaled_to(data(STRUCTURES[kind].n_features))
    x = data(model.n_features)
    problem = model.problem(x, lengths=LENGTHS)
    problem = replace(problem, prior=None) if kind == "level" else problem
    units = problem.units
    inner, near = problem.in_units(units), units.values(typical(problem.dynamics, problem.emission))
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 20 * problem.n_states)
    sizes = noted(monkeypatch)
    expected = LinearDensity(inner, units, near, volume=False)
    found = LinearDensity(inner, units, near, volume=False, whole=Whole.of(file(model, x)))
    points = found.point + 0.1 * torch.arange(2.0, dtype=torch.float64)[:, None]
    assert_close(found.at(points), expected.at(points), rtol=1e-10, atol=1e-10)
    assert_close(found.gradient(points), expected.gradient(points), rtol=1e-9, atol=1e-9)
    for there, here in zip(found.climb(points), expected.climb(points), strict=True):
        assert_close(there, here, rtol=1e-9, atol=1e-9)
    values = found.values({"y": found.point})
    assert found.evidence(problem, values) == pytest.approx(expected.evidence(problem, values), rel=1e-10)
    assert max(sizes) <= 20 < 72


def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each part that is read from now on, with padding."""
    sizes, part = [], Whole.part

    def read(self: Whole, members: Tensor) -> Any:
        some = part(self, members)
        sizes.append(some.n_sequences * some.n_steps)
        return some

    monkeypatch.setattr(Whole, "part", read)
    return sizes


@pytest.mark.parametrize(("kind", "options"), [slow("level", {}), slow("tables", {}), ("passing", {"method": "vmp"})])
def test_a_fit_of_a_file_goes_on_from_a_sample_with_all_data(monkeypatch, kind, options):
    model = STRUCTURES.get(kind, sh.LinearSSM(1, 2))
    x = data(model.n_features).float()
    monkeypatch.setattr(whole, "SAMPLE", 20)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 24)
    sizes = noted(monkeypatch)
    options = {"restarts": 1, "max_steps": 4, "progress": False} | options
    fit = model.fit(file(model, x), **options)
    assert fit.series.on_disk
    assert sum(sizes) >= 50
    assert max(sizes) <= 24
    assert {table.dtype for table in fit.model.values.values()} == {torch.float32}
    assert bool((fit.objective.diff() >= -1e-6).all())
    assert fit.loglik == pytest.approx(float(fit.model.log_evidence(x, lengths=LENGTHS).sum()), rel=1e-4)


@pytest.mark.slow
def test_a_structure_in_a_file_ends_at_the_maximum_in_memory(monkeypatch):
    model, x = STRUCTURES["level"], data(1)
    monkeypatch.setattr(whole, "SAMPLE", 40)
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 40)
    expected, found = (model.fit(s, progress=False) for s in (model.read(x, lengths=LENGTHS), file(model, x)))
    assert float(found.objective[-1]) == pytest.approx(float(expected.objective[-1]), rel=1e-10)
