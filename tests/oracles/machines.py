"""Machines drawn at random, networks that are machines by their weights, and words one by one."""

import random
from itertools import product

import samplehold as sh
import torch
from automata.fa.dfa import DFA
from torch import nn


def all_words(alphabet: str, longest: int) -> list[str]:
    return ["".join(word) for n in range(longest + 1) for word in product(alphabet, repeat=n)]


def random_machine(n_states: int, alphabet: str, seed: int) -> DFA:
    draw = random.Random(seed)
    return DFA(
        states=set(range(n_states)),
        input_symbols=set(alphabet),
        transitions={q: {x: draw.randrange(n_states) for x in alphabet} for q in range(n_states)},
        initial_state=0,
        final_states={q for q in range(n_states) if draw.random() < 0.5},
    )


def network_of(machine: DFA, alphabet: str) -> sh.automata.Acceptor:
    """An Elman network of zeros and ones that is the machine: a unit for each state and the symbol that led there.

    All units are 0 before the first symbol, so that 1 less their sum stands for the first state.
    """
    units = [(q, x) for q in sorted(machine.states) for x in alphabet]
    layer = sh.Elman(len(alphabet), len(units), nonlinearity="relu", dtype=torch.float64).requires_grad_(False)
    readout = nn.Linear(len(units), 1, dtype=torch.float64).requires_grad_(False)
    for parameter in (*layer.parameters(), *readout.parameters()):
        parameter.zero_()
    for i, (q, x) in enumerate(units):
        at_first = float(machine.transitions[machine.initial_state][x] == q)
        layer.weight_ih_l0[i, alphabet.index(x)] = 1
        layer.bias_ih_l0[i] = at_first - 1
        for j, (before, _) in enumerate(units):
            layer.weight_hh_l0[i, j] = float(machine.transitions[before][x] == q) - at_first
    accepts_first = float(machine.initial_state in machine.final_states)
    readout.weight[0] = torch.tensor([float(q in machine.final_states) - accepts_first for q, _ in units])
    readout.bias[0] = accepts_first - 0.5
    return sh.automata.Acceptor(layer, readout, alphabet)
