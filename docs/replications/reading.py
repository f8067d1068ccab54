"""Networks that give a label at every step of a series, or at its last: trained, and judged on others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from samplehold.inference.numerics.records import Record
from samplehold.models.bridge.correspondence import as_ssm
from samplehold.models.networks.state_regularized import StateRegularized
from samplehold.models.studies.next_token import Descent
from samplehold.switching.seeding import seeded
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NO_LABEL = -100  # as torch's cross-entropy has it
BATCH = 64


@dataclass(frozen=True, repr=False)
class Labelled(Record):
    """Series of one length, with a class at some steps."""

    x: Float[Tensor, "N T F"]
    label: Int[Tensor, "N T"]  # NO_LABEL where there is none

    def double(self) -> "Labelled":
        """The same in float64."""
        return Labelled(self.x.double(), self.label)


class Reader(nn.Module):
    """A recurrent layer and a linear map from its outputs to classes."""

    def __init__(self, layer: nn.Module, n_classes: int) -> None:
        super().__init__()
        self.layer: Any = layer
        self.head: nn.Linear = nn.Linear(self.layer.hidden_size, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Log-odds of the classes, [*b, T, C]."""
        return self.head(self.layer(x)[0])

    @torch.no_grad()
    def accuracy(self, data: Labelled, mode: str = "soft") -> float:
        """The share of labels that get the greatest log-odds, of a state-regularised layer in this mode."""
        regular = isinstance(self.layer, StateRegularized)
        out = self.layer.run(data.x, mode=mode).output if regular else self.layer(data.x)[0]
        some = data.label != NO_LABEL
        return float((self.head(out).argmax(-1)[some] == data.label[some]).double().mean())


@dataclass(frozen=True)
class Recipe:
    """How readers are made and trained.

    Arguments:
        kind: of the cell.
        units: of the cell.
        n_states: centroids.
        temperature, similarity: of state-regularised layers.
        spread: factor on the cell's weights of inputs at the start, which sets inputs apart: among centroids that are
            as good as one, small differences are lost within steps.
        n_steps, rate: of Adam with a cosine schedule, on batches of 64, gradients clipped at norm 1.
    """

    kind: type[nn.Module]
    units: int = 32
    n_states: int = 20
    temperature: float = 0.2
    similarity: str = "cosine"
    spread: float = 8.0
    n_steps: int = 1000
    rate: float = 1e-2

    def make(self, features: int, n_classes: int, regular: bool, seed: int) -> Reader:
        """A reader whose cell starts alike with centroids and without."""
        with seeded(seed, torch.empty(0)):
            cell: Any = self.kind(features, self.units)
            with torch.no_grad():
                for name, weight in cell.named_parameters():
                    if name.startswith(("weight_ih", "weight_l")):
                        weight[:, :features].mul_(self.spread)
            head = Reader(cell, n_classes).head
            layer = StateRegularized(cell, self.n_states, self.temperature, self.similarity) if regular else cell
            reader = Reader(layer, n_classes)
            reader.head = head
        return reader

    def train(self, reader: Reader, data: Labelled, seed: int) -> Reader:
        """Train a reader, in place, by the cross-entropy of its labels."""
        return self._descend(reader, data, seed, self.n_steps, cross_entropy_of(reader))

    def train_hard(self, reader: Reader, data: Labelled, seed: int) -> Reader:
        """Train a reader with centroids, in place, for a third as long, in hard mode, by straight-through gradients."""
        reader.layer.mode = "hard"
        self._descend(reader, data, seed, self.n_steps // 3, cross_entropy_of(reader))
        reader.layer.mode = "soft"
        return reader

    def train_chain(self, reader: Reader, data: Labelled, seed: int) -> Reader:
        """Train a reader with centroids, in place, for a third as long, by the exact probability of its labels.

        Centroids are drawn, and the head is applied to each: the chain sums over all paths.
        """
        chains = as_ssm(reader.layer).chain

        def loss(x: Tensor, label: Tensor) -> Tensor:
            some, says = label != NO_LABEL, reader.head(reader.layer.centroids).log_softmax(-1)
            evidence = torch.where(some.unsqueeze(-1), says.T[label.clamp_min(0)], 0.0)
            return -chains(x, log_likelihood=evidence).log_normalizer().sum() / some.sum()

        return self._descend(reader, data, seed, self.n_steps // 3, loss)

    def _descend(
        self, reader: Reader, data: Labelled, seed: int, n_steps: int, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> Reader:
        random, descent = torch.Generator().manual_seed(seed), Descent(reader.parameters(), self.rate, n_steps)
        for _ in range(n_steps):
            rows = torch.randint(len(data.x), (BATCH,), generator=random)
            descent.step(loss(data.x[rows], data.label[rows]))
        return reader


def cross_entropy_of(reader: Reader) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean cross-entropy of labels, from series and labels."""
    return lambda x, label: cross_entropy(reader(x).flatten(0, -2), label.flatten(), ignore_index=NO_LABEL)
