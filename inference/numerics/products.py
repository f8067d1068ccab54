r"""Products of many rows with one matrix: `linear`, as in torch, by the faster of torch's two libraries.

In single precision torch multiplies by MKL, which uses half of a vector register on processors of other makers than
Intel. oneDNN uses all of it, but compiles code for every new shape. Both add in single precision, each in its order.

On processors of Intel, MKL sums faster over many rows. It also writes large results into large pages. oneDNN takes its
memory from torch, where the first touch of small pages costs a sixth of the product.
"""

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..native.library import empty
from .op import Variants, beyond_kernels
from .threads import at_most_threads

_MIN_WORK = 2**26  # multiplications above which oneDNN with its compilation is not slower than MKL
_LARGE = 2**23  # numbers of a result for which the C library asks the system for new memory
_SUMMED, _FEW = 8192, 1024  # the most and the least rows that one thread adds up
_PIECES = 16  # whose sums are made at once

linear: Variants = Variants(functional.linear)
r"""$x W^\top + b$ of x [*b, N], a weight [M, N] and a bias [M] or None, as `torch.nn.functional.linear`."""


def with_ones(rows: Tensor) -> Tensor:
    """Rows [*b, C] after a column of ones, for products with coefficients of which the first is constant."""
    return torch.cat([rows.new_ones(*rows.shape[:-1], 1), rows], -1)


class _Linear(torch.autograd.Function):
    """Both ways by one library; a backward pass that is itself differentiated is torch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), wanted, plain = ctx.saved_tensors, ctx.needs_input_grad, beyond_kernels(grad)
        rows, of_rows = (table.reshape(-1, table.shape[-1]) for table in (x, grad))
        return (
            (grad @ weight if plain else _multiply(grad, weight.t())) if wanted[0] else None,
            (of_rows.t() @ rows if plain else _correlate(of_rows, rows)) if wanted[1] else None,
            of_rows.sum(0) if wanted[2] else None,
        )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if not _OF_INTEL or len(rows) * len(weight) < _LARGE or len(weight) == 1:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    out = empty(len(rows), len(weight), dtype=x.dtype)
    torch.mm(rows, weight.t(), out=out) if bias is None else torch.addmm(bias, rows, weight.t(), out=out)
    return out.view(*x.shape[:-1], len(weight))


def _correlate(a: Tensor, b: Tensor) -> Tensor:
    """`a.T @ b` of [N, M] and [N, K], summed over rows in the same order for any number of threads.

    A library divides a long sum among threads. MKL does not if it has several sums for each of them.
    """
    if not _OF_INTEL:
        pairs = zip(a.split(_SUMMED), b.split(_SUMMED), strict=True)
        return sum((_multiply(y.t(), x.t()).t() for x, y in pairs), a.new_zeros(()))
    total = a.new_zeros(b.shape[1], a.shape[1])
    for y, x in zip(a.split(_PIECES * _SUMMED), b.split(_PIECES * _SUMMED), strict=True):
        n = min(_PIECES, max(2, len(y) // _FEW))
        whole = len(y) // n * n  # the rest has fewer than n rows
        with at_most_threads(n):
            of_x, of_y = (table[:whole].unflatten(0, (n, whole // n)) for table in (x, y))
            total += torch.bmm(of_x.mT, of_y).sum(0)
        total.addmm_(x[whole:].t(), y[whole:])
    return total.t()


def _fastest(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    large = x.dim() > 1 and x.numel() * len(weight) >= max(_MIN_WORK, 1)
    single = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if large and single and torch.backends.mkldnn.enabled:
        return _Linear.apply(x, weight, bias)
    return functional.linear(x, weight, bias)


def _is_of_intel() -> bool:
    known = Path("/proc/cpuinfo")
    return "GenuineIntel" in (known.read_text() if known.exists() else platform.processor())


_OF_INTEL = torch.backends.mkl.is_available() and _is_of_intel()
# the operator is there for torch's compiler, and not in every build
if torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    linear.kernel("cpu")(_fastest)
