r"""Networks trained to predict the next token, and the price of exactness.

A minGRU is an exact filter only of models that say nothing of their next token (`bridge.lifting`). Here are
models whose held states emit,

$$s_t \text{ held or drawn as in every copy model}, \qquad
p(x \mid s) = (1 - o)\,[x = s] + o / V,$$

with an overlap o of the states. Their exact filter predicts $x_{t+1}$; it is no minGRU. How much does the best minGRU
of a size lose? It is trained on sequences from the model and judged on others, in nats a token:

    network     mean of log p(x_t+1 | x_1..t, exact) - log p(x_t+1 | x_1..t, network)
    no memory   the same for the marginal p(x), all that a model whose exact filter is a minGRU can know
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from ...inference.numerics.checks import check_call, check_each, check_table
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_kind, check_number
from ...switching.dynamics.copy import Copy
from ...switching.emissions.discrete import Categorical
from ...switching.model import SwitchingSSM
from ...switching.seeding import number_of, seeded
from ...switching.views.drawing import NotebookFigure
from ..bridge.tokens import one_hot
from ..networks.minimal import MinGRU

REDRAW_PROBS = (0.02, 0.1, 0.3, 1.0)
OVERLAPS = (0.3, 0.6)
BATCH, LENGTH = 64, 64
UNSEEN = -100  # the target of a missing token, which no loss counts
MOST_RATE = 1e6  # that a step of Adam may be long


@dataclass(frozen=True, repr=False)
class NextTokenPredictor(Record):
    """A recurrent layer trained with a linear head to predict the next token.

    Attributes:
        layer: the recurrent layer.
        head: the linear head.
        loss: `[steps]`, nats a token, on the batch of each step.

    See Also:
        `train_next_token`, which makes it; `price_of_exactness`, which trains several.

    Example:
        >>> import torch, samplehold as sh
        >>> x = sh.one_hot([[0, 1] * 5, [1, 0] * 5], 2, dtype=torch.float32)
        >>> trained = sh.studies.train_next_token(sh.MinGRU(2, 3), x, n_steps=2)
        >>> trained.log_probs(x).shape, trained.loss.shape  # of all tokens but the first; of each step of training
        (torch.Size([2, 9]), torch.Size([2]))
    """

    layer: nn.Module
    head: nn.Linear
    loss: Float[Tensor, "steps"]

    @torch.no_grad()
    def log_probs(self, x: Float[Tensor, "*b T V"]) -> Float[Tensor, "*b n"]:
        """log p(x_t+1 | x_1..t) of the tokens 2 .. T in nats, [*b, T - 1]; 0 for a missing one.

        Arguments:
            x: tokens, `[*b, T]`; NaN where missing.
        """
        out = self.layer(x[..., :-1, :])[0]
        return (self.head(out).log_softmax(-1) * x[..., 1:, :]).sum(-1)


def train_next_token(
    layer: nn.Module, x: Float[Tensor, "N T V"], n_steps: int = 200, rate: float = 1e-2, seed: Seed = 0
) -> NextTokenPredictor:
    """Train a layer, in place, to predict the next of one-hot tokens; by Adam with a cosine schedule.

    Arguments:
        layer: `out, _ = layer(x)`, with states out [N, T, D]; its parameters are where training starts.
        x: sequences, with rows of zeros where a token is missing; each step takes 64 of them, some more than once.
        n_steps, rate: of Adam.
        seed: of the batches and the linear head.

    Raises:
        TypeError: a layer that is no recurrent layer; a number of steps that is not an integer.
        ValueError: x that does not fit the layer; no steps; a rate that is not positive.

    See Also:
        `NextTokenPredictor`, its result; `price_of_exactness`, which compares losses; `one_hot`, which writes tokens.

    Example:
        >>> import torch, samplehold as sh
        >>> _ = torch.manual_seed(0)
        >>> x = sh.one_hot([[0, 1] * 5, [1, 0] * 5], 2, dtype=torch.float32)
        >>> trained = sh.studies.train_next_token(sh.MinGRU(2, 4), x, n_steps=60, rate=0.1)
        >>> bool(trained.loss[-1] < 0.1 < trained.loss[0])  # that one token follows the other is soon learned
        True
    """
    check_kind("layer", layer, nn.Module, "a recurrent layer")
    x = check_table("x", x, None, None, None, finite=True, alone=True)
    if not len(x) or x.shape[1] < 2 or not x.shape[2]:
        raise ValueError(f"x: got shape {list(x.shape)}, expected [N, T, V] with two steps at least.")
    n_steps, rate = check_integer("n_steps", n_steps), check_number("rate", rate, above=0)
    if rate > MOST_RATE:
        raise ValueError(f"rate: got {rate:g}, expected at most {MOST_RATE:g}; give the length of a step, about 0.01.")
    random = torch.Generator().manual_seed(number_of(seed))
    with torch.no_grad():
        width, tokens = check_call("layer", layer, x[:1])[0].shape[-1], x.shape[-1]
        head = nn.Linear(width, tokens, dtype=x.dtype, device="meta").to_empty(device=x.device)  # not yet drawn
        weight = torch.empty(tokens, width, dtype=x.dtype, device="cpu")
        head.weight.copy_(weight.normal_(0, 1 / math.sqrt(width), generator=random))
        head.bias.zero_()
    descent = Descent([*layer.parameters(), *head.parameters()], rate, n_steps, clipped=False)
    target, losses = torch.where(x.any(-1), x.argmax(-1), UNSEEN), []
    for _ in range(n_steps):
        rows = torch.randint(len(x), (BATCH,), generator=random, device="cpu")
        out = layer(x[rows, :-1])[0]
        loss = nn.functional.cross_entropy(head(out).flatten(0, 1), target[rows, 1:].flatten(), ignore_index=UNSEEN)
        descent.step(loss)
        losses.append(loss.detach())
    return NextTokenPredictor(layer, head, torch.stack(losses))


class Descent:
    """Steps of Adam at a rate that falls to 0 as a cosine does.

    Arguments:
        clipped: whether gradients have a norm of 1 at most.
    """

    def __init__(self, parameters: Iterable[Tensor], rate: float, n_steps: int, clipped: bool = True) -> None:
        self._parameters, self._clipped = list(parameters), clipped
        self._optimizer = torch.optim.Adam(self._parameters, rate)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, n_steps)

    def step(self, loss: Tensor) -> None:
        """Change the parameters by the gradient of a loss."""
        self._optimizer.zero_grad()
        loss.backward()
        if self._clipped:
            nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._schedule.step()


def held_model(redraw_prob: float, overlap: float, n_states: int = 3) -> SwitchingSSM:
    """The model of this module's equations, with a token for each state."""
    eye = torch.eye(n_states, dtype=torch.float64, device="cpu")
    return SwitchingSSM(Copy(n_states), Categorical(n_states)).with_values(
        redraw_prob=redraw_prob, state_probs=torch.full_like(eye[0], 1 / n_states), probs=(1 - overlap) * eye
        + overlap / n_states,
    )  # fmt: skip


