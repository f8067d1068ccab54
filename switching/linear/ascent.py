r"""Maximisation of a density in free coordinates from many starts at once, by the quasi-Newton steps of BFGS.

With s the last step and y the fall of the gradient along it, the inverse curvature H becomes

$$(I - \rho s y^\top) H (I - \rho y s^\top) + \rho s s^\top, \qquad \rho = 1 / y^\top s,$$

where $y^\top s > 0$ (Nocedal & Wright 2006, *Numerical Optimization*, 6.17).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.message_passing.engine import Run
from ..fitting.density import FreeDensity

FARTHEST = 1.0  # norm of the longest step
HALVINGS = 20
RISE = 1e-4  # share of the rise promised by the slope that a step has to reach
FLAT = 1e-12  # cosine of a step and the fall of the gradient, below which the curvature is not updated


class Ascent:
    """A batch of restarts: see `fitting.search.Optimizer`.

    Arguments:
        density: the density in free coordinates.
        at: coordinates of the starts.
    """

    def __init__(self, density: FreeDensity, at: Float[Tensor, "R P"]) -> None:
        self.density, self.point = density, at
        self.heights, self.slopes = density.climb(at)
        steep = self.slopes.norm(dim=-1).clamp_min(1.0)
        self.inverse = _unit(at) / steep[:, None, None]

    @property
    def tables(self) -> dict[str, Any]:
        return {"y": self.point}

    @property
    def collapsed(self) -> None:
        """There are no states that could collapse."""

    def select(self, restarts: Tensor) -> "Ascent":
        some = object.__new__(Ascent)
        some.density = self.density
        for name in ("point", "heights", "slopes", "inverse"):
            setattr(some, name, getattr(self, name)[restarts])
        return some

    def extrapolated(self, before: dict[str, Any], by: Tensor) -> None:
        """None: steps of BFGS need no extrapolation."""

    def at(self, tables: dict[str, Any]) -> "Ascent":
        return Ascent(self.density, tables["y"])

    def height(self) -> Tensor:
        return self.heights

    def run(self, max_steps: int) -> Run:
        trace = []
        for _ in range(max_steps):
            self._step()
            trace.append(self.heights)
        return Run(torch.stack(trace), len(trace), False)

    def _step(self) -> None:
        move = (self.inverse @ self.slopes.unsqueeze(-1)).squeeze(-1)
        uphill = (move * self.slopes).sum(-1, keepdim=True) > 0
        move = torch.where(uphill, move, self.slopes)
        move = move * (FARTHEST / move.norm(dim=-1, keepdim=True).clamp_min(FARTHEST))
        promised = (move * self.slopes).sum(-1)
        point, heights, slopes = self.point.clone(), self.heights.clone(), self.slopes.clone()
        going, size = torch.arange(len(move), device=move.device), 1.0
        for _ in range(HALVINGS):
            there = self.point[going] + size * move[going]
            height, slope = self.density.climb(there)
            risen = height >= self.heights[going] + RISE * size * promised[going]
            for table, new in ((point, there), (heights, height), (slopes, slope)):
                here = risen.reshape(-1, *[1] * (new.ndim - 1))
                table[going] = torch.where(here, new, table[going])
            n_unresolved = len(going) - int(risen.sum())  # the only transfer from the device
            if not n_unresolved:
                break
            going, size = going[risen.int().argsort(stable=True)[:n_unresolved]], size / 2
        self._learn(point - self.point, self.slopes - slopes)
        self.point, self.heights, self.slopes = point, heights, slopes

    def _learn(self, step: Tensor, fall: Tensor) -> None:
        """Update the inverse curvature by a step."""
        common = (step * fall).sum(-1)
        seen = common > FLAT * step.norm(dim=-1) * fall.norm(dim=-1)
        rho = torch.where(seen, 1 / torch.where(seen, common, 1.0), 0.0)[:, None, None]
        step, fall = step.unsqueeze(-1), fall.unsqueeze(-1)
        projection = _unit(step.squeeze(-1)) - rho * step @ fall.mT
        self.inverse = projection @ self.inverse @ projection.mT + rho * step @ step.mT


def _unit(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
