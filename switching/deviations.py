r"""Hamilton's autoregression, in deviations from a mean that switches (Hamilton 1989, *A new approach to the economic
analysis of nonstationary time series and the business cycle*, Econometrica 57):

$$x_t - \mu_{s_t} = \sum_{l=1}^p \phi_{s_t, l}\, (x_{t-l} - \mu_{s_{t-l}}) + \epsilon_t, \qquad \epsilon_t \sim N(0,
1/\tau_{s_t}).$$

An observation depends on the last p + 1 states. So the chain of the tuples $(s_t, \ldots, s_{t-p})$ is an ordinary
`SwitchingSSM` of $K^{p+1}$ states: its transition table is that of the states where one tuple follows another, and 0
elsewhere, and its emission is an `AutoRegressive` with intercepts $\mu_{s_t} - \sum_l \phi_{s_t, l}\, \mu_{s_{t-l}}$.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import biject_to, constraints

from ..inference.numerics.checks import naming
from ..inference.numerics.interrupts import interruptible, may_interrupt
from ..inference.numerics.randomness import Seed
from ..inference.numerics.records import Record
from ..inference.numerics.scalars import check_integer, check_states
from .ascent import Ascent, Differentiable
from .data.frames import to_tensor
from .data.lags import check_scored
from .data.series import Given, Series
from .dynamics.markov import Markov
from .emissions.autoregression import AutoRegressive, TupleAutoRegressive
from .emissions.lagged import parts_of
from .fitting.options import Options
from .fitting.units import Units
from .model import SwitchingSSM
from .parameters import Parameter, Parameters, check_parameters, read_tables
from .resuming import resumable
from .user_priors import UserPrior, log_density, read

MOST = 1024  # tuples of states; a step costs their square
FIRST, STRIDE = 40, 20  # steps of all starts, and between two checks of the progress
LEAST = 1e-4  # variance of the noise, relative to that of x


@dataclass(frozen=True, repr=False)
class DeviationFit(Record):
    """The maximum of the likelihood, or of the posterior density under priors.

    Attributes:
        values: `transition_probs [K, K]`, `loc [K, 1]` (the means, in rising order), `coefficients [K, 1, P]` and
            `precision [K, 1]`, with one row in place of K for what does not switch. States have another order if the
            priors distinguish them.
        log_evidence: log p(x) of all sequences, each times its weight.
        log_prior: the log density of the values under their priors; 0 without any.
        model: the `SwitchingSSM` of tuples at these values.
        heights: the log evidence plus log prior that each start has reached.
        interrupted: whether Ctrl-C ended the search.
    """

    values: Parameters
    log_evidence: float
    log_prior: float
    model: SwitchingSSM
    heights: Float[Tensor, "R"]
    interrupted: bool = False


@dataclass(frozen=True)
class DeviationAR:
    """An autoregression of one feature in deviations from the mean of the state, which switches.

    Its chain has K^(order + 1) states and starts in its stationary distribution. `model(values)` is a `SwitchingSSM`,
    with all its methods; `beliefs` adds up its beliefs about tuples to beliefs about states.

    Arguments:
        n_states: K.
        order: the number of lags, at least 1.
        switching: the parts that differ by state beside the mean, among "coefficients" and "scale".
        prior: distributions of Pyro for some of the `parameters`, by name, e.g. `{"coefficients": dist.Normal(0.0,
            0.5), "scale": dist.HalfNormal(2.0), "transition_probs": dist.Dirichlet(...)}`; `loc` are the means. They
            are of values in the units of the data. `fit` then finds the mode.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: more than 1,024 tuples; unknown parts; a prior that does not fit its parameter.

    Hamilton 1989, *A new approach to the economic analysis of nonstationary time series and the business cycle*.

    See Also:
        `AutoRegressive`, whose intercept switches, and which needs no tuples; docs/guides/autoregression.md;
        docs/coming_from/statsmodels.md.

    Example:
        >>> import samplehold as sh
        >>> form = sh.DeviationAR(n_states=2, order=1)
        >>> model = form.model(
        ...     transition_probs=[[0.9, 0.1], [0.2, 0.8]], loc=[[0.0], [5.0]], coefficients=[[[0.5]]], scale=[[1.0]]
        ... )
        >>> x = model.simulate(300, seed=0).x
        >>> form.beliefs(model.smooth(x).state).shape
        torch.Size([300, 2])
        >>> (form.fit(x, restarts=2).values["loc"].flatten() > 2).tolist()
        [False, True]
    """

    n_states: int
    order: int
    switching: Sequence[str] = ()
    prior: Any = field(default=None, kw_only=True, compare=False)
    name: ClassVar[str] = "DeviationAR"

    def __post_init__(self) -> None:
        n, order = check_states("n_states", self.n_states, least=2), check_integer("order", self.order)
        parts = parts_of(self.switching, ("coefficients", "scale"))
        if n ** (order + 1) > MOST:
            raise ValueError(
                f"order: got {order} with {n} states, which makes {n ** (order + 1)} tuples of states, more than "
                f"{MOST}; use AutoRegressive(order), whose intercepts switch and which needs no tuples."
            )
        object.__setattr__(self, "switching", parts)
        _ = self._priors  # raises an error if one does not fit

    @cached_property
    def tuples(self) -> Int[Tensor, "M L"]:
        """The states of each tuple, the latest first."""
        every = itertools.product(range(self.n_states), repeat=self.order + 1)
        return torch.tensor(list(every), device="cpu")

    @cached_property
    def follows(self) -> Bool[Tensor, "M M"]:
        """Whether the second tuple can follow the first."""
        return (self.tuples[:, None, :-1] == self.tuples[None, :, 1:]).all(-1)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The description of each parameter, by name."""
        rows = Markov(self.n_states).parameters["transition_probs"]
        known = AutoRegressive(self.order, switching=("intercept", *self.switching)).parameters
        return {"transition_probs": rows} | dict(known)

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        return {"state": self.n_states, "state_new": self.n_states, "shared": 1, "feature": 1, "regressor": self.order}

    @cached_property
    def _priors(self) -> dict[str, UserPrior]:
        return {} if self.prior is None else read(self.prior, self.parameters, "DeviationAR", self.sizes)

    def log_prior(self, values: Parameters) -> Float[Tensor, "*r"]:
        """The log density of `parameters` `[*r, ...]` under their priors; 0 without any.

        Arguments:
            values: the parameters by name, `[*r, ...]`.
        """
        return log_density(self._priors, values).expand(values["loc"].shape[:-2])

    @cached_property
    def blank(self) -> SwitchingSSM:
        """The model of tuples without values."""
        dynamics = Markov(len(self.tuples), mask=self.follows.tolist(), initial="stationary")
        return SwitchingSSM(dynamics, TupleAutoRegressive(self.order, n_levels=self.n_states))

    def model(self, **values: Any) -> SwitchingSSM:
        """The model of tuples at the values of `parameters`; `scale` is accepted instead of `precision`.

        Raises:
            ValueError: a parameter is missing, unknown, of another shape, or outside its space.
        """
        unknown = sorted(set(values) - {*self.parameters, "scale"})
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {unknown}; expected {list(self.parameters)}.")
        return self._model(check_parameters(self.parameters, read_tables(values), self.sizes, "DeviationAR"))

    def beliefs(self, table: Any) -> Float[Tensor, "*b K"]:
        """Beliefs about the last state, from those about tuples, in any form.

        Arguments:
            table: `[*b, M]`, probabilities of tuples.

        Raises:
            ValueError: the last axis has another size than the number of tuples.
        """
        table = to_tensor(table, "table")
        if not table.ndim or table.shape[-1] != len(self.tuples):
            raise ValueError(
                f"table: got shape {tuple(table.shape)}, expected [..., {len(self.tuples)}], one belief per tuple."
            )
        return table.unflatten(-1, (self.n_states, -1)).sum(-1)

    def lifted(self, values: Parameters) -> Parameters:
        """The parameters `[*r, M, ...]` of the model of tuples.

        Arguments:
            values: the parameters by name, `[*r, ...]`.
        """
        tuples, loc = self.tuples.to(values["loc"].device), values["loc"]
        last, axis = tuples[:, 0], loc.ndim - 2
        moves = values["transition_probs"][..., last.unsqueeze(-1), last] * self.follows.to(loc)

        def of_tuples(name: str) -> Tensor:
            table = values[name]
            return table if table.shape[axis] == 1 else table.index_select(axis, last)

        coefficients, mean = of_tuples("coefficients"), loc[..., 0][..., tuples]
        constant = mean[..., :1] - (coefficients[..., 0, :] * mean[..., 1:]).sum(-1, keepdim=True)
        return {
            "transition_probs": moves,
            "loc": constant,
            "coefficients": coefficients.expand(*constant.shape, -1),
            "precision": of_tuples("precision").expand_as(constant),
        }

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The arguments, by which a checkpoint knows the form; there are no tensors."""
        parts = {"n_states": self.n_states, "order": self.order, "switching": list(self.switching)}
        return parts if self.prior is None else parts | {"prior": self.prior}, {}

    @interruptible()
    def fit(
        self,
        x: Any,
        restarts: int = 8,
        max_steps: int = 500,
        seed: Seed = 0,
        *,
        checkpoint: str | Path | None = None,
        every: float = 60.0,
        **given: Unpack[Given],
    ) -> DeviationFit:
        """Maximise the likelihood, times the density of the priors if there are some, by BFGS from random starts.

        Four times `restarts` starts take some steps, and the best `restarts` go on until the best gains less than 1e-6
        nats. Noise has at least 1 % of the standard deviation of x. Ctrl-C keeps the best so far.

        Arguments:
            restarts, max_steps, seed, checkpoint, every: of the search, as in `SwitchingSSM.fit`.
            x, given: as in every method of a `SwitchingSSM`, without `states`.

        Raises:
            ValueError: as `SwitchingSSM.fit`; known states.
        """
        options = Options(restarts=restarts, max_steps=max_steps, seed=seed, checkpoint=checkpoint, every=every)
        if given.get("states") is not None:
            raise ValueError("states: was given, but DeviationAR.fit orders states by their means; leave it out.")
        series = self.blank.read(x, **given).detached().double()
        check_scored(self.blank.scored(series), series, self.order)
        units = Units.of(self.blank.emission, series)
        with naming("x"), resumable(self, series, options) as resumed:
            flat, heights, interrupted = self._climbed(units.series(series), units, resumed)
        best = {name: table[0] for name, table in self._values(flat[heights.argmax()][None]).items()}
        values = self._in_order(self._in_data(best, units))
        model = self._model(values)
        heights = heights - float(units.log_volume(series).sum())
        evidence = float(series.weighed(model.log_evidence(series)).sum())
        return DeviationFit(values, evidence, float(self.log_prior(values)), model, heights, interrupted)

    def _model(self, values: Parameters) -> SwitchingSSM:
        return self.blank._copy(self.blank._checked(self.lifted(values)))

    def _climbed(self, series: Series, units: Units, options: Options) -> tuple[Tensor, Tensor, bool]:
        """The coordinates that starts reach, their log evidence plus log prior, and whether they were interrupted."""
        problem = self.blank.problem(series)

        def objective(flat: Tensor) -> Tensor:
            values = self._values(flat)
            evidence = problem.total(problem.evidence(self.lifted(values)))
            return evidence + self.log_prior(self._in_data(values, units)) if self._priors else evidence

        saving = options.saving
        climb = Ascent(Differentiable(objective), self._starts(4 * options.restarts, options.number).to(series.like))
        finished = saving.finished("climb")
        known = saving.start_loop("climb") if finished is None else finished
        done, interrupted = (0, False) if known is None else (known["done"], False)
        climb = climb if known is None else climb.resumed(known["climb"])
        if finished is not None:
            return climb.point, climb.height(), False

        def state() -> dict[str, Any]:
            return {"climb": climb.state(), "done": done}

        try:
            with may_interrupt():
                while done < options.max_steps:
                    before = float(climb.height().max()) if done else -math.inf
                    n = min(STRIDE if done else FIRST, options.max_steps - done)
                    interrupted = climb.run(n).interrupted
                    if interrupted:
                        break
                    if not done:
                        climb = climb.select(climb.height().argsort(descending=True)[: options.restarts])
                    done += n
                    saving.note(state)
                    if float(climb.height().max()) - before < 1e-6:
                        break
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            saving.stop()
        saving.end(state)
        return climb.point, climb.height(), interrupted

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        k, p = self.n_states, self.order
        rows = {part: k if part in self.switching else 1 for part in ("coefficients", "scale")}
        shapes = {"transition_probs": (k, k - 1), "loc": (k, 1), "coefficients": (rows["coefficients"], 1, p)}
        return shapes | {"precision": (rows["scale"], 1)}

    def _starts(self, n: int, seed: int) -> Float[Tensor, "n C"]:
        """Persistent states whose means spread like x, and weak lags."""
        generator, k = torch.Generator("cpu").manual_seed(seed), self.n_states
        draws = {
            name: torch.randn(n, *shape, generator=generator, dtype=torch.float64, device="cpu")
            for name, shape in self._shapes().items()
        }
        stay = 1 - torch.rand(n, 1, 1, generator=generator, dtype=torch.float64, device="cpu") / 2
        rows = stay * torch.eye(k, dtype=torch.float64, device="cpu") + (1 - stay) / k
        draws["transition_probs"] = biject_to(constraints.simplex).inv(rows)
        draws["coefficients"] = 0.3 * draws["coefficients"]
        draws["precision"] = 0.5 * draws["precision"] - 0.5
        return torch.cat([table.flatten(1) for table in draws.values()], -1)

    def _values(self, flat: Float[Tensor, "R C"]) -> Parameters:
        """Parameters in units of x, from free coordinates."""
        shapes = self._shapes()
        parts = flat.split([math.prod(shape) for shape in shapes.values()], -1)
        free = {name: part.unflatten(-1, shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        probs: Any = biject_to(constraints.simplex)(free["transition_probs"])
        return free | {"transition_probs": probs, "precision": 1 / (LEAST + free["precision"].exp())}

    def _in_data(self, values: Parameters, units: Units) -> Parameters:
        about, unit = units.about.to(values["loc"]), units.unit.to(values["loc"])
        return values | {"loc": about + unit * values["loc"], "precision": values["precision"] / unit.square()}

    def _in_order(self, values: Parameters) -> Parameters:
        """The same model with means in rising order; with the states as they are if the priors distinguish them."""
        order = values["loc"][:, 0].argsort()
        rows = {name: table[order] if len(table) == self.n_states else table for name, table in values.items()}
        ordered = rows | {"transition_probs": values["transition_probs"][order][:, order]}
        alike = torch.isclose(self.log_prior(ordered), self.log_prior(values), rtol=1e-9, atol=1e-9)
        return ordered if bool(alike) else values
