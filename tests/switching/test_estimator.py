"""Models as estimators of scikit-learn."""

import pickle

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from samplehold.switching.estimator import sequences_of
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

DAYS = np.repeat([3, 1, 2, 0], [12, 9, 15, 10])
OF_SEQUENCES = "rows are steps of a sequence, so the state of one depends on its neighbours"


def unlike_rows(estimator):
    """Checks that an estimator of sequences cannot pass."""
    return dict.fromkeys(("check_methods_sample_order_invariance", "check_methods_subset_invariance"), OF_SEQUENCES)


@parametrize_with_checks(
    [
        sh.sklearn.HMM(restarts=1, max_steps=3),
        sh.sklearn.HMM(emission=sh.MultivariateNormal, dynamics=sh.Copy, restarts=1, max_steps=3),
    ],
    expected_failed_checks=unlike_rows,
)
@pytest.mark.few(8)
def test_it_is_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rows():
    model = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).with_values(
        initial_probs=[0.5, 0.5],
        transition_probs=[[0.8, 0.2], [0.2, 0.8]],
        loc=[[0.0, 0.0], [2.0, 1.0]],
        scale=[[1.0, 1.0], [1.0, 1.0]],
    )
    return np.concatenate([model.simulate(int(n), seed=i).x.numpy() for i, n in enumerate((12, 9, 15, 10))])


@pytest.fixture(scope="module")
def fitted(rows):
    return sh.sklearn.HMM(restarts=2, max_steps=20).fit(rows, groups=DAYS)


def test_results_are_those_of_the_model_for_each_sequence(rows, fitted):
    model, first = fitted.model_, rows[:12]
    smoothed, filtered = model.smooth(first), model.filter(first)
    later = {"filtered": False, "groups": DAYS}
    np.testing.assert_allclose(fitted.predict_proba(rows, **later)[:12], smoothed.state, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict_proba(rows, groups=DAYS)[:12], filtered.state, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(rows, **later)[:12], model.viterbi(first).path)
    np.testing.assert_array_equal(fitted.predict(first), filtered.state.argmax(-1))
    evidence = sum(float(model.log_evidence(rows[day == DAYS])) for day in range(4))
    assert fitted.score_samples(rows, groups=DAYS).sum() == pytest.approx(evidence, rel=1e-12)
    assert fitted.score(rows, groups=DAYS) == pytest.approx(evidence / len(rows), rel=1e-12)
    assert fitted.fit_.objective[-1] == fitted.fit_.objective.max()


def test_the_fit_is_that_of_the_list_of_sequences(rows, fitted):
    parts = [torch.from_numpy(part) for part in np.split(rows, [12, 21, 36])]
    fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).fit(parts, restarts=2, max_steps=20, progress=False)
    torch.testing.assert_close(fitted.model_.values["loc"], fit.values["loc"], rtol=1e-10, atol=0)
    by_lengths = clone(fitted).fit(rows, lengths=[12, 9, 15, 10])
    assert torch.equal(by_lengths.model_.values["loc"], fitted.model_.values["loc"])


def test_no_later_row_is_looked_at_unless_asked_for(rows, fitted):
    other = rows.copy()
    other[8:] += 100.0
    for method in (fitted.predict, fitted.predict_proba, fitted.transform, fitted.score_samples):
        np.testing.assert_allclose(method(other)[:8], method(rows)[:8], rtol=1e-12)
    earlier, same = (fitted.predict_proba(x, filtered=False)[:8] for x in (rows, other))
    assert not np.allclose(earlier, same)


def test_rows_of_several_sequences_may_alternate(rows, fitted):
    order = np.argsort(np.concatenate([np.arange(n) for n in (12, 9, 15, 10)]), kind="stable")
    mixed = fitted.predict_proba(rows[order], groups=DAYS[order])
    np.testing.assert_allclose(mixed, fitted.predict_proba(rows, groups=DAYS)[order], rtol=1e-12)


