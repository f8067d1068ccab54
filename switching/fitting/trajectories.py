r"""Trajectories: what lies between the parameters and the data, as one exponential family.

Given the data x, the path (s, z) and what is missing of x are one variable y, with

$$\log p(x, y \mid \theta) = \sum_b \langle t_b(\theta), n_b(y, x) \rangle + \text{const},$$

a sum over the blocks b of parameters: their statistics times how often y uses them. So the optimal q(y) has as natural
parameters the expected statistics $\eta_b = E_q[t_b(\theta)]$, one tensor a block whatever the number of steps. Its
log-normaliser is the evidence of the chain whose tables hold expected logs, and its gradient, the expected counts
$E[n_b]$, is the message to the parameters.

**Gaps and covariates.** The gate's log probabilities are then not linear in statistics, but bounded below by functions
convex in them, which hold with equality at a point and become one more latent variable summed out. With
$u = E \log \rho$, $v = E \log(1-\rho)$ a gap of d steps is held with log weight $d v$ and redrawn with

$$\log\big((e^u + e^v)^d - e^{d v}\big) \;\; (d \ge 1), \qquad \log\big(1 - (1 - e^u)^d\big) \;\; (d \le 1).$$

The first sums out the number of redraws in the gap, exactly if d is whole and by Jensen's inequality otherwise, since
its slope in $u - v$ grows; the second expands in powers of $\rho$, all of whose coefficients are positive. With
$\text{logit}\,\rho_t = \psi_t$ linear in covariates, summing out a Polya-Gamma variable gives (Jaakkola & Jordan 2000,
eq. 12; Polson, Scott & Windle 2013)

$$u, v = \pm E[\psi]/2 - \log\big(2 \cosh(\sqrt{E[\psi^2]}/2)\big).$$

The prior of the intercept, a beta distribution of its sigmoid, is met in the same way, as observed gates.
"""

import math
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.copy.chain import CopyChain
from ...inference.chains.markov.chain import MarkovChain
from ...inference.families import Family, tree_map, tree_parts
from ..data.series import Sequences
from ..dynamics import Copy, Drive, Dynamics, Markov
from ..dynamics.contract import widened
from ..dynamics.copy import WEIGHT_SCALE, log1mexp
from ..emissions import Emission
from ..emissions.contract import ByGate
from ..parameters import Parameters
from .conjugate import Piece, Probabilities, RedrawProbability, RedrawWeights, Representative, emitters

Counts = Any
"""A named tuple with a tensor for each block of parameters: natural parameters, or expected counts."""


def pieces(dynamics: Dynamics, emission: Emission) -> dict[str, tuple[str, Piece]]:
    """The blocks of a model's parameters by name, each with the prefix that its parameters' names have."""
    found: dict[str, Piece]
    if isinstance(dynamics, Markov):
        initial = Probabilities("initial_probs", "initial_concentration")
        found = {"initial": initial, "transition": Probabilities("transition_probs", "transition_concentration")}
    elif isinstance(dynamics, Copy):
        redraw = RedrawWeights(dynamics.n_covariates) if dynamics.n_covariates else RedrawProbability()
        found = {"redraw": redraw, "state": Probabilities("state_probs", "state_concentration")}
    else:
        raise TypeError(f"dynamics: got {type(dynamics).__name__}; message passing knows Copy and Markov.")
    emitted = {e.block: (e.prefix, e.piece) for e in emitters(emission)}
    return {name: ("", piece) for name, piece in found.items()} | emitted


