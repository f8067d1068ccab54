r"""Variational message passing: a message is a gradient.

A joint density $p(x, \theta) = \prod_f f$ is approximated by $q(\theta) = \prod_b q(\theta_b \mid \eta_b)$, every block
of an exponential family, by raising the evidence lower bound

$$L = \sum_f s_f\, E_q[\log f] - \sum_b s_b\, KL(q_b \| p_b).$$

Where $E_q[\log f]$ is affine in the expected statistics $\mu_b$ of each block that f joins, L is greatest in block b at

$$\eta_{0,b} + \sum_f \frac{s_f}{s_b} m_{f \to b}, \qquad m_{f \to b} = \frac{\partial E_q[\log f]}{\partial \mu_b},$$

and to move $\eta_b$ by a fraction `step` of the way there is a step along the natural gradient of L. One line serves

    coordinate ascent   step 1: no update lowers L
    minibatches         scale N / n for the factors and blocks of n data out of N; step < 1 for the shared blocks
    annealing           scale < 1 for the factors: tempered messages
    streaming           the posterior of one batch is the prior of the next
    restarts            one more axis in front of everything, L by restart

A block without a prior (`Family.latent`: discrete variables, paths, normal vectors) gets its density from its factors.
Its term is the entropy $A(\eta) - \langle \eta, \mu \rangle$ in place of the divergence.

A factor is one function of expected statistics, here those of a coin, log p and log(1-p), under four tosses:

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..families import Stats, tree_map, tree_parts
from .factor_graph import Block, Factor, add_message, by_name, check_factor, check_proper, fit_message, neighbors

__all__ = ["VMP", "Block", "Factor", "Run", "Sweep"]


@dataclass(frozen=True)
class Sweep:
    """One update of every block: by name, the ELBO after it, and the largest change of an expected statistic."""

    elbo: dict[str, Tensor]
    change: dict[str, float]


@dataclass(frozen=True)
class Run:
    """The ELBO after each sweep, [steps, *restarts], whether it settled, and the sweeps if these were recorded."""

    elbo: Tensor
    steps: int
    converged: bool
    sweeps: tuple[Sweep, ...] = ()


class VMP:
    """Blocks, the factors that join them, and their updates.

    Arguments:
        blocks: in the order of their updates. Best last is a block without a prior and with large statistics, such as
            paths: just after its update, its part of the bound is its normalizer, which is known.
        factors: each names its blocks.
        restarts: length of the leading axis of every eta and elog, where these hold several independent runs.
        check: whether to test every factor numerically, which costs a few evaluations of it. Leave that out only for
            factors from code that was tested before, as in a loop over minibatches.

    Attributes:
        blocks: by name, as they are now. Blocks are never changed in place, so that `dict(vmp.blocks)` is a checkpoint;
            put another block of the same shape in its place to set its eta, prior or step.

    Raises:
        ValueError: names the block that is missing, double, without a factor or improper; the factor whose elog is not
            affine in the statistics of a block, or whose message does not fit a block or is not the gradient.
    """

    def __init__(
        self, blocks: Iterable[Block], factors: Iterable[Factor], restarts: int | None = None, check: bool = True
    ):
        self.factors = tuple(factors)
        self.restarts = restarts
        self.blocks = by_name(blocks, restarts)
        self._factors = neighbors(self.blocks, self.factors)
        self._moments: dict[str, tuple[Stats, Tensor | None, Stats]] = {}
        self._tight: tuple[str, dict[str, Block]] | None = None
        self._linear: set[str] = set()
        if check:
            affine = {name for factor in self.factors for name in check_factor(factor, self.blocks, restarts)}
            self._linear = set(self.blocks) - affine

    def stats(self, name: str) -> Stats:
        """Expected statistics of a block, as it is now."""
        return self._evaluate(name)[1]

    @torch.no_grad()
    def update(self, name: str) -> None:
        """Move one block by its step towards its optimum given the others."""
        block = self.blocks[name]
        optimum = block.prior
        for factor in self._factors[name]:
            # A message does not depend on the statistics of the block it goes to: eta stands for them, for its shape.
            stats = [block.eta if other == name else self.stats(other) for other in factor.blocks]
            message = factor.message(name, *stats)
            optimum = add_message(optimum, message, factor.scale / block.scale)
        eta = fit_message(optimum, block.eta)
        if block.step != 1:
            eta = tree_map(lambda new, old: torch.lerp(old, new, block.step), eta, block.eta)
        self.blocks[name] = replace(block, eta=eta)
        if block.step == 1 and block.prior is None and name in self._linear:
            self._tight = name, dict(self.blocks)

    def step(self) -> None:
        """Update every block once."""
        for name in self.blocks:
            self.update(name)

    def sweep(self) -> Sweep:
        """Update every block once, looking at the ELBO after each.

        Raises:
            ValueError: in float64, a full step lowered the ELBO by more than 1e-10 of the size of its terms; names the
                block.
        """
        elbo, change, terms = {}, {}, self._terms()
        for name, block in self.blocks.items():
            before, old = terms, self.stats(name)
            self.update(name)
            terms, pairs = self._terms(), zip(tree_parts(old), tree_parts(self.stats(name)), strict=True)
            elbo[name], change[name] = terms.sum(0), max(float((b - a).abs().max()) for a, b in pairs)
            if block.step == 1 and _fell(before, terms):
                raise ValueError(
                    f"block {name!r}: its update took the ELBO from {before.sum(0).tolist()} to {elbo[name].tolist()}, "
                    "expected a rise; see that the factors use all they are given, and depend on nothing that changes."
                )
        return Sweep(elbo, change)

    def run(self, max_steps: int = 200, tol: float = 1e-8, record: bool = False) -> Run:
        """Sweep until no ELBO changes by more than `tol` of itself, or `max_steps` times.

        With `record`, every sweep is looked at block by block. Without, the ELBO is taken once a sweep, and a sweep of
        full steps that lowered it is repeated block by block.

        Raises:
            ValueError: as `sweep`.
        """
        trace: list[Tensor] = []
        sweeps: list[Sweep] = []
        terms, converged = self._terms(), False
        while len(trace) < max_steps and not converged:
            start, last = dict(self.blocks), terms
            if record:
                sweeps.append(self.sweep())
            else:
                self.step()
            terms = self._terms()
            if all(block.step == 1 for block in start.values()) and _fell(last, terms):
                self.blocks = start
                self.sweep()
            trace.append(terms.sum(0))
            converged = len(trace) > 1 and bool(((trace[-1] - trace[-2]).abs() <= tol * trace[-1].abs()).all())
        return Run(torch.stack(trace), len(trace), converged, tuple(sweeps))

    def select(self, restarts: Tensor) -> "VMP":
        """The same engine with some of the restarts, given by their indices; priors and factors are common to all."""
        kept = (replace(b, eta=tree_map(lambda part: part[restarts], b.eta)) for b in self.blocks.values())
        selected = VMP(kept, self.factors, len(restarts), check=False)
        selected._linear = self._linear
        return selected

    def elbo(self) -> Tensor:
        """The evidence lower bound: a number, or one a restart."""
        return self._terms().sum(0)

    @torch.no_grad()
    def log_joint(self, statistics: Mapping[str, Stats]) -> Tensor:
        """Log density of data and a point, which is given by the statistics t of each block there."""
        terms = [f.scale * self._total(f.value(*(statistics[name] for name in f.blocks))) for f in self.factors]
        for name, block in self.blocks.items():
            log_prob = block.family.log_base(statistics[name])
            if block.prior is not None:
                log_prob = log_prob + block.family.dot(block.prior, statistics[name])
                log_prob = log_prob - block.family.log_normalizer(block.prior)
            terms.append(block.scale * self._total(log_prob))
        return torch.stack(terms).sum(0)

    @torch.no_grad()
    def _terms(self) -> Tensor:
        r"""The parts of the ELBO, [parts, *restarts]: one a factor and one a block.

        At its optimum, a block without a prior has $\eta = \sum_f m_f$. If its factors are linear in its statistics,
        not just affine, their parts and its own sum to $\langle \eta,\mu\rangle + A(\eta) - \langle\eta,\mu\rangle$.
        """
        tight = None
        if self._tight is not None and all(self.blocks[name] is block for name, block in self._tight[1].items()):
            tight = self._tight[0]
        parts: list[tuple[str, Tensor]] = []
        for factor in self.factors:
            if tight not in factor.blocks:
                value = factor.value(*map(self.stats, factor.blocks))
                parts.append((f"factor {factor.name!r}", factor.scale * self._total(value)))
        for name, block in self.blocks.items():
            log_normalizer, mean = self._evaluate(name)
            if log_normalizer is None:
                value = -block.family.kl(block.eta, block.prior)
            else:
                value = log_normalizer if name == tight else log_normalizer - block.family.dot(block.eta, mean)
            parts.append((f"block {name!r}", block.scale * self._total(value)))
        terms = torch.stack([part for _, part in parts])
        if not terms.isfinite().all():
            name, part = next((name, part) for name, part in parts if not part.isfinite().all())
            raise ValueError(
                f"{name}: its part of the ELBO is {part.tolist()}, expected finite numbers; look for NaN in the data "
                "(a mask does not hide it: fill it), or for statistics out of range."
            )
        return terms

    @torch.no_grad()
    def _evaluate(self, name: str) -> tuple[Tensor | None, Stats]:
        """For a block without a prior its normalizer, and the expected statistics; kept as long as its eta."""
        block = self.blocks[name]
        if name not in self._moments or self._moments[name][0] is not block.eta:
            try:
                if block.prior is None:
                    self._moments[name] = block.eta, *block.family.evaluate(block.eta)
                else:
                    self._moments[name] = block.eta, None, block.family.mean(block.eta)
            except RuntimeError:  # a Cholesky factor that does not exist
                check_proper(block)
                raise
        return self._moments[name][1:]

    def _total(self, plates: Tensor) -> Tensor:
        """Sum over plates, but not over restarts."""
        return plates.sum() if self.restarts is None else plates.reshape(self.restarts, -1).sum(-1)


def _fell(before: Tensor, after: Tensor) -> bool:
    """Whether the ELBO, the sum of these terms, went down by more than rounding explains; float32 cannot tell."""
    size = torch.maximum(before.abs().sum(0), after.abs().sum(0))
    return before.dtype == torch.float64 and bool((after.sum(0) < before.sum(0) - 1e-10 * size).any())
