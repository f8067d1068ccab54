r"""Emissions that read inputs: $p(x_t \mid s_t, u_t)$ is a plain emission whose parameters depend on $u_t$.

Where other emissions read observations `[*b, T, F]`, a driven emission reads rows `[*b, T, F + C]`: each observation,
and its inputs beside it. So starts, M-steps, messages and chunks are those of every emission. Where the distribution at
known steps is needed (forecasts, draws, figures), `beside` gives an emission that knows the inputs of these steps.
"""

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from jaxtyping import Bool, Float
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.numerics.delegation import delegated
from ..data.series import Drive, Series
from ..inputs import Inputs, columns_of, select_columns
from ..parameters import Parameters, widened
from .contract import ByGate, Emission


class DrivenEmission(Emission):
    """An emission with inputs. A subclass defines the `plain` emission, and its parameters for given inputs."""

    @property
    @abstractmethod
    def plain(self) -> Emission:
        """The emission of an observation with known inputs."""

    @abstractmethod
    def respond(self, values: Parameters, inputs: Float[Tensor, "*#n C"]) -> Parameters:
        """The parameters of `plain` `[*n, ...]` at inputs, from parameters `[*#n, ...]` without an axis of states."""

    @property
    def n_columns(self) -> int:
        """C, the number of columns beside an observation: its lags, if there are any, and its inputs."""
        return self.n_inputs

    def at(self, values: Parameters, inputs: Float[Tensor, "*n C"]) -> Parameters:
        """The parameters of `plain` `[*r, *n, K, ...]` at inputs, from parameters `[*r, K, ...]`."""
        n_axes = inputs.ndim - 1
        wide = {name: widened(values[name], len(p.dims), n_axes) for name, p in self.parameters.items()}
        return self.respond(wide, inputs.unsqueeze(-2))

    def at_zero(self, values: Parameters) -> Parameters:
        """The parameters of `plain` where all inputs are 0: `[*r, K, ...]`."""
        return self.at(values, next(iter(values.values())).new_zeros(self.n_columns))

    def beside(self, inputs: Float[Tensor, "*n C"]) -> Emission:
        return Beside(self, inputs)

    def split(self, rows: Float[Tensor, "*n R"]) -> tuple[Float[Tensor, "*n F"], Float[Tensor, "*n C"]]:
        """Observations, and the inputs beside them."""
        return rows[..., : self.n_features], rows[..., self.n_features :]

    # ---- the contract ------------------------------------------------------------------------------------------------

    support = delegated("plain")
    normal = delegated("plain")
    check = delegated("plain")
    embed = delegated("plain")

    @property
    def sizes(self) -> dict[str, int]:
        return self.plain.sizes | {"regressor": self.n_columns}

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        return {"regressor": self.inputs}

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        observed, inputs = self.split(x)
        return self.plain.log_prob(observed, self.respond(values, inputs))

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        """Of an observation whose inputs are 0."""
        return self.plain.distribution(self.at_zero(values))

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        """Of an observation whose inputs are 0."""
        return self.plain.moments(self.at_zero(values))

    def narrowness(self, values: Parameters) -> Tensor:
        return self.plain.narrowness(self.at_zero(values))

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        """Of an observation whose inputs are 0."""
        return self.plain.marginal_cdf(x, self.at_zero(values))


