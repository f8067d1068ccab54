r"""Copy dynamics: at each step the state is held, or drawn afresh from one distribution.

$$z_t \sim \text{Bernoulli}(\rho_t), \qquad s_t = s_{t-1} \text{ if } z_t = 0, \qquad
  s_t \sim \text{Categorical}(\pi) \text{ if } z_t = 1, \qquad z_1 = 1$$

The redraw probability is constant with a Beta prior, or moved by covariates, $\text{logit}\,\rho_t = w_0 + w^\top c_t$.
A gap of
$d$ steps holds with probability $(1 - \rho)^d$, so irregular times cost nothing: $\rho_t(d) = 1 - (1 - \rho_t)^d$.

Given the posterior weights $r_t = P(z_t = 1 \mid x)$ and $h_t = P(z_t = 0 \mid x)$, the M-step of $\rho$ maximises
$\sum_t r_t \log \rho_t + h_t \log(1 - \rho_t)$ plus the log prior: in closed form for unit gaps without covariates,
otherwise by Fisher scoring on the logit, whose score and information at a step are

$$d\,\sigma\,(r\,e^{du}/\rho - h), \qquad (r + h)\,(d\,\sigma)^2\,e^{du}/\rho, \qquad u = \log(1 - \sigma).$$
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...inference.chains.contract import Chain, Marginals
from ...inference.chains.copy.chain import CopyChain
from ..emissions.contract import ByGate
from ..parameters import Parameters, Site, concentration
from .contract import Drive, Dynamics, check_n_states, check_probs, draw_state, widened
from .markov import normalised

WEIGHT_SCALE = 2.5  # prior standard deviation of a covariate's weight (Gelman et al. 2008), covariates of unit variance


@dataclass(frozen=True)
class Copy(Dynamics):
    """Hold the state or draw it afresh.

    Parameters `state_probs [K]` and `redraw_prob []`; with covariates `redraw_intercept []` and `redraw_weights [C]`
    instead of the latter.

    Arguments:
        n_states: K.
        redraw_prior: the two concentrations of the Beta prior of the redraw probability (with covariates: of its value
            where they are 0; the weights have normal priors of scale 2.5, so give covariates of about unit variance).
        state_prior: Dirichlet concentration of the fresh state, scalar or [K].
        n_covariates: C, the number of covariates that move the logit of the redraw probability.
    """

    n_states: int
    redraw_prior: Sequence[float] = (1, 1)
    state_prior: float | Sequence = 1.0
    n_covariates: int = 0
    holds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_n_states(self.n_states)
        if self.n_covariates < 0:
            raise ValueError(f"n_covariates: got {self.n_covariates}, expected 0 or more.")
        self.default_prior()

    def check_values(self, values: Parameters) -> Parameters:
        checked = {"state_probs": check_probs(values, "state_probs", (self.n_states,))}
        names = ("redraw_intercept", "redraw_weights") if self.n_covariates else ("redraw_prob",)
        for name in names:
            if name not in values:
                raise ValueError(f"{name}: missing; Copy dynamics with {self.n_covariates} covariates need it.")
            if not bool(torch.isfinite(values[name]).all()):
                raise ValueError(f"{name}: got {values[name].tolist()}, expected finite numbers.")
            checked[name] = values[name]
        if self.n_covariates:
            shape = tuple(values["redraw_weights"].shape)
            if shape[-1:] != (self.n_covariates,):
                raise ValueError(f"redraw_weights: got shape {shape}, expected [{self.n_covariates}].")
        elif not bool(((checked["redraw_prob"] >= 0) & (checked["redraw_prob"] <= 1)).all()):
            raise ValueError(f"redraw_prob: got {checked['redraw_prob'].tolist()}, expected a probability.")
        return checked

    def check_drive(self, drive: Drive, batch_shape: torch.Size, n_steps: int) -> None:
        expected = (*batch_shape, n_steps, self.n_covariates)
        if self.n_covariates and drive.covariates is None:
            raise ValueError(
                f"covariates: missing; Copy was given n_covariates={self.n_covariates}, so pass {list(expected)}."
            )
        if drive.covariates is not None:
            if not self.n_covariates:
                raise ValueError("covariates: got some, but Copy was built without; build it with n_covariates=C.")
            if tuple(drive.covariates.shape) != expected:
                raise ValueError(
                    f"covariates: got shape {tuple(drive.covariates.shape)}, expected {expected}: a row for each step."
                )
            if not bool(torch.isfinite(drive.covariates).all()):
                raise ValueError("covariates: got NaN or infinite values; fill or drop them, they cannot be missing.")
        if drive.dt is not None:
            if tuple(drive.dt.shape) != (*batch_shape, n_steps):
                raise ValueError(
                    f"dt: got shape {tuple(drive.dt.shape)}, expected {expected[:-1]}: the gap before each step."
                )
            if not bool(((drive.dt[..., 1:] >= 0) & torch.isfinite(drive.dt[..., 1:])).all()):
                raise ValueError(
                    "dt: got gaps that are negative or not finite; give the time since the step before, in steps."
                )

    def default_prior(self) -> Parameters:
        redraw = concentration(self.redraw_prior, (2,), "redraw_prior")
        return {
            "redraw_concentration": redraw,
            "state_concentration": concentration(self.state_prior, (self.n_states,), "state_prior"),
        }

    def sites(self, prior: Parameters) -> list[Site]:
        redraw, hold = prior["redraw_concentration"].unbind(-1)
        state = Site("state_probs", lambda v: dist.Dirichlet(prior["state_concentration"]))
        if not self.n_covariates:
            return [Site("redraw_prob", lambda v: dist.Beta(redraw, hold)), state]
        to_logit = torch.distributions.SigmoidTransform().inv
        spread = WEIGHT_SCALE * torch.ones(self.n_covariates, dtype=redraw.dtype, device=redraw.device)
        return [
            Site("redraw_intercept", lambda v: dist.TransformedDistribution(dist.Beta(redraw, hold), [to_logit])),
            Site("redraw_weights", lambda v: dist.Normal(torch.zeros_like(spread), spread).to_event(1)),
            state,
        ]

    def log_gate(self, values: Parameters, drive: Drive, n_batch: int) -> tuple[Tensor, Tensor]:
        """log rho_t and log (1 - rho_t), which broadcast to [*r, *b, T]; the first step is like any other here."""
        if self.n_covariates:
            assert drive.covariates is not None
            weights = widened(values["redraw_weights"], 1, n_batch + 1)
            logit = widened(values["redraw_intercept"], 0, n_batch + 1) + (drive.covariates * weights).sum(-1)
            log_redraw, log_hold = logsigmoid(logit), logsigmoid(-logit)
        else:
            prob = widened(values["redraw_prob"], 0, n_batch + 1)
            log_redraw, log_hold = prob.log(), torch.log1p(-prob)
        if drive.dt is None:
            return log_redraw, log_hold
        log_hold = torch.where(drive.dt > 0, drive.dt * log_hold, 0.0)
        return log1mexp(log_hold), log_hold

    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
        belief: Tensor | None = None,
    ) -> Chain:
        n_batch = likelihood.redrawn.ndim - 2 - (values["state_probs"].ndim - 1)
        log_redraw, log_hold = self.log_gate(values, drive, n_batch)
        log_state = widened(values["state_probs"], 1, n_batch + 1).log()
        fresh = likelihood.redrawn + (log_redraw.unsqueeze(-1) + log_state)
        held = likelihood.held + log_hold.unsqueeze(-1)
        if belief is not None:
            return CopyChain(belief.log(), fresh, held, lengths)
        fresh[..., 0, :] = likelihood.redrawn[..., 0, :] + log_state[..., 0, :]  # the first step redraws, whatever rho
        return CopyChain(None, fresh, held, lengths)

    def maximize(self, marginals: Marginals, prior: Parameters | None, values: Parameters, drive: Drive) -> Parameters:
        assert marginals.held is not None
        n_restarts = values["state_probs"].ndim - 1
        fresh = marginals.fresh.sum(tuple(range(n_restarts, marginals.fresh.ndim - 1)))
        redrawn = marginals.fresh[..., 1:, :].sum(-1).flatten(n_restarts)
        held = marginals.held[..., 1:, :].sum(-1).flatten(n_restarts)
        if prior is not None:
            fresh = fresh + prior["state_concentration"] - 1
        updated = {"state_probs": normalised(fresh, values["state_probs"])}
        if not self.n_covariates and drive.dt is None:
            counts = torch.stack([redrawn.sum(-1), held.sum(-1)], -1)
            if prior is not None:
                counts = counts + prior["redraw_concentration"] - 1
            old = torch.stack([values["redraw_prob"], 1 - values["redraw_prob"]], -1)
            return updated | {"redraw_prob": normalised(counts, old)[..., 0]}
        return updated | self._score(redrawn, held, prior, values, drive)

    def _score(
        self, redrawn: Tensor, held: Tensor, prior: Parameters | None, values: Parameters, drive: Drive
    ) -> Parameters:
        """The M-step of the redraw probability where it has no closed form."""
        steps = drive.at(slice(1, None))
        gaps = redrawn.new_ones(()) if steps.dt is None else steps.dt.flatten()
        alpha, beta = redrawn.new_zeros(2) if prior is None else prior["redraw_concentration"]
        if not self.n_covariates:
            logit = torch.logit(values["redraw_prob"], eps=1e-12).unsqueeze(-1)
            design = redrawn.new_ones(1, 1)
            if prior is not None:  # the density of rho itself, as its site has it; the intercept's is that of its logit
                alpha, beta = alpha - 1, beta - 1
        else:
            assert steps.covariates is not None
            logit = torch.cat([values["redraw_intercept"].unsqueeze(-1), values["redraw_weights"]], -1)
            covariates = steps.covariates.reshape(-1, self.n_covariates)
            design = torch.cat([torch.ones_like(covariates[:, :1]), covariates], -1)
        shrink = redrawn.new_full((self.n_covariates,), 0.0 if prior is None else WEIGHT_SCALE**-2)
        logit = fisher_scoring(logit, design, gaps, redrawn, held, alpha, beta, shrink)
        if not self.n_covariates:
            return {"redraw_prob": logit[..., 0].sigmoid()}
        return {"redraw_intercept": logit[..., 0], "redraw_weights": logit[..., 1:]}

    def start(self, labels: Tensor, n_batch: int, inside: Tensor) -> Parameters:
        axes = tuple(range(-1 - n_batch, 0))
        one_hot = torch.nn.functional.one_hot(labels, self.n_states).double() * inside.unsqueeze(-1)
        counts = one_hot.flatten(-2 - n_batch, -2).sum(-2) + 1
        probs = counts / counts.sum(-1, keepdim=True)
        pairs = inside[..., 1:].double()
        changed = ((labels[..., 1:] != labels[..., :-1]) * pairs).sum(axes) / pairs.sum().clamp(min=1)
        # a redraw changes the state with probability 1 - sum pi^2
        redraw = (changed / (1 - (probs**2).sum(-1)).clamp(min=0.1)).clamp(0.02, 0.9)
        if not self.n_covariates:
            return {"redraw_prob": redraw, "state_probs": probs}
        weights = redraw.new_zeros(*redraw.shape, self.n_covariates)
        return {"redraw_intercept": torch.logit(redraw), "redraw_weights": weights, "state_probs": probs}

    def propagate(self, values: Parameters, belief: Tensor, drive: Drive, horizon: int) -> ByGate:
        n_batch = belief.ndim - 1 - (values["state_probs"].ndim - 1)
        log_redraw, log_hold = self.log_gate(values, drive, n_batch)
        steps = torch.broadcast_shapes(log_hold.shape, (horizon,))
        kept = log_hold.expand(steps).cumsum(-1).exp().unsqueeze(-1)  # P(no redraw up to h)
        fresh = widened(values["state_probs"], 1, n_batch + 1)
        state = kept * belief.unsqueeze(-2) + (1 - kept) * fresh
        before = torch.cat([belief.unsqueeze(-2).expand(state[..., :1, :].shape), state[..., :-1, :]], -2)
        redrawn = log_redraw.exp().unsqueeze(-1) * fresh
        return ByGate(redrawn.expand(before.shape), log_hold.exp().unsqueeze(-1) * before)

    def first(self, values: Parameters) -> Tensor:
        return values["state_probs"]

    def draw(self, values: Parameters, step: int, previous: Tensor | None, drive: Drive) -> tuple[Tensor, Tensor]:
        fresh = values["state_probs"]
        if previous is None:
            state = draw_state(step, fresh)
            return pyro.deterministic(f"z_{step}", torch.ones_like(state, dtype=fresh.dtype)), state
        log_redraw, _ = self.log_gate(values, drive.at(slice(step - 1, step)), 0)
        redraw = pyro.sample(f"z_{step}", dist.Bernoulli(log_redraw.exp()[..., 0]), infer={"enumerate": "parallel"})
        same = torch.nn.functional.one_hot(previous, self.n_states).to(fresh.dtype)
        state = draw_state(step, torch.where(redraw.bool().unsqueeze(-1), fresh, same))
        return redraw, state


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x <= 0 without cancellation (Mächler 2012); its gradient is finite below 0."""
    near = x > -0.6931471805599453
    small, large = torch.where(near, x, -1.0), torch.where(near, -1.0, x)
    return torch.where(near, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))


