"""Models survive the disk: all of one, and nothing that is none."""

import hashlib
import json
import os
import random
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyro
import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from oracles.models import KINDS, random_model
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from samplehold import Copy, Normal, SwitchingSSM
from samplehold.switching.data import writing
from samplehold.switching.storage import read_model, save_model
from torch.testing import assert_close

FILE = "model.safetensors"
EVERYTHING = os.environ.get("SAMPLEHOLD_FLIPS") == "all"


def structure_of(folder: Path) -> dict:
    with safe_open(folder / FILE, "pt") as file:
        return json.loads(file.metadata()["samplehold"])


def rewrite(folder: Path, structure: dict | str, tensors: dict) -> None:
    """A file with a right checksum, whatever it says."""
    text = structure if isinstance(structure, str) else json.dumps(structure)
    text = re.sub(r'"sha256": "\w+"', f'"sha256": "{"0" * 64}"', text)
    data = save({name: tensor.cpu().clone() for name, tensor in tensors.items()}, {"samplehold": text})
    (folder / FILE).write_bytes(data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1))


def same(a: SwitchingSSM, b: SwitchingSSM) -> bool:
    both = zip(a.to_parts()[1].items(), b.to_parts()[1].items(), strict=True)
    parts = str(a.to_parts()[0]) == str(b.to_parts()[0])
    return parts and all(n == m and x.dtype == y.dtype and torch.equal(x, y) for (n, x), (m, y) in both)


def small(loc: float = 0.0) -> SwitchingSSM:
    return SwitchingSSM(Copy(1), Normal(1)).with_values(redraw_prob=0.1, state_probs=[1.0], loc=[[loc]], scale=[[1.0]])


