r"""`FactorialSSM`: D copy chains that jointly drive one observation (Ghahramani & Jordan 1997, with copy chains).

$$z_{dt} \sim \text{Bernoulli}(\rho_d), \quad s_{dt} = s_{d,t-1} \text{ if } z_{dt} = 0, \quad
s_{dt} \sim \text{Categorical}(\pi_d) \text{ if } z_{dt} = 1, \qquad \eta_t = \textstyle\sum_d M_d[s_{dt}]$$

It is the generative model of a minGRU with D hidden units: each unit is the belief of one chain, and all chains
together emit the input. The first step redraws all chains. There are two emissions. Their log-likelihood is exactly
multilinear in the chains' one-hot states, so the bound below needs no further approximation:

    normal    x_t ~ N(eta_t, precision^-1), a full or a diagonal matrix
    counts    x_tf ~ Poisson(exp eta_tf), log-linear: exp eta is a product over chains

A softmax or a logistic of $\eta_t$ is not multilinear, because its normalizer is the logarithm of a sum over all
chains. It is not supported.

**Structured message passing.** $q = \prod_d q_d(z_d, s_d)$, each an exact chain. With $m_{dt} = E_q[s_{dt}]$

$$E \log N = -\tfrac12 \Big( x^\top P x - 2 x^\top P \textstyle\sum_d M_d^\top m_d
+ \sum_d m_d \cdot \text{diag}(M_d P M_d^\top)
+ 2 \sum_{d < e} (M_d^\top m_d)^\top P\, M_e^\top m_e \Big) + \text{const}$$
$$E \log \text{Poisson} = \textstyle\sum_f x_f \sum_d (M_d^\top m_d)_f - \prod_d (e^{M_d \top} m_d)_f - \log x_f!$$

couple the chains. The message to a chain is the gradient with respect to its m. The exact posterior is the posterior of
one chain over $\prod_d K_d$ states.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, partial, reduce
from typing import Any, Unpack

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from ...inference.families import Beta, CopyPaths, CopyTables, Dirichlet, Gamma, MatrixNormalWishart
from ...inference.message_passing.engine import VMP, Block, Factor
from ..data.series import Given, Series
from ..dynamics.factors import fresh_states, gates
from ..dynamics.markov import Markov
from ..emissions.contract import Emission
from ..emissions.discrete import Poisson
from ..emissions.multivariate_normal import MultivariateNormal
from ..fitting.graph import Graph, Points
from ..fitting.options import Options
from ..model import SwitchingSSM
from ..parameters import Parameter, Parameters
from .contract import CoupledSSM, draw_chain, prior_tables
from .factors import (
    check_possible_everywhere,
    check_whole_steps,
    greedy_labels,
    in_groups,
    joint_counts,
    joint_normal,
    noise_prior,
    rate_prior,
)
from .noise import CountNoise, NormalNoise


class FactorialSSM(CoupledSSM):
    """A model of D independent copy chains that jointly drive one observation.

    Arguments:
        chain_sizes: K_1, ..., K_D, the number of states of each chain.
        emission: `MultivariateNormal(n_features)`; or `Poisson(n_features)`, counts with log rate eta.

    Parameters, d from 1 to D: `redraw_prob` [D]; `state_probs_d` [K_d], the fresh state's probabilities; `loc_d`
    [K_d, F], the terms of the states of chain d in eta; and for normals `precision` [F, F], the inverse covariance of
    the noise.

    Priors may be a `Beta` of `redraw_prob`, a `Dirichlet` of `state_probs_d`, for normals a `Wishart` of `precision`,
    and for counts a `Gamma` of `rate_d`, the exponential of `loc_d`. The prior of the locations of normals depends on
    the precision, so it has no distribution by itself.

    Methods accept x as `SwitchingSSM` does. NaN is missing; single features are marginalised.

    Raises:
        TypeError: sizes that are not whole numbers, or another emission.
        ValueError: sizes below 1.

    Ghahramani & Jordan 1997, whose chains are Markov chains.

    See Also:
        `LayeredSSM`, whose chains depend on each other; `SwitchingSSM`, of one chain; docs/guides/tour.md.

    Example:
        >>> import samplehold as sh
        >>> half = [0.5, 0.5]
        >>> model = sh.FactorialSSM([2, 2], sh.MultivariateNormal(2)).with_values(
        ...     redraw_prob=[0.1, 0.1], state_probs_1=half, state_probs_2=half, loc_1=torch.eye(2),
        ...     loc_2=3 * torch.eye(2), precision=torch.eye(2))
        >>> model.smooth(torch.tensor([[1.0, 3.0], [0.9, 3.1], [3.2, 0.8]])).redraw.shape
        torch.Size([3, 2])
    """

    emissions = (MultivariateNormal, Poisson)
    of_emissions = "MultivariateNormal(n_features) or Poisson(n_features)"
    chain_name = "component"

    def __init__(self, chain_sizes: Sequence[int], emission: Emission) -> None:
        if getattr(emission, "tied", None) is not None:
            raise ValueError("emission: got a tied one, but all states of a FactorialSSM share the noise; omit `tied`.")
        super().__init__(chain_sizes, emission)

    @property
    def counts(self) -> bool:
        """Whether the emission is of counts."""
        return isinstance(self.emission, Poisson)

    @property
    def loc(self) -> list[Tensor]:
        """The terms of each chain's states in eta: `[K_d, F]`."""
        return self._by_chain("loc", self.n_chains)

    @property
    def fresh_probs(self) -> tuple[Tensor, ...]:
        return tuple(self._by_chain("state_probs", self.n_chains))

    # ---- parameters --------------------------------------------------------------------------------------------------

    @property
    def _of_chains(self) -> dict[str, Parameter]:
        """As of any such model; with the rates of each chain's states for counts."""
        chains = range(1, self.n_chains + 1)
        known = {"redraw_prob": Parameter((self.chain_name,), constraints.unit_interval)}
        known |= {f"state_probs_{d}": Parameter((f"state_{d}",), constraints.simplex) for d in chains}
        if self.counts:
            known |= {f"rate_{d}": Parameter((f"state_{d}", "feature"), constraints.positive) for d in chains}
        return known

    @property
    def prior_kinds(self) -> dict[str, type[Distribution]]:
        return {name: kind for name, kind in super().prior_kinds.items() if name != "rate"}  # of joint states

    @property
    def known(self) -> dict[str, Parameter]:
        known = {"redraw_prob": self._of_chains["redraw_prob"]}
        for d in range(1, self.n_chains + 1):
            known[f"state_probs_{d}"] = self._of_chains[f"state_probs_{d}"]
            known[f"loc_{d}"] = Parameter((f"state_{d}", "feature"))
        if not self.counts:
            known["precision"] = self.emission.parameters["precision"].renamed({"state": None})
        return known

    @property
    def sizes(self) -> dict[str, int]:
        states = {f"state_{d}": k for d, k in enumerate(self.chain_sizes, start=1)}
        return states | {self.chain_name: self.n_chains, "feature": self.n_features, "feature_new": self.n_features}

    def _checked(self, values: Parameters) -> Parameters:
        checked = super()._checked(values)
        if self.counts:
            _check_rates([checked[f"loc_{d}"] for d in range(1, self.n_chains + 1)])
        return checked

    def n_free(self, fixed: Iterable[str]) -> int:
        """The number of free parameters in a fit; a constant can move from all locations of one chain to another's."""
        return super().n_free(fixed) - (self.n_chains - 1) * self.n_features

    # ---- the generative program --------------------------------------------------------------------------------------

    def _step(self, t: int, states: list[Tensor]) -> tuple[list[Tensor], Any]:
        chains = zip(self._values["redraw_prob"], self.fresh_probs, strict=True)
        states = [
            draw_chain(t, d, rho, probs, states[d] if states else None)[1] for d, (rho, probs) in enumerate(chains)
        ]
        added = torch.broadcast_tensors(*(m[s] for m, s in zip(self.loc, states, strict=True)))
        eta = torch.stack(added).sum(0)
        if self.counts:
            return states, dist.Poisson(eta.exp()).to_event(1)
        return states, dist.MultivariateNormal(eta, precision_matrix=self._values["precision"])

    # ---- one chain over all joint states -----------------------------------------------------------------------------

    @cached_property
    def product(self) -> SwitchingSSM:
        """The model of one chain over all joint states, the last chain's state changing fastest."""
        return SwitchingSSM(Markov(math.prod(self.chain_sizes)), self.emission).with_values(
            self.product_of(self._values)
        )

    def product_of(self, values: Parameters) -> Parameters:
        chains = range(1, self.n_chains + 1)
        rho = values["redraw_prob"].unbind(-1)
        probs, loc = ([values[f"{name}_{d}"] for d in chains] for name in ("state_probs", "loc"))
        eta = reduce(lambda a, b: (a.unsqueeze(-2) + b.unsqueeze(-3)).flatten(-3, -2), loc)
        chain_values = {
            "initial_probs": reduce(_outer, probs),
            "transition_probs": reduce(_kron, [_moves(r, p) for r, p in zip(rho, probs, strict=True)]),
        }
        if self.counts:
            return chain_values | {"rate": eta.exp()}
        return chain_values | {"loc": eta, "precision": values["precision"].unsqueeze(-3).expand(*eta.shape, -1)}

    def gates_of(self, values: Parameters) -> Tensor:
        tables = []
        for d, rho in enumerate(values["redraw_prob"].unbind(-1)):
            probs = values[f"state_probs_{d + 1}"]
            moves = _moves(rho, probs)
            gate = torch.where(moves > 0, rho[..., None, None] * probs.unsqueeze(-2) / moves, 0.0)
            ones = [torch.ones_like(gate[..., :1, :1]).expand(*gate.shape[:-2], k, k) for k in self.chain_sizes]
            tables.append(reduce(_kron, [*ones[:d], gate, *ones[d + 1 :]]))
        return torch.stack(tables, -3)

    @property
    def _axes(self) -> tuple[int, ...]:
        return self.chain_sizes

    # ---- message passing ---------------------------------------------------------------------------------------------

    def engine(self, x: Any, *, check: bool = True, **given: Unpack[Given]) -> VMP:
        """The engine of the model at its values: a block `chain_d` (d from 1) of exact paths for each chain, and one
        factor.

        Arguments:
            check: whether the factors are tested.
        """
        series = self.read(x, **given)
        blocks, values, loc = [], series.observations, self.loc
        for d, (rho, probs) in enumerate(zip(self._values["redraw_prob"], self.fresh_probs, strict=True), start=1):
            zero, base = (
                values.new_zeros(*values.shape[:-1], len(probs)),
                prior_tables(rho, probs.log(), series.n_steps),
            )
            blocks.append(Block(f"chain_{d}", CopyPaths(series.lengths, base), eta=CopyTables(zero, zero)))
        noise = CountNoise.of(values) if self.counts else NormalNoise.of(values, self._values["precision"])

        def emission(*stats: CopyTables) -> Tensor:
            return noise.expected(loc, [used.fresh + used.held for used in stats])

        even = [torch.full_like(block.eta.fresh, 0.5 / block.eta.fresh.shape[-1]) for block in blocks]
        check_possible_everywhere(emission(*(CopyTables(share, share) for share in even)), series)
        factor = Factor(emission, tuple(block.name for block in blocks), mask=series.inside.to(values))
        return VMP(blocks, [factor], check=check)

    def graph(self, series: Series, options: Options, there: Series | None = None) -> Graph:
        counts, sizes = self.counts, self.chain_sizes
        about = series.like.new_zeros(self.n_features)
        if not counts:
            check_whole_steps(series.rows if there is None else there.rows)
            about = series.rows.double().nanmean(0).to(series.like)  # the mean of a constant feature is exact
        shifted = series.shifted(about)
        x, families, priors = shifted.rows, {}, {}
        for d, k in enumerate(sizes, start=1):
            families |= {f"redraw_{d}": Beta(), f"state_{d}": Dirichlet()}
            priors |= {f"redraw_{d}": x.new_ones(2), f"state_{d}": x.new_ones(k)}
        if counts:
            families |= {f"rate_{d}": Gamma() for d in range(1, len(sizes) + 1)}
            priors |= {f"rate_{d}": rate_prior(x, k, len(sizes)) for d, k in enumerate(sizes, start=1)}
        else:
            own = self.emission.user_priors.get("precision")
            families["noise"], priors["noise"] = MatrixNormalWishart(sum(sizes)), noise_prior(x, sum(sizes), own)
        priors |= self._user_etas(x)
        labels = None if there is not None else greedy_labels(x, sizes, options.restarts, options.number)
        here = shifted if there is None else there.shifted(about)
        factors, paths = in_groups(here, labels, sizes, self._joining)
        values = partial(_values_at, sizes, counts, about)
        return Graph(families, priors, factors, paths, values, alike=there is not None)

    def _joining(self, series: Series, chains: list[str]) -> list[Factor]:
        """The factors of a series whose chains have these names."""
        x, n_axes, sizes = series.observations, len(series.batch_shape) + 1, self.chain_sizes
        factors = []
        for d, chain in enumerate(chains, start=1):
            factors += [gates(f"redraw_{d}", chain, n_axes), fresh_states(f"state_{d}", chain, n_axes)]
        if self.counts:
            return [*factors, joint_counts(x, chains)]
        return [*factors, joint_normal(x, MatrixNormalWishart(sum(sizes)), sizes, chains)]


