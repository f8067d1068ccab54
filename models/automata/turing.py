"""Deterministic Turing machines with one tape, infinite in both directions."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...inference.numerics.extras import needs
from ...inference.numerics.scalars import check_choice, check_integer, check_kind
from .words import check_word

if TYPE_CHECKING:
    from automata.tm.dtm import DTM

State = str | int
Move = tuple[State, str, str]
MOVES = ("L", "N", "R")


@dataclass(frozen=True)
class Configuration:
    """A machine between two steps; blanks outside the written part are omitted."""

    state: Any
    left: str  # of the head, in the order of the tape
    head: str
    right: str

    @property
    def tape(self) -> str:
        """The written part of the tape, including the symbol under the head."""
        return self.left + self.head + self.right


@dataclass(frozen=True)
class TuringMachine:
    """A deterministic Turing machine.

    Arguments:
        transitions: for each state that does not halt, and each symbol of the tape, the next state, the written symbol
            and the move: `{state: {symbol: (state, symbol, "L", "N" or "R")}}`, as in automata-lib. Every state and
            symbol needs a transition; unexpected symbols lead to a rejecting state.
        start: the state at the start, on the first symbol of the word.
        accept: the state, or a set of states, in which the machine halts and accepts.
        reject: a set of states in which it halts and rejects.
        blank: the symbol of an empty cell.

    Raises:
        TypeError: transitions, states or symbols of another kind.
        ValueError: a transition that is missing (with its state and symbol), or that has an unknown state, symbol or
            move; unknown start or accept states.

    See Also:
        `as_rnn`, which makes a network of it; `TuringNetwork`, this network; docs/background/turing.md, with results.

    >>> import samplehold as sh
    >>> flip = sh.automata.TuringMachine(
    ...     {"go": {"0": ("go", "1", "R"), "1": ("go", "0", "R"), ".": ("done", ".", "L")}}, start="go", accept="done"
    ... )
    >>> flip.run("0110").tape, flip.accepts("0110"), flip.steps("0110")
    ('1001', True, 5)
    """

    transitions: Mapping[Any, Mapping[str, Move]]
    start: State
    accept: Any
    reject: Any = frozenset()
    blank: str = "."

    def __post_init__(self) -> None:
        check_kind("transitions", self.transitions, Mapping, "a mapping from states to mappings from symbols")
        check_kind("blank", self.blank, str, "a symbol")
        _check_state("start", self.start)
        for name in ("accept", "reject"):
            halting = getattr(self, name)
            several = halting if isinstance(halting, set | frozenset | list | tuple) else [halting]
            object.__setattr__(self, name, frozenset(_check_state(name, state) for state in several))
        for state, row in self.transitions.items():
            _check_state("transitions", state)
            check_kind(f"transitions[{state!r}]", row, Mapping, "a mapping from symbols to (state, symbol, move)")
        _check_machine(self)

    @property
    def states(self) -> tuple[Any, ...]:
        """The non-halting states in the order of the transitions, then the halting ones."""
        return (*self.transitions, *sorted(self.accept | self.reject, key=repr))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the tape, the blank first."""
        symbols_used = dict.fromkeys(symbol for row in self.transitions.values() for symbol in row)
        return (self.blank, *(symbol for symbol in symbols_used if symbol != self.blank))

    def configurations(self, word: str) -> Iterator[Configuration]:
        """The configuration before the first step, and after each step until the machine halts.

        Arguments:
            word: a string of symbols.
        """
        check_word(word, self.symbols)
        left, right = deque[str](), deque(word)
        state, head = self.start, right.popleft() if right else self.blank
        yield self._configuration(state, left, head, right)
        while state in self.transitions:
            state, written, move = self.transitions[state][head]
            if move == "N":
                head = written
            else:
                behind, ahead = (left, right) if move == "R" else (right, left)
                # the cells next to the head are the last of `left` and the first of `right`
                (behind.append if move == "R" else behind.appendleft)(written)
                head = (ahead.popleft if move == "R" else ahead.pop)() if ahead else self.blank
            yield self._configuration(state, left, head, right)

    def run(self, word: str, most: int = 1_000_000) -> Configuration:
        """The configuration in which the machine halts; `ValueError` if it does not halt in `most` steps.

        Arguments:
            word: a string of symbols.
            most: the most steps that are run.
        """
        return self._halted(word, most)[1]

    def accepts(self, word: str, most: int = 1_000_000) -> bool:
        """Whether the machine halts in an accepting state; `ValueError` if it does not halt in `most` steps.

        Arguments:
            word: a string of symbols.
            most: the most steps that are run.
        """
        return self.run(word, most).state in self.accept

    def steps(self, word: str, most: int = 1_000_000) -> int:
        """The number of steps until the machine halts; `ValueError` if there are more than `most`.

        Arguments:
            word: a string of symbols.
            most: the most steps that are run.
        """
        return self._halted(word, most)[0]

    def _halted(self, word: str, most: int) -> tuple[int, Configuration]:
        most = check_integer("most", most, least=0)
        for n, now in enumerate(self.configurations(word)):
            if now.state not in self.transitions:
                return n, now
            if n == most:
                break
        raise ValueError(f"most: the machine has not halted on {word!r} in {most} steps; give more, or another word.")

    def to_automata(self) -> "DTM":
        """The same machine in automata-lib; it raises its `RejectionException` if this one rejects."""
        with needs("automata-lib", "machines"):
            from automata.tm.dtm import DTM

        library: Any = DTM
        names = {state: str(number) for number, state in enumerate(self.states)}
        return library(
            states=set(names.values()),
            input_symbols=set(self.symbols) - {self.blank},
            tape_symbols=set(self.symbols),
            transitions={
                names[state]: {symbol: (names[to], written, move) for symbol, (to, written, move) in row.items()}
                for state, row in self.transitions.items()
            },
            initial_state=names[self.start],
            blank_symbol=self.blank,
            final_states={names[state] for state in self.accept},
        )

    def _configuration(self, state: Any, left: Iterable[str], head: str, right: Iterable[str]) -> Configuration:
        return Configuration(state, "".join(left).lstrip(self.blank), head, "".join(right).rstrip(self.blank))


