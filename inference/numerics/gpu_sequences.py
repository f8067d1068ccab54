"""Several sequences in one Triton program: it takes S of them through time, each with K states padded to P."""

from typing import NamedTuple

from .gpu import constexpr, kernel, tl, triton

_LANES = 32  # of a warp; a program is one warp, until each of its lanes has two states


class Side(NamedTuple):
    """The layout of sequences: tables [S, P] in the registers of a program."""

    sequences: int  # S, the sequences of a program
    states: int  # P, the least power of two that is not less than K
    programs: int

    @property
    def options(self) -> dict[str, int]:
        """The options for launches of kernels."""
        return {"S": self.sequences, "P": self.states, "num_warps": max(1, self.states // (2 * _LANES))}


def side_by_side(sequences: int, states: int) -> Side:
    """Sequences of few states share a program, so its lanes are busy."""
    padded = triton.next_power_of_2(states)
    together = max(1, _LANES // padded)
    return Side(together, padded, triton.cdiv(sequences, together))


@kernel
def sequences(program, lengths, n, states, S: constexpr, P: constexpr):
    """A program's sequences [S, 1], which exist; states [1, P], which of [S, P] exist; the lengths [S, 1]."""
    b, k = program * S + tl.arange(0, S)[:, None], tl.arange(0, P)[None, :]
    there = b < n
    return b, there, k, there & (k < states), tl.load(lengths + b, there, 0)


@kernel
def fill(table, begin, end, width, value, mask):
    """`value` in the rows begin..end of a table that points into row 0."""
    for t in range(begin, end):
        tl.store(table + t * width, value, mask)
