"""Starts of fits of switching linear models: a path of states, and labels of regimes.

The path comes from a single linear model, which starts from principal components of the series. Labels are clusters of
the path's position, change and variability around a step, or stretches of random lengths. With one chain, the regimes
then learn from this path, which is held for some sweeps. With a chain per regime, each chain learns from its own steps
while the labels are held.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...inference.families import GaussianTables
from ...inference.message_passing.engine import VMP
from ...inference.numerics.interrupts import may_interrupt
from ..data.series import Series
from ..emissions.clusters import clusters_among
from ..fitting.checkpoint import Checkpoint
from ..fitting.graph import Etas
from ..linear.starts import near_path
from ..parameters import Parameters
from .graph import CHAIN, LINEAR, SWITCH, annealed, engine_in, graph_of, priors_of, step_variance
from .layout import LinearRegimes

LOOP = "annealing"  # its name in a checkpoint
SURE = 4.0  # log odds of the labels at the start of the switch
NEAR = 100.0  # precision of the principal components as a path
SWEEPS = 30  # of the single linear model
WARM = 10  # of the blocks that are not held at first
KINDS = ("clusters", "stretches")
WIDTHS = (2, 8, 32, 1, 4, 16)  # steps on either side that clusters use
COOLING, AT_ONCE = 0.8, 4  # factor of the excess of a temperature over 1, and sweeps at each temperature
MEMORY = frozenset({"recurrence"})  # regimes that nothing makes last melt into one, as their regressions start at 0
HOT = (3.0, 1.5, 1.0)  # first temperatures; a start joins hotter ones when these have come down to its own


def single(layout: LinearRegimes, series: Series, fixed: Parameters) -> tuple[Etas, GaussianTables]:
    """Natural parameters [1, 1, ...] of the blocks of a single linear model, and of its path of states.

    Known entries determine the basis of the states, so the path then follows from them and from the priors.
    """
    alone, known = layout.together(fixed)
    path = components(layout.n_latent, series)
    priors = priors_of(alone, step_variance(path, series))
    start = near_path(path.unsqueeze(-3).unsqueeze(0), NEAR)
    points = alone.known_points(known)
    graph = graph_of(alone, series, priors, start, None, collect=dict).fixed_at(points)
    engine = graph.engine(graph.start(1), check=False, linear=LINEAR)
    for name in (CHAIN,) if "sights" in points else ("sights", CHAIN) if points else graph.families:
        engine.update(name)
    if engine.run(SWEEPS, 0.0).interrupted:
        raise KeyboardInterrupt  # the model itself has no result yet
    return {name: engine.blocks[name].eta for name in graph.families}, engine.blocks[CHAIN].eta


def paths_from(
    layout: LinearRegimes, series: Series, single: GaussianTables, labels: Tensor
) -> tuple[GaussianTables, Tensor | None]:
    """Starts of both paths, from a single model's path of states and labels [R, *b, T]."""
    shape = (len(labels), *series.batch_shape, layout.n_chains)
    states = GaussianTables(*(table.expand(*shape, *table.shape[len(shape) :]) for table in single))
    if layout.n_regimes == 1:
        return states, None
    return states, SURE * one_hot(labels, layout.n_regimes).to(series.observations)


def warmed(engine: VMP, one_chain: bool, kinds: Sequence[str], saving: Checkpoint) -> tuple[VMP, bool]:
    """The engine after some sweeps with the path or the labels held, and after annealing of its restarts, from
    different first temperatures; the user's start is not annealed.

    Ctrl-C ends this. The second value is whether Ctrl-C was pressed.
    """
    finished = saving.finished(LOOP)
    if finished is not None:
        return engine_in(engine, finished), False
    known = saving.start_loop(LOOP)
    labelled = CHAIN if one_chain else SWITCH
    order = [CHAIN, *(name for name in engine.blocks if name != CHAIN)]
    try:
        with may_interrupt():
            for _ in range(WARM if SWITCH in engine.blocks and known is None else 0):
                for name in order:
                    if name != labelled:
                        engine.update(name)
            hot = [1.0 if kind == "own" else HOT[_turn(place)] for place, kind in enumerate(kinds)]
            engine = annealed(engine, hot, COOLING, AT_ONCE, MEMORY, known, saving.note)
    except KeyboardInterrupt:
        saving.stop()
        return engine, True
    saving.end(lambda: engine.state(engine.blocks))
    return engine, False


