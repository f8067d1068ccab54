r"""Whether a GRU, LSTM or Elman network forgets: Lipschitz constants of one step (Miller & Hardt 2019).

Run a network twice on the same inputs from two states, at distances $e$ in each part of the state: a step later the
distances are at most $G e$. G is a small table of numbers >= 0, with a row and a column for each part: h of an Elman
layer (2-norm) or a GRU layer, h and c of an LSTM layer (greatest unit). The network is *stable*, and forgets
geometrically, if the spectral radius of G is below 1. Below, $\|W\|$ is the greatest sum of magnitudes in a row, and
$\bar f$ the greatest value that a gate can take for inputs up to a bound and $|h| \le 1$.

Elman, $h' = \phi(U h + W x + b)$ with $\phi$ = tanh or relu: $G = \|U\|_2$.

LSTM, where $|c| \le \bar c = \bar\imath / (1 - \bar f)$:
$$|\Delta c'| \le \bar f |\Delta c| + \beta |\Delta h|, \qquad
\beta = \tfrac{\bar c}{4} \|U_f\| + \tfrac14 \|U_i\| + \bar\imath \|U_g\|$$
$$|\Delta h'| \le \bar o |\Delta c'| + \tfrac14 \tanh(\bar c)\, \|U_o\|\, |\Delta h|$$
The published conditions (proposition 2), $\|U_i\|, \|U_o\| < 1 - \bar f$, $\|U_g\| \le \frac14 (1 - \bar f)$,
$\|U_f\| < (1 - \bar f)^2$, give $\beta \le \frac34 (1 - \bar f)$, and so every row of G a sum below 1.

GRU, with $u_\cdot = \|U_\cdot\|$, since $z' = z (1 - z)$ and $|h - n| \le 2$:
$$G = \max_{0 \le z \le \bar z}\; z + (1 - z) (2 z u_z + k), \qquad
k = \bar r u_n + \tfrac14 (u_n + |b'_n|) u_r, \qquad \text{below 1 if } 2 \bar z u_z + k < 1$$

Layer l + 1 reads the new h of layer l: G of a stack is block triangular, and a stack is stable if each layer is.
"""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_kind, check_number, check_probability
from ..networks.layouts import GATES, RecurrentWeights, from_torch

Condition = tuple[str, float, float]


@dataclass(frozen=True, repr=False)
class Stability(Record):
    """How fast a network forgets its start, proved for one bound on its inputs. Its tables lie on the CPU, wherever the
    network does.

    Attributes:
        rate: the spectral radius of gain. In the limit of many steps, distances shrink by this factor a step.
        gain: `[m, m]`: distances after a step are at most gain @ distances before; [h] or [h, c] a layer.
        reach: `[m]`, bounds on the size of each part, from a start at zero.
        rounding: `[m]`, the distance that a step in floats of unit roundoff u adds, divided by u.
        conditions: (name, value, limit), met where value < limit.

    See Also:
        `stability`, which makes it; `stable`, which keeps networks stable in training; docs/background/truncation.md.

    Example:
        >>> import torch, samplehold as sh
        >>> network = sh.LSTM(input_size=1, hidden_size=2)
        >>> _ = [torch.nn.init.zeros_(parameter) for parameter in network.parameters()]  # every gate is 1/2
        >>> found = sh.studies.stability(network, input_bound=1.0)
        >>> found.rate, found.stable, found.gain.shape  # of h and c
        (0.5, True, torch.Size([2, 2]))
    """

    rate: float
    gain: Float[Tensor, "m m"]
    reach: Float[Tensor, "m"]
    rounding: Float[Tensor, "m"]
    conditions: tuple[Condition, ...]

    @property
    def stable(self) -> bool:
        """Whether distances shrink to nothing."""
        return self.rate < 1

    @property
    def meets_conditions(self) -> bool:
        """Whether all conditions hold, which makes the network stable; it may be so without them."""
        return all(value < limit for _, value, limit in self.conditions)


