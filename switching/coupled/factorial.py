r"""`FactorialSSM`: D copy chains that jointly drive one observation (Ghahramani & Jordan 1997, with copy chains).

$$z_{dt} \sim \text{Bernoulli}(\rho_d), \quad s_{dt} = s_{d,t-1} \text{ if } z_{dt} = 0, \quad
s_{dt} \sim \text{Categorical}(\pi_d) \text{ if } z_{dt} = 1, \qquad \eta_t = \textstyle\sum_d M_d[s_{dt}]$$

It is the generative model of a minGRU with D hidden units: each unit is the belief of one chain, and what they say of
the input they say together. The first step redraws all chains. Two emissions, whose log-likelihood is exactly
multilinear in the chains' one-hot states, so that the bound below needs no further bound:

    precision given   x_t ~ N(eta_t, precision^-1), a full or a diagonal matrix
    no precision      x_tf ~ Poisson(exp eta_tf), log-linear: exp eta is a product over chains

A softmax or a logistic of $\eta_t$ is not: its normalizer joins all chains in the logarithm of a sum. It is left out.

**Structured message passing.** $q = \prod_d q_d(z_d, s_d)$, each an exact chain. With $m_{dt} = E_q[s_{dt}]$

$$E \log N = -\tfrac12 \Big( x^\top P x - 2 x^\top P \textstyle\sum_d M_d^\top m_d
+ \sum_d m_d \cdot \text{diag}(M_d P M_d^\top)
+ 2 \sum_{d < e} (M_d^\top m_d)^\top P\, M_e^\top m_e \Big) + \text{const}$$
$$E \log \text{Poisson} = \textstyle\sum_f x_f \sum_d (M_d^\top m_d)_f - \prod_d (e^{M_d \top} m_d)_f - \log x_f!$$

are what couples the chains; the message to one is the gradient with respect to its m. The exact posterior is that of
one chain over $\prod_d K_d$ states.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ...inference.chains.markov.chain import MarkovChain
from ...inference.families import CopyPaths, CopyTables
from ...inference.message_passing.engine import VMP, Block, Factor
from ..data.series import Sequences, read_sequences
from .contract import CoupledChains, CoupledDraw, draw_chain, draw_model, paths_of, prior_tables
from .factorial_fit import fit_chains
from .fit import CoupledFit, check_whole_steps
from .noise import TINY, CountNoise, NormalNoise, fit_counts, fit_normal


@dataclass(frozen=True, eq=False)
class FactorialSSM(CoupledChains):
    """D copy chains that jointly drive one observation.

    Arguments:
        redraw_prob: [D], each chain's redraw probability.
        state_probs: for each chain the fresh state's probabilities [K_d].
        loc: for each chain what its states add to eta, [K_d, F].
        precision: [F, F], inverse covariance of the noise; None: counts, Poisson with log rate eta.

    Methods take x as `SwitchingSSM` does. NaN is missing; with a full precision single features are marginalised.

    Raises:
        ValueError: shapes that do not fit, probabilities that are none, a precision that is not positive definite.
    """

    redraw_prob: Tensor
    state_probs: Sequence[Tensor]
    loc: Sequence[Tensor]
    precision: Tensor | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def n_chains(self) -> int:
        return len(self.loc)

    @property
    def n_states(self) -> tuple[int, ...]:
        return tuple(len(probs) for probs in self.state_probs)

    @property
    def n_features(self) -> int:
        return self.loc[0].shape[-1]

    # ---- the generative program --------------------------------------------------------------------------------------

    def program(self, x: Tensor | None = None, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """Pyro sites `z_t_d`, `s_t_d` (t, d from 1) for each chain and `x_t`; conditioned on complete x where given."""
        if x is not None:
            n_steps, batch_shape = x.shape[-2], tuple(x.shape[:-2])
        assert n_steps is not None
        plates = [pyro.plate(f"sequences_{i}", n, dim=i - len(batch_shape)) for i, n in enumerate(batch_shape)]
        states: list[Tensor] = []
        seen = []
        for t in pyro.markov(range(1, n_steps + 1)):
            with ExitStack() as scope:
                for plate in plates:
                    scope.enter_context(plate)
                states = [
                    draw_chain(t, d, self.redraw_prob[d], self.state_probs[d], states[d] if states else None)[1]
                    for d in range(self.n_chains)
                ]
                eta = torch.stack(torch.broadcast_tensors(*(m[s] for m, s in zip(self.loc, states, strict=True)))).sum(
                    0
                )
                seen.append(pyro.sample(f"x_{t}", self._emission(eta), obs=None if x is None else x[..., t - 1, :]))
        return torch.stack(seen, -2)

    def simulate(self, n_steps: int, batch_shape: tuple[int, ...] = (), seed: int | None = None) -> CoupledDraw:
        """A draw of states, gates and observations; a seed makes it repeatable and leaves global state alone."""
        return CoupledDraw(*draw_model(self.program, self.n_chains, n_steps, batch_shape, seed))

    def _emission(self, eta: Tensor) -> Any:
        if self.precision is None:
            return dist.Poisson(eta.exp()).to_event(1)
        return dist.MultivariateNormal(eta, precision_matrix=self.precision)

    # ---- exact inference ---------------------------------------------------------------------------------------------

    def product_chain(self, x: Any, lengths: Any = None) -> MarkovChain:
        """The chain over all joint states, the last chain's state changing fastest: O(prod K_d^2) a step."""
        series = self._read(x, lengths)
        initial, transition = self.redraw_prob.new_ones(1), self.redraw_prob.new_ones(1, 1)
        eta = self.loc[0].new_zeros(1, self.n_features)
        for rho, probs, loc in zip(self.redraw_prob, self.state_probs, self.loc, strict=True):
            stay = torch.eye(len(probs)).to(probs)
            initial = torch.kron(initial, probs)
            transition = torch.kron(transition, (1 - rho) * stay + rho * probs)
            eta = (eta.unsqueeze(1) + loc).flatten(0, 1)
        return MarkovChain(initial.log(), transition.log(), self._emitted(series).table(eta), series.lengths)

    def _marginals(self, joint: Tensor) -> tuple[Tensor, ...]:
        split = joint.unflatten(-1, self.n_states)
        axes = range(-self.n_chains, 0)
        return tuple(split.sum([a for a in axes if a != d]) if self.n_chains > 1 else split for d in axes)

    # ---- message passing ---------------------------------------------------------------------------------------------

    def engine(self, x: Any, lengths: Any = None, check: bool = True) -> VMP:
        """The model on the engine: a block `chain_d` (d from 1) of exact paths for each chain, and one factor."""
        series = self._read(x, lengths)
        blocks = []
        for d, base in enumerate(self._bases(series)):
            zero = series.values.new_zeros(*series.values.shape[:-1], self.n_states[d])
            blocks.append(Block(f"chain_{d + 1}", CopyPaths(series.lengths, base), eta=CopyTables(zero, zero)))
        emitted = self._emitted(series)

        def emission(*stats: CopyTables) -> Tensor:
            return emitted.expected(self.loc, [used.fresh + used.held for used in stats])

        factor = Factor(emission, tuple(block.name for block in blocks), mask=series.inside.to(series.values))
        return VMP(blocks, [factor], check=check)

    def fit(
        self,
        x: Any,
        method: str = "vmp",
        restarts: int = 8,
        max_steps: int = 500,
        tol: float = 1e-6,
        seed: int = 0,
        lengths: Any = None,
        progress: bool = True,
    ) -> CoupledFit:
        """Learn all parameters.

        Arguments:
            method: "vmp", message passing: q(parameters) q(paths) under flat priors, that of the observations scaled to
                x, restarts as one batch; the model gives the numbers of states and chains, and whether x are counts.
                "em", maximum likelihood by variational EM from this model's values: one start. A step updates q of
                every chain and then all parameters, those of the chains from expected counts, `loc` and `precision` by
                least squares on expected states (counts: chain after chain). The bound rises with every step.
            restarts, max_steps, tol, seed, progress: as `SwitchingSSM.fit`.

        Raises:
            ValueError: x of real numbers misses single features of a step; whole missing steps are no matter.
        """
        series = self._read(x, lengths)
        if method == "vmp":
            return fit_chains(self, series, restarts, max_steps, tol, seed, progress)
        if method != "em":
            raise ValueError(f'method: got {method!r}, expected "vmp" or "em".')
        check_whole_steps(series.values)
        model, trace, converged = self, [], False
        engine = model.engine(series)
        while len(trace) < max_steps and not converged:
            engine.step()
            trace.append(engine.elbo())
            converged = len(trace) > 1 and bool((trace[-1] - trace[-2]).abs() <= tol * trace[-1].abs())
            if not converged and len(trace) < max_steps:
                model, engine = model._maximized(series, engine)
        elbo = torch.stack(trace)
        paths = paths_of([engine.stats(name) for name in engine.blocks], elbo, converged)
        return CoupledFit(model, "em", elbo, converged, len(elbo), elbo[-1:], paths)

    def _maximized(self, series: Sequences, engine: VMP) -> tuple["FactorialSSM", VMP]:
        """The parameters that are best under q, and an engine with the same q."""
        used = [engine.stats(name) for name in engine.blocks]
        first = [stats.fresh.flatten(0, -2).sum(0) for stats in used]
        drawn = torch.stack([stats.fresh[..., 1:, :].sum() for stats in used])
        held = torch.stack([stats.held[..., 1:, :].sum() for stats in used])
        rho = (
            (drawn / (drawn + held).clamp_min(TINY)).clamp(TINY, 1.0)
            if bool((drawn + held > 0).all())
            else self.redraw_prob
        )
        states = [(stats.fresh + stats.held).flatten(0, -2) for stats in used]
        probs = [(n / n.sum()).clamp_min(TINY) for n in first]
        model = replace(self, redraw_prob=rho, state_probs=[p / p.sum() for p in probs])
        rows = series.values.reshape(-1, self.n_features)
        if self.precision is None:
            model = replace(model, loc=fit_counts(rows, states, self.loc))
        else:
            loc, precision = fit_normal(rows, states)
            model = replace(model, loc=loc, precision=precision)
        renewed = model.engine(series, check=False)
        for block, old, new in zip(engine.blocks.values(), self._bases(series), model._bases(series), strict=True):
            shift = [torch.where(a == b, 0.0, a.clamp_min(math.log(TINY)) - b) for a, b in zip(old, new, strict=True)]
            eta = CopyTables(block.eta.fresh + shift[0], block.eta.held + shift[1])
            renewed.blocks[block.name] = replace(renewed.blocks[block.name], eta=eta)
        return model, renewed

    # ---- tables ------------------------------------------------------------------------------------------------------

    def _read(self, x: Any, lengths: Any) -> Sequences:
        series = read_sequences(x, self.n_features, lengths)
        if self.precision is None and not bool(((series.values >= 0) | series.values.isnan()).all()):
            raise ValueError("x: got a negative number, expected counts; a model of real numbers has a precision.")
        return replace(series, values=series.values.to(self.redraw_prob))

    def _bases(self, series: Sequences) -> list[CopyTables]:
        """Each chain's prior as tables that broadcast to its statistics."""
        pairs = zip(self.redraw_prob, self.state_probs, strict=True)
        return [prior_tables(rho, probs.log(), series.values.shape[-2]) for rho, probs in pairs]

    def _emitted(self, series: Sequences) -> CountNoise | NormalNoise:
        return CountNoise.of(series.values) if self.precision is None else NormalNoise.of(series.values, self.precision)


