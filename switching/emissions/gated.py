r"""A gated emission: redrawn steps emit from one distribution, held steps from another, the background.

$$p(x_t \mid s_t, z_t = 1) = p_1(x_t \mid s_t), \qquad p(x_t \mid s_t, z_t = 0) = p_0(x_t)
\quad\text{or}\quad p_0(x_t \mid s_t)$$

If the background ignores the state, the exact filter is a minGRU step, $a_t = (1 - q_t) a_{t-1} + q_t r_t$ with $q_t =
P(z_t = 1 \mid x_t)$. With `by_state=True` it depends on the state, which is the general $p(x_t \mid s_t, z_t)$ of the
family. For example,

$$x_t \mid z_t, s_t \sim N(m z_t + M_{s_t} z_t, \Sigma)$$

has the locations $m + M_s$ at redrawn steps and 0 at held ones, and the log-odds $\log p(x \mid s, 1) - \log p(x \mid
s, 0) = (m + M_s)^\top \Sigma^{-1} x - \frac12 (m + M_s)^\top \Sigma^{-1} (m + M_s)$. It has one $\Sigma$ for all states
and gates, as a `tied` emission has.

The background's parameters have the prefix `background_`. Their state axis has length one if the background ignores the
state.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.numerics.delegation import delegated
from ...inference.numerics.scalars import check_flag
from ..inputs import Inputs, all_inputs, columns_of, select_columns
from ..parameters import PREFIX, Parameter, Parameters, prefixed
from ..priors import Site, prefixed_sites
from ..responses import Response
from .contract import ByGate, Emission, Maximized, Part, check_no_inputs
from .tied import Joined, NormalEmission, tied_parts

OF_BACKGROUND = {"regressor": "background_regressor", "shared_regressor": "background_shared_regressor"}
"""The axes of a background's coefficients."""


