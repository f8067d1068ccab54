r"""`FactorialSSM`: D copy chains that jointly drive one observation (Ghahramani & Jordan 1997, with copy chains).

$$z_{dt} \sim \text{Bernoulli}(\rho_d), \quad s_{dt} = s_{d,t-1} \text{ if } z_{dt} = 0, \quad
s_{dt} \sim \text{Categorical}(\pi_d) \text{ if } z_{dt} = 1, \qquad \eta_t = \textstyle\sum_d M_d[s_{dt}]$$

It is the generative model of a minGRU with D hidden units: each unit is the belief of one chain, and what they say of
the input they say together. The first step redraws all chains. Two emissions, whose log-likelihood is exactly
multilinear in the chains' one-hot states, so that the bound below needs no further bound:

    precision given   x_t ~ N(eta_t, precision^-1), a full or a diagonal matrix
    no precision      x_tf ~ Poisson(exp eta_tf), log-linear: exp eta is a product over chains

A softmax or a logistic of $\eta_t$ is not: its normalizer joins all chains in the logarithm of a sum. It is left out.

**Structured message passing.** $q = \prod_d q_d(z_d, s_d)$, each an exact chain. With $m_{dt} = E_q[s_{dt}]$

$$E \log N = -\tfrac12 \Big( x^\top P x - 2 x^\top P \textstyle\sum_d M_d^\top m_d
+ \sum_d m_d \cdot \text{diag}(M_d P M_d^\top)
+ 2 \sum_{d < e} (M_d^\top m_d)^\top P\, M_e^\top m_e \Big) + \text{const}$$
$$E \log \text{Poisson} = \textstyle\sum_f x_f \sum_d (M_d^\top m_d)_f - \prod_d (e^{M_d \top} m_d)_f - \log x_f!$$

are what couples the chains; the message to one is the gradient with respect to its m. The exact posterior is that of
one chain over $\prod_d K_d$ states.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Unpack

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ...inference.families import Beta, CopyPaths, CopyTables, Dirichlet, Gamma, MatrixNormalWishart
from ...inference.message_passing.engine import VMP, Block, Factor
from ...inference.numerics.checks import check_parts
from ..data.series import Given, Series
from ..dynamics.factors import fresh_states, gates
from ..dynamics.markov import Markov
from ..emissions.contract import Emission
from ..emissions.discrete import Poisson
from ..emissions.multivariate_normal import MultivariateNormal
from ..fitting.network import Network, Points
from ..fitting.options import Options
from ..model import SwitchingSSM
from ..parameters import Named, Parameter, Parameters, check_parameters, read_tables
from .contract import CoupledSSM, draw_chain, prior_tables
from .factors import (
    check_possible_everywhere,
    check_whole_steps,
    greedy_labels,
    joint_counts,
    joint_normal,
    noise_prior,
    paths_block,
    rate_prior,
)
from .noise import CountNoise, NormalNoise


@dataclass(frozen=True, eq=False, repr=False)
class FactorialSSM(CoupledSSM):
    """D copy chains that jointly drive one observation.

    Arguments:
        redraw_prob: [D], each chain's redraw probability.
        state_probs: for each chain the fresh state's probabilities [K_d].
        loc: for each chain what its states add to eta, [K_d, F].
        precision: [F, F], inverse covariance of the noise; None: counts, Poisson with log rate eta.

    Methods take x as `SwitchingSSM` does. NaN is missing; with a full precision single features are marginalised.

    Raises:
        ValueError: shapes that do not fit, probabilities that are none, a precision that is not positive definite.

    Example:
        >>> half = torch.tensor([0.5, 0.5])
        >>> model = FactorialSSM(half / 5, [half, half], [torch.eye(2), 3 * torch.eye(2)], torch.eye(2))
        >>> model.smooth(torch.tensor([[1.0, 3.0], [0.9, 3.1], [3.2, 0.8]])).redraw.shape
        torch.Size([3, 2])
    """

    redraw_prob: Tensor
    state_probs: Sequence[Tensor]
    loc: Sequence[Tensor]
    precision: Tensor | None = None

    def __post_init__(self) -> None:
        probs, loc = (check_parts(name, getattr(self, name)) for name in ("state_probs", "loc"))
        called = {
            f"{name}_{d}": f"{name}[{d - 1}]" for name in ("state_probs", "loc") for d in range(1, len(probs) + 1)
        }
        given = {"redraw_prob": self.redraw_prob}
        given |= {f"state_probs[{d}]": part for d, part in enumerate(probs)}
        given |= {f"loc[{d}]": part for d, part in enumerate(loc)}
        given |= {} if self.precision is None else {"precision": self.precision}
        tables = read_tables(given)
        if not tables["redraw_prob"].shape == (len(probs),) == (len(loc),):
            raise ValueError(
                f"redraw_prob, state_probs, loc: got {list(tables['redraw_prob'].shape)}, {len(probs)} and {len(loc)} "
                "for the chains; give one entry each."
            )
        object.__setattr__(self, "redraw_prob", tables["redraw_prob"])
        object.__setattr__(self, "precision", tables.get("precision"))
        for name, n_axes in (("state_probs", 1), ("loc", 2)):
            parts = tuple(tables[f"{name}[{d}]"] for d in range(len(probs)))
            for d, part in enumerate(parts):
                if part.dim() != n_axes or not part.numel():
                    expected = "[K], a probability for each state" if n_axes == 1 else "[K, F], a row for each state"
                    raise ValueError(f"{name}[{d}]: got shape {list(part.shape)}, expected {expected}.")
            object.__setattr__(self, name, parts)
        check_parameters(self.known, self.parameters, self.sizes, self.name, called)
        if self.precision is None:
            _check_rates(self.loc)

    @property
    def n_chains(self) -> int:
        """D, the number of chains."""
        return len(self.loc)

    @property
    def n_states(self) -> tuple[int, ...]:
        return tuple(len(probs) for probs in self.state_probs)

    @property
    def n_features(self) -> int:
        return self.loc[0].shape[-1]

    @property
    def emission(self) -> Emission:  # type: ignore[override]
        """What a joint state looks like."""
        return Poisson(self.n_features) if self.precision is None else MultivariateNormal(self.n_features)

    @property
    def fresh_probs(self) -> tuple[Tensor, ...]:
        return tuple(self.state_probs)

    # ---- parameters --------------------------------------------------------------------------------------------------

    @property
    def known(self) -> Mapping[str, Parameter]:
        found = {"redraw_prob": Parameter(("component",), constraints.unit_interval)}
        for d in range(1, self.n_chains + 1):
            found[f"state_probs_{d}"] = Parameter((f"state_{d}",), constraints.simplex)
            found[f"loc_{d}"] = Parameter((f"state_{d}", "feature"))
        if self.precision is not None:
            found["precision"] = MultivariateNormal(self.n_features).parameters["precision"].renamed({"state": None})
        return found

    @property
    def sizes(self) -> dict[str, int]:
        states = {f"state_{d}": len(probs) for d, probs in enumerate(self.state_probs, start=1)}
        return states | {"component": self.n_chains, "feature": self.n_features, "feature_new": self.n_features}

    @property
    def parameters(self) -> Parameters:
        found = {"redraw_prob": self.redraw_prob}
        for d, (probs, loc) in enumerate(zip(self.state_probs, self.loc, strict=True), start=1):
            found |= {f"state_probs_{d}": probs, f"loc_{d}": loc}
        return found if self.precision is None else found | {"precision": self.precision}

    @property
    def n_parameters(self) -> int:
        """What all states of one chain have in common may as well be another's: it counts once."""
        return super().n_parameters - (self.n_chains - 1) * self.n_features

    def with_parameters(self, values: Parameters) -> "FactorialSSM":
        return FactorialSSM.from_parts({}, values)

    def to_parts(self) -> tuple[dict[str, Named], dict[str, Tensor]]:
        return {}, self.parameters

    @classmethod
    def from_parts(cls, parts: dict[str, Any], tensors: dict[str, Tensor]) -> "FactorialSSM":
        chains = range(1, len(tensors["redraw_prob"]) + 1)
        probs, loc = ([tensors[f"{name}_{d}"] for d in chains] for name in ("state_probs", "loc"))
        return cls(tensors["redraw_prob"], probs, loc, tensors.get("precision"))

    # ---- the generative program --------------------------------------------------------------------------------------

    def _step(self, t: int, states: list[Tensor]) -> tuple[list[Tensor], Any]:
        states = [
            draw_chain(t, d, rho, probs, states[d] if states else None)[1]
            for d, (rho, probs) in enumerate(zip(self.redraw_prob, self.state_probs, strict=True))
        ]
        added = torch.broadcast_tensors(*(m[s] for m, s in zip(self.loc, states, strict=True)))
        eta = torch.stack(added).sum(0)
        if self.precision is None:
            return states, dist.Poisson(eta.exp()).to_event(1)
        return states, dist.MultivariateNormal(eta, precision_matrix=self.precision)

    # ---- one chain over all joint states -----------------------------------------------------------------------------

    @cached_property
    def product(self) -> SwitchingSSM:
        """The model of one chain over all joint states, the last chain's state changing fastest."""
        n = len(self.product_of(self.parameters)["initial_probs"])
        return SwitchingSSM(Markov(n), self.emission).with_values(self.product_of(self.parameters))

    def product_of(self, values: Parameters) -> Parameters:
        chains = range(1, self.n_chains + 1)
        rho = values["redraw_prob"].unbind(-1)
        probs, loc = ([values[f"{name}_{d}"] for d in chains] for name in ("state_probs", "loc"))
        eta = reduce(lambda a, b: (a.unsqueeze(-2) + b.unsqueeze(-3)).flatten(-3, -2), loc)
        found = {
            "initial_probs": reduce(_outer, probs),
            "transition_probs": reduce(_kron, [_moves(r, p) for r, p in zip(rho, probs, strict=True)]),
        }
        if self.precision is None:
            return found | {"rate": eta.exp()}
        return found | {"loc": eta, "precision": values["precision"].unsqueeze(-3).expand(*eta.shape, -1)}

    def gates_of(self, values: Parameters) -> Tensor:
        tables = []
        for d, rho in enumerate(values["redraw_prob"].unbind(-1)):
            probs = values[f"state_probs_{d + 1}"]
            moves = _moves(rho, probs)
            own = torch.where(moves > 0, rho[..., None, None] * probs.unsqueeze(-2) / moves, 0.0)
            ones = [torch.ones_like(own[..., :1, :1]).expand(*own.shape[:-2], k, k) for k in self.n_states]
            tables.append(reduce(_kron, [*ones[:d], own, *ones[d + 1 :]]))
        return torch.stack(tables, -3)

    @property
    def _axes(self) -> tuple[int, ...]:
        return self.n_states

    # ---- message passing ---------------------------------------------------------------------------------------------

    def engine(self, x: Any, *, check: bool = True, **given: Unpack[Given]) -> VMP:
        """The model at its values on the engine: a block `chain_d` (d from 1) of exact paths for each chain, and one
        factor."""
        series = self.read(x, **given)
        blocks, values = [], series.observations
        for d, (rho, probs) in enumerate(zip(self.redraw_prob, self.state_probs, strict=True), start=1):
            zero, base = (
                values.new_zeros(*values.shape[:-1], len(probs)),
                prior_tables(rho, probs.log(), series.n_steps),
            )
            blocks.append(Block(f"chain_{d}", CopyPaths(series.lengths, base), eta=CopyTables(zero, zero)))
        noise = CountNoise.of(values) if self.precision is None else NormalNoise.of(values, self.precision)

        def emission(*stats: CopyTables) -> Tensor:
            return noise.expected(self.loc, [used.fresh + used.held for used in stats])

        even = [torch.full_like(block.eta.fresh, 0.5 / block.eta.fresh.shape[-1]) for block in blocks]
        check_possible_everywhere(emission(*(CopyTables(share, share) for share in even)), series)
        factor = Factor(emission, tuple(block.name for block in blocks), mask=series.inside.to(values))
        return VMP(blocks, [factor], check=check)

    def network(self, series: Series, options: Options) -> Network:
        counts, sizes = self.precision is None, self.n_states
        about = torch.zeros_like(self.loc[0][0])
        if not counts:
            check_whole_steps(series.observations)
            about = series.rows.double().nanmean(0).to(series.observations)  # of a constant feature that one itself
        shifted = series.shifted(about)
        x, n_axes = shifted.observations, len(series.batch_shape) + 1
        names = [f"chain_{d}" for d in range(1, self.n_chains + 1)]
        labels = greedy_labels(shifted, sizes, options.restarts, options.number)
        families, priors, factors = {}, {}, []
        for d, (chain, k) in enumerate(zip(names, sizes, strict=True), start=1):
            families |= {f"redraw_{d}": Beta(), f"state_{d}": Dirichlet()}
            priors |= {f"redraw_{d}": x.new_ones(2), f"state_{d}": x.new_ones(k)}
            factors += [gates(f"redraw_{d}", chain, n_axes), fresh_states(f"state_{d}", chain, n_axes)]
        if counts:
            families |= {f"rate_{d}": Gamma() for d in range(1, len(sizes) + 1)}
            priors |= {f"rate_{d}": rate_prior(x, k, len(sizes)) for d, k in enumerate(sizes, start=1)}
            factors.append(joint_counts(x, names))
        else:
            families["noise"], priors["noise"] = MatrixNormalWishart(sum(sizes)), noise_prior(x, sum(sizes))
            factors.append(joint_normal(x, MatrixNormalWishart(sum(sizes)), sizes, names))
        paths = [paths_block(name, own, k, series) for name, own, k in zip(names, labels, sizes, strict=True)]

        def collect(points: Points) -> Parameters:
            chains = range(1, len(sizes) + 1)
            found = {"redraw_prob": torch.stack([points[f"redraw_{d}"] for d in chains], -1)}
            found |= {f"state_probs_{d}": points[f"state_{d}"] for d in chains}
            if counts:
                least = math.log(torch.finfo(x.dtype).tiny) / len(sizes)  # the log of a rate of 0 is no location
                return found | {f"loc_{d}": points[f"rate_{d}"].log().clamp_min(least) for d in chains}
            parts = points["noise"].loc.split(list(sizes), -2)  # each takes its share of `about`
            found |= {f"loc_{d}": part + about / len(sizes) for d, part in enumerate(parts, start=1)}
            return found | {"precision": points["noise"].precision}

        return Network(families, priors, factors, paths, collect)


def _check_rates(loc: Sequence[Tensor]) -> None:
    """Raise ValueError unless the dtype holds the rates of all joint states."""
    low, high = (torch.stack([getattr(part, end)(0) for part in loc]).sum(0) for end in ("amin", "amax"))
    if not bool((low.exp() > 0).all()) or not bool(high.exp().isfinite().all()):
        raise ValueError(
            f"loc: got log rates that add up to {float(low.min()):.3g} at least and {float(high.max()):.3g} at most, "
            f"beyond what {str(loc[0].dtype).removeprefix('torch.')} holds the rates of; give locations nearer to 0."
        )


def _moves(rho: Tensor, probs: Tensor) -> Tensor:
    """One chain's table of moves with its gate summed out: [*r, K, K] of [*r] and [*r, K]."""
    rho = rho[..., None, None]
    return (1 - rho) * torch.eye(probs.shape[-1]).to(probs) + rho * probs.unsqueeze(-2)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Probabilities of pairs of independent states."""
    return (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """Tables of moves of pairs of independent states."""
    return torch.einsum("...ij,...kl->...ikjl", a, b).flatten(-4, -3).flatten(-2)
