r"""A minGRU over real vectors as copy chains with Gaussian emissions: exact candidates, and gates as a limit.

For unit d, with gate and candidate rows $w_g, w_d$ of the layer and a noise covariance that all units share,

$$x \mid z{=}0 \sim N(0, \Sigma), \qquad x \mid z{=}1, s \sim N(m_d + M_d s, \Sigma), \qquad s \in \{0, 1\},$$

so $\text{logit}\, P(s{=}1 \mid x, z{=}1)$ is linear in x with the slope $\Sigma^{-1} M_d$. With $u(x) = M_d^\top
\Sigma^{-1} (x - m_d) - \tfrac12 M_d^\top \Sigma^{-1} M_d$

$$\text{logit}\, P(z{=}1 \mid x) = \text{logit}\, \rho + m_d^\top \Sigma^{-1} x - \tfrac12 m_d^\top \Sigma^{-1} m_d
+ \log \textstyle\sum_s \pi(s)\, e^{s\, u(x)}.$$

**Exact**: the candidates, with $M = \Sigma W^\top$ and a $\pi$ that absorbs the bias. **A limit**: the gates. Their
slope equals the layer's with $m_d = \Sigma w_g$. $\rho$ absorbs the bias at points where x does not separate the states
(u = 0). The last term is not linear, and a linear gate omits it: `gap`. Its effect is smaller the better x determines
z.

**All units together**, $x \mid z{=}1, s \sim N(m + M s, \Sigma)$, have posteriors $\prod_d P(s_d \mid x, z{=}1)$,
because the noise is chosen so that $M^\top \Sigma^{-1} M = W \Sigma W^\top$ is a multiple of the identity: $\Sigma
\propto W^+ W^{+\top} + (I - W^+ W)$. This is possible for any W of full row rank, hence with D <= F.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...inference.numerics.records import Record
from ...switching.dynamics.copy import Copy
from ...switching.emissions.gated import Gated
from ...switching.emissions.multivariate_normal import MultivariateNormal
from ...switching.model import SwitchingSSM
from ..networks.evidence import EvidenceGRU
from ..networks.minimal import MinGRU
from .lifting import check_liftable, check_one_layer

LARGEST_SHIFT = 16.0  # of m' inv(Sigma) m; a greater one would put the prior of the gates outside the range of floats
SUREST = 30.0  # log-odds beyond which a float's probability is nearly certain
EXACT = ("candidates: P(s_t = 1 | x_t, z_t = 1)",)
LIMIT = ("gates: P(z_t = 1 | x_t), as x tells z ever more surely",)


@dataclass(frozen=True, repr=False)
class LiftedGaussian(Record):
    """A recurrent layer over real vectors, read as copy chains with Gaussian emissions that share their noise; results
    have units last.

    Attributes:
        models: one for each unit: Copy(2), and Gated normal emissions.
        covariance: `[F, F]`, Sigma.
        shift: `[F, D]`, m.
        separation: `[F, D]`, M.
        gate_weight: `[D, F]`, the weights of the layer's gates.
        gate_bias: `[D]`, their offsets.
        exact: what is exact, in words.
        limit: what is exact in a limit, in words.

    See Also:
        `as_ssm`, which makes it; `Lifted`, for tokens; `LiftedNetwork`, for any inputs.

    Example:
        >>> import torch, samplehold as sh
        >>> _ = torch.manual_seed(0)
        >>> layer, x = sh.MinGRU(2, 2), torch.tensor([[1.0, -0.5], [0.0, 2.0]])
        >>> candidates = sh.as_ssm(layer, inputs="gaussian").candidate(x)
        >>> torch.allclose(candidates.float(), layer.activations(x).value.sigmoid())
        True
    """

    models: tuple[SwitchingSSM, ...]
    covariance: Float[Tensor, "F F"]
    shift: Float[Tensor, "F D"]
    separation: Float[Tensor, "F D"]
    gate_weight: Float[Tensor, "D F"]
    gate_bias: Float[Tensor, "D"]
    exact: tuple[str, ...] = EXACT
    limit: tuple[str, ...] = LIMIT

    def candidate(self, x: Any) -> Float[Tensor, "*b T D"]:
        """P(s_t = 1 | x_t, z_t = 1), which is the layer's candidate: sigmoid(v), or (1 + v) / 2 for tanh candidates.

        Arguments:
            x: the inputs of the layer, `[*b, T, I]`.
        """
        rows = self._rows(x)
        return torch.stack([_drawn(model, rows).softmax(-1)[..., 1] for model in self.models], -1)

    def gate_log_odds(self, x: Any) -> Float[Tensor, "*b T D"]:
        """logit P(z_t = 1 | x_t) in the model.

        Arguments:
            x: the inputs of the layer, `[*b, T, I]`.
        """
        log_odds, rows = [], self._rows(x)
        for model in self.models:
            values = model.values
            held = model.emission.log_likelihood(rows, values).held[..., 0]
            log_odds.append(torch.logit(values["redraw_prob"]) + _drawn(model, rows).logsumexp(-1) - held)
        return torch.stack(log_odds, -1)

    def gap(self, x: Any) -> Float[Tensor, "*b T D"]:
        """The part of the log-odds that the layer's gates omit: `gate_log_odds(x)` minus the layer's linear ones.

        Arguments:
            x: the inputs of the layer, `[*b, T, I]`.
        """
        series = self.models[0].read(x)
        rows = self._rows(series)
        return self.gate_log_odds(series) - (rows @ self.gate_weight.T + self.gate_bias)

    def _rows(self, x: Any) -> Float[Tensor, "*b T F"]:
        return self.models[0].read(x).observations.to(self.covariance)


def lift_gaussian(layer: nn.Module) -> LiftedGaussian:
    """See `samplehold.models.bridge.correspondence.as_ssm`; in float64, for any dtype of the layer."""
    layer = check_one_layer(check_liftable(layer))
    if not isinstance(layer, MinGRU):
        raise ValueError("layer: a MinLSTM's gate is a ratio, whose log-odds are not linear in x; give a MinGRU.")
    if isinstance(layer, EvidenceGRU):
        raise ValueError(f"layer: the gate of {type(layer).__name__} is not linear in x; give a MinGRU.")
    if layer.candidate not in ("linear", "tanh"):
        raise ValueError(
            f'layer: has candidate={layer.candidate!r}; Gaussian inputs need log-odds that are linear in x: "linear" '
            '(the candidate is the log-odds of its state) or "tanh" (twice its argument is).'
        )
    units, features = layer.hidden_size, layer.input_size
    weight = layer.rows().detach()
    bias = layer.product(weight.new_zeros(features)).detach().double()
    gates, rows = weight.double().split(units)
    gate_bias, row_bias = bias.split(units)
    if layer.candidate == "tanh":
        rows, row_bias = 2 * rows, 2 * row_bias
    if units > features or int(torch.linalg.matrix_rank(rows)) < units:
        raise ValueError(
            f"layer: {units} units over {features} features have candidates of rank "
            f"{int(torch.linalg.matrix_rank(rows))}; give at most as many units as features, with independent rows."
        )
    inverse = torch.linalg.pinv(rows)
    noise = inverse @ inverse.T + torch.eye(features).to(rows) - inverse @ rows
    widest = float((gates @ noise * gates).sum(-1).max())
    noise = 0.5 * (noise + noise.T) * min(1.0, LARGEST_SHIFT / max(widest, 1e-300))
    shift, separation = noise @ gates.T, noise @ rows.T
    half = 0.5 * (rows.T * separation).sum(0)
    log_odds_redraw = gate_bias + 0.5 * (gates.T * shift).sum(0)
    log_odds_state = row_bias + half + (rows.T * shift).sum(0)
    for name, log_odds in (("gate", log_odds_redraw), ("candidate", log_odds_state)):
        if bool((log_odds.abs() > SUREST).any()):
            raise ValueError(
                f"layer: the {name} bias of unit {int(log_odds.abs().argmax())} is so large that x makes no difference "
                f"(log-odds {float(log_odds.abs().max()):.3g}); center the inputs, or give a smaller bias."
            )
    model = SwitchingSSM(Copy(2), Gated(MultivariateNormal(features), MultivariateNormal(features)))
    models = tuple(
        model.with_values(
            redraw_prob=log_odds_redraw[d].sigmoid(),
            state_probs=torch.stack([-log_odds_state[d], log_odds_state[d]]).sigmoid(),
            loc=torch.stack([shift[:, d], shift[:, d] + separation[:, d]]),
            covariance=noise.expand(2, -1, -1),
            background_loc=torch.zeros(1, features).to(noise),
            background_covariance=noise[None],
        )
        for d in range(units)
    )
    return LiftedGaussian(models, noise, shift, separation, gates, gate_bias)


def _drawn(model: SwitchingSSM, rows: Float[Tensor, "*b T F"]) -> Float[Tensor, "*b T 2"]:
    """log pi(s) + log p(x_t | s, z_t = 1)."""
    drawn = model.emission.log_likelihood(rows, model.values).redrawn
    return model.values["state_probs"].log() + drawn
