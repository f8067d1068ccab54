r"""Normal emissions whose states share one precision: $x_t \mid s \sim N(\mu_s, \Lambda^{-1})$.

$$\Lambda \sim \text{Wishart}(\nu_0, W_0), \qquad \mu_k \mid \Lambda \sim N(m_k, (\kappa_k \Lambda)^{-1})$$

Every state's weighted count $n_k$, mean $\bar x_k$ and scatter $S_k$ adds to the same precision. The posterior is of
the same form, with $\kappa_k + n_k$ and $(\kappa_k m_k + n_k \bar x_k)/(\kappa_k + n_k)$ for every state, and with

$$\nu = \nu_0 + \sum_k n_k, \qquad W^{-1} = W_0^{-1} + \sum_k \Bigl[ S_k + \frac{\kappa_k n_k}{\kappa_k + n_k}
(\bar x_k - m_k)(\bar x_k - m_k)^\top \Bigr].$$

The joint mode has $\Lambda = (\nu + K - F - 1) W$; without a prior it is the inverse of the mean scatter within states,
$\sum_k S_k / \sum_k n_k$. Independent features are the case of one dimension for each, with $a = \nu/2$ and
$b = 1/(2W)$. The family is `SharedPrecision`: its messages are sums of those to a location and a precision of each
state, and the statistics of each state are a part of its own.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Int
from torch import Tensor

from ...inference.families import Held, SharedPrecision, VectorFamily
from ...inference.numerics.delegation import delegated
from ..parameters import PREFIX, SINGLE, Parameter, Parameters, kept
from ..priors import Conjugate
from .conjugate import ConjugateEmission
from .contract import Emission, Maximized

ALL_STATES = "all states"


def check_tied(tied: Any, name: str) -> None:
    """Raise an error unless `tied` is None or ties the parameter of this name."""
    if tied is not None and (not isinstance(tied, Mapping) or dict(tied) != {name: ALL_STATES}):
        raise ValueError(f"tied: got {tied!r}, expected {{{name!r}: {ALL_STATES!r}}}, or None: each state has its own.")


def tied_parts(emission: Emission, background: Emission, tied: Any) -> dict[str, Emission]:
    """Both parts of a gated emission, tied; or an error, if they are not normal emissions of one kind."""
    if not isinstance(emission, NormalEmission) or type(emission) is not type(background):
        raise ValueError(
            f"tied: got {emission!r} and {background!r}, which cannot share a scale; give two Normal or two "
            "MultivariateNormal of one covariance."
        )
    check_tied(tied, emission.tied_name)
    if "precision" in background.user_priors:
        raise ValueError(
            f"prior: got one for {emission.tied_name} of the background, which shares that of the emission; give it "
            "there."
        )
    parts = {"emission": emission, "background": background}
    # a part that is tied already stays the same object: it may have units
    return {name: replace(part, tied=tied) if part.tied is None else part for name, part in parts.items()}  # type: ignore[type-var,attr-defined]


class NormalEmission(ConjugateEmission):
    """A normal emission with parameters `loc` and `precision`, whose states share the precision if it is `tied`."""

    normal: ClassVar[bool] = True
    tied: Mapping[str, str] | None
    by_feature: ClassVar[bool]
    """Whether features are independent, so that the family has a plate for each."""
    of_precision: ClassVar[tuple[str, ...]]
    """The names of the precision and of its hyperparameters."""
    tied_name: ClassVar[str]
    """The displayed form of the precision."""

    @property
    def shares(self) -> bool:
        """Whether several locations have one precision."""
        return self.tied is not None

    def __post_init__(self, *_: Any) -> None:
        check_tied(self.tied, self.tied_name)
        if self.tied is not None:
            precision = self.parameters["precision"]
            shared = replace(precision, dims=("shared", *precision.dims[1:]))
            object.__setattr__(self, "parameters", dict(self.parameters) | {"precision": shared})
            n_outputs = 1 if self.by_feature else self.n_features
            object.__setattr__(self, "family", SharedPrecision(n_outputs))
        super().__post_init__()

    @abstractmethod
    def peak_of(self, message: Tensor, floor: Tensor) -> Maximized:
        """`limit`, with a precision of every state's own."""

    _per_state: int = 1
    """How many locations of a state have one precision, if states share it."""

    def _grouped(self, table: Tensor, after: int = 0) -> Tensor:
        """A table of states and features `[*r, K, F, ...]`, of which `after` axes follow, as the family has it: with
        the locations of one precision along one axis."""
        return table

    def _ungrouped(self, table: Tensor, after: int = 0) -> Tensor:
        """The inverse of `_grouped`."""
        return table

    @property
    def _shared(self) -> SharedPrecision:
        return cast(SharedPrecision, self.family)

    def to_each(self, statistics: Tensor) -> Tensor:
        """The statistics of each state, as those of a precision of its own."""
        return self._ungrouped(self._shared.each(statistics), 1) if self.shares else statistics

    def from_each(self, messages: Tensor) -> Tensor:
        """The message of messages to a location and a precision of each state.

        Arguments:
            messages: of each state.
        """
        return self._shared.joined(self._grouped(messages, 1)) if self.shares else messages

    def _once(self, precision: Tensor) -> Tensor:
        """A precision of each state and feature, once where they share it."""
        if not self.shares:
            return precision
        return precision[(..., *(slice(1 if dim in SINGLE else None) for dim in self.parameters["precision"].dims))]

    def limit(self, message: Tensor, floor: Tensor) -> Maximized:
        if not self.shares:
            return self.peak_of(message, floor)
        loc, residuals = self._shared.within(message)
        best = self.peak_of(self._ungrouped(residuals.unsqueeze(-2), 1), floor)
        return Maximized(best.values | {"loc": self._ungrouped(loc.squeeze(-1)) if self.by_feature else loc})

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        if self.tied is None:
            return super().reordered(eta, order)
        n = self._per_state
        if self._shared.n_locations(eta) == n:
            return eta  # a background that is the same in all states
        return self._shared.reordered(eta, (order.unsqueeze(-1) * n + torch.arange(n).to(order)).flatten())

    def given(self, known: Parameters) -> VectorFamily[Any]:
        return given_shared(self, known) if self.shares else super().given(known)