def fisher_scoring(
    weights: Float[Tensor, "*r P"],
    design: Float[Tensor, "#N P"],
    gaps: Tensor,
    redrawn: Float[Tensor, "*r N"],
    held: Float[Tensor, "*r N"],
    alpha: Tensor,
    beta: Tensor,
    shrink: Float[Tensor, "C"],
    max_steps: int = 50,
) -> Float[Tensor, "*r P"]:
    """Maximise the expected log probability of the gates over the weights of the logit; see the module's equations.

    `alpha log sigma(w_0) + beta log sigma(-w_0)` and `-shrink w^2 / 2` are added; each step is halved until it ascends.
    """

    def objective(w: Tensor) -> Tensor:
        log_hold = gaps * logsigmoid(-(w @ design.mT))
        prior = alpha * logsigmoid(w[..., 0]) + beta * logsigmoid(-w[..., 0]) - 0.5 * (shrink * w[..., 1:] ** 2).sum(-1)
        gates = torch.where(redrawn > 0, redrawn * log1mexp(log_hold), 0.0) + held * log_hold
        return gates.sum(-1) + prior

    value = objective(weights)
    for _ in range(max_steps):
        sigma = torch.sigmoid(weights @ design.mT)
        log_hold = gaps * logsigmoid(-(weights @ design.mT))
        odds = torch.where(log_hold < 0, torch.exp(log_hold) / -torch.expm1(log_hold), 0.0)
        slope = gaps * sigma
        first = sigma[..., :1] if design.shape[0] == 1 else torch.sigmoid(weights[..., :1])
        score = slope * (redrawn * odds - held)
        information = (redrawn + held) * slope**2 * odds
        gradient = (score.unsqueeze(-1) * design).sum(-2)
        curvature = (information.unsqueeze(-1) * design).mT @ design.expand(redrawn.shape[-1], -1)
        gradient[..., 0] += (alpha * (1 - first) - beta * first)[..., 0]
        gradient[..., 1:] -= shrink * weights[..., 1:]
        ridge = torch.cat(
            [((alpha + beta).clamp(min=0) * first * (1 - first)), shrink.expand(*first.shape[:-1], -1)], -1
        )
        curvature = curvature + torch.diag_embed(ridge + 1e-12 * (1 + curvature.diagonal(dim1=-2, dim2=-1)))
        step = torch.linalg.solve(curvature, gradient.unsqueeze(-1)).squeeze(-1).clamp(-5.0, 5.0)
        if bool(((gradient * step).sum(-1) <= 1e-15 * (1 + value.abs())).all()):
            break  # what is left to gain is rounding
        moved = torch.zeros_like(value, dtype=torch.bool)
        for _ in range(30):
            tried = objective(weights + step)
            better = ~moved & (tried > value)
            weights = torch.where(better.unsqueeze(-1), weights + step, weights)
            value = torch.where(better, tried, value)
            moved = moved | better
            if bool(moved.all()):
                break
            step = 0.5 * step
        if not bool(moved.any()):
            break
    return weights
