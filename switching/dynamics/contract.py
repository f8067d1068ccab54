"""The contract of dynamics: the prior of the hidden path, as a chain, as Pyro sites, as an M-step and as factors.

Dynamics are a stateless description, like an emission. Their parameters are tensors `[*r, ...]`, where `*r` are
restarts or posterior draws. They form `blocks` that are conjugate to the counts of paths.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import constraints

from ...inference.chains.contract import Chain, Marginals
from ...inference.families import Family, PathTables
from ...inference.message_passing.factor_graph import Factor
from ...inference.numerics.logs import log_probability
from ...inference.numerics.user_warnings import warn_user
from ..data.series import Drive, Series
from ..emissions.contract import ByGate
from ..inputs import Inputs, columns_of, count_inputs, select_columns
from ..known import block_beside
from ..parameters import Named, Parameter, Parameters, check_parameters, concentration, kept
from ..priors import Conjugate, Probabilities, Site
from ..responses import Response
from ..user_priors import as_text
from .any_prior import AnyPrior, hyperparameter_defaults

PATHS = "paths"
"""The block of a model's paths in message passing."""

SEPARATED = 20.0  # change of log odds over the range of an input, above which they are infinite

NOTHING: Parameters = {}
"""No fixed parameters."""


class Drawn(NamedTuple):
    """One step of a path as Pyro sites."""

    redraw: Tensor
    state: Tensor
    left: Tensor | None = None  # the steps of the state's segment after this one, if they are drawn ahead


