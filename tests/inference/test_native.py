"""The library of CPU kernels: how it is built, found and refused."""

import shutil
import warnings

import pytest
import samplehold as sh
import torch
from samplehold.inference.native import compiling
from samplehold.inference.native import library as module


@pytest.fixture
def loading(monkeypatch, tmp_path):
    """A process that has not loaded a library yet, and whose libraries lie in a folder of its own."""
    named = compiling.library
    monkeypatch.setattr(compiling, "library", lambda level, folder=tmp_path: named(level, tmp_path))
    module.library.cache_clear()
    yield tmp_path
    module.library.cache_clear()


def test_the_library_is_made_from_the_sources_that_are_there():
    found = module.library()
    assert found is not None
    assert found.samplehold_digest().decode() == compiling.digest()


def test_a_digest_changes_with_a_source(monkeypatch, tmp_path):
    before = compiling.digest()
    for path in compiling.sources():
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(compiling, "HERE", tmp_path)
    assert compiling.digest() == before
    with (tmp_path / "vec.h").open("a") as header:
        header.write("// more\n")
    assert compiling.digest() != before


def test_without_a_compiler_operators_are_plain_and_a_warning_says_so_once(loading, monkeypatch):
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.warns(module.KernelWarning, match=r"works by slower forms: it cannot be built: no C\+\+ compiler"):
        assert module.library() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.library() is None


def test_a_damaged_library_of_an_installation_is_refused_with_its_path(loading, monkeypatch):
    monkeypatch.setattr(compiling, "sources", list)
    for level in compiling.LEVELS:
        compiling.library(level).write_bytes(b"\x7fELF nothing")
    with pytest.warns(module.KernelWarning, match=rf"{loading}/kernels-\S+ cannot be loaded"):
        assert module.library() is None


def test_an_installation_without_a_library_says_what_to_do(loading, monkeypatch):
    monkeypatch.setattr(compiling, "sources", list)
    with pytest.warns(module.KernelWarning, match="install the package again where there is a C\\+\\+ compiler"):
        assert module.library() is None


@pytest.mark.slow
def test_a_library_is_built_where_there_is_none_and_is_the_same(loading):
    assert module.library() is not None
    assert len(list(loading.iterdir())) == 1


@pytest.mark.parametrize(
    "model", [sh.LinearSSM(sh.LocalLevel()), sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))], ids=repr
)
def test_the_same_call_has_the_same_bits_whatever_came_before(model):
    x = torch.linspace(0, 6, 60, dtype=torch.float64).sin().unsqueeze(-1)
    options = {"restarts": 2, "max_steps": 20, "seed": 0, "progress": False}
    first = model.fit(x, **options)
    for _ in range(40):
        first.model.smooth(x)
        first.model.log_evidence(x)
    again = model.fit(x, **options)
    assert first.loglik == again.loglik
    for name, value in first.model.values.items():
        assert torch.equal(value, again.model.values[name])
