"""What users may hand over, and what they are told when it cannot be read."""

import numpy as np
import pandas as pd
import pytest
import torch
from samplehold.switching.data.series import read_series
from torch.testing import assert_close

LINE = [1.0, 2.0, float("nan"), 4.0]


@pytest.mark.parametrize(
    "x",
    [
        LINE,
        np.array(LINE),
        torch.tensor(LINE, dtype=torch.float64),
        pd.Series(LINE),
        pd.DataFrame({"v": LINE}),
        np.array(LINE)[:, None],
        pd.DataFrame({"v": [1, 2, None, 4]}, dtype="Int64"),
    ],
)
def test_one_sequence_in_any_form_is_the_same(x):
    series = read_series(x, 1)
    assert_close(series.observations, torch.tensor(LINE, dtype=torch.float64).unsqueeze(-1), equal_nan=True)
    assert series.batch_shape == ()


def test_integers_become_float64_and_floating_types_are_kept():
    assert read_series([1, 2, 3], 1).observations.dtype == torch.float64
    assert read_series(np.array([True, False]), 1).observations.dtype == torch.float64
    assert read_series(torch.zeros(3), 1).observations.dtype == torch.float32
    assert read_series(np.zeros(3, dtype=np.float32), 1).observations.dtype == torch.float32


@pytest.mark.parametrize("x", [[np.zeros(3), np.ones(5)], [[0.0] * 3, [1.0] * 5], (torch.zeros(3), torch.ones(5))])
def test_a_list_of_sequences_is_a_ragged_batch(x):
    series = read_series(x, 1)
    assert series.observations.shape == (2, 5, 1)
    assert series.lengths.tolist() == [3, 5]
    assert bool(torch.isnan(series.observations[0, 3:]).all())


def test_a_list_of_matrices_is_a_batch_too():
    series = read_series([np.zeros((3, 2)), np.ones((4, 2))], 2)
    assert series.observations.shape == (2, 4, 2)
    rows = read_series([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], 2)
    assert rows.observations.shape == (3, 2)  # nested numbers of equal length are the rows of one sequence


def test_pandas_gives_the_names_of_its_axes():
    series = read_series(pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]}, index=[1990, 1991]), 2)
    assert list(series.index) == [1990, 1991]
    assert list(series.features) == ["a", "b"]


def test_what_lies_beyond_a_sequence_is_ignored_even_if_infinite():
    x = torch.zeros(2, 4, 1)
    x[1, 2:] = torch.inf
    series = read_series(x, 1, lengths=[4, 2])
    assert bool(torch.isnan(series.observations[1, 2:]).all())


@pytest.mark.parametrize(
    ("x", "n_features", "lengths", "error", "said"),
    [
        (3.0, 1, None, ValueError, "x: got a single number"),
        (np.zeros(5), 2, None, ValueError, r"x: got shape \(5,\), but the emission has 2 features"),
        (np.zeros((4, 3)), 2, None, ValueError, r"x: got shape \(4, 3\), whose last axis is not the emission's 2"),
        (np.zeros((4, 3)), 1, None, ValueError, r"several sequences of one feature: \[B, T, 1\] or a list"),
        (np.zeros((0, 1)), 1, None, ValueError, "without any step"),
        ([1.0, float("inf")], 1, None, ValueError, "x: got an infinite value at step 1, feature 0"),
        (np.array([[[0.0], [-np.inf]]]), 1, None, ValueError, "x: got an infinite value at sequence 0, step 1"),
        (["a", "b"], 1, None, TypeError, "expected numbers"),
        (pd.DataFrame({"v": ["1", "x"]}), 1, None, TypeError, "not numbers"),
        (np.zeros(3, dtype=complex), 1, None, TypeError, "numbers"),
        (np.zeros((2, 4, 1)), 1, [4, 5], ValueError, "lengths: got 5 for sequence 1, but the series has 4 steps"),
        (np.zeros((2, 4, 1)), 1, [0, 4], ValueError, "lengths: got 0 for sequence 0"),
        (np.zeros((2, 4, 1)), 1, [4], ValueError, r"lengths: got shape \(1,\), expected one length a sequence"),
        (np.zeros((2, 4, 1)), 1, [4.0, 4.0], TypeError, "lengths: got torch.float"),
        ([np.zeros(2), np.zeros(3)], 1, [2, 3], ValueError, "a list carries its own"),
        ([np.zeros((2, 2)), np.zeros((3, 1))], 2, None, ValueError, r"x\[1\]: got shape \(3, 1\)"),
        ([np.zeros((2, 2, 2)), np.zeros((3, 2))], 2, None, ValueError, r"x\[0\]: got shape"),
    ],
)
def test_bad_input_is_named(x, n_features, lengths, error, said):
    with pytest.raises(error, match=said):
        read_series(x, n_features, lengths=lengths)