class Dynamics(Named, ABC):
    """Prior over state paths.

    Attributes:
        n_states: K.
        inputs: the inputs that it reads, by name or number. They are the first columns of the model's design.
        holds: whether a step may hold its state; then there is a gate.
        may_need_states: whether `check_told` may find that known states are missing.

    Arguments of methods:
        values: parameters by name, `[*r, ...]`.
        drive: the inputs, gaps and subjects of the steps.
        series: the observations and what is known of the steps.
        prior: hyperparameters by name; None: maximum likelihood.
        distributions: distributions of Pyro by name of a parameter.
        fixed: tables of known parameters, with NaN where an entry is free.
        marginals: the posterior of the chain.
        counts: what `counts` returned.
        chain: a chain of these dynamics.
        belief: probabilities of the states after a step.
        last: the belief about the last step.
        likelihood: log-likelihoods of redrawn and of held steps.
        lengths: `[*b]`, the number of steps of each sequence; None: all.
        labels: `[*r, *b, T]`, a state for each step.
        lead: the leading axes of the tables.
        batch_shape, n_batch: the axes of the sequences; their number.
        n_steps, horizon: numbers of steps.
        step, previous: the number of a step, from 1, and the draw of the step before it.
        times: durations, in the unit of the gaps.
        name, tables: the name of a marginal, and its tables, one of each part of the data.
    """

    n_states: int
    inputs: Inputs = 0
    holds: ClassVar[bool] = False
    may_need_states: ClassVar[bool] = False
    arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The arguments of the constructor with the hyperparameters of each parameter that takes a `prior`."""
    not_maximal: ClassVar[str] = ""
    """Why the posterior has no mode, in words; empty if it has one."""
    counts_by_step: ClassVar[bool] = False
    """Whether an M-step reads the expected moves of each step, beside the gaps of the series."""
    paths_tell: ClassVar[bool] = True
    """Whether a path has all that the parameters' posterior depends on."""
    at_once: ClassVar[bool] = True
    """Whether the gap before a step may be 0."""
    prior: Any = None
    """Priors of some parameters, distributions of Pyro by name: see `any_prior`. A field of dynamics that take them."""

    def __repr__(self) -> str:
        known = fields(self) if is_dataclass(self) else ()
        shown = [f"{one.name}={getattr(self, one.name)!r}" for one in known if one.repr]
        return f"{self.name}({', '.join([*shown, *filter(None, [as_text(self.prior)])])})"

    @cached_property
    def n_inputs(self) -> int:
        """C, the number of inputs."""
        return count_inputs(self.inputs)

    @property
    def reads(self) -> Inputs:
        """All inputs that these dynamics read: the first columns of the model's design."""
        return self.inputs

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        """The inputs along each axis of parameters, by the name of the axis."""
        return {"input": self.inputs}

    @property
    def responses(self) -> tuple[Response, ...]:
        """The parameters that respond to inputs."""
        return ()

    @property
    def forward(self) -> bool:
        """Whether no step returns to a state of lower number."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether states are not exchangeable; then they keep their order."""
        return any(block.dims for block in self.any_priors)

    # ---- parameters ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def blocks(self) -> Mapping[str, Conjugate]:
        """The parameters, in blocks with a prior each."""

    @property
    def message_blocks(self) -> Mapping[str, Conjugate]:
        """The parameters in the blocks of message passing."""
        return self.blocks

    @property
    def not_conjugate(self) -> str | None:
        """Why an M-step has no closed form, in words; None if it has one."""
        return None

    @property
    def no_messages(self) -> str | None:
        """What keeps message passing from these dynamics, in words; None if nothing does."""
        return self.not_conjugate or self.unusual_prior

    @property
    def any_priors(self) -> list[AnyPrior]:
        """The blocks whose prior does not have the form of the default."""
        return [block for block in self.blocks.values() if isinstance(block, AnyPrior)]

    @property
    def unusual_prior(self) -> str | None:
        """The first prior that is not conjugate, in words; None if all are."""
        return next((f"the prior of {b.name} is a {b.kind}, not a {b.default_kind}" for b in self.any_priors), None)

    @property
    def bounded(self) -> dict[str, Parameter]:
        """The parameters whose prior allows only a part of their values, with this support."""
        usual = constraints.simplex, constraints.unit_interval
        return {b.name: Parameter(b.dims, b.support) for b in self.any_priors if b.support not in usual}

    @abstractmethod
    def default_prior(self, series: Series | None = None) -> Parameters:
        """The concentrations of the constructor, as tables; what has the unit of time is scaled to a series."""

    def typical(self, prior: Parameters) -> Parameters:
        """Values of the parameters on which priors of others depend, in the middle of this prior."""
        return {}

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The description of each parameter, by name."""
        return {name: parameter for block in self.blocks.values() for name, parameter in block.parameters.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""
        axes = {dim: count_inputs(inputs) for dim, inputs in self.inputs_of.items()}
        return {"state": self.n_states, "state_new": self.n_states} | axes

    def check_values(self, values: Parameters) -> Parameters:
        """Return the parameters under their names; raise ValueError if they are not valid."""
        return check_parameters(self.parameters, values, self.sizes, f"{self.name} dynamics")

    def check_drive(self, drive: Drive, batch_shape: torch.Size, n_steps: int) -> None:
        """Raise ValueError if gaps do not fit these dynamics or the series."""
        if drive.gaps is not None:
            raise ValueError(
                f"dt: {self.name} dynamics do not use gaps; use Copy, whose redraw probability then depends on the "
                "gap, or ContinuousMarkov."
            )

    def sites(self, prior: Parameters) -> list[Site]:
        """The parameters' prior as Pyro sites."""
        return [site for block in self.blocks.values() for site in block.sites(prior)]

    @property
    def probabilities(self) -> dict[str, Probabilities]:
        """The blocks of probabilities by the name of their parameter, which may have another prior."""
        return {block.name: block for block in self.blocks.values() if isinstance(block, Probabilities)}

    def hyperparameters(self, distributions: Mapping[str, Any], default: Parameters) -> Parameters:
        """The hyperparameters of the conjugate ones of some distributions.

        Arguments:
            default: the hyperparameters in their places.

        Raises:
            ValueError: another shape.
        """
        tables = {}
        for name, block in self.probabilities.items():
            if (eta := block.natural_of(distributions.get(name))) is not None:
                shape = tuple(default[block.hyperparameter].shape)
                tables[block.hyperparameter] = concentration(eta, shape, f"prior[{name!r}]")
        return tables

    def with_user_priors(self, prior: Mapping[str, Any]) -> tuple["Dynamics", Parameters]:
        """The same dynamics with those of these priors that are not conjugate, and the hyperparameters of the others.

        Arguments:
            prior: distributions of Pyro by name of a parameter.

        Raises:
            TypeError, ValueError: a distribution that does not fit its parameter, or these dynamics.
        """
        tables, blocks, known = self.hyperparameters(prior, self.default_prior()), self.probabilities, self.prior or {}
        other = {n: d for n, d in prior.items() if n not in blocks or blocks[n].natural_of(d) is None}
        joined = {name: one for name, one in known.items() if name not in prior} | other
        if joined == known:
            return self, tables
        if "prior" not in getattr(self, "__dataclass_fields__", {}):
            raise ValueError(
                f"prior: got distributions of {', '.join(sorted(other))}, but {self.name} supports none; give the "
                "hyperparameters of `model.prior`."
            )
        return replace(cast(Any, self), prior=joined or None, **hyperparameter_defaults(self, joined)), tables

    # ---- paths -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def chain(
        self,
        values: Parameters,
        likelihood: ByGate,
        drive: Drive,
        lengths: Tensor | None = None,
    ) -> Chain:
        """The chain over state paths with these parameters and likelihood tables `[*r, *b, T, K]`."""

    def log_start(self, values: Parameters, drive: Drive) -> Float[Tensor, "*#b M"]:
        """The log belief before the first observation of a stream. It has M numbers, as many for each of the K states
        as a belief needs: see `log_ahead`."""
        return log_probability(self.first(values, drive))

    @abstractmethod
    def log_ahead(self, values: Parameters, belief: Float[Tensor, "*b M"], drive: Drive) -> tuple[Tensor, ...]:
        """log P(s, z) one step after the belief: `[*#b, M]` for z = 1, and for z = 0 if states are ever held. M is K
        if the future depends on the past through the state alone."""

    def ahead(self, values: Parameters, chain: Chain, drive: Drive, horizon: int) -> ByGate:
        """P(s, z | x) at each of the `horizon` steps after the end of a chain of these dynamics: `[*r, *b, H, K]` for
        z = 1 and for z = 0. The drive is that of the steps to come."""
        return self.propagate(values, at_last(chain.filter().state, chain.lengths), drive, horizon)

    @abstractmethod
    def propagate(self, values: Parameters, belief: Float[Tensor, "*b K"], drive: Drive, horizon: int) -> ByGate:
        """P(s, z) at each of the `horizon` steps after the belief: `[*b, H, K]` for z = 1 and for z = 0."""

    @abstractmethod
    def durations(self, values: Parameters, drive: Drive) -> Float[Tensor, "K"]:
        """The expected number of steps from entering each state to leaving it; infinite if it is never left.

        Inputs enter by the mean of their effect over the steps, gaps by their length.
        """

    def transition_table(self, values: Parameters, times: Any) -> Float[Tensor, "..."]:
        """P(state some time later | state), if the chain is in continuous time: `[*r, *times, K, K]`."""
        raise TypeError(f"dynamics: {self.name} dynamics have no continuous time; use ContinuousMarkov.")

    @abstractmethod
    def first(self, values: Parameters, drive: Drive) -> Float[Tensor, "*rb K"]:
        """P(s_1), before any observation: `[*r, K]`, or `[*r, *b, K]` if it depends on inputs."""

    @abstractmethod
    def draw(self, values: Parameters, step: int, previous: Drawn | None, drive: Drive, n_steps: int) -> Drawn:
        """Pyro sites `z_t`, `s_t` of one step (from 1) of a series of `n_steps`, given the step before it."""

    def log_end(self, last: Drawn) -> Tensor | None:
        """The log-weight of a path that ends with this step; None: all may end."""
        return None

    def log_gate(self, values: Parameters, drive: Drive, n_batch: int) -> tuple[Tensor, Tensor]:
        """log P(z_t = 1) and log P(z_t = 0) of every step, if there is a gate."""
        raise TypeError(f"dynamics: {self.name} has no gate; use Copy(n_states).")

    def used(self, values: Parameters) -> Mapping[str, Bool[Tensor, "..."]]:
        """Which entries of parameters the likelihood depends on, for those of which it does not depend on all."""
        return {}

    def check_states(self, series: Series, fixed: Parameters = NOTHING) -> None:
        """Raise ValueError if no possible path has the known states of a series."""

    def check_told(self, series: Series) -> None:
        """Raise ValueError if the dynamics need `states`, which were not given, and the series has none."""

    def check_fitted(self, values: Parameters, series: Series) -> None:
        """Warn of weights of maximum likelihood that are infinite, because inputs decide a gate or a move."""
        for name, parameter in self.parameters.items():
            inputs = self.inputs_of.get(parameter.dims[-1]) if parameter.dims else None
            if not inputs or not name.endswith("weights") or (rows := series.design_rows) is None:
                continue
            rows = select_columns(rows, columns_of(inputs, self.reads))
            reach = values[name].abs().to(rows) * (rows.amax(0) - rows.amin(0))
            if float(reach.max()) > SEPARATED:
                warn_user(
                    f"{name}: inputs decide the gate or a move completely, so the likelihood has no maximum and "
                    f"weights grow without end, to {float(values[name].abs().max()):.3g} so far. "
                    "Fit with prior='weak', which keeps them finite."
                )

    # ---- fits ------------------------------------------------------------------------------------------------------

    def marginals(self, chain: Any, drive: Drive) -> Marginals:
        """What an M-step reads of the posterior of a chain of these dynamics."""
        return chain.marginals()

    def alike(self, name: str, tables: list[Tensor], values: Parameters) -> list[Tensor]:
        """Tables of marginals, one of each part of the data, with equal axes after those of the sequences."""
        return tables

    def counts(self, marginals: Marginals, lead: torch.Size) -> dict[str, Tensor]:
        """The terms that the posterior adds to the natural parameters of each block, summed over all but the leading
        axes."""
        raise TypeError(f"dynamics: {self.no_messages}, so {self.name} has no counts; see `maximize`.")

    def maximize(
        self,
        marginals: Marginals,
        prior: Parameters | None,
        values: Parameters,
        drive: Drive,
        fixed: Parameters = NOTHING,
    ) -> Parameters:
        """Mode of the parameters given the chain's posterior; maximum likelihood without a prior.

        Parameters about which the data have no information keep their values. Free entries are at the mode given the
        known ones of `fixed` tables, which have NaN where free; `with_known` puts these in their places.
        """
        return self.maximize_counts(self.counts(marginals, self._lead(values)), prior, values, fixed)

    def adds_up(self, drive: Drive) -> bool:
        """Whether an M-step needs only the `counts` of the data, which `maximize_counts` takes."""
        return not self.not_conjugate and not self.n_inputs and drive.gaps is None

    def maximize_counts(
        self, counts: Mapping[str, Tensor], prior: Parameters | None, values: Parameters, fixed: Parameters = NOTHING
    ) -> Parameters:
        """`maximize` from the counts of all data."""
        modes: Parameters = {}
        for name, some in counts.items():
            modes |= block_beside(self.blocks[name], fixed).mode(prior, some, values)
        return kept(modes, values)

    @abstractmethod
    def start(self, labels: Int[Tensor, "*rb T"], series: Series) -> Parameters:
        """Rough parameters `[*r, ...]` from a first labelling of every step."""

    def paths(self, series: Series, lead: tuple[int, ...], gated: bool, alike: bool) -> tuple[Family[Any], PathTables]:
        """The family of the paths of a series, and tables of 0 for it with these leading axes.

        Arguments:
            gated: whether held steps emit differently from drawn ones.
            alike: whether held steps emit alike in all states, so their table needs only one column.
        """
        raise TypeError(f"dynamics: {self.no_messages}, so message passing does not support {self.name}.")

    def factors(self, series: Series, counted: Tensor | None, gated: bool) -> list[Factor]:
        """The factors that join the blocks to the paths.

        Arguments:
            counted: [T], 0 for steps that are counted elsewhere and 1 for the others; None: all count.
            gated: as in `paths`.
        """
        raise TypeError(f"dynamics: {self.no_messages}, so message passing does not support {self.name}.")

    def _lead(self, values: Parameters) -> torch.Size:
        name, parameter = next(iter(self.parameters.items()))
        return values[name].shape[: values[name].ndim - len(parameter.dims)]


