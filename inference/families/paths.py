r"""The chains of states as exponential families: a path is the variable, and log tables are its natural parameters.

$$p(path \mid \eta) = h(path) \exp(\langle \eta, t(path) \rangle - A(\eta)),$$

where t counts the entries of the tables that a path uses, A is the forward pass and its gradient the smoothed
marginals. log h is the prior knowledge about paths, such as impossible steps: `base`, tables that broadcast to eta and
may contain -inf, while eta is finite. Every table of eta has all batch axes; statistics and messages have the shapes of
the tables.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..chains.contract import Chain, Marginals
from ..chains.copy.chain import CopyChain
from ..chains.factored_copy.chain import FactoredCopyChain
from ..chains.markov.chain import MarkovChain
from ..chains.semi_markov.chain import SemiMarkovChain
from .family import Family, tree_map, tree_parts


class CopyTables(NamedTuple):
    """`fresh` [*b, T, K], `held` [*b, T, K] or [*b, T, 1]. The first step redraws, so its `held` is not used."""

    fresh: Tensor
    held: Tensor

    @property
    def steps(self) -> tuple[Tensor, Tensor]:
        """The weights of each step: if it draws its state, and if it holds it."""
        return self.fresh, self.held

    @staticmethod
    def of_steps(drawn: Tensor | None, held: Tensor | None) -> "CopyTables":
        """A message to the steps alone; None stands for no message."""
        return CopyTables(drawn, held)  # type: ignore[arg-type]


class MarkovTables(NamedTuple):
    """`initial` [*b, K], `transition` [*b, K, K] or [*b, T-1, K, K] as [old, new], `likelihood` [*b, T, K]."""

    initial: Float[Tensor, "*b K"]
    transition: Float[Tensor, "*b K K"] | Float[Tensor, "*b T-1 K K"]
    likelihood: Float[Tensor, "*b T K"]

    @property
    def steps(self) -> tuple[Tensor, None]:
        """The weights of each step; all steps draw their state."""
        return self.likelihood, None

    @staticmethod
    def of_steps(drawn: Tensor | None, held: Tensor | None) -> "MarkovTables":
        """A message to the steps alone; None stands for no message."""
        return MarkovTables(None, None, drawn)  # type: ignore[arg-type]


class FactoredTables(NamedTuple):
    """`gates` [*b, T, 2] or [*b, 1, 2] of redraw and hold (unused at the first step), `state` [*b, K], `likelihood`
    [*b, T, K]."""

    gates: Tensor
    state: Tensor
    likelihood: Tensor

    @property
    def steps(self) -> tuple[Tensor, None]:
        """The weights of each step, equal for drawn and held states."""
        return self.likelihood, None

    @staticmethod
    def of_steps(drawn: Tensor | None, held: Tensor | None) -> "FactoredTables":
        """A message to the steps alone; None stands for no message."""
        return FactoredTables(None, None, drawn)  # type: ignore[arg-type]


class SemiMarkovTables(NamedTuple):
    """`initial` [*b, K], `transition` [*b, K, K] as [old, new], `duration` [*b, K, D], `likelihood` [*b, T, K]."""

    initial: Tensor
    transition: Tensor
    duration: Tensor
    likelihood: Tensor

    @property
    def steps(self) -> tuple[Tensor, None]:
        """The weights of each step; all steps of a segment have one state."""
        return self.likelihood, None

    @staticmethod
    def of_steps(drawn: Tensor | None, held: Tensor | None) -> "SemiMarkovTables":
        """A message to the steps alone; None stands for no message."""
        return SemiMarkovTables(None, None, None, drawn)  # type: ignore[arg-type]


PathTables = CopyTables | FactoredTables | MarkovTables | SemiMarkovTables
Tables = TypeVar("Tables", CopyTables, FactoredTables, MarkovTables, SemiMarkovTables)


@dataclass(frozen=True, eq=False)
class _Paths(Family[Tables], Generic[Tables]):
    """The base of the families of discrete paths.

    Arguments:
        lengths: [*b], the number of steps of each sequence; None: all.
        base: the tables of log h; None: nothing is added.
        before, after: [*b, K], if these steps are a part of a longer chain; see `Chain.between`.
        independent: use the best independent steps, `Chain.mean_field`, instead of the exact chain. A is then its
            bound, which an evaluation raises from its start.
        weights: [*b], the weights of the sequences, which multiply A and its gradient; None: all are 1.
    """

    lengths: Tensor | None = None
    base: Tables | None = None
    before: Tensor | None = None
    after: Tensor | None = None
    independent: bool = False
    weights: Tensor | None = None
    latent: ClassVar[bool] = True

    @property
    def iterates(self) -> bool:
        return self.independent

    @abstractmethod
    def _chain(self, tables: Tables) -> Chain: ...

    @abstractmethod
    def _used(self, marginals: Marginals, eta: Tables) -> Tables:
        """Marginals in the shapes of the tables."""

    def chain(self, eta: Tables) -> Chain:
        """The chain of these natural parameters: its filter, paths and draws."""
        chain = self._chain(eta if self.base is None else tree_map(torch.add, eta, self.base))
        return chain if self.before is None and self.after is None else chain.between(self.before, self.after)

    def log_normalizer(self, eta: Tables) -> Float[Tensor, "*b"]:
        return self.evaluate(eta)[0] if self.independent else self._weighed(self.chain(eta).log_normalizer())

    def mean(self, eta: Tables) -> Tables:
        return self.evaluate(eta)[1]

    def evaluate(self, eta: Tables, start: Tables | None = None) -> tuple[Tensor, Tables]:
        chain = self.chain(eta)
        if self.independent:
            drawn, held = (None, None) if start is None else start.steps
            state = drawn if drawn is None or held is None else drawn + held
            marginals = chain.mean_field(None if state is None else self.probabilities(state))
        else:
            marginals = chain.marginals()
        n_batch = marginals.log_normalizer.ndim
        used = tree_map(lambda table: self._weighed(table, table.ndim - n_batch), self._used(marginals, eta))
        return self._weighed(marginals.log_normalizer), used

    def _weighed(self, table: Tensor, n_axes: int = 0) -> Tensor:
        """A table times the weights of the sequences, whose axes are before its last `n_axes`."""
        return table if self.weights is None else table * self.weights.reshape((*self.weights.shape, *[1] * n_axes))

    def probabilities(self, steps: Float[Tensor, "*b T K"]) -> Float[Tensor, "*b T K"]:
        """Expected statistics of each step without the weights of sequences; equal ones if the weight is 0."""
        if self.weights is None:
            return steps
        weights = self.weights[..., None, None]
        return torch.where(weights > 0, steps / weights, 1 / steps.shape[-1])

    def dot(self, eta: Tables, statistics: Tables) -> Float[Tensor, "*b"]:
        axes = _batch_axes(statistics)
        pairs = zip(tree_parts(eta), tree_parts(statistics), strict=True)
        # an impossible entry may have an infinite weight
        products = [torch.where(used == 0, 0.0, weight * used).flatten(axes).sum(-1) for weight, used in pairs]
        return torch.stack(products).sum(0)

    def log_base(self, statistics: Tables) -> Float[Tensor, "*b"]:
        if self.base is None:
            return torch.zeros_like(statistics.steps[0][..., 0, 0])
        return self.dot(self.base, statistics)

    def check(self, eta: Tables) -> None:
        axes = _batch_axes(eta)
        for name, table in zip(eta._fields, eta, strict=True):
            if table.shape[:axes] != eta.steps[0].shape[:axes]:
                shapes = {name: list(part.shape) for name, part in zip(eta._fields, eta, strict=True)}
                raise ValueError(f"{name}: the tables have shapes {shapes}; give each all batch axes, with `expand`.")
            if not table.isfinite().all():
                raise ValueError(
                    f"{name}: got a weight that is not finite; give finite weights, and mark impossible entries by "
                    "-inf in `base`."
                )


def _batch_axes(tables: PathTables) -> int:
    return tables.steps[0].ndim - 2


@dataclass(frozen=True, eq=False)
class CopyPaths(_Paths[CopyTables]):
    """Paths (s_1..T, z_1..T) of a copy chain, O(K) a step."""

    def _chain(self, tables: CopyTables) -> CopyChain:
        return CopyChain(None, tables.fresh, tables.held, self.lengths)

    def _used(self, marginals: Marginals, eta: CopyTables) -> CopyTables:
        held = marginals.held
        assert held is not None
        alike = eta.held.shape[-1] < held.shape[-1]  # all states hold alike
        return CopyTables(marginals.fresh, held.sum(-1, keepdim=True) if alike else held)


@dataclass(frozen=True, eq=False)
class FactoredCopyPaths(_Paths[FactoredTables]):
    """Paths (s_1..T, z_1..T) of a copy chain whose observations depend on the gate only through the state."""

    def _chain(self, tables: FactoredTables) -> FactoredCopyChain:
        log_redraw, log_hold = tables.gates.unbind(-1)
        return FactoredCopyChain(log_redraw, log_hold, tables.state, tables.likelihood, self.lengths)

    def _used(self, marginals: Marginals, eta: FactoredTables) -> FactoredTables:
        if marginals.gates is not None and marginals.drawn is not None:
            return FactoredTables(marginals.gates, marginals.drawn, marginals.fresh)
        fresh, held = marginals.fresh, marginals.held  # of a part of a chain, or of independent steps
        assert held is not None
        gates = pad(torch.stack([fresh.sum(-1), held.sum(-1)], -1)[..., 1:, :], (0, 0, 1, 0))
        gates = gates.sum(-2, keepdim=True) if eta.gates.shape[-2] == 1 else gates
        drawn = fresh if self.before is None else fresh[..., 1:, :]
        return FactoredTables(gates, drawn.sum(-2), fresh + held)


@dataclass(frozen=True, eq=False)
class MarkovPaths(_Paths[MarkovTables]):
    """Paths s_1..T of a Markov chain; T x K x K tables are stored only for a transition by step."""

    def _chain(self, tables: MarkovTables) -> MarkovChain:
        return MarkovChain(*tables, self.lengths)

    def _used(self, marginals: Marginals, eta: MarkovTables) -> MarkovTables:
        assert marginals.initial is not None
        assert marginals.transition is not None
        return MarkovTables(marginals.initial, marginals.transition, marginals.fresh)


@dataclass(frozen=True, eq=False)
class SemiMarkovPaths(_Paths[SemiMarkovTables]):
    """Paths s_1..T of a semi-Markov chain, with the durations of their segments; that of a last segment may be longer
    than what is seen of it.

    Arguments:
        censored: whether the last segment may go on after the end.
    """

    censored: bool = True

    def _chain(self, tables: SemiMarkovTables) -> SemiMarkovChain:
        return SemiMarkovChain(*tables, self.lengths, censored=self.censored)

    def _used(self, marginals: Marginals, eta: SemiMarkovTables) -> SemiMarkovTables:
        assert marginals.initial is not None
        assert marginals.transition is not None
        assert marginals.duration is not None
        return SemiMarkovTables(marginals.initial, marginals.transition, marginals.duration, marginals.fresh)
