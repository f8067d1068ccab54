"""Regression and generative classes have one posterior, both ways, whatever the free part is."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samplehold.face.studies import CategoricalClasses, GaussianClasses, SoftmaxRegression
from scipy.stats import multivariate_normal
from torch.testing import assert_close


def normal(random, *shape):
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def covariance_of(random, F):
    root = normal(random, F, F)
    return root @ root.mT + torch.eye(F, dtype=torch.float64)


def gaussian(seed, K, F):
    random = torch.Generator().manual_seed(seed)
    prior = normal(random, K).log_softmax(0)
    return GaussianClasses(prior, normal(random, K, F), covariance_of(random, F)), random


def one_hots(sizes):
    """Every value of all features, [prod sizes, sum sizes]."""
    every = product(*map(range, sizes))
    rows = [np.concatenate([np.eye(n)[v] for n, v in zip(sizes, values, strict=True)]) for values in every]
    return torch.from_numpy(np.array(rows))


seeds, classes, features = st.integers(0, 2**20), st.integers(2, 5), st.integers(1, 4)


@given(seed=seeds, K=classes, F=features)
def test_the_joint_density_of_gaussian_classes_is_scipys(seed, K, F):
    model, random = gaussian(seed, K, F)
    x = normal(random, F)
    peers = [multivariate_normal.logpdf(x.numpy(), mean.numpy(), model.covariance.numpy()) for mean in model.mean]
    assert_close(model.log_joint(x), model.log_prior + torch.tensor(peers, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@given(seed=seeds, K=classes, F=features)
def test_gaussian_classes_and_their_regression_have_one_posterior_and_come_back(seed, K, F):
    model, random = gaussian(seed, K, F)
    x = normal(random, 7, F)
    regression = model.regression()
    assert_close(regression.log_posterior(x), model.log_posterior(x), rtol=1e-9, atol=1e-10)
    again = regression.gaussian_classes(model.covariance)
    assert_close(again.mean, model.mean, rtol=1e-9, atol=1e-10)
    assert_close(again.log_prior, model.log_prior, rtol=1e-9, atol=1e-10)


@given(seed=seeds, K=classes, F=features)
def test_any_regression_is_gaussian_classes_of_any_covariance_and_shift(seed, K, F):
    random = torch.Generator().manual_seed(seed)
    regression = SoftmaxRegression(normal(random, K, F), normal(random, K))
    x = normal(random, 7, F)
    shifted = regression.gaussian_classes(covariance_of(random, F), normal(random, F))
    for model in (regression.gaussian_classes(), shifted):
        assert_close(model.log_prior.exp().sum().item(), 1.0, rtol=1e-13, atol=0)
        assert_close(model.log_posterior(x), regression.log_posterior(x), rtol=1e-9, atol=1e-10)


@given(seed=seeds, K=classes, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_any_regression_on_one_hots_is_a_naive_bayes_of_any_shift(seed, K, sizes):
    random = torch.Generator().manual_seed(seed)
    regression = SoftmaxRegression(normal(random, K, sum(sizes)), normal(random, K))
    x = one_hots(sizes)
    for shift in (None, normal(random, sum(sizes))):
        model = regression.categorical_classes(sizes, shift)
        assert_close(model.log_joint(x).exp().sum().item(), 1.0, rtol=1e-12, atol=0)
        for table in model.log_table.split(sizes, -1):
            assert_close(table.exp().sum(-1), torch.ones(K, dtype=torch.float64), rtol=1e-13, atol=0)
        assert_close(model.log_posterior(x), regression.log_posterior(x), rtol=1e-10, atol=1e-11)
        again = model.regression().categorical_classes(sizes)
        assert_close(again.log_table, model.log_table, rtol=1e-12, atol=1e-12)
        assert_close(again.log_prior, model.log_prior, rtol=1e-12, atol=1e-12)


def test_the_posterior_of_naive_bayes_by_hand():
    prior = torch.tensor([0.25, 0.75], dtype=torch.float64)
    table = torch.tensor([[0.9, 0.1, 0.5, 0.5], [0.2, 0.8, 0.3, 0.7]], dtype=torch.float64)
    model = CategoricalClasses(prior.log(), table.log(), (2, 2))
    x = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    joint = torch.tensor([0.25 * 0.9 * 0.5, 0.75 * 0.2 * 0.7], dtype=torch.float64)
    assert_close(model.log_posterior(x).exp(), joint / joint.sum(), rtol=1e-14, atol=0)
    assert_close(model.regression().log_posterior(x).exp(), joint / joint.sum(), rtol=1e-14, atol=0)


def test_logistic_regression_is_two_classes():
    random = torch.Generator().manual_seed(0)
    weight, bias, x = normal(random, 3), normal(random, 1)[0], normal(random, 5, 3)
    regression = SoftmaxRegression.from_logistic(weight, bias)
    assert_close(regression.log_posterior(x)[:, 1].exp(), (x @ weight + bias).sigmoid(), rtol=1e-13, atol=0)
    assert_close(regression.to_logistic(), (weight, bias), rtol=0, atol=0)
    model = regression.gaussian_classes(covariance_of(random, 3))
    assert_close(model.log_posterior(x)[:, 1].exp(), (x @ weight + bias).sigmoid(), rtol=1e-10, atol=0)


def test_an_impossible_value_has_a_posterior_but_no_regression():
    table = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64).log()
    model = CategoricalClasses(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), table, (2,))
    posterior = model.log_posterior(torch.eye(2, dtype=torch.float64)).exp()
    assert_close(posterior, torch.tensor([[2 / 3, 1 / 3], [0.0, 1.0]], dtype=torch.float64), rtol=1e-14, atol=0)
    with pytest.raises(ValueError, match="log_table: a probability of 0"):
        model.regression()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.categorical_classes([2, 2]), r"sizes: got \[2, 2\], but the regression has 3 inputs"),
        (
            lambda r: r.gaussian_classes(-torch.eye(3, dtype=torch.float64)),
            "covariance: not symmetric and positive definite",
        ),
        (lambda r: r.to_logistic(), "regression: got 4 classes"),
    ],
)
def test_wrong_input_is_refused_with_the_cure(call, message):
    random = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=message):
        call(SoftmaxRegression(normal(random, 4, 3), normal(random, 4)))
