"""Stacks in one number, Turing machines, and the recurrent networks that are these machines."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
import samplehold as sh
import torch
from automata.base.exceptions import RejectionException
from oracles.operators import unchecked
from samplehold.models.automata.fraction_stack import base_of
from samplehold.models.automata.turing import Configuration
from turing import binary_increment, busy_beaver, palindromes, unary_multiplication

ZEROS = {
    "bfloat16": (torch.tensor(0.0, dtype=torch.bfloat16), 8),
    "float16": (np.float16(0), 11),
    "float16 of torch": (torch.tensor(0.0, dtype=torch.float16), 11),
    "float32": (np.float32(0), 24),
    "float64": (0.0, 53),
}
RUNS = (
    [(binary_increment(), word) for word in ("", "0", "1", "1011", "111", "1" * 30)]
    + [(palindromes(), word) for word in ("", "a", "ab", "abba", "ababbaba", "abaabb", "ab" * 11 + "a")]
    + [(unary_multiplication(), word) for word in ("x=", "11x=", "x11=", "1x1=", "11x111=", "111x11=", "x1")]
    + [(busy_beaver(3), ""), (busy_beaver(4), "")]
)


def filled(word, zero=Fraction(0), n_symbols=2):
    stack = sh.automata.FractionStack(zero, n_symbols)
    for symbol in word:
        stack = stack.push(symbol)
    return stack


@pytest.mark.parametrize("n_symbols", [2, 3, 4, 5])
def test_an_exact_stack_is_a_stack(n_symbols):
    draw, stack, peer = random.Random(0), sh.automata.FractionStack(n_symbols=n_symbols), []
    for _ in range(600):
        if peer and draw.random() < 0.4:
            stack, peer = stack.pop(), peer[:-1]
        else:
            symbol = draw.randrange(n_symbols)
            stack, peer = stack.push(symbol), [*peer, symbol]
        assert stack.empty == (not peer)
        assert stack.top == (peer[-1] if peer else 0)
    assert stack.symbols(1000) == peer[::-1]
    base = base_of(n_symbols)
    assert stack.value == sum(Fraction(2 * z + 1, base ** (i + 1)) for i, z in enumerate(reversed(peer)))


def test_bits_are_pushed_read_and_popped_by_the_published_formulas():
    clip = lambda x: min(max(x, Fraction(0)), Fraction(1))
    for word in itertools.product((0, 1), repeat=6):
        stack = filled(word)
        q, z = stack.value, word[-1]
        assert stack.push(1).value == q / 4 + Fraction(1, 2) + Fraction(1, 4)
        assert stack.push(0).value == q / 4 + Fraction(1, 4)
        assert clip(4 * q - 2) == stack.top == z
        assert clip(4 * q) == stack.at_least(0) == 1
        assert stack.pop().value == 4 * q - 2 * z - 1


def test_tops_are_a_quarter_apart_in_base_4_and_ever_closer_in_base_2():
    for n in range(1, 9):
        words = list(itertools.product((0, 1), repeat=n))
        by_top = [[filled(word).value for word in words if word[-1] == z] for z in (0, 1)]
        assert min(by_top[1]) - max(by_top[0]) > Fraction(1, 4)
        base_2 = lambda word: sum(Fraction(z, 2 ** (i + 1)) for i, z in enumerate(reversed(word)))
        by_top = [[base_2(word) for word in words if word[-1] == z] for z in (0, 1)]
        assert min(by_top[1]) - max(by_top[0]) == Fraction(1, 2**n)


@pytest.mark.parametrize("kind", ZEROS)
def test_floats_give_back_as_many_bits_as_they_have_pairs_of_digits(kind):
    zero, p = ZEROS[kind]
    draw = random.Random(0)
    for n in range(max(1, p // 2 - 2), p // 2 + 4):
        words = list(itertools.product((0, 1), repeat=n)) if n < 6 else [draw.choices((0, 1), k=n) for _ in range(40)]
        for word in words:
            whole = filled(word, zero).symbols(n + 2) == list(word)[::-1]
            assert whole == (2 * n - (word[-1] == 0) <= p), (n, word)


@pytest.mark.parametrize("n_symbols", [3, 4, 6])
def test_floats_give_back_at_least_what_the_formula_says_for_more_symbols(n_symbols):
    draw = random.Random(0)
    n = int(53 // math.log2(base_of(n_symbols)))
    for _ in range(50):
        word = draw.choices(range(n_symbols), k=n)
        assert filled(word, 0.0, n_symbols).symbols(n + 2) == word[::-1]


def test_stacks_refuse_what_they_cannot_hold():
    with pytest.raises(ValueError, match="pop: the stack is empty"):
        sh.automata.FractionStack().pop()
    with pytest.raises(ValueError, match="symbol: got 2, expected an integer from 0 to 1"):
        sh.automata.FractionStack().push(2)
    with pytest.raises(ValueError, match="value: got 2, expected a number from 0 to 1"):
        sh.automata.FractionStack(Fraction(2))
    with pytest.raises(TypeError, match="value: got str"):
        sh.automata.FractionStack("0")
    with pytest.raises(TypeError, match="of shape"):
        sh.automata.FractionStack(torch.zeros(2))


def peer_configurations(machine, word):
    """What automata-lib's machine goes through, and whether it accepts."""
    library, found = machine.to_automata(), []
    try:
        for now in library.read_input_stepwise(word):
            tape, head = "".join(now.tape.tape), now.tape.current_position
            left, right = tape[:head].lstrip(machine.blank), tape[head + 1 :].rstrip(machine.blank)
            found.append(Configuration(machine.states[int(now.state)], left, tape[head], right))
    except RejectionException:
        return found, False
    return found, True