class Trajectories(Family[Any]):
    """The family of the module's docstring. Natural parameters and counts have the leading axes of the parameters.

    `share` is the part that this series is of all data: what the prior has that is not conjugate counts by it.
    """

    latent = True

    def __init__(
        self,
        dynamics: Dynamics,
        emission: Emission,
        prior: Parameters,
        series: Sequences,
        drive: Drive,
        share: float = 1.0,
    ) -> None:
        self.make = namedtuple("Counts", pieces(dynamics, emission))  # the fields differ from model to model
        self.moves = CopyMoves(dynamics, drive, prior, share) if isinstance(dynamics, Copy) else MarkovMoves()
        self.emitted, self.lengths = Emitted(emission, series), series.lengths

    def chain(self, eta: Counts) -> Chain:
        """The chain over paths under expected log tables: smoothing, draws, the most probable path."""
        return self.moves.chain(eta, self.emitted.likelihood(eta), self.lengths)

    def log_normalizer(self, eta: Counts) -> Tensor:
        return self._total(self.chain(eta).log_normalizer(), eta)

    def mean(self, eta: Counts) -> Counts:
        return self.evaluate(eta)[1]

    def evaluate(self, eta: Counts) -> tuple[Tensor, Counts]:
        total, counts = None, None
        for part, marginals in self.turns(eta):
            log_normalizer, own = part._total(marginals.log_normalizer, eta), part.counts(marginals, eta)
            total = log_normalizer if total is None else total + log_normalizer
            counts = own if counts is None else tree_map(torch.add, counts, own)
        assert total is not None
        return total, counts

    def turns(self, eta: Counts) -> Iterator[tuple["Trajectories", Marginals]]:
        """Parts of the data, and what the posterior says of each."""
        yield self, self.marginals(eta)

    def marginals(self, eta: Counts) -> Marginals:
        return self.chain(eta).marginals()

    def occupancy(self, eta: Counts) -> Tensor:
        """Expected number of steps in each state, `[*r, K]`; held steps of a gated emission do not tell theirs."""
        total = torch.zeros((), dtype=eta[0].dtype, device=eta[0].device)
        for _, marginals in self.turns(eta):
            redrawn, held = marginals.fresh, marginals.held
            mass = redrawn if held is None or held.shape[-1] < redrawn.shape[-1] else redrawn + held
            total = total + mass.reshape(*self._leading(eta), -1, redrawn.shape[-1]).sum(-2)
        return total

    def counts(self, marginals: Marginals, eta: Counts) -> Counts:
        """How often the posterior uses each statistic."""
        redrawn, held = marginals.fresh, marginals.held
        return self.make(**self.moves.counts(marginals, eta), **self.emitted.counts(redrawn, held, eta))

    def dot(self, eta: Counts, statistics: Counts) -> Tensor:
        lead = self._leading(eta)
        pairs = zip(tree_parts(eta), tree_parts(statistics), strict=True)
        return torch.stack([(a * b).reshape(*lead, -1).sum(-1) for a, b in pairs]).sum(0)

    def log_base(self, statistics: Counts) -> Tensor:
        """0: the measure under which these are densities has the data in it."""
        return torch.zeros(self._leading(statistics), dtype=statistics[0].dtype, device=statistics[0].device)

    def check(self, eta: Counts) -> None:
        for name, part in zip(eta._fields, eta, strict=True):
            if not bool(part.isfinite().all()):
                raise ValueError(
                    f"{name}: got expected statistics that are not finite; look for parameters out of range."
                )

    def _leading(self, eta: Counts) -> torch.Size:
        return eta[0].shape[: eta[0].ndim - self.moves.event_dims]

    def _total(self, log_normalizer: Tensor, eta: Counts) -> Tensor:
        """Sequences summed, `[*r]`, and what the prior has that is not conjugate."""
        lead = self._leading(eta)
        return log_normalizer.reshape(*lead, -1).sum(-1) + self.moves.log_pseudo(eta)


# ---- moves: the part of the dynamics --------------------------------------------------------------------------------


class Moves(ABC):
    """The dynamics' part: a chain from expected logs, and counts from its marginals."""

    event_dims: int  # axes of the first block's statistics

    @abstractmethod
    def chain(self, eta: Counts, likelihood: ByGate, lengths: Tensor | None) -> Chain: ...

    @abstractmethod
    def counts(self, marginals: Marginals, eta: Counts) -> dict[str, Tensor]: ...

    def log_pseudo(self, eta: Counts) -> Tensor | float:
        """Log weight of what is known of the parameters without being conjugate, `[*r]`."""
        return 0.0


class MarkovMoves(Moves):
    event_dims = 1

    def chain(self, eta: Counts, likelihood: ByGate, lengths: Tensor | None) -> Chain:
        table = likelihood.redrawn
        n_batch = table.ndim - 1 - eta.initial.ndim
        return MarkovChain(widened(eta.initial, 1, n_batch), widened(eta.transition, 2, n_batch), table, lengths)

    def counts(self, marginals: Marginals, eta: Counts) -> dict[str, Tensor]:
        assert marginals.initial is not None
        assert marginals.transition is not None
        batch = tuple(range(eta.initial.ndim - 1, marginals.initial.ndim - 1))
        if not batch:
            return {"initial": marginals.initial, "transition": marginals.transition}
        return {"initial": marginals.initial.sum(batch), "transition": marginals.transition.sum(batch)}


