"""Kills a process that saves (SIGKILL, at random moments), again and again: nothing may be lost or mixed.

python tests/fuzz/kills.py 1000 [SEED]     saves over a model, over a command line's folder of results, and over the
                                           checkpoint of a fit
"""

import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import samplehold as sh
import torch
from samplehold.cli.results import replacing
from samplehold.switching.data.writing import SETTLED

LONGEST = 0.02  # seconds from the start of a process to its end: some ten saves


def small(number: float) -> sh.SwitchingSSM:
    return sh.SwitchingSSM(sh.Copy(1, state_prior=number), sh.Normal(1)).with_values(
        redraw_prob=0.1, state_probs=[1.0], loc=[[number]], scale=[[1.0]]
    )


def number_of(folder: Path) -> float:
    """Which model it is, by its structure and by its numbers."""
    model = sh.SwitchingSSM.load(folder)
    assert model.dynamics.state_prior == float(model.loc), folder
    return float(model.loc)


def write(out: Path, number: float) -> None:
    """What a fit writes, in small."""
    with replacing(out) as new:
        small(number).save(new / "model")
        for name in ("posterior.nc", "states.csv", "plot.png"):
            (new / name).write_text(f"{number}" * 1000)


def check(out: Path) -> None:
    number = number_of(out / "model")
    for name in ("posterior.nc", "states.csv", "plot.png"):
        assert (out / name).read_text() == f"{number}" * 1000, (out / name, number)
    assert (out / "own" / "notes.txt").read_text() == "kept"
    assert (out / "own" / "again.txt").readlink() == Path("notes.txt")


def killed(work: Callable[[float], object], seconds: float) -> None:
    """A process that does the work with one number and the other, and is killed after so many seconds."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        for number in cycle((1.0, 2.0)):
            work(number)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def of_saves(folder: Path, kills: int, delays: random.Random) -> None:
    small(1.0).save(folder)
    for _ in range(kills):
        killed(lambda number: small(number).save(folder), delays.uniform(0, LONGEST))
        number_of(folder)
    time.sleep(1.1 * SETTLED)
    small(1.0).save(folder)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]


def of_results(folder: Path, kills: int, delays: random.Random) -> None:
    out = folder / "results"
    (out / "own").mkdir(parents=True)
    (out / "own" / "notes.txt").write_text("kept")
    (out / "own" / "again.txt").symlink_to("notes.txt")
    write(out, 1.0)
    for _ in range(kills):
        killed(lambda number: write(out, number), delays.uniform(0, LONGEST))
        check(out)
    time.sleep(1.1 * SETTLED)
    write(out, 2.0)
    check(out)
    assert [path.name for path in folder.iterdir()] == ["results"]
    assert sorted(path.name for path in out.iterdir()) == ["model", "own", "plot.png", "posterior.nc", "states.csv"]


def of_fits(folder: Path, kills: int, delays: random.Random) -> None:
    """Fits with a checkpoint. Each is killed and called again until it ends as if nothing had happened."""
    sh.kernels("plain")
    model, checkpoint, end = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)), folder / "checkpoint", folder / "end"
    x = torch.cat([torch.randn(30, generator=torch.Generator().manual_seed(k)) + 2.0 * k for k in range(2)])

    def fit(method: str, **options: Any) -> list[Any]:
        size = {"num_samples": 20, "warmup_steps": 20} if method == "nuts" else {"max_steps": 40}
        done = model.fit(x, method=method, restarts=2, progress=False, **size, **options)
        return [done.objective, done.restarts.to_csv(), done.model.values]

    def begun() -> int:
        """A child that fits, and the number of its process."""
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                torch.save(fit(method, checkpoint=checkpoint, every=0), folder / "new")
                os.replace(folder / "new", end)
                os._exit(0)
            except BaseException:  # which must not go on as the parent would
                traceback.print_exc()
                os._exit(1)
        return child

    done = 0
    for method in cycle(("em", "vmp", "svi", "nuts")):
        expected, most = fit(method), 2 * LONGEST
        while not end.exists():
            child = begun()
            time.sleep(delays.uniform(0, most))
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            assert os.WIFSIGNALED(status) or status == 0, f"a fit by {method} has failed"
            done += os.WIFSIGNALED(status)
            most *= 1.02  # at last even a slow machine gets on
        objective, restarts, values = torch.load(end, weights_only=True)
        assert torch.equal(objective, expected[0]), method
        assert restarts == expected[1], method
        assert all(torch.equal(value, expected[2][name]) for name, value in values.items()), method
        for path in (end, checkpoint):
            path.unlink(missing_ok=True)
        if done >= kills:
            return


if __name__ == "__main__":
    kills, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    for kind in (of_saves, of_results, of_fits):
        with tempfile.TemporaryDirectory() as folder:
            kind(Path(folder), kills, random.Random(seed))
        print(f"{kind.__name__}: {kills} kills, none lost, none mixed (seed {seed})", flush=True)
