r"""Switching linear models in one form: a Markov chain of regimes, and a chain of real vectors whose dynamics they
choose.

$$z_1 \sim \pi, \quad z_t \sim A_{z_{t-1}}, \qquad s_1 \sim N(m_{z_1}, P_{z_1}), \quad
s_t = F_{z_t} s_{t-1} + c_{z_t} + N(0, Q_{z_t}), \qquad x_t = H_{z_t} s_t + d_{z_t} + N(0, R_{z_t})$$

The step from t-1 to t uses the parameters of the regime at t. In the recurrent kind the latents choose the next regime,
by logistic regressions with stick breaking (Linderman et al. 2017, *Bayesian learning and inference in recurrent
switching linear dynamical systems*, eq. 4-6), with $u = W s_{t-1} + w_{z_{t-1}}$ of K - 1 entries:

$$P(z_t = k \mid z_{t-1}, s_{t-1}) = \sigma(u_k) \prod_{i < k} \sigma(-u_i)$$

K parallel chains, one of which the regime shows (Ghahramani & Hinton 2000, *Variational learning for switching
state-space models*), are one chain of all their latents. Its transitions are the same in every regime, and its emission
uses one block of the latents.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.linear_gaussian.chain import LinearGaussianChain
from ...inference.chains.linear_gaussian.factors import factor_of
from ...inference.chains.switching_gaussian.tables import Tables, stick_breaking
from ...inference.numerics.checks import broadcast_shapes, check_integers, check_lengths, check_table, common_batch
from ...inference.numerics.randomness import Seed, generator_of, invert
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_batch_shape, check_integer
from ..linear.priors import NAMES
from ..parameters import Parameter, Parameters, check_simplex

DEFINITE = constraints.positive_semidefinite
PARAMETERS = {
    "initial_probs": Parameter(("state",), constraints.simplex),
    "recurrence": Parameter(("stick", "latent")),
    "recurrence_offset": Parameter(("state", "stick")),
    "transition_probs": Parameter(("state", "state_new"), constraints.simplex),
    "initial_mean": Parameter(("state", "latent")),
    "initial_covariance": Parameter(("state", "latent", "latent_new"), DEFINITE),
    "transition": Parameter(("state", "latent_new", "latent")),
    "transition_offset": Parameter(("state", "latent")),
    "state_noise": Parameter(("state", "latent", "latent_new"), DEFINITE),
    "emission": Parameter(("state", "feature", "latent")),
    "emission_offset": Parameter(("state", "feature")),
    "observation_noise": Parameter(("state", "feature", "feature_new"), DEFINITE),
}
"""The axes and the support of each parameter."""

CHAIN = tuple(name for names in NAMES.values() for name in names)
COVARIANCES = tuple(name for name, parameter in PARAMETERS.items() if parameter.support is DEFINITE)


def sizes_of(n_regimes: int, n_latent: int, n_features: int) -> dict[str, int]:
    """The lengths of the parameters' axes."""
    sizes = {"state": n_regimes, "latent": n_latent, "feature": n_features}
    return {**sizes, **{f"{dim}_new": size for dim, size in sizes.items()}, "stick": n_regimes - 1}


@dataclass(frozen=True, repr=False)
class Simulated(Record):
    """Draws from the model."""

    path: Int[Tensor, "*b T"]
    latent: Float[Tensor, "*b T L"]
    x: Float[Tensor, "*b T F"]


