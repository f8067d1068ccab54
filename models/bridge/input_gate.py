r"""Updates whose gate reads the input alone, beside the exact filter of a copy model, and a bound on their distance.

The exact filter of $x \mid s, z$ with $A_t(s) \propto a_{t-1}(s)\, p(x_t \mid s, 0)$ and $r_t(s) \propto \pi(s)\,
p(x_t \mid s, 1)$ is

$$a_t = (1 - q^*_t)\, A_t + q^*_t\, r_t, \qquad q^*_t = P(z_t{=}1 \mid x_{1:t}).$$

A minGRU has a gate $q_t = P(z_t{=}1 \mid x_t)$ in place of $q^*_t$. With $v_t = \log \pi + \log p(x_t \mid s, 1)$,
whose softmax is $r_t$, and up to constants,

| update | step |
|---|---|
| on probabilities | $Q_t = (1 - q_t)\, Q_{t-1} + q_t\, r_t$ |
| on logits | $\log Q_t = (1 - q_t) \log Q_{t-1} + q_t v_t$ |
| on logits, with held evidence | $\log Q_t = (1 - q_t) (\log Q_{t-1} + \log p(x_t \mid s, 0)) + q_t v_t$ |

If held steps do not depend on s, then $q^*_t = q_t$ and $A_t = a_{t-1}$, and the first line is exact. If they do, the
first two lines leave out $p(x_t \mid s, 0)$ at every held step, however well x determines z. The third line is exact if
$q_t$ is 0 or 1. In between it replaces a mixture of $A_t$ and $r_t$ by a geometric mean.

**A bound for the third line.** Let $d(a, b) = \max_s \log \frac{a(s)}{b(s)} - \min_s \log \frac{a(s)}{b(s)}$, and
$\Phi_t$ its step. The step is linear in logits, so $d(\Phi_t(a), \Phi_t(b)) = (1 - q_t)\, d(a, b)$, and with the error
of one step from the exact belief, $\delta_t = d(a_t, \Phi_t(a_{t-1}))$,

$$d(a_t, Q_t) \le D_t = (1 - q_t) D_{t-1} + \delta_t, \qquad
\tfrac12 \textstyle\sum_s |a_t(s) - Q_t(s)| \le \tanh(D_t / 4).$$

So errors are forgotten at the rate of the gates. For one step, let $u = \log A_t - \log r_t$ and $g_t(s) = P(z_t{=}1
\mid s_t{=}s, x_{1:t})$. Up to a constant $\log a_t - \log \Phi_t(a_{t-1}) = \log((1 - q^*_t) e^u + q^*_t) - (1 - q_t)
u$, whose derivative with respect to u is $q_t - g_t$. Therefore

$$\delta_t \;\le\; \big(\max_s u - \min_s u\big) \max_s |g_t(s) - q_t| \;\le\;
\big(\max_s u - \min_s u\big) \, (e^{c_t} - 1)\, \frac{H(z_t \mid x_t)}{4 \log 2},$$

with $c_t = \max_s |\text{logit}\, g_t(s) - \text{logit}\, q_t|$ and $H(z_t \mid x_t)$ the entropy of $q_t$ in nats,
since $|\sigma(l + c) - \sigma(l)| \le (e^{|c|} - 1)\, \sigma(l)\, \sigma(-l)$ and $q (1 - q) \le H / (4 \log 2)$. The
state may be ignored in the update of z if knowing s changes the gate little: $g_t(s) \approx q_t$ for all s. As $H(z
\mid x) \to 0$, the bound tends to 0 wherever $c_t$ stays bounded.
"""

from dataclasses import dataclass
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.checks import naming
from ...inference.numerics.logs import log_sigmoid
from ...inference.numerics.records import Record
from ...inference.scans.linear.op import linear_scan
from ...switching.data.series import Given
from ...switching.filter_vmp import StepTables, check_copies
from ...switching.model import SwitchingSSM
from .network_states import place_of

PROBABILITIES, LOGITS, HELD_EVIDENCE = "probabilities", "logits", "logits, held evidence"


def input_gate_updates(model: SwitchingSSM, x: Any, **given: Unpack[Given]) -> dict[str, Float[Tensor, "*b T K"]]:
    """Beliefs of three updates, by name. Their gates depend on x alone; the first step always redraws.

    Arguments:
        model: a model with copy dynamics and parameter values.
        x, lengths, inputs, dt: sequences as in `SwitchingSSM`. After the end of a sequence beliefs have no meaning.

    Raises:
        TypeError, ValueError: as `filter_vmp`.

    See Also:
        `input_gate_bound`, on the error of the third; `filter_vmp`, the third by itself; docs/background/input_gate.md,
        with results.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1], [1]], scale=[[1], [1]])
        >>> list(sh.studies.input_gate_updates(model, [0.3, -1.0, 2.0]))
        ['probabilities', 'logits', 'logits, held evidence']
    """
    check_copies(model)
    series = model.read(x, **given)
    tables = StepTables.of(model, series)
    gate, fresh, held = _parts(tables)
    hold = (1 - gate).expand_as(fresh)
    return {
        PROBABILITIES: linear_scan(hold, gate * fresh.softmax(-1)),
        LOGITS: linear_scan(hold, gate * fresh).softmax(-1),
        HELD_EVIDENCE: linear_scan(hold, gate * fresh + hold * held).softmax(-1),
    }


