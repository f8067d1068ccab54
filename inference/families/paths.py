r"""The two chains as exponential families: a path is the variable, log tables are its natural parameters.

$$p(path \mid \eta) = h(path) \exp(\langle \eta, t(path) \rangle - A(\eta)),$$

where t counts which entries of the tables a path uses, A is the forward pass and its gradient the smoothed marginals.
log h is what is known of paths, such as steps that cannot happen: `base`, tables that broadcast to eta and may hold
-inf, while eta is finite. Every table of eta has all batch axes; statistics and messages have the shapes of the tables.
"""

from abc import abstractmethod
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..chains.copy.chain import CopyChain
from ..chains.markov.chain import MarkovChain
from .family import Family, tree_map, tree_parts


class CopyTables(NamedTuple):
    """`fresh` [*b, T, K], `held` [*b, T, K] or [*b, T, 1]. The first step redraws, so that its `held` is not used."""

    fresh: Tensor
    held: Tensor


class MarkovTables(NamedTuple):
    """`initial` [*b, K], `transition` [*b, K, K] or [*b, T-1, K, K] as [old, new], `likelihood` [*b, T, K]."""

    initial: Tensor
    transition: Tensor
    likelihood: Tensor


Tables = TypeVar("Tables", CopyTables, MarkovTables)


class _Paths(Family[Tables], Generic[Tables]):
    """What the two families share.

    Arguments:
        lengths: [*b], the number of steps of each sequence; all of them unless given.
        base: the tables of log h; nothing is added unless given.
    """

    latent = True

    def __init__(self, lengths: Tensor | None = None, base: Tables | None = None):
        self.lengths = lengths
        self.base = base

    @abstractmethod
    def chain(self, eta: Tables) -> CopyChain | MarkovChain:
        """The chain of these natural parameters: its filter, paths and draws."""

    @abstractmethod
    def _batch_axes(self, tables: Tables) -> int: ...

    def log_normalizer(self, eta: Tables) -> Float[Tensor, "*b"]:
        return self.chain(eta).log_normalizer()

    def mean(self, eta: Tables) -> Tables:
        return self.evaluate(eta)[1]

    def dot(self, eta: Tables, statistics: Tables) -> Float[Tensor, "*b"]:
        axes = self._batch_axes(statistics)
        pairs = zip(tree_parts(eta), tree_parts(statistics), strict=True)
        return torch.stack([(a * b).flatten(axes).sum(-1) for a, b in pairs]).sum(0)

    def log_base(self, statistics: Tables) -> Float[Tensor, "*b"]:
        if self.base is None:
            return torch.zeros_like(tree_parts(statistics)[0].flatten(self._batch_axes(statistics))[..., 0])
        finite = tree_map(lambda used, base: torch.where(used == 0, 0.0, base), statistics, self.base)
        return self.dot(finite, statistics)

    def check(self, eta: Tables) -> None:
        axes = self._batch_axes(eta)
        for name, table in zip(eta._fields, eta, strict=True):
            if table.shape[:axes] != tree_parts(eta)[0].shape[:axes]:
                shapes = {name: list(part.shape) for name, part in zip(eta._fields, eta, strict=True)}
                raise ValueError(f"{name}: the tables have shapes {shapes}; give each all batch axes, with `expand`.")
            if not table.isfinite().all():
                raise ValueError(
                    f"{name}: got a weight that is not finite; put -inf for what cannot happen into `base`."
                )

    def _weights(self, eta: Tables) -> Tables:
        return eta if self.base is None else tree_map(torch.add, eta, self.base)


class CopyPaths(_Paths[CopyTables]):
    """Paths (s_1..T, z_1..T) of a copy chain, O(K) a step."""

    def chain(self, eta: CopyTables) -> CopyChain:
        tables = self._weights(eta)
        return CopyChain(None, tables.fresh, tables.held, self.lengths)

    def evaluate(self, eta: CopyTables) -> tuple[Tensor, CopyTables]:
        smoothed = self.chain(eta).marginals()
        assert smoothed.held is not None
        return smoothed.log_normalizer, CopyTables(smoothed.fresh, smoothed.held)

    def _batch_axes(self, tables: CopyTables) -> int:
        return tables.fresh.ndim - 2


class MarkovPaths(_Paths[MarkovTables]):
    """Paths s_1..T of a Markov chain; never stores T x K x K unless a transition by step is given."""

    def chain(self, eta: MarkovTables) -> MarkovChain:
        return MarkovChain(*self._weights(eta), self.lengths)

    def evaluate(self, eta: MarkovTables) -> tuple[Tensor, MarkovTables]:
        smoothed = self.chain(eta).marginals()
        assert smoothed.initial is not None
        assert smoothed.transition is not None
        return smoothed.log_normalizer, MarkovTables(smoothed.initial, smoothed.transition, smoothed.fresh)

    def _batch_axes(self, tables: MarkovTables) -> int:
        return tables.likelihood.ndim - 2