def test_missing_values_are_marginalised(rows, fitted):
    some = rows.copy()
    some[3], some[5, 1] = np.nan, np.nan
    expected = fitted.model_.filter(some[:12]).state
    np.testing.assert_allclose(fitted.predict_proba(some[:12]), expected, rtol=1e-12)
    assert fitted.score_samples(some[:12])[3] == pytest.approx(0.0, abs=1e-14)


def test_searches_and_pipelines_take_groups(rows):
    search = GridSearchCV(
        sh.sklearn.HMM(restarts=1, max_steps=10), {"n_states": [1, 2], "emission": [sh.Normal, sh.MultivariateNormal]},
        cv=GroupKFold(2),
    )  # fmt: skip
    assert set(search.fit(rows, groups=DAYS).best_params_) == {"n_states", "emission"}
    pipe = make_pipeline(StandardScaler(), sh.sklearn.HMM(restarts=1, max_steps=10))
    probabilities = pipe.fit_transform(rows, hmm__groups=DAYS)
    assert probabilities.shape == (46, 2)
    direct = pipe[-1].transform(pipe[0].transform(rows), groups=DAYS)
    np.testing.assert_allclose(probabilities, direct, rtol=1e-12)
    features = make_pipeline(sh.sklearn.HMM(restarts=1, max_steps=10), LogisticRegression())
    assert features.fit(rows, DAYS > 1, hmm__groups=DAYS).predict(rows).shape == (46,)


@pytest.mark.slow
def test_copies_go_to_other_processes(rows, fitted):
    scores = cross_val_score(sh.sklearn.HMM(restarts=1, max_steps=5), rows, groups=DAYS, cv=GroupKFold(2), n_jobs=2)
    assert np.isfinite(scores).all()
    assert pickle.loads(pickle.dumps(fitted)).score(rows) == fitted.score(rows)


def test_it_wraps_a_model_and_draws_from_it(rows):
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(2))
    estimator = sh.sklearn.SwitchingEstimator(model, restarts=1, max_steps=5).fit(rows)
    X, states = estimator.sample(7)
    assert (X.shape, states.shape) == ((7, 2), (7,))
    assert estimator.get_feature_names_out().tolist() == ["switchingestimator0", "switchingestimator1"]
    assert clone(estimator).model.dynamics == model.dynamics
    one, other = (estimator.set_params(random_state=seed).sample(5)[0] for seed in (1, np.random.RandomState(0)))
    assert not np.array_equal(one, other)


def test_columns_of_frames_are_found_by_name():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Joint(size=sh.Normal(), turn=sh.StudentT()))
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"turn": generator.normal(size=40), "size": 50.0 + generator.normal(size=40)})
    estimator = sh.sklearn.SwitchingEstimator(model, restarts=1, max_steps=5).fit(frame)
    other = clone(estimator).fit(frame[["size", "turn"]])
    torch.testing.assert_close(estimator.model_.values["size_loc"], other.model_.values["size_loc"])
    assert float(estimator.model_.values["size_loc"].min()) > 30
    assert estimator.score(frame) == pytest.approx(other.score(frame[["size", "turn"]]), rel=1e-10)
    turn, size = estimator.sample(20)[0].T
    assert abs(turn).max() < 30 < size.min()
    with pytest.raises(ValueError, match="turn"):
        clone(estimator).fit(frame.rename(columns={"turn": "angle"}))
    with pytest.raises(ValueError, match=r"got shape \(40, 3\)"):
        clone(estimator).fit(np.zeros((40, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3, 3]}, "lengths: got sizes with the sum 6, but X has 46 rows"),
        ({"lengths": [0, 46]}, "lengths"),
        ({"groups": [1, 2]}, "groups: got 2 labels, but X has 46 rows"),
        ({"groups": DAYS, "lengths": [46]}, "groups: was given together with lengths"),
        ({"y": [12, 9, 15, 10]}, "y: got 4 values for 46 rows of X; to name sequences, write lengths="),
    ],
)
def test_sequences_that_do_not_fit_are_named(rows, arguments, message):
    with pytest.raises(ValueError, match=message):
        sh.sklearn.HMM().fit(rows, **arguments)


