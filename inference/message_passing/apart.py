"""Message passing of sequences at known parameters, which no factor joins: each ends at its own sweep."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..families import tree_map
from .engine import VMP


def run_apart(engine: VMP, n_axes: int, max_steps: int, tol: float) -> list[tuple[Tensor, bool]]:
    """Sweep until no bound of a sequence changes by more than `tol` of itself, or `max_steps` times: `VMP.run` of each.

    Arguments:
        n_axes: the number of leading axes of blocks without a prior. The last axis is that of sequences, the others are
            those of restarts, which end together.

    Returns:
        For each sequence the bound after each of its sweeps, `[steps, *restarts]`, and whether it converged. The blocks
        are those after each sequence's last sweep.
    """
    trace: list[Tensor] = []
    n_steps: list[int] = []
    kept: dict[str, Any] = {}
    going = torch.ones((), dtype=torch.bool, device="cpu")
    while len(trace) < max_steps and bool(going.any()):
        engine.run(1, 0.0)
        trace.append(engine.bounds(n_axes))
        etas = {name: block.eta for name, block in engine.blocks.items() if block.prior is None}
        if len(trace) == 1:
            kept, going = etas, torch.ones_like(trace[0], dtype=torch.bool).reshape(-1, trace[0].shape[-1])[0]
            n_steps = [max_steps] * len(going)
            continue
        kept = etas if bool(going.all()) else _chosen(going, etas, kept, n_axes)
        settled = ((trace[-1] - trace[-2]).abs() <= tol * trace[-1].abs()).reshape(-1, len(going)).all(0)
        for sequence in (settled & going).nonzero().flatten().tolist():
            n_steps[sequence] = len(trace)
        going = going & ~settled
    for name, eta in kept.items():
        engine.put(replace(engine.blocks[name], eta=eta))
    bounds = torch.stack(trace)
    ended = (~going).tolist()
    return [(bounds[:n, ..., sequence], ended[sequence]) for sequence, n in enumerate(n_steps)]


def _chosen(going: Tensor, new: dict[str, Any], old: dict[str, Any], n_axes: int) -> dict[str, Any]:
    """The new natural parameters of the sequences that go on, and the old ones of others."""

    def chosen(now: Tensor, before: Tensor) -> Tensor:
        return torch.where(going.reshape(-1, *[1] * (now.ndim - n_axes)), now, before)

    return {name: tree_map(chosen, eta, old[name]) for name, eta in new.items()}
