r"""minGRUs whose gate also weighs how well their candidates explain the input: the networks of `as_rnn`.

With log-densities that are linear in x, $c_s(x) = \log \pi(s) + \log p(x \mid s, z{=}1)$ and $e_s(x) = \log p(x \mid s,
z{=}0)$, the posterior of a gate is not linear in x:

$$\text{logit}\, P(z{=}1 \mid x) = \text{logit}\, \rho + \log \textstyle\sum_s e^{c_s(x)} -
\log \textstyle\sum_s \pi(s)\, e^{e_s(x)}.$$

`EvidenceGRU` adds the first sum to the gate of a minGRU; it serves if $e_s$ is the same for all s. `LogitGRU` has both
sums, and collects the evidence $e_s$ while it holds.
"""

import math
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...inference.numerics.scalars import check_choice
from .minimal import MinGRU


class EvidenceGRU(MinGRU):
    r"""One minGRU layer whose gate also depends on how well the fresh states explain x.

    $$g_t = \sigma(W_g x_t + b_g + \text{logsumexp}(W_v x_t + b_v))$$

    With the weights of `as_rnn` this is the exact $P(z_t{=}1 \mid x_t)$ of a copy model; see
    `samplehold.models.bridge.lowering`. Calls and parameters are as for `MinGRU`.

    Arguments:
        input_size: features of x.
        hidden_size: units, one for each state.
        candidate: "simplex", the state is a belief; "linear", the log of a belief up to a constant.
        device, dtype: of the parameters.

    Raises:
        TypeError: a size that is not an integer. From every call: as for `MinGRU`.
        ValueError: a size less than 1, an unknown candidate. From every call: as for `MinGRU`.

    See Also:
        `as_rnn`, which makes it; `LogitGRU`, where held steps have evidence too; docs/background/mingru_exact_bayes.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.EvidenceGRU(3, 2), torch.randn(5, 3)
    >>> layer(x)[0].sum(-1).allclose(torch.tensor(1.0))
    True
    >>> pre = torch.nn.functional.linear(x, layer.weight_l0, layer.bias_l0)  # one gate, two candidates
    >>> layer.activations(x).draw[:, 0].allclose((pre[:, 0] + pre[:, 1:].logsumexp(-1)).sigmoid())
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        candidate: str = "simplex",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_choice("candidate", candidate, ("simplex", "linear"))
        super().__init__(input_size, hidden_size, candidate=candidate, device=device, dtype=dtype)

    def product(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        gates, candidates = super().product(x, *args, **kwargs).split(self.hidden_size, -1)
        return torch.cat([gates + candidates.logsumexp(-1, keepdim=True), candidates], -1)

    def rows(self, layer: int = 0, reverse: bool = False) -> NoReturn:
        """Raise TypeError: the pre-activations are not linear in x.

        Arguments:
            layer, reverse: the number and the direction of a layer.
        """
        raise TypeError(f"layer: the gate of {type(self).__name__} is not linear in its input; give a MinGRU.")


class LogitGRU(EvidenceGRU):
    r"""One minGRU layer on logits that adds the evidence of its input while it holds.

    $$\begin{gathered}
    g_t = \sigma\big(\text{logsumexp}(W_v x_t + b_v) - \text{logsumexp}(W_h x_t + b_h)\big), \\[4pt]
    h_t = (1 - g_t)(h_{t-1} + W_e x_t + b_e) + g_t (W_v x_t + b_v)
    \end{gathered}$$

    This is a minGRU, $h_t = (1 - g_t) h_{t-1} + g_t v_t$, with the candidate $v = (W_v x + b_v) + \frac{1 - g}{g}
    (W_e x + b_e)$. With the weights of `as_rnn(model, space="logit")` the softmax of h is the per-step variational
    update whose gate depends on x alone, `filter_vmp(model, x, gate="input")`.

    Arguments:
        input_size: features of x.
        hidden_size: units K, one for each state.
        device, dtype: of the parameters.

    Parameters: `weight_l0` [3 K, input_size] and `bias_l0` [3 K]: the rows of h, v and e, K each. Calls are as for
    `MinGRU`.

    Raises:
        TypeError: a size that is not an integer. From every call: as for `MinGRU`.
        ValueError: a size less than 1. From every call: as for `MinGRU`.

    See Also:
        `as_rnn`, which makes it; `EvidenceGRU`, for silent held steps; `filter_vmp`, its update;
        docs/background/input_gate.md.

    >>> import torch, samplehold as sh
    >>> layer, x = sh.LogitGRU(3, 2), torch.randn(5, 3)
    >>> hold, fresh, held = torch.nn.functional.linear(x[0], layer.weight_l0, layer.bias_l0).split(2)
    >>> gate = (fresh.logsumexp(0) - hold.logsumexp(0)).sigmoid()
    >>> layer(x)[0][0].allclose((1 - gate) * held + gate * fresh)  # from a state of zeros
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, "linear", device, dtype)

    def product(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        hold, fresh, held = self._parts(x, *args, **kwargs)
        log_odds = fresh.logsumexp(-1, keepdim=True) - hold.logsumexp(-1, keepdim=True)
        # below this bound the gate is 0 to rounding, and 1 / gate would overflow
        log_odds = log_odds.clamp_min(-0.75 * math.log(torch.finfo(log_odds.dtype).max))
        return torch.cat([log_odds.expand_as(fresh), fresh + (-log_odds).exp() * held], -1)

    def first_redraw(self, x: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        _, fresh, held = self._parts(x, layer)
        return fresh - held, fresh

    def _parts(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return MinGRU.product(self, x, *args, **kwargs).split(self.hidden_size, -1)

    def _shape(self, layer: int) -> tuple[int, ...]:
        return 3 * self.hidden_size, self.layer_inputs(layer)