@dataclass(frozen=True)
class _Layer:
    gain: Tensor  # [p, p] distances of the parts, h first, after a step from those before it
    read: Tensor  # [p] the same from distances of the layer's input
    reach: Tensor  # [p]
    rounding: Tensor  # [p] the same from a step in floats, over their unit roundoff
    conditions: list[Condition]


def stability(network: nn.Module, input_bound: float) -> Stability:
    """Bound how fast a `GRU`, `LSTM` or `Elman` network (or torch's own) forgets the state it started from.

    Arguments:
        network: any number of layers, one direction.
        input_bound: the greatest magnitude that any input takes.

    Raises:
        TypeError: a network of another kind.
        ValueError: a network that runs both ways in time; a bound that is negative.

    Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369.

    See Also:
        `stabilize`, which projects weights; `stable`, which constrains training; docs/background/truncation.md.

    Example:
        >>> import torch, samplehold as sh
        >>> network = sh.Elman(input_size=1, hidden_size=2)
        >>> _ = torch.nn.init.constant_(network.weight_hh_l0, 0.25)  # of the spectral norm 1/2
        >>> round(sh.studies.stability(network, input_bound=1.0).rate, 3)
        0.5
    """
    network, input_bound = _checked(network), check_number("input_bound", input_bound, least=0)
    layers = []
    for k in range(network.num_layers):
        layers.append(_layer(network, k, input_bound))
        input_bound = _output_bound(layers[-1], network)
    n = len(layers[0].gain)
    gain = torch.zeros(n * len(layers), n * len(layers), dtype=torch.float64, device="cpu")
    rounding = torch.cat([layer.rounding for layer in layers])
    for k, layer in enumerate(layers):
        rows = slice(k * n, (k + 1) * n)
        gain[rows, rows] = layer.gain
        if k:
            gain[rows] += layer.read[:, None] * gain[(k - 1) * n]
            rounding[rows] += layer.read * rounding[(k - 1) * n]
    conditions = [(f"{name}, layer {k}", *rest) for k, layer in enumerate(layers) for name, *rest in layer.conditions]
    rate = max(_spectral_radius(layer.gain) for layer in layers)
    return Stability(rate, gain, torch.cat([layer.reach for layer in layers]), rounding, tuple(conditions))


def stabilize(network: nn.Module, input_bound: float, slack: float = 0.01) -> nn.RNNBase:
    """A copy of the network whose recurrent weights are projected onto the conditions of stability.

    Elman: singular values are cut at 1 - slack. LSTM and GRU: every row of a recurrent matrix is projected onto the
    ball of sums of magnitudes within (1 - slack) of its limit; for a GRU the three terms of its condition get a third
    each. Layers that meet their conditions stay as they are, as do biases and input weights.

    Arguments:
        network, input_bound: as `stability`.
        slack: how far below its limit a projected condition ends, as a share of that.

    Raises:
        TypeError: a network of another kind.
        ValueError: a network that runs both ways in time; a bound that is negative; slack outside of 0..1; gates that
            inputs alone can drive to 1.

    Miller & Hardt 2019, *Stable recurrent models*, arXiv 1805.10369.

    See Also:
        `stability`, which checks the result; `stable`, which constrains training; docs/background/truncation.md.

    Example:
        >>> import torch, samplehold as sh
        >>> network = sh.Elman(input_size=1, hidden_size=2)
        >>> _ = torch.nn.init.constant_(network.weight_hh_l0, 2.0)
        >>> sh.studies.stability(network, 1.0).stable
        False
        >>> round(sh.studies.stability(sh.studies.stabilize(network, 1.0), 1.0).rate, 3)
        0.99
    """
    network, input_bound = _checked(network), check_number("input_bound", input_bound, least=0)
    slack = check_probability("slack", slack, proper=True)
    stable = copy.deepcopy(network)
    for k in range(network.num_layers):
        constants = _layer(stable, k, input_bound)
        if not _is_stable(constants):
            parameter = getattr(stable, f"weight_hh_l{k}")
            with torch.no_grad():
                parameter.copy_(_projected(stable, k, input_bound, 1 - slack))
            constants = _layer(stable, k, input_bound)
        if not _is_stable(constants):
            raise ValueError(
                f"network: gates of layer {k} can reach 1, to rounding, for inputs up to {input_bound:g}, and then "
                "hold their state whatever the recurrent weights are; give a smaller input_bound, or shrink the "
                "gates' input weights and biases."
            )
        input_bound = _output_bound(constants, network)
    return stable


