r"""The base of models of several coupled copy chains: exact inference over all joint states.

The chains of a model with D of them, $s_{1t}, \ldots, s_{Dt}$, are together one Markov chain over joint states, the
`product`. Exact inference uses the product and splits its results by chain. A gate $z_{dt}$ is not part of the joint
state, but given two successive joint states its probability is a table, $G_d = P(z_{dt} = 1 \mid s_{t-1}, s_t)$. So
with the belief $b_t$ about $s_t$, filtered or smoothed, and the filtered $a_{t-1}$

$$P(z_{dt} = 1 \mid \ldots) = \sum_j b_t(j)\, \frac{\sum_i a_{t-1}(i) A_{ij} G_d(i, j)}{\sum_i a_{t-1}(i) A_{ij}}.$$

Sites of the program are `z_t_d` and `s_t_d` for step t and chain d, both from 1. The first step redraws every chain.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import pyro
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Distribution, Gamma, constraints
from torch.distributions.constraints import Constraint

from ...inference.chains.contract import Chain
from ...inference.families import CopyTables
from ...inference.message_passing.apart import run_apart
from ...inference.message_passing.engine import VMP
from ...inference.numerics.checks import check_parts, naming
from ...inference.numerics.logs import log_complement, log_probability
from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_batch_shape, check_integer, check_kind, check_number
from ..base import Model, Probabilities
from ..data.ragged import by_sequence, split
from ..data.series import Given, Series
from ..dynamics.contract import draw_gate, draw_state
from ..emissions.contract import ByGate, Emission, check_no_inputs
from ..fitting.graph import Etas
from ..fitting.options import Options
from ..forecast import Forecast
from ..mixture import StateMixture
from ..model import StreamOutput, StreamState, SwitchingSSM
from ..parameters import Parameter, Parameters, is_simplex, prefixed, widened
from ..peers import explains_options
from ..problem import Problem
from ..program import sequence_plates
from ..seeding import in_turn, seeded
from ..user_priors import as_text, default_kinds, is_distribution, kind_of, natural, read
from .joint import coordinates, marginals

if TYPE_CHECKING:
    from ..fit import Fit
    from ..views.panels import Panels

NARROW = '; this start ended with a state on a single point, where the likelihood is unbounded: prior="weak" bounds it'
KINDS: dict[Constraint, type[Distribution]] = {
    constraints.unit_interval: Beta,
    constraints.simplex: Dirichlet,
    constraints.positive: Gamma,
}
"""The conjugate prior of parameters with a support."""


@dataclass(frozen=True, repr=False)
class CoupledDraw(Record):
    """A draw of the whole model."""

    x: Float[Tensor, "*b T F"]
    path: Int[Tensor, "*b T D"]
    redraw: Bool[Tensor, "*b T D"]


@dataclass(frozen=True, repr=False)
class CoupledBelief(Record):
    """The exact marginals of each chain, and the evidence of the whole; 0 after the end of a sequence."""

    log_normalizer: Float[Tensor, "*b"]  # log p(x)
    state: tuple[Float[Tensor, "*b T _"], ...]  # P(s_dt | ...), a table for each chain
    redraw: Float[Tensor, "*b T D"]  # P(z_dt = 1 | ...)


@dataclass(frozen=True, repr=False)
class CoupledViterbi(Record):
    """The most probable path of all states, gates summed out; -1 after the end of a sequence."""

    path: Int[Tensor, "*b T D"]
    log_probability: Float[Tensor, "*b"]  # log P(path, x)


@dataclass(frozen=True, repr=False)
class CoupledSampled(Record):
    """Independent draws of whole paths and gates given a sequence; -1, and no redraw, after its end."""

    path: Int[Tensor, "n *b T D"]
    redraw: Bool[Tensor, "n *b T D"]


@dataclass(frozen=True, repr=False)
class CoupledPaths(Record):
    """The structured approximation: each chain's exact marginals under q, and the trace of the bound."""

    state: tuple[Float[Tensor, "*b T _"], ...]  # q(s_dt)
    redraw: Float[Tensor, "*b T D"]  # q(z_dt = 1)
    elbo: Float[Tensor, "steps"]  # summed over sequences, <= log evidence
    converged: bool