@dataclass(frozen=True)
class CopyMoves(Moves):
    dynamics: Copy
    drive: Drive
    prior: Parameters
    share: float = 1.0
    event_dims = 1

    def chain(self, eta: Counts, likelihood: ByGate, lengths: Tensor | None) -> Chain:
        n_batch = likelihood.redrawn.ndim - 1 - eta.state.ndim
        log_state = widened(eta.state, 1, n_batch + 1)
        log_redraw, log_hold = (gate.unsqueeze(-1) for gate in self.log_gate(eta.redraw, n_batch))
        fresh = likelihood.redrawn + log_state
        fresh[..., 1:, :] += log_redraw
        held = likelihood.held.clone()
        held[..., 1:, :] += log_hold
        return CopyChain(None, fresh, held, lengths)

    def log_gate(self, eta: Tensor, n_batch: int) -> tuple[Tensor, Tensor]:
        """Bounds on the expected log rho_t and log (1 - rho_t) from the second step on; broadcast to [*r, *b, T-1]."""
        steps = self.drive.at(slice(1, None))
        if not self.dynamics.n_covariates:
            u, v = widened(eta, 1, n_batch + 1).unbind(-1)
        else:
            assert steps.covariates is not None
            u, v = logistic_bounds(widened(eta, 1, n_batch + 1), with_intercept(steps.covariates))
        return (u, v) if steps.dt is None else (log_redraw_in_gap(u, v, steps.dt), steps.dt * v)

    def counts(self, marginals: Marginals, eta: Counts) -> dict[str, Tensor]:
        assert marginals.held is not None
        n_lead, n_batch = eta.state.ndim - 1, marginals.fresh.ndim - 1 - eta.state.ndim
        lead = eta.state.shape[:n_lead]
        state = marginals.fresh.reshape(*lead, -1, eta.state.shape[-1]).sum(-2)
        if not self.dynamics.n_covariates and self.drive.dt is None:
            first = marginals.fresh[..., 0, :].reshape(*lead, -1).sum(-1)
            held = marginals.held.reshape(*lead, -1).sum(-1)
            return {"redraw": torch.stack([state.sum(-1) - first, held], -1), "state": state}
        redrawn, held = marginals.fresh[..., 1:, :].sum(-1), marginals.held[..., 1:, :].sum(-1)
        with torch.enable_grad():
            leaf = eta.redraw.detach().requires_grad_()
            log_redraw, log_hold = self.log_gate(leaf, n_batch)
            finite = torch.where(log_redraw.isfinite(), log_redraw, 0.0)  # a gap of 0 steps has no redraw
            total = (redrawn * finite + held * log_hold).sum() + torch.as_tensor(self._log_pseudo(leaf)).sum()
            (redraw,) = torch.autograd.grad(total, leaf)
        return {"redraw": redraw, "state": state}

    def log_pseudo(self, eta: Counts) -> Tensor | float:
        return self._log_pseudo(eta.redraw)

    def _log_pseudo(self, eta: Tensor) -> Tensor | float:
        """Expected log prior of intercept and weights (of the former a bound); see `Copy.sites`."""
        n = self.dynamics.n_covariates
        if not n:
            return 0.0
        redraws, holds = self.prior["redraw_concentration"].to(eta).unbind(-1)
        intercept = torch.zeros(1, 1 + n, dtype=eta.dtype, device=eta.device)
        intercept[:, 0] = 1
        u, v = (bound[..., 0] for bound in logistic_bounds(eta.unsqueeze(-2), intercept))
        normaliser = torch.lgamma(redraws) + torch.lgamma(holds) - torch.lgamma(redraws + holds)
        squares = eta[..., 1 + n :].unflatten(-1, (1 + n, 1 + n)).diagonal(dim1=-2, dim2=-1)[..., 1:].sum(-1)
        normal = -squares / (2 * WEIGHT_SCALE**2) - n * (math.log(WEIGHT_SCALE) + math.log(2 * math.pi) / 2)
        return self.share * (redraws * u + holds * v - normaliser + normal)


