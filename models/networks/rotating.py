r"""A minGRU whose held states turn: pairs of units are complex numbers, and a hold rotates each by its angle.

$$h_t = (1 - g_t)\, R(\theta)\, h_{t-1} + g_t v_t, \qquad
R(\theta) = \begin{pmatrix} \cos\theta & -\sin\theta \\ \sin\theta & \cos\theta \end{pmatrix}$$

The two units of a pair share the gate $g_t = \sigma(W_g x_t + b_g)$ and the angle, which is learned and reads no input.

**As one scan.** In coordinates that turn with the state, $u_t = R(-t\theta)\, h_t$, this is a minGRU with turned
candidates, $u_t = (1 - g_t)\, u_{t-1} + g_t R(-t\theta)\, v_t$. So it runs on the same scan of real numbers.

**Its model.** In these coordinates `as_ssm` of a minGRU holds for any weights: $h_t = E[R(\theta)^{t - \tau_t}
v_{\tau_t}]$, where $\tau_t$ is the step of the last draw, $P(\tau_t = \tau) = g_\tau \prod_{k > \tau} (1 - g_k)$. Draws
are as independent of the past as in a minGRU, but a held value moves.

**A cycle, exactly.** Let a state on a cycle of K be drawn afresh or advance by one,

$$s_t = s_{t-1} + 1 \bmod K \text{ if } z_t = 0, \qquad s_t \sim \pi \text{ if } z_t = 1, \qquad
P(z_t = 1) = \rho, \qquad A = (1 - \rho)\, \text{shift} + \rho\, 1 \pi^\top,$$

and let steps that are not redrawn emit x from a background that ignores the state. Then $q_t = P(z_t = 1 \mid
x_{1..t}) = P(z_t = 1 \mid x_t)$, and with $r_t(s) = P(s_t = s \mid x_t, z_t = 1)$ the filter is $a_t(s) = (1 - q_t)\,
a_{t-1}(s - 1) + q_t r_t(s)$. Its Fourier coefficient $\hat a_t(k) = \sum_s a_t(s)\, e^{2 \pi i k s / K}$ follows

$$\hat a_t(k) = (1 - q_t)\, e^{2 \pi i k / K}\, \hat a_{t-1}(k) + q_t\, \hat r_t(k),$$

since a shift by one multiplies it by $e^{2 \pi i k / K}$. This is the layer with the angles $\theta_k = 2 \pi k / K$,
the gate q and the candidates $\hat r(k)$. The coefficients $k = 1, \dots, \lfloor K/2 \rfloor$ determine the belief,
because $\hat a(0) = 1$ and $\hat a(K - k)$ is the conjugate of $\hat a(k)$.

A minGRU cannot do this. While its input stays the same, each unit moves monotonically to its candidate, and a linear
readout of D units is a sum of D + 1 exponentials with real positive rates. It changes its sign at most D times; that of
a cycle does so without end.

Orvieto et al. 2023, *Resurrecting recurrent neural networks for long sequences*, arXiv 2303.06349 (complex diagonal
recurrences without gates); Grazzi et al. 2024, *Unlocking state-tracking in linear RNNs through negative eigenvalues*,
arXiv 2411.12537.
"""

import math

import torch
from torch import Tensor, nn

from ...inference.numerics.checks import check_dtype
from ...inference.scans.gated.op import gated_scan
from .inputs import Observed, last, promoted, widened
from .minimal import Minimal
from .recurrent import Reading, name_of