# ---- what is saved -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_a_saved_model_comes_back_the_same(tmp_path, dynamics, emission):
    model = random_model(dynamics, emission)
    model.save(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == [FILE]
    again = SwitchingSSM.load(tmp_path / "model")
    assert (again.dynamics, again.emission) == (model.dynamics, model.emission)
    assert same(again, model)
    if dynamics == "copy":
        x = model.simulate(10, seed=0).x
        assert_close(again.log_evidence(x), model.log_evidence(x), rtol=0, atol=0)


def test_a_model_without_values_can_be_saved(tmp_path):
    SwitchingSSM(Copy(3), Normal(2)).save(tmp_path)
    assert SwitchingSSM.load(tmp_path).values == {}


@pytest.mark.parametrize("number", [0.1, 2.0 / 3, (0.1, 0.7), np.float64(0.1)])
def test_arguments_keep_all_their_digits(tmp_path, number):
    SwitchingSSM(Copy(2, state_prior=number), Normal(1)).save(tmp_path)
    assert SwitchingSSM.load(tmp_path).dynamics.state_prior == number


def test_values_keep_their_dtype(tmp_path):
    model = random_model("copy", "normal")
    model = model.with_values({name: value.to(torch.float32) for name, value in model.values.items()})
    model.save(tmp_path)
    assert SwitchingSSM.load(tmp_path).loc.dtype == torch.float32


def test_the_description_is_for_people_and_any_reader_of_safetensors(tmp_path):
    random_model("copy", "gated").save(tmp_path)
    text = structure_of(tmp_path)
    assert text["format"] == 1
    assert text["dynamics"]["class"] == "Copy"
    assert text["emission"]["background"] == {"class": "Normal", "n_features": 2}
    with safe_open(tmp_path / FILE, "pt") as file:
        assert "value.loc" in list(file.keys())


def test_notes_come_back_and_do_not_stay_when_another_model_is_saved(tmp_path):
    save_model(small(), tmp_path, {"columns": ["a", "ü"]})
    assert read_model(tmp_path).notes == {"columns": ["a", "ü"]}
    small().save(tmp_path)
    assert read_model(tmp_path).notes == {}


def test_equal_models_make_equal_files(tmp_path):
    for name in ("a", "b"):
        random_model("markov", "full").save(tmp_path / name)
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()


def test_what_cannot_be_described_is_refused_and_leaves_what_was_there(tmp_path):
    @dataclass(frozen=True)
    class Titled(Normal):
        name = "TitledOfTheTests"
        title: bytes = b"no number"

    small().save(tmp_path)
    with pytest.raises(TypeError, match=r"TitledOfTheTests\.title: got b'no number', which cannot be stored"):
        SwitchingSSM(Copy(2), Titled(1)).save(tmp_path)
    assert same(SwitchingSSM.load(tmp_path), small())


# ---- damage --------------------------------------------------------------------------------------------------------


def refused(folder: Path, data: bytes) -> str:
    (folder / FILE).write_bytes(data)
    with pytest.raises(ValueError, match=r"^path: ") as caught:
        SwitchingSSM.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_any_flipped_bit_and_any_cut_are_refused(tmp_path):
    model = small()
    model.save(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    places = range(8 * len(whole)) if EVERYTHING else random.Random(0).sample(range(8 * len(whole)), 400)
    named = 0
    for place in places:
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        named += "checksum" in refused(tmp_path, bytes(flipped))
    assert named > len(places) / 2
    for length in range(0, len(whole), 1 if EVERYTHING else 7):
        refused(tmp_path, whole[:length])
    refused(tmp_path, whole + b"\0")
    (tmp_path / FILE).write_bytes(whole)
    assert same(SwitchingSSM.load(tmp_path), model)


DEEP = "[" * 100_000 + "]" * 100_000
HEAD = '{"format": 1, "sha256": "", "class": "SwitchingSSM", '
SAID = HEAD + '"emission": {"class": "Normal", "n_features": 1}, "dynamics": %s}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{}",
        "{",
        DEEP,
        '{"format": 1}',
        '{"format": 1, "sha256": "", "class": ["Copy"]}',
        '{"format": 1, "sha256": "", "class": "Copy"}',
        '{"format": 1, "sha256": "", "class": "os.system"}',
        '{"format": 1, "sha256": "", "class": "__getattr__"}',
        '{"format": 1, "sha256": "", "class": "SwitchingSSM"}',
        '{"format": 1, "format": 1, "sha256": "", "class": "SwitchingSSM"}',
        SAID % "null",
        SAID % "[]",
        SAID % DEEP,
        SAID % "{}",
        SAID % '{"class": "Dynamics", "n_states": 1}',
        SAID % '{"class": "Normal", "n_features": 1}',
        SAID % '{"class": "SwitchingSSM", "dynamics": 1, "emission": 2}',
        SAID % '{"class": "FactorialSSM", "redraw_prob": [0.1], "state_probs": [[1.0]], "loc": [[[0.0]]]}',
        SAID % '{"class": "Copy"}',
        SAID % '{"class": "Copy", "n_states": 1, "n_states": 1}',
        SAID % '{"class": "Copy", "n_states": 1, "unknown": 1}',
        *(
            SAID % f'{{"class": "Copy", "n_states": {size}}}'
            for size in ("true", '"1"', "null", "0", "-1", "1.5", "2", "NaN", "Infinity", "1e999", "[1]", "1" * 5000)
        ),
        *(
            SAID % f'{{"class": "Copy", "n_states": 1, "state_prior": {prior}}}'
            for prior in ("true", '"1"', "null", "0", "-1", "[1, 2, 3]", "NaN", "-Infinity", "1e999", "{}", "9" * 4000)
        ),
        (SAID % '{"class": "Copy", "n_states": 1}')[:-1] + ', "more": {"class": "Copy", "n_states": 1}}',
        (SAID % '{"class": "Copy", "n_states": 1}')[:-1] + ', "more": 1}',
    ],
    ids=lambda text: text[:90],
)
def test_what_describes_no_model_is_refused(tmp_path, text):
    tensors = SwitchingSSM(Copy(1), Normal(1)).to_parts()[1]
    rewrite(tmp_path, text, tensors)
    with pytest.raises(ValueError, match=r"^path: ") as caught:
        SwitchingSSM.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("value.loc", None),
        ("weak.count", None),
        ("value.new", torch.ones(1)),
        ("weak.new", torch.ones(1)),
        ("other", torch.ones(1)),
        ("value.loc", torch.full((1, 1), torch.nan)),
        ("value.loc", torch.ones(1, 2)),
        ("value.loc", torch.ones(1, 1, dtype=torch.int64)),
        ("value.loc", torch.ones(1, 1, dtype=torch.bool)),
        ("value.loc", torch.ones(1, 1, dtype=torch.complex64)),
        ("value.precision", -torch.ones(1, 1)),
        ("value.redraw_prob", torch.tensor(1.5)),
        *(
            ("weak." + name, value)
            for name in ("count", "shape", "rate")
            for value in (-torch.ones(1, 1), torch.zeros(1, 1))
        ),
        ("weak.count", torch.full((1, 1), torch.inf)),
        ("weak.loc", torch.full((1, 1), torch.nan)),
        ("weak.redraw_concentration", torch.tensor([1.0, -1.0])),
        ("weak.redraw_concentration", torch.tensor([1.0])),
    ],
)
def test_tensors_that_are_no_model_are_refused(tmp_path, name, change):
    small().save(tmp_path)
    tensors = {n: t for n, t in small().to_parts()[1].items() if n != name} | ({} if change is None else {name: change})
    rewrite(tmp_path, structure_of(tmp_path), tensors)
    with pytest.raises(ValueError, match=r"^path: "):
        SwitchingSSM.load(tmp_path)


