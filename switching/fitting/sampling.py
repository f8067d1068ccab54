"""Fits through Pyro on the collapsed density: stochastic variational inference, and Hamiltonian Monte Carlo.

Both sum the paths out exactly, start from values of a fit, and work in units of the data's spread. The guide of SVI is
an independent normal for each unconstrained parameter (`AutoNormal`). NUTS draws from the posterior itself. States are
aligned to those of the start.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pandas as pd
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.ops.stats import split_gelman_rubin
from pyro.optim import ClippedAdam, PyroOptim
from torch import Tensor
from torch.distributions import biject_to

from ...inference.numerics.deferred import deferred
from ...inference.numerics.interrupts import may_interrupt
from ..known import whole_parameters
from ..parameters import Parameters, reordered
from ..priors import sample_sites
from ..problem import Problem
from ..program import collapsed_program
from ..seeding import draw_from, drawn_so_far, seeded
from .alignment import match_states
from .chains_in_parts import log_evidence, occupancy
from .climbs import COLUMNS
from .density import IMPOSSIBLE, Density, FreeDensity, Whitened
from .nuts import Sampler
from .options import Options
from .posterior import DrawnPosterior
from .progress import Progress, reported
from .refinement import peak
from .result import Result
from .trees import copied
from .units import Units
from .whole import Whole

DRAWS = 1000  # from the guide of SVI
LEARNING_RATE, DECAY = 0.05, 0.02  # the initial rate, and the ratio of the final rate to it
CHAINS = 4
MIXED = 1.05  # split R-hat below which chains agree (Vehtari et al. 2021 ask for 1.01 from long chains)


def fit_svi(problem: Problem, options: Options, start: Parameters, whole: Whole | None = None) -> Result | None:
    """`max_steps` steps of SVI; None if it was interrupted before the first step.

    Arguments:
        whole: all data, if the series of the problem is a sample of them.
    """
    units = Units.of_problem(problem)
    inner, data = units.problem(problem), whole and replace(whole, units=units)
    volume = float(units.log_volume(problem.series).sum()) if whole is None else whole.log_volume(units)
    with seeded(options.number, problem.series.like):
        program, parameters = (
            pyro.condition(part, whole_parameters(inner.fixed))
            for part in (partial(_program, inner, data), partial(sample_sites, inner.sites))
        )
        guide = AutoNormal(parameters, init_loc_fn=init_to_value(values=units.values(start)), init_scale=0.05)
        losses, interrupted = climb_guide(program, guide, options, -volume, whole)
        if not losses:
            return None
        fixed = {name: v.expand(1, DRAWS, *v.shape) for name, v in whole_parameters(problem.fixed).items()}
        free = {name: draw_guide(guide, name)[None] for name in start if name not in fixed}
    every = problem.admitted(units.back(free)) | fixed
    draws = {name: every[name] for name in start}
    posterior = DrawnPosterior(draws, problem if whole is None else None)  # whose density would take all data
    return result_of_draws(problem, "svi", posterior, sampled_diagnostics(*bound_of(losses), interrupted), whole)


def _program(problem: Problem, whole: Whole | None) -> Tensor:
    """A program that draws the parameters from their prior, and the series, or all data, given the parameters."""
    values = sample_sites(problem.sites)
    if whole is None:
        return collapsed_program(problem, values, observed=True)
    evidence = log_evidence(problem, whole, values)
    pyro.factor("x", evidence)
    return evidence


def bound_of(losses: list[float]) -> tuple[Tensor, int, bool, str]:
    """The trace of the bound, the number of runs (1), whether the bound has settled, and the reason in words."""
    trace = torch.tensor(losses, dtype=torch.float64, device="cpu")
    done = settled(trace)
    how = "converged: the bound has settled" if done else "not converged: the bound still rises; raise max_steps"
    return trace, 1, done, how


class Bound(Trace_ELBO):
    """Pyro's bound for a guide with reparametrised sites only, as one number that is read once per step."""

    def loss_and_grads(self, model: Any, guide: Any, *arguments: Any, **keywords: Any) -> float:
        """Minus the bound; its gradients are added to those of the parameters."""
        with deferred() as checks:
            ((model_trace, guide_trace),) = self._get_traces(model, guide, arguments, keywords)
            loss = guide_trace.log_prob_sum() - model_trace.log_prob_sum()
            loss.backward()
            (value,) = checks.settle(loss)
        return value