def make_layer(kind: Any, n_tokens: int, n_units: int, seed: Seed = 0) -> nn.Module:
    """A float32 layer `kind(n_tokens, n_units)` on the CPU with weights of a seed; global random numbers stay."""
    with torch.device("cpu"), seeded(seed, torch.empty(0, device="cpu")):
        return kind(n_tokens, n_units)


@dataclass(frozen=True, repr=False)
class PriceOfExactness(Record):
    """The nats a token that the best minGRU loses against the exact filter, by redraw probability and overlap;
    `summary()` and `plot()`.

    Attributes:
        redraw_prob: `[R]`, redraw probabilities.
        overlap: `[O]`, overlaps.
        network: `[O, R]`, the loss of the best minGRU.
        no_memory: `[O, R]`, the loss of the marginal p(x).

    See Also:
        `price_of_exactness`, which makes it; `Gated`, the emission with which a minGRU can lose nothing.

    Example:
        >>> import torch, samplehold as sh
        >>> rho, overlap = torch.tensor([0.1, 1.0]), torch.tensor([0.5])
        >>> price = sh.studies.PriceOfExactness(rho, overlap, torch.tensor([[0.25, 0.0]]), torch.tensor([[0.5, 0.0]]))
        >>> price.summary()["minGRU loses, nats"].tolist()  # a row for each overlap and redraw probability
        [0.25, 0.0]
    """

    redraw_prob: Float[Tensor, "R"]
    overlap: Float[Tensor, "O"]
    network: Float[Tensor, "O R"]
    no_memory: Float[Tensor, "O R"]

    def summary(self) -> pd.DataFrame:
        """A row for each model."""
        rows = [
            (float(o), float(r), float(self.network[i, j]), float(self.no_memory[i, j]))
            for i, o in enumerate(self.overlap)
            for j, r in enumerate(self.redraw_prob)
        ]
        columns = ["overlap", "rho", "minGRU loses, nats", "no memory loses, nats"]
        return pd.DataFrame(rows, columns=columns).set_index(["overlap", "rho"])

    def plot(self) -> Figure:
        """Losses against the redraw probability, a colour for each overlap."""
        figure = NotebookFigure(6.5, 4.0)
        panel = figure.subplots()
        colors = cycle(("#8c2981", "#1f77b4", "#de4968"))
        rho, network, no_memory = (table.cpu().numpy() for table in (self.redraw_prob, self.network, self.no_memory))
        for i, (overlap, color) in enumerate(zip(self.overlap.tolist(), colors, strict=False)):
            panel.plot(rho, network[i], "o-", color=color, markersize=4, label=f"minGRU, overlap {overlap:g}")
            panel.plot(rho, no_memory[i], ":", color=color, label=f"no memory, overlap {overlap:g}")
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=1e-3)
        panel.set_ylim(bottom=-5e-4)
        panel.set_xlabel("redraw probability")
        panel.set_ylabel("nats a token lost against the exact filter")
        panel.legend(frameon=False, fontsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
        return figure


def price_of_exactness(
    redraw_probs: Sequence[float] = REDRAW_PROBS,
    overlaps: Sequence[float] = OVERLAPS,
    n_units: int = 16,
    n_steps: int = 200,
    seed: Seed = 0,
    n_sequences: int = 2048,
) -> PriceOfExactness:
    """The loss of the best minGRU of a size on models whose held states emit; about a second of training for each.

    Arguments:
        redraw_probs: rho of the models; at 1 tokens are independent, and there is nothing to lose.
        overlaps: o of the models, from 0, where a token determines its state, to 1, where it has no information.
        n_units: of the minGRU.
        n_steps: of training.
        seed: of the sequences, the layer and its training; the same for each model.
        n_sequences: of 64 tokens, to train on; it is judged on 128 of 256.

    Raises:
        ValueError: an overlap or redraw probability that is not in [0, 1].

    See Also:
        `train_next_token`, its training; `as_rnn`, the networks that lose nothing; `compare`, for a given network.

    Example:
        >>> import samplehold as sh
        >>> price = sh.studies.price_of_exactness([1.0], [0.5], n_units=2, n_steps=1, n_sequences=1)
        >>> bool(price.no_memory.abs() < 1e-6)  # with a redraw at each step there is nothing to remember
        True
    """
    redraw_probs = check_each("redraw_probs", redraw_probs, most=1)
    overlaps = check_each("overlaps", overlaps, most=1)
    n_units, n_steps = check_integer("n_units", n_units), check_integer("n_steps", n_steps)
    n_sequences = check_integer("n_sequences", n_sequences)
    network, no_memory = torch.zeros(2, len(overlaps), len(redraw_probs), device="cpu")
    number = number_of(seed)
    for i, overlap in enumerate(overlaps):
        for j, redraw_prob in enumerate(redraw_probs):
            model = held_model(redraw_prob, overlap)
            symbols = model.simulate(LENGTH, (n_sequences,), seed=number).x
            test = model.simulate(256, (128,), seed=number + 1).x
            layer = make_layer(MinGRU, model.n_states, n_units, number)
            train = one_hot(symbols[..., 0], model.n_states, dtype=torch.float32)
            trained = train_next_token(layer, train, n_steps, seed=number)
            exact = model.filter(test).log_increment[:, 1:].mean()
            log_prob = trained.log_probs(one_hot(test[..., 0], model.n_states, dtype=torch.float32)).mean()
            network[i, j] = exact - log_prob
            no_memory[i, j] = exact + math.log(model.n_states)  # the marginal is uniform
    rho, overlap = (torch.tensor(values, device="cpu") for values in (redraw_probs, overlaps))
    return PriceOfExactness(rho, overlap, network, no_memory)
