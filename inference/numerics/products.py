r"""Products of many rows with one matrix: `linear`, as in torch, by the faster of torch's two libraries.

In single precision torch multiplies by MKL, which uses half of a vector register on processors of other makers. oneDNN
uses all of it, but compiles code for every new shape. Both add in single precision, each in its own order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .op import Variants, beyond_kernels

_MIN_WORK = 2**26  # multiplications above which oneDNN with its compilation is not slower than MKL
_SUMMED = 8192  # rows that one thread adds up, for any number of rows

linear: Variants = Variants(functional.linear)
r"""$x W^\top + b$ of x [*b, N], a weight [M, N] and a bias [M] or None, as `torch.nn.functional.linear`."""


def with_ones(rows: Tensor) -> Tensor:
    """Rows [*b, C] after a column of ones, for products with coefficients of which the first is constant."""
    return torch.cat([rows.new_ones(*rows.shape[:-1], 1), rows], -1)


class _Linear(torch.autograd.Function):
    """Both ways by oneDNN; a backward pass that is itself differentiated is torch's."""

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
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _correlate(a: Tensor, b: Tensor) -> Tensor:
    """`a.T @ b` of [N, M] and [N, K], some rows at a time; for more rows, oneDNN would split the sum between
    threads."""
    pairs = zip(a.split(_SUMMED), b.split(_SUMMED), strict=True)
    return sum((_multiply(y.t(), x.t()).t() for x, y in pairs), a.new_zeros(()))


def _fastest(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    large = x.dim() > 1 and x.numel() * len(weight) >= max(_MIN_WORK, 1)
    single = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if large and single and torch.backends.mkldnn.enabled:
        return _Linear.apply(x, weight, bias)
    return functional.linear(x, weight, bias)


# the operator is there for torch's compiler, and not in every build
if torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    linear.kernel("cpu")(_fastest)