def _checked(network: nn.Module) -> nn.RNNBase:
    network = check_kind("network", network, nn.RNNBase, "GRU, LSTM or Elman, or torch's own")
    if network.bidirectional:
        raise ValueError("network: it runs both ways in time, and no state carries all of the past; give one way.")
    return network


def _is_stable(layer: _Layer) -> bool:
    return _spectral_radius(layer.gain) < 1 and all(value < limit for _, value, limit in layer.conditions)


def _spectral_radius(gain: Tensor) -> float:
    """The greatest eigenvalue of a 1 x 1 or 2 x 2 table of numbers >= 0."""
    if len(gain) == 1:
        return float(gain)
    middle, half = (gain[0, 0] + gain[1, 1]) / 2, (gain[0, 0] - gain[1, 1]) / 2
    return float(middle + (half**2 + gain[0, 1] * gain[1, 0]).sqrt())


def _layer(network: nn.RNNBase, k: int, bound: float) -> _Layer:
    make = {"lstm": _lstm, "gru": _gru, "elman": _elman}[from_torch(network, k).cell]
    return make(network, k, bound)


def _output_bound(layer: _Layer, network: nn.RNNBase) -> float:
    return float(layer.reach[0]) if isinstance(network, nn.RNN) else 1.0


def _elman(network: nn.RNNBase, k: int, bound: float) -> _Layer:
    weights = from_torch(network, k)
    W, U, bias = (torch.from_numpy(table).double() for table in (weights.input, weights.hidden, weights.bias))
    norm, read = torch.linalg.matrix_norm(U, 2), torch.linalg.matrix_norm(W, 2)
    if network.nonlinearity == "tanh":
        most = torch.ones(1, dtype=torch.float64, device="cpu")
        reach = most.new_tensor(len(U)).sqrt()
    else:
        size = bound if k else bound * W.shape[1] ** 0.5
        reach = (
            (read * size + bias.norm()) / (1 - norm) if norm < 1 else bias.new_tensor(torch.inf, dtype=torch.float64)
        )
        most = reach
    summed = W.abs().sum(1) * bound + U.abs().sum(1) * most + _offsets(weights)
    rounding = (sum(W.shape) + 4) * summed.norm() + 4 * reach
    return _Layer(norm[None, None], read[None], reach[None], rounding[None], [("|U|_2", float(norm), 1.0)])


