r"""The parts of variational message passing: factors, the blocks that they join, and their checks.

A factor is one function, $E_q[\log f]$ of the expected statistics $\mu$ of its blocks, affine in each. Its message to a
block is the gradient. A block is one factor of q.

If a latent variable was summed out of a factor, its elog is a lower bound, convex in the statistics of some blocks. The
message to these is the gradient at the current statistics. The bound is above its tangent, so an update still raises
it.

If elog is neither affine nor convex in the statistics of a block, as $-E\,e^{\psi}$ of a normal $\psi$ is not, the
message is the gradient too (Knowles & Minka 2011, *Non-conjugate variational message passing*). A whole step may then
lower the bound, and the engine takes a shorter one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..families import Family, Stats, tree_map, tree_parts
from ..numerics.checks import broadcast_shapes


@dataclass(frozen=True)
class Factor:
    r"""A factor of the joint density, as one function.

    Attributes:
        elog: maps the expected statistics of `blocks`, in this order, to $E_q[\log f]$ of any plates; affine in each.
            Data and constants are in its closure; statistics may broadcast against them.
        blocks: names of the blocks that the factor joins.
        messages: by name of a block, a function of the same arguments that returns the gradient of the masked sum of
            elog with respect to that block's statistics, and uses only their shape. Pass it if it is faster than
            automatic differentiation. A part of a named tuple that is None is 0.
        mask: multiplies elog. Data where it is zero must still be finite numbers.
        scale: the weight of the factor.
        convex: names of the blocks in whose statistics elog is convex but maybe not affine. It is evaluated only at
            statistics that some eta has.
        curved: names of the blocks in whose statistics elog is smooth, but maybe neither affine nor convex; evaluated
            as for `convex`.
    """

    elog: Callable[..., Tensor]
    blocks: tuple[str, ...]
    messages: Mapping[str, Callable[..., Stats]] = field(default_factory=dict)
    mask: Tensor | None = None
    scale: float = 1.0
    convex: tuple[str, ...] = ()
    curved: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return getattr(self.elog, "__name__", type(self.elog).__name__)

    def is_affine(self, block: str) -> bool:
        """Whether elog is affine in the block's statistics."""
        return block not in self.convex and block not in self.curved

    def value(self, *stats: Stats) -> Tensor:
        """The masked elog."""
        value = self.elog(*stats)
        return value if self.mask is None else value * self.mask

    def message(self, block: str, *stats: Stats) -> Stats:
        """The term that the factor adds to the block's eta: with its shape, or broadcasting to it."""
        return self.messages[block](*stats) if block in self.messages else self.gradient(block, *stats)

    def gradient(self, block: str, *stats: Stats) -> Stats:
        """The message by automatic differentiation."""
        i = self.blocks.index(block)
        leaf = tree_map(lambda part: part.detach().requires_grad_(), stats[i])
        with torch.enable_grad():
            value = self.value(*stats[:i], leaf, *stats[i + 1 :]).sum()
            if not value.requires_grad:
                return tree_map(torch.zeros_like, stats[i])
            gradients = iter(torch.autograd.grad(value, tree_parts(leaf), materialize_grads=True))
        return tree_map(lambda _: next(gradients), leaf)


@dataclass(frozen=True)
class Block:
    """One factor of q.

    Attributes:
        name: the name of the block in factors.
        family: of its density.
        prior: natural parameters of its prior, broadcasting to those of q; None if only factors give its density.
        eta: natural parameters of q, whose shape the messages have; default: the prior.
        step: the fraction of the way from eta to its optimum in an update.
        scale: the weight of the block.
    """

    name: str
    family: Family[Any]
    prior: Stats = None
    eta: Stats = None
    step: float = 1.0
    scale: float = 1.0


def add_message(total: Stats, message: Stats, scale: float) -> Stats:
    """total + scale * message, where None, as a part or as the total, stands for nothing."""

    def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if b is None:
            return a
        scaled = b if scale == 1 else b * scale
        return scaled if a is None else a + scaled

    if isinstance(message, Tensor):
        return add(total, message)
    totals = [None] * len(message) if total is None else total
    return type(message)(*(add(a, b) for a, b in zip(totals, message, strict=True)))


