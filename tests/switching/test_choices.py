"""An input-driven hidden Markov model of choices: intervals hold the parameters that the data were drawn with."""

import numpy as np
import pandas as pd
import pytest
from benchmarks.choice_coverage import LEVEL, covered, fitted
from benchmarks.replications import input_driven_choices as mice
from scipy.stats import chi2, norm


@pytest.mark.slow
def test_intervals_of_a_driven_model_of_choices_hold_the_truth():
    shares = pd.DataFrame([covered(fitted(seed)) for seed in range(4)])
    inside = shares.to_numpy()
    assert np.isfinite(inside).mean() > 0.95
    # 108 intervals, dependent within a data set; 0.9 with a standard error of about 0.03 to 0.04
    assert np.nanmean(inside) > LEVEL - 0.1


@pytest.mark.slow
def test_the_strategies_of_mice_are_recovered_from_choices_drawn_by_published_parameters():
    mouse, coming = mice.simulated(30, seed=0), mice.simulated(30, seed=1)
    fit = mice.fitted(mouse, 3, restarts=1)
    numbers = mice.recovered(fit)
    assert len(numbers) == 21
    # each difference is about normal with its standard error; one set of data in 1e5 has one as great as this
    assert mice.standardised(numbers).abs().max() < norm.isf(1e-5 / 2 / len(numbers))
    gain = (mice.evidence(fit, mouse) - mice.evidence(mice.truth(), mouse)).sum()
    assert 0 < 2 * gain < chi2.isf(1e-5, 20)  # 2 + 6 + 12 free numbers
    bits = mice.gained(fit, mice.fitted(mouse, 1, restarts=1), coming)  # of sessions that no fit has seen
    assert bits.mean() > 4 * mice.standard_error(bits)
