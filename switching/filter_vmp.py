r"""`filter_vmp`: the filter of a copy model by message passing, one step at a time, and its relation to a minGRU.

With $j_1 = \log \pi(s) + \log p(x_t \mid s, 1)$ and $j_0 = \log Q_{t-1}(s) + \log p(x_t \mid s, 0)$

$$\log Q(s) = q\, j_1(s) + (1-q)\, j_0(s) + \text{const}, \qquad
\text{logit}\, q = \text{logit}\, \rho + E_{Q(s)}[j_1(s) - j_0(s)].$$

If held evidence is free of s, as with a `Gated` emission, the first line is the minGRU step on the logits,
$h_t = (1-q)\, h_{t-1} + q\, v_t$ with $v_t = \log \pi(s) + \log p(x_t \mid s, 1)$ and $Q(s_t) = \text{softmax}(h_t)$.
The second line makes q depend on the state; a minGRU reads it from x alone, which is `gate="input"`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from ..inference.message_passing.stepwise.op import VMPFiltered, filter_steps
from ..inference.numerics.arrays import floating
from ..inference.numerics.checks import check_call, naming
from ..inference.numerics.scalars import check_choice, check_kind
from .data.series import Given, Series
from .emissions.driven import rows_read
from .model import SwitchingSSM

__all__ = ["VMPFiltered", "filter_vmp"]


def filter_vmp(
    model: SwitchingSSM,
    x: Any,
    gate: str | Tensor | Callable[[Tensor], Tensor] = "posterior",
    sweeps: int = 4,
    form: str = "mean_field",
    **given: Unpack[Given],
) -> VMPFiltered:
    r"""Filter a copy model approximately, by message passing at each step: Q(s_t) and Q(z_t = 1), given the
    observations so far.

    Arguments:
        model: a model with copy dynamics and parameter values.
        x, lengths, inputs, dt: sequences as in `SwitchingSSM`; NaN is missing.
        gate: "posterior": update the gate and the state in turn.
            "input": the gate is a function of x_t alone, the posterior
            $P(z_t{=}1 \mid x_t) = \rho f_t / (\rho f_t + (1-\rho) h_t)$ with $f_t = \sum_s \pi(s) p(x_t \mid s, 1)$,
            $h_t = \sum_s \pi(s) p(x_t \mid s, 0)$, with the state distributed as in the stationary chain. This is the
            exact posterior of the gate if held steps emit alike in all states (`Gated`).
            A tensor [*b, T] of probabilities, or a function from the observations [*b, T, F] to such a tensor: this
            gate.
            The first step always redraws.
        sweeps: updates of gate and state at each step, if the gate is inferred.
        form: "mean_field"; or "conditional", which treats gate and state as independent before the observation (see
            `samplehold.inference.message_passing.stepwise.op` for its equations and accuracy).

    Raises:
        TypeError: something else than a `SwitchingSSM`.
        ValueError: a model without values or with other dynamics; a gate that is none of these, not of shape [*b, T],
            or not in [0, 1]; an observation that is impossible.

    Winn & Bishop 2005, *Variational message passing*.

    See Also:
        `SwitchingSSM.filter`, the exact filter; `studies.input_gate_bound`, on the error of `gate="input"`;
        docs/background/input_gate.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [5.0]], scale=[[1.0], [1.0]])
        >>> x = [0.2, -0.1, 5.3, 4.9]
        >>> error = (filter_vmp(model, x).state - model.filter(x).state).abs().max()
        >>> bool(error < 0.01)
        True
    """
    check_copies(model)
    series = model.read(x, **given)
    tables = StepTables.of(model, series)
    if isinstance(gate, str):
        check_choice("gate", gate, ("posterior", "input"))
        opened = tables.input_gate() if gate == "input" else None
    else:
        opened = _read_gate(gate, series.observations)
    with naming("x"):
        return filter_steps(*tables, None, opened, series.lengths, sweeps, form)


class StepTables(NamedTuple):
    """The tables of a copy model's steps."""

    log_redrawn: Float[Tensor, "*b T K"]  # log p(x_t | s, z_t = 1)
    log_held: Float[Tensor, "*b T H"]  # log p(x_t | s, z_t = 0); one column if it is the same for all states
    log_state: Float[Tensor, "K"]  # log pi(s)
    log_odds: Float[Tensor, "*b T"]  # logit rho_t

    @staticmethod
    def of(model: SwitchingSSM, series: Series) -> "StepTables":
        """The tables of a model with copy dynamics."""
        series.check_plain("this filter")
        observed, values = series.observations, model.values_like(series.observations)
        redrawn, held = model.emission.log_likelihood(rows_read(model.emission, series), values)
        log_rho, log_hold = model.dynamics.log_gate(values, series.drive, len(series.batch_shape))
        return StepTables(redrawn, held, values["state_probs"].log(), (log_rho - log_hold).expand(observed.shape[:-1]))

    def input_gate(self) -> Float[Tensor, "*b T"]:
        """P(z_t = 1 | x_t), with the state distributed as in the stationary chain."""
        drawn = (self.log_state + self.log_redrawn).logsumexp(-1)
        kept = (self.log_state + self.log_held.expand_as(self.log_redrawn)).logsumexp(-1)
        return torch.sigmoid(self.log_odds + drawn - kept)


def check_copies(model: object) -> SwitchingSSM:
    """Raise TypeError or ValueError if this is not a `SwitchingSSM` of copy dynamics."""
    known = check_kind("model", model, SwitchingSSM, "a SwitchingSSM")
    if not known.dynamics.holds:
        raise ValueError(f"model: has dynamics {known.dynamics}, expected Copy(n_states).")
    return known


def _read_gate(gate: Tensor | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    opened = floating(check_call("gate", gate, x) if callable(gate) else gate, "gate").to(x)
    if opened.shape != x.shape[:-1]:
        raise ValueError(f"gate: got shape {list(opened.shape)}, expected {list(x.shape[:-1])}: a probability a step.")
    return opened