def fit_message(message: Stats, eta: Stats) -> Stats:
    """A message in the full shape of eta. Raises RuntimeError or ValueError if it does not broadcast to it."""

    def fit(part: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if part is None else part.expand_as(like)

    if isinstance(message, Tensor) != isinstance(eta, Tensor):
        raise ValueError("a tensor where a named tuple is expected, or the other way round")
    return tree_map(fit, message, eta)


# Checks when an engine is built.


def by_name(blocks: Iterable[Block], restarts: int | None = None, check: bool = True) -> dict[str, Block]:
    """Blocks with their start, by name. Raises ValueError for an invalid block, see `Block`.

    Without `check`, natural parameters are assumed to be proper.
    """
    named: dict[str, Block] = {}
    for block in blocks:
        if block.name in named:
            raise ValueError(f"blocks: got two named {block.name!r}; give each its own name.")
        if block.prior is None and not block.family.latent:
            raise ValueError(
                f"block {block.name!r}: got no prior, but a {type(block.family).__name__} needs one; give `prior`."
            )
        if block.prior is None and block.eta is None:
            raise ValueError(
                f"block {block.name!r}: got neither prior nor eta; give `eta`, which sets its shape and its start."
            )
        named[block.name] = block if block.eta is not None else replace(block, eta=block.prior)
        if check:
            check_proper(named[block.name])
        for part in tree_parts(named[block.name].eta):
            _check_restarts(f"block {block.name!r}: eta", part, restarts)
        _check_prior(named[block.name])
    return named


def _check_prior(block: Block) -> None:
    pairs = () if block.prior is None else zip(tree_parts(block.prior), tree_parts(block.eta), strict=True)
    for prior, eta in pairs:
        if not _broadcasts(prior.shape, eta.shape) or prior.dtype != eta.dtype:
            raise ValueError(
                f"block {block.name!r}: prior has shape {list(prior.shape)} and {prior.dtype}, expected those of eta, "
                f"{list(eta.shape)} and {eta.dtype}, or a shape that broadcasts to it."
            )


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    try:
        return broadcast_shapes(shape, to) == to
    except ValueError:
        return False


class ImproperError(ValueError):
    """Natural parameters that do not give a density."""


def check_proper(block: Block) -> None:
    """Raise ValueError with the name if prior or eta are not parameters of a density."""
    for role, eta in (("prior", block.prior), ("eta", block.eta)):
        try:
            if eta is not None:
                block.family.check(eta)
        except ValueError as error:
            raise ImproperError(f"block {block.name!r}: its {role} is improper: {error}") from error


def neighbors(blocks: Mapping[str, Block], factors: Iterable[Factor]) -> dict[str, list[Factor]]:
    """The factors of each block. Raises ValueError if one names an unknown block, or a block has none."""
    joined: dict[str, list[Factor]] = {name: [] for name in blocks}
    for factor in factors:
        for name in factor.blocks:
            if name not in blocks:
                raise ValueError(
                    f"factor {factor.name!r}: got block {name!r}, expected one of {list(blocks)}; add a block."
                )
            joined[name].append(factor)
        if len(set(factor.blocks)) < len(factor.blocks) or not set(factor.messages) <= set(factor.blocks):
            raise ValueError(
                f"factor {factor.name!r}: got blocks {factor.blocks} and messages to {tuple(factor.messages)}; "
                "name each block once, and give messages to these only."
            )
    for name, factors_of_block in joined.items():
        if not factors_of_block:
            raise ValueError(f"block {name!r}: no factor names it, so it would never change; leave it out.")
    return joined


@torch.no_grad()
def check_factor(factor: Factor, blocks: Mapping[str, Block], restarts: int | None = None) -> set[str]:
    """Test that elog is affine in each block's statistics (or convex if declared), and that each message is its
    gradient m.

    For g affine and any u, v: g(u + v) + g(0) = g(u) + g(v), and sum(g(u) - g(0)) = <m, u>. A convex g is above its
    tangents, at statistics that some eta has. Where g is curved, m equals the gradient by automatic differentiation.

    Returns:
        The names of the blocks in which elog is not linear: g(0) is not 0, or g is not affine.

    Raises:
        ValueError: names the factor and the block.
    """
    etas = [blocks[name].eta for name in factor.blocks]
    u, v = ([_random_like(eta, seed + i) for i, eta in enumerate(etas)] for seed in (0, 1000))
    affine = [factor.is_affine(name) for name in factor.blocks]
    if not all(affine):  # this holds for non-negative weights of paths
        u = [
            tree_map(torch.abs, part) if factor.is_affine(name) else _typical(blocks[name], 1.0)
            for name, part in zip(factor.blocks, u, strict=True)
        ]
    at_u, not_linear = _value(factor, u), {*factor.convex, *factor.curved}
    _check_restarts(f"factor {factor.name!r}: elog", at_u, restarts)
    for i, name in enumerate(factor.blocks):
        message = _message(factor, name, u, u[i])
        if name in factor.curved:
            _check_derivative(factor, name, message, factor.gradient(name, *u))
            continue
        if not affine[i]:
            far = _typical(blocks[name], 2.0)
            _check_tangent(factor, name, message, u[i], far, at_u, _value(factor, [*u[:i], far, *u[i + 1 :]]))
            continue
        at_v, at_sum, at_zero = (
            _value(factor, [*u[:i], stats, *u[i + 1 :]])
            for stats in (v[i], tree_map(torch.add, u[i], v[i]), tree_map(torch.zeros_like, u[i]))
        )
        size = sum(value.abs().sum() for value in (at_u, at_v, at_sum, at_zero))
        if not (at_sum + at_zero - at_u - at_v).abs().sum() <= _tolerance(at_u) * size:
            raise ValueError(
                f"factor {factor.name!r}: elog is not affine in the statistics of block {name!r}; write it as a sum of "
                "products with at most one statistic of each block."
            )
        _check_gradient(factor, name, message, [(u[i], at_u, at_zero), (v[i], at_v, at_zero)])
        if at_zero.any():
            not_linear.add(name)
    return not_linear


def _tolerance(value: Tensor) -> float:
    return torch.finfo(value.dtype).eps ** 0.6  # 4e-10 in float64, 7e-5 in float32


def _message(factor: Factor, name: str, stats: list[Stats], like: Stats) -> Stats:
    message = factor.message(name, *stats)
    try:
        return fit_message(message, like)
    except (RuntimeError, ValueError) as error:
        got, expected = ([list(part.shape) for part in tree_parts(tree)] for tree in (message, like))
        raise ValueError(
            f"factor {factor.name!r}: its message to block {name!r} has shape {got}, expected that of eta, {expected}, "
            "or one that broadcasts to it."
        ) from error


def _check_gradient(factor: Factor, name: str, message: Stats, rises: list[tuple[Stats, Tensor, Tensor]]) -> None:
    for stats, at_stats, at_zero in rises:
        rise, rounding = at_stats - at_zero, torch.finfo(at_zero.dtype).eps * (at_stats.abs() + at_zero.abs()).sum()
        products = [a * b for a, b in zip(tree_parts(message), tree_parts(stats), strict=True)]
        gap = sum(product.sum() for product in products) - rise.sum()
        size = rise.abs().sum() + sum(product.abs().sum() for product in products)
        if not abs(gap) <= _tolerance(rise) * size + rounding:
            raise ValueError(
                f"factor {factor.name!r}: its message to block {name!r} is not the gradient of the masked elog; "
                "compare a closed form with `Factor.gradient`, and see that elog is differentiable."
            )


def _check_derivative(factor: Factor, name: str, message: Stats, gradient: Stats) -> None:
    for part, slope in zip(tree_parts(message), tree_parts(gradient), strict=True):
        if not (part - slope).abs().sum() <= _tolerance(slope) * slope.abs().sum():
            raise ValueError(
                f"factor {factor.name!r}: its message to block {name!r} is not the gradient of the masked elog; "
                "compare the closed form with `Factor.gradient`."
            )


def _check_tangent(
    factor: Factor, name: str, message: Stats, near: Stats, far: Stats, at_near: Tensor, at_far: Tensor
) -> None:
    pairs = zip(tree_parts(message), tree_parts(near), tree_parts(far), strict=True)
    rises = [m * (b - a) for m, a, b in pairs]
    rise = sum(part.sum() for part in rises)
    size = at_near.abs().sum() + at_far.abs().sum() + sum(part.abs().sum() for part in rises)
    if not at_far.sum() - at_near.sum() >= rise - _tolerance(at_near) * size:
        raise ValueError(
            f"factor {factor.name!r}: elog is declared convex in the statistics of block {name!r}, but lies below its "
            "tangent there; check that the message is the gradient, and that the bound is convex."
        )


def _check_restarts(role: str, tensor: Tensor, restarts: int | None) -> None:
    if restarts is not None and tensor.shape[:1] != (restarts,):
        raise ValueError(f"{role} has shape {list(tensor.shape)}, expected restarts = {restarts} as its first axis.")


def _value(factor: Factor, stats: list[Stats]) -> Tensor:
    try:
        return factor.value(*stats)
    except Exception as error:
        shapes = {name: [list(p.shape) for p in tree_parts(s)] for name, s in zip(factor.blocks, stats, strict=True)}
        error.add_note(f"raised by factor {factor.name!r}, given statistics of shapes {shapes}")
        raise


def _typical(block: Block, sharpness: float) -> Stats:
    """Statistics of a member of the block's family; greater `sharpness` means more certainty."""
    return block.family.mean(tree_map(lambda part: part * sharpness, block.eta))


def _random_like(eta: Stats, seed: int) -> Stats:
    def draw(part: Tensor) -> Tensor:
        generator = torch.Generator(part.device).manual_seed(seed)
        return torch.randn(part.shape, generator=generator, dtype=part.dtype, device=part.device)

    return tree_map(draw, eta)