@dataclass(frozen=True, repr=False)
class FittedPaths(Record):
    """The `CoupledPaths` of a fit to sequences of different lengths, kept without most of their padding."""

    groups: tuple[CoupledPaths, ...]
    series: Series
    elbo: Float[Tensor, "steps"]
    converged: bool

    @property
    def state(self) -> tuple[Float[Tensor, "*b T _"], ...]:
        """q(s_dt), padded each time that it is read."""
        return tuple(map(self._padded, zip(*(group.state for group in self.groups), strict=True)))

    @property
    def redraw(self) -> Float[Tensor, "*b T D"]:
        """q(z_dt = 1), padded each time that it is read."""
        return self._padded([group.redraw for group in self.groups])

    def _padded(self, tables: Sequence[Tensor]) -> Tensor:
        pairs = zip(tables, self.series.parts(), strict=True)
        rows = self.series.joined([table[part.inside] for table, part in pairs])
        filled = rows.new_zeros(*self.series.inside.shape, rows.shape[-1])
        filled[self.series.inside] = rows
        return filled


class CoupledSSM(Model):
    """D copy chains of one model.

    Methods accept x as `SwitchingSSM` does, with `lengths`; results have one table or one column for each chain.
    """

    made_of: ClassVar[tuple[str, ...]] = ("chain_sizes", "emission", "chain_priors")
    emission: Emission
    chain_priors: Mapping[str, Any] | None
    """Priors of parameters of the chains, distributions of Pyro by name; those of the emission are its own."""

    def __init__(self, chain_sizes: Sequence[int], emission: Emission) -> None:
        parts = check_parts("chain_sizes", chain_sizes)
        sizes = tuple(check_integer(f"chain_sizes[{d}]", size) for d, size in enumerate(parts))
        check_kind("emission", emission, self.emissions, self.of_emissions)
        check_integer("n_features", emission.n_features)
        check_no_inputs("emission", emission)
        super().__init__(chain_sizes=sizes, emission=emission, chain_priors=None)
        own = {part.prefix + name: one for part in emission.parts for name, one in part.emission.user_priors.items()}
        self._check_kinds({name: one.distribution for name, one in own.items()})
        emission.prior_scaled(sizes[0], None)  # raises an error for a prior of another shape

    emissions: ClassVar[tuple[type, ...]] = (Emission,)  # supported kinds
    of_emissions: ClassVar[str] = "an emission such as Normal(n_features)"

    @classmethod
    def _from_specification(cls, parts: dict[str, Any]) -> "CoupledSSM":
        priors = parts.pop("chain_priors", None)
        model = cls(**parts)
        return model if priors is None else model.with_prior(priors)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        parts, tensors = super().to_parts()
        return {name: part for name, part in parts.items() if part is not None}, tensors

    def _made(self) -> str:
        prior = f", {text}" if (text := as_text(self.chain_priors)) else ""
        return f"{self.name}({', '.join(map(str, self.chain_sizes))} states, {self.emission!r}{prior})"

    @property
    @abstractmethod
    def _of_chains(self) -> dict[str, Parameter]:
        """The axes and the support of each parameter of the chains."""

    @property
    def prior_kinds(self) -> dict[str, type[Distribution]]:
        """The distributions that a fit supports as priors, by parameter: distributions of the conjugate family."""
        kinds = {name: KINDS[parameter.support] for name, parameter in self._of_chains.items()}
        for part in self.emission.parts:
            hyperparameters = part.emission.default_prior(1, None)
            kinds |= prefixed(default_kinds(part.emission.parameters, hyperparameters), part.prefix)
        return kinds

    def with_prior(self, prior: Mapping[str, Any]) -> "CoupledSSM":
        """The same model with distributions of Pyro as priors, by name of a parameter. Both methods of a fit support
        the distributions in `prior_kinds`. Parameters without a distribution keep their default priors.

        Raises:
            TypeError: a class in place of a distribution.
            ValueError: a parameter without a conjugate prior, another kind of distribution, or another shape.

        >>> import pyro.distributions as dist
        >>> import samplehold as sh
        >>> model = sh.FactorialSSM([2, 2], sh.Poisson())
        >>> sorted(model.prior_kinds)
        ['rate_1', 'rate_2', 'redraw_prob', 'state_probs_1', 'state_probs_2']
        >>> model.with_prior({"rate_1": dist.Gamma(2.0, 1.0)})
        FactorialSSM(2, 2 states, Poisson(n_features=1), prior={'rate_1': Gamma(concentration: 2.0, rate: 1.0)})
        """
        check_kind("prior", prior, Mapping, "distributions by name")
        distributions = {name: one for name, one in prior.items() if is_distribution(one)}
        model = super().with_prior({name: one for name, one in prior.items() if name not in distributions})
        if not distributions:
            return model
        self._check_kinds(distributions)
        of_chains = {name: one for name, one in distributions.items() if name in self._of_chains}
        of_emission = {name: one for name, one in distributions.items() if name not in of_chains}
        emission = self.emission.with_user_priors(of_emission) if of_emission else self.emission
        made = type(self)(self.chain_sizes, emission)
        vars(made).update(chain_priors={**(self.chain_priors or {}), **of_chains} or None)
        made._user_etas(made._like)  # raises an error for another shape
        return made._copy(self.values)

    def _check_kinds(self, prior: Mapping[str, Any]) -> None:
        """Raise ValueError, with the distributions that a fit supports, if it does not support one of these."""
        kinds = self.prior_kinds
        for name, given in prior.items():
            if name in kinds and isinstance(given, (kinds[name], type)):  # a class has an error of its own
                continue
            taken = ", ".join(f"a {kind.__name__} of {place}" for place, kind in kinds.items())
            raise ValueError(
                f"prior[{name!r}]: got {kind_of(given)}, but a {self.name} supports only conjugate priors: {taken}."
            )

    def _user_etas(self, like: Tensor) -> Etas:
        """Natural parameters of the blocks of chains that have a prior of the user.

        Raises:
            TypeError, ValueError: see `switching.user_priors.read`; another shape.
        """
        etas: Etas = {}
        for name, user in read(self.chain_priors or {}, self._of_chains, self.name).items():
            parameter = self._of_chains[name]
            shape = [self.sizes[dim] for dim in parameter.dims]
            eta = natural(user, like.new_zeros(shape if parameter.support is constraints.simplex else [*shape, 2]))
            if name == "redraw_prob":  # each chain has a block
                etas |= {f"redraw_{d}": row for d, row in enumerate(eta, start=1)}
            else:
                etas[name.replace("state_probs", "state")] = eta
        return etas

    @property
    def chain_sizes(self) -> tuple[int, ...]:
        """The number of states of each chain."""
        return vars(self)["chain_sizes"]

    @property
    def n_chains(self) -> int:
        """D, the number of chains."""
        return len(self.chain_sizes)

    @property
    def n_features(self) -> int:
        """F, the length of one observation."""
        return self.emission.n_features

    @property
    def holds(self) -> bool:
        """True: a step may hold its state."""
        return True

    def _by_chain(self, name: str, n: int) -> list[Tensor]:
        """The first n values whose names differ in the number of a chain."""
        return [self._values[f"{name}_{d}"] for d in range(1, n + 1)]

    # ---- the model -------------------------------------------------------------------------------------------------

    @abstractmethod
    def product_of(self, values: Parameters) -> Parameters:
        """Parameters `[*r, ...]` of this model as those of the `product`."""

    @cached_property
    @abstractmethod
    def product(self) -> SwitchingSSM:
        """The model of one chain over all joint states."""

    @abstractmethod
    def gates_of(self, values: Parameters) -> Float[Tensor, "*r D J J"]:
        """P(z_d = 1 | previous joint state, joint state) under parameters `[*r, ...]`; 0 if it is impossible."""

    @abstractmethod
    def _step(self, t: int, states: list[Tensor]) -> tuple[list[Tensor], Any]:
        """The sites of step t (from 1) given the previous states; the states, and the distribution of x_t."""

    @in_turn()
    def forward(
        self, x: Tensor | None = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()
    ) -> Tensor:
        """The Pyro program: sites `z_t_d`, `s_t_d` for each chain and `x_t`; conditioned on x if it is given."""
        if x is not None:
            n_steps, batch_shape = x.shape[-2], tuple(x.shape[:-2])
        assert n_steps is not None
        states: list[Tensor] = []
        seen, plates = [], sequence_plates(batch_shape)
        for t in pyro.markov(range(1, n_steps + 1)):
            with ExitStack() as scope:
                for plate in plates:
                    scope.enter_context(plate)
                states, emission = self._step(t, states)
                seen.append(pyro.sample(f"x_{t}", emission, obs=None if x is None else x[..., t - 1, :]))
        return torch.stack(seen, -2)

    @abstractmethod
    def engine(self, x: Any, *, check: bool = True, **given: Unpack[Given]) -> VMP:
        """The engine of the model at its values, with a block of exact paths for each chain."""

    @property
    @abstractmethod
    def _axes(self) -> tuple[int, ...]:
        """The sizes of a joint state's axes; the last D are the chains' sizes."""

    # ---- inference given the values --------------------------------------------------------------------------------

    def _check_observations(self, series: Series) -> None:
        self.emission.check(series.observations, series.features_of() if series.features else None)

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """As `SwitchingSSM.read`; in the dtype and on the device of the values, if there are values."""
        series = super().read(x, horizon=horizon, **given)
        return series.to(self._like) if self.values else series

    def problem(self, x: Any, **given: Unpack[Given]) -> Problem:
        """The `product` and the series x, as one input for exact inference."""
        return self.product.problem(self.read(x, **given))

    def log_evidence(self, x: Any, **given: Unpack[Given]) -> Tensor:
        """log p(x), exact."""
        return self.product.log_evidence(self.read(x, **given))

    @by_sequence()
    def filter(self, x: Any, **given: Unpack[Given]) -> CoupledBelief:
        """P(s_dt | x_1..t) and P(z_dt = 1 | x_1..t), exact."""
        filtered = self.product.filter(self.read(x, **given))
        redraw = self._gates(filtered.state, filtered.state, self._values)
        return CoupledBelief(filtered.log_normalizer, self._split(filtered.state), redraw)

    @by_sequence()
    def smooth(self, x: Any, **given: Unpack[Given]) -> CoupledBelief:
        """P(s_dt | x) and P(z_dt = 1 | x), exact."""
        chain = self.product.chain(self.read(x, **given))
        with naming("x"):
            smoothed = chain.smooth()
        redraw = self._gates(smoothed.state, chain.filter().state, self._values)
        return CoupledBelief(smoothed.log_normalizer, self._split(smoothed.state), redraw)

    @by_sequence()
    def viterbi(self, x: Any, **given: Unpack[Given]) -> CoupledViterbi:
        """The most probable path of all states, `[*batch, T, D]`, gates summed out."""
        best = self.product.viterbi(self.read(x, **given))
        return CoupledViterbi(self.of_product(best.path), best.log_probability)

    @by_sequence(draws=True)
    def sample_posterior(self, x: Any, n: int, seed: Seed = None, **given: Unpack[Given]) -> CoupledSampled:
        """n independent paths and gates from the posterior given the whole series: `path [n, *batch, T, D]`."""
        gates = self.gates_of(self._values)
        generator = generator_of(seed, gates.device)
        joint = self.product.sample_posterior(self.read(x, **given), n, generator).path
        steps = joint.clamp_min(0)
        probability = gates[:, steps[..., :-1], steps[..., 1:]].movedim(0, -1)
        first = probability.new_ones(*steps.shape[:-1], 1, self.n_chains)  # the first step redraws
        redraw_prob = torch.cat([first, probability], -2)
        uniform = torch.rand(redraw_prob.shape, generator=generator, dtype=redraw_prob.dtype, device=redraw_prob.device)
        return CoupledSampled(self.of_product(joint), (uniform < redraw_prob) & (joint >= 0).unsqueeze(-1))

    @explains_options
    def simulate(self, n_steps: int, batch_shape: tuple[int, ...] = (), *, seed: Seed = None) -> CoupledDraw:
        """A draw of states, gates and observations. A seed makes it repeatable and does not touch global state."""
        n_steps, batch_shape = check_integer("n_steps", n_steps), check_batch_shape("batch_shape", batch_shape)
        some = tuple(max(1, n) for n in batch_shape)  # Pyro's plates are never empty
        with seeded(seed, self._like):
            drawn = _draw(self.forward, self.n_chains, n_steps, some)
        if some != batch_shape:
            drawn = (table.new_zeros(*batch_shape, *table.shape[len(some) :]) for table in drawn)
        return CoupledDraw(*drawn)

    @explains_options
    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> Forecast:
        """States, gates and observations at each of the `horizon` steps after the end of x.

        `state` has a table for each chain, `redraw` a column for each.
        """
        series = self.read(x, **given)
        joint = self.product.forecast(series, horizon)
        assert isinstance(joint.state, Tensor)
        redraw = self._values["redraw_prob"].to(joint.state).expand(*joint.state.shape[:-1], -1)
        return replace(joint, state=self._split(joint.state), redraw=redraw, series=series, source=self)

    @by_sequence(each="_inferred")
    def infer(self, x: Any, max_steps: int = 200, tol: float = 1e-10, **given: Unpack[Given]) -> CoupledPaths:
        """The best q of independent chains, by coordinate ascent from the prior; the bound rises with every update.

        Arguments:
            max_steps: the most sweeps of coordinate ascent.
            tol: the ascent ends when no bound changes by more than this share of itself.
        """
        max_steps, tol = check_integer("max_steps", max_steps), check_number("tol", tol, least=0)
        engine = self.engine(x, **given)
        run = engine.run(max_steps, tol)
        return paths_of(_used(engine), run.elbo, run.converged)

    def _inferred(self, series: Series, max_steps: int, tol: float) -> list[CoupledPaths]:
        """`infer` of each sequence `[N]` alone."""
        max_steps, tol = check_integer("max_steps", max_steps), check_number("tol", tol, least=0)
        engine = self.engine(series)
        ends = run_apart(engine, 1, max_steps, tol)
        together = paths_of(_used(engine), *ends[0])
        pairs = zip(split(together, (series.last + 1).tolist()), ends, strict=True)
        return [replace(one, elbo=trace, converged=converged) for one, (trace, converged) in pairs]

    @property
    @abstractmethod
    def fresh_probs(self) -> tuple[Float[Tensor, "_"], ...]:
        """The prior probabilities of a fresh state of each chain."""

    def durations(self, x: Any = None, **given: Unpack[Given]) -> tuple[Float[Tensor, "_"], ...]:
        """The expected number of steps from entering each state of each chain to leaving it; x is not used."""
        chains = zip(self._values["redraw_prob"].unbind(-1), self.fresh_probs, strict=True)
        return tuple(1 / (rho * (1 - probs)) for rho, probs in chains)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def start(self, batch_shape: tuple[int, ...] = ()) -> StreamState:
        """The state of a batch of streams before their first observation.

        Arguments:
            batch_shape: the batch axes of the streams; () for a single stream.
        """
        return self.product.start(batch_shape)

    def update(self, state: StreamState, x_t: Any) -> tuple[StreamState, StreamOutput]:
        """Add one observation of each stream, exactly; see `SwitchingSSM.update`."""
        after, out = self.product.update(state, x_t)
        assert after.belief is not None
        before = after.belief if state.belief is None else state.belief
        two = torch.stack([before, after.belief], -2)  # the first step counts as redrawn
        redraw = self._gates(two, two, self.values_like(two))[..., 0 if state.belief is None else 1, :]
        return after, StreamOutput(self._split(after.belief), redraw, out.log_increment)

    # ---- fits and figures ------------------------------------------------------------------------------------------

    @abstractmethod
    def graph(self, series: Series, options: Options, there: Series | None = None) -> Any:
        """Blocks, factors and starting labels for fits: see `fitting.graph.Graph`.

        Arguments:
            series: the observations.
            options: of the fit.
            there: the sequences of the graph, if `series` is a sample of all; its paths then start at nothing.
        """

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
        group: Any = None,
        checkpoint: str | Path | None = None,
        every: float = 60.0,
        lengths: Any = None,
    ) -> "Fit[Any]":
        """Fit the parameters to sequences. Chains are independent under q, so both methods maximise a bound.

        Arguments:
            x, lengths: sequences and their lengths, as in `read`; or a `Series`.
            method: "em": points; "vmp": a posterior of the parameters.
            restarts, max_steps, tol, seed, progress, group, checkpoint, every: as in `SwitchingSSM.fit`. If
                processes share the data, a checkpoint has the search on the sample; steps with all data begin anew.
            prior: "weak": the emission's prior is scaled to x, except for distributions that were set by `with_prior`.
                A dictionary sets some, as `with_prior` does. None: no prior, for "em".

        Returns:
            `Fit`.

        Raises:
            TypeError, ValueError: see `SwitchingSSM.fit`.
        """
        saved = {"group": group, "checkpoint": checkpoint, "every": every}
        options = Options(method, restarts, max_steps, tol, seed, prior, progress, **saved)
        return self._fit(x, {"lengths": lengths}, options)

    def _fitted(self, series: Series, options: Options) -> "Fit[Any]":
        from ..fit import Fit
        from ..fitting.fit import check_enough, explains_singularity
        from ..fitting.message_passing import Sharing
        from ..fitting.starts import variance_floor
        from ..fitting.whole import Whole
        from .fit import fit_coupled

        (whole, sample), sharing = Whole.shared(series, options), None
        check_enough(sample, max(self.chain_sizes))
        if whole is not None:
            graph = whole.ranks.together(lambda: self.graph(sample, options, series))
            sharing = Sharing(replace(graph, ranks=whole.ranks), whole, 0.0)
        with explains_singularity():
            result = fit_coupled(self.graph(sample, options), sample, options, self.chain_sizes, sharing)
        tiny = torch.finfo(sample.like.dtype).tiny  # a model has no probability of 0
        values = {n: t.clamp_min(tiny) if is_simplex(self.known[n].support) else t for n, t in result.values.items()}
        fitted = self.with_values(values)
        if options.prior is None and fitted._has_collapsed(variance_floor(sample)):
            result = replace(result, reason=result.reason + NARROW)
        trace, converged = result.objective, result.converged
        groups = tuple(paths_of(used, trace, converged) for used in result.paths)
        paths = groups[0] if len(groups) == 1 else FittedPaths(groups, series, trace, converged)
        return replace(Fit.of(result, fitted), paths=paths if groups else None)

    def _has_collapsed(self, floor: Tensor) -> bool:
        values = self.product_of(self.values)
        return bool(self.product.emission.collapsed(values, floor.to(next(iter(values.values())))).any())

    def _panels(self, full_data: Series, sequence: int, level: float) -> "Panels":
        from ..views.panels import Panels, curves_of, ends_of, strip, within_support

        series = full_data.one(sequence).cpu()
        problem, values = self.product.problem(series), self.values_like(series.like)
        product = self.product_of(values)
        chain = problem.chain(product)
        joint = chain.smooth().state
        *states, redraw = (table for table, _ in self.probabilities(chain, values).values())
        mixture = StateMixture(problem.emission, product, ByGate(joint, torch.zeros_like(joint)))
        ends = within_support(problem.emission, ends_of(mixture.mean, mixture.variance.sqrt(), level))
        about = f", with the mean and {100 * level:g}% band in its smoothed states"
        strips = dict(zip(self._chain_names, map(strip, states), strict=True))
        gates = {f"{name}\nredraw": gate for name, gate in zip(self._chain_names, redraw.unbind(-1), strict=True)}
        return Panels(about, curves_of(ends), strips, gates=gates)

    def _panels_ahead(self, forecast: Any, level: float) -> "Panels":
        from ..views.panels import ahead, strip

        states = map(strip, self.smooth(forecast.series).state, forecast.state)
        return ahead(forecast, level, states=dict(zip(self._chain_names, states, strict=True)))

    @property
    def _chain_names(self) -> list[str]:
        return [f"{self.chain_name} {d}" for d in range(1, self.n_chains + 1)]

    # ---- joint states ----------------------------------------------------------------------------------------------

    def probabilities(self, chain: Chain, values: Parameters) -> Probabilities:
        """As `SwitchingSSM.probabilities`, for the states and the redraws of each chain."""
        smoothed, filtered = chain.smooth().state, chain.filter().state
        states = {
            f"state_probability_{d}": (state, (f"state_{d}",)) for d, state in enumerate(self._split(smoothed), start=1)
        }
        redraw = self._gates(smoothed, filtered, values)
        return states | {"redraw_probability": (redraw, (self.chain_name,))}

    def _gates(
        self, belief: Float[Tensor, "*rb T J"], filtered: Float[Tensor, "*rb T J"], values: Parameters
    ) -> Float[Tensor, "*rb T D"]:
        """P(z_dt = 1 | ...) under a belief about each step, given the filtered one; see the module's equation."""
        moves, gates = self.product_of(values)["transition_probs"].to(belief), self.gates_of(values).to(belief)
        n_batch = belief.ndim - moves.ndim
        before, moves = filtered[..., :-1, :], widened(moves, 2, n_batch)
        reached = before @ moves
        share = torch.where(belief[..., 1:, :] > 0, belief[..., 1:, :] / reached, 0.0)
        later = [(share * (before @ (moves * widened(g, 2, n_batch)))).sum(-1) for g in gates.unbind(-3)]
        inside = belief.sum(-1)  # 0 after the end of a sequence
        return torch.stack([torch.cat([inside[..., :1], gate], -1) for gate in later], -1)

    def _split(self, joint: Tensor) -> tuple[Tensor, ...]:
        """The beliefs about each chain, from the belief about the joint state."""
        return marginals(joint, self._axes)[-self.n_chains :]

    def of_product(self, path: Tensor) -> Tensor:
        """Joint states as the states of the chains: `[*b, D]`.

        Arguments:
            path: joint states `[*b]`.
        """
        return coordinates(path, self._axes)[..., -self.n_chains :]


