"""The inputs of the kernels of linear Gaussian chains, and the tables that they exchange.

Covariances do not depend on observations. So there is one set of them for each combination of parameters, lengths and
missing features. Entry b of `set_of` is the set of sequence b. Entry c of `..._of` is the table of set c, or for tables
of means that of sequence b; a shared table is stored once. All computations are in float64.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .tables import OWN_AXES, Tables

WIDTH = 8  # numbers of a vector, see `numerics.lanes`
LANES = 16  # sequences of one set of covariances that go side by side


class Model(NamedTuple):
    """What covariances are made of, for each set c."""

    transition: Any  # [n, S, L, L]
    transition_of: Any  # [C]
    state_factor: Any
    state_factor_of: Any
    emission: Any
    emission_of: Any
    observation_factor: Any
    observation_factor_of: Any
    initial_factor: Any
    initial_factor_of: Any
    seen: Any  # [n, T, F], or [1, 1, F] where all is
    seen_of: Any
    lengths: Any  # [C]
    directions: Any  # [L, q]
    n_steps: int
    least: float  # of an innovation's scale: the limit for "no noise"
    largest: float  # number that the tables can hold


class Sequences(NamedTuple):
    """What means are made of, for each sequence b."""

    x: Any  # [n, T, F]
    x_of: Any  # [B]
    transition_offset: Any
    transition_offset_of: Any
    emission_offset: Any
    emission_offset_of: Any
    initial_mean: Any
    initial_mean_of: Any
    set_of: Any  # [B]
    groups: Any  # [n, LANES] sequences that go side by side, of one set, -1 for none


class Gains(NamedTuple):
    """Filtered sets of covariances. Row min(t, steady) is that of step t: from `steady` on nothing changes."""

    root: Any  # [C, T, F, F] of F_t, a lower triangle
    gain: Any  # [C, T, L, F], K_t times it
    predicted: Any  # [C, T, L, L]
    filtered: Any  # [C, T, L, L]
    back: Any  # [C, T, L, L] J: the whitened state of t is J times that of t + 1,
    drift: Any  # [C, T, L, F] plus this times the whitened innovation of t + 1,
    noise: Any  # [C, T, L, L] plus noise of this factor; empty unless asked for
    log_det: Any  # [C, T] of root
    steady: Any  # [C]
    fault: Any  # [C]


class Diffuse(NamedTuple):
    """The effect of the diffuse coordinates on means, and the information of innovations about them."""

    predicted: Any  # [C, T, L, q]
    filtered: Any  # [C, T, L, q]
    white: Any  # [C, T, F, q]
    turn: Any  # [C, T, q + F, q + F] rotation of the rows of the regression so far and of a step
    weight: Any  # [C, N, q, q] from the regression's right side to the coordinates, N = T, or the end alone
    spread: Any  # [C, N, q, q] factor of their covariance
    open: Any  # [C, N, q, q] directions that are not determined
    rest: Any  # [C, N, q, q] projection on the unexplained part
    log_det: Any  # [C, N]


class Room(NamedTuple):
    """Where a group of sequences is worked on. What is kept by step has the lanes of the group innermost."""

    white: Any  # whitened innovations of all steps, or of one
    filtered: Any  # means of all steps; empty where they are not kept
    mean: Any
    moved: Any
    turned: Any
    side: Any  # right side of the regression
    weights: Any  # diffuse coordinates
    total: Any  # log p(x)
    cost: Any
    rest: Any  # the part that the regression has not yet explained


def model_of(tables: Tables) -> Model:
    shape, info = tables.shared_shape, torch.finfo(tables.x.dtype)
    n = shape.numel()
    names = ("transition", "state_factor", "emission", "observation_factor", "initial_factor")
    parts = [part for name in names for part in _flat(tables, name, shape)]
    none = np.ones((1, 1, tables.x.shape[-1]), np.bool_), np.zeros(n, np.int64)
    lengths = np.full(n, tables.n_steps) if tables.lengths is None else tables.lengths.expand(shape).reshape(-1).numpy()
    seen = none if tables.seen is None else _flat(tables, "seen", shape)
    directions = _array(tables.directions.double())
    limits = float(info.eps), float(info.max)
    return Model._make([*parts, *seen, np.ascontiguousarray(lengths), directions, tables.n_steps, *limits])


def sequences_of(tables: Tables) -> Sequences:
    shape, shared = tables.batch_shape, tables.shared_shape
    names = ("x", "transition_offset", "emission_offset", "initial_mean")
    parts = [part for name in names for part in _flat(tables, name, shape)]
    set_of = _number(shared, shape)
    return Sequences(*parts, set_of=set_of, groups=_groups(set_of))


def _groups(set_of: np.ndarray) -> np.ndarray:
    order = np.argsort(set_of, kind="stable")
    counts = np.bincount(set_of, minlength=1)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its set
    most = int(counts.max(initial=0))  # of a set; sizes alone decide, so that results do not depend on threads
    size = LANES if most >= 2 * LANES else max(1, min(WIDTH, most))
    rows = np.cumsum(-(-counts // size)) - -(-counts // size)
    groups = np.full((int((-(-counts // size)).sum()), LANES), -1)
    groups[np.repeat(rows, counts) + place // size, place % size] = order
    return groups


def _flat(tables: Tables, name: str, shape: torch.Size) -> tuple[np.ndarray, np.ndarray]:
    table = getattr(tables, name)
    if name not in ("x", "seen"):  # one kernel for both dtypes, of whose arithmetic all is in float64
        table = table.double()
    batch = table.shape[: table.dim() - OWN_AXES[name]]
    return _array(table).reshape(batch.numel(), *table.shape[len(batch) :]), _number(batch, shape)


def _number(batch: torch.Size, shape: torch.Size) -> np.ndarray:
    """The batch entry for each entry of a shape to which the batch broadcasts."""
    return (np.arange(batch.numel()).reshape(batch) + np.zeros(shape, np.int64)).ravel()


def _array(table: Tensor) -> np.ndarray:
    return table.detach().contiguous().numpy()


def gains_for(model: Model, *, smoothing: bool) -> Gains:
    """Memory for the filtered sets, of which no page is touched that is not written."""
    (n_features, n_states), n, n_steps = model.emission.shape[-2:], len(model.lengths), model.n_steps
    n_kept = n_steps if smoothing else 0
    return Gains(
        root=np.empty((n, n_steps, n_features, n_features)),
        gain=np.empty((n, n_steps, n_states, n_features)),
        predicted=np.empty((n, n_steps, n_states, n_states)),
        filtered=np.empty((n, n_steps, n_states, n_states)),
        back=np.empty((n, n_kept, n_states, n_states)),
        drift=np.empty((n, n_kept, n_states, n_features)),
        noise=np.empty((n, n_kept, n_states, n_states)),
        log_det=np.empty((n, n_steps)),
        steady=np.empty(n, np.int64),
        fault=np.full(n, -1),
    )


def diffuse_for(model: Model, *, by_step: bool) -> Diffuse:
    (n_features, n_states), n, n_steps = model.emission.shape[-2:], len(model.lengths), model.n_steps
    q = model.directions.shape[1]
    n_steps, n_kept = (n_steps, n_steps if by_step else 1) if q else (0, 0)
    return Diffuse(
        predicted=np.empty((n, n_steps, n_states, q)),
        filtered=np.empty((n, n_steps, n_states, q)),
        white=np.empty((n, n_steps, n_features, q)),
        turn=np.empty((n, n_steps, q + n_features, q + n_features)),
        weight=np.empty((n, n_kept, q, q)),
        spread=np.empty((n, n_kept, q, q)),
        open=np.empty((n, n_kept, q, q)),
        rest=np.empty((n, n_kept, q, q)),
        log_det=np.empty((n, n_kept)),
    )


def room_for(model: Model, sequences: Sequences, *, keep: bool) -> Room:
    """For groups of any size; with all steps if they are to be kept."""
    (n_features, n_states), q = model.emission.shape[-2:], model.directions.shape[1]
    most = int((sequences.groups >= 0).sum(1).max(initial=1))
    n = 1 if most == 1 else -(-most // WIDTH) * WIDTH
    n_kept = model.n_steps if keep else 0
    return Room(
        white=np.zeros(max(1, n_kept) * n_features * n),
        filtered=np.empty(n_kept * n_states * n),
        mean=np.zeros(n_states * n),
        moved=np.empty(n_states * n),
        turned=np.empty(max(q + n_features, n_states) * n),
        side=np.empty(q * n),
        weights=np.empty(q * n),
        total=np.empty(n),
        cost=np.empty(n),
        rest=np.empty(n),
    )
