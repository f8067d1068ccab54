r"""Draws of regimes and latents given x and parameters, by Gibbs samplers with exact conditionals.

    alternating     latents given regimes, by a simulation smoother; then regimes given latents, by a Markov chain
    collapsed       regimes with the latents summed out: the whole path by a particle filter conditional on the
                    previous path, then each regime given all others. This mixes even if latents have little noise or
                    are not observed. The alternation then mixes slowly, because it draws regimes given the latents

Both leave $P(z, s \mid x)$ invariant, and a sweep may do both. In the recurrent kind the latents are drawn given one
Polya-Gamma number for each stick, and collapsed moves are not possible. Probabilities and moments are
Rao-Blackwellised: means of the exact $P(z_t \mid \cdot)$, $E[s \mid z, x]$ and $\mathrm{Cov}[s \mid z, x]$ of each
sweep, not of draws.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.chains.linear_gaussian.factors import factor_of
from ...inference.chains.markov.chain import MarkovChain
from ...inference.chains.switching_gaussian import op
from ...inference.chains.switching_gaussian.paths import Paths
from ...inference.chains.switching_gaussian.tables import stick_breaking
from ...inference.numerics.interrupts import interruptible, may_interrupt
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_integer
from .gpb import check_density, read
from .joint import COVARIANCES, Regimes

MOVES = ("alternating", "collapsed", "both")
LEAST = 4  # draws of each chain that R-hat needs


@dataclass(frozen=True, repr=False)
class SwitchingSampled(Record):
    """The results of C chains; 0 after the end of a sequence, -1 in paths."""

    state: Float[Tensor, "*b T K"]  # P(z_t | x)
    mean: Float[Tensor, "*b T L"]  # of s_t given x
    covariance: Float[Tensor, "*b T L L"]
    path: Int[Tensor, "n *b T"]  # of the sweeps that were kept, C per sweep
    latent: Float[Tensor, "n *b T L"]
    share: Float[Tensor, "m C *b K"]  # fraction of each sequence's steps in each regime, in a sweep's path
    r_hat: Float[Tensor, "*b K"]  # split R-hat of the shares
    effective_size: Float[Tensor, "*b K"]  # number of independent draws with the same error of a share
    interrupted: bool


def gibbs(
    regimes: Regimes,
    x: Tensor,
    draws: int = 1000,
    warmup: int = 200,
    chains: int = 4,
    thin: int = 10,
    moves: str | None = None,
    particles: int = 16,
    lengths: Any = None,
    seed: Seed = None,
) -> SwitchingSampled:
    """Sample regimes and latents given x; Ctrl-C ends sampling and keeps the sweeps so far.

    During the warm-up these are the last of it, about half.

    Arguments:
        x: [*b, T, F]; NaN: missing, a whole step or single features.
        draws: the sweeps of each chain that count, after `warmup` others.
        chains: number of parallel chains. Each starts from a path that the model draws without x. In the recurrent
            kind the alternation is slow from there, so chains start from paths drawn by Kim's smoother.
        thin: the path and the latents of each chain are kept once in so many sweeps.
        moves: "alternating", "collapsed" or "both" in turns; None: both if the model allows them.
        particles: number of particles of the collapsed moves' filter, two or more. 0: only single regimes are
            redrawn. Such a sweep is faster, but can get stuck if several regimes in a row have to change at once.
        lengths: [*b], each sequence's number of steps; None: all have T.

    Raises:
        TypeError: x of another dtype than the parameters, or an argument that is not a number.
        ValueError: shapes that do not fit; collapsed moves for the recurrent kind; alternating moves for a model
            whose noises have no density; an observation without density.

    >>> import torch
    >>> one, half = torch.ones(2, 1, 1), torch.full((2, 2), 0.5)
    >>> calm_or_wild = torch.tensor([0.1, 10.0]).view(2, 1, 1)
    >>> none = one[:, 0] * 0
    >>> regimes = Regimes(half[0], half, none, one, one, none, calm_or_wild, one, none, 0.1 * one)
    >>> drawn = gibbs(regimes, torch.tensor([[0.0], [0.2], [5.0], [4.9]]), draws=200, warmup=50, seed=0)
    >>> drawn.path.shape, bool(drawn.r_hat.max() < 1.1), round(float(drawn.state[2, 1]), 2)
    (torch.Size([80, 4]), True, 1.0)
    """
    draws, warmup = check_integer("draws", draws, least=LEAST), check_integer("warmup", warmup, least=0)
    chains, thin = check_integer("chains", chains), check_integer("thin", thin)
    particles = check_integer("particles", particles, least=0)
    if particles == 1:
        raise ValueError("particles: got 1, which could only repeat the current path; give 2 or more, or 0 for none.")
    flat, ends, batch = read(regimes, x, lengths)
    here: dict[str, Any] = {name: table for name, table in vars(regimes).items() if table is not None}
    regimes = Regimes(**{name: table.cpu() for name, table in here.items()})
    plan = _chosen(moves, particles, regimes)
    paths, generator = Paths(regimes.tables(), flat.cpu(), ends.cpu().repeat(chains)), generator_of(seed)
    path = _starts(regimes, paths, chains, generator)
    omega = paths.sticks(path, flat.new_zeros(*path.shape, regimes.n_latent).cpu(), generator)
    record, interrupted, fresh = _Sums(), False, {2**i for i in range(warmup.bit_length())} | {warmup + 1}
    with interruptible():
        for number in range(1, warmup + draws + 1):
            try:
                with may_interrupt():
                    sweep = _sweep(paths, path, omega, plan, generator)
            except KeyboardInterrupt:
                if not record.shares:
                    raise
                interrupted = True
                break
            check_density(sweep.failed.reshape(chains, *batch).amax(0))
            path, omega = sweep.path, sweep.omega
            record = _Sums() if number in fresh else record
            record.add(sweep, _share(path, paths.lengths, regimes.n_regimes), chains, thin)
    return record.summary(x, batch, chains, paths.lengths, interrupted)


class _Moves(NamedTuple):
    """The moves of a sweep."""

    alternating: bool
    collapsed: bool
    particles: int


def _chosen(moves: str | None, particles: int, regimes: Regimes) -> _Moves:
    recurrent, singular = regimes.recurrence is not None, _without_density(regimes)
    if moves is None:
        moves = "alternating" if recurrent else "collapsed" if singular else "both"
    check_choice("moves", moves, MOVES)
    if recurrent and moves != "alternating":
        raise ValueError(
            f"moves: got {moves!r}, which sums out the latents, but the latents of this model choose the regimes; "
            "give 'alternating'."
        )
    if singular and moves != "collapsed":
        cure = "positive definite ones" if recurrent else "moves='collapsed'"
        raise ValueError(
            f"{singular}: got singular matrices, so latents have no density, but alternating moves compare their "
            f"densities between regimes; give {cure}."
        )
    return _Moves(moves != "collapsed", moves != "alternating", particles)


def _without_density(regimes: Regimes) -> str | None:
    """The name of a noise that differs between regimes and is singular, if there is one."""
    differing = {
        "initial_covariance": (regimes.initial_mean, regimes.initial_covariance),
        "state_noise": (regimes.transition, regimes.transition_offset, regimes.state_noise),
    }
    for name in COVARIANCES:
        alike = all(bool((table == table[:1]).all()) for table in differing.get(name, (torch.arange(2, device="cpu"),)))
        factor, _ = factor_of(getattr(regimes, name).detach().double())
        if not alike and bool((factor.norm(dim=-2) == 0).any()):
            return name
    return None


def _starts(regimes: Regimes, paths: Paths, chains: int, generator: torch.Generator | None) -> Tensor:
    """A path [B, T] for each chain and sequence."""
    n_sequences, n_steps, _ = paths.x.shape
    if regimes.recurrence is None:
        return regimes.simulate(n_steps, (chains * n_sequences,), generator).path
    ends, k = paths.lengths[:n_sequences], regimes.n_regimes
    smoothed = op.smooth(paths.x, ends, paths.tables)
    check_density(smoothed.failed)
    leaving = smoothed.pairs.sum(-1, keepdim=True)
    moves = torch.where(leaving > 0, smoothed.pairs / torch.where(leaving > 0, leaving, 1.0), 1 / k)
    chain = MarkovChain(smoothed.state[:, 0].log(), moves.log(), paths.x.new_zeros(n_sequences, n_steps, k), ends)
    return chain.sample(chains, generator).path.flatten(0, 1).clamp_min(0)


class _Sweep(NamedTuple):
    """One sweep of all chains B: the start of the next sweep, and the results."""

    path: Tensor  # [B, T]
    omega: Tensor  # [B, T, J], of the sticks
    state: Tensor  # [B, T, K]
    latents: Tensor  # [B, T, L]
    mean: Tensor  # [B, T, L]
    covariance: Tensor  # [B, T, L, L]
    failed: Tensor  # [B]


def _sweep(paths: Paths, path: Tensor, omega: Tensor, moves: _Moves, generator: torch.Generator | None) -> _Sweep:
    tables, states = paths.tables, []
    failed = torch.full_like(paths.lengths, -1)
    if moves.collapsed and moves.particles:
        path, failed = paths.redrawn(path, moves.particles, generator)
    if moves.collapsed and not bool((failed >= 0).any()):
        path, state, failed = paths.collapsed(path, generator)
        states.append(state)
    latents, without = paths.latents(path, omega, generator)
    failed = torch.where(failed >= 0, failed, without)
    if moves.alternating and not bool((failed >= 0).any()):
        log_transition = tables.log_transition
        if tables.recurrence is not None and tables.recurrence_offset is not None:
            u = (latents.drawn[:, :-1] @ tables.recurrence.mT).unsqueeze(-2) + tables.recurrence_offset
            log_transition = stick_breaking(u)
        chain = MarkovChain(tables.log_initial, log_transition, paths.log_likelihood(latents.drawn), paths.lengths)
        states.append(chain.smooth().state)
        path = chain.sample(1, generator).path[0].clamp_min(0)
        omega = paths.sticks(path, latents.drawn, generator)
    state = torch.stack(states).mean(0) if states else latents.mean
    return _Sweep(path, omega, state, *latents, failed)


class _Sums:
    """Sums over sweeps."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []
        self.shares: list[Tensor] = []  # [B, K]
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.last: tuple[Tensor, Tensor] | None = None

    def add(self, sweep: _Sweep, share: Tensor, chains: int, thin: int) -> None:
        square = sweep.mean.unsqueeze(-1) * sweep.mean.unsqueeze(-2)
        terms = sweep.state, sweep.mean, sweep.covariance, square
        totals = [term.unflatten(0, (chains, -1)).sum(0) for term in terms]
        self.sums = [a + b for a, b in zip(self.sums, totals, strict=True)] if self.sums else totals
        self.shares.append(share)
        self.last = sweep.path, sweep.latents
        if len(self.shares) % thin == 0:
            self.kept.append(self.last)

    def summary(
        self, x: Tensor, batch: torch.Size, chains: int, lengths: Tensor, interrupted: bool
    ) -> SwitchingSampled:
        state, mean, covariance, square = (total / (chains * len(self.shares)) for total in self.sums)
        covariance = covariance + square - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        within = torch.arange(state.shape[-2], device="cpu") < lengths[:, None]
        paths, latents = within.new_zeros(0, *within.shape).long(), mean.new_zeros(0, *within.shape, mean.shape[-1])
        kept = [self.last] if interrupted and self.last is not None and not self.kept else self.kept
        if kept:
            paths = torch.where(within, torch.stack([path for path, _ in kept]), -1)
            latents = torch.stack([latents for _, latents in kept])
        share = torch.stack(self.shares).unflatten(1, (chains, -1))  # [m, C, N, K]
        r_hat, size = _mixing(share)

        def shaped(table: Tensor, n_axes: int) -> Tensor:
            """[..., *b, ...] from [..., N, ...] with `n_axes` axes after N."""
            at = table.dim() - n_axes - 1
            return table.reshape(*table.shape[:at], *batch, *table.shape[at + 1 :])

        drawn = (table.unflatten(1, (chains, -1)).flatten(0, 1) for table in (paths, latents))
        paths, latents = (shaped(table, n) for table, n in zip(drawn, (1, 2), strict=True))
        return SwitchingSampled(
            shaped(state, 2).to(x),
            shaped(mean, 2).to(x),
            shaped(covariance, 3).to(x),
            paths.to(x.device),
            latents.to(x),
            shaped(share, 1).to(x),
            shaped(r_hat, 1).to(x),
            shaped(size, 1).to(x),
            interrupted,
        )


def _share(path: Tensor, lengths: Tensor, n_regimes: int) -> Tensor:
    within = torch.arange(path.shape[-1], device="cpu") < lengths[:, None]
    chosen = torch.nn.functional.one_hot(path, n_regimes).double() * within.unsqueeze(-1)
    return chosen.sum(1) / lengths[:, None]


def _mixing(share: Tensor) -> tuple[Tensor, Tensor]:
    """Split R-hat and effective sizes [N, K] of shares [m, C, N, K]: NaN for too few draws; for constant shares, 1 and
    the number of draws."""
    from pyro.ops.stats import effective_sample_size, split_gelman_rubin

    constant = share.amax((0, 1)) == share.amin((0, 1))
    n_draws, n_chains = share.shape[:2]
    if not share.numel():  # no sequences
        return share[0, 0], share[0, 0]
    if n_draws < LEAST:
        return torch.full_like(share[0, 0], torch.nan), torch.full_like(share[0, 0], torch.nan)
    rows = share.flatten(2).transpose(0, 1)
    r_hat, size = (function(rows).reshape(constant.shape) for function in (split_gelman_rubin, effective_sample_size))
    return torch.where(constant, 1.0, r_hat), torch.where(constant, float(n_draws * n_chains), size)