def _check_rates(loc: Sequence[Tensor]) -> None:
    """Raise ValueError unless the dtype holds the rates of all joint states."""
    low, high = (torch.stack([getattr(part, end)(0) for part in loc]).sum(0) for end in ("amin", "amax"))
    if not bool((low.exp() > 0).all()) or not bool(high.exp().isfinite().all()):
        raise ValueError(
            f"loc: got log rates with sums from {float(low.min()):.3g} to {float(high.max()):.3g}, so rates are out "
            f"of range of {str(loc[0].dtype).removeprefix('torch.')}; give locations nearer to 0."
        )


def _moves(rho: Tensor, probs: Tensor) -> Tensor:
    """One chain's transition table with its gate summed out: [*r, K, K] of [*r] and [*r, K]."""
    rho = rho[..., None, None]
    return (1 - rho) * torch.eye(probs.shape[-1]).to(probs) + rho * probs.unsqueeze(-2)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Probabilities of pairs of independent states."""
    return (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """Transition tables of pairs of independent states."""
    return torch.einsum("...ij,...kl->...ikjl", a, b).flatten(-4, -3).flatten(-2)


def _values_at(sizes: Sequence[int], counts: bool, about: Tensor, points: Points) -> Parameters:
    """The parameters at points, with the locations of normals moved by `about`."""
    chains = range(1, len(sizes) + 1)
    values = {"redraw_prob": torch.stack([points[f"redraw_{d}"] for d in chains], -1)}
    values |= {f"state_probs_{d}": points[f"state_{d}"] for d in chains}
    if counts:
        least = math.log(torch.finfo(about.dtype).tiny) / len(sizes)  # a location cannot be the log of a rate of 0
        return values | {f"loc_{d}": points[f"rate_{d}"].log().clamp_min(least) for d in chains}
    parts = points["noise"].loc.split(list(sizes), -2)  # each chain gets an equal part of `about`
    values |= {f"loc_{d}": part + about / len(sizes) for d, part in enumerate(parts, start=1)}
    return values | {"precision": points["noise"].precision}
