r"""Priors of a switching linear model from the user: distributions of Pyro, for parameters in the units of the data.

    initial_probs, transition_probs    of probabilities; a Dirichlet is conjugate
    recurrence_offset                  of real numbers; a Normal is conjugate
    emission_offset                    of real numbers; a Normal is conjugate beside a known diagonal noise
    observation_noise                  of variances or covariances; an InverseGamma of variances is conjugate

No linear change of the states changes these parameters. A shift of the states moves the two offsets; the default priors
of the states are about 0. Other parameters depend on the basis of the states.

A prior of `observation_noise` is that beside the coefficients that `fixed` holds, whose default prior depends on the
noise.

A conjugate prior becomes natural parameters of its block. At points, another one enters by its ratio to the default
density (`fitting.user_points`). So does an InverseGamma there, since the mode is that of the density of the variance,
not of the precision.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Dirichlet, InverseGamma, Normal

from ...inference.families import Gaussian, LocPrecision, MatrixNormalWishart
from ...inference.numerics.cholesky import cholesky, cholesky_inverse
from ..dynamics.any_prior import AnyPrior
from ..fitting.graph import Etas, Points
from ..fitting.units import Units
from ..fitting.user_points import MAX_STEPS, UnderPrior
from ..linear.fixed import Known
from ..linear.priors import log_coefficients, log_default
from ..parameters import is_simplex
from ..user_priors import NEAR_END, UserPrior, check_possible, expanded, limit, natural, summed
from .graph import SEEN, SPARE, WEIGHT, WORTH
from .layout import BLOCKS, LinearRegimes

BLOCK_OF = {name: block for block, names in BLOCKS.items() for name in names}

KINDS: dict[str, Any] = {
    "initial_probs": Dirichlet,
    "transition_probs": Dirichlet,
    "recurrence_offset": Normal,
    "emission_offset": Normal,
    "observation_noise": InverseGamma,
}
"""The conjugate prior of each parameter."""

Users = dict[str, UserPrior]


class InFit(NamedTuple):
    """The priors of the user in a fit: those that natural parameters of a block give, and the others."""

    layout: LinearRegimes
    known: Known
    conjugate: Users
    other: Users

    @property
    def shifts(self) -> bool:
        """Whether a shift of the states leaves the density of the others as it is."""
        return not {BLOCK_OF[name] for name in self.other} & {"sights", "recurrence"}


# ---- what a fit takes ------------------------------------------------------------------------------------------------


def users_of(layout: LinearRegimes, known: Known, method: str) -> InFit:
    """The priors of the user of parameters that are not held as a whole.

    Raises:
        ValueError: entries held where a prior has no density; a prior that is not conjugate beside entries of its
            parameter that are held, or for message passing; for a mode one with an infinite density.
    """
    fully_known = {name: table for name, table in known.tables.items() if not bool(table.isnan().any())}
    check_possible(layout.user_priors, fully_known, "fixed")
    users = {name: one for name, one in layout.user_priors.items() if name not in fully_known}
    if layout.n_regimes == 1:  # then there is no switch
        users = {name: one for name, one in users.items() if not name.endswith("_probs")}
    conjugate = {name: one for name, one in users.items() if is_conjugate(layout, one, known, method)}
    other = {name: one for name, one in users.items() if name not in conjugate}
    for name, one in other.items():
        message = f"prior[{name!r}]: got {type(one.distribution).__name__}"
        if method != "em":
            raise ValueError(
                f'{message}, but message passing accepts {_taken(layout, name)} there; use method="em", or give such a '
                "prior."
            )
        _check_mode(layout, one)
        if name in known.tables:
            raise ValueError(
                f"{message} together with a table in fixed that is known in part; fix the whole table, or leave the "
                "prior out."
            )
    return InFit(layout, known, conjugate, other)


def is_conjugate(layout: LinearRegimes, prior: UserPrior, known: Known, method: str) -> bool:
    """Whether natural parameters of a block give the prior; for "em" also in the coordinates of the mode."""
    if not isinstance(prior.distribution, KINDS[prior.name]):
        return False
    if prior.name == "observation_noise":
        return method != "em" and not layout.full_noise
    return prior.name != "emission_offset" or (not layout.full_noise and _noise(known) is not None)


def _noise(known: Known) -> Tensor | None:
    """The variances of the observations in the units of a fit, if all are known."""
    noise = known.inner.get("observation_noise")
    return None if noise is None or bool(noise.isnan().any()) or bool((noise == 0).any()) else noise


def _taken(layout: LinearRegimes, name: str) -> str:
    if BLOCK_OF[name] == "sights" and layout.full_noise:
        return "none"
    kind = KINDS[name].__name__
    beside = " if observation_noise is known" if name == "emission_offset" else ""
    return f"only {'an' if kind.startswith('I') else 'a'} {kind}{beside}"


def _check_mode(layout: LinearRegimes, prior: UserPrior) -> None:
    """Raise ValueError if the density is infinite at an end of the parameter's values."""
    parameter = layout.forms[prior.name]
    shape = [layout.sizes[dim] for dim in parameter.dims]
    like = torch.ones(shape, dtype=torch.float64, device="cpu")
    if is_simplex(parameter.support):
        AnyPrior(prior.name, "concentration", parameter.dims, prior).check_mode({"concentration": like})
    elif prior.name == "observation_noise":
        unit = torch.eye(layout.n_features).to(like).expand(shape) if layout.full_noise else like
        if bool((limit(prior.distribution, *(share * unit for share in NEAR_END)) == torch.inf).any()):
            raise ValueError(
                f"prior[{prior.name!r}]: got {type(prior.distribution).__name__} with an infinite density at 0, so the "
                "posterior has no mode; give one with a finite density."
            )


