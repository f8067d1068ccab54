"""Linear, switching linear and coupled models whose data processes share, against one process with all data."""

import re
from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from oracles.effort import short_starts
from oracles.processes import in_processes
from samplehold.inference.families import Beta, GaussianPaths
from samplehold.inference.message_passing import VMP, Block, Factor
from samplehold.inference.numerics.ranks import Ranks
from samplehold.switching.fitting import Checkpoint, whole
from samplehold.switching.fitting.search import MultiStart
from torch import Tensor

NAN = float("nan")
MODELS = {
    "linear": sh.LinearSSM(1, 2),
    "switching": sh.SwitchingLinearSSM(2, 1, 2),
    "recurrent": sh.SwitchingLinearSSM(2, 1, 2, recurrent=True),
    "normal chains": sh.FactorialSSM([2, 2], sh.MultivariateNormal(2)),
    "counts": sh.FactorialSSM([2, 2], sh.Poisson(2)),
    "layers": sh.LayeredSSM([2, 2], sh.Normal(2)),
    "level": sh.LinearSSM(sh.LocalLevel()),
    "cycle": sh.LinearSSM(sh.LocalLevel() + sh.Cycle((3, 9), damped=True)),
    "user priors": sh.LinearSSM(1, 2).with_prior({"emission_offset": dist.Normal(torch.zeros(2), 1.0).to_event(1)}),
}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("linear", {"method": "vmp"}),
    ("linear", {"prior": None}),
    ("linear", {"fixed": {"emission": [[1.0], [NAN]]}}),
    ("switching", {}),
    ("switching", {"method": "vmp", "fixed": {"transition": [[[0.5]], [[NAN]]]}}),
    ("recurrent", {"prior": None}),
    ("normal chains", {}),
    ("counts", {"method": "vmp"}),
    ("layers", {}),
    ("level", {}),
    ("cycle", {"method": "em", "fixed": {"frequency.cycle": 0.9}}),
    ("user priors", {}),
]
OPTIONS = {"restarts": 2, "max_steps": 12, "tol": 0.0}
LENGTHS = torch.tensor([3, 12, 7, 12, 5, 11])


