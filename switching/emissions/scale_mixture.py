r"""Student's t distribution as a scale mixture of normal distributions: the weights of observations, and the M-step.

With $u \mid \nu \sim \text{Gamma}(\nu/2, \nu/2)$ and $x \mid u \sim N(\mu, 1/(\tau u))$, a pair of steps maximises

1. the expected log density of x and u in $\mu$ and $\tau$: those of a normal emission whose observations have the
   weights $w\, E\,u$, with $E\,u = (\nu + 1) / (\nu + \tau (x - \mu)^2)$;
2. the actual log-likelihood of x in $\nu$, by Newton's method in $\log \nu$.

None lowers the objective (ECME: Liu & Rubin 1995, *ML estimation of the t distribution using EM and its extensions, ECM
and ECME*).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import NormalGamma
from ...inference.numerics.gammas import log_rising
from ..ascent import newton
from ..parameters import Parameters

MAX_STEPS = 6  # of Newton's method for the degrees of freedom; the next M-step continues
LONGEST_STEP = 2.0  # of log df
HUGE = 1e8  # a ratio whose square has no digits beside 1
LARGEST = 1e150  # a residual whose square is finite


class TailStep(NamedTuple):
    """The objective of an M-step, a sum over observations for each state and feature.

    Attributes:
        x: `[F, N]`, numbers also where they are missing.
        used: `[*r, K, F, N]`, the weights, 0 where an observation is missing.
        prior: hyperparameters `[K, F]`; None for maximum likelihood.
        floor: `[F]`, the least variances of maximum likelihood.
    """

    x: Float[Tensor, "F N"]
    used: Float[Tensor, "*r K F N"]
    prior: Parameters | None
    floor: Float[Tensor, "F"]

    @staticmethod
    def of(
        x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], prior: Parameters | None, floor: Float[Tensor, "F"]
    ) -> "TailStep":
        """The objective of observations, NaN where missing, and the weights of each step's state."""
        seen = ~torch.isnan(x)
        used = weights.mT.unsqueeze(-2) * seen.mT.to(weights)
        return TailStep(torch.where(seen, x, 0.0).mT, used, prior, floor)

    def higher(self, values: Parameters, others: Parameters) -> Parameters:
        """For each state and feature the parameters with the greater objective."""
        better = self.height(others) > self.height(values)
        return {name: torch.where(better, others[name], value) for name, value in values.items()}

    def height(self, values: Parameters) -> Float[Tensor, "*r K F"]:
        """The objective."""
        loc, precision, df = (values[name] for name in ("loc", "precision", "df"))
        each = log_density(self._residuals(values), precision.unsqueeze(-1), df.unsqueeze(-1))
        total = torch.where(self.used > 0, self.used * each, 0.0).sum(-1)
        if self.prior is None:
            return total
        known = self.prior
        square = known["count"] * (loc - known["loc"]).square() / 2 + known["rate"]
        return total + (known["shape"] - 0.5) * precision.log() - square * precision + self._prior_of_df(df)

    def of_normal(self, values: Parameters) -> Parameters:
        """The location and precision of the greatest expected log density."""
        df, loc = values["df"], values["loc"]
        message = self._moments(values, self._expected(values))
        if self.prior is None:
            best = NormalGamma().expected(message)
            precision = 1 / (1 / best.precision).maximum(self.floor)
        else:
            known = {name: self.prior[name] for name in ("shape", "rate")}
            eta = NormalGamma().natural(self.prior["loc"] - loc, self.prior["count"], **known)
            best = NormalGamma().peak(eta + message)
            precision = best.precision
        usual = best.loc.isfinite() & precision.isfinite()
        moved = {"loc": loc + best.loc, "precision": precision}
        return {name: torch.where(usual, moved[name], values[name]) for name in moved} | {"df": df}

    def message(self, values: Parameters, share: Float[Tensor, "*r K F"]) -> Float[Tensor, "*r K F 7"]:
        r"""The gradient of the expected log-likelihood with respect to the statistics of `Tailed`, about the locations.

        Arguments:
            share: of the expected mixing variables at a point, those under q.
        """
        u = self._expected(values) * share.unsqueeze(-1)
        half = (values["df"].unsqueeze(-1) + 1) / 2
        log_u = u.log() + torch.digamma(half) - half.log()
        steps, of_df = self.used.sum(-1), (self.used * (1 + log_u - u)).sum(-1) / 2
        return torch.cat([self._moments(values, u), torch.stack([steps / 2, of_df, steps], -1)], -1)

    def _expected(self, values: Parameters) -> Float[Tensor, "*r K F N"]:
        """The expected mixing variables."""
        df = values["df"].unsqueeze(-1)
        return (df + 1) / (df + self._residuals(values).square())

    def _moments(self, values: Parameters, u: Float[Tensor, "*r K F N"]) -> Float[Tensor, "*r K F 4"]:
        """The message to the NormalGamma of location and precision, about the locations."""
        away, weights = self.x - values["loc"].unsqueeze(-1), self.used * u
        first, second = (weights * away).sum(-1), (weights * away.square()).sum(-1)
        return torch.stack([first, -weights.sum(-1) / 2, self.used.sum(-1) / 2, -second / 2], -1)

    def of_df(self, values: Parameters) -> Parameters:
        """The degrees of freedom of the greatest log-likelihood, beside the same location and precision."""
        squares, count = self._residuals(values).clamp_max(LARGEST).square(), self.used.sum(-1)

        def summed(each: Tensor) -> Tensor:
            return (self.used * each).sum(-1)

        def height(log_df: Tensor) -> Tensor:
            df = log_df.exp().squeeze(-1)
            tails = (df + 1) / 2 * summed(torch.log1p(squares / df.unsqueeze(-1)))
            return count * _log_constant(df) - tails + self._prior_of_df(df)

        def step(log_df: Tensor) -> tuple[Tensor, Tensor]:
            df = log_df.exp()
            ratio = squares / df
            share = ratio / (1 + ratio)
            sums = map(summed, (torch.log1p(ratio), share, share * share))
            first, second = self._slopes(df.squeeze(-1), count, *sums)
            move = (first / second.abs().clamp_min(1e-300)).clamp(-LONGEST_STEP, LONGEST_STEP)
            return move.unsqueeze(-1), first * move

        return values | {"df": newton(height, step, values["df"].log().unsqueeze(-1), MAX_STEPS).exp().squeeze(-1)}

    def _residuals(self, values: Parameters) -> Float[Tensor, "*r K F N"]:
        """The sizes of standardised residuals."""
        return (self.x - values["loc"].unsqueeze(-1)).abs() * values["precision"].sqrt().unsqueeze(-1)

    def _prior_of_df(self, df: Float[Tensor, "*r K F"]) -> Tensor:
        if self.prior is None:
            return torch.zeros_like(df)
        return (self.prior["df_shape"] - 1) * df.log() - self.prior["df_rate"] * df

    def _slopes(
        self, df: Float[Tensor, "*r K F"], count: Tensor, tails: Tensor, shares: Tensor, products: Tensor
    ) -> tuple[Tensor, Tensor]:
        r"""The first two derivatives of the objective in log df.

        Arguments:
            count, tails, shares, products: the sums of 1, of log1p(r / df), and of $r / (\nu + r)$ and its squares for
                squared residuals r.
        """
        half = df / 2
        first = ((df + 1) * shares / df - tails) / 2  # of -(df + 1) / 2 log1p(squares / df)
        second = ((df + 1) * products - 2 * shares) / (2 * df.square())
        gap = torch.digamma(half + 0.5) - torch.digamma(half) - 1 / df
        bend = (torch.polygamma(1, half + 0.5) - torch.polygamma(1, half)) / 2 + 1 / df.square()
        first, second = first + count * gap / 2, second + count * bend / 2
        if self.prior is not None:
            less = self.prior["df_shape"] - 1
            first, second = first + less / df - self.prior["df_rate"], second - less / df.square()
        return first * df, first * df + second * df.square()


def _log_constant(df: Float[Tensor, "*#n"]) -> Tensor:
    r"""$\log \Gamma((\nu + 1) / 2) - \log \Gamma(\nu / 2) - \log(\nu / 2) / 2$."""
    return log_rising(df / 2, torch.full_like(df, 0.5))


def log_density(residual: Float[Tensor, "*#n"], precision: Float[Tensor, "*#n"], df: Float[Tensor, "*#n"]) -> Tensor:
    r"""log p(x) from $\sqrt\tau\, |x - \mu|$, whose square may overflow."""
    half = df / 2
    ratio = residual / df.sqrt()
    far = ratio > HUGE
    tail = torch.where(far, 2 * ratio.where(far, HUGE).log(), torch.log1p(ratio.where(~far, 0.0).square()))
    return _log_constant(df) + (precision.log() - math.log(2 * math.pi)) / 2 - (half + 0.5) * tail
