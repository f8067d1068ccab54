"""Markov chains on the CPU: the sweeps of `inference/native/markov.cpp` behind the operators.

The library smooths each sequence in probabilities and, where digits could be lost, in logarithms. Few long sequences
are cut into parts.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...native.library import empty, integers
from ...numerics.native_calls import check_given
from .. import parts
from . import native_rows as native_rows  # has its kernels registered
from . import op
from .native_tables import Chains, read

Results = list[Tensor]


@op.filter.kernel("cpu")
def filter(*tables: Tensor) -> tuple[Tensor, ...]:
    chains, like, lengths = read(*tables), tables[2], tables[3]
    shapes = lengths.shape, (*lengths.shape, *like.shape[-2:]), (*lengths.shape, like.shape[-2])
    results = [empty(*shape, dtype=like.dtype) for shape in shapes]
    failed = empty(*lengths.shape, dtype=torch.int64)
    chains.run("markov_filter", like.dtype, *results, failed)
    return *results, failed


@op.posterior.kernel("cpu")
def posterior(*tables: Tensor) -> tuple[Tensor, ...]:
    chains, like, lengths = read(*tables), tables[2], tables[3]
    shapes = lengths.shape, (*lengths.shape, *like.shape[-2:]), (*lengths.shape, *tables[1].shape[-3:])
    results = [empty(*shape, dtype=like.dtype) for shape in shapes]
    failed = empty(*lengths.shape, dtype=torch.int64)
    if not (0 < chains.n < 8 and _in_parts(chains, tables, results, failed)):
        chains.run("markov_posterior", like.dtype, *results, failed)
    return *results, failed


def _in_parts(chains: Chains, tables: tuple[Tensor, ...], results: Results, failed: Tensor) -> bool:
    """Smooth few long sequences in parts; whether that was of use."""
    if tables[1].shape[-3] != 1:
        return False
    state, k, dtype = results[1], tables[2].shape[-1], results[0].numpy().dtype
    lengths = tables[3].reshape(-1).clamp(1, tables[2].shape[-2]).tolist()
    n_parts = parts.number_of_parts(min(lengths), chains.seconds)

    def run(name: str, windows: list[parts.Part], *others: Any) -> parts.Ends:
        rows, ended = np.array(windows), np.empty((len(windows), 2, 2, k), dtype)
        share = float((rows[:, 2] - rows[:, 1]).mean()) / max(lengths)
        of = chains.of_parts(len(windows), share, state.dtype)
        of.run(name, state.dtype, _at(rows), *others, _at(ended))
        return ended

    found = None if n_parts == 1 else parts.meet(lengths, n_parts, lambda w: run("markov_approach", w, state))
    if found is None:
        return False
    n_parts, meetings = found
    pieces = parts.between(lengths, n_parts)
    n = len(pieces)
    total, moves, doubtful = np.empty(n, dtype), np.empty((n, k, k), dtype), np.empty(n, np.int64)
    ended = run("markov_parts", pieces, _at(meetings), _at(total), state, _at(moves), _at(doubtful))
    if not ((doubtful < 0).all() and parts.were_right(meetings, pieces, ended)):
        return False
    for result, found in zip(results[::2], (total, moves), strict=True):
        result.copy_(torch.from_numpy(found.reshape(len(lengths), n_parts, -1).sum(1)).view(result.shape))
    failed.fill_(-1)
    return True


def _at(array: np.ndarray) -> Any:
    return ctypes.c_void_p(array.ctypes.data)


@op.viterbi.kernel("cpu")
def viterbi(*tables: Tensor) -> tuple[Tensor, ...]:
    chains, like, lengths = read(*tables), tables[2], tables[3]
    path, failed = (empty(*shape, dtype=torch.int64) for shape in ((*lengths.shape, like.shape[-2]), lengths.shape))
    chains.run("markov_viterbi", like.dtype, path, failed)
    return path, failed


@op.sample.kernel("cpu")
def sample(*arguments: Tensor) -> tuple[Tensor, ...]:
    *tables, uniform = arguments
    chains, lengths = read(*tables), tables[3]
    check_given("uniform", uniform, (len(uniform), *lengths.shape, tables[2].shape[-2]), torch.float64)
    path, failed = (empty(*shape, dtype=torch.int64) for shape in (uniform.shape, lengths.shape))
    of = integers(len(uniform), lengths.numel())
    chains.run("markov_sample", tables[2].dtype, of, uniform.contiguous(), path, failed)
    return path, failed