def _lstm(network: nn.RNNBase, k: int, bound: float) -> _Layer:
    w, u, drive, pre_error, _ = _norms(network, k, bound)
    top = {gate: value.sigmoid() for gate, value in drive.items()}
    rest = (-drive["f"]).sigmoid()
    most_c = top["i"] / rest

    def through(size: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Distances of h' and c' from one of h or x, whose matrices have the given norms."""
        c = most_c / 4 * size["f"] + size["i"] / 4 + top["i"] * size["g"]
        return top["o"] * c + most_c.tanh() / 4 * size["o"], c

    gain = torch.stack([torch.stack(through(u)), torch.stack([top["o"] * top["f"], top["f"]])], 1)
    limits = {"i": rest, "o": rest, "g": rest / 4, "f": rest**2}
    conditions = [(f"|U_{gate}|", float(u[gate]), float(limit)) for gate, limit in limits.items()]
    reach = torch.stack([torch.ones_like(most_c), most_c])
    return _Layer(gain, torch.stack(through(w)), reach, torch.stack(through(pre_error)) + 8 * (1 + reach), conditions)


def _gru(network: nn.RNNBase, k: int, bound: float) -> _Layer:
    w, u, drive, pre_error, inner = _norms(network, k, bound)
    top = {gate: value.sigmoid() for gate, value in drive.items()}
    steep = 2 * u["z"]
    rest = top["r"] * u["n"] + (u["n"] + inner) / 4 * u["r"]
    peak = ((1 + steep - rest) / (2 * steep).clamp(min=1e-300)).clamp(min=0)
    z = torch.stack([torch.zeros_like(peak), torch.minimum(peak, top["z"]), top["z"]])
    gain = (z + (1 - z) * (steep * z + rest)).max()
    read, rounding = (size["z"] / 2 + size["n"] + (u["n"] + inner) / 4 * size["r"] for size in (w, pre_error))
    conditions = [("2 z |U_z| + r |U_n| + (|U_n| + |b_hn|) |U_r| / 4", float(steep * top["z"] + rest), 1.0)]
    return _Layer(gain[None, None], read[None], torch.ones_like(read[None]), rounding[None] + 8, conditions)


def _norms(
    network: nn.RNNBase, k: int, bound: float
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Row-sum norms of W and U by gate, the greatest pre-activation of each gate, its rounding in units of roundoff,
    and |b'_n| of the last gate."""
    weights = from_torch(network, k)
    tables = (weights.input, weights.hidden, weights.bias, weights.hidden_bias)
    gates = GATES[weights.cell]
    W, U, bias, inner = (torch.from_numpy(table).double().chunk(len(gates)) for table in tables)
    offsets = _offsets(weights).chunk(len(gates))
    w, u, drive, pre_error = {}, {}, {}, {}
    for gate, w_rows, u_rows, b, offset in zip(gates, W, U, bias, offsets, strict=True):
        by_row = w_rows.abs().sum(1), u_rows.abs().sum(1)
        w[gate], u[gate] = by_row[0].max(), by_row[1].max()
        summed = by_row[0] * bound + by_row[1]
        drive[gate] = (summed + b).max().clamp(max=700.0)  # so that 1 - sigmoid is not 0
        pre_error[gate] = (w_rows.shape[1] + u_rows.shape[1] + 4) * (summed + offset).max()
    return w, u, drive, pre_error, inner[-1].abs().max()


def _offsets(weights: RecurrentWeights) -> Tensor:
    return (torch.from_numpy(weights.input_bias).abs() + torch.from_numpy(weights.hidden_bias).abs()).double()


def _projected(network: nn.RNNBase, k: int, bound: float, share: float) -> Tensor:
    """The recurrent matrix with every gate's rows within `share` of their limit."""
    weights = from_torch(network, k)
    U = torch.from_numpy(weights.hidden).double()
    if weights.cell == "elman":
        left, sizes, right = torch.linalg.svd(U)
        return left @ (sizes.clamp(max=share)[:, None] * right)
    if weights.cell == "gru":
        inner = float(_norms(network, k, bound)[-1])
        third = share / 3
        limits = {"r": 4 * third / (third + inner), "z": third / 2, "n": third}
    else:
        W, bias = (torch.from_numpy(table).double().chunk(4)[1] for table in (weights.input, weights.bias))
        rest = 1 - _forget_bound(float((W.abs().sum(1) * bound + bias).max()), share)
        limits = {"i": share * rest, "f": share * rest**2, "g": share * rest / 4, "o": share * rest}
    rows = zip(U.chunk(len(limits)), GATES[weights.cell], strict=True)
    return torch.cat([_within(part, limits[gate]) for part, gate in rows])


def _forget_bound(drive: float, share: float) -> float:
    """The f with f = sigmoid(drive + share (1 - f)^2), by bisection: the forget gates' bound after projection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        risen = float(torch.tensor(drive + share * (1 - middle) ** 2, dtype=torch.float64, device="cpu").sigmoid())
        low, high = (middle, high) if risen > middle else (low, middle)
    return high


def _within(rows: Tensor, limit: float) -> Tensor:
    """Each row's nearest point whose magnitudes sum to at most `limit` (Duchi et al. 2008, figure 1)."""
    ordered = rows.abs().sort(1, descending=True).values
    cut = (ordered.cumsum(1) - limit) / torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device="cpu")
    kept = (ordered > cut).sum(1, keepdim=True)
    threshold = cut.gather(1, (kept - 1).clamp(min=0)).clamp(min=0)
    return rows.sign() * (rows.abs() - threshold).relu()