def _used(engine: VMP) -> list[CopyTables]:
    """The expected uses of each chain's tables."""
    return [engine.stats(name) for name in engine.blocks]


def paths_of(used: Sequence[CopyTables], elbo: Tensor, converged: bool) -> CoupledPaths:
    """The marginals of q, from its expected uses of each chain's tables."""
    redraw = torch.stack([stats.fresh.sum(-1) for stats in used], -1)
    return CoupledPaths(tuple(stats.fresh + stats.held for stats in used), redraw, elbo, converged)


def draw_chain(t: int, d: int, rho: Tensor, probs: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and state of chain d (from 0) at step t, given the previous state; None at the first step."""
    rho = torch.ones_like(rho) if before is None else rho
    redraw = draw_gate(f"z_{t}_{d + 1}", log_probability(rho), log_complement(rho))
    if before is not None:
        same = torch.nn.functional.one_hot(before, probs.shape[-1]).to(probs)
        probs = torch.where(redraw.bool().unsqueeze(-1), probs, same)
    return redraw, draw_state(f"s_{t}_{d + 1}", probs)


def _draw(
    program: Callable[..., Tensor], n_chains: int, n_steps: int, batch_shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `program(n_steps=n_steps, batch_shape=batch_shape)`: x [*b, T, F], states and gates [*b, T, D]."""
    trace = pyro.poutine.trace(program).get_trace(n_steps=n_steps, batch_shape=batch_shape)

    def value(name: str) -> Tensor:
        return cast(Tensor, trace.nodes[name].get("value"))

    def sites(kind: str) -> Tensor:
        names = [[f"{kind}_{t + 1}_{d + 1}" for d in range(n_chains)] for t in range(n_steps)]
        return torch.stack([torch.stack([value(name) for name in row], -1) for row in names], -2)

    return value("_RETURN"), sites("s"), sites("z").bool()


def prior_tables(rho: Tensor, log_fresh: Tensor, n_steps: int) -> CopyTables:
    """log rho and the fresh states [K] as [T, K], and log(1 - rho) as [T, 1]; the first step always redraws."""
    first = torch.arange(n_steps, device=rho.device) == 0
    log_rho = torch.where(first, 0.0, rho.log()).unsqueeze(-1)
    log_hold = torch.where(first, 0.0, torch.log1p(-rho)).unsqueeze(-1)
    return CopyTables(log_rho + log_fresh, log_hold)
