r"""Another basis of the latent space, under which the prior is more probable: a step that updates would take forever.

With $s \to M s + b$ nothing is said of x that was not said before, so that the likelihood, and what messages tell, are
the same in all bases, and only the prior chooses one: updates move there by 1/T a step. Here the divergences from the
prior, which are known in closed form in every basis, are climbed by themselves (Luttinen 2013, *Fast variational
Bayesian linear state-space model*).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...inference.families import MatrixNormalWishart, NormalWishart, Point
from ...inference.message_passing.engine import VMP
from ..fitting.density import IMPOSSIBLE

STEPS = 12  # of the climb, each time

Etas = dict[str, Tensor]


def rebase(engine: VMP, paths: str) -> None:
    """Move the blocks of an engine, of all restarts, to bases in which the bound is higher."""
    blocks = {name: engine.blocks[name] for name in ("moves", "sights", "first")}
    etas = {name: block.eta for name, block in blocks.items()}
    n, like = engine.blocks[paths].eta.linear.shape[-1], etas["first"]

    def divergence(steps: Tensor) -> Tensor:
        """Of each restart, [R]."""
        moved = in_basis({name: b.family for name, b in blocks.items()}, etas, steps)
        parts = [block.family.kl(moved[name], block.prior).flatten(1).sum(-1) for name, block in blocks.items()]
        return torch.stack(parts).sum(0)

    steps = torch.zeros(len(like), n * (n + 1), dtype=like.dtype, requires_grad=True)
    climb = torch.optim.LBFGS([steps], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        climb.zero_grad()
        total = divergence(steps).sum()
        total.backward()
        return total

    try:
        with torch.enable_grad():
            climb.step(closure)  # pyright: ignore[reportArgumentType]
        with torch.no_grad():
            found = torch.where((divergence(steps) < divergence(torch.zeros_like(steps))).unsqueeze(-1), steps, 0.0)
            moved = in_basis({name: block.family for name, block in blocks.items()}, etas, found.detach())
    except IMPOSSIBLE:
        return
    for name, block in blocks.items():
        engine.put(replace(block, eta=moved[name]))
    engine.update(paths)


def in_basis(families: dict[str, Any], etas: Etas, steps: Tensor) -> Etas:
    """Natural parameters of the blocks, [R, 1, ...], after $M = e^S$ and b, whose numbers are steps [R, L (L + 1)]."""
    n = _inner(families["moves"]).n_inputs - 1
    matrix = torch.linalg.matrix_exp(steps[:, : n * n].unflatten(-1, (n, n)))
    offset, last = steps[:, n * n :], torch.eye(n + 1)[n:].to(steps)
    whole = torch.cat([torch.cat([matrix, offset.unsqueeze(-1)], -1), last.expand(len(steps), 1, n + 1)], -2)
    matrix, offset, whole = matrix.unsqueeze(1), offset.unsqueeze(1), whole.unsqueeze(1)
    back, back_whole = torch.linalg.inv(matrix), torch.linalg.inv(whole)
    found = {}
    family = _inner(families["moves"])
    q = family.usual(etas["moves"])
    loc = back_whole.mT @ q.loc @ matrix.mT + last.mT * offset.unsqueeze(-2)
    noise = back.mT @ q.scale_matrix @ back
    found["moves"] = family.natural(loc, whole @ q.weight @ whole.mT, q.df, noise)
    family = _inner(families["sights"])
    q = family.usual(etas["sights"])
    wide = whole if q.loc.ndim == whole.ndim else whole.unsqueeze(-3)
    narrow = back_whole if q.loc.ndim == whole.ndim else back_whole.unsqueeze(-3)
    found["sights"] = family.natural(narrow.mT @ q.loc, wide @ q.weight @ wide.mT, q.df, q.scale_matrix)
    family = _inner(families["first"])
    q = family.usual(etas["first"])
    loc = (matrix @ q.loc.unsqueeze(-1)).squeeze(-1) + offset
    found["first"] = family.natural(loc, q.kappa, q.df, back.mT @ q.scale_matrix @ back)
    return found


def _inner(family: Any) -> Any:
    inner = family.family if isinstance(family, Point) else family
    assert isinstance(inner, MatrixNormalWishart | NormalWishart)
    return inner
