r"""A stack of symbols in one number: the memory of a recurrent network that is a Turing machine.

With K symbols 0 .. K - 1 and a base B, the least power of two that is at least 2 K, a stack $z_1 z_2 \dots$ from the
top is

$$q = \sum_i \frac{2 z_i + 1}{B^i}, \qquad 0 \text{ where it is empty}.$$

For bits, B is 4, and with $\sigma(x) = \min(1, \max(0, x))$

    push z    q / 4 + z / 2 + 1 / 4
    top       sigma(4 q - 2)
    nonempty  sigma(4 q)
    pop       4 q - 2 top - 1

In general `at_least(k)`, $\sigma(B q - 2 k)$, is 1 if the top is k or more, else 0. With a top of z, $B q = 2 z + 1 +
r$ and $0 \le r < 1$, so $B q - 2 k$ is at least 1 for $k \le z$ and at most 0 for $k > z$.

**Why 4 and not 2.** A stack with top 1 is at least 3/4, and a stack with top 0 is less than 1/2. The gap is more than
1/4 for any depth, so a continuous function with weights of 4 can read the top. In base 2, where q is $\sum_i z_i /
2^i$, the stacks 1 0 0 ... 0 and 0 1 1 ... 1 of n bits are $2^{-n}$ apart, and reading needs weights of $2^n$.

**In floats.** q is an odd multiple of $B^{-n}$, so it needs $n \log_2 B$ binary digits after the point. The first digit
is 0 if z_1 < K / 2 and 2 K is B. With p digits (11 in float16, 24 in float32, 53 in float64, 8 in bfloat16) all stacks
of $\lfloor p / \log_2 B \rfloor$ symbols are exact; of those with one more symbol, some or none are.

Siegelmann & Sontag 1992, *On the computational power of neural nets*, section 3.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...inference.numerics.scalars import check_integer, check_kind

MOST_SYMBOLS = 2**20


def clipped(x: Any) -> Any:
    """The clipped ReLU, min(1, max(0, x)), of any kind of number."""
    return x.clamp(0, 1) if isinstance(x, Tensor) else type(x)(min(max(x, type(x)(0)), type(x)(1)))


def base_of(n_symbols: int) -> int:
    """The least power of two that is at least twice the number of symbols."""
    return 1 << (2 * n_symbols - 1).bit_length()


@dataclass(frozen=True)
class FractionStack:
    """A stack of symbols in one number: exact in `fractions.Fraction`, rounded in floats.

    Arguments:
        value: q (see `samplehold.models.automata.fraction_stack`), in the type of all computations: a Fraction, a
            float, a numpy float, or a tensor without axes. 0 is the empty stack.
        n_symbols: K; symbols are 0 .. K - 1.

    Raises:
        TypeError: a value of another type; a symbol that is not an integer.
        ValueError: a value outside 0 .. 1, a symbol that does not exist; `pop` of an empty stack.

    Siegelmann & Sontag 1992, *On the computational power of neural nets*, section 3.

    See Also:
        `stacks.StackMixture`, a stack with uncertain actions; `TuringNetwork`, which stores its tape so;
        docs/background/turing.md.

    >>> import samplehold as sh
    >>> stack = sh.automata.FractionStack().push(1).push(0)
    >>> stack.value, stack.top, stack.pop().top, stack.symbols()
    (Fraction(7, 16), 0, 1, [0, 1])
    >>> import numpy as np
    >>> stack = sh.automata.FractionStack(np.float16(0))
    >>> for _ in range(6):
    ...     stack = stack.push(1)
    >>> stack.symbols(most=9)  # needs twelve binary digits, and float16 has eleven: the bottom is lost
    [1, 1, 1, 1, 1, 1, 1, 1, 1]
    """

    value: Any = Fraction(0)
    n_symbols: int = 2

    def __post_init__(self) -> None:
        kinds = (Fraction, float, np.floating, Tensor)
        value = check_kind("value", self.value, kinds, "a Fraction, a float, a numpy float, or a tensor without axes")
        if isinstance(value, Tensor) and (value.dim() or not value.is_floating_point()):
            raise TypeError(f"value: got {value.dtype} of shape {list(value.shape)}, expected a float without axes.")
        object.__setattr__(self, "n_symbols", check_integer("n_symbols", self.n_symbols, least=2, most=MOST_SYMBOLS))
        if not 0 <= value <= 1:
            raise ValueError(f"value: got {value}, expected a number from 0 to 1; 0 is the empty stack.")

    @property
    def base(self) -> int:
        """B."""
        return base_of(self.n_symbols)

    def at_least(self, k: int) -> Any:
        """1 if the top is k or more, else 0; in floats that have lost digits, it may be between.

        Arguments:
            k: a symbol.
        """
        return clipped(self._times(self.value, self.base) - self._number(2 * k))

    @property
    def empty(self) -> bool:
        """Whether there is no symbol."""
        return bool(self.at_least(0) == 0)

    @property
    def top(self) -> int:
        """The symbol pushed last; 0 if there is none."""
        return sum(bool(self.at_least(k) > 0) for k in range(1, self.n_symbols))

    def push(self, symbol: int) -> "FractionStack":
        """The stack with one symbol more.

        Arguments:
            symbol: the symbol.
        """
        symbol = check_integer("symbol", symbol, least=0, most=self.n_symbols - 1)
        return self._with(self.value / self._number(self.base) + self._number(2 * symbol + 1) / self._number(self.base))

    def pop(self) -> "FractionStack":
        """The stack without its top; rounding errors of floats are clipped to 0 .. 1."""
        if self.empty:
            raise ValueError("pop: the stack is empty; ask `empty` first.")
        return self._with(clipped(self._times(self.value, self.base) - self._number(2 * self.top + 1)))

    def symbols(self, most: int = 12) -> list[int]:
        """All symbols from the top, at most `most`; a stack in floats that have lost digits may have no end.

        Arguments:
            most: the most symbols that are read.
        """
        symbols_down, stack = [], self
        while not stack.empty and len(symbols_down) < most:
            symbols_down.append(stack.top)
            stack = stack.pop()
        return symbols_down

    def _with(self, value: Any) -> "FractionStack":
        return FractionStack(value, self.n_symbols)

    def _number(self, value: int) -> Any:
        """An integer in the stack's kind of number."""
        return torch.as_tensor(value).to(self.value) if isinstance(self.value, Tensor) else type(self.value)(value)

    def _times(self, value: Any, factor: int) -> Any:
        return value * self._number(factor)