def climb_guide(
    program: Callable[..., Any], guide: AutoNormal, options: Options, shift: float, whole: Whole | None = None
) -> tuple[list[float], bool]:
    """`max_steps` steps of SVI: the bound at each step plus `shift`, and whether SVI was interrupted; `whole`: see
    `fit_svi`."""
    losses: list[float] = []
    optimiser = ClippedAdam({"lr": LEARNING_RATE, "lrd": DECAY ** (1 / options.max_steps)})
    svi, saving = SVI(program, guide, optimiser, Bound()), options.saving
    finished = saving.finished("svi")
    known = saving.start_loop("svi") if finished is None else finished
    if known is not None:
        losses = set_guide(guide, optimiser, known)
    if finished is not None:
        return losses, False
    with reported(options, 0.0, whole, "SVI") as shown:
        try:
            with may_interrupt():
                for step in range(len(losses) + 1, options.max_steps + 1):
                    # the first step validates the program; later steps check only the bound
                    with pyro.validation_enabled(step == 1):
                        loss = float(svi.step())  # pyright: ignore[reportArgumentType]
                    if not math.isfinite(loss):
                        raise ValueError(
                            f"x: the bound of SVI is {loss} at step {step}, because parameters overflowed; "
                            'use method="vmp", or give x in another unit.'
                        )
                    losses.append(shift - loss)
                    saving.note(lambda: guide_state(optimiser, losses))
                    shown(step, losses[-1])
        except KeyboardInterrupt:
            saving.stop()
            return losses, True
    saving.end(lambda: guide_state(optimiser, losses))
    return losses, False


def guide_state(optimiser: PyroOptim, losses: list[float]) -> dict[str, Any]:
    """The guide of SVI, the moments of its optimizer, the generators, and the trace."""
    store: Any = pyro.get_param_store()
    free = {name: param.detach().clone() for name, param in store.named_parameters()}
    like = next(iter(free.values()))
    moments, generators = copied(optimiser.get_state()), drawn_so_far(like)
    return {"free": free, "moments": moments, "generators": generators, "losses": list(losses)}


def set_guide(guide: AutoNormal, optimiser: PyroOptim, state: dict[str, Any]) -> list[float]:
    """Go on from a state of SVI; returns its trace."""
    guide()  # makes the parameters
    store: Any = pyro.get_param_store()
    for name, param in store.named_parameters():
        param.data = state["free"][name].clone()
    optimiser.set_state(copied(state["moments"]))
    draw_from(state["generators"], next(iter(state["free"].values())))
    return list(state["losses"])


@dataclass(frozen=True)
class Chains:
    """Chains of draws of the same length."""

    draws: Parameters  # [chains, n, ...]
    objective: Tensor  # [chains * n], one chain after another
    diverging: Tensor  # [chains, n]
    interrupted: bool

    def judged(self, draws: Parameters) -> tuple[bool, str]:
        """Whether the chains agree in aligned draws, and the reason in words."""
        apart, astray = _apart(draws), int(self.diverging.sum())
        mixed = apart < MIXED and not self.interrupted
        how = f"{'' if mixed else 'not '}converged: r_hat of {len(self.diverging)} chains up to {apart:.3f}"
        return mixed, how + (f", {astray} divergent" if astray else "")


