"""Machines: automata extracted from networks, weighted automata, networks that count, Turing machines.

>>> import samplehold as sh
>>> import torch
>>> network = sh.automata.Acceptor(sh.GRU(2, 4), torch.nn.Linear(4, 1), "01")
>>> sh.automata.extract_automaton(network, max_queries=50).automaton.input_symbols == {"0", "1"}
True
"""

from ..models.automata.acceptor import Acceptor as Acceptor
from ..models.automata.brackets import dyck_lstm as dyck_lstm
from ..models.automata.brackets import shuffle_dyck_elman as shuffle_dyck_elman
from ..models.automata.brackets import shuffle_dyck_lstm as shuffle_dyck_lstm
from ..models.automata.counters import counting_lstm as counting_lstm
from ..models.automata.counters import counting_qrnn as counting_qrnn
from ..models.automata.counters import palindrome_lstm as palindrome_lstm
from ..models.automata.distances import distance as distance
from ..models.automata.distances import faithfulness as faithfulness
from ..models.automata.drawing import plot_automaton as plot_automaton
from ..models.automata.extraction import extract_automaton as extract_automaton
from ..models.automata.fraction_stack import FractionStack as FractionStack
from ..models.automata.reachable import count_states as count_states
from ..models.automata.second_order import as_second_order as as_second_order
from ..models.automata.turing import TuringMachine as TuringMachine
from ..models.automata.turing_network import TuringNetwork as TuringNetwork
from ..models.automata.weighted import WeightedAutomaton as WeightedAutomaton
from ..models.automata.weighted import as_weighted_automaton as as_weighted_automaton
from ..models.automata.weighted import spectral as spectral
from ..models.networks.saturated import counter_machine as counter_machine
from ..models.networks.saturated import saturated as saturated
from ..models.networks.saturated import state_box as state_box
from ..models.networks.second_order import SecondOrder as SecondOrder
