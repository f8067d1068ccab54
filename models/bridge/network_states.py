"""Run any network on a model's observations, and read the belief from its states."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from ...inference.numerics.checks import check_call, check_lengths
from ...inference.numerics.records import Record
from ...switching.data.series import Series
from ...switching.emissions.discrete import Categorical
from ...switching.model import SwitchingSSM
from ..networks.evidence import LogitGRU
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.qrnn import QRNN
from ..networks.recurrent import Recurrent, name_of
from ..networks.stack_network import StackRNN
from .lifting import split_network
from .lifting_given import LiftedNetwork
from .probe import Probe, fit_probe
from .tokens import redrawn_start

Reads = Literal["belief", "logits", "probe"]
READINGS = get_args(Reads)


@dataclass(frozen=True, repr=False)
class Seen(Record):
    """A network's states on a series, [*b, T, D], its gates, its inputs, and the meaning of its states."""

    hidden: Float[Tensor, "*b T D"]
    draw: Float[Tensor, "*b T U"] | None  # gates of all units, where they are draws
    inputs: Float[Tensor, "*b T I"]
    reads: str
    precision: float  # of the network's floats


def run(model: SwitchingSSM, layer: nn.Module, series: Series, inputs: Tensor | None, reads: str | None) -> Seen:
    """The states of a network on the observations of a series; after a sequence's end they have no meaning."""
    front, module = split_network(layer)
    rows = network_inputs(model, series) if inputs is None else inputs
    if rows.shape[:-1] != series.observations.shape[:-1]:
        raise ValueError(
            f"inputs: got shape {list(rows.shape)}, expected {[*series.observations.shape[:-1], 'I']}, as x has."
        )
    parameter = next(iter(layer.parameters()), rows)
    rows = rows.to(parameter).nan_to_num(0.0)
    flat = rows.reshape(rows.shape[:-2].numel(), *rows.shape[-2:])
    if front is not None:
        flat = _before(front, model, series, flat)
    width = getattr(module, "input_size", flat.shape[-1])
    if flat.shape[-1] != width:
        raise ValueError(
            f"inputs: the network reads {width} features, but x has {flat.shape[-1]}; build it for those, or give "
            "what it reads as `inputs`."
        )
    reads = meaning(module, model.n_states) if reads is None else reads
    counts = check_lengths(series.lengths, series.batch_shape, rows.shape[-2], flat.device)
    hidden = _states(module, flat, counts.reshape(-1), redrawn=reads != "probe")
    if reads != "probe" and hidden.shape[-1] != model.n_states:
        raise ValueError(
            f"reads: {reads!r} needs one unit for each of {model.n_states} states, but the network has "
            f'{hidden.shape[-1]}; use "probe".'
        )
    like, batch = series.observations, rows.shape[:-1]
    hidden = hidden.to(like).reshape(*batch, hidden.shape[-1])
    _check_finite(hidden, series.inside)
    draw = _gates(module, flat, counts.reshape(-1))
    draw = None if draw is None else draw.to(like).reshape(*batch, draw.shape[-1])
    if draw is not None and reads != "probe":  # it started with a redraw
        draw = torch.where((torch.arange(batch[-1], device=draw.device) == 0).unsqueeze(-1), 1.0, draw)
    return Seen(hidden, draw, rows.to(like), reads, torch.finfo(parameter.dtype).eps)


def network_inputs(model: SwitchingSSM, series: Series) -> Tensor:
    """The inputs of a network for a series: symbols as one-hot rows, other observations unchanged; zeros if missing."""
    emission = model.emission.parts[0].emission
    if not isinstance(emission, Categorical):
        return series.observations.nan_to_num(0.0)
    symbol = series.observations[..., 0]
    rows = nn.functional.one_hot(symbol.nan_to_num(0.0).long(), emission.n_categories).to(symbol)
    return rows * (~symbol.isnan()).unsqueeze(-1)


def meaning(layer: nn.Module, n_states: int) -> str:
    """The meaning of a network's state for a model of `n_states` states; see `samplehold.models.bridge.comparison`."""
    if isinstance(layer, MinGRU | MinLSTM) and layer.hidden_size == n_states and layer.num_layers == 1:
        if layer.bidirectional:
            return "probe"
        if layer.candidate == "simplex" and layer.block == n_states:
            return "belief"
        if isinstance(layer, LogitGRU):
            return "logits"
        if layer.candidate == "linear" and n_states > 1:
            weight, bias = (getattr(layer, name_of(part, 0)) for part in ("weight", "bias"))
            weights = [weight, *([] if bias is None else [bias.unsqueeze(1)])]
            gates = torch.cat(weights, 1)[:-n_states].unflatten(0, (-1, n_states))
            if bool((gates == gates[:, :1]).all()):
                return "logits"
    return "probe"


