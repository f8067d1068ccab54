"""Seeds for Pyro's draws, which come from torch's global generator. Its state is restored afterwards, and Python's too.

Pyro has one stack of handlers, one allocation of the axes of plates and one store of parameters for all threads of a
process. So one thread at a time runs a program, or draws: see `in_turn` and `seeded`.

Other changes that imported libraries make to a process stay. numpy, torch, scipy and sympy add warning filters.
threadpoolctl and scikit-learn set `KMP_DUPLICATE_LIB_OK` and `KMP_INIT_AT_FORK` for OpenMP runtimes that are loaded
later, if these are not set. torch sets `TORCHINDUCTOR_CACHE_DIR` for SVI.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..inference.numerics.randomness import GLOBAL, Seed, seed_number


def number_of(seed: Seed) -> int:
    """A number from 0 to 2^63 - 1 for other kinds of generators, which take no negative seeds: the seed itself, or a
    draw from its generator."""
    if not (seed is None or isinstance(seed, torch.Generator)):
        return seed_number(seed) % 2**63
    generator = seed
    device = "cpu" if generator is None else generator.device
    with GLOBAL:
        return int(torch.randint(2**31, (), generator=generator, device=device))


@contextmanager
def undrawn() -> Iterator[None]:
    """For imports of libraries that draw from Python's random numbers: their state is restored."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def drawn_so_far(like: Tensor) -> list[Tensor]:
    """The state of torch's global generators of a tensor's devices."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(like.device)] if like.is_cuda else [])]


def draw_from(state: Sequence[Tensor], like: Tensor) -> None:
    """Set the state of these generators."""
    torch.set_rng_state(state[0].cpu())
    if like.is_cuda:
        torch.cuda.set_rng_state(state[1].cpu(), like.device)


@contextmanager
def in_turn() -> Iterator[None]:
    """A Pyro program of one thread, while the programs of others wait.

    Afterwards Pyro's handlers are those from before. So an error in the program leaves none of its own, which the
    iterator of `pyro.markov` would keep as long as the error is known.
    """
    with GLOBAL:
        tables = _handlers_and_axes()
        before = [list(table) for table in tables]
        try:
            yield
        finally:
            for table, old in zip(tables, before, strict=True):
                table[:] = old


def _handlers_and_axes() -> tuple[list[Any], list[Any]]:
    """Pyro's stack of handlers, and the names of the plates on each axis."""
    from pyro.poutine import runtime  # here, because progress bars need no Pyro

    return runtime._PYRO_STACK, runtime._DIM_ALLOCATOR._stack


@contextmanager
def seeded(seed: Seed, like: Tensor) -> Iterator[None]:
    """Draws inside depend only on the seed, and torch's global generator is restored. With None they continue from
    it.

    Pyro's handlers of a program around it see no site inside, and its store of parameters is restored.
    """
    import pyro

    with in_turn(), pyro.get_param_store().scope():
        for table in _handlers_and_axes():
            table.clear()
        if seed is None:
            yield
        else:
            with _forked(number_of(seed), like):
                yield


@contextmanager
def _forked(number: int, like: Tensor) -> Iterator[None]:
    """Torch's global generators are seeded inside, and restored."""
    devices = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(number)  # `torch.manual_seed` would seed the generators of all devices
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(number)
        yield
