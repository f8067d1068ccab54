"""`samplehold fit` of a folder of files, by one process and by several that torchrun starts."""

import os
import re
import subprocess
import sys

import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.command_line import refused, run
from samplehold.cli.folders import write_states
from torch.testing import assert_close

ARGUMENTS = ["--sequence", "id", "--time", "t", "--columns", "a,b", "--states", "2", "--dynamics", "markov"]
ARGUMENTS += ["--restarts", "1", "--max-steps", "5"]


@pytest.fixture
def folder(tmp_path):
    """Five Parquet files with twelve sequences, some of which span two files."""
    x = torch.randn(12, 20, 2, generator=torch.Generator().manual_seed(0)).double()
    x += 4.0 * (torch.arange(20) > 9)[:, None]
    frame = pd.DataFrame(x.flatten(0, 1).numpy(), columns=["a", "b"])
    frame.insert(0, "id", [f"s{i}" for i in range(12) for _ in range(20)])
    frame.insert(1, "t", list(range(20)) * 12)
    data = tmp_path / "data"
    data.mkdir()
    for i in range(5):
        frame.iloc[49 * i : 49 * (i + 1)].to_parquet(data / f"part-{i}.parquet", row_group_size=17)
    return data


def test_a_folder_is_fitted_and_its_states_are_written(folder, tmp_path):
    ran = run("fit", folder, *ARGUMENTS, "--out", tmp_path / "out")
    assert "Wrote model and states.parquet" in ran.output
    assert re.search(r"Time: \d+ steps in .* s: computing .* s, reading .* s, waiting 0 s; [\d,]+ rows", ran.output)
    model = sh.SwitchingSSM.load(tmp_path / "out" / "model")
    states = pd.read_parquet(tmp_path / "out" / "states.parquet")
    assert len(states) == 240
    series = sh.open_sequences(folder, "id", "t", ["a", "b"])
    expected = model.smooth(series).state.flatten(0, -2)
    assert_close(torch.from_numpy(states[["state_0", "state_1"]].to_numpy()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--inputs", "b"], "--inputs: got b, but a folder or several processes do not support inputs"),
        (["--emission", "poisson"], "x: got -"),
        (["--columns", "a,c"], "columns: got 'c'"),
    ],
)
def test_bad_arguments_are_told_in_one_line(folder, tmp_path, more, said):
    assert said in refused("fit", folder, *ARGUMENTS, "--out", tmp_path / "out", *more)


def test_results_are_not_overwritten_without_permission(folder, tmp_path):
    (tmp_path / "out" / "model").mkdir(parents=True)
    assert "exists; add --force to replace it" in refused("fit", folder, *ARGUMENTS, "--out", tmp_path / "out")


def test_a_process_without_sequences_leaves_no_file_of_states(folder, tmp_path):
    series, path = sh.open_sequences(folder, "id", "t"), tmp_path / "states.parquet"
    model = sh.SwitchingSSM(sh.Copy(1), sh.Normal(2)).with_values(
        redraw_prob=0.1, state_probs=[1.0], loc=[[0.0, 0.0]], scale=[[1.0, 1.0]]
    )
    write_states(model, series, path)
    assert len(pd.read_parquet(path)) == 240
    write_states(model, series.subset(torch.tensor([], dtype=torch.long)), path)
    assert not path.exists()


@pytest.mark.slow
def test_processes_of_torchrun_share_the_files(folder, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["-m", "samplehold", "fit", str(folder), *ARGUMENTS, "--out", str(tmp_path / "two")]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    run("fit", folder, *ARGUMENTS, "--out", tmp_path / "one")
    one, two = (sh.SwitchingSSM.load(tmp_path / name / "model") for name in ("one", "two"))
    for name, table in one.values.items():
        assert_close(two.values[name], table, rtol=1e-10, atol=1e-10)
    parts = [pd.read_parquet(tmp_path / "two" / f"states-{rank}-of-2.parquet") for rank in range(2)]
    whole = pd.read_parquet(tmp_path / "one" / "states.parquet")
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole, rtol=1e-8, check_categorical=False)
