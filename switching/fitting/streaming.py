r"""Fits that go on with new data: message passing under the last posterior, and stepwise EM. Memory stays constant.

**Message passing.** Let $\eta_0$ be the natural parameters of the prior, and $\eta$ those of q. For a new batch, the
prior becomes

$$\eta_0 + \lambda\, (\eta - \eta_0), \qquad \text{that is } q(\theta)^\lambda\, p_0(\theta)^{1 - \lambda},$$

and q of the parameters and of the paths of the batch is fitted as ever, from the last q. With $\lambda = 1$ this is
streaming variational Bayes (Broderick, Boyd, Wibisono, Wilson & Jordan 2013). With $\lambda < 1$ it is a power prior
(Ibrahim & Chen 2000): the data of i batches ago count $\lambda^i$ times, so q keeps its width and follows parameters
that drift. If the prior is not of the family of q, as with inputs, this density has no closed normaliser, and the bound
lacks it.

**EM.** Let $\bar s$ be the mean over all steps of the expected statistics that an M-step reads, N their number, and
$\bar s_b$ and n those of the new batch, under the parameters before it. Then

$$N \leftarrow \lambda N + n, \qquad \bar s \leftarrow (1 - \gamma)\, \bar s + \gamma\, \bar s_b, \qquad
\gamma = (n / N)^\kappa,$$

and an M-step takes the parameters to the mode of $\eta_0 + N \bar s$. This is the on-line EM of Cappé & Moulines 2009
(*On-line expectation-maximization algorithm for latent data models*), with their condition $1/2 < \kappa \le 1$. For
$\lambda = \kappa = 1$ the sums of statistics add up. This is incremental EM (Neal & Hinton 1998) that visits each batch
once, and a fixed point of EM on all data is one of the updates. With a smaller $\kappa$, statistics under early, poor
parameters are forgotten sooner, and the steps still fall to 0. With $\lambda < 1$ and equal batches, they fall to
$(1 - \lambda)^\kappa$.

Statistics are in float64 and in the units of the first fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...inference.numerics.checks import naming
from ...inference.numerics.ranks import Ranks
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_number
from ...inference.numerics.threads import one_thread_if_small
from ..data.series import Series
from ..parameters import Parameters
from ..problem import Problem
from .chain_graph import ChainGraph, Earlier, check_fixed
from .chunked import engine_of, messages_of, occupancy_of
from .climbs import Climb, SearchResult
from .fit import explains_singularity
from .graph import Etas
from .message_passing import Passing, ended
from .options import Options
from .posterior import VariationalPosterior
from .result import Result, result_of
from .search import MultiStart
from .units import Units

AGAIN = "fit all data again"


@dataclass(frozen=True)
class StepRule:
    r"""How much earlier data count: $\lambda$ and $\kappa$ of the module's equations.

    Raises:
        TypeError, ValueError: not a number, or out of range.
    """

    forgetting: float = 1.0
    exponent: float = 1.0

    def __post_init__(self) -> None:
        for name, above in (("forgetting", 0.0), ("exponent", 0.5)):
            number = check_number(name, getattr(self, name), above=above)
            if number > 1:
                raise ValueError(f"{name}: got {number:g}, expected a number above {above:g} and at most 1.")
            object.__setattr__(self, name, number)


@dataclass(frozen=True, repr=False)
class RunningStatistics(Record):
    """The statistics of a continued fit by EM.

    Attributes:
        units: the units of the statistics.
        sums: N times the mean statistics, by block.
        n: N, the number of steps that they count.
    """

    units: Units
    sums: Etas
    n: float


@dataclass(frozen=True)
class Expected:
    """An E-step: the log evidence, the sums of statistics by block, their number, and the mass of each state `[K]`."""

    evidence: float
    sums: Etas
    n: float
    occupancy: Tensor


def updated(
    fit: Any, x: Any, rule: StepRule, max_steps: int | None, tol: float | None, given: Mapping[str, Any]
) -> Any:
    """A fit after one more batch: see `Fit.update`."""
    _check_method(fit, rule, max_steps, tol)
    limits: dict[str, Any] = {"max_steps": max_steps, "tol": tol}
    options = Options("vmp", 1, **{n: v for n, v in limits.items() if v is not None}, progress=False)
    series = fit.model.read(x, **given).detached()
    _check_names(fit, series)
    problem = fit.model.problem(series.to(_wide(fit.values)))
    _check_kind(fit, problem)
    fixed = {name: table.to(problem.series.like) for name, table in fit.held.items()}
    problem = replace(problem, fixed=fixed, prior=None if fit.prior is None else problem.prior)
    if not fit.updates:
        _check_conjugate(fit, problem)
    informative = _informative(problem.series)
    if informative is None:
        return fit
    problem = problem.of(informative)
    with naming("x"), one_thread_if_small(series.like.numel()), explains_singularity():
        by_em = fit.method == "em"
        result = _by_em(fit, problem, rule) if by_em else _by_message_passing(fit, problem, rule.forgetting, options)
    values = {name: value.to(fit.values[name]) for name, value in result.values.items()}
    series = replace(series, state_names=fit.state_names or series.state_names)
    model, posterior = fit.model.with_values(values), result.posterior
    if posterior is not None:
        posterior = replace(posterior, model=fit.posterior.model).labelled(model, series)
    changed = vars(result) | {name: getattr(fit, name) for name in ("restarts", "fixed", "held")}
    changed |= {"values": values, "posterior": posterior, "updates": fit.updates + 1}
    return replace(fit, **changed, model=model, series=series)


def _by_em(fit: Any, problem: Problem, rule: StepRule) -> Result:
    running = fit.running
    values = {name: value.double() for name, value in fit.values.items()}
    if running is None:
        first = problem.of(_informative(fit.series).to(problem.series.like))  # pyright: ignore[reportOptionalMemberAccess]
        units = Units.of_problem(first).near_prior(first)
        earlier = _expected(_scaled(first, units), units.values(values))
        running = RunningStatistics(units, earlier.sums, earlier.n)
    units = running.units
    units.check(problem.series, next(iter(fit.values.values())).dtype)
    scaled = _scaled(problem, units)
    batch = _expected(scaled, units.values(values))
    n = rule.forgetting * running.n + batch.n
    step = (batch.n / n) ** rule.exponent
    kept, added = (1 - step) * n / running.n, step * n / batch.n
    sums = {name: kept * old + added * batch.sums[name] for name, old in running.sums.items()}
    values = problem.admitted(units.back(_maximized(scaled, sums, flat=problem.prior is None)))
    evidence = batch.evidence - float(units.log_volume(problem.series).sum())
    unused = batch.occupancy < 1.0
    empty, collapsed = fit.empty_states & unused, fit.collapsed_states & unused
    result = result_of(_single(evidence), "em", values, empty, collapsed=collapsed)
    return replace(
        result,
        converged=fit.converged,
        reason=f"stepwise EM: a step of size {step:.3g}",
        running=RunningStatistics(units, sums, n),
    )


def _by_message_passing(fit: Any, problem: Problem, forgetting: float, options: Options) -> Result:
    units, like = fit.posterior.units.to(problem.series.like), problem.series.like
    units.check(problem.series, next(iter(fit.values.values())).dtype)
    scaled = units.problem(problem)
    earlier = Earlier({name: eta.to(like) for name, eta in fit.posterior.blocks.items()}, forgetting)
    graph = ChainGraph.of(scaled, earlier=earlier)
    search = MultiStart(options, scaled.series, lambda step, best: None)
    start = {name: eta.unsqueeze(0) for name, eta in earlier.etas.items()}
    search.run(Passing(engine_of(graph, start), graph), ["earlier fit"], 1)
    best = ended(graph, search.result())
    posterior = replace(VariationalPosterior.of_chain(best.etas, graph.blocks, units, problem), whole=False)
    volume = float(units.log_volume(problem.series).sum())
    empty = fit.empty_states & (best.occupancy < 1.0)
    return result_of(best.search.raised(-volume), "vmp", posterior.mean, empty, posterior)


def _expected(scaled: Problem, values: Parameters) -> Expected:
    """The E-step under values, all of which the graph holds."""
    graph, series = ChainGraph.of(replace(scaled, fixed=values)), scaled.series
    engine = engine_of(graph, graph.start(1))
    sums = {name: message[0] for name, message in messages_of(engine).items()}
    n = float(series.weighed((series.last + 1).to(series.like)).sum())
    return Expected(float(engine.elbo()), sums, n, occupancy_of(engine)[0])


def _maximized(scaled: Problem, sums: Etas, flat: bool) -> Parameters:
    """The M-step: the mode under the prior and these statistics."""
    graph = ChainGraph.of(scaled).at_points(flat)
    return graph.collect({n: family.expected(graph.priors[n] + sums[n]) for n, family in graph.families.items()})


def _scaled(problem: Problem, units: Units) -> Problem:
    """The problem in these units, where a missing prior is the default one."""
    return _with_prior(units.problem(problem))


def _with_prior(problem: Problem) -> Problem:
    """The problem, if it has no prior with the default one, which `Graph.at_points` makes flat."""
    if problem.prior is not None:
        return problem
    default = problem.dynamics.default_prior() | problem.emission.default_prior(problem.n_states, None)
    return replace(problem, prior={name: table.to(problem.series.like) for name, table in default.items()})


def _informative(series: Series) -> Series | None:
    """The sequences with any observation or known state; the others would only repeat what is known. None: there are
    none."""
    some = series.n_seen.flatten() > 0
    if series.states is not None:
        some = torch.ones_like(some)
    if series.weights is not None:
        some = some & (series.weights.flatten() > 0)
    if bool(some.all()):
        return series if len(some) else None
    return series.part(some.nonzero().flatten().cpu()) if bool(some.any()) else None


def _single(evidence: float) -> SearchResult:
    """The search that a single step is."""
    climb = Climb("earlier fit", [evidence], ended="converged")
    return SearchResult([climb], climb, False)


def _wide(values: Parameters) -> Tensor:
    """A tensor of the dtype and on the device of the statistics."""
    return torch.zeros((), dtype=torch.float64, device=next(iter(values.values())).device)


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_method(fit: Any, rule: StepRule, max_steps: Any, tol: Any) -> None:
    if fit.method not in ("em", "vmp"):
        raise ValueError(
            f'update: got a fit by "{fit.method}", but only fits by "em" and "vmp" can be updated; {AGAIN}.'
        )
    if not Ranks.of(None).alone:
        raise ValueError(f"group: update runs in one process, but torch.distributed has several; {AGAIN}.")
    if fit.method == "em" and fit.shared:
        raise ValueError(
            'update: got a fit by "em" whose data several processes shared, but this process has no statistics of the '
            f'others; fit by method="vmp", which one process can update, or {AGAIN}.'
        )
    if fit.running is None and (fit.updates if fit.method == "em" else not hasattr(fit.posterior, "blocks")):
        raise ValueError(
            f"update: got a fit from a file, which has no q of the parameters and no statistics of all data; {AGAIN}."
        )
    if fit.method == "em" and fit.series is None:
        raise ValueError(f"update: got a fit that was saved without its data; save it with data=True, or {AGAIN}.")
    if fit.method == "vmp" and rule.exponent != 1:
        raise ValueError(
            f'exponent: got {rule.exponent:g}, but message passing has no steps; use forgetting, or a fit by "em".'
        )
    for name, value in (("max_steps", max_steps), ("tol", tol)):
        if fit.method == "em" and value is not None:
            raise ValueError(f'{name}: got {value}, but an update by "em" is one step; leave it out.')


def _check_names(fit: Any, series: Series) -> None:
    """Raise ValueError if labels of states or names of features would be those of others in the fit."""
    if series.state_names and not fit.state_names:
        raise ValueError(
            f"states: got label {series.state_names[0]!r}, but the states of this fit have numbers; give 0 to "
            f"{fit.model.n_states - 1}."
        )
    here, there = series.features_of(), () if fit.series is None else fit.series.features_of()
    if any(name in there and there.index(name) != place for place, name in enumerate(here)):
        raise ValueError(
            f"x: got the columns {', '.join(here)}, but the fit has {', '.join(there)}; give them in this order."
        )


def _check_kind(fit: Any, problem: Any) -> None:
    model = fit.model
    if not isinstance(problem, Problem) or len(model.chain_sizes) > 1:
        raise TypeError(
            f"update: got a fit of a {model.name}, but only fits of a SwitchingSSM can be updated; {AGAIN}."
        )
    if model.subjects:
        raise TypeError(
            "update: got a fit with parameters by subject, which cannot be updated; update the fit of one subject, "
            f"fit.subject(name), or {AGAIN}."
        )
    if problem.series.noise is not None or fit.series.noise is not None:
        raise ValueError(
            f"noise: was given to update or to its fit, but update does not support it; leave it out, or {AGAIN}."
        )


def _check_conjugate(fit: Any, problem: Problem) -> None:
    """Raise TypeError if statistics of the parameters do not add up; two steps show this."""
    first = fit.series.part(torch.zeros(1, dtype=torch.long, device="cpu")).stretch(0, 2)
    problem = _with_prior(problem.of(first.to(problem.series.like)))
    try:
        check_fixed(problem)
        graph = ChainGraph.of(problem)
    except TypeError as error:
        raise TypeError(f"{str(error).partition('; use')[0]}, as does update; {AGAIN}.") from None
    curved = {name for factor in graph.factors for name in factor.curved}
    local = [block for name, (_, block) in graph.blocks.items() if name in graph.factor_priors or name in curved]
    if fit.method == "em" and local:
        names = ", ".join(name for block in local for name in block.parameters)
        raise TypeError(
            f'update: got a fit by "em", whose M-step has no closed form for {names}; fit by method="vmp", which goes '
            f"on, or {AGAIN}."
        )
