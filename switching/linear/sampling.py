"""Draws of a linear model's parameters through Pyro, on the density with the latents summed out.

The coordinates are those of `coordinates`, in units of the data. Each draw of tables is rotated to be nearest to the
start, because the prior is the same for all rotations of the latent space.
"""

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal, init_to_value
from torch.distributions import constraints

from ..fitting.options import Options
from ..fitting.posterior import SampledParameters
from ..fitting.sampling import bound_of, climb_guide, draw_guide, run_nuts, sampled_diagnostics
from ..fitting.units import Units
from ..parameters import Parameters
from ..seeding import seeded
from .bases import nearest_turn, turned
from .coordinates import LinearDensity
from .emission import Irregular
from .problem import LinearProblem
from .user_priors import at_zero

LEAST = 0.01
"""The smallest standard deviation of the start, in units of the data, as 0 is a corner of the prior; and the smallest
share of a range between the start and its ends, as there is no volume of coordinates there."""


def draw(
    problem: LinearProblem, units: Units, options: Options, start: Parameters
) -> tuple[SampledParameters, dict[str, Any]] | None:
    """Draws of the posterior, or of a guide to it, and the other fields of a `Fit`; None: interrupted before the first
    draw.

    Arguments:
        start: parameters in the data's units.
    """
    inner = problem.in_units(units)
    near = units.values(start)
    own = inner.emission.user_priors if isinstance(inner.emission, Irregular) else {}
    corners = [n for n in near if n.startswith("sigma2.") and not (n in own and at_zero(own[n]) == -torch.inf)]
    near = {n: v.clamp_min(LEAST**2) if n in corners else v for n, v in near.items()}
    for name, (low, high) in inner.emission.ranges.items() if isinstance(inner.emission, Irregular) else ():
        near[name] = near[name].clamp(low + LEAST * (high - low), high - LEAST * (high - low))
    near |= inner.fixed
    density = LinearDensity(inner, units, near)
    return (_by_nuts if options.method == "nuts" else _by_svi)(density, problem, options, start)


Drawn = tuple[SampledParameters, dict[str, Any]]


def _by_nuts(density: LinearDensity, problem: LinearProblem, options: Options, start: Parameters) -> Drawn | None:
    chains = run_nuts(density, problem.objective, options, problem.series.like)
    if chains is None:
        return None
    draws = aligned(chains.draws, start, problem)
    how = sampled_diagnostics(chains.objective, len(chains.diverging), *chains.judged(draws), chains.interrupted)
    return SampledParameters(draws, chains.diverging), how


def _by_svi(density: LinearDensity, problem: LinearProblem, options: Options, start: Parameters) -> Drawn | None:
    at = density.point
    here = density.coordinates.values(at)
    shift = float(problem.objective(density.values(density.start)) - density.problem.objective(here))

    def program() -> None:
        y = pyro.sample("y", dist.ImproperUniform(constraints.real, torch.Size(), at.shape))
        pyro.factor("density", -density.potential({"y": y}))

    with seeded(options.number, at):
        guide = AutoNormal(program, init_loc_fn=init_to_value(values={"y": at}), init_scale=0.05)
        heights, interrupted = climb_guide(program, guide, options, shift)
        if not heights:
            return None
        drawn = draw_guide(guide, "y")
    draws = {name: table.unsqueeze(0) for name, table in density.values({"y": drawn}).items()}
    return SampledParameters(aligned(draws, start, problem)), sampled_diagnostics(*bound_of(heights), interrupted)


def aligned(draws: Parameters, start: Parameters, problem: LinearProblem) -> Parameters:
    """Draws `[chains, n, ...]`, each rotated to be nearest to the start; unchanged if parameters are fixed."""
    if "emission" not in draws or problem.fixed:
        return draws
    shape = draws["emission"].shape[:2]
    flat = {name: table.flatten(0, 1) for name, table in draws.items()}
    turns = nearest_turn(flat["emission"], start["emission"])
    still = torch.zeros(problem.dynamics.n_latent).to(turns)
    each = [turned({name: table[i] for name, table in flat.items()}, turn, still) for i, turn in enumerate(turns)]
    return {name: torch.stack([one[name] for one in each]).unflatten(0, shape) for name in flat}
