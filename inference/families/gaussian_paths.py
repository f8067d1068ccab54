r"""Chains of real vectors as an exponential family: a path is the variable, its linear and square terms the parameters.

$$\log p(s_{1:T} \mid \eta) = \sum_t a_t^\top s_t + s_t^\top B_t s_t + s_{t+1}^\top C_t s_t - A(\eta)$$

Any product of normal densities of states and of their neighbours has this form. So does the expected logarithm of such
a product under other blocks. A term with weight 0 is absent, and nothing is divided by a weight.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ..chains.gaussian_paths import op
from ..numerics.cholesky import NotDefiniteError
from ..numerics.deferred import refuse_if
from .family import Family, tree_map, tree_parts
from .numerics import normal_draw


class GaussianTables(NamedTuple):
    """a [*b, T, L], B [*b, T, L, L], C [*b, T-1, L, L]; as statistics s_t, s_t s_t', s_t+1 s_t'."""

    linear: Tensor
    square: Tensor
    cross: Tensor


@dataclass(frozen=True, eq=False)
class GaussianPaths(Family[GaussianTables]):
    """Paths s_1..T of real vectors; O(T L^3).

    Arguments:
        lengths: [*b], the number of steps of each sequence; None: all. Steps after a sequence's end are not read.
        base: the tables of log h, which broadcast to eta; None: nothing is added.
    """

    lengths: Tensor | None = None
    base: GaussianTables | None = None
    latent: ClassVar[bool] = True

    def log_normalizer(self, eta: GaussianTables) -> Float[Tensor, "*b"]:
        return self.evaluate(eta)[0]

    def mean(self, eta: GaussianTables) -> GaussianTables:
        return self.evaluate(eta)[1]

    def evaluate(self, eta: GaussianTables, start: GaussianTables | None = None) -> tuple[Tensor, GaussianTables]:
        tables, lengths, batch = self._flat(eta)
        total, *moments, failed = op.moments(*tables, lengths)
        _check_definite(failed.reshape(batch))
        return total.reshape(batch), GaussianTables(*(x.reshape(*batch, *x.shape[1:]) for x in moments))

    def sample(self, eta: GaussianTables, n: int, generator: Generator | None = None) -> Float[Tensor, "n *b T L"]:
        """n draws of the path, 0 after its end."""
        tables, lengths, batch = self._flat(eta)
        noise = normal_draw(tables[0].new_empty(n, *tables[0].shape), generator)
        path, failed = op.sample(*tables, lengths, noise)
        _check_definite(failed.reshape(batch))
        return path.reshape(n, *batch, *path.shape[2:])

    def statistics(self, path: Float[Tensor, "*b T L"]) -> GaussianTables:
        """t of a path."""
        column = path.unsqueeze(-1)
        return GaussianTables(path, column @ column.mT, column[..., 1:, :, :] @ column[..., :-1, :, :].mT)

    def dot(self, eta: GaussianTables, statistics: GaussianTables) -> Float[Tensor, "*b"]:
        axes = statistics.linear.ndim - 2
        pairs = zip(tree_parts(eta), tree_parts(statistics), strict=True)
        return torch.stack([(weight * used).flatten(axes).sum(-1) for weight, used in pairs]).sum(0)

    def log_base(self, statistics: GaussianTables) -> Float[Tensor, "*b"]:
        return torch.zeros_like(statistics.linear[..., 0, 0]) if self.base is None else self.dot(self.base, statistics)

    def check(self, eta: GaussianTables) -> None:
        *batch, n_steps, n_states = eta.linear.shape
        within = n_states, n_states
        expected = eta.linear.shape, (*batch, n_steps, *within), (*batch, n_steps - 1, *within)
        for name, table, shape in zip(eta._fields, eta, expected, strict=True):
            if tuple(table.shape) != tuple(shape):
                raise ValueError(f"{name}: got shape {list(table.shape)}, expected {list(shape)}, to match linear.")
            if not table.isfinite().all():
                raise ValueError(f"{name}: got a number that is not finite; give finite tables.")
        self.log_normalizer(eta)

    def _flat(self, eta: GaussianTables) -> tuple[list[Tensor], Tensor, torch.Size]:
        """The tables of each sequence, [N, ...], their lengths, and the batch axes."""
        tables = eta if self.base is None else tree_map(torch.add, eta, self.base)
        batch, n_steps = tables.linear.shape[:-2], tables.linear.shape[-2]
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((), n_steps, device=tables.linear.device)
        event_axes = (2, 3, 3)
        flat = [
            x.reshape(-1, *x.shape[-n:]) if x.numel() else x.new_zeros(batch.numel(), *x.shape[-n:])
            for x, n in zip(tables, event_axes, strict=True)
        ]
        return flat, lengths.expand(batch).reshape(-1), batch


def _check_definite(failed: Tensor) -> None:
    """Raise NotDefiniteError if the precision of a path is not positive definite."""
    bad = failed >= 0

    def complain() -> None:
        place = tuple(bad.nonzero()[0].tolist())
        raise NotDefiniteError(
            f"square: up to step {int(failed[place])}{f' of sequence {list(place)}' if place else ''} the precision of "
            "the path is not positive definite; check that each state has a prior, and that no covariance is nearly "
            "singular."
        )

    refuse_if(bad.any(), complain)
