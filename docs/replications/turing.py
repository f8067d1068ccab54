r"""How long is a Turing machine in a recurrent network exact, in fractions and in floats?

Each machine is run by automata-lib and as a network (`samplehold.models.automata.turing_network`). In
`fractions.Fraction` every configuration is compared. In floats two steps of the machine are reported: the first after
which some unit has not the exact value (a stack has lost its bottom), and the first after which the network is in
another state, or sees another symbol, than the machine (the loss has come up).

The number of symbols that stacks hold in floats is measured beside it, against $\lfloor p / \log_2 B \rfloor$.
"""

import random
import sys
from fractions import Fraction
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from samplehold.inference.numerics.extras import needs
from samplehold.models.automata.fraction_stack import FractionStack, base_of
from samplehold.models.automata.turing import Configuration, Move, TuringMachine
from samplehold.models.automata.turing_network import TuringNetwork, turing_network
from study import Findings, Track

FLOATS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
COLORS = ("white", "#c6dbef", "#fdae6b", "#6baed6", "#a1d99b", "#9e9ac8", "#fb6a4a")
DRAWN = ("unary multiplication", "111x1111=")
BEAVERS = {
    3: """
        A: 0 B 1 R, 1 H 1 R
        B: 0 B 1 L, 1 C 0 R
        C: 0 C 1 L, 1 A 1 L
    """,
    4: """
        A: 0 B 1 R, 1 B 1 L
        B: 0 A 1 L, 1 C 0 L
        C: 0 H 1 R, 1 D 1 L
        D: 0 D 1 R, 1 A 0 R
    """,
}


def _table(text: str) -> dict[str, dict[str, Move]]:
    """Transitions from lines `state: symbol new-state written move, ...`."""
    table = {}
    for line in text.strip().splitlines():
        state, _, rest = line.partition(":")
        entries = [entry.split() for entry in rest.split(",")]
        table[state.strip()] = {symbol: (to, written, move) for symbol, to, written, move in entries}
    return table


def binary_increment() -> TuringMachine:
    """Adds 1 to a binary number; ends on its first digit.

    >>> binary_increment().run("1011").tape
    '1100'
    """
    table = """
        right: 0 right 0 R, 1 right 1 R, . carry . L
        carry: 0 back 1 L, 1 carry 0 L, . done 1 N
        back: 0 back 0 L, 1 back 1 L, . done . R
    """
    return TuringMachine(_table(table), "right", "done")


def palindromes() -> TuringMachine:
    """Accepts the palindromes over a and b, from the outside inward.

    >>> [palindromes().accepts(word) for word in ("abba", "aba", "", "abab")]
    [True, True, True, False]
    """
    table = """
        first: a find_a . R, b find_b . R, . yes . N
        find_a: a find_a a R, b find_a b R, . last_a . L
        find_b: a find_b a R, b find_b b R, . last_b . L
        last_a: a back . L, b no b N, . yes . N
        last_b: a no a N, b back . L, . yes . N
        back: a back a L, b back b L, . first . R
    """
    return TuringMachine(_table(table), "first", "yes", "no")


def unary_multiplication() -> TuringMachine:
    """Multiplies: turns n ones, x, m ones, = into the same with n m ones at the end.

    >>> unary_multiplication().run("11x111=").tape
    '11x111=111111'
    """
    table = """
        outer: 1 to_x A R, x restore x L, = no = N, A no A N, . no . N
        to_x: 1 to_x 1 R, x inner x R, = no = N, A no A N, . no . N
        inner: 1 append A R, = undo = L, x no x N, A no A N, . no . N
        append: 1 append 1 R, = append = R, . back 1 L, x no x N, A no A N
        back: 1 back 1 L, = back = L, A inner A R, x no x N, . no . N
        undo: A undo 1 L, x left x L, 1 no 1 N, = no = N, . no . N
        left: 1 left 1 L, A outer A R, x no x N, = no = N, . no . N
        restore: A restore 1 L, . done . R, 1 no 1 N, x no x N, = no = N
    """
    return TuringMachine(_table(table), "outer", "done", "no")


def busy_beaver(n_states: int) -> TuringMachine:
    """The machine of 3 or 4 states that runs longest from an empty tape, among those that halt; 0 is the blank.

    >>> busy_beaver(3).steps(""), busy_beaver(4).steps(""), busy_beaver(4).run("").tape.count("1")
    (21, 107, 13)

    Lin & Rado 1965; Brady 1983.
    """
    return TuringMachine(_table(BEAVERS[n_states]), "A", "H", blank="0")


MACHINES: dict[str, Any] = {
    "binary increment": (binary_increment(), {"quick": ("1011", "1" * 24), "full": ("1011", "1" * 24, "1" * 200)}),
    "palindromes": (palindromes(), {"quick": ("abba", "ab" * 8 + "ba" * 8), "full": ("abba", "ab" * 16 + "ba" * 16)}),
    "unary multiplication": (
        unary_multiplication(),
        {"quick": ("11x11=", "111x1111="), "full": ("11x11=", "111x1111=", "1" * 8 + "x" + "1" * 9 + "=")},
    ),
    "busy beaver 3": (busy_beaver(3), {"quick": ("",), "full": ("",)}),
    "busy beaver 4": (busy_beaver(4), {"quick": ("",), "full": ("",)}),
}


