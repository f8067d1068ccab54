"""The operators of linear Gaussian chains, whose values and errors `LinearGaussianChain` hands out.

All take the fields of `tables.Tables`. The last result is `fault [*b]`, see `tables`; the rest means nothing where one
is not -1. Covariances have the batch axes of `Tables.shared_shape` alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...numerics.op import Op, blank, tensors
from . import plain
from .tables import Tables

Results = tuple[Tensor, ...]


def _plain(function: Callable[..., Results]) -> Callable[..., Results]:
    n = len(Tables._fields)
    return lambda *inputs: function(Tables(*inputs[:n]), *inputs[n:])


def _fault(tables: Tables) -> Tensor:
    return blank(tables.x, tables.batch_shape, torch.int64)


def _fake_evidence(*inputs: Any) -> Results:
    tables = Tables(*inputs)
    return blank(tables.x, tables.batch_shape), _fault(tables)


def _fake_filter(*inputs: Any) -> Results:
    tables = Tables(*inputs)
    x, batch, shared = tables.x, tables.batch_shape, tables.shared_shape
    n_steps, n_states = tables.n_steps, tables.initial_mean.shape[-1]
    mean, covariance = (*batch, n_steps, n_states), (*shared, n_steps, n_states, n_states)
    diffuse = covariance if tables.n_diffuse else (*shared, 0, n_states, n_states)
    shapes = batch, (*batch, n_steps), mean, covariance, mean, covariance, diffuse, diffuse
    return *(blank(x, shape) for shape in shapes), _fault(tables)


def _fake_smooth(*inputs: Any) -> Results:
    tables = Tables(*inputs)
    x, batch, shared, n_states = tables.x, tables.batch_shape, tables.shared_shape, tables.initial_mean.shape[-1]
    shapes = (
        batch,
        (*batch, tables.n_steps, n_states),
        *((*shared, n, n_states, n_states) for n in (tables.n_steps, tables.n_steps - 1)),
    )
    return *(blank(x, shape) for shape in shapes), _fault(tables)


def _fake_sample(*inputs: Any) -> Results:
    tables = Tables(*inputs[:-2])
    return blank(inputs[-2]), _fault(tables)


_TABLES = (
    "Tensor x, Tensor? seen, Tensor? lengths, Tensor transition, Tensor transition_offset, Tensor state_factor, "
    "Tensor emission, Tensor emission_offset, Tensor observation_factor, Tensor initial_mean, Tensor initial_factor, "
    "Tensor directions"
)
evidence: Op = Op(f"linear_gaussian_evidence({_TABLES}) -> {tensors(2)}", _plain(plain.evidence), _fake_evidence)
filter: Op = Op(f"linear_gaussian_filter({_TABLES}) -> {tensors(9)}", _plain(plain.filter), _fake_filter)
smooth: Op = Op(f"linear_gaussian_smooth({_TABLES}) -> {tensors(5)}", _plain(plain.smooth), _fake_smooth)
sample: Op = Op(
    f"linear_gaussian_sample({_TABLES}, Tensor noise, Tensor diffuse_noise) -> {tensors(2)}",
    _plain(plain.sample),
    _fake_sample,
)
