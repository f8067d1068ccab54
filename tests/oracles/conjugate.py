"""Conjugate inference as the textbooks have it: densities of torch.distributions, one-step posteriors, evidences.

Written in the usual parameters and with explicit sums, sharing nothing with the library. References: Bishop 2006,
appendix B; Murphy 2007, *Conjugate Bayesian analysis of the Gaussian distribution*.
"""

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch import distributions as dist


def log_density(family: str, usual: dict[str, Tensor], point: Any) -> Tensor:
    """Log density of a point in the usual coordinates."""
    match family:
        case "Beta":
            return dist.Beta(usual["a"], usual["b"]).log_prob(point)
        case "Dirichlet":
            return dist.Dirichlet(usual["concentration"]).log_prob(point)
        case "Gamma":
            return dist.Gamma(usual["shape"], usual["rate"]).log_prob(point)
        case "NormalGamma":
            scale = (usual["kappa"] * point.precision).rsqrt()
            of_precision = dist.Gamma(usual["shape"], usual["rate"]).log_prob(point.precision)
            return of_precision + dist.Normal(usual["loc"], scale).log_prob(point.loc)
        case "NormalWishart":
            matrix = usual["kappa"][..., None, None] * point.precision
            of_loc = dist.MultivariateNormal(usual["loc"], precision_matrix=matrix).log_prob(point.loc)
            wishart = dist.Wishart(usual["df"], covariance_matrix=usual["scale_matrix"], validate_args=False)
            return of_loc + wishart.log_prob(point.precision)
        case "Wishart":
            return dist.Wishart(usual["df"], covariance_matrix=usual["scale_matrix"], validate_args=False).log_prob(
                point
            )
        case "MatrixNormalWishart":
            both = torch.stack(
                [
                    torch.kron(a, b)
                    for a, b in zip(
                        usual["weight"].expand(*point.loc.shape[:-2], -1, -1).flatten(0, -3),
                        point.precision.flatten(0, -3),
                        strict=True,
                    )
                ]
            )
            rows = dist.MultivariateNormal(
                usual["loc"].expand_as(point.loc).flatten(-2).flatten(0, -2), precision_matrix=both
            )
            of_loc = rows.log_prob(point.loc.flatten(-2).flatten(0, -2)).reshape(point.loc.shape[:-2])
            wishart = dist.Wishart(usual["df"], covariance_matrix=usual["scale_matrix"], validate_args=False)
            return of_loc + wishart.log_prob(point.precision)
        case "SharedPrecision":
            matrix = usual["kappa"][..., None, None] * point.precision.unsqueeze(-3)
            of_loc = dist.MultivariateNormal(usual["loc"], precision_matrix=matrix).log_prob(point.loc).sum(-1)
            wishart = dist.Wishart(usual["df"], covariance_matrix=usual["scale_matrix"], validate_args=False)
            return of_loc + wishart.log_prob(point.precision)
        case "Bernoulli":
            return dist.Bernoulli(usual["probs"]).log_prob(point)
        case "Categorical":
            return dist.OneHotCategorical(usual["probs"]).log_prob(point)
        case "Gaussian":
            return dist.MultivariateNormal(usual["loc"], precision_matrix=usual["precision"]).log_prob(point)
    raise KeyError(family)


def entropy(family: str, usual: dict[str, Tensor]) -> Tensor:
    """Entropy of the families that torch.distributions knows."""
    match family:
        case "Beta":
            return dist.Beta(usual["a"], usual["b"]).entropy()
        case "Dirichlet":
            return dist.Dirichlet(usual["concentration"]).entropy()
        case "Gamma":
            return dist.Gamma(usual["shape"], usual["rate"]).entropy()
        case "Bernoulli":
            return dist.Bernoulli(usual["probs"]).entropy()
        case "Categorical":
            return dist.Categorical(usual["probs"]).entropy()
        case "Gaussian":
            return dist.MultivariateNormal(usual["loc"], precision_matrix=usual["precision"]).entropy()
    raise KeyError(family)


def normal_wishart_posterior(prior: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Posterior of location and precision given independent normal vectors x [n, D]; Murphy 2007, section 8."""
    n, mean = len(x), x.mean(0)
    scatter = (x - mean).T @ (x - mean)
    gap = (mean - prior["loc"])[:, None]
    kappa = prior["kappa"] + n
    inverse = torch.linalg.inv(prior["scale_matrix"]) + scatter + prior["kappa"] * n / kappa * gap @ gap.T
    return {
        "loc": (prior["kappa"] * prior["loc"] + n * mean) / kappa,
        "kappa": kappa,
        "df": prior["df"] + n,
        "scale_matrix": torch.linalg.inv(inverse),
    }


def normal_wishart_log_evidence(prior: dict[str, Tensor], x: Tensor) -> Tensor:
    """log p(x) of independent normal vectors x [n, D]; Murphy 2007, equation 266."""
    (n, dim), posterior = x.shape, normal_wishart_posterior(prior, x)

    def log_z(q: dict[str, Tensor]) -> Tensor:
        return (
            torch.mvlgamma(q["df"] / 2, dim)
            + q["df"] * dim / 2 * math.log(2)
            + q["df"] / 2 * torch.logdet(q["scale_matrix"])
            - dim / 2 * torch.log(q["kappa"])
        )

    return log_z(posterior) - log_z(prior) - n * dim / 2 * math.log(2 * math.pi)


def normal_gamma_posterior(prior: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Posterior of location and precision given independent normal numbers x [n]; Murphy 2007, section 3."""
    n, mean = len(x), x.mean()
    kappa = prior["kappa"] + n
    gap = prior["kappa"] * n * (mean - prior["loc"]) ** 2 / (2 * kappa)
    return {
        "loc": (prior["kappa"] * prior["loc"] + n * mean) / kappa,
        "kappa": kappa,
        "shape": prior["shape"] + n / 2,
        "rate": prior["rate"] + (x - mean).square().sum() / 2 + gap,
    }


def paths_log_evidence(log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor) -> Tensor:
    """log p(x) of a hidden Markov chain, by a sum over every path: tables [K], [K, K] as [old, new], [T, K]."""
    n_steps, n_states = log_likelihood.shape
    total = []
    for path in product(range(n_states), repeat=n_steps):
        weight = log_initial[path[0]] + log_likelihood[0, path[0]]
        for t in range(1, n_steps):
            weight = weight + log_transition[path[t - 1], path[t]] + log_likelihood[t, path[t]]
        total.append(weight)
    return torch.logsumexp(torch.stack(total), 0)


def log_dirichlet_multinomial(concentration: Tensor, counts: Tensor) -> Tensor:
    """Log probability of a sequence of symbols with these counts (last axis), their probabilities integrated out."""
    grown = concentration + counts
    each = (torch.lgamma(grown) - torch.lgamma(concentration)).sum(-1)
    return each + torch.lgamma(concentration.sum(-1)) - torch.lgamma(grown.sum(-1))
