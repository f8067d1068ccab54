"""The seven languages of Tomita 1982 over 0 and 1, as automata; and labelled strings of any automaton, balanced."""

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...inference.numerics.extras import needs
from ...inference.numerics.scalars import check_choice, check_integer

if TYPE_CHECKING:
    from automata.fa.dfa import DFA

# for each state the targets of 0 and 1, and the accepting states; the first state is the start
TABLES: dict[int, tuple[list[tuple[int, int]], set[int]]] = {
    1: ([(1, 0), (1, 1)], {0}),  # 1*
    2: ([(2, 1), (0, 2), (2, 2)], {0}),  # (10)*
    3: ([(0, 1), (2, 0), (3, 4), (2, 1), (4, 4)], {0, 1, 3}),  # an odd run of 1s has no odd run of 0s after it
    4: ([(1, 0), (2, 0), (3, 0), (3, 3)], {0, 1, 2}),  # no 000
    5: ([(1, 2), (0, 3), (3, 0), (2, 1)], {0}),  # an even number of 0s, and of 1s
    6: ([(1, 2), (2, 0), (0, 1)], {0}),  # as many 0s as 1s, modulo 3
    7: ([(0, 1), (2, 1), (2, 3), (4, 3), (4, 4)], {0, 1, 2, 3}),  # 0*1*0*1*
}


def tomita(number: int) -> "DFA":
    """One of the seven languages, as its minimal complete automaton over the symbols "0" and "1".

    >>> tomita(4).accepts_input("0010"), tomita(4).accepts_input("1000")
    (True, False)
    """
    with needs("automata-lib", "machines"):
        from automata.fa.dfa import DFA

    check_choice("number", check_integer("number", number), tuple(TABLES))
    table, accepting = TABLES[number]
    return DFA(
        states=set(range(len(table))),
        input_symbols={"0", "1"},
        transitions={state: dict(zip("01", leads, strict=True)) for state, leads in enumerate(table)},
        initial_state=0,
        final_states=accepting,
    )


def labelled_words(language: "DFA", lengths: Iterable[int], each: int, seed: int) -> list[tuple[str, bool]]:
    """`each` words of every length with their labels, half of them in the language if there are both kinds.

    Drawn uniformly within each kind, with replacement.
    """
    draw, other = random.Random(seed), language.complement()
    labelled = []
    for length in lengths:
        kinds = [kind for kind in (language, other) if kind.count_words_of_length(length)]
        for number in range(each):
            kind = kinds[number % len(kinds)]
            labelled.append((kind.random_word(length, seed=draw.randrange(2**31)), kind is language))
    return labelled
