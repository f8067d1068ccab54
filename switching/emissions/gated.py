r"""A gated emission: redrawn steps emit from one distribution, held steps from another, the background.

$$p(x_t \mid s_t, z_t = 1) = p_1(x_t \mid s_t), \qquad p(x_t \mid s_t, z_t = 0) = p_0(x_t)
\quad\text{or}\quad p_0(x_t \mid s_t)$$

If the background ignores the state, the exact filter is a minGRU step, $a_t = (1 - q_t) a_{t-1} + q_t r_t$ with $q_t =
P(z_t = 1 \mid x_t)$. With `by_state=True` it depends on the state, which is the general $p(x_t \mid s_t, z_t)$ of the
family. For example,

$$x_t \mid z_t, s_t \sim N(m z_t + M_{s_t} z_t, \Sigma)$$

has the locations $m + M_s$ at redrawn steps and 0 at held ones, and the log-odds $\log p(x \mid s, 1) - \log p(x \mid
s, 0) = (m + M_s)^\top \Sigma^{-1} x - \frac12 (m + M_s)^\top \Sigma^{-1} (m + M_s)$.

The background's parameters have the prefix `background_`. Their state axis has length one if the background ignores the
state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.scalars import check_flag
from ..parameters import PREFIX, Parameter, Parameters, prefixed
from ..priors import Site, prefixed_sites
from .contract import Emission, Part


@dataclass(frozen=True)
class Gated(Emission):
    """`emission` at redrawn steps, `background` at held steps, for copy dynamics.

    Arguments:
        emission, background: of the same observation, and not gated themselves.
        by_state: whether the background has parameters for each state too: `loc [K, F]` for redrawn steps and
            `background_loc [K, F]` for held ones. False: one background, `background_loc [1, F]`.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Gated(sh.Normal(), sh.Normal()))
        >>> model = model.with_values(
        ...     redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]], scale=[[0.1], [0.1]],
        ...     background_loc=[[0.0]], background_scale=[[1.0]],
        ... )
        >>> model.filter([1.0, 0.3, -1.0]).redraw.shape
        torch.Size([3])
    """

    emission: Emission
    background: Emission
    by_state: bool = False

    def __post_init__(self) -> None:
        for name in ("emission", "background"):
            part = getattr(self, name)
            if not isinstance(part, Emission) or len(part.parts) > 1:
                raise TypeError(f"{name}: got {type(part).__name__}, expected an emission such as Normal(n_features).")
        check_flag("by_state", self.by_state)
        if self.emission.n_features != self.background.n_features:
            raise ValueError(
                f"background: got {self.background.n_features} feature(s), "
                f"but the emission has {self.emission.n_features}; both describe the same observation."
            )
        sizes = [part.sizes["category"] for part in (self.emission, self.background) if "category" in part.sizes]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"background: got other categories than the emission ({sorted(sizes)}); both describe the same symbols."
            )

    @property
    def n_features(self) -> int:  # type: ignore[override]
        return self.emission.n_features

    @property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        return self.emission.support

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        known = dict(self.emission.parameters)
        for name, parameter in self.background.parameters.items():
            shown = parameter.shown and parameter.shown._replace(name=PREFIX + parameter.shown.name)
            known[PREFIX + name] = replace(
                parameter if self.by_state else parameter.renamed({"state": "background"}), shown=shown
            )
        return known

    @property
    def sizes(self) -> dict[str, int]:
        return self.background.sizes | self.emission.sizes

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("emission", "", self.emission),
            Part("background", PREFIX, self.background, alike=not self.by_state),
        )

    def check(self, x: Tensor) -> None:
        self.emission.check(x)
        self.background.check(x)

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        return self.emission.prior_scaled(n_states, x) | prefixed(
            self.background.prior_scaled(n_states if self.by_state else 1, x), PREFIX
        )

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        converted = dict(table)
        for part in self.parts:
            scaled = part.emission.in_units(part.own(table), unit)
            converted |= {name: value for name, value in prefixed(scaled, part.prefix).items() if name in table}
        return converted

    def with_user_priors(self, prior: Mapping[str, Any]) -> "Gated":
        held = {name.removeprefix(PREFIX): one for name, one in prior.items() if name.startswith(PREFIX)}
        drawn = {name: one for name, one in prior.items() if not name.startswith(PREFIX)}
        emission = self.emission.with_user_priors(drawn) if drawn else self.emission
        background = self.background.with_user_priors(held) if held else self.background
        return replace(self, emission=emission, background=background)

    def in_fit_units(self, about: Tensor, unit: Tensor) -> "Gated":
        parts = {part.prefix or "emission": part.emission.in_fit_units(about, unit) for part in self.parts}
        if all(part.emission is parts[part.prefix or "emission"] for part in self.parts):
            return self
        return replace(self, emission=parts["emission"], background=parts[PREFIX])

    def sites(self, prior: Parameters) -> list[Site]:
        redrawn, held = self.parts
        return self.emission.sites(redrawn.own(prior)) + prefixed_sites(self.background.sites(held.own(prior)), PREFIX)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        """log p(x | s) of a redrawn step."""
        return self.emission.log_prob(x, values)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        """The distribution of a redrawn step."""
        return self.emission.distribution(values)

    def embed(self, x: Tensor) -> Tensor:
        return self.emission.embed(x)