def test_bad_parameters_are_named_by_fit(rows):
    with pytest.raises(NotFittedError):
        sh.sklearn.HMM().predict(rows)
    with pytest.raises(TypeError, match="model: got None"):
        sh.sklearn.SwitchingEstimator().fit(rows)
    with pytest.raises(TypeError, match="dynamics: got 'markov'"):
        sh.sklearn.HMM(dynamics="markov").fit(rows)
    with pytest.raises(TypeError, match="emission"):
        sh.sklearn.HMM(emission="normal").fit(rows)
    reading = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal(2))
    with pytest.raises(ValueError, match="which reads inputs, but an estimator accepts X alone"):
        sh.sklearn.SwitchingEstimator(reading).fit(rows)
    with pytest.raises(TypeError, match="filtered"):
        sh.sklearn.HMM(restarts=1, max_steps=2).fit(rows).predict(rows, filtered="no")
    with pytest.raises(ValueError, match="n_states"):
        sh.sklearn.HMM(n_states=0).fit(rows)


def test_sequences_begin_in_the_order_of_their_first_rows():
    parts = sequences_of(5, ["b", "a", "b", "a", "c"], None)
    assert [part.tolist() for part in parts] == [[0, 2], [1, 3], [4]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (5, r"groups: got shape \(\)"),
        ([[1, 2], [1, 2]], r"groups: got shape \(2, 2\)"),
        ([1.0, np.nan], "groups: row 1 has no label"),
        (np.array([None, "a"], dtype=object), "groups: row 0 has no label"),
    ],
)
def test_labels_that_name_no_sequence_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        sequences_of(2, groups, None)


def test_labels_may_be_of_several_types():
    parts = sequences_of(3, np.array(["a", 1, "a"], dtype=object), None)
    assert [part.tolist() for part in parts] == [[0, 2], [1]]


def test_lengths_in_the_place_of_y_are_refused_by_score(rows, fitted):
    with pytest.raises(ValueError, match="y: got 2 values for 46 rows of X; to name sequences, write lengths="):
        fitted.score(rows, [40, 6])


def test_an_impossible_row_is_named_as_the_caller_counts_it():
    X = np.abs(np.random.default_rng(0).normal(size=(12, 1))) + 0.1
    groups = np.array(list("aabbbaabbaab"))
    good = sh.sklearn.HMM(emission=sh.Gamma, restarts=1, max_steps=3).fit(X, groups=groups)
    X[7] = -1.0
    with pytest.raises(ValueError, match=r"X: got -1 at row 7 of group b, feature 0; expected positive numbers"):
        sh.sklearn.HMM(emission=sh.Gamma, restarts=1).fit(X, groups=groups)
    with pytest.raises(ValueError, match=r"X: got -1 at row 7, feature 0; expected positive"):
        sh.sklearn.HMM(emission=sh.Gamma, restarts=1).fit(X, lengths=[5, 7])
    with pytest.raises(ValueError, match=r"X: got -1 at row 7 of group b, feature 0"):
        good.predict(X, groups=groups)
    frame = pd.DataFrame({"cloud": 0.5, "rain": X[:, 0]})
    model = sh.SwitchingSSM(sh.Markov(2), sh.Joint(rain=sh.Gamma(), cloud=sh.Normal()))
    with pytest.raises(ValueError, match=r"X: got -1 at row 7, feature 1 \(rain\); expected positive"):
        sh.sklearn.SwitchingEstimator(model, restarts=1).fit(frame)
    with pytest.raises(ValueError, match=r"X: got -1 at row 7, feature 1 \(rain\)"):
        sh.sklearn.HMM(emission=sh.Gamma(2), restarts=1).fit(frame)
