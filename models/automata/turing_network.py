r"""A Turing machine as an Elman network with a clipped ReLU and rational weights (Siegelmann & Sontag 1992).

$$h' = \sigma(U h + b), \qquad \sigma(x) = \min(1, \max(0, x))$$

The tape to the left of the head and the tape to its right are two stacks, each one number (`fraction_stack`, with base
B and the blank as symbol 0; an empty stack continues with blanks). A step of the machine is two steps of the network,
between two groups of units. Each group reads only the other:

    look  left, right               the two numbers
                    left >= k, right >= k     sigma(B q - 2 k): 1 if the top is k or more, for every symbol k
          (s, a)                    1 for the machine's state s and the symbol a under its head, else 0
    act   left, for each move       R: q / B + (2 w + 1) / B,  L: B q - 2 top - 1,  N: q
          right, for each move      likewise, with L and R exchanged
                    to (s, c), for each move  1 if the machine goes to s and then reads c, the top of a stack or the
                    written symbol

Units of other moves are 0: each unit of a move gets -1 from the pairs (s, a) of other moves, and the chosen value is
between 0 and 1. So the units that read the three alternatives add them. A unit to (s, c) is a conjunction, $\sigma(p +
[top = c] - 1)$ with $[top = c] = [top \ge c] - [top \ge c + 1]$. While one group holds the machine, the other is all 0.
The equations keep this, so no clock is needed. A halting state stays unchanged.

All weights are integers or fractions of B, a power of two. So floats only round a stack that has more binary digits
than the float type. The machine is exact until its tape reaches the length given in `fraction_stack`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...inference.numerics.checks import check_dtype
from ...inference.numerics.records import Record
from .fraction_stack import FractionStack, base_of, clipped
from .turing import Configuration, TuringMachine
from .words import check_word

Units = list[Fraction] | Tensor


@dataclass(frozen=True, repr=False)
class TuringNetwork(Record):
    """An Elman network with a clipped ReLU that computes the steps of a Turing machine; made by `as_rnn`.

    Arguments:
        machine: the machine.
        units: the meaning of each unit.
        weight: U by columns: for each unit, the units that it acts on, with their weights.
        bias: b, for the units where it is not 0.

    Siegelmann & Sontag 1992, *On the computational power of neural nets*.

    See Also:
        `as_rnn`, which makes it; `TuringMachine`, its machine; docs/background/turing.md, with results.

    >>> import samplehold as sh
    >>> flip = {"go": {"0": ("go", "1", "R"), "1": ("go", "0", "R"), ".": ("done", ".", "L")}}
    >>> network = sh.as_rnn(sh.automata.TuringMachine(flip, start="go", accept="done"))
    >>> *_, end = network.run("0110")
    >>> network.configuration(end).tape, len(network.units), network.STEPS
    ('1001', 29, 2)
    """

    machine: TuringMachine
    units: tuple[Hashable, ...]
    weight: tuple[dict[int, Fraction], ...]
    bias: dict[int, Fraction]

    STEPS = 2
    """The steps of the network for one step of the machine."""

    def start(self, word: str, dtype: torch.dtype | None = None) -> Units:
        """All units [n] before the first step: in Fractions, or as a tensor of `dtype`.

        Arguments:
            word: a string of symbols.
            dtype: of the units; None: exact Fractions.
        """
        check_dtype("dtype", dtype)
        symbols = self.machine.symbols
        places = [symbols.index(symbol) for symbol in check_word(word, symbols)] or [0]
        right = FractionStack(n_symbols=len(symbols))
        for place in reversed(places[1:]):
            right = right.push(place)
        state = [Fraction(0)] * len(self.units)
        state[self._index["right"]] = right.value
        state[self._index[self.machine.start, symbols[places[0]]]] = Fraction(1)
        for k in range(len(symbols)):
            state[self._index["right >=", k]] = right.at_least(k)
        return state if dtype is None else torch.tensor([float(x) for x in state], dtype=torch.float64).to(dtype)

    def step(self, units: Units) -> Units:
        """One step of the network, in the number type of its units.

        Arguments:
            units: all units before the step.
        """
        if isinstance(units, Tensor):
            weight, bias = self.dense(units.dtype)
            return clipped(weight @ units + bias)
        total = defaultdict(Fraction, self.bias)
        for column, value in zip(self.weight, units, strict=True):
            if value:
                for row, weight in column.items():
                    total[row] += weight * value
        after = [Fraction(0)] * len(units)
        for row, value in total.items():
            after[row] = clipped(value)
        return after

    def run(self, word: str, dtype: torch.dtype | None = None, most: int = 1_000_000) -> Iterator[Units]:
        """All units before the first step of the machine and after each step, until it halts, or after `most` steps.

        Arguments:
            word: a string of symbols.
            dtype: of the units; None: exact Fractions.
            most: the most steps of the machine.
        """
        units = self.start(word, dtype)
        yield units
        for _ in range(most):
            if self.control(units)[0] not in self.machine.transitions:
                return
            for _ in range(self.STEPS):
                units = self.step(units)
            yield units

    def control(self, units: Units) -> tuple[Any, str]:
        """The machine's state and the symbol under its head: the pair with the greatest unit.

        Arguments:
            units: all units.
        """
        return max(self._pairs, key=lambda pair: units[self._index[pair]])

    def configuration(self, units: Units) -> Configuration:
        """The configuration of exact units.

        Arguments:
            units: all units, in Fractions.
        """
        symbols, blank, sides = self.machine.symbols, self.machine.blank, []
        for side in ("left", "right"):
            value = units[self._index[side]]
            stack = FractionStack(value if isinstance(value, Fraction) else Fraction(float(value)), len(symbols))
            sides.append("".join(symbols[place] for place in stack.symbols(most=10**6)))
        state, head = self.control(units)
        return Configuration(state, sides[0][::-1].lstrip(blank), head, sides[1].rstrip(blank))

    def dense(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """U [n, n] and b [n].

        Arguments:
            dtype: of the tables.
        """
        if dtype not in self._dense:
            n = len(self.units)
            weight = torch.zeros(n, n, dtype=torch.float64, device="cpu")
            bias = weight.new_zeros(n)
            for unit, column in enumerate(self.weight):
                for row, value in column.items():
                    weight[row, unit] = float(value)
            for row, value in self.bias.items():
                bias[row] = float(value)
            self._dense[dtype] = weight.to(dtype), bias.to(dtype)
        return self._dense[dtype]

    @cached_property
    def _dense(self) -> dict[torch.dtype, tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def _index(self) -> dict[Hashable, int]:
        return {unit: place for place, unit in enumerate(self.units)}

    @cached_property
    def _pairs(self) -> list[Any]:
        return [(state, symbol) for state in self.machine.states for symbol in self.machine.symbols]


def turing_network(machine: TuringMachine) -> TuringNetwork:
    """The network of a machine (see this module)."""
    weight: dict[tuple[Hashable, Hashable], Fraction] = defaultdict(Fraction)  # to, from
    bias: dict[Hashable, Fraction] = defaultdict(Fraction)
    symbols = machine.symbols
    size, base = len(symbols), Fraction(base_of(len(symbols)))
    moves = {
        (state, symbol): machine.transitions[state][symbol] if state in machine.transitions else (state, symbol, "N")
        for state, symbol in product(machine.states, symbols)
    }
    for side, pushed, popped in (("left", "R", "L"), ("right", "L", "R")):
        of_move = {pushed: 1 / base, popped: base, "N": Fraction(1)}
        for move, factor in of_move.items():
            weight[(side, move), side] = factor
            weight[side, (side, move)] = Fraction(1)
            for k in range(size):
                weight[(side + " >=", k), (side, move)] = base
                if move == popped:
                    weight[(side, move), (side + " >=", k)] = Fraction(-2 if k else -1)
            for pair, (_, written, way) in moves.items():
                if way != move:
                    weight[(side, move), pair] = Fraction(-1)
                elif move == pushed:
                    weight[(side, move), pair] = (2 * symbols.index(written) + 1) / base
        for k in range(size):
            bias[side + " >=", k] = Fraction(-2 * k)
    for pair, (state, written, way) in moves.items():
        for k, symbol in enumerate(symbols):
            if way == "N" and symbol != written:
                continue
            unit = ("to", state, symbol, way)
            weight[unit, pair] = Fraction(1)
            weight[(state, symbol), unit] = Fraction(1)
            if way != "N":
                side = "left >=" if way == "L" else "right >="
                bias[unit] = Fraction(-1 if k else 0)
                if k:
                    weight[unit, (side, k)] = Fraction(1)
                if k + 1 < size:
                    weight[unit, (side, k + 1)] = Fraction(-1)
    pairs = dict.fromkeys(moves)
    units = tuple(dict.fromkeys([*("left", "right"), *pairs, *(unit for both in weight for unit in both)]))
    index = {unit: place for place, unit in enumerate(units)}
    columns: list[dict[int, Fraction]] = [{} for _ in units]
    for (to, source), value in weight.items():
        columns[index[source]][index[to]] = value
    return TuringNetwork(machine, units, tuple(columns), {index[unit]: value for unit, value in bias.items() if value})
