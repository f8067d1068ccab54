r"""Copy dynamics: at each step the state is held, or drawn afresh from one distribution.

$$z_t \sim \text{Bernoulli}(\rho_t), \qquad s_t = s_{t-1} \text{ if } z_t = 0, \qquad
  s_t \sim \text{Categorical}(\pi) \text{ if } z_t = 1, \qquad z_1 = 1$$

The redraw probability is constant with a Beta prior, or depends on inputs, $\text{logit}\,\rho_t = w_0 + w^\top
c_t$. A gap of $d$ steps holds with probability $(1 - \rho)^d$, so irregular times cost nothing: $\rho_t(d) = 1 - (1 -
\rho_t)^d$. For unit gaps without inputs the prior of $\rho$ is conjugate; `gates` handles the other cases.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import SigmoidTransform

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.copy.chain import CopyChain
from ...inference.chains.factored_copy.chain import FactoredCopyChain
from ...inference.families import CopyPaths, CopyTables, FactoredCopyPaths, FactoredTables, Gaussian, VectorFamily
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.checks import broadcast_shapes
from ...inference.numerics.logs import log_complement, log_probability, log_sigmoid
from ...inference.numerics.products import with_ones
from ...inference.numerics.scalars import check_states
from ..data.series import Drive, Series
from ..emissions.contract import ByGate
from ..inputs import COEFFICIENT_SCALE, Inputs, named_or_counted
from ..parameters import Parameter, Parameters, concentration, free_entries, widened
from ..priors import Conjugate, Probabilities, Site
from ..responses import Real, Response
from .any_prior import check_prior, under_user_priors
from .contract import NOTHING, PATHS, Drawn, Dynamics, draw_gate, draw_state
from .factors import by_state, driven_gates, factored_gates, factored_states, fresh_states, gate_counts, gates
from .gates import (
    GateLikelihood,
    fisher_scoring,
    log1mexp,
    log_redraw_in_gap,
    logistic_bounds,
)

WEIGHTS_SCALE = "redraw_weights_scale"


@dataclass(frozen=True)
class RedrawWeights(Conjugate):
    """Intercept and weights of the redraw's logit. Under message passing they are normal; their prior is a factor."""

    n_inputs: int
    family = Gaussian()
    prior_is_factor = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        return {"redraw_intercept": Parameter(()), "redraw_weights": Parameter(("input",))}

    def natural(self, prior: Parameters) -> Tensor:
        """The start of q; the prior is not in the family."""
        like, size = prior["redraw_concentration"], 1 + self.n_inputs
        return self.family.natural(like.new_zeros(size), torch.eye(size).to(like))

    def point(self, values: Parameters) -> Tensor:
        return torch.cat([values["redraw_intercept"][..., None], values["redraw_weights"]], -1)

    def values(self, point: Tensor) -> Parameters:
        return {"redraw_intercept": point[..., 0], "redraw_weights": point[..., 1:]}

    def sites(self, prior: Parameters) -> list[Site]:
        (redraw, hold), scale = prior["redraw_concentration"].unbind(-1), prior[WEIGHTS_SCALE]
        intercept = dist.TransformedDistribution(dist.Beta(redraw, hold), [SigmoidTransform().inv])
        weights = dist.Normal(torch.zeros_like(scale), scale).to_event(1)
        return [Site("redraw_intercept", lambda values: intercept), Site("redraw_weights", lambda values: weights)]

    def given(self, known: Parameters) -> VectorFamily[Any]:
        name, like = next(iter(known.items()))
        plates = like.shape[:-1] if name == "redraw_weights" else like.shape
        nowhere = {
            "redraw_intercept": like.new_full(plates, math.nan),
            "redraw_weights": like.new_full((*plates, self.n_inputs), math.nan),
        }
        return super().given(nowhere | known)

    def prior_factor(self, block: str, prior: Parameters, share: float) -> Factor:
        """The expected log prior. The prior of the intercept is a beta distribution of its sigmoid, bounded as for
        gates."""
        n, scale = self.n_inputs, prior[WEIGHTS_SCALE]
        redraws, holds = prior["redraw_concentration"].unbind(-1)
        normalizer = torch.lgamma(redraws) + torch.lgamma(holds) - torch.lgamma(redraws + holds)
        normalizer = normalizer + (scale.log() + math.log(2 * math.pi) / 2).sum()
        intercept = torch.eye(1, 1 + n).to(normalizer)

        def redraw_prior(statistics: Tensor) -> Tensor:
            u, v = (bound[..., 0] for bound in logistic_bounds(statistics.unsqueeze(-2), intercept))
            squares = statistics[..., 1 + n :].unflatten(-1, (1 + n, 1 + n)).diagonal(dim1=-2, dim2=-1)[..., 1:]
            return redraws * u + holds * v - (squares / scale.square()).sum(-1) / 2 - normalizer

        return Factor(redraw_prior, (block,), scale=share, convex=(block,))


