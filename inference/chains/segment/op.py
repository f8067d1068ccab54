"""What `SegmentChain` computes, each with its kernels; families are no tensors, so these are no operators of torch.

The gradient of log p(x) is that of `posterior`: with the statistics of a step, the expected statistics of its
parameter; with the prior, expected statistics summed over segments less those of the prior; with hazards, expected
numbers of changes and of steps without one. It is differentiated again as the plain form.
"""

from typing import Any

import torch
from torch import Tensor

from ...numerics.op import Variants, beyond_kernels, differentiated, dual
from . import paths, plain, plain_stream
from .plain import Forward, Functions, Smoothed
from .plain_stream import Memory, Rules
from .tables import Filtered, Tables


def plain_forward(steps: Tensor, tables: Tables, expect: Functions | None) -> tuple[Forward, Filtered | None]:
    return plain.forward(tables, expect)


def plain_smooth(steps: Tensor, tables: Tables, found: Forward, expect: Functions) -> Smoothed:
    return plain.smooth(tables, found, expect)


def _plain_viterbi(steps: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    return paths.viterbi(tables)


forwards: Variants = Variants(plain_forward)
smooths: Variants = Variants(plain_smooth)
viterbis: Variants = Variants(_plain_viterbi)


def forward(tables: Tables) -> Forward:
    return forwards(_steps(tables), tables, None)[0]


def filter(tables: Tables, expect: Functions | None = None) -> tuple[Forward, Filtered]:
    """By default the expectations are those of the families' statistics."""
    return forwards(_steps(tables), tables, means(tables) if expect is None else expect)


def smooth(tables: Tables, found: Forward, expect: Functions | None = None) -> Smoothed:
    """By default the expectations are those of the families' statistics; () are none."""
    return smooths(_steps(tables), tables, found, means(tables) if expect is None else expect)


def viterbi(tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """begun [N, T], log_probability [N], failed [N]."""
    return viterbis(_steps(tables), tables)


updates: Variants = Variants(plain_stream.update)


def update(x: Tensor, memory: Memory, rules: Rules, expect: Functions | None = None) -> tuple[Memory, Tensor]:
    """Some observations more, see `plain_stream.update`."""
    return updates(x, memory, rules, expect)


def log_normalizer(tables: Tables) -> tuple[Tensor, Tensor]:
    """log p(x) [N] and failed [N]; differentiable."""
    if dual(*tables.floats) or torch._C._are_functorch_transforms_active():
        value, _, failed = plain.log_normalizer(tables._replace(tol=0.0))
        return value, failed
    if differentiated(*tables.floats):
        return _Evidence.apply(tables, *tables.floats)  # pyright: ignore[reportReturnType]
    found = forward(tables)
    return plain.total(found), found.failed


def means(tables: Tables) -> Functions:
    return tuple(family.mean for family in tables.families)


def _steps(tables: Tables) -> Tensor:
    """The table whose device and dtype choose a kernel."""
    return tables.log_base


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tables: Tables, *floats: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            found = forward(tables.with_floats(tuple(x.detach() for x in floats)))
        ctx.tables, ctx.found = tables._replace(priors=(), statistics=()), found
        ctx.save_for_backward(*floats)
        ctx.mark_non_differentiable(found.failed)
        return plain.total(found), found.failed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        floats, grad = ctx.saved_tensors, grads[0]
        assert grad is not None
        wanted = ctx.needs_input_grad[1:]
        tables = ctx.tables.with_floats(floats)
        if beyond_kernels(grad):
            with torch.enable_grad():
                value = plain.log_normalizer(tables._replace(tol=0.0))[0]
                sources = [x for x, needed in zip(floats, wanted, strict=True) if needed]
                parts = iter(torch.autograd.grad(value, sources, grad, create_graph=True, allow_unused=True))
            return None, *(next(parts) if needed else None for needed in wanted)
        with torch.no_grad():
            return None, *(_times(grad, table) for table in gradient(tables, ctx.found))


def gradient(tables: Tables, found: Forward) -> tuple[Tensor, ...]:
    """The derivatives of log p(x) with all tables, like `Tables.floats`, [N, ...]."""
    tables = tables.with_floats(tuple(x.detach() for x in tables.floats))
    smoothed = smooth(tables, found)
    begun = smoothed.change.sum(-1)[:, None, None]
    priors = tuple(
        first - begun * family.mean(prior)
        for (family, prior, _), first in zip(tables.blocks(), smoothed.first, strict=True)
    )
    inside = tables.inside.to(tables.log_base)
    return *priors, *smoothed.expected, inside, *_of_hazards(tables, smoothed, inside)


def _of_hazards(tables: Tables, smoothed: Smoothed, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The expected numbers of changes, and of steps without, for each entry of the hazards."""
    if not tables.by_run:
        change = torch.cat([torch.zeros_like(smoothed.change[:, :1]), smoothed.change[:, 1:]], -1)
        hold = torch.cat([torch.zeros_like(change[:, :1]), inside[:, 1:] - change[:, 1:]], -1)
        return change, hold.clamp_min(0.0)
    assert smoothed.ended is not None
    assert smoothed.last is not None
    segments = smoothed.ended + smoothed.last
    later = segments.flip(-1).cumsum(-1).flip(-1)
    hold = torch.cat(
        [later[:, 1:], torch.zeros_like(later[:, :1])], -1
    )  # by steps so far, of which there are 1, 2, ...
    size = tables.log_change.shape[-1]
    index = torch.arange(tables.n_steps, device=segments.device).clamp(max=size - 1).expand_as(segments)
    count = torch.zeros_like(tables.log_change)
    return count.scatter_add(1, index, smoothed.ended), count.scatter_add(1, index, hold)


def _times(grad: Tensor, table: Tensor) -> Tensor:
    return grad.reshape(-1, *(1,) * (table.dim() - 1)) * table
