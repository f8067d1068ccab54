r"""The posterior of parameters by subject that have a population, with the spread of its hyperparameters.

q has the hyperparameters of the fit. Draws of q are under draws of these, given the messages of q(paths). Draws of the
posterior itself, `refined`, come from Gibbs sampling, in chains that start from draws of q:

    paths            given the parameters, as in `gibbs`
    hyperparameters  given the paths, with the parameters of subjects integrated out: see `population_draws`
    parameters       given the paths and the hyperparameters
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from ...inference.numerics.randomness import Seed, generator_of
from ...inference.numerics.scalars import check_integer
from ..parameters import Parameters, of_subject
from ..problem import Problem
from ..seeding import seeded
from .chain_graph import ChainGraph
from .gibbs import check_gibbs, draw_blocks, path_messages
from .graph import Etas
from .hyperparameters import coordinates
from .population_draws import Walkers
from .posterior import DrawnPosterior, ParameterPosterior, VariationalPosterior

CHAINS = 64  # the fewest
SWEEPS, LEAST = 75, 20  # of each chain; of large data fewer, of which a third is dropped
FIRST, MOVES = 400, 10  # of hyperparameters, under q(paths) and in a sweep
MOST = 2**27  # numbers in the likelihood tables of all draws of paths; they take about half a minute


@dataclass(frozen=True, repr=False)
class PopulationPosterior(VariationalPosterior):
    """q of parameters by subject under draws of their populations.

    Attributes:
        populations: natural parameters of the fitted populations, by block.
        together: the posterior of all subjects; None: this is it.
        subject: the number of the subject among them.
    """

    populations: Etas = field(default_factory=dict)
    together: "PopulationPosterior | None" = None
    subject: int = 0

    @cached_property
    def walkers(self) -> dict[str, Walkers]:
        """Draws of the populations given the messages of q(paths)."""
        if self.together is not None:
            return self.together.walkers
        generator, walkers = generator_of(0, next(iter(self.blocks.values())).device), {}
        known = {name: coordinates(self.families[name], eta) for name, eta in self.populations.items()}
        half = max(CHAINS // 2, *(some.start.shape[-1] + 2 for some in known.values()))
        for name, eta in self.populations.items():
            begun = Walkers.of(self.families[name], known[name], half, generator)
            walkers[name] = begun.moved((self.blocks[name] - eta).unsqueeze(0), FIRST)
        return walkers

    def sample(self, n: int, seed: Seed = 0) -> Parameters:
        n, blocks = check_integer("n", n), {}
        for name, eta in self.blocks.items():
            blocks[name] = eta.expand(n, *eta.shape)
            if name in self.walkers:
                natural = self.walkers[name].natural
                by = natural[torch.arange(n, device=eta.device) % len(natural)] - self.populations[name]
                blocks[name] = eta + (by.unsqueeze(1) if self.together is None else by)
        draws = VariationalPosterior.sample(replace(self, blocks=blocks), 1, seed)
        return {name: table[0] for name, table in draws.items()}

    @cached_property
    def refined(self) -> ParameterPosterior:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Draws of the posterior itself, by Gibbs sampling; q if the model has no Gibbs sampler, or too much data."""
        if self.together is not None:
            drawn = self.together.refined
            if not isinstance(drawn, DrawnPosterior):
                return self
            known = self.together.problem.parameters  # type: ignore[union-attr]
            return DrawnPosterior(of_subject(known, drawn.draws, self.subject, lead=2), model=self.model)
        problem = self.problem
        assert problem is not None
        try:
            check_gibbs(problem)
        except (TypeError, ValueError):
            return self
        n_sweeps = min(SWEEPS, MOST // (problem.size * CHAINS))
        if n_sweeps < LEAST:
            return self
        return DrawnPosterior(self._gibbs(problem, n_sweeps), model=self.model)

    def _gibbs(self, problem: Problem, n_sweeps: int) -> Parameters:
        """Draws `[chains, draws, ...]` of the parameters, without the first third of the sweeps."""
        units, like, kept = self.units, problem.series.like, []
        assert units is not None
        inner = units.problem(problem.double()).padded()
        graph = ChainGraph.of(inner)
        walkers = {name: replace(some, generator=None) for name, some in self.walkers.items()}
        n = len(next(iter(walkers.values())).natural)
        values = units.values({name: table.double() for name, table in self.sample(n).items()})
        with seeded(0, like):
            for sweep in range(n_sweeps):
                parts = [path_messages(graph, some)[1] for some in inner.in_turns(values)]
                natural = {name: torch.cat([part[name] for part in parts]) for name in graph.blocks}
                walkers = {name: some.moved(natural[name], MOVES) for name, some in walkers.items()}
                priors = graph.priors | {name: some.natural.unsqueeze(1) for name, some in walkers.items()}
                values = draw_blocks(graph, {name: priors[name] + by for name, by in natural.items()}, values)
                if sweep >= n_sweeps // 3:
                    kept.append(problem.admitted({name: table.to(like) for name, table in units.back(values).items()}))
        return {name: torch.stack([draw[name] for draw in kept], 1) for name in kept[0]}
