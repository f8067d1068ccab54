r"""Changes of the basis of the latent space that raise the bound, where single updates would be slow.

The likelihood is the same in all bases $s \to M s + b$, and only the prior prefers one. Updates move towards it by 1/T
per step. Here the divergences from the prior, which have a closed form in every basis, are minimised directly (Luttinen
2013, *Fast variational Bayesian linear state-space model*).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...inference.families import Gaussian, MatrixNormalWishart, NormalWishart, Point
from ...inference.message_passing.engine import VMP
from ...inference.numerics.deferred import deferred
from ...inference.numerics.placement import placed
from ..fitting.density import IMPOSSIBLE

STEPS = 12  # of each minimisation
CPU = torch.device("cpu")

JOINED = ("moves", "sights", "first", "recurrence")
"""The blocks that a basis changes."""

Etas = dict[str, Tensor]


def rebase(engine: VMP, paths: str) -> None:
    """Move the blocks of an engine, for all restarts and chains, to bases in which the bound is higher."""
    blocks = {name: engine.blocks[name] for name in JOINED if name in engine.blocks}
    families: dict[str, Any] = {name: block.family for name, block in blocks.items()}
    # on the host: many steps with small tables, and each step reads numbers
    here = placed([table for block in blocks.values() for table in (block.eta, block.prior)], CPU)
    etas, priors = dict(zip(blocks, here[::2], strict=True)), dict(zip(blocks, here[1::2], strict=True))
    n, like = engine.blocks[paths].eta.linear.shape[-1], etas["first"]
    chains = like.shape[:2]

    def divergence(steps: Tensor) -> Tensor:
        """The divergence from the prior of each chain of each restart, [R, C]."""
        moved, total = in_basis(families, etas, steps), steps.new_zeros(chains)
        for name, family in families.items():
            part = family.kl(moved[name], priors[name])
            part = part.flatten(2).sum(-1) if part.ndim > 2 else part
            total = total + (part if chains[1] > 1 else part.sum(-1, keepdim=True))
        return total

    steps = like.new_zeros(*chains, n * (n + 1)).requires_grad_()
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
            lower = divergence(steps) < divergence(torch.zeros_like(steps))
            moved = in_basis(families, etas, torch.where(lower.unsqueeze(-1), steps, 0.0).detach())
    except IMPOSSIBLE:
        return
    device = engine.blocks[paths].eta.linear.device
    with deferred():
        for block, eta in zip(blocks.values(), placed([moved[name] for name in blocks], device), strict=True):
            engine.put(replace(block, eta=eta))
        engine.update(paths)


def in_basis(families: dict[str, Any], etas: Etas, steps: Tensor) -> Etas:
    """Natural parameters of the blocks after $M = e^S$ and b; `steps` [R, C, L (L + 1)] has the entries of S and b.

    Tables of moves and sights are [R, K, ...], with as many regimes as chains, or any number with one chain.
    """
    n = _inner(families["moves"]).n_inputs - 1
    matrix = torch.linalg.matrix_exp(steps[..., : n * n].unflatten(-1, (n, n)))
    offset, last = steps[..., n * n :], torch.eye(n + 1, device="cpu")[n:].to(steps)
    rows = torch.cat([matrix, offset.unsqueeze(-1)], -1)
    whole = torch.cat([rows, last.expand(*rows.shape[:-2], 1, n + 1)], -2)
    back, back_whole = torch.linalg.inv(matrix), torch.linalg.inv(whole)
    rebased = {}
    family = _inner(families["moves"])
    q = family.usual(etas["moves"])
    loc = back_whole.mT @ q.loc @ matrix.mT + last.mT * offset.unsqueeze(-2)
    noise = back.mT @ q.scale_matrix @ back
    rebased["moves"] = family.natural(loc, whole @ q.weight @ whole.mT, q.df, noise)
    family = _inner(families["sights"])
    q = family.usual(etas["sights"])
    wide = whole if q.loc.ndim == whole.ndim else whole.unsqueeze(-3)
    narrow = back_whole if q.loc.ndim == whole.ndim else back_whole.unsqueeze(-3)
    rebased["sights"] = family.natural(narrow.mT @ q.loc, wide @ q.weight @ wide.mT, q.df, q.scale_matrix)
    family = _inner(families["first"])
    q = family.usual(etas["first"])
    loc = (matrix @ q.loc.unsqueeze(-1)).squeeze(-1) + offset
    rebased["first"] = family.natural(loc, q.kappa, q.df, back.mT @ q.scale_matrix @ back)
    if "recurrence" in families:  # weights of (s, e_j), where e_j is the indicator of regime j
        family = _inner(families["recurrence"])
        q = family.usual(etas["recurrence"])
        k = q.loc.shape[-1] - n
        there = torch.block_diag(torch.zeros(n, n, device="cpu"), torch.eye(k, device="cpu")).to(steps) + pad(
            matrix, (0, k, 0, k)
        )
        there = there + pad(offset.unsqueeze(-1).expand(*offset.shape, k), (n, 0, 0, k))
        here = torch.linalg.inv(there)
        loc = (here.mT @ q.loc.unsqueeze(-1)).squeeze(-1)
        rebased["recurrence"] = family.natural(loc, there @ q.precision @ there.mT)
    return rebased


def _inner(family: Any) -> Any:
    inner = family.family if isinstance(family, Point) else family
    assert isinstance(inner, MatrixNormalWishart | NormalWishart | Gaussian)
    return inner
