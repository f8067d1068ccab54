"""Expectation-maximisation over data that are read in parts, or shared by processes.

An E-step adds up the messages of all parts to the conjugate blocks of parameters (see `chunked`), and an M-step takes
the mode of prior and messages. So memory holds one part, and processes exchange only these sums.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...inference.families import Held
from ..emissions.conjugate import ConjugateEmission
from ..emissions.student_t import StudentT
from ..parameters import Parameters, with_prefix
from ..problem import Problem
from .chain_graph import ChainGraph
from .chunked import ChunkedVMP, Contribution
from .em import EM
from .whole import Whole


class EMInParts(EM):
    """A batch of restarts that are optimised by EM.

    Arguments:
        problem: that of a sample of the data, in the units of the fit.
        whole: all data, in the same units.
    """

    def __init__(self, problem: Problem, whole: Whole, values: Parameters) -> None:
        prior = _default(problem) if problem.prior is None else problem.prior  # for blocks without any data
        graph = ChainGraph.of(replace(problem, prior=prior))
        self._graph = replace(graph.at_points(flat=problem.prior is None), whole=whole)
        self._linear = graph.linear(graph.near(values))
        self.problem = problem
        self._begin(values, None)

    @property
    def occupancy(self) -> Float[Tensor, "R K"]:
        return self._engine(self.tables).occupancy

    def _engine(self, values: Parameters) -> ChunkedVMP:
        """All parts, with the blocks of parameters at these points."""
        families, n = dict(self._graph.families), len(next(iter(values.values())))
        for name, (prefix, block) in self._graph.blocks.items():
            if not isinstance(families[name], Held):
                families[name] = Held(block.family, block.point(with_prefix(values, prefix)))
        at_values = replace(self._graph, families=families)
        return ChunkedVMP(at_values, self._graph.start(n), self._linear)

    def _expected(self, values: Parameters) -> Contribution:
        return self._engine(values).contribution

    def _maximized(self, now: Contribution) -> tuple[Parameters, Bool[Tensor, "R K"]]:
        graph, points = self._graph, {}
        for name, family in graph.families.items():
            points[name] = family.expected(graph.priors[name] + now.messages[name])
        held, n = self.problem.hold(graph.collect(points)), len(now.elbo)
        # known parameters come without restarts
        values = {name: table.expand(n, *self.tables[name].shape[1:]) for name, table in held.items()}
        none = torch.zeros(n, self.problem.n_states, dtype=torch.bool, device=now.elbo.device)
        return values, none

    def _evidence(self, now: Contribution) -> Float[Tensor, "R"]:
        return now.elbo

    def _some(self, now: Contribution, restarts: Tensor) -> Contribution:
        return Contribution(now.elbo[restarts], {name: table[restarts] for name, table in now.messages.items()})


def _default(problem: Problem) -> Parameters:
    prior = problem.emission.prior_scaled(problem.n_states, problem.series.rows)
    return {n: table.to(problem.series.like) for n, table in (problem.dynamics.default_prior() | prior).items()}


def check_sums(problem: Problem) -> None:
    """Raise an error unless an M-step needs only sums over the data, which messages at a point are.

    Raises:
        TypeError: dynamics or an emission whose M-step needs more.
        ValueError: known noise.
    """
    dynamics = problem.dynamics
    if problem.series.noise is not None:
        raise ValueError(
            "noise: got some, but x is in a file or shared by processes, where EM takes none; leave it out, use "
            'method="svi", or fit some of the sequences in memory.'
        )
    not_sums = [dynamics.name] if dynamics.no_messages else []
    not_sums += [f"{dynamics.name} with inputs"] if dynamics.n_inputs else []
    for part in problem.emission.parts:
        emission = part.emission
        if not isinstance(emission, ConjugateEmission) or isinstance(emission, StudentT) or not emission.is_conjugate:
            not_sums.append(emission.name)
    if not_sums:
        raise TypeError(
            f"x: is in a file or shared by processes, but EM of {not_sums[0]} needs all observations at once; use "
            'method="svi", method="vmp" where it takes this model, or fit some of the sequences in memory.'
        )