def run_nuts(
    density: FreeDensity, objective: Callable[[Parameters], Tensor], options: Options, like: Tensor
) -> Chains | None:
    """`num_samples` draws in each chain, after `warmup_steps` others; None: interrupted before a draw.

    Chains start at the peak near the density's start, in coordinates in which the curvature there is 1: paths of the
    sampler are short from the first draw.
    """
    n_draws, n_warmup = options.n_draws, options.n_warmup
    chains: list[Chained] = []
    interrupted = False
    with Progress("NUTS", CHAINS * (n_draws + n_warmup), options.progress) as shown:
        try:
            with may_interrupt():
                density = _whitened(density)
                for number in range(CHAINS):
                    chains.append(Chained())
                    before = number * (n_draws + n_warmup)
                    record = _recorder(chains[-1], density, objective, before, n_warmup, shown)
                    with seeded(options.number + number, like):
                        chains[-1].draw(density, options, like, record)
        except KeyboardInterrupt:
            interrupted = True
            options.saving.stop()
    complete = _rectangle([len(chain.draws) for chain in chains])
    if complete is None:
        return None
    _, n = complete
    kept = [chain for chain in chains if len(chain.draws) >= n]
    names = kept[0].draws[0]
    draws = {name: torch.stack([torch.stack([draw[name] for draw in c.draws[:n]]) for c in kept]) for name in names}
    diverging = torch.tensor([[number in chain.diverging for number in range(n)] for chain in kept], device="cpu")
    trace = torch.stack([height for chain in kept for height in chain.objective[:n]]).double()
    return Chains(draws, trace, diverging, interrupted)


def _whitened(density: FreeDensity) -> FreeDensity:
    """The density in the coordinates of its peak; unchanged if it has no curvature to rounding."""
    try:
        return Whitened(density, *peak(density))
    except IMPOSSIBLE:
        return density


def fit_nuts(problem: Problem, options: Options, start: Parameters) -> Result | None:
    """`num_samples` draws in each chain, after `warmup_steps` others; None: interrupted before a draw."""
    chains = run_nuts(Density(problem, start), problem.objective, options, problem.series.like)
    if chains is None:
        return None
    draws = {name: chains.draws[name] for name in start}
    if not problem.numbered:
        shape = chains.diverging.shape
        flat = {name: value.flatten(0, 1) for name, value in draws.items()}
        flat = reordered(problem.parameters, flat, match_states(problem, flat, start))
        draws = {name: value.unflatten(0, shape) for name, value in flat.items()}
    how = sampled_diagnostics(chains.objective, len(chains.diverging), *chains.judged(draws), chains.interrupted)
    return result_of_draws(problem, "nuts", DrawnPosterior(draws, diverging=chains.diverging), how)


def draw_guide(guide: AutoNormal, name: str) -> Tensor:
    """`DRAWS` draws of a parameter from a guide."""
    loc, scale = (getattr(table, name).detach() for table in (guide.locs, guide.scales))
    free = loc + scale * torch.randn(DRAWS, *loc.shape, dtype=loc.dtype, device=loc.device)
    trace: Any = guide.prototype_trace
    return cast(Tensor, biject_to(trace.nodes[name]["fn"].support)(free))


@dataclass
class Chained:
    """The draws of one chain so far, the log joint at each, and the numbers of the draws at which its path diverged."""

    draws: list[Parameters] = field(default_factory=list)
    objective: list[Tensor] = field(default_factory=list)
    diverging: set[int] = field(default_factory=set)

    def draw(
        self, density: FreeDensity, options: Options, like: Tensor, record: Callable[[Any, Parameters, int], None]
    ) -> None:
        """Draw the chain by Pyro's NUTS, whose state is in the checkpoint after each draw."""
        saving = options.saving
        finished = saving.finished("chain")
        if finished is not None:
            self.set(finished)
            return
        sampler = Sampler(density.potential, density.start, options.n_warmup)
        known, i = saving.start_loop("chain"), 0
        if known is not None:
            self.set(known["chain"])
            sampler.set(known["sampler"])
            draw_from(known["generators"], like)
            i = known["i"]
        for step in range(i, options.n_warmup + options.n_draws):
            record(sampler.kernel, sampler.draw(), step)
            saving.note(partial(self._all, sampler, step + 1, like))
        saving.end(self.state)

    def _all(self, sampler: Sampler, i: int, like: Tensor) -> dict[str, Any]:
        return {"i": i, "chain": self.state(), "sampler": sampler.state(), "generators": drawn_so_far(like)}

    def state(self) -> dict[str, Any]:
        names = self.draws[0] if self.draws else ()
        return {
            "draws": {name: torch.stack([draw[name] for draw in self.draws]) for name in names},
            "objective": torch.stack(self.objective) if self.objective else None,
            "diverging": sorted(self.diverging),
        }

    def set(self, state: dict[str, Any]) -> None:
        tables, objective = state["draws"], state["objective"]
        n = 0 if objective is None else len(objective)
        self.draws = [{name: table[i] for name, table in tables.items()} for i in range(n)]
        self.objective = [] if objective is None else list(objective)
        self.diverging = set(state["diverging"])


