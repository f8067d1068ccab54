"""Kernels are kept on disk, and what is damaged there is made again."""

import importlib.util
import warnings
from pathlib import Path

import numba.core.config
import pytest
from numba.core.event import install_recorder
from samplehold.inference.numerics import compilation

pytestmark = pytest.mark.cpu("numba's kernels")


@pytest.fixture(autouse=True)
def cache_in_the_folder(tmp_path, monkeypatch):
    """Whatever `NUMBA_CACHE_DIR` says outside."""
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path / "cache"))


SOURCE = """
from samplehold.inference.numerics.compilation import exact_kernel

@exact_kernel
def doubled(x):
    return 2 * x
"""


def load(folder: Path):
    """A module with a kernel, as a new process sees it."""
    if not (folder / "kernels.py").exists():
        (folder / "kernels.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("kernels", folder / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.doubled


def cache_of(folder: Path, ending: str) -> Path:
    (path,) = folder.glob(f"**/*.{ending}")
    return path


@pytest.fixture
def cached(tmp_path) -> Path:
    assert load(tmp_path)(1.5) == 3.0
    return tmp_path


def test_a_kernel_is_compiled_once(cached):
    again = load(cached)
    assert again(1.5) == 3.0
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_kernel_is_compiled_again_if_a_file_that_it_may_call_was_changed(cached, monkeypatch):
    monkeypatch.setattr(compilation, "_last_change", lambda: float("inf"))
    again = load(cached)
    assert again(1.5) == 3.0
    assert not sum(again.stats.cache_hits.values())


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "garbage"])
def test_a_damaged_file_is_made_again(cached, ending, damage):
    path = cache_of(cached, ending)
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "garbage": b"\xff" * 50}[damage])
    assert load(cached)(1.5) == 3.0
    again = load(cached)
    assert again(1.5) == 3.0
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_cache_that_cannot_be_written_is_named_once_and_left(tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    kernel = load(tmp_path)
    monkeypatch.setattr(kernel._cache._cache_file, "_save_data", full)
    monkeypatch.setattr(type(kernel._cache), "_said", set())
    with pytest.warns(UserWarning, match=r"kernel cache: .*No space left on device.*compiles its kernels again"):
        assert kernel(1.5) == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(2) == 4


def test_that_kernels_are_compiled_is_said_once(tmp_path, monkeypatch, caplog):
    kernel = load(tmp_path)
    monkeypatch.setattr(type(kernel._cache), "_said", set())
    with caplog.at_level("INFO", logger="samplehold"):
        for argument in (1.5, 2):
            kernel(argument)
        assert caplog.messages == ["compiling kernels, once on this machine"]
        monkeypatch.setattr(type(kernel._cache), "_said", set())
        load(tmp_path)(1.5)
    assert len(caplog.messages) == 1  # from disk


def test_constants_are_compiled_once_for_all(tmp_path):
    (tmp_path / "constants.py").write_text(
        SOURCE
        + """
@exact_kernel
def both(x):
    return doubled(1) + doubled(2) + doubled(x)
"""
    )
    spec = importlib.util.spec_from_file_location("constants", tmp_path / "constants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with install_recorder("numba:compile") as recorder:
        assert module.both(3) == 12
    compiled = [event.data["dispatcher"].py_func.__name__ for _, event in recorder.buffer if event.is_start]
    assert compiled == ["both", "doubled"]


def test_what_kernels_call_is_linked_into_them(tmp_path):
    """It has no file of its own, and its machine code is made only if Python calls it too."""
    (tmp_path / "calls.py").write_text(SOURCE + "\n@exact_kernel\ndef further(x):\n    return doubled(x) + 1\n")
    spec = importlib.util.spec_from_file_location("calls", tmp_path / "calls.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.further(2.5) == 6.0
    assert [path.name.split("-")[0] for path in tmp_path.glob("**/*.nbi")] == ["calls.further"]
    assert not module.doubled.signatures
    assert module.doubled(2.5) == 5.0
    assert len(module.doubled.signatures) == 1


def test_without_a_folder_for_it_kernels_work(tmp_path, monkeypatch):
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert load(tmp_path)(1.5) == 3.0
    assert not list(tmp_path.glob("**/*.nb?"))