# ---- conjugate priors ------------------------------------------------------------------------------------------------


def under_conjugate(users: InFit, priors: Etas) -> Etas:
    """Natural parameters of the blocks, with conjugate priors of the user in place of default ones."""
    changed, layout, known = dict(priors), users.layout, users.known
    for name, one in users.conjugate.items():
        block = BLOCK_OF[name]
        change = {"sights": _sights_under, "recurrence": _recurrence_under}.get(block)
        changed[block] = natural(one, priors[block]) if change is None else change(layout, one, changed[block], known)
    return changed


def _recurrence_under(layout: LinearRegimes, prior: UserPrior, eta: Tensor, known: Known) -> Tensor:
    d: Any = prior.distribution
    q, n, like = Gaussian().usual(eta), layout.n_latent, eta.new_zeros(layout.n_regimes, layout.n_regimes - 1)
    loc, scale = (expanded(prior.called, number, like).mT for number in (d.loc, d.scale))
    joined = torch.cat([q.loc[..., :n], loc], -1)
    precision = q.precision.clone()
    precision.diagonal(dim1=-2, dim2=-1)[..., n:] = scale.square().reciprocal()
    return Gaussian().natural(joined, precision)


def _sights_under(layout: LinearRegimes, prior: UserPrior, eta: Tensor, known: Known) -> Tensor:
    d: Any = prior.distribution
    family, about, unit = _regression(layout), known.units.about, known.units.unit
    q, like = family.usual(eta), eta.new_zeros([layout.sizes[dim] for dim in layout.forms[prior.name].dims])
    first, second = (
        expanded(prior.called, number, like).reshape(eta.shape[:-1])
        for number in ((d.concentration, d.rate) if prior.name == "observation_noise" else (d.loc, d.scale))
    )
    if prior.name == "observation_noise":
        scale_matrix = (unit.square() / (2 * second))[..., None, None]
        point = layout.known_points(known.inner).get("sights")
        if point is None:
            return family.natural(q.loc, q.weight, 2 * first, scale_matrix)
        rows = _known_rows(point)  # the prior beside known coefficients, whose own prior has no part in it
        return family.natural(q.loc, q.weight * (1 - rows).unsqueeze(-1), 2 * first - rows.sum(-1), scale_matrix)
    noise = _noise(known)
    assert noise is not None  # the prior would not be conjugate
    loc, weight = q.loc.clone(), q.weight.clone()
    loc[..., -1, 0] = (first - about) / unit
    weight[..., -1, -1] = noise.reshape(eta.shape[:-1]) * (unit / second).square()
    return family.natural(loc, weight, q.df, q.scale_matrix)