def library_configurations(machine: TuringMachine, word: str) -> list[Configuration]:
    """Those that automata-lib's machine goes through."""
    with needs("automata-lib", "machines"):
        from automata.base.exceptions import RejectionException

    configurations = []
    try:
        for now in machine.to_automata().read_input_stepwise(word):
            tape, head = "".join(now.tape.tape), now.tape.current_position
            left, right = tape[:head].lstrip(machine.blank), tape[head + 1 :].rstrip(machine.blank)
            configurations.append(Configuration(machine.states[int(now.state)], left, tape[head], right))
    except RejectionException:
        pass
    return configurations


def departures(network: TuringNetwork, word: str, dtype: torch.dtype) -> tuple[int | None, int | None]:
    """The steps of the machine after which floats are inexact, and state or symbol are others; None for never."""
    exact = list(network.run(word))
    inexact = None
    for step, (units, truth) in enumerate(zip(network.run(word, dtype, most=len(exact) - 1), exact, strict=False)):
        if inexact is None and any(Fraction(x) != y for x, y in zip(map(float, units), truth, strict=True)):
            inexact = step
        if network.control(units) != network.control(truth):
            return inexact, step
    return inexact, None


def stack_depths(n_words: int, seed: int = 0) -> pd.DataFrame:
    """The longest words all of which come back from a stack in floats, of `n_words` random ones of each length."""
    draw, rows = random.Random(seed), []
    for name, dtype in FLOATS.items():
        digits = 1 - int(np.log2(torch.finfo(dtype).eps))
        for n_symbols in (2, 3, 4):
            depth, comes_back = 0, True
            while comes_back:
                words = (draw.choices(range(n_symbols), k=depth + 1) for _ in range(n_words))
                comes_back = all(_comes_back(word, dtype, n_symbols) for word in words)
                depth += comes_back
            formula = digits // (base_of(n_symbols).bit_length() - 1)
            rows.append({"floats": name, "digits": digits, "symbols": n_symbols, "depth": depth, "formula": formula})
    return pd.DataFrame(rows)


def _comes_back(word: list[int], dtype: torch.dtype, n_symbols: int) -> bool:
    stack = FractionStack(torch.tensor(0.0, dtype=dtype), n_symbols)
    for symbol in word:
        stack = stack.push(symbol)
    return stack.symbols(len(word) + 2) == word[::-1]


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Machines against automata-lib's and in floats, and the depths of stacks."""
    rows = []
    for name, (machine, words) in track(list(MACHINES.items()), "machines"):
        network = turing_network(machine)
        for word in words[scale]:
            expected = library_configurations(machine, word)
            reached = [network.configuration(units) for units in network.run(word)]
            agree = sum(one == other for one, other in zip_longest(expected, reached))
            row: dict[str, Any] = {
                "machine": name,
                "word": word if len(word) < 12 else f"{word[:6]}.. ({len(word)})",
                "steps": len(expected) - 1,
                "network steps": network.STEPS * (len(expected) - 1),
                "units": len(network.units),
                "base": base_of(len(machine.symbols)),
                "configurations that agree": f"{agree} of {len(expected)}",
            }
            for floats, dtype in FLOATS.items():
                row[floats] = ", ".join("-" if step is None else str(step) for step in departures(network, word, dtype))
            rows.append(row)
    machine, word = MACHINES[DRAWN[0]][0], DRAWN[1]
    tables = {"turing": pd.DataFrame(rows), "turing_stacks": stack_depths(20 if scale == "quick" else 200, seed)}
    return Findings(tables, {"turing_tape": draw_tape(turing_network(machine), word)}, (seed,))


def draw_tape(network: TuringNetwork, word: str, dtype: torch.dtype | None = None, most: int = 1000) -> Figure:
    """The tape at each step of the machine, as read off the network's stacks; the head is where the line is."""
    machine, blank = network.machine, network.machine.blank
    place, lines = 0, []
    for units in network.run(word, dtype, most):
        now = network.configuration(units)
        lines.append((place, now))
        if now.state in machine.transitions:
            place += {"L": -1, "N": 0, "R": 1}[machine.transitions[now.state][now.head][2]]
    begin = min(place - len(now.left) for place, now in lines)
    end = max(place + 1 + len(now.right) for place, now in lines)
    symbols = machine.symbols
    image = np.zeros((len(lines), end - begin))
    for row, (place, now) in enumerate(lines):
        for column, symbol in enumerate(now.tape, place - len(now.left) - begin):
            image[row, column] = symbols.index(symbol)
    figure = Figure(figsize=(7, 6), layout="constrained")
    panel: Any = figure.subplots()
    colors = ListedColormap(COLORS[: len(symbols)])
    extent = (begin - 0.5, end - 0.5, len(lines), 0)
    limits: Any = {"cmap": colors, "vmin": -0.5, "vmax": len(symbols) - 0.5, "extent": extent}
    shown = panel.imshow(image, aspect="auto", interpolation="nearest", **limits)
    rows = [row + 0.5 for row in range(len(lines))]
    panel.plot([place for place, _ in lines], rows, color="0.2", linewidth=0.8, label="head")
    bar = figure.colorbar(shown, ticks=range(len(symbols)), shrink=0.5)
    bar.ax.set_yticklabels(["blank" if symbol == blank else symbol for symbol in symbols])
    panel.set(xlabel="cell of the tape", ylabel="step of the machine")
    panel.set_title(f"the tape of {word!r}, read off two numbers", loc="left", fontsize=10)
    panel.legend(loc="upper right", frameon=False)
    return figure


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "turing", *sys.argv[1:]])
