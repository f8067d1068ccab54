r"""`SwitchingSSM`: a switching state-space model, put together from dynamics and an emission.

    parameters   theta ~ prior                        dynamics.sites, emission.sites
    path         (z, s) ~ p(z, s | theta)             Copy or Markov
    data         x_t ~ p(x_t | s_t, z_t, theta)       Normal, MultivariateNormal, Categorical, ...

The module is the Pyro program. Fresh from its constructor it has a prior and no parameter values, and running it draws
them; `with_values` or `fit` gives it values, and then every inference below is exact given those.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from jaxtyping import Float
from pyro.nn import PyroModule
from torch import Tensor

from ..inference.chains.contract import Chain, Filtered, Sampled, Smoothed, Viterbi
from ..inference.numerics.checks import naming
from ..inference.numerics.randomness import Seed
from ..inference.numerics.records import Record
from ..inference.numerics.scalars import check_batch_shape, check_integer, check_kind
from .data.reading import read_row, read_series, to_tensor
from .data.series import Given, Series
from .dynamics.contract import Dynamics
from .emissions.contract import Emission
from .forecast import Forecast, look_ahead
from .parameters import Named, Parameter, Parameters, count_free, described, listed, read_table
from .priors import log_prior, sample_sites
from .problem import Problem
from .program import PathMixture, Simulated, collapsed_program, explicit_program
from .seeding import seeded
from .verbs import Verbs


@dataclass(frozen=True, repr=False)
class StreamState(Record):
    """What a stream remembers: the belief about the last state, and the evidence so far."""

    belief: Float[Tensor, "*b K"] | None
    log_evidence: Float[Tensor, "*b"]
    steps: int


@dataclass(frozen=True, repr=False)
class StreamOutput(Record):
    """What one observation of a stream says; of a model of several chains, of each one."""

    state: Float[Tensor, "*b K"] | tuple[Float[Tensor, "*b _"], ...]
    redraw: Float[Tensor, "*b"] | Float[Tensor, "*b D"]
    log_increment: Float[Tensor, "*b"]


class SwitchingSSM(Verbs, PyroModule):
    """A switching state-space model.

    Arguments:
        dynamics: `Copy(n_states)` or `Markov(n_states)`.
        emission: `Normal(n_features)`, `MultivariateNormal(n_features)`, `Categorical(n_categories)`,
            `Bernoulli(n_features)`, `Poisson(n_features)`, `Gated(emission, background)`, or one of your own.

    Every method that takes `x` takes it as a tensor `[T]`, `[T, F]` or `[*batch, T, F]`, a numpy array, a pandas
    object, a panel (a frame with an index of sequence and time, or see `read_panel`), or a list of ragged sequences,
    with NaN for what is missing, and `lengths`; with `Copy` dynamics also `covariates [*batch, T, C]` and `dt [*batch,
    T]`, the gap before each step. `read` makes all of these one `Series`, which every method takes in their place.
    Results have the batch axes of `x`; those of `states` stand on its labels.

    Raises:
        TypeError: dynamics or an emission that is none.
        ValueError: an emission that differs between redrawn and held steps, of which these dynamics have none.

    Example:
        >>> import samplehold as sh
        >>> model = sh.SwitchingSSM(sh.Copy(n_states=2), sh.Normal(n_features=1))
        >>> fit = model.fit([0.1, -0.2, 0.0, 5.1, 4.8, 5.0], progress=False)
        >>> fit.model.smooth([0.2, -0.1, 5.3, 4.9]).state.argmax(-1).unique_consecutive(return_counts=True)[1]
        tensor([2, 2])
    """

    def __init__(self, dynamics: Dynamics, emission: Emission) -> None:
        super().__init__()
        check_kind("dynamics", dynamics, Dynamics, "Copy(n_states) or Markov(n_states)")
        check_kind("emission", emission, Emission, "an emission such as Normal(n_features)")
        check_integer("n_features", emission.n_features)
        if len(emission.parts) > 1 and not dynamics.holds:
            raise ValueError(
                f"emission: {emission.name} needs Copy dynamics; {dynamics.name} dynamics have no held steps."
            )
        self.dynamics, self.emission = dynamics, emission
        self.prior: Parameters = dynamics.default_prior() | emission.default_prior(dynamics.n_states, None)
        self._names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What it is made of, and its values."""
        made = f"{self.name}({self.dynamics.name}({self.n_states} states), {self.emission!r})"
        return f"{made}\n{listed(self.known, self.values)}" if self._names else made

    @property
    def n_states(self) -> int:
        """K, the number of states."""
        return self.dynamics.n_states

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        return self.emission.n_features

    @property
    def n_covariates(self) -> int:
        """C, the number of covariates that drive it."""
        return self.dynamics.n_covariates

    @property
    def holds(self) -> bool:
        """Whether a step may hold its state, so that there is a gate."""
        return self.dynamics.holds

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    def values(self) -> Parameters:
        """The parameter values by name; empty while the model has only a prior."""
        return {name: getattr(self, name) for name in self._names}

    @property
    def known(self) -> dict[str, Parameter]:
        """What is known of each parameter besides its values: axes, support, the form in which people give it."""
        return self.dynamics.parameters | dict(self.emission.parameters)

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        return self.dynamics.sizes | self.emission.sizes

    @property
    def n_parameters(self) -> int:
        """How many numbers a fit chooses freely; a single state that emits alike is none the other for how it moves."""
        values = self.values_like(self._like)
        moves = self.n_states > 1 or len(self.emission.parts) > 1
        return count_free(self.known, {n: v for n, v in values.items() if moves or n in self.emission.parameters})

    def with_values(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> "SwitchingSSM":
        """The same model with these parameter values, e.g. `redraw_prob=0.1, state_probs=[...], loc=[[...]],
        scale=[[...]]`.

        Raises:
            ValueError: a parameter is missing, unknown, or outside its space.
        """
        given = {name: read_table(value, name) for name, value in {**(values or {}), **named}.items()}
        own = self.dynamics.check_values(given) | self.emission.check_values(given, self.n_states)
        unknown = set(given) - set(own) - {p.shown.name for p in self.known.values() if p.shown}
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {sorted(unknown)}; this model has {sorted(own)}.")
        return self._copy(own, self.prior)

    def without_values(self) -> "SwitchingSSM":
        """The same model with only its prior: what SVI and NUTS sample."""
        return self._copy({}, self.prior)

    def with_prior(self, prior: Parameters) -> "SwitchingSSM":
        """The same model with other hyperparameters, named and shaped as in `model.prior`.

        Raises:
            ValueError: other names or shapes; numbers that are not finite, or of which there is no prior.
        """
        prior = {
            name: read_table(table, f"prior[{name!r}]")
            for name, table in check_kind("prior", prior, Mapping, "hyperparameters by name").items()
        }
        for name, table in prior.items():
            if not bool(table.isfinite().all()):
                raise ValueError(f"prior[{name!r}]: got numbers that are not finite; give finite hyperparameters.")
            if name not in self.prior or table.shape != self.prior[name].shape:
                expected = {n: tuple(t.shape) for n, t in self.prior.items()}
                raise ValueError(f"prior: got {name} of shape {tuple(table.shape)}, expected {expected}.")
        own = {name: table.to(self.prior[name].device) for name, table in prior.items()}
        model = self._copy(self.values, self.prior | own)
        try:
            sites, typical = self.emission.sites(model.prior), self.emission.start(model.prior)
            for site in sites + self.dynamics.sites(model.prior):
                site.distribution(typical)
        except (ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"prior: got {sorted(prior)} of which there is no prior: {said}") from None
        return model

    def scaled_to(self, x: Any, **given: Unpack[Given]) -> "SwitchingSSM":
        """The same model with the emission's prior scaled to the observations x, as `fit` does; what drives the
        dynamics may be left out."""
        series = x if isinstance(x, Series) else read_series(x, self.emission.n_features, **given)
        self.emission.check(series.observations)
        for feature in torch.isnan(series.rows).all(0).nonzero()[:1].flatten().tolist():
            raise ValueError(
                f"x: feature {feature} ({series.features_of()[feature]}) has no observed value, to which a prior could "
                "be scaled; give data that has some."
            )
        prior = self.dynamics.default_prior() | self.emission.default_prior(self.n_states, series.rows)
        return self._copy(self.values, prior)

    def _copy(self, values: Parameters, prior: Parameters) -> "SwitchingSSM":
        model = SwitchingSSM(self.dynamics, self.emission)
        model.prior = {name: table.detach() for name, table in prior.items()}
        model._names = tuple(values)
        for name, value in values.items():
            model.register_buffer(name, value)
        return model

    def values_like(self, x: Tensor) -> Parameters:
        """The values in the dtype and on the device of x."""
        if not self._names:
            raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
        return {name: value.to(x) for name, value in self.values.items()}

    def log_prior(self, values: Parameters) -> Tensor:
        """Log density of the prior at parameter values: `[*r]`."""
        prior = self._prior_like(next(iter(values.values())))
        return log_prior(self.dynamics.sites(prior) + self.emission.sites(prior), values)

    def describe(self) -> Parameters:
        """The parameter values as a reader knows them: scales and covariances rather than precisions."""
        return described(self.known, self.values)

    # ---- what was observed -----------------------------------------------------------------------------------------

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """The observations, what drives them and their labels as one `Series`, checked against this model.

        Arguments:
            x, lengths, covariates, dt: as in every method. A Series comes back as it is, once it has been checked.
            horizon: number of steps to come, for which covariates and gaps are given too: `[*batch, T + horizon, ...]`.

        Raises:
            ValueError: see `data.reading.read_series`; values outside the emission's support; covariates or gaps that
                do not fit the dynamics or the series.
        """
        if isinstance(x, Series):
            extra = [name for name, value in given.items() if value is not None]
            if extra:
                raise ValueError(f"{extra[0]}: got some besides a Series, which has its own; leave it out.")
            series = x
        else:
            series = read_series(x, self.emission.n_features, **given)
        if series.checked is not None and all(a is b for a, b in zip(series.checked, self._parts, strict=True)):
            return series
        if series.observations.shape[-1] != self.emission.n_features:
            raise ValueError(
                f"x: got {series.observations.shape[-1]} feature(s), but the emission has {self.emission.n_features}."
            )
        self.emission.check(series.observations)
        n_steps = series.n_steps + horizon
        if isinstance(x, Series):
            n_steps = max(series.n_steps, series.n_driven)
        self.dynamics.check_drive(series.whole_drive, series.batch_shape, n_steps)
        return replace(series, checked=self._parts)

    def problem(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Problem:
        """This model's dynamics, emission and prior, and the series x: what every kind of inference takes."""
        series = self.read(x, horizon=horizon, **given)
        return Problem(self.dynamics, self.emission, series, self._prior_like(series.observations))

    def _prior_like(self, x: Tensor) -> Parameters:
        return {name: table.to(x) for name, table in self.prior.items()}

    @property
    def _parts(self) -> tuple[Dynamics, Emission]:
        return self.dynamics, self.emission

    @property
    def _like(self) -> Tensor:
        """A tensor of the dtype and device in which the model computes where it is given none."""
        return next(iter((self.values or self.prior).values()))

    # ---- the Pyro program ------------------------------------------------------------------------------------------

    def forward(
        self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = (), **given: Unpack[Given]
    ) -> Tensor:
        """The generative program with a site for every gate, state and observation; conditioned on x where given."""
        problem = self._extent(x, n_steps, batch_shape, given)
        return explicit_program(problem, self._drawn(problem), observed=x is not None)

    def collapsed(
        self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = (), **given: Unpack[Given]
    ) -> Tensor:
        """The same density with the paths summed out: one site `x`, whose log probability is the chain's
        log-normaliser."""
        problem = self._extent(x, n_steps, batch_shape, given)
        return collapsed_program(problem, self._drawn(problem), observed=x is not None)

    def simulate(
        self, n_steps: int, batch_shape: tuple[int, ...] = (), *, seed: Seed = None, **given: Unpack[Given]
    ) -> Simulated:
        """Draw sequences from the model with its values; a seed makes the draw repeatable and leaves global state
        alone."""
        problem = self._extent(None, n_steps, batch_shape, given)
        like = problem.series.observations
        mixture = PathMixture(problem, self.values_like(like))
        with seeded(seed, like):
            if seed is None:
                return mixture.simulate()
            # a stream of its own: equal seeds would tie noise to gates
            of_paths = int(torch.randint(2**62, (), device="cpu"))
            return mixture.simulate(seed=torch.Generator(like.device).manual_seed(of_paths))

    def _extent(self, x: Any, n_steps: int | None, batch_shape: tuple[int, ...], given: Given) -> Problem:
        """The problem of x, or without x one of so many steps at which nothing was observed."""
        if x is not None:
            return self.problem(x, **given)
        if n_steps is None:
            raise ValueError("n_steps: got None; without x, give the number of steps to draw.")
        n_steps, batch_shape = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        shape = (*batch_shape, n_steps, self.emission.n_features)
        return self.problem(self._like.new_full(shape, torch.nan), **given)

    def _drawn(self, problem: Problem) -> Parameters:
        """The values, or where there are none a draw from the prior as Pyro sites."""
        return self.values_like(problem.series.observations) if self._names else sample_sites(problem.sites)

    # ---- inference given the values --------------------------------------------------------------------------------

    def log_evidence(self, x: Any, **given: Unpack[Given]) -> Tensor:
        """log p(x | values), every path summed out: `[*batch]`; differentiable in the values."""
        problem = self.problem(x, **given)
        with naming("x"):
            return problem.evidence(self.values_like(problem.series.observations))

    def filter(self, x: Any, **given: Unpack[Given]) -> Filtered:
        """P(s_t | x_1..t) and P(z_t = 1 | x_1..t) at every step, and log p(x_t | x_1..t-1)."""
        with naming("x"):
            return self.chain(x, **given).filter()

    def smooth(self, x: Any, **given: Unpack[Given]) -> Smoothed:
        """P(s_t | x) and P(z_t = 1 | x) at every step, given the whole series."""
        with naming("x"):
            return self.chain(x, **given).smooth()

    def viterbi(self, x: Any, **given: Unpack[Given]) -> Viterbi:
        """The most probable path of states and gates."""
        with naming("x"):
            return self.chain(x, **given).viterbi()

    def sample_posterior(self, x: Any, n: int, seed: Seed = None, **given: Unpack[Given]) -> Sampled:
        """n independent paths from the posterior given the whole series: `path [n, *batch, T]`."""
        with naming("x"):
            return self.chain(x, **given).sample(n, seed)

    def chain(self, x: Any, **given: Unpack[Given]) -> Chain:
        """The chain over paths that x defines: every exact algorithm of `inference` in one object."""
        problem = self.problem(x, **given)
        return problem.chain(self.values_like(problem.series.observations))

    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> Forecast:
        """States and observations at each of the `horizon` steps after the last one of x.

        With covariates or gaps, give those of the future too: `[*batch, T + horizon, C]` and `[*batch, T + horizon]`,
        for sequences of equal length.
        """
        horizon = check_integer("horizon", horizon)
        problem = self.problem(x, horizon=horizon, **given)
        problem.series.check_ahead(horizon)
        values = self.values_like(problem.series.observations)
        with naming("x"):
            weights = look_ahead(problem, values, horizon)
        return Forecast.of(self.emission, values, weights, problem.series, self)

    def product_of(self, values: Parameters) -> Parameters:
        """Parameters as those of the chain in `problem`: these themselves."""
        return values

    def probabilities(self, chain: Chain, values: Parameters) -> dict[str, tuple[Tensor, tuple[str, ...]]]:
        """What a reader asks of the whole series, by name: probabilities `[*r, *b, T, ...]`, and their axes after time.

        They are of the states; of a redraw, where there is a gate; and of a change of state, which is less.
        """
        smoothed = chain.smooth()
        redraw = {} if smoothed.redraw is None else {"redraw_probability": (smoothed.redraw, ())}
        change: dict[str, Any] = {"change_probability": (chain.change_probability(), ())}
        return {"state_probability": (smoothed.state, ("state",))} | redraw | change

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = ()) -> StreamState:
        """The state of a batch of streams before their first observation."""
        self.values_like(self._like)
        return StreamState(None, self._like.new_zeros(check_batch_shape("batch_shape", batch_shape)), 0)

    def update(
        self, state: StreamState, x_t: Any, *, covariates: Any = None, dt: Any = None
    ) -> tuple[StreamState, StreamOutput]:
        """Take in one observation of each stream: `x_t [*batch, F]` (or `[*batch]` for one feature), NaN where missing.

        `covariates [*batch, C]` and `dt [*batch]` are those of this step. Equal to `filter` on the whole series to
        rounding.
        """
        batch = tuple(state.log_evidence.shape)
        x_t = read_row(x_t, batch, self.emission.n_features)
        one: Given = {}
        if covariates is not None:
            table = one["covariates"] = to_tensor(covariates, "covariates")
            if tuple(table.shape) != (*batch, self.n_covariates):
                raise ValueError(
                    f"covariates: got shape {tuple(table.shape)}, expected {(*batch, self.n_covariates)}: this step's."
                )
            one["covariates"] = table.unsqueeze(len(batch))
        if dt is not None:
            gap = one["dt"] = to_tensor(dt, "dt").unsqueeze(-1)
            if tuple(gap.shape) != (*batch, 1):
                raise ValueError(f"dt: got shape {tuple(gap.shape[:-1])}, expected {batch}: the gap before this step.")
            if state.steps and not bool(((gap >= 0) & gap.isfinite()).all()):
                raise ValueError(f"dt: got {dt}, expected the time since the step before, a number of at least 0.")
        with naming("x_t"):
            problem = self.problem(x_t.unsqueeze(-2), **one)
        with naming("x_t"):
            step = problem.chain(self.values_like(x_t), state.belief).filter()
        redraw = torch.ones_like(step.log_increment) if step.redraw is None else step.redraw
        belief, increment = step.state[..., 0, :], step.log_increment[..., 0]
        after = StreamState(belief, state.log_evidence.to(x_t.device) + increment, state.steps + 1)
        return after, StreamOutput(belief, redraw[..., 0], increment)

    def durations(self, x: Any, **given: Unpack[Given]) -> Float[Tensor, "K"]:
        """The expected number of steps from entering each state to leaving it; where gaps are given, of units of time.

        With covariates, at the mean redraw probability of their steps.
        """
        series = self.read(x, **given)
        return self.dynamics.durations(self.values_like(series.observations), series.drive)

    # ---- what the verbs of all models ask of it --------------------------------------------------------------------

    def _fitted(self, series: Series, options: Any) -> Any:
        from .fit import Fit
        from .fitting.fit import check_enough, fit
        from .fitting.units import Units

        check_enough(series, self.n_states)
        Units.of(self.emission, series)  # names a feature of which no prior can be scaled
        model = self.scaled_to(series) if options.prior == "scaled" else self
        problem = model.problem(series)
        result = fit(replace(problem, prior=None) if options.prior is None else problem, options)
        return Fit.of(result, model._copy(result.values, model.prior), model)

    def _figures(self) -> Any:
        from .views import figures

        return figures

    def to_parts(self) -> tuple[dict[str, Named], dict[str, Tensor]]:
        """Itself as parts with arguments, and tensors by name: what files hold."""
        tensors = {f"value.{name}": value for name, value in self.values.items()}
        tensors |= {f"prior.{name}": table for name, table in self.prior.items()}
        return {"dynamics": self.dynamics, "emission": self.emission}, tensors

    @classmethod
    def from_parts(cls, parts: dict[str, Any], tensors: dict[str, Tensor]) -> "SwitchingSSM":
        """The model that `to_parts` has taken apart."""
        model = cls(parts["dynamics"], parts["emission"])
        prior = {name.removeprefix("prior."): t for name, t in tensors.items() if name.startswith("prior.")}
        values = {name.removeprefix("value."): t for name, t in tensors.items() if name.startswith("value.")}
        if set(prior) != set(model.prior):
            raise ValueError(f"prior: got {sorted(prior)}, but the model has {sorted(model.prior)}.")
        model = model.with_prior(prior)
        return model.with_values(values) if values else model
