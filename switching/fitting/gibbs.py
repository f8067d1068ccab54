r"""Blocked Gibbs sampling: whole paths given the parameters, then each block of parameters given the paths.

    paths         P(path | x, theta), by filtering forward and drawing backward: the draws of `Chain.sample`
    parameters    P(theta_b | x, path, other blocks): the prior's family with eta_0 plus the messages of a known path

The factors of message passing give both: expected statistics of a path are then those of one path. So any model of
conjugate blocks has a sampler, and blocks without a family of their own, such as those of `StickyHDP`, draw by
auxiliary variables (`Conjugate.drawn`). All chains are drawn at once, as restarts are.

Sources: Scott 2002, *Bayesian methods for hidden Markov models*; Chib 1996.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import Sampled
from ...inference.families import CopyTables, FactoredTables, MarkovTables
from ...inference.numerics.interrupts import may_interrupt
from ..dynamics.contract import PATHS
from ..emissions.conjugate import ConjugateEmission, is_complete
from ..emissions.driven import rows_read
from ..parameters import Parameters, prefixed, reordered, with_prefix
from ..problem import Problem
from ..seeding import draw_from, drawn_so_far, seeded
from .alignment import match_shared
from .chain_graph import ChainGraph
from .graph import Etas
from .options import Options
from .posterior import DrawnPosterior
from .progress import Progress
from .result import Result
from .sampling import CHAINS, Chains, result_of_draws, sampled_diagnostics
from .units import Units

INSTEAD = 'which Gibbs sampling needs; use method="nuts".'


def check_gibbs(problem: Problem) -> None:
    """Raise an error that names the part of a problem without an exact conditional draw.

    Raises:
        TypeError: a part without a conjugate prior.
        ValueError: weights of sequences, noise, or missing features that depend on observed ones.
    """
    dynamics, series = problem.dynamics, problem.series
    if series.noise is not None:
        raise ValueError('noise: was given, but Gibbs sampling does not support it; use method="nuts".')
    if series.weights is not None:
        raise ValueError(
            'weights: was given for sequences, but Gibbs sampling draws whole sequences; use method="nuts".'
        )
    reason = dynamics.no_messages or dynamics.not_conjugate
    if reason:
        raise TypeError(f"dynamics: {reason}, so {dynamics.name} has no conjugate prior, {INSTEAD}")
    if not dynamics.paths_tell:
        raise TypeError(f'dynamics: Gibbs sampling does not support {dynamics.name}; use method="nuts" or "vmp".')
    for factor in dynamics.factors(series, None, gated=len(problem.emission.parts) > 1):
        bounded = {
            name
            for name in factor.blocks
            if name in factor.curved or not (factor.is_affine(name) or name in factor.messages)
        }
        if bounded:
            raise TypeError(
                f"dynamics: its {', '.join(sorted(bounded))} depends on inputs or gaps, so {dynamics.name} has no "
                f"conjugate prior, {INSTEAD}"
            )
    for part in problem.emission.parts:
        emission = part.emission
        if not isinstance(emission, ConjugateEmission) or not emission.is_conjugate or emission.mixes:
            raise TypeError(f"emission: {emission.name} has no conjugate prior, {INSTEAD}")
        if emission.fills_in and not _all_or_nothing(rows_read(emission, series)):
            raise ValueError(
                f"x: some steps miss only some features, and {emission.name} has no conjugate message for them; use "
                'method="nuts", or set these steps to NaN as a whole.'
            )


def _all_or_nothing(rows: Tensor) -> bool:
    missing = rows.isnan()
    return is_complete(rows) or bool((missing.any(-1) == missing.all(-1)).all())


def fit_gibbs(problem: Problem, options: Options, start: Parameters) -> Result | None:
    """`num_samples` draws in each chain, after `warmup_steps` others; None: interrupted before a draw."""
    run = _Run.of(problem, start)
    with seeded(options.number, problem.series.like):
        interrupted = run.draw(problem, options)
    if not run.draws:
        return None
    n_kept = len(run.draws)
    draws = {name: torch.stack([draw[name] for draw in run.draws], 1) for name in start}
    shared, shape = torch.stack(run.shared, 1), (CHAINS, n_kept)
    visits = shared.sum(-2).round().long()
    if not problem.numbered:
        order = match_shared(problem, shared.flatten(0, 1))
        flat = reordered(problem.parameters, {name: table.flatten(0, 1) for name, table in draws.items()}, order)
        draws = {name: table.unflatten(0, shape) for name, table in flat.items()}
        visits = visits.gather(-1, order.to(visits.device).unflatten(0, shape))
    trace = torch.stack(run.objective, 1).flatten().double()
    none = torch.zeros(CHAINS, n_kept, dtype=torch.bool, device="cpu")
    chains = Chains(draws, trace, none, interrupted)
    how = sampled_diagnostics(trace, CHAINS, *chains.judged(draws), interrupted)
    return result_of_draws(problem, "gibbs", DrawnPosterior(draws, visits=visits), how)


@dataclass
class _Run:
    """The chains so far.

    Attributes:
        graph: of the problem in the units of a fit.
        values: of the newest draw, `[C, ...]`, in these units.
        reference: P(s_t | x) at the start, `[N, K]`.
        draws, shared, objective: by draw, `[C, ...]`: parameters in the units of the data, the expected steps that
            states of the reference share with states of the path, and the log joint density.
    """

    graph: ChainGraph
    units: Units
    values: Parameters
    reference: Tensor
    draws: list[Parameters] = field(default_factory=list)
    shared: list[Tensor] = field(default_factory=list)
    objective: list[Tensor] = field(default_factory=list)

    @staticmethod
    def of(problem: Problem, start: Parameters) -> "_Run":
        units = Units.of_problem(problem).near_prior(problem)
        inner = units.problem(problem).double().padded()
        here = {name: table.double() for name, table in units.values(start).items()}
        reference = inner.chain(here).smooth().state.reshape(-1, inner.n_states)
        values = {name: table.expand(CHAINS, *table.shape) for name, table in here.items()}
        return _Run(ChainGraph.of(inner), units, values, reference)

    def draw(self, problem: Problem, options: Options) -> bool:
        """Draw the chains; whether they were interrupted."""
        saving, total = options.saving, options.n_warmup + options.n_draws
        finished = saving.finished("gibbs")
        known, first = saving.start_loop("gibbs") if finished is None else finished, 0
        if known is not None:
            first = self._set(known, problem)
        if finished is not None:
            return False
        with Progress("Gibbs", total, options.progress) as shown:
            try:
                with may_interrupt():
                    for sweep in range(first, total):
                        sampled = self._sweep()
                        if sweep >= options.n_warmup:
                            self._keep(sampled, problem)
                        saving.note(partial(self._state, sweep + 1))
                        shown(sweep + 1, float("nan"))
            except KeyboardInterrupt:
                saving.stop()
                self.draws = self.draws[: len(self.objective)]
                self.shared = self.shared[: len(self.objective)]
                return True
        saving.end(partial(self._state, total))
        return False

    def _sweep(self) -> Sampled:
        """Draw the paths given the parameters, then the parameters given the paths."""
        sampled, messages = path_messages(self.graph, self.values)
        natural = {name: self.graph.priors[name] + message for name, message in messages.items()}
        self.values = draw_blocks(self.graph, natural, self.values)
        return sampled

    def _keep(self, sampled: Sampled, problem: Problem) -> None:
        draw = problem.admitted(
            {name: table.to(problem.series.like) for name, table in self.units.back(self.values).items()}
        )
        self.draws.append({name: table.clone() for name, table in draw.items()})
        self.shared.append(self.reference.mT @ one_hot_path(sampled, problem.n_states).flatten(1, -2))
        self.objective.append(problem.objective(draw))  # last: a draw counts once its objective is recorded

    def _state(self, sweep: int) -> dict[str, Any]:
        names = self.draws[0] if self.draws else ()
        return {
            "i": sweep,
            "values": dict(self.values),
            "draws": {name: torch.stack([draw[name] for draw in self.draws]) for name in names},
            "shared": torch.stack(self.shared) if self.shared else None,
            "objective": torch.stack(self.objective) if self.objective else None,
            "generators": drawn_so_far(next(iter(self.values.values()))),
        }

    def _set(self, state: dict[str, Any], problem: Problem) -> int:
        n = 0 if state["objective"] is None else len(state["objective"])
        self.values = state["values"]
        self.draws = [{name: table[i] for name, table in state["draws"].items()} for i in range(n)]
        self.shared, self.objective = (list(state[name]) if n else [] for name in ("shared", "objective"))
        draw_from(state["generators"], problem.series.like)
        return state["i"]


def path_messages(graph: ChainGraph, values: Parameters) -> tuple[Sampled, Etas]:
    """A draw of the paths given parameters `[C, ...]`, and what it adds to the natural parameters of each block."""
    problem = graph.problem
    sampled = problem.chain(values).sample(1)
    zero: Any = graph.paths[0].eta
    under: dict[str, Any] = {PATHS: statistics(sampled, zero, problem.n_states)} | graph.point(values)

    def message(block: str) -> Tensor:
        """The sum over factors, whose expectations are exact."""
        factors = [factor for factor in graph.factors if block in factor.blocks]
        messages = (factor.message(block, *(under[name] for name in factor.blocks)) for factor in factors)
        return sum(messages, torch.zeros_like(graph.priors[block]))

    return sampled, {block: message(block) for block in graph.blocks}


def draw_blocks(graph: ChainGraph, natural: Etas, values: Parameters) -> Parameters:
    """A draw of each block with these natural parameters `[C, ...]`; `values`: the parameters before it."""
    drawn = dict(values)
    for name, (prefix, block) in graph.blocks.items():
        drawn |= prefixed(block.drawn(natural[name], with_prefix(drawn, prefix)), prefix or "")
    return {name: drawn[name] for name in values}


def statistics(sampled: Sampled, like: Any, n_states: int) -> CopyTables | FactoredTables | MarkovTables:
    """The statistics of one draw of the paths, in the form of the tables `like`; 0 after the end of a sequence."""
    state = one_hot_path(sampled, n_states)
    if isinstance(like, MarkovTables):
        moves = state[..., :-1, :].mT @ state[..., 1:, :]
        return MarkovTables(state[..., 0, :], moves, state)
    assert sampled.redraw is not None
    first = torch.arange(state.shape[-2], device=state.device) == 0
    drawn = (sampled.redraw[0] | first).unsqueeze(-1)
    fresh, held = state * drawn, state * ~drawn
    if isinstance(like, CopyTables):
        return CopyTables(fresh, held.sum(-1, keepdim=True) if like.held.shape[-1] < n_states else held)
    gates = torch.stack([fresh.sum(-1), held.sum(-1)], -1)
    gates = torch.cat([torch.zeros_like(gates[..., :1, :]), gates[..., 1:, :]], -2)
    gates = gates.sum(-2, keepdim=True) if like.gates.shape[-2] == 1 else gates
    return FactoredTables(gates, fresh.sum(-2), state)


def one_hot_path(sampled: Sampled, n_states: int) -> Float[Tensor, "*b T K"]:
    """1 for the state of each step of the first draw; 0 after the end of a sequence."""
    path = sampled.path[0]
    return torch.nn.functional.one_hot(path.clamp_min(0), n_states).double() * (path >= 0).unsqueeze(-1)
