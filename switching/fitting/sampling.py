"""Fits through Pyro on the collapsed density: stochastic variational inference, and Hamiltonian Monte Carlo.

Both sum the paths out exactly, start from given values, and work in units of the data's own spread. The guide of SVI is
normal in each unconstrained parameter on its own (`AutoNormal`); NUTS draws from the posterior itself. States are
aligned to those of the start.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.ops.stats import split_gelman_rubin
from pyro.optim import ClippedAdam
from torch import Tensor
from torch.distributions import Transform, biject_to

from ..emissions.spread import spread
from ..model import SwitchingSSM
from ..parameters import Parameters, moved, reordered
from ..problem import Problem
from ..seeding import seeded
from .alignment import match_states
from .options import Options
from .posterior import DrawnPosterior
from .progress import Progress
from .search import COLUMNS

DRAWS = 1000  # from the guide of SVI
LEARNING_RATE, DECAY = 0.05, 0.02  # the rate at the start, and its fraction that is left at the end
CHAINS = 4
MIXED = 1.05  # split R-hat below which chains are taken to agree (Vehtari et al. 2021 ask 1.01 of long ones)


@dataclass(frozen=True)
class Sampled:
    """Draws of the parameters, and how they were reached; the fields are those of `Fit`."""

    posterior: DrawnPosterior
    occupancy: Tensor  # [K], expected number of steps in each state
    objective: Tensor
    restarts: pd.DataFrame
    converged: bool
    interrupted: bool


def fit_svi(model: SwitchingSSM, problem: Problem, options: Options, start: Parameters) -> Sampled | None:
    """`max_steps` steps of SVI; None where it was interrupted before the first."""
    losses: list[float] = []
    interrupted, units = False, Units.of(problem)
    inner = units.problem(problem)
    with seeded(options.number, problem.series.observations), pyro.get_param_store().scope():
        program = partial(model._copy({}, inner.prior or {}).collapsed, inner.series)
        guide = AutoNormal(program, init_loc_fn=init_to_value(values=units.values(problem, start)), init_scale=0.05)
        optimiser = ClippedAdam({"lr": LEARNING_RATE, "lrd": DECAY ** (1 / options.max_steps)})
        svi = SVI(program, guide, optimiser, Trace_ELBO())
        with Progress("SVI", options.max_steps, options.progress) as shown:
            try:
                for step in range(1, options.max_steps + 1):
                    losses.append(-float(svi.step()) - units.log_volume(problem))  # pyright: ignore[reportArgumentType]
                    shown(step, losses[-1])
            except KeyboardInterrupt:
                interrupted = True
        if not losses:
            return None
        with torch.no_grad():
            found = [guide() for _ in range(DRAWS)]
    inside = {name: torch.stack([draw[name] for draw in found])[None] for name in start}
    draws = units.back(problem, inside)
    trace = torch.tensor(losses, dtype=torch.float64)
    return _sampled(model, problem, draws, trace, trace[-1:], _settled(trace), interrupted)


def fit_nuts(model: SwitchingSSM, problem: Problem, options: Options, start: Parameters) -> Sampled | None:
    """`max_steps` draws of each chain, after half as many of warm-up; None where it was interrupted before a draw."""
    n_draws, n_warmup = options.max_steps, max(1, options.max_steps // 2)
    chains: list[list[dict[str, Tensor]]] = []
    interrupted, units = False, Units.of(problem)
    density = Density(units.problem(problem))
    first = density.free(units.values(problem, start))
    with Progress("NUTS", CHAINS * (n_draws + n_warmup), options.progress) as shown:
        try:
            for number in range(CHAINS):
                chains.append([])
                with seeded(options.number + number, problem.series.observations):
                    kernel = NUTS(potential_fn=density.potential)
                    recorder = _recorder(chains[-1], density, number * (n_draws + n_warmup), n_warmup, shown)
                    sampler = MCMC(
                        kernel, n_draws, n_warmup, initial_params=first, disable_progbar=True, hook_fn=recorder
                    )
                    sampler.run()
        except KeyboardInterrupt:
            interrupted = True
    complete = _rectangle([len(chain) for chain in chains])
    if complete is None:
        return None
    n_chains, n = complete
    draws = {
        name: torch.stack([torch.stack([draw[name] for draw in chain[:n]]) for chain in chains if len(chain) >= n])
        for name in start
    }
    flat = {name: value.flatten(0, 1) for name, value in units.back(problem, draws).items()}
    flat = reordered(problem.parameters, flat, match_states(problem, flat, start))
    draws = {name: value.unflatten(0, (n_chains, n)) for name, value in flat.items()}
    with torch.no_grad():
        trace = torch.cat([problem.objective(some) for some in problem.in_turns(flat)]).double()
    restarts = trace.reshape(n_chains, -1).mean(-1)
    return _sampled(model, problem, draws, trace, restarts, _mixed(draws) and not interrupted, interrupted)


@dataclass(frozen=True)
class Units:
    """Where the data lie and how far they spread, for coordinates in which both are 0 and 1."""

    about: Tensor  # [F]
    unit: Tensor  # [F]

    @staticmethod
    def of(problem: Problem) -> "Units":
        """Of the observed values; 0 and 1 where the emission knows of no unit."""
        rows, parts = problem.series.rows, problem.emission.parts
        if not all(part.emission.have_unit for part in parts):
            return Units(torch.zeros_like(rows[0]), torch.ones_like(rows[0]))
        found = spread(rows, 1, rows.shape[-1])
        return Units(found.center, found.total.sqrt())

    def problem(self, problem: Problem) -> Problem:
        """The same in these units."""
        series = problem.series.shifted(self.about)
        series = replace(series, observations=series.observations / self.unit)
        return replace(problem, series=series, prior=self.values(problem, problem.prior or {}))

    def values(self, problem: Problem, table: Parameters) -> Parameters:
        """Values or hyperparameters in these units."""
        return problem.emission.in_units(moved(table, -self.about), self.unit)

    def back(self, problem: Problem, table: Parameters) -> Parameters:
        """Values in those of the data."""
        return moved(problem.emission.in_units(table, 1 / self.unit), self.about)

    def log_volume(self, problem: Problem) -> float:
        """What a log density of the data is greater by in these units."""
        return float((~torch.isnan(problem.series.rows)).to(self.unit).sum(0) @ self.unit.log())


class Density:
    """The log joint of a problem in unconstrained coordinates, without Pyro's tracing."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._transforms: dict[str, Transform] = {}

    def free(self, values: Parameters) -> Parameters:
        """The coordinates of parameters, at which the density has to be there."""
        self._problem.objective(values)
        supports = {site.name: site.distribution(values).support for site in self._problem.sites}
        self._transforms = {name: biject_to(support) for name, support in supports.items()}
        return {name: torch.as_tensor(transform.inv(values[name])) for name, transform in self._transforms.items()}

    def values(self, free: Parameters) -> Parameters:
        return {name: torch.as_tensor(transform(free[name])) for name, transform in self._transforms.items()}

    def potential(self, free: Parameters) -> Tensor:
        """Minus the log density; infinite where the data are impossible."""
        values = self.values(free)
        volume = [t.log_abs_det_jacobian(free[name], values[name]) for name, t in self._transforms.items()]
        try:
            return -self._problem.objective(values) - torch.stack(volume).sum()
        except ValueError:  # an impossible observation, or parameters that rounding took out of their support
            return torch.stack([(0.0 * value).sum() for value in free.values()]).sum() + torch.inf


