r"""Linear Gaussian chains: the hidden state is a real vector, with linear transitions and observations and normal
noise.

$$s_1 \sim N(m_1, P_1), \quad s_{t+1} = A_t s_t + c_t + N(0, Q_t), \quad x_t = C_t s_t + d_t + N(0, R_t)$$

These are also called linear dynamical systems or state-space models. Beliefs are normal, and every result is exact: the
Kalman filter, the Rauch-Tung-Striebel smoother, draws by backward sampling, and the exact diffuse start of Durbin &
Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 5. `plain` has the method.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.deferred import refuse_if
from ...numerics.op import Op, differentiated
from ...numerics.randomness import Seed, generator_of
from ...numerics.scalars import check_integer
from ...numerics.threads import sum_of_steps
from . import op
from .factors import covariance_of
from .parameters import read
from .plain import LOG_2PI, ROUNDINGS
from .records import GaussianFiltered, GaussianForecast, GaussianSampled, GaussianSmoothed
from .steps import Move, seen_of, sights
from .tables import OVERFLOW, SINGULAR


class LinearGaussianChain:
    r"""The posterior over paths of a linear Gaussian chain, with L states, given observations of F features.

    Arguments:
        x: [*b, T, F] observations; NaN: missing, a whole step or single features.
        transition: $A$, [*b, L, L], to the new state (rows) from the old one.
        state_noise: $Q$, [*b, L, L], a covariance; it may be singular, as for an AR(p) in companion form.
        emission: $C$, [*b, F, L].
        observation_noise: $R$, [*b, F, F], a covariance; it may be singular if the states' own noise is observed.
        initial_mean: $m_1$, [*b, L], of the state at the first observation; None: 0.
        initial_covariance: $P_1$, [*b, L, L]; None: 0, a known state. It does not apply to diffuse states.
        diffuse: [L] of booleans: the states with a diffuse start, whose variance goes to infinity; None: none. If some
            observation has no noise, covariances of steps at which the start is not determined have an arbitrary
            part in these states.
        transition_offset: $c$, [*b, L]; None: 0.
        emission_offset: $d$, [*b, F]; None: 0.
        lengths: [*b], each sequence's number of steps; None: all have T. Steps after it are not read.

    Parameters may vary with the step. Matrices with one axis more than x, and offsets with as many axes as x, have an
    axis of steps. Its length is T for the emission, T - 1 for the transition, or 1 if one entry is used for all steps.
    Batch axes broadcast; for restarts of one sequence, give x a batch axis of size 1.

    log p(x) is differentiable, once, in x and all parameters; moments, draws and entropies are not. The gradient of a
    singular covariance is that of changes that keep its rank. For a diffuse start with q states, the evidence is the
    limit of $\log p(x) + \frac q2 \log \kappa$ for a variance $\kappa$, as in statsmodels.

    Unlike chains of discrete states, it has no `between`, `predictive`, `marginals` and `viterbi`: its beliefs are
    means and covariances, not tables of states. The most probable path is the mean of `smooth`. A stream continues from
    `forecast(1)`, as `filter` shows.

    Raises:
        TypeError: arguments that are not float32 or float64 tensors of one dtype on one device.
        ValueError: shapes or lengths that do not fit together, parameters that are not finite, covariances that are
            not symmetric or not positive semidefinite. From every method: an observation without noise; observations
            too few for the diffuse states.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 5, for the diffuse start.

    See Also:
        `LinearSSM`, the model that is fitted; `MarkovChain`, of discrete states; docs/guides/linear.md.

    >>> import torch, samplehold as sh
    >>> one = torch.ones(1, 1)
    >>> x = torch.tensor([[1.0], [2.0], [torch.nan], [4.0]])
    >>> level = sh.chains.LinearGaussianChain(x, one, 0.5 * one, one, one, diffuse=torch.tensor([True]))
    >>> level.smooth().mean.squeeze(-1)
    tensor([1.7692, 2.1538, 2.6154, 3.0769])
    >>> level.log_normalizer()
    tensor(-5.0004)
    """

    batch_shape: torch.Size
    lengths: Tensor
    diffuse: Tensor
    n_steps: int
    n_states: int

    def __init__(
        self,
        x: Tensor,
        transition: Tensor,
        state_noise: Tensor,
        emission: Tensor,
        observation_noise: Tensor,
        initial_mean: Tensor | None = None,
        initial_covariance: Tensor | None = None,
        diffuse: Any = None,
        transition_offset: Tensor | None = None,
        emission_offset: Tensor | None = None,
        lengths: Any = None,
    ):
        tables = {
            "transition": transition,
            "state_noise": state_noise,
            "emission": emission,
            "observation_noise": observation_noise,
            "initial_mean": initial_mean,
            "initial_covariance": initial_covariance,
            "diffuse": diffuse,
            "transition_offset": transition_offset,
            "emission_offset": emission_offset,
            "lengths": lengths,
        }
        self._tables, self.batch_shape, self.lengths, self.diffuse = read(x, tables)
        self.n_steps, self.n_states = self._tables.n_steps, self._tables.initial_mean.shape[-1]

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log p(x), [*b]; differentiable, once, in all parameters and in x.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> chain = sh.chains.LinearGaussianChain(torch.zeros(1, 1), one, one, one, one, initial_covariance=one)
        >>> chain.log_normalizer()
        tensor(-1.2655)
        """
        (total,) = self._checked(op.evidence(*self._tables))
        return self._over_batch(total, 0)

    def filter(self) -> GaussianFiltered:
        """The belief before and after each observation.

        A stream is filtered in parts: the state at the first step of the next part is the result of `forecast(1)`.

        >>> import torch, samplehold as sh
        >>> one, x = torch.ones(1, 1), torch.arange(5.0).unsqueeze(-1)
        >>> first = sh.chains.LinearGaussianChain(x[:3], one, one, one, one, initial_covariance=one)
        >>> mean, covariance = first.forecast(1).state_mean[0], first.forecast(1).state_covariance[0]
        >>> rest = sh.chains.LinearGaussianChain(x[3:], one, one, one, one, mean, covariance)
        >>> torch.cat([first.filter().mean, rest.filter().mean]).flatten()
        tensor([0.0000, 0.6000, 1.4615, 2.4118, 3.3933])

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> known = sh.chains.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).filter()
        >>> known.covariance.flatten()
        tensor([0.0000, 0.5000, 0.6000])
        """
        total, *tables = self._checked(self._with_evidence(op.filter))
        total = self._over_batch(total, 0)
        sizes = 1, 2, 3, 2, 3, 3, 3
        increment, *tables = (self._over_batch(table, n) for table, n in zip(tables, sizes, strict=True))
        mean, covariance, predicted_mean, predicted_covariance, *diffuse = tables
        if not self._tables.n_diffuse:
            diffuse = None, None
        return GaussianFiltered(total, increment, mean, covariance, predicted_mean, predicted_covariance, *diffuse)

    def smooth(self) -> GaussianSmoothed:
        """The belief given all observations, with the covariances of neighbours.

        E[s_t+1 s_t'] is `cross_covariance` plus the product of the means.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> smoothed = sh.chains.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).smooth()
        >>> smoothed.mean.flatten(), smoothed.cross_covariance.flatten()
        (tensor([0.0000, 0.6000, 0.8000]), tensor([0.0000, 0.2000]))
        """
        total, mean, covariance, cross = self._checked(self._with_evidence(op.smooth))
        tables = (self._over_batch(table, n) for table, n in ((mean, 2), (covariance, 3), (cross, 3)))
        return GaussianSmoothed(self._over_batch(total, 0), *tables)

    @torch.no_grad()
    def sample(self, n: int, seed: Seed = None) -> GaussianSampled:
        """n independent draws of the whole path given x, backward in time.

        Arguments:
            n: the number of draws.
            seed: a number, a `torch.Generator`, or None, torch's global generator.

        Raises:
            ValueError: n is not a positive whole number.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.chains.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).sample(10, seed=0).latent.shape
        torch.Size([10, 3, 1])
        """
        n = check_integer("n", n)
        x, generator = self._tables.x, generator_of(seed, self._tables.x.device)
        sizes = (self.n_steps, self.n_states), (self._tables.n_diffuse,)
        noise, diffuse = (
            torch.randn(n, *self.batch_shape, *axes, generator=generator, dtype=torch.float64, device=x.device).to(x)
            for axes in sizes
        )
        (path,) = self._checked(op.sample(*self._tables, noise, diffuse))
        return GaussianSampled(path)

    @torch.no_grad()
    def entropy(self) -> Float[Tensor, "*b"]:
        r"""Differential entropy of the posterior over paths, in nats; -inf where a covariance is singular.

        The posterior is normal, so its density at its mean $\hat s$ gives its entropy:

        $$H = \tfrac{TL}2 + \log p(x) - \log p(\hat s, x)$$

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.chains.LinearGaussianChain(torch.zeros(1, 1), one, one, one, one, initial_covariance=one).entropy()
        tensor(1.0724)
        """
        tables, rest = self._tables, ~self.diffuse
        total, mean, _, _ = self._checked(op.smooth(*tables))
        gap = (mean[..., 0, :] - tables.initial_mean)[..., rest]
        log_joint = _log_density(gap, tables.initial_factor[..., rest, :]) - LOG_2PI / 2 * tables.n_diffuse
        step = Move(tables.transition, tables.transition_offset, tables.state_factor)
        moved = _log_density(mean[..., 1:, :] - step.offset - _times(step.transition, mean[..., :-1, :]), step.noise)
        active = tables.active
        log_joint = log_joint + sum_of_steps(moved if active is None else torch.where(active[..., 1:], moved, 0.0))
        sight, seen = sights(tables), seen_of(tables)
        log_joint = log_joint + sum_of_steps(_log_density(sight.gap - _times(sight.emission, mean), sight.noise))
        log_joint = log_joint + LOG_2PI / 2 * (~seen).sum((-2, -1)).to(total)  # noise in the place of missing features
        return (self.lengths * (self.n_states / 2)).to(total) + total - log_joint

    @torch.no_grad()
    def forecast(self, horizon: int) -> GaussianForecast:
        """States and observations of the `horizon` steps after each sequence's last.

        Arguments:
            horizon: the number of steps, at least 1.

        Raises:
            ValueError: horizon is not a positive whole number, or so long that numbers overflow; parameters that vary
                with the step, whose future is not known.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.chains.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).forecast(3).covariance.flatten()
        tensor([2.6000, 3.6000, 4.6000])
        """
        horizon, tables = check_integer("horizon", horizon), self._tables
        for name in self._varying:
            raise ValueError(
                f"{name}: varies by step, so its values after the last step of x are unknown; to forecast, append "
                "steps of NaN to x, and give parameters for these steps too."
            )
        _, _, means, covariances, *_ = self._checked(op.filter(*tables))
        last = (self.lengths - 1)[..., None, None]
        mean = self._over_batch(means, 2).take_along_dim(last, -2).squeeze(-2)
        covariance = self._over_batch(covariances, 3).take_along_dim(last.unsqueeze(-1), -3).squeeze(-3)
        transition, offset, noise = (t.squeeze(-n) for t, n in zip(tables[3:6], (3, 2, 3), strict=True))
        emission, emission_offset, observed = (t.squeeze(-n) for t, n in zip(tables[6:9], (3, 2, 3), strict=True))
        steps = []
        for _ in range(horizon):
            mean = _times(transition, mean) + offset
            covariance = transition @ covariance @ transition.mT + covariance_of(noise)
            seen = emission @ covariance @ emission.mT + covariance_of(observed)
            steps.append((mean, covariance, _times(emission, mean) + emission_offset, seen))
        tables = (torch.stack(rows, -n) for rows, n in zip(zip(*steps, strict=True), (2, 3, 2, 3), strict=True))
        forecast = GaussianForecast(*tables)
        if not all(bool(table.isfinite().all()) for table in vars(forecast).values()):
            raise ValueError(
                f"horizon: got {horizon}, but means or variances overflow {self._dtype} within so many steps; give a "
                "shorter horizon."
            )
        return forecast

    def _with_evidence(self, operator: Op) -> Sequence[Tensor]:
        """Moments, which are no part of the graph, behind the evidence, which is."""
        with torch.no_grad():
            total, *moments = operator(*self._tables)
        if differentiated(*self._tables):
            total, _ = op.evidence(*self._tables)
        return total, *moments

    def _checked(self, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results of an operator, without its faults, of which there are none."""
        *results, fault = results
        means = [table for table in results if table.shape[-2:] == (self.n_steps, self.n_states)]
        failed = (fault >= 0).any()
        beyond = [_has_infinite(table) for table in (*means, results[0])]

        def complain() -> None:
            if bool(failed):
                index = (fault >= 0).nonzero()[0].tolist()
                step, kind = divmod(int(fault[tuple(index)]), 4)
                raise ValueError(self._message(kind, step, _of_sequence(index)))
            if any(map(bool, beyond[:-1])):
                raise ValueError(
                    f"transition, initial_mean: a mean overflows {self._dtype}; give a transition that grows less, or "
                    "a smaller initial_mean."
                )
            raise ValueError(
                f"x: its log density overflows {self._dtype}; check that x and the noises have the same units, and "
                "that states do not grow without limit."
            )

        refuse_if(torch.stack([failed, *beyond]).any(), complain)
        return (*results,)

    def _message(self, kind: int, step: int, of_sequence: str) -> str:
        if kind == OVERFLOW:
            return (
                f"transition, state_noise: the variance at step {step}{of_sequence} overflows {self._dtype}; give a "
                "transition that grows less, or a smaller state_noise."
            )
        if kind == SINGULAR:
            return (
                f"observation_noise: the observation at step {step}{of_sequence} has features without noise, or "
                "features that others determine; give positive variances, or leave such features out."
            )
        return (
            f"diffuse: the {step + 1} steps of x{of_sequence} do not determine the {self._tables.n_diffuse} diffuse "
            "states; give more observations, or an initial_covariance instead of a diffuse start. Inputs must not be "
            "0, constant together with a level, or combinations of others."
        )

    @property
    def _dtype(self) -> str:
        return str(self._tables.x.dtype).removeprefix("torch.")

    @property
    def _varying(self) -> list[str]:
        t, names = self._tables, ("transition", "transition_offset", "state_noise", "emission", "emission_offset")
        tables = zip((*names, "observation_noise"), t[3:9], (3, 2, 3, 3, 2, 3), strict=True)
        return [name for name, table, axis in tables if table.shape[-axis] != 1]

    def _over_batch(self, table: Tensor, n_own: int) -> Tensor:
        """With all batch axes in front of its own."""
        return table.expand((*self.batch_shape, *table.shape[table.dim() - n_own :]))


def _of_sequence(index: list[int]) -> str:
    return f" of sequence {index[0] if len(index) == 1 else tuple(index)}" if index else ""


def _has_infinite(table: Tensor) -> Tensor:
    return (0.0 * table.detach()).sum().isnan()  # 0 times a number that is not finite is NaN


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _log_density(gap: Tensor, factor: Tensor) -> Tensor:
    """log N(gap; 0, factor factor'), inf where that is singular."""
    triangle = torch.linalg.qr(factor.mT)[1].mT
    diagonal, least = triangle.diagonal(dim1=-2, dim2=-1).abs(), ROUNDINGS * torch.finfo(gap.dtype).eps
    singular = (diagonal <= least * factor.norm(dim=-1)).any(-1)
    unit = torch.eye(gap.shape[-1], dtype=gap.dtype, device=gap.device)
    safe = torch.where(singular[..., None, None], unit, triangle)
    white = torch.linalg.solve_triangular(safe, gap.unsqueeze(-1), upper=False).squeeze(-1)
    log_det = torch.where(singular.unsqueeze(-1), 1.0, diagonal).log().sum(-1)
    value = -white.square().sum(-1) / 2 - log_det - gap.shape[-1] * LOG_2PI / 2
    return torch.where(singular, torch.inf, value)
