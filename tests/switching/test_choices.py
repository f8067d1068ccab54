"""An input-driven hidden Markov model of choices: intervals hold the parameters that the data were drawn with."""

import numpy as np
import pandas as pd
import pytest
from benchmarks.choice_coverage import LEVEL, covered, fitted


@pytest.mark.slow
def test_intervals_of_a_driven_model_of_choices_hold_the_truth():
    shares = pd.DataFrame([covered(fitted(seed)) for seed in range(4)])
    inside = shares.to_numpy()
    assert np.isfinite(inside).mean() > 0.95
    # 108 intervals, dependent within a data set; 0.9 with a standard error of about 0.03 to 0.04
    assert np.nanmean(inside) > LEVEL - 0.1
