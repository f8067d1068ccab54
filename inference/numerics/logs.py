"""Sums of weights in logarithms, with finite derivatives.

An impossible event has the weight -inf in all input and output tables, and in the kernels, which compare before they
subtract. Recursions in plain torch that are differentiated run in float64 and replace -inf by `NEVER`: its exponential
is also 0, and no derivative contains inf - inf. It is below every supported weight, and millions of them can be added
without overflow.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .op import differentiated, transformed

NEVER = -1e300
POSSIBLE = NEVER / 2  # log-weights above this belong to possible events


def log_probability(p: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log p, -inf if p is 0; the gradient is 0 there, so an impossible event stays impossible."""
    if not differentiated(p):
        return p.clamp_min(0.0).log()
    possible = p > 0
    return torch.where(possible, torch.where(possible, p, 1.0).log(), -torch.inf)


def log_complement(p: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log(1 - p), -inf if p is 1; the gradient is 0 there."""
    if not differentiated(p):
        return torch.log1p(-p)
    possible = p < 1
    return torch.where(possible, torch.log1p(-torch.where(possible, p, 0.0)), -torch.inf)


def log_sigmoid(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log sigmoid(x). torch's own wakes all threads for a table of any size, and waits for them."""
    if not differentiated(x):
        return x.clamp_max(0.0) - x.abs().neg().exp().log1p()
    negative = x < 0
    at_least = torch.where(negative, x, 0.0)
    return at_least - torch.where(negative, x, -x).exp().log1p()


def log_sum_exp(x: Float[Tensor, "..."], dims: int | tuple[int, ...], keepdim: bool = False) -> Float[Tensor, "..."]:
    """log sum exp over `dims`; unlike `torch.logsumexp`, gradients are 0, not NaN, if every term is -inf.

    >>> x = torch.full((2, 3), -torch.inf, requires_grad=True)
    >>> total = log_sum_exp(x, -1)
    >>> total.tolist(), torch.autograd.grad(total, x, torch.ones(2))[0].sum().item()
    ([-inf, -inf], 0.0)
    """
    if not differentiated(x) and not transformed():
        return torch.logsumexp(x, dims, keepdim)
    top = x.detach().amax(dims, keepdim=True)
    top = torch.where(top.isneginf(), 0.0, top)
    total = (x - top).exp().sum(dims, keepdim)
    some = total > 0
    log_total = torch.where(some, torch.where(some, total, 1.0).log(), -torch.inf)
    return log_total + (top if keepdim else top.squeeze(dims))


def log_matmul(vector: Float[Tensor, "*b K"], matrix: Float[Tensor, "*c K L"]) -> Float[Tensor, "*bc L"]:
    """`log(exp(vector) @ exp(matrix))`, which stores nothing of the product's size for the backward pass.

    Batch axes broadcast. Differentiable any number of times; -inf gives exact zeros and finite gradients.
    """
    if not differentiated(vector, matrix) and not transformed():
        return _log_product(vector, matrix)  # without the overhead of a function of autograd
    product: Any = _LogMatmul.apply(vector, matrix)
    return product


def _log_product(vector: Tensor, matrix: Tensor) -> Tensor:
    return torch.logsumexp(vector.unsqueeze(-1) + matrix, -2)


class _LogMatmul(torch.autograd.Function):
    @staticmethod
    def forward(vector: Tensor, matrix: Tensor) -> Tensor:
        return _log_product(vector, matrix)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        vector, matrix, output = ctx.saved_tensors
        grad = grad_outputs[0].unsqueeze(-2) * _shares(vector, matrix, output)
        return grad.sum(-1).sum_to_size(vector.shape), grad.sum_to_size(matrix.shape)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        of_vector, of_matrix = tangents
        along = (0.0 if of_vector is None else of_vector.unsqueeze(-1)) + (0.0 if of_matrix is None else of_matrix)
        return (along * _shares(*ctx.saved_tensors)).sum(-2)


def _shares(vector: Tensor, matrix: Tensor, product: Tensor) -> Tensor:
    """The share of each entry of the vector in each entry of the product; 0 if the product is 0."""
    reached = torch.where(product == -torch.inf, 0.0, product)
    return torch.exp(vector.unsqueeze(-1) + matrix - reached.unsqueeze(-2))
