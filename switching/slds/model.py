r"""`SwitchingLinearSSM`: linear dynamical systems, and a Markov chain that switches between them.

$$z_t \sim A_{z_{t-1}}, \qquad s_t = F_{z_t} s_{t-1} + c_{z_t} + N(0, Q_{z_t}), \qquad
x_t = H_{z_t} s_t + d_{z_t} + N(0, R_{z_t})$$

With a chain for each regime, every chain evolves by itself, $s^{(k)}_t = F_k s^{(k)}_{t-1} + \dots$, and the switch
picks the one that is observed (Ghahramani & Hinton 2000). With one chain the switch chooses the transition of the
state. The state may in turn choose the next regime: see `recurrence` (Linderman et al. 2017). The exact posterior has
$K^T$ parts. Methods:

    filter                 of order n, which keeps the last n - 1 regimes apart: see `gpb`
    smooth                 the best q(states) q(regimes), with a bound on the evidence: see `inference`; or Kim's
                           smoother of order n
    sample_posterior       Gibbs sampling, exact in the limit of many draws: see `gibbs`
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...inference.chains.markov.chain import MarkovChain
from ...inference.numerics.checks import naming
from ...inference.numerics.interrupts import importing
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import (
    check_batch_shape,
    check_choice,
    check_flag,
    check_integer,
    check_kind,
    check_number,
)
from ..base import Model, Probabilities
from ..data.ragged import by_sequence, split
from ..data.reading import read_row
from ..data.series import Given, Series
from ..fitting.options import Options
from ..linear.program import SingularNormal
from ..parameters import Parameter, Parameters
from ..peers import explains_options
from ..program import sequence_plates
from ..seeding import in_turn
from ..user_priors import as_text, is_distribution
from .forecast import SwitchingForecast, look_ahead
from .gibbs import SwitchingSampled, gibbs
from .gpb import SwitchingBelief, SwitchingFiltered, gpb_filter
from .inference import STARTS, SwitchingPaths, infer, infer_apart, kim_paths
from .joint import Regimes, Simulated
from .layout import LinearRegimes
from .problem import SwitchingLinearProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..fit import Fit
    from ..views.panels import Panels

SHARED = ("chain per regime", "one chain")
NOISES = ("diagonal", "full")
THIN = 10  # sweeps of the Gibbs sampler for each draw that is kept


@dataclass(frozen=True, repr=False)
class SwitchingViterbi(Record):
    """A path of regimes; -1 after the end of a sequence."""

    path: Int[Tensor, "*b T"]
    log_probability: Float[Tensor, "*b"]  # log p(path, x), states summed out


@dataclass(frozen=True, repr=False)
class SwitchingStream(Record):
    """The memory of a stream: the belief about the last step, and the log evidence so far."""

    belief: SwitchingBelief | None
    log_evidence: Float[Tensor, "*b"]
    steps: int
    order: int


@dataclass(frozen=True, repr=False)
class SwitchingStreamOutput(Record):
    """The result of one observation of a stream."""

    state: Float[Tensor, "*b K"]  # P(z_t | x_1..t)
    mean: Float[Tensor, "*b L"]
    covariance: Float[Tensor, "*b L L"]
    log_increment: Float[Tensor, "*b"]


class SwitchingLinearSSM(Model):
    """A switching linear state-space model: a regime chooses among linear Gaussian models.

    Arguments:
        n_regimes: K.
        n_latent: L, the length of a state.
        n_features: F, the length of one observation.
        shared: "one chain": the switch chooses its transitions and emissions. "chain per regime": K independent chains;
            the switch chooses which one is observed.
        recurrent: whether the state chooses the next regime, by logistic regressions; only with one chain.
        common_emission: whether all regimes have the same emission; only with one chain.
        observation_noise: "diagonal", a variance for each feature; or "full", a covariance. Steps with some missing
            features are used in both.

    Parameters: `initial_probs` [K] and `transition_probs` [K, K] of the switch, or `recurrence` [K - 1, L] and
    `recurrence_offset` [K, K - 1]; `transition` [K, L, L], to the new state (rows) from the old one,
    `transition_offset` [K, L] and `state_noise` [K, L, L]; `emission` [K, F, L], `emission_offset` [K, F] and
    `observation_noise` [K, F] or [K, F, F], without K for a common emission; `initial_mean` [K, L] and
    `initial_covariance` [K, L, L], without K for one chain. The step from t-1 to t uses the parameters of the regime at
    t. Covariances may be singular, as in companion forms, and a noise of observations may be 0, if the states' noise
    gives the observations a density.

    Methods accept x as `SwitchingSSM` does, with `lengths`.

    `n_parameters`, aic and bic do not count numbers that only choose the basis of a chain's states.

    Raises:
        TypeError: sizes that are not whole numbers, flags that are not booleans.
        ValueError: sizes below 1; recurrent or common_emission with a chain for each regime; unknown choices.

    Ghahramani & Hinton 2000, *Variational learning for switching state-space models*; Kim 1994, *Dynamic linear models
    with Markov-switching*; Linderman et al. 2017, for `recurrent`.

    See Also:
        `SwitchingSSM`, without a latent vector; `LinearSSM`, of one regime; docs/guides/switching_linear.md.

    Example:
        >>> import samplehold as sh, torch
        >>> model = sh.SwitchingLinearSSM(n_regimes=2, n_latent=1, shared="chain per regime")
        >>> one = torch.ones(2, 1, 1)
        >>> model = model.with_values(
        ...     initial_probs=[0.5, 0.5], transition_probs=[[0.95, 0.05], [0.05, 0.95]], initial_mean=[[0.0], [0.0]],
        ...     initial_covariance=one, transition=0.9 * one, transition_offset=[[0.0], [5.0]], state_noise=one,
        ...     emission=one, emission_offset=[[0.0], [0.0]], observation_noise=[[0.1], [0.1]])
        >>> model.smooth([0.1, -0.5, 0.2, 49.0, 50.5, 51.0]).state.argmax(-1)
        tensor([0, 0, 0, 1, 1, 1])
    """

    made_of: ClassVar[tuple[str, ...]] = ("layout",)
    differentiable = False
    layout: LinearRegimes

    def __init__(
        self,
        n_regimes: int,
        n_latent: int,
        n_features: int = 1,
        shared: str = SHARED[1],
        *,
        recurrent: bool = False,
        common_emission: bool = False,
        observation_noise: str = NOISES[0],
    ) -> None:
        one_chain = check_choice("shared", shared, SHARED) == SHARED[1]
        full = check_choice("observation_noise", observation_noise, NOISES) == NOISES[1]
        flags = check_flag("common_emission", common_emission), full, check_flag("recurrent", recurrent)
        super().__init__(layout=LinearRegimes(n_regimes, n_latent, n_features, one_chain, *flags))

    @classmethod
    def _from_specification(cls, parts: dict[str, Any]) -> "SwitchingLinearSSM":
        layout = check_kind("layout", parts["layout"], LinearRegimes, "the sizes of a switching linear model")
        model = cls(
            layout.n_regimes,
            layout.n_latent,
            layout.n_features,
            SHARED[layout.one_chain],
            recurrent=layout.recurrent,
            common_emission=layout.common_emission,
            observation_noise=NOISES[layout.full_noise],
        )
        return model if layout.prior is None else model.with_prior(layout.prior)

    def _made(self) -> str:
        layout, words = self.layout, []
        words += [] if layout.one_chain else [f'"{SHARED[0]}"']
        words += [f"{name}=True" for name in ("recurrent", "common_emission") if getattr(layout, name)]
        words += ['observation_noise="full"'] if layout.full_noise else []
        sizes = f"n_regimes={layout.n_regimes}, n_latent={layout.n_latent}, n_features={layout.n_features}"
        words += [text] if (text := as_text(layout.prior)) else []
        return f"{self.name}({', '.join([sizes, *words])})"

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    def n_states(self) -> int:
        """K, the number of regimes."""
        return self.layout.n_regimes

    @property
    def chain_sizes(self) -> tuple[int, ...]:
        """The number of regimes."""
        return (self.n_states,)

    @property
    def n_latent(self) -> int:
        """L, the length of a state."""
        return self.layout.n_latent

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        return self.layout.n_features

    @property
    def known(self) -> dict[str, Parameter]:
        """The axes and the support of each parameter."""
        return self.layout.known

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        return self.layout.sizes

    @property
    def in_any_basis(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The parameters that accept distributions as priors: no linear change of the states changes them."""
        return list(self.layout.forms)

    def n_free(self, fixed: Iterable[str]) -> int:
        """The number of parameters that the data determine: another basis of a chain's states is the same model."""
        return super().n_free(fixed) - self.layout.n_bases(self._values, fixed)

    def with_prior(self, prior: Mapping[str, Any]) -> "SwitchingLinearSSM":
        """The same model with distributions of Pyro as priors of `initial_probs`, `transition_probs`,
        `recurrence_offset`, `emission_offset` and `observation_noise`, for values in the units of the data. The other
        parameters depend on the basis of the states. Parameters without a distribution keep their default priors.

        "em" accepts any distribution with the right support, and finds the mode, of variances by their own density.
        "vmp" accepts a Dirichlet of rows of probabilities, a Normal of `recurrence_offset`, an InverseGamma of diagonal
        `observation_noise`, and beside a known one a Normal of `emission_offset`.

        Raises:
            TypeError: a distribution of a parameter that depends on the basis of the states.
            ValueError: another name, support or shape.

        >>> import pyro.distributions as dist
        >>> import samplehold as sh
        >>> sh.SwitchingLinearSSM(2, 1).with_prior({"emission_offset": dist.Cauchy(0.0, 1.0)}).layout.user_priors.keys()
        dict_keys(['emission_offset'])
        """
        check_kind("prior", prior, Mapping, "distributions by name")
        distributions = {name: one for name, one in prior.items() if is_distribution(one) and name in self.in_any_basis}
        model = super().with_prior({name: one for name, one in prior.items() if name not in distributions})
        if distributions:
            vars(model).update(layout=replace(self.layout, prior={**(self.layout.prior or {}), **distributions}))
        return model

    def regimes(self, like: Tensor | None = None) -> Regimes:
        """The model in the form of one switching chain, with the states of all chains next to each other.

        Arguments:
            like: a tensor with the dtype and the device of the result.
        """
        return self.layout.regimes(self.values_like(self._like if like is None else like))

    # ---- observations ----------------------------------------------------------------------------------------------

    def problem(self, x: Any, **given: Unpack[Given]) -> SwitchingLinearProblem:
        """The model and the series x, for tables and exports."""
        return SwitchingLinearProblem(self.layout, self.read(x, **given))

    def probabilities(self, chain: Any, values: Parameters) -> Probabilities:
        """Probabilities of regimes, and means and standard deviations of the states of all chains, next to each
        other.
        """
        mean, spread = chain.latents
        axes = ("chain_latent",)
        return {
            "state_probability": (chain.state, ("state",)),
            "latent_mean": (mean, axes),
            "latent_sd": (spread, axes),
        }

    def durations(self, x: Any = None, **given: Unpack[Given]) -> Float[Tensor, "K"]:
        """The expected number of steps from entering each regime to leaving it; NaN if the states choose regimes."""
        values = self.values_like(self._like)
        if self.layout.recurrent:
            return torch.full_like(values["initial_probs"], torch.nan)
        return 1 / (1 - values["transition_probs"].diagonal())

    # ---- inference given the values --------------------------------------------------------------------------------

    @by_sequence()
    def filter(self, x: Any, order: int = 2, **given: Unpack[Given]) -> SwitchingFiltered:
        """The belief after each observation, by GPB(order); states are those of `regimes()`. See `gpb_filter`.

        Arguments:
            order: of the GPB filter.
        """
        series = self.read(x, **given)
        with naming("x"):
            return gpb_filter(self.regimes(series.observations), series.observations, order, series.lengths)

    def log_evidence(self, x: Any, order: int = 2, **given: Unpack[Given]) -> Float[Tensor, "*b"]:
        """log p(x) of each sequence, by GPB(order): exact for one regime or up to `order` steps, otherwise approximate.

        `smooth(x).elbo` is a lower bound.

        Arguments:
            order: of the GPB filter.
        """
        problem = self.problem(x, **given)
        regimes = self.regimes(problem.series.like)

        def evidence(part: SwitchingLinearProblem) -> Tensor:
            return gpb_filter(regimes, part.series.observations, order, part.series.lengths).log_normalizer

        with naming("x"):
            return problem.by_sequence(evidence)

    @by_sequence(each="_smoothed")
    def smooth(
        self,
        x: Any,
        starts: str | Sequence[str] = STARTS[:2],
        max_steps: int = 200,
        tol: float = 1e-9,
        seed: Seed = 0,
        order: int | None = None,
        **given: Unpack[Given],
    ) -> SwitchingPaths:
        """The best q(states) q(regimes) given all observations, and its bound on log p(x), `elbo`.

        If a noise is singular there is no such q. Then states and regimes are those of Kim's smoother, and `elbo` is
        -inf.

        Arguments:
            starts: any of "interpolated", "annealed" and "random", see `inference`; each sequence keeps its best.
            max_steps, tol: the largest number of sweeps, and the relative rise of the bound at which they end.
            seed: of random starts.
            order: of Kim's smoother instead of q, back over the filter GPB(order): exact for fewer than `order` steps.
                None: q, or L + 1 if a noise is singular, or less if that has many histories.
        """
        series = self.read(x, **given)
        options = _options(starts, max_steps, tol, seed)
        with naming("x"), torch.no_grad():
            values = self.values_like(series.like)
            if order is not None:
                return kim_paths(self.layout, values, series, order)
            return infer(self.layout, values, series, **options)

    def _smoothed(
        self, series: Series, starts: Any, max_steps: int, tol: float, seed: Seed, order: int | None
    ) -> list[SwitchingPaths]:
        """`smooth` of each sequence `[N]` alone."""
        options, lengths = _options(starts, max_steps, tol, seed), (series.last + 1).tolist()
        with naming("x"), torch.no_grad():
            values = self.values_like(series.like)
            if order is not None:
                return split(kim_paths(self.layout, values, series, order), lengths)
            paths, ends = infer_apart(self.layout, values, series, **options)
        pairs = zip(split(paths, lengths), ends, strict=True)
        return [replace(one, trace=trace, converged=converged) for one, (trace, converged) in pairs]

    @by_sequence(each="_best_paths")
    def viterbi(self, x: Any, **given: Unpack[Given]) -> SwitchingViterbi:
        """The most probable path of regimes under the q of `smooth`, and its exact log p(path, x).

        The log probability is NaN if the states choose the regimes, because then the states cannot be summed out.
        """
        series = self.read(x, **given)
        return self._along(series, self.smooth(series))

    def _best_paths(self, series: Series) -> list[SwitchingViterbi]:
        """`viterbi` of each sequence `[N]` alone."""
        with naming("x"), torch.no_grad():
            paths, _ = infer_apart(self.layout, self.values_like(series.like), series)
        return split(self._along(series, paths), (series.last + 1).tolist())

    def _along(self, series: Series, smoothed: SwitchingPaths) -> SwitchingViterbi:
        regimes = self.regimes(series.observations)
        path = MarkovChain(*smoothed.switch, series.lengths).viterbi().path
        if self.layout.recurrent:
            return SwitchingViterbi(path, torch.full_like(smoothed.elbo, torch.nan))
        inside = path.clamp_min(0)
        value = regimes.along(series.observations, inside, series.lengths).log_normalizer()
        return SwitchingViterbi(path, value + regimes.log_prob(inside, None, series.lengths))

    @by_sequence(draws=True)
    def sample_posterior(
        self, x: Any, n: int, seed: Seed = None, warmup: int = 200, chains: int = 4, **given: Unpack[Given]
    ) -> SwitchingSampled:
        """n draws of regimes and states given the whole series, by Gibbs sampling: `path [n, *batch, T]`; see `gibbs`.

        These are every tenth sweep of each of the chains, in turns, after `warmup` others. `r_hat` and
        `effective_size` show whether there are enough draws. An interrupt returns fewer.

        Arguments:
            warmup: sweeps before the first draw.
            chains: the number of chains.
        """
        series, n, chains = self.read(x, **given), check_integer("n", n), check_integer("chains", chains)
        with naming("x"):
            drawn = gibbs(
                self.regimes(series.observations),
                series.observations,
                draws=-(-n // chains) * THIN,
                warmup=warmup,
                chains=chains,
                thin=THIN,
                lengths=series.lengths,
                seed=seed,
            )
        return replace(drawn, path=drawn.path[:n], latent=drawn.latent[:n])

    @explains_options
    def simulate(self, n_steps: int, batch_shape: tuple[int, ...] = (), *, seed: Seed = None) -> Simulated:
        """Draws of regimes, states (those of `regimes()`) and observations; equal seeds give equal draws."""
        return self.regimes().simulate(n_steps, batch_shape, seed)

    @explains_options
    def forecast(self, x: Any, horizon: int, order: int = 2, **given: Unpack[Given]) -> SwitchingForecast:
        """Regimes, states and observations at each of the `horizon` steps after the end of x.

        Arguments:
            order: of the GPB filter.
        """
        series = self.read(x, **given)
        horizon = check_integer("horizon", horizon)
        filtering: Any = self.filter
        belief = filtering(series, order, ragged=False).belief
        return replace(look_ahead(self.regimes(series.like), belief, horizon, order), series=series, source=self)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = (), order: int = 2) -> SwitchingStream:
        """The state of a batch of streams before their first observation, for filters GPB(order).

        Arguments:
            batch_shape: the batch axes of the streams; () for a single stream.
            order: of the GPB filter.
        """
        shape, order = check_batch_shape("batch_shape", batch_shape), check_integer("order", order)
        return SwitchingStream(None, self._like.new_zeros(shape), 0, order)

    def update(self, state: SwitchingStream, x_t: Any) -> tuple[SwitchingStream, SwitchingStreamOutput]:
        """Add one observation of each stream: `x_t [*batch, F]` (or `[*batch]` for one feature), NaN where missing.

        The result equals `filter` on the whole series, to rounding.
        """
        check_kind("state", state, SwitchingStream, "the state from start() or update()")
        x_t = read_row(x_t, tuple(state.log_evidence.shape), self.n_features)
        with naming("x_t"):
            filtered = gpb_filter(self.regimes(x_t), x_t.unsqueeze(-2), state.order, belief=state.belief)
        evidence = state.log_evidence.to(x_t.device) + filtered.log_normalizer.double()
        tables = filtered.state[..., 0, :], filtered.mean[..., 0, :], filtered.covariance[..., 0, :, :]
        after = SwitchingStream(filtered.belief, evidence, state.steps + 1, state.order)
        return after, SwitchingStreamOutput(*tables, filtered.log_normalizer)

    # ---- the Pyro program ------------------------------------------------------------------------------------------

    @in_turn()
    def forward(
        self, x: Tensor | None = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()
    ) -> Tensor:
        """The Pyro program: sites `z_t`, `s_t` and `x_t`, t from 1; conditioned on x if it is given. States are those
        of `regimes()`.
        """
        regimes, seen = self.regimes(x), []
        n_steps, batch_shape = (x.shape[-2], tuple(x.shape[:-2])) if x is not None else (n_steps, batch_shape)
        n_steps, plates = check_integer("n_steps", n_steps), sequence_plates(batch_shape)
        z = s = torch.empty(0, device="cpu")
        for t in pyro.markov(range(1, n_steps + 1)):
            log_probs = regimes.initial_probs.log()
            if t > 1:
                table = regimes.log_transition(s if self.layout.recurrent else None)
                index = z[..., None, None].expand(*z.shape, 1, table.shape[-1])
                log_probs = table.expand(*z.shape, *table.shape[-2:]).gather(-2, index).squeeze(-2)
            with ExitStack() as scope:
                for plate in plates:
                    scope.enter_context(plate)
                z = pyro.sample(f"z_{t}", dist.Categorical(logits=log_probs))
                mean, covariance = regimes.initial_mean[z], regimes.initial_covariance[z]
                if t > 1:
                    mean = (regimes.transition[z] @ s.unsqueeze(-1)).squeeze(-1) + regimes.transition_offset[z]
                    covariance = regimes.state_noise[z]
                s = pyro.sample(f"s_{t}", SingularNormal(mean, covariance))
                mean = (regimes.emission[z] @ s.unsqueeze(-1)).squeeze(-1) + regimes.emission_offset[z]
                emitted = SingularNormal(mean, regimes.observation_noise[z])
                seen.append(pyro.sample(f"x_{t}", emitted, obs=None if x is None else x[..., t - 1, :]))
        return torch.stack(seen, -2)

    def plot_flow(self, x: Any = None, *, sequence: int = 0, points: int = 20, **given: Unpack[Given]) -> "Figure":
        """The flow of a state of two numbers in each regime: see `views.flow.plot_flow`.

        Arguments:
            points: the number of arrows along a side.
        """
        with importing():
            from ..views.flow import plot_flow

        return plot_flow(self, x, sequence=sequence, points=points, **given)

    # ---- fits and figures ------------------------------------------------------------------------------------------

    @explains_options
    def fit(
        self,
        x: Any,
        method: str = "em",
        restarts: int = 8,
        *,
        prior: str | Mapping[str, Any] | None = "weak",
        seed: Seed = 0,
        progress: bool = True,
        max_steps: int = 500,
        tol: float = 1e-6,
        start: Any = None,
        fixed: Any = None,
        group: Any = None,
        checkpoint: str | Path | None = None,
        every: float = 60.0,
        lengths: Any = None,
    ) -> "Fit[Any]":
        """Fit the parameters to sequences, by maximising the bound of structured inference.

        The bound can favour poorly separated regimes, so the fit with the highest `log_evidence` is kept.

        Arguments:
            x, lengths: sequences and their lengths, as in `read`; or a `Series`.
            method: "em": points; "vmp": a posterior of the parameters.
            restarts, max_steps, tol, seed, progress, group, checkpoint, every: as in `SwitchingSSM.fit`. If
                processes share the data, a checkpoint has the search on the sample; steps with all data begin anew.
            prior: "weak": with the weight of a few steps, scaled to x, except for distributions that were set by
                `with_prior`. A dictionary sets some, as `with_prior` does. None: no prior, for "em".
            start: an additional start; with `restarts=1`, the only one. It is a model, a fit, all values by name, or
                a regime for every step `[*batch, T]`. Regimes then keep their numbers.
            fixed: known structure: tables by name, whose entries are held, with NaN where an entry is free, such as
                `{"transition": [[nan, nan], [1, 0]]}`. A table for each regime may lack this axis; it then holds for
                all. Zeros in a covariance separate the coordinates into groups. Each group is fixed or free as a unit.
                Coordinates of one group with a free covariance have the same entries held. If a fixed noise is
                singular, there is no bound. "em" then increases the evidence of a filter of order 2 from `restarts`
                random starts, by quasi-Newton steps. Their cost grows with `restarts` and with T.

        Returns:
            `Fit`, with regimes ordered by their number of steps, the most frequent first; they keep their numbers if
            `fixed` distinguishes them.

        Raises:
            TypeError, ValueError: see `SwitchingSSM.fit`.
        """
        options = Options(
            method,
            restarts,
            max_steps,
            tol,
            seed,
            prior,
            progress,
            start=start,
            fixed=fixed,
            group=group,
            checkpoint=checkpoint,
            every=every,
        )
        return self._fit(x, {"lengths": lengths}, options)

    def _fitted(self, series: Series, options: Options) -> "Fit[Any]":
        from ..fit import Fit
        from ..fitting.fit import with_constants
        from ..fitting.whole import Whole
        from .fit import fit_switching_linear

        whole, sample = Whole.shared(series, options)
        result = with_constants(fit_switching_linear(self.problem(sample), options, whole), sample, options)
        return Fit.of(result, self._copy(result.values))

    def _panels(self, full_data: Series, sequence: int, level: float) -> "Panels":
        from ..views.panels import MOST_CURVES, curves_of, ends_of, given_all, strip

        smoothed = self.smooth(full_data.one(sequence).cpu())
        mean, variance = self._expected(smoothed)
        regimes, colors = strip(smoothed.state)
        latents, one = {}, self.layout.one_chain
        sd = smoothed.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        for chain, ends in enumerate(zip(*ends_of(smoothed.mean, sd, level), strict=True)):
            for latent, curve in enumerate(curves_of(ends, **({} if one else {"colors": [colors[chain]]}))):
                latents[f"latent {latent}" if one else f"chain {chain}\nlatent {latent}"] = curve
        shown = dict(islice(latents.items(), MOST_CURVES))
        return given_all(mean, variance.sqrt(), level, states={"regime": (regimes, colors)}, curves=shown)

    def _panels_ahead(self, forecast: SwitchingForecast, level: float) -> "Panels":
        from ..views.panels import ahead, strip

        return ahead(forecast, level, states={"regime": strip(self.smooth(forecast.series).state, forecast.state)})

    def _expected(self, smoothed: SwitchingPaths) -> tuple[Tensor, Tensor]:
        """Mean and variance [T, F] of new observations of one sequence under q."""
        parts = self.layout.separately(self.values_like(smoothed.mean))
        emission, offset = parts["emission"].unsqueeze(1), parts["emission_offset"].unsqueeze(1)
        mean = (emission @ smoothed.mean.unsqueeze(-1)).squeeze(-1) + offset  # [K, T, F]
        noise = parts["observation_noise"].unsqueeze(1)
        variance = (emission @ smoothed.covariance @ emission.mT + noise).diagonal(dim1=-2, dim2=-1)
        share = smoothed.state.mT.unsqueeze(-1)
        mixed = (share * mean).sum(0)
        return mixed, (share * (variance + (mean - mixed).square())).sum(0)


def _options(starts: str | Sequence[str], max_steps: int, tol: float, seed: Seed) -> dict[str, Any]:
    """The options of `infer`, checked."""
    starts = (starts,) if isinstance(starts, str) else tuple(starts)
    for kind in starts:
        check_choice("starts", kind, STARTS)
    max_steps, tol = check_integer("max_steps", max_steps), check_number("tol", tol, least=0)
    return {"starts": starts or STARTS[:1], "max_steps": max_steps, "tol": tol, "seed": seed}