def _check(model: FactorialSSM) -> None:
    redraw, states, loc = model.redraw_prob, model.state_probs, model.loc
    if not len(redraw) == len(states) == len(loc) > 0:
        raise ValueError(
            f"redraw_prob, state_probs, loc: got {len(redraw)}, {len(states)}, {len(loc)} chains; give one entry each."
        )
    if not bool(((redraw >= 0) & (redraw <= 1)).all()):
        raise ValueError(f"redraw_prob: got {redraw.tolist()}, expected probabilities.")
    features = loc[0].shape[-1]
    for d, (probs, table) in enumerate(zip(states, loc, strict=True)):
        if probs.ndim != 1 or not bool((probs >= 0).all()) or abs(float(probs.sum()) - 1) > 1e-5:
            raise ValueError(f"state_probs[{d}]: got {probs.tolist()}, expected K probabilities that sum to 1.")
        if tuple(table.shape) != (len(probs), features):
            raise ValueError(f"loc[{d}]: got shape {list(table.shape)}, expected {[len(probs), features]}.")
    if model.precision is not None:
        shape = tuple(model.precision.shape)
        if shape != (features, features) or int(torch.linalg.cholesky_ex(model.precision).info) != 0:
            raise ValueError(f"precision: got shape {list(shape)}, expected positive definite {[features, features]}.")
