"""Quantiles in torch alone are those of numpy."""

import numpy as np
import pytest
import torch
from samplehold.inference.numerics.quantiles import median, quantiles
from torch.testing import assert_close

SHARES = (0.0, 0.05, 0.3, 0.5, 0.95, 1.0)


@pytest.mark.parametrize("missing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 501])
def test_both_forms_are_numpys(n, missing):
    rng = np.random.default_rng(n)
    x = np.where(rng.random((n, 3)) < missing, np.nan, rng.standard_normal((n, 3)) ** 3)
    x[:, 2] = np.arange(n) % 2  # never missing, often tied
    with np.errstate(all="ignore"):
        expected = np.stack([np.nanquantile(column, SHARES) for column in x.T], -1)
    for found in (quantiles(torch.from_numpy(x), SHARES), quantiles.plain(torch.from_numpy(x), SHARES)):
        assert_close(found.cpu(), torch.from_numpy(expected).cpu(), rtol=1e-15, atol=0, equal_nan=True)


def test_a_median_of_an_even_number_lies_in_the_middle():
    x = torch.tensor([[1.0, torch.nan], [4.0, torch.nan], [torch.nan, torch.nan], [3.0, torch.nan], [2.0, 5.0]])
    assert median(x).tolist() == [2.5, 5.0]


def test_there_is_none_of_nothing():
    assert bool(quantiles(torch.zeros(0, 2), SHARES).isnan().all())
    assert bool(quantiles.plain(torch.zeros(0, 2), SHARES).isnan().all())
