r"""Networks that learn to latch: does their gradient reach as far as the belief that nothing was redrawn?

The inputs are tokens of a copy model with K states. A redrawn step shows its state. A held step shows a blank, or
rarely a symbol, so that a symbol is a redraw with probability 1/2. Networks learn the present state from the tokens so
far, by cross-entropy. In the model the posterior probability of holding for n steps has exactly the mean
$(1 - \rho)^n$, since the mean of a posterior is the prior. The half-life of the gradient of the network's outputs with
respect to its earlier states is counted from one step back, for the mean over sequences.

"MinGRU, simplex" has the form of the exact filter: one gate, K candidates, and no readout.

Tallec & Ollivier 2018, *Can recurrent neural networks warp time?*, arXiv 1804.11188 (open gates).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
import torch
from samplehold.inference.numerics.threads import one_thread_if_small
from samplehold.models.bridge.tokens import one_hot
from samplehold.models.networks.minimal import MinGRU, MinLSTM
from samplehold.models.networks.qrnn import QRNN
from samplehold.models.networks.wrapped import GRU, LSTM
from samplehold.models.studies.gradient_memory import crossing, log_norms
from samplehold.models.studies.next_token import Descent, make_layer
from samplehold.switching.dynamics.copy import Copy
from samplehold.switching.emissions.discrete import Categorical
from samplehold.switching.emissions.gated import Gated
from samplehold.switching.model import SwitchingSSM
from study import Track
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

STARTS = ("default", "open gates")
LEARNERS: dict[str, Callable[[int, int], Any]] = {
    "MinGRU, simplex": lambda n_tokens, units: MinGRU(n_tokens, n_tokens - 1, candidate="simplex"),
    "MinGRU": MinGRU,
    "GRU": GRU,
    "LSTM": LSTM,
}
STATES, BATCH, RATE, JUDGED = 3, 32, 0.02, 64


@dataclass(frozen=True)
class Learning:
    """How much is trained."""

    redraw_probs: tuple[float, ...]
    learners: tuple[str, ...]
    updates: int
    length: int  # of sequences; gates open for as many steps


@torch.no_grad()
def open_gates(layer: Any, longest: int, seed: int) -> None:
    """Set the biases of all gates: log u for those that hold, -log u for those that draw, u in 1 .. longest - 1."""
    signs = {MinGRU: (-1,), MinLSTM: (1, -1), QRNN: (1,), GRU: (0, 1), LSTM: (-1, 1)}[type(layer)]
    simplex = isinstance(layer, MinGRU) and layer.candidate == "simplex"
    n, draw = layer.hidden_size // (layer.block if simplex else 1), torch.Generator().manual_seed(seed)
    for k in range(layer.num_layers):
        opened = (1 + (longest - 2) * torch.rand(n, generator=draw)).log()
        names = ("bias_ih", "bias_hh") if isinstance(layer, nn.RNNBase) else ("bias",)
        for (gate, sign), (part, of) in product(enumerate(signs), enumerate(names)):
            if sign:  # torch adds two biases
                getattr(layer, f"{of}_l{k}")[gate * n : (gate + 1) * n] = 0.0 if part else sign * opened


def latch(redraw_prob: float) -> SwitchingSSM:
    """A copy model of the tokens 0 .. K - 1, which redraws show, and the blank K; a symbol is a redraw half of the
    time."""
    rare = redraw_prob / (1 - redraw_prob)
    blank = torch.tensor([[rare / STATES] * STATES + [1 - rare]], dtype=torch.float64)
    shown = torch.eye(STATES, STATES + 1, dtype=torch.float64)
    model = SwitchingSSM(Copy(STATES), Gated(Categorical(STATES + 1), Categorical(STATES + 1)))
    state_probs = torch.full((STATES,), 1 / STATES, dtype=torch.float64)
    return model.with_values(redraw_prob=redraw_prob, state_probs=state_probs, probs=shown, background_probs=blank)


def examples(model: SwitchingSSM, n: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens [n, T] of the model, and its states."""
    simulated = model.simulate(length, (n,), seed=seed)
    return simulated.x.squeeze(-1).long(), simulated.path.long()


class Latch(nn.Module):
    """Logits of the present state from the tokens so far."""

    def __init__(self, name: str, units: int, seed: int) -> None:
        super().__init__()
        self.layer: Any = make_layer(LEARNERS[name], STATES + 1, units, seed)
        exact = isinstance(self.layer, MinGRU) and self.layer.candidate == "simplex"
        self.head: Any = None if exact else make_layer(nn.Linear, units, STATES, seed)

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.layer(one_hot(tokens, STATES + 1, dtype=torch.float32))[0]
        return out.clamp(min=1e-6).log() if self.head is None else self.head(out)

    def readout(self) -> Tensor:
        """The derivative of the output, before a logarithm, with respect to the flattened state, [V, S]."""
        if self.head is None:
            return torch.eye(STATES, dtype=torch.float64)
        weight = self.head.weight.detach().double()
        return torch.cat([weight, torch.zeros_like(weight)], 1) if isinstance(self.layer, LSTM) else weight

    def half_life(self, tokens: Tensor) -> float:
        """Further steps back, from one on, until the mean norm over sequences is halved."""
        twin = copy.deepcopy(self.layer).double().requires_grad_(False)
        ages = torch.arange(1, tokens.shape[1])
        logs = log_norms(twin, one_hot(tokens, STATES + 1, dtype=torch.float64), ages, readout=self.readout())
        mean = logs.logsumexp(0)
        return crossing(ages[1:] - 1, mean[1:] - mean[0], math.log(0.5))


def learned(plan: Learning, seeds: tuple[int, ...], units: int, track: Track[Any]) -> pd.DataFrame:
    """Half-lives of the gradient before and after training, and of the belief; losses, and that of the exact filter."""
    rows = []
    cases = list(product(plan.redraw_probs, plan.learners, STARTS, seeds))
    for rho, name, start, seed in track(cases, "networks in training"):
        model = latch(rho)
        tokens, states = examples(model, JUDGED, plan.length, 10_000 + seed)
        with one_thread_if_small(0):
            network = Latch(name, units, seed)
            if start == STARTS[1]:
                open_gates(network.layer, plan.length, seed)
            before = network.half_life(tokens)
            trained(network, model, plan, seed)
            after, loss = network.half_life(tokens), loss_of(network(tokens), states)
        exact = model.filter(tokens.unsqueeze(-1).double()).state.log()
        rows.append(
            {
                "redraw": rho, "network": name, "start": start, "seed": seed,
                "belief": math.log(0.5) / math.log1p(-rho), "before": before, "after": after,
                "loss": loss.item(), "loss of the filter": loss_of(exact, states).item(),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def trained(network: Latch, model: SwitchingSSM, plan: Learning, seed: int) -> None:
    """Adam on fresh sequences, with a rate that falls to 0 as a cosine."""
    descent = Descent(network.parameters(), RATE, plan.updates)
    tokens, states = examples(model, BATCH * plan.updates, plan.length, seed)
    for read, follow in zip(tokens.split(BATCH), states.split(BATCH), strict=True):
        descent.step(loss_of(network(read), follow))


def loss_of(logits: Tensor, states: Tensor) -> Tensor:
    """Nats a step."""
    return cross_entropy(logits.flatten(0, 1), states.flatten())
