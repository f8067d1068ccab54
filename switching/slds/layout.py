"""The layout of a switching linear model: its sizes, its parameters, and these as points of conjugate families.

The blocks, each with a leading axis of regimes or chains, are

    first            normal-Wishart, the state at the first step of each chain
    moves            matrix-normal-Wishart, the transition of the state of each regime or chain
    sights           matrix-normal-Wishart, the emission: a block for each feature, or one block with a full noise
    initial          Dirichlet, the regime at the first step
    transition       Dirichlet rows, the transition of the regime; or, if the states choose the regime,
    recurrence       normal, the weights of each logistic regression: of the states, and of the previous regime
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.scalars import check_flag, check_integer
from ..fitting.graph import Points
from ..linear.bases import n_bases
from ..linear.emission import IN_ANY_BASIS, LinearEmission
from ..linear.fixed import inverse_in_groups, known_points, open_values
from ..linear.priors import NAMES, values_at
from ..linear.priors import points as linear_points
from ..parameters import SYMMETRIC, Named, Parameter, Parameters
from ..user_priors import UserPrior, log_density, read
from .joint import CHAIN, COVARIANCES, PARAMETERS, Regimes, side_by_side, sizes_of

ALONE = ("first", "moves", "sights")  # blocks that a single linear model also has
BLOCKS = NAMES | {
    "initial": ("initial_probs",),
    "transition": ("transition_probs",),
    "recurrence": ("recurrence", "recurrence_offset"),
}
"""The parameters of each block."""
SAME = 1e-9  # relative difference of two log densities that counts as rounding


@dataclass(frozen=True)
class LinearRegimes(Named):
    """Sizes and kind of a switching linear model.

    Arguments:
        one_chain: whether all regimes share one chain of states. Otherwise each has its own, and the switch shows one.
        common_emission: whether all regimes have the same emission; only with one chain.
        full_noise: whether the noises of the features depend on each other.
        recurrent: whether the state chooses the next regime; only with one chain.
        prior: priors of the parameters of `forms`, distributions of Pyro by name.
    """

    n_regimes: int
    n_latent: int
    n_features: int
    one_chain: bool = False
    common_emission: bool = False
    full_noise: bool = False
    recurrent: bool = False
    prior: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("n_regimes", "n_latent", "n_features"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name)))
        for name in ("common_emission", "recurrent"):
            if check_flag(name, getattr(self, name)) and not self.one_chain:
                raise ValueError(f'{name}: got True, but only regimes of "one chain" can; set shared="one chain".')
        if self.recurrent and self.n_regimes < 2:
            raise ValueError(
                "recurrent: got True with a single regime, so there is nothing to choose; give two or more."
            )
        _ = self.user_priors  # raises an error if they do not fit

    # ---- priors of the user ------------------------------------------------------------------------------------------

    @cached_property
    def forms(self) -> dict[str, Parameter]:
        """The parameters that no linear change of the states changes, with the supports of their priors."""
        known, seen = self.known, self.seen.parameters
        same = {
            name: known[name] for name in ("initial_probs", "transition_probs", "recurrence_offset") if name in known
        }
        return same | {name: replace(known[name], support=seen[name].support) for name in IN_ANY_BASIS}

    @cached_property
    def user_priors(self) -> dict[str, UserPrior]:
        """The user's priors, by parameter."""
        of = "SwitchingLinearSSM that have one"
        return {} if self.prior is None else read(self.prior, self.forms, of, self.sizes)

    @property
    def n_chains(self) -> int:
        """C, the number of chains of states."""
        return 1 if self.one_chain else self.n_regimes

    @property
    def n_emissions(self) -> int:
        """The number of emissions: one for each regime, or one for all."""
        return 1 if self.common_emission else self.n_regimes

    @property
    def seen(self) -> LinearEmission:
        """The emission of one regime."""
        return LinearEmission(self.n_features, self.full_noise)

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        chains = {"chain_latent": self.n_chains * self.n_latent}
        return sizes_of(self.n_regimes, self.n_latent, self.n_features) | chains

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks of parameters; a single regime has no switch."""
        switch = ("initial", "recurrence" if self.recurrent else "transition") if self.n_regimes > 1 else ()
        return (*ALONE, *switch)

    @property
    def known(self) -> dict[str, Parameter]:
        """The axes and the support of each parameter."""
        other = BLOCKS["transition" if self.recurrent else "recurrence"]
        known = {name: parameter for name, parameter in PARAMETERS.items() if name not in other}
        if not self.full_noise:
            known["observation_noise"] = Parameter(("state", "feature"), constraints.nonnegative)
        return known | {name: replace(known[name], dims=known[name].dims[1:]) for name in self._alone}

    def is_as_likely(self, values: Parameters, order: Tensor) -> bool:
        """Whether priors of the user have the same density where regime `order[k]` is regime k."""
        here, there = (log_density(self.user_priors, some) for some in (values, self.reordered(values, order)))
        return bool((here - there).abs() <= SAME * here.abs().clamp_min(1.0))

    # ---- parameters as points of the blocks --------------------------------------------------------------------------

    def points(self, values: Parameters, inverse: Callable[[Tensor], Tensor] | None = None) -> Points:
        """Parameters `[*r, ...]` as points of the blocks; `inverse` as in `linear.priors.points`."""
        table = values | {name: values[name].unsqueeze(self._axis(values, name)) for name in self._alone}
        points: Points = linear_points(table, self.full_noise, inverse) | {"initial": values["initial_probs"]}
        if not self.recurrent:
            return points | {"transition": values["transition_probs"]}
        return points | {"recurrence": torch.cat([values["recurrence"], values["recurrence_offset"].mT], -1)}

    def values(self, points: Points) -> Parameters:
        """Points of the blocks as parameters, the inverse of `points`."""
        if self.n_regimes == 1:
            one = points["moves"].loc.new_ones(*points["moves"].loc.shape[:-2])
            points = points | {"initial": one, "transition": one.unsqueeze(-1)}
        values = values_at(points, self.full_noise) | {"initial_probs": points["initial"]}
        if self.recurrent:
            values["recurrence"], offset = points["recurrence"].split([self.n_latent, self.n_regimes], -1)
            values["recurrence_offset"] = offset.mT
        else:
            values["transition_probs"] = points["transition"]
        values |= {name: values[name].squeeze(-len(self.known[name].dims) - 1) for name in self._alone}
        return {name: values[name] for name in self.known}

    def known_points(self, tables: Parameters) -> Points:
        """The points of the blocks of which some entries are known, from tables with NaN where they are free."""
        if not tables:
            return {}
        points = self.points(open_values(self.known, self.sizes, tables), inverse_in_groups)
        return known_points({name: points[name] for name in self.blocks})

    def together(self, tables: Parameters) -> tuple["LinearRegimes", Parameters]:
        """The layout of a single linear model, and what is known of it: means over regimes."""
        alone = replace(self, n_regimes=1, one_chain=True, common_emission=False, recurrent=False, prior=None)
        known = {}
        for names in NAMES.values():
            for name in names:
                if name in tables:
                    table = tables[name].mean(0, keepdim=True) if "state" in self.known[name].dims else tables[name]
                    known[name] = table.reshape([alone.sizes[dim] for dim in alone.known[name].dims])
        return alone, known

    def n_bases(self, values: Parameters, fixed: Iterable[str]) -> int:
        """The number of directions in which another basis of the states changes no fixed parameter."""
        if self.one_chain:
            return n_bases(values, fixed)
        tables = fixed if isinstance(fixed, Mapping) else {name: values[name] for name in fixed}
        names = [name for block in NAMES.values() for name in block]
        total = 0
        for k in range(self.n_regimes):
            mine, known = ({name: some[name][k] for name in names if name in some} for some in (values, tables))
            total += n_bases(mine, known)
        return total

    @property
    def _alone(self) -> tuple[str, ...]:
        """The parameters that all regimes share."""
        return (*(NAMES["sights"] if self.common_emission else ()), *(NAMES["first"] if self.one_chain else ()))

    def _axis(self, values: Parameters, name: str) -> int:
        return values[name].ndim - len(self.known[name].dims)

    def singular(self, values: Parameters) -> str | None:
        """The name of a covariance without an inverse, if one of these is."""
        for name in [name for name in COVARIANCES if name in values]:
            table = values[name] if self.known[name].support in SYMMETRIC else torch.diag_embed(values[name])
            if bool((torch.linalg.cholesky_ex(table).info != 0).any()):
                return name
        return None

    # ---- other forms -------------------------------------------------------------------------------------------------

    def separately(self, values: Parameters) -> Parameters:
        """The parameters of each regime as a model of its own, [K, ...], by the names of a `LinearGaussianChain`."""
        k, noise = self.n_regimes, values["observation_noise"]
        table = values | {"observation_noise": noise if self.full_noise else torch.diag_embed(noise)}
        table |= {name: table[name].expand(k, *table[name].shape) for name in self._alone}
        return {name: table[name] for name in CHAIN}

    def regimes(self, values: Parameters) -> Regimes:
        """The same model in the form of one chain with switching transitions and emissions."""
        k, table = self.n_regimes, values | self.separately(values)
        if self.recurrent:
            table["transition_probs"] = values["initial_probs"].new_full((k, k), 1 / k)  # not used
        return Regimes(**(table if self.one_chain else side_by_side(table)))

    def reordered(self, values: Parameters, order: Tensor) -> Parameters:
        """Parameters `[*r, ...]` of the same model with regime `order[k]` as regime k; not for recurrent models, whose
        stick breaking depends on the order of the regimes."""
        reordered = {}
        for name, value in values.items():
            dims = self.known[name].dims
            for axis, dim in enumerate(dims, start=-len(dims)):
                value = value.index_select(axis, order) if dim in ("state", "state_new") else value
            reordered[name] = value
        return reordered
