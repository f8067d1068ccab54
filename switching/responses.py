r"""How parameters respond to inputs: a constant, and coefficients that move it.

A constant is a parameter where all inputs are 0. In other coordinates of the inputs, $v = (u - m) / s$, the same model
has the coefficients $s \beta$, and the constant that the inputs m give: `Range.moved`. So fits may move and scale
inputs, whatever the part of the model that reads them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Transform

from ..inference.numerics.logs import log_complement, log_probability
from .data.series import Series
from .inputs import Inputs, columns_of
from .parameters import Parameters
from .priors import Site

CENTER = "inputs_center"
"""The hyperparameter with the inputs at which the priors of constants are stated."""
SCALE = "inputs_scale"
"""That of the regressions of segments with the spreads of inputs for which coefficients are as vague as locations."""
TINY = 1e-13  # spread of an input, relative to its size, below which it is constant
MOST = 0.5  # share of the largest logarithm that a predictor may reach, so that no rate is infinite


class Range(ABC):
    """The range of a constant, on which a predictor moves it.

    Attributes:
        event_dim: the number of axes of which one predictor moves all entries.
    """

    event_dim = 0

    @abstractmethod
    def moved(self, table: Tensor, predictor: Tensor) -> Tensor:
        """The constant where its predictor is larger by this."""

    @abstractmethod
    def logs(self, table: Tensor) -> list[Tensor]:
        """Numbers that a predictor moves evenly, or whose differences it moves."""

    def moved_logs(self, table: Tensor, predictor: Tensor) -> Tensor:
        """The logarithm of `moved`, also where that rounds to 0."""
        return log_probability(table) + predictor

    def log_volume(self, before: Tensor, after: Tensor) -> Tensor:
        """The logarithm of the volume that a move makes of a unit, of each number or row."""
        pairs = zip(self.logs(before), self.logs(after), strict=True)
        total = torch.stack([self._finite(new) - self._finite(old) for old, new in pairs]).sum(0)
        return total.sum(-1) if self.event_dim else total

    @staticmethod
    def _finite(logs: Tensor) -> Tensor:
        """0 for entries that are impossible."""
        return torch.where(logs.isfinite(), logs, 0.0)


class Real(Range):
    """Any number."""

    def moved(self, table: Tensor, predictor: Tensor) -> Tensor:
        return table + predictor

    def logs(self, table: Tensor) -> list[Tensor]:
        return [table]

    def log_volume(self, before: Tensor, after: Tensor) -> Tensor:
        return torch.zeros_like(after)


class Positive(Range):
    """Rates, whose logarithms move."""

    def moved(self, table: Tensor, predictor: Tensor) -> Tensor:
        most = MOST * float(torch.tensor(torch.finfo(predictor.dtype).max, dtype=torch.float64, device="cpu").log())
        return table * predictor.clamp_max(most).exp()

    def logs(self, table: Tensor) -> list[Tensor]:
        return [table.log()]


class Odds(Range):
    """Probabilities, whose log odds move."""

    def moved(self, table: Tensor, predictor: Tensor) -> Tensor:
        shift = predictor.detach().clamp_min(0.0)  # no exponential is above 1
        one, zero = table * (predictor - shift).exp(), (1 - table) * (-shift).exp()
        return one / (one + zero)

    def logs(self, table: Tensor) -> list[Tensor]:
        return [table.log(), torch.log1p(-table)]

    def moved_logs(self, table: Tensor, predictor: Tensor) -> Tensor:
        """The log odds."""
        return log_probability(table) - log_complement(table) + predictor


class Shares(Range):
    """Rows of probabilities, whose logarithms move relative to each other."""

    event_dim = 1

    def moved(self, table: Tensor, predictor: Tensor) -> Tensor:
        weights = table * (predictor - predictor.detach().amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)

    def logs(self, table: Tensor) -> list[Tensor]:
        return [table.log()]


class AfterFirst(Shares):
    """Rows of probabilities, of which all after the first have predictors."""

    def moved(self, table: Tensor, predictor: Tensor) -> Tensor:
        return super().moved(table, torch.nn.functional.pad(predictor, (1, 0)))

    def moved_logs(self, table: Tensor, predictor: Tensor) -> Tensor:
        return super().moved_logs(table, torch.nn.functional.pad(predictor, (1, 0))).log_softmax(-1)


@dataclass(frozen=True)
class Response:
    """A constant of a part of a model, and the coefficients of inputs that move it.

    Attributes:
        constant: the name of the constant.
        range: how a predictor moves it.
        coefficients: by name of the parameter, the inputs to which its last entries belong.
        stated_by: the hyperparameters of the prior of the constant.
        alone: whether coefficients of states move a constant that all states share, so that other inputs 0 would need
            a constant of each state.
        user_stated: whether the user has given distributions of these parameters.
    """

    constant: str
    range: Range
    coefficients: Mapping[str, Inputs]
    stated_by: Sequence[str] = ()
    alone: bool = False
    user_stated: bool = False

    def prefixed(self, prefix: str) -> "Response":
        """The same with names that start with a prefix."""
        coefficients = {prefix + name: inputs for name, inputs in self.coefficients.items()}
        stated_by = tuple(prefix + name for name in self.stated_by)
        return replace(self, constant=prefix + self.constant, coefficients=coefficients, stated_by=stated_by)


@dataclass(frozen=True)
class Frame:
    """Coordinates $v = (u - m) / s$ of the inputs of a model.

    Attributes:
        responses: of all parts of the model.
        inputs: of the model: the columns of its design.
        center, scale: m and s of each column, in float64.
    """

    responses: Sequence[Response]
    inputs: Inputs
    center: Float[Tensor, "C"]
    scale: Float[Tensor, "C"]

    @property
    def inverse(self) -> "Frame":
        """The frame that leads back."""
        return replace(self, center=-self.center / self.scale, scale=1 / self.scale)

    def into(self, table: Parameters) -> Parameters:
        """Values or hyperparameters of inputs u as those of inputs v."""
        moved, scale, center = dict(table), self.scale, self.center
        still = not bool(center.any())
        for response in self.responses:
            predictor: Any = 0.0
            for name, inputs in response.coefficients.items():
                columns = columns_of(inputs, self.inputs)
                if name in table:
                    factor, by = scale.to(table[name])[columns], center.to(table[name])[columns]
                    moved[name] = _times(table[name], factor)
                    predictor = predictor + (table[name][..., -len(columns) :] * by).sum(-1)
                for end, power in ENDS.items():
                    if name + end in table:
                        moved[name + end] = _times(table[name + end], scale.to(table[name + end])[columns] ** power)
            if not still and response.constant in table and isinstance(predictor, Tensor):
                moved[response.constant] = response.range.moved(table[response.constant], predictor)
        if CENTER in table:
            moved[CENTER] = (table[CENTER] - center.to(table[CENTER])) / scale.to(table[CENTER])
        return moved

    def close(self, old: Parameters, new: Parameters) -> bool:
        """Whether constants have kept half of their digits."""
        for response in self.responses:
            tables = (response.range.logs(table[response.constant]) for table in (old, new))
            for before, after in zip(*tables, strict=True):
                near = (after - before).abs() <= torch.finfo(before.dtype).eps ** 0.5
                if not bool((near | (after == before)).all()):
                    return False
        return True


def spread_of_inputs(series: Series) -> tuple[Float[Tensor, "C"], Float[Tensor, "C"]] | None:
    """The means of the inputs of a series and their standard deviations, 1 where they are constant; None: it has no
    inputs."""
    rows = series.design_rows
    if rows is None or not len(rows):
        return None
    rows = rows.detach().double()
    scale = rows.std(0, correction=0)
    return rows.mean(0), torch.where(scale > TINY * rows.abs().amax(0), scale, 1.0)


ENDS = {"_scale": 1, "_count": -2}
"""Ends of names of hyperparameters of coefficients, and the power of the scale of inputs that they grow with."""


def _times(table: Tensor, factor: Float[Tensor, "n"]) -> Tensor:
    """A table whose last entries, those of inputs, are multiplied."""
    n = len(factor)
    return torch.cat([table[..., :-n], table[..., -n:] * factor], -1)


# ---- priors ----------------------------------------------------------------------------------------------------------


class Moved(Transform):
    """The move of a constant by a predictor, as a transform of distributions."""

    bijective = True
    domain: Any
    codomain: Any

    def __init__(self, range_of: Range, predictor: Tensor, support: Any) -> None:
        super().__init__()
        self.range_of, self.predictor, self.domain, self.codomain = range_of, predictor, support, support

    def _call(self, x: Tensor) -> Tensor:
        return self.range_of.moved(x, self.predictor)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.range_of.moved(y, -self.predictor)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        each = self.range_of.log_volume(x, y)
        n = self.domain.event_dim - self.range_of.event_dim
        return each.flatten(each.ndim - n).sum(-1) if n else each


def stated_sites(sites: Sequence[Site], responses: Sequence[Response], inputs: Inputs, prior: Parameters) -> list[Site]:
    """The sites of a model whose priors of constants are stated at the inputs `prior["inputs_center"]`."""
    center = prior.get(CENTER)
    if center is None or not bool(center.any()):
        return list(sites)
    by_name = {site.name: site for site in sites}
    for response in responses:
        site = by_name.pop(response.constant, None)
        if site is not None:  # after its coefficients
            columns = {name: columns_of(some, inputs) for name, some in response.coefficients.items()}
            by_name[site.name] = _stated(site, response, columns, center)
    return list(by_name.values())


def _stated(site: Site, response: Response, columns: Mapping[str, list[int]], center: Tensor) -> Site:
    """The prior of a constant that is stated at other inputs than 0, given its coefficients."""

    def by(values: Parameters) -> Any:
        effects = [values[n][..., -len(some) :] * center.to(values[n])[some] for n, some in columns.items()]
        return -sum(effect.sum(-1) for effect in effects)

    return moved_site(site, by, response.range)


def moved_site(site: Site, by: Callable[[Parameters], Tensor], range_of: Range) -> Site:
    """The prior of a parameter that is moved by a predictor, which depends on the values of earlier sites."""

    def distribution(values: Parameters) -> Any:
        inner: Any = site.distribution(values)
        return dist.TransformedDistribution(inner, [Moved(range_of, by(values), inner.support)])

    return Site(site.name, distribution)


def as_before(prior: Parameters, defaults: Parameters) -> Parameters:
    """The hyperparameters of inputs that a file of an earlier version lacks, with the numbers that they had there: raw
    inputs, coefficients of a regression as vague as its location.

    Arguments:
        prior: the hyperparameters in the file.
        defaults: those of the model without data.
    """
    known = {
        name: table for name, table in defaults.items() if name in (CENTER, SCALE) or name.endswith("_weights_scale")
    }
    for name in (name for name in defaults if name.endswith("coefficients_count")):
        if (count := prior.get(name.replace("coefficients_count", "count"))) is not None:
            known[name] = count.unsqueeze(-1).expand_as(defaults[name])
    return known