def _recorder(
    draws: list[dict[str, Tensor]], density: Density, before: int, n_warmup: int, shown: Progress
) -> Callable[[Any, dict[str, Tensor], str, int], None]:
    """A hook of Pyro's sampler that keeps each draw as soon as it is there, so that none is lost to an interrupt."""

    def record(kernel: Any, free: dict[str, Tensor], stage: str, i: int) -> None:
        warm = stage.lower().startswith("sample")
        if warm:
            draws.append({name: value.detach() for name, value in density.values(free).items()})
        shown(before + i + 1 + (n_warmup if warm else 0), float("nan"))

    return record


def _rectangle(lengths: list[int]) -> tuple[int, int] | None:
    """How many chains of how many draws each to keep of chains of these lengths: as many draws as possible."""
    shapes = [(sum(length >= n for length in lengths), n) for n in lengths if n]
    return max(shapes, key=lambda shape: shape[0] * shape[1], default=None)


def _mixed(draws: Parameters) -> bool:
    """Whether split R-hat of every parameter is close to 1."""
    first = next(iter(draws.values()))
    if first.shape[1] < 4:
        return False
    ratios = [split_gelman_rubin(value, chain_dim=0, sample_dim=1) for value in draws.values()]
    return all(bool((ratio.nan_to_num(1.0) < MIXED).all()) for ratio in ratios)


def _settled(trace: Tensor) -> bool:
    """Whether the last quarter of a noisy trace is no higher than the one before by more than its error."""
    quarter = len(trace) // 4
    if quarter < 2:
        return False
    before, last = trace[-2 * quarter : -quarter], trace[-quarter:]
    return bool(last.mean() - before.mean() < 3 * ((before.var() + last.var()) / quarter).sqrt())


def _sampled(
    model: SwitchingSSM,
    problem: Problem,
    draws: Parameters,
    trace: Tensor,
    finals: Tensor,
    converged: bool,
    interrupted: bool,
) -> Sampled:
    posterior = DrawnPosterior(model, {name: value.detach() for name, value in draws.items()})
    occupancy = posterior.smooth(problem.series).state.reshape(-1, problem.n_states).sum(0)
    n = len(trace) // len(finals)
    rows = [("fit", n, final, "interrupted" if interrupted else "sampled", True) for final in finals.tolist()]
    return Sampled(posterior, occupancy, trace, pd.DataFrame(rows, columns=COLUMNS), converged, interrupted)
