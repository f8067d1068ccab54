"""Randomness: one rule for seeds, one way to draw from tables of weights, and the lock of torch's global generator.

The generator is one for all threads. A thread that seeds it for its own draws would lose their order if another thread
drew from it meanwhile.
"""

import os
import threading

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .scalars import check_integer

Seed = int | torch.Generator | None
"""A number makes a draw repeatable; a generator advances; None is torch's global generator."""

GLOBAL = threading.RLock()
"""A thread holds it while it draws from torch's global generator, or uses what Pyro has once for all threads."""

if hasattr(os, "register_at_fork"):  # a child has none of its parent's other threads, which would release it
    os.register_at_fork(after_in_child=GLOBAL._at_fork_reinit)  # type: ignore[attr-defined]


def generator_of(seed: object, device: torch.device | str = "cpu") -> torch.Generator | None:
    """The generator of a seed; without a seed, one that torch's global generator seeds.

    Raises:
        TypeError: a seed of another kind.
        ValueError: a generator of another device; a number that torch does not accept.
    """
    if seed is None and (torch.compiler.is_compiling() or torch.device(device).type == "meta"):
        return None
    if seed is None:
        with GLOBAL:
            seed = int(torch.randint(2**62, (), device="cpu"))
    if isinstance(seed, torch.Generator):
        if seed.device.type != torch.device(device).type:
            raise ValueError(f"seed: got a generator on {seed.device}, expected one on {device}.")
        return seed
    return torch.Generator(device).manual_seed(seed_number(seed))


def seed_number(seed: object) -> int:
    """The number of a seed.

    Raises:
        TypeError: not an integer.
        ValueError: a number that torch's generators do not accept.
    """
    try:
        return check_integer("seed", seed, least=-(2**63), most=2**64 - 1)
    except TypeError:
        raise TypeError(f"seed: got {seed!r}, expected an integer, a torch.Generator, or None.") from None


def draw_index(log_weight: Float[Tensor, "*b X"], seed: Seed = None) -> Int[Tensor, "*b"]:
    """One index for each row, with probability proportional to exp(log_weight), by the Gumbel trick; -inf is never
    drawn.

    >>> draw_index(torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]), seed=1).tolist()
    [0, 1]
    """
    generator = generator_of(seed, log_weight.device)
    uniform = torch.rand(log_weight.shape, generator=generator, dtype=torch.float64, device=log_weight.device)
    return (log_weight - (-uniform.clamp_min(1e-300).log()).log()).argmax(-1)


def invert(weight: Float[Tensor, "*b X"], uniform: Float[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """The first index at which the cumulated share of weight exceeds `uniform`; never one without weight.

    Uniform numbers in [0, 1) give draws with probabilities proportional to the weights, the same on every device.

    >>> invert(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 0.2, 0.3, 0.99])).tolist()
    [1, 1, 2, 2]
    """
    cumulative = weight.cumsum(-1)
    total = cumulative[..., -1:]
    index = torch.searchsorted(cumulative, (uniform * total).contiguous(), right=True)
    return torch.minimum(index, (cumulative < total).sum(-1, keepdim=True))
