r"""Changes of the basis of the latent space that raise the bound, where single updates would be slow.

The likelihood is the same in all bases $s \to M s + b$, and only the prior prefers one. Updates move towards it by 1/T
per step. Here the divergences from the prior, which have a closed form in every basis, are minimised directly (Luttinen
2013, *Fast variational Bayesian linear state-space model*).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...inference.families import LocPrecision, Point
from ...inference.numerics.deferred import deferred
from ...inference.numerics.placement import placed
from ..ascent import Ascent, Differentiable
from ..fitting.density import IMPOSSIBLE

STEPS = 12  # of each minimisation
TOL = 1e-6  # nats that are not worth another step
CPU = torch.device("cpu")

JOINED = ("moves", "sights", "first", "recurrence")
"""The blocks that a basis changes."""


def rebase(engine: Any, paths: Sequence[str], shifted: bool = True) -> None:
    """Move the blocks of an engine, for all restarts and chains, to bases in which the bound is higher.

    Arguments:
        engine: a `VMP` or a `ChunkedVMP`.
        paths: the names of the blocks of paths in these bases; none if they follow from the parameters.
        shifted: whether a basis may have another origin, b.
    """
    moved = engine.ranks.gathered(lambda: _moved(engine, shifted))[0]  # all processes take that of the first
    if moved is None:
        return
    like = engine.blocks["first"].eta
    with deferred():
        for name, eta in zip(moved, placed(list(moved.values()), like.device), strict=True):
            engine.put(replace(engine.blocks[name], eta=eta))
        for name in paths:
            engine.update(name)


def _moved(engine: Any, shifted: bool) -> dict[str, Tensor] | None:
    """Natural parameters of the blocks in bases in which the bound is higher, on the host; None: there are none."""
    blocks = {name: engine.blocks[name] for name in JOINED if name in engine.blocks}
    families: dict[str, Any] = {name: block.family for name, block in blocks.items()}
    # on the host: many steps with small tables, and each step reads numbers
    here = placed([table for block in blocks.values() for table in (block.eta, block.prior)], CPU)
    etas, priors = dict(zip(blocks, here[::2], strict=True)), dict(zip(blocks, here[1::2], strict=True))
    # a linear map takes the most probable point to the most probable point
    points = {name: family.expected(etas[name]) for name, family in families.items() if isinstance(family, Point)}
    like, first = etas["first"], families["first"]
    inner: Any = first.family if isinstance(first, Point) else first
    n = inner.usual(like).loc.shape[-1]
    chains = like.shape[:2]
    open_steps = like.new_tensor([1.0] * n * n + [float(shifted)] * n)

    def divergence(steps: Tensor) -> Tensor:
        """The divergence from the prior of each chain of each restart, [R, C]."""
        basis, total = basis_of(steps * open_steps, n), steps.new_zeros(chains)
        for name, family in families.items():
            if name in points:
                part = family.kl_of(family.statistics(_moved_point(basis, name, points[name])), priors[name])
            else:
                part = family.kl(in_basis(basis, name, family, etas[name]), priors[name])
            part = part.flatten(2).sum(-1) if part.ndim > 2 else part
            total = total + (part if chains[1] > 1 else part.sum(-1, keepdim=True))
        return total

    def rise(flat: Tensor) -> Tensor:
        return -divergence(flat.unflatten(0, chains)).flatten()

    try:
        climb = Ascent(Differentiable(rise), like.new_zeros(chains.numel(), n * (n + 1)), TOL)
        climb.run(STEPS)
        with torch.no_grad():
            basis = basis_of(climb.point.unflatten(0, chains) * open_steps, n)
            return {name: in_basis(basis, name, family, etas[name]) for name, family in families.items()}
    except IMPOSSIBLE:
        return None


class Basis(NamedTuple):
    """A change of basis for each chain of each restart, [R, C, ...]."""

    matrix: Tensor  # M
    offset: Tensor  # b
    affine: Tensor  # [[M, b], [0, 1]]
    back: Tensor  # the inverse of M
    back_affine: Tensor  # the inverse of `affine`


def basis_of(steps: Tensor, n: int) -> Basis:
    """$M = e^S$ and b; `steps` [R, C, L (L + 1)] has the entries of S and b."""
    matrix, offset = torch.linalg.matrix_exp(steps[..., : n * n].unflatten(-1, (n, n))), steps[..., n * n :]
    rows = torch.cat([matrix, offset.unsqueeze(-1)], -1)
    affine = torch.cat([rows, _last(n, steps).expand(*rows.shape[:-2], 1, n + 1)], -2)
    return Basis(matrix, offset, affine, torch.linalg.inv(matrix), torch.linalg.inv(affine))


def in_basis(basis: Basis, name: str, family: Any, eta: Tensor) -> Tensor:
    """Natural parameters of a block in another basis.

    Tables of moves and sights are [R, K, ...], with as many regimes as chains, or any number with one chain.
    """
    family = family.family if isinstance(family, Point) else family
    q, affine = family.usual(eta), basis.affine
    if name == "recurrence":
        there = _of_regimes(basis, q.loc.shape[-1])
        return family.natural(_moved_loc(basis, name, q.loc), there @ q.precision @ there.mT)
    loc, scale_matrix = _moved_loc(basis, name, q.loc), _moved_precision(basis, name, q.scale_matrix)
    if name == "first":
        return family.natural(loc, q.kappa, q.df, scale_matrix)
    wide = affine if q.loc.ndim == affine.ndim else affine.unsqueeze(-3)
    return family.natural(loc, wide @ q.weight @ wide.mT, q.df, scale_matrix)


def _moved_point(basis: Basis, name: str, point: Any) -> Any:
    if isinstance(point, Tensor):
        return _moved_loc(basis, name, point)
    return LocPrecision(_moved_loc(basis, name, point.loc), _moved_precision(basis, name, point.precision))


def _moved_loc(basis: Basis, name: str, loc: Tensor) -> Tensor:
    matrix, offset, _, _, back_affine = basis
    if name == "moves":
        return back_affine.mT @ loc @ matrix.mT + _last(matrix.shape[-1], loc).mT * offset.unsqueeze(-2)
    if name == "sights":
        return (back_affine if loc.ndim == back_affine.ndim else back_affine.unsqueeze(-3)).mT @ loc
    if name == "first":
        return (matrix @ loc.unsqueeze(-1)).squeeze(-1) + offset
    return (torch.linalg.inv(_of_regimes(basis, loc.shape[-1])).mT @ loc.unsqueeze(-1)).squeeze(-1)


def _moved_precision(basis: Basis, name: str, precision: Tensor) -> Tensor:
    return precision if name == "sights" else basis.back.mT @ precision @ basis.back


def _last(n: int, like: Tensor) -> Tensor:
    """The last row of the whole, [1, L + 1]."""
    return torch.eye(n + 1, device="cpu")[n:].to(like)


def _of_regimes(basis: Basis, size: int) -> Tensor:
    """The change of (s, e_j), where e_j is the indicator of regime j."""
    n = basis.matrix.shape[-1]
    k = size - n
    there = torch.block_diag(torch.zeros(n, n, device="cpu"), torch.eye(k, device="cpu")).to(basis.matrix)
    offsets = pad(basis.offset.unsqueeze(-1).expand(*basis.offset.shape, k), (n, 0, 0, k))
    return there + pad(basis.matrix, (0, k, 0, k)) + offsets
