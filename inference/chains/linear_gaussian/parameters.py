"""The parameters of a linear Gaussian chain as a caller gives them, read and checked."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...numerics.arrays import numbers
from ...numerics.checks import check_lengths, check_shape, check_table, common_batch, read_lengths, shortest
from ...numerics.deferred import refuse_if
from ...numerics.op import Variants
from ...numerics.remembered import remembered
from .factors import factor_of
from .tables import Tables

_COVARIANCES = ("state_noise", "observation_noise", "initial_covariance")


class Parameters(NamedTuple):
    """What a chain is made of."""

    tables: Tables
    batch_shape: torch.Size
    lengths: Tensor  # [*b]
    diffuse: Tensor  # [L]


def read(x: Tensor, arguments: dict[str, Any]) -> Parameters:
    """From observations, and the other arguments of `LinearGaussianChain` by name."""
    x, n_states, has_gaps = _observations(x, arguments["transition"])
    n_steps, n_features = x.shape[-2:]
    moves, sights = n_steps - 1, n_steps
    first = {
        "initial_mean": _or_zero("initial_mean", arguments["initial_mean"], x, n_states),
        "initial_covariance": _or_zero("initial_covariance", arguments["initial_covariance"], x, n_states, n_states),
    }
    sizes = {
        "transition": (moves, n_states, n_states),
        "state_noise": (moves, n_states, n_states),
        "transition_offset": (moves, n_states),
        "emission": (sights, n_features, n_states),
        "observation_noise": (sights, n_features, n_features),
        "emission_offset": (sights, n_features),
    }
    by_step = {name: _by_step(name, arguments[name], x, *axes) for name, axes in sizes.items()}
    counts = read_lengths(arguments["lengths"])
    batch_shape = common_batch(
        x=x.shape[:-2],
        initial_mean=first["initial_mean"].shape[:-1],
        initial_covariance=first["initial_covariance"].shape[:-2],
        **{name: table.shape[: -len(sizes[name])] for name, table in by_step.items()},
        lengths=None if counts is None else counts.shape,
    )
    lengths = check_lengths(counts, batch_shape, n_steps, x.device)
    diffuse = _check_diffuse(arguments["diffuse"], n_states, x)
    directions = x.new_zeros(n_states, 0)
    if arguments["diffuse"] is not None and len(places := _places(diffuse)):
        rest = (~diffuse).to(x)
        known = first["initial_covariance"] * rest * rest.unsqueeze(-1)
        first["initial_covariance"] = known + _proper(by_step, diffuse)
        directions = torch.eye(n_states, dtype=x.dtype, device=x.device)[:, places]
    factors = {name: _factor(name, {**first, **by_step}[name]) for name in _COVARIANCES}
    ragged = counts is not None and shortest(counts) < n_steps
    seen = ~x.isnan() if has_gaps else None
    if ragged:
        active = (torch.arange(n_steps, device=x.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
        seen = active.expand(*active.shape[:-1], n_features) if seen is None else seen & active
    tables = Tables(
        x if seen is None else torch.where(seen, x, 0.0),
        seen,
        lengths if ragged else None,
        by_step["transition"],
        by_step["transition_offset"],
        factors["state_noise"],
        by_step["emission"],
        by_step["emission_offset"],
        factors["observation_noise"],
        first["initial_mean"],
        factors["initial_covariance"],
        directions,
    )
    return Parameters(tables, batch_shape, lengths, diffuse)


def _observations(x: Any, transition: Any) -> tuple[Tensor, int, bool]:
    """x, the number of states, and whether a number is missing."""
    x = check_table("x", x, None, None)
    n_steps, n_features = x.shape[-2:]
    has_gaps, infinite = _gaps(x)
    if not n_steps or not n_features or infinite:
        raise ValueError(
            f"x: got shape {list(x.shape)}{', with infinite numbers' if x.numel() else ''}, expected finite "
            "numbers [*batch, T, F], at least one step and feature; NaN is missing."
        )
    if not isinstance(transition, Tensor) or transition.dim() < 2:
        check_table("transition", transition, None, None, like=x)
    n_states = transition.shape[-1]
    if not n_states:
        raise ValueError(f"transition: got shape {list(transition.shape)}, expected one state or more.")
    return x, n_states, has_gaps


@remembered
def _gaps(x: Tensor) -> tuple[bool, bool]:
    """Whether a number is NaN, and whether one is infinite; where none is, from one pass over them."""
    x = x.detach()
    if math.isfinite(float(x.sum())):
        return False, False
    missing, infinite = torch.stack([x.isnan().any(), x.isinf().any()]).tolist()
    return missing, infinite


@remembered
def _places(mask: Tensor) -> Tensor:
    return mask.nonzero().flatten()


def _by_step(name: str, table: Tensor | None, like: Tensor, steps: int, *axes_of_table: int) -> Tensor:
    """A parameter with its axis of steps, one entry where it is constant."""
    if table is None:
        return like.new_zeros(1, *axes_of_table)
    table = check_table(name, table, *axes_of_table, like=like, finite=True)
    n_axes = table.dim() - len(axes_of_table)
    axes = like.dim() - 2
    if n_axes <= axes:
        return table.unsqueeze(-len(axes_of_table) - 1)
    if n_axes > axes + 1 or table.shape[-len(axes_of_table) - 1] not in (1, steps):
        sizes = ", ".join(map(str, axes_of_table))
        raise ValueError(
            f"{name}: got shape {list(table.shape)}, expected [*batch, {sizes}], the same at all steps, or "
            f"[*batch, {steps}, {sizes}], one for each step. If it has more batch axes than x, {list(like.shape)}, its "
            "last batch axis is read as steps; to give one for each sequence, add batch axes of size 1 to x."
        )
    return table


def _or_zero(name: str, table: Tensor | None, like: Tensor, *axes: int) -> Tensor:
    return like.new_zeros(axes) if table is None else check_table(name, table, *axes, like=like, finite=True)


def _proper(by_step: dict[str, Tensor], diffuse: Tensor) -> Tensor:
    """A finite covariance for the diffuse states; 0 if every observation has noise.

    The density of a diffuse start is flat, so adding this covariance changes no result. The algorithm conditions on the
    diffuse states, and an observation without noise needs the covariance to have a density then.
    """
    noise, moves = (by_step[name].detach().diagonal(dim1=-2, dim2=-1) for name in ("observation_noise", "state_noise"))
    size = moves.flatten(-2).amax(-1) if moves.shape[-2] else torch.ones_like(noise[..., 0, 0])
    size = torch.where(size > 0, size, 1.0) * (noise <= 0).flatten(-2).any(-1)
    return torch.diag_embed(size.unsqueeze(-1) * diffuse.to(size))


def _check_diffuse(diffuse: Any, n_states: int, like: Tensor) -> Tensor:
    if diffuse is None:
        return torch.zeros(n_states, dtype=torch.bool, device=like.device)
    mask = numbers(diffuse, "diffuse")
    if mask.dtype != torch.bool:
        raise TypeError(f"diffuse: got {mask.dtype}, expected a boolean for each state: True if its start is unknown.")
    check_shape("diffuse", mask, (n_states,))
    if mask.dim() != 1:
        raise ValueError(f"diffuse: got shape {list(mask.shape)}, expected [{n_states}], the same for all sequences.")
    return mask.to(like.device)


def _factor(name: str, covariance: Tensor) -> Tensor:
    """A factor; ValueError unless the covariance is symmetric and positive semidefinite, to rounding."""
    factor, wrong = root(covariance)

    def complain() -> None:
        matrix = covariance.detach()
        if bool(_skew(matrix)):
            raise ValueError(f"{name}: got a matrix that is not symmetric; give a covariance, such as (a + a.mT) / 2.")
        raise ValueError(
            f"{name}: got a matrix with a negative eigenvalue, {float(torch.linalg.eigvalsh(matrix).min()):g}; give a "
            "covariance, such as a @ a.mT."
        )

    if wrong is not False:
        refuse_if(torch.as_tensor(wrong), complain)
    return factor


def _skew(matrix: Tensor) -> Tensor:
    scale = matrix.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    bound = 1e3 * torch.finfo(matrix.dtype).eps * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    return ((matrix - matrix.mT).abs() > bound).any()


def _plain_root(covariance: Tensor) -> tuple[Tensor, Tensor]:
    matrix = covariance.detach()
    factor, negative = factor_of(covariance)
    return factor, _skew(matrix) | negative.any() | (matrix.diagonal(dim1=-2, dim2=-1) < 0).any()


root: Variants = Variants(_plain_root)
"""A factor of each covariance, and whether one of them is not symmetric and positive semidefinite, to rounding."""
