"""Two runs: a quick one before every change, and a thorough one, `pytest -m "slow or not slow"`.

The thorough run has the tests marked `slow` and more examples of each property. In each test that is not slow it also
checks the jaxtyping annotations of some calls of every function, see `typechecker`. Of a test marked `few(n)` the
quick run takes n cases, evenly spread.

`pytest --device cuda --dtype float32`: see `oracles.placement`. "fake" is a device that needs no hardware.
"""

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, nullcontext

import examples  # noqa: F401  registers the profiles of hypothesis
import pytest
import torch
import typechecker
from hypothesis import settings

sys.dont_write_bytecode = False  # the processes that tests start load bytecode; compiling torch's takes them seconds
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels for GPUs run in numpy

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the processors; threads that wait for each other would fight
    torch.set_num_threads(1)

WHERE = {"cpu": "on the CPU", "hardware": "on devices that are there"}

_places = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the tests' tensors lie: cpu, cuda, cuda:1, fake")
    parser.addoption("--dtype", default="float64", choices=("float64", "float32"), help="of tests that take either")


def pytest_configure(config: pytest.Config) -> None:
    thorough = config.getoption("-m") != "not slow"
    settings.load_profile("thorough" if thorough else "quick")
    if thorough:
        typechecker.install()
    if config.getoption("--device") != "cpu":
        from oracles.placement import placed

        _places.enter_context(placed(config.getoption("--device")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test of sampling that needs more than two chains says so; threads share small tables too; long tests leave out
    checks that others make."""
    from oracles.operators import unchecked
    from samplehold.inference.numerics import threads
    from samplehold.switching.fitting import sampling

    typechecker.begin(item.nodeid.split("[")[0])
    checked = unchecked() if item.get_closest_marker("slow") else nullcontext()
    with pytest.MonkeyPatch.context() as patch, checked:
        patch.setattr(sampling, "CHAINS", 2)
        patch.setattr(threads, "_LEAST_SHARE", 4e-5)
        return (yield)


def pytest_unconfigure() -> None:
    _places.close()


def _cases_of_few(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The cases of each test marked `few` that are not marked slow already, by the test's name."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases[item.nodeid.split("[")[0]].append(item)
    return cases


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for cases in _cases_of_few(items).values():
        n = cases[0].get_closest_marker("few").args[0]
        chosen = {round(i * (len(cases) - 1) / max(1, n - 1)) for i in range(n)}
        for i, item in enumerate(cases):
            if i not in chosen:
                item.add_marker(pytest.mark.slow)
    kept = {"cpu": (), "fake": ("cpu", "hardware")}.get(config.getoption("--device"), ("cpu",))
    for item in items:
        for name in kept:
            if mark := item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{WHERE[name]} alone: {mark.args[0]}"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests and all modules are there to the end: no search for garbage need look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """Where the tests' tensors lie."""
    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def dtype(pytestconfig: pytest.Config) -> torch.dtype:
    """That of the tests' tensors, where a test asks for it; see `oracles.placement.tolerances`."""
    return getattr(torch, pytestconfig.getoption("--dtype"))


@pytest.fixture
def as_users_call() -> Generator[None, None, None]:
    """Without the run-time checks of types, which would see first what is wrong, and take most of the time of many
    small calls."""
    from oracles.operators import unchecked

    with unchecked():
        yield


@pytest.fixture
def n_threads() -> Generator[Callable[[int], None], None, None]:
    """Sets the number of threads until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_thread() -> Generator[None, None, None]:
    """For many small operators: two threads would wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def keys() -> Generator[None, None, None]:
    """Ctrl-C as Python has it: a program that is started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
