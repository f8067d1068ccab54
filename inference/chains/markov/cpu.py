r"""A finite Markov chain under observation on the CPU: which kernel takes which table, and the gradients.

- `markov_linear`, through `markov_scaled`, takes constant transition tables, and reports what it cannot be sure of.
- `markov_log` takes the rest: what the first one reports, and chains with a table for every step.
- `markov_paths` finds and draws paths.

All functions take `log_initial [*b, K]`, `log_transition [*b, S, K, K]` with S = 1 (constant) or T - 1,
`log_likelihood [*b, T, K]` and `lengths [*B]`, the batch axes of all tables broadcasting to *B; none is expanded. The
last thing they give is `failed` [*B], the first step of each sequence whose observation is impossible or not a number,
or -1; the rest means nothing where a sequence failed.

The gradient of log p(x) is the posterior, which `posterior` has at hand. All other gradients, and gradients of
gradients, are those of `vectorized.markov`, run again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...numerics.workers import in_parallel, ranges
from . import plain as vectorized
from .cpu_log import LogTables, filter_logs, smooth_logs
from .cpu_paths import best_paths, draw_paths
from .cpu_scaled import filter_scaled, smooth_scaled
from .cpu_tables import Tables, double, flatten, select

Results = tuple[Tensor, Tensor, Tensor]
Gradients = tuple[Tensor | None, ...]


def log_normalizer(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(x_1..T), [*B]; failed."""
    tables = (log_initial, log_transition, log_likelihood)
    differentiated = torch.is_grad_enabled() and any(table.requires_grad for table in tables)
    total, *_, failed = (posterior if differentiated else filter)(*tables, lengths)
    return total, failed


