r"""A gated emission: a redrawn step emits from its state, a held step from a background that ignores the state.

$$p(x_t \mid s_t, z_t = 1) = p_1(x_t \mid s_t), \qquad p(x_t \mid s_t, z_t = 0) = p_0(x_t)$$

Then the exact filter is a minGRU step, $a_t = (1 - q_t) a_{t-1} + q_t r_t$ with $q_t = P(z_t = 1 \mid x_t)$.
The background's parameters carry the prefix `background_` and a state axis of length one.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..parameters import Parameters, Site, prefixed, with_prefix
from .contract import ByGate, Emission, Maximized, StateEmission
from .discrete import Categorical

PREFIX = "background_"


@dataclass(frozen=True)
class Gated(Emission):
    """`emission` at redrawn steps, `background` at held ones; for the copy dynamics, which has both."""

    emission: StateEmission
    background: StateEmission

    def __post_init__(self) -> None:
        for name, part in (("emission", self.emission), ("background", self.background)):
            if not isinstance(part, StateEmission):
                raise TypeError(f"{name}: got {type(part).__name__}, expected an emission such as Normal(n_features).")
        if self.emission.n_features != self.background.n_features:
            raise ValueError(
                f"background: got {self.background.n_features} feature(s), "
                f"but the emission has {self.emission.n_features}; both describe the same observation."
            )

        parts = (self.emission, self.background)
        sizes = {part.n_categories for part in parts if isinstance(part, Categorical)}
        if len(sizes) > 1:
            raise ValueError(
                f"background: got other categories than the emission ({sorted(sizes)}); both describe the same symbols."
            )

    @property
    def n_features(self) -> int:
        return self.emission.n_features

    @property
    def event_dims(self) -> dict[str, int]:
        return self.emission.event_dims | {PREFIX + name: dims for name, dims in self.background.event_dims.items()}

    def check(self, x: Tensor) -> None:
        self.emission.check(x)
        self.background.check(x)

    def check_values(self, values: Parameters) -> Parameters:
        own = {name: value for name, value in values.items() if not name.startswith(PREFIX)}
        return self.emission.check_values(own) | _with(self.background.check_values(with_prefix(values, PREFIX)))

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        return self.emission.default_prior(n_states, x) | _with(self.background.default_prior(1, x))

    def sites(self, prior: Parameters) -> list[Site]:
        return self.emission.sites(prior) + prefixed(self.background.sites(with_prefix(prior, PREFIX)), PREFIX)

    def log_likelihood(self, x: Tensor, values: Parameters) -> ByGate:
        return ByGate(self.emission.table(x, values), self.background.table(x, with_prefix(values, PREFIX)))

    def log_prob_at(self, x: Tensor, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        drawn = self.emission.log_prob_at(x, values, state, redraw)
        background = with_prefix(values, PREFIX)
        held = self.background.log_prob_at(x, background, _row(background, state), redraw)
        return torch.where(redraw.bool(), drawn, held)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        drawn = self.emission.sample_at(values, state, redraw)
        background = with_prefix(values, PREFIX)
        held = self.background.sample_at(background, _row(background, state), redraw)
        return torch.where(redraw.bool().unsqueeze(-1), drawn, held)

    def gather(self, x: Tensor, redrawn: Tensor, held: Tensor | None, values: Parameters | None) -> Parameters:
        assert held is not None  # a model with gated emissions has copy dynamics
        background = None if values is None else with_prefix(values, PREFIX)
        total = held.sum(-1, keepdim=True)
        return self.emission.moments(x, redrawn, values) | _with(self.background.moments(x, total, background))

    def maximize(self, moments: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        own = self.emission.maximize(moments, prior, floor)
        background_prior = None if prior is None else with_prefix(prior, PREFIX)
        background = self.background.maximize(with_prefix(moments, PREFIX), background_prior, floor)
        return Maximized(own.values | _with(background.values), own.collapsed)

    def mean(self, values: Parameters) -> ByGate:
        return ByGate(self.emission.mean(values).redrawn, self.background.mean(with_prefix(values, PREFIX)).held)

    def variance(self, values: Parameters) -> ByGate:
        return ByGate(
            self.emission.variance(values).redrawn, self.background.variance(with_prefix(values, PREFIX)).held
        )

    def describe(self, values: Parameters) -> Parameters:
        return self.emission.describe(values) | _with(self.background.describe(with_prefix(values, PREFIX)))

    def embed(self, x: Tensor) -> Tensor:
        return self.emission.embed(x)


def _row(background: Parameters, state: Tensor) -> Tensor:
    """The background's only row; a mixture over parameter draws has one for each of its states."""
    return state.clamp(max=next(iter(background.values())).shape[0] - 1)


def _with(values: dict[str, Any]) -> dict[str, Any]:
    return {PREFIX + name: value for name, value in values.items()}