@dataclass(frozen=True, repr=False)
class Gated(Emission):
    """Two emissions for copy dynamics: `emission` at redrawn steps, `background` at held steps.

    Arguments:
        emission, background: of the same observation, and not gated themselves. Each may read inputs, as
            `LinearRegression(1, inputs=["dose"])`.
        by_state: whether the background has parameters for each state too: `loc [K, F]` for redrawn steps and
            `background_loc [K, F]` for held ones. False: one background, `background_loc [1, F]`.
        tied: `{"scale": "all states"}` gives two `Normal` one scale for each feature, at redrawn and at held steps;
            `{"covariance": "all states"}` gives two `MultivariateNormal` one covariance. The background then has only a
            `background_loc`, and `as_rnn` accepts the model of any fit (with `by_state`, in `space="logit"`).

    Raises:
        TypeError: a part that is no emission, or gated itself; `by_state` that is not True or False.
        ValueError: parts of different features, categories or columns; another `tied`.

    See Also:
        `Copy`, the dynamics that redraw and hold; `as_rnn`, which makes a network of such a model;
        docs/guides/emissions.md.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Gated(sh.Normal(), sh.Normal()))
        >>> model = model.with_values(
        ...     redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[-1.0], [1.0]], scale=[[0.1], [0.1]],
        ...     background_loc=[[0.0]], background_scale=[[1.0]],
        ... )
        >>> model.filter([1.0, 0.3, -1.0]).redraw.shape
        torch.Size([3])
        >>> tied = sh.Gated(sh.Normal(), sh.Normal(), tied={"scale": "all states"})
        >>> x = [-1.0, -1.1, 0.2, -0.1, 0.1, 1.0, 0.9, -0.2]
        >>> sh.as_rnn(sh.SwitchingSSM(sh.Copy(n_states=2), tied).fit(x, progress=False).model)
        EvidenceGRU(1, 2, num_layers=1, batch_first=True, candidate='simplex', block=2)
    """

    emission: Emission
    background: Emission
    by_state: bool = False
    tied: Mapping[str, str] | None = field(default=None, kw_only=True, hash=False)

    def __post_init__(self) -> None:
        for name in ("emission", "background"):
            part = getattr(self, name)
            if not isinstance(part, Emission) or len(part.parts) > 1:
                raise TypeError(f"{name}: got {type(part).__name__}, expected an emission such as Normal(n_features).")
            if part.order or (self.tied is not None and part.n_inputs):
                check_no_inputs(name, part)
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
        if self.emission.column_names != self.background.column_names:
            raise ValueError(
                f"background: got the columns {list(self.background.column_names)}, but the emission has "
                f"{list(self.emission.column_names)}; both describe the same observation."
            )
        if self.tied is not None:
            for name, part in tied_parts(self.emission, self.background, self.tied).items():
                object.__setattr__(self, name, part)

    def __repr__(self) -> str:
        whole = super().__repr__()
        return whole if self.tied is None else whole.replace(f", tied={self.tied!r}", "", 2)  # those of both parts

    @property
    def inputs(self) -> Inputs:  # type: ignore[override]
        """The inputs of both parts, each once."""
        return all_inputs((self.emission.inputs, self.background.inputs))

    @property
    def normal(self) -> bool:  # type: ignore[override]
        return self.emission.normal and self.background.normal

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        return self.emission.inputs_of | _of_background(self.background.inputs_of)

    @property
    def responses(self) -> tuple[Response, ...]:
        return self.emission.responses + tuple(one.prefixed(PREFIX) for one in self.background.responses)

    @property
    def joined(self) -> Joined | None:
        return Joined(cast(NormalEmission, self.emission), self.by_state) if self.tied is not None else None

    n_features = delegated("emission")
    support = delegated("emission")
    reads_subjects = delegated("emission")
    embed = delegated("emission")
    arranged = delegated("emission")
    column_names = delegated("emission")
    center = delegated("emission")
    away = delegated("emission")
    whole = delegated("emission")

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """The axes, support and displayed form of each parameter."""
        known = dict(self.emission.parameters)
        for name, parameter in self.background.parameters.items():
            shown = parameter.shown and parameter.shown._replace(name=PREFIX + parameter.shown.name)
            names = OF_BACKGROUND if self.by_state else OF_BACKGROUND | {"state": "background"}
            known[PREFIX + name] = replace(parameter.renamed(names), shown=shown)
        return self._without_shared(known)

    @property
    def _shared(self) -> tuple[str, ...]:
        return () if self.tied is None else cast(NormalEmission, self.emission).of_precision

    def _without_shared(self, table: dict[str, Any]) -> dict[str, Any]:
        """A table without the background's parameters and hyperparameters that are those of the emission too."""
        return {
            name: entry for name, entry in table.items() if name not in prefixed(dict.fromkeys(self._shared), PREFIX)
        }

    @property
    def sizes(self) -> dict[str, int]:
        return _of_background(self.background.sizes) | self.emission.sizes

    @property
    def parts(self) -> tuple[Part, ...]:
        drawn, held = (
            tuple(columns_of(part.inputs, self.inputs)) if self.n_inputs else None
            for part in (self.emission, self.background)
        )
        return (
            Part("emission", "", self.emission, columns=drawn),
            Part("background", PREFIX, self.background, not self.by_state, self._shared, held),
        )

    def check(self, x: Tensor, names: Sequence[str] | None = None, first: int = 0) -> None:
        self.emission.check(x, names, first)
        self.background.check(x, names, first)

    def doubts(self, rows: Tensor, names: Sequence[str], first: int = 0) -> Iterator[str]:
        yield from self.emission.doubts(rows, names, first)

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        held = prefixed(self.background.prior_scaled(n_states if self.by_state else 1, x), PREFIX)
        return self._without_shared(self.emission.prior_scaled(n_states, x) | held)

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        converted = dict(table)
        for part in self.parts:
            scaled = part.emission.in_units(part.own(table), unit)
            converted |= {name: value for name, value in prefixed(scaled, part.prefix).items() if name in table}
        return converted

    def log_likelihood(self, x: Tensor, values: Parameters) -> ByGate:
        return ByGate(*(part.emission.table(part.rows(x), part.own(values)) for part in self.parts))

    def averages(self, values: Parameters) -> ByGate:
        tables = [part.emission.averages(part.own(values)).redrawn for part in self.parts]
        return ByGate(*tables) if tables[0].shape[-1] == tables[1].shape[-1] else self.mean(values)

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        drawn, held = (part.emission.reach(part.own(values), p) for part in self.parts)
        low, high = (ByGate(drawn[i].redrawn, held[i].redrawn) for i in (0, 1))
        return low, high

    def units(self, center: Tensor, scale: Tensor, fixed: Collection[str]) -> tuple[Tensor, Tensor]:
        """Those on which both parts agree."""
        known = [name.removeprefix(PREFIX) for name in fixed]
        about, unit = self.emission.units(center, scale, known)
        other, unit = self.background.units(center, unit, known)
        return about.where(about == other, 0.0), unit

    def shifted(self, table: Parameters, by: Tensor) -> Parameters:
        converted = dict(table)
        for part in self.parts:
            moved = part.emission.shifted(part.own(table), by)
            converted |= {name: value for name, value in prefixed(moved, part.prefix).items() if name in table}
        return converted

    def mapped(self, change: Callable[[Emission], Emission]) -> "Gated":
        return replace(self, emission=change(self.emission), background=change(self.background))

    def beside(self, inputs: Tensor) -> "Gated":
        drawn, held = (
            part.emission.beside(select_columns(inputs, part.columns)) if part.columns else part.emission
            for part in self.parts
        )
        return replace(self, emission=drawn, background=held)

    def check_fitted(self, values: Parameters, rows: Tensor) -> None:
        for part in self.parts:
            part.emission.check_fitted(part.own(values), part.rows(rows))

    def at_subjects(self, subjects: Tensor) -> "Gated":
        return self.mapped(lambda part: part.at_subjects(subjects))

    def cut(self, part: Callable[[Tensor], Tensor]) -> "Gated":
        return self.mapped(lambda emission: emission.cut(part))

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
        sites = [site for site in self.background.sites(held.own(prior)) if site.name not in self._shared]
        return self.emission.sites(redrawn.own(prior)) + prefixed_sites(sites, PREFIX, self._shared)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        """log p(x_t | s) of redrawn steps in each state, and then of held steps."""
        return torch.cat([part.emission.table(part.rows(x), part.own(values)) for part in self.parts], -1)

    def maximize_parts(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        near: Parameters,
        prior: Parameters | None,
        floor: Tensor,
        fixed: Parameters | None = None,
    ) -> Maximized:
        if self.joined is None:
            return super().maximize_parts(x, weights, near, prior, floor, fixed)
        return self.joined.maximize(self, x, torch.cat(list(weights), -1), near, prior, floor, fixed or {})

    def sums_of_parts(self, x: Tensor, weights: Sequence[Tensor], near: Parameters) -> Parameters:
        if self.joined is None:
            return super().sums_of_parts(x, weights, near)
        return self.joined.sums(x, torch.cat(list(weights), -1), near)

    def maximize_parts_sums(
        self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        if self.joined is None:
            return super().maximize_parts_sums(sums, near, prior, floor)
        return self.joined.maximize_sums(sums, near, prior, floor)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        """log p(x | s) of a redrawn step."""
        return self.emission.log_prob(self.parts[0].rows(x), values)

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        """The distribution of a redrawn step."""
        return self.emission.distribution(values)


def _of_background(by_axis: Mapping[str, Any]) -> dict[str, Any]:
    """The same by the names of the background's axes."""
    return {OF_BACKGROUND.get(axis, axis): value for axis, value in by_axis.items()}
