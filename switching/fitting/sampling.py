"""Fits through Pyro on the collapsed density: stochastic variational inference, and Hamiltonian Monte Carlo.

Both sum the paths out exactly and start from a fit by message passing. The guide of SVI is normal in each unconstrained
parameter on its own (`AutoNormal`); NUTS draws from the posterior itself. States are aligned to those of the start.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.ops.stats import split_gelman_rubin
from pyro.optim import ClippedAdam
from torch import Tensor

from ..data.series import Sequences
from ..dynamics import Drive
from ..parameters import Parameters
from .alignment import match_states, reorder_states
from .message_passing import fit_vmp
from .posterior import DrawnPosterior, chain_of, in_turns
from .progress import Progress

if TYPE_CHECKING:
    from ..model import SwitchingSSM
    from .fit import Fit

DRAWS = 1000  # from the guide of SVI
LEARNING_RATE, DECAY = 0.05, 0.02  # the rate at the start, and its fraction that is left at the end
CHAINS = 2
MIXED = 1.05  # split R-hat below which chains are taken to agree (Vehtari et al. 2021 ask 1.01 of long ones)


def fit_svi(
    model: "SwitchingSSM",
    series: Sequences,
    drive: Drive,
    restarts: int,
    max_steps: int,
    tol: float,
    seed: int,
    progress: bool,
) -> "Fit":
    """See `SwitchingSSM.fit`: `max_steps` steps of SVI from the end of a fit by message passing."""
    start = _start(model, series, drive, restarts, tol, seed)
    losses = []
    with _repeatable(series.values, seed), pyro.get_param_store().scope():
        program = _program(model, series, drive)
        guide = AutoNormal(program, init_loc_fn=init_to_value(values=start.model.values), init_scale=0.05)
        optimiser = ClippedAdam({"lr": LEARNING_RATE, "lrd": DECAY ** (1 / max_steps)})
        svi = SVI(program, guide, optimiser, Trace_ELBO())
        interrupted = False
        with Progress("SVI", max_steps, progress) as shown:
            try:
                for step in range(1, max_steps + 1):
                    losses.append(-float(svi.step()))  # pyright: ignore[reportArgumentType]
                    shown(step, losses[-1])
            except KeyboardInterrupt:
                if not losses:
                    raise  # nothing has been reached yet
                interrupted = True
        with torch.no_grad():
            found = [guide() for _ in range(DRAWS)]
    draws = {name: torch.stack([draw[name] for draw in found])[None] for name in start.model.values}
    trace = torch.tensor(losses, dtype=torch.float64)
    return _record(model, start, series, drive, draws, "svi", trace, _settled(trace), interrupted)


def fit_nuts(
    model: "SwitchingSSM",
    series: Sequences,
    drive: Drive,
    restarts: int,
    max_steps: int,
    tol: float,
    seed: int,
    progress: bool,
) -> "Fit":
    """See `SwitchingSSM.fit`: `max_steps` draws of each chain, after half as many of warm-up."""
    start = _start(model, series, drive, restarts, tol, seed)
    chains = []
    with Progress("NUTS", CHAINS, progress) as shown:
        for chain in range(CHAINS):
            with _repeatable(series.values, seed + chain), pyro.get_param_store().scope():
                kernel = NUTS(_program(model, series, drive), init_strategy=init_to_value(values=start.model.values))
                sampler = MCMC(kernel, max_steps, max(1, max_steps // 2), disable_progbar=True)
                sampler.run()
                chains.append(sampler.get_samples())
            shown(chain + 1, float("nan"))
    draws = {name: torch.stack([chain[name] for chain in chains]) for name in start.model.values}
    draws = _aligned(model, draws, start.model.values, series, drive)
    return _record(model, start, series, drive, draws, "nuts", _log_joint(model, draws, series, drive), _mixed(draws))


def _start(model: "SwitchingSSM", series: Sequences, drive: Drive, restarts: int, tol: float, seed: int) -> "Fit":
    return fit_vmp(model, series, drive, "structured", restarts, 500, tol, seed, False)


def _program(model: "SwitchingSSM", series: Sequences, drive: Drive) -> Callable[[], Tensor]:
    free = model.without_values()
    return lambda: free.collapsed(series, covariates=drive.covariates, dt=drive.dt)


@contextmanager
def _repeatable(like: Tensor, seed: int) -> Iterator[None]:
    """Torch's global generator, from which Pyro draws, is seeded inside and put back afterwards."""
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        torch.random.manual_seed(seed)
        yield


def _aligned(
    model: "SwitchingSSM", draws: Parameters, reference: Parameters, series: Sequences, drive: Drive
) -> Parameters:
    """Draws `[chains, n, ...]` with their states in the order of the reference."""
    shape = next(iter(draws.values())).shape[:2]
    flat = {name: value.flatten(0, 1) for name, value in draws.items()}
    order = match_states(model, flat, reference, series, drive)
    return {n: v.unflatten(0, shape) for n, v in reorder_states(model.emission, flat, order).items()}


def _log_joint(model: "SwitchingSSM", draws: Parameters, series: Sequences, drive: Drive) -> Tensor:
    """log p(x, parameters) of each draw, chain after chain."""
    flat = {name: value.flatten(0, 1) for name, value in draws.items()}
    found = []
    for some in in_turns(flat, series, model.n_states):
        evidence = chain_of(model, some, series, drive).log_normalizer()
        found.append(evidence.reshape(evidence.shape[0], -1).sum(-1) + model.log_prior(some))
    return torch.cat(found).double()


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


def _record(
    model: "SwitchingSSM",
    start: "Fit",
    series: Sequences,
    drive: Drive,
    draws: Parameters,
    method: str,
    trace: Tensor,
    converged: bool,
    interrupted: bool = False,
) -> "Fit":
    from .fit import Fit

    posterior = DrawnPosterior(model, {name: value.detach() for name, value in draws.items()})
    n_chains = next(iter(draws.values())).shape[0]
    smoothed = posterior.smooth(series, covariates=drive.covariates, dt=drive.dt)
    empty = smoothed.state.reshape(-1, model.n_states).sum(0) < 1.0
    return Fit(
        model=model._copy(posterior.mean, model.prior),
        method=method,
        objective=trace,
        converged=converged,
        steps=len(trace),
        restarts=trace.reshape(n_chains, -1).mean(-1) if method == "nuts" else trace[-1:],
        empty_states=empty,
        collapsed_states=torch.zeros_like(empty),
        interrupted=interrupted,
        posterior=posterior,
    )
