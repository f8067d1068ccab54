"""What chains of discrete states share: each has tables of log-weights, and operators over them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..numerics.checks import check_lengths, check_steps, common_batch, read_lengths
from ..numerics.randomness import Seed, generator_of
from ..numerics.scalars import check_integer
from .contract import Chain, Sampled


class DiscreteChain(Chain):
    """A chain of discrete states.

    Attributes:
        _operators: the module of the operators; each has the tables as its arguments, and `failed` as its last result.
        _choices: the shape of the uniform numbers that a step of a draw takes.
    """

    batch_shape: torch.Size
    n_steps: int
    n_states: int
    lengths: Int[Tensor, "*b"]
    _operators: ClassVar[Any]
    _choices: ClassVar[tuple[int, ...]] = (2,)

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log p(x), [*b]; its gradient with respect to each table is the table's field of `marginals`.

        >>> import torch, samplehold as sh
        >>> chain = sh.chains.CopyChain(None, torch.zeros(3, 2), torch.zeros(3, 1))  # all weights are 1
        >>> chain.log_normalizer().exp()  # 2 beginnings; from each step to the next, one hold and two redraws
        tensor(18.)
        >>> chain = sh.chains.MarkovChain(torch.zeros(2), torch.zeros(2, 2), torch.zeros(5, 2))
        >>> chain.log_normalizer().exp()  # 2^5 paths
        tensor(32.)
        """
        return self._results(self._operators.log_normalizer)[0]

    def sample(self, n: int, seed: Seed = None) -> Sampled:
        """n independent draws of the whole path given x; they depend on the seed alone, not on the number of threads.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.

        Raises:
            ValueError: n is not a positive whole number.

        >>> import torch, samplehold as sh
        >>> drawn = sh.chains.CopyChain(None, torch.zeros(4, 2), torch.zeros(4, 1)).sample(1000, seed=0)
        >>> drawn.path.shape, round(float(drawn.redraw[:, 1].double().mean()), 1)
        (torch.Size([1000, 4]), 0.7)
        """
        n, tables = check_integer("n", n), self._tables()
        device, size = tables[-1].device, (n, *tables[-1].shape, self.n_steps, *self._choices)
        uniform = torch.rand(size, generator=generator_of(seed, device), dtype=torch.float64, device=device)
        *drawn, failed = self._operators.sample(*tables, uniform)
        self._check(failed)
        return Sampled(*(table.reshape(n, *self.batch_shape, self.n_steps) for table in drawn))

    def _size(self, name: str, table: Tensor) -> None:
        """Set the numbers of steps and of states: those of a table [*b, T, K]."""
        self.n_steps, self.n_states = check_steps(name, table)

    def _share(self, lengths: Any, device: torch.device, **batches: Sequence[int] | None) -> None:
        """Set the lengths, and the batch axes that they share with the tables."""
        lengths = read_lengths(lengths)
        self.batch_shape = common_batch(**batches, lengths=None if lengths is None else lengths.shape)
        self.lengths = check_lengths(lengths, self.batch_shape, self.n_steps, device)

    def _results(self, operator: Callable[..., Any]) -> list[Tensor]:
        """The results of an operator, log p(x) first."""
        *results, failed = operator(*self._tables())
        self._check(failed, results[0])
        return results

    @abstractmethod
    def _tables(self) -> tuple[Any, ...]:
        """The arguments of the operators, the lengths last."""

    @abstractmethod
    def _check(self, failed: Tensor, total: Tensor | None = None) -> None:
        """Raise `ValueError` if x is impossible; `failed`: the step at which each sequence is."""
