"""Parameters as Pyro sites: one list of (name, distribution) serves the program, the prior density and its draws.

A family of parameters is described by `Site`s in order; the distribution of a later site may depend on the values of
earlier ones. `sample_sites` is the Pyro program of that list and `log_prior` its log density at given values, so the
two are the same density by construction.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

Parameters = dict[str, Tensor]


class Site(NamedTuple):
    """A named parameter and its prior, given the values of the sites before it."""

    name: str
    distribution: Callable[[Parameters], TorchDistributionMixin]


def sample_sites(sites: Sequence[Site]) -> Parameters:
    """Draw every parameter, in order, as a Pyro sample site."""
    values: Parameters = {}
    for site in sites:
        values[site.name] = pyro.sample(site.name, site.distribution(values))
    return values


def log_prior(sites: Sequence[Site], values: Parameters) -> Tensor:
    """Log density of the sites at `values`, one number a restart: [*r]."""
    terms = [site.distribution(values).log_prob(values[site.name]) for site in sites]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def prefixed(sites: Sequence[Site], prefix: str) -> list[Site]:
    """The same sites under names that start with `prefix`."""

    def rename(site: Site) -> Site:
        return Site(prefix + site.name, lambda values: site.distribution(with_prefix(values, prefix)))

    return [rename(site) for site in sites]


def with_prefix(values: Parameters, prefix: str) -> Parameters:
    """The entries whose names start with `prefix`, without it."""
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def concentration(prior: float | Sequence[float] | Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """A table of positive concentrations from a scalar or a table that broadcasts to `shape`.

    Raises:
        ValueError: a shape that does not fit, or a concentration that is not positive and finite.
    """
    table = torch.as_tensor(prior, dtype=torch.float64)
    try:
        table = table.expand(shape).clone()
    except RuntimeError:
        raise ValueError(
            f"{name}: got shape {tuple(table.shape)}, expected a scalar or a table of shape {shape}."
        ) from None
    if not bool(((table > 0) & torch.isfinite(table)).all()):
        raise ValueError(f"{name}: got {table.tolist()}, expected positive, finite concentrations.")
    return table
