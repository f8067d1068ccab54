"""Markov chains on the CPU: the sweeps of `inference/native/markov.cpp` behind the operators.

The library smooths each sequence in probabilities and, where digits could be lost, in logarithms. Few long sequences
are cut into parts.
"""

import ctypes
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...native.library import empty, function, integers, pointer
from ...numerics.native_calls import check_given
from ...numerics.threads import in_parallel
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
    if not (chains.group == 1 and chains.n and _in_parts(chains, tables, results, failed)):
        chains.run("markov_posterior", like.dtype, *results, failed)
    return *results, failed


def _in_parts(chains: Chains, tables: tuple[Tensor, ...], results: Results, failed: Tensor) -> bool:
    """Smooth few long sequences in parts; whether that was of use."""
    if chains.seconds < 2 * parts.SECONDS or tables[1].shape[-3] != 1:
        return False
    lengths = tables[3].reshape(-1).clamp(1, tables[2].shape[-2]).tolist()
    n_parts = parts.number_of_parts(min(lengths), chains.seconds)
    found = None if n_parts == 1 else parts.meet(lengths, n_parts, partial(_approach, chains, results[1]))
    if found is None:
        return False
    n_parts, meetings = found
    pieces = parts.between(lengths, n_parts)
    total, moves, ended, sure = _smooth(chains, results[1], pieces, meetings)
    if not (sure and parts.were_right(meetings, pieces, ended)):
        return False
    for result, found in zip(results[::2], (total, moves), strict=True):
        result.copy_(torch.from_numpy(found.reshape(len(lengths), n_parts, -1).sum(1)).view(result.shape))
    failed.fill_(-1)
    return True


def _approach(chains: Chains, state: Tensor, windows: list[parts.Part]) -> parts.Ends:
    ended = _ends(state, len(windows))
    name = function("markov_approach", state.dtype)
    tasks = [
        partial(name, integers(*w[:3]), chains.block, pointer(state), _at(end))
        for w, end in zip(windows, ended, strict=True)
    ]
    in_parallel(tasks)
    chains.check()
    return ended


def _smooth(chains: Chains, state: Tensor, pieces: list[parts.Part], meetings: parts.Ends) -> tuple[Any, ...]:
    """log p(x), moves and last messages of each part, and whether all digits were kept."""
    n, k = len(pieces), state.shape[-1]
    total, moves, sure = np.empty(n), np.empty((n, k, k), meetings.dtype), np.empty(n, np.int64)
    ended = _ends(state, n)
    name = function("markov_part", state.dtype)
    tasks = []
    for i, part in enumerate(pieces):
        begun = [None if at < 0 else _at(meetings[at]) for at in part[3:]]
        results = (total[i:], pointer(state), moves[i], ended[i], sure[i:])
        addresses = [x if not isinstance(x, np.ndarray) else _at(x) for x in results]
        tasks.append(partial(name, integers(*part[:3]), chains.block, *begun, *addresses))
    in_parallel(tasks)
    chains.check()
    return total, moves, ended, bool(sure.all())


def _ends(state: Tensor, n: int) -> parts.Ends:
    return np.empty((n, 2, 2, state.shape[-1]), np.float64 if state.dtype == torch.float64 else np.float32)


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
