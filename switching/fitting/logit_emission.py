r"""Bernoulli and categorical emissions with inputs, under message passing: the numbers of their logits are normal.

$$E \log p(x_t \mid s, u_t) \ge \text{the bound of a row of probabilities at } u_t,$$

which is that of the rows of a Markov chain with inputs: see `dynamics.logits`. A binary feature in a state is a row of
two possible moves, to 0 and to 1. A symbol in a state is a row of as many moves as there are categories. The first
category has the logit 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Gaussian, VectorFamily
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.delegation import delegated
from ..dynamics.logits import LogitRows
from ..emissions.generalized import GeneralizedLinear
from ..emissions.links import Logit, Logits
from ..parameters import Parameter, Parameters
from ..priors import Conjugate, Probabilities

PROBS, WEIGHTS = "probs", "weights"


@dataclass(frozen=True)
class LogitEmission(Conjugate):
    """The parameters of a Bernoulli or categorical emission with inputs, as one block.

    Attributes:
        emission: each state has its own coefficients.
    """

    emission: GeneralizedLinear
    family = Gaussian()
    prior_is_factor = True

    @staticmethod
    def of(emission: GeneralizedLinear) -> "LogitEmission":
        """The block of an emission with inputs; TypeError if there is no bound for it."""
        if emission.shared:
            raise TypeError(
                f"emission: all states share coefficients of {', '.join(emission.shared)}, and message passing "
                'estimates those of each state; use method="em", "svi" or "nuts".'
            )
        if emission.have_unit:
            raise TypeError(
                f"emission: all states share a scale of {emission!r}, and message passing estimates that of each "
                'state; use method="em", "svi" or "nuts".'
            )
        if not isinstance(emission.link, Logit | Logits):
            raise TypeError(
                f"emission: message passing has no bound for {emission.plain.name} with inputs; "
                'use method="em", "svi" or "nuts".'
            )
        return LogitEmission(emission)

    parameters = delegated("emission")
    sites = delegated("emission")

    @cached_property
    def _made(self) -> dict[int, LogitRows]:
        """The rows, by their number."""
        return {}

    @property
    def _binary(self) -> bool:
        return self.emission.link.independent

    @property
    def _n_rows(self) -> int:
        """Of one state."""
        return self.emission.n_features if self._binary else 1

    def _rows(self, n_states: int, prior: Parameters | None = None) -> LogitRows:
        """The rows of all features in all states, state by state."""
        n_rows = n_states * self._n_rows
        if n_rows not in self._made:
            self._made[n_rows] = _rows_of(n_rows, self._n_moves, self.emission.sizes["regressor"])
        rows = self._made[n_rows]
        if prior is None:
            return rows
        scale = self._padded(prior["coefficients_scale"])
        return LogitRows(rows.probs, rows.weights, rows.possible, rows.reference, rows.n_inputs, scale)

    @property
    def _n_moves(self) -> int:
        return 2 if self._binary else 1 + self.emission.sizes[self.emission.link.axis]

    @property
    def width(self) -> int:  # type: ignore[override]
        return self._n_rows * self._n_moves

    # ---- tables of rows --------------------------------------------------------------------------------------------

    def _padded(self, coefficients: Float[Tensor, "*r K J C"]) -> Float[Tensor, "*r I M C"]:
        """Coefficients of all moves, 0 for the first one."""
        if self._binary:
            coefficients = coefficients.flatten(-3, -2).unsqueeze(-2)
        return torch.nn.functional.pad(coefficients, (0, 0, 1, 0))

    def _of_rows(self, values: Parameters) -> Parameters:
        probs = values["probs"]
        if self._binary:
            probs = probs.flatten(-2)
            probs = torch.stack([1 - probs, probs], -1)
        return {PROBS: probs, WEIGHTS: self._padded(values["coefficients"])}

    def _concentration(self, prior: Parameters) -> Parameters:
        if not self._binary:
            return {"concentration": prior["concentration"]}
        return {"concentration": torch.stack([prior["failures"].flatten(-2), prior["successes"].flatten(-2)], -1)}

    # ---- the block -------------------------------------------------------------------------------------------------

    def natural(self, prior: Parameters) -> Tensor:
        return self._rows(_n_states(prior)).natural(prior)

    def point(self, values: Parameters) -> Tensor:
        return self._rows(values["probs"].shape[-2]).point(self._of_rows(values))

    def values(self, point: Tensor) -> Parameters:
        n_states = point.shape[-2] // self._n_rows
        found = self._rows(n_states).values(point)
        probs, weights = found[PROBS], found[WEIGHTS][..., 1:, :]
        if self._binary:
            shape = n_states, self._n_rows
            probs, weights = probs[..., 1].unflatten(-1, shape), weights.squeeze(-2).unflatten(-2, shape)
        return {"probs": probs, "coefficients": weights}

    def given(self, known: Parameters) -> VectorFamily[Any]:
        if set(known) < set(self.parameters) or any(bool(table.isnan().any()) for table in known.values()):
            raise TypeError(
                f"fixed: got {', '.join(known)}, but message passing holds all parameters of {self.emission.name} or "
                'none; fix all of them, or use method="em", "svi" or "nuts".'
            )
        return self._rows(known["probs"].shape[-2]).given(self._of_rows(known))

    def known_density(self, prior: Parameters, known: Parameters) -> Tensor:
        rows = self._rows(_n_states(prior), prior)
        return rows.known_density(self._concentration(prior), self._of_rows(known))

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        return self._rows(_n_states(prior), prior).prior_factor(block, self._concentration(prior), share)

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        by_state = eta.unflatten(-2, (-1, self._n_rows))
        if by_state.shape[-3] == 1:  # a background that is the same in all states
            return eta
        return by_state.index_select(-3, order).flatten(-3, -2)

    # ---- the bound -------------------------------------------------------------------------------------------------

    def expected_table(
        self, x: Float[Tensor, "*b T R"], statistics: Float[Tensor, "*r I P"]
    ) -> Float[Tensor, "*rb T K"]:
        """Bounds on E log p(x_t | s) of every step and state, from rows of observations and their inputs."""
        observed, inputs = self.emission.split(x)
        n_states = statistics.shape[-2] // self._n_rows
        design = torch.nn.functional.pad(inputs, (1, 0), value=1.0)
        logs = self._rows(n_states).expected_logs(statistics, design)  # [*r, *b, T, I, M]
        seen = ~torch.isnan(observed)
        filled = torch.where(seen, observed, 0.0)
        if self._binary:
            logs = logs.unflatten(-2, (n_states, -1))
            terms = filled.unsqueeze(-2) * logs[..., 1] + (1 - filled).unsqueeze(-2) * logs[..., 0]
            return torch.where(seen.unsqueeze(-2), terms, 0.0).sum(-1)
        symbol = filled.long().unsqueeze(-2).expand(*logs.shape[:-1], 1)
        return torch.where(seen, logs.gather(-1, symbol).squeeze(-1), 0.0)


def _n_states(prior: Parameters) -> int:
    return prior["coefficients_scale"].shape[-3]


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
