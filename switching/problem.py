"""`Problem`: a model's dynamics, emission and prior, and a series, as one input for inference.

Parameter values are dictionaries of tensors `[*r, ...]`, whose leading axes are restarts or posterior draws. One
problem serves all of them at once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..inference.chains.contract import Chain, Filtered, Marginals
from ..inference.numerics.checks import check_possible
from ..inference.numerics.deferred import recompute
from ..inference.numerics.records import Record
from .data.packed import rows_of
from .data.series import Drive, Series
from .dynamics.any_prior import moved_inside
from .dynamics.contract import Dynamics
from .emissions.contract import ByGate, Emission
from .emissions.driven import emission_at, rows_read
from .inputs import Inputs, all_inputs
from .known import is_whole, known_sites, support_beside, with_known
from .mixture import StateMixture
from .parameters import Parameter, Parameters, read_table, widened
from .priors import Site, log_prior
from .recursion import drawn_along
from .responses import Frame, Response, stated_sites

Result = TypeVar("Result")
Own = TypeVar("Own", bound="SeriesProblem")
TABLE_SIZE = 2**24  # the most numbers in a likelihood table; further draws are processed in turn


class SeriesProblem(Record, ABC):
    """A series and the quantities that inference needs, for any chain; a frozen dataclass with these attributes."""

    series: Series
    prior: Parameters | None
    fixed: Parameters

    @property
    @abstractmethod
    def n_states(self) -> int:
        """The number of entries of a table at one step."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Parameter]:
        """The description of each parameter, by name."""

    @abstractmethod
    def chain(self, values: Parameters) -> Any:
        """The chain over paths under these parameters."""

    @abstractmethod
    def log_prior(self, values: Parameters) -> Float[Tensor, "*r"]:
        """Log density of the parameters; 0 without a prior."""

    @abstractmethod
    def draws_ahead(self, values: Parameters, filtered: Any, each: int) -> Float[Tensor, "total *b T F"]:
        """`each` draws of every x_t given the observations before it, for every draw `[n, ...]` of the parameters."""

    @abstractmethod
    def draws_along(self, values: Parameters, drawn: Any) -> Float[Tensor, "total *b T F"]:
        """New series along the posterior paths `drawn`, for every draw `[n, ...]` of the parameters."""

    def objective(self, values: Parameters) -> Float[Tensor, "*r"]:
        """log p(x | parameters), plus log p(parameters) if there is a prior."""
        return self.total(self.evidence(values)) + self.log_prior(values)

    @cached_property
    def groups(self) -> list[tuple[Int[Tensor, "n"], Any]]:
        """The problem of each of `Series.groups`, with the numbers of its sequences; this problem if there is one
        group."""
        groups = self.series.groups()
        return [(members, self if len(groups) == 1 else self.of(self.series.part(members))) for members in groups]

    def by_group(self: Own, compute: Callable[[Own], Result]) -> list[Result]:
        """A function applied to each group. An error about an impossible sequence has its number among all
        sequences."""
        if len(self.groups) == 1:
            return [compute(self.groups[0][1])]
        results = []
        for _, part in self.groups:
            with recompute(lambda: compute(self), ValueError):
                results.append(compute(part))
        return results

    def evidence(self, values: Parameters) -> Float[Tensor, "*rb"]:
        """log p(x | parameters) of each sequence, computed without the padding."""
        return self.by_sequence(lambda part: part.chain(values).log_normalizer())

    def by_sequence(self: Own, compute: Callable[[Own], Tensor]) -> Float[Tensor, "*rb"]:
        """A number of each sequence, computed for each group."""
        return self.of_all(self.by_group(compute))

    def of_all(self, by_group: list[Tensor], n_axes: int = 0) -> Tensor:
        """Tables of the sequences of each group, as one table in the order of all sequences.

        Arguments:
            n_axes: the number of axes after that of the sequences.
        """
        if len(by_group) == 1:
            return by_group[0]
        order, axis = torch.cat([members for members, _ in self.groups]).argsort(), -1 - n_axes
        table = torch.cat(by_group, axis)
        return table.index_select(axis, order.to(table.device)).unflatten(axis, self.series.batch_shape)

    def steps(self: Own, compute: Callable[[Own], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Tables `[*b, T, ...]` by name, computed for each group: their steps inside `[N, ...]`, as
        `Series.steps_of`."""
        tables = self.by_group(lambda part: {n: part.series.steps_of(t) for n, t in compute(part).items()})
        if len(tables) == 1:
            return tables[0]
        rows = {name: self.series.joined([part[name] for part in tables]) for name in tables[0]}
        return {name: self.series.in_rows(table) for name, table in rows.items()}

    def total(self, evidence: Float[Tensor, "*rb"]) -> Float[Tensor, "*r"]:
        """The evidence of all sequences times their weights, added up in float64."""
        weights = self.series.weights
        return self.summed(evidence if weights is None else evidence * weights)

    def summed(self, evidence: Float[Tensor, "*rb"]) -> Float[Tensor, "*r"]:
        """A number of each sequence, added up in float64: a sum over all steps has more digits than float32."""
        evidence, n_batch = evidence.double(), len(self.series.batch_shape)
        return evidence.flatten(evidence.ndim - n_batch).sum(-1) if n_batch else evidence

    def in_turns(self, draws: Parameters) -> Iterator[Parameters]:
        """Draws `[n, ...]` in parts whose likelihood tables fit into memory."""
        n = len(next(iter(draws.values())))
        for first in range(0, n, self.at_once):
            yield {name: table[first : first + self.at_once] for name, table in draws.items()}

    @property
    def size(self) -> int:
        """The numbers in one likelihood table."""
        return self.series.n_sequences * self.series.n_steps * self.n_states

    @property
    def at_once(self) -> int:
        """The number of draws of the parameters whose likelihood tables fit into memory at once."""
        return max(1, TABLE_SIZE // max(1, self.size))

    @property
    def evidences_at_once(self) -> int:
        """The number of draws of the parameters whose `evidence` fits into memory at once."""
        return max(1, TABLE_SIZE // max(1, sum(part.size for _, part in self.groups)))

    def double(self: Own) -> Own:
        """The same problem in float64."""
        prior = None if self.prior is None else {name: table.double() for name, table in self.prior.items()}
        fixed = {name: value.double() for name, value in self.fixed.items()}
        return replace(self, series=self.series.double(), prior=prior, fixed=fixed)  # pyright: ignore[reportArgumentType]

    def padded(self: Own) -> Own:
        """The same problem with padded tables of all steps and scaled inputs, which are made once."""
        series = self.series
        if series.packed:
            series = series.part(torch.arange(series.n_sequences, device="cpu"))
        if series.scaling is not None:
            series = replace(series, inputs=series.whole_drive.inputs, scaling=None)
        return self if series is self.series else self.of(series)

    def of(self: Own, series: Series) -> Own:
        """The same problem for another series."""
        return replace(self, series=series)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, repr=False)
class Problem(SeriesProblem):
    """Everything that inference needs besides the parameter values.

    Attributes:
        dynamics, emission: the parts of the model.
        series: the observed series.
        prior: hyperparameters in the dtype of the series; None for maximum likelihood.
        fixed: tables of parameters that a fit holds, without axes for restarts; NaN where an entry is free.
    """

    dynamics: Dynamics
    emission: Emission
    series: Series
    prior: Parameters | None = None
    fixed: Parameters = field(default_factory=dict)

    @property
    def n_states(self) -> int:
        return self.dynamics.n_states

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The description of each parameter, by name; the support is that of the free entries under their
        prior."""
        known = self.dynamics.parameters | dict(self.emission.parameters)
        known |= {} if self.prior is None else self.dynamics.bounded
        in_part = {name: table for name, table in self.fixed.items() if not is_whole(table)}
        return known | {n: replace(known[n], support=support_beside(known[n].support, t)) for n, t in in_part.items()}

    @cached_property
    def responses(self) -> tuple[Response, ...]:
        """The parameters that respond to inputs."""
        return self.dynamics.responses + self.emission.responses

    @property
    def inputs(self) -> Inputs:
        """The inputs of the model, by name or number."""
        return all_inputs((self.dynamics.reads, self.emission.inputs))

    @property
    def moves_origin(self) -> bool:
        """Whether constants may be stated at other inputs than 0: none is fixed or shared by different coefficients."""
        return not any(response.alone or response.constant in self.fixed for response in self.responses)

    def about_inputs(self, origin: Float[Tensor, "C"] | None) -> "Problem":
        """The problem of parameters whose constants are stated at other inputs."""
        if origin is None:
            return self
        return self.in_frame(Frame(self.responses, self.inputs, origin, torch.ones_like(origin)))

    def in_frame(self, frame: Frame | None) -> "Problem":
        """The problem in other coordinates of the inputs."""
        if frame is None:
            return self
        prior = None if self.prior is None else frame.into(self.prior)
        series = self.series.rescaled(frame.center, frame.scale)
        return replace(self, series=series, prior=prior, fixed=frame.into(self.fixed))

    def admitted(self, values: Parameters) -> Parameters:
        """Values `[*r, ...]` with the known entries in their places, and the others inside the supports of priors."""
        bounded = {} if self.prior is None else self.dynamics.bounded
        values = values | {name: moved_inside(values[name], parameter.support) for name, parameter in bounded.items()}
        return with_known(values, self.fixed, self.parameters) if self.fixed else values

    @property
    def numbered(self) -> bool:
        """Whether dynamics, fixed parameters or known states distinguish the states; then states keep their order."""
        by_values = any("state" in self.parameters[name].dims for name in self.fixed)
        return self.dynamics.numbered or by_values or len(self.known_states) >= max(1, self.n_states - 1)

    @cached_property
    def known_states(self) -> list[int]:
        """The numbers of the states that some step is known to have; if there are weights of states, all."""
        states = self.series.states
        if states is None:
            return []
        rows = rows_of(states)
        return [*range(self.n_states)] if rows.is_floating_point() else [n for n in rows.unique().tolist() if n >= 0]

    def values_of(self, tables: Mapping[str, Any]) -> Parameters:
        """Parameters from numbers by name, in any form that the dynamics and the emission accept.

        Raises:
            ValueError: a parameter is missing, or outside its space.
        """
        values = {name: read_table(table, name) for name, table in tables.items()}
        return self.dynamics.check_values(values) | self.emission.check_values(values, self.n_states)

    @cached_property
    def sites(self) -> list[Site]:
        """The prior as Pyro sites."""
        if self.prior is None:
            raise ValueError("prior: got None, but the parameters need a distribution; give a prior.")
        sites = self.dynamics.sites(self.prior) + self.emission.sites(self.prior)
        sites = stated_sites(sites, self.responses, self.inputs, self.prior)
        return known_sites(sites, self.fixed, self.parameters) if self.fixed else sites

    def chain(self, values: Parameters) -> Chain:
        """The chain over paths under these parameters."""
        series = self.series
        likelihood = self.with_knowledge(self.emission.log_likelihood(rows_read(self.emission, series), values))
        return self.dynamics.chain(values, likelihood, series.drive, series.lengths)

    def with_knowledge(self, likelihood: ByGate) -> ByGate:
        """Likelihood tables with the weights of steps, and with what is known about their states."""
        powers, known = self.series.powers, self.series.log_states(self.n_states)
        if powers is None and known is None:
            return likelihood

        def weighed(table: Tensor) -> Tensor:
            table = table if powers is None else table * powers.unsqueeze(-1)
            return table if known is None else table + known

        redrawn = weighed(likelihood.redrawn)
        return ByGate(redrawn, redrawn if likelihood.held is likelihood.redrawn else weighed(likelihood.held))

    def marginals(self, values: Parameters) -> Marginals:
        """What an M-step reads of the chain, and its log-normalizer, times the weights of the sequences."""
        return self.marginals_of(self.chain(values))

    def marginals_of(self, chain: Chain) -> Marginals:
        """`marginals` of a chain over the paths."""
        marginals, weights = self.dynamics.marginals(chain, self.series.drive), self.series.weights
        if weights is None:
            return marginals

        def weighed(table: Tensor | None) -> Tensor | None:
            axes = 0 if table is None else table.ndim - marginals.log_normalizer.ndim
            return None if table is None else table * weights.reshape((*weights.shape, *[1] * axes))

        tables = {part.name: weighed(getattr(marginals, part.name)) for part in fields(marginals)}
        return Marginals(**tables)  # pyright: ignore[reportArgumentType] those that are not None stay so

    def after(self, values: Parameters, belief: Float[Tensor, "*b M"] | None) -> tuple[Tensor, Tensor, Tensor]:
        """The belief after a series of one step `[*b, M]`, P(z = 1) there and log p(x_t | x_1..t-1), from the belief
        before it; None: it is the first step. A belief has M numbers, the same number for each state: see
        `Dynamics.log_ahead`.

        It is computed directly: a chain of one step costs several times as much.
        """
        likelihood = self.with_knowledge(self.emission.log_likelihood(rows_read(self.emission, self.series), values))
        if belief is None:
            ahead = (self.dynamics.log_start(values, self.series.drive),)
        else:
            ahead = self.dynamics.log_ahead(values, belief, self.series.drive)
        each = ahead[0].shape[-1] // self.n_states
        if each > 1:
            likelihood = ByGate(*(table.repeat_interleave(each, -1) for table in likelihood))
        top = likelihood.redrawn.amax(-1, keepdim=True)  # great numbers would take digits from those ahead
        if likelihood.held is not likelihood.redrawn:
            top = torch.maximum(top, likelihood.held.amax(-1, keepdim=True))
        by_gate = [(table - top).squeeze(-2) + weight for table, weight in zip(likelihood, ahead, strict=False)]
        weights = by_gate[0] if len(by_gate) == 1 else torch.cat(by_gate, -1)
        log_shares = torch.log_softmax(weights, -1)
        increment = weights.amax(-1) - log_shares.amax(-1) + top.squeeze((-1, -2))
        if not math.isfinite(increment.sum().item() if increment.ndim else increment.item()):
            failed_step = -(increment.abs() < torch.inf).long()
            check_possible(failed_step, log_likelihood=likelihood.redrawn)
        shares = log_shares.exp()
        if len(by_gate) == 1:
            return shares, torch.ones_like(increment), increment
        of_gates = shares.unflatten(-1, (2, -1))
        return of_gates.sum(-2), of_gates[..., 0, :].sum(-1), increment

    def log_prior(self, values: Parameters, inside: bool = False) -> Float[Tensor, "*r"]:
        """Log density of the parameters; 0 without a prior. `inside`: they are known to be in their supports."""
        if self.prior is None:
            return self.series.like.new_zeros(())
        return log_prior(self.sites, values, inside)

    def draws_ahead(self, values: Parameters, filtered: Any, each: int) -> Float[Tensor, "total *b T F"]:
        fresh, held = self.before_each(values, filtered)
        possible = (fresh + held).sum(-1, keepdim=True) > 0  # False after the end of a sequence
        fresh = torch.where(possible, fresh, 1.0)
        drawn, emission = [], emission_at(self.emission, self.series, self.series.drive)
        for i, weights in enumerate(zip(fresh, held, strict=True)):
            one = {name: value[i] for name, value in values.items()}
            drawn.append(StateMixture(emission, one, ByGate(*weights)).sample((each,)))
        return self.series.with_noise(torch.cat(drawn))

    def draws_along(self, values: Parameters, drawn: Any) -> Float[Tensor, "total *b T F"]:
        redraw = torch.ones_like(drawn.path) if drawn.redraw is None else drawn.redraw
        series = []
        for i in range(drawn.path.shape[1]):
            one = {name: value[i] for name, value in values.items()}
            series.append(drawn_along(self.emission, self.series, one, drawn.path[:, i], redraw[:, i]))
        return self.series.with_noise(torch.cat(series))

    def before_each(self, values: Parameters, filtered: Filtered) -> ByGate:
        """P(s_t, z_t | x_1..t-1) of every step, by one step of prediction from the filtered states; the first step
        redraws."""
        if filtered.predicted is not None:
            return ByGate(filtered.predicted, torch.zeros_like(filtered.predicted))
        before = torch.cat([filtered.state[..., :1, :], filtered.state[..., :-1, :]], -2)
        fresh, held = (table.clone() for table in self.after_each(values, before))
        first = self.dynamics.first(values, self.series.drive)
        fresh[..., 0, :] = widened(first, 1, fresh.ndim - 1 - first.ndim)
        held[..., 0, :] = 0.0
        return ByGate(fresh, held)

    def after_each(self, values: Parameters, before: Float[Tensor, "*rb T K"]) -> ByGate:
        """P(s_t, z_t) at every step, from a belief about the state before it."""
        drive = self.series.drive
        one = Drive(
            None if drive.inputs is None else drive.inputs.unsqueeze(-2),
            None if drive.gaps is None else drive.gaps.unsqueeze(-1),
            None if drive.subjects is None else drive.subjects.unsqueeze(-1),
        )
        return ByGate(*(table.squeeze(-2) for table in self.dynamics.propagate(values, before, one, 1)))
