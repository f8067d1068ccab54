"""`LayeredSSM.fit`: all layers and all their tables by message passing; see `coupled_fit`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...inference.families import CopyPaths
from ...inference.message_passing.engine import VMP, Block
from ..data.series import Sequences
from ..fitting.conjugate import emitters
from ..fitting.message_passing import center
from ..fitting.posterior import moved
from ..fitting.starts import first_labels
from ..parameters import Parameters
from .contract import paths_of
from .fit import (
    CoupledFit,
    CoupledPosterior,
    asked,
    check_numbers,
    draws,
    emitted,
    flat_prior,
    fresh_states,
    gates,
    labels_above,
    means,
    parameter_blocks,
    paths_block,
    run,
    used,
)

if TYPE_CHECKING:
    from .layered import LayeredSSM


def fit_layers(
    model: "LayeredSSM", series: Sequences, restarts: int, max_steps: int, tol: float, seed: int, progress: bool
) -> CoupledFit:
    """See `LayeredSSM.fit`."""
    check_numbers(restarts, max_steps)
    about = center(model.emission, series.values)
    engine = layers_engine(model, series, about, restarts, seed)
    ended, best = run(engine, restarts, max_steps, tol, progress)
    posterior = CoupledPosterior(
        draw=lambda n, generator: _named(model, draws(parameter_blocks(best), n, generator), about),
        mean=_mean(model, best, about),
        blocks={name: block.eta[0] for name, block in parameter_blocks(best).items()},
    )
    fitted = replace(
        model,
        values={name: posterior.mean[name] for name in model.emission.event_dims},
        redraw_prob=posterior.mean["redraw_prob"],
        tables=[posterior.mean[f"table_{layer}"] for layer in range(1, model.n_layers)],
        state_probs=posterior.mean["state_probs"],
    )
    chains = [f"layer_{layer}" for layer in range(1, model.n_layers + 1)]
    return CoupledFit(
        model=fitted,
        method="vmp",
        objective=ended.objective,
        converged=ended.converged,
        steps=len(ended.objective),
        restarts=ended.final,
        paths=paths_of(used(best, chains), ended.objective, ended.converged),
        posterior=posterior,
        interrupted=ended.interrupted,
    )


def layers_engine(model: "LayeredSSM", series: Sequences, about: Tensor, restarts: int, seed: int) -> VMP:
    """Blocks and factors of model and parameters; the observations are counted from `about`."""
    x, n_axes, sizes = series.values - about, series.values.ndim - 1, model.n_states
    rows = series.values.reshape(-1, x.shape[-1])
    prior = moved({n: t.to(x) for n, t in model.emission.default_prior(sizes[0], rows).items()}, -about)
    blocks, factors, paths, labels = [], [], [], torch.empty(0)
    for e in emitters(model.emission):
        own = {name.removeprefix(e.prefix): table for name, table in prior.items() if name.startswith(e.prefix)}
        eta = e.piece.prior(own)
        blocks.append(Block(e.block, e.piece.family, eta, eta.expand(restarts, *eta.shape)))
        gate = "both" if len(prior) == len(own) else "held" if e.prefix else "drawn"
        factors.append(emitted(e, "layer_1", x, own, gate))
    for i, k in enumerate(sizes, start=1):
        chain, above = f"layer_{i}", f"layer_{i + 1}"
        blocks.append(flat_prior(f"redraw_{i}", 2, like=x, restarts=restarts))
        factors.append(gates(f"redraw_{i}", chain, n_axes))
        if i < len(sizes):
            blocks.append(flat_prior(f"table_{i}", sizes[i], k, like=x, restarts=restarts))
            factors.append(asked(f"table_{i}", chain, above, n_axes))
        else:
            blocks.append(flat_prior("state", k, like=x, restarts=restarts))
            factors.append(fresh_states("state", chain, n_axes))
        if i == 1:
            labels = first_labels(model.emission, series, k, restarts, seed)
        else:
            labels = labels_above(series, labels, sizes[i - 2], k, seed)
        paths.append(paths_block(chain, labels, k, series))
    return VMP([*blocks, *paths], factors, restarts)


def _mean(model: "LayeredSSM", engine: VMP, about: Tensor) -> Parameters:
    found = {
        name: means(engine, name)
        for name, block in engine.blocks.items()
        if not isinstance(block.family, CopyPaths) and name not in ("emission", "background")
    }
    emission = {}
    for e in emitters(model.emission):
        own = e.piece.mean(engine.blocks[e.block].eta[0])
        emission |= {e.prefix + name: value for name, value in own.items()}
    return _renamed(model, found) | moved(emission, about)


def _named(model: "LayeredSSM", points: dict[str, Any], about: Tensor) -> Parameters:
    """Draws of the blocks under the parameters' names."""
    emission = {}
    for e in emitters(model.emission):
        emission |= {e.prefix + name: value for name, value in e.piece.named(points.pop(e.block)).items()}
    redraws = {n: torch.stack([p, 1 - p], -1) for n, p in points.items() if n.startswith("redraw")}
    return _renamed(model, points | redraws) | moved(emission, about)


def _renamed(model: "LayeredSSM", tables: dict[str, Tensor]) -> Parameters:
    redraws = [tables[f"redraw_{i}"][..., 0] for i in range(1, model.n_layers + 1)]
    found = {"redraw_prob": torch.stack(redraws, -1), "state_probs": tables["state"]}
    return found | {name: table for name, table in tables.items() if name.startswith("table")}
