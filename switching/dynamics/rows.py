r"""Rows of a Markov chain that depend on inputs, a multinomial logit for each old state.

$$A_t[i, j] \propto P_{ij} \exp(w_{ij}^\top c_t), \qquad w_{ii} = 0$$

P is the table at inputs 0, and the inputs $c_t$ of step t drive the step into it. Given the expected moves $n_t(i, j)$,
the M-step of a row maximises

$$\sum_t \sum_j n_t(i, j) \log A_t[i, j] + \sum_j (\alpha_{ij} - 1) \log P_{ij} - \sum_j |w_{ij}|^2 / (2 s^2)$$

by a step of Newton's method on w and on the change of $\log P$; the next M-step continues (Lange 1995, *A gradient
algorithm locally equivalent to the EM algorithm*). The prior of P counts as $\alpha_{ij} - 1$ moves at inputs 0.
With $p_t$ the row, $m_t(i) = \sum_j n_t(i, j)$ and $x_t = (1, c_t)$, score and information are

$$\sum_t (n_t(i, j) - m_t(i)\, p_{tj})\, x_t, \qquad \sum_t m_t(i)\, p_{tj} (\delta_{jk} - p_{tk})\, x_t x_t^\top.$$

The moves enter by the sums $\sum_t n_t(i, j)\, x_t$ and by $m_t$ alone.

The objective rises without being computed. Along a step its curvature changes at most by the factor $e^R$, where R is
the largest change of a difference of two logits at a step: the third moment of a bounded number about its mean is at
most its range times its variance (Bach 2010, *Self-concordant analysis for logistic regression*). So with $g$ the score
along Newton's step, a share s of it gains at least $g\,(s - (e^{Rs} - 1 - Rs) / R^2)$, most of all if
$s = \log(1 + R) / R$. If R is at most 1, the whole step gains at least $0.28\,g$, and is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, cast, runtime_checkable

import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.markov.op import row_sums
from ...inference.families import Gaussian
from ...inference.numerics.products import with_ones
from ..emissions.ascent import ascend
from ..entries import Entries, KnownTransform
from ..inputs import COEFFICIENT_SCALE
from ..parameters import Parameter, Parameters, places
from ..priors import Conjugate, Site

PIECE = 2**16  # numbers in the tables of some steps
LEAST = 1e-12  # probability from which one that may move starts
LEAST_CURVATURE = 1e-3  # added, so that steps stay short along directions about which the data say nothing


@dataclass(frozen=True, eq=False)
class InputWeights(Conjugate):
    """The free weights of inputs in logits, with normal priors."""

    name: str
    dims: tuple[str, ...]
    support: Entries
    family = Gaussian()

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {self.name: Parameter(self.dims, self.support)}

    @property
    def of_scale(self) -> str:
        """The hyperparameter `[C]` with the scales of the weights."""
        return f"{self.name}_scale"

    def default_prior(self) -> Parameters:
        """Scales for inputs of unit variance."""
        n_inputs = self.support.free.shape[-1]
        return {self.of_scale: torch.full((n_inputs,), COEFFICIENT_SCALE, dtype=torch.float64, device="cpu")}

    @cached_property
    def _free(self) -> KnownTransform:
        return KnownTransform(self.support)

    def natural(self, prior: Parameters) -> Tensor:
        """A standard normal, from which starts are drawn."""
        like = next(iter(prior.values()))
        size = int(self.support.free.sum())
        return self.family.natural(like.new_zeros(size), torch.eye(size).to(like))

    def point(self, values: Parameters) -> Tensor:
        return self._free.inv(values[self.name])  # pyright: ignore[reportReturnType]

    def values(self, point: Tensor) -> Parameters:
        return {self.name: self._free(point)}  # pyright: ignore[reportReturnType]

    def sites(self, prior: Parameters) -> list[Site]:
        scale = prior[self.of_scale]
        scales = cast(Tensor, self._free.inv(scale.expand(*self.support.free.shape[:-1], -1)))
        normal = dist.Normal(torch.zeros_like(scales), scales).to_event(1)
        distribution = dist.TransformedDistribution(normal, [self._free])

        def density(values: Parameters) -> Tensor:
            return normal.log_prob(self.point(values))

        return [Site(self.name, lambda values: distribution, density)]


def transition_weights(moves: Bool[Tensor, "K K"], n_inputs: int) -> InputWeights:
    """The weights [K, K, C] of these moves in their rows; those of others are 0."""
    reason = "weights are relative to those of staying, and those of impossible moves are 0"
    support = Entries(moves.unsqueeze(-1).expand(-1, -1, n_inputs).clone(), reason)
    return InputWeights("transition_weights", ("state", "state_new", "input"), support)


# ---- the M-step ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowLikelihood:
    """The objective of an M-step as a function of `[R, I, P]`, P numbers of each of I rows.

    These are, for every new state, the change of its log probability at inputs 0, and its weights.

    Attributes:
        log_base: the table that changes.
        leaving: the expected number of moves from each state into each step.
        moves: sums of the expected moves, and of their products with the inputs; those of the prior are among them.
        imagined: the moves from each state in the prior.
        shrink: the precision of the prior of the weights of each input, 0 without a prior.
        free: 1 at the numbers that may move.
    """

    log_base: Float[Tensor, "R I K"]
    design: Float[Tensor, "N D"]
    leaving: Float[Tensor, "R N I"]
    moves: Float[Tensor, "R I K D"]
    imagined: Float[Tensor, "R I"]
    shrink: Float[Tensor, "#C"]
    free: Float[Tensor, "R I P"]

    @cached_property
    def _reach(self) -> Float[Tensor, "D"]:
        """The largest size of each column of the design at steps that count, which those of padding do not."""
        if not len(self.design):
            return self.design.new_ones(self.design.shape[-1])
        counts = (self.leaving > 0).any(-1).any(0)
        return (self.design.abs() * counts.unsqueeze(-1)).amax(0)

    def value(self, numbers: Float[Tensor, "R I P"]) -> Float[Tensor, "R I"]:
        """The objective of each row."""
        changes = numbers.unflatten(-1, self.moves.shape[-2:])
        total = (self.moves * changes).sum((-2, -1)) - (self.shrink * changes[..., 1:].square()).sum((-2, -1)) / 2
        total = total - self.imagined * (self.log_base + changes[..., 0]).logsumexp(-1)
        flat, size = changes.flatten(1, 2), max(1, PIECE // self.log_base.numel())
        for design, leaving in zip(self.design.split(size), self.leaving.split(size, 1), strict=True):
            logits = (flat @ design.mT).unflatten(1, self.log_base.shape[1:]) + self.log_base.unsqueeze(-1)
            total = total - (logits.logsumexp(2) * leaving.mT).sum(-1)
        return total

    def slopes(self, numbers: Float[Tensor, "R I P"]) -> tuple[Float[Tensor, "R I P"], Float[Tensor, "R I P P"]]:
        """The gradient of the objective of each row, and minus its curvature.

        If the prior imagines fewer than no moves, its term is convex, so it is above its tangent, which has no
        curvature.
        """
        changes = numbers.unflatten(-1, self.moves.shape[-2:])
        used, products = row_sums(self.log_base, changes, self.design, self.leaving)
        at_zero = torch.softmax(self.log_base + changes[..., 0], -1)
        prior = at_zero * self.imagined.unsqueeze(-1)
        gradient = self.moves - used[..., 0]
        gradient[..., 0] -= prior
        gradient[..., 1:] -= self.shrink * changes[..., 1:]
        bend = prior.clamp_min(0)
        used[..., 0, 0] += bend
        products[..., 0, :, 0] += bend.unsqueeze(-1) * at_zero.unsqueeze(-2)
        curvature = -products
        curvature.diagonal(dim1=2, dim2=4).add_(used.movedim(2, -1))
        ridge = torch.full_like(changes, LEAST_CURVATURE)
        ridge[..., 1:] += self.shrink
        both = self.free.unsqueeze(-1) * self.free.unsqueeze(-2)
        curvature = (curvature.flatten(4, 5).flatten(2, 3) + torch.diag_embed(ridge.flatten(-2))) * both
        return gradient.flatten(-2) * self.free, curvature + torch.diag_embed(1 - self.free)

    def raised(self, numbers: Float[Tensor, "R I P"]) -> Float[Tensor, "R I P"]:
        """The numbers after a step of Newton's method, shortened so that the objective of each row rises."""
        gradient, curvature = self.slopes(numbers)
        step = torch.linalg.solve(curvature, gradient.unsqueeze(-1)).squeeze(-1)
        changes = step.unflatten(-1, self.moves.shape[-2:])
        apart = (changes.unsqueeze(-2) - changes.unsqueeze(-3)).abs()  # of each two logits
        spread = (apart * self._reach).sum(-1).amax((-2, -1)).unsqueeze(-1)
        return numbers + step * torch.where(spread > 1, spread.log1p() / spread, 1.0)


