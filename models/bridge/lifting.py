r"""From a network to a model: every minGRU or minLSTM layer over tokens is the exact filter of copy chains.

Let a layer read tokens $x$ with any probabilities $p(x) > 0$. For one unit, let $g(x)$ be its gate, $v(x)$ its
candidate, and $lo$, $hi$ the least and the greatest of the candidates and $h_0$. With $r(x) = (v(x) - lo)/(hi - lo)$

$$\rho = \sum_x p(x) g(x), \quad p(x \mid z{=}1) = \frac{g(x)\, p(x)}{\rho}, \quad
  p_0(x) = \frac{(1 - g(x))\, p(x)}{1 - \rho}, \quad
  \pi = \sum_x p(x \mid z{=}1)\, r(x), \quad p(x \mid s{=}1) = \frac{r(x)\, p(x \mid z{=}1)}{\pi}$$

are the tables of a copy chain of two states with a `Gated` emission. In it $P(z_t{=}1 \mid x_t) = g(x_t)$ and
$P(s_t{=}1 \mid x_t, z_t{=}1) = r(x_t)$. A held step has no information about the state. So the filter is the layer:

$$h_t = lo + (hi - lo)\, P(s_t{=}1 \mid x_{1:t}), \qquad P(s_0{=}1) = \frac{h_0 - lo}{hi - lo}$$

A block of a simplex has one gate and K candidates that sum to one. It is one chain of K states, with r its candidates.
In this model, $p(x_t \mid x_{1:t-1}) = p(x_t)$. Every chain explains the same tokens by itself; given the tokens the
chains are independent. The tables are float64 logarithms, because saturated gates underflow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ...inference.chains.copy.chain import CopyChain
from ...inference.numerics.arrays import floating
from ...inference.numerics.checks import check_table
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_batch_shape, check_integer
from ...switching.dynamics.copy import Copy
from ...switching.emissions.discrete import Categorical
from ...switching.emissions.gated import Gated
from ...switching.model import SwitchingSSM
from ..networks.inputs import check_state
from ..networks.minimal import MinGRU, MinLSTM
from ..networks.qrnn import QRNN
from .tokens import read_tokens


@dataclass(frozen=True, repr=False)
class LiftedDraw(Record):
    """Tokens, and the path of every chain."""

    tokens: Int[Tensor, "*b T"]
    state: Int[Tensor, "C *b T"]
    redraw: Bool[Tensor, "C *b T"]


@dataclass(frozen=True, repr=False)
class Reading(Record):
    """The gates and candidates of a layer for each token, one row per token."""

    log_draw: Float[Tensor, "V C"]  # log P(z = 1 | x), a column for each coin
    log_hold: Float[Tensor, "V C"]
    value: Float[Tensor, "V D"]  # the candidates
    start: Float[Tensor, "D"]
    block: int | None  # the number of units that share a coin and form a distribution
    dtype: torch.dtype


@dataclass(frozen=True, repr=False)
class Lifted(Record):
    """A recurrent layer over tokens, read as C copy chains of K states: one of two states for each unit, or one for
    each block of a simplex.

    Results about chains have the chain as their first axis.

    Attributes:
        token_probs: `[V]`, p(x).
        log_redraw: `[C]`, log rho.
        log_hold: `[C]`, log (1 - rho), exact where rho is close to 1.
        log_state: `[C, K]`, log pi.
        log_drawn: `[C, K, V]`, log p(x | s, z = 1).
        log_background: `[C, V]`, log p_0.
        levels: `[C, K, U]`, the output of the chain's units in each state: lo and hi, or the rows of an identity.
        start: `[C, K]`, P(s_0) for the layer's default h0.
        reading: how states of the layer are read.

    See Also:
        `as_ssm`, which makes it; `LiftedNetwork`, for any inputs; docs/background/mingru_exact_bayes.md, with the
        proof.

    Example:
        >>> import samplehold as sh
        >>> lifted = sh.as_ssm(sh.MinGRU(input_size=4, hidden_size=3))
        >>> lifted.n_chains, lifted.n_states, lifted.n_tokens
        (3, 2, 4)
        >>> lifted.chain([0, 3, 1]).smooth().state.shape  # the states of each unit's chain, given all tokens
        torch.Size([3, 3, 2])
        >>> round(float(lifted.log_evidence([0, 3, 1]).exp() * 4**3), 6)  # tokens are independent, here uniform
        1.0
    """

    token_probs: Float[Tensor, "V"]
    log_redraw: Float[Tensor, "C"]
    log_hold: Float[Tensor, "C"]
    log_state: Float[Tensor, "C K"]
    log_drawn: Float[Tensor, "C K V"]
    log_background: Float[Tensor, "C V"]
    levels: Float[Tensor, "C K U"]
    start: Float[Tensor, "C K"]  # P(s_0) for the layer's default h0
    reading: Reading = field(repr=False)

    @property
    def n_chains(self) -> int:
        """C, the number of chains."""
        return self.levels.shape[0]

    @property
    def n_states(self) -> int:
        """K, the number of states of each chain."""
        return self.levels.shape[1]

    @property
    def n_tokens(self) -> int:
        """V, the number of tokens."""
        return len(self.token_probs)

    @cached_property
    def models(self) -> tuple[SwitchingSSM, ...]:
        """Each chain as a model of the library, which redraws at its first step instead of starting from `start`."""
        model = SwitchingSSM(Copy(self.n_states), Gated(Categorical(self.n_tokens), Categorical(self.n_tokens)))
        return tuple(
            model.with_values(
                redraw_prob=self.log_redraw[c].exp(),
                state_probs=self.log_state[c].exp(),
                probs=self.log_drawn[c].exp(),
                background_probs=self.log_background[c].exp()[None],
            )
            for c in range(self.n_chains)
        )

    def hidden(self, tokens: Any, h0: Tensor | None = None, lengths: Any = None) -> Float[Tensor, "*b T D"]:
        r"""The layer's states, from the filters of the chains: $E[level(s_t) \mid x_{1..t}]$; the layer is not run.

        Arguments:
            tokens: indices [*b, T]; NaN is missing.
            h0: the state before the first step as for the layer, [1, *b, D]; for a QRNN the cell. If it is outside the
                range of the candidates, this call uses a model that also spans h0, one for the whole batch.
            lengths: the number of steps of each sequence, [*b]; states after it are zero, as for the layer.

        Raises:
            ValueError: a token that the layer does not have, or shapes that do not fit.
        """
        spanning = self.spanning(h0)
        return spanning.read(spanning.chain(tokens, h0, lengths).filter().state).to(self.reading.dtype)

    def read(self, belief: Float[Tensor, "C *b T K"]) -> Float[Tensor, "*b T D"]:
        """The expected levels of the layer's units under beliefs about the chains, filtered or smoothed.

        Arguments:
            belief: probabilities of the states of the chains.
        """
        levels = self.levels.reshape(self.n_chains, *(1,) * (belief.dim() - 3), *self.levels.shape[1:])
        return (belief @ levels).movedim(0, -2).flatten(-2)

    def chain(self, tokens: Any, h0: Tensor | None = None, lengths: Any = None) -> CopyChain:
        """All chains given the tokens, with batch axes [C, *b]: `.filter()`, `.smooth()`, `.viterbi()`, `.sample(n)`.

        Arguments as `hidden`; h0 must be within the span of `levels` (see `spanning(h0)`).

        Arguments:
            tokens: `[*b, T]`, as in `hidden`.
            h0: the states before the first step; None: those of the layer.
            lengths: `[*b]`, the number of steps of each sequence; None: all.
        """
        read = read_tokens(tokens, self.n_tokens, lengths)
        fresh = (self.log_drawn + (self.log_redraw[:, None] + self.log_state).unsqueeze(-1)).mT  # [C, V, K]
        held = (self.log_background + self.log_hold[:, None]).unsqueeze(-1)
        unseen = (self.log_redraw[:, None] + self.log_state)[:, None], self.log_hold[:, None, None]
        index = torch.where(read.seen, read.index, self.n_tokens).flatten().to(fresh.device)
        log_fresh, log_held = (
            torch.cat([table, none], 1).index_select(1, index).unflatten(1, read.index.shape)
            for table, none in zip((fresh, held), unseen, strict=True)
        )
        batch = read.index.shape[:-1]
        start = self.start.reshape(self.n_chains, *(1,) * len(batch), self.n_states)
        if h0 is not None:
            start = self._belief(check_state("h0", h0, (1, *batch, len(self.reading.start)))[0])
        counts = None if read.lengths is None else read.lengths.to(fresh.device).expand(self.n_chains, *batch)
        return CopyChain(start.log(), log_fresh, log_held, counts)

    def log_evidence(self, tokens: Any, lengths: Any = None) -> Float[Tensor, "*b"]:
        """log p(tokens), which is equal for all chains: the sum of log p(x_t), because tokens are independent over
        time.

        Arguments:
            tokens: `[*b, T]`, as in `hidden`.
            lengths: `[*b]`, the number of steps of each sequence; None: all.
        """
        return self.chain(tokens, None, lengths).log_normalizer()[0]

    def sample(self, n_steps: int, batch_shape: tuple[int, ...] = (), seed: Seed = None) -> LiftedDraw:
        """Draw tokens from the model and, given them, the gates and states of every chain.

        Arguments:
            n_steps: the number of steps.
            batch_shape: the batch axes: () for one sequence.
            seed: a number, a `torch.Generator`, or None, torch's global generator.
        """
        n_steps, batch_shape = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        random = generator_of(seed, self.token_probs.device)
        size = torch.Size((*batch_shape, n_steps))

        def draw(probs: Tensor) -> Tensor:
            flat = probs.reshape(-1, probs.shape[-1])
            if not len(flat):
                return torch.zeros(probs.shape[:-1], dtype=torch.int64, device=probs.device)
            return torch.multinomial(flat, 1, generator=random).reshape(probs.shape[:-1])

        tokens = draw(self.token_probs.expand(*size, -1))
        log_gates = torch.stack([self.log_hold[:, None] + self.log_background, self._log_draw()], -1)
        redraw = draw(log_gates.softmax(-1)[:, tokens]).bool()
        fresh = draw((self.log_drawn + self.log_state.unsqueeze(-1)).softmax(1).mT[:, tokens])
        starts = self.start.reshape(self.n_chains, *(1,) * len(batch_shape), self.n_states)
        first = draw(starts.expand(self.n_chains, *batch_shape, self.n_states))
        steps = torch.arange(1, n_steps + 1, device=tokens.device)
        latest = torch.where(redraw, steps, 0).cummax(-1).values
        return LiftedDraw(tokens, torch.cat([first.unsqueeze(-1), fresh], -1).gather(-1, latest), redraw)

    def spanning(self, h0: Tensor | None) -> "Lifted":
        """This model if `h0` is in its span; otherwise a model of two-state chains that also spans h0.

        Arguments:
            h0: the states before the first step.
        """
        if h0 is None:
            return self
        check_table("h0", h0, finite=True)
        if h0.shape[-1:] != self.reading.start.shape:
            raise ValueError(
                f"h0: got shape {list(h0.shape)}, but the layer has {len(self.reading.start)} units; "
                "give [1, *batch, units], as the layer takes it."
            )
        if self._spans(h0):
            return self
        return lift(replace(self.reading, block=None), self.token_probs, h0)

    def _spans(self, h0: Tensor) -> bool:
        states = h0.detach().to(self.levels)
        if self.reading.block is not None:
            return is_distribution(states, self.reading.block, self.reading.dtype)
        low, high = self.levels[:, 0, 0], self.levels[:, 1, 0]
        return bool(((states >= low) & (states <= high)).all())

    def _belief(self, h0: Tensor) -> Tensor:
        """P(s_0) [C, *b, K] whose expected levels are h0 [*b, D]."""
        states = h0.detach().to(self.levels)
        if self.reading.block is not None:
            states = states.unflatten(-1, (-1, self.reading.block))
            return (states / states.sum(-1, keepdim=True)).movedim(-2, 0)
        return between(states, self.levels[:, 0, 0], self.levels[:, 1, 0]).movedim(-2, 0)

    def _log_draw(self) -> Tensor:
        """log rho + log p(x | z = 1), [C, V]."""
        return self.log_redraw[:, None] + (self.log_drawn + self.log_state.unsqueeze(-1)).logsumexp(1)


def lift_tokens(network: nn.Module, token_probs: Any = None) -> Lifted:
    """See `samplehold.models.bridge.correspondence.as_ssm`."""
    front, module = split_network(network)
    layer = check_one_layer(check_liftable(module))
    reading = read_layer(layer, token_rows(front, layer))
    n_tokens = len(reading.value)
    probs = (
        reading.value.new_ones(n_tokens)
        if token_probs is None
        else floating(token_probs, "token_probs").to(reading.value)
    )
    if probs.shape != (n_tokens,) or not bool((probs.isfinite() & (probs > 0)).all()):
        raise ValueError(
            f"token_probs: got {_short(probs)}, expected {n_tokens} positive numbers, one for each feature of the "
            "layer; smooth counts by adding 1 to each."
        )
    return lift(reading, probs / probs.sum(), None)


def split_network(network: nn.Module) -> tuple[nn.Module | None, nn.Module]:
    """The modules before the recurrent layers, and the last module of a `Sequential`, with the recurrent layers."""
    if not isinstance(network, nn.Sequential) or not len(network):
        return None, network
    return (network[:-1] if len(network) > 1 else None), network[-1]


def check_settled(front: nn.Module | None) -> None:
    """Raise an error if modules draw at random, or adapt to their inputs."""
    kinds = nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase
    for module in () if front is None else front.modules():
        if isinstance(module, kinds) and module.training:
            raise ValueError(
                f"layer: its {type(module).__name__} is in training mode, so its output differs at every call; "
                "use .eval()."
            )


def check_liftable(layer: nn.Module) -> MinGRU | MinLSTM | QRNN:
    """The layers, or an error that says why they are not filters of copy chains."""
    kind = type(layer).__name__
    if isinstance(layer, nn.RNNBase):
        raise ValueError(
            f"layer: a {kind}'s gates read its own state, so no chain has it as its filter; use `compare`."
        )
    if not isinstance(layer, MinGRU | MinLSTM | QRNN):
        raise TypeError(f"layer: got {kind}, expected MinGRU, MinLSTM or QRNN, whose gates read their inputs alone.")
    if isinstance(layer, QRNN) and layer.pooling == "ifo":
        raise ValueError(
            "layer: a QRNN with pooling='ifo' holds and draws by gates that do not sum to one, as probabilities do: it "
            "counts; build it with pooling='f' or 'fo'."
        )
    if not all(bool(parameter.isfinite().all()) for parameter in layer.parameters()):
        raise ValueError("layer: has weights that are not finite; train it again from finite ones.")
    return layer


def check_one_layer(layer: MinGRU | MinLSTM | QRNN) -> MinGRU | MinLSTM:
    """The only layer, whose gates read one input each; a QRNN as the equal minGRU."""
    if layer.num_layers != 1:
        raise ValueError(
            f"layer: has {layer.num_layers} layers, and those above the first read beliefs, not tokens; give one "
            'layer, or inputs="given".'
        )
    if layer.bidirectional:
        raise ValueError(
            'layer: reads in both directions, and a model of x has one; give one direction, or inputs="given".'
        )
    if not isinstance(layer, QRNN):
        return layer
    if layer.window != 1:
        raise ValueError(
            f"layer: its gates read {layer.window} inputs each, which are dependent; give a QRNN with window=1, or "
            'inputs="given".'
        )
    weight, bias, size = *(getattr(layer, f"{part}_l0") for part in ("weight", "bias")), layer.hidden_size
    twin = MinGRU(
        layer.input_size, size, bias=bias is not None, candidate="tanh", dtype=weight.dtype, device=weight.device
    )
    with torch.no_grad():  # a forget gate holds where a minGRU's draws; output gates follow the state
        for name, table in (("weight_l0", weight[..., 0]), ("bias_l0", bias)):
            if table is not None:
                twin.get_parameter(name).copy_(torch.cat([-table[:size], table[size : 2 * size]]))
    return twin


@torch.no_grad()
def token_rows(front: nn.Module | None, layer: MinGRU | MinLSTM) -> Float[Tensor, "V I"]:
    """The input of a layer for each single token: one-hot rows, or the output of the modules before it."""
    like: Any = layer.weight_l0
    check_settled(front)
    if front is None:
        return torch.eye(layer.input_size, dtype=like.dtype, device=like.device)
    first = next(module for module in front.modules() if not list(module.children()))
    if isinstance(first, nn.Embedding):
        tokens = torch.arange(first.num_embeddings, device=like.device)
    else:
        features = getattr(first, "in_features", layer.input_size)
        tokens = torch.eye(features, dtype=like.dtype, device=like.device)
    rows, alone = front(tokens), front(tokens.unsqueeze(1))
    if rows.shape != (len(tokens), layer.input_size) or not torch.allclose(rows, alone[:, 0], rtol=1e-4, atol=1e-6):
        raise ValueError(
            f"layer: the modules before the {type(layer).__name__} do not make one row of {layer.input_size} features "
            'of each token alone; give modules that do not look beyond a step, or inputs="given".'
        )
    return rows


@torch.no_grad()
def read_layer(layer: MinGRU | MinLSTM, rows: Float[Tensor, "V I"]) -> Reading:
    """Gates and candidates of a layer for each row by itself, with the layer's rounding, in float64."""
    pre = layer.product(rows)
    now, units = layer.activate(pre), layer.hidden_size
    block = layer.block if layer.candidate == "simplex" else None
    gates = pre.double()[:, :-units].unflatten(-1, (-1, units))[..., :: block or 1]  # one column for each coin
    log_odds = gates[:, 0]
    if isinstance(layer, MinLSTM):
        log_odds = logsigmoid(gates[:, 1]) - logsigmoid(gates[:, 0])
    start = layer.initial_state()[0].double()
    value = now.value.double()
    if block is not None:  # sums to one in float64 too
        shares = value.unflatten(-1, (-1, block))
        value = (shares / shares.sum(-1, keepdim=True)).flatten(-2)
        start = torch.full_like(start, 1 / block)
    return Reading(logsigmoid(log_odds), logsigmoid(-log_odds), value, start, block, pre.dtype)


