"""Priors of the user for models of several chains: distributions of Pyro of the form of the default priors.

    redraw_prob                                  Beta
    state_probs, state_probs_d, table_l          Dirichlet
    rate_d = exp(loc_d), of joint counts         Gamma
    precision, of joint normals                  Wishart

They replace the natural parameters of their blocks. Those of an emission's parameters are its own.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.distributions import Beta, Dirichlet, Distribution, Gamma, constraints
from torch.distributions.constraints import Constraint

from ..fitting.graph import Etas
from ..parameters import Parameter
from ..user_priors import kind_of, natural, read

KINDS: dict[Constraint, type[Distribution]] = {
    constraints.unit_interval: Beta,
    constraints.simplex: Dirichlet,
    constraints.positive: Gamma,
}


def check_kinds(prior: Mapping[str, Any], kinds: Mapping[str, type[Distribution]], of: str) -> None:
    """Raise ValueError, with the distributions that a model supports, if it does not support one of these."""
    for name, given in prior.items():
        if name in kinds and isinstance(given, (kinds[name], type)):  # a class has an error of its own
            continue
        taken = ", ".join(f"a {kind.__name__} of {place}" for place, kind in kinds.items())
        raise ValueError(f"prior[{name!r}]: got {kind_of(given)}, but a {of} supports only conjugate priors: {taken}.")


def natural_priors(
    prior: Mapping[str, Any], known: Mapping[str, Parameter], sizes: Mapping[str, int], like: Tensor, of: str
) -> Etas:
    """Natural parameters of the blocks of chains that have a prior of the user.

    Raises:
        TypeError, ValueError: see `switching.user_priors.read`; another shape.
    """
    etas: Etas = {}
    for name, user in read(prior, known, of).items():
        parameter = known[name]
        shape = [sizes[dim] for dim in parameter.dims]
        eta = natural(user, like.new_zeros(shape if parameter.support is constraints.simplex else [*shape, 2]))
        if name == "redraw_prob":  # each chain has a block
            etas |= {f"redraw_{d}": row for d, row in enumerate(eta, start=1)}
        else:
            etas[name.replace("state_probs", "state")] = eta
    return etas