def with_intercept(covariates: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(covariates[..., :1]), covariates], -1)


def logistic_bounds(eta: Tensor, design: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on E log sigma(psi), E log sigma(-psi) for psi = design @ w from the means of w and ww', packed in eta."""
    size = design.shape[-1]
    first, second = eta[..., :size], eta[..., size:].unflatten(-1, (size, size))
    mean = (design * first).sum(-1)
    square = ((design.unsqueeze(-2) @ second).squeeze(-2) * design).sum(-1)
    root = (square.clamp_min(0) + 1e-30).sqrt()  # its gradient exists at 0
    log_cosh = root / 2 + softplus(-root)
    return mean / 2 - log_cosh, -mean / 2 - log_cosh


def log_redraw_in_gap(u: Tensor, v: Tensor, dt: Tensor) -> Tensor:
    """Bound on the expected log probability of a redraw in a gap of dt steps; -inf for a gap of 0."""
    long = torch.where(dt >= 1, dt, 1.0)
    growth = long * softplus(u - v)
    several = long * v + growth + log1mexp(-growth)
    short = torch.where((dt > 0) & (dt < 1), dt, 0.5)
    log_none = torch.log1p(-u.exp().clamp_max(1 - torch.finfo(u.dtype).eps))
    part = log1mexp(short * log_none)
    return torch.where(dt >= 1, several, torch.where(dt > 0, part, -torch.inf))


# ---- emissions ------------------------------------------------------------------------------------------------------


class Emitted:
    """The emission's part: expected log-likelihood tables, and weighted moments, of one series."""

    def __init__(self, emission: Emission, series: Sequences) -> None:
        self.emission, self.x = emission, series.values
        self.rows = series.values.reshape(-1, series.values.shape[-1])
        self.emitters = emitters(emission)
        self.complete = not bool(torch.isnan(self.rows).any())
        self._last: tuple[Counts, list[Representative]] | None = None

    def likelihood(self, eta: Counts) -> ByGate:
        """Expected log p(x_t | s_t, z_t), what is missing of x_t summed out: `[*r, *b, T, K]`."""
        tables = [
            self._corrected(e.emission.table(self.x, r.values), r.constant)
            for e, r in zip(self.emitters, self._representatives(eta), strict=True)
        ]
        return ByGate(tables[0], tables[-1])

    def counts(self, redrawn: Tensor, held: Tensor | None, eta: Counts) -> dict[str, Tensor]:
        """Messages to the emission's blocks from the posterior weights of redrawn and of held steps."""
        values: Parameters = {}
        for e, r in zip(self.emitters, self._representatives(eta), strict=True):
            values |= {e.prefix + name: value for name, value in r.values.items()}
        n_lead = redrawn.ndim - self.x.ndim
        flat = [None if w is None else self._rows(w, n_lead) for w in (redrawn, held)]
        assert flat[0] is not None
        moments = self.emission.gather(self.rows, flat[0], flat[1], values)
        counts = {}
        for e in self.emitters:
            own = {name.removeprefix(e.prefix): part for name, part in moments.items() if name.startswith(e.prefix)}
            counts[e.block] = e.piece.message(own)
        return counts

    def _representatives(self, eta: Counts) -> list[Representative]:
        if self._last is None or self._last[0] is not eta:  # likelihoods and counts ask in turn
            self._last = eta, [e.piece.representative(getattr(eta, e.block)) for e in self.emitters]
        return self._last[1]

    def _corrected(self, table: Tensor, constant: Tensor) -> Tensor:
        """Add to a table of log-likelihoods the constant of each observed feature, or step."""
        n_axes = self.x.ndim - 1
        if self.complete:
            return table.add_(widened(constant.sum(-1), 1, n_axes))
        observed = ~torch.isnan(self.rows)
        seen = observed if constant.shape[-1] == self.x.shape[-1] else observed.any(-1, keepdim=True)
        total = seen.to(self.rows.dtype) @ constant.mT
        return table.add_(total.reshape(*total.shape[:-2], *self.x.shape[:-1], total.shape[-1]))

    def _rows(self, weights: Tensor, n_lead: int) -> Tensor:
        flat = weights.reshape(*weights.shape[:n_lead], -1, weights.shape[-1])
        return flat if self.complete else flat * (~torch.isnan(self.rows)).any(-1, keepdim=True)