def draw_state(name: str, probs: Tensor) -> Tensor:
    """A site of a state, marked for exact enumeration. `Categorical(probs)` would raise probabilities of 0 to 1e-16."""
    return pyro.sample(name, dist.Categorical(logits=log_probability(probs)), infer={"enumerate": "parallel"})


def at_last(table: Float[Tensor, "*rb T K"], lengths: Int[Tensor, "*rb"]) -> Float[Tensor, "*rb K"]:
    """The entries of the last step of each sequence."""
    return table.take_along_dim((lengths - 1)[..., None, None], -2).squeeze(-2)


def stepped(belief: Float[Tensor, "*b K"], table: Float[Tensor, "*#b K K"]) -> Float[Tensor, "*b K"]:
    """The belief after a step by a transition table."""
    table = table.to(belief)
    return belief @ table if table.ndim == 2 else (belief.unsqueeze(-2) @ table).squeeze(-2)


def pushed(belief: Float[Tensor, "*b K"], tables: Iterable[Tensor]) -> ByGate:
    """The belief after a step by each of these transition tables `[*b, K, K]`: `[*b, H, K]`, all of it drawn."""
    beliefs = []
    for table in tables:
        belief = stepped(belief, table)
        beliefs.append(belief)
    state = torch.stack(beliefs, -2)
    return ByGate(state, torch.zeros_like(state))


def draw_gate(name: str, log_redraw: Tensor, log_hold: Tensor) -> Tensor:
    """A site of a gate, marked for exact enumeration: 1 redraws, 0 holds. Either probability may be 0."""
    most = torch.finfo(log_redraw.dtype).max
    logit = torch.where(log_hold.isneginf(), most, torch.where(log_redraw.isneginf(), -most, log_redraw - log_hold))
    return pyro.sample(name, dist.Bernoulli(logits=logit), infer={"enumerate": "parallel"})
