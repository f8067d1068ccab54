r"""Bernoulli and categorical emissions with inputs, under message passing: the numbers of their logits are normal.

$$E \log p(x_t \mid s, u_t) \ge \text{the bound of a row of probabilities at } u_t,$$

which is that of the rows of a Markov chain with inputs: see `dynamics.logits`. A binary feature in a state is a row of
two possible moves, to 0 and to 1. A symbol in a state is a row of as many moves as there are categories. The first
category has the logit 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import constraints

from ..dynamics.logits import LogitRows
from ..parameters import Parameter, Parameters
from ..priors import Conjugate, Probabilities
from .linked_emission import LinkedEmission

PROBS, WEIGHTS = "probs", "weights"


@dataclass(frozen=True)
class LogitEmission(LinkedEmission):
    """The parameters of a Bernoulli or categorical emission with inputs, as one block."""

    @cached_property
    def _made(self) -> dict[int, LogitRows]:
        """The rows, by their number."""
        return {}

    @property
    def _binary(self) -> bool:
        return self.emission.link.independent

    @property
    def of_constants(self) -> str:  # type: ignore[override]
        return "failures" if self._binary else "concentration"

    @property
    def _n_moves(self) -> int:
        return 2 if self._binary else 1 + self.emission.sizes[self.emission.link.axis]

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.n_rows * self._n_moves

    def _rows(self, n_rows: int) -> LogitRows:
        if n_rows not in self._made:
            self._made[n_rows] = _rows_of(n_rows, self._n_moves, self.n_columns - 1)
        return self._made[n_rows]

    def prior_of_rows(self, prior: Parameters) -> Callable[..., Tensor]:
        if self._binary:
            concentration = torch.stack([prior["failures"].flatten(-2), prior["successes"].flatten(-2)], -1)
        else:
            concentration = prior["concentration"]
        return self._rows(len(concentration)).prior_at_zero({"concentration": concentration})

    def expected_of_rows(self, observed: Tensor, design: Tensor, moments: Tensor, *beside: Tensor) -> Tensor:
        logs = self._rows(moments.shape[-2]).expected_logs(moments, design)  # [*r, *b, T, I, M]
        seen = ~torch.isnan(observed)
        filled = torch.where(seen, observed, 0.0)
        if self._binary:
            logs = logs.unflatten(-2, (-1, self.n_rows))
            terms = filled.unsqueeze(-2) * logs[..., 1] + (1 - filled).unsqueeze(-2) * logs[..., 0]
            return torch.where(seen.unsqueeze(-2), terms, 0.0).sum(-1)
        symbol = filled.long().unsqueeze(-2).expand(*logs.shape[:-1], 1)
        return torch.where(seen, logs.gather(-1, symbol).squeeze(-1), 0.0)


def _rows_of(n_rows: int, n_moves: int, n_inputs: int) -> LogitRows:
    possible = torch.ones(n_rows, n_moves, dtype=torch.bool, device="cpu")
    reference = torch.arange(n_moves, device="cpu").eq(0).expand(n_rows, -1).clone()
    dims = "row", "category"
    return LogitRows(Probabilities(PROBS, "concentration", dims), _Weights(dims), possible, reference, n_inputs)


@dataclass(frozen=True)
class _Weights(Conjugate):
    """The name of the weights of rows; their prior is a factor of the rows."""

    dims: tuple[str, ...]

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {WEIGHTS: Parameter((*self.dims, "input"), constraints.real)}

    def natural(self, prior: Parameters) -> Tensor:
        raise TypeError("weights: their prior is not in a family of their own.")
