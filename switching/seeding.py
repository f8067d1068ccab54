"""Seeds where Pyro draws: from torch's global generator, which is put back afterwards; and Python's, put back likewise.

What else the libraries that a fit imports change in a process stays as they leave it: numpy, torch, scipy and sympy add
warning filters of their own; threadpoolctl and scikit-learn set `KMP_DUPLICATE_LIB_OK` and `KMP_INIT_AT_FORK`, where
these are not set, for the OpenMP runtimes that are loaded from then on; torch sets `TORCHINDUCTOR_CACHE_DIR` for SVI.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..inference.numerics.randomness import Seed, seed_number


def number_of(seed: Seed) -> int:
    """A number from 0 to 2^63 - 1 for generators of other kinds, which take no negative ones: the seed itself, or one
    drawn from its generator."""
    if not (seed is None or isinstance(seed, torch.Generator)):
        return seed_number(seed) % 2**63
    generator = seed
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**31, (), generator=generator, device=device))


@contextmanager
def undrawn() -> Iterator[None]:
    """For imports of libraries that draw from Python's random numbers: these go on from where they were."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextmanager
def seeded(seed: Seed, like: Tensor) -> Iterator[None]:
    """Draws inside depend on the seed alone, and leave torch's global generator as it was; None: they go on from it."""
    if seed is None:
        yield
        return
    number = number_of(seed)
    devices = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(number)  # `torch.manual_seed` would seed the generators of all devices
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(number)
        yield
