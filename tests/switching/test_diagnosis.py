"""`Fit.diagnose`: a line for each thing that a statistician looks at, and a mark where it asks for attention."""

import numpy as np
import pytest
import samplehold as sh
import torch
from oracles.models import numbers

LINES = ["search", "starts", "parameters", "rare states", "boundaries", "durations", "certainty", "residuals"]
LINES += ["autocorrelation", "of squares"]


def simulated(n: int = 300) -> torch.Tensor:
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).with_values(
        initial_probs=[0.5, 0.5], transition_probs=[[0.9, 0.1], [0.1, 0.9]], loc=[[0.0], [4.0]], scale=[[1.0], [1.0]]
    )
    return model.simulate(n, seed=1).x


def subjects(diagnosis) -> list[str]:
    return [finding.subject for finding in diagnosis.concerns]


def test_a_fit_of_the_true_model_raises_no_concern():
    found = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(simulated(), restarts=2, progress=False).diagnose()
    assert [finding.subject for finding in found.findings] == LINES
    assert subjects(found) == []
    assert len(str(found).splitlines()) == 10
    assert str(found) == repr(found)
    assert "<pre>" in found._repr_html_()


def test_a_model_without_the_states_fails_the_tests_of_residuals():
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(simulated(), restarts=2, progress=False)
    assert {"residuals", "autocorrelation"} <= set(subjects(fit.diagnose()))


def test_a_short_search_and_few_data_are_said():
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(simulated(30), restarts=1, max_steps=1, progress=False)
    found = fit.diagnose()
    assert {"search", "starts", "parameters"} <= set(subjects(found))
    assert str(found).startswith("! search")


def test_a_state_that_hardly_occurs_and_never_ends_is_named():
    x = numbers(60, 1)
    x[30] = 60.0
    fixed = {"transition_probs": [[1.0, 0.0], [1.0, 0.0]]}
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1))
    fit = model.fit(x, restarts=1, progress=False, fixed=fixed | {"loc": [[0.0], [60.0]], "initial_probs": [0.5, 0.5]})
    found = {finding.subject: finding for finding in fit.diagnose().findings}
    assert not found["rare states"].good
    assert found["rare states"].text.startswith("state 1 is rarest, expected at 0.0 of 60 steps")
    assert not found["durations"].good
    assert "inf" in found["durations"].text


def test_estimates_at_an_end_are_named_unless_they_are_of_the_first_state(nile):
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(nile, restarts=2, prior=None, progress=False)
    (found,) = (finding for finding in fit.diagnose().findings if finding.subject == "boundaries")
    assert not found.good
    assert "transition_probs[0, 0]" in found.text
    assert "initial_probs" not in found.text


def test_two_features_and_several_sequences_name_the_worst():
    x = [numbers(40, 2, seed=seed).cumsum(0) for seed in (1, 2)]
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal(2)).fit(x, restarts=1, progress=False)
    found = {finding.subject: finding for finding in fit.diagnose().findings}
    assert not found["autocorrelation"].good
    assert "(x[" in found["autocorrelation"].text
    assert " at " in found["residuals"].text


@pytest.mark.slow
def test_other_models_have_fewer_lines(nile):
    linear = sh.LinearSSM(sh.LocalLevel()).fit(nile[:30], progress=False).diagnose()
    assert [finding.subject for finding in linear.findings] == ["search", "starts", "parameters", "boundaries"]


@pytest.mark.slow
def test_a_fit_by_message_passing_has_all_lines(nile):
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Poisson(1)).fit(nile[:30], restarts=1, method="vmp", progress=False)
    assert [finding.subject for finding in fit.diagnose(seed=3).findings] == LINES


def test_too_few_residuals_are_not_tested():
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1)).fit([1.0, 2.0, 1.5, 1.2], restarts=1, progress=False)
    last = fit.diagnose().findings[-1]
    assert (last.text, last.good) == ("4, too few for tests", True)


@pytest.mark.slow
def test_a_fit_by_draws_is_diagnosed(nile):
    fit = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).fit(nile[:40], method="nuts", num_samples=20, progress=False)
    assert np.isin(LINES, [finding.subject for finding in fit.diagnose().findings]).all()


def test_a_feature_with_few_values_is_tested_at_fewer_lags():
    x = numbers(60, 2)
    x[9:, 1] = torch.nan
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal(2)).fit(x, restarts=1, progress=False)
    found = {finding.subject: finding for finding in fit.diagnose().findings}
    assert "at 8 lags" in found["autocorrelation"].text


def test_short_sequences_have_a_test_of_normality_alone():
    x = [numbers(2, 1, seed=seed) for seed in range(10)]
    fit = sh.SwitchingSSM(sh.Copy(1), sh.Normal(1)).fit(x, restarts=1, progress=False)
    found = {finding.subject: finding for finding in fit.diagnose().findings}
    assert "normality" in found["residuals"].text
    assert found["autocorrelation"].text.startswith("unknown")


def test_one_state_has_no_moves_at_an_end_of_their_range():
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Normal(1)).fit(numbers(40, 1), restarts=1, progress=False)
    found = {finding.subject: finding for finding in fit.diagnose().findings}
    assert found["boundaries"].good


def test_a_fit_without_a_number_to_move_is_diagnosed():
    fit = sh.SwitchingSSM(sh.Markov(1), sh.Categorical(2)).fit(np.zeros(40, int), restarts=1, progress=False)
    assert "probs" in str(fit.diagnose())