@torch.library.custom_op("samplehold::markov_filter", mutates_args=())
def filter(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p(x_1..T) [*B], P(s_t | x_1..t) [*B, T, K] and log p(x_t | x_1..t-1) [*B, T]; failed."""

    def quickly(tables: Tables) -> tuple[np.ndarray, Results]:
        scaled = filter_scaled(tables)
        return scaled.certain, (scaled.log_normalizer, scaled.state, scaled.log_increment)

    def exactly(tables: Tables) -> tuple[Tensor, Results]:
        log_state, increment, failed = _filter_logs(tables)
        return failed, (increment.sum(-1), log_state.exp_(), increment)

    return _answer(flatten(log_initial, log_transition, log_likelihood, lengths), lengths, quickly, exactly)


@torch.library.custom_op("samplehold::markov_posterior", mutates_args=())
def posterior(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p(x_1..T) [*B], P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K] by step or summed; failed."""

    def quickly(tables: Tables) -> tuple[np.ndarray, Results]:
        scaled = smooth_scaled(tables)
        return scaled.certain, (scaled.log_normalizer, scaled.state, scaled.counts.unsqueeze(1))

    def exactly(tables: Tables) -> tuple[Tensor, Results]:
        state, increment, failed = _filter_logs(tables)
        pairs = state.new_zeros(len(state), *tables.log_transition.shape[1:])
        _over_sequences(smooth_logs, tables, state, pairs)
        return failed, (increment.sum(-1), state, pairs)

    return _answer(flatten(log_initial, log_transition, log_likelihood, lengths), lengths, quickly, exactly)


def _answer(
    tables: Tables,
    lengths: Tensor,
    quickly: Callable[[Tables], tuple[np.ndarray, Results]],
    exactly: Callable[[Tables], tuple[Tensor, Results]],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Results for all sequences: `quickly`, which says of which ones it is certain, and `exactly` for the others."""
    failed = torch.full((lengths.numel(),), -1)
    if tables.log_transition.shape[1] == 1:
        certain, results = quickly(tables)
        (doubtful,) = np.nonzero(~certain)
        if len(doubtful):
            failed[doubtful], exact = exactly(double(select(tables, doubtful)))
            for table, rows in zip(results, exact, strict=True):
                table[doubtful] = rows.to(table.dtype)
    else:
        failed, (total, state, third) = exactly(double(tables))
        dtype = torch.from_numpy(tables.log_likelihood).dtype
        results = total.to(dtype), state.to(dtype), third.to(dtype)
    batched = (table.reshape((*lengths.shape, *table.shape[1:])) for table in (*results, failed))
    total, state, third, failed = batched
    return total, state, third, failed


def _filter_logs(tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """log P(s_t | x_1..t), log p(x_t | x_1..t-1), and failed."""
    n = len(tables.lengths)
    log_state = torch.empty(n, *tables.log_likelihood.shape[1:], dtype=torch.float64)
    increment, failed = torch.zeros(log_state.shape[:2], dtype=torch.float64), torch.full((n,), -1)
    _over_sequences(filter_logs, tables, log_state, increment, failed)
    return log_state, increment, failed


def _over_sequences(kernel: Callable[..., None], tables: Tables, *arrays: Tensor) -> None:
    """Run a kernel of `markov_log` or `markov_paths` over ranges of sequences."""
    _, n_tables, n_states, _ = tables.log_transition.shape
    read = LogTables._make([*(table.ravel() for table in tables), tables.log_likelihood.shape[1], n_tables, n_states])
    given = [array.view(-1).numpy() for array in arrays]
    in_parallel([partial(kernel, read, *given, first, last) for first, last in ranges(len(tables.lengths))])


@torch.library.custom_op("samplehold::markov_viterbi", mutates_args=())
def viterbi(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The most probable path [*B, T], -1 beyond a sequence's length; failed."""
    tables = double(flatten(log_initial, log_transition, log_likelihood, lengths))
    path = torch.empty(*lengths.shape, log_likelihood.shape[-2], dtype=torch.int64)
    failed = torch.full((lengths.numel(),), -1)
    _over_sequences(best_paths, tables, path, failed)
    return path, failed.view(lengths.shape)


@torch.library.custom_op("samplehold::markov_sample", mutates_args=())
def sample(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Paths [n, *B, T] drawn from the posterior by inverting its distribution at `uniform` [n, *B, T]; failed."""
    tables = double(flatten(log_initial, log_transition, log_likelihood, lengths))
    log_state, _, failed = _filter_logs(tables)
    path = torch.empty(uniform.shape, dtype=torch.int64)
    if not (failed >= 0).any():
        _over_sequences(draw_paths, tables, log_state, uniform.contiguous(), path)
    return path, failed.view(lengths.shape)


@filter.register_fake
def _(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_steps, n_states = log_likelihood.shape[-2:]
    shapes = (lengths.shape, (*lengths.shape, n_steps, n_states), (*lengths.shape, n_steps))
    total, state, increment = (log_likelihood.new_empty(shape) for shape in shapes)
    return total, state, increment, lengths.new_empty(lengths.shape)


@posterior.register_fake
def _(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    own = (log_likelihood.shape[-2:], log_transition.shape[-3:])
    state, transition = (log_likelihood.new_empty(*lengths.shape, *shape) for shape in own)
    return log_likelihood.new_empty(lengths.shape), state, transition, lengths.new_empty(lengths.shape)


@viterbi.register_fake
def _(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    return lengths.new_empty(*lengths.shape, log_likelihood.shape[-2]), lengths.new_empty(lengths.shape)


@sample.register_fake
def _(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    return uniform.new_empty(uniform.shape, dtype=torch.int64), lengths.new_empty(lengths.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output[1:3])
    ctx.set_materialize_grads(False)


def _differentiate(again: Callable[..., tuple[Tensor, ...]], ctx: Any, *grads: Tensor | None) -> Gradients:
    """Gradients of what `again`, in plain torch, computes from the same inputs."""
    *tables, lengths = ctx.saved_tensors[:4]
    wanted, further = ctx.needs_input_grad[:3], torch.is_grad_enabled()
    with torch.enable_grad():
        if not further:
            tables = [table.detach().requires_grad_(wants) for table, wants in zip(tables, wanted, strict=True)]
        given = [pair for pair in zip(again(*tables, lengths), grads, strict=True) if pair[1] is not None]
        if not given:  # nothing that came out is differentiated
            return None, None, None, None
        outputs, weights = zip(*given, strict=True)
        sources = [table for table, wants in zip(tables, wanted, strict=True) if wants]
        found = iter(torch.autograd.grad(outputs, sources, weights, create_graph=further, allow_unused=True))
    return *(next(found) if wants else None for wants in wanted), None


def _differentiate_posterior(
    ctx: Any, d_total: Tensor | None, d_state: Tensor | None, d_pairs: Tensor | None, _: None
) -> Gradients:
    if d_total is None or d_state is not None or d_pairs is not None:
        return _differentiate(vectorized.posterior, ctx, d_total, d_state, d_pairs, None)
    if torch.is_grad_enabled():  # someone will differentiate these gradients
        return _differentiate(vectorized.log_normalizer, ctx, d_total, None)
    *tables, _, state, pairs = ctx.saved_tensors
    beliefs = state[..., 0, :], pairs, state
    weighted = (
        (d_total.view(*d_total.shape, *[1] * (belief.dim() - d_total.dim())) * belief).sum_to_size(table.shape)
        for belief, table in zip(beliefs, tables, strict=True)
    )
    return *(grad if wants else None for grad, wants in zip(weighted, ctx.needs_input_grad, strict=False)), None


filter.register_autograd(partial(_differentiate, vectorized.filter), setup_context=_save)
posterior.register_autograd(_differentiate_posterior, setup_context=_save)
