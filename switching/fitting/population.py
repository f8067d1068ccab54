r"""Populations: priors of the parameters of subjects, whose hyperparameters are fitted too (empirical Bayes).

With parameters $\theta_i$ of subject i, $q = \prod_i q_i(\theta_i)\, q(\text{paths})$, and the messages $m_i$ of the
paths, the bound is greatest at $q_i \propto \exp \langle \eta_0 + m_i, t(\theta_i) \rangle$. It then depends on the
prior $\eta_0$ of a block only through

$$\sum_i A(\eta_0 + m_i) - A(\eta_0).$$

Each step of message passing follows the maximum of this sum (`hyperparameters`), so the bound never falls. At the
maximum the population has the mean statistics of its members. Hyperparameters are points. Samplers then draw the
parameters of subjects under them.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...inference.families import VectorFamily, matched
from ...inference.message_passing.engine import VMP, Run
from ..parameters import Parameters, prefixed, with_prefix
from ..problem import Problem
from .chain_graph import Blocks, ChainGraph, blocks_of
from .chains_in_parts import occupancy
from .chunked import ChunkedVMP, engine_in, engine_of
from .graph import Etas
from .hyperparameters import best_population
from .message_passing import Passing
from .options import Options
from .population_posterior import PopulationPosterior
from .posterior import VariationalPosterior
from .progress import reported
from .result import Result, result_of
from .search import MultiStart

OF_POPULATION = "population of "


def partial_blocks(problem: Problem, partial: Sequence[str]) -> Blocks:
    """The blocks of a problem that have a population; "emission" stands for all parts.

    Raises:
        ValueError: the prior of a block is not determined by the members of a population.
    """
    parts = {part.block for part in problem.emission.parts} if "emission" in partial else set()
    blocks = blocks_of(problem.dynamics, problem.emission, problem.fixed)
    some = {name: blocks[name] for name in blocks if name in partial or name in parts}
    for name, (prefix, block) in some.items():
        assert problem.prior is not None
        eta = block.natural(with_prefix(problem.prior, prefix))[0]
        try:
            block.hyperparameters_of(eta)
            matched(block.family, block.family.mean(eta), eta)
        except TypeError as error:
            raise ValueError(
                f"pooled: got 'partial' for {name!r}, but {' '.join(str(error).split())}; fit it with \"none\" or "
                '"complete".'
            ) from None
    return some


class Populations(Passing):
    """Message passing in one restart, and the fit of the priors of some blocks after each step.

    Arguments:
        partial: the blocks with a population.
    """

    graph: ChainGraph

    def __init__(self, engine: VMP | ChunkedVMP, graph: ChainGraph, partial: Blocks) -> None:
        super().__init__(engine, graph, fresh=False)
        self.partial = partial

    def run(self, max_steps: int) -> Run:
        trace: list[Tensor] = []
        interrupted = False
        try:
            while len(trace) < max_steps and not interrupted:
                self._refit(anew=not trace)
                run = self.engine.run(1, tol=0.0)
                interrupted = run.interrupted
                trace.append(run.elbo[-1])
        except KeyboardInterrupt:
            if not trace:
                raise
            interrupted = True
        return Run(torch.stack(trace), len(trace), False, interrupted=interrupted)

    def select(self, restarts: Tensor) -> "Populations":
        return Populations(self.engine.select(restarts), self._chain_graph, self.partial)

    @property
    def tables(self) -> Etas:
        """Those of message passing, and the natural parameters of each population, which are extrapolated too."""
        return super().tables | prefixed({name: self.graph.priors[name][:1] for name in self.partial}, OF_POPULATION)

    def at(self, tables: Etas) -> "Populations":
        graph = self._under({name: tables[OF_POPULATION + name][0] for name in self.partial})
        engine = engine_of(graph, without_populations(tables), linear=self.engine.linear)
        return Populations(engine, graph, self.partial)

    def state(self) -> dict[str, Any]:
        return super().state() | {"populations": {name: self.graph.priors[name][0] for name in self.partial}}

    def resumed(self, state: dict[str, Any]) -> "Populations":
        graph = self._under(state["populations"])
        return Populations(engine_in(graph, state["engine"]), graph, self.partial)

    def settled(self, tables: Etas) -> Etas:
        """The natural parameters of the subjects' blocks after one more step under the populations of a restart's
        tables, so that their differences from these are the messages of the data."""
        settled = self.at({name: table.unsqueeze(0) for name, table in tables.items()})
        settled.engine.run(1, tol=0.0)
        return {name: table[0] for name, table in without_populations(settled.tables).items()}

    def problem_at(self, tables: Etas) -> Problem:
        """The problem with the hyperparameters of a restart's tables."""
        return self._under({name: tables[OF_POPULATION + name] for name in self.partial}).problem

    @property
    def _chain_graph(self) -> ChainGraph:
        assert isinstance(self.graph, ChainGraph)
        return self.graph

    def _under(self, populations: Etas) -> ChainGraph:
        """The graph with these natural parameters of the populations."""
        graph, problem = self._chain_graph, self._chain_graph.problem
        priors, hyper = dict(graph.priors), dict(problem.prior or {})
        for name, eta in populations.items():
            prefix, block = self.partial[name]
            hyper |= prefixed(block.hyperparameters_of(eta), prefix or "")
            priors[name] = eta.expand_as(priors[name])
        return replace(graph, problem=replace(problem, prior=hyper), priors=priors)

    def _refit(self, anew: bool) -> None:
        """Set the hyperparameters to their optimum, given the paths. The next step sets the parameters to theirs."""
        before, tables, populations = self._chain_graph.priors, super().tables, {}
        for name, (_, block) in self.partial.items():
            messages = self.engine.message(name)[0]
            try:
                populations[name] = best_population(block.family, before[name][0], messages, anew)
                proper = _proper(block.family, populations[name])
            except ValueError:  # a matrix of it is not positive definite
                proper = False
            if not proper:
                raise ValueError(
                    f"pooled: the population of {name!r} has no spread left; the observations of some subject hardly "
                    'vary. Use "none", or leave the subject out.'
                )
        self.graph = graph = self._under(populations)
        if isinstance(self.engine, ChunkedVMP):
            falls = [
                (block.family.kl(tables[name], before[name]) - block.family.kl(tables[name], graph.priors[name])).sum()
                for name, (_, block) in self.partial.items()
            ]
            engine = copy(self.engine)
            elbo = engine._now.elbo + torch.stack(falls).sum()
            engine.graph, engine._now = graph, engine._now._replace(elbo=elbo)
            self.engine = engine
        else:
            for name in self.partial:
                self.engine.put(replace(self.engine.blocks[name], prior=graph.priors[name]))


