r"""The sticky hierarchical Dirichlet process in its weak limit: Markov dynamics with learned concentrations.

$$\beta \sim \text{Dir}(\gamma/L, \dots, \gamma/L), \quad \pi_j \sim \text{Dir}(\alpha\beta + \kappa e_j), \quad
s_1 \sim \pi_0 \sim \text{Dir}(\alpha\beta), \quad s_t \sim \pi_{s_{t-1}},$$

with Gamma priors of $\gamma$ and $\alpha + \kappa$, and a Beta prior of $\rho = \kappa / (\alpha + \kappa)$. Most of
the L states stay without data, so L is an upper limit. The first state has a row of its own.
See `hierarchical_rows` for message passing, and `table_counts` for Gibbs sampling.

References: Fox, Sudderth, Jordan & Willsky 2011, *A sticky HDP-HMM with application to speaker diarization*; Teh,
Jordan, Beal & Blei 2006, *Hierarchical Dirichlet processes*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from jaxtyping import Int
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Held, MarkovTables, VectorFamily
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.delegation import delegated
from ...inference.numerics.scalars import check_states
from ..data.series import Series
from ..known import is_whole
from ..parameters import Parameter, Parameters, concentration
from ..priors import Conjugate, Site
from .contract import NOTHING, PATHS, Dynamics
from .factors import first_state, moves, named
from .hierarchical_rows import N_HYPER, HierarchicalPoint, HierarchicalRows, concentrations
from .markov import Markov
from .table_counts import draw_concentrations

PRIORS = {
    "base_concentration": ("base_shape_rate", "base_prior"),
    "row_concentration": ("row_shape_rate", "row_prior"),
    "stickiness": ("stickiness_concentration", "sticky_prior"),
}
"""By parameter, the name of its hyperparameters, and the argument of `StickyHDP`."""

HYPER = {*PRIORS, "base_probs"}
"""The parameters of which the concentrations of the rows are made."""


@dataclass(frozen=True, repr=False)
class StickyHDP(Dynamics):
    r"""A hidden Markov chain that uses as many of its states as the data ask for.

    The weak limit of a sticky hierarchical Dirichlet process: rows of moves share a base, whose sparsity is learned.
    Parameters `initial_probs [L]` and `transition_probs [L, L]` as of `Markov`, `base_probs [L]` ($\beta$),
    `base_concentration` ($\gamma$), `row_concentration` ($\alpha + \kappa$) and `stickiness` ($\rho$, the share of a
    row's concentration that is added to staying).

    Message passing integrates the rows, and has the other parameters at their mode. `fit(x, "gibbs")` draws all from
    their posterior, and is the reference; "svi" and "nuts" use the Pyro program. EM has no maximum. After a fit,
    `fit.n_states_used()` has the probability of each number of states.

    Arguments:
        max_states: L, at least 2; about twice the number of states that you expect, or more.
        base_prior: shape and rate of the Gamma prior of `base_concentration`; a smaller mean means fewer states.
        row_prior: shape and rate of the Gamma prior of `row_concentration`.
        sticky_prior: concentrations of the Beta prior of `stickiness`; (10, 1) expects states that last.

    Raises:
        TypeError: a number of states that is not an integer.
        ValueError: fewer than 2 states; a prior that is not two positive numbers.

    Fox, Sudderth, Jordan & Willsky 2011, *A sticky HDP-HMM with application to speaker diarization*.

    See Also:
        `Markov`, with a fixed number of states; `select`, which compares numbers; docs/guides/number_of_states.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.StickyHDP(max_states=6), sh.Poisson())
        >>> fit = model.fit([1, 0, 2, 1, 19, 18, 21, 20] * 4, "vmp", progress=False)
        >>> fit.n_states_used(seed=0).mode
        2
    """

    max_states: int
    base_prior: Sequence[float] = (1.0, 1.0)
    row_prior: Sequence[float] = (1.0, 0.1)
    sticky_prior: Sequence[float] = (10.0, 1.0)
    not_maximal: ClassVar[str] = (
        "its concentrations are below 1, so the density of its rows is infinite where a probability is 0"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_states", check_states("max_states", self.max_states, least=2))
        for _, argument in PRIORS.values():
            pair = concentration(getattr(self, argument), (2,), argument).tolist()
            object.__setattr__(self, argument, tuple(pair))

    @property
    def n_states(self) -> int:  # type: ignore[override]
        """L, the limit of the weak-limit approximation."""
        return self.max_states

    @cached_property
    def _markov(self) -> Markov:
        """The dynamics given the rows."""
        return Markov(self.max_states)

    chain = delegated("_markov")
    log_ahead = delegated("_markov")
    propagate = delegated("_markov")
    durations = delegated("_markov")
    first = delegated("_markov")
    draw = delegated("_markov")
    paths = delegated("_markov")

    # ---- parameters ------------------------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        return {"transition": HierarchicalBlock(self.max_states)}

    def default_prior(self, series: Series | None = None) -> Parameters:
        return {table: concentration(getattr(self, argument), (2,), argument) for table, argument in PRIORS.values()}

    def typical(self, prior: Parameters) -> Parameters:
        base, row, stay = (prior[table] for table, _ in PRIORS.values())
        means = base[0] / base[1], row[0] / row[1], stay[0] / stay.sum()
        uniform = base.new_full((self.max_states,), 1 / self.max_states)
        return dict(zip(PRIORS, means, strict=True)) | {"base_probs": uniform}

    def with_user_priors(self, prior: Mapping[str, Any]) -> tuple[Dynamics, Parameters]:
        """The same dynamics, and the hyperparameters of these priors."""
        kinds = dict.fromkeys(PRIORS, torch.distributions.Gamma) | {"stickiness": torch.distributions.Beta}
        tables: Parameters = {}
        for name, given in prior.items():
            if name not in PRIORS:
                raise ValueError(
                    f"prior[{name!r}]: got {type(given).__name__}, but its prior follows from {', '.join(PRIORS)}; "
                    "give their priors."
                )
            if not isinstance(given, kinds[name]):
                kind = kinds[name].__name__
                raise ValueError(f"prior[{name!r}]: got {type(given).__name__}, expected a {kind}.")
            parts = ("concentration1", "concentration0") if name == "stickiness" else ("concentration", "rate")
            pair = torch.stack([getattr(given, part) for part in parts], -1)
            tables[PRIORS[name][0]] = concentration(pair, (2,), f"prior[{name!r}]")
        return self, tables

    def check_states(self, series: Series, fixed: Parameters = NOTHING) -> None:
        known = fixed.keys() & self.parameters.keys()
        for name in sorted(known):
            if not is_whole(fixed[name]):
                raise ValueError(
                    f"fixed: got {name} known in part, but StickyHDP only holds whole tables; give all of it, or none."
                )
        if known and known not in (HYPER, self.parameters.keys()):
            raise ValueError(
                f"fixed: got {', '.join(sorted(known))}, but StickyHDP holds {', '.join(sorted(HYPER))} together, or "
                "all of its parameters; add the others, or leave them out."
            )
        self._markov.check_states(series, fixed)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def start(self, labels: Int[Tensor, "*rb T"], series: Series) -> Parameters:
        rows = self._markov.start(labels, series)
        like, typical = rows["initial_probs"], self.typical(self.default_prior())
        numbers = {name: typical[name].to(like).expand(like.shape[:-1]).clone() for name in PRIORS}
        return numbers | {"base_probs": rows["transition_probs"].mean(-2)} | rows

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        n_axes, block, k = len(series.batch_shape) + 1, "transition", self.max_states
        return [
            _of_rows(first_state(block, PATHS, n_axes, counted), "initial", slice(k, None), k),
            _of_rows(moves(block, PATHS, n_axes), block, slice(None, k), k),
        ]


def _of_rows(factor: Factor, name: str, rows: slice, k: int) -> Factor:
    """A factor of paths and some of the rows of a hierarchy, from that of a table of its own."""
    (block,) = set(factor.blocks) - {PATHS}

    def table(statistics: Tensor) -> Tensor:
        some = statistics[..., :-N_HYPER].unflatten(-1, (k + 1, k))[..., rows, :]
        return some.squeeze(-2) if name == "initial" else some

    def elog(paths: MarkovTables, statistics: Tensor) -> Tensor:
        return factor.elog(paths, table(statistics))

    def to_chain(paths: MarkovTables, statistics: Tensor) -> MarkovTables:
        return factor.messages[PATHS](paths, table(statistics))

    def to_block(paths: MarkovTables, statistics: Tensor) -> Tensor:
        count = factor.messages[block](paths, table(statistics))
        message = torch.zeros_like(statistics)
        message[..., :-N_HYPER].unflatten(-1, (k + 1, k))[..., rows, :] = (
            count.unsqueeze(-2) if name == "initial" else count
        )
        return message

    return Factor(named(name, elog), factor.blocks, {PATHS: to_chain, block: to_block}, mask=factor.mask)


@dataclass(frozen=True)
class HierarchicalBlock(Conjugate):
    """All parameters of `StickyHDP`: rows whose concentrations are parameters too."""

    n_states: int

    @property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return HierarchicalRows(self.n_states)

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {
            "base_concentration": Parameter((), constraints.positive),
            "row_concentration": Parameter((), constraints.positive),
            "stickiness": Parameter((), constraints.unit_interval),
            "base_probs": Parameter(("state",), constraints.simplex),
            "initial_probs": Parameter(("state",), constraints.simplex),
            "transition_probs": Parameter(("state", "state_new"), constraints.simplex),
        }

    def natural(self, prior: Parameters) -> Tensor:
        return HierarchicalRows(self.n_states).natural(*(prior[table] for table, _ in PRIORS.values()))

    def sites(self, prior: Parameters) -> list[Site]:
        base, row, stay = (prior[table] for table, _ in PRIORS.values())

        def rows(values: Parameters) -> tuple[Tensor, Tensor]:
            return concentrations(*(values[name] for name in ("base_probs", "row_concentration", "stickiness")))

        def base_probs(values: Parameters) -> Any:
            share = values["base_concentration"].unsqueeze(-1) / self.n_states
            return dist.Dirichlet(share.expand(*share.shape[:-1], self.n_states))

        return [
            Site("base_concentration", lambda values: dist.Gamma(base[0], base[1])),
            Site("row_concentration", lambda values: dist.Gamma(row[0], row[1])),
            Site("stickiness", lambda values: dist.Beta(stay[0], stay[1])),
            Site("base_probs", base_probs),
            Site("initial_probs", lambda values: dist.Dirichlet(rows(values)[1])),
            Site("transition_probs", lambda values: dist.Dirichlet(rows(values)[0]).to_event(1)),
        ]

    def point(self, values: Parameters) -> HierarchicalPoint:
        return HierarchicalPoint(**{name: values[name] for name in self.parameters})

    def given(self, known: Parameters) -> VectorFamily[Any]:
        """The rows at known base and concentrations, or all held."""
        if known.keys() == self.parameters.keys():
            return Held(HierarchicalRows(self.n_states), self.point(known))
        nothing = known["base_probs"].new_zeros(self.n_states, self.n_states)
        point = HierarchicalPoint(**known, initial_probs=nothing[0], transition_probs=nothing)
        return HierarchicalRows(self.n_states, point)

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        family = HierarchicalRows(self.n_states)
        rows = torch.cat([order, order.new_tensor([self.n_states])])
        return torch.cat([family.counts(eta)[..., rows, :][..., order].flatten(-2), eta[..., -N_HYPER:]], -1)

    def drawn(self, eta: Tensor, values: Parameters, at: Parameters = NOTHING) -> Parameters:
        tables = {name: values[name] for name in self.parameters}
        return tables if at.keys() == tables.keys() else draw_concentrations(eta, tables, at)
