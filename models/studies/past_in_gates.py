r"""The information in a network's gates about the past, beyond the present input.

The gates of a layer are the probabilities of its chains' coins given the layer's input (`as_ssm`). In the first layer
of a minGRU the coin $z_t$ depends on $x_t$ alone. In a second layer the input is the state of the first, a function of
all inputs so far, so its redraws do depend on the past. Measured is the information

$$I(z_t; x_{1..t-1} \mid x_t) = E\big[ H_b(E[g_t \mid x_t]) - H_b(g_t) \big], \qquad
H_b(p) = -p \log p - (1 - p) \log(1 - p),$$

with expectations over the steps of given sequences. It is 0 in a first layer, and at most $E[H_b(E[g_t \mid x_t])]$.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.records import Record
from ..bridge.lifting import split_network
from ..bridge.lifting_given import lift_given
from ..networks.recurrent import check_one_way


@dataclass(frozen=True, repr=False)
class PastInGates(Record):
    """The information in a layer's gates about the past, beyond the present input, in nats: one number a chain.

    Attributes:
        information: `[C]`, I(z_t; x_1..t-1 | x_t).
        entropy: `[C]`, H(z_t | x_t), the most that it can be.

    See Also:
        `past_in_gates`, which makes it; docs/replications/input_driven.md, with results.

    Example:
        >>> import torch, samplehold as sh
        >>> x = sh.one_hot(torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1]]), 2, dtype=torch.float32)
        >>> lower, upper = sh.studies.past_in_gates(sh.MinGRU(2, 4, num_layers=2), x)
        >>> bool((upper.information < upper.entropy).all())
        True
    """

    information: Float[Tensor, "C"]
    entropy: Float[Tensor, "C"]


def past_in_gates(network: nn.Module, x: Tensor) -> tuple[PastInGates, ...]:
    """The information of the past in the gates of each layer beyond the present input, from the lowest layer up.

    Arguments:
        network: `MinGRU`, `MinLSTM` or `QRNN` of one direction, alone or behind layers without memory.
        x: as for the network. Inputs must repeat, as tokens or one-hot vectors do: the mean over the past is taken over
            the steps with the same input. If few steps share an input, the information is too low.

    Raises:
        TypeError: a network of another kind; x that is not a tensor.
        ValueError: a network that reads in both directions; see also `as_ssm`.

    See Also:
        `as_ssm`, the chains whose gates they are; docs/replications/input_driven.md, with results.

    Example:
        >>> import torch, samplehold as sh
        >>> x = sh.one_hot(torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1]]), 2, dtype=torch.float32)
        >>> lower, upper = sh.studies.past_in_gates(sh.MinGRU(2, 4, num_layers=2), x)
        >>> bool(lower.information.abs().max() < 1e-6), bool((upper.information > 0).all())
        (True, True)
    """
    layer = split_network(network)[1]
    lifted = lift_given(network)
    check_one_way(layer, "so that its gates know the future", "network")
    results = []
    for chains in lifted.layers(x):
        gates = chains.draw().flatten(0, -2)
        rows = x.reshape(len(gates), -1)
        kinds = rows.unique(dim=0, return_inverse=True)[1]
        count = gates.new_zeros(int(kinds.max()) + 1).index_add(0, kinds, torch.ones_like(gates[:, 0]))
        mean = gates.new_zeros(len(count), gates.shape[1]).index_add(0, kinds, gates) / count.unsqueeze(-1)
        entropy = coin_entropy(mean)[kinds].mean(0)
        results.append(PastInGates((entropy - coin_entropy(gates).mean(0)).clamp(min=0), entropy))
    return tuple(results)


def coin_entropy(p: Tensor) -> Tensor:
    """In nats."""
    return torch.special.entr(p) + torch.special.entr(1 - p)
