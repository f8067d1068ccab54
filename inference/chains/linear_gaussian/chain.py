r"""Linear Gaussian chains: a hidden state that is a real vector, and moves and is seen linearly with normal noise.

$$s_1 \sim N(m_1, P_1), \quad s_{t+1} = A_t s_t + c_t + N(0, Q_t), \quad x_t = C_t s_t + d_t + N(0, R_t)$$

also called linear dynamical systems or state-space models. Beliefs are normal, and all that is asked of the chain is
exact: the Kalman filter, the Rauch-Tung-Striebel smoother, draws by backward sampling, and the exact diffuse start of
Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapter 5. `plain` says how.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...numerics.arrays import numbers
from ...numerics.checks import check_lengths, check_shape, check_table, common_batch, read_lengths
from ...numerics.randomness import Seed, generator_of
from ...numerics.scalars import check_integer
from . import plain
from .factors import beside, compress, covariance_of, factor_of
from .records import GaussianFiltered, GaussianForecast, GaussianSampled, GaussianSmoothed


class LinearGaussianChain:
    r"""The posterior over paths of a linear Gaussian chain, with L states, given observations of F features.

    Arguments:
        x: [*b, T, F] observations; NaN: missing, a whole step or single features.
        transition: $A$, [*b, L, L], to the new state (rows) from the old one.
        state_noise: $Q$, [*b, L, L], a covariance, which may be singular, as that of an AR(p) in companion form.
        emission: $C$, [*b, F, L].
        observation_noise: $R$, [*b, F, F], a covariance; it may be singular where the states' own noise is seen.
        initial_mean: $m_1$, [*b, L], of the state at the first observation; None: 0.
        initial_covariance: $P_1$, [*b, L, L]; None: 0, a state that is known. Diffuse states have no part in it.
        diffuse: [L] of truth values: which states start anywhere, with a variance that goes to infinity; None: none.
        transition_offset: $c$, [*b, L]; None: 0.
        emission_offset: $d$, [*b, F]; None: 0.
        lengths: [*b], each sequence's number of steps; None: all have T. Nothing is read beyond it.

    Parameters may vary with the step: matrices with one axis more than x, and offsets with as many as x, have an axis
    of T entries where they are of the emission, of T - 1 where they are of the moves, or of one for all. Batch axes
    broadcast; for restarts beside one sequence, give x a batch axis of size 1.

    log p(x) is differentiable, once, in x and all parameters; moments, draws and entropies are not. The gradient of a
    covariance that is singular is that of moves which keep its rank. Of a diffuse start with q states, the evidence is
    the limit of $\log p(x) + \frac q2 \log \kappa$ for a variance $\kappa$, as in statsmodels.

    Raises:
        TypeError: arguments that are not float32 or float64 tensors of one dtype on one device.
        ValueError: shapes or lengths that do not fit together, parameters that are not finite, covariances that are
            not symmetric or not positive semidefinite. From every method: an observation without noise; observations
            too few for the diffuse states.

    >>> import torch, samplehold as sh
    >>> one = torch.ones(1, 1)
    >>> x = torch.tensor([[1.0], [2.0], [torch.nan], [4.0]])
    >>> level = sh.LinearGaussianChain(x, one, 0.5 * one, one, one, diffuse=torch.tensor([True]))
    >>> level.smooth().mean.squeeze(-1)
    tensor([1.7692, 2.1538, 2.6154, 3.0769])
    >>> level.log_normalizer()
    tensor(-5.0004)
    """

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
        x = check_table("x", x, None, None)
        self.n_steps, n_features = x.shape[-2:]
        if not self.n_steps or not n_features or bool(x.isinf().any()):
            raise ValueError(
                f"x: got shape {list(x.shape)}{', with infinite numbers' if x.numel() else ''}, expected finite "
                "numbers [*batch, T, F], at least one step and feature; NaN is missing."
            )
        n_states = self.n_states = check_table("transition", transition, None, None, like=x).shape[-1]
        if not n_states:
            raise ValueError(f"transition: got shape {list(transition.shape)}, expected one state or more.")
        lengths, self._like = read_lengths(lengths), x
        first = {
            "initial_mean": _given("initial_mean", initial_mean, x, n_states),
            "initial_covariance": _given("initial_covariance", initial_covariance, x, n_states, n_states),
        }
        moves, sights = self.n_steps - 1, self.n_steps
        by_step = {
            "transition": self._by_step("transition", transition, moves, n_states, n_states),
            "state_noise": self._by_step("state_noise", state_noise, moves, n_states, n_states),
            "transition_offset": self._by_step("transition_offset", transition_offset, moves, n_states),
            "emission": self._by_step("emission", emission, sights, n_features, n_states),
            "observation_noise": self._by_step("observation_noise", observation_noise, sights, n_features, n_features),
            "emission_offset": self._by_step("emission_offset", emission_offset, sights, n_features),
        }
        self.batch_shape = common_batch(
            x=x.shape[:-2],
            initial_mean=first["initial_mean"].shape[:-1],
            initial_covariance=first["initial_covariance"].shape[:-2],
            **{name: table.shape[: -2 if name.endswith("offset") else -3] for name, table in by_step.items()},
            lengths=None if lengths is None else lengths.shape,
        )
        self.lengths = check_lengths(lengths, self.batch_shape, self.n_steps, x.device)
        self.diffuse = _check_diffuse(diffuse, n_states, x)
        rest = (~self.diffuse).to(x)
        first["initial_covariance"] = first["initial_covariance"] * rest * rest.unsqueeze(-1)
        factors = {
            name: _factor(name, {**first, **by_step}[name])
            for name in ("initial_covariance", "state_noise", "observation_noise")
        }
        active = torch.arange(self.n_steps, device=x.device) < self.lengths.unsqueeze(-1)
        ragged = not bool(active.all())
        seen = ~x.isnan()
        seen = seen & active.unsqueeze(-1) if ragged else seen
        self._active = active
        self._tables = plain.Tables(
            torch.where(seen, x, 0.0),
            None if bool(seen.all()) else seen,
            active if ragged else None,
            by_step["transition"],
            by_step["transition_offset"],
            factors["state_noise"],
            by_step["emission"],
            by_step["emission_offset"],
            factors["observation_noise"],
            first["initial_mean"],
            factors["initial_covariance"],
            torch.eye(n_states, dtype=x.dtype, device=x.device)[:, self.diffuse],
        )

    def log_normalizer(self) -> Float[Tensor, "*b"]:
        """log p(x), [*b]; differentiable, once, in all parameters and in x.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.LinearGaussianChain(torch.zeros(1, 1), one, one, one, one, initial_covariance=one).log_normalizer()
        tensor(-1.2655)
        """
        return self._run()[1]

    def filter(self) -> GaussianFiltered:
        """The belief before and after each observation.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> known = sh.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).filter()
        >>> known.covariance.flatten()
        tensor([0.0000, 0.5000, 0.6000])
        """
        run, total, _ = self._run()
        return self._filtered(run, total)

    @torch.no_grad()
    def _filtered(self, run: plain.Forward, total: Tensor) -> GaussianFiltered:
        starts, increment = plain.starts(self._tables, run)
        increment = increment.expand(*self.batch_shape, self.n_steps)
        before = [plain.moments(*pair, start) for pair, start in zip(run.predicted, starts[:-1], strict=True)]
        after = [plain.moments(*pair, start) for pair, start in zip(run.filtered, starts[1:], strict=True)]
        tables = [increment, *self._moments(after), *self._moments(before)]
        if self._tables.n_diffuse:
            tables += [self._open(run.filtered, starts[1:]), self._open(run.predicted, starts[:-1])]
        return GaussianFiltered(total, *map(self._inside, tables))

    def smooth(self) -> GaussianSmoothed:
        """The belief given all observations, with the covariances of neighbours.

        E[s_t+1 s_t'] is `cross_covariance` plus the product of the means.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> smoothed = sh.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).smooth()
        >>> smoothed.mean.flatten(), smoothed.cross_covariance.flatten()
        (tensor([0.0000, 0.6000, 0.8000]), tensor([0.0000, 0.2000]))
        """
        run, total, start = self._run()
        with torch.no_grad():
            mean, covariance, cross = plain.smooth(run, start)
        cross = torch.where(self._active[..., 1:, None, None], cross, 0.0)
        mean, covariance = (t.expand(*self.batch_shape, *t.shape[-n:]) for t, n in ((mean, 2), (covariance, 3)))
        return GaussianSmoothed(total, self._inside(mean), self._inside(covariance), cross)

    @torch.no_grad()
    def sample(self, n: int, seed: Seed = None) -> GaussianSampled:
        """n independent draws of the whole path given x, backward in time.

        Raises:
            ValueError: n is not a positive whole number.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).sample(10, seed=0).path.shape
        torch.Size([10, 3, 1])
        """
        n = check_integer("n", n)
        run, _, start = self._run()
        generator = generator_of(seed, self._like.device)
        sizes = (self.n_steps, self.n_states), (self._tables.n_diffuse,)
        noise, diffuse = (
            torch.randn(n, *self.batch_shape, *own, generator=generator, dtype=torch.float64, device=self._like.device)
            for own in sizes
        )
        path = plain.sample(run, start, noise.to(self._like), diffuse.to(self._like))
        return GaussianSampled(torch.where(self._active[..., None], path, 0.0))

    @torch.no_grad()
    def entropy(self) -> Float[Tensor, "*b"]:
        r"""Differential entropy of the posterior over paths, in nats; -inf where a covariance is singular.

        The posterior is normal, so that its density at its mean $\hat s$ tells its entropy:

        $$H = \tfrac{TL}2 + \log p(x) - \log p(\hat s, x)$$

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.LinearGaussianChain(torch.zeros(1, 1), one, one, one, one, initial_covariance=one).entropy()
        tensor(1.0724)
        """
        run, total, start = self._run()
        mean, _, _ = plain.smooth(run, start)
        tables, rest = self._tables, ~self.diffuse
        gap = (mean[..., 0, :] - tables.initial_mean)[..., rest]
        log_joint = _log_density(gap, tables.initial_factor[..., rest, :])
        log_joint = log_joint - plain.LOG_2PI / 2 * tables.n_diffuse
        moves = mean[..., 1:, :] - tables.transition_offset - _times(tables.transition, mean[..., :-1, :])
        steps = _log_density(moves, tables.state_factor)
        log_joint = log_joint + torch.where(self._active[..., 1:], steps, 0.0).sum(-1)
        unseen = (tables.x.shape[-1] - plain.n_seen(tables)).sum(-1)  # noise in the place of missing features
        log_joint = log_joint + plain.LOG_2PI / 2 * unseen
        for t in range(self.n_steps):
            emission, y, noise = tables.sight(t)
            log_joint = log_joint + _log_density(y - _times(emission, mean[..., t, :]), noise)
        return (self.lengths * (self.n_states / 2)).to(total) + total - log_joint

    @torch.no_grad()
    def forecast(self, horizon: int) -> GaussianForecast:
        """States and observations of the `horizon` steps after each sequence's last.

        Raises:
            ValueError: horizon is not a positive whole number; parameters that vary with the step, whose future is
                not known.

        >>> import torch, samplehold as sh
        >>> one = torch.ones(1, 1)
        >>> sh.LinearGaussianChain(torch.ones(3, 1), one, one, one, one).forecast(3).covariance.flatten()
        tensor([2.6000, 3.6000, 4.6000])
        """
        horizon, tables = check_integer("horizon", horizon), self._tables
        for name in self._varying:
            raise ValueError(
                f"{name}: varies with the step, so that its values after the last one are not known; to forecast, "
                "give x with further steps of NaN, and parameters for them."
            )
        run, _, start = self._run()
        mean, factor = plain.moments(*run.filtered[-1], start)
        transition, offset, noise = (t.squeeze(-n) for t, n in zip(tables[3:6], (3, 2, 3), strict=True))
        emission, emission_offset, observed = (t.squeeze(-n) for t, n in zip(tables[6:9], (3, 2, 3), strict=True))
        states, seen = [], []
        for _ in range(horizon):
            mean, factor = _times(transition, mean) + offset, compress(transition @ factor, noise)
            states.append((mean, factor))
            seen.append((_times(emission, mean) + emission_offset, beside(emission @ factor, observed)))
        return GaussianForecast(*self._moments(states), *self._moments(seen))

    def _run(self) -> tuple[plain.Forward, Tensor, plain.Start]:
        run = plain.forward(self._tables)
        failed = run.singular.expand(*self.batch_shape, self.n_steps).nonzero()
        if len(failed):
            *index, step = failed[0].tolist()
            if not bool(run.predicted[step][1].isfinite().all()):
                raise ValueError(
                    f"transition, state_noise: the variance at step {step}{_of_sequence(index)} lies beyond what "
                    f"{str(self._like.dtype).removeprefix('torch.')} holds; give parameters that let it grow less."
                )
            raise ValueError(
                f"observation_noise: the observation at step {step}{_of_sequence(index)} has features without noise of "
                "their own, or that other features fix; give it positive variances, or leave such features out."
            )
        total, start, left_open = plain.evidence(self._tables, run)
        short = left_open.expand(self.batch_shape).nonzero()
        if len(short):
            index = short[0].tolist()
            raise ValueError(
                f"diffuse: the {int(self.lengths[tuple(index)])} steps of x{_of_sequence(index)} do not determine the "
                f"{self._tables.n_diffuse} diffuse states; give more observations, or an initial_covariance in place "
                "of a diffuse start."
            )
        if bool(total.isinf().any()):
            raise ValueError(
                f"x: its log density lies beyond what {str(total.dtype).removeprefix('torch.')} holds; give it, or the "
                "noises, in units in which observations are not that far from what is expected."
            )
        return run, total.expand(self.batch_shape), start

    def _by_step(self, name: str, table: Tensor | None, steps: int, *own: int) -> Tensor:
        """A parameter with its axis of steps, one entry where it is constant."""
        if table is None:
            return self._like.new_zeros(1, *own)
        table = check_table(name, table, *own, like=self._like, finite=True)
        given = table.dim() - len(own)
        axes = self._like.dim() - 2
        if given <= axes:
            return table.unsqueeze(-len(own) - 1)
        if given > axes + 1 or table.shape[-len(own) - 1] not in (1, steps):
            sizes = ", ".join(map(str, own))
            raise ValueError(
                f"{name}: got shape {list(table.shape)}, expected [*batch, {sizes}] for all steps, or "
                f"[*batch, {steps}, {sizes}], one each; it is taken for the latter where it has more batch axes than "
                f"x, {list(self._like.shape)}: give x further ones, of size 1."
            )
        return table

    @property
    def _varying(self) -> list[str]:
        t, names = self._tables, ("transition", "transition_offset", "state_noise", "emission", "emission_offset")
        tables = zip((*names, "observation_noise"), t[3:9], (3, 2, 3, 3, 2, 3), strict=True)
        return [name for name, table, axis in tables if table.shape[-axis] != 1]

    def _steps(self, rows: Iterable[Tensor], n_axes: int) -> Tensor:
        """Rows of each step, stacked, with all batch axes."""
        table = torch.stack(torch.broadcast_tensors(*rows), -n_axes - 1)
        return table.expand(*self.batch_shape, *table.shape[-n_axes - 1 :])

    def _moments(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return self._steps([mean for mean, _ in pairs], 1), self._steps([covariance_of(z) for _, z in pairs], 2)

    def _open(self, pairs: list[tuple[Tensor, Tensor]], starts: list[plain.Start]) -> Tensor:
        left = [means[..., :-1] @ start.left_open for (means, _), start in zip(pairs, starts, strict=True)]
        return self._steps([covariance_of(factor) for factor in left], 2)

    def _inside(self, table: Tensor) -> Tensor:
        """A table [*b, T, ...], 0 beyond the end."""
        n_axes = table.dim() - len(self.batch_shape) - 1
        return torch.where(self._active[(..., *[None] * n_axes)], table, 0.0)


def _of_sequence(index: list[int]) -> str:
    return f" of sequence {index[0] if len(index) == 1 else tuple(index)}" if index else ""


def _given(name: str, table: Tensor | None, like: Tensor, *own: int) -> Tensor:
    return like.new_zeros(own) if table is None else check_table(name, table, *own, like=like, finite=True)


def _check_diffuse(diffuse: Any, n_states: int, like: Tensor) -> Tensor:
    if diffuse is None:
        return torch.zeros(n_states, dtype=torch.bool, device=like.device)
    mask = numbers(diffuse, "diffuse")
    if mask.dtype != torch.bool:
        raise TypeError(f"diffuse: got {mask.dtype}, expected truth values, one a state; True: it starts anywhere.")
    check_shape("diffuse", mask, (n_states,))
    if mask.dim() != 1:
        raise ValueError(f"diffuse: got shape {list(mask.shape)}, expected [{n_states}], the same for all sequences.")
    return mask.to(like.device)


def _factor(name: str, covariance: Tensor) -> Tensor:
    """A factor; ValueError unless the covariance is symmetric and positive semidefinite, to rounding."""
    given = covariance.detach()
    scale = given.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    bound = 1e3 * torch.finfo(given.dtype).eps * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    if bool(((given - given.mT).abs() > bound).any()):
        raise ValueError(f"{name}: got a matrix that is not symmetric; give a covariance, such as (a + a.mT) / 2.")
    factor, negative = factor_of(covariance)
    if bool(negative.any()) or bool((given.diagonal(dim1=-2, dim2=-1) < 0).any()):
        raise ValueError(
            f"{name}: got a matrix with a negative eigenvalue, {float(torch.linalg.eigvalsh(given).min()):g}; give a "
            "covariance, such as a @ a.mT."
        )
    return factor


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _log_density(gap: Tensor, factor: Tensor) -> Tensor:
    """log N(gap; 0, factor factor'), inf where that is singular."""
    triangle = torch.linalg.qr(factor.mT)[1].mT
    diagonal, least = triangle.diagonal(dim1=-2, dim2=-1).abs(), plain.ROUNDINGS * torch.finfo(gap.dtype).eps
    singular = (diagonal <= least * factor.norm(dim=-1)).any(-1)
    safe = torch.where(singular[..., None, None], torch.eye(gap.shape[-1]).to(gap), triangle)
    white = torch.linalg.solve_triangular(safe, gap.unsqueeze(-1), upper=False).squeeze(-1)
    log_det = torch.where(singular.unsqueeze(-1), 1.0, diagonal).log().sum(-1)
    value = -white.square().sum(-1) / 2 - log_det - gap.shape[-1] * plain.LOG_2PI / 2
    return torch.where(singular, torch.inf, value)
