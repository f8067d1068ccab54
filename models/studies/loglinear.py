r"""Softmax regression and generative classes with equal posteriors: two views of one log-linear object.

$$\log P(y = k \mid x) = w_k^\top x + b_k + \text{const}(x)$$

Gaussian classes with one covariance, $x \mid k \sim N(\mu_k, \Sigma)$, give, up to terms that all classes share,

$$w_k = \Sigma^{-1} \mu_k, \qquad b_k = \log \pi_k - \tfrac{1}{2} \mu_k^\top \Sigma^{-1} \mu_k$$

Categorical features, one-hot and independent given the class (naive Bayes), give

$$w_{k,(f,v)} = \log P(x_f = v \mid k), \qquad b_k = \log \pi_k$$

Both maps have exact inverses, since a shift of all $w_k$ by one vector $c$ changes no posterior. It is free, and so is
$\Sigma$: they are the part of P(x) that regression does not see.

$$\mu_k = \Sigma (w_k + c), \qquad \log \pi_k = b_k + \tfrac{1}{2} \mu_k^\top \Sigma^{-1} \mu_k + \text{const}$$
$$\log P(x_f = v \mid k) = w_{k,(f,v)} + c_{(f,v)} - A_{k,f}, \quad
\log \pi_k = b_k + \sum_f A_{k,f} + \text{const}, \quad
A_{k,f} = \log \sum_v e^{w_{k,(f,v)} + c_{(f,v)}}$$
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.arrays import ordinary
from ...inference.numerics.checks import check_parts, check_table
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer


def _check_log_prior(log_prior: Tensor) -> None:
    if log_prior.isnan().any() or not bool(log_prior.logsumexp(-1).isfinite()):
        raise ValueError(f"log_prior: got {log_prior.tolist()}, expected log-probabilities, not all -inf.")


def _check_covariance(covariance: Tensor) -> None:
    if torch.linalg.cholesky_ex(covariance).info != 0 or not torch.equal(covariance, covariance.mT):
        raise ValueError("covariance: not symmetric and positive definite; give the covariance within a class.")


@dataclass(frozen=True, repr=False)
class SoftmaxRegression(Record):
    """Softmax regression: log P(y = k | x) = weight[k] x + bias[k] - log-sum-exp over k.

    Attributes:
        weight: `[K, F]`, of each class.
        bias: `[K]`, of each class.

    See Also:
        `GaussianClasses` and `CategoricalClasses`, generative models of the same posterior;
        docs/replications/questions.md.

    Example:
        >>> import torch, samplehold as sh
        >>> regression = sh.studies.SoftmaxRegression.from_logistic(torch.tensor([2.0]), torch.tensor(0.0))
        >>> classes = regression.gaussian_classes(covariance=torch.tensor([[4.0]]))  # any covariance will do
        >>> x = torch.tensor([[-1.0], [0.0], [0.5]])
        >>> torch.allclose(classes.log_posterior(x), regression.log_posterior(x))
        True
    """

    weight: Float[Tensor, "K F"]
    bias: Float[Tensor, "K"]

    def __post_init__(self) -> None:
        check_table("weight", self.weight, None, None, finite=True, alone=True)
        check_table("bias", self.bias, len(self.weight), like=self.weight, finite=True, alone=True)

    def log_posterior(self, x: Float[Tensor, "*b F"]) -> Float[Tensor, "*b K"]:
        """log P(y = k | x).

        Arguments:
            x: features, `[..., F]`.
        """
        x = ordinary(check_table("x", x, self.weight.shape[-1], like=self.weight, finite=True))
        return (x @ ordinary(self.weight).mT + ordinary(self.bias)).log_softmax(-1)

    @staticmethod
    def from_logistic(weight: Float[Tensor, "F"], bias: Float[Tensor, ""]) -> "SoftmaxRegression":
        """The two classes of P(y = 1 | x) = sigmoid(weight x + bias).

        Arguments:
            weight, bias: of the logistic regression.
        """
        weight = check_table("weight", weight, None, finite=True, alone=True)
        bias = check_table("bias", bias, like=weight, finite=True, alone=True)
        return SoftmaxRegression(torch.stack([torch.zeros_like(weight), weight]), torch.stack([bias * 0, bias]))

    def to_logistic(self) -> tuple[Float[Tensor, "F"], Float[Tensor, ""]]:
        """`(weight, bias)` of P(y = 1 | x) = sigmoid(weight x + bias); `ValueError` unless there are two classes."""
        if len(self.bias) != 2:
            raise ValueError(f"regression: got {len(self.bias)} classes, but a logistic regression has 2.")
        return self.weight[1] - self.weight[0], self.bias[1] - self.bias[0]

    def _shifted(self, shift: Tensor | None) -> Tensor:
        """The weights of an equal regression: those of every class plus the shift."""
        if shift is None:
            return self.weight
        weight = self.weight + check_table(
            "shift", shift, self.weight.shape[1], like=self.weight, finite=True, alone=True
        )
        if not bool((weight.abs() < torch.finfo(weight.dtype).max ** 0.5).all()):
            raise ValueError(f"shift: got {shift.tolist()}, whose squares {weight.dtype} does not hold.")
        return weight

    def gaussian_classes(
        self, covariance: Float[Tensor, "F F"] | None = None, shift: Float[Tensor, "F"] | None = None
    ) -> "GaussianClasses":
        """Gaussian classes with this posterior.

        Arguments:
            covariance: that of every class, any positive definite matrix; the identity where None.
            shift: the c that is added to every class's weights; 0 where None, which makes this the inverse of
                `GaussianClasses.regression` for the same covariance.

        Raises:
            ValueError: a covariance that is not symmetric and positive definite.
        """
        weight = self._shifted(shift)
        if covariance is None:
            covariance = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        size = weight.shape[1]
        _check_covariance(check_table("covariance", covariance, size, size, like=weight, finite=True, alone=True))
        mean = weight @ covariance
        log_prior = (self.bias + 0.5 * (weight * mean).sum(-1)).log_softmax(0)
        return GaussianClasses(log_prior, mean, covariance)

    def categorical_classes(
        self, sizes: Sequence[int], shift: Float[Tensor, "V"] | None = None
    ) -> "CategoricalClasses":
        """Naive Bayes over one-hot features with this posterior.

        Arguments:
            sizes: the number of values of each feature; their sum is the number of inputs.
            shift: the c that is added to every class's weights; 0 where None, which makes this the inverse of
                `CategoricalClasses.regression`.

        Raises:
            ValueError: sizes that do not make up the inputs.
        """
        weight = self._shifted(shift)
        sizes = [check_integer("sizes", size) for size in check_parts("sizes", sizes)]
        if sum(sizes) != weight.shape[1]:
            raise ValueError(
                f"sizes: got {list(sizes)}, but the regression has {weight.shape[1]} inputs; "
                "give the number of values of each one-hot feature."
            )
        features = weight.split(list(sizes), -1)
        normalizers = torch.stack([feature.logsumexp(-1) for feature in features], -1)
        log_table = torch.cat([feature.log_softmax(-1) for feature in features], -1)
        return CategoricalClasses((self.bias + normalizers.sum(-1)).log_softmax(0), log_table, tuple(sizes))


@dataclass(frozen=True, repr=False)
class GaussianClasses(Record):
    """Gaussian classes, x | k ~ N(mean[k], covariance): linear discriminant analysis as a generative model.

    Attributes:
        log_prior: `[K]`, log P(y = k).
        mean: `[K, F]`, of each class.
        covariance: `[F, F]`, of all classes.

    See Also:
        `SoftmaxRegression`, with the same posterior; `CategoricalClasses`, for categories;
        docs/replications/questions.md.

    Example:
        >>> import torch, samplehold as sh
        >>> even, mean = torch.tensor([0.5, 0.5]).log(), torch.tensor([[-1.0], [1.0]])
        >>> sh.studies.GaussianClasses(even, mean, torch.eye(1)).regression().to_logistic()
        (tensor([2.]), tensor(0.))
    """

    log_prior: Float[Tensor, "K"]
    mean: Float[Tensor, "K F"]
    covariance: Float[Tensor, "F F"]

    def __post_init__(self) -> None:
        check_table("mean", self.mean, None, None, finite=True, alone=True)
        K, F = self.mean.shape
        _check_log_prior(check_table("log_prior", self.log_prior, K, like=self.mean, alone=True))
        _check_covariance(check_table("covariance", self.covariance, F, F, like=self.mean, finite=True, alone=True))

    def log_joint(self, x: Float[Tensor, "*b F"]) -> Float[Tensor, "*b K"]:
        """log P(y = k) p(x | k).

        Arguments:
            x: features, `[..., F]`.
        """
        x = ordinary(check_table("x", x, self.mean.shape[-1], like=self.mean, finite=True))
        chol = torch.linalg.cholesky(self.covariance)
        whitened = torch.linalg.solve_triangular(chol, (x[..., None, :] - self.mean).mT, upper=False)
        log_volume = chol.diagonal().log().sum() + 0.5 * x.shape[-1] * math.log(2 * math.pi)
        return self.log_prior - 0.5 * whitened.square().sum(-2) - log_volume

    def log_posterior(self, x: Float[Tensor, "*b F"]) -> Float[Tensor, "*b K"]:
        """log P(y = k | x).

        Arguments:
            x: features, `[..., F]`.
        """
        return self.log_joint(x).log_softmax(-1)

    def regression(self) -> SoftmaxRegression:
        """The softmax regression with the same posterior."""
        weight = torch.cholesky_solve(self.mean.mT, torch.linalg.cholesky(self.covariance)).mT
        return SoftmaxRegression(weight, self.log_prior - 0.5 * (weight * self.mean).sum(-1))


@dataclass(frozen=True, repr=False)
class CategoricalClasses(Record):
    """Naive Bayes over categorical features: feature f has `sizes[f]` values, side by side in the table's columns.

    Attributes:
        log_prior: `[K]`, log P(y = k).
        log_table: `[K, V]`, log P(value | class), with the values of all features side by side.
        sizes: the number of values of each feature.

    See Also:
        `SoftmaxRegression`, with the same posterior; `GaussianClasses`, for real vectors;
        docs/replications/questions.md.

    Example:
        >>> import torch, samplehold as sh
        >>> even, table = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.3, 0.7]])
        >>> classes = sh.studies.CategoricalClasses(even.log(), table.log(), sizes=(2,))
        >>> classes.log_posterior(torch.tensor([1.0, 0.0])).exp()  # 0.9 to 0.3
        tensor([0.7500, 0.2500])
    """

    log_prior: Float[Tensor, "K"]
    log_table: Float[Tensor, "K V"]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_table("log_table", self.log_table, None, None, alone=True)
        K, V = self.log_table.shape
        _check_log_prior(check_table("log_prior", self.log_prior, K, like=self.log_table, alone=True))
        sizes = tuple(check_integer("sizes", size) for size in check_parts("sizes", self.sizes))
        if sum(sizes) != V:
            raise ValueError(f"sizes: got {list(sizes)}, but log_table has {V} columns; give each feature's values.")
        if not bool((self.log_table < torch.inf).all()):
            raise ValueError("log_table: got NaN or +inf, expected log-probabilities.")
        object.__setattr__(self, "sizes", sizes)

    def log_joint(self, x: Float[Tensor, "*b V"]) -> Float[Tensor, "*b K"]:
        """log P(y = k) P(x | k) of one-hot features.

        Arguments:
            x: features, `[..., F]`.
        """
        x = ordinary(check_table("x", x, self.log_table.shape[-1], like=self.log_table, finite=True))
        x = x[..., None, :]
        return self.log_prior + torch.where(x == 0, 0, x * self.log_table).sum(-1)

    def log_posterior(self, x: Float[Tensor, "*b V"]) -> Float[Tensor, "*b K"]:
        """log P(y = k | x) of one-hot features.

        Arguments:
            x: features, `[..., F]`.
        """
        return self.log_joint(x).log_softmax(-1)

    def regression(self) -> SoftmaxRegression:
        """The softmax regression with the same posterior; raises `ValueError` where a value is impossible."""
        if self.log_table.isneginf().any() or self.log_prior.isneginf().any():
            raise ValueError(
                "log_table: a probability of 0 would be a weight of -inf; give every value a positive probability."
            )
        return SoftmaxRegression(self.log_table, self.log_prior)
