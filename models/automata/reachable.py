r"""How many states can a network be in after n symbols?

The states of a saturated network (`samplehold.models.networks.saturated`) are discrete, so they can be counted (Merrill
et al. 2020). A network whose hold and draw sum to 1 has a bounded number: it is a finite automaton. A layer with
counters has a number that grows as a power of n: k counters that change by at most 1 have at most $(2 n + 1)^k$ values.
To accept $a^n b^n$ a network needs n states after n symbols; for Dyck-2 it needs $2^{n}$, one for each word of opening
brackets. So no saturated LSTM, QRNN, GRU, MinGRU or Elman network accepts Dyck-2.

MinLSTM holds 1/2 where both of its gates are open. Then the state is half the last one, and so a binary fraction of
the past symbols: it can reach $2^n$ states, within its box. They differ by $2^{-n}$, so floats keep as many as they
have digits.

Merrill, Weiss, Goldberg, Schwartz, Smith & Yahav 2020, *A formal hierarchy of RNN architectures*, definition 2.
"""

import torch

from ...inference.numerics.scalars import check_integer, check_kind
from .acceptor import Acceptor

MOST = 2**18  # states after one number of symbols


@torch.no_grad()
def count_states(network: Acceptor, longest: int) -> list[int]:
    """The numbers of distinct states after all words of exactly 0, 1, ... `longest` symbols.

    The state is the layer's whole state: cells, outputs, and the last inputs that a QRNN reads. States are the same if
    all their numbers are equal, so the layer should be `saturated`, or one of whole numbers.

    Arguments:
        network: an `Acceptor` of a layer whose states have a fixed size.
        longest: the greatest number of symbols. Work grows with the number of states.

    Raises:
        TypeError: a network that is not an `Acceptor`; a number that is not an integer.
        ValueError: more than 2^18 states, as of a network that is not saturated; or a layer without such states.

    Merrill, Weiss, Goldberg, Schwartz, Smith & Yahav 2020, *A formal hierarchy of RNN architectures*, definition 2.

    See Also:
        `saturated`, which makes states repeat; `state_box`, which bounds states of any network;
        docs/background/counting.md.

    >>> import torch, samplehold as sh
    >>> network = sh.automata.counting_lstm("anbn")
    >>> counter = sh.automata.saturated(sh.QRNN(2, 1, pooling="ifo", bias=False).requires_grad_(False))
    >>> counter.weight_l0.copy_(torch.tensor([[1.0, 1], [1, 1], [1, -1], [1, 1]])[..., None] * 2**60).shape
    torch.Size([4, 2, 1])
    >>> sh.automata.count_states(sh.automata.Acceptor(counter, torch.nn.Linear(1, 1), "ab"), 5)
    [1, 2, 3, 4, 5, 6]
    """
    check_kind("network", network, Acceptor, "an Acceptor(layer, readout, alphabet)")
    states, sizes = network.states([""]), [1]
    for n in range(1, check_integer("longest", longest, least=0) + 1):
        after = torch.cat([network.advance(states, symbol) for symbol in network.alphabet])
        states = torch.unique(after + 0.0, dim=0)  # -0 becomes 0
        sizes.append(len(states))
        if len(states) > MOST:
            raise ValueError(
                f"longest: got {longest}, but there are {len(states)} states after {n} symbols; give less."
            )
    return sizes
