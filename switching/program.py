r"""The generative program in two forms with the same density.

`explicit_program` has a Pyro site for every gate `z_t`, state `s_t` and observation `x_t` (t from 1), marked for exact
enumeration. `PathMixture` has one site `x`, whose distribution sums the paths out:

$$\log p(x \mid \theta) = \log \sum_{z, s} p(z, s \mid \theta)\, p(x \mid s, z, \theta),$$

This is the chain's log-normaliser, so SVI and NUTS over the parameters run at the speed of the kernels.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from jaxtyping import Bool, Float, Int
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ..inference.numerics.checks import ImpossibleError, broadcast_shapes
from ..inference.numerics.randomness import Seed
from ..inference.numerics.records import Record
from .data.lags import with_past
from .data.packed import Packed, padded
from .dynamics.contract import Drawn
from .emissions.contract import ByGate, Emission
from .emissions.driven import emission_at
from .parameters import Parameters
from .problem import Problem
from .recursion import after, drawn_along, filled

NO_AXES = torch.Size()


@dataclass(frozen=True, repr=False)
class Simulated(Record):
    """A draw of the whole model.

    Attributes:
        x: `[*b, T, F]`, the observations.
        path: `[*b, T]`, the states.
        redraw: `[*b, T]`, the gates.
    """

    x: Float[Tensor, "*b T F"]
    path: Int[Tensor, "*b T"]
    redraw: Bool[Tensor, "*b T"]


class Observation(TorchDistribution):
    """One observation, given its state and gate, which broadcast to the batch shape; NaN features are marginalised.

    Its density may have a power `[*b]`, and the observation noise of known variances `[*b, F]`.
    """

    emission: Emission
    values: Parameters
    power: Tensor | None
    noise: Tensor | None
    state: Tensor
    redraw: Tensor

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions
    has_enumerate_support = False

    def __init__(
        self,
        emission: Emission,
        values: Parameters,
        state: Tensor,
        redraw: Tensor,
        power: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> None:
        self.emission, self.values, self.power, self.noise = emission, values, power, noise
        self.state, self.redraw = torch.broadcast_tensors(state, redraw)
        super().__init__(self.state.shape, torch.Size((emission.n_features,)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        rows = value if self.noise is None else torch.cat([value, self.noise.expand_as(value)], -1)
        density = self.emission.log_prob_at(rows, self.values, self.state, self.redraw)
        return density if self.power is None else density * self.power

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape
        drawn = self.emission.sample_at(self.values, self.state.expand(shape), self.redraw.expand(shape))
        return drawn if self.noise is None else drawn + self.noise.sqrt() * torch.randn_like(drawn)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "Observation":
        state, redraw = self.state.expand(batch_shape), self.redraw.expand(batch_shape)
        return Observation(self.emission, self.values, state, redraw, self.power, self.noise)


class PathMixture(TorchDistribution):
    """Whole sequences with their state paths summed out: event `[T, F]`, batch the sequences.

    `log_prob` is the log-normaliser of the chain over paths. It is -inf for a sequence that no path can produce, which
    happens when a sampler adapts its step size. NaN is missing. The problem's series only provides the extent and the
    drive; steps beyond its lengths are ignored.
    """

    problem: Problem
    values: Parameters

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_enumerate_support = False

    def __init__(self, problem: Problem, values: Parameters, batch_shape: torch.Size | None = None) -> None:
        self.problem, self.values, series = problem, values, problem.series
        batch = series.batch_shape if batch_shape is None else batch_shape
        super().__init__(batch, torch.Size((series.n_steps, series.n_features)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 2)

    def log_prob(self, value: Tensor) -> Tensor:
        try:
            return self._evidence(value)
        except ImpossibleError as error:
            possible = torch.where(error.failed[..., None, None], torch.nan, value)
            return self._evidence(possible).masked_fill(error.failed, -torch.inf)

    def _evidence(self, value: Tensor) -> Tensor:
        series, batch = self.problem.series, value.shape[:-2]
        n = len(series.batch_shape)

        def expanded(table: Tensor | Packed) -> Tensor:
            return padded(table).expand(*batch, *table.shape[n:])

        series = replace(series, **series._tables(expanded, expanded, expanded) | {"x": value})
        series = with_past(series, self.problem.emission.order) if self.problem.emission.order else series
        return self.problem.of(series).evidence(self.values)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        return self.simulate(torch.Size(sample_shape)).x

    def simulate(self, sample_shape: torch.Size = NO_AXES, seed: Seed = None) -> Simulated:
        """Draw states, gates and observations from the prior over paths, given known states, by a chain with a constant
        likelihood.

        The observations come from torch's global generator, as in every torch distribution.
        """
        dynamics, series = self.problem.dynamics, self.problem.series
        emission = self.problem.emission
        like = next(iter(self.values.values()))
        flat = like.new_zeros(*self.batch_shape, self.event_shape[0], dynamics.n_states)
        chain = dynamics.chain(self.values, self.problem.with_knowledge(ByGate(flat, flat)), series.drive)
        draw = chain.sample(sample_shape.numel(), seed)
        shape = sample_shape + self.batch_shape + self.event_shape[:1]
        path = draw.path.reshape(shape)
        redraw = torch.ones_like(path, dtype=torch.bool) if draw.redraw is None else draw.redraw.reshape(shape)
        return Simulated(series.with_noise(drawn_along(emission, series, self.values, path, redraw)), path, redraw)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "PathMixture":
        return PathMixture(self.problem, self.values, torch.Size(batch_shape))


def collapsed_program(problem: Problem, values: Parameters, observed: bool) -> Tensor:
    """One site `x` of whole sequences with the paths summed out; conditioned on the series if `observed`."""
    mixture = PathMixture(problem, values)
    with ExitStack() as scope:
        for plate in sequence_plates(problem.series.batch_shape):
            scope.enter_context(plate)
        if problem.series.weights is not None:
            scope.enter_context(pyro.poutine.scale(scale=problem.series.weights))
        return pyro.sample("x", mixture, obs=problem.series.observations if observed else None)


def explicit_program(problem: Problem, values: Parameters, observed: bool) -> Tensor:
    """Sites `z_1, s_1, x_1, z_2, ...`, inside one plate for each batch axis; conditioned on the series if `observed`.

    If the state of a step is known in all sequences, its site has this value. Other knowledge about states is a factor
    `known_t`.

    Returns the observations.

    Raises:
        ValueError: weights of sequences, which are powers of sums over paths.
    """
    dynamics, emission, series = problem.dynamics, problem.emission, problem.series
    if series.weights is not None:
        raise ValueError(
            "weights: was given for sequences, but a single path has no weight; use model.collapsed(x, ...)."
        )
    states, known = series.states, series.log_states(problem.n_states)
    labels = None if states is None or known is None or padded(states).is_floating_point() else padded(states)
    drawn: Drawn | None = None
    lags: Tensor | None = None  # of observations that are drawn
    observations = []
    plates = sequence_plates(series.batch_shape)
    for step in pyro.markov(range(1, series.n_steps + 1)):
        with ExitStack() as scope:
            for plate in plates:
                scope.enter_context(plate)
            if series.lengths is not None:
                scope.enter_context(pyro.poutine.mask(mask=(step <= series.lengths)))  # pyright: ignore[reportArgumentType]
            certain = None if labels is None or bool((labels[..., step - 1] < 0).any()) else labels[..., step - 1]
            with pyro.poutine.condition(data={} if certain is None else {f"s_{step}": certain}):
                drawn = dynamics.draw(values, step, drawn, series.drive, series.n_steps)
            redraw, state, ended = drawn.redraw, drawn.state, dynamics.log_end(drawn)
            if ended is not None:
                pyro.factor(f"end_{step}", torch.where(series.last == step - 1, ended, 0.0))
            if known is not None and certain is None:
                pyro.factor(f"known_{step}", _of_state(known[..., step - 1, :], state))
            power = None if series.powers is None else series.powers[..., step - 1]
            drive = series.drive.at(step - 1)
            if emission.order and not observed and drive.past is not None:
                lags = (
                    filled(emission, values, drive.past, state, drive)
                    if lags is None
                    else after(lags, observations[-1])
                )
                drive = replace(drive, past=lags)
            here = emission_at(emission, series, drive)
            noise = None if series.variances is None else series.variances[..., step - 1, :]
            observation = Observation(here, values, state, redraw, power, noise)
            seen = series.observations[..., step - 1, :] if observed else None
            observations.append(pyro.sample(f"x_{step}", observation, obs=seen))
    return torch.stack(observations, -2)


def _of_state(table: Float[Tensor, "*b K"], state: Tensor) -> Tensor:
    """The entries of a table at states that broadcast against its batch axes."""
    shape = broadcast_shapes(table.shape[:-1], state.shape)
    return table.expand(*shape, -1).gather(-1, state.expand(shape).unsqueeze(-1)).squeeze(-1)


def sequence_plates(batch_shape: Sequence[int]) -> list[pyro.plate]:
    """One plate for each axis of sequences.

    Raises:
        ValueError: there are no sequences.
    """
    if 0 in batch_shape:
        raise ValueError(f"x, batch_shape: got {list(batch_shape)}, no sequence; Pyro's plates need at least one.")
    return [pyro.plate(f"sequences_{i}", n, dim=i - len(batch_shape)) for i, n in enumerate(batch_shape)]
