r"""Networks that stay stable during training: their weights are kept within conditions of stability.

A network is stable with the Lipschitz constant $\lambda < 1$ if the distance of any two states shrinks by this factor
at each step, for any inputs. Training truncated to the last k inputs then loses $O(\lambda^k)$ (Miller & Hardt 2019).
They project the weights after each update; here the projection is part of the network, and gradients pass through it.
$\|W\|$ is the greatest sum of magnitudes in a row. Rows of a matrix that exceed their limit are scaled to it.

- Elman: $\|U\| \le \lambda$ in either norm, since tanh and relu have the constant 1 (lemma 1).
- LSTM: $\bar f \le F = \lambda^2$; $\|U_i\|, \|U_o\| \le s (1 - F)$, $\|U_g\| \le \frac{s}{4} (1 - F)$,
  $\|U_f\| \le s (1 - F)^2$.
- GRU: $\bar z \le F$; $2 F \|U_z\|$, $\|U_n\|$ and $\frac14 (\|U_n\| + |b'_n|) \|U_r\|$ each $\le \frac{s}{3}$.
- minGRU, QRNN: the hold factor is at most $\lambda$, because they are linear in the state.
- minLSTM: so is its hold factor $f / (f + i)$, which is at most $\lambda$ if $\log f - \log i \le \log \lambda -
  \log(1 - \lambda)$. The bias of f is lowered until its greatest value and the least value of i satisfy this.

The conditions of the LSTM are the published ones (proposition 2) times $s = \lambda / (1 + \lambda)$, so the greater of
the distances of h and c shrinks by $F + s (1 - F) = \lambda$. Those of the GRU are the condition of
`samplehold.studies.stability`, which gives $z + (1 - z) s \le \lambda$ for $z \le F$. The bias of a gate bounds its
values for inputs up to a bound and $|h| \le 1$. This leaves room for the weights.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...inference.numerics.logs import log_sigmoid
from ...inference.numerics.scalars import check_choice, check_number, check_probability
from .layouts import GATES
from .minimal import MinGRU, MinLSTM
from .qrnn import QRNN
from .recurrent import check_one_way
from .wrapped import GRU, LSTM, Elman

LEAST = 1e-6  # the least constant, whose square is a limit
Network = TypeVar("Network", bound=nn.Module)
Rule = Callable[["_Limits", Any, int, Tensor], Tensor]


def stable(network: Network, norm: str = "inf", lipschitz: float = 0.9, input_bound: float = 1.0) -> Network:
    """Keep a network stable during training: its weights become functions that satisfy the conditions of Miller &
    Hardt.

    In place, by `torch.nn.utils.parametrize`. Its `remove_parametrizations` keeps the current weights. A network whose
    weights are functions cannot be pickled or given to `torch.save`; save its `state_dict`.

    Arguments:
        network: `Elman`, `LSTM`, `GRU`, `MinGRU`, `MinLSTM` or `QRNN`, of any number of layers and one direction.
        norm: the norm of distances between states: "inf", the greatest unit, or "2". No condition in "2" is known for
            LSTM and GRU.
        lipschitz: the factor, above 0 and below 1.
        input_bound: the greatest magnitude of any input; an Elman network does not need it.

    Returns:
        The network itself.

    Raises:
        TypeError: another kind of network; torch's own GRU, LSTM and RNN do not read parametrised weights.
        ValueError: both directions, gates without bias, a norm or numbers out of range.

    Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369.

    See Also:
        `studies.stability`, which checks the conditions; `truncate`, whose error is small for stable networks;
        docs/background/truncation.md.

    >>> import torch, samplehold as sh
    >>> network = sh.LSTM(input_size=2, hidden_size=3)
    >>> _ = torch.nn.init.constant_(network.weight_hh_l0, 5.0)
    >>> sh.studies.stability(network, 1.0).stable
    False
    >>> sh.studies.stability(sh.stable(network, lipschitz=0.5), 1.0).rate <= 0.5
    True
    """
    kind = next((kind for kind in RULES if isinstance(network, kind)), None)
    layer: Any = network
    if kind is None:
        raise TypeError(
            f"network: got {type(network).__name__}, expected Elman, LSTM, GRU, MinGRU, MinLSTM or QRNN of "
            "samplehold; weights of torch's own are taken over by load_state_dict."
        )
    check_one_way(network, "and no state carries all of the past")
    check_choice("norm", norm, ("inf", "2"))
    if norm == "2" and kind in (LSTM, GRU):
        raise ValueError(f"norm: got '2' for {kind.__name__}, whose known conditions are in 'inf'; give that.")
    if kind is not Elman and not layer.bias:
        raise ValueError("network: has no bias, but a bias keeps its gates below their limit; build it with bias=True.")
    lipschitz = check_probability("lipschitz", lipschitz, proper=True)
    if lipschitz < LEAST:
        raise ValueError(
            f"lipschitz: got {lipschitz:g}, expected at least {LEAST:g}; with less, the network has no memory."
        )
    limits = _Limits(norm, lipschitz, check_number("input_bound", input_bound, least=0))
    for k in range(layer.num_layers):
        for name, rule in RULES[kind].items():
            parametrize.register_parametrization(network, f"{name}_l{k}", _Within(limits, rule, network, k))
    return network


@dataclass(frozen=True)
class _Limits:
    norm: str
    lipschitz: float
    input_bound: float

    @property
    def gate(self) -> float:
        """F, the upper limit of a hold gate of an LSTM or a GRU."""
        return self.lipschitz**2

    @property
    def share(self) -> float:
        return self.lipschitz / (1 + self.lipschitz)


class _Within(nn.Module):
    """A parameter of a layer within its limits, which may depend on the layer's other parameters."""

    def __init__(self, limits: _Limits, rule: Rule, network: nn.Module, layer: int) -> None:
        super().__init__()
        self.limits, self.rule, self.layer = limits, rule, layer
        self.others = (network,)  # in a tuple, so that the parent is not registered as a submodule

    def forward(self, original: Tensor) -> Tensor:
        return self.rule(self.limits, self.others[0], self.layer, original)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def _scaled(rows: Tensor, limit: Tensor | float) -> Tensor:
    """The rows whose magnitudes sum to more than the limit, scaled to the limit."""
    return rows * (limit / rows.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)).clamp(max=1)