@dataclass(frozen=True, repr=False)
class Copy(Dynamics):
    """Dynamics of a copy chain: at each step the state is held, or drawn afresh.

    Parameters `state_probs [K]` and `redraw_prob []`; with inputs `redraw_intercept []` and `redraw_weights [C]`
    instead of the latter.

    Arguments:
        n_states: K.
        redraw_prior: the two concentrations of the Beta prior of the redraw probability. With inputs, this is the
            probability at the mean inputs of a fit. The weights have normal priors of scale 2.5, for inputs of unit
            variance, to which a fit scales them.
        state_prior: Dirichlet concentration of the fresh state, scalar or [K].
        inputs: the inputs in the logit of the redraw probability: C names, or their number.
        prior: other priors of `redraw_prob` and `state_probs`, distributions of Pyro by name, such as
            {"redraw_prob": dist.Uniform(0.0, 0.1)}. EM, SVI and NUTS accept any, without inputs and gaps; message
            passing accepts a Beta and a Dirichlet. Fits order states by their locations. If the prior of `state_probs`
            is not a Dirichlet, states keep the order of the fit.

    Raises:
        TypeError: a number of states or inputs that is not an integer.
        ValueError: no states, concentrations that are not positive.

    See Also:
        `Markov`, whose rows are free; `Gated`, an emission that knows redraws; docs/background/copy_chain.md, with the
        derivation.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal())
        >>> model = model.with_values(redraw_prob=0.1, state_probs=[0.5, 0.5], loc=[[0.0], [5.0]], scale=[[1.0], [1.0]])
        >>> model.smooth([0.2, -0.1, 5.3, 4.9]).redraw.round(decimals=2)
        tensor([1.0000, 0.0500, 1.0000, 0.0500], dtype=torch.float64)
    """

    n_states: int
    redraw_prior: Sequence[float] = (1, 1)
    state_prior: float | Sequence[Any] = 1.0
    inputs: Inputs | Sequence[str] = 0  # type: ignore[assignment]
    prior: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "redraw_prob": ("redraw_prior",),
        "state_probs": ("state_prior",),
    }
    holds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_states", check_states("n_states", self.n_states, n_axes=1))
        object.__setattr__(self, "inputs", named_or_counted(self.inputs))
        object.__setattr__(self, "prior", dict(self.prior) if isinstance(self.prior, Mapping) else self.prior)
        check_prior(self, "inputs" if self.n_inputs else "")

    @cached_property
    def blocks(self) -> Mapping[str, Conjugate]:  # type: ignore[override]
        redraw = Probabilities("redraw_prob", "redraw_concentration", ())
        blocks = {
            "redraw": RedrawWeights(self.n_inputs) if self.n_inputs else redraw,
            "state": Probabilities("state_probs", "state_concentration", ("state",)),
        }
        return under_user_priors(blocks, self.prior, self.name)

    @property
    def responses(self) -> tuple[Response, ...]:
        if not self.n_inputs:
            return ()
        inputs: Any = {"redraw_weights": self.inputs}
        return (Response("redraw_intercept", Real(), inputs, ("redraw_concentration",)),)

    def default_prior(self, series: Series | None = None) -> Parameters:
        default = {
            "redraw_concentration": concentration(self.redraw_prior, (2,), "redraw_prior"),
            "state_concentration": concentration(self.state_prior, (self.n_states,), "state_prior"),
        }
        if self.n_inputs:
            default[WEIGHTS_SCALE] = concentration(COEFFICIENT_SCALE, (self.n_inputs,), WEIGHTS_SCALE)
        return default | self.hyperparameters(self.prior or {}, default)

    def check_drive(self, drive: Drive, batch_shape: torch.Size, n_steps: int) -> None:
        gaps, expected = drive.gaps, (*batch_shape, n_steps)
        if gaps is not None:
            if tuple(gaps.shape) != expected:
                raise ValueError(f"dt: got shape {tuple(gaps.shape)}, expected {expected}: the gap before each step.")
            if not bool(((gaps[..., 1:] >= 0) & torch.isfinite(gaps[..., 1:])).all()):
                raise ValueError(
                    "dt: got gaps that are negative or not finite; give the time since the step before, in steps."
                )

    def _read(self, drive: Drive) -> Tensor:
        """The inputs of the gate, [*b, T, C]."""
        assert drive.inputs is not None
        return drive.inputs[..., : self.n_inputs]

    # ---- paths -----------------------------------------------------------------------------------------------------

    def log_gate(self, values: Parameters, drive: Drive, n_batch: int) -> tuple[Tensor, Tensor]:
        """log rho_t and log (1 - rho_t), which broadcast to [*r, *b, T]; the first step is treated like the others."""
        if self.n_inputs:
            weights = widened(values["redraw_weights"], 1, n_batch + 1)
            logit = widened(values["redraw_intercept"], 0, n_batch + 1) + (self._read(drive) * weights).sum(-1)
            log_redraw, log_hold = log_sigmoid(logit), log_sigmoid(-logit)
        else:
            prob = widened(values["redraw_prob"], 0, n_batch + 1)
            log_redraw, log_hold = log_probability(prob), log_complement(prob)
        if drive.gaps is None:
            return log_redraw, log_hold
        log_hold = torch.where(drive.gaps > 0, drive.gaps * log_hold, 0.0)
        return log1mexp(log_hold), log_hold

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
    ) -> Chain:
        n_batch = likelihood.redrawn.ndim - 2 - (values["state_probs"].ndim - 1)
        log_redraw, log_hold = self.log_gate(values, drive, n_batch)
        if likelihood.redrawn is likelihood.held:
            log_state = widened(values["state_probs"], 1, n_batch).log()
            return FactoredCopyChain(log_redraw, log_hold, log_state, likelihood.redrawn, lengths)
        log_state = widened(values["state_probs"], 1, n_batch + 1).log()
        fresh = likelihood.redrawn + (log_redraw.unsqueeze(-1) + log_state)
        held = likelihood.held + log_hold.unsqueeze(-1)
        fresh[..., 0, :] = likelihood.redrawn[..., 0, :] + log_state[..., 0, :]  # the first step always redraws
        return CopyChain(None, fresh, held, lengths)

    def log_ahead(self, values: Parameters, belief: Tensor, drive: Drive) -> tuple[Tensor, Tensor]:
        log_redraw, log_hold = self.log_gate(
            values, drive, belief.ndim - 1
        )  # of one step, so their last axis has length 1
        return log_redraw + values["state_probs"].log(), log_hold + belief.log()

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        n_batch = belief.ndim - 1 - (values["state_probs"].ndim - 1)
        log_redraw, log_hold = self.log_gate(values, drive, n_batch)
        steps = broadcast_shapes(log_hold.shape, (horizon,))
        held = log_hold.expand(steps).cumsum(-1).exp().unsqueeze(-1)  # P(no redraw up to h)
        fresh = widened(values["state_probs"], 1, n_batch + 1)
        state = held * belief.unsqueeze(-2) + (1 - held) * fresh
        before = torch.cat([belief.unsqueeze(-2).expand(state[..., :1, :].shape), state[..., :-1, :]], -2)
        redrawn = log_redraw.exp().unsqueeze(-1) * fresh
        return ByGate(redrawn.expand(before.shape), log_hold.exp().unsqueeze(-1) * before)

    def durations(self, values: Parameters, drive: Drive) -> Tensor:
        if drive.inputs is not None and not drive.inputs.numel():
            raise ValueError("inputs: got no step, but durations are averaged over steps; give at least one step.")
        log_redraw, _ = self.log_gate(values, Drive(drive.inputs, None), 0)
        return 1 / (log_redraw.exp().mean() * (1 - values["state_probs"]))

    def first(self, values: Parameters, drive: Drive) -> Tensor:
        return values["state_probs"]

    def draw(self, values: Parameters, step: int, previous: Drawn | None, drive: Drive, n_steps: int) -> Drawn:
        fresh = values["state_probs"]
        if previous is None:
            state = draw_state(f"s_{step}", fresh)
            return Drawn(pyro.deterministic(f"z_{step}", torch.ones_like(state, dtype=fresh.dtype)), state)
        gate = self.log_gate(values, drive.at(slice(step - 1, step)), 0)
        redraw = draw_gate(f"z_{step}", *(log_prob[..., 0] for log_prob in gate))
        same = torch.nn.functional.one_hot(previous.state, self.n_states).to(fresh.dtype)
        state = draw_state(f"s_{step}", torch.where(redraw.bool().unsqueeze(-1), fresh, same))
        return Drawn(redraw, state)

    # ---- fits ------------------------------------------------------------------------------------------------------

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        if marginals.gates is not None and marginals.drawn is not None:
            gates, drawn = by_state(marginals.gates, lead), by_state(marginals.drawn, lead)
            return {"redraw": gates, "state": drawn}
        assert marginals.held is not None
        redraw = gate_counts(marginals.fresh, marginals.held, lead)
        return {"redraw": redraw, "state": by_state(marginals.fresh, lead)}

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters = NOTHING,
    ) -> Parameters:
        if not self.n_inputs and drive.gaps is None:
            return super().maximize(marginals, prior, values, drive, fixed)
        state = self.counts(marginals, self._lead(values))["state"]
        modes = self.maximize_counts({"state": state}, prior, values, fixed)
        return modes | self._scored(marginals, prior, values, drive.at(slice(1, None)), fixed)

    def _scored(
        self, marginals: Marginals, prior: Parameters | None, values: Parameters, drive: Drive, fixed: Parameters
    ) -> Parameters:
        """The M-step of the redraw probability if it has no closed form."""
        lead = self._lead(values)
        if marginals.gates is None:
            assert marginals.held is not None
            gates = [w.sum(-1) for w in (marginals.fresh, marginals.held)]
        else:
            gates = marginals.gates.unbind(-1)
        redrawn, held = (gate[..., 1:].reshape(*lead, -1) for gate in gates)
        alpha, beta = redrawn.new_zeros(2) if prior is None else prior["redraw_concentration"].to(redrawn)
        if self.n_inputs:
            block = self.blocks["redraw"]
            weights = block.point(values)
            free = block.point(
                {n: free.to(values[n]).expand_as(values[n]) for n, free in free_entries(values, fixed).items()}
            )
            design = with_ones(self._read(drive).reshape(-1, self.n_inputs))
        else:
            weights = torch.logit(values["redraw_prob"], eps=1e-12).unsqueeze(-1)
            free = torch.ones_like(weights)
            design = redrawn.new_ones(1, 1)
            if prior is not None:  # the density of rho itself, as its site has it; the intercept's is that of its logit
                alpha, beta = alpha - 1, beta - 1
        gaps = redrawn.new_ones(()) if drive.gaps is None else drive.gaps.flatten()
        no_shrink = redrawn.new_zeros(self.n_inputs)
        shrink = no_shrink if prior is None or not self.n_inputs else prior[WEIGHTS_SCALE] ** -2
        tables = design, gaps, redrawn, held, alpha, beta, shrink, free  # float32 would not show a small rise
        likelihood = GateLikelihood(*(table.double() for table in tables))
        weights = fisher_scoring(likelihood, weights.double()).to(weights)
        if self.n_inputs:
            return self.blocks["redraw"].values(weights)
        return {"redraw_prob": weights[..., 0].sigmoid()}

    def start(self, labels: Tensor, series: Series) -> Parameters:
        inside, n_batch = series.inside, len(series.batch_shape)
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * inside.unsqueeze(-1)
        counts = one_hot.flatten(-2 - n_batch, -2).sum(-2) + 1
        probs = counts / counts.sum(-1, keepdim=True)
        pairs = inside[..., 1:].double()
        changed = (labels[..., 1:] != labels[..., :-1]) * pairs
        changed = changed.flatten(-1 - n_batch).sum(-1) / pairs.sum().clamp(min=1)
        # a redraw changes the state with probability 1 - sum pi^2
        redraw = (changed / (1 - (probs**2).sum(-1)).clamp(min=0.1)).clamp(0.02, 0.9)
        if not self.n_inputs:
            return {"redraw_prob": redraw, "state_probs": probs}
        weights = redraw.new_zeros(*redraw.shape, self.n_inputs)
        return {"redraw_intercept": torch.logit(redraw), "redraw_weights": weights, "state_probs": probs}

    def paths(
        self, series: Series, lead: tuple[int, ...], gated: bool, alike: bool
    ) -> tuple[CopyPaths | FactoredCopyPaths, CopyTables | FactoredTables]:
        shape, zero = (*lead, *series.batch_shape), series.like.new_zeros(())
        gates = 1 if not self.n_inputs and series.dt is None else series.n_steps
        if self._factored(series, gated):
            tables = (gates, 2), (self.n_states,), (series.n_steps, self.n_states)
            return FactoredCopyPaths(series.lengths), FactoredTables(*(zero.expand(*shape, *sizes) for sizes in tables))
        base = None
        if series.at_once:  # no redraw in a gap of 0 steps
            never = torch.where(series.drive.gaps == 0, -torch.inf, 0.0)
            never[..., 0] = 0.0
            base = CopyTables(never.unsqueeze(-1), torch.zeros_like(never).unsqueeze(-1))
        fresh, held = ((series.n_steps, n) for n in (self.n_states, 1 if alike else self.n_states))
        return CopyPaths(series.lengths, base), CopyTables(zero.expand(*shape, *fresh), zero.expand(*shape, *held))

    def _factored(self, series: Series, gated: bool) -> bool:
        """Whether the tables of paths are products without impossible entries."""
        return not gated and not series.at_once

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        n_axes, factored = len(series.batch_shape) + 1, self._factored(series, gated)
        states = factored_states("state", PATHS, n_axes) if factored else fresh_states("state", PATHS, n_axes, counted)
        if not self.n_inputs and series.dt is None:
            return [(factored_gates if factored else gates)("redraw", PATHS, n_axes), states]

        def log_gate(statistics: Tensor) -> tuple[Tensor, Tensor]:
            drive = series.drive.at(slice(1, None))
            wide = widened(statistics, 1, n_axes)
            if not self.n_inputs:
                log_redraw, log_hold = wide.unbind(-1)
            else:
                log_redraw, log_hold = logistic_bounds(wide, with_ones(self._read(drive)))
            if drive.gaps is None:
                return log_redraw, log_hold
            return log_redraw_in_gap(log_redraw, log_hold, drive.gaps), drive.gaps * log_hold

        if factored:
            return [factored_gates("redraw", PATHS, n_axes, log_gate), states]
        return [driven_gates("redraw", PATHS, log_gate), states]