def _proper(family: VectorFamily[Any], eta: Tensor) -> bool:
    """Whether a population has a density, whose expected statistics are not beyond all rounding."""
    try:
        family.check(eta)
    except ValueError:
        return False
    return bool((family.mean(eta).abs() < torch.finfo(eta.dtype).eps ** -2).all())


def without_populations(tables: Etas) -> Etas:
    """The natural parameters of the subjects' blocks alone."""
    return {name: eta for name, eta in tables.items() if not name.startswith(OF_POPULATION)}


def fit_population(problem: Problem, options: Options, pooled: VariationalPosterior, partial: Sequence[str]) -> Result:
    """The fit by message passing of parameters by subject and of their population, from a fit without one.

    The hyperparameters of the result are those of its posterior's problem.
    """
    units = pooled.units
    assert units is not None
    scaled = units.problem(problem.double())  # data are differences from a population that may hardly vary
    graph = ChainGraph.of(scaled)
    engine = engine_of(graph, {name: eta.double().unsqueeze(0) for name, eta in pooled.blocks.items()})
    volume = float(units.log_volume(problem.series).sum())
    with reported(options, -volume) as report:
        search = MultiStart(options, scaled.series, report)
        populations = Populations(engine, graph, partial_blocks(scaled, partial))
        search.run(populations, ["pooled"], 1)
    prior = populations.problem_at(search.best.tables).prior
    assert prior is not None
    fitted: Parameters = {name: table.detach().to(problem.series.like) for name, table in units.back(prior).items()}
    problem = replace(problem, prior=fitted)
    etas = populations.settled(search.best.tables)
    posterior = PopulationPosterior.of_chain(etas, graph.blocks, units, problem)
    fitted = {name: search.best.tables[OF_POPULATION + name] for name in populations.partial}
    posterior = replace(posterior, populations=fitted)
    empty = occupancy(problem, None, posterior.mean) < 1.0
    result = result_of(search.result().raised(-volume), "vmp", posterior.mean, empty, posterior)
    return replace(result, fixed=tuple(problem.fixed), held=problem.fixed)
