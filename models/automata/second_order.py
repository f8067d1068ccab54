"""Weighted automata as linear second-order networks; `as_weighted_automaton` is the way back."""

import torch
from torch import nn

from ...inference.numerics.scalars import check_kind
from ..networks.second_order import SecondOrder
from .acceptor import Acceptor
from .weighted import WeightedAutomaton


@torch.no_grad()
def as_second_order(automaton: WeightedAutomaton) -> Acceptor:
    """The linear second-order network whose log-odds are an automaton's values (Rabusseau, Li & Precup 2019).

    The layer is a `SecondOrder` in float64 with a unit for each state. `as_weighted_automaton` gives the automaton
    back. Training can go on from it, for example from an automaton that `spectral` learned.

    Arguments:
        automaton: its symbols become the alphabet.

    Raises:
        TypeError: something else than a `WeightedAutomaton`.

    See Also:
        `as_weighted_automaton`, the way back; `spectral`, which learns an automaton; docs/background/automata.md.

    >>> import samplehold as sh
    >>> ones = sh.automata.WeightedAutomaton([1, 0], {"0": [[1, 0], [0, 1]], "1": [[1, 1], [0, 1]]}, [0, 1])
    >>> network = sh.automata.as_second_order(ones)
    >>> network(["", "0110", "1011"]).tolist()
    [0.0, 2.0, 3.0]
    >>> sh.automata.as_weighted_automaton(network).transitions["1"]
    tensor([[1., 1.],
            [0., 1.]], dtype=torch.float64)
    """
    check_kind("automaton", automaton, WeightedAutomaton, "a WeightedAutomaton")
    n, options = automaton.n_states, {"dtype": torch.float64, "device": "cpu"}
    layer = SecondOrder(len(automaton.alphabet), n, **options)
    tables = torch.stack(list(automaton.transitions.values()))  # [symbol, old, new]
    layer.get_parameter("weight_l0").copy_(tables.permute(2, 0, 1))
    layer.get_parameter("start_l0").copy_(automaton.initial)
    readout = nn.Linear(n, 1, bias=False, **options)
    readout.weight.copy_(automaton.final)
    return Acceptor(layer, readout, automaton.alphabet)
