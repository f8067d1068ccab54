r"""`SwitchingSSM`: a switching state-space model, put together from dynamics and an emission.

    parameters   theta ~ prior                        dynamics.sites, emission.sites
    path         (z, s) ~ p(z, s | theta)             Copy or Markov
    data         x_t ~ p(x_t | s_t, z_t, theta)       Normal, MultivariateNormal, Categorical, ...

The module is the Pyro program. Fresh from its constructor it has a prior and no parameter values, and running it draws
them; `with_values` or `fit` gives it values, and then every inference below is exact given those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from pyro.nn import PyroModule
from torch import Tensor

from ..inference.chains.contract import Chain, Filtered, Sampled, Smoothed, Viterbi
from ..inference.numerics.randomness import Seed
from .data.series import Sequences, read_sequences, to_tensor
from .dynamics import Drive, Dynamics
from .emissions import Emission, Gated
from .forecast import Forecast
from .parameters import Parameters, log_prior, sample_sites
from .program import PathMixture, Simulated, explicit_program

if TYPE_CHECKING:
    from .fitting.fit import Fit


@dataclass(frozen=True)
class StreamState:
    """What a stream remembers: the belief about the last state, and the evidence so far."""

    belief: Float[Tensor, "*b K"] | None
    log_evidence: Float[Tensor, "*b"]
    steps: int


@dataclass(frozen=True)
class StreamOutput:
    """What one observation of a stream says."""

    state: Float[Tensor, "*b K"]
    redraw: Float[Tensor, "*b"]
    log_increment: Float[Tensor, "*b"]


class SwitchingSSM(PyroModule):
    """A switching state-space model.

    Arguments:
        dynamics: `Copy(n_states)` or `Markov(n_states)`.
        emission: `Normal(n_features)`, `MultivariateNormal(n_features)`, `Categorical(n_categories)`,
            `Bernoulli(n_features)`, `Poisson(n_features)` or `Gated(emission, background)`.

    Every method that takes `x` takes it as a tensor `[T]`, `[T, F]` or `[*batch, T, F]`, a numpy array, a pandas object
    or a list of ragged sequences, with NaN for what is missing, and `lengths`; with `Copy` dynamics also `covariates
    [*batch, T, C]` and `dt [*batch, T]`, the gap before each step. Results have the batch axes of `x`.
    """

    def __init__(self, dynamics: Dynamics, emission: Emission) -> None:
        super().__init__()
        if not isinstance(dynamics, Dynamics):
            raise TypeError(f"dynamics: got {type(dynamics).__name__}, expected Copy(n_states) or Markov(n_states).")
        if not isinstance(emission, Emission):
            raise TypeError(
                f"emission: got {type(emission).__name__}, expected an emission such as Normal(n_features)."
            )
        n_features = emission.n_features
        if not isinstance(n_features, int) or n_features < 1:
            raise ValueError(f"n_features: got {n_features!r}, expected an integer of at least 1.")
        if isinstance(emission, Gated) and not dynamics.holds:
            raise ValueError("emission: Gated needs Copy dynamics; a Markov chain has no held steps.")
        self.dynamics, self.emission = dynamics, emission
        self.prior: Parameters = dynamics.default_prior() | emission.default_prior(dynamics.n_states, None)
        self._names: tuple[str, ...] = ()

    @property
    def n_states(self) -> int:
        return self.dynamics.n_states

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    def values(self) -> Parameters:
        """The parameter values by name; empty while the model has only a prior."""
        return {name: getattr(self, name) for name in self._names}

    def with_values(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> "SwitchingSSM":
        """The same model with these parameter values, e.g. `redraw_prob=0.1, state_probs=[...], loc=[[...]],
        scale=[[...]]`.

        Raises:
            ValueError: a parameter is missing, unknown, or outside its space.
        """
        given = {name: to_tensor(value, name) for name, value in {**(values or {}), **named}.items()}
        own = self.dynamics.check_values(given) | self.emission.check_values(given)
        unknown = set(given) - set(own) - {"scale", "covariance", "background_scale", "background_covariance"}
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {sorted(unknown)}; this model has {sorted(own)}.")
        for name, dims in self.emission.event_dims.items():
            n_states = own[name].shape[own[name].ndim - 1 - dims]
            expected = 1 if name.startswith("background_") else self.n_states
            if n_states != expected:
                raise ValueError(f"{name}: got {n_states} rows, but the model has {expected} state(s) here.")
        return self._copy(own, self.prior)

    def without_values(self) -> "SwitchingSSM":
        """The same model with only its prior: what SVI and NUTS sample."""
        return self._copy({}, self.prior)

    def with_prior(self, prior: Parameters) -> "SwitchingSSM":
        """The same model with other hyperparameters, named and shaped as in `model.prior`."""
        for name, table in prior.items():
            if name not in self.prior or table.shape != self.prior[name].shape:
                expected = {n: tuple(t.shape) for n, t in self.prior.items()}
                raise ValueError(f"prior: got {name} of shape {tuple(table.shape)}, expected {expected}.")
        return self._copy(self.values, self.prior | prior)

    def scaled_to(self, x: Any) -> "SwitchingSSM":
        """The same model with the emission's prior scaled to the observations x, as `fit` does."""
        series = self.read(x)
        rows = series.values.reshape(-1, self.emission.n_features)
        prior = self.dynamics.default_prior() | self.emission.default_prior(self.n_states, rows)
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

    def prior_like(self, x: Tensor) -> Parameters:
        """The prior's hyperparameters in the dtype and on the device of x."""
        return {name: table.to(x) for name, table in self.prior.items()}

    def log_prior(self, values: Parameters) -> Tensor:
        """Log density of the prior at parameter values: `[*r]`."""
        prior = self.prior_like(next(iter(values.values())))
        return log_prior(self.dynamics.sites(prior) + self.emission.sites(prior), values)

    def describe(self) -> Parameters:
        """The parameter values as a reader knows them: scales and covariances rather than precisions."""
        return self.dynamics.describe({n: v for n, v in self.values.items() if n not in self.emission.event_dims}) | (
            self.emission.describe(self.values)
        )

    # ---- the Pyro program ------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Any = None,
        *,
        lengths: Any = None,
        n_steps: int | None = None,
        batch_shape: tuple[int, ...] = (),
        covariates: Any = None,
        dt: Any = None,
    ) -> Tensor:
        """The generative program with a site for every gate, state and observation; conditioned on x where given."""
        series, n_steps, batch_shape = self._extent(x, lengths, n_steps, batch_shape)
        like = self._reference(series)
        drive = self._drive(covariates, dt, like, batch_shape, n_steps)
        observed = None if series is None else series.values
        counts = None if series is None else series.lengths
        return explicit_program(
            self.dynamics, self.emission, self._drawn(like), observed, n_steps, torch.Size(batch_shape), drive, counts
        )

    def collapsed(
        self,
        x: Any = None,
        *,
        lengths: Any = None,
        n_steps: int | None = None,
        batch_shape: tuple[int, ...] = (),
        covariates: Any = None,
        dt: Any = None,
    ) -> Tensor:
        """The same density with the paths summed out: one site `x`, whose log probability is the chain's
        log-normaliser."""
        import pyro

        series, n_steps, batch_shape = self._extent(x, lengths, n_steps, batch_shape)
        like = self._reference(series)
        drive = self._drive(covariates, dt, like, batch_shape, n_steps)
        counts = None if series is None else series.lengths
        mixture = PathMixture(
            self.dynamics, self.emission, self._drawn(like), n_steps, torch.Size(batch_shape), drive, counts
        )
        with pyro.plate_stack("sequences", batch_shape):
            return pyro.sample("x", mixture, obs=None if series is None else series.values)

    def simulate(
        self,
        n_steps: int,
        batch_shape: tuple[int, ...] = (),
        *,
        covariates: Any = None,
        dt: Any = None,
        seed: int | None = None,
    ) -> Simulated:
        """Draw sequences from the model with its values; a seed makes the draw repeatable and leaves global state
        alone."""
        like = self._reference(None)
        drive = self._drive(covariates, dt, like, batch_shape, n_steps)
        mixture = PathMixture(
            self.dynamics, self.emission, self.values_like(like), n_steps, torch.Size(batch_shape), drive
        )
        if seed is None:
            return mixture.simulate()
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            torch.random.manual_seed(seed)
            of_paths = int(torch.randint(2**62, ()))  # a stream of its own: equal seeds would tie noise to gates
            return mixture.simulate(seed=torch.Generator(like.device).manual_seed(of_paths))

    # ---- inference given the values --------------------------------------------------------------------------------

    def log_evidence(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Tensor:
        """log p(x | values), every path summed out: `[*batch]`; differentiable in the values."""
        return self.chain(x, lengths=lengths, covariates=covariates, dt=dt).log_normalizer()

    def filter(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Filtered:
        """P(s_t | x_1..t) and P(z_t = 1 | x_1..t) at every step, and log p(x_t | x_1..t-1)."""
        return self.chain(x, lengths=lengths, covariates=covariates, dt=dt).filter()

    def smooth(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Smoothed:
        """P(s_t | x) and P(z_t = 1 | x) at every step, given the whole series."""
        return self.chain(x, lengths=lengths, covariates=covariates, dt=dt).smooth()

    def viterbi(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Viterbi:
        """The most probable path of states and gates."""
        return self.chain(x, lengths=lengths, covariates=covariates, dt=dt).viterbi()

    def sample_posterior(
        self,
        x: Any,
        n: int,
        *,
        lengths: Any = None,
        covariates: Any = None,
        dt: Any = None,
        seed: Seed = None,
    ) -> Sampled:
        """n independent paths from the posterior given the whole series: `path [n, *batch, T]`."""
        return self.chain(x, lengths=lengths, covariates=covariates, dt=dt).sample(n, seed)

    def chain(self, x: Any, *, lengths: Any = None, covariates: Any = None, dt: Any = None) -> Chain:
        """The chain over paths that x defines: every exact algorithm of `inference` in one object."""
        series = self.read(x, lengths)
        drive = self._drive(covariates, dt, series.values, series.batch_shape, series.values.shape[-2])
        values = self.values_like(series.values)
        likelihood = self.emission.log_likelihood(series.values, values)
        return self.dynamics.chain(values, likelihood, drive, series.lengths)

    def forecast(
        self, x: Any, horizon: int, *, lengths: Any = None, covariates: Any = None, dt: Any = None
    ) -> Forecast:
        """States and observations at each of the `horizon` steps after the last one of x.

        With covariates or gaps, give those of the future too: `[*batch, T + horizon, C]` and `[*batch, T + horizon]`,
        for sequences of equal length.
        """
        if not isinstance(horizon, int) or horizon < 1:
            raise ValueError(f"horizon: got {horizon!r}, expected a number of steps of at least 1.")
        series = self.read(x, lengths)
        n_steps, batch = series.values.shape[-2], series.batch_shape
        whole = self._drive(covariates, dt, series.values, batch, n_steps + horizon)
        if series.lengths is not None and (whole.covariates is not None or whole.dt is not None):
            raise ValueError(
                "lengths: forecasts with covariates or dt need sequences of equal length; forecast one at a time."
            )
        values = self.values_like(series.values)
        likelihood = self.emission.log_likelihood(series.values, values)
        filtered = self.dynamics.chain(values, likelihood, whole.at(slice(0, n_steps)), series.lengths).filter()
        belief = filtered.state[..., -1, :]
        if series.lengths is not None:
            last = (series.lengths - 1)[..., None, None].expand(*batch, 1, self.n_states)
            belief = filtered.state.gather(-2, last).squeeze(-2)
        future = whole.at(slice(n_steps, None))
        return Forecast.of(self.emission, values, self.dynamics.propagate(values, belief, future, horizon))

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = ()) -> StreamState:
        """The state of a batch of streams before their first observation."""
        like = self._reference(None)
        self.values_like(like)
        return StreamState(None, like.new_zeros(batch_shape), 0)

    def update(
        self, state: StreamState, x_t: Any, *, covariates: Any = None, dt: Any = None
    ) -> tuple[StreamState, StreamOutput]:
        """Take in one observation of each stream: `x_t [*batch, F]` (or `[*batch]` for one feature), NaN where missing.

        `covariates [*batch, C]` and `dt [*batch]` are those of this step. Equal to `filter` on the whole series to
        rounding.
        """
        batch = tuple(state.log_evidence.shape)
        x_t = to_tensor(x_t, "x_t")
        if self.emission.n_features == 1 and tuple(x_t.shape) == batch:
            x_t = x_t.unsqueeze(-1)
        if tuple(x_t.shape) != (*batch, self.emission.n_features):
            raise ValueError(f"x_t: got shape {tuple(x_t.shape)}, expected {(*batch, self.emission.n_features)}.")
        values = self.read(x_t.unsqueeze(-2)).values
        one = [None if d is None else to_tensor(d, "drive").unsqueeze(len(batch)) for d in (covariates, dt)]
        drive = self._drive(one[0], one[1], values, batch, 1)
        own = self.values_like(values)
        likelihood = self.emission.log_likelihood(values, own)
        step = self.dynamics.chain(own, likelihood, drive, belief=state.belief).filter()
        redraw = torch.ones_like(step.log_increment) if step.redraw is None else step.redraw
        out = StreamOutput(step.state[..., 0, :], redraw[..., 0], step.log_increment[..., 0])
        return StreamState(out.state, state.log_evidence + out.log_increment, state.steps + 1), out

    # ---- fitting and storing ---------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any,
        method: str = "em",
        restarts: int = 8,
        max_steps: int = 500,
        tol: float = 1e-6,
        seed: int = 0,
        lengths: Any = None,
        progress: bool = True,
        *,
        prior: str | None = "scaled",
        covariates: Any = None,
        dt: Any = None,
        factorization: str = "structured",
        batch_size: int | None = None,
    ) -> "Fit":
        """Fit the parameters to sequences.

        Arguments:
            method: "em", expectation-maximisation: the mode of the posterior, or maximum likelihood with `prior=None`.
                "vmp", variational message passing: q(parameters) q(paths), under a bound on the evidence. "svi" and
                "nuts", through Pyro on the collapsed density, from a fit by message passing: a normal guide in each
                unconstrained parameter, and draws from the posterior. These three fill in `Fit.posterior`.
            restarts: how many starts are run as one batch (k-means++ and random labellings in turn); the best is kept.
            max_steps: steps of EM, VMP (at most) or SVI; draws of each of 2 chains of NUTS, after half as many more.
            tol: a restart has converged when its objective changes by less than `tol` relative to its size.
            seed: of the starts; the same seed gives the same fit.
            progress: show a progress bar on a terminal.
            prior: "scaled" scales the emission's default prior to x; "own" takes `model.prior` as it stands.
            factorization: of q(paths) in VMP: "structured", the exact chain, or "mean_field", every step on its own.
            batch_size: sequences after which VMP updates the parameters, by a step that shrinks as it goes on (see
                `minibatches`); a step of `max_steps` is then a pass through all sequences. None: all sequences.

        Returns:
            `Fit`, with `.model` (this model with its values), the objective's trace and each restart's end.
            Interrupting it (Ctrl-C) returns the best so far, marked `interrupted`.

        Raises:
            ValueError: see `read_sequences`; values outside the emission's support; a feature without any observation;
                fewer observations than states; a prior without a mode.
        """
        from .fitting.fit import fit_model

        return fit_model(
            self,
            x,
            method,
            restarts,
            max_steps,
            tol,
            seed,
            lengths,
            progress,
            prior,
            covariates,
            dt,
            factorization,
            batch_size,
        )

    def save(self, path: str | Path) -> None:
        """Write the model into the folder `path`: `model.json` (structure) and `values.safetensors` (numbers)."""
        from .storage import save_model

        save_model(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> "SwitchingSSM":
        """Read a model that `save` has written."""
        from .storage import load_model

        return load_model(Path(path))

    # ---- reading arguments -----------------------------------------------------------------------------------------

    def read(self, x: Any, lengths: Any = None) -> Sequences:
        """The observations as `Sequences`, checked against the emission's support."""
        series = read_sequences(x, self.emission.n_features, lengths)
        self.emission.check(series.values)
        return series

    def _drive(self, covariates: Any, dt: Any, like: Tensor, batch_shape: Any, n_steps: int) -> Drive:
        given = {
            name: None if d is None else to_tensor(d, name).to(like)
            for name, d in (("covariates", covariates), ("dt", dt))
        }
        drive = Drive(**given)
        self.dynamics.check_drive(drive, torch.Size(batch_shape), n_steps)
        return drive

    def _extent(
        self, x: Any, lengths: Any, n_steps: int | None, batch_shape: tuple[int, ...]
    ) -> tuple[Sequences | None, int, tuple[int, ...]]:
        if x is not None:
            series = self.read(x, lengths)
            return series, series.values.shape[-2], tuple(series.batch_shape)
        if n_steps is None or n_steps < 1:
            raise ValueError(f"n_steps: got {n_steps}; without x, give the number of steps to draw.")
        return None, n_steps, tuple(batch_shape)

    def _reference(self, series: Sequences | None) -> Tensor:
        """A tensor whose dtype and device the computation takes: the data's, else the values', else the prior's."""
        if series is not None:
            return series.values
        tables = self.values or self.prior
        return next(iter(tables.values()))

    def _drawn(self, like: Tensor) -> Parameters:
        """The values, or where there are none a draw from the prior as Pyro sites."""
        if self._names:
            return self.values_like(like)
        prior = self.prior_like(like)
        return sample_sites(self.dynamics.sites(prior) + self.emission.sites(prior))
