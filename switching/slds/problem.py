"""A switching linear model and a series, for the tables, exports and summaries of all models.

Other models use an exact chain. Here GPB filters, and the structured approximation smooths.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import Filtered
from ...inference.chains.linear_gaussian.factors import factor_of
from ...inference.chains.markov.chain import MarkovChain
from ..data.series import Series
from ..parameters import Parameter, Parameters, check_parameters, read_tables
from ..problem import SeriesProblem
from .gpb import SwitchingFiltered, gpb_filter
from .inference import SwitchingPaths, infer
from .joint import Regimes
from .layout import LinearRegimes

ORDER = 2  # of the filter


@dataclass(frozen=True, repr=False)
class SwitchingLinearProblem(SeriesProblem):
    """As `Problem`, for a switching linear model; parameters may have one leading axis of draws."""

    layout: LinearRegimes
    series: Series
    prior: Parameters | None = None
    fixed: Parameters = field(default_factory=dict)

    @property
    def n_states(self) -> int:
        """The cost of a step, the size of its covariances, from which callers compute how much fits into memory."""
        return self.layout.n_regimes * self.layout.n_chains * self.layout.n_latent**2

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.layout.known

    def values_of(self, values: Mapping[str, Any]) -> Parameters:
        """Parameters from numbers by name.

        Raises:
            ValueError: a parameter is missing, unknown, of another shape, or outside its space.
        """
        known = self.layout.known
        unknown = [name for name in values if name not in known]
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {unknown}; this model has {list(known)}.")
        return check_parameters(known, read_tables(values), self.layout.sizes, "switching linear model")

    def chain(self, values: Parameters) -> "ApproximateChain":
        """Filter and smoother under these parameters."""
        return ApproximateChain(self.layout, values, self.series)

    def draws_ahead(self, values: Parameters, filtered: Any, each: int) -> Float[Tensor, "total *b T F"]:
        return self.chain(values).ahead(each)

    def draws_along(self, values: Parameters, drawn: Tensor) -> Float[Tensor, "total *b T F"]:
        return drawn

    def log_prior(self, values: Parameters) -> Tensor:
        """0: only the objective of a fit includes the density of its prior."""
        return self.series.like.new_zeros(())


@dataclass(frozen=True)
class ApproximateChain:
    """The posterior over regimes and states under parameters, or under each of several draws `[n, ...]` of
    parameters."""

    layout: LinearRegimes
    values: Parameters
    series: Series

    def log_normalizer(self) -> Float[Tensor, "*rb"]:
        """log p(x), by GPB."""
        return self.filter().log_normalizer

    def filter(self) -> Filtered:
        """The belief about regimes after each observation, by GPB."""
        names = "log_normalizer", "log_increment", "state"
        return Filtered(*(self._joined([getattr(f, name) for f in self.filtered]) for name in names))

    @cached_property
    def filtered(self) -> list[SwitchingFiltered]:
        """The results of GPB under each draw."""
        return [gpb_filter(self.layout.regimes(v), self._x, ORDER, self.series.lengths) for v in self.each]

    def ahead(self, n: int) -> Float[Tensor, "total *b T F"]:
        """n draws of every x_t given the steps before it, under each draw of the parameters.

        The belief before each step is the filter's, with all of its densities merged into one.
        """
        draws = []
        for values, filtered in zip(self.each, self.filtered, strict=True):
            regimes = self.layout.regimes(values)
            mean, covariance, weight = _one_ahead(regimes, filtered)
            z = _drawn(weight, n)
            draws.append(_observed(regimes, z, _chosen(mean, z), _chosen(covariance, z)))
        return torch.cat(draws)

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "total *b T F"]:
        """n new series, with regimes and states from q, under each draw of the parameters."""
        draws = []
        for values, paths in zip(self.each, self.paths, strict=True):
            regimes = self.layout.separately(values)
            z = MarkovChain(*paths.switch, self.series.lengths).sample(n, generator).path.clamp_min(0)
            mean = paths.mean.movedim(-3, -2).expand(*paths.state.shape, -1)
            covariance = paths.covariance.movedim(-4, -3).expand(*paths.state.shape, *paths.covariance.shape[-2:])
            draws.append(_observed(regimes, z, _chosen(mean, z), _chosen(covariance, z)))
        return torch.cat(draws)

    @cached_property
    def paths(self) -> list[SwitchingPaths]:
        """The structured approximation under each draw."""
        return [infer(self.layout, values, self.series) for values in self.each]

    def smooth(self) -> "ApproximateChain":
        """The chain itself: it has the `state` of an exact chain's `smooth()`."""
        return self

    @property
    def state(self) -> Float[Tensor, "*rb T K"]:
        """q(z_t)."""
        return self._joined([paths.state for paths in self.paths])

    @property
    def latents(self) -> tuple[Float[Tensor, "*rb T CL"], Float[Tensor, "*rb T CL"]]:
        """Means and standard deviations of the states of all chains under q, next to each other."""
        means, spreads = [], []
        for paths in self.paths:
            spread = paths.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
            means.append(paths.mean.movedim(-3, -2).flatten(-2))
            spreads.append(spread.movedim(-3, -2).flatten(-2))
        return self._joined(means), self._joined(spreads)

    @property
    def _x(self) -> Tensor:
        return self.series.observations

    @property
    def _several(self) -> bool:
        return self.values["initial_probs"].ndim > 1

    @property
    def each(self) -> list[Parameters]:
        """The parameters of each draw."""
        if not self._several:
            return [self.values]
        n = len(self.values["initial_probs"])
        return [{name: value[i] for name, value in self.values.items()} for i in range(n)]

    def _joined(self, tables: list[Tensor]) -> Tensor:
        return torch.stack(tables) if self._several else tables[0]