@runtime_checkable
class Objective(Protocol):
    """The objective of an M-step of numbers `[R, I, P]`, of each row or of each restart."""

    def value(self, numbers: Float[Tensor, "R I P"]) -> Tensor: ...

    def raised(self, numbers: Float[Tensor, "R I P"]) -> Float[Tensor, "R I P"]: ...


@dataclass(frozen=True)
class Rows:
    """Tables `[R, I, K]` and weights `[R, I, K, C]` of restarts.

    Attributes:
        known_probs, known_weights: their known entries, without the axis of restarts, NaN where free; None: all are
            free.
    """

    probs: Float[Tensor, "R I K"]
    weights: Float[Tensor, "R I K C"]
    known_probs: Float[Tensor, "I K"] | None
    known_weights: Float[Tensor, "I K C"] | None

    @cached_property
    def _whole(self) -> Bool[Tensor, "I 1"]:
        """Which rows are free as a whole, so that Newton's method moves them."""
        if self.known_probs is None:
            return torch.ones(self.probs.shape[-2], 1, dtype=torch.bool, device=self.probs.device)
        return self.known_probs.isnan().all(-1, keepdim=True)

    def likelihood(
        self,
        moves: Float[Tensor, "R I K D"],
        leaving: Float[Tensor, "R N I"],
        inputs: Float[Tensor, "N C"],
        concentration: Float[Tensor, "I K"] | None,
        scale: Float[Tensor, "C"] | None,
        support: Entries | None,
    ) -> tuple[RowLikelihood, Float[Tensor, "R I P"]]:
        """The objective of the M-step, and the numbers of the present tables; no prior if there is no concentration.

        Arguments:
            scale: that of the prior of the weights of each input.

        Moves of probability 0 stay impossible, and so become moves that are not expected, unless there is a prior.
        """
        design, leaving, log_base = with_ones(inputs.double()), leaving.double(), self.probs.double().log()
        imagined = torch.zeros_like(log_base[..., 0])
        if concentration is not None:
            extra = torch.where(log_base > -torch.inf, concentration.double() - 1, 0.0)
            moves = torch.cat([(moves[..., 0] + extra).unsqueeze(-1), moves[..., 1:]], -1)
            imagined = extra.sum(-1)
        else:
            never = (moves[..., 0] <= 0) & (moves[..., 0].amax(-1, keepdim=True) > 0) & self._whole
            log_base = log_base.masked_fill(never, -torch.inf)
        shrink = design.new_zeros(1) if concentration is None or scale is None else scale.to(design) ** -2
        free = self._free(log_base, moves, support)
        start = torch.cat([torch.zeros_like(log_base).unsqueeze(-1), self.weights.double()], -1).flatten(-2)
        return RowLikelihood(log_base, design, leaving, moves, imagined, shrink, free), start

    def raised(
        self, objective: Objective, likelihood: RowLikelihood, numbers: Float[Tensor, "R I P"]
    ) -> tuple[Float[Tensor, "R I K"], Float[Tensor, "R I K C"]]:
        """The tables and the weights after a step that raises the objective, whose rows are those of `likelihood`.

        Probabilities beside known ones have no logits of their own, so they move by BFGS in free coordinates.
        """
        changes = objective.raised(numbers).unflatten(-1, likelihood.moves.shape[-2:])
        changed = torch.softmax(likelihood.log_base + changes[..., 0], -1)
        probs = torch.where(self._whole, changed, self.probs.double())
        if self.known_probs is not None:
            probs = self._beside_known(objective, likelihood, probs, changes[..., 1:])
        return probs.to(self.probs), changes[..., 1:].to(self.weights)

    def _beside_known(self, objective: Objective, likelihood: RowLikelihood, probs: Tensor, weights: Tensor) -> Tensor:
        """The table with better probabilities in the rows that are known in part."""
        assert self.known_probs is not None
        in_part = (self.known_probs.isnan().any(-1) & ~self._whole.squeeze(-1)).nonzero().flatten()
        if not len(in_part):
            return probs
        known, possible = self.known_probs[in_part].to(probs), likelihood.log_base > -torch.inf

        def height(free: Parameters) -> Tensor:
            now = probs.index_copy(-2, in_part, free["probs"])
            change = torch.where(possible, torch.where(possible, now, 1.0).log() - likelihood.log_base, 0.0)
            value = objective.value(torch.cat([change.unsqueeze(-1), weights], -1).flatten(-2))
            return value.reshape(len(value), -1).sum(-1)

        before = probs[..., in_part, :].clamp_min(LEAST)
        best = ascend(height, {"probs": before}, {"probs": constraints.simplex}, fixed={"probs": known})
        return probs.index_copy(-2, in_part, best["probs"])

    def _free(self, log_base: Tensor, moves: Tensor, support: Entries | None) -> Float[Tensor, "R I P"]:
        """Where numbers may move: probabilities are relative to the most expected one of each row."""
        possible = log_base > -torch.inf
        of_probs = places(constraints.simplex, possible, moves[..., 0]).to(log_base) * self._whole
        if support is None:
            return of_probs
        of_weights = support.free.to(log_base).expand(*log_base.shape, -1)
        if self.known_weights is not None:
            of_weights = of_weights * self.known_weights.isnan()
        return torch.cat([of_probs.unsqueeze(-1), of_weights], -1).flatten(-2)
