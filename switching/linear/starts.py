r"""Starts of linear models: guesses of the latent path, from which the first updates estimate the parameters.

A latent vector contains the past's information about the future. Guesses are whitened combinations of a window of w
steps on either side of a step: its principal components; the regression of later steps on earlier ones (subspace
identification: Van Overschee & De Moor 1996); and random combinations. Missing values count as the centre of the data.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import GaussianTables
from ..data.series import Series

WIDTHS = (2, 4, 8, 1, 16)
KINDS = ("principal components", "subspace", "random directions")
SURE = 10.0  # precision of the guess
RIDGE = 1e-3  # share of the variance of the past


def first_paths(series: Series, n_latent: int, restarts: int, seed: int) -> tuple[GaussianTables, list[str]]:
    """Natural parameters of paths near guesses, `[R, *b, 1, T, ...]`, and the kinds of the guesses."""
    generator = torch.Generator().manual_seed(seed)
    paths, kinds = [], []
    for restart in range(restarts):
        kinds.append(KINDS[restart % len(KINDS)])
        width = WIDTHS[restart // len(KINDS) % len(WIDTHS)]
        paths.append(guess(series, n_latent, kinds[-1], width, generator))
    return near_path(torch.stack(paths).unsqueeze(-3), SURE), kinds


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
        gram = past.mT @ past
        ridge = RIDGE * gram.diagonal().mean().clamp_min(1e-12) * torch.eye(len(gram)).to(gram)
        combined = past @ torch.linalg.solve(gram + ridge, past.mT @ future)
    else:
        combined = rows.flatten(1)
        if kind == "random directions":
            mixed = torch.randn(combined.shape[1], n_latent, generator=generator, dtype=combined.dtype, device="cpu")
            combined = combined @ mixed.to(combined)
    path = x.new_zeros(*inside.shape, n_latent)
    path[inside] = _whitened(combined, n_latent, generator)
    return path


def _whitened(rows: Tensor, n_latent: int, generator: torch.Generator) -> Tensor:
    """The first principal components, each of variance 1; noise replaces missing ones."""
    rows = rows - rows.mean(0)
    u, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
    there = sizes[:n_latent] > 1e-9 * sizes[:1].clamp_min(1e-12)
    components = u[:, :n_latent][:, there] * len(rows) ** 0.5
    noise = torch.randn(len(rows), n_latent, generator=generator, dtype=rows.dtype, device="cpu").to(rows)
    return torch.cat([components, noise[:, components.shape[1] :]], -1)
