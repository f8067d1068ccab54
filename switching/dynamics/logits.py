r"""Rows of a Markov chain that depend on inputs, under message passing: the numbers of their logits are normal.

In a row, $\psi_{tj} = w_j^\top x_t$ is the logit of a move to state j relative to a reference, with $x_t = (1, c_t)$
and $\psi = 0$ for the reference. Let m be the mean of $\psi$ under q and S the mean of $\psi \psi^\top$, over the J
moves that are possible beside the reference. The curvature of log-sum-exp is at most $B = (I - 1 1^\top / (J + 1)) / 2$
(Böhning 1992, *Multinomial logistic regression algorithm*), so that

$$E \log A_{tj} \ge m_j - \log\Big(1 + \sum_i e^{m_i}\Big) - \tfrac12 \big(\mathrm{tr}\, B S - m^\top B m\big).$$

The bound is convex in m and S, and it holds with equality at a point. Rows with one possible move beside the reference
are gates; their bound is that of `gates`, which is closer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...inference.families import Gaussian, VectorFamily, given_in_part
from ...inference.message_passing.factor_graph import Factor
from ..parameters import Parameter, Parameters
from ..priors import Conjugate, Site
from .factors import MoveTables, named, only
from .gates import bounds_of_logit


@dataclass(frozen=True)
class LogitRows(Conjugate):
    """Rows of probabilities at inputs 0, and weights of the inputs; their priors are factors.

    All rows have as many numbers as the row with most possible moves. Those that a row does not use have standard
    normal priors, and no factor reads them.

    Attributes:
        probs, weights: the blocks of the tables, of one row or of several.
        possible: which moves are possible.
        reference: which move of each row has the logit 0.
        n_inputs: the number C of inputs.
    """

    probs: Conjugate
    weights: Conjugate
    possible: Bool[Tensor, "I K"]
    reference: Bool[Tensor, "I K"]
    n_inputs: int
    family = Gaussian()
    prior_is_factor = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {**self.probs.parameters, **self.weights.parameters}

    @cached_property
    def _one_row(self) -> bool:
        """Whether the tables have no axis of rows."""
        return len(next(iter(self.probs.parameters.values())).dims) == 1

    @cached_property
    def _order(self) -> Int[Tensor, "I J"]:
        """The state of each number of a row."""
        free = self.possible & ~self.reference
        return free.byte().argsort(dim=-1, descending=True, stable=True)[:, : max(1, int(free.sum(-1).max()))]

    @cached_property
    def _used(self) -> Bool[Tensor, "I J"]:
        """Which numbers a row uses."""
        return (self.possible & ~self.reference).gather(-1, self._order)

    @cached_property
    def _gates(self) -> Bool[Tensor, "I"]:
        """Which rows have one possible move beside the reference."""
        return self._used.sum(-1) == 1

    @cached_property
    def _places(self) -> Float[Tensor, "I J K"]:
        """1 where a number of a row belongs to a state."""
        one_hot = torch.nn.functional.one_hot(self._order, self.possible.shape[-1])
        return one_hot.double() * self._used.unsqueeze(-1)

    @cached_property
    def _curvature(self) -> Float[Tensor, "I J J"]:
        """B."""
        used = self._used.double()
        among = used.unsqueeze(-1) * used.unsqueeze(-2) / (used.sum(-1) + 1)[:, None, None]
        return (torch.diag_embed(used) - among) / 2

    def _scales(self, prior: Parameters, like: Tensor) -> Float[Tensor, "I K C"]:
        """The scales of the priors of the weights."""
        return prior[f"{list(self.parameters)[1]}_scale"].to(like).expand(*self.possible.shape, -1)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """I, J and 1 + C."""
        rows, moves = self._order.shape
        return rows, moves, 1 + self.n_inputs

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.possible.shape[-1]

    # ---- tables ----------------------------------------------------------------------------------------------------

    def natural(self, prior: Parameters) -> Tensor:
        """The start of q; the prior is not in the family."""
        like, (rows, moves, columns) = next(iter(prior.values())), self._sizes
        size = moves * columns
        return self.family.natural(like.new_zeros(rows, size), torch.eye(size).to(like))

    def point(self, values: Parameters) -> Tensor:
        probs, weights = (values[name] for name in self.parameters)
        if self._one_row:
            probs, weights = probs.unsqueeze(-2), weights.unsqueeze(-3)
        logs = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
        reference = logs.masked_fill(~self.reference.to(logs.device), 0.0).sum(-1, keepdim=True)
        numbers = torch.cat([(logs - reference).unsqueeze(-1), weights], -1)
        order = self._order.to(numbers.device).unsqueeze(-1).expand(*numbers.shape[:-2], -1, numbers.shape[-1])
        return numbers.gather(-2, order).masked_fill(~self._used.to(numbers.device).unsqueeze(-1), 0.0).flatten(-2)

    def values(self, point: Tensor) -> Parameters:
        numbers = self._places.to(point).mT @ point.unflatten(-1, self._sizes[1:])
        logits = numbers[..., 0].masked_fill(~self.possible.to(point.device), -torch.inf)
        probs, weights = torch.softmax(logits, -1), numbers[..., 1:]
        if self._one_row:
            probs, weights = probs.squeeze(-2), weights.squeeze(-3)
        return dict(zip(self.parameters, (probs, weights), strict=True))

    def sites(self, prior: Parameters) -> list[Site]:
        return [*self.probs.sites(prior), *self.weights.sites(prior)]

    def given(self, known: Parameters) -> VectorFamily[Any]:
        name, weights = self.parameters
        probs, like = known.get(name), next(iter(known.values()))
        if probs is not None and bool((probs.isnan().any(-1) & ~probs.isnan().all(-1)).any()):
            raise TypeError(f"a row of {name} is known in part, and logits are not")
        shape = self.possible.shape[1:] if self._one_row else self.possible.shape
        nowhere = {name: like.new_full(shape, torch.nan), weights: like.new_full((*shape, self.n_inputs), torch.nan)}
        point = self.point(nowhere | known)
        if bool(point.isnan().any()):  # unused numbers are free too
            point = point.unflatten(-1, self._sizes[1:])
            point = point.masked_fill(~self._used.to(point.device).unsqueeze(-1), torch.nan).flatten(-2)
        return given_in_part(self.family, point)

    def known_density(self, prior: Parameters, known: Parameters) -> Tensor:
        """The density of the logits at inputs 0 and of the known weights."""
        alpha = self._concentration(prior)
        probs, weights = (known.get(name) for name in self.parameters)
        total = alpha.new_zeros(())
        if probs is not None:
            table = probs.to(alpha).reshape(alpha.shape)
            of_rows = (alpha * table.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(-1) - self._normalizers(alpha)
            total = total + torch.where(table.isnan().any(-1), 0.0, of_rows).sum()
        if weights is not None:
            free = (self.possible & ~self.reference).to(alpha.device).unsqueeze(-1)
            table = weights.to(alpha).reshape(*alpha.shape, self.n_inputs)
            scales = torch.where(free, self._scales(prior, alpha), 1.0)
            each = -(table / scales).square() / 2 - (scales * math.sqrt(2 * math.pi)).log()
            total = total + torch.where(free & ~table.isnan(), each, 0.0).sum()
        held = probs is not None and weights is not None and not bool(probs.isnan().any() | weights.isnan().any())
        if held:
            total = total - int((~self._used).sum()) * (1 + self.n_inputs) * math.log(2 * math.pi) / 2
        return total

    def _concentration(self, prior: Parameters) -> Float[Tensor, "I K"]:
        """Of the moves at inputs 0, 0 for impossible ones."""
        alpha = self.probs.natural(prior).reshape(self.possible.shape)
        return torch.where(self.possible.to(alpha.device), alpha, 0.0)

    def _normalizers(self, alpha: Float[Tensor, "I K"]) -> Float[Tensor, "I"]:
        possible = self.possible.to(alpha.device)
        return torch.lgamma(torch.where(possible, alpha, 1.0)).sum(-1) - torch.lgamma(alpha.sum(-1))

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        if bool((order == torch.arange(len(order), device=order.device)).all()):
            return eta
        _, moves, columns = self._sizes
        size, of_state = moves * columns, self._order.to(order.device)
        # what row k says of a state is what row order[k] has said of the state order[state]
        old = (of_state[order].unsqueeze(1) == order[of_state].unsqueeze(2)).byte().argmax(-1)
        at = (old.unsqueeze(-1) * columns + torch.arange(columns, device=order.device)).flatten(-2)
        moved = eta.index_select(-2, order)
        first, second = moved[..., :size], moved[..., size:].unflatten(-1, (size, size))
        second = second.gather(-2, at.unsqueeze(-1).expand(second.shape))
        second = second.gather(-1, at.unsqueeze(-2).expand(second.shape))
        return torch.cat([first.gather(-1, at.expand(first.shape)), second.flatten(-2)], -1)

    # ---- bounds ----------------------------------------------------------------------------------------------------

    def expected_logs(
        self, statistics: Float[Tensor, "*r I P"], design: Float[Tensor, "*b D"]
    ) -> Float[Tensor, "*rb I K"]:
        """Bounds on the expected logarithms of the rows, 0 at impossible moves.

        No table has an axis of columns: squares of logits are one product with the squares of the design.
        """
        n_rows, moves, columns = self._sizes
        size, device = moves * columns, statistics.device
        possible, reference = self.possible.to(device), self.reference.to(device)
        flat = design.reshape(-1, columns)
        squares = (flat.unsqueeze(-1) * flat.unsqueeze(-2)).flatten(1)
        numbers = statistics[..., :size].unflatten(-1, (moves, columns))
        second = statistics[..., size:].unflatten(-1, (moves, columns, moves, columns))
        mean = (flat @ numbers.flatten(-3, -2).mT).unflatten(-1, (n_rows, moves))  # [*r, N, I, J]

        def shaped(table: Tensor) -> Tensor:
            return table.reshape(*table.shape[:-3], *design.shape[:-1], *table.shape[-2:])

        of_gates = None
        if bool(self._gates.any()):
            of_first = second[..., 0, :, 0, :].flatten(-2)
            up, down = bounds_of_logit(mean[..., 0], squares @ of_first.mT)
            of_gates = torch.where(reference, down.unsqueeze(-1), up.unsqueeze(-1)).where(possible, 0.0)
            if bool(self._gates.all()):
                return shaped(of_gates)
        places, curvature = self._places.to(statistics), self._curvature.to(statistics)
        traced = torch.einsum("ijk,...ijdke->...ide", curvature, second).flatten(-2)
        logits = (mean.unsqueeze(-2) @ places).squeeze(-2)
        at_mean = (torch.einsum("ijk,...ik->...ij", curvature, mean) * mean).sum(-1)
        beyond = (squares @ traced.mT - at_mean) / 2
        total = logits.masked_fill(~possible, -torch.inf).logsumexp(-1) + beyond
        table = logits - total.unsqueeze(-1)
        if of_gates is not None:
            table = torch.where(self._gates.to(device).unsqueeze(-1), of_gates, table)
        return shaped(torch.where(possible, table, 0.0))

    def prior_at_zero(self, prior: Parameters) -> Callable[[Tensor], Tensor]:
        """The expected log prior of the rows at inputs 0: Dirichlet rows are bounded as moves there are."""
        alpha = self._concentration(prior)
        normalizer, at_zero = self._normalizers(alpha).sum(), torch.eye(1, 1 + self.n_inputs).to(alpha)[0]

        def expected(statistics: Tensor) -> Tensor:
            return (alpha * self.expected_logs(statistics, at_zero)).sum((-2, -1)) - normalizer

        return expected

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        """The expected log prior of the rows and of the weights."""
        of_rows, alpha = self.prior_at_zero(prior), self._concentration(prior)
        _, moves, columns = self._sizes
        size = moves * columns
        used, order = self._used.to(alpha.device), self._order.to(alpha.device)
        scales = self._scales(prior, alpha).gather(-2, order.unsqueeze(-1).expand(-1, -1, self.n_inputs))
        of_weights = torch.where(used.unsqueeze(-1), scales, 1.0) ** -2
        of_rows_own = torch.where(used, 0.0, alpha.new_ones(())).unsqueeze(-1)  # their priors are those of the rows
        precision = torch.cat([of_rows_own, of_weights], -1)
        logs = torch.where(precision > 0, math.log(2 * math.pi) - torch.where(precision > 0, precision, 1.0).log(), 0.0)
        normalizer, precision = logs.sum() / 2, precision.flatten(-2)

        def prior_of_logits(statistics: Tensor) -> Tensor:
            squares = statistics[..., size:].unflatten(-1, (size, size)).diagonal(dim1=-2, dim2=-1)
            return of_rows(statistics) - (precision * squares).sum((-2, -1)) / 2 - normalizer

        return Factor(named(f"{block}_prior", prior_of_logits), (block,), scale=share, convex=(block,))


def driven_moves(block: str, chain: str, rows: LogitRows, design: Float[Tensor, "*b S D"]) -> Factor:
    """Bounds on E log A_t[old, new] of every move."""

    def table(statistics: Tensor) -> Tensor:
        return rows.expected_logs(statistics, design)

    def elog(paths: MoveTables, statistics: Tensor) -> Tensor:
        return (paths.transition * table(statistics)).sum((-2, -1))

    def to_chain(paths: MoveTables, statistics: Tensor) -> MoveTables:
        return only(paths, transition=table(statistics))

    return Factor(named(block, elog), (chain, block), {chain: to_chain}, convex=(block,))


def driven_start(
    block: str, chain: str, rows: LogitRows, design: Float[Tensor, "*b D"], counted: Tensor | None = None
) -> Factor:
    """Bounds on E log P(s_1)."""
    mask = torch.ones((), device="cpu") if counted is None else counted[0]

    def table(statistics: Tensor) -> Tensor:
        return rows.expected_logs(statistics, design).squeeze(-2)

    def elog(paths: MoveTables, statistics: Tensor) -> Tensor:
        return (paths.initial * table(statistics)).sum(-1)

    def to_chain(paths: MoveTables, statistics: Tensor) -> MoveTables:
        return only(paths, initial=table(statistics) * mask)

    return Factor(named(block, elog), (chain, block), {chain: to_chain}, mask=mask, convex=(block,))
