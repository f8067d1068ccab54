r"""The belief about a segment's parameters: means and standard deviations under members of a conjugate family.

Means over run lengths are sums of $E f(\theta)$ and $E f(\theta)^2$ of each member. With $a, b$ the shape and the rate
of a precision $\tau$,

$$E\,\tau^{-1/2} = \sqrt b\,\Gamma(a - \tfrac12) / \Gamma(a), \qquad E\,\tau^{-1} = b / (a - 1),$$

and elements of a covariance have the moments of the inverse Wishart distribution. A moment that does not exist is
infinite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.families import Beta, Dirichlet, Gamma, MatrixNormalWishart, NormalGamma, NormalWishart
from ...inference.numerics.cholesky import cholesky, cholesky_inverse
from ...inference.numerics.gammas import LEAST, inverse_moments
from ..parameters import Parameters

Moments = dict[str, tuple[Tensor, Tensor]]
"""By name of a parameter its mean and its mean square, `[*n, G, m]`."""

INFINITE = 1e100  # a variance above which it is infinite


def event_shapes(emission: Any) -> dict[str, tuple[int, ...]]:
    """The parameters of a segment in their displayed form, with the lengths of their axes."""
    names = {name: p.shown.name if p.shown else name for name, p in emission.parameters.items()}
    return {names[name]: tuple(emission.sizes[dim] for dim in p.dims[1:]) for name, p in emission.parameters.items()}


def shown(emission: Any, name: str, table: Tensor) -> Tensor:
    """A parameter in its displayed form, NaN where it is NaN."""
    form = emission.parameters[name].shown
    if form is None:
        return table
    none = table.isnan()
    one = torch.eye(table.shape[-1]).to(table) if form.name == "covariance" else torch.ones_like(table)
    return form.of(torch.where(none, one, table)).masked_fill(none, torch.nan)


def moments(family: Any, eta: Float[Tensor, "*n G D"]) -> Moments:
    """The moments of the parameters, relative to the origin of locations."""
    return next(of for kind, of in OF_FAMILY.items() if isinstance(family, kind))(family, eta)


@dataclass(frozen=True)
class Expectation:
    """The function whose expectations a chain computes: all means, then all mean squares. The kernels of chains have
    them too."""

    family: Any
    kernel: ClassVar[str] = "moments"

    def __call__(self, eta: Float[Tensor, "*n G D"]) -> Float[Tensor, "*n G M"]:
        found = moments(self.family, eta).values()
        return torch.cat([mean for mean, _ in found] + [square for _, square in found], -1)


def summarised(
    emission: Any, expected: Float[Tensor, "*n G M"], about: Float[Tensor, "F"]
) -> tuple[Parameters, Parameters]:
    """Means and standard deviations by parameter, from those of `Expectation`."""
    shapes, lead = event_shapes(emission), expected.shape[:-2]
    n_groups = expected.shape[-2]
    sizes = [torch.Size(shape).numel() // n_groups for shape in shapes.values()]
    half = expected.shape[-1] // 2
    first, second = expected[..., :half], expected[..., half:]
    variance, none = (second - first.square()).clamp_min(0.0), first.abs() > INFINITE
    mean = torch.where(none, torch.inf, first).split(sizes, -1)
    spread = torch.where(none | (variance > INFINITE), torch.inf, variance.sqrt()).split(sizes, -1)
    means, spreads = (
        {name: part.reshape(*lead, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        for parts in (mean, spread)
    )
    return means | ({"loc": means["loc"] + about} if "loc" in means else {}), spreads


def _positive(number: Tensor) -> Tensor:
    return number.clamp_min(LEAST)


def _of_scale(shape: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    root, inverse = inverse_moments(shape)
    return rate.sqrt() * root, rate * inverse


def _normal_gamma(family: NormalGamma, eta: Tensor) -> Moments:
    q = family.usual(eta)
    scale, variance = _of_scale(q.shape, q.rate)
    pairs = {"loc": (q.loc, q.loc.square() + variance / q.kappa), "scale": (scale, variance)}
    return {name: (mean.unsqueeze(-1), square.unsqueeze(-1)) for name, (mean, square) in pairs.items()}


def _matrix_normal_wishart(family: MatrixNormalWishart, eta: Tensor) -> Moments:
    """Of one output."""
    q = family.usual(eta)
    scale, variance = _of_scale(q.df / 2, 0.5 / q.scale_matrix[..., 0, 0])
    spread = cholesky_inverse(cholesky(q.weight)).diagonal(dim1=-2, dim2=-1)
    mean = q.loc.squeeze(-1)
    square = mean.square() + spread * variance.unsqueeze(-1)
    of_scale = scale.unsqueeze(-1), variance.unsqueeze(-1)
    return {
        "loc": (mean[..., :1], square[..., :1]),
        "coefficients": (mean[..., 1:], square[..., 1:]),
        "scale": of_scale,
    }


def _normal_wishart(family: NormalWishart, eta: Tensor) -> Moments:
    q = family.usual(eta)
    dim = q.loc.shape[-1]
    inverse, left = cholesky_inverse(cholesky(q.scale_matrix)), (q.df - dim)[..., None, None]
    mean = inverse / _positive(left - 1)
    sizes = inverse.diagonal(dim1=-2, dim2=-1)
    above = (left + 1) * inverse.square() + (left - 1) * sizes.unsqueeze(-1) * sizes.unsqueeze(-2)
    variance = above / (_positive(left) * _positive(left - 1).square() * _positive(left - 3))
    variance = torch.where(left > 3, variance, 1 / LEAST)
    of_loc = mean.diagonal(dim1=-2, dim2=-1) / q.kappa.unsqueeze(-1)
    square = torch.where(left > 3, mean.square() + variance, variance)
    return {"loc": (q.loc, q.loc.square() + of_loc), "covariance": (mean.flatten(-2), square.flatten(-2))}


def _gamma(family: Gamma, eta: Tensor) -> Moments:
    q = family.usual(eta)
    mean = q.shape / q.rate
    return {"rate": (mean.unsqueeze(-1), (mean * (q.shape + 1) / q.rate).unsqueeze(-1))}


def _simplex(concentration: Tensor) -> tuple[Tensor, Tensor]:
    total = concentration.sum(-1, keepdim=True)
    mean = concentration / total
    return mean, mean * (concentration + 1) / (total + 1)


def _beta(family: Beta, eta: Tensor) -> Moments:
    mean, square = _simplex(eta)
    return {"probs": (mean[..., :1], square[..., :1])}


def _dirichlet(family: Dirichlet, eta: Tensor) -> Moments:
    return {"probs": _simplex(eta)}


OF_FAMILY: dict[type, Callable[[Any, Tensor], Moments]] = {
    NormalGamma: _normal_gamma,
    NormalWishart: _normal_wishart,
    MatrixNormalWishart: _matrix_normal_wishart,
    Gamma: _gamma,
    Beta: _beta,
    Dirichlet: _dirichlet,
}