def _one_ahead(regimes: Regimes, filtered: SwitchingFiltered) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and covariance of s_t in each regime and the regimes' probabilities, given x_1..t-1: [*b, T, K, ...]."""
    before, spread = filtered.mean[..., :-1, None, :], filtered.covariance[..., :-1, None, :, :]
    mean = (regimes.transition @ before.unsqueeze(-1)).squeeze(-1) + regimes.transition_offset
    covariance = regimes.transition @ spread @ regimes.transition.mT + regimes.state_noise
    moves = regimes.log_transition(None if regimes.recurrence is None else filtered.mean[..., :-1, :]).exp()
    weight = (filtered.state[..., :-1, None, :] @ moves).squeeze(-2)
    batch = mean.shape[:-3]
    first = regimes.initial_mean.expand(*batch, 1, -1, -1), regimes.initial_covariance.expand(*batch, 1, -1, -1, -1)
    weights = torch.cat([regimes.initial_probs.expand(*batch, 1, -1), weight], -2)
    return torch.cat([first[0], mean], -3), torch.cat([first[1], covariance], -4), weights


def _drawn(weight: Tensor, n: int) -> Tensor:
    """n regimes [n, *b, T]; uniform after the end of a sequence, where there are no weights."""
    there = weight.sum(-1, keepdim=True) > 0
    return torch.distributions.Categorical(torch.where(there, weight, 1.0)).sample(torch.Size((n,)))


def _chosen(table: Tensor, z: Tensor) -> Tensor:
    """The entries of the regimes z [n, *b, T], from a table [*b, T, K, ...]."""
    n_axes = table.ndim - z.ndim
    index = z.reshape(*z.shape, 1, *(1,) * n_axes)
    return table.expand(*z.shape, *table.shape[z.ndim - 1 :]).take_along_dim(index, z.ndim).squeeze(z.ndim)


def _observed(regimes: Any, z: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Draws of observations in regimes z, for states with these means and covariances."""
    tables = regimes if isinstance(regimes, dict) else vars(regimes)
    emission = tables["emission"][z]
    loc = (emission @ mean.unsqueeze(-1)).squeeze(-1) + tables["emission_offset"][z]
    factor, _ = factor_of(emission @ covariance @ emission.mT + tables["observation_noise"][z])
    return loc + (factor @ torch.randn_like(loc).unsqueeze(-1)).squeeze(-1)