def _turn(place: int) -> int:
    """The index of a start's first temperature; starts with similar labels get different ones."""
    number = place // len(KINDS)
    return (number + number // 3) % len(HOT)


def labels_of(k: int, inside: Tensor, path: Tensor, kinds: Sequence[str], seed: int) -> Tensor:
    """Labels [R, *b, T] of k regimes, one labelling for each of `kinds`; `path` is [*b, T, L]."""
    labellings = []
    for number, kind in enumerate(kinds):
        rng = np.random.default_rng([seed, number])
        turn = number // len(KINDS)
        labels = _clustered(path, inside, k, turn, rng) if kind == "clusters" else _stretches(inside.shape, k, rng)
        labellings.append(labels.to(path.device))
    return torch.stack(labellings)


def _clustered(path: Tensor, inside: Tensor, k: int, turn: int, rng: np.random.Generator) -> Tensor:
    """Clusters of the path's position, change and variability around each step.

    It is not known which of the three separates regimes, nor the best width, so starts vary both.
    """
    width = WIDTHS[turn // 3 % len(WIDTHS)]
    step = pad(path[..., 1:, :] - path[..., :-1, :], (0, 0, 1, 0))
    near = [_around(table, width) for table in (path, step, step.square())]
    parts = [near[0], near[1], (near[2] + 1e-6 * near[2].mean() + 1e-12).log()]
    scaled = [(feature - feature.mean()) / feature.std().clamp_min(1e-12) for feature in parts]
    weights = rng.dirichlet(np.ones(len(scaled))) + np.eye(len(scaled))[turn % len(scaled)]
    points = torch.cat([feature * weight for feature, weight in zip(scaled, weights.tolist(), strict=True)], -1)
    rows = points.double().reshape(-1, points.shape[-1])
    return clusters_among(rows, inside.flatten(), k, rng).reshape(inside.shape)


def _around(table: Tensor, width: int) -> Tensor:
    """Means over `width` steps on either side."""
    rows = table.reshape(-1, *table.shape[-2:]).mT
    width = min(width, table.shape[-2] - 1)
    return torch.nn.functional.avg_pool1d(rows, 2 * width + 1, 1, width, count_include_pad=False).mT.reshape(
        table.shape
    )


def _stretches(shape: tuple[int, ...], k: int, rng: np.random.Generator) -> Tensor:
    """Stretches of geometric length, about 2 to 20 for each regime in a sequence."""
    changes = rng.random(shape) < min(1.0, k * rng.uniform(2, 20) / shape[-1])
    turns = np.cumsum(changes, -1).clip(max=shape[-1] - 1)
    regimes = rng.integers(k, size=(*shape[:-1], shape[-1] + 1))
    return torch.from_numpy(np.take_along_axis(regimes, turns, -1))


def components(n: int, series: Series) -> Tensor:
    """n principal components of the series, or of stretches of it if it has too few features: [*b, T, L]."""
    x = torch.where(series.observations.isnan(), 0.0, series.observations) * series.inside.unsqueeze(-1)
    lags = 1 if x.shape[-1] >= n else -(-2 * n // x.shape[-1])
    rows = torch.cat([pad(x, (0, 0, lag, 0))[..., : x.shape[-2], :] for lag in range(lags)], -1)
    flat = rows.reshape(-1, rows.shape[-1])
    _, _, right = torch.linalg.svd(flat, full_matrices=False) if len(flat) <= 4096 else _of_squares(flat)
    scores = rows @ right[:n].mT
    if scores.shape[-1] < n:  # fewer steps than latents
        scores = pad(scores, (0, n - scores.shape[-1]))
    return scores / scores.reshape(-1, n).std(0).clamp_min(1e-6)


def _of_squares(flat: Tensor) -> tuple[None, None, Tensor]:
    _, vectors = torch.linalg.eigh(flat.mT @ flat)
    return None, None, vectors.flip(-1).mT
