"""Links of generalised linear models: how a parameter depends on a linear predictor, and the slopes that fits need.

A link turns the parameter where all inputs are 0 and the predictor of the inputs into the parameter at a step. For
scoring, the parameter at 0 is the predictor's constant, and outputs are arranged as blocks: B independent features of
one output, or one block of several outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...inference.numerics.logs import log_sigmoid
from ..parameters import Parameters
from ..responses import AfterFirst, Odds, Positive, Range, Real
from .scoring import Curve

LEAST = 1e-300  # of a probability or a rate, so that its logarithm is finite
LONGEST = 700.0  # logarithm of a number that is finite


class Link(ABC):
    """See the module's docstring.

    Attributes:
        parameter: the parameter of the plain emission that depends on inputs.
        range: how a predictor moves it.
        stated_by: the hyperparameters of its prior.
        axis: the axis of its coefficients.
        independent: whether outputs are independent blocks.
        log_name: the name of the parameter's logarithm or log odds, by which observations far in a tail stay possible.
        in_logs: whether densities read only that.
    """

    parameter: str
    range: Range
    stated_by: tuple[str, ...] = ()
    axis: str = "feature"
    independent: bool = True
    log_name: str = ""
    in_logs: bool = False

    def size(self, plain: Any) -> int:
        """The length of the axis, from the plain emission."""
        return plain.n_features

    def moved(self, table: Tensor, predictor: Tensor, for_density: bool = False) -> Parameters:
        """The parameter at inputs, from its table at inputs 0 and the linear predictor of the inputs."""
        logs = {self.log_name: self.range.moved_logs(table, predictor)} if self.log_name else {}
        return logs if for_density and self.in_logs else {self.parameter: self.range.moved(table, predictor)} | logs

    @abstractmethod
    def constant(self, table: Tensor) -> Tensor:
        """The predictor at inputs 0, from the parameter there."""

    @abstractmethod
    def back(self, constant: Tensor) -> Tensor:
        """The parameter from the predictor."""

    @abstractmethod
    def likelihood(self, x: Tensor) -> Callable[[Tensor], Curve]:
        """The log-likelihood of observations `[N, F]`, without constants, from predictors `[*r, B, K, J, N]`."""

    @abstractmethod
    def prior(self, prior: Parameters) -> Callable[[Tensor], Curve]:
        """The log density of the parameter at inputs 0 from its predictor `[*r, B, K, J, 1]`."""

    def blocks(self, table: Tensor) -> Tensor:
        """Tables `[*r, K, J, A]` as `[*r, B, K, J, A]`."""
        return table.transpose(-3, -2).unsqueeze(-2) if self.independent else table.unsqueeze(-4)

    def joined(self, table: Tensor) -> Tensor:
        """`[*r, B, K, J, A]` as tables `[*r, K, J, A]`."""
        return table.squeeze(-2).transpose(-3, -2) if self.independent else table.squeeze(-4)


def _single(value: Callable[[], Tensor], slopes: Callable[[], tuple[Tensor, Tensor]]) -> Curve:
    """The curve of one output, from functions of its predictor `[..., 1, N]`."""

    def of_one() -> tuple[Tensor, Tensor]:
        slope, curvature = slopes()
        return slope, curvature.unsqueeze(-2)

    return Curve(lambda: value().squeeze(-2), of_one)


def _targets(x: Tensor) -> Tensor:
    """Observations `[N, F]` as `[B, 1, 1, N]`, 0 where missing."""
    return x.nan_to_num(0.0).mT[:, None, None]


class Log(Link):
    """The logarithm of a rate of counts."""

    parameter, range, stated_by, log_name = "rate", Positive(), ("shape", "rate"), "log_rate"

    def constant(self, table: Tensor) -> Tensor:
        return table.clamp_min(LEAST).log()

    def back(self, constant: Tensor) -> Tensor:
        return constant.exp()

    def likelihood(self, x: Tensor) -> Callable[[Tensor], Curve]:
        counts = _targets(x)

        def curve(predictor: Tensor) -> Curve:
            rate = predictor.clamp_max(LONGEST).exp()  # finite, where a state has no weight
            return _single(lambda: counts * predictor - rate, lambda: (counts - rate, rate))

        return curve

    def prior(self, prior: Parameters) -> Callable[[Tensor], Curve]:
        shape, rate = (self.blocks(prior[name].unsqueeze(-1)) for name in ("shape", "rate"))

        def curve(constant: Tensor) -> Curve:
            pull = rate * constant.exp()
            return _single(lambda: (shape - 1) * constant - pull, lambda: (shape - 1 - pull, pull))

        return curve


class Logit(Link):
    """The log odds of a 1."""

    parameter, range, stated_by, log_name = "probs", Odds(), ("successes", "failures"), "logits"
    in_logs = True

    def constant(self, table: Tensor) -> Tensor:
        return table.clamp_min(LEAST).log() - torch.log1p(-table).clamp_min(-LONGEST)

    def back(self, constant: Tensor) -> Tensor:
        return constant.sigmoid()

    def likelihood(self, x: Tensor) -> Callable[[Tensor], Curve]:
        ones = _targets(x)

        def curve(predictor: Tensor) -> Curve:
            def slopes() -> tuple[Tensor, Tensor]:
                p = predictor.sigmoid()
                return ones - p, p * (1 - p)

            return _single(lambda: ones * predictor + log_sigmoid(-predictor), slopes)

        return curve

    def prior(self, prior: Parameters) -> Callable[[Tensor], Curve]:
        tables = (self.blocks(prior[name].unsqueeze(-1)) - 1 for name in ("successes", "failures"))
        ones, zeros = tables

        def curve(constant: Tensor) -> Curve:
            def slopes() -> tuple[Tensor, Tensor]:
                p = constant.sigmoid()
                return ones * (1 - p) - zeros * p, ((ones + zeros) * p * (1 - p)).clamp_min(0.0)

            return _single(lambda: ones * log_sigmoid(constant) + zeros * log_sigmoid(-constant), slopes)

        return curve


class Logits(Link):
    """The logits of the categories after the first one, relative to that."""

    parameter, axis, independent = "probs", "category_after_first", False
    range, stated_by, log_name = AfterFirst(), ("concentration",), "logits"
    in_logs = True

    def size(self, plain: Any) -> int:
        return plain.n_categories - 1

    def constant(self, table: Tensor) -> Tensor:
        logs = table.clamp_min(LEAST).log()
        return logs[..., 1:] - logs[..., :1]

    def back(self, constant: Tensor) -> Tensor:
        return torch.nn.functional.pad(constant, (1, 0)).softmax(-1)

    def likelihood(self, x: Tensor) -> Callable[[Tensor], Curve]:
        symbol = x[:, 0].nan_to_num(0.0).long()

        def curve(predictor: Tensor) -> Curve:
            shown = torch.nn.functional.one_hot(symbol, predictor.shape[-2] + 1).mT[1:].to(predictor)
            return _multinomial(predictor, shown, predictor.new_ones(1))

        return curve

    def prior(self, prior: Parameters) -> Callable[[Tensor], Curve]:
        counts = prior["concentration"].unsqueeze(-1) - 1
        return lambda constant: _multinomial(constant, counts[..., 1:, :], counts.sum(-2))


def _multinomial(predictor: Tensor, counts: Tensor, total: Tensor) -> Curve:
    """The log-likelihood of counts of the categories after the first one, of this total with it."""
    log_sum = torch.nn.functional.pad(predictor, (0, 0, 1, 0)).logsumexp(-2)

    def slopes() -> tuple[Tensor, Tensor]:
        p = (predictor - log_sum.unsqueeze(-2)).exp()
        spread = torch.diag_embed(p.mT, dim1=-3, dim2=-2) - p.unsqueeze(-2) * p.unsqueeze(-3)
        return counts - total.unsqueeze(-2) * p, total.clamp_min(0.0)[..., None, None, :] * spread

    return Curve(lambda: (counts * predictor).sum(-2) - total * log_sum, slopes)


class Identity(Link):
    """The mean of a normal feature."""

    parameter, range, stated_by = "loc", Real(), ("loc", "count")

    def constant(self, table: Tensor) -> Tensor:
        return table

    def back(self, constant: Tensor) -> Tensor:
        return constant

    def likelihood(self, x: Tensor) -> Callable[[Tensor], Curve]:
        """Of unit variance."""
        target = _targets(x)

        def curve(predictor: Tensor) -> Curve:
            residual = target - predictor
            return _single(lambda: -residual.square() / 2, lambda: (residual, torch.ones_like(residual)))

        return curve

    def prior(self, prior: Parameters) -> Callable[[Tensor], Curve]:
        """Of unit precision: `count` times it."""
        loc, count = (self.blocks(prior[name].unsqueeze(-1)) for name in ("loc", "count"))

        def curve(constant: Tensor) -> Curve:
            residual = loc - constant
            return _single(
                lambda: -count * residual.square() / 2, lambda: (count * residual, count.expand_as(residual))
            )

        return curve
