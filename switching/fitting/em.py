r"""Expectation-maximisation over many restarts at once.

    E-step   the chain's posterior marginals under the current parameters, and log p(x | theta) with them
    M-step   the mode of dynamics and emission parameters given those marginals

The objective $\log p(x \mid \theta) + \log p(\theta)$ (without a prior: $\log p(x \mid \theta)$) never falls (Dempster,
Laird & Rubin 1977). Restarts are the leading axis of every table; those that have converged leave the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.chains.contract import Marginals
from ..data.series import Series
from ..parameters import Parameters, kept, prefixed
from ..problem import Problem
from .options import Options
from .starts import first_labels, softened

VARIANCE_FLOOR = 1e-10  # of the data's variance: below it a state has collapsed onto a point


@dataclass(frozen=True)
class Maximization:
    """Where every restart ended."""

    values: Parameters  # [R, ...]
    objective: Float[Tensor, "S R"]  # NaN after a restart has converged
    final: Float[Tensor, "R"]
    converged: Bool[Tensor, "R"]
    collapsed: Bool[Tensor, "R K"]
    occupancy: Float[Tensor, "R K"]  # expected number of steps in each state
    interrupted: bool


def maximize(
    problem: Problem,
    values: Parameters,
    max_steps: int,
    tol: float,
    report: Callable[[int, float], None] = lambda step, best: None,
) -> Maximization:
    """Run EM on all restarts until each has converged, or `max_steps`; Ctrl-C keeps what has been reached."""
    like, n_restarts, n_states = problem.series.observations, len(next(iter(values.values()))), problem.n_states
    active = torch.arange(n_restarts, device=like.device)
    final = like.new_full((n_restarts,), -torch.inf, dtype=torch.float64)
    converged = torch.zeros(n_restarts, dtype=torch.bool, device=like.device)
    collapsed = torch.zeros(n_restarts, n_states, dtype=torch.bool, device=like.device)
    occupancy = like.new_zeros(n_restarts, n_states)
    best = {name: value.clone() for name, value in values.items()}
    trace: list[Tensor] = []
    flags, floor = collapsed.clone(), variance_floor(problem.series)
    interrupted = False
    try:
        for step in range(1, max_steps + 1):
            marginals = problem.chain(values).marginals()
            now = (problem.total(marginals.log_normalizer) + problem.log_prior(values)).double()
            stopped = (now - final[active]).abs() <= tol * now.abs().clamp(min=1.0)
            row = now.new_full((n_restarts,), torch.nan)
            row[active] = now
            # from here to the end of this block one step's results belong together
            trace.append(row)
            final[active], converged[active], collapsed[active] = now, stopped, flags
            for name, value in values.items():
                best[name][active] = value
            occupancy[active] = occupied(marginals).flatten(1, -2).sum(1)
            report(step, float(final.max()))
            if bool(stopped.all()):
                break
            values, flags = maximized(problem, marginals, values, floor)
            going = ~stopped
            if not bool(going.all()):
                active, flags = active[going], flags[going]
                values = {name: value[going] for name, value in values.items()}
    except KeyboardInterrupt:
        if not trace:
            raise  # nothing has been reached yet
        interrupted = True
    return Maximization(best, torch.stack(trace), final, converged, collapsed, occupancy, interrupted)


def maximized(
    problem: Problem, marginals: Marginals, values: Parameters, floor: Float[Tensor, "F"]
) -> tuple[Parameters, Bool[Tensor, "R K"]]:
    """The M-step: new parameters, and which states have collapsed onto a point."""
    moved = problem.dynamics.maximize(marginals, problem.prior, values, problem.series.drive)
    emitted, collapsed = _emission_step(problem, marginals.fresh, marginals.held, values, floor)
    return moved | emitted, collapsed


def occupied(marginals: Marginals) -> Float[Tensor, "*b T K"]:
    """The probability of each state at each step; held steps that emit alike in all states do not tell theirs."""
    held = marginals.held
    return marginals.fresh if held is None or held.shape[-1] == 1 else marginals.fresh + held


def _emission_step(
    problem: Problem, fresh: Tensor, held: Tensor | None, near: Parameters, floor: Tensor
) -> tuple[Parameters, Tensor]:
    rows, found, collapsed = problem.series.rows, {}, []
    for part, weights in zip(problem.emission.parts, problem.emission.weights(fresh, held), strict=True):
        flat = weights.reshape(len(weights), len(rows), -1)
        prior = None if problem.prior is None else part.own(problem.prior)
        result = part.emission.maximize(rows, flat, part.own(near), prior, floor)
        # a state without any weight has no estimate: it keeps what it had
        found |= prefixed(kept(result.values, part.own(near)), part.prefix)
        collapsed.append(result.collapsed)
    return found, collapsed[0]


def variance_floor(series: Series) -> Float[Tensor, "F"]:
    """The variance of each feature below which a state has collapsed onto a point."""
    spread = (series.rows - series.rows.nanmean(0)).square().nanmean(0)
    return VARIANCE_FLOOR * torch.where(spread > 0, spread, 1.0)


def start(problem: Problem, options: Options) -> Parameters:
    """Parameters `[R, ...]` to start from."""
    series, like = problem.series, problem.series.observations
    labels = first_labels(problem.emission, series, problem.n_states, options.restarts, options.number)
    moved = problem.dynamics.start(labels, series)
    soft, typical = softened(labels, problem.n_states, series), {}
    for part in problem.emission.parts:
        n_states = 1 if part.prefix else problem.n_states
        own = part.emission.start(part.emission.default_prior(n_states, series.rows))
        typical |= prefixed({name: v.expand(options.restarts, *v.shape) for name, v in own.items()}, part.prefix)
    emitted, _ = _emission_step(problem, soft, 0.1 * soft, typical, variance_floor(series))
    return {name: value.to(like) for name, value in moved.items()} | emitted