class RotatingGRU(Minimal):
    r"""minGRU with rotating holds: $h_t = (1 - g_t)\, R(\theta)\, h_{t-1} + g_t v_t$, $g_t = \sigma(W_g x_t + b_g)$.

    Arguments:
        hidden_size: units D of a layer, an even number; the units 2 j and 2 j + 1 are one pair.
        input_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as of `MinGRU`.

    Parameters: `weight_l<k>` [D / 2 + D, inputs] and `bias_l<k>` [D / 2 + D], the gates of the pairs first, then the
    candidates; `angle_l<k>` [D / 2], radians a step. Angles start uniform in [0, pi]. With angles of 0 the layer is a
    minGRU. Names of backward layers end in `_reverse`. States are [num_layers, *batch, D], zeros at the start.

    `samplehold.models.networks.rotating` says which latent variable it holds, and for which model it is exact.

    Raises:
        TypeError, ValueError: as for `MinGRU`; an odd number of units.

    Orvieto et al. 2023, *Resurrecting recurrent neural networks for long sequences*, arXiv 2303.06349, and Grazzi et
    al. 2024, *Unlocking state-tracking in linear RNNs through negative eigenvalues*, arXiv 2411.12537, are related.

    See Also:
        `MinGRU`, whose held states do not turn; docs/replications/input_driven.md, with results.

    >>> import math, torch, samplehold as sh
    >>> layer = sh.RotatingGRU(input_size=1, hidden_size=2).requires_grad_(False)
    >>> _ = layer.weight_l0.zero_(), layer.bias_l0.copy_(torch.tensor([-100.0, 0, 0]))  # always hold
    >>> _ = layer.angle_l0.fill_(math.pi / 2)  # a quarter of a turn a step
    >>> layer(torch.zeros(4, 1), torch.tensor([[1.0, 0.0]]))[0].round().abs()  # the hand of a clock
    tensor([[0., 1.],
            [1., 0.],
            [0., 1.],
            [1., 0.]])
    """

    gate = "redraw"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device=device, dtype=dtype
        )

    def reset_parameters(self) -> None:
        """Draw weights as a minGRU's, and angles uniformly within [0, pi]."""
        super().reset_parameters()
        for layer, reverse in self._each():
            nn.init.uniform_(getattr(self, name_of("angle", layer, reverse)), 0.0, math.pi)

    def reading(self, x: Tensor, layer: int = 0, reverse: bool = False) -> Reading:
        angle = self._angle(layer, reverse)

        def after(seen: Tensor, state: tuple[Tensor]) -> tuple[Tensor]:
            return self._after(seen, (turned(widened(state[0]), angle).to(state[0].dtype),))

        return Reading(self.product(x, layer, reverse), after)

    def extra_repr(self) -> str:
        return super().extra_repr().removesuffix(", candidate='linear'")

    def _make_parameters(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size: got {self.hidden_size}, expected an even number: units come in pairs.")
        check_dtype("dtype", dtype)
        for layer, reverse in self._each():
            angle = nn.Parameter(torch.empty(self._coins, device=device, dtype=dtype))
            self.register_parameter(name_of("angle", layer, reverse), angle)
        super()._make_parameters(device, dtype)

    def _sweep(self, rows: Tensor, start: Tensor, some: Observed, layer: int, reverse: bool) -> tuple[Tensor, Tensor]:
        pre, start = promoted(self.product(rows, layer, reverse), start)
        gates, values = widened(pre).split(self.hidden_size, -1)
        steps = torch.arange(1, pre.shape[-2] + 1, device=pre.device, dtype=torch.float64)
        phase = steps.unsqueeze(-1) * self._angle(layer, reverse).double()
        unturned = torch.cat([gates, turned(values, -phase)], -1)
        states = turned(gated_scan(unturned, widened(start)), phase).to(start.dtype)
        return states, last(states, some).squeeze(-2) if states.shape[-2] else start

    def _angle(self, layer: int, reverse: bool) -> Tensor:
        name = name_of("angle", layer, reverse)
        angle = getattr(self, name)
        if angle.shape != (self._coins,):
            raise ValueError(f"{name}: got shape {list(angle.shape)}, expected [{self._coins}], one for each pair.")
        return angle

    @property
    def _coins(self) -> int:
        return self.hidden_size // 2

    def _spread(self, rows: Tensor) -> Tensor:
        gates, candidates = rows.split([self._coins, self.hidden_size])
        return torch.cat([gates.repeat_interleave(2, 0), candidates])


def turned(rows: Tensor, angle: Tensor) -> Tensor:
    """`rows` [*b, D] with each pair rotated by its angle [*b, D / 2] in radians; batch axes broadcast."""
    x, y = rows.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
    return torch.stack([cos * x - sin * y, sin * x + cos * y], -1).flatten(-2)
