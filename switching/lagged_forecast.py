r"""Forecasts of an autoregression: exact means and variances, and draws of paths for quantiles after the first step.

After h steps the observation is a mixture over $K^h$ paths. Its moments are exact all the same (Costa, Fragoso &
Marques 2005, *Discrete-Time Markov Jump Linear Systems*, chapter 3). With $\xi$ the last observations, $m_j = E[\xi\,
1(s = j)]$ and $M_j = E[\xi \xi^\top 1(s = j)]$, a step mixes them by the table of transitions, and then applies the map
of each new state,

$$E[x\, 1_j] = c_j p_j + B_j m_j, \quad E[x \xi^\top 1_j] = c_j m_j^\top + B_j M_j, \quad
E[x x^\top 1_j] = E[x \xi^\top 1_j] B_j^\top + E[x\, 1_j]\, c_j^\top + p_j \Sigma_j.$$

A forecast begins at the last step whose `order` observations are all known. Up to the end of x it uses the beliefs of
the filter, which have known states, and observations are lags as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..inference.numerics.randomness import Seed
from .data.lags import ahead_of
from .data.series import Drive
from .emissions.contract import ByGate
from .emissions.drawn import Drawn
from .emissions.driven import inputs_read
from .emissions.lagged import Lagged
from .mixture import StateMixture
from .parameters import Parameters, widened
from .problem import Problem
from .recursion import after, autoregression
from .seeding import seeded

DRAWS = 2000


@dataclass(frozen=True)
class Origin:
    """Where forecasts under parameters `[r, ...]` begin.

    Attributes:
        belief: P(s | x) there.
        lags: the observations up to there, the latest first.
        behind: the number of steps from there to the end of each sequence.
        filtered: P(s | x up to there) at the last W steps of each sequence, from there on.
        observations: x at these steps.
    """

    problem: Problem
    values: Parameters
    belief: Float[Tensor, "r *b K"]
    lags: Float[Tensor, "r *b P F"]
    behind: Int[Tensor, "*b"]
    filtered: Float[Tensor, "r *b W K"]
    observations: Float[Tensor, "*b W F"]

    @staticmethod
    def of(problem: Problem, values: Parameters) -> "Origin":
        """Computed for each group of sequences of similar length."""
        ends = problem.by_group(lambda part: Origin._of(part, values))
        width = max(end.observations.shape[-2] for end in ends)

        def wide(table: Tensor) -> Tensor:
            """A table of the last W steps, with more steps before them."""
            return torch.nn.functional.pad(table, (0, 0, width - table.shape[-2], 0))

        return Origin(
            problem,
            values,
            problem.of_all([end.belief for end in ends], 1),
            problem.of_all([end.lags for end in ends], 2),
            problem.of_all([end.behind for end in ends]),
            problem.of_all([wide(end.filtered) for end in ends], 2),
            problem.of_all([wide(end.observations) for end in ends], 2),
        )

    @staticmethod
    def _of(problem: Problem, values: Parameters) -> "Origin":
        series, filtered = problem.series, problem.chain(values).filter()
        if filtered.predicted is not None:
            raise TypeError(
                f"dynamics: forecasts of {problem.emission.name} need a next state that depends on the state alone, "
                f"but {problem.dynamics.name} remembers how long it lasts; use Markov or Copy dynamics."
            )
        state = filtered.state
        past = series.drive.past
        assert past is not None
        x = series.observations
        known = ~(x.isnan().any(-1) | past[..., :-1, :].isnan().flatten(-2).any(-1))
        steps = torch.arange(series.n_steps, device=known.device)
        at = torch.where(known & (steps <= series.last.unsqueeze(-1)), steps, -1).amax(-1)
        at = torch.where(at < 0, series.last, at)
        lags = ahead_of(replace(series, lengths=at + 1))
        place = at[..., None, None].expand(*state.shape[:-2], 1, state.shape[-1])
        belief = state.gather(-2, place).squeeze(-2)
        typical = of_sequences(problem, {"lags": autoregression(problem.emission).typical_lags(values)}, {"lags": 3})[
            "lags"
        ]
        constant = (belief[..., None, None] * typical).sum(-3)
        lags, behind = torch.where(lags.isnan(), constant, lags), series.last - at
        width = int(behind.max()) + 1 if behind.numel() else 1
        place = (series.last.unsqueeze(-1) + steps[:width] + 1 - width).clamp_min(0).unsqueeze(-1)
        state = state.gather(-2, place.expand(*state.shape[:-2], width, state.shape[-1]))
        return Origin(
            problem, values, belief, lags, behind, state, x.gather(-2, place.expand(*x.shape[:-2], width, x.shape[-1]))
        )

    @property
    def emission(self) -> Lagged:
        return autoregression(self.problem.emission)

    @property
    def dims(self) -> dict[str, int]:
        """The number of axes of each parameter of the emission, of one subject."""
        return {name: len(parameter.dims) for name, parameter in self.emission.parameters.items()}

    @property
    def n_states(self) -> int:
        return self.belief.shape[-1]

    def drives(self, horizon: int) -> list[Drive]:
        """The inputs and gaps of each step from here to `horizon` steps after the end, with an axis for it."""
        series, drives = self.problem.series, []
        if series.inputs is None and series.dt is None:
            subjects = None if series.subjects is None else series.subjects.unsqueeze(-1)
            return [Drive(None, None, subjects)] * (horizon + int(self.behind.max()))
        drive = series.whole_drive
        for step in range(horizon + int(self.behind.max())):
            place = (series.last + 1 - self.behind + step).clamp(max=series.n_driven - 1).unsqueeze(-1)
            inputs, gaps = drive.inputs, drive.gaps
            if inputs is not None:
                inputs = inputs.gather(-2, place.unsqueeze(-1).expand(*place.shape, inputs.shape[-1]))
            drives.append(Drive(inputs, None if gaps is None else gaps.gather(-1, place), drive.subjects))
        return drives

    def after_end(self, steps: list[Float[Tensor, "n *b F"]]) -> Float[Tensor, "n *b H F"]:
        """Tables of each step from here on as one table of the steps after the end."""
        horizon = len(steps) - int(self.behind.max())
        place = self.behind.unsqueeze(-1) + torch.arange(horizon, device=self.behind.device)
        table = torch.stack(steps, -2)
        return table.gather(-2, place.unsqueeze(-1).expand(*table.shape[:-2], horizon, table.shape[-1]))

    def moves(self, drive: Drive) -> Float[Tensor, "r *b K K"]:
        """P(next state | state) at a step."""
        n, batch = self.n_states, self.behind.shape
        old = torch.eye(n).to(self.belief).expand(*self.belief.shape, n)
        inputs = (
            None if drive.inputs is None else drive.inputs.unsqueeze(-3).expand(*batch, n, *drive.inputs.shape[-2:])
        )
        gaps = None if drive.gaps is None else drive.gaps.unsqueeze(-2).expand(*batch, n, 1)
        subjects = None if drive.subjects is None else drive.subjects.unsqueeze(-1)
        ahead = self.problem.dynamics.propagate(self.values, old, Drive(inputs, gaps, subjects), 1)
        return (ahead.redrawn + ahead.held).squeeze(-2)

    def at(self, step: int) -> Int[Tensor, "*b"]:
        """The number of the step `step` steps from here, or of the last one, among the last W."""
        last = self.observations.shape[-2] - 1
        return (last - self.behind + step).clamp_max(last)

    def told(self, step: int) -> Float[Tensor, "r *b K"]:
        """P(s | x up to there), `step` steps from here or at the end."""
        place = self.at(step)[..., None, None]
        return self.filtered.gather(-2, place.expand(*self.filtered.shape[:-2], 1, self.n_states)).squeeze(-2)

    def seen(self, step: int) -> Float[Tensor, "*b 1 F"]:
        """The observations `step` steps from here; NaN after the end."""
        x, place = self.observations, self.at(step)[..., None, None]
        here = x.gather(-2, place.expand(*x.shape[:-2], 1, x.shape[-1]))
        return here.masked_fill((step > self.behind)[..., None, None], torch.nan)

    def path(self, moves: list[Float[Tensor, "r *b K K"]], number: Int[Tensor, "n"]) -> list[Int[Tensor, "n *b"]]:
        """Draws of the states from here to the end given x, the last first."""
        path: list[Tensor] = []
        for step in reversed(range(int(self.behind.max()) + 1)):
            probs = self.told(step)[number]
            if path:
                ahead = moves[step][number].take_along_dim(path[-1][..., None, None], -1).squeeze(-1)
                probs = torch.where((step < self.behind).unsqueeze(-1), probs * ahead, probs)
            path.append(torch.distributions.Categorical(probs=probs).sample())
        return path

    def inputs(self, drive: Drive) -> Float[Tensor, "*b 1 C"]:
        """The inputs that the emission reads at a step."""
        if not self.emission.n_inputs:
            return self.lags.new_empty(*self.behind.shape, 1, 0)
        return inputs_read(self.emission, self.problem.series, drive)


def of_sequences(problem: Problem, values: Parameters, dims: Mapping[str, int]) -> Parameters:
    """Tables `[r, K, ...]` of the emission, or `[r, S, K, ...]` of each subject, as those of each sequence `[r, *b, K,
    ...]`."""
    series = problem.series
    if not problem.emission.reads_subjects:
        return {name: widened(values[name], n, len(series.batch_shape)) for name, n in dims.items()}
    assert series.subjects is not None
    return {name: values[name][:, series.subjects] for name in dims}


def moments(origin: Origin, horizon: int) -> tuple[Float[Tensor, "r *b H F"], Float[Tensor, "r *b H F"]]:
    """The mean and variance of each step to come."""
    emission = origin.emission
    about = origin.lags.flatten(0, -2).mean(0)  # squares are taken around it, so that they lose no digits
    wide = of_sequences(origin.problem, origin.values, origin.dims)
    values = emission.shifted(wide, -about)
    matrices, belief = emission.lag_matrices(values), origin.belief
    covariance = emission.covariances(values["precision"])
    vector = (origin.lags - about).flatten(-2).unsqueeze(-2)
    first = belief.unsqueeze(-1) * vector
    second, kept = first.unsqueeze(-1) * vector.unsqueeze(-2), vector.shape[-1] - emission.n_features
    means, variances = [], []
    for step, drive in enumerate(origin.drives(horizon)):
        moves = origin.moves(drive).mT
        belief, first = (moves @ belief.unsqueeze(-1)).squeeze(-1), moves @ first
        second = (moves @ second.flatten(-2)).unflatten(-1, second.shape[-2:])
        told = torch.where((step < origin.behind).unsqueeze(-1), origin.told(step + 1), belief)
        ratio = torch.where(belief > 0, told / belief, 0.0)
        belief, first, second = told, ratio.unsqueeze(-1) * first, ratio[..., None, None] * second
        effect = values["coefficients"][..., emission.n_lags :] * origin.inputs(drive).unsqueeze(-2)
        constant = values["loc"] + effect.sum(-1)
        mean = constant * belief.unsqueeze(-1) + (matrices @ first.unsqueeze(-1)).squeeze(-1)
        cross = constant.unsqueeze(-1) * first.unsqueeze(-2) + matrices @ second
        square = cross @ matrices.mT + mean.unsqueeze(-1) * constant.unsqueeze(-2)
        square = square + belief[..., None, None] * covariance
        value = origin.seen(step + 1) - about  # an observation is a lag as it is, whatever the state
        mean = _where_seen(value, value * belief.unsqueeze(-1), mean)
        cross = _where_seen(value.unsqueeze(-1), value.unsqueeze(-1) * first.unsqueeze(-2), cross)
        square = _where_seen(value.unsqueeze(-2), mean.unsqueeze(-1) * value.unsqueeze(-2), square)
        square = _where_seen(value.unsqueeze(-1), value.unsqueeze(-1) * mean.unsqueeze(-2), square)
        earlier = cross[..., :kept]
        first = torch.cat([mean, first[..., :kept]], -1)
        below = torch.cat([earlier.mT, second[..., :kept, :kept]], -1)
        second, total = torch.cat([torch.cat([square, earlier], -1), below], -2), mean.sum(-2)
        means.append(total + about)
        variances.append((square.diagonal(dim1=-2, dim2=-1).sum(-2) - total.square()).clamp_min(0.0))
    return origin.after_end(means), origin.after_end(variances)


def _where_seen(value: Tensor, seen: Tensor, other: Tensor) -> Tensor:
    return torch.where(value.isnan(), other, seen)


def components(
    origin: Origin, horizon: int, each: int
) -> tuple[Float[Tensor, "n *b H F"], Tensor, Float[Tensor, "n *b H"]]:
    """The location and precision of each step to come, given draws of the states and observations before it, `each` of
    every draw of the parameters; and their weights.

    If the lags of the first step are observed, its components are the states in turn, with their exact probabilities.
    """
    number = torch.arange(len(origin.belief), device=origin.belief.device).repeat_interleave(each)
    place: tuple[Tensor, ...] = (number.reshape(-1, *[1] * origin.behind.ndim),)
    if origin.problem.emission.reads_subjects:
        assert origin.problem.series.subjects is not None
        place = (*place, origin.problem.series.subjects)
    known = {name: origin.values[name] for name in origin.dims}
    drives = origin.drives(horizon)
    moves = [origin.moves(drive) for drive in drives]
    path = origin.path(moves, number)
    state, lags, locations, precisions = path.pop(), origin.lags[number], [], []
    in_turn = (torch.arange(each, device=number.device) % origin.n_states).repeat(len(origin.belief))
    turn = in_turn.reshape(-1, *[1] * origin.behind.ndim).expand_as(state)

    def normal_of(state: Tensor, inputs: Tensor) -> Parameters:
        chosen = {n: table[(*place, state.clamp(max=table.shape[len(place)] - 1))] for n, table in known.items()}
        return origin.emission.respond(chosen, torch.cat([lags.flatten(-2), inputs], -1))

    for step, drive in enumerate(drives):
        row = moves[step][number].take_along_dim(state[..., None, None], -2).squeeze(-2)
        state = torch.distributions.Categorical(probs=row).sample()
        if path:
            state = torch.where(step < origin.behind, path.pop(), state)
        inputs = origin.inputs(drive).squeeze(-2).expand(*state.shape, -1)
        normal = normal_of(state, inputs)
        shown = normal if step else normal_of(turn, inputs)
        locations.append(shown["loc"])
        precisions.append(shown["precision"])
        drawn = origin.emission.plain.distribution(normal).rsample()
        seen = origin.seen(step + 1).squeeze(-2)
        lags = after(lags, _where_seen(seen, seen, drawn))
    size = precisions[0].shape[origin.behind.ndim + 1 :]
    flat = origin.after_end([table.flatten(origin.behind.ndim + 1) for table in precisions])
    weights = flat.new_full((*state.shape, horizon), 1 / len(number))
    ahead = (moves[0].mT @ origin.belief.unsqueeze(-1)).squeeze(-1)[number].take_along_dim(turn.unsqueeze(-1), -1)
    exact = ahead.squeeze(-1) / in_turn.bincount()[turn]
    weights[..., 0] = torch.where(origin.behind == 0, exact, weights[..., 0])
    return origin.after_end(locations), flat.unflatten(-1, size), weights


def observation_ahead(
    problem: Problem, values: Parameters, horizon: int, draws: int, seed: Seed
) -> tuple[StateMixture, Float[Tensor, "*b H F"], Float[Tensor, "*b H F"]]:
    """The mixture of at least `draws` normals at each step to come under parameters `[r, ...]`, which is exact at the
    first one if its lags are observed, and its exact mean and variance."""
    origin = Origin.of(problem, values)
    mean, variance = moments(origin, horizon)
    with seeded(seed, problem.series.like):
        loc, precision, weights = components(origin, horizon, max(-(-draws // len(mean)), origin.n_states))
    emission = Drawn(origin.emission.plain, loc.movedim(0, -2), precision.movedim(0, loc.ndim - 2))
    weights = weights.movedim(0, -1)
    spread = variance.mean(0) + mean.var(0, correction=0)
    return StateMixture(emission, {}, ByGate(weights, torch.zeros_like(weights))), mean.mean(0), spread
