"""The bound of several blocks of paths at points of the parameters, which quasi-Newton steps increase."""

from functools import partial

import pytest
import samplehold as sh
import torch
from samplehold.inference.families import tree_map
from samplehold.switching.ascent import Ascent, Differentiable
from samplehold.switching.fitting import AtPoints
from samplehold.switching.fitting.climbs import Climb
from samplehold.switching.fitting.points import _apart, _noted
from samplehold.switching.slds.graph import LINEAR, blank_states, graph_of, priors_of

RESTARTS = 2


def surface_of(sweeps: int, **kind: object) -> AtPoints:
    """With two stretches, after some steps of EM."""
    generator = torch.Generator().manual_seed(0)
    model = sh.SwitchingLinearSSM(2, 1, 2, **kind)  # pyright: ignore[reportArgumentType]
    x = torch.randn(14, 2, generator=generator, dtype=torch.float64)
    x[7:] += torch.tensor([2.0, -1.0])
    layout, series = model.layout, model.read(x)
    weights = torch.randn(RESTARTS, 14, 2, generator=generator, dtype=torch.float64)
    weights[:, 7:, 1] += 3.0
    states = blank_states(layout, series, RESTARTS)
    graph = graph_of(layout, series, priors_of(layout, x.new_ones(1)), states, weights, layout.values).at_points(False)
    engine = graph.engine(graph.start(RESTARTS), check=False, linear=LINEAR)
    engine.run(sweeps, 0.0)
    return AtPoints(graph, {name: engine.blocks[name].eta for name in graph.kept})


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [{}, {"recurrent": True}, {"shared": "chain per regime"}])
def test_the_gradient_is_that_of_the_bound_at_the_best_paths(kind):
    surface = surface_of(3, **kind)
    at = surface.start
    heights = [surface.climb(at)[0] for _ in range(100)]
    assert bool((heights[-1] - heights[0] > 1e-6).all())  # other blocks were not at their best
    assert bool((heights[-1] - heights[-2] < 1e-9).all())  # and are now
    slope = surface.climb(at)[1]

    def best(flat: torch.Tensor) -> torch.Tensor:
        return AtPoints(surface.graph, surface.best).climb(flat)[0]

    for i in range(at.shape[-1]):
        step = torch.zeros_like(at)
        step[:, i] = 1e-5
        rise = (best(at + step) - best(at - step)) / 2e-5
        torch.testing.assert_close(rise, slope[:, i], rtol=1e-5, atol=1e-5)


def test_restarts_do_not_know_of_each_other():
    surface = surface_of(3)
    alone = [
        AtPoints(surface.graph, {name: tree_map(partial(_row, r), eta) for name, eta in surface.best.items()})
        for r in range(RESTARTS)
    ]
    heights, slopes = surface.climb(surface.start)
    for r, one in enumerate(alone):
        height, slope = one.climb(one.start)
        torch.testing.assert_close(height[0], heights[r], rtol=1e-12, atol=0)
        torch.testing.assert_close(slope[0], slopes[r], rtol=1e-9, atol=1e-9)


def test_a_restart_that_falls_keeps_its_other_blocks():
    surface = surface_of(3)
    surface.climb(surface.start)
    before = dict(surface.best)
    away = surface.start.clone()
    away[0] += 1.0
    heights, _ = surface.climb(away)
    assert float(heights[0]) < float(surface.highest[0])
    for name in surface.others:
        for old, new in zip(_parts(before[name]), _parts(surface.best[name]), strict=True):
            assert torch.equal(old[0], new[0])
    assert any(not torch.equal(_parts(before[n])[-1][1], _parts(surface.best[n])[-1][1]) for n in surface.others)


def test_quasi_newton_steps_never_lower_the_bound_and_pass_em():
    surface = surface_of(30)
    ascent = Ascent(surface, surface.start)
    run = ascent.run(20)
    assert bool((run.elbo.diff(dim=0) >= -1e-13).all())  # some roundings of a bound near -100
    assert bool((surface.tables(ascent.point)[1] >= run.elbo[-1] - 1e-9).all())
    em = surface_of(50)
    assert bool((run.elbo[-1] > em.climb(em.start)[0] - 1e-6).all())


def test_a_restart_at_a_kink_rests_and_the_others_go_on():
    evaluations = []

    def height(points: torch.Tensor) -> torch.Tensor:
        evaluations.append(points)
        return -3 * (points - 1).abs().sum(-1) - points.square().sum(-1)

    ascent = Ascent(Differentiable(height), torch.tensor([[1.0, 1.0], [3.0, -2.0]], dtype=torch.float64))
    heights = ascent.run(40).elbo
    assert torch.equal(ascent.point[0], torch.ones(2, dtype=torch.float64))
    assert float(heights[-1, 1]) > float(heights[0, 1])
    before = len(evaluations)
    assert torch.equal(ascent.run(10).elbo, heights[-1].expand(10, 2))
    assert len(evaluations) - before <= 10


def _row(r: int, table: torch.Tensor) -> torch.Tensor:
    return table[r : r + 1]


def _parts(eta: object) -> list[torch.Tensor]:
    return [eta] if isinstance(eta, torch.Tensor) else list(eta)  # pyright: ignore[reportArgumentType]


def test_a_restart_at_the_height_of_a_better_one_at_two_checks_merges_with_it():
    traces = [[0.0, 4.0, 5.0], [0.0, 3.995, 4.999], [0.0, 1.0, 4.999], [0.0, 3.99, 4.98]]
    climbs = [Climb("clusters", trace, ended="max_steps") for trace in traces]
    assert _apart(climbs, range(4), 1) == [0, 2, 3]  # the third only crosses it, and the fourth is elsewhere
    assert [climb.ended for climb in climbs] == ["max_steps", "merged", "max_steps", "max_steps"]
    assert climbs[1].leader is climbs[0]
    assert climbs[1].reached(5.0)


def test_each_restart_stops_when_it_gains_no_more():
    climbs = [Climb("clusters", [1.0], {"y": torch.zeros(1)}, ended="max_steps") for _ in range(3)]
    heights, ends, tables = [[1.5, 2.0], [1.0, 1.0], [3.0, 3.5]], [2.5, 1.0, 3.0], {"y": torch.ones(3, 1)}
    assert _noted(climbs, heights, ends, tables, 0.1) == [True, False, False]
    assert [climb.ended for climb in climbs] == ["max_steps", "converged", "max_steps"]
    assert [climb.trace for climb in climbs] == [[1.0, 1.5, 2.5], [1.0, 1.0, 1.0], [1.0]]
    assert [float(climb.tables["y"]) for climb in climbs] == [1.0, 1.0, 0.0]  # rounding counted more in the last one


def test_the_bound_of_some_restarts_is_theirs():
    surface = surface_of(1)
    some = surface.select(torch.tensor([1]))
    height, slope = some.climb(some.start)
    heights, slopes = surface.climb(surface.start)
    torch.testing.assert_close(height, heights[1:])
    torch.testing.assert_close(slope, slopes[1:])
