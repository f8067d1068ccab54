"""Fits through Pyro on the collapsed density: stochastic variational inference, and Hamiltonian Monte Carlo.

Both sum the paths out exactly and start from given values. The guide of SVI is normal in each unconstrained parameter
on its own (`AutoNormal`); NUTS draws from the posterior itself. States are aligned to those of the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.ops.stats import split_gelman_rubin
from pyro.optim import ClippedAdam
from torch import Tensor

from ..model import SwitchingSSM
from ..parameters import Parameters, reordered
from ..problem import Problem
from ..seeding import seeded
from .alignment import match_states
from .options import Options
from .posterior import DrawnPosterior
from .progress import Progress
from .search import COLUMNS

DRAWS = 1000  # from the guide of SVI
LEARNING_RATE, DECAY = 0.05, 0.02  # the rate at the start, and its fraction that is left at the end
CHAINS = 2
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
    interrupted = False
    with seeded(options.number, problem.series.observations), pyro.get_param_store().scope():
        program = _program(model, problem)
        guide = AutoNormal(program, init_loc_fn=init_to_value(values=start), init_scale=0.05)
        optimiser = ClippedAdam({"lr": LEARNING_RATE, "lrd": DECAY ** (1 / options.max_steps)})
        svi = SVI(program, guide, optimiser, Trace_ELBO())
        with Progress("SVI", options.max_steps, options.progress) as shown:
            try:
                for step in range(1, options.max_steps + 1):
                    losses.append(-float(svi.step()))  # pyright: ignore[reportArgumentType]
                    shown(step, losses[-1])
            except KeyboardInterrupt:
                interrupted = True
        if not losses:
            return None
        with torch.no_grad():
            found = [guide() for _ in range(DRAWS)]
    draws = {name: torch.stack([draw[name] for draw in found])[None] for name in start}
    trace = torch.tensor(losses, dtype=torch.float64)
    return _sampled(model, problem, draws, trace, trace[-1:], _settled(trace), interrupted)


def fit_nuts(model: SwitchingSSM, problem: Problem, options: Options, start: Parameters) -> Sampled | None:
    """`max_steps` draws of each chain, after half as many of warm-up; None where it was interrupted before a draw."""
    n_draws, n_warmup = options.max_steps, max(1, options.max_steps // 2)
    chains: list[list[dict[str, Tensor]]] = []
    interrupted = False
    with Progress("NUTS", CHAINS * (n_draws + n_warmup), options.progress) as shown:
        try:
            for number in range(CHAINS):
                chains.append([])
                with seeded(options.number + number, problem.series.observations), pyro.get_param_store().scope():
                    kernel = NUTS(_program(model, problem), init_strategy=init_to_value(values=start))
                    recorder = _recorder(chains[-1], number * (n_draws + n_warmup), n_warmup, shown)
                    MCMC(kernel, n_draws, n_warmup, disable_progbar=True, hook_fn=recorder).run()
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
    flat = {name: value.flatten(0, 1) for name, value in draws.items()}
    flat = reordered(problem.parameters, flat, match_states(problem, flat, start))
    draws = {name: value.unflatten(0, (n_chains, n)) for name, value in flat.items()}
    with torch.no_grad():
        trace = torch.cat([problem.objective(some) for some in problem.in_turns(flat)]).double()
    restarts = trace.reshape(n_chains, -1).mean(-1)
    return _sampled(model, problem, draws, trace, restarts, _mixed(draws) and not interrupted, interrupted)


def _program(model: SwitchingSSM, problem: Problem) -> Callable[[], Tensor]:
    free = model.without_values()
    return lambda: free.collapsed(problem.series)


def _recorder(
    draws: list[dict[str, Tensor]], before: int, n_warmup: int, shown: Progress
) -> Callable[[Any, dict[str, Tensor], str, int], None]:
    """A hook of Pyro's sampler that keeps each draw as soon as it is there, so that none is lost to an interrupt."""

    def record(kernel: Any, free: dict[str, Tensor], stage: str, i: int) -> None:
        warm = stage.lower().startswith("sample")
        if warm:
            draws.append({name: kernel.transforms[name].inv(value).detach() for name, value in free.items()})
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
