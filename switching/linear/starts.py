r"""Starts of linear models: guesses at the latent path, from which the first updates take the parameters.

A latent vector tells what the past says of the future. Guesses are whitened combinations of a window of w steps to
either side of a step: its principal components; what the steps before tell of those after, by regression (subspace
identification: Van Overschee & De Moor 1996); and random ones. Missing values are taken for the middle of the data.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import GaussianTables
from ..data.series import Series

WIDTHS = (2, 4, 8, 1, 16)
KINDS = ("principal components", "subspace", "random directions")
SURE = 10.0  # precision of the guess
RIDGE = 1e-3  # of the variance of the past


def first_paths(series: Series, n_latent: int, restarts: int, seed: int) -> tuple[GaussianTables, list[str]]:
    """Natural parameters of paths near guesses, `[R, *b, 1, T, ...]`, and of what kinds these are."""
    generator = torch.Generator().manual_seed(seed)
    found, kinds = [], []
    for restart in range(restarts):
        kinds.append(KINDS[restart % len(KINDS)])
        width = WIDTHS[restart // len(KINDS) % len(WIDTHS)]
        found.append(guess(series, n_latent, kinds[-1], width, generator))
    return near_path(torch.stack(found).unsqueeze(-3), SURE), kinds


def near_path(path: Float[Tensor, "*c T L"], precision: float) -> GaussianTables:
    """Natural parameters of states that are near a path."""
    n = path.shape[-1]
    square = -precision / 2 * torch.eye(n).to(path).expand(*path.shape, n)
    return GaussianTables(precision * path, square, torch.zeros_like(square[..., 1:, :, :]))


def guess(series: Series, n_latent: int, kind: str, width: int, generator: torch.Generator) -> Float[Tensor, "*b T L"]:
    """A latent path of variance 1 in each direction."""
    x, inside = series.observations.nan_to_num(0.0), series.inside
    width = min(width, max(1, x.shape[-2] - 1))
    padded = torch.nn.functional.pad(torch.where(inside.unsqueeze(-1), x, 0.0), (0, 0, width, width))
    windows = padded.unfold(-2, 2 * width + 1, 1)  # [*b, T, F, 2 width + 1]
    rows = windows[inside]
    past, future = rows[..., :width].flatten(1), rows[..., width:].flatten(1)
    if kind == "subspace":
        told = past.mT @ past
        ridge = RIDGE * told.diagonal().mean().clamp_min(1e-12) * torch.eye(len(told)).to(told)
        found = past @ torch.linalg.solve(told + ridge, past.mT @ future)
    else:
        found = rows.flatten(1)
        if kind == "random directions":
            mixed = torch.randn(found.shape[1], n_latent, generator=generator, dtype=found.dtype, device="cpu")
            found = found @ mixed.to(found)
    path = x.new_zeros(*inside.shape, n_latent)
    path[inside] = _whitened(found, n_latent, generator)
    return path


def _whitened(rows: Tensor, n_latent: int, generator: torch.Generator) -> Tensor:
    """The first principal components, each of variance 1; noise where there are too few."""
    rows = rows - rows.mean(0)
    left, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
    there = sizes[:n_latent] > 1e-9 * sizes[:1].clamp_min(1e-12)
    found = left[:, :n_latent][:, there] * len(rows) ** 0.5
    noise = torch.randn(len(rows), n_latent, generator=generator, dtype=rows.dtype, device="cpu").to(rows)
    return torch.cat([found, noise[:, found.shape[1] :]], -1)
