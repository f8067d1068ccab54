r"""`LinearSSM`: a state-space model whose hidden state is a real vector, with linear dynamics and emission.

$$s_1 \sim N(m, P), \quad s_{t+1} = A s_t + c + N(0, Q), \quad x_t = C s_t + d + N(0, R)$$

also called a linear dynamical system. Given values, all inference is exact, by a `LinearGaussianChain`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.linear_gaussian.chain import LinearGaussianChain
from ...inference.chains.linear_gaussian.records import GaussianFiltered, GaussianSampled, GaussianSmoothed
from ...inference.numerics.checks import naming
from ...inference.numerics.placement import constant
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_batch_shape, check_choice, check_integer, check_kind
from ...inference.numerics.user_warnings import warn_user
from ..base import Model, Probabilities
from ..data.design import read_inputs
from ..data.ragged import by_sequence
from ..data.reading import read_row
from ..data.series import Given, Series, number
from ..fitting.options import METHODS, Options
from ..inputs import Inputs
from ..parameters import Parameter, Parameters, check_parameters
from ..peers import explains_options
from ..seeding import in_turn, seeded
from ..user_priors import as_text, is_distribution, merged
from .bases import n_bases
from .contract import LinearDynamics, LinearGaussian
from .emission import IN_ANY_BASIS, Irregular, LinearEmission
from .forecast import LinearForecast
from .priors import units_of
from .problem import LinearProblem, known, sizes
from .program import linear_program
from .stationary import EDGE, at_edge
from .streams import LinearStreamOutput, LinearStreamState
from .structure import Structure

if TYPE_CHECKING:
    from ..fit import Fit
    from ..views.panels import Curve, Panels

NOISES = ("diagonal", "full")


@dataclass(frozen=True, repr=False)
class LinearSimulated(Record):
    """A draw of the whole model."""

    x: Float[Tensor, "*b T F"]
    latent: Float[Tensor, "*b T L"]


class LinearSSM(Model):
    r"""A linear Gaussian state-space model.

    Arguments:
        n_latent: L, the length of the latent vector.
        n_features: F, the length of one observation.
        observation_noise: "diagonal", a variance for each feature; or "full", a covariance. Steps with some missing
            features are used in both.
        structure: the components of one series instead of n_latent, such as `LocalLevel() + Seasonal(12)`. It may be
            the first argument, as in `LinearSSM(LocalLevel())`.

    Parameters are those of `LinearGaussian`, `emission` [F, L], `emission_offset` [F] and `observation_noise`, [F]
    variances or an [F, F] covariance; or those of the structure and `sigma2.irregular`. Methods accept x as
    `SwitchingSSM` does, with `lengths`. The start of a structure is diffuse, except for stationary components. Its
    evidence is then a limit, see `LinearGaussianChain`.

    `n_parameters` counts the numbers that the data determine. Another basis of the latent space, $s \to M s + b$, is
    the same model, so there are L^2 + L fewer of these than numbers in the tables.

    Raises:
        TypeError: neither n_latent nor a structure, or both.
        ValueError: sizes below 1; an unknown observation_noise; several features with a structure.

    Durbin & Koopman 2012, *Time Series Analysis by State Space Methods*, chapters 3 to 5.

    See Also:
        `LocalLevel` and `Seasonal`, components of a structure; `SwitchingLinearSSM`, with regimes;
        docs/guides/linear.md.

    >>> import samplehold as sh
    >>> model = sh.LinearSSM(sh.LocalLevel()).with_values({"sigma2.irregular": 15098.518, "sigma2.level": 1469.1764})
    >>> model
    LinearSSM(LocalLevel())
      sigma2.irregular: 1.51e+04
      sigma2.level: 1469
    >>> model.smooth([1120.0, 1160.0, 963.0, 1210.0]).mean[0].round()
    tensor([1114.], dtype=torch.float64)
    """

    made_of: ClassVar[tuple[str, ...]] = ("dynamics", "emission")
    methods: ClassVar[tuple[str, ...]] = METHODS[:4]
    in_any_basis = IN_ANY_BASIS
    reading = "LocalLevel() + Regression(inputs=[...])"
    dynamics: LinearDynamics
    emission: LinearEmission | Irregular

    def __init__(
        self,
        n_latent: Any = None,
        n_features: int = 1,
        observation_noise: str = "diagonal",
        *,
        structure: Any = None,
    ) -> None:
        if isinstance(n_latent, LinearDynamics):
            n_latent, structure = None, n_latent
        if (n_latent is None) == (structure is None):
            raise TypeError("n_latent, structure: give one of them, such as LinearSSM(2) or LinearSSM(LocalLevel()).")
        if structure is None:
            structure = LinearGaussian(check_integer("n_latent", n_latent))
        check_kind("structure", structure, LinearDynamics, "a structure such as LocalLevel()")
        n_features = check_integer("n_features", n_features)
        full = check_choice("observation_noise", observation_noise, NOISES) == "full"
        emission: LinearEmission | Irregular = LinearEmission(n_features, full)
        if isinstance(structure, Structure):
            if n_features > 1:
                raise ValueError(
                    f"n_features: got {n_features}, but {structure!r} describes one series; use LinearSSM(n_latent, "
                    "n_features), or a model for each."
                )
            emission = Irregular(structure)
            if not known(structure, emission):
                raise ValueError(f"structure: got {structure!r}, which has no noise; give one with some.")
        super().__init__(dynamics=structure, emission=emission)

    @classmethod
    def _from_specification(cls, parts: dict[str, Any]) -> "LinearSSM":
        dynamics = check_kind("dynamics", parts["dynamics"], LinearDynamics, "dynamics of a linear model")
        emission = check_kind(
            "emission", parts["emission"], (LinearEmission, Irregular), "the emission of a linear model"
        )
        noise = NOISES[emission.full] if isinstance(emission, LinearEmission) else NOISES[0]
        model = cls(dynamics, emission.n_features, noise)
        if emission.prior is not None:
            model = model.with_prior(emission.prior)
        if model.emission != emission:
            raise ValueError(f"emission: got {emission!r}, but the model has {model.emission!r}.")
        return model

    def _made(self) -> str:
        if isinstance(self.emission, Irregular):
            return f"{self.name}({self.dynamics!r})"
        noise = ', observation_noise="full"' if self.emission.full else ""
        prior = f", {text}" if (text := as_text(self.emission.prior)) else ""
        return f"{self.name}({self.n_latent}, n_features={self.n_features}{noise}{prior})"

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    def n_latent(self) -> int:
        """L, the length of the latent vector."""
        return self.dynamics.n_latent

    @property
    def latents(self) -> tuple[str, ...]:
        """The names of the entries of the latent vector."""
        return self.dynamics.latents

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        return self.emission.n_features

    @property
    def known(self) -> dict[str, Parameter]:
        """The axes, support and displayed form of each parameter."""
        return known(self.dynamics, self.emission)

    @property
    def inputs(self) -> Inputs:
        """The inputs of a structure with a `Regression`."""
        return self.dynamics.inputs

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        return sizes(self.dynamics, self.emission)

    def n_free(self, fixed: Iterable[str]) -> int:
        """The number of free parameters that the data determine."""
        return super().n_free(fixed) - (0 if isinstance(self.emission, Irregular) else n_bases(self._values, fixed))

    def _checked(self, values: Parameters) -> Parameters:
        emission_values = check_parameters(self.emission.parameters, values, self.sizes, self.name)
        return self.dynamics.check_values(values) | emission_values

    def _weak_prior(self, series: Series | None) -> Parameters:
        units = units_of(self.emission, series)
        return {"center": units.about, "spread": units.unit}

    def _check_prior(self, prior: Parameters) -> None:
        parameters = {"center": Parameter(("feature",)), "spread": Parameter(("feature",), constraints.positive)}
        check_parameters(parameters, prior, self.sizes, self.name)

    def with_prior(self, prior: Mapping[str, Any]) -> "LinearSSM":
        """The same model with other hyperparameters, with names and shapes as in `model.prior`. A fit keeps these, and
        scales the others to the data. A structure also accepts distributions of Pyro, one for each of some parameters.
        A model of tables accepts them for `emission_offset` and `observation_noise`. No linear change of the latent
        vector changes these two.

        Distributions are for values in the units of the data: of variances by their names, or of standard deviations,
        such as `sigma.level` for `sigma2.level`. Weights of one autoregression have all a prior, or none. Densities
        are 0 outside the stationary ones, and outside the range of a frequency or damping. Parameters without a
        distribution keep the prior of `switching.linear.priors`.

        Raises:
            TypeError: a distribution of a table that depends on the basis of the latent vector.
            ValueError: other names or shapes; numbers that are not finite or not valid hyperparameters; a distribution
                that does not fit its parameter, or with an infinite density at 0.

        >>> import pyro.distributions as dist
        >>> import samplehold as sh
        >>> prior = {"sigma2.irregular": dist.InverseGamma(2.0, 5.0), "sigma.level": dist.HalfNormal(1.0)}
        >>> model = sh.LinearSSM(sh.LocalLevel()).with_prior(prior)
        >>> model.fit([14.0, 15.5, 15.0, 17.1, 16.2, 18.0, 16.9], progress=False).model
        LinearSSM(LocalLevel())
          sigma2.irregular: 1.297
          sigma2.level: 0.3883
        """
        check_kind("prior", prior, Mapping, "hyperparameters or distributions by name")
        if isinstance(self.emission, Irregular):
            distributions = {n: value for n, value in prior.items() if n not in self.prior or is_distribution(value)}
        else:
            distributions = {n: value for n, value in prior.items() if is_distribution(value) and n in IN_ANY_BASIS}
        model = super().with_prior({name: value for name, value in prior.items() if name not in distributions})
        if distributions:
            emission = self.emission
            both = merged(emission.prior or {}, distributions, emission.forms)
            vars(model).update(emission=replace(emission, prior=both))
        return model

    def at_ends(self) -> list[str]:
        if not isinstance(self.emission, Irregular):
            return []
        values = self.values
        sentences = self._unfading()
        for name, (low, high) in self.emission.ranges.items():
            for end in (low, high):
                if abs(float(values[name]) - end) <= EDGE * (high - low):
                    of_prior = " of its prior" if name in self.emission.user_priors else ""
                    sentences.append(f"{name}: at the end {end:g} of the range{of_prior}.")
        return sentences

    def _unfading(self) -> list[str]:
        """A sentence about each autoregression at the edge of stationarity."""
        assert isinstance(self.emission, Irregular)
        return [
            f"{', '.join(names)}: at the edge of stationarity, where shocks do not fade; a LocalLevel(), a "
            "LocalLinearTrend() or a Cycle() describes that, or give the weights a prior."
            for names in self.emission.structure.orders.values()
            if at_edge(torch.stack([self.values[name] for name in names], -1))
        ]

    # ---- observations ----------------------------------------------------------------------------------------------

    def problem(self, x: Any, **given: Unpack[Given]) -> LinearProblem:
        """Dynamics, emission, prior, and the series x, as one input for inference.

        Raises:
            ValueError: see `read`; a series too short to determine a diffuse start.
        """
        series = self.read(x, **given)
        if any(self.dynamics.diffuse):
            self._check_long_enough(series)
        return self._problem(series)

    def _problem(self, series: Series) -> LinearProblem:
        prior = {name: table.to(series.like) for name, table in self.prior.items()}
        return LinearProblem(self.dynamics, self.emission, series, prior)

    def _check_long_enough(self, series: Series) -> None:
        needed = sum(self.dynamics.diffuse)
        short = ((seen := series.n_seen) < needed).nonzero()
        if len(short):
            place = tuple(short[0].tolist())
            which = f" of sequence {number(place)}" if place else ""
            raise ValueError(
                f"x: got {int(seen[place])} observed step(s){which}, but {self.dynamics!r} starts with {needed} "
                "unknown numbers; give at least as many steps, or a structure with fewer."
            )

    def _check_determined(self, series: Series, fixed: Iterable[str]) -> None:
        """ValueError if a sequence determines nothing but its diffuse start, a warning if it determines the free
        variances only together: r numbers beyond the start have r (r + 1) / 2 covariances."""
        needed = sum(self.dynamics.diffuse)
        if not needed or not isinstance(self.emission, Irregular):
            return
        known, seen = {*fixed, *self.emission.user_priors}, int(series.n_seen.max())
        free = [name for name in self.known if name.startswith("sigma2.") and name not in known]
        if (seen - needed) * (seen - needed + 1) / 2 >= len(free):
            return
        if seen > needed:
            warn_user(
                f"x: got {seen} observed step(s), which determine {', '.join(free)} only together, so each is "
                "arbitrary; give more steps, or fix one of them with fixed=."
            )
            return
        raise ValueError(
            f"x: got {seen} observed step(s), which only determine where {self.dynamics!r} starts, so "
            f"{', '.join(free)} can have any value; give at least {needed + 1} steps."
        )

    # ---- inference given the values --------------------------------------------------------------------------------

    def chain(self, x: Any, **given: Unpack[Given]) -> LinearGaussianChain:
        """The chain over the latent paths of x. It has every exact algorithm."""
        problem = self.problem(self.read(x, **given).as_table("give"))
        return problem.chain(self.values_like(problem.series.like))

    def log_evidence(self, x: Any, **given: Unpack[Given]) -> Tensor:
        """log p(x) of each sequence, `[*batch]`; for a diffuse start its limit, see `LinearGaussianChain`."""
        problem = self.problem(x, **given)
        return problem.evidence(self.values_like(problem.series.like))

    @by_sequence()
    def filter(self, x: Any, **given: Unpack[Given]) -> GaussianFiltered:
        """The belief about the latents before and after each observation."""
        return self.chain(x, **given).filter()

    @by_sequence()
    def smooth(self, x: Any, **given: Unpack[Given]) -> GaussianSmoothed:
        """The belief about the latents given the whole series, with the covariances of successive steps."""
        return self.chain(x, **given).smooth()

    @by_sequence(draws=True)
    def sample_posterior(self, x: Any, n: int, seed: Seed = None, **given: Unpack[Given]) -> GaussianSampled:
        """n independent draws of the latents given the whole series: `latent [n, *batch, T, L]`."""
        return self.chain(x, **given).sample(n, seed)

    @explains_options
    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> LinearForecast:
        """Latents and observations at each of the `horizon` steps after the end of x.

        If the model reads inputs, pass future ones too: `[*batch, T + horizon, C]`. All sequences must then have equal
        lengths.
        """
        horizon = check_integer("horizon", horizon)
        series = self.read(x, horizon=horizon, **given)
        series.check_ahead(horizon)
        if series.inputs is None:
            problem, values = self.problem(series), self.values_like(series.like)
            parts = problem.by_group(lambda part: vars(part.chain(values).forecast(horizon)))
            tables = {n: problem.of_all([part[n] for part in parts], t.ndim - 1) for n, t in parts[0].items()}
            return LinearForecast(**tables, series=series, source=self)
        self._check_long_enough(series)
        return LinearForecast(*self._ahead(series, horizon), series=series, source=self)

    @torch.no_grad()
    def _ahead(self, series: Series, horizon: int) -> tuple[Tensor, ...]:
        """The tables of a forecast with inputs: of latents, then of observations, means and covariances."""
        x = series.observations
        coming = x.new_full((*x.shape[:-2], horizon, x.shape[-1]), torch.nan)
        problem = self._problem(replace(series, x=torch.cat([x, coming], -2), lengths=None, index=None))
        values = self.values_like(x)
        filtered, (tables, _) = problem.chain(values).filter(), problem.tables(values)
        mean = filtered.predicted_mean[..., -horizon:, :]
        covariance = filtered.predicted_covariance[..., -horizon:, :, :]
        emission, noise = tables["emission"][..., -horizon:, :, :], tables["observation_noise"].unsqueeze(-3)
        seen = (emission @ mean.unsqueeze(-1)).squeeze(-1)
        return mean, covariance, seen, emission @ covariance @ emission.mT + noise

    @explains_options
    def simulate(
        self, n_steps: int, batch_shape: tuple[int, ...] = (), *, seed: Seed = None, inputs: Any = None
    ) -> LinearSimulated:
        """A draw of latents and observations; a diffuse start is drawn as 0.

        A seed makes the draw repeatable and does not touch global state. A structure with a `Regression` takes
        `inputs [*batch, n_steps, C]`.

        Arguments:
            inputs: of all steps, `[*batch, T, C]`.
        """
        n_steps, batch_shape = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        some = tuple(max(1, n) for n in batch_shape)  # Pyro's plates are never empty
        blank = self._like.new_full((*batch_shape, n_steps, self.n_features), torch.nan)
        inputs = self.read(blank, inputs=inputs).design
        if inputs is not None and some != batch_shape:
            inputs = inputs.new_zeros(*some, *inputs.shape[-2:])
        with seeded(seed, self._like):
            drawn = self._drawn(None, n_steps, some, inputs)
        if some != batch_shape:
            drawn = tuple(table.new_zeros(*batch_shape, *table.shape[len(some) :]) for table in drawn)
        return LinearSimulated(*drawn)

    @in_turn()
    def forward(
        self,
        x: Tensor | None = None,
        *,
        n_steps: int | None = None,
        batch_shape: tuple[int, ...] = (),
        inputs: Any = None,
    ) -> Tensor:
        """The Pyro program: sites `s_t` and `x_t`, t from 1; conditioned on x if it is given. Returns the
        observations.

        Arguments:
            inputs: of all steps, if there is no x.
        """
        n_steps = 1 if n_steps is None else n_steps
        blank = self._like.new_full((*batch_shape, n_steps, self.n_features), torch.nan)
        inputs = self.read(blank if x is None else x, inputs=inputs).design if self.n_inputs else None
        return self._drawn(x, n_steps, batch_shape, inputs)[0]

    def _drawn(
        self, x: Tensor | None, n_steps: int, batch_shape: tuple[int, ...], inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        like = torch.zeros((), dtype=torch.float64, device="cpu") if x is None else x
        values = self.values if x is None and self.values else self.values_like(like)
        moves, sights = self.dynamics.moves(values), self.emission.sights(values, inputs)
        diffuse = constant(tuple(self.dynamics.diffuse), torch.bool, moves.transition.device)
        return linear_program(moves, sights, diffuse, x, n_steps, batch_shape)

    def probabilities(self, chain: Any, values: Parameters) -> Probabilities:
        """Means and standard deviations of the latents given the whole series: `[*r, *b, T, L]`."""
        smoothed = chain.smooth()
        return {"latent_mean": (smoothed.mean, ("latent",)), "latent_sd": (_spread(smoothed.covariance), ("latent",))}

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = ()) -> LinearStreamState:
        """The state of a batch of streams before their first observation.

        Arguments:
            batch_shape: the batch axes of the streams; () for a single stream.
        """
        self.values_like(self._like)  # raises an error if there are no values
        empty = self._like.new_zeros(check_batch_shape("batch_shape", batch_shape))
        return LinearStreamState(None, None, empty, 0)

    def update(
        self, state: LinearStreamState, x_t: Any, *, inputs: Any = None
    ) -> tuple[LinearStreamState, LinearStreamOutput]:
        """Add one observation of each stream: `x_t [*batch, F]` (or `[*batch]` for one feature), NaN where missing.

        `inputs [*batch, C]` are those of this step. The result equals `filter` on the whole series, to rounding.
        While the observations of some stream do not determine its diffuse start, the output is NaN. The step that
        determines it adds the evidence of all steps so far.
        """
        check_kind("state", state, LinearStreamState, "the state from start() or update()")
        batch = tuple(state.log_evidence.shape)
        x_t = read_row(x_t, batch, self.n_features)
        x, so_far = x_t.unsqueeze(-2), state.log_evidence.to(x_t.device)
        inputs = self.read(x, inputs=read_inputs(inputs, x_t, self.inputs)).design
        if state.mean is None or state.covariance is None:
            x = x if state.pending is None else torch.cat([state.pending, x], -2)
            if inputs is not None and state.pending_inputs is not None:
                inputs = torch.cat([state.pending_inputs, inputs], -2)
        try:
            with naming("x_t"):
                problem, values = self._problem(self.read(x, inputs=inputs)), self.values_like(x)
                if state.mean is None or state.covariance is None:
                    filtered = problem.chain(values).filter()
                else:
                    filtered = problem.after(values, state.mean, state.covariance).filter()
        except ValueError as error:
            if not str(error).startswith("diffuse"):
                raise
            open_now = x_t.new_full((*batch, self.n_latent), torch.nan)
            output = LinearStreamOutput(open_now, torch.diag_embed(open_now), torch.full_like(so_far, torch.nan))
            return replace(state, pending=x, pending_inputs=inputs, steps=state.steps + 1), output
        mean, covariance = filtered.mean[..., -1, :], filtered.covariance[..., -1, :, :]
        after = LinearStreamState(mean, covariance, so_far + filtered.log_normalizer, state.steps + 1)
        return after, LinearStreamOutput(mean, covariance, filtered.log_normalizer)

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
        group: Any = None,
        checkpoint: str | Path | None = None,
        every: float = 60.0,
        lengths: Any = None,
        inputs: Any = None,
        input_names: Any = None,
    ) -> "Fit[Any]":
        """Fit the parameters to sequences.

        For a structure, Newton's method maximises the log-likelihood, or the log posterior, from a start of each kind
        of solution (see `switching.linear.kinds`), whatever the seed. Other models are fitted by message passing, to
        the mode ("em") or to a posterior ("vmp").

        Arguments:
            x: sequences and the arguments beside them, as in `read`; or a `Series`.
            method: "em": the mode of the posterior, or maximum likelihood. "vmp": independent q of the transition,
                the emission, the first state and the latents, by maximising a bound on the evidence; not for
                structures. "svi" and "nuts" use Pyro on the density with the latents summed out.
            restarts, max_steps, tol, seed, progress: as in `SwitchingSSM.fit`. For a structure, restarts beyond 8 begin
                at random.
            prior: "weak": scaled to x (see `switching.linear.priors`), except for hyperparameters and distributions
                that were set by `with_prior`. A dictionary sets some, as `with_prior` does. A structure has no prior
                under "em" unless some were set. Then "em" finds the mode, and parameters without a distribution have
                the default prior of the other methods. None: no prior, for "em".
            start: an additional start; with `restarts=1`, the only one. It is a model, a fit, or all values by name.
            fixed: parameters that are held at these values, by name; tables have NaN where an entry is free. Zeros in a
                covariance separate the latents into groups. Each group is fixed or free as a unit; latents of one group
                with a free covariance have the same fixed entries. "svi" and "nuts" fix complete tables only, and
                together the tables of the transition, of the emission, or of the first state. The weights of an
                autoregression are held together.
            num_samples, warmup_steps, group, checkpoint, every: as in `SwitchingSSM.fit`; a group for "em" and "vmp".
            lengths, inputs, input_names: as in every method; inputs for a structure with a `Regression`.

        Returns:
            `Fit`; latents are rotated so that the columns of the emission are orthogonal, the longest first.

        Raises:
            TypeError, ValueError: see `SwitchingSSM.fit`.
        """
        by_likelihood = isinstance(self.emission, Irregular) and isinstance(method, str) and method == "em"
        chosen = self._chosen or (isinstance(self.emission, Irregular) and self.emission.user_priors)
        if by_likelihood and isinstance(prior, str) and prior == "weak" and not chosen:
            prior = None
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
            num_samples=num_samples,
            warmup_steps=warmup_steps,
            group=group,
            checkpoint=checkpoint,
            every=every,
        )
        return self._fit(x, {"lengths": lengths, "inputs": inputs, "input_names": input_names}, options)

    def _fitted(self, series: Series, options: Options) -> "Fit[Any]":
        from ..fitting.fit import check_enough, with_constants
        from ..fitting.whole import Whole
        from .fit import fit_linear

        whole, sample = Whole.shared(series, options, files=True)
        if whole is not None:
            whole.ranks.together(lambda: series.n_sequences and self.problem(series))  # beyond the sample too
        check_enough(sample, 1)
        if whole is None:
            self._check_determined(sample, options.fixed or ())
        model = self if options.prior is None else self.scaled_to(sample)
        problem = replace(model.problem(sample), prior=None if options.prior is None else model.prior)
        result = fit_linear(problem, options, whole)
        if not isinstance(self.emission, Irregular):
            result = with_constants(result, sample, options)
        kind = self._kind_of_fit(result.posterior is not None)
        fitted = model._copy(result.values)
        if isinstance(self.emission, Irregular) and result.posterior is None and not result.fixed:
            for sentence in fitted._unfading():
                warn_user(sentence)
        return kind.of(result, fitted)

    def _kind_of_fit(self, has_posterior: bool) -> type["Fit[Any]"]:
        from .profile import StructureFit

        structured = isinstance(self.emission, Irregular) and not has_posterior
        return StructureFit if structured else super()._kind_of_fit(has_posterior)

    def _panels(self, full_data: Series, sequence: int, level: float) -> "Panels":
        from ..views.panels import given_all

        series = full_data.one(sequence).cpu()
        smoothed = self.smooth(series)
        emission, noise, offset = self.emission.sights(self.values_like(series.observations), series.drive.inputs)
        mean = (emission @ smoothed.mean.unsqueeze(-1)).squeeze(-1) + (0.0 if offset is None else offset)
        sd = _spread(emission @ smoothed.covariance @ emission.mT + noise)
        return given_all(mean, sd, level, curves=self._latents(smoothed.mean, smoothed.covariance, level))

    def _panels_ahead(self, forecast: LinearForecast, level: float) -> "Panels":
        from ..views.panels import ahead

        seen = self.smooth(forecast.series)
        mean = torch.cat([seen.mean, forecast.state_mean])
        covariance = torch.cat([seen.covariance, forecast.state_covariance])
        return ahead(forecast, level, curves=self._latents(mean, covariance, level))

    def _latents(self, mean: Tensor, covariance: Tensor, level: float) -> dict[str, "Curve"]:
        """The latents that are no lags or rotations of others."""
        from ..views.panels import MOST_CURVES, curves_of, ends_of

        curves = curves_of(ends_of(mean, _spread(covariance), level))
        return {f"latent {self.dynamics.latents[place]}": curves[place] for place in self.dynamics.shown[:MOST_CURVES]}


def _spread(covariance: Tensor) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
