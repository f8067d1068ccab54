r"""State-regularised networks (Wang & Niepert 2019): a recurrent layer whose state is one of K centroids after each
step.

$$u_t = cell(h_{t-1}, x_t), \qquad \alpha_t = \mathrm{softmax}(sim(u_t, S) / \tau), \qquad
h_t = \begin{cases} S^\top \alpha_t & \text{soft} \\ S_{s_t},\; s_t \sim \alpha_t & \text{sample} \\
S_{\arg\max \alpha_t} & \text{hard} \end{cases}$$

Similarities are $u \cdot s$ ("dot"), the cosine of their angle ("cosine"), or $-|u - s|^2 / 2$ ("l2"). With "l2",
$\alpha$ is the posterior of a mixture of normal distributions of variance $\tau$ around the centroids.

If centroids are drawn and the cell has no memory of its own, the states are a Markov chain over the centroids. The soft
pass uses the mean of the centroids where the chain has one. `samplehold.models.bridge.lifting_centroids` makes both
exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.randomness import Seed, generator_of, invert
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_flag, check_integer, check_kind, check_number
from .inputs import Lengths, Observed, check_one_dtype, check_pair, check_state, keep, last, observed, weight_of
from .inputs import time_major as in_layout
from .minimal import MinGRU, MinLSTM
from .peephole import PeepholeLSTM
from .recurrent import Reading, Recurrent, check_one_way, hooked, step_by_call
from .wrapped import GRU, LSTM, Elman

CELLS = (Elman, GRU, LSTM, PeepholeLSTM, MinGRU, MinLSTM)
SIMILARITIES = ("dot", "cosine", "l2")
MODES = ("soft", "sample", "hard")
WIDTH = 0.5  # centroids are uniform within it at the start
Parts = tuple[Tensor, ...]


@dataclass(frozen=True, repr=False)
class StateRun(Record):
    """A state-regularised network's pass over its input; 0 (-1 for paths) after the end of a sequence."""

    output: Float[Tensor, "*b T H"]  # h_t
    state_probs: Float[Tensor, "*b T K"]  # alpha_t
    path: Int[Tensor, "*b T"] | None  # the centroid that was drawn, or nearest; None in a soft pass
    last: Any  # the state after each sequence's last step, for the next call


