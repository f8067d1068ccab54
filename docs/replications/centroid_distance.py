r"""The distance of the soft pass of a network of centroids from the chain of which it is the mean field.

**A latch** has an exact solution: one tanh unit with weight 1 on itself, centroids -1 and 1, dot products, and inputs
that are 0 after the first. With $m_t$ the mean of the state, drawn and soft,

$$m_t = r\, m_{t-1}, \quad r = \tanh(\tanh(1) / \tau), \qquad\qquad m_t = \tanh(\tanh(m_{t-1}) / \tau).$$

The chain flips with probability $(1 - r) / 2$ and forgets at any temperature. Its half-life is $\log 2 / (-\log r)$
steps, which grows as $e^{2 \tanh(1) / \tau}$. The soft pass is a mean-field magnet: below the critical temperature of 1
its fixed point at 0 is unstable, and it remembers forever. So the distance vanishes as the temperature falls at a given
length. As the length grows at a given temperature below 1, it tends to half the magnetisation.

**Random networks** on random inputs, and **trained** ones on new words, are only measured.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from reading import Labelled, Reader
from samplehold.models.bridge.comparison import Comparison, compare
from samplehold.models.bridge.correspondence import as_ssm
from samplehold.models.networks.minimal import MinGRU
from samplehold.models.networks.state_regularized import StateRegularized
from samplehold.models.networks.wrapped import GRU, Elman
from samplehold.switching.seeding import seeded
from torch import Tensor, nn

HALF_LIFE = "chain's half-life"
FACTORS = (1.0, 0.5, 0.25, 0.1)  # of a trained network's temperature


def latch(temperature: float) -> StateRegularized:
    """One bit that is set by the first input."""
    network = StateRegularized(Elman(1, 1, bias=False, dtype=torch.float64), 2, temperature)
    values = {"cell.weight_ih_l0": [[5.0]], "cell.weight_hh_l0": [[1.0]], "centroids": [[-1.0], [1.0]]}
    network.load_state_dict(network.state_dict() | {name: torch.tensor(value) for name, value in values.items()})
    return network.requires_grad_(False)


def latch_means(temperature: float, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the latch's state, drawn and soft, after each step; by the equations above."""
    drawn = soft = np.tanh(np.tanh(5.0) / temperature)
    means_by_step = []
    for _ in range(n_steps):
        means_by_step.append((drawn, soft))
        drawn, soft = np.tanh(np.tanh(1.0) / temperature) * drawn, np.tanh(np.tanh(soft) / temperature)
    means = np.array(means_by_step)
    return means[:, 0], means[:, 1]


def half_life(temperature: float) -> float:
    """Steps in which the chain of the latch forgets a half."""
    return float(-np.log(2) / np.log(np.tanh(np.tanh(1.0) / temperature)))


def latch_distances(temperatures: Iterable[float], n_steps: int) -> pd.DataFrame:
    """Total variation [temperature, step] of the soft pass of latches, after steps that double."""
    x = torch.zeros(n_steps, 1, dtype=torch.float64)
    x[0] = 1.0
    rows = {}
    for temperature in temperatures:
        network = latch(temperature)
        distance = compare(as_ssm(network), network, x).network.total_variation
        rows[temperature] = {step: float(distance[step - 1]) for step in doubling(n_steps)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("temperature")


def latch_table(distances: pd.DataFrame) -> pd.DataFrame:
    """The distances, with the temperature and the half-life of the chain in columns of their own."""
    times = [half_life(float(temperature)) for temperature in distances.index]
    return distances.assign(**{HALF_LIFE: times})[[HALF_LIFE, *distances.columns]].reset_index()


def doubling(n_steps: int) -> list[int]:
    """1, 2, 4, ... up to a number of steps."""
    return [2**k for k in range(n_steps.bit_length())]


def random_distances(
    temperatures: Sequence[float], n_networks: int, n_steps: int, n_states: int = 8, seed: int = 0
) -> pd.DataFrame:
    """Distances by cell, temperature and step, means over random networks and 8 random series for each."""
    rows = []
    for kind in (Elman, GRU, MinGRU):
        for temperature in temperatures:
            comparisons = [
                _random_comparison(kind, temperature, n_steps, n_states, seed + k) for k in range(n_networks)
            ]
            rows += _by_step(comparisons, n_steps, {"cell": kind.__name__, "temperature": temperature})
    return pd.DataFrame(rows)


def _random_comparison(kind: type[nn.Module], temperature: float, n_steps: int, n_states: int, seed: int) -> Comparison:
    """A cell of 16 units and standard normal weights, over the root of the units where they read the state."""
    with seeded(seed, torch.empty(0)):
        cell: Any = kind(4, 16)
        network = StateRegularized(cell.double(), n_states, temperature, "l2").requires_grad_(False)
        for name, weight in network.named_parameters():
            weight.normal_().mul_(0.25 if "weight_hh" in name else 1.0)
        x = torch.randn(8, n_steps, 4, dtype=torch.float64)
    network.centroids.copy_(network.centroids.tanh())  # where the states of cells are
    return compare(as_ssm(network), network, x)


def _by_step(comparisons: Sequence[Comparison], n_steps: int, where: dict[str, object]) -> list[dict[str, object]]:
    """Mean distances at steps that double, and of a soft step from the exact distribution before it."""
    rows = []
    for step in doubling(n_steps):
        mean = lambda update, name, at=step - 1: float(
            torch.stack([getattr(one.updates[update], name)[..., at] for one in comparisons]).mean()
        )
        rows.append(
            where
            | {"step": step, "TV": mean("network", "total_variation"), "nats": mean("network", "divergence")}
            | {"TV, one step": mean("one step", "total_variation"), "TV, hard": mean("hard", "total_variation")}
        )
    return rows


@torch.no_grad()
def trained_distances(reader: Reader, tests: dict[str, Labelled], where: dict[str, object]) -> list[dict[str, object]]:
    """A trained network beside its chain at the last step of test series, as its temperature is lowered.

    The accuracy of drawn runs is exact: the chain's probability of a centroid at which the readout is right.
    """
    layer, head = reader.layer, reader.head
    before, rows = layer.temperature, []
    says = head(layer.centroids).argmax(-1)
    for factor in FACTORS:
        layer.temperature = factor * before
        for name, data in tests.items():
            report, label = compare(as_ssm(layer), layer, data.x), data.label[:, -1]
            right = (report.exact.state[:, -1] * (says == label[:, None])).sum(-1)
            soft = (head(report.hidden[:, -1]).argmax(-1) == label).double()
            rows.append(
                where
                | {"temperature": f"{factor:g} x {before:.2g}", "words": name}
                | {"TV": _last(report.network.total_variation), "nats": _last(report.network.divergence)}
                | {"accuracy, soft": float(soft.mean()), "accuracy, drawn": float(right.mean())}
            )
    layer.temperature = before
    return rows


def _last(table: Tensor) -> float:
    return float(table[..., -1].mean())