def given_shared(block: Any, known: Parameters) -> VectorFamily[Any]:
    """The family of parameters with one precision, given some of them; if states share it, one row of NaN stands for
    all locations that are free."""
    if any(bool(table.isnan().any()) for table in known.values()):
        raise TypeError(
            f"fixed: got {', '.join(known)} in part, but message passing holds locations with one precision as a "
            'whole; use method="em", "svi" or "nuts", or give whole tables.'
        )
    if len(known) == len(block.parameters):
        return Held(block.family, block.point(known))
    like, n_features = next(iter(known.values())), block.n_features
    free = {}
    for name, (first, *others) in ((name, parameter.dims) for name, parameter in block.parameters.items()):
        rows = 1 if first in SINGLE else len(like)
        free[name] = like.new_full((rows, *[1 if dim in SINGLE else n_features for dim in others]), torch.nan)
    return SharedPrecision(block.family.n_outputs, block.point(free | known))


@dataclass(frozen=True)
class Joined(Conjugate):
    """The parameters of two tied emissions with one precision: the locations of the states, then of the background.

    Arguments:
        emission: of redrawn steps; it is tied.
        by_state: whether the background has a location for each state; False: it has one.
    """

    emission: NormalEmission
    by_state: bool

    n_features = delegated("emission")
    family = delegated("emission")

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        known = self.emission.parameters
        loc = known["loc"] if self.by_state else known["loc"].renamed({"state": "background"})
        return dict(known) | {PREFIX + "loc": loc}

    def whole(self, values: Parameters) -> Parameters:
        """Parameters `[*r, ...]` of the emission with the background as its last state or states."""
        loc = torch.cat([values["loc"], values[PREFIX + "loc"]], -2)
        return {"loc": loc, "precision": values["precision"]}

    def apart(self, values: Parameters) -> Parameters:
        """Parameters of the emission and of its background."""
        loc = values["loc"]
        k = self._n_states(loc.shape[-2])
        return dict(values) | {"loc": loc[..., :k, :], PREFIX + "loc": loc[..., k:, :]}

    def _n_states(self, n_locations: int) -> int:
        return n_locations // 2 if self.by_state else n_locations - 1

    def whole_prior(self, prior: Parameters) -> Parameters:
        """Hyperparameters of the emission with the background as its last state or states."""
        locations = ("loc", "count")
        whole = {name: torch.cat([prior[name], prior[PREFIX + name]]) for name in locations}
        return whole | {name: prior[name] for name in self.emission.of_precision if name in prior}

    def maximize(
        self,
        gated: Emission,
        x: Tensor,
        weights: Tensor,
        near: Parameters,
        prior: Parameters | None,
        floor: Tensor,
        fixed: Parameters,
    ) -> Maximized:
        """The M-step of a gated emission; the last of the weights are those of held steps."""
        fixed = {name: value for name, value in fixed.items() if name in self.parameters}
        conjugate = all(part.emission.is_conjugate for part in gated.parts)
        if fixed or not (prior is None or conjugate):
            best = gated.maximize_beside(fixed, x, weights, near, prior, floor)
            return replace(best, values=kept(best.values, near))
        return self.maximize_sums(self.sums(x, weights, near), near, prior, floor)

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        """`Emission.sums` of both parts; the last of the weights are those of held steps."""
        return self.emission.sums(x, weights, self.whole(near))

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        """The M-step of a gated emission from its sums."""
        begin, whole_prior = self.whole(near), None if prior is None else self.whole_prior(prior)
        best = self.emission.maximize_sums(sums, begin, whole_prior, floor)
        return Maximized(self.apart(kept(best.values, begin)))

    def natural(self, prior: Parameters) -> Tensor:
        return self.emission.natural(self.whole_prior(prior))

    def point(self, values: Parameters) -> Any:
        return self.emission.point(self.whole(values))

    def values(self, point: Any) -> Parameters:
        return self.apart(self.emission.values(point))

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        k = len(order)
        held = order + k if self.by_state else order.new_tensor([k])
        return self.emission.reordered(eta, torch.cat([order, held]))

    def given(self, known: Parameters) -> VectorFamily[Any]:
        return given_shared(self, known)