@dataclass(frozen=True, repr=False)
class InputGateBound(Record):
    """A bound on the distance of the update on logits with held evidence from the exact filter.

    Attributes:
        gate: `[*b, T]`, q_t = P(z_t = 1 | x_t); 1 at the first step.
        step: `[*b, T]`, delta_t, the error of one step from the exact belief.
        of_step: `[*b, T]`, (max u - min u) max_s |g_t(s) - q_t|, at least delta_t.
        distance: `[*b, T]`, D_t.
        total_variation: `[*b, T]`, tanh(D_t / 4), at least the total variation.

    See Also:
        `input_gate_bound`, which makes it; docs/background/input_gate.md, with results.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1], [1]], scale=[[1], [1]])
        >>> bound = sh.studies.input_gate_bound(model, [0.3, -1.0, 2.0])
        >>> bool((bound.step <= bound.of_step + 1e-12).all())
        True
        >>> float(bound.total_variation[0])  # the first step is exact
        0.0
    """

    gate: Float[Tensor, "*b T"]
    step: Float[Tensor, "*b T"]
    of_step: Float[Tensor, "*b T"]
    distance: Float[Tensor, "*b T"]
    total_variation: Float[Tensor, "*b T"]


def input_gate_bound(model: SwitchingSSM, x: Any, **given: Unpack[Given]) -> InputGateBound:
    """The bound on the distance of a minGRU on logits, `as_rnn(model, space="logit")`, from the exact filter.

    It has no meaning after the end of a sequence.

    Arguments:
        model, x, lengths, inputs, dt: as in `input_gate_updates`.

    Raises:
        TypeError, ValueError: as `filter_vmp`; a state that is impossible at some step.

    See Also:
        `filter_vmp`, this update; `input_gate_updates`, all three; docs/background/input_gate.md, with results.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.2, state_probs=[0.5, 0.5], loc=[[-1], [1]], scale=[[1], [1]])
        >>> x = [0.3, -1.0, 2.0, 1.5]
        >>> error = (model.filter(x).state - sh.filter_vmp(model, x, gate="input").state).abs().sum(-1) / 2
        >>> bool((error <= sh.studies.input_gate_bound(model, x).total_variation + 1e-12).all())
        True
    """
    check_copies(model)
    series = model.read(x, **given)
    dtype, series = series.like.dtype, series.double()
    tables = StepTables.of(model, series)
    gate, fresh, held = _parts(tables)
    impossible = ~(fresh.isfinite() & held.isfinite()).all(-1) & series.inside
    if bool(impossible.any()):
        raise ValueError(
            f"x: some state is impossible at {place_of(impossible)}, so log-odds have no bound; give every "
            "observation a small probability in every state."
        )
    with naming("x"):
        log_belief = _log_beliefs(tables, model.chain(series).filter().log_increment)
    before = torch.cat([fresh[..., :1, :], log_belief[..., :-1, :]], -2)
    kept = before + held
    step = _spread(log_belief - (1 - gate) * kept - gate * fresh)
    by_state = torch.sigmoid(tables.log_odds.unsqueeze(-1) + fresh - kept)  # g_t(s)
    by_state = torch.cat([torch.ones_like(by_state[..., :1, :]), by_state[..., 1:, :]], -2)
    of_step = _spread(kept - fresh) * (by_state - gate).abs().amax(-1)
    distance = linear_scan(1 - gate, step.unsqueeze(-1)).squeeze(-1)
    bound = gate.squeeze(-1), step, of_step, distance, (distance / 4).tanh()
    return InputGateBound(*(table.to(dtype) for table in bound))


def _log_beliefs(tables: StepTables, log_increment: Tensor) -> Float[Tensor, "*b T K"]:
    r"""log P(s_t | x_1..t), also where the probability underflows.

    With the increments $c_t$ of the evidence the filter is linear, $a_t = \big((1 - \rho_t)\, p(x_t \mid s, 0)\,
    a_{t-1} + \rho_t\, \pi(s)\, p(x_t \mid s, 1)\big) / c_t$: a sum over the steps of the last redraw.
    """
    increments, log_odds = log_increment.unsqueeze(-1), tables.log_odds.unsqueeze(-1)
    drawn = tables.log_state + tables.log_redrawn - increments
    drawn = torch.cat([drawn[..., :1, :], (drawn + log_sigmoid(log_odds))[..., 1:, :]], -2)
    hold = (log_sigmoid(-log_odds) + tables.log_held - increments).expand_as(drawn)
    held_since = torch.cat([torch.zeros_like(hold[..., :1, :]), hold[..., 1:, :]], -2).cumsum(-2)
    return held_since + (drawn - held_since).logcumsumexp(-2)


def _parts(tables: StepTables) -> tuple[Tensor, Tensor, Tensor]:
    """The gate [*b, T, 1], 1 at the first step, and the logits of a fresh state and of held evidence, [*b, T, K]."""
    gate = tables.input_gate().unsqueeze(-1)
    gate = torch.cat([torch.ones_like(gate[..., :1, :]), gate[..., 1:, :]], -2)
    fresh = tables.log_state + tables.log_redrawn
    return gate, fresh, tables.log_held.expand_as(fresh)


def _spread(logits: Tensor) -> Tensor:
    return logits.amax(-1) - logits.amin(-1)
