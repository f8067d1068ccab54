r"""Bases of the latent space. After $s \to M s + b$ the same model has the parameters

$$A \to M A M^{-1}, \quad c \to M c + b - M A M^{-1} b, \quad Q \to M Q M^\top, \quad C \to C M^{-1}, \quad
d \to d - C M^{-1} b, \quad m \to M m + b, \quad P \to M P M^\top,$$

and so for each regime, if these share the states; regressions of the regimes on the states change as the emission does.
"""

from collections.abc import Iterable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..parameters import Parameters, free_entries

RANK = 1e-9  # share of the greatest singular value above which a direction counts


def turned(values: Parameters, matrix: Float[Tensor, "L L"], offset: Float[Tensor, "L"]) -> Parameters:
    """Parameters `[*r, ...]` in another basis."""
    back = torch.linalg.inv(matrix)
    transition, emission = matrix @ values["transition"] @ back, values["emission"] @ back
    recurrent = {}
    if "recurrence" in values:
        recurrent["recurrence"] = values["recurrence"] @ back
        recurrent["recurrence_offset"] = values["recurrence_offset"] - offset @ recurrent["recurrence"].mT
    return (
        values
        | recurrent
        | {
            "transition": transition,
            "transition_offset": values["transition_offset"] @ matrix.mT + offset - offset @ transition.mT,
            "state_noise": matrix @ values["state_noise"] @ matrix.mT,
            "emission": emission,
            "emission_offset": values["emission_offset"] - offset @ emission.mT,
            "initial_mean": values["initial_mean"] @ matrix.mT + offset,
            "initial_covariance": matrix @ values["initial_covariance"] @ matrix.mT,
        }
    )


def axes_of(emission: Float[Tensor, "F L"]) -> Float[Tensor, "L L"]:
    """The rotation that makes the columns of the emission orthogonal, longest first, with positive largest entries."""
    _, _, turn = torch.linalg.svd(emission, full_matrices=True)
    columns = emission @ turn.mT
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True)).squeeze(0)
    return torch.where(largest < 0, -1.0, 1.0).unsqueeze(-1) * turn


def nearest_turn(draws: Float[Tensor, "n F L"], emission: Float[Tensor, "F L"]) -> Float[Tensor, "n L L"]:
    """The rotations that bring each emission nearest to a reference (Procrustes)."""
    u, _, v = torch.linalg.svd(emission.mT @ draws)
    return u @ v


def n_bases(values: Parameters, fixed: Iterable[str]) -> int:
    """The number of directions of M and b that do not change the fixed parameters: names, or tables with NaN where an
    entry is free."""
    n = values["initial_mean"].shape[-1]
    size, values = n * n + n, {name: value.double().cpu() for name, value in values.items()}
    fixed_entries = {name: ~free for name, free in free_entries(values, fixed).items() if not bool(free.all())}
    if not fixed_entries:
        return size

    def moved(step: Tensor) -> Tensor:
        matrix = torch.eye(n).to(step) + step[: n * n].reshape(n, n)
        there = turned(values, matrix, step[n * n :])
        return torch.cat([there[name][entries.cpu()] for name, entries in fixed_entries.items()])

    table = torch.autograd.functional.jacobian(moved, torch.zeros(size, dtype=torch.float64, device="cpu"))
    sizes = torch.linalg.svdvals(cast(Tensor, table))
    return size - int((sizes > RANK * sizes[0]).sum())