class StateRegularized(Recurrent):
    r"""A recurrent layer whose state is the mean of K centroids, a drawn centroid, or the nearest one.

    Arguments:
        cell: `Elman`, `GRU`, `LSTM`, `PeepholeLSTM`, `MinGRU` or `MinLSTM`, of one layer and one direction. An LSTM's
            cell state is not regularised.
        n_states: K, the number of centroids.
        temperature: tau, greater than 0; the attribute may be set at any time, as in annealing.
        similarity: "dot", "cosine" or "l2"; see `samplehold.models.networks.state_regularized`.
        mode: "soft": the mean of centroids; "sample": a drawn one; "hard": the one with the greatest alpha. The
            attribute may be set at any time. Gradients of the last two are straight-through: they equal the gradients
            of the soft step at the same place.
        learn_temperature: whether the logarithm of the temperature is a parameter.

    Parameters: `centroids` [K, H], uniform within 0.5 at the start, and those of `cell`; `log_temperature` is a
    parameter or a buffer. The cell sets the state before the first step, for most cells to zeros; it need not be a
    centroid. A call or a `step` draws from torch's global generator, like dropout; `run` takes a seed.

    Raises:
        TypeError: a cell of another kind; arguments that are not numbers. From every call: as for the cell.
        ValueError: a cell of several layers or both directions, a number of states less than 1, a temperature not
            greater
            than 0, an unknown similarity or mode. From every call: as for the cell.

    `torch.export` unrolls the loop over steps, so an exported layer takes the number of steps of its example alone; the
    number of sequences may vary.

    Wang & Niepert 2019, *State-regularized recurrent neural networks*, arXiv 1901.08817, equations 3 to 6.

    See Also:
        `automata.extract_automaton`, with its centroids as states; `LiftedStates`, its chain;
        docs/background/state_regularized.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.StateRegularized(sh.GRU(3, 4), n_states=5), torch.randn(2, 9, 3)
    >>> out, h = layer(x)
    >>> run = layer.run(x)
    >>> run.state_probs.shape, torch.allclose(run.state_probs @ layer.centroids, out)
    (torch.Size([2, 9, 5]), True)
    >>> drawn = layer.run(x, mode="sample", seed=0)
    >>> drawn.path.shape, torch.equal(layer.centroids[drawn.path], drawn.output)
    (torch.Size([2, 9]), True)
    """

    def __init__(
        self,
        cell: nn.Module,
        n_states: int,
        temperature: float = 1.0,
        similarity: str = "dot",
        mode: str = "soft",
        learn_temperature: bool = False,
    ) -> None:
        kinds = ", ".join(kind.__name__ for kind in CELLS)
        inner: Any = check_kind("cell", cell, CELLS, f"a layer of the package: {kinds}")
        if inner.num_layers != 1:
            raise ValueError(f"cell: got {inner.num_layers} layers, expected one; regularise each layer by itself.")
        check_one_way(inner, "and centroids are where a series read forward is", "cell")
        super().__init__(inner.input_size, inner.hidden_size, 1, inner.bias, inner.batch_first, 0.0, False)
        self.cell = cell
        self.n_states: int = check_integer("n_states", n_states)
        self.similarity: str = check_choice("similarity", similarity, SIMILARITIES)
        self.mode = mode
        like = next(cell.parameters())
        self.centroids: nn.Parameter = nn.Parameter(like.new_empty(self.n_states, self.hidden_size))
        log_temperature = like.new_tensor(math.log(check_number("temperature", temperature, above=0)))
        if check_flag("learn_temperature", learn_temperature):
            self.log_temperature: nn.Parameter = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)
        self._scatter()

    @property
    def temperature(self) -> float:
        """tau."""
        return float(self.log_temperature.detach().double().exp())

    @temperature.setter
    def temperature(self, value: float) -> None:
        with torch.no_grad():
            self.log_temperature.fill_(math.log(check_number("temperature", value, above=0)))

    @property
    def mode(self) -> str:
        """The mode of a call: "soft", "sample" or "hard"."""
        return self._mode

    @mode.setter
    def mode(self, value: str) -> None:
        self._mode = check_choice("mode", value, MODES)

    @property
    def remembers(self) -> bool:
        """Whether the cell has memory besides the centroid."""
        return isinstance(self.cell, LSTM | PeepholeLSTM)

    def reset_parameters(self) -> None:
        """Draw the cell's parameters as a new cell's, and centroids uniformly within 0.5; the temperature is kept."""
        cell: Any = self.cell
        cell.reset_parameters()
        self._scatter()

    def run(
        self, x: Tensor, hx: Any = None, lengths: Lengths = None, mode: str | None = None, seed: Seed = None
    ) -> StateRun:
        """As a call of the layer, with alpha and the path of every step.

        Arguments:
            x, hx, lengths: as a call takes them.
            mode: the mode of this run; None: that of the layer.
            seed: of the draws in mode "sample"; a generator advances, so a series in two parts is drawn as in one.
        """
        how: str = check_choice("mode", self.mode if mode is None else mode, MODES)
        rows = self._fitting(x, self.batch_first)
        some = observed(rows, lengths)
        (start,) = self._started(hx, rows, rows.shape[:-2])
        output, probs, path, end = self._pass(keep(rows, some), start, some, how, seed)
        if path is not None and some is not None:
            path = torch.where(some[1][..., 0], path, -1)
        output, probs = (in_layout(keep(part, some), self.batch_first) for part in (output, probs))
        if path is not None and not self.batch_first:
            path = path.movedim(-1, 0)
        return StateRun(output, probs, path, self._joined([end]))

    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        """The reading of the cell; see `Reading`."""
        check_one_dtype(self.named_parameters(), x)
        if hooked(self.cell):  # step by step through calls of the cell
            return Reading(x, self._by_call)
        cell: Any = self.cell
        return cell.reading(x)

    def scores(self) -> Callable[[Tensor], Tensor]:
        """The map from u [*batch, H] to sim(u, S) / tau [*batch, K], up to a constant, with the weights read once."""
        centroids, cool = self.centroids, (-self.log_temperature).exp()
        if self.similarity == "cosine":
            keys = normalize(centroids, dim=-1) * cool
            return lambda u: linear(normalize(u, dim=-1), keys)
        keys = centroids * cool
        offset = None if self.similarity == "dot" else -(centroids * keys).sum(-1) / 2
        return lambda u: linear(u, keys, offset)

    def extra_repr(self) -> str:
        text = f"n_states={self.n_states}, temperature={self.temperature:g}, similarity={self.similarity!r}"
        learned = ", learn_temperature=True" if isinstance(self.log_temperature, nn.Parameter) else ""
        return f"{text}, mode={self.mode!r}{learned}"

    def _scatter(self) -> None:
        nn.init.uniform_(self.centroids, -WIDTH, WIDTH)

    def _initial(self, batch: tuple[int, ...], like: Tensor) -> Any:
        if isinstance(self.cell, Recurrent):
            return self.cell._initial(batch, like)
        zeros = like.new_zeros(1, *batch, self.hidden_size)
        return (zeros, zeros) if self.remembers else zeros

    def _started(self, hx: Any, x: Tensor, batch: torch.Size, name: str = "hx") -> list[Parts]:
        if hx is None:
            hx = self._initial(batch, self._like(x))
        expected = (1, *batch, self.hidden_size)
        if self.remembers:
            parts = check_pair(name, hx, expected, self)
        else:
            parts = (check_state(name, hx, expected, weight_of(self, hx), finite=name == "hx"),)
        return [tuple(part[0] for part in parts)]

    def _joined(self, ends: list[Parts]) -> Any:
        parts = tuple(part.unsqueeze(0) for part in ends[0])
        return parts if self.remembers else parts[0]

    def _sweep(self, rows: Tensor, start: Parts, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Parts]:
        output, _, _, end = self._pass(rows, start, some, self.mode)
        return output, end

    def _step(self, x: Tensor, start: Parts, layer: int) -> tuple[Tensor, Parts]:
        output, _, _, end = self._pass(x.unsqueeze(-2), start, None, self.mode)
        return output.squeeze(-2), end

    def _pass(
        self, rows: Tensor, state: Parts, some: Observed, mode: str, seed: Seed = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Parts]:
        """Outputs [*b, T, H], alpha [*b, T, K] and path [*b, T] of rows [*b, T, I], and the states at the last step."""
        *batch, steps = rows.shape[:-1]
        if not steps:
            output, alpha = (rows.new_zeros(*batch, 0, n) for n in (self.hidden_size, self.n_states))
            path = None if mode == "soft" else rows.new_zeros(*batch, 0, dtype=torch.long)
            return output, alpha, path, state
        uniform, track, chances, path = None, [], [], []
        generator = None if seed is None else generator_of(seed, rows.device)
        if mode == "sample":
            uniform = torch.rand(steps, *batch, generator=generator, dtype=torch.float64, device=rows.device)
        (seen, after), scores, centroids = self.reading(rows), self.scores(), self.centroids
        for t, seen_t in enumerate(seen.unbind(-2)):
            u, *memory = after(seen_t, state)
            alpha = weight = scores(u).softmax(-1)
            if mode != "soft":
                index = _drawn(alpha, uniform[t]) if uniform is not None else alpha.argmax(-1)
                taken = index.unsqueeze(-1) == torch.arange(self.n_states, device=index.device)
                weight = taken.to(alpha) + (alpha - alpha.detach())
                path.append(index)
            state = (weight @ centroids, *memory)
            track.append(state)
            chances.append(alpha)
        outputs, *memories = (torch.stack(part, -2) for part in zip(*track, strict=True))
        end = tuple(last(part, some).squeeze(-2) for part in (outputs, *memories))
        return outputs, torch.stack(chances, -2), torch.stack(path, -1) if path else None, end

    def _by_call(self, x: Tensor, state: Parts) -> Parts:
        """One step of the cell through a call with its hooks, with one batch axis."""
        batch = broadcast_shapes(x.shape[:-1], state[0].shape[:-1])
        x, *parts = (part.expand(*batch, -1).reshape(math.prod(batch), -1) for part in (x, *state))
        batched = tuple(part.unsqueeze(0) for part in parts)
        u, end = step_by_call(self.cell, x, batched if self.remembers else batched[0])
        return tuple(part.reshape(*batch, -1) for part in ((u, end[1][0]) if self.remembers else (u,)))


def _drawn(probs: Tensor, uniform: Tensor) -> Tensor:
    """An index each, [*b], by the inverse of the distribution."""
    return invert(probs.detach().double(), uniform.unsqueeze(-1)).squeeze(-1)
