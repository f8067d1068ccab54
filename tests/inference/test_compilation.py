"""Kernels are kept on disk, and what is damaged there is found and made again."""

import importlib.util
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu("numba's kernels")

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
    (path,) = folder.glob(f"__pycache__/*.{ending}")
    return path


@pytest.fixture
def cached(tmp_path) -> Path:
    assert load(tmp_path)(1.5) == 3.0
    return tmp_path


def test_a_kernel_is_compiled_once(cached):
    again = load(cached)
    assert again(1.5) == 3.0
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "flipped"])
def test_a_damaged_file_is_named_and_made_again(cached, ending, damage):
    path = cache_of(cached, ending)
    data = path.read_bytes()
    middle = data[len(data) // 2]
    damaged = {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "garbage": b"\xff" * 50,
        "flipped": data[: len(data) // 2] + bytes([middle ^ 1]) + data[len(data) // 2 + 1 :],
    }
    path.write_bytes(damaged[damage])
    if ending == "nbi" and damage == "flipped":  # of a key that nobody asks for
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert load(cached)(1.5) == 3.0
    else:
        with pytest.warns(
            UserWarning, match=rf"kernel cache: .*{path.name}.* is damaged.*; the kernel is compiled anew"
        ):
            assert load(cached)(1.5) == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(cached)
        assert again(1.5) == 3.0
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_cache_that_cannot_be_written_is_named_and_left(tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    kernel = load(tmp_path)
    monkeypatch.setattr(kernel._cache._cache_file, "_save_data", full)
    monkeypatch.setattr(type(kernel._cache), "_said", False)
    with pytest.warns(UserWarning, match=r"kernel cache: .*No space left on device.*compiles its kernels again"):
        assert kernel(1.5) == 3.0


def test_without_a_folder_for_it_kernels_work(tmp_path, monkeypatch):
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert load(tmp_path)(1.5) == 3.0
    assert not (tmp_path / "__pycache__").exists() or not list(tmp_path.glob("__pycache__/*.nb?"))
