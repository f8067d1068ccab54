r"""Columns of different families, independent given the state.

$$p(x_t \mid s) = \prod_i p_i(x_t^{(i)} \mid s)$$
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import constraints

from ..data.frames import labelled
from ..data.series import Series
from ..parameters import SINGLE, Parameter, Parameters, prefixed
from ..priors import Site, prefixed_sites
from .contract import ByGate, Emission, Maximized, check_no_inputs


class _Columns(constraints.Constraint):
    """Rows whose columns have supports of their own."""

    is_discrete = False

    def __init__(self, parts: Sequence[tuple[slice, Any]]) -> None:
        self.parts = parts
        for end, none in (("lower_bound", -torch.inf), ("upper_bound", torch.inf)):
            bounds = [float(getattr(base, end, none)) for place, base in parts for _ in range(place.stop - place.start)]
            setattr(self, end, torch.tensor(bounds, dtype=torch.float64, device="cpu"))

    def check(self, value: Tensor) -> Tensor:
        return torch.cat([base.check(value[..., place]) for place, base in self.parts], -1)


@dataclass(frozen=True, repr=False, init=False)
class Joint(Emission):
    """Emissions of different families side by side, independent given the state; each keyword names columns.

    Parameters have the name of their columns as a prefix: `step_shape`, `angle_loc`. Columns of a data frame, or of a
    dictionary of columns, are found by name, in any order; those of other data come in the order of the keywords. An
    emission of several features has
    the columns whose names start with its own, such as `wind_u` and `wind_v` of `wind=Normal(2)`. Each column may be
    missing on its own. EM, SVI and NUTS fit it; message passing does not support it.

    Arguments:
        emissions: by the name of their columns, as keywords.

    Raises:
        TypeError: a part that is no emission of this kind, or none at all.
        ValueError: a part with inputs or lags; names that parameters could not tell apart.

    See Also:
        `MultivariateNormal`, for features that depend on each other; `ZeroInflated`, often a part of it;
        docs/guides/emissions.md.

    Example:
        >>> import pandas as pd
        >>> import samplehold as sh
        >>> emission = sh.Joint(step=sh.ZeroInflated(sh.Gamma()), angle=sh.VonMises())
        >>> track = pd.DataFrame({
        ...     "angle": [0.1, None, -0.1, 3.0, -3.1, 2.9], "step": [5.0, 0.0, 6.0, 0.4, 0.6, 0.5],
        ... })
        >>> fit = sh.SwitchingSSM(sh.Markov(2), emission).fit(track, progress=False)
        >>> fit.model.values["angle_loc"].shape, fit.viterbi().path.unique_consecutive().numel()
        (torch.Size([2, 1]), 2)
    """

    emissions: Mapping[str, Emission] = field(hash=False)

    def __init__(self, emissions: Any = None, /, **named: Any) -> None:
        whole = named.get("emissions")
        if emissions is None and len(named) == 1 and isinstance(whole, Mapping):
            emissions, named = whole, {}  # from a file, or a changed copy
        if emissions is not None and not isinstance(emissions, Mapping):
            raise TypeError(
                f"Joint: got {type(emissions).__name__}, expected an emission by the name of each column, as "
                "Joint(step=Gamma(), angle=VonMises())."
            )
        parts = {**(emissions or {}), **named}
        if not parts:
            raise TypeError("Joint: got no emission; give some by the names of their columns, as Joint(step=Gamma()).")
        for name, part in parts.items():
            if not isinstance(part, Emission) or len(part.parts) > 1 or isinstance(part, Joint):
                raise TypeError(f"{name}: got {type(part).__name__}, expected an emission such as Gamma(n_features).")
            check_no_inputs(name, part)
            for other in parts:
                if other != name and f"{other}_".startswith(f"{name}_"):
                    raise ValueError(f"{other}: begins with {name}_, as parameters of {name} do; give another name.")
        if "background" in parts:
            raise ValueError("background: is the prefix of a gated emission's parameters; give another name.")
        object.__setattr__(self, "emissions", parts)
        super().__post_init__()

    def __repr__(self) -> str:
        return f"Joint({', '.join(f'{name}={part!r}' for name, part in self.emissions.items())})"

    # ---- the columns -------------------------------------------------------------------------------------------------

    @cached_property
    def n_features(self) -> int:  # type: ignore[override]
        return sum(part.n_features for part in self.emissions.values())

    @cached_property
    def _places(self) -> list[tuple[str, Emission, slice]]:
        """The prefix of the parameters of each part, the part, and its columns."""
        places, first = [], 0
        for name, part in self.emissions.items():
            places.append((f"{name}_", part, slice(first, first + part.n_features)))
            first += part.n_features
        return places

    @property
    def column_names(self) -> tuple[str, ...]:
        names = []
        for name, part in self.emissions.items():
            names += [name] if part.n_features == 1 else [f"{name}_{i}" for i in range(part.n_features)]
        return tuple(names)

    def arranged(self, x: Any) -> Any:
        if isinstance(x, Series):
            if x.features is not None and self._order(x.features_of()) != list(x.features_of()):
                raise ValueError(
                    f"x: got a Series with the columns {', '.join(x.features_of())}, expected them in the order "
                    f"{', '.join(self._order(x.features_of()))}; read the frame with this model's read."
                )
            return x
        if isinstance(x, Mapping):
            if self.n_features > 1 and _are_columns(x):
                return self._table(x)
            return {name: self.arranged(part) for name, part in x.items()}
        if isinstance(x, list | tuple):
            named = any(labelled(part) or isinstance(part, Mapping) for part in x)
            return [self.arranged(part) for part in x] if named else x
        if not labelled(x) or not hasattr(x, "columns"):
            return x
        by_text = {str(column): column for column in x.columns}
        return x[[by_text[name] for name in self._order([str(column) for column in x.columns])]]

    def _table(self, x: Mapping[str, Any]) -> Any:
        """Columns by name as one table: a tensor of tensors, otherwise a data frame."""
        by_text = {str(name): column for name, column in x.items()}
        lengths = {name: len(column) for name, column in by_text.items()}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{n} numbers of {name}" for name, n in lengths.items())
            raise ValueError(f"x: got {got}; give columns of one length, with NaN where a number is missing.")
        index = [column.index for column in by_text.values() if isinstance(column, pd.Series)]
        if any(not one.equals(index[0]) for one in index):
            raise ValueError("x: got columns with different indexes; give columns with one index, or arrays.")
        order = self._order(list(by_text))
        if all(isinstance(column, Tensor) for column in by_text.values()):
            return torch.stack([by_text[name] for name in order], -1)
        return pd.DataFrame({name: by_text[name] for name in order})

    def _order(self, columns: Sequence[str]) -> list[str]:
        """Names of columns in the order of the parts; ValueError for others."""
        ordered: list[str] = []
        for name, part in self.emissions.items():
            own = [c for c in columns if (c == name if part.n_features == 1 else c.startswith(f"{name}_"))]
            if len(own) != part.n_features:
                wanted = f"a column {name}" if part.n_features == 1 else f"{part.n_features} columns {name}_..."
                got = ", ".join(columns)
                raise ValueError(f"x: got the columns {got}; expected {wanted}, as Joint names its emissions.")
            ordered += own
        others = [column for column in columns if column not in ordered]
        if others:
            raise ValueError(
                f"x: got the columns {', '.join(others)}, which Joint does not name; leave them out, or give each an "
                "emission."
            )
        return ordered

    def _own(self, table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in table.items() if name.startswith(prefix)}

    def _each(self, table: Parameters) -> Iterator[tuple[Emission, slice, Parameters]]:
        """Each part with its columns and its entries of a table of values or hyperparameters."""
        for prefix, part, place in self._places:
            yield part, place, self._own(table, prefix)

    def of_feature(self, feature: int, values: Parameters) -> tuple[Emission, Parameters, int]:
        part, place, own = next(each for each in self._each(values) if feature < each[1].stop)
        return part, own, feature - place.start

    # ---- what the parts say ------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """The axes, support and displayed form of each parameter."""
        known = {}
        for prefix, part, _ in self._places:
            for name, parameter in part.parameters.items():
                axes = {dim: prefix + dim for dim in parameter.dims if dim not in ("state", *SINGLE)}
                shown = parameter.shown and parameter.shown._replace(name=prefix + parameter.shown.name)
                known[prefix + name] = replace(parameter.renamed(axes), shown=shown)
        return known

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {p + axis: n for p, part, _ in self._places for axis, n in part.sizes.items()}

    @cached_property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        return _Columns([(place, part.support) for _, part, place in self._places])

    @property
    def whole(self) -> Any:
        whole = [bool(part.support.is_discrete) for part in self.emissions.values() for _ in range(part.n_features)]
        return torch.tensor(whole, device="cpu")

    def check(self, x: Tensor, names: Sequence[str] | None = None, first: int = 0) -> None:
        for _, part, place in self._places:
            part.check(x[..., place], names or self.column_names, first + place.start)

    def doubts(self, rows: Tensor, names: Sequence[str], first: int = 0) -> Iterator[str]:
        for _, part, place in self._places:
            yield from part.doubts(rows[:, place], names, first + place.start)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        return _sum(part.log_prob(x[..., place], own) for part, place, own in self._each(values))

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return _sum(part.table(x[..., place], own) for part, place, own in self._each(values))

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return _SideBySide(self, [part.distribution(own) for part, _, own in self._each(values)])

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        moments = [part.moments(own) for part, _, own in self._each(values)]
        return torch.cat([mean for mean, _ in moments], -1), torch.cat([variance for _, variance in moments], -1)

    def narrowness(self, values: Parameters) -> Tensor:
        return torch.cat([part.narrowness(own) for part, _, own in self._each(values)], -1)

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        return torch.stack([part.collapsed(own, floor[place]) for part, place, own in self._each(values)]).any(0)

    def averages(self, values: Parameters) -> ByGate:
        averages = torch.cat([part.averages(own).redrawn for part, _, own in self._each(values)], -1)
        return ByGate(averages, averages)

    def center(self, expected: Tensor) -> Tensor:
        if expected.shape[-1] == self.n_features:
            return expected
        by_part = expected.split(self._n_averages, -1)
        return torch.cat([part.center(own) for (_, part, _), own in zip(self._places, by_part, strict=True)], -1)

    @cached_property
    def _n_averages(self) -> list[int]:
        """The number of `averages` of each part."""
        prior = self.default_prior(1, None)
        return [part.averages(part.start(own)).redrawn.shape[-1] for part, _, own in self._each(prior)]

    def away(self, mean: Tensor, center: Tensor) -> Tensor:
        return torch.cat([part.away(mean[..., place], center[..., place]) for _, part, place in self._places], -1)

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return torch.cat([part.marginal_cdf(x[..., place], own) for part, place, own in self._each(values)], -1)

    def reach(self, values: Parameters, p: float) -> tuple[ByGate, ByGate]:
        by_part = [part.reach(own, p) for part, _, own in self._each(values)]
        low, high = (torch.cat([ends[i].redrawn for ends in by_part], -1) for i in (0, 1))
        return ByGate(low, low), ByGate(high, high)

    def embed(self, x: Tensor) -> Tensor:
        return torch.cat([part.embed(x[:, place]) for _, part, place in self._places], -1)

    # ---- units -------------------------------------------------------------------------------------------------------

    @property
    def have_unit(self) -> bool:  # type: ignore[override]
        return any(part.have_unit for part in self.emissions.values())

    def units(self, center: Tensor, scale: Tensor, fixed: Collection[str]) -> tuple[Tensor, Tensor]:
        by_part = [
            part.units(center[place], scale[place], list(self._own(dict.fromkeys(fixed), prefix)))
            for prefix, part, place in self._places
        ]
        return torch.cat([about for about, _ in by_part]), torch.cat([unit for _, unit in by_part])

    def in_units(self, table: Parameters, unit: Tensor) -> Parameters:
        return self._changed(table, lambda part, place, own: part.in_units(own, unit[place]))

    def shifted(self, table: Parameters, by: Tensor) -> Parameters:
        return self._changed(table, lambda part, place, own: part.shifted(own, by[place]))

    def _changed(self, table: Parameters, change: Any) -> Parameters:
        changed = dict(table)
        for prefix, part, place in self._places:
            changed |= prefixed(change(part, place, self._own(table, prefix)), prefix)
        return changed

    def in_fit_units(self, about: Tensor, unit: Tensor) -> "Joint":
        parts = {
            name: part.in_fit_units(about[place], unit[place])
            for name, (_, part, place) in zip(self.emissions, self._places, strict=True)
        }
        return self if all(part is self.emissions[name] for name, part in parts.items()) else Joint(parts)

    # ---- the prior ---------------------------------------------------------------------------------------------------

    def default_prior(self, n_states: int, x: Tensor | None) -> Parameters:
        prior: Parameters = {}
        for prefix, part, place in self._places:
            prior |= prefixed(part.prior_scaled(n_states, None if x is None else x[:, place]), prefix)
        return prior

    def start(self, prior: Parameters) -> Parameters:
        values: Parameters = {}
        for prefix, part, _ in self._places:
            values |= prefixed(part.start(self._own(prior, prefix)), prefix)
        return values

    def sites(self, prior: Parameters) -> list[Site]:
        return [
            site
            for prefix, part, _ in self._places
            for site in prefixed_sites(part.sites(self._own(prior, prefix)), prefix)
        ]

    def with_user_priors(self, prior: Mapping[str, Any]) -> "Joint":
        parts = dict(self.emissions)
        for name, (prefix, part, _) in zip(self.emissions, self._places, strict=True):
            own = self._own(prior, prefix)
            parts[name] = part.with_user_priors(own) if own else part
        for name in prior:
            if not any(name.startswith(prefix) for prefix, _, _ in self._places):
                raise ValueError(f"prior: got {name!r}, expected some of {', '.join(self.parameters)}.")
        return Joint(parts)

    def check_fitted(self, values: Parameters, rows: Tensor) -> None:
        for part, place, own in self._each(values):
            part.check_fitted(own, rows[:, place])

    # ---- the M-step --------------------------------------------------------------------------------------------------

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        return all(part.adds_up for part in self.emissions.values())

    def sums(self, x: Tensor, weights: Tensor, near: Parameters) -> Parameters:
        sums: Parameters = {}
        for prefix, part, place in self._places:
            sums |= prefixed(part.sums(x[:, place], weights, self._own(near, prefix)), prefix)
        return sums

    def maximize_sums(self, sums: Parameters, near: Parameters, prior: Parameters | None, floor: Tensor) -> Maximized:
        def best(prefix: str, part: Emission, place: slice, own: Parameters, own_prior: Any) -> Maximized:
            return part.maximize_sums(self._own(sums, prefix), own, own_prior, floor[place])

        return self._by_column(best, near, prior)

    def maximize_beside(
        self,
        fixed: Parameters,
        x: Tensor,
        weights: Tensor,
        near: Parameters,
        prior: Parameters | None,
        floor: Tensor,
    ) -> Maximized:
        def best(prefix: str, part: Emission, place: slice, own: Parameters, own_prior: Any) -> Maximized:
            step, held = (x[:, place], weights, own, own_prior, floor[place]), self._own(fixed, prefix)
            return part.maximize_beside(held, *step) if held else part.maximize(*step)

        return self._by_column(best, near, prior)

    def _by_column(self, best: Callable[..., Maximized], near: Parameters, prior: Parameters | None) -> Maximized:
        """The M-step of each part, from its columns, values and prior."""
        values: Parameters = {}
        for prefix, part, place in self._places:
            own_prior = None if prior is None else self._own(prior, prefix)
            found = best(prefix, part, place, self._own(near, prefix), own_prior)
            values |= prefixed(found.values, prefix)
        return Maximized(values)


class _SideBySide(TorchDistribution):
    """Observations whose parts are independent."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, emission: Joint, parts: Sequence[Any]) -> None:
        self.emission, self.parts = emission, parts
        super().__init__(parts[0].batch_shape, torch.Size((emission.n_features,)), validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.independent(self.emission.support, 1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "_SideBySide":
        return _SideBySide(self.emission, [part.expand(batch_shape) for part in self.parts])

    def log_prob(self, value: Tensor) -> Tensor:
        places = (place for _, _, place in self.emission._places)
        return _sum(part.log_prob(value[..., place]) for part, place in zip(self.parts, places, strict=True))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.cat([part.sample(torch.Size(sample_shape)) for part in self.parts], -1)


def _are_columns(x: Mapping[str, Any]) -> bool:
    """Whether all entries are columns of numbers, not sequences of rows."""
    if any(isinstance(part, Mapping) or (labelled(part) and part.ndim > 1) for part in x.values()):
        return False
    try:
        return bool(x) and all(np.ndim(part) == 1 for part in x.values())
    except ValueError:  # rows of different lengths
        return False


def _sum(terms: Any) -> Tensor:
    return cast(Tensor, sum(terms))
