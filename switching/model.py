r"""`SwitchingSSM`: a switching state-space model from dynamics and an emission.

    parameters   theta ~ prior                        dynamics.sites, emission.sites
    path         (z, s) ~ p(z, s | theta)             Copy or Markov
    data         x_t ~ p(x_t | s_t, z_t, theta)       Normal, MultivariateNormal, Categorical, ...

The module is the Pyro program. A new model has a prior and no parameter values, and its program draws values.
`with_values` or `fit` sets values. Given values, every inference below is exact.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import pyro
import torch
from jaxtyping import Float
from torch import Tensor

from ..inference.chains.contract import Chain, Filtered, Sampled, Smoothed, Viterbi
from ..inference.numerics.checks import naming
from ..inference.numerics.randomness import Seed
from ..inference.numerics.records import Record, made
from ..inference.numerics.scalars import check_batch_shape, check_integer, check_kind
from .base import Model, Probabilities
from .data.design import check_rank, read_inputs
from .data.frames import to_tensor
from .data.knowledge import check_states, with_states
from .data.lags import check_scored, with_lags
from .data.ragged import by_sequence
from .data.reading import check_finite, read_row, read_states
from .data.series import Drive, Given, Series
from .data.subjects import named, numbered
from .dynamics.by_subject import SubjectDynamics
from .dynamics.contract import Dynamics
from .emissions.by_subject import by_subject, of_one
from .emissions.contract import ByGate, Emission
from .emissions.driven import emission_at, rows_read, scored
from .fitting.options import METHODS, Options
from .forecast import Forecast, look_ahead
from .inputs import Inputs, all_inputs
from .lagged_forecast import DRAWS, observation_ahead
from .mixture import StateMixture
from .parameters import Parameter, Parameters, count_free, free_entries, of_subject
from .peers import explains_options
from .priors import log_prior, sample_sites
from .problem import Problem
from .program import PathMixture, Simulated, collapsed_program, explicit_program
from .recursion import after
from .responses import CENTER, Frame, Response, spread_of_inputs, stated_sites
from .seeding import in_turn, seeded
from .user_priors import is_distribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .fit import Fit
    from .views.panels import Panels


@dataclass(frozen=True, repr=False)
class StreamState(Record):
    """The memory of a stream.

    With semi-Markov dynamics the belief is about the last state and the steps that are left of its segment.

    Attributes:
        belief: `[*b, M]`; None before the first observation.
        log_evidence: `[*b]`, so far.
        steps: the number of observations so far.
        lags: `[*b, P, F]`, the last observations, the latest first; None: later ones do not depend on them.
    """

    belief: Float[Tensor, "*b M"] | None
    log_evidence: Float[Tensor, "*b"]
    steps: int
    lags: Float[Tensor, "*b P F"] | None = None


@dataclass(frozen=True, repr=False)
class StreamOutput(Record):
    """The result of one observation of a stream; for a model of several chains, of each chain.

    Attributes:
        state: `[*b, K]`, P(s_t | x_1..t); for a model of several chains, a table for each.
        redraw: `[*b]`, P(z_t = 1 | x_1..t); for a model of several chains, a column for each.
        log_increment: `[*b]`, log p(x_t | x_1..t-1).
    """

    state: Float[Tensor, "*b K"] | tuple[Float[Tensor, "*b _"], ...]
    redraw: Float[Tensor, "*b"] | Float[Tensor, "*b D"]
    log_increment: Float[Tensor, "*b"]


class SwitchingSSM(Model):
    """A switching state-space model: hidden states with `dynamics`, and an `emission` of each observation given its
    state.

    Arguments:
        dynamics: `Copy(n_states)`, `Markov(n_states)`, `ContinuousMarkov(n_states)`, `SemiMarkov(n_states, duration)`
            or `StickyHDP(max_states)`.
        emission: `Normal(n_features)`, `MultivariateNormal(n_features)`, `Categorical(n_categories)`,
            `Bernoulli(n_features)`, `Poisson(n_features)`, `LinearRegression(n_features, inputs)`,
            `Joint(step=Gamma(), angle=VonMises())`, others of docs/guides/emissions.md,
            `AutoRegressive(order, n_features)`, `Gated(emission, background)`, or your own emission.

    Every method with an argument `x` accepts a tensor `[T]`, `[T, F]` or `[*batch, T, F]`, a numpy array, a pandas
    object, a panel (a frame with an index of sequence and time, or see `read_panel`), or a list of ragged sequences.
    NaN means missing. Methods also accept `lengths`, `inputs` if a part of the model reads some, and with `Copy` or
    `ContinuousMarkov` dynamics `dt [*batch, T]`, the gap before each step, or `time [*batch, T]`. Knowledge about steps
    goes beside x too: `states`, `weights` and `noise` (see `Given` in `switching.data.series`). `read` makes one
    `Series` of all these, and every method accepts it. Results have the batch axes of `x`; results of `states` have its
    labels.

    Raises:
        TypeError: dynamics or an emission of another type.
        ValueError: an emission with held steps, for dynamics without them.

    See Also:
        `SwitchingSSM.fit`, the next step; `Markov` and `Normal`, common parts; docs/guides/choosing.md, on which to
        choose.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
        >>> fit = model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], progress=False)
        >>> fit.model.smooth([0.2, -0.1, 5.3, 4.9]).state.argmax(-1)
        tensor([0, 0, 1, 1])
    """

    made_of: ClassVar[tuple[str, ...]] = ("dynamics", "emission")
    methods: ClassVar[tuple[str, ...]] = METHODS
    reading = "Copy(n_states, inputs=[...])"
    dynamics: Dynamics
    emission: Emission

    def __init__(self, dynamics: Dynamics, emission: Emission) -> None:
        check_kind("dynamics", dynamics, Dynamics, "dynamics such as Copy(n_states) or Markov(n_states)")
        check_kind("emission", emission, Emission, "an emission such as Normal(n_features)")
        check_integer("n_features", emission.n_features)
        if len(emission.parts) > 1 and not dynamics.holds:
            raise ValueError(
                f"emission: {emission.name} needs Copy dynamics; {dynamics.name} dynamics have no held steps."
            )
        super().__init__(dynamics=dynamics, emission=emission)
        _ = self.inputs  # raises an error if parts do not fit together

    def _made(self) -> str:
        if self.subjects:
            return f"{self._alone()._made()} with {len(self.subjects)} subjects"
        return f"{self.name}({self.dynamics.name}({self.n_states} states), {self.emission!r})"

    @property
    def n_states(self) -> int:
        """K, the number of states."""
        return self.dynamics.n_states

    @property
    def chain_sizes(self) -> tuple[int, ...]:
        """The number of states, of the only chain."""
        return (self.n_states,)

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        return self.emission.n_features

    @cached_property
    def inputs(self) -> Inputs:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inputs that the model reads: first the dynamics' inputs, then the emission's other ones."""
        return all_inputs((self.dynamics.reads, self.emission.inputs))

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        """The inputs along each axis of parameters, by the name of the axis."""
        return self.dynamics.inputs_of | self.emission.inputs_of

    @property
    def order(self) -> int:
        """The number of earlier observations that an observation depends on, beside the state."""
        return self.emission.order

    def scored(self, series: Series) -> Tensor:
        return scored(of_one(self.emission), series)

    @property
    def holds(self) -> bool:
        """Whether a step may hold its state; then there is a gate."""
        return self.dynamics.holds

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    def known(self) -> dict[str, Parameter]:
        """The axes, support and displayed form of each parameter."""
        return self.dynamics.parameters | dict(self.emission.parameters)

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        return self.dynamics.sizes | self.emission.sizes

    def n_free(self, fixed: Iterable[str]) -> int:
        """The number of free parameters in a fit that keeps some parameters fixed; a single state has no free
        dynamics.
        """
        free = free_entries(self._values, fixed)
        moves = self.n_states > 1 or len(self.emission.parts) > 1
        used = self.dynamics.used(self._values) if moves else dict.fromkeys(self.dynamics.parameters, False)
        free = {name: entries & used.get(name, True) for name, entries in free.items()}
        return count_free(self.known, free, self._values)

    def _checked(self, values: Parameters) -> Parameters:
        return self.dynamics.check_values(values) | self.emission.check_values(values, self.n_states)

    def _weak_prior(self, series: Series | None) -> Parameters:
        rows, responses = None if series is None else series.rows, self._responses
        prior = self.dynamics.default_prior(series) | self.emission.prior_scaled(self.n_states, rows)
        if not responses:
            return prior
        prior[CENTER] = torch.zeros(self.n_inputs, dtype=torch.float64, device="cpu")
        spread = None if series is None else spread_of_inputs(series)
        if spread is not None:
            prior = Frame(responses, self.inputs, *(table.cpu() for table in spread)).inverse.into(prior)
        if CENTER in self.prior and self._states_constants:
            prior[CENTER] = self.prior[CENTER]
        return prior

    @property
    def _responses(self) -> tuple[Response, ...]:
        """The parameters that respond to inputs."""
        return self.dynamics.responses + self.emission.responses

    @property
    def _states_constants(self) -> bool:
        """Whether priors of constants stay at their inputs: the user has set some, or no other inputs will do."""
        chosen = {name for response in self._responses for name in response.stated_by} & self._chosen
        return bool(chosen) or any(response.alone or response.user_stated for response in self._responses)

    def _check_prior(self, prior: Parameters) -> None:
        typical = self.emission.start(prior) | self.dynamics.typical(prior)
        with in_turn(), pyro.validation_enabled(True):  # torch.compile switches it off for the whole process
            for site in self.emission.sites(prior) + self.dynamics.sites(prior):
                site.distribution(typical)

    def with_prior(self, prior: Mapping[str, Any]) -> "SwitchingSSM":
        """The same model with other hyperparameters, with names and shapes as in `model.prior`, or with distributions
        of Pyro by name of a parameter. A fit keeps these, and scales the others to the data.

        Message passing accepts a Beta for `redraw_prob` and Dirichlets for rows of probabilities. Other methods accept
        any distribution of probabilities: see `Copy` and `Markov`. For an emission see `Normal`.

        Raises:
            ValueError: other names or shapes; numbers that are not finite or not valid hyperparameters; a distribution
                that does not fit its parameter.

        >>> import pyro.distributions as dist
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
        >>> model = model.with_prior({"loc": dist.Normal(900.0, 200.0), "redraw_prob": dist.Beta(1.0, 50.0)})
        >>> model.prior["redraw_concentration"]
        tensor([ 1., 50.], dtype=torch.float64)
        """
        check_kind("prior", prior, Mapping, "hyperparameters by name")
        distributions = {name: value for name, value in prior.items() if is_distribution(value)}
        of_dynamics = {name: d for name, d in distributions.items() if name in self.dynamics.parameters}
        of_emission = {name: d for name, d in distributions.items() if name not in of_dynamics}
        tables = {name: value for name, value in prior.items() if name not in distributions}
        dynamics, conjugate = self.dynamics.with_user_priors(of_dynamics)
        tables |= conjugate
        emission = self.emission.with_user_priors(of_emission) if of_emission else self.emission
        unused = {block.hyperparameter: block for block in dynamics.any_priors}
        for name in unused.keys() & tables.keys():
            if not torch.equal(to_tensor(tables[name], name).to(self.prior[name]), self.prior[name]):
                raise ValueError(
                    f"prior: got {name}, but {dynamics.unusual_prior}, so it has no such hyperparameter; "
                    f"give a distribution of {unused[name].name}."
                )
        if dynamics is self.dynamics and emission is self.emission:
            return super().with_prior(tables)
        made = SwitchingSSM(dynamics, emission)
        chosen = self._chosen - unused.keys()
        kept = {name: self.prior[name] for name in chosen if name in made.prior} | tables
        made = made.with_prior(kept) if kept else made
        vars(made).update(origin=self.origin)
        return made._copy(self.values)

    def at_ends(self) -> list[str]:
        return [
            f"{block.name}: at the end {end:g} of the range of its prior, a {block.kind}."
            for block in self.dynamics.any_priors
            if (end := block.end_at(self.values[block.name])) is not None
        ]

    def log_prior(self, values: Parameters) -> Tensor:
        """Log density of the prior at parameter values: `[*r]`."""
        prior = self._prior_like(next(iter(values.values())))
        sites = self.dynamics.sites(prior) + self.emission.sites(prior)
        return log_prior(stated_sites(sites, self._responses, self.inputs, prior), values)

    # ---- what was observed -----------------------------------------------------------------------------------------

    def _check_observations(self, series: Series) -> None:
        self.emission.check(series.observations, series.features_of() if series.features else None)

    def _check_knowledge(self, series: Series, with_states: bool = True) -> Series:
        if series.noise is not None and not all(part.emission.takes_noise for part in self.emission.parts):
            raise ValueError(
                f"noise: was given, but {self.emission.name} does not support it; leave it out, or use Normal."
            )
        checked = check_states(series, self.n_states)
        if self.dynamics.may_need_states and not with_states:
            self.dynamics.check_told(checked)
        self.dynamics.check_states(checked)
        return checked

    def _check_drive(self, series: Series, n_steps: int) -> None:
        if series.dt is not None:
            self.dynamics.check_drive(series.whole_drive, series.batch_shape, n_steps)

    def problem(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Problem:
        """This model's dynamics, emission and prior, and the series x, as one input for inference.

        Arguments:
            horizon: the number of steps after the end, for which inputs and gaps are passed too.
        """
        series = self.read(x, horizon=horizon, **given)
        return Problem(self.dynamics, self.emission, series, self._prior_like(series.like))

    def _prior_like(self, x: Tensor) -> Parameters:
        return {name: table.to(x) for name, table in self.prior.items()}

    # ---- the Pyro program ------------------------------------------------------------------------------------------

    @in_turn()
    def forward(
        self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = (), **given: Unpack[Given]
    ) -> Tensor:
        """The generative program with a site for every gate, state and observation, conditioned on x if it is given."""
        problem = self._extent(x, n_steps, batch_shape, given)
        return explicit_program(problem, self._drawn(problem), observed=x is not None)

    @in_turn()
    def collapsed(
        self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = (), **given: Unpack[Given]
    ) -> Tensor:
        """The same density with the paths summed out: one site `x`, whose log probability is the chain's
        log-normaliser.

        Arguments:
            x: observations to condition on, as in `read`; None: they are drawn.
            n_steps: the number of steps that are drawn if there is no x.
        """
        problem = self._extent(x, n_steps, batch_shape, given)
        return collapsed_program(problem, self._drawn(problem), observed=x is not None)

    @explains_options
    def simulate(
        self, n_steps: int, batch_shape: tuple[int, ...] = (), *, seed: Seed = None, **given: Unpack[Given]
    ) -> Simulated:
        """Draw sequences from the model at its values. A seed makes the draw repeatable and does not touch global
        state.
        """
        problem = self._extent(None, n_steps, batch_shape, given)
        like = problem.series.like
        mixture = PathMixture(problem, self.values_like(like))
        with seeded(seed, like):
            if seed is None:
                return mixture.simulate()
            # gates get a generator of their own: with equal seeds, noise would depend on gates
            of_paths = int(torch.randint(2**62, (), device="cpu"))
            return mixture.simulate(seed=torch.Generator(like.device).manual_seed(of_paths))

    def _extent(self, x: Any, n_steps: int | None, batch_shape: tuple[int, ...], given: Given) -> Problem:
        """The problem of x; without x, a problem of `n_steps` steps without observations."""
        if x is not None:
            return self.problem(x, **given)
        if n_steps is None:
            raise ValueError("n_steps: got None; without x, give the number of steps to draw.")
        n_steps, batch_shape = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        if given.get("weights") is not None:
            raise ValueError("weights: was given without x, but draws have no weights; leave it out.")
        shape = (*batch_shape, n_steps, self.emission.n_features)
        return self.problem(self._like.new_full(shape, torch.nan), **given)

    def _drawn(self, problem: Problem) -> Parameters:
        """The values; if there are none, a draw from the prior as Pyro sites."""
        return self.values_like(problem.series.like) if self.values else sample_sites(problem.sites)

    # ---- inference given the values --------------------------------------------------------------------------------

    def log_evidence(self, x: Any, **given: Unpack[Given]) -> Tensor:
        """log p(x | values), every path summed out: `[*batch]`; differentiable in the values."""
        problem = self.problem(x, **given)
        with naming("x"):
            return problem.evidence(self.values_like(problem.series.like))

    @by_sequence()
    def filter(self, x: Any, **given: Unpack[Given]) -> Filtered:
        """P(s_t | x_1..t) and P(z_t = 1 | x_1..t) at every step, and log p(x_t | x_1..t-1)."""
        with naming("x"):
            return self.chain(x, **given).filter()

    @by_sequence()
    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """P(s_t | x) and P(z_t = 1 | x) at every step, given the whole series."""
        with naming("x"):
            return self.chain(x, **given).smooth()

    @by_sequence()
    def viterbi(self, x: Any, **given: Unpack[Given]) -> Viterbi:
        """The most probable path of states and gates."""
        with naming("x"):
            return self.chain(x, **given).viterbi()

    @by_sequence(draws=True)
    def sample_posterior(self, x: Any, n: int, seed: Seed = None, **given: Unpack[Given]) -> Sampled:
        """n independent paths from the posterior given the whole series: `path [n, *batch, T]`."""
        with naming("x"):
            return self.chain(x, **given).sample(n, seed)

    def chain(self, x: Any, **given: Unpack[Given]) -> Chain:
        """The chain over the paths of x. It has every exact algorithm of `inference`."""
        series = self.read(x, **given)
        series = series if series.lengths is None else series.as_table("give")
        return Problem(self.dynamics, self.emission, series).chain(self.values_like(series.like))

    @explains_options
    def forecast(self, x: Any, horizon: int, *, draws: int = DRAWS, seed: Seed = 0, **given: Unpack[Given]) -> Forecast:
        """States and observations at each of the `horizon` steps after the end of x.

        If the model reads inputs or gaps, pass future ones too: `[*batch, T + horizon, C]` and `[*batch, T + horizon]`.
        All sequences must then have equal lengths.

        Forecasts are exact, except quantiles and densities of an `AutoRegressive` emission: these come from `draws`
        paths with this seed. Its forecasts begin at the last step whose `order` observations are all known, and use
        the observations and known states after it.

        Arguments:
            draws: the number of draws where a forecast has no closed form.
            seed: of these draws.
        """
        horizon = check_integer("horizon", horizon)
        problem = self.problem(x, horizon=horizon, **given)
        problem.series.check_ahead(horizon)
        values = self.values_like(problem.series.like)
        with naming("x"):
            weights = look_ahead(problem, values, horizon)
            if self.order:
                one = {name: value.unsqueeze(0) for name, value in values.items()}
                parts = observation_ahead(problem, one, horizon, check_integer("draws", draws, least=2), seed)
                return Forecast(weights.redrawn + weights.held, weights.redrawn.sum(-1), *parts, problem.series, self)
        emission = emission_at(self.emission, problem.series, problem.series.ahead)
        return Forecast.of(emission, values, weights, problem.series, self)

    def probabilities(self, chain: Chain, values: Parameters) -> Probabilities:
        """Probabilities of a whole series by name: `[*r, *b, T, ...]`, with the names of their axes after time.

        These are probabilities of states, of a redraw if there is a gate, and of a change of state, which is smaller.
        """
        smoothed = chain.smooth()
        redraw = {} if smoothed.redraw is None else {"redraw_probability": (smoothed.redraw, ())}
        change: dict[str, Any] = {"change_probability": (chain.change_probability(), ())}
        return {"state_probability": (smoothed.state, ("state",))} | redraw | change

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = (), before: Any = None) -> StreamState:
        """The state of a batch of streams before their first observation, or after the observations `before`.

        Arguments:
            batch_shape: the batch axes of the streams; () for a single stream.
            before: `[*batch, P, F]`, earlier observations, the latest last, for emissions that read lags.
        """
        self.values_like(self._like)
        if self.subjects:
            raise ValueError("model: has parameters by subject; use a stream of one, model.of(subject).start().")
        batch_shape = check_batch_shape("batch_shape", batch_shape)
        first = Series(self._like.new_full((*batch_shape, 1, self.n_features), torch.nan))
        past = with_lags(first, self.order, before).drive.past
        lags = None if past is None else past[..., 0, :, :]
        return StreamState(None, self._like.new_zeros(batch_shape), 0, lags)

    def update(
        self, state: StreamState, x_t: Any, *, inputs: Any = None, dt: Any = None, states: Any = None
    ) -> tuple[StreamState, StreamOutput]:
        """Add one observation of each stream: `x_t [*batch, F]` (or `[*batch]` for one feature), NaN where missing.

        `inputs [*batch, C]` and `dt [*batch]` are those of this step, and so are known `states [*batch]`, numbers with
        -1 where unknown, or their weights `[*batch, K]`. The result equals `filter` on the whole series, to rounding.
        Only `SemiMarkov(last_segment="whole")` differs, at the last step: `filter` uses that a segment ends there, and
        a stream does not know which step is the last.

        Arguments:
            dt: the gap before this step, `[*batch]`.
            states: known states of this step, `[*batch]`.
        """
        check_kind("state", state, StreamState, "the state from start() or update()")
        batch = tuple(state.log_evidence.shape)
        x_t = read_row(x_t, batch, self.emission.n_features)
        inputs = read_inputs(inputs, x_t, self.inputs)
        if dt is not None:
            gap = to_tensor(dt, "dt").to(x_t).unsqueeze(-1)
            if tuple(gap.shape) != (*batch, 1):
                raise ValueError(f"dt: got shape {tuple(gap.shape[:-1])}, expected {batch}: the gap before this step.")
            enough = gap >= 0 if self.dynamics.at_once else gap > 0
            if state.steps and not bool((enough & gap.isfinite()).all()):
                least = "of at least" if self.dynamics.at_once else "above"
                raise ValueError(f"dt: got {dt}, expected the time since the previous step, a number {least} 0.")
            dt = gap
        with naming("x_t"):
            names = None if inputs is None or isinstance(self.inputs, int) else self.inputs
            past = None if state.lags is None else state.lags.to(x_t).unsqueeze(-3)
            series = made(Series, x=x_t.unsqueeze(-2), inputs=inputs, dt=dt, drivers=names, past=past)
            series = self._about_origin(series)
            if states is not None:
                series = check_states(with_states(series, read_states(states, x_t), None), self.n_states)
            check_finite(series)
            self._check_observations(series)
            self._check_drives(series, 1)
            problem = Problem(self.dynamics, self.emission, series)
            belief, redraw, increment = problem.after(self.values_like(x_t), state.belief)
        lags = None if state.lags is None else after(state.lags.to(x_t), x_t)
        later = StreamState(belief, state.log_evidence.to(x_t.device) + increment, state.steps + 1, lags)
        by_state = belief if belief.shape[-1] == self.n_states else belief.unflatten(-1, (self.n_states, -1)).sum(-1)
        return later, StreamOutput(by_state, redraw, increment)

    def durations(self, x: Any, **given: Unpack[Given]) -> Float[Tensor, "K"]:
        """The expected number of steps from entering each state to leaving it; with gaps, in units of time.

        With inputs, durations use the mean redraw probability, or the mean probability of staying, of their steps. With
        parameters by subject, durations are the mean over the subjects of x.
        """
        series = self.read(x, **given)
        subjects = None if series.subjects is None else series.subjects.flatten()[series.sequence_of_rows]
        return self.dynamics.durations(self.values_like(series.like), Drive(series.design_rows, subjects=subjects))

    def transition_table(self, times: Any) -> Float[Tensor, "*n K K"]:
        """P(state some time later | state) `[old, new]`, of `ContinuousMarkov` dynamics: `[*times, K, K]`; at inputs 0,
        or at the model's `origin`.

        Arguments:
            times: a number or a table of numbers of at least 0, in the unit of the gaps.

        Raises:
            TypeError: other dynamics.
            ValueError: negative times.

        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.ContinuousMarkov(2), sh.Poisson())
        >>> model = model.with_values(initial_probs=[1.0, 0.0], rates=[[0.0, 1.0], [1.0, 0.0]], rate=[[1.0], [2.0]])
        >>> model.transition_table([0.0, 100.0])[:, 0]
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]], dtype=torch.float64)
        """
        return self.dynamics.transition_table(self.values_like(self._like), times)

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
        num_samples: int | None = None,
        warmup_steps: int | None = None,
        pooled: str | Mapping[str, str] = "complete",
        checkpoint: str | Path | None = None,
        every: float = 60.0,
        factorization: str = "structured",
        batch_size: int | None = None,
        group: Any = None,
        **given: Unpack[Given],
    ) -> "Fit[Any]":
        """Fit the parameters to sequences.

        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Markov(2), sh.Normal())
        >>> fit = model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], seed=1, progress=False)
        >>> fit.forecast(3).mean.shape
        torch.Size([3, 1])
        >>> fit.model.smooth([0.2, -0.1, 5.3, 4.9]).state.argmax(-1)
        tensor([0, 0, 1, 1])

        Arguments:
            x: one sequence or several, and the arguments beside them, such as `lengths=`, `inputs=` or `states=`: see
                `read`. Or a `Series`.
            method: "em": the parameters with the highest posterior density, or the highest likelihood if `prior=None`.
                "vmp", "svi", "nuts", "gibbs": the posterior of the parameters, in `Fit.posterior`: an approximation by
                message passing, one by normal distributions, draws by NUTS, and draws by Gibbs sampling.
            restarts: how hard to search. Each restart tries four starting points for a few steps. The best ones, and
                perturbed copies of them, run to convergence. `Fit.restarts` has a row for each; 1: a single start.
            prior: "weak": a prior scaled to x, with the weight of half an observation for normals; hyperparameters set
                by `with_prior` are kept. None: no prior, for "em". A dictionary sets some hyperparameters or
                distributions, as `with_prior` does; `prior=model.prior` keeps all of the model's.
            seed: of the starts and the draws; equal seeds give equal fits.
            progress: show a progress bar on a terminal.

        More:
            max_steps: steps of EM, VMP (at most) or SVI.
            tol: a run has converged when its estimated remaining improvement is less than `tol` nats for each observed
                step.
            start: an additional start; with `restarts=1`, the only one. It is a model, a fit, values by name (some may
                be missing), or a state for every step `[*batch, T]`, with -1 for unknown. States then keep their
                numbers.
            fixed: known parameters, by name, e.g. `{"loc": [[0.0], [1.0]]}`. NaN marks entries that are free; free
                probabilities share the rest of their row. The bound of message passing excludes the prior density of
                known entries.
            num_samples, warmup_steps: draws in each of 4 chains of NUTS or Gibbs sampling, by default 500, and draws
                before them that are thrown away, by default half as many.
            pooled: "complete": all sequences share the parameters. "none": each subject has its own. "partial": each
                subject has its own, from a population that is fitted too. A dictionary pools each block, e.g.
                `{"emission": "none"}`; see docs/guides/subjects.md.
            checkpoint: a file with the state of the fit. If the fit was killed or interrupted, the same call continues
                it, with the same bits on one machine with as many threads. Only `progress` and `every` may change; see
                docs/guides/batches.md.
            every: seconds between two writes of the checkpoint; 0: after each few steps.
            factorization: of q(paths) in VMP: "structured", the exact chain, or "mean_field", each step independent.
            batch_size: the number of sequences after which VMP updates the parameters (see `fitting.minibatches`). One
                of `max_steps` is then a pass through all sequences. None: all.
            group: the processes of `torch.distributed` that share the data, each with sequences of its own; None: the
                default group, if there is one.

        Starts are described in docs/guides/batches.md. SVI and the samplers use the density with the paths summed out,
        except for Gibbs sampling, which draws whole paths. They continue from a fit by message passing, or by EM if
        some part has no conjugate prior. If data are in files or shared by processes, SVI starts from a fit to a
        sample.

        Returns:
            `Fit`, with `.model` (this model with its values), the trace of the objective and the end of each restart.
            States are ordered by the location of the first feature, then by the locations of the next features, then by
            the scales. Known states and fixed parameters of states keep their numbers. Ctrl-C returns the best result
            so far, marked `interrupted`.

        Raises:
            ValueError: see `read`; a feature without any observation; fewer observations than states; a prior without a
                mode; a checkpoint of another fit, or one that is damaged.
            TypeError: message passing or Gibbs sampling with dynamics or an emission that have no conjugate prior; EM
                of `StickyHDP`, whose density has no maximum; a checkpoint of a model that cannot be saved.
            OSError: the checkpoint cannot be written.
        """
        options = Options(
            method,
            restarts,
            max_steps,
            tol,
            seed,
            prior,
            progress,
            factorization,
            batch_size,
            start,
            fixed,
            num_samples,
            warmup_steps,
            pooled,
            group,
            checkpoint,
            every,
        )
        return self._fit(x, given, options)

    def _fitted(self, series: Series, options: Options) -> "Fit[Any]":
        from .fit import Fit
        from .fitting.fit import check_enough, fit
        from .fitting.subjects import Pooling
        from .fitting.units import Units
        from .fitting.whole import Whole

        if self.subjects:
            raise ValueError(
                "model: has parameters by subject already; fit the model of one, model.of(subject), or the plain model "
                "with pooled=."
            )
        pooling = Pooling.of(options.pooled, self.dynamics, self.emission)
        whole, series = Whole.shared(series, options, files=True, draws=True, pooled=pooling is not None)
        if pooling is not None:
            return self._fitted_by_subject(series, options, pooling)
        check_enough(series, self.n_states)
        if self.order:
            check_scored(self.scored(series), series, self.order)
        Units.of(self.emission, series)  # raises an error if no prior can be scaled to some feature
        for part in self.emission.parts:
            constants = [*(one.constant for one in part.emission.responses), *part.emission.parameters]
            check_rank(series, part.emission.inputs, f"the {part.block}", part.prefix + constants[0])
        for response in self.dynamics.responses:
            ((name, inputs),) = response.coefficients.items()
            check_rank(series, inputs, self.dynamics.name, response.constant, first=name.startswith("initial"))
        model = self if options.prior is None else self.scaled_to(series)._beside(options.fixed, self.prior)
        problem = model.problem(series)
        result = fit(replace(problem, prior=None) if options.prior is None else problem, options, whole)
        if options.prior is None:
            self.dynamics.check_fitted(result.values, series)
            self.emission.check_fitted(result.values, rows_read(self.emission, series)[series.inside])
        return Fit.of(result, model._stated(result), model._stated(result).without_values())

    def _beside(self, fixed: Any, before: Parameters) -> "SwitchingSSM":
        """The same model, with priors of constants at the inputs of the prior before, if some constants are fixed."""
        constants = {response.constant for response in self._responses} & set(fixed or {})
        if not constants:
            return self
        if bool(before[CENTER].any()):
            raise ValueError(
                f"fixed: got {', '.join(sorted(constants))}, stated at inputs 0, but the prior is stated at "
                f"{CENTER} {before[CENTER].tolist()}; leave one of the two out."
            )
        return self._copy(self.values, self.prior | {CENTER: before[CENTER]})

    def _stated(self, result: Any) -> "SwitchingSSM":
        """The model with the values of a fit, whose constants may be stated at other inputs."""
        if result.origin is None:
            return self._copy(result.values)
        by = result.origin.cpu()
        prior = Frame(self._responses, self.inputs, by, torch.ones_like(by)).into(self.prior)
        model = self._copy(result.values, prior)
        vars(model).update(origin=by if self.origin is None else self.origin + by)
        return model

    def _fitted_by_subject(self, series: Series, options: Options, pooling: Any) -> "Fit[Any]":
        from .fit import Fit
        from .fitting.subjects import check_populations, check_subjects, fit_subjects

        series = named(series)
        n_scored = self.scored(series).any(-1).sum(-1) if self.order else series.n_seen
        check_subjects(series, pooling, options, self.dynamics, n_scored)
        names = series.subject_names
        assert names is not None
        dynamics = SubjectDynamics(self.dynamics, names, pooling.common, pooling.partial)
        emission = by_subject(self.emission, len(names)) if pooling.emission else self.emission
        model = SwitchingSSM(dynamics, emission)._copy({}, self.prior)
        check_populations(model.problem(series), pooling, options)
        first = self._fitted(series, options.before_subjects())
        model = model._copy({}, first.model.prior)
        vars(model).update(_chosen=self._chosen, origin=first.model.origin)
        problem = model.problem(series)
        problem = replace(problem, prior=None) if options.prior is None else problem
        result, prior = fit_subjects(problem, options, first.values, len(names), pooling.partial)
        if pooling.partial and prior is not None:
            model = model._copy({}, prior)
            vars(model).update(_chosen=frozenset(prior))
        return Fit.of(result, model._stated(result), model._stated(result).without_values())

    # ---- subjects --------------------------------------------------------------------------------------------------

    @property
    def subjects(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the subjects whose parameters differ; empty if there are none."""
        return self.dynamics.subjects if isinstance(self.dynamics, SubjectDynamics) else ()

    def of(self, subject: str) -> "SwitchingSSM":
        """The model of one subject, with its values.

        Arguments:
            subject: the name of the subject.

        Raises:
            ValueError: there is no such subject.
        """
        if str(subject) not in self.subjects:
            raise ValueError(f"subject: got {subject!r}, expected one of {list(self.subjects[:5])}.")
        values = of_subject(self.known, self._values, self.subjects.index(str(subject)))
        return self._alone()._copy(values, self.prior)

    def plot(self, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> "Figure":
        """As `Model.plot`; with parameters by subject, the sequence with those of its subject."""
        if not self.subjects:
            return super().plot(x, sequence=sequence, level=level, **given)
        one = self.read(x, **given).one(sequence)
        return self.of(self.subjects[int(cast(Tensor, one.subjects))]).plot(one, level=level)

    @property
    def population(self) -> "SwitchingSSM":
        """The model of a new subject: common values, means of the population, and the population as prior.

        Raises:
            ValueError: some parameters of subjects have no population.
        """
        dynamics = self.dynamics
        if not isinstance(dynamics, SubjectDynamics):
            raise ValueError('population: the model has no parameters by subject; fit it with pooled="partial".')
        own = [name for name in dynamics.blocks if name not in dynamics.common]
        own += ["emission"] * self.emission.reads_subjects
        if not set(own) <= set(dynamics.partial):
            raise ValueError(f'population: blocks {own} have none; fit them with pooled="partial".')
        alone = self._alone()
        typical = alone.emission.start(self.prior)
        for block in alone.dynamics.blocks.values():
            typical |= block.expected(block.natural(self.prior))
        typical |= {n: v for n, v in self._values.items() if self.known[n].dims[:1] != ("subject",)}
        return alone._copy({name: typical[name] for name in alone.known}, self.prior)

    def _alone(self) -> "SwitchingSSM":
        """The model of one subject, without values."""
        dynamics = self.dynamics.dynamics if isinstance(self.dynamics, SubjectDynamics) else self.dynamics
        made = SwitchingSSM(dynamics, self.emission.mapped(of_one))
        vars(made).update(_chosen=self._chosen, origin=self.origin)
        return made

    def _arranged(self, x: Any) -> Any:
        return self.emission.arranged(x)

    def _series(self, x: Any, given: Given) -> Series:
        series, names = super()._series(x, given), self.emission.column_names
        series = replace(series, features=names) if names and series.features is None else series
        return numbered(series, self.subjects) if self.subjects else series

    def _panels(self, full_data: Series, sequence: int, level: float) -> "Panels":
        from .views.panels import Panels, described, emitted, ends_of, level_colors, within_support

        problem, emission = self.problem(full_data.one(sequence).cpu()), self.emission
        values = {name: value.detach() for name, value in self.values_like(problem.series.like).items()}
        chain = problem.chain(values)
        smoothed, used = chain.smooth(), chain.marginals()
        weights = ByGate(used.fresh, torch.zeros_like(used.fresh) if used.held is None else used.held)
        mixture = StateMixture(emission_at(emission, problem.series, problem.series.drive), values, weights)
        mean, lower, upper = ends_of(mixture.mean, mixture.variance.sqrt(), level)
        arc, ends = (upper - mean).clamp_max(math.pi), within_support(emission, (mean, lower, upper))
        features = emitted(emission, values, mixture, ends, lambda: arc, smoothed.state, problem.series.state_names)
        about = f", with {described(emission, f'{100 * level:g}% band')} in its smoothed state"
        states = {"state": (smoothed.state, level_colors(emission, values))}
        redraw = smoothed.redraw
        gates = {"change": chain.change_probability()} if redraw is None else {"redraw": redraw}
        return Panels(about, features, states, gates=gates)

    def _panels_ahead(self, forecast: Any, level: float) -> "Panels":
        from .views.panels import Panels, described, emitted, level_colors

        source, series, mixture = forecast.source, forecast.series, forecast.observation
        values = self.values if source is self else source.mean
        if series.subjects is not None and self.subjects:
            values = of_subject(self.known, values, int(series.subjects))
        emission, values = self.emission.mapped(of_one), {name: value.detach().cpu() for name, value in values.items()}
        ends, state = (forecast.mean, *forecast.interval(level)), forecast.state
        features = emitted(emission, values, mixture, ends, lambda: mixture.arc(level), state, series.state_names)
        states = {"state": (torch.cat([source.smooth(series).state, state]), level_colors(emission, values))}
        return Panels(described(emission, f"{100 * level:g}% interval"), features, states)
