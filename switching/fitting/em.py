r"""Expectation-maximisation over many restarts at once.

    E-step   the chain's posterior marginals under the current parameters, and log p(x | theta) with them
    M-step   the mode of dynamics and emission parameters given those marginals

The objective $\log p(x \mid \theta) + \log p(\theta)$ (without a prior: $\log p(x \mid \theta)$) never falls (Dempster,
Laird & Rubin 1977). Restarts are the leading axis of every table; those that have converged leave the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.chains.contract import Marginals
from ..data.series import Sequences
from ..dynamics import Drive, Dynamics
from ..emissions import Emission
from ..parameters import Parameters, log_prior

VARIANCE_FLOOR = 1e-10  # of the data's variance: below it a state has collapsed onto a point


@dataclass(frozen=True)
class Problem:
    """All that an E-step and an M-step need besides the parameters."""

    dynamics: Dynamics
    emission: Emission
    series: Sequences
    drive: Drive
    prior: Parameters | None

    def objective(self, values: Parameters) -> tuple[Tensor, Marginals]:
        """What is maximised, `[R]`, and the posterior marginals of the chain."""
        marginals = self.chain(values).marginals()
        total = marginals.log_normalizer
        total = total.reshape(total.shape[0], -1).sum(-1)
        if self.prior is not None:
            total = total + log_prior(self.sites, values)
        return total, marginals

    def chain(self, values: Parameters):
        likelihood = self.emission.log_likelihood(self.series.values, values)
        return self.dynamics.chain(values, likelihood, self.drive, self.series.lengths)

    @property
    def sites(self) -> list:
        assert self.prior is not None
        return self.dynamics.sites(self.prior) + self.emission.sites(self.prior)

    def maximize(self, marginals: Marginals, values: Parameters) -> tuple[Parameters, Tensor]:
        """New parameters, and which states have collapsed onto a point, `[R, K]`."""
        redrawn, held = marginals.fresh, marginals.held
        moved = self.dynamics.maximize(marginals, self.prior, values, self.drive)
        emitted, collapsed = self._emission_step(redrawn, held, values)
        return moved | emitted, collapsed

    def _emission_step(
        self, redrawn: Tensor, held: Tensor | None, values: Parameters | None
    ) -> tuple[Parameters, Tensor]:
        rows = self.series.values.reshape(-1, self.series.values.shape[-1])
        flat = redrawn.reshape(redrawn.shape[0], rows.shape[0], -1)
        kept = None if held is None else held.reshape(held.shape[0], rows.shape[0], -1)
        moments = self.emission.gather(rows, flat, kept, values)
        result = self.emission.maximize(moments, self.prior, self._variance_floor)
        if values is None:
            return result.values, result.collapsed
        # a state without any mass has no estimate: it keeps what it had
        kept_values = {n: torch.where(torch.isfinite(v), v, values[n]) for n, v in result.values.items()}
        return kept_values, result.collapsed

    @cached_property
    def _variance_floor(self) -> Tensor:
        rows = self.series.values.reshape(-1, self.series.values.shape[-1])
        spread = (rows - rows.nanmean(0)).square().nanmean(0)
        return VARIANCE_FLOOR * torch.where(spread > 0, spread, 1.0)

    def start(self, labels: Tensor, n_states: int) -> Parameters:
        """Parameters from a labelling `[R, *b, T]` of the steps."""
        inside = self.series.inside
        one_hot = torch.nn.functional.one_hot(labels, n_states).to(self.series.values) * inside.unsqueeze(-1)
        moved = self.dynamics.start(labels, len(self.series.batch_shape), inside)
        # every state gets a little of every step, so that none starts on a single point
        soft = 0.9 * one_hot + 0.1 / n_states * inside.unsqueeze(-1)
        emitted, _ = self._emission_step(soft, 0.1 * soft, None)
        return {name: value.to(self.series.values) for name, value in moved.items()} | emitted


@dataclass(frozen=True)
class Maximization:
    """Where every restart ended."""

    values: Parameters  # [R, ...]
    objective: Float[Tensor, "S R"]  # NaN after a restart has converged
    final: Float[Tensor, "R"]
    steps: list[int]
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
    n_restarts = next(iter(values.values())).shape[0]
    n_states = problem.dynamics.n_states
    like = problem.series.values
    active = torch.arange(n_restarts, device=like.device)
    final = like.new_full((n_restarts,), -torch.inf, dtype=torch.float64)
    converged = torch.zeros(n_restarts, dtype=torch.bool, device=like.device)
    collapsed = torch.zeros(n_restarts, n_states, dtype=torch.bool, device=like.device)
    occupancy = like.new_zeros(n_restarts, n_states)
    best = {name: value.clone() for name, value in values.items()}
    trace: list[Tensor] = []
    steps = [0] * n_restarts
    flags = collapsed.clone()
    interrupted = False
    try:
        for step in range(1, max_steps + 1):
            now, marginals = problem.objective(values)
            now = now.double()
            change = (now - final[active]).abs()
            stopped = change <= tol * now.abs().clamp(min=1.0)
            row = now.new_full((n_restarts,), torch.nan)
            row[active] = now
            # from here to the end of this block one step's results belong together
            trace.append(row)
            final[active], converged[active] = now, stopped
            for name, value in values.items():
                best[name][active] = value
            redrawn, held = marginals.fresh, marginals.held
            mass = redrawn if held is None else redrawn + (held if held.shape[-1] > 1 else 0.0)
            occupancy[active] = mass.flatten(1, -2).sum(1)
            collapsed[active] = flags
            for restart in active.tolist():
                steps[restart] = step
            report(step, float(final.max()))
            if bool(stopped.all()):
                break
            values, flags = problem.maximize(marginals, values)
            going = ~stopped
            if not bool(going.all()):
                active, flags = active[going], flags[going]
                values = {name: value[going] for name, value in values.items()}
    except KeyboardInterrupt:
        if not trace:
            raise  # nothing has been reached yet
        interrupted = True
    return Maximization(best, torch.stack(trace), final, steps, converged, collapsed, occupancy, interrupted)