def data(name: str) -> Tensor:
    """Six sequences."""
    noise = torch.randn(6, 12, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steps = torch.arange(12) + torch.arange(6).unsqueeze(-1)
    x = 0.3 * noise + torch.stack([2.0 * (steps % 7 < 3), 3.0 * (2 * steps % 11 < 4)], -1)
    x = (2 * x.abs()).round() if name == "counts" else x
    x[1, 5] = torch.nan
    if name not in ("counts", "normal chains"):
        x[3, 2, 0] = torch.nan
    return x[..., : MODELS[name].n_features]


def fits(rank: int, cuts: list[int], sample: int, runs: list[Any], options: dict[str, Any]) -> list[Any]:
    """The traces and values of fits of the sequences from `cuts[rank]` up to `cuts[rank + 1]`, with brief starts."""
    results, some = [], slice(cuts[rank], cuts[rank + 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "SAMPLE", sample)
        short_starts(patch)
        for name, own in runs:
            fit = MODELS[name].fit(data(name)[some], lengths=LENGTHS[some], progress=False, **(options | own))
            values = {} if fit.interrupted else dict(fit.model.values)
            results.append((fit.objective, fit.steps, values, fit.empty_states))
    return results


@pytest.fixture(scope="module")
def by_one() -> list[Any]:
    """All fits of one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        return fits(0, [0, 6], 25, RUNS, OPTIONS)
    finally:
        torch.distributed.destroy_process_group()


def check_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one[1] == other[1]
        torch.testing.assert_close(one[0], other[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(one[2], other[2], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one[3], other[3])


START = {
    "switching": {
        "initial_probs": [0.5, 0.5],
        "transition_probs": [[0.8, 0.2], [0.2, 0.8]],
        "initial_mean": [0.0],
        "initial_covariance": [[1.0]],
        "transition": [[[0.5]], [[0.9]]],
        "transition_offset": [[0.0], [1.0]],
        "state_noise": [[[1.0]], [[0.5]]],
        "emission": [[[1.0], [0.5]], [[0.5], [1.0]]],
        "emission_offset": [[0.5, 1.0], [0.0, 2.0]],
        "observation_noise": [[0.5, 0.5], [0.5, 0.5]],
    }
}


@pytest.mark.parametrize("name", ["linear", "switching", "normal chains", "layers", "level", "user priors"])
@pytest.mark.usefixtures("group_of_one")
def test_a_group_goes_on_from_a_search_on_a_sample(name):
    options = {"restarts": 1, "max_steps": 3} | ({"start": START[name]} if name in START else {})
    (shared,) = fits(0, [0, 6], 20, [(name, {})], options)
    assert shared[1] == len(shared[0]) <= 3
    assert bool((shared[0].diff() > 0).all())
    assert set(shared[2]) == set(MODELS[name].known)


@pytest.mark.usefixtures("group_of_one")
def test_a_group_takes_single_precision(monkeypatch):
    monkeypatch.setattr(whole, "SAMPLE", 20)
    short_starts(monkeypatch)
    x, options = data("switching").float(), {"restarts": 1, "max_steps": 1, "start": START["switching"]}
    fit = MODELS["switching"].fit(x, lengths=LENGTHS, progress=False, **options)
    assert {value.dtype for value in fit.model.values.values()} == {torch.float32}
    assert fit.objective.isfinite().all()


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.usefixtures("group_of_one")
def test_an_engine_of_a_group_takes_the_steps_of_one_alone(curved):
    tosses = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)

    def likelihood(coin: Tensor, other: Tensor) -> Tensor:  # the counts of both stay above 0
        return tosses * coin[0] + (1 - tosses) * coin[1] + other[0] * coin[1] / 50

    prior = torch.ones(2, dtype=torch.float64)
    blocks = [Block("coin", Beta(), prior), Block("other", Beta(), prior)]
    factor = Factor(likelihood, ("coin", "other"), curved=("coin",) if curved else ())
    alone, shared = VMP(blocks, [factor]), VMP(blocks, [factor], check=False, ranks=Ranks.of(None))
    assert alone.run(3, 0.0).elbo.tolist() == pytest.approx(shared.run(3, 0.0).elbo.tolist(), rel=1e-14)


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (MODELS["linear"], {"method": "nuts"}, "method: got 'nuts', but x is .* use method=.em. or .vmp., or fit some"),
        (MODELS["linear"], {"method": "svi"}, "method: got 'svi', but x is in a file or shared by processes"),
        (MODELS["switching"], {"start": torch.zeros(6, 12)}, "start: got labels of steps, but processes share"),
        (
            MODELS["switching"],
            {"fixed": {"state_noise": [[0.0]]}},
            "fixed: got singular noises, with which one process",
        ),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_what_processes_do_not_share_is_refused_before_any_work(model, options, said):
    with pytest.raises(ValueError, match=said):
        model.fit(data("linear"), progress=False, **options)


class Stopped(Exception):
    """The process has died."""


def checkpointed(rank: int, cuts: list[int], path: str, writes: int) -> Any:
    """A fit that goes on from a checkpoint, and dies after so many writes of it."""
    true, count = Checkpoint.note, 0

    def note(self: Checkpoint, state: Any) -> None:
        nonlocal count
        true(self, state)
        count += 1
        if count == writes:
            raise Stopped

    Checkpoint.note = note  # type: ignore[method-assign]
    try:
        return fits(rank, cuts, 25, RUNS[1:2], OPTIONS | {"checkpoint": path, "every": 0})
    except Stopped:
        return count
    finally:
        Checkpoint.note = true  # type: ignore[method-assign]


def work(rank: int, cuts: list[int], path: str) -> tuple[list[Any], Any, str]:
    """All fits; one that dies; and the error of one whose paths fail in the second process."""
    results, count = fits(rank, cuts, 25, RUNS, OPTIONS), checkpointed(rank, cuts, path, 3)
    original = GaussianPaths.evaluate

    def broken(self: GaussianPaths, eta: Any, near: Any = None) -> Any:
        if rank == 1 and eta.linear.shape[1] == cuts[2] - cuts[1]:  # not the sample, which is the same everywhere
            raise OSError("the disk is gone")
        return original(self, eta, near)

    GaussianPaths.evaluate = broken  # type: ignore[method-assign]
    try:
        fits(rank, cuts, 25, RUNS[:1], OPTIONS)
    except Exception as error:
        return results, count, f"{type(error).__name__}: {error}"
    return results, count, ""


@pytest.mark.slow
def test_two_processes_fit_what_one_fits_and_fail_together(tmp_path, by_one, request):
    path, cuts = str(tmp_path / "fit"), [0, 2, 6]
    here, there = in_processes(2, work, cuts, path)
    check_same(here[0], by_one)
    check_same(there[0], here[0])
    assert re.search("RankError: x: process 1 of 2 has failed: OSError: the disk is gone .*test_shared_models", here[2])
    assert there[2] == "OSError: the disk is gone"
    assert here[1] == there[1] == 3
    request.getfixturevalue("group_of_one")
    check_same(checkpointed(0, [0, 6], path, 0), by_one[1:2])


@pytest.mark.slow
def test_a_process_without_sequences_helps(by_one):
    chosen = [i for i, run in enumerate(RUNS) if run[0] != "recurrent"][::3]
    for found in in_processes(3, fits, [0, 4, 4, 6], 25, [RUNS[i] for i in chosen], OPTIONS):
        check_same(found, [by_one[i] for i in chosen])


def test_a_profile_of_one_share_is_refused():
    fit = sh.LinearSSM(sh.LocalLevel()).fit([4.0, 5.5, 5.0, 7.1, 6.2, 8.0, 6.9], progress=False)
    with pytest.raises(ValueError, match="profile_interval: several processes shared the data"):
        replace(fit, shared=True).profile_interval()


@pytest.mark.usefixtures("group_of_one")
def test_an_interrupted_search_takes_one_step_with_all_data(monkeypatch):
    true = MultiStart.run

    def run(self: MultiStart, *arguments: Any, **keywords: Any) -> None:
        true(self, *arguments, **keywords)
        self.interrupted = True

    monkeypatch.setattr(MultiStart, "run", run)
    fit = MODELS["linear"].fit(data("linear"), progress=False, restarts=1, max_steps=40)
    assert fit.interrupted
    assert fit.steps == 1


@pytest.mark.parametrize("name", ["linear", "normal chains"])
@pytest.mark.usefixtures("group_of_one")
def test_a_step_is_one_sum_over_processes(monkeypatch, name):
    true, calls = Ranks.summed, []

    def summed(self: Ranks, *arguments: Any) -> Any:
        calls.append(1)
        return true(self, *arguments)

    monkeypatch.setattr(Ranks, "summed", summed)
    counts = []
    for steps in (2, 3):
        MODELS[name].fit(data(name), "vmp", progress=False, restarts=1, max_steps=steps)
        counts.append(len(calls))
        calls.clear()
    assert counts[1] == counts[0] + 1
