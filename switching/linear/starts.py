r"""Starts of linear models: guesses of the latent path, from which the first updates estimate the parameters.

A latent vector contains the past's information about the future. Guesses are whitened combinations of a window of w
steps on either side of a step: its principal components; the regression of later steps on earlier ones (subspace
identification: Van Overschee & De Moor 1996); and random combinations. Missing values count as the centre of the data.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ...inference.families import GaussianTables
from ..data.series import Series

WIDTHS = (2, 4, 8, 1, 16)
KINDS = ("principal components", "subspace", "random directions")
SURE = 10.0  # precision of the guess
RIDGE = 1e-3  # share of the variance of the past


def first_paths(series: Series, n_latent: int, restarts: int, seed: int) -> tuple[list[GaussianTables], list[str]]:
    """Natural parameters of paths near guesses, `[R, *b, 1, T, ...]` for each group of sequences, and the kinds of the
    guesses."""
    generator = torch.Generator().manual_seed(seed)
    paths, kinds = [], []
    for restart in range(restarts):
        kinds.append(KINDS[restart % len(KINDS)])
        width = WIDTHS[restart // len(KINDS) % len(WIDTHS)]
        paths.append(guess(series, n_latent, kinds[-1], width, generator))
    by_group = series.by_group(torch.stack(paths, 1))  # [*b, T, R, L]
    return [near_path(path.movedim(-2, 0).unsqueeze(-3), SURE) for path in by_group], kinds


def near_path(path: Float[Tensor, "*c T L"], precision: float) -> GaussianTables:
    """Natural parameters of states that are near a path."""
    n = path.shape[-1]
    square = -precision / 2 * torch.eye(n).to(path).expand(*path.shape, n)
    return GaussianTables(precision * path, square, torch.zeros_like(square[..., 1:, :, :]))


def guess(series: Series, n_latent: int, kind: str, width: int, generator: torch.Generator) -> Float[Tensor, "n L"]:
    """A latent path of variance 1 in each direction, at the steps of all sequences."""
    width = min(width, max(1, series.n_steps - 1))
    rows = _windows(series.rows.nan_to_num(0.0), series.sequence_of_rows, width)
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
    return _whitened(combined, n_latent, generator)


def _windows(rows: Float[Tensor, "n F"], sequence: Int[Tensor, "n"], width: int) -> Float[Tensor, "n F w"]:
    """The steps around each row, with 0 where there is none of its sequence."""
    windows = pad(rows, (0, 0, width, width)).unfold(0, 2 * width + 1, 1)
    same = pad(sequence, (width, width), value=-1).unfold(0, 2 * width + 1, 1) == sequence.unsqueeze(-1)
    return torch.where(same.unsqueeze(1), windows, 0.0)


def _whitened(rows: Tensor, n_latent: int, generator: torch.Generator) -> Tensor:
    """The first principal components, each of variance 1; noise replaces missing ones."""
    rows = rows - rows.mean(0)
    u, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
    there = sizes[:n_latent] > 1e-9 * sizes[:1].clamp_min(1e-12)
    components = u[:, :n_latent][:, there] * len(rows) ** 0.5
    noise = torch.randn(len(rows), n_latent, generator=generator, dtype=rows.dtype, device="cpu").to(rows)
    return torch.cat([components, noise[:, components.shape[1] :]], -1)
