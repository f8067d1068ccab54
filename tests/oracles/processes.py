"""Functions that run in several processes of one group of `torch.distributed`, and programs in a process of their own.

The processes are forks of one server that has imported the package, which takes each of them seconds otherwise.
"""

import contextlib
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from samplehold import kernels
from samplehold.inference.numerics.forms import mode

PATIENCE = 300.0  # seconds until a process counts as hanging
IMPORTED = [
    "pytest",
    "samplehold.switching.model",
    "samplehold.switching.linear.model",
    "samplehold.switching.slds.model",
    "samplehold.switching.coupled.factorial",
]


def in_processes(n: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns in each of n processes, or the exception that it raises as text; None
    of a process that has ended without a word."""
    context = _server()
    with tempfile.TemporaryDirectory() as folder:
        common = n, folder, mode(), function, arguments
        there = [context.Process(target=_run, args=(rank, *common)) for rank in range(n)]
        for process in there:
            process.start()
        for process in there:
            process.join(PATIENCE)
        hanging = [rank for rank, process in enumerate(there) if process.is_alive()]
        for process in there:
            process.kill()
        assert not hanging, f"processes {hanging} hang"
        files = [Path(folder) / f"{rank}.pt" for rank in range(n)]
        return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


def printed(program: str, *arguments: str) -> str:
    """What a program prints in a process of its own."""
    context = _server()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_print, args=(program, arguments, f"{folder}/printed", mode()))
        process.start()
        process.join(PATIENCE)
        process.kill()
        assert process.exitcode == 0
        return Path(folder, "printed").read_text()


def _print(program: str, arguments: tuple[str, ...], path: str, form: str) -> None:
    torch.set_num_threads(1)
    sys.argv = ["-c", *arguments]
    with open(path, "w") as file, contextlib.redirect_stdout(file), kernels(form):
        exec(program, {"__name__": "__main__"})


def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _run(rank: int, n: int, folder: str, form: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=120), rank=rank, world_size=n
    )
    try:
        with kernels(form):
            result = function(rank, *arguments)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    torch.save(result, f"{folder}/{rank}.pt")
