r"""The hazard of a `Segments` model: P(change) before each step after the first.

| hazard | parameters |
|---|---|
| a probability, a Beta prior of it, or None | `hazard` |
| names of inputs | `hazard_intercept`, `hazard_weights [C]` |
| a distribution of the steps of a segment after the first | none: see `durations` |

With inputs $c_t$ a change is a gate as in `Copy` dynamics, with the same priors:
$\text{logit}\,h_t = b + w^\top c_t$. A gap of d steps has no change with probability $(1 - h_t)^d$.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.deferred import refuse_if
from ...inference.numerics.logs import log_sigmoid
from ...inference.numerics.scalars import check_probability
from ..data.series import Series
from ..dynamics.copy import WEIGHTS_SCALE, RedrawWeights
from ..dynamics.gates import log1mexp
from ..inputs import COEFFICIENT_SCALE, Inputs, count_inputs, named_or_counted
from ..parameters import Named, Parameter, Parameters, widened
from ..priors import Site
from ..responses import CENTER, Frame, Real, Response, spread_of_inputs
from ..user_priors import is_distribution, kind_of
from .durations import is_duration

HAZARD = "hazard"
INTERCEPT, WEIGHTS = "hazard_intercept", "hazard_weights"
OF_HAZARD = "hazard_concentration"
WEAK = (2.0, 2.0)  # the prior of the hazard: one change and one step without a change


@dataclass(frozen=True, repr=False)
class Hazard(Named):
    """A hazard that depends on inputs, C of them; `prior` has the two concentrations of the Beta prior of the
    probability at the mean inputs, or at inputs 0 if the user has set them. The weights have normal priors of scale
    2.5, for inputs of unit variance."""

    inputs: tuple[str, ...]
    prior: tuple[float, float] = WEAK

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", named_or_counted(list(self.inputs), "hazard"))

    def __repr__(self) -> str:
        return repr(list(self.inputs))

    @property
    def is_set(self) -> bool:
        """Whether the user has set the prior."""
        return tuple(self.prior) != WEAK


def is_beta(law: Any) -> bool:
    """Whether an object is a Beta distribution of one number."""
    return isinstance(law, torch.distributions.Beta) and not law.batch_shape


def read_hazard(hazard: Any) -> Any:
    """A probability, a Beta distribution, a `Hazard` from names, a distribution of durations, or None."""
    if isinstance(hazard, str | list | tuple | pd.Index):
        return Hazard((hazard,) if isinstance(hazard, str) else tuple(hazard))
    if hazard is None or isinstance(hazard, Hazard) or is_beta(hazard) or is_duration(hazard):
        return hazard
    if is_distribution(hazard):
        raise TypeError(
            f"hazard: got {kind_of(hazard)}, expected a probability between 0 and 1, a Beta of one number as its "
            "prior, names of inputs, or a distribution of the steps after the first of a segment, such as "
            "dist.Poisson(20.0)."
        )
    return check_probability("hazard", hazard, proper=True)


def of_hazard(hazard: Any) -> dict[str, Parameter]:
    """The parameters of a hazard, by name."""
    if is_duration(hazard):
        return {}
    if isinstance(hazard, Hazard):
        return {INTERCEPT: Parameter(()), WEIGHTS: Parameter(("input",))}
    return {HAZARD: Parameter((), constraints.unit_interval)}


def inputs_of(hazard: Any) -> Inputs:
    """The inputs that a hazard reads."""
    return hazard.inputs if isinstance(hazard, Hazard) else 0


def prior_of(hazard: Any) -> tuple[float, float]:
    """The concentrations of the Beta prior of a hazard, by inputs of that at inputs 0."""
    if is_beta(hazard):
        return float(hazard.concentration1), float(hazard.concentration0)
    return hazard.prior if isinstance(hazard, Hazard) else WEAK


def with_prior(hazard: Any, law: Any) -> Any:
    """The hazard with this distribution as prior; by inputs, as that of the probability at inputs 0."""
    if not isinstance(hazard, Hazard):
        return read_hazard(law)
    if not is_beta(law):
        raise TypeError(f"prior['hazard']: got {kind_of(law)}, expected a Beta of one number: P(change) at inputs 0.")
    return Hazard(hazard.inputs, prior_of(law))


def responses_of(hazard: Any) -> tuple[Response, ...]:
    """The parameters of a hazard that respond to inputs."""
    inputs = inputs_of(hazard)
    return (Response(INTERCEPT, Real(), {WEIGHTS: inputs}, (OF_HAZARD,)),) if count_inputs(inputs) else ()


def prior_of_weights(hazard: Any, series: Series | None) -> Parameters:
    """The hyperparameters of a hazard by inputs, scaled to a series: its Beta prior is that at the mean inputs."""
    n, responses = count_inputs(inputs_of(hazard)), responses_of(hazard)
    wide = {"dtype": torch.float64, "device": "cpu"}
    prior = {f"{WEIGHTS}_scale": torch.full((n,), COEFFICIENT_SCALE, **wide), CENTER: torch.zeros(n, **wide)}
    spread = None if series is None else spread_of_inputs(series)
    if spread is None:
        return prior
    return Frame(responses, inputs_of(hazard), *(table[:n].cpu() for table in spread)).inverse.into(prior)


def frame_of(hazard: Any, series: Series, prior: Parameters) -> Frame | None:
    """The coordinates in which the inputs of a hazard have the spread 1, and its prior is stated at inputs 0."""
    responses, spread = responses_of(hazard), spread_of_inputs(series)
    if not responses or spread is None:
        return None
    return Frame(responses, inputs_of(hazard), prior[CENTER].to(spread[1]), spread[1][: len(prior[CENTER])])


def sites_of(hazard: Any, prior: Parameters) -> dict[str, Site]:
    """The prior of the weights of a hazard by inputs, as Pyro sites by name."""
    scale = prior[f"{WEIGHTS}_scale"]
    of_gate = {"redraw_concentration": prior[OF_HAZARD], WEIGHTS_SCALE: scale}
    sites = RedrawWeights(len(scale)).sites(of_gate)
    return {name: Site(name, site.distribution) for name, site in zip((INTERCEPT, WEIGHTS), sites, strict=True)}


def near(hazard: Any, chance: float, like: Tensor) -> Parameters:
    """Parameters of a hazard that is `chance` at every step."""
    if isinstance(hazard, Hazard):
        n = count_inputs(inputs_of(hazard))
        return {INTERCEPT: like.new_tensor(chance).logit(), WEIGHTS: like.new_zeros(n)}
    return {} if is_duration(hazard) else {HAZARD: like.new_tensor(chance)}


def log_gate(
    hazard: Any, values: Parameters, inputs: Float[Tensor, "*b T C"] | None, n_batch: int
) -> tuple[Float[Tensor, "*rb N"], Float[Tensor, "*rb N"]]:
    """log P(change) and log P(no change) in a gap of one step; N is 1 without inputs, otherwise T."""
    if not isinstance(hazard, Hazard):
        prob = values[HAZARD].reshape(*values[HAZARD].shape, *[1] * (n_batch + 1))
        return prob.log(), torch.log1p(-prob)
    assert inputs is not None
    weights = widened(values[WEIGHTS], 1, n_batch + 1)
    logit = widened(values[INTERCEPT], 0, n_batch + 1) + (inputs * weights).sum(-1)
    refuse_if(logit.detach().isnan().any(), _not_a_number)
    return log_sigmoid(logit), log_sigmoid(-logit)


def _not_a_number() -> None:
    raise ValueError(
        f"{WEIGHTS}: weights times inputs overflow the logit of the hazard; give smaller weights, and inputs of about "
        "unit variance."
    )


def log_change_in(gaps: Float[Tensor, "*#n"], log_hold: Float[Tensor, "*#n"]) -> Float[Tensor, "..."]:
    """log P(a change in a gap), from log P(no change) in one step; -inf in a gap of 0."""
    passed = gaps > 0
    return torch.where(passed, log1mexp(torch.where(passed, gaps, 1.0) * log_hold), -torch.inf)


def check_shared(series: Any, hazard: Hazard) -> None:
    """Raise ValueError unless the inputs of a hazard are alike in all sequences, up to the end of each."""
    n_batch, last = len(series.batch_shape), series.last.flatten()
    if not n_batch:
        return
    table = series.design[..., : count_inputs(inputs_of(hazard))].flatten(0, n_batch - 1)
    steps = torch.arange(table.shape[-2], device=table.device)
    ended = (steps > last.unsqueeze(-1)) & (steps < series.n_steps)
    differs = (table != table[last.argmax()]) & ~ended.unsqueeze(-1)
    for sequence, step, column in differs.nonzero()[:1].tolist():
        name = column if series.drivers is None else repr(series.drivers[column])
        raise ValueError(
            f"inputs: input {name} of sequence {sequence} at step {step} differs from that of other sequences, but "
            "with shared=True all change together; give the inputs of the hazard alike to all."
        )
