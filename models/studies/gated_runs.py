r"""One gated layer's run over a series, and bounds on its errors in floats, or on inputs with errors.

A pre-activation $\sum_i W_i x_i + b$ in floats of unit roundoff u has an error of at most $(n + 4)\, u\, (\sum_i |W_i|
|x_i| + |b|)$, in any order of summation (Higham 2002, *Accuracy and stability of numerical algorithms*, section 3.1).
Here n is the number of inputs, and 2 of the 4 are for a ratio of gates. Then gates and candidates are in intervals, and

$$e' \le \max_{\tilde g} \; (1 - \tilde g)\, e + |\tilde g - g|\, |v - h| + \tilde g \max |\tilde v - v| + 8 u\, size$$

The right side is convex in $\tilde g$, so it is greatest at an end. The last term is for the activations and the
update; for a simplex, which is divided by a sum, the units of a block add to the 8.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...inference.scans.gated.op import PARTS, Activated, activate
from ...inference.scans.linear.op import linear_scan
from ..networks.qrnn import QRNN


def roundoff(layer: nn.Module) -> float:
    """The unit roundoff of the floats in which a layer computes."""
    return torch.finfo(next(layer.parameters()).dtype).eps / 2


@dataclass(frozen=True)
class GatedRun:
    """What the steps of one layer are made of, [*b, T, ...], in the run from the first step on."""

    kind: tuple[str, str, int | None]  # gate, candidate, block
    weight: Tensor  # [parts * D, inputs]
    pre: Tensor
    pre_error: Tensor  # of pre, by rounding
    shown_error: Tensor | float  # of an output gate
    now: Activated
    before: Tensor
    states: Tensor
    unit: float  # roundoff

    @staticmethod
    def of(layer: Any, k: int, x: Tensor, first: Any, unit: float) -> "GatedRun":
        """The run of layer k, which computes in double precision, from its inputs and the state before them."""
        if isinstance(layer, QRNN):
            parameters: Any = layer
            weight, kind = parameters.weight_l0.flatten(1), (layer.gate, "tanh", None)
            bias = weight.new_zeros(len(weight)) if parameters.bias_l0 is None else parameters.bias_l0
            x = torch.cat([first.inputs[0], x], -2).unfold(-2, layer.window, 1).flatten(-2)
            first = first.cell[0]
        else:
            weight = layer.rows(k)
            kind = (layer.gate, layer.candidate, layer.block if layer.candidate == "simplex" else None)
            bias = layer.product(torch.zeros_like(x[..., :1, :]), k)
        pre = x @ weight.mT + bias
        pre_error = (weight.shape[1] + 4) * unit * (x.abs() @ weight.abs().mT + bias.abs())
        cell = PARTS[kind[0]] * first.shape[-1]  # rows before those of an output gate
        shown_error = pre_error[..., cell:] / 4 if pre.shape[-1] > cell else 0.0
        weight, pre, pre_error = weight[:cell], pre[..., :cell], pre_error[..., :cell]
        now = activate(pre, first.shape[-1], *kind)
        states = linear_scan(now.hold, now.draw * now.value, first)
        before = torch.cat([first[..., None, :], states[..., :-1, :]], -2)
        return GatedRun(kind, weight, pre, pre_error, shown_error, now, before, states, unit)

    def rounding(self, below: Tensor | None = None, spread: Tensor | float = 0.0) -> Tensor:
        """Errors in floats of the outputs of this run, or of one with states within `spread` of it, [*b, T, D].

        `below` are the errors of the inputs. For gates and candidates that are free of each other, too.
        """
        lowest, highest = self._extremes(self.pre_error + self._carried(below), 0)
        hold, draw, value = (
            torch.maximum(getattr(lowest, part).abs(), getattr(highest, part).abs())
            for part in ("hold", "draw", "value")
        )
        size = self.before.abs() + spread
        local = (highest.hold - lowest.hold).abs() * size + (highest.draw - lowest.draw).abs() * value
        local = local + draw * (highest.value - lowest.value) + self._slack * (hold * size + draw * value)
        size = self.states.abs() + spread
        return linear_scan(hold * (1 + self._slack), local) + (self.shown_error + self._slack) * size

    def advance(self, errors: Tensor, below: Tensor | None, begin: int) -> Tensor:
        """Errors in floats after steps s + begin of the runs that began at steps s = 0, 1, .., from those before it."""
        draw, value = (part[..., begin:, :] for part in (self.now.draw, self.now.value))
        lowest, highest = self._extremes(self.pre_error[..., begin:, :] + self._carried(below), begin)
        astray = torch.maximum(highest.value - value, value - lowest.value)
        apart = (value - self.before[..., begin:, :]).abs()
        size = self.before[..., begin:, :].abs() + errors

        def worst(gate: Activated) -> Tensor:
            moved = gate.hold * errors + (gate.draw - draw).abs() * apart + gate.draw * astray
            return moved + self._slack * (gate.hold * size + gate.draw * (value.abs() + astray))

        return torch.maximum(worst(lowest), worst(highest))

    @property
    def _slack(self) -> float:
        return (8 + (self.kind[2] or 0)) * self.unit

    def _carried(self, below: Tensor | None) -> Tensor | float:
        """How far pre-activations are off where inputs are."""
        return 0.0 if below is None else (1 + (self.weight.shape[1] + 4) * self.unit) * (below @ self.weight.abs().mT)

    def _extremes(self, radius: Tensor, begin: int) -> tuple[Activated, Activated]:
        """Least and greatest draws, and least and greatest candidates, of pre-activations within a radius."""
        pre, (gate, candidate, _) = self.pre[..., begin:, :], self.kind
        units = self.states.shape[-1]
        turned = radius
        if gate == "ratio":  # a forget gate lowers the draw
            turned = torch.cat([-radius[..., :units], radius[..., units:]], -1)
        lowest, highest = (activate(pre + sign * turned, units, *self.kind) for sign in (-1, 1))
        if candidate != "simplex":
            return lowest, highest
        least, most = ((pre + sign * radius)[..., -units:] for sign in (-1, 1))
        block = (-1, self.kind[2] or units)
        shift = most.unflatten(-1, block).amax(-1, keepdim=True)
        least, most = ((c.unflatten(-1, block) - shift).exp() for c in (least, most))

        def share(part: Tensor, others: Tensor) -> Tensor:
            return (part / (part + (others.sum(-1, keepdim=True) - others).clamp(min=0))).flatten(-2)

        return replace(lowest, value=share(least, most)), replace(highest, value=share(most, least))