def _recorder(
    chain: Chained,
    density: FreeDensity,
    objective: Callable[[Parameters], Tensor],
    before: int,
    n_warmup: int,
    shown: Progress,
) -> Callable[[Any, dict[str, Tensor], int], None]:
    """Keeps each draw at once, so that an interrupt loses none."""

    def record(kernel: Any, free: dict[str, Tensor], i: int) -> None:
        if i >= n_warmup:
            draw = {name: value.detach() for name, value in density.values(free).items()}
            with torch.no_grad():
                chain.objective.append(objective(draw))
            chain.diverging.update(kernel.diagnostics()["divergences"])
            chain.draws.append(draw)  # appended last: a draw counts once its objective and divergence are recorded
        shown(before + i + 1, float("nan"))

    return record


def _rectangle(lengths: list[int]) -> tuple[int, int] | None:
    """The number of chains to keep and of draws in each, from chains of these lengths, for as many draws as
    possible."""
    shapes = [(sum(length >= n for length in lengths), n) for n in lengths if n]
    return max(shapes, key=lambda shape: shape[0] * shape[1], default=None)


def _apart(draws: Parameters) -> float:
    """The greatest split R-hat of all parameters, 1 if chains agree; infinite if chains are too short."""
    if next(iter(draws.values())).shape[1] < 4:
        return float("inf")
    ratios = [split_gelman_rubin(value, chain_dim=0, sample_dim=1) for value in draws.values()]
    return max(float(ratio.nan_to_num(1.0).max()) for ratio in ratios)


def settled(trace: Tensor) -> bool:
    """Whether the mean of the last quarter of a noisy trace exceeds the one before by less than three standard
    errors."""
    quarter = len(trace) // 4
    if quarter < 2:
        return False
    before, last = trace[-2 * quarter : -quarter], trace[-quarter:]
    return bool(last.mean() - before.mean() < 3 * ((before.var() + last.var()) / quarter).sqrt())


def sampled_diagnostics(trace: Tensor, n_runs: int, converged: bool, reason: str, interrupted: bool) -> dict[str, Any]:
    """The diagnostics of sampling, as fields of a `Result`; `trace` has runs of equal length one after another."""
    n = len(trace) // n_runs
    finals = trace.reshape(n_runs, n).mean(-1) if n_runs > 1 else trace[-1:]
    ended = "interrupted" if interrupted else "sampled"
    return {
        "objective": trace,
        "converged": converged,
        "reason": "not converged: interrupted" if interrupted else reason,
        "steps": len(trace),
        "restarts": pd.DataFrame([("fit", n, final, ended, True, True) for final in finals.tolist()], columns=COLUMNS),
        "interrupted": interrupted,
    }


def result_of_draws(
    problem: Problem, method: str, posterior: DrawnPosterior, how: dict[str, Any], whole: Whole | None = None
) -> Result:
    """A result by draws, whose values are the posterior means."""
    values = problem.admitted(posterior.mean)
    empty = occupancy(problem, whole, values) < 1.0
    collapsed = torch.zeros_like(empty)
    return Result(
        values=values, method=method, empty_states=empty, collapsed_states=collapsed, posterior=posterior, **how
    )
