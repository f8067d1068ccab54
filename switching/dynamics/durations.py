r"""The time in a state: a segment lasts d steps, where d - 1 is a count from a distribution of the state.

The distribution is an emission of counts with one feature, such as `Poisson()` or `Categorical(20)`. So its prior, its
M-step and its messages are those of the emission. Its parameters have the prefix `duration_`.

A chain needs a table of d = 1, ..., D. The last entry is the probability of D steps or more, so nothing is cut off:

$$\log P(d \ge D) = \log \Big(1 - \sum_{d < D} p(d)\Big) = \log \sum_{d \ge D} p(d),$$

in the first form where the sum before D is small, and in the second where it has most of the mass. An M-step divides
the count of this entry among the durations that it stands for.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.semi_markov.plain import survivors
from ...inference.families import VectorFamily
from ..emissions.ascent import ascend
from ..emissions.conjugate import ConjugateEmission
from ..emissions.contract import Emission, check_no_inputs
from ..known import FreeCoordinates, known_sites
from ..parameters import Parameter, Parameters, kept, prefixed, with_prefix
from ..priors import Conjugate, Site, log_prior, prefixed_sites

PREFIX = "duration_"
AXES = {"feature": "duration_feature", "category": "duration"}
MOST_OF_THE_MASS = 0.9
DECAY = 25.0  # a tail is summed until about e^-DECAY of it is left, which has the form of a geometric one
TAIL_NUMBERS = 2**21  # in a table of tails
LEAST_TAIL = 1024  # steps
FEW = 2**15  # numbers in a table of tails that an M-step reads one by one
NONE = 1e-12  # of segments, fewer than which an M-step leaves out
DENSITY = 64  # places between a number and its double, if it reads them in groups


def check_law(law: Any) -> None:
    """Raise an error if an object is no distribution of durations.

    Raises:
        TypeError: not an emission.
        ValueError: not of one count 0, 1, 2, ...; one with inputs.
    """
    cure = "NegativeBinomial(), Poisson(), Geometric() or Categorical(max)"
    if not isinstance(law, Emission) or len(law.parts) > 1:
        raise TypeError(
            f"duration: got {law!r}, expected a distribution of the number of steps after a segment's first: {cure}."
        )
    check_no_inputs("duration", law)
    if law.n_features != 1 or not (law.support is constraints.nonnegative_integer or longest_of(law)):
        raise ValueError(f"duration: got {law!r}, expected a distribution of one count 0, 1, 2, ...: {cure}.")


def longest_of(law: Emission) -> int | None:
    """The longest duration of a distribution; None: there is none."""
    bounds = (getattr(law.support, f"{end}_bound", None) for end in ("lower", "upper"))
    low, high = bounds if isinstance(law.support, type(constraints.integer_interval(0, 1))) else (None, None)
    return int(high) + 1 if low == 0 and high is not None else None


@dataclass(frozen=True, eq=False)
class DurationBlock(Conjugate):
    """The parameters of the durations, with the prior of their distribution."""

    law: Emission

    @property
    def family(self) -> VectorFamily[Any]:  # type: ignore[override]
        return self._conjugate.family

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        of_law = self.law.parameters.items()
        return prefixed(
            {name: replace(p, dims=tuple(AXES.get(dim, dim) for dim in p.dims)) for name, p in of_law}, PREFIX
        )

    @property
    def _conjugate(self) -> ConjugateEmission:
        if not isinstance(self.law, ConjugateEmission):
            raise TypeError(f"the prior of {self.law.name} durations is not conjugate")
        return self.law

    def natural(self, prior: Parameters) -> Tensor:
        return self._conjugate.natural(with_prefix(prior, PREFIX))

    def hyperparameters_of(self, eta: Tensor) -> Parameters:
        return prefixed(self._conjugate.hyperparameters_of(eta), PREFIX)

    def drawn_start(self, prior: Parameters, generator: torch.Generator) -> Parameters:
        """From the prior if it is conjugate, otherwise typical values with factors about 1."""
        if isinstance(self.law, ConjugateEmission) and self.law.is_conjugate:
            return super().drawn_start(prior, generator)
        typical = self.law.start(with_prefix(prior, PREFIX))
        coordinates = FreeCoordinates({name: self.law.parameters[name].support for name in typical}, typical)
        moved = {}
        for name, value in coordinates.start.items():
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype, device=generator.device)
            moved[name] = (value + noise.to(value)).unsqueeze(0)
        return prefixed(coordinates.values(moved), PREFIX)

    def sites(self, prior: Parameters) -> list[Site]:
        return prefixed_sites(self.law.sites(with_prefix(prior, PREFIX)), PREFIX)


@dataclass(frozen=True)
class Durations:
    """The durations of segments, as tables of log-probabilities `[*r, K, D]`.

    Attributes:
        law: the distribution of d - 1.
        most: a segment that would last longer ends after so many steps; None: there is no limit.
    """

    law: Emission
    most: int | None = None

    @property
    def longest(self) -> int | None:
        """The longest duration, if there is one."""
        return longest_of(self.law) if self.most is None else self.most

    def n_entries(self, n_steps: int) -> int:
        """D, the number of entries that a series of so many steps needs."""
        return n_steps + 1 if self.longest is None else min(self.longest, n_steps + 1)

    def mean(self, own: Parameters) -> Float[Tensor, "*r K"]:
        """The expected duration."""
        if self.most is not None:
            return survivors(self.log_table(own, self.most)).exp().sum(-1).to(next(iter(own.values())))
        return self.law.moments(own)[0].squeeze(-1) + 1

    def log_prob(self, own: Parameters, first: int, end: int) -> Float[Tensor, "*r K n"]:
        """log p(d) of d - 1 from `first` to before `end`, in float64."""
        return self.law.in_a_row(first, end, {name: value.double() for name, value in own.items()})

    def log_table(self, own: Parameters, n: int) -> Float[Tensor, "*r K n"]:
        """log p(d) for d = 1, ..., n - 1 and log P(d >= n)."""
        return _closed(self.log_prob(own, 0, n - 1), lambda: self._tail(own, n - 1).logsumexp(-1))

    def log_first(self, own: Parameters, n: int) -> Float[Tensor, "*r K n"]:
        """The same of what is left of a segment at a step chosen at random, of which r steps have the probability
        P(d >= r) / E[d]."""
        log_mean = self.mean({name: value.double() for name, value in own.items()}).log().unsqueeze(-1)
        if self.longest is not None:
            remaining = survivors(self.log_table(own, self.longest)) - log_mean
            return torch.cat([remaining[..., : n - 1], remaining[..., n - 1 :].logsumexp(-1, keepdim=True)], -1)

        def summed() -> Tensor:
            tail = self._tail(own, n - 1)
            times = torch.arange(1, tail.shape[-1] + 1).to(tail)
            return (tail + times.log() - log_mean).logsumexp(-1)

        return _closed(survivors(self.log_table(own, n))[..., :-1] - log_mean, summed)

    def spread(
        self, counts: Float[Tensor, "*r K D"], own: Parameters, first: Float[Tensor, "*r K D"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows `[X, 1]` of d - 1 with their weights `[*r, X, K]`, from the expected numbers of segments by duration,
        of which the last entry stands for all longer ones too.

        Arguments:
            first: of first segments that are cut, by what is left of them. They have at least this duration.
        """
        n, own = counts.shape[-1], {name: value.detach() for name, value in own.items()}
        head, last, longer = counts[..., :-1], counts[..., -1:], torch.zeros_like(counts[..., -1:])
        if first is not None:
            table = self.log_table(own, n)
            ratio = first.double().log() - survivors(table)
            lasted = (table + ratio[..., :-1].logcumsumexp(-1)[..., [*range(n - 1), n - 2]]).exp().to(counts)
            head, last, longer = head + lasted[..., :-1], last + lasted[..., -1:], first[..., -1:]
        x = torch.arange(n - 1).to(counts)
        if bool((last + longer > NONE).any()):
            tail = self._tail(own, n - 1, whole=True)
            times = torch.arange(1, tail.shape[-1] + 1).to(tail).log()
            shares = [share.softmax(-1).nan_to_num(0.0).to(counts) for share in (tail, tail + times)]
            far, weights = _thinned(last * shares[0] + longer * shares[1])
            x, head = torch.cat([x, n - 1 + far]), torch.cat([head, weights], -1)
        used = (head > NONE).flatten(0, -2).any(0)
        end = max(1, int((used.flip(0).cumsum(0) > 0).sum()))  # after the longest duration that counts
        return x[:end].unsqueeze(-1), head[..., :end].mT

    def _tail(self, own: Parameters, first: int, whole: bool = False) -> Float[Tensor, "*r K n"]:
        """log p(d) of d - 1 = first, first + 1, ... until the rest has no weight; the last entry has the rest too, as
        that of a geometric distribution.

        Arguments:
            whole: of all states; False: where `first` is after most of the mass.
        """
        longest = longest_of(self.law)
        if longest is not None:
            return self.log_prob(own, first, longest)
        mean, variance = (table.detach().double() for table in self.law.moments(own))
        reach = DECAY * (variance / mean.clamp_min(torch.finfo(mean.dtype).tiny) + variance.sqrt()) + DECAY
        reach = reach + (mean - first).clamp_min(0.0) if whole else torch.where(mean <= 3 * first + 1, reach, DECAY)
        most = max(LEAST_TAIL, TAIL_NUMBERS // mean.numel())
        n = min(most, math.ceil(float(reach.nan_to_num(most, most).amax())))
        tail = self.log_prob(own, first, first + n)
        fall = (tail[..., -1] - tail[..., -2]).detach().nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=-1 / n)
        rest = tail[..., -1:] - torch.log(-torch.expm1(fall)).unsqueeze(-1)
        return torch.cat([tail[..., :-1], rest], -1)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def start(self, counts: Float[Tensor, "*r K D"], prior: Parameters) -> Parameters:
        """Rough parameters from numbers of segments by duration."""
        typical = {n: v.to(counts).expand(*counts.shape[:-2], *v.shape) for n, v in self.law.start(prior).items()}
        return kept(self.maximal(counts, typical, prior, {}), typical)

    def maximal(
        self, counts: Float[Tensor, "*r K D"], own: Parameters, prior: Parameters | None, fixed: Parameters
    ) -> Parameters:
        """The M-step from the expected numbers of segments by duration."""
        x, weights = self.spread(counts, own)
        step = x, weights, own, prior, x.new_zeros(1)
        return (self.law.maximize_beside(fixed, *step) if fixed else self.law.maximize(*step)).values

    def climbed(
        self,
        counts: Float[Tensor, "*r K D"],
        first: Float[Tensor, "*r K D"],
        own: Parameters,
        prior: Parameters | None,
        fixed: Parameters,
    ) -> Parameters:
        """A better point of the M-step if first segments are cut: of the `spread` counts, where each first segment has
        the factor 1 / E[d] too."""
        x, weights = self.spread(counts, own, first)
        x, number = x.double(), first.sum(-1).double()
        sites = None if prior is None else known_sites(self.law.sites(prior), fixed, self.law.parameters)

        def objective(values: Parameters) -> Tensor:
            wide = {name: value.double() for name, value in values.items()}
            terms = torch.where(weights > 0, weights * self.law.table(x, wide), 0.0).sum(-2)
            fit = (terms - number * self.mean(wide).log()).sum(-1)
            return fit if sites is None else fit + log_prior(sites, values)

        supports = {name: parameter.support for name, parameter in self.law.parameters.items()}
        return ascend(objective, {name: own[name] for name in supports}, supports, fixed=fixed)