def belief_of(
    seen: Seen, exact: Tensor, inside: Bool[Tensor, "*b T"]
) -> tuple[Tensor, Probe | None, Int[Tensor, "K"] | None]:
    """The belief [*b, T, K] in a network's states, and the probe that read it, or the units by state."""
    if seen.reads == "probe":
        probe = fit_probe(seen.hidden, exact, seen.inputs, inside)
        return probe.state, probe, None
    belief = seen.hidden if seen.reads == "belief" else seen.hidden.softmax(-1)
    if seen.reads == "belief":
        _check_distributions(belief, inside, seen.precision**0.5)
        belief = belief.clamp_min(0.0)
    order = best_order(belief, exact, inside)
    return torch.where(inside.unsqueeze(-1), belief[..., order], 0.0), None, order


def best_order(belief: Tensor, exact: Tensor, inside: Bool[Tensor, "*b T"]) -> Int[Tensor, "K"]:
    """The unit for each state with the least total variation over all steps; the present order if it is as good."""
    exact_rows, belief_rows = exact[inside].double(), belief[inside].double()
    cost = torch.stack(
        [(exact_rows[:, k : k + 1] - belief_rows).abs().sum(0) for k in range(exact_rows.shape[-1])]
    ).cpu()
    _, units = linear_sum_assignment(cost.numpy())
    order, states = torch.from_numpy(units), torch.arange(len(cost), device="cpu")
    if cost[states, states].sum() <= cost[states, order].sum() * (1 + 1e-9):
        order = states
    return order.to(belief.device)


def _before(front: nn.Module, model: SwitchingSSM, series: Series, rows: Tensor) -> Tensor:
    """The output of the modules before a recurrent layer, for rows, or for indices if an `Embedding` comes first."""
    first = next(module for module in front.modules() if not list(module.children()))
    if not isinstance(first, nn.Embedding):
        return front(rows)
    symbols = series.observations[..., 0]
    if not isinstance(model.emission.parts[0].emission, Categorical):
        raise ValueError("layer: begins with an Embedding, but the model emits no symbols; give a network of vectors.")
    if bool((symbols.isnan() & series.inside).any()):
        raise ValueError(
            "x: has missing symbols, but an Embedding has no row for them; give a network of one-hot rows."
        )
    if first.num_embeddings < rows.shape[-1]:
        raise ValueError(
            f"layer: its Embedding has {first.num_embeddings} rows, but the model has {rows.shape[-1]} symbols."
        )
    return front(symbols.nan_to_num(0.0).long().reshape(-1, symbols.shape[-1]))


def _states(layer: nn.Module, rows: Tensor, lengths: Tensor, redrawn: bool) -> Tensor:
    """States [N, T, D] of a network on rows [N, T, I]; for a stack network, with the reading of its stack."""
    if isinstance(layer, StackRNN):
        passed = layer.run(rows if layer.batch_first else rows.movedim(0, 1))
        seen = torch.cat([passed.output, passed.reading], -1)
        return seen if layer.batch_first else seen.movedim(1, 0)
    batch_first = getattr(layer, "batch_first", True)
    x = rows if batch_first else rows.movedim(0, 1)
    start: tuple[Any, ...] = ()
    if redrawn and isinstance(layer, MinGRU | MinLSTM):
        start = (redrawn_start(layer, x),)
    ends = {"lengths": lengths} if isinstance(layer, Recurrent) and layer.bidirectional else {}
    out = check_call("layer", partial(layer, **ends), x, *start)
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.dim() != 3:
        raise ValueError(f"layer: {type(layer).__name__} returned no states [N, T, D]; give a recurrent layer.")
    return out if batch_first else out.movedim(1, 0)


def _gates(layer: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor | None:
    """Gates [N, T, U] of every chain of every layer, if gates are draws."""
    if not isinstance(layer, MinGRU | MinLSTM | QRNN) or getattr(layer, "pooling", "f") == "ifo":
        return None
    x = rows if layer.batch_first else rows.movedim(0, 1)
    return torch.cat([part.draw() for part in LiftedNetwork(layer).layers(x, None, lengths)], -1)


def _check_finite(hidden: Tensor, inside: Tensor) -> None:
    bad = inside & ~hidden.isfinite().all(-1)
    if bool(bad.any()):
        raise ValueError(f"layer: its states are not finite, first at {place_of(bad)}; give finite weights and inputs.")


def _check_distributions(belief: Tensor, inside: Tensor, tolerance: float) -> None:
    off = ((belief.sum(-1) - 1).abs() > tolerance) | (belief < -tolerance).any(-1)
    if bool((off & inside).any()):
        where = torch.nonzero(off & inside)[0].tolist()
        state = ", ".join(f"{value:.3g}" for value in belief[tuple(where)].tolist()[:6])
        raise ValueError(
            f'reads: got "belief", but the network\'s states are no distributions: at {place_of(off & inside)} they '
            f'are [{state}]; use reads="probe", or "logits" where they are log-probabilities.'
        )


def place_of(bad: Tensor) -> str:
    """The first marked step `[*b, T]`, as text."""
    *batch, step = torch.nonzero(bad)[0].tolist()
    return f"sequence {batch[0] if len(batch) == 1 else tuple(batch)}, step {step}" if batch else f"step {step}"
