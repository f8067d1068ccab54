"""Functions that run in several processes of one group of `torch.distributed`."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

PATIENCE = 300.0  # seconds until a process counts as hanging


def in_processes(n: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns in each of n processes, or the exception that it raises as text; None
    of a process that has ended without a word."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        there = [context.Process(target=_run, args=(rank, n, folder, function, arguments)) for rank in range(n)]
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


def _run(rank: int, n: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=120), rank=rank, world_size=n
    )
    try:
        result = function(rank, *arguments)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    torch.save(result, f"{folder}/{rank}.pt")
