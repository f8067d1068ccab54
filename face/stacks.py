"""Histories of a stack: mixtures over all of them, pushdown automata, and the networks that keep a stack.

>>> import samplehold as sh
>>> import torch
>>> sh.stacks.StackMixture(torch.randn(6, 3).log_softmax(-1), torch.randn(6, 2)).superposition(depth=4).shape
torch.Size([6, 4, 2])
"""

from ..models.networks.stack import NondeterministicStackRNN as NondeterministicStackRNN
from ..models.networks.stack import StratificationStackRNN as StratificationStackRNN
from ..models.networks.stack import SuperpositionStackRNN as SuperpositionStackRNN
from ..switching.stacks.automaton import PushdownAutomaton as PushdownAutomaton
from ..switching.stacks.mixture import StackMixture as StackMixture
from ..switching.stacks.program import stack_program as stack_program