@pytest.mark.few(7)
@pytest.mark.parametrize(("machine", "word"), RUNS)
def test_machine_network_and_automata_lib_agree_at_every_step(machine, word):
    expected, accepted = peer_configurations(machine, word)
    assert list(machine.configurations(word)) == expected
    assert machine.accepts(word) == accepted
    network = sh.as_rnn(machine)
    assert [network.configuration(units) for units in network.run(word)] == expected


def test_machines_compute_what_they_are_for():
    for n in range(40):
        assert binary_increment().run(f"{n:b}").tape == f"{n + 1:b}"
    for n, m in itertools.product(range(5), repeat=2):
        word = "1" * n + "x" + "1" * m + "="
        assert unary_multiplication().run(word).tape == word + "1" * (n * m)
    for k in range(8):
        for letters in itertools.product("ab", repeat=k):
            assert palindromes().accepts("".join(letters)) == (letters == letters[::-1])
    assert [busy_beaver(3).steps(""), busy_beaver(4).steps("")] == [21, 107]
    assert [busy_beaver(n).run("").tape.count("1") for n in (3, 4)] == [5, 13]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_in_floats_the_network_is_exact_while_its_tape_has_room(dtype):
    digits = {torch.float16: 11, torch.float32: 24, torch.float64: 53}[dtype]
    machine = binary_increment()
    network = sh.as_rnn(machine)
    word = "1" * (digits // 3)  # 3 symbols, base 8; one cell more is written on either side
    word = word[1:]
    exact, floats = list(network.run(word)), list(network.run(word, dtype))
    assert len(exact) == len(floats)
    for one, other in zip(exact, floats, strict=True):
        assert [Fraction(float(x)) for x in other] == one
    far = list(network.run("1" * 70, dtype, most=200))
    assert [network.control(units) for units in far] != [network.control(units) for units in network.run("1" * 70)]


def test_the_network_is_an_elman_network_with_rational_weights():
    network = sh.as_rnn(busy_beaver(3))
    values = {value for column in network.weight for value in column.values()} | set(network.bias.values())
    assert all(isinstance(value, Fraction) for value in values)
    weight, bias = network.dense(torch.float64)
    units = network.start("", torch.float64)
    exact = network.start("")
    for _ in range(20):
        units, exact = (weight @ units + bias).clamp(0, 1), network.step(exact)
        assert [Fraction(x) for x in units.tolist()] == exact


def test_a_machine_that_halts_stays_as_it_is():
    network = sh.as_rnn(binary_increment())
    *_, end = network.run("11")
    assert network.step(network.step(end)) == end


GOOD = {"go": {"0": ("go", "0", "R"), ".": ("yes", ".", "N")}}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transitions": {"go": {"0": ("go", "0", "R")}}}, ValueError, "there is none for state 'go' and symbol '.'"),
        ({"transitions": {"go": {".": ("yes", "0", "R")}}}, ValueError, "transitions: got none, or none but for"),
        ({"transitions": {}}, ValueError, "transitions: got none"),
        ({"transitions": [1]}, TypeError, "transitions: got list, expected a mapping"),
        ({"transitions": {"go": [1]}}, TypeError, r"transitions\['go'\]: got list"),
        ({"start": "begin"}, ValueError, "start: got 'begin', expected a state of transitions: 'go'"),
        ({"accept": "no"}, ValueError, "accept: got 'no', expected a state to which a transition leads"),
        ({"accept": "go"}, ValueError, "accept: got 'go', which has transitions"),
        ({"accept": ()}, ValueError, "accept: got no state"),
        ({"reject": "yes"}, ValueError, "reject: got 'yes', which are also in accept"),
        ({"blank": 0}, TypeError, "blank: got int, expected a symbol"),
        (
            {"transitions": {"go": {"0": ("gone", "0", "R"), ".": ("yes", ".", "N")}}},
            ValueError,
            r"transitions\['go'\]\['0'\]: got the state 'gone', which has no transitions and does not halt",
        ),
        (
            {"transitions": {"go": {"0": ("go", "2", "R"), ".": ("yes", ".", "N")}}},
            ValueError,
            r"transitions\['go'\]\['0'\]: writes '2', expected one of '.', '0'",
        ),
        (
            {"transitions": {"go": {"0": ("go", "0", "up"), ".": ("yes", ".", "N")}}},
            ValueError,
            r"transitions\['go'\]\['0'\]: got 'up', expected one of 'L', 'N', 'R'",
        ),
        (
            {"transitions": {"go": {"0": "go", ".": ("yes", ".", "N")}}},
            TypeError,
            r"transitions\['go'\]\['0'\]: got 'go', expected \(state, symbol, move\)",
        ),
        (
            {"transitions": {"go": {"00": ("go", "0", "R"), ".": ("yes", ".", "N")}}},
            ValueError,
            "transitions: got the symbol '00', expected a single character",
        ),
    ],
)
def test_a_machine_that_is_none_is_refused_by_name(options, error, message):
    with unchecked(), pytest.raises(error, match=message):
        sh.automata.TuringMachine(**({"transitions": GOOD, "start": "go", "accept": "yes"} | options))


def test_words_and_runs_that_cannot_be_are_refused():
    machine = sh.automata.TuringMachine(GOOD, "go", "yes")
    with pytest.raises(ValueError, match=r"word: got '\w+', but '1' is not one of the letters"):
        machine.run("001")
    with pytest.raises(ValueError, match=r"word: got '\w+', but '1' is not one of the letters"):
        sh.as_rnn(machine).start("1")
    with unchecked(), pytest.raises(TypeError, match="word: got int, expected a string"):
        machine.accepts(3)
    endless = sh.automata.TuringMachine(
        {"go": {"0": ("go", "0", "R"), ".": ("go", ".", "R"), "x": ("yes", "x", "N")}}, "go", "yes"
    )
    with pytest.raises(ValueError, match="most: the machine has not halted on '0' in 50 steps"):
        endless.run("0", most=50)
    with pytest.raises(ValueError, match="most: the machine has not halted on '0' in 50 steps"):
        endless.steps("0", most=50)
    with pytest.raises(ValueError, match="space: got 'logit', expected one of 'probability'"):
        sh.as_rnn(machine, space="logit")