def _elman_hidden(limits: _Limits, network: Any, k: int, U: Tensor) -> Tensor:
    if limits.norm == "inf":
        return _scaled(U, limits.lipschitz)
    return U * (limits.lipschitz / torch.linalg.matrix_norm(U, 2).clamp(min=torch.finfo(U.dtype).tiny)).clamp(max=1)


def _lstm_hidden(limits: _Limits, network: Any, k: int, U: Tensor) -> Tensor:
    rest = 1 - limits.gate
    most = {"i": rest, "f": rest**2, "g": rest / 4, "o": rest}
    rows = zip(U.chunk(4), GATES["lstm"], strict=True)
    return torch.cat([_scaled(part, limits.share * most[gate]) for part, gate in rows])


def _gru_hidden(limits: _Limits, network: Any, k: int, U: Tensor) -> Tensor:
    third, inner = limits.share / 3, getattr(network, f"bias_hh_l{k}").chunk(3)[2].abs().max()
    most = {"r": 4 * third / (third + inner), "z": third / (2 * limits.gate), "n": third}
    return torch.cat([_scaled(part, most[gate]) for part, gate in zip(U.chunk(3), GATES["gru"], strict=True)])


def _holding_bias(limits: _Limits, network: Any, k: int, bias: Tensor) -> Tensor:
    """`bias_ih` of an LSTM or a GRU, with the bias of the hold gate lowered to its limit."""
    gates = GATES["lstm" if isinstance(network, LSTM) else "gru"]
    at = gates.index("f" if isinstance(network, LSTM) else "z")
    names = ("weight_ih", "weight_hh", "bias_hh")
    W, U, other = (getattr(network, f"{name}_l{k}").chunk(len(gates))[at] for name in names)
    reached = W.abs().sum(-1) * (1.0 if k else limits.input_bound) + U.abs().sum(-1) + other
    parts = list(bias.chunk(len(gates)))
    parts[at] = torch.minimum(parts[at], torch.special.logit(reached.new_tensor(limits.gate)) - reached)
    return torch.cat(parts)


def _gate_bias(limits: _Limits, network: Any, k: int, bias: Tensor) -> Tensor:
    """The bias of a minGRU, whose gates draw, or of a QRNN, whose forget gates hold."""
    draws = isinstance(network, MinGRU)
    weight = getattr(network, f"weight_l{k}").flatten(1)
    n = network._coins if draws else network.hidden_size
    bound = math.log(limits.lipschitz / (1 - limits.lipschitz)) - weight[:n].abs().sum(-1) * _reach(limits, network, k)
    gates = torch.maximum(bias[:n], -bound) if draws else torch.minimum(bias[:n], bound)
    return torch.cat([gates, bias[n:]])


def _ratio_bias(limits: _Limits, network: Any, k: int, bias: Tensor) -> Tensor:
    """The bias of a minLSTM, whose forget gates are low beside its input gates for all inputs."""
    weight, n = getattr(network, f"weight_l{k}"), network._coins
    most = weight[: 2 * n].abs().sum(-1) * _reach(limits, network, k)
    bound = math.log(limits.lipschitz / (1 - limits.lipschitz)) + log_sigmoid(bias[n : 2 * n] - most[n:])
    inside = bound.clamp(max=-torch.finfo(bound.dtype).tiny)  # of log f; above 0, any f is low enough
    lowered = torch.minimum(bias[:n], inside - (-inside.expm1()).log() - most[:n])
    return torch.cat([torch.where(bound < 0, lowered, bias[:n]), bias[n:]])


def _reach(limits: _Limits, network: Any, k: int) -> Tensor | float:
    """The greatest magnitude of the inputs of layer k of a minGRU, a minLSTM or a QRNN."""
    if not k:
        return limits.input_bound
    if isinstance(network, QRNN):
        return 1 / (1 - limits.lipschitz) if network.pooling == "ifo" else 1.0
    if network.candidate in ("tanh", "simplex"):
        return 1.0
    weight, bias = (
        getattr(network, f"{name}_l{k - 1}")[network._gates * network._coins :] for name in ("weight", "bias")
    )
    values = (weight.abs().sum(-1) * _reach(limits, network, k - 1) + bias.abs()).max()
    return values + 0.5 if network.candidate == "positive" else values


RULES: dict[type[nn.Module], dict[str, Rule]] = {
    Elman: {"weight_hh": _elman_hidden},
    LSTM: {"weight_hh": _lstm_hidden, "bias_ih": _holding_bias},
    GRU: {"weight_hh": _gru_hidden, "bias_ih": _holding_bias},
    MinGRU: {"bias": _gate_bias},
    MinLSTM: {"bias": _ratio_bias},
    QRNN: {"bias": _gate_bias},
}
