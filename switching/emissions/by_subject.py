r"""Emissions whose parameters differ between subjects: $p(x_t \mid s_t, \theta_{i})$ in the sequences of subject i.

Parameters have an axis of subjects before all others, `[*r, S, K, ...]`. All subjects have the same prior, so a block
is as many blocks as there are subjects. Where other emissions read rows `[*b, T, R]`, this one reads rows
`[*b, T, R + 1]`, whose last entry is the number of the subject.

An M-step sorts rows by subject, `[S, L, R]`. If the inner emission is `aligned`, its moments take axes of subjects
beside those of restarts, in one call for all subjects. Otherwise there is a call for each subject.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.delegation import delegated
from ..parameters import Parameter, Parameters, widened
from ..priors import Site, by_subject_sites, for_subjects
from .conjugate import ConjugateEmission
from .contract import Emission, Maximized
from .driven import Beside, DrivenEmission


class Grouped(NamedTuple):
    """Rows by subject. `place` has the number of each row, and the number of rows in padding; None: rows are in this
    order already."""

    rows: Float[Tensor, "S L R"]
    place: Int[Tensor, "S L"] | None

    def table(self, weights: Float[Tensor, "*r M K"]) -> Float[Tensor, "*r S L K"]:
        """The weights of the rows, 0 in padding."""
        shape = self.rows.shape[:-1]
        if self.place is None:
            return weights.unflatten(-2, tuple(shape))
        padded = torch.nn.functional.pad(weights, (0, 0, 0, 1))
        return padded.index_select(-2, self.place.flatten()).unflatten(-2, tuple(shape))


def grouped(rows: Float[Tensor, "M R"], n_subjects: int) -> Grouped:
    """Rows, whose last entry is the number of their subject, by subject."""
    numbers, rows = rows[:, -1].long(), rows[:, :-1]
    each = len(rows) // n_subjects
    if each * n_subjects == len(rows):
        here = torch.arange(n_subjects, device=rows.device).unsqueeze(-1)
        if bool((numbers.reshape(n_subjects, each) == here).all()):
            return Grouped(rows.reshape(n_subjects, each, -1), None)
    order, counts = numbers.argsort(stable=True), numbers.bincount(minlength=n_subjects)
    within = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[numbers[order]]
    place = torch.full((n_subjects, max(1, int(counts.max()))), len(rows), device=rows.device)
    place[numbers[order], within] = order
    return Grouped(rows[place.clamp_max(len(rows) - 1)], place)


def by_subject(emission: Emission, n_subjects: int) -> Emission:
    """The emission with parameters of each subject."""
    return emission.mapped(lambda part: SubjectEmission(part, n_subjects))


def of_one(emission: Emission) -> Emission:
    """The emission of one subject."""
    return emission.emission if isinstance(emission, SubjectEmission) else emission


@dataclass(frozen=True, repr=False)
class SubjectEmission(ConjugateEmission):
    """An emission with parameters of each subject; made by `fit(x, pooled=...)`.

    Arguments:
        emission: the emission of one subject.
        n_subjects: S.
    """

    emission: Emission
    n_subjects: int
    reads_subjects = True

    def __post_init__(self, *_: Any) -> None:
        """The inner emission has been checked."""

    # ---- what the inner emission says ------------------------------------------------------------------------------

    n_features = delegated("emission")
    order = delegated("emission")
    inputs = delegated("emission")
    inputs_of = delegated("emission")
    responses = delegated("emission")
    family = delegated("emission")
    support = delegated("emission")
    normal = delegated("emission")
    expects = delegated("emission")
    have_unit = delegated("emission")
    takes_noise = delegated("emission")
    adds_up = False  # type: ignore[assignment] each subject has sums of its own
    is_conjugate = delegated("emission")
    not_conjugate = delegated("emission")
    default_prior = delegated("emission")
    prior_scaled = delegated("emission")
    in_units = delegated("emission")
    shifts = delegated("emission")
    shifted = delegated("emission")
    unknown = delegated("emission")
    embed = delegated("emission")
    check = delegated("emission")
    arranged = delegated("emission")
    column_names = delegated("emission")
    center = delegated("emission")
    away = delegated("emission")
    whole = delegated("emission")
    units = delegated("emission")
    hyperparameters_of = delegated("emission")
    point = delegated("emission")
    values = delegated("emission")
    representative = delegated("emission")

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return for_subjects(self.emission.parameters)

    @property
    def sizes(self) -> dict[str, int]:
        return {"subject": self.n_subjects} | self.emission.sizes

    @property
    def fills_in(self) -> bool:  # type: ignore[override]
        return getattr(self.emission, "fills_in", False)

    @property
    def _conjugate(self) -> ConjugateEmission:
        return cast(ConjugateEmission, self.emission)

    def with_user_priors(self, prior: Mapping[str, Any]) -> "SubjectEmission":
        return replace(self, emission=self.emission.with_user_priors(prior))

    def in_fit_units(self, about: Tensor, unit: Tensor) -> "SubjectEmission":
        inner = self.emission.in_fit_units(about, unit)
        return self if inner is self.emission else replace(self, emission=inner)

    # ---- the prior, the same for each subject ----------------------------------------------------------------------

    def natural(self, prior: Parameters) -> Tensor:
        eta = self._conjugate.natural(prior)
        return eta.expand(self.n_subjects, *eta.shape)

    def sites(self, prior: Parameters) -> list[Site]:
        return by_subject_sites(self.emission.sites(prior), self.n_subjects)

    def start(self, prior: Parameters) -> Parameters:
        typical = self.emission.start(prior)
        return {name: value.expand(self.n_subjects, *value.shape) for name, value in typical.items()}

    def reordered(self, eta: Tensor, order: Int[Tensor, "K"]) -> Tensor:
        return torch.stack([self._conjugate.reordered(one, order) for one in eta])

    # ---- densities -------------------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, values: Parameters) -> Tensor:
        raise TypeError(f"{self.name}: its density needs subjects; see `at_subjects`.")

    def distribution(self, values: Parameters) -> TorchDistributionMixin:
        raise TypeError(f"{self.name}: its distribution needs subjects; see `at_subjects`.")

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        """Of each subject: `[*r, S, K, F]`."""
        return self.emission.moments(values)

    def narrowness(self, values: Parameters) -> Tensor:
        return self.emission.narrowness(values)

    def collapsed(self, values: Parameters, floor: Tensor) -> Tensor:
        """The states that have collapsed in some subject."""
        return self.emission.collapsed(values, floor).any(-2)

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        return aligned_table(self.emission, x[..., :-1], self._of(values, x))

    def expected_table(self, x: Tensor, statistics: Tensor) -> Tensor:
        values, constant = self.representative(statistics)
        if not self.emission.aligned:
            name, parameter = next(iter(self.parameters.items()))
            axis, numbers = values[name].ndim - len(parameter.dims), x[:, 0, -1].long()
            each = [
                self._conjugate.expected_table(x[numbers == i, :, :-1], statistics.select(axis, i))
                for i in range(self.n_subjects)
            ]
            return torch.cat(each, axis).index_select(axis, numbers.argsort(stable=True).argsort())
        x, values, constant = x[..., :-1], self._of(values, x), constant[self._index(constant, 2, x)]
        table, seen = aligned_table(self.emission, x, values), ~torch.isnan(x[..., : self.n_features])
        seen = seen if constant.shape[-1] == seen.shape[-1] else seen.any(-1, keepdim=True)
        return table + seen.to(x) @ constant.mT

    def beside(self, inputs: Tensor) -> Emission:
        return replace(self, emission=self.emission.beside(inputs))

    def at_subjects(self, subjects: Int[Tensor, "*n"]) -> "AtSubjects":
        """The emission of these subjects."""
        return AtSubjects(self.emission, subjects, self.parameters)

    def _of(self, values: Parameters, x: Float[Tensor, "*b T R"]) -> Parameters:
        """The parameters of the subject of each sequence: `[*r, *b, K, ...]`."""
        return {n: values[n][self._index(values[n], len(p.dims) - 1, x)] for n, p in self.parameters.items()}

    @staticmethod
    def _index(table: Tensor, n_axes: int, x: Float[Tensor, "*b T R"]) -> tuple[Any, ...]:
        lead = table.ndim - n_axes - 1
        return (*[slice(None)] * lead, x[..., 0, -1].long())

    # ---- fits ------------------------------------------------------------------------------------------------------

    def message(self, x: Tensor, weights: Tensor, near: Parameters | None = None) -> Tensor:
        return self._each(lambda *some: self._conjugate.message(*some[:3]), x, weights, near)

    def expected_message(self, x: Tensor, weights: Tensor, statistics: Tensor) -> Tensor:
        if self.emission.aligned:
            return super().expected_message(x, weights, statistics)

        def message(x: Tensor, used: Tensor, near: Parameters | None, subject: int) -> Tensor:
            return self._conjugate.expected_message(x, used, statistics.select(weights.ndim - 2, subject))

        return self._each(message, x, weights, None, direct=False)

    def maximize(
        self, x: Tensor, weights: Tensor, near: Parameters, prior: Parameters | None, floor: Tensor
    ) -> Maximized:
        return self.maximize_beside({}, x, weights, near, prior, floor)

    def maximize_beside(
        self,
        fixed: Parameters,
        x: Tensor,
        weights: Tensor,
        near: Parameters,
        prior: Parameters | None,
        floor: Tensor,
    ) -> Maximized:
        def maximized(x: Tensor, weights: Tensor, near: Parameters, subject: int) -> Parameters:
            step = x, weights, near, prior, floor
            held = {name: table[subject] for name, table in fixed.items()}
            return (self.emission.maximize_beside(held, *step) if held else self.emission.maximize(*step)).values

        return Maximized(self._each(maximized, x, weights, near, direct=not fixed and self.emission.is_conjugate))

    def _each(
        self,
        compute: Callable[..., Any],
        x: Float[Tensor, "M R"],
        weights: Float[Tensor, "*r M K"],
        near: Parameters | None,
        direct: bool = True,
    ) -> Any:
        """A result `[*r, S, ...]` of the rows, weights and parameters of each subject: in one call, or subject by
        subject."""
        rows = grouped(x, self.n_subjects)
        by_subject, lead = rows.table(weights), weights.ndim - 2
        if direct and self.emission.aligned:
            return compute(rows.rows, by_subject, near, 0)
        parts = []
        for i in range(self.n_subjects):
            some = None if near is None else {name: near[name].select(lead, i) for name in self.parameters}
            used = slice(None) if rows.place is None else rows.place[i] < len(x)
            parts.append(compute(rows.rows[i][used], by_subject.select(lead, i)[..., used, :], some, i))
        return _stacked(parts, lead)


def _stacked(parts: list[Any], axis: int) -> Any:
    """Results of subjects, `[*r, ...]` each, as one `[*r, S, ...]`."""
    if isinstance(parts[0], Tensor):
        return torch.stack(parts, axis)
    return {name: _stacked([part[name] for part in parts], axis) for name in parts[0]}


def aligned_table(emission: Emission, x: Float[Tensor, "*b T R"], values: Parameters) -> Float[Tensor, "*rb T K"]:
    """log p(x_t | s) of every step and state, with parameters `[*r, *b, K, ...]` of each sequence."""
    wide = {name: widened(values[name], len(p.dims), 1) for name, p in emission.parameters.items()}
    return emission.log_prob(x.unsqueeze(-2), wide)


class AtSubjects(Emission):
    """An emission at steps of known subjects `[*n]`: its moments have axes `[*r, *n, K, F]`.

    Values are those of all subjects, `[*r, S, K, ...]`.
    """

    emission: Emission
    subjects: Tensor

    def __init__(self, emission: Emission, subjects: Int[Tensor, "*n"], parameters: Mapping[str, Parameter]) -> None:
        self.emission, self.subjects, self.parameters = emission, subjects, parameters
        self.n_features, self.support = emission.n_features, emission.support

    sizes = delegated("emission")
    normal = delegated("emission")
    log_prob = delegated("emission")
    distribution = delegated("emission")
    default_prior = delegated("emission")

    def cut(self, part: Callable[[Tensor], Tensor]) -> "AtSubjects":
        return AtSubjects(self.emission.cut(part), part(self.subjects), self.parameters)

    def _plain(self, values: Parameters) -> tuple[Emission, Parameters]:
        """The emission without inputs, and its parameters at the steps: `[*r, *n, K, ...]`."""
        here = {}
        for name, parameter in self.parameters.items():
            lead = values[name].ndim - len(parameter.dims)
            here[name] = values[name][(*[slice(None)] * lead, self.subjects)]
        if not isinstance(self.emission, Beside):
            return self.emission, here
        driven: DrivenEmission = self.emission.driven
        return driven.plain, driven.respond(here, self.emission.inputs_here.unsqueeze(-2))

    def table(self, x: Tensor, values: Parameters) -> Tensor:
        emission, here = self._plain(values)
        return emission.log_prob(self._without(x).unsqueeze(-2), here)

    def moments(self, values: Parameters) -> tuple[Tensor, Tensor]:
        emission, here = self._plain(values)
        mean, variance = emission.moments(here)
        return self._without(mean, -2), self._without(variance, -2)

    def sample_at(self, values: Parameters, state: Tensor, redraw: Tensor) -> Tensor:
        return self._without(super().sample_at(values, state, redraw))

    def _without(self, table: Tensor, *axis: int) -> Tensor:
        return self.emission.without(table, *axis) if isinstance(self.emission, Beside) else table

    def marginal_cdf(self, x: Tensor, values: Parameters) -> Tensor:
        emission, here = self._plain(values)
        return emission.marginal_cdf(x, here)

    def category_probs(self, values: Parameters) -> Any:
        emission, here = self._plain(values)
        return emission.category_probs(here)

    def at_states(self, values: Parameters, state: Tensor) -> Parameters:
        subjects = self.subjects.expand(broadcast_shapes(self.subjects.shape, state.shape))
        return {name: values[name][subjects, state.clamp(max=values[name].shape[1] - 1)] for name in self.parameters}
