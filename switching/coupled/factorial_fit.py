"""`FactorialSSM.fit` by message passing: all chains and all parameters; see `coupled_fit`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inference.families import MatrixNormalWishart
from ...inference.message_passing.engine import VMP
from ..data.series import Sequences
from ..parameters import Parameters
from .contract import paths_of
from .fit import (
    CoupledFit,
    CoupledPosterior,
    check_numbers,
    check_whole_steps,
    draws,
    flat_prior,
    fresh_states,
    gates,
    greedy_labels,
    joint_counts,
    joint_normal,
    means,
    noise_block,
    parameter_blocks,
    paths_block,
    rate_block,
    run,
    used,
)

if TYPE_CHECKING:
    from .factorial import FactorialSSM


def fit_chains(
    model: "FactorialSSM", series: Sequences, restarts: int, max_steps: int, tol: float, seed: int, progress: bool
) -> CoupledFit:
    """See `FactorialSSM.fit`."""
    check_numbers(restarts, max_steps)
    about = torch.zeros_like(model.loc[0][0])
    if model.precision is not None:
        check_whole_steps(series.values)
        about = series.values.reshape(-1, model.n_features).nanmean(0)
    engine = chains_engine(model, series, about, restarts, seed)
    ended, best = run(engine, restarts, max_steps, tol, progress)
    posterior = CoupledPosterior(
        draw=lambda n, generator: _named(model, draws(parameter_blocks(best), n, generator), about),
        mean=_mean(model, best, about),
        blocks={name: block.eta[0] for name, block in parameter_blocks(best).items()},
    )
    chains = range(1, model.n_chains + 1)
    fitted = replace(
        model,
        redraw_prob=posterior.mean["redraw_prob"],
        state_probs=[posterior.mean[f"state_probs_{d}"] for d in chains],
        loc=[posterior.mean[f"loc_{d}"] for d in chains],
        precision=posterior.mean.get("precision"),
    )
    return CoupledFit(
        model=fitted,
        method="vmp",
        objective=ended.objective,
        converged=ended.converged,
        steps=len(ended.objective),
        restarts=ended.final,
        paths=paths_of(used(best, [f"chain_{d}" for d in chains]), ended.objective, ended.converged),
        posterior=posterior,
        interrupted=ended.interrupted,
    )


def chains_engine(model: "FactorialSSM", series: Sequences, about: Tensor, restarts: int, seed: int) -> VMP:
    """Blocks and factors of model and parameters; the observations are counted from `about`."""
    x, n_axes, sizes = series.values - about, series.values.ndim - 1, model.n_states
    names = [f"chain_{d}" for d in range(1, model.n_chains + 1)]
    labels = greedy_labels(replace(series, values=x), sizes, restarts, seed)
    paths = [paths_block(name, own, k, series) for name, own, k in zip(names, labels, sizes, strict=True)]
    blocks, factors = [], []
    for d, (chain, k) in enumerate(zip(names, sizes, strict=True), start=1):
        blocks.append(flat_prior(f"redraw_{d}", 2, like=x, restarts=restarts))
        blocks.append(flat_prior(f"state_{d}", k, like=x, restarts=restarts))
        factors += [gates(f"redraw_{d}", chain, n_axes), fresh_states(f"state_{d}", chain, n_axes)]
    if model.precision is None:
        blocks += [rate_block(f"rate_{d}", x, k, len(sizes), restarts) for d, k in enumerate(sizes, start=1)]
        factors.append(joint_counts(x, names))
    else:
        blocks.append(noise_block(x, sum(sizes), restarts))
        factors.append(joint_normal(x, MatrixNormalWishart(sum(sizes)), sizes, names))
    return VMP([*blocks, *paths], factors, restarts)


def _mean(model: "FactorialSSM", engine: VMP, about: Tensor) -> Parameters:
    chains = range(1, model.n_chains + 1)
    found = {"redraw_prob": torch.stack([means(engine, f"redraw_{d}")[0] for d in chains])}
    found |= {f"state_probs_{d}": means(engine, f"state_{d}") for d in chains}
    if model.precision is None:
        return found | {f"loc_{d}": engine.stats(f"rate_{d}")[0, ..., 0] for d in chains}
    q = MatrixNormalWishart(sum(model.n_states)).usual(engine.blocks["noise"].eta[0])
    return found | _split(model, q.loc, about) | {"precision": q.df * q.scale_matrix}


def _named(model: "FactorialSSM", points: dict[str, Any], about: Tensor) -> Parameters:
    """Draws of the blocks under the parameters' names."""
    chains = range(1, model.n_chains + 1)
    found = {"redraw_prob": torch.stack([points[f"redraw_{d}"] for d in chains], -1)}
    found |= {f"state_probs_{d}": points[f"state_{d}"] for d in chains}
    if model.precision is None:
        return found | {f"loc_{d}": points[f"rate_{d}"].log() for d in chains}
    return found | _split(model, points["noise"].loc, about) | {"precision": points["noise"].precision}


def _split(model: "FactorialSSM", loc: Tensor, about: Tensor) -> Parameters:
    """The chains' locations from all of them below each other; each takes its share of `about`."""
    parts = loc.split(list(model.n_states), -2)
    return {f"loc_{d}": part + about / model.n_chains for d, part in enumerate(parts, start=1)}