def _closed(head: Float[Tensor, "*r K n"], tail: Callable[[], Tensor]) -> Tensor:
    """Log-probabilities with that of the rest after them: 1 minus their sum, or where little is left, `tail()`."""
    mass = head.exp().sum(-1)
    rest = torch.log1p(-mass.clamp_max(MOST_OF_THE_MASS))
    if bool((mass > MOST_OF_THE_MASS).any()):
        rest = torch.where(mass > MOST_OF_THE_MASS, tail(), rest)
    return torch.cat([head, rest.unsqueeze(-1)], -1)


def _thinned(shares: Float[Tensor, "*r K n"]) -> tuple[Float[Tensor, "X"], Float[Tensor, "*r K X"]]:
    """Places 0, 1, ..., with their shares; if there are many, fewer places with the same mean."""
    n = shares.shape[-1]
    places = torch.arange(n).to(shares)
    if shares.numel() <= FEW:
        return places, shares
    grid = [0.0]
    while grid[-1] < n - 1:
        grid.append(min(n - 1.0, grid[-1] + max(1.0, math.floor(grid[-1] / DENSITY))))
    nodes = torch.tensor(grid).to(shares)
    right = torch.bucketize(places, nodes).clamp(1, len(nodes) - 1)
    gap = nodes[right] - nodes[right - 1]
    above = (places - nodes[right - 1]) / gap
    thin = shares.new_zeros(*shares.shape[:-1], len(nodes))
    return nodes, thin.index_add(-1, right, shares * above).index_add(-1, right - 1, shares * (1 - above))
