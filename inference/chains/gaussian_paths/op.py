r"""The operators of Gaussian paths: chains of real vectors given by their natural parameters.

$$\log p(s_{1:T}) = \sum_t a_t^\top s_t + s_t^\top B_t s_t + s_{t+1}^\top C_t s_t - A$$

They take `linear` a [N, T, L], `square` B [N, T, L, L], `cross` C [N, T-1, L, L] and `lengths` [N], and compute in
float64 within. The last result is `failed [N]`, the first step of each sequence at which the precision is not positive
definite, or -1; the rest means nothing there.

The gradient of A are the moments E s, E s s', E s_t+1 s_t', which come out of the same pass.
"""

from torch import Tensor

from ...numerics.op import Call, Gradients, Op, beyond_kernels, blank, replay, tensors
from . import plain


def _by_moments(call: Call, d_value: Tensor | None, *others: Tensor | None) -> Gradients | None:
    """The gradient of A alone."""
    if d_value is None or any(grad is not None for grad in others):
        return None
    if beyond_kernels(d_value):
        return replay(plain.log_normalizer, call, (d_value,))
    _, first, second, crossed, _ = call.outputs
    weight = d_value[:, None, None, None]
    return weight[..., 0] * first, weight * second, weight * crossed, None


def _fake_moments(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    return blank(linear, lengths.shape), blank(linear), blank(square), blank(cross), blank(lengths)


def _fake_sample(linear: Tensor, square: Tensor, cross: Tensor, lengths: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    return blank(noise), blank(lengths)


_TABLES = "Tensor linear, Tensor square, Tensor cross, Tensor lengths"
moments: Op = Op(f"gaussian_paths({_TABLES}) -> {tensors(5)}", plain.moments, _fake_moments, _by_moments)
"""A [N], and E s, E s s', E s_t+1 s_t' in the shapes of the tables, 0 beyond the end; failed."""
sample: Op = Op(f"gaussian_paths_sample({_TABLES}, Tensor noise) -> {tensors(2)}", plain.sample, _fake_sample)
"""Draws [n, N, T, L] from standard normal numbers of that shape, 0 beyond the end; failed."""
