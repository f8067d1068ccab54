"""Restarts of a search that several processes share, here threads in their place, against one process."""

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import samplehold as sh
import torch
from samplehold.inference.numerics.ranks import Ranks, RankValueError
from samplehold.switching.fitting import EM, ChainGraph, End, Options, Passing, engine_from, first_guesses
from samplehold.switching.fitting.search import resumed, search
from samplehold.switching.fitting.spread import Spread, shares, spread
from torch.testing import assert_close


class Threads(Ranks):
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, n: int, meeting: threading.Barrier, table: list[Any]) -> None:
        self.group, self.rank, self.n, self._known = "threads", rank, n, None
        self._meeting, self._there = meeting, table

    def _call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        assert operation is torch.distributed.all_gather_object
        there, mine = arguments
        self._there[self.rank] = mine
        self._meeting.wait(60)
        there[:] = self._there
        self._meeting.wait(60)


def in_threads(n: int, function: Callable[[Ranks], Any]) -> list[Any]:
    """What a function gives in each of n threads, or the error that it raises there."""
    meeting, table, results = threading.Barrier(n), [None] * n, [None] * n

    def run(rank: int) -> None:
        try:
            results[rank] = function(Threads(rank, n, meeting, table))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def problem():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 15, 1, generator=generator).double() + 3.0 * (torch.arange(15) % 6 > 2)[:, None]
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    return model.scaled_to(x).problem(x)


def search_of(options: Options, ranks: Ranks | None) -> Any:
    one, whole = problem(), None if ranks is None else SimpleNamespace(ranks=ranks)
    begin, end = partial(EM, one), lambda values: End(values, one.chain(values).smooth().state)
    if options.method == "vmp":
        graph = ChainGraph.of(one, options.factorization == "mean_field")

        def begin(values: Any) -> Any:
            return Passing(engine_from(graph, values), graph)

        def end(etas: Any) -> End:
            points = {name: graph.families[name].expected(eta) for name, eta in etas.items()}
            return End(graph.collect(points), graph.chain(etas).smooth().state)

    return search(one, spread(begin, cast(Any, whole)), end, options, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, Options("em", 2, max_steps=60)),
        (5, Options("em", 2, max_steps=60, prior=None)),
        (2, Options("vmp", 2, max_steps=60)),
        (3, Options("vmp", 2, max_steps=60, factorization="mean_field")),
    ],
)
def test_a_search_of_several_processes_is_that_of_one(monkeypatch, n, options):
    monkeypatch.setattr("samplehold.switching.fitting.search.MORE", (1, 1))
    expected = search_of(options, None)
    first, *others = in_threads(n, partial(search_of, options))
    for found in (first, *others):
        assert list(found.table.ended) == list(expected.table.ended)
        assert list(found.table.steps) == list(expected.table.steps)
        assert found.table.objective.tolist() == first.table.objective.tolist()
        assert found.table.objective.tolist() == pytest.approx(expected.table.objective.tolist(), rel=1e-10)
        for name, table in expected.best.tables.items():  # parameters, or natural ones
            assert_close(found.best.tables[name], table, rtol=1e-9, atol=1e-10)


def test_restarts_go_on_as_in_one_batch():
    one = problem()
    values = first_guesses(one, 5, 0).values
    some, by = torch.tensor([4, 0, 2]), torch.tensor([0.5, 0.0, 1.0])

    def steps(begin: Callable[[Any], Any]) -> list[Any]:
        batch = begin(values)
        said = [batch.run(2).elbo, batch.collapsed]
        batch = batch.select(some)
        before = batch.tables
        said += [batch.run(1).elbo, batch.tables, batch.height()]
        there = batch.at(batch.extrapolated(before, by))
        said += [there.height(), there.tables, there.run(1).elbo, there.height()]
        said += [there.select(torch.tensor([1])).run(2).elbo, there.stride]
        return said

    expected = steps(partial(EM, one))
    for found in in_threads(2, lambda ranks: steps(partial(Spread.of, ranks, partial(EM, one)))):
        assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_batch_goes_on_from_the_state_of_another_number_of_processes():
    one = problem()
    begin, values = partial(EM, one), first_guesses(one, 5, 0).values
    alone = EM(one, values)
    alone.run(2)
    state, expected = alone.select(torch.tensor([3, 1, 4])).state(), alone.select(torch.tensor([3, 1, 4])).run(2).elbo

    def go_on(ranks: Ranks) -> Any:
        batch: Any = resumed(Spread.of(ranks, begin, values), state)
        there = batch.state()
        return batch.run(2).elbo, resumed(Spread.of(ranks, begin, values), there).run(2).elbo, there

    for found, again, there in in_threads(2, go_on):
        assert_close([found, again], [expected, expected], rtol=1e-10, atol=1e-10)
        assert_close(resumed(EM(one, values), there).run(2).elbo, expected, rtol=1e-10, atol=1e-10)


def test_an_error_of_one_process_between_its_steps_ends_all():
    one = problem()
    values = first_guesses(one, 4, 0).values

    def fails(ranks: Ranks) -> None:
        def compute() -> None:
            batch = Spread.of(ranks, partial(EM, one), values)
            if ranks.rank == 1:
                raise ZeroDivisionError("no share")
            batch.run(1)

        ranks.jointly(compute)

    def impossible(ranks: Ranks) -> None:
        tables = {name: table * (torch.nan if ranks.rank == 1 else 1) for name, table in values.items()}
        ranks.jointly(lambda: Spread.of(ranks, partial(EM, one), values).at(tables))

    here, there = in_threads(2, fails)
    assert isinstance(there, ZeroDivisionError)
    assert "process 1 of 2 has failed: ZeroDivisionError: no share" in str(here)
    here, there = in_threads(2, impossible)
    assert isinstance(here, RankValueError)
    assert isinstance(there, ValueError)
    assert not isinstance(there, RankValueError)


def test_shares_are_equal_and_none_is_empty():
    assert shares(5, 2) == [[0, 2, 4], [1, 3]]
    assert shares(2, 3) == [[0], [1], [0]]
