r"""Normal log densities of every step under every state, and the weighted moments that fit them.

$$\log N(x_n; \mu_k, \Lambda_k^{-1}) = \tfrac12 \log|\Lambda_k| - \tfrac F2 \log 2\pi - \tfrac12 r^\top \Lambda_k r,
\quad
  r = x_n - \mu_k$$

$$n_k = \sum_n w_{nk}, \qquad f_k = \sum_n w_{nk} (x_n - c_k), \qquad S_k = \sum_n w_{nk} (x_n - c_k)(x_n - c_k)^\top$$

Both use residuals, never raw squares, so data far from zero lose no digits. Moments are about a point c_k of the
caller, near the mean. Parameters have leading axes `*r` (restarts, draws); all of them share x.

Any number can replace $\log|\Lambda_k|$: for example its expectation, if the precision has a distribution.

Independent features may be missing, NaN. A density is then that of the other features, and a feature's moments and
count are those of the steps where it is seen. With full covariances, steps are complete here.
"""

from functools import partial
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from ..numerics.cholesky import log_det as log_determinant
from ..numerics.op import Call, Gradients, Op, blank, tensors
from . import plain


def _fake_density(x: Tensor, loc: Tensor, spread: Tensor, log_volume: Tensor) -> Tensor:
    return blank(loc, (*loc.shape[:-2], x.shape[0], loc.shape[-2]))


def _fake_moments(x: Tensor, weights: Tensor, about: Tensor, full: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    if full:
        return blank(about, about.shape[:-1]), blank(about), blank(about, (*about.shape, x.shape[1]))
    return blank(about), blank(about), blank(about)


# The gradient of a density consists of moments: with weights g, of g about the mean. The gradient of x is rarely
# needed.


def _diagonal_gradient(call: Call, grad: Tensor) -> Gradients | None:
    x, loc, precision, _ = call.inputs
    if call.wanted[0]:
        return None
    count, first, second = diagonal_moments(x, grad, loc)
    return None, precision * first, -0.5 * second, 0.5 * count


def _full_gradient(call: Call, grad: Tensor) -> Gradients | None:
    x, loc, chol, _ = call.inputs
    if call.wanted[0]:
        return None
    count, first, second = full_moments(x, grad, loc)
    chol = chol.tril()
    return None, (chol @ (chol.mT @ first.unsqueeze(-1))).squeeze(-1), -(second @ chol).tril(), 0.5 * count


_MOMENTS = f"(Tensor x, Tensor weights, Tensor about) -> {tensors(3)}"
_full_moments = partial(_fake_moments, full=True)
diagonal_moments: Op = Op("normal_moments" + _MOMENTS, plain.normal_moments, _fake_moments)
full_moments: Op = Op("multivariate_normal_moments" + _MOMENTS, plain.multivariate_normal_moments, _full_moments)
diagonal_density: Op = Op(
    "normal_log_density(Tensor x, Tensor loc, Tensor precision, Tensor log_precision) -> Tensor",
    plain.normal_log_density,
    _fake_density,
    _diagonal_gradient,
)
full_density: Op = Op(
    "multivariate_normal_log_density(Tensor x, Tensor loc, Tensor chol_precision, Tensor log_det) -> Tensor",
    plain.multivariate_normal_log_density,
    _fake_density,
    _full_gradient,
)


class Moments(NamedTuple):
    """Weighted count, first and second moments about a point of each state."""

    count: Tensor  # [*r, K], or [*r, K, F] where features are independent
    first: Float[Tensor, "*r K F"]
    second: Tensor  # [*r, K, F, F], or [*r, K, F] where features are independent


def normal_log_density(
    x: Float[Tensor, "N F"],
    loc: Float[Tensor, "*r K F"],
    precision: Float[Tensor, "*r K F"],
    log_precision: Float[Tensor, "*r K F"] | None = None,
) -> Float[Tensor, "*r N K"]:
    """Log density of each step under each state, features independent with the given precisions, NaN where missing.

    `log_precision` replaces the logarithm of the precision.

    >>> import torch
    >>> x, loc = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    >>> normal_log_density(x, loc, torch.ones(2, 1))
    tensor([[-0.9189, -1.4189],
            [-1.4189, -0.9189]])
    """
    return diagonal_density(x, loc, precision, precision.log() if log_precision is None else log_precision)


def multivariate_normal_log_density(
    x: Float[Tensor, "N F"],
    loc: Float[Tensor, "*r K F"],
    chol_precision: Float[Tensor, "*r K F F"],
    log_det: Float[Tensor, "*r K"] | None = None,
) -> Float[Tensor, "*r N K"]:
    """Log density of each step under each state; precision = chol_precision chol_precision^T, with a lower factor.

    `log_det` replaces the logarithm of the precision's determinant.

    >>> import torch
    >>> multivariate_normal_log_density(torch.zeros(1, 2), torch.zeros(1, 2), torch.eye(2).expand(1, 2, 2))
    tensor([[-1.8379]])
    """
    if log_det is None:
        log_det = log_determinant(chol_precision)
    return full_density(x, loc, chol_precision, log_det)


def normal_moments(
    x: Float[Tensor, "*s N F"], weights: Float[Tensor, "*r N K"], about: Float[Tensor, "*#r #K F"]
) -> Moments:
    """Weighted moments about `about` of each feature separately, NaN where missing.

    Axes `*s` of x, if there are some, are the last of `*r`.

    >>> import torch
    >>> normal_moments(torch.tensor([[1.0], [4.0]]), torch.tensor([[1.0], [0.5]]), torch.zeros(1, 1))
    Moments(count=tensor([[1.5000]]), first=tensor([[3.]]), second=tensor([[9.]]))
    """
    moments = diagonal_moments if x.ndim == 2 else plain.normal_moments
    return Moments(*moments(x, weights, _about_each(about, weights)))


def multivariate_normal_moments(
    x: Float[Tensor, "N F"], weights: Float[Tensor, "*r N K"], about: Float[Tensor, "*#r #K F"]
) -> Moments:
    """Weighted moments about `about`, with the full second moments.

    >>> import torch
    >>> multivariate_normal_moments(torch.tensor([[1.0, 2.0]]), torch.ones(1, 1), torch.zeros(1, 2)).second
    tensor([[[1., 2.],
             [2., 4.]]])
    """
    return Moments(*full_moments(x, weights, _about_each(about, weights)))


def _about_each(about: Tensor, weights: Tensor) -> Tensor:
    return about.expand(*weights.shape[:-2], weights.shape[-1], about.shape[-1])