# ---- other priors, at points -----------------------------------------------------------------------------------------


def families_under(
    users: InFit, families: Mapping[str, Any], priors: Etas, known: Points, max_steps: int = MAX_STEPS
) -> dict[str, Any]:
    """The families of points, with the ratios of the user's priors to the default ones; see `UnderPrior`.

    Arguments:
        priors: natural parameters of the blocks, of the default priors where ratios replace these.
        known: the points of blocks with known entries.
    """
    layout = users.layout
    under: dict[str, Any] = dict(families)
    for block in {BLOCK_OF[name] for name in users.other}:
        mine = {name: one for name, one in users.other.items() if BLOCK_OF[name] == block}
        inner, point = under[block].family, known.get(block)
        if block == "sights":
            of_known = inner.log_normalizer(priors[block]) - _regression(layout).log_normalizer(priors[block])
            ratio: Any = partial(_ratio_of_sights, layout, users.known.units, mine, point, of_known)
        else:
            ratio = partial(_ratio_of_recurrence if block == "recurrence" else _ratio_of_rows, layout, mine)
        under[block] = UnderPrior(inner, ratio, point, max_steps)
    return under


def _ratio_of_rows(layout: LinearRegimes, users: Users, statistics: Tensor) -> Float[Tensor, "*groups"]:
    ((_, prior),) = users.items()
    flat = torch.full_like(statistics[..., 0], math.lgamma(statistics.shape[-1]))
    return _together([prior.log_prob(statistics.exp()), -flat])


def _ratio_of_recurrence(layout: LinearRegimes, users: Users, statistics: Tensor) -> Float[Tensor, "*groups"]:
    ((_, prior),) = users.items()
    offset = statistics[..., layout.n_latent : layout.n_latent + layout.n_regimes]
    density = prior.log_prob(offset.mT)
    lead = offset.ndim - 2
    density = density.mT if density.ndim == offset.ndim else summed(density, lead)
    default = Normal(0.0, WEIGHT**-0.5, validate_args=False).log_prob(offset)
    return _together([summed(density, lead + 1), -summed(default, lead + 1)])


def _ratio_of_sights(
    layout: LinearRegimes, units: Units, users: Users, known: LocPrecision | None, of_known: Tensor, statistics: Tensor
) -> Float[Tensor, "*groups"]:
    """`of_known` is the log density of known coefficients under the default prior, with the noise summed out."""
    first, _, _, precision = _regression(layout).parts(statistics)
    noise = cholesky_inverse(cholesky(precision)) if layout.full_noise else 1 / precision
    sights = LocPrecision(first @ noise, precision)
    offset = sights.loc[..., -1, :]
    values = {"emission_offset": offset, "observation_noise": noise}
    if not layout.full_noise:
        values = {"emission_offset": offset[..., 0], "observation_noise": noise[..., 0, 0]}
    lead = values["emission_offset"].ndim - 2
    if layout.common_emission:
        values = {name: table.squeeze(lead) for name, table in values.items()}
    values, terms = units.to(statistics).back(values), []
    for name, prior in users.items():
        density = prior.log_prob(values[name])
        terms.append(density.unsqueeze(lead) if layout.common_emission else density)
        terms.append(-log_default(name, sights, weight=WORTH, unexplained=SEEN, spare=SPARE))
    if "observation_noise" in users and known is not None:  # it is the prior beside known coefficients
        terms.append(of_known - (_known_rows(known) * log_coefficients(sights, WORTH)).sum(-1))
    return _together(terms)


def _regression(layout: LinearRegimes) -> MatrixNormalWishart:
    return MatrixNormalWishart(layout.n_latent + 1)


def _known_rows(known: LocPrecision) -> Float[Tensor, "*plates M"]:
    """1 for the inputs of which the coefficients are known, 0 for the others."""
    return (~known.loc.isnan()).all(-1).to(known.loc)


def _together(terms: list[Tensor]) -> Tensor:
    """The sum of terms, over the axes that not all of them have."""
    n_axes = min(term.ndim for term in terms)
    return torch.stack([summed(term, n_axes) for term in terms]).sum(0)
