r"""The information of a network's gates about the gate of a model, unit by unit: AUC and mutual information.

If a state is not a belief, the gates of the network are not gates of the model: a unit may hold and draw for other
reasons. But the number $g_t$ of a unit can be informative about $z_t$. Both measures follow from the exact posterior
$p_t = P(z_t{=}1 \mid x_{1..t})$ without the true gates, because $P(z{=}1 \mid g) = E[p_t \mid g_t = g]$. Each step
counts as drawn with weight $p_t$, and as held with $1 - p_t$.

        AUC             P(g of a drawn step > g of a held one), ties counting half; 1/2 means no information
        information     I(g; z) in nats, at most H(z); by value of g if each occurs often, else in bins of equal size

The exact gate $p_t$, measured in the same way, is the maximum for any function of the past.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.numerics.records import Record

BINS, LEAST = 32, 50  # the most bins, and the least steps in each; smaller bins would show spurious information
OFTEN = 20  # steps per value, from which on each value is a bin


@dataclass(frozen=True, repr=False)
class GateReading(Record):
    """The information of the gates of a network's units about z, on all steps but the first, which is always drawn."""

    draw: Float[Tensor, "*b T U"]  # the gates; 0 after the end of a sequence
    auc: Float[Tensor, "U"]
    information: Float[Tensor, "U"]  # nats
    exact_auc: float  # of P(z_t = 1 | x_1..t)
    exact_information: float
    entropy: float  # H(z), nats

    @property
    def best(self) -> int:
        """The unit whose gate has the most information."""
        clear = (self.auc - 0.5).abs().nan_to_num(0.0)
        return max(range(len(clear)), key=lambda unit: (float(self.information[unit]), float(clear[unit])))

    def summary(self) -> pd.DataFrame:
        """A row for each unit, and one for the exact gate."""
        index = pd.Index([*range(len(self.auc)), "exact"], name="unit")
        auc, information = [*self.auc.tolist(), self.exact_auc], [*self.information.tolist(), self.exact_information]
        share = [value / self.entropy if self.entropy else torch.nan for value in information]
        return pd.DataFrame({"AUC": auc, "I(gate; z), nats": information, "share of H(z)": share}, index)


def read_gates(
    draw: Float[Tensor, "*b T U"], exact: Float[Tensor, "*b T"], inside: Bool[Tensor, "*b T"]
) -> GateReading:
    """Gates of units, compared with the exact posterior of the model's gate; see this module's measures."""
    kept = inside.clone()
    kept[..., 0] = False
    posterior = exact[kept].double().cpu().numpy()
    units = draw[kept].double().cpu().numpy()
    share = float(posterior.mean()) if len(posterior) else np.nan
    pairs = [(_auc(unit, posterior), _information(unit, posterior)) for unit in (*units.T, posterior)]
    auc, information = (torch.tensor(column, dtype=torch.float64, device="cpu") for column in zip(*pairs, strict=True))
    shown = torch.where(inside.unsqueeze(-1), draw, 0.0)
    return GateReading(
        shown, auc[:-1], information[:-1], float(auc[-1]), float(information[-1]), float(_entropy(share))
    )


def _auc(gate: np.ndarray, posterior: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    least = len(gate) * np.finfo(np.float64).eps  # less is rounding
    if not posterior.sum() > least or not (1 - posterior).sum() > least:
        return float("nan")
    labels = np.repeat([1, 0], len(gate))
    weights = np.concatenate([posterior, 1 - posterior])
    return float(roc_auc_score(labels, np.tile(gate, 2), sample_weight=weights))


def _information(gate: np.ndarray, posterior: np.ndarray) -> float:
    """H(z) - H(z | bin of the gate)."""
    if not len(gate):
        return float("nan")
    values, index = np.unique(gate, return_inverse=True)
    if len(gate) < OFTEN * len(values):
        bins = max(1, min(BINS, len(gate) // LEAST))
        edges = np.unique(np.quantile(gate, np.linspace(0, 1, bins + 1)[1:-1]))
        index = np.searchsorted(edges, gate, side="right")
    count = np.bincount(index)
    drawn = np.bincount(index, posterior)
    within = _entropy(drawn / np.maximum(count, 1))
    return max(0.0, float(_entropy(float(posterior.mean())) - (count * within).sum() / len(gate)))


def _entropy(share: np.ndarray | float) -> np.ndarray | float:
    from scipy.special import entr

    share = np.clip(share, 0.0, 1.0)
    return entr(share) + entr(1 - share)
