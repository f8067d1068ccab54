"""Histories of a stack as pointers: every element points to the element below it.

Elements are numbered as in `samplehold.switching.stacks`. "empty", the last number, points to itself, so a pop of an
empty stack has no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.numerics.interrupts import importing
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Path(Record):
    """The effect of actions [*n, T] on a stack: element on top and depth after each step, and the element below each
    one."""

    top: Int[Tensor, "*n T"]
    depth: Int[Tensor, "*n T"]
    below: Int[Tensor, "*n C"]


def follow(action: Int[Tensor, "*n T"], n_initial: int = 0) -> Path:
    """Run actions (0 push, 1 pop, 2 no-op, 3 pop two cells, 4 pop three, ...) from a stack of `n_initial` cells."""

    def at(table: Tensor, index: Tensor) -> Tensor:
        return table.gather(-1, index[..., None])[..., 0]

    T = action.shape[-1]
    empty = T + n_initial
    numbers = torch.arange(empty + 1, device=action.device)
    below = (numbers + 1).clamp_max(empty).repeat(*action.shape[:-1], 1)
    height = (empty - numbers).clamp_max(n_initial).repeat(*action.shape[:-1], 1)
    top = torch.full(action.shape[:-1], T, device=action.device)
    most_pops = max(1, int(action.max()) - 1) if action.numel() else 1
    tops, depths = [], []
    for t, a in enumerate(action.unbind(-1)):
        below[..., t], height[..., t] = top, at(height, top) + 1
        after, popped = torch.where(a == 0, t, top), top
        for n in range(1, most_pops + 1):
            popped = at(below, popped)
            after = torch.where(a == (1 if n == 1 else n + 1), popped, after)
        top = after
        tops.append(top)
        depths.append(at(height, top))
    return Path(torch.stack(tops, -1), torch.stack(depths, -1), below)


def picked(table: Float[Tensor, "*b T X"], index: Int[Tensor, "n *b T"]) -> Float[Tensor, "n *b T"]:
    """The entry at an index of each step."""
    return torch.take_along_dim(table[None], index[..., None], -1)[..., 0]


@dataclass(frozen=True, repr=False)
class Histories(Record):
    """Whole histories of a `StackMixture`, n of them for each sequence.

    Arguments:
        action: 0 push, 1 pop, 2 no-op (3, 4, ... pop two, three, ... cells).
        top: the element on top after each step, the last number for an empty stack.
        depth: cells on the stack after each step.
        below: for every element, the element under it when it was pushed; meaningful only for elements that were
            pushed.
        log_probability: of the whole history in the mixture.
        weight: its share of the mixture, so that `(weight * f).sum(0)` estimates the mean of f: 1 / n for samples, its
            probability if all histories are listed, 1 for the best one alone.
        values: the values of all elements; "empty" has 0.

    >>> import torch
    >>> import samplehold as sh
    >>> action = torch.tensor([[0.9, 0.0, 0.1], [0.6, 0.1, 0.3], [0.2, 0.5, 0.3]])  # push, pop, no-op
    >>> every = sh.stacks.StackMixture(action.log(), torch.tensor([[1.0], [2.0], [3.0]])).enumerate()
    >>> best = every.weight.argmax()
    >>> every.action[best].tolist(), every.depth[best].tolist(), round(float(every.weight[best]), 2)
    ([0, 0, 1], [1, 2, 1], 0.27)
    >>> every.elements(depth=2)[best].tolist()  # 0 and 1 are the first two pushes, 3 is empty
    [[0, 3], [1, 0], [0, 3]]
    >>> every.cells(depth=2)[best, ..., 0].tolist()
    [[1.0, 0.0], [2.0, 1.0], [1.0, 0.0]]
    """

    action: Int[Tensor, "n *b T"]
    top: Int[Tensor, "n *b T"]
    depth: Int[Tensor, "n *b T"]
    below: Int[Tensor, "n *b C"]
    log_probability: Float[Tensor, "n *b"]
    weight: Float[Tensor, "n *b"]
    values: Float[Tensor, "*b C V"]

    def elements(self, depth: int) -> Int[Tensor, "n *b T depth"]:
        """The stacks as element numbers, from the top; empty cells have the last number. `depth` is 1 or more."""
        depth = check_integer("depth", depth)
        cells = [self.top]
        for _ in range(depth - 1):
            cells.append(self.below.gather(-1, cells[-1]))
        return torch.stack(cells, -1)

    def cells(self, depth: int) -> Float[Tensor, "n *b T depth V"]:
        """The stacks as values, from the top; empty cells are 0. `depth` is 1 or more."""
        index = self.elements(depth)
        flat = torch.take_along_dim(self.values[None], index.flatten(-2)[..., None], -2)
        return flat.unflatten(-2, index.shape[-2:])

    def plot(
        self, sequence: int | Sequence[int] = (), step: int = -1, names: Sequence[str] | None = None, most: int = 10
    ) -> "Figure":
        """The most probable whole stacks after one step, in these histories.

        Raises `ValueError` for an unknown sequence or step, or a wrong number of names.

        Arguments:
            sequence: its index in the batch axes.
            step: the step to show; negative numbers count from the last step.
            names: names of the elements that the steps pushed (and, optionally, of the initial cells from the top).
            most: the most stacks to show.
        """
        with importing():
            from ..views.stack_figures import check_names, one_of, plot_stacks

        index = one_of(sequence, self.top.shape[1:-1])
        most = check_integer("most", most)
        T, n = self.top.shape[-1], self.values.shape[-2] - 1
        step = check_integer("step", step, least=-T, most=T - 1)
        names = check_names("names", names, steps=T, elements=n)
        names = [*(map(str, range(T)) if names is None else names), *(f"initial {i}" for i in range(n - T))][:n]
        here = (slice(None), *index)
        deepest = int(self.depth[here][:, step].max())
        stacks = self.elements(deepest + 1)[here][:, step]  # one cell more, so that empty stacks have a cell
        return plot_stacks(stacks, self.weight[here], names, most, f"stacks after step {step % T}")