class Beside(Emission):
    """A driven emission at steps with known inputs `[*b, T, C]`: its moments have axes `[*r, *b, T, K, F]`. One step
    needs no axis."""

    driven: DrivenEmission
    inputs_here: Tensor

    def __init__(self, emission: DrivenEmission, inputs: Float[Tensor, "*n C"]) -> None:
        self.driven, self.inputs_here = emission, inputs.nan_to_num(0.0) if emission.order else inputs
        self.unknown: Any = emission.unknown(inputs) if emission.order else None  # nothing is known about them
        self.n_features, self.parameters, self.support = emission.n_features, emission.parameters, emission.support

    sizes = delegated("driven")
    normal = delegated("driven")
    default_prior = delegated("driven")

    def cut(self, part: Callable[[Tensor], Tensor]) -> "Beside":
        cut = copy(self)
        cut.inputs_here, cut.unknown = part(self.inputs_here), None if self.unknown is None else part(self.unknown)
        return cut

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        inputs = self.inputs_here.expand(*x.shape[:-1], -1)
        return self.driven.table(torch.cat([self.without(x), inputs.to(x)], -1), values)

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        return self.driven.plain.log_prob(self.without(x), self.driven.respond(values, self.inputs_here))

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        return self.driven.plain.distribution(self.driven.respond(values, self.inputs_here))

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        moments = self.driven.plain.moments(self.driven.at(values, self.inputs_here))
        return self.without(moments[0], -2), self.without(moments[1].expand_as(moments[0]), -2)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        return self.without(super().sample_at(values, state, redraw))

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        return self.driven.plain.marginal_cdf(x, self.driven.at(values, self.inputs_here))

    def without(self, table: Tensor, *axis: int) -> Tensor:
        """Numbers of features, NaN for those whose lags are missing; `axis` is that of the states, if there is one."""
        if self.unknown is None:
            return table
        return table.masked_fill(self.unknown.unsqueeze(*axis) if axis else self.unknown, torch.nan)

    def category_probs(self, values: Parameters) -> ByGate:
        return self.driven.plain.category_probs(self.driven.at(values, self.inputs_here))


def rows_read(emission: Emission, series: Series) -> Float[Tensor, "*b T R"]:
    """The observations of a series, with the lags and inputs that an emission reads beside them, or the variances of
    their noise, and with the number of the subject at the end if parameters differ between subjects. An observation
    whose lags are missing is missing."""
    beside = [series.observations]
    if series.variances is not None:
        beside.append(series.variances)
    elif emission.order or emission.n_inputs:
        columns = columns_read(emission, series, series.drive)
        if emission.order:
            beside, columns = [torch.where(emission.unknown(columns), torch.nan, beside[0])], columns.nan_to_num(0.0)
        beside.append(columns)
    if emission.reads_subjects:
        assert series.subjects is not None
        beside.append(series.subjects[..., None, None].to(series.like).expand_as(beside[0][..., :1]))
    return beside[0] if len(beside) == 1 else torch.cat(beside, -1)


def scored(emission: Emission, series: Series) -> Bool[Tensor, "*b T F"]:
    """The observed values whose density a model gives: those that are not missing, nor their lags."""
    if not emission.order:
        return ~torch.isnan(series.observations)
    return ~torch.isnan(rows_read(emission, series)[..., : emission.n_features])


def scored_rows(emission: Emission, series: Series) -> Bool[Tensor, "n F"]:
    """`scored` of all steps, one sequence after another."""
    if not emission.order:
        return ~torch.isnan(series.rows)
    return series.joined([scored(emission, part)[part.inside] for part in series.parts()])


def emission_at(emission: Emission, series: Series, drive: Drive) -> Emission:
    """The emission at the steps of a drive of this series."""
    reads = emission.order or emission.n_inputs
    emission = emission.beside(columns_read(emission, series, drive)) if reads else emission
    return emission if drive.subjects is None else emission.at_subjects(drive.subjects)


def columns_read(emission: Emission, series: Series, drive: Drive) -> Float[Tensor, "*n C"]:
    """The lags, NaN where missing, and the inputs that an emission reads."""
    columns = []
    if emission.order:
        assert drive.past is not None
        columns.append(drive.past.flatten(-2))
    if emission.n_inputs:
        columns.append(inputs_read(emission, series, drive))
    return torch.cat(columns, -1)


def inputs_read(emission: Emission, series: Series, drive: Drive) -> Float[Tensor, "*n C"]:
    assert drive.inputs is not None
    if isinstance(emission.inputs, int):
        return drive.inputs[..., : emission.inputs]
    assert series.drivers is not None  # a model's own names
    return select_columns(drive.inputs, columns_of(emission.inputs, series.drivers))
