"""The generative program: sites `z_t` for changes, one for each parameter that a change would draw, and `x_t`.

At each step all parameters are drawn afresh, as `loc_t`, and used from there on if there is a change. Those that are
not used have no effect, so the density of the used ones, of the changes and of x is that of the model.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ..emissions.driven import inputs_read
from ..parameters import Parameters
from ..program import sequence_plates
from .beliefs import event_shapes, shown
from .problem import SegmentProblem
from .records import SegmentsSimulated
from .rows import with_state


class Seen(TorchDistribution):
    """One observation under parameters `[*b, ...]`; NaN features are marginalised."""

    emission: Any
    values: Parameters

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 the interface of torch.distributions

    def __init__(self, emission: Any, values: Parameters, batch_shape: Sequence[int]) -> None:
        self.emission, self.values = emission, values
        super().__init__(torch.Size(batch_shape), torch.Size((emission.n_features,)), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.emission.log_prob(value, self.values)

    def sample(self, sample_shape: torch.Size | tuple[int, ...] = ()) -> Tensor:
        like = next(iter(self.values.values()))
        return self.emission.distribution(self.values).sample(sample_shape).to(like)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> "Seen":
        return Seen(self.emission, self.values, batch_shape)


def segment_program(problem: SegmentProblem, values: Parameters, observed: bool) -> SegmentsSimulated:
    """A draw of the model, conditioned on the series if it is `observed`."""
    series, batch = problem.series, tuple(problem.series.batch_shape)
    plates, emission = sequence_plates(batch), problem.emission
    sites = emission.sites(with_state(emission, values, problem.scale))
    log_hazard, by = problem.log_hazard({name: value.double() for name, value in values.items()})
    of_changes = tuple(problem.batch_shape)
    device, seen, changes, parameters = series.like.device, [], [], []
    run = torch.ones(of_changes, dtype=torch.long, device=device)
    current: Parameters = {}
    for t in range(1, series.n_steps + 1):
        change = torch.ones(of_changes, dtype=torch.bool, device=device)
        if t > 1:
            place = run.clamp(max=log_hazard.shape[-1]) - 1 if by == "run" else min(t, log_hazard.shape[-1]) - 1
            hazard = log_hazard[place] if by == "run" else log_hazard[..., place]
            with _inside([] if problem.shared else plates):
                law = dist.Bernoulli(hazard.exp().to(series.like).expand(of_changes), validate_args=False)
                change = pyro.sample(f"z_{t}", law).bool()
        run = torch.where(change, 1, run + 1)
        with _inside(plates):
            fresh = _drawn(sites, t, batch)
            current = {name: _chosen(change, table, current.get(name, table)) for name, table in fresh.items()}
            here = emission
            if emission.n_inputs:
                here = emission.beside(inputs_read(emission, series, series.drive.at(t - 1)))
            obs = series.observations[..., t - 1, :] if observed else None
            seen.append(pyro.sample(f"x_{t}", Seen(here, current, batch), obs=obs))
        changes.append(change.expand(batch) if problem.shared else change)
        parameters.append(current)
    redraw = torch.stack(changes, -1)
    own = {name: torch.stack([step[name] for step in parameters], len(batch)) for name in emission.parameters}
    tables = {label: shown(emission, name, own[name]) for label, name in zip(event_shapes(emission), own, strict=True)}
    return SegmentsSimulated(torch.stack(seen, -2), redraw.long().cumsum(-1) - 1, redraw, tables)


def _inside(plates: Sequence[Any]) -> ExitStack:
    scope = ExitStack()
    for plate in plates:
        scope.enter_context(plate)
    return scope


def _drawn(sites: Sequence[Any], t: int, batch: tuple[int, ...]) -> Parameters:
    """Parameters of a segment for each sequence, `[*b, 1, ...]` under the names of the sites and `[*b, ...]` here."""
    values: Parameters = {}
    for site in sites:
        law: Any = site.distribution(values)
        values[site.name] = pyro.sample(f"{site.name}_{t}", law.expand(batch))
    return {name: table.squeeze(len(batch)) for name, table in values.items()}


def _chosen(change: Tensor, fresh: Tensor, before: Tensor) -> Tensor:
    return torch.where(change.reshape(*change.shape, *[1] * (fresh.ndim - change.ndim)), fresh, before)
