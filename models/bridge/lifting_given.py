r"""Any network with gates that read only their inputs, on any given inputs: the exact filter of copy chains.

For any inputs of a layer (real vectors, embeddings, the states of the layer below), its gates $g_t$ and candidates
$v_t$ are numbers once the inputs are given. Then $h_t = (1 - g_t)\, h_{t-1} + g_t v_t$ is a filter with the weights

$$fresh_t(s) = g_t\, r_t(s), \qquad held_t = 1 - g_t, \qquad \textstyle\sum_s fresh_t(s) + held_t = 1.$$

**Candidates that are a distribution** (a block of a simplex) are r, and the chain has a state for each unit of the
block.

**Any other candidate** is a number that stays in memory until the next draw. The latent variable is *the step of the
last draw*, $\tau_t \in \{0, \dots, t\}$. It is a copy chain with certain fresh states, $r_t = [\tau_t = t]$. For every
candidate and unit

$$h_t = E[v_{\tau_t}], \qquad P(\tau_t = \tau) = g_\tau \prod_{k=\tau+1}^t (1 - g_k), \qquad v_0 = h_0 .$$

Its tables would be T x T. But its path is a function of the gates, so the gates suffice. `last_draw` is the
distribution of $\tau_t$, and `memory` is the memory for given gates (sampled, or the most probable ones), in O(T). The
chain of such a unit, with tables of O(T), has the same gates and two states, lo and hi, the least and the greatest
number in the unit's memory, with $r_t = (v_t - lo)/(hi - lo)$, so $h_t = lo + (hi - lo)\, P(s_t = hi)$.

There is no density of x here: the weights of a step sum to one for any x. `LiftedNetwork.generative` says whether there
is a model of x too, over tokens or partly over Gaussian vectors.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod

from ...inference.chains.copy.chain import CopyChain
from ...inference.numerics.arrays import ordinary
from ...inference.numerics.checks import check_table
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_kind
from ..networks.inputs import batch_major, check_state, keep, observed, time_major, weight_of
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.qrnn import QRNN, QRNNState
from .lifting import between, check_liftable, check_settled, is_distribution, lift_tokens, split_network
from .lifting_gaussian import lift_gaussian


@dataclass(frozen=True, repr=False)
class LiftedLayer(Record):
    """One layer in one direction, given its inputs, read as C copy chains of K states: one for each unit, or for each
    simplex.

    If `reverse`, the layer reads backward, and the steps of all fields are in reading order. Chains are float64.

    Attributes:
        chain: with batch axes `[C, *b]`.
        levels: `[C, *b, K, U]`, the output of the chain's units in each state.
        value: `[*b, T, D]`, candidates.
        start: `[*b, D]`, the state before the first step.
        log_draw: `[C, *b, T]`, log g.
        log_hold: `[C, *b, T]`, log (1 - g).
        shown: `[*b, T, D]`, the output gates of fo-pooling; None: there are none.
        reverse: whether the layer reads backward.

    See Also:
        `LiftedNetwork.layers`, which makes it; `chains.CopyChain`, the type of its chain.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, x = sh.MinGRU(3, 2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
        >>> (lifted,) = sh.as_ssm(layer, inputs="given").layers(x)
        >>> bool((lifted.hidden() - layer(x)[0]).abs().max() < 1e-14)
        True
        >>> weights = lifted.last_draw()[0]  # of unit 0 after the last step: P of its 4 possible memories
        >>> bool((weights[1:] @ lifted.value[:, 0] - layer(x)[0][-1, 0]).abs() < 1e-14)  # h0 is 0
        True
        >>> lifted.memory(lifted.chain.viterbi().redraw).shape  # by the most probable gates
        torch.Size([3, 2])
    """

    chain: CopyChain
    levels: Float[Tensor, "C *b K U"]
    value: Float[Tensor, "*b T D"]
    start: Float[Tensor, "*b D"]
    log_draw: Float[Tensor, "C *b T"]
    log_hold: Float[Tensor, "C *b T"]
    shown: Float[Tensor, "*b T D"] | None
    reverse: bool

    def hidden(self) -> Float[Tensor, "*b T D"]:
        """The layer's states from the filter of the chains, in the order of time; 0 after the end of a sequence."""
        return self._in_time((self.chain.filter().state @ self.levels).movedim(0, -2).flatten(-2))

    def output(self) -> Float[Tensor, "*b T D"]:
        """The layer's outputs: its states, times the output gates if it has any."""
        return self.hidden() if self.shown is None else self._in_time(self.shown) * self.hidden()

    def draw(self) -> Float[Tensor, "*b T C"]:
        """Gates of all chains in the order of time: P(z_t = 1), a function of the layer's input."""
        return self._in_time(self.log_draw.exp().movedim(0, -1))

    def last_draw(self, step: int | None = None) -> Float[Tensor, "C *b n"]:
        """The distribution of the step at which the memory after `step` was drawn: P(tau), [C, *b, T + 1].

        Entry 0 is the start, and entry tau is step tau, counted from 1 in reading order.

        Arguments:
            step: from 0 to T - 1; None, or a step after a sequence's end: its last step.

        Raises:
            ValueError: there is no such step.
        """
        ends, steps = self.chain.lengths, self.chain.n_steps
        if step is not None:
            ends = ends.clamp(max=1 + check_integer("step", step, least=0, most=steps - 1))
        within = torch.arange(steps, device=ends.device) < ends.unsqueeze(-1)
        held = torch.where(within, self.log_hold, 0.0).flip(-1).cumsum(-1).flip(-1)  # from each step on
        later = torch.cat([held[..., 1:], torch.zeros_like(held[..., :1])], -1)
        drawn = torch.where(within, self.log_draw + later, -torch.inf)
        return torch.cat([held[..., :1], drawn], -1).exp()

    def memory(self, redraw: Bool[Tensor, "... T"]) -> Float[Tensor, "... D"]:
        """The memory of each unit, [*n, *b, T, D], for given gates [*n, C, *b, T] of the chains: the last drawn value.

        Its mean over `chain.sample(n, seed).redraw` tends to the states. Steps are in reading order.

        Arguments:
            redraw: the gates.

        Raises:
            ValueError: gates of another shape.
        """
        shape, steps = self.log_draw.shape, self.chain.n_steps
        check_kind("redraw", redraw, Tensor, "a tensor of booleans")
        if redraw.shape[redraw.dim() - len(shape) :] != shape:
            raise ValueError(f"redraw: got shape {list(redraw.shape)}, expected {['*n', *shape]}: gates of each chain.")
        at = torch.arange(1, steps + 1, device=redraw.device)
        last = torch.where(redraw.bool(), at, 0).cummax(-1).values.movedim(-len(shape), -1)  # [*n, *b, T, C]
        last = last.repeat_interleave(self.value.shape[-1] // shape[0], -1)
        numbers = torch.cat([self.start.unsqueeze(-2), self.value], -2)
        return numbers.expand(*last.shape[:-2], *numbers.shape[-2:]).gather(-2, last)

    def _in_time(self, table: Tensor) -> Tensor:
        return _turned(table, self.chain.lengths[0]) if self.reverse else table


@dataclass(frozen=True, repr=False)
class LiftedNetwork(Record):
    """A recurrent network on given inputs, read as copy chains layer by layer, each given the outputs of the layer
    below.

    Dropout is ignored.

    Attributes:
        network: the network.

    See Also:
        `as_ssm`, which makes it; `LiftedLayer`, one of its layers; `Lifted`, which has a density of its tokens.

    Example:
        >>> import torch, samplehold as sh
        >>> network = torch.nn.Sequential(torch.nn.Embedding(5, 3), sh.MinGRU(3, 4, num_layers=2)).double()
        >>> lifted, tokens = sh.as_ssm(network, inputs="given"), torch.tensor([[0, 3, 1, 4], [2, 2, 0, 1]])
        >>> bool((lifted.hidden(tokens) - network(tokens)[0]).abs().max() < 1e-14)  # from the filters of 4 + 4 chains
        True
        >>> [layer.chain.batch_shape for layer in lifted.layers(tokens)]
        [torch.Size([4, 2]), torch.Size([4, 2])]
        >>> list(lifted.generative)
        ['tokens', 'gaussian']
    """

    network: nn.Module

    @cached_property
    def generative(self) -> dict[str, str]:
        """Whether there is also a generative model of the inputs, by kind of inputs; if not, the reason.

        "tokens": "exact", if `as_ssm(network)` has densities of tokens. "gaussian": "candidates exact, gates in the
        limit", if `as_ssm(network, inputs="gaussian")` has densities of vectors. Otherwise "none: " and the reason.
        """
        kinds = {}
        ways = (("tokens", lift_tokens, "exact"), ("gaussian", lift_gaussian, "candidates exact, gates in the limit"))
        for name, lift, kind in ways:
            try:
                lift(self.network)
            except (ValueError, TypeError) as error:
                kind = f"none: {str(error).removeprefix('layer: ')}"
            kinds[name] = kind
        return kinds

    def layers(self, x: Tensor, h0: Any = None, lengths: Any = None) -> tuple[LiftedLayer, ...]:
        """The chains of every layer from the lowest; forward directions come before backward ones.

        Arguments:
            x, h0, lengths: as for the network; h0 and lengths as for the last module of a `Sequential`.

        Raises:
            ValueError: inputs that do not fit the network; x that is not finite.
        """
        return self._run(x, h0, lengths)[0]

    def hidden(self, x: Tensor, h0: Any = None, lengths: Any = None) -> Float[Tensor, "*b T D"]:
        """The outputs of the network, from the filters of all its chains; the network's recurrence is not run.

        Arguments:
            x: the inputs of the network.
            h0: the states before the first step, as in a call of the network.
            lengths: `[*b]`, the number of steps of each sequence; None: all.
        """
        return self._run(x, h0, lengths)[1]

    @torch.no_grad()
    def _run(self, x: Tensor, h0: Any, lengths: Any) -> tuple[tuple[LiftedLayer, ...], Tensor]:
        layer = check_liftable(split_network(self.network)[1])
        rows, counts = read_inputs(self.network, x, lengths)
        cells, inputs = _starts(layer, h0, rows.shape[:-2])
        lifted = []
        for k in range(layer.num_layers):
            sides = []
            for reverse in (False, True)[: _directions(layer)]:
                read, n = _turned(rows, counts) if reverse else rows, len(lifted)
                read = read if inputs is None else torch.cat([inputs[n], read], -2)
                lifted.append(_lift(layer, read, cells[n], k, reverse, counts))
                sides.append(lifted[-1].output().to(rows))
            rows = torch.cat(sides, -1)
        return tuple(lifted), time_major(rows, layer.batch_first)


def read_inputs(network: nn.Module, x: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
    """The inputs of the recurrent layers of a network for x, [*b, T, I], with zeros after each length; and the
    lengths."""
    front, layer = split_network(network)
    recurrent: Any = layer
    check_settled(front)
    for called in {network, layer}:
        check_no_hooks(called)
    rows = x if front is None else front(x)
    rows = batch_major(rows, recurrent.input_size, recurrent.batch_first, weight_of(layer, rows))
    if not rows.shape[-2]:
        raise ValueError(f"x: got shape {list(x.shape)}, expected at least one step.")
    some = observed(rows, lengths)
    return check_table("x", ordinary(keep(rows, some)), finite=True), None if some is None else some[0]


def check_no_hooks(module: nn.Module) -> None:
    """Raise an error if a call does more than the recurrence. Pruning is allowed, because it sets weights
    beforehand."""
    before = [hook for hook in module._forward_pre_hooks.values() if not isinstance(hook, BasePruningMethod)]
    if before or module._forward_hooks:
        raise ValueError(
            f"layer: its {type(module).__name__} has forward hooks, which the chains cannot include; remove them."
        )


def lift_given(network: nn.Module) -> LiftedNetwork:
    """See `samplehold.models.bridge.correspondence.as_ssm`."""
    check_liftable(split_network(network)[1])
    return LiftedNetwork(network)


def _lift(
    layer: MinGRU | MinLSTM | QRNN, rows: Tensor, start: Tensor, k: int, reverse: bool, counts: Tensor | None
) -> LiftedLayer:
    """The chains of layer k, whose rows are in reading order."""
    now = layer.activations(rows, k, *((True,) if reverse else ()))
    value, start = now.value.double(), start.double()
    batch, block = start.shape[:-1], None
    if not isinstance(layer, QRNN) and layer.candidate == "simplex" and is_distribution(start, layer.block, rows.dtype):
        block = layer.block
    if block is not None:
        fresh, belief = (table.unflatten(-1, (-1, block)) for table in (value, start))
        fresh, belief = fresh / fresh.sum(-1, keepdim=True), belief / belief.sum(-1, keepdim=True)
        levels = torch.eye(block).to(value).expand(start.shape[-1] // block, *batch, -1, -1)
    else:
        met = torch.cat([start.unsqueeze(-2), value], -2)
        if counts is not None:
            beyond = torch.arange(met.shape[-2], device=met.device) > counts.unsqueeze(-1)
            met = torch.where(beyond.unsqueeze(-1), start.unsqueeze(-2), met)
        low, high = met.amin(-2), met.amax(-2)
        fresh, belief = between(value, low.unsqueeze(-2), high.unsqueeze(-2)), between(start, low, high)
        levels = torch.stack([low, high], -1).movedim(-2, 0).unsqueeze(-1)
    log_draw, log_hold = (gate.double()[..., :: block or 1].movedim(-1, 0).log() for gate in (now.draw, now.hold))
    chain = CopyChain(
        belief.movedim(-2, 0).log(),
        log_draw.unsqueeze(-1) + fresh.movedim(-2, 0).log(),
        log_hold.unsqueeze(-1),
        None if counts is None else counts.expand(len(levels), *batch),
    )
    return LiftedLayer(chain, levels, value, start, log_draw, log_hold, _shown(layer, rows, k, reverse), reverse)


def _shown(layer: nn.Module, rows: Tensor, k: int, reverse: bool) -> Tensor | None:
    """Output gates of a QRNN with fo-pooling."""
    if not isinstance(layer, QRNN) or layer.pooling == "f":
        return None
    suffix = f"l{k}{'_reverse' if reverse else ''}"
    weight, bias = (getattr(layer, f"{part}_{suffix}") for part in ("weight", "bias"))
    kept = slice(2 * layer.hidden_size, None)
    offset = None if bias is None else bias[kept]
    return nn.functional.linear(layer._windows(rows), weight[kept].flatten(1), offset).sigmoid().double()


def _starts(layer: MinGRU | MinLSTM | QRNN, h0: Any, batch: torch.Size) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """States [L, *b, D] before the first step of each layer and direction, and the previous inputs of a QRNN."""
    state: Any = layer.initial_state(*batch) if h0 is None else h0
    expected = (layer.num_layers * _directions(layer), *batch, layer.hidden_size)
    if not isinstance(layer, QRNN):
        return check_state("h0", state, expected, weight_of(layer, state)), None
    check_kind("h0", state, QRNNState, "the QRNNState of an earlier call")
    return check_state("h0.cell", state.cell, expected, weight_of(layer, state.cell)), state.inputs


def _directions(layer: nn.Module) -> int:
    return 1 + bool(layer.bidirectional)


def _turned(rows: Tensor, lengths: Tensor | None) -> Tensor:
    """`rows` [*b, T, F] with each sequence's steps reversed, and the rows after its end unchanged."""
    if lengths is None:
        return rows.flip(-2)
    steps = torch.arange(rows.shape[-2], device=rows.device)
    index = torch.where(steps < lengths.unsqueeze(-1), lengths.unsqueeze(-1) - 1 - steps, steps)
    return rows.gather(-2, index.unsqueeze(-1).expand_as(rows))
