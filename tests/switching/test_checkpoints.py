"""A fit with a checkpoint ends as if nothing had happened, however often it was stopped."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.coupled import factorial_of
from oracles.effort import short_starts
from oracles.files import in_file
from safetensors import safe_open
from safetensors.torch import save
from samplehold.inference.families import GaussianTables
from samplehold.switching import resuming
from samplehold.switching.data.sealed import sealed
from samplehold.switching.fitting import EM, Checkpoint, checkpoint, chunked, minibatches, points, search, trees
from samplehold.switching.fitting.checkpoint import Loop
from samplehold.switching.slds import fit as slds_fit
from samplehold.switching.slds import graph as slds_graph

Fitting = Callable[..., Any]


class Stopped(Exception):
    """The process has died."""


@contextmanager
def dying_after(writes: int) -> Iterator[None]:
    """The process dies after so many writes of its checkpoint."""
    true, count = Checkpoint.write, 0

    def write(self: Checkpoint, anew: bool = False) -> None:
        nonlocal count
        count += anew or not self._is_written
        true(self, anew)
        if count == writes:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "write", write)
        yield


def pieced(fit: Fitting, path: Path, writes: int, most: int = 10**9) -> tuple[Any, int]:
    """The fit of a process that dies after so many writes, again and again but not more than `most` times, and the
    number of its deaths."""
    for died in range(most):
        with dying_after(writes), contextlib.suppress(Stopped):
            return fit(progress=False, checkpoint=path, every=0), died
    return fit(progress=False, checkpoint=path, every=0), most


def assert_same(fit: Any, other: Any) -> None:
    assert torch.equal(fit.objective, other.objective)
    assert fit.restarts.equals(other.restarts)
    assert fit.reason == other.reason
    assert all(torch.equal(value, other.model.values[name]) for name, value in fit.model.values.items())
    if hasattr(fit.posterior, "draws"):
        assert all(torch.equal(table, other.posterior.draws[name]) for name, table in fit.posterior.draws.items())


def levels(*batch: int, steps: int = 24) -> torch.Tensor:
    truth = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[0.0], [2.0]], scale=[[1.0], [1.0]]
    )
    return truth.simulate(steps, batch, seed=0).x.double()


X, SEVERAL = levels(), levels(6, steps=8)
UNEVEN = [X[:, :], *[SEVERAL[i, :2] for i in range(5)]]
TWO, MOVING = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)), sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
NORMAL = dist.Normal(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
HALF = torch.full((2,), 0.5, dtype=torch.float64)
ZERO = torch.zeros(2, 1, dtype=torch.float64)
FACTORIAL = factorial_of(HALF, [HALF, HALF], [ZERO, ZERO], torch.eye(1, dtype=torch.float64))
SHORT = {"restarts": 1, "max_steps": 24, "tol": 0.0}


def fitting(model: Any, x: Any, method: str = "em", **options: Any) -> Fitting:
    return lambda **more: model.fit(x, method, **options, **more)


ONE = fitting(TWO, X, **SHORT)
FITS: dict[str, Fitting] = {
    "em": fitting(TWO, X, restarts=2, max_steps=12),
    "em of uneven sequences": fitting(TWO, UNEVEN, **SHORT),
    "em without a conjugate prior": fitting(sh.SwitchingSSM(sh.Copy(2), sh.StudentT(1)), X, **SHORT),
    "em by subject": fitting(TWO, SEVERAL, pooled="none", **SHORT),
    "vmp": fitting(MOVING, X, "vmp", restarts=2, tol=0.0, max_steps=16),
    "mean field": fitting(TWO, X, "vmp", factorization="mean_field", **SHORT),
    "passes": fitting(TWO, SEVERAL, "vmp", batch_size=3, restarts=3, max_steps=3, tol=0.0),
    "population": fitting(TWO, SEVERAL[:3], "vmp", pooled="partial", restarts=1, max_steps=9, tol=0.0),
    "svi": fitting(TWO, X, "svi", restarts=1, max_steps=4),
    "svi in a file": fitting(TWO, in_file(TWO.read(SEVERAL)), "svi", restarts=1, max_steps=4),
    "nuts": fitting(TWO, X[:8], "nuts", restarts=1, num_samples=2, warmup_steps=3),
    "factorial": fitting(FACTORIAL, X, restarts=2, max_steps=16, tol=0.0),
    "layers": fitting(sh.LayeredSSM([2, 2], sh.Normal(1)), X, "vmp", **SHORT),
    "linear": fitting(sh.LinearSSM(1, 1), X, **SHORT),
    "linear, vmp": fitting(sh.LinearSSM(1, 1), X, "vmp", **SHORT),
    "linear, svi": fitting(sh.LinearSSM(1, 1), X[:8], "svi", restarts=1, max_steps=2),
    "linear, nuts": fitting(sh.LinearSSM(1, 1), X[:8], "nuts", restarts=1, num_samples=1, warmup_steps=1),
    "structure": fitting(sh.LinearSSM(sh.LocalLinearTrend()), X, restarts=2),
    "mode of tables": fitting(sh.LinearSSM(1, 1), X, prior={"emission_offset": NORMAL}, **SHORT),
    "switching linear": fitting(sh.SwitchingLinearSSM(2, 1, 1), X, restarts=1, max_steps=16, tol=0.0),
    "switching linear, vmp": fitting(sh.SwitchingLinearSSM(2, 1, 1), X[:12], "vmp", restarts=1, max_steps=16),
    "switching linear, singular": fitting(
        sh.SwitchingLinearSSM(2, 1, 1), X[:8], fixed={"observation_noise": [[0.0]]}, restarts=1, max_steps=16
    ),
}


@pytest.fixture
def brief(monkeypatch) -> None:
    """Small numbers of steps between the parts of a fit."""
    monkeypatch.setattr(points, "BEFORE", 8)
    monkeypatch.setattr(slds_fit, "BEFORE", 8)
    short_starts(monkeypatch)


# ---- the end is the same --------------------------------------------------------------------------------------------


DEAR = {"em without a conjugate prior", "linear, vmp", "linear, svi", "linear, nuts", "structure", "mode of tables"}
DEAR |= {"switching linear", "switching linear, vmp", "switching linear, singular"}


@pytest.mark.few(5)
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", [name for name in FITS if name not in DEAR])
def test_a_fit_that_dies_is_continued_by_the_same_call_to_the_same_bits(tmp_path, name):
    whole = FITS[name](progress=False)
    again, died = pieced(FITS[name], tmp_path / "fit", 3, most=1)
    assert died
    assert_same(whole, again)


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", FITS)
def test_a_fit_may_die_after_every_write(tmp_path, name):
    whole = FITS[name](progress=False)
    again, died = pieced(FITS[name], tmp_path / "fit", 2)
    assert died
    assert_same(whole, again)


LARGER: dict[str, Fitting] = {
    "em": fitting(sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)), levels(steps=50), restarts=2),
    "vmp": fitting(sh.SwitchingSSM(sh.Markov(3), sh.Normal(1)), levels(3, steps=20), "vmp", restarts=2),
    "linear": fitting(sh.LinearSSM(2, 1), levels(steps=40), restarts=2),
    "switching linear": fitting(sh.SwitchingLinearSSM(2, 1, 1), levels(steps=40), restarts=2, max_steps=40),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_a_search_may_die_in_all_its_parts(tmp_path, name):
    whole = LARGER[name](progress=False)
    again, died = pieced(LARGER[name], tmp_path / "fit", 4)
    assert died > 3
    assert_same(whole, again)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["em", "vmp"])
def test_chunks_of_the_data_are_continued_too(tmp_path, monkeypatch, method):
    monkeypatch.setattr(chunked, "MAX_NUMBERS", 100)
    fit = fitting(TWO, SEVERAL, method, restarts=3, tol=0.0, max_steps=24)
    whole = fit(progress=False)
    again, died = pieced(fit, tmp_path / "fit", 2)
    assert died > 2
    assert_same(whole, again)


def test_a_fit_that_has_ended_is_returned_without_a_step(tmp_path, monkeypatch):
    fit = ONE(progress=False, checkpoint=tmp_path / "fit")
    monkeypatch.setattr(EM, "run", None)
    assert_same(fit, ONE(progress=False, checkpoint=tmp_path / "fit"))


def test_a_seed_of_none_is_that_of_the_file(tmp_path):
    fit = fitting(TWO, X, seed=None, **SHORT)(progress=False, checkpoint=tmp_path / "fit")
    again = fitting(TWO, X, seed=None, **SHORT)(progress=False, checkpoint=tmp_path / "fit")
    assert_same(fit, again)


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_the_file_is_json_and_tensors(tmp_path):
    ONE(progress=False, checkpoint=tmp_path / "fit")
    with safe_open(tmp_path / "fit", "pt") as file:
        structure = json.loads(file.metadata()["samplehold"])
        assert len(file.keys()) > 0
    assert {loop["name"] for loop in structure["loops"]} == {"batch"}
    assert all(loop["ended"] for loop in structure["loops"])
    assert structure["identity"]["seed"] == 0


def test_a_checkpoint_is_written_at_the_beginning_and_at_the_end_if_the_fit_is_short(tmp_path, monkeypatch):
    writes = []
    true = checkpoint.write_output
    monkeypatch.setattr(checkpoint, "write_output", lambda path, data: (writes.append(len(data)), true(path, data)))
    ONE(progress=False, checkpoint=tmp_path / "fit", every=1e9)
    assert len(writes) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["fit"]


def test_trees_come_back_with_their_layout():
    table = torch.arange(24.0).reshape(2, 3, 4)
    tree = {
        "expanded": torch.ones(3, 1).expand(5, 3, 4),
        "turned": table.transpose(0, 2),
        "gaps": table[..., ::2],
        "none": table[:0],
        "paths": GaussianTables(table, None, table.long()),
        ("a", "b"): [1, 2.5, float("inf"), -float("inf"), "text", None, True],
    }
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(trees.written(tree, tensors), allow_nan=False))
    back = trees.read(plain, {name: t.contiguous().clone() for name, t in tensors.items()}, table.device)
    assert list(back) == list(tree)
    assert back[("a", "b")] == tree[("a", "b")]
    pairs = [(back[name], tree[name]) for name in ("expanded", "turned", "gaps", "none")]
    pairs += [(back["paths"][i], tree["paths"][i]) for i in (0, 2)]
    assert back["paths"].square is None if hasattr(back["paths"], "square") else back["paths"][1] is None
    for a, b in pairs:
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
        assert a.stride() == b.stride()
    assert tensors["0"].numel() == 3  # what is expanded is kept once


def test_what_a_loop_does_to_its_state_does_not_change_the_file(tmp_path):
    state = {"list": [1.0], "table": torch.ones(2)}
    saving = Checkpoint(tmp_path / "fit", loops=[Loop("batch", {"list": [1.0]}, True), Loop("passes", state)])
    saving.finished("batch")["list"].append(2.0)
    known = saving.start_loop("passes")
    known["list"].append(2.0)
    known["table"] += 1
    assert [loop.tree["list"] for loop in saving.loops] == [[1.0], [1.0]]
    assert saving.loops[1].tree["table"].tolist() == [1.0, 1.0]
    made = [3.0]
    saving = Checkpoint(tmp_path / "fit")
    once = saving.once("evidence", lambda: made)
    once += [4.0]
    assert saving.loops[0].tree == [3.0]


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


def pressed_at(monkeypatch, owner: Any, name: str, call: int) -> list[str]:
    """Ctrl-C at a call of a function; returns a list that has an entry for each call."""
    true, calls = getattr(owner, name), []

    def function(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            raise KeyboardInterrupt
        return true(*arguments, **named)

    monkeypatch.setattr(owner, name, function)
    return calls


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("name", "owner", "function", "call"),
    [
        ("em", search.MultiStart, "_note", 3),
        ("em by subject", search.MultiStart, "_note", 2),
        slow("population", search.MultiStart, "_note", 3),
        ("nuts", checkpoint.Checkpoint, "note", 6),
        ("passes", minibatches.Passes, "learn", 5),
        slow("linear", points.AtPoints, "climb", 5),
        slow("switching linear", slds_graph, "_state", 2),
    ],
)
def test_after_ctrl_c_the_same_call_goes_on(tmp_path, name, owner, function, call):
    whole = FITS[name](progress=False)
    with pytest.MonkeyPatch.context() as patch:
        calls = pressed_at(patch, owner, function, call)
        FITS[name](progress=False, checkpoint=tmp_path / "fit", every=1e9)
    assert len(calls) >= call
    assert_same(whole, FITS[name](progress=False, checkpoint=tmp_path / "fit"))


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """The checkpoint of a fit that has ended."""
    path = tmp_path_factory.mktemp("kept") / "fit"
    TWO.fit(X, progress=False, checkpoint=path, **SHORT)
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": X + 1}, "differs in x"),
        ({"x": X[:20]}, "differs in x"),
        ({"x": X.float()}, "differs in x"),
        ({"weights": 2.0}, "differs in weights"),
        ({"model": MOVING}, "differs in model"),
        ({"model": sh.SwitchingSSM(sh.Copy(2), sh.StudentT(1))}, "differs in model"),
        ({"method": "vmp"}, "method='em', now 'vmp'"),
        ({"restarts": 2, "seed": 3}, "restarts=1, now 2; seed=0, now 3"),
        ({"max_steps": 25}, "max_steps=24, now 25"),
        ({"tol": 1e-3}, "tol=0.0, now 0.001"),
        ({"prior": None}, "prior"),
        ({"prior": {"redraw_concentration": [3.0, 1.0]}}, "prior"),
        ({"fixed": {"redraw_prob": 0.1}}, "fixed"),
        ({"start": torch.zeros(len(X))}, "start"),
        ({"kernels": "plain"}, "kernels='native', now 'plain'"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused_by_what_differs(kept, change, said):
    before = kept.read_bytes()
    options: dict[str, Any] = {"x": X, "method": "em", **SHORT} | change
    model, mode = options.pop("model", TWO), options.pop("kernels", "native")
    with sh.kernels(mode), pytest.raises(ValueError, match=re.escape(said)) as error:
        model.fit(progress=False, checkpoint=kept, **options)
    assert str(error.value).startswith(f"checkpoint: {kept} is of another fit")
    assert kept.read_bytes() == before


@pytest.mark.parametrize("same", [{"every": 5.0}, {"progress": True}, {"x": X.squeeze(-1)}, {"x": X.numpy()}])
def test_other_forms_of_the_same_call_are_the_same(kept, same):
    options = {"x": X, "progress": False, **SHORT} | same
    assert TWO.fit(checkpoint=kept, **options).steps == SHORT["max_steps"]


@pytest.mark.parametrize("harm", ["cut", "bit", "empty", "text", "model"])
def test_a_damaged_file_is_refused_with_the_cure(kept, tmp_path, harm):
    data, path = bytearray(kept.read_bytes()), tmp_path / "fit"
    data[len(data) // 2] ^= harm == "bit"
    harmed = {"cut": data[: len(data) // 2], "empty": b"", "text": b"t,x\n0,1\n1,2\n"}
    path.write_bytes(harmed.get(harm, data))
    if harm == "model":
        TWO.with_values(redraw_prob=0.5, state_probs=[0.5, 0.5], loc=[[0.0], [1.0]], scale=[[1.0], [1.0]]).save(
            tmp_path
        )
        path = tmp_path / "model.safetensors"
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"^checkpoint: .* holds no state of a fit .*; give another path, or remove the file"
    ):
        TWO.fit(X, progress=False, checkpoint=path, **SHORT)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        (
            "absent/fit",
            OSError,
            "absent/fit cannot be written (No such file or directory); check that its folder exists",
        ),
        ("pipe", ValueError, "pipe cannot be read (Is a pipe or a device); give the path of a file."),
        (".", ValueError, "cannot be read (Is a directory); give the path of a file."),
        ("file/fit", ValueError, "cannot be read (Not a directory)"),
        ("", ValueError, "checkpoint: got '', expected the path"),
        (3, TypeError, "checkpoint: got 3, expected a path"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch, path, kind, said):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sh.SwitchingSSM, "_fitted", None)
    with pytest.raises(kind, match=re.escape(said)):
        TWO.fit(X, progress=False, checkpoint=path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(100), "its description is not JSON, so it is damaged or not a safetensors file; give another path"),
        (
            b"\x93NUMPY" + bytes([255]) * 90,
            "fit is incomplete, or not a safetensors file; restore it from a copy; give",
        ),
        (save({"a": torch.zeros(2)}), "fit is of another kind: it has no description by samplehold; give another path"),
        (sealed({"loops": []}, {}, 2), "it has format 2, and this version reads 1; update samplehold; give another"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_plain_words(tmp_path, data, said):
    path = tmp_path / "fit"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(said)):
        ONE(progress=False, checkpoint=path)
    assert path.read_bytes() == data


def test_a_link_stays_a_link_and_a_relative_path_is_that_of_the_beginning(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "fit")
    monkeypatch.chdir(tmp_path)
    begun = resuming.identity_of

    def moved(*arguments: Any) -> Any:
        os.chdir(tmp_path / "there")
        return begun(*arguments)

    monkeypatch.setattr(resuming, "identity_of", moved)
    ONE(progress=False, checkpoint="link")
    assert (tmp_path / "link").is_symlink()
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["fit"]
    again = ONE(progress=False, checkpoint=tmp_path / "there" / "fit")
    assert_same(ONE(progress=False), again)


@pytest.mark.parametrize("every", [-1.0, float("nan"), "often"])
def test_bad_times_are_named(every):
    with pytest.raises((TypeError, ValueError), match=r"^every: got"):
        TWO.fit(X, progress=False, every=every)


def test_a_full_disk_ends_the_fit_and_keeps_the_state_before(tmp_path, monkeypatch):
    true, writes = checkpoint.write_output, []

    def write_output(path: Path, data: bytes) -> None:
        writes.append(path)
        if len(writes) == 3:
            raise OSError(28, "No space left on device")
        true(path, data)

    monkeypatch.setattr(checkpoint, "write_output", write_output)
    with pytest.raises(OSError, match=r"^checkpoint: .*fit cannot be written \(No space left on device\)"):
        ONE(progress=False, checkpoint=tmp_path / "fit", every=0)
    assert_same(ONE(progress=False), ONE(progress=False, checkpoint=tmp_path / "fit"))


def test_a_file_of_other_loops_is_refused(tmp_path):
    saving = Checkpoint(tmp_path / "fit", loops=[Loop("svi")])
    with pytest.raises(ValueError, match="has the loop 'svi' where this fit has 'batch'; remove the file"):
        saving.start_loop("batch")
