"""Running any network on a model's observations, and finding the belief in its states."""

from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...inference.numerics.checks import check_call
from ...inference.numerics.records import Record
from ...switching.data.series import Series
from ...switching.emissions.discrete import Categorical
from ...switching.model import SwitchingSSM
from ..networks.minimal import MinGRU, MinLSTM
from .probe import Probe, fit_probe
from .tokens import redrawn_start

Reads = Literal["belief", "logits", "probe"]
READINGS = get_args(Reads)


@dataclass(frozen=True, repr=False)
class Seen(Record):
    """A network's states on a series, [*b, T, D], what it read, [*b, T, I], and what its states mean."""

    hidden: Float[Tensor, "*b T D"]
    redraw: Float[Tensor, "*b T"] | None  # its gate, averaged over units, where its gates are draws
    inputs: Float[Tensor, "*b T I"]
    reads: str


def run(model: SwitchingSSM, layer: nn.Module, series: Series, inputs: Tensor | None, reads: str | None) -> Seen:
    """The states of a network on the observations of a series; beyond a sequence's end they mean nothing."""
    rows = network_inputs(model, series) if inputs is None else inputs
    if rows.shape[:-1] != series.observations.shape[:-1]:
        raise ValueError(
            f"inputs: got shape {list(rows.shape)}, expected {[*series.observations.shape[:-1], 'I']}, as x has."
        )
    parameter = next(iter(layer.parameters()), rows)
    rows = rows.to(parameter).nan_to_num(0.0)
    width = getattr(layer, "input_size", rows.shape[-1])
    if rows.shape[-1] != width:
        raise ValueError(
            f"inputs: the network reads {width} features, but x has {rows.shape[-1]}; build it for those, or give "
            "what it reads as `inputs`."
        )
    flat = rows.reshape(-1, *rows.shape[-2:])
    reads = meaning(layer, model.n_states) if reads is None else reads
    hidden = _states(layer, flat, redrawn=reads != "probe")
    redraw = None
    if _is_single(layer):
        redraw = layer.activations(rows).draw.mean(-1).to(series.observations)
        if reads != "probe":  # it started with a redraw
            redraw = torch.where(torch.arange(redraw.shape[-1], device=redraw.device) == 0, 1.0, redraw)
        redraw = torch.where(series.inside, redraw, 0.0)
    if reads != "probe" and hidden.shape[-1] != model.n_states:
        raise ValueError(
            f"reads: {reads!r} needs one unit for each of {model.n_states} states, but the network has "
            f'{hidden.shape[-1]}; use "probe".'
        )
    like = series.observations
    return Seen(hidden.to(like).reshape(*rows.shape[:-1], hidden.shape[-1]), redraw, rows.to(like), reads)


def network_inputs(model: SwitchingSSM, series: Series) -> Tensor:
    """What a network reads of a series: symbols as one-hot rows, anything else as it is; zeros where missing."""
    emission = model.emission.parts[0].emission
    if not isinstance(emission, Categorical):
        return series.observations.nan_to_num(0.0)
    symbol = series.observations[..., 0]
    rows = nn.functional.one_hot(symbol.nan_to_num(0.0).long(), emission.n_categories).to(symbol)
    return rows * (~symbol.isnan()).unsqueeze(-1)


def meaning(layer: nn.Module, n_states: int) -> str:
    """What a network's state is of a model of so many states; see `samplehold.models.bridge.comparison`."""
    if _is_single(layer) and layer.hidden_size == n_states:
        if layer.candidate == "simplex" and layer.block == n_states:
            return "belief"
        if layer.candidate == "linear":
            weights = [p if p.dim() > 1 else p.unsqueeze(1) for p in layer.parameters()]
            gates = torch.cat(weights, 1)[:-n_states]
            gates = gates.unflatten(0, (-1, n_states))
            if n_states > 1 and bool((gates == gates[:, :1]).all()):
                return "logits"
    return "probe"


def belief_of(seen: Seen, exact: Tensor, inside: Bool[Tensor, "*b T"]) -> tuple[Tensor, Probe | None]:
    """The belief [*b, T, K] in a network's states, and the probe that read it where one was needed."""
    if seen.reads == "probe":
        probe = fit_probe(seen.hidden, exact, seen.inputs, inside)
        return probe.state, probe
    belief = seen.hidden if seen.reads == "belief" else seen.hidden.softmax(-1)
    return torch.where(inside.unsqueeze(-1), belief, 0.0), None


def _is_single(layer: nn.Module) -> TypeGuard[MinGRU | MinLSTM]:
    """Whether it is one layer in one direction whose gates read the input alone."""
    return isinstance(layer, MinGRU | MinLSTM) and layer.num_layers == 1 and not layer.bidirectional


def _states(layer: nn.Module, rows: Tensor, redrawn: bool) -> Tensor:
    """States [N, T, D] of a network on rows [N, T, I]."""
    batch_first = getattr(layer, "batch_first", True)
    x = rows if batch_first else rows.movedim(0, 1)
    start: tuple[Any, ...] = ()
    if redrawn and isinstance(layer, MinGRU | MinLSTM):
        start = (redrawn_start(layer, x),)
    out = check_call("layer", layer, x, *start)
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.dim() != 3:
        raise ValueError(f"layer: {type(layer).__name__} returned no states [N, T, D]; give a recurrent layer.")
    return out if batch_first else out.movedim(1, 0)