@dataclass(frozen=True, eq=False, repr=False)
class Regimes(Record):
    """The parameters of a switching linear model of K regimes, L latents and F features, in one dtype.

    Covariances may be singular; those of observations only if the latents' noise gives observations a density.

    Arguments:
        recurrence: W, [K - 1, L]; with `recurrence_offset` it replaces `transition_probs`. None: regimes do not depend
            on the latents.
        recurrence_offset: w, [K, K - 1], a row for each previous regime.

    Raises:
        TypeError: tables that are not float32 or float64 tensors of one dtype on one device.
        ValueError: shapes that do not fit together, numbers that are not finite, probabilities that do not sum to 1,
            covariances that are not symmetric or not positive semidefinite.
    """

    initial_probs: Float[Tensor, "K"]
    transition_probs: Float[Tensor, "K K"]
    initial_mean: Float[Tensor, "K L"]
    initial_covariance: Float[Tensor, "K L L"]
    transition: Float[Tensor, "K L L"]
    transition_offset: Float[Tensor, "K L"]
    state_noise: Float[Tensor, "K L L"]
    emission: Float[Tensor, "K F L"]
    emission_offset: Float[Tensor, "K F"]
    observation_noise: Float[Tensor, "K F F"]
    recurrence: Float[Tensor, "J L"] | None = None
    recurrence_offset: Float[Tensor, "K J"] | None = None

    def __post_init__(self) -> None:
        table = check_table("emission", self.emission, None, None, None, alone=True)
        k, f, n = table.shape
        if 0 in table.shape:
            raise ValueError(f"emission: got shape {list(table.shape)}, expected [K, F, L], none of them 0.")
        if (self.recurrence is None) != (self.recurrence_offset is None):
            raise ValueError("recurrence, recurrence_offset: got one of them; give both, or none.")
        sizes = sizes_of(k, n, f)
        for name, parameter in PARAMETERS.items():
            if self.recurrence is not None or not name.startswith("recurrence"):
                shape = (sizes[dim] for dim in parameter.dims)
                check_table(name, getattr(self, name), *shape, like=table, finite=True, alone=True)
        for name in ("initial_probs", "transition_probs"):
            object.__setattr__(self, name, check_simplex(getattr(self, name), name))
        alone = {name: getattr(self, name) for name in CHAIN}
        LinearGaussianChain(table.new_full((k, 1, f), torch.nan), **alone)  # checks the covariances

    @property
    def n_regimes(self) -> int:
        return self.emission.shape[0]

    @property
    def n_latent(self) -> int:
        return self.emission.shape[-1]

    @property
    def n_features(self) -> int:
        return self.emission.shape[-2]

    def log_transition(self, latents: Float[Tensor, "*b L"] | None = None) -> Tensor:
        """log P(z_t = new | z_t-1 = old, s_t-1): [K, K], or [*b, K, K] in the recurrent kind, which needs the latents.

        Raises:
            ValueError: the model is of the recurrent kind, and latents are None.
        """
        if self.recurrence is None or self.recurrence_offset is None:
            return self.transition_probs.log()
        if latents is None:
            raise ValueError("latents: got None, but this model's regimes depend on them; give s_t-1, [*batch, L].")
        return stick_breaking((latents @ self.recurrence.mT).unsqueeze(-2) + self.recurrence_offset)

    def tables(self, attached: bool = False) -> Tables:
        """The tables for filters and samplers, in float64; `attached`: to the graph of their derivatives."""
        tables: dict[str, Any] = {name: table.double() for name, table in vars(self).items() if table is not None}
        tables = tables if attached else {name: table.detach() for name, table in tables.items()}
        first, moves = tables.pop("initial_probs").log(), tables.pop("transition_probs").log()
        return Tables(first, moves, **tables)

    def along(
        self, x: Float[Tensor, "*#b T F"], path: Int[Tensor, "*#b T"], lengths: Any = None
    ) -> LinearGaussianChain:
        """The chain of latents given the regimes of a path; the path after a sequence's end is ignored.

        Raises:
            TypeError, ValueError: a path that does not fit x, or has numbers outside 0..K-1 within the lengths.
        """
        check_table("x", x, None, self.n_features, like=self.emission)
        path, _ = self._check_path(path, x.shape[-2], lengths)
        axes = len(common_batch(x=x.shape[:-2], path=path.shape[:-1]))
        x, path = x[(None,) * (axes - x.dim() + 2)], path[(None,) * (axes - path.dim() + 1)]
        first, later = path[..., 0], path[..., 1:]
        places = {"first": first, "moves": later, "sights": path}
        tables = {name: getattr(self, name)[places[block]] for block, names in NAMES.items() for name in names}
        return LinearGaussianChain(x, **tables, lengths=lengths)

    def log_prob(
        self, path: Int[Tensor, "*#b T"], latents: Float[Tensor, "*#b T L"] | None = None, lengths: Any = None
    ) -> Float[Tensor, "*b"]:
        """log P(z_1..T), or for the recurrent kind the sum of all log P(z_t | z_t-1, s_t-1), which needs the
        latents."""
        path, within = self._check_path(path, path.shape[-1], lengths)
        moves = self.log_transition(None if latents is None else latents[..., :-1, :]).flatten(-2)
        move = path[..., :-1] * self.n_regimes + path[..., 1:]
        shape = broadcast_shapes(moves.shape[:-1], move.shape)
        taken = moves.expand(*shape, -1).gather(-1, move.expand(shape).unsqueeze(-1)).squeeze(-1)
        return self.initial_probs.log()[path[..., 0]] + torch.where(within[..., 1:], taken, 0.0).sum(-1)

    def simulate(self, n_steps: int, batch_shape: tuple[int, ...] = (), seed: Seed = None) -> Simulated:
        """Independent draws of regimes, latents and observations; equal seeds give equal draws.

        >>> import torch
        >>> one = torch.ones(1, 1, 1)
        >>> walk = Regimes(one[0, 0], one[0], one[0], one, one, one[0], one, one, one[0], one)
        >>> walk.simulate(5, (3,), seed=0).x.shape
        torch.Size([3, 5, 1])
        """
        n_steps, batch = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        like, generator = self.emission, generator_of(seed, self.emission.device)
        kind = {"dtype": torch.float64, "device": like.device, "generator": generator}
        uniform = torch.rand(*batch, n_steps, **kind)
        moved, seen = (torch.randn(*batch, n_steps, size, **kind).to(like) for size in (self.n_latent, self.n_features))
        roots = {name: factor_of(getattr(self, name))[0] for name in COVARIANCES}
        path, latents, x = [], [], []
        for t in range(n_steps):
            if t:
                table = self.log_transition(latents[-1]).exp().expand(*batch, -1, -1)
                weights = table.take_along_dim(path[-1][..., None, None], -2).squeeze(-2)
            else:
                weights = self.initial_probs.expand(*batch, -1)
            z = invert(weights, uniform[..., t, None].to(like)).squeeze(-1)
            if t:
                mean, root = _times(self.transition[z], latents[-1]) + self.transition_offset[z], roots["state_noise"]
            else:
                mean, root = self.initial_mean[z], roots["initial_covariance"]
            s = mean + _times(root[z], moved[..., t, :])
            mean = _times(self.emission[z], s) + self.emission_offset[z]
            path.append(z)
            latents.append(s)
            x.append(mean + _times(roots["observation_noise"][z], seen[..., t, :]))
        return Simulated(torch.stack(path, -1), torch.stack(latents, -2), torch.stack(x, -2))

    def _check_path(self, path: Any, n_steps: int, lengths: Any) -> tuple[Tensor, Tensor]:
        """The path with 0 after the ends, and which steps are before the ends."""
        path = check_integers(path, "path", "the regime of each step").to(self.emission.device)
        if not path.dim() or path.shape[-1] != n_steps or not n_steps:
            raise ValueError(f"path: got shape {list(path.shape)}, expected [*batch, {n_steps}], one regime per step.")
        ends = check_lengths(lengths, path.shape[:-1], n_steps, path.device)
        within = torch.arange(n_steps, device=path.device) < ends.unsqueeze(-1)
        bad = path[within & ((path < 0) | (path >= self.n_regimes))]
        if len(bad):
            raise ValueError(
                f"path: got regime {int(bad[0])}, expected 0 to {self.n_regimes - 1}; if sequences end early, give "
                "their lengths."
            )
        return torch.where(within, path, 0), within


def side_by_side(tables: Parameters) -> Parameters:
    """The tables of K independent chains, each with the parameters of a regime, as those of one chain of K L latents.

    Latent l of chain k has the index k L + l.
    """
    k, f, n = tables["emission"].shape
    seen = torch.eye(k).to(tables["emission"])
    joined = {name: tables[name].flatten().expand(k, -1) for name in ("initial_mean", "transition_offset")}
    for name in ("initial_covariance", "transition", "state_noise"):
        joined[name] = torch.block_diag(*tables[name]).expand(k, -1, -1)
    return tables | joined | {"emission": torch.einsum("kfl,km->kfml", tables["emission"], seen).reshape(k, f, k * n)}


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
