"""Several threads of a process: each gets what it would get alone, and Pyro is as it was before."""

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from pyro.poutine import runtime
from samplehold import kernels
from samplehold.inference.numerics.interrupts import check_interrupt, interruptible, may_interrupt
from samplehold.inference.numerics.randomness import GLOBAL
from samplehold.switching.seeding import seeded

pytestmark = [pytest.mark.filterwarnings("ignore:trying to observe"), pytest.mark.hardware("other threads have none")]

X = torch.tensor([1.1, 0.9, 1.0, 4.0, 4.2, 4.1, 1.2, 0.8], dtype=torch.float64)
SSM = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
KNOWN = SSM.with_values(redraw_prob=0.3, state_probs=[0.5, 0.5], loc=[[1.0], [4.0]], precision=[[4.0], [4.0]])
LEVEL = sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.level": 1.0, "sigma2.irregular": 1.0})
SEGMENTS = sh.Segments(sh.Normal(1)).fit(X, max_steps=1, progress=False).model
REGIMES = sh.SwitchingLinearSSM(2, 1).fit(X, restarts=1, max_steps=1, progress=False).model
QUICK: dict[str, Any] = {"restarts": 1, "max_steps": 4, "progress": False}
CHAINS: dict[str, Any] = {"restarts": 1, "num_samples": 2, "warmup_steps": 2, "progress": False}

JOBS: dict[str, Callable[[], Any]] = {
    "em": lambda: SSM.fit(X, "em", **QUICK).model.loc,
    "vmp": lambda: SSM.fit(X, "vmp", **QUICK).model.loc,
    "svi": lambda: SSM.fit(X, "svi", **QUICK).posterior.draws["loc"],
    "nuts": lambda: SSM.fit(X, "nuts", **CHAINS).posterior.draws["loc"],
    "gibbs": lambda: SSM.fit(X, "gibbs", **CHAINS).posterior.draws["loc"],
    "svi of a level": lambda: LEVEL.fit(X, "svi", **QUICK).posterior.draws["sigma2.level"],
    "simulate": lambda: KNOWN.simulate(9, seed=3).x,
    "simulate levels": lambda: LEVEL.simulate(9, seed=3).x,
    "simulate segments": lambda: SEGMENTS.simulate(9, seed=3).x,
    "forward": lambda: KNOWN.forward(X),
    "forward of regimes": lambda: REGIMES.forward(X.unsqueeze(-1)),
    "forward of a level": lambda: LEVEL.forward(X.unsqueeze(-1)),
    "forward of segments": lambda: SEGMENTS.forward(X),
    "a prior": lambda: SSM.with_prior({"loc": dist.Normal(900.0, 200.0)}).prior["redraw_concentration"],
    "draws without a seed": lambda: KNOWN.chain(X).sample(5).path.sort().values * 0,
    "forecast": lambda: KNOWN.forecast(X, 3).interval(0.9, seed=1).upper,
    "draws for ArviZ": lambda: torch.tensor(KNOWN.to_arviz(X, draws=4).posterior_predictive.x.to_numpy()),
}
SAMPLERS = "nuts", "gibbs", "svi", "svi of a level"


def at_once(names: list[str], rounds: int) -> list[str]:
    """The names of the jobs that give other numbers, or errors, in threads than they gave before."""
    with kernels("plain"):
        alone, wrong = {name: JOBS[name]() for name in set(names)}, []

        def work(name: str) -> None:
            try:
                for _ in range(1 if name in SAMPLERS else rounds):
                    if not torch.equal(JOBS[name](), alone[name]):
                        wrong.append(f"{name}: other numbers")
            except Exception as error:
                wrong.append(f"{name}: {error!r}")

        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return wrong


@pytest.fixture
def kept():
    """Pyro and torch's global generator are as they were before."""
    pyro.get_param_store().clear()
    torch.manual_seed(3)
    yield
    assert (runtime._PYRO_STACK, runtime._DIM_ALLOCATOR._stack, dict(pyro.get_param_store())) == ([], [], {})


@pytest.mark.usefixtures("kept")
def test_threads_get_what_they_would_get_alone():
    names = ["svi", "svi", "nuts", "simulate", "simulate segments", "forward", "forward of a level", "a prior"]
    assert at_once([*names, "draws without a seed"], 3) == []


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("seed", range(3))
def test_all_methods_in_threads_give_what_they_would_give_alone(seed):
    names = [*JOBS, *SAMPLERS]
    random.Random(seed).shuffle(names)
    assert at_once(names, 20) == []


@pytest.mark.usefixtures("kept")
def test_an_error_in_a_program_leaves_no_handler():
    """Not even while the error, whose frames hold the iterator of the program's steps, is known."""
    for model, x in ((KNOWN, X.log()), (REGIMES, X[:3, None]), (LEVEL, X[:, None])):
        with pytest.raises(ZeroDivisionError), pyro.poutine.trace(), Broken():
            model.forward(x)
        assert runtime._PYRO_STACK == []


class Broken(pyro.poutine.messenger.Messenger):
    """A handler that fails at the second step."""

    def _process_message(self, msg) -> None:
        if msg["name"] == "x_2":
            raise ZeroDivisionError


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("job", ["svi", "nuts", "simulate", "simulate segments", "simulate levels"])
def test_handlers_around_a_call_see_nothing_of_it(job):
    alone = JOBS[job]()
    with pyro.poutine.trace() as tracer, pyro.plate("mine", 3, dim=-1):
        assert torch.equal(JOBS[job](), alone)
    assert list(tracer.trace.nodes) == ["mine"]


@pytest.mark.usefixtures("kept")
def test_a_fit_keeps_the_parameters_of_the_user():
    pyro.param("mine", torch.tensor(3.0))
    JOBS["svi"]()
    assert {name: value.item() for name, value in pyro.get_param_store().items()} == {"mine": 3.0}
    pyro.get_param_store().clear()


def test_draws_without_a_seed_wait_for_those_with_one():
    """And do not move the generator in between."""
    drawn, begun = [], threading.Event()

    def draw() -> None:
        begun.set()
        drawn.append(KNOWN.chain(X).sample(3))

    thread = threading.Thread(target=draw)
    with seeded(5, X):
        thread.start()
        begun.wait()
        thread.join(0.05)
        assert not drawn
        here = torch.rand(4)
    thread.join()
    with seeded(5, X):
        assert torch.equal(torch.rand(4), here)
    assert drawn


def test_without_a_seed_draws_follow_from_torchs_global_generator():
    def draws() -> list[torch.Tensor]:
        return [KNOWN.chain(torch.full_like(X, 2.5)).sample(50).path for _ in range(2)]

    torch.manual_seed(1)
    one, two = draws()
    assert not torch.equal(one, two)
    torch.manual_seed(1)
    assert all(torch.equal(a, b) for a, b in zip((one, two), draws(), strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_although_a_thread_of_its_parent_was_drawing():
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with GLOBAL:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if GLOBAL.acquire(timeout=10) else 1)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("keys")
def test_a_press_for_the_main_threads_fit_ends_no_other_threads_fit():
    heard = []

    def other() -> None:
        try:
            with interruptible(), may_interrupt():
                check_interrupt()
            heard.append(False)
        except KeyboardInterrupt:
            heard.append(True)

    with interruptible():
        with may_interrupt():
            pass
        signal.raise_signal(signal.SIGINT)  # waits for the next block
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(KeyboardInterrupt), may_interrupt():
            pass
    assert heard == [False]
