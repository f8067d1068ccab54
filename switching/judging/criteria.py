"""Information criteria of a fit, from sums over its sequences, which processes add up."""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .entropy import states_entropy

WITH_STEPS = {"aicc", "bic", "hqic", "icl"}


def n_scored(model: Any, series: Any) -> float:
    """The number of steps with a density, each with its weight: not of those whose lags are missing."""
    seen = model.scored(series).any(-1).sum(-1) if model.order else series.n_seen
    return float(series.weighed(seen).sum())


class Criteria(NamedTuple):
    """What the criteria of a point estimate are made of; see `judging.selection`.

    Attributes:
        n_parameters: the number of free parameters.
        loglik: log p(x), with the weights of the sequences, as the other sums.
        n_steps: the number of steps with a density.
        entropy: of the states given x.
    """

    n_parameters: int
    loglik: float
    n_steps: float = math.nan
    entropy: float = math.nan

    @staticmethod
    def of(fit: Any, names: Collection[str]) -> "Criteria":
        """Those of the sequences of a fit in this process, with what the criteria `names` need.

        Raises:
            TypeError: "icl" of a model without a single chain of states.
        """
        model, series = fit.model, fit.series
        if not series.n_sequences:
            return Criteria(fit.n_parameters, 0.0, 0.0, 0.0)
        n_steps = entropy = math.nan
        if WITH_STEPS & set(names):
            n_steps = n_scored(model, series)
        if "icl" in names:
            entropy = states_entropy(model, series)
        return Criteria(fit.n_parameters, fit.loglik, n_steps, entropy)

    @staticmethod
    def total(parts: "Sequence[Criteria]") -> "Criteria":
        """Those of all sequences, from those of each process."""
        _, *sums = zip(*parts, strict=True)
        return Criteria(parts[0].n_parameters, *map(sum, sums))

    @property
    def aic(self) -> float:
        return 2 * self.n_parameters - 2 * self.loglik

    @property
    def aicc(self) -> float:
        left = self.n_steps - self.n_parameters - 1
        return self.aic + 2 * self.n_parameters * (self.n_parameters + 1) / left if left > 0 else math.inf

    @property
    def hqic(self) -> float:
        return 2 * math.log(math.log(self.n_steps)) * self.n_parameters - 2 * self.loglik

    @property
    def bic(self) -> float:
        return math.log(self.n_steps) * self.n_parameters - 2 * self.loglik

    @property
    def icl(self) -> float:
        return self.bic + 2 * self.entropy
