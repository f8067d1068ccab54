r"""Variational message passing: a message is a gradient.

A joint density $p(x, \theta) = \prod_f f$ is approximated by $q(\theta) = \prod_b q(\theta_b \mid \eta_b)$, every block
of an exponential family, by raising the evidence lower bound

$$L = \sum_f s_f\, E_q[\log f] - \sum_b s_b\, KL(q_b \| p_b).$$

Where $E_q[\log f]$ is affine in the expected statistics $\mu_b$ of each block that f joins, L is greatest in block b at

$$\eta_{0,b} + \sum_f \frac{s_f}{s_b} m_{f \to b}, \qquad m_{f \to b} = \frac{\partial E_q[\log f]}{\partial \mu_b},$$

and a step along the natural gradient of L moves $\eta_b$ by a fraction `step` of the way there. One line covers

    coordinate ascent   step 1: no update lowers L
    minibatches         scale N / n for the factors and blocks of n data out of N; step < 1 for the shared blocks
    annealing           scale < 1 for the factors: tempered messages
        streaming           the posterior of one batch is the prior of the next
        restarts            one more leading axis of every table, and an L for each restart

Where a factor is curved in a block's statistics, this way is still uphill, but the whole of it may lead too far. The
step is then halved until the bound rises.

A block without a prior (`Family.latent`: discrete variables, paths, normal vectors) gets its density from its factors.
Its term is the entropy $A(\eta) - \langle \eta, \mu \rangle$ in place of the divergence.

A factor is one function of expected statistics. For a coin these are log p and log(1-p), here with four tosses:

    >>> from samplehold.inference.families import Beta
    >>> tosses = torch.tensor([1.0, 0.0, 1.0, 1.0])
    >>> def likelihood(coin):
    ...     return tosses * coin[0] + (1 - tosses) * coin[1]
    >>> vmp = VMP([Block("coin", Beta(), prior=torch.ones(2))], [Factor(likelihood, ("coin",))])
    >>> vmp.step()
    >>> vmp.blocks["coin"].eta
    tensor([4., 2.])

References: Winn & Bishop 2005; Hoffman et al. 2013 for steps and scales; Johnson et al. 2016 for messages as gradients.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..families import Stats, tree_map, tree_parts
from ..numerics.deferred import add_context, deferred, refuse_if
from ..numerics.ranks import Ranks
from ..numerics.records import Record
from .factor_graph import Block, Factor, add_message, by_name, check_factor, check_proper, fit_message, neighbors

HALVINGS = 12  # of a step that would lower the bound
ROUNDINGS = 16  # the number of roundings in a product and its sums
_DENSITY = "eta", "prior", "family"  # the fields that determine a block's part of the bound and its statistics

Known = tuple[Block, Tensor | None, Stats]
"""A block, its divergence from its prior (or its normalizer if there is none), and its expected statistics."""

__all__ = ["VMP", "Block", "Factor", "Run", "Sweep"]


class LostError(ValueError):
    """A bound that is not finite, or that an update has lowered."""


@dataclass(frozen=True, repr=False)
class Sweep(Record):
    """One update of every block: by name, the ELBO after it, and the largest change of an expected statistic."""

    elbo: dict[str, Tensor]
    change: dict[str, float]


@dataclass(frozen=True, repr=False)
class Run(Record):
    """The ELBO after each sweep, [steps, *restarts], whether it converged, and the sweeps if they were recorded.

    `interrupted`: Ctrl-C ended the run; the blocks are those after the last whole sweep.
    """

    elbo: Tensor
    steps: int
    converged: bool
    sweeps: tuple[Sweep, ...] = ()
    interrupted: bool = False


class VMP:
    """Blocks, the factors that join them, and their updates.

    Arguments:
        blocks: in the order of their updates. A block without a prior and with large statistics, such as paths, should
            be last: right after its update, its part of the bound is its normalizer, which is known.
        factors: each names its blocks.
        restarts: length of the leading axis of every eta and elog, if these hold several independent runs.
        check: whether to test every block and every factor numerically, which costs a few evaluations. Skip this only
            for code that was tested before, as in a loop over minibatches.
        linear: without a check, the blocks in whose statistics all factors are linear; read it from `linear` of an
            engine with the same structure.
        ranks: the processes that share the data. Factors and blocks without a prior are those of this process. Blocks
            with a prior are the same in all processes, which make all updates of them together, and all bounds. Updates
            of other blocks wait for the next sum over processes, so that an error there ends all. A process whose other
            blocks have no numbers has no data; its factors are not used.

    Attributes:
        blocks: by name, read-only; `put` replaces one. Blocks are never changed in place, so `dict(vmp.blocks)` is a
            checkpoint.
        linear: the blocks in whose statistics all factors are linear, not only affine.

    Raises:
        ValueError: names the block that is missing, double, without a factor or improper; the factor whose elog is not
            affine in the statistics of a block, or whose message does not fit a block or is not the gradient.
    """

    def __init__(
        self,
        blocks: Iterable[Block],
        factors: Iterable[Factor],
        restarts: int | None = None,
        check: bool = True,
        linear: frozenset[str] = frozenset(),
        ranks: Ranks | None = None,
    ):
        self.ranks: Ranks = Ranks() if ranks is None else ranks
        self._waiting: list[tuple[str, Mapping[str, Stats] | None, int]] = []  # updates until the next sum
        self._ready: dict[str, Tensor] = {}  # messages to common blocks, which came with the last bound
        self.factors: tuple[Factor, ...] = tuple(factors)
        self.restarts = restarts
        self._blocks = by_name(blocks, restarts, check)
        self.blocks: Mapping[str, Block] = MappingProxyType(self._blocks)
        self._factors = neighbors(self._blocks, self.factors)
        self._dtype = next(part for block in self._blocks.values() for part in tree_parts(block.eta)).dtype
        self._moments: dict[str, Known] = {}
        self._optimal: frozenset[str] = frozenset()  # blocks at their optima given all others; no factor joins two
        self._stale = False  # whether a block follows replaced statistics, so that the bound has no meaning yet
        own = [part for b in self._blocks.values() if b.prior is None for part in tree_parts(b.eta)]
        self._idle = not self.ranks.alone and bool(own) and not any(part.numel() for part in own)  # without data
        self.linear = linear
        if check:
            not_linear = {name for factor in self.factors for name in check_factor(factor, self._blocks, restarts)}
            self.linear: frozenset[str] = frozenset(self._blocks) - not_linear

    def put(self, block: Block, near: Stats = None) -> None:
        """Replace the block of this name, to set its eta, prior, step or family.

        `near` are statistics at which an iterative family starts.
        """
        named = by_name([block], self.restarts)
        if not set(named) <= set(self._blocks):
            raise ValueError(f"block: got {block.name!r}, expected one of {list(self._blocks)}; it has no factors.")
        self._blocks.update(named)
        self._optimal = frozenset()
        self._outdate(block.name)
        if near is not None:
            self._moments[block.name] = replace(block, eta=None), None, near

    def knows(self, name: str) -> bool:
        """Whether the statistics of a block are known without an evaluation."""
        return not self._waiting and self._is_known(name, self._blocks[name])

    def stats(self, name: str) -> Stats:
        """The current expected statistics of a block."""
        self._settle()
        return self._evaluate(name)[1]

    def normalizer(self, name: str) -> Tensor:
        """A(eta) of a block: one number, or one for each restart."""
        block = self._blocks[name]
        latent = block.prior is None
        return self._total(self._evaluate(name)[0] if latent else block.family.log_normalizer(block.eta))

    def message(self, name: str, under: Mapping[str, Stats] | None = None) -> Stats:
        """The sum of all messages to a block, each times the scale of its factor.

        `under` are statistics of other blocks that replace the current ones.
        """
        return self._sum_of_messages(None, name, under or {}, 1.0)

    @torch.no_grad()
    def update(self, name: str, under: Mapping[str, Stats] | None = None, repeated: int = 0) -> None:
        """Move one block by its step towards its optimum, given the others (or `under` instead of their statistics).

        A message from a bound holds at the block's own statistics alone, so an update is short of the optimum;
        `repeated` more of them come before the step.
        """
        if self._is_shared(name) or self.ranks.alone:
            self._update(name, under, repeated)
        else:
            self._outdate(name)
            self._waiting.append((name, under, repeated))

    def _update(self, name: str, under: Mapping[str, Stats] | None, repeated: int) -> None:
        block, under_now = self._blocks[name], under or {}
        curved = any(name in factor.curved for factor in self._factors[name])
        eta = block.eta
        for i in range(1 + (repeated if self._is_bounded(name) else 0)):
            if i:
                under_now = {**under_now, name: block.family.mean(eta)}
            ahead = self._sum_of_messages(block.prior, name, under_now, block.scale)
            eta = self._raised(replace(block, eta=eta), ahead, under_now) if curved else ahead
        if block.step != 1:
            eta = tree_map(lambda new, old: torch.lerp(old, new, block.step), eta, block.eta)
        self._blocks[name] = replace(block, eta=eta)
        self._outdate(name)
        optimal = block.step == 1 and block.prior is None and name in self.linear and not under
        joined = {other for factor in self._factors[name] for other in factor.blocks}
        self._optimal, self._stale = (self._optimal - joined) | ({name} if optimal else set()), bool(under)

    def _is_shared(self, name: str) -> bool:
        """Whether a block is the same in all of several processes."""
        return not self.ranks.alone and self._blocks[name].prior is not None

    def _outdate(self, name: str) -> None:
        """Forget the messages that depend on a block."""
        self._ready = {n: m for n, m in self._ready.items() if n != name} if self._is_shared(name) else {}

    def _settle(self) -> None:
        """Make the updates that wait for a sum over processes."""
        waiting, self._waiting = self._waiting, []
        for one in [] if self._idle else waiting:
            self._update(*one)

    def _summed(self, compute: Callable[[], list[Tensor]], zeros: list[Tensor]) -> list[Tensor]:
        """The sums over processes of what each computes after its updates, in the shapes of `zeros`."""

        def settled() -> list[Tensor]:
            self._settle()
            return compute()

        return self.ranks.summed(settled, zeros)

    def _is_bounded(self, name: str) -> bool:
        """Whether a message to a block holds at its own statistics alone."""
        return any(
            name in factor.curved or (name in factor.convex and name not in factor.messages)
            for factor in self._factors[name]
        )

    def _raised(self, block: Block, ahead: Stats, under: Mapping[str, Stats]) -> Stats:
        """The way of a block to natural parameters `ahead`, halved in each restart until the bound does not fall."""
        others = {name: stats for name, stats in under.items() if name != block.name}
        before, rounding = self._height(block, others)
        eta, risen = ahead, torch.ones_like(before, dtype=torch.bool)
        for _ in range(HALVINGS):
            risen = self._height(replace(block, eta=eta), others)[0] >= before - rounding  # False for NaN
            if bool(risen.all()):
                return eta
            eta = tree_map(partial(_halved, risen), eta, block.eta)
        return tree_map(lambda new, old: torch.where(per_restart(risen, new), new, old), eta, block.eta)

    def _height(self, block: Block, under: Mapping[str, Stats]) -> tuple[Tensor, Tensor]:
        """The parts of the bound that depend on a block, and their rounding error; -inf where one is not finite."""
        if block.prior is None:
            normalizer, mean = block.family.evaluate(block.eta)
            own = normalizer - block.family.dot(block.eta, mean)
        else:
            divergence, mean = block.family.relative(block.eta, block.prior)
            own = -divergence
        alone = block.scale * self._total(own)

        def of_factors() -> list[Tensor]:
            parts = []
            for factor in [] if self._idle else self._factors[block.name]:
                stats = [mean if n == block.name else under[n] if n in under else self.stats(n) for n in factor.blocks]
                parts.append(factor.scale * self._total(factor.value(*stats)))
            return parts

        if self._is_shared(block.name):
            zero = torch.zeros_like(alone)
            terms = torch.stack([alone, *self._summed(lambda: [sum(of_factors(), zero)], [zero])])
        else:
            terms = torch.stack([alone, *of_factors()])
        total = terms.sum(0)
        total = torch.where(total.isfinite(), total, -torch.inf)
        return total, ROUNDINGS * torch.finfo(self._dtype).eps * terms.abs().sum(0)

    def step(self) -> None:
        """Update every block once."""
        for name in self._blocks:
            self.update(name)

    def sweep(self) -> Sweep:
        """Update every block once, and compute the ELBO after each.

        Raises:
            ValueError: in float64, a full step lowered the ELBO by more than 1e-10 of the size of its terms, and more
                than rounding explains; names the block.
        """
        elbo, change, terms = {}, {}, self._terms()
        for name, block in list(self._blocks.items()):
            before, old = terms, self.stats(name)
            self.update(name)
            terms, pairs = self._terms(), zip(tree_parts(old), tree_parts(self.stats(name)), strict=True)
            moves = [float((b - a).abs().max()) for a, b in pairs if b.numel()]  # paths of one step have no pairs
            elbo[name], change[name] = terms.sum(0), max(moves)
            if block.step == 1 and bool(self._fell(before, terms, self._rounding(block, old))):
                raise LostError(
                    f"block {name!r}: its update lowered the ELBO from {before.sum(0).tolist()} to "
                    f"{elbo[name].tolist()}; check that each factor uses all its arguments, and nothing that changes."
                )
        return Sweep(elbo, change)

    def run(self, max_steps: int = 200, tol: float = 1e-8, record: bool = False) -> Run:
        """Sweep until no ELBO changes by more than `tol` of itself, or `max_steps` times.

        With `record`, the ELBO is computed after each block. Without, it is computed once per sweep, and a sweep of
        full steps that lowered it is repeated block by block, unless processes share the data. Ctrl-C ends a run after
        its last whole sweep; before the first sweep it is raised.

        Raises:
            ValueError: as `sweep`.
        """
        trace: list[Tensor] = []
        sweeps: list[Sweep] = []
        terms, converged, start = None, False, self._now()
        try:
            while len(trace) < max_steps and not converged:
                start = self._now()
                with deferred() as checks:
                    last = terms if trace or self._stale or not self.ranks.alone else self._terms()
                    if record:
                        sweeps.append(self.sweep())
                    else:
                        self.step()
                    terms = self._terms()
                    elbo, full_step = terms.sum(0), all(block.step == 1 for block in start[0].values())
                    before = trace[-1] if trace else torch.full_like(elbo, torch.nan)
                    settled = ((elbo - before).abs() <= tol * elbo.abs()).all()
                    fell, converged = map(
                        bool, checks.settle(self._fell(terms if last is None else last, terms), settled)
                    )
                if full_step and fell and self.ranks.alone:
                    self._restore(*start)
                    self.sweep()
                trace.append(elbo)
        except KeyboardInterrupt:
            self._restore(*start)
            if not trace:
                raise  # there is no result yet
            return Run(torch.stack(trace), len(trace), False, tuple(sweeps[: len(trace)]), interrupted=True)
        return Run(torch.stack(trace), len(trace), converged, tuple(sweeps))

    def select(self, restarts: Tensor) -> "VMP":
        """The same engine with some of the restarts, given by their indices; priors and factors are common to all."""

        def some(tables: Stats) -> Stats:
            return tree_map(lambda part: part[restarts], tables)

        kept = [replace(block, eta=some(block.eta)) for block in self._blocks.values()]
        selected = VMP(kept, self.factors, len(restarts), check=False, linear=self.linear, ranks=self.ranks)
        for block in kept:  # what is known of them stays known
            if self._is_known(block.name, self._blocks[block.name]):
                divergence, mean = self._moments[block.name][1:]
                selected._moments[block.name] = block, None if divergence is None else divergence[restarts], some(mean)
        selected._optimal, selected._stale = self._optimal, self._stale
        return selected

    def state(self, kept: Collection[str]) -> dict[str, Any]:
        """Natural parameters of the blocks `kept`, and what else an engine needs to go on with the same bits, if the
        other blocks follow from these: names of blocks, and statistics where they do not follow from a block. If
        processes share the data, it has what all of them know."""
        blocks = {n: block for n, block in self._blocks.items() if self._is_shared(n) or self.ranks.alone}
        known = [name for name, block in blocks.items() if self._is_known(name, block)]
        iterative = [name for name in known if self._blocks[name].family.iterates]
        return {
            "etas": {name: self._blocks[name].eta for name in kept},
            "linear": sorted(self.linear),
            "optimal": sorted(self._optimal & set(blocks)),
            "known": known,
            "moments": {name: list(self._moments[name][1:]) for name in iterative},
        }

    def set(self, state: Mapping[str, Any]) -> None:
        """Know the same as an engine with the same blocks, which had this state."""
        self._moments = {name: self._moments[name] for name in self._moments if name in state["known"]}
        for name, (divergence, mean) in state["moments"].items():
            self._moments[name] = self._blocks[name], divergence, mean
        for name in state["known"]:
            self._evaluate(name)
        self._optimal, self._stale = frozenset(state["optimal"]), False

    def with_factors(self, factors: Iterable[Factor]) -> "VMP":
        """The same blocks, whose statistics stay known, with other factors of the same structure."""
        other = VMP(self._blocks.values(), factors, self.restarts, check=False, linear=self.linear, ranks=self.ranks)
        other._moments = dict(self._moments)
        return other

    def elbo(self, without: str | None = None) -> Tensor:
        """The evidence lower bound: one number, or one for each restart; `without` omits a block's own part of it."""
        return self._terms(without).sum(0)

    @torch.no_grad()
    def bounds(self, n_axes: int) -> Tensor:
        """The bound of each index of the first `n_axes` axes, such as those of restarts and sequences.

        All blocks with a prior must be known; their own parts of the bound are left out.
        """
        values = [factor.scale * factor.value(*map(self.stats, factor.blocks)) for factor in self.factors]
        for name, block in self._blocks.items():
            if block.prior is None:
                log_normalizer, mean = self._evaluate(name)
                values.append(log_normalizer - block.family.dot(block.eta, mean))
        return torch.stack([value.flatten(n_axes).sum(-1) if value.ndim > n_axes else value for value in values]).sum(0)

    @torch.no_grad()
    def log_joint(self, statistics: Mapping[str, Stats]) -> Tensor:
        """Log density of data and a point, which is given by the statistics t of each block."""
        terms = [f.scale * self._total(f.value(*(statistics[name] for name in f.blocks))) for f in self.factors]
        for name, block in self._blocks.items():
            log_prob = block.family.log_base(statistics[name])
            if block.prior is not None:
                log_prob = log_prob + block.family.dot(block.prior, statistics[name])
                log_prob = log_prob - block.family.log_normalizer(block.prior)
            terms.append(block.scale * self._total(log_prob))
        return torch.stack(terms).sum(0)

    @torch.no_grad()
    def _sum_of_messages(self, prior: Stats, name: str, under: Mapping[str, Stats], scale: float) -> Stats:
        """The prior plus all messages divided by the block's scale, in the full shape of its eta."""
        if not self._is_shared(name):
            return self._own_messages(prior, name, under, scale)
        total = None if under else self._ready.get(name)
        if total is None:
            zero = torch.zeros_like(self._blocks[name].eta)
            (total,) = self._summed(lambda: [self._own_messages(None, name, under, 1.0)], [zero])
        total = total if scale == 1 else total / scale
        return total if prior is None else prior + total

    def _own_messages(self, prior: Stats, name: str, under: Mapping[str, Stats], scale: float) -> Stats:
        """`_sum_of_messages` of the factors of this process."""
        block = self._blocks[name]
        if self._idle:
            return torch.zeros_like(block.eta)
        messages = []
        for factor in self._factors[name]:
            # If elog is affine, a message does not depend on the statistics of its own block, only on their shape: pass
            # eta.
            stats = []
            for other in factor.blocks:
                if other == name and factor.is_affine(name):
                    stats.append(block.eta)
                else:
                    stats.append(under[other] if other in under else self.stats(other))
            messages.append((factor.message(name, *stats), factor.scale / scale))
        total = prior
        for message, weight in sorted(messages, key=lambda pair: _size(pair[0])):  # add small tables first
            total = add_message(total, message, weight)
        return fit_message(total, block.eta)

    @torch.no_grad()
    def _terms(self, without: str | None = None) -> Tensor:
        """The parts of the ELBO, [parts, *restarts]; one part if processes share the data."""
        if self.ranks.alone:
            return self._own_terms(self._blocks, without)
        common = [name for name in self._blocks if self._is_shared(name)]
        # a message that depends on no other common block stays as it is until these are updated
        apart = [n for n in common if all({*f.blocks} & {*common} == {n} for f in self._factors[n])]
        own = common if self.ranks.rank == 0 else []  # divergences count once
        own = own if self._idle else [*own, *(name for name in self._blocks if name not in common)]
        zero = self._blocks[common[0]].eta.new_zeros(() if self.restarts is None else self.restarts).double()

        def compute() -> list[Tensor]:
            bound = self._own_terms(own, without).sum(0) if own else zero
            return [bound, *(self._own_messages(None, name, {}, 1.0) for name in apart)]

        zeros = [zero, *(torch.zeros_like(self._blocks[name].eta) for name in apart)]
        bound, *messages = self._summed(compute, zeros)
        self._ready = dict(zip(apart, messages, strict=True))
        return bound.unsqueeze(0)

    def _own_terms(self, names: Collection[str], without: str | None) -> Tensor:
        r"""The parts of the ELBO, [parts, *restarts]: one for each factor and one for each of these blocks.

        At its optimum, a block without a prior has $\eta = \sum_f m_f$. If its factors are linear in its statistics,
        not only affine, their parts and its own sum to $\langle \eta,\mu\rangle + A(\eta) - \langle\eta,\mu\rangle$.
        """
        parts: list[tuple[str, Tensor]] = []
        for factor in [] if self._idle else self.factors:
            if self._optimal.isdisjoint(factor.blocks):
                value = factor.value(*map(self.stats, factor.blocks))
                parts.append((f"factor {factor.name!r}", factor.scale * self._total(value)))
        for name, block in self._blocks.items():
            if name == without or name not in names:
                continue
            divergence, mean = self._evaluate(name)
            if block.prior is not None:
                value = -divergence
            else:
                value = divergence if name in self._optimal else divergence - block.family.dot(block.eta, mean)
            parts.append((f"block {name!r}", block.scale * self._total(value)))
        terms = torch.stack([part for _, part in parts])

        def complain() -> None:
            name, part = next((name, part) for name, part in parts if not part.isfinite().all())
            raise LostError(
                f"{name}: its part of the ELBO is {part.tolist()}, expected finite numbers; look for NaN in the data "
                "(a mask does not hide NaN: replace it), or for statistics out of range."
            )

        refuse_if(~terms.isfinite().all(), complain)
        return terms

    @torch.no_grad()
    def _evaluate(self, name: str) -> tuple[Tensor, Stats]:
        """A block's divergence from its prior (or its normalizer if there is none), and its expected statistics; cached
        while the block is the same."""
        block = self._blocks[name]
        known = self._moments.get(name)
        if known is not None and self._is_known(name, block):
            divergence, mean = known[1:]
        else:
            with add_context(lambda: check_proper(block), RuntimeError):  # a Cholesky factor that does not exist
                if block.prior is None:
                    divergence, mean = block.family.evaluate(block.eta, None if known is None else known[2])
                else:
                    divergence, mean = block.family.relative(block.eta, block.prior)
            self._moments[name] = block, divergence, mean
        assert divergence is not None  # it depends only on statistics, not on a block's eta
        return divergence, mean

    def _is_known(self, name: str, block: Block) -> bool:
        """Whether the statistics in the cache are those of this block."""
        known = self._moments.get(name)
        return known is not None and all(getattr(known[0], part) is getattr(block, part) for part in _DENSITY)

    def _rounding(self, before: Block, old: Stats) -> Tensor:
        r"""The rounding error of the ELBO: $\epsilon \sum_b \sum_i |\eta_{bi} \mu_{bi}|$, plus the same for the block
        before.

        Every part is a sum of such products, or a logarithm whose argument is as sensitive: of a matrix with condition
        number c, the entries times those of its inverse add up to c.
        """
        sizes = [self._products(block, self.stats(name)) for name, block in self._blocks.items()]
        total = torch.stack([*sizes, self._products(before, old)]).sum(0)
        return ROUNDINGS * torch.finfo(self._dtype).eps * total

    def _products(self, block: Block, stats: Stats) -> Tensor:
        pairs = zip(tree_parts(block.eta), tree_parts(stats), strict=True)
        parts = [self._total((eta * mean).abs().nan_to_num(0.0)) for eta, mean in pairs]  # 0 times infinity counts as 0
        return block.scale * torch.stack(parts).sum(0)

    def _now(self) -> tuple[dict[str, Block], dict[str, Known], frozenset[str], bool]:
        """The blocks, and what is known of them."""
        return dict(self._blocks), dict(self._moments), self._optimal, self._stale

    def _restore(self, blocks: dict[str, Block], known: dict[str, Known], optimal: frozenset[str], stale: bool) -> None:
        self._blocks.update(blocks)
        self._moments |= known
        self._optimal, self._stale, self._waiting, self._ready = optimal, stale, [], {}

    def _fell(self, before: Tensor, after: Tensor, rounding: Tensor | float = 0.0) -> Tensor:
        """Whether the ELBO, the sum of these terms, fell by more than rounding explains; float32 cannot show this."""
        size = torch.maximum(before.abs().sum(0), after.abs().sum(0))
        size = 1e-10 * size if self._dtype == torch.float64 else torch.inf
        return (after.sum(0) < before.sum(0) - size - rounding).any()

    def _total(self, plates: Tensor) -> Tensor:
        """Sum over plates, but not over restarts, in float64."""
        plates = plates.double()
        return plates.sum() if self.restarts is None else plates.reshape(self.restarts, -1).sum(-1)


def per_restart(of_restarts: Tensor, like: Tensor) -> Tensor:
    """A number of each restart, with as many axes as a table of all of them."""
    return of_restarts.reshape(*of_restarts.shape, *[1] * (like.ndim - of_restarts.ndim))


def _halved(kept: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(per_restart(kept, new), new, torch.lerp(old, new, 0.5))


def _size(message: Stats) -> int:
    return (
        message.numel() if isinstance(message, Tensor) else sum(0 if part is None else part.numel() for part in message)
    )