def lift(reading: Reading, token_probs: Float[Tensor, "V"], h0: Tensor | None) -> Lifted:
    """The chains of a layer. Chains of two states span its candidates, its default start, and `h0` [..., D] if
    given."""
    value, start = reading.value, reading.start
    units = value.shape[-1]
    if reading.block is not None:
        fresh, belief = value.unflatten(-1, (-1, reading.block)), start.unflatten(-1, (-1, reading.block))
        levels = torch.eye(reading.block).to(value).expand(units // reading.block, -1, -1)
    else:
        spanned = [value, start[None]] if h0 is None else [value, h0.detach().to(value).reshape(-1, units), start[None]]
        low, high = torch.cat(spanned).aminmax(dim=0)
        fresh, belief = between(value, low, high), between(start, low, high)
        levels = torch.stack([low, high], -1).unsqueeze(-1)
    coins = levels.shape[0] // reading.log_draw.shape[1]  # chains that share a gate
    log_draw, log_hold = (gate.repeat_interleave(coins, -1).T for gate in (reading.log_draw, reading.log_hold))
    drawn, held = log_draw + token_probs.log(), log_hold + token_probs.log()  # [C, V]
    log_redraw, log_held = drawn.logsumexp(-1), held.logsumexp(-1)
    joint = drawn.log_softmax(-1).unsqueeze(1) + fresh.permute(1, 2, 0).log()  # log p(x, s | z = 1), [C, K, V]
    log_state = joint.logsumexp(-1)
    never = log_state.isneginf()  # a state that no token draws; its emission has no effect
    log_drawn = torch.where(never.unsqueeze(-1), drawn.log_softmax(-1).unsqueeze(1), joint).log_softmax(-1)
    return Lifted(
        token_probs, log_redraw, log_held, log_state, log_drawn, held.log_softmax(-1), levels, belief, reading
    )  # fmt: skip


def is_distribution(states: Tensor, block: int, dtype: torch.dtype) -> bool:
    """Whether each block of units is a distribution, to the rounding of a dtype."""
    shares = states.unflatten(-1, (-1, block))
    off = (shares.sum(-1) - 1).abs().amax() if shares.numel() else 0.0
    return bool((shares >= 0).all()) and float(off) <= 16 * torch.finfo(dtype).eps


def between(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(1 - r, r) with value = low + (high - low) r; even odds where low = high."""
    width = torch.where(high > low, high - low, 1.0)
    shares = torch.stack([high - value, value - low], -1).clamp(min=0) / width.unsqueeze(-1)
    return torch.where((high > low).unsqueeze(-1), shares, 0.5)


def _short(probs: Tensor | Sequence[float]) -> str:
    numbers = torch.as_tensor(probs).flatten().tolist()
    return f"{numbers[:4]}{' ...' if len(numbers) > 4 else ''} of shape {list(torch.as_tensor(probs).shape)}"