def _check_state(name: str, state: Any) -> State:
    return check_kind(name, state, (str, int), "a state: a string, or an integer")


def _check_machine(machine: TuringMachine) -> None:
    rows, halting = machine.transitions, machine.accept | machine.reject
    symbols, known = machine.symbols, set(rows) | halting
    if not rows or len(symbols) < 2:
        raise ValueError("transitions: got none, or none but for the blank; give one for each state and each symbol.")
    for symbol in symbols:
        if not isinstance(symbol, str) or len(symbol) != 1:
            raise ValueError(f"transitions: got the symbol {symbol!r}, expected a single character.")
    for state, row in rows.items():
        for symbol in symbols:
            if symbol not in row:
                raise ValueError(
                    f"transitions: there is none for state {state!r} and symbol {symbol!r}; use a rejecting state as "
                    "its target if the machine should stop there."
                )
    if machine.start not in rows:
        raise ValueError(f"start: got {machine.start!r}, expected a state of transitions: {_listed(rows)}.")
    if not machine.accept:
        raise ValueError("accept: got no state; give the one in which the machine halts and accepts.")
    if both := machine.accept & machine.reject:
        raise ValueError(f"reject: got {_listed(both)}, which are also in accept; put each state into one of the two.")
    moves = [(f"transitions[{state!r}][{symbol!r}]", row[symbol]) for state, row in rows.items() for symbol in symbols]
    for name, move in moves:
        if not isinstance(move, tuple) or len(move) != 3:
            raise TypeError(f"{name}: got {move!r}, expected (state, symbol, move).")
        _check_state(name, move[0])
        check_kind(name, move[1], str, "a symbol to write")
    reached = {move[0] for _, move in moves}
    for name, states in (("accept", machine.accept), ("reject", machine.reject)):
        for state in states:
            if state in rows:
                raise ValueError(f"{name}: got {state!r}, which has transitions; a state that halts has none.")
            if state not in reached:
                raise ValueError(f"{name}: got {state!r}, expected a state to which a transition leads.")
    for name, (state, written, way) in moves:
        if state not in known:
            raise ValueError(
                f"{name}: got the state {state!r}, which has no transitions and does not halt; give it some, or put it "
                "in accept or reject."
            )
        if written not in symbols:
            raise ValueError(f"{name}: writes {written!r}, expected one of {_listed(symbols)}.")
        check_choice(name, way, MOVES)


def _listed(items: Iterable[Any]) -> str:
    return ", ".join(sorted(map(repr, items)))