def test_a_prior_is_checked_where_distributions_do_not_check_their_arguments():
    with pyro.validation_enabled(False), pytest.raises(ValueError, match=r"^prior: got \['count'\]"):
        small().with_prior({"count": [[-1.0]]})


def test_missing_tensors_of_models_of_several_chains_are_refused(tmp_path):
    half = torch.tensor([0.5, 0.5])
    model = factorial_of(half, [half, half], [torch.zeros(2, 1), torch.ones(2, 1)], torch.eye(1))
    model.save(tmp_path)
    tensors = model.to_parts()[1]
    for kept in ([n for n in tensors if n != "value.loc_2"], [*tensors, "value.loc_3"]):
        rewrite(tmp_path, structure_of(tmp_path), {n: tensors.get(n, torch.zeros(2, 1)) for n in kept})
        with pytest.raises(ValueError, match=r"^path: "):
            sh.FactorialSSM.load(tmp_path)


@pytest.mark.parametrize(
    ("found", "cure"), [(3, "update samplehold"), (0, "use the samplehold that wrote it, or make it anew")]
)
def test_another_format_says_what_to_do(tmp_path, found, cure):
    small().save(tmp_path)
    rewrite(tmp_path, structure_of(tmp_path) | {"format": found}, small().to_parts()[1])
    with pytest.raises(ValueError, match=rf"^path: .* format {found}, and this version reads 1; {cure}"):
        SwitchingSSM.load(tmp_path)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / FILE).mkdir(parents=True)
    (tmp_path / "dangling").mkdir()
    (tmp_path / "dangling" / FILE).symlink_to("nowhere")
    for name, said in (
        (".", f"it has no {FILE}; give a folder that model.save has written"),
        ("absent", f"it has no {FILE}"),
        ("file", f"it has no {FILE}"),
        ("dangling", f"it has no {FILE}"),
        ("folder", "cannot be read (Is a directory)"),
    ):
        with pytest.raises(ValueError, match=rf"^path: .*{re.escape(said)}"):
            SwitchingSSM.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"^path: "):
        SwitchingSSM.load(f"{tmp_path}/a\0b")
    save_file({"x": torch.ones(1).cpu()}, tmp_path / FILE)
    with pytest.raises(ValueError, match=r"^path: "):
        SwitchingSSM.load(tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    small().save(tmp_path)
    (tmp_path / FILE).chmod(0)
    with pytest.raises(ValueError, match=r"^path: .* cannot be read \(Permission denied\)"):
        SwitchingSSM.load(tmp_path)


# ---- whole or not at all -------------------------------------------------------------------------------------------


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / FILE).symlink_to("../precious")
    small().save(tmp_path / "model")
    assert (tmp_path / "precious").read_text() == "kept"
    assert not (tmp_path / "model" / FILE).is_symlink()
    assert same(SwitchingSSM.load(tmp_path / "model"), small())


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch, call):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    small(1.0).save(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    monkeypatch.setattr("builtins.open" if call == "open" else f"os.{call}", full)
    with pytest.raises(OSError, match="No space"):
        small(2.0).save(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_the_mode_of_the_file_stays(tmp_path):
    small().save(tmp_path)
    (tmp_path / FILE).chmod(0o600)
    small(1.0).save(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_what_a_killed_save_left_goes_with_the_next_unless_it_is_being_written(tmp_path):
    names = ["dead", "busy", "young"]
    dead, busy, young = (tmp_path / f".{FILE}.{name}{writing.ENDING}" for name in names)
    for path in (dead, busy, young):
        path.write_bytes(b"half")
    for path in (dead, busy):
        os.utime(path, (0, 0))
    with writing.locked(busy):
        small().save(tmp_path)
    assert [path.exists() for path in (dead, busy, young)] == [False, True, True]


@pytest.mark.slow
def test_a_new_process_reads_an_emission_that_is_made_by_another_name(tmp_path):
    """`AutoRegressive(covariance="full")` makes a class of a file of its own."""
    made = sh.AutoRegressive(1, 2, covariance="full")
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sh.SwitchingSSM(sh.Markov(2), made).fit(x, restarts=1, max_steps=2, progress=False).model.save(tmp_path)
    program = f"import samplehold as sh; print(sh.load({str(tmp_path)!r}).emission)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == repr(made), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_kills_leave_all_of_one_model_and_the_end_of_a_fit():
    script = Path(__file__).parents[1] / "fuzz" / "kills.py"
    done = subprocess.run([sys.executable, script, "100"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("100 kills, none lost, none mixed") == 3


# ---- files that describe more than they hold -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "part", "sizes"),
    [
        (SwitchingSSM(Copy(2), Normal(1)), "dynamics", {"n_states": 10**9}),
        (SwitchingSSM(Copy(2), Normal(1)), "emission", {"n_features": 10**9}),
        (SwitchingSSM(sh.Markov(9), Normal(1)), "dynamics", {"n_states": 90}),  # its table has the square
        (SwitchingSSM(sh.Copy(2, inputs=1), Normal(1)), "dynamics", {"inputs": 10**9}),
        (SwitchingSSM(sh.StickyHDP(3), Normal(1)), "dynamics", {"max_states": 10**9}),
        (SwitchingSSM(sh.Copy(2), sh.AutoRegressive(1)), "emission", {"order": 10**9}),
        (sh.LinearSSM(2, 2), "dynamics", {"n_latent": 10**9}),
        (sh.LinearSSM(sh.Seasonal(4)), "dynamics", {"period": 10**9}),
        (sh.SwitchingLinearSSM(2, 2), "layout", {"n_latent": 30_000}),
        (sh.LayeredSSM([2, 2], Normal(1)), "chain_sizes", [10**9, 2]),
    ],
)
def test_a_file_cannot_ask_for_more_memory_than_its_tensors_have(tmp_path, model, part, sizes):
    model.save(tmp_path)
    structure = structure_of(tmp_path)
    structure[part] = structure[part] | sizes if isinstance(sizes, dict) else sizes
    rewrite(tmp_path, structure, load_file(tmp_path / FILE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        ValueError, match=r"holds no model that can be loaded: .*(but the file has|expected (an integer from 2|\(\d+,))"
    ):
        sh.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # a quarter of a GiB, in KiB


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_tensors_of_other_types_are_refused_by_their_names(tmp_path, dtype):
    small().save(tmp_path)
    tensors = load_file(tmp_path / FILE) | {"value.loc": torch.zeros(1, 1, dtype=dtype)}
    rewrite(tmp_path, structure_of(tmp_path), tensors)
    with pytest.raises(ValueError, match=rf"value.loc: got {dtype}, expected float32 or float64"):
        sh.load(tmp_path)


def test_what_does_not_fit_in_memory_is_no_wrong_shape():
    with pytest.raises(ValueError, match=r"n_states: got 10{15}, but a table of 10{15} numbers takes .* GiB"):
        Copy(10**15)
    with pytest.raises(ValueError, match=r"SwitchingSSM: got .* numbers, for which there is no memory"):
        SwitchingSSM(Copy(2), sh.MultivariateNormal(10**8))


def test_a_full_disk_names_the_path(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "sync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*model.safetensors'"):
        small().save(tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.parametrize(
    ("dynamics", "emission"),
    [
        (sh.Copy(2, inputs=["u"]), Normal(1)),
        (sh.Copy(2, inputs=["u"]), sh.LinearRegression(1, inputs=["u"])),
    ],
)
def test_a_file_without_hyperparameters_of_inputs_has_their_former_numbers(tmp_path, dynamics, emission):
    model = SwitchingSSM(dynamics, emission)
    model.save(tmp_path)
    new = [n for n in model.prior if n == "inputs_center" or n.endswith(("_weights_scale", "coefficients_count"))]
    tensors = {n: table for n, table in load_file(tmp_path / FILE).items() if n.split(".", 1)[1] not in new}
    assert len(tensors) + len(new) == len(model.prior)
    rewrite(tmp_path, structure_of(tmp_path), tensors)
    again = sh.load(tmp_path).prior
    assert_close(again, model.prior)
    assert all(bool((again[name] == 2.5).all()) for name in new if name.endswith("_weights_scale"))
    del tensors[next(name for name in tensors if "concentration" in name)]
    rewrite(tmp_path, structure_of(tmp_path), tensors)
    with pytest.raises(ValueError, match=r"prior: got .* but the model has"):
        sh.load(tmp_path)


def test_a_regression_in_a_file_of_an_earlier_version_has_coefficients_as_vague_as_its_location(tmp_path):
    model = SwitchingSSM(Copy(2), sh.LinearRegression(1, inputs=["u"])).with_prior({"count": [[0.3], [0.2]]})
    model.save(tmp_path)
    tensors = load_file(tmp_path / FILE)
    rewrite(tmp_path, structure_of(tmp_path), {n: t for n, t in tensors.items() if "coefficients_count" not in n})
    assert_close(sh.load(tmp_path).prior["coefficients_count"].squeeze(-1), model.prior["count"])
