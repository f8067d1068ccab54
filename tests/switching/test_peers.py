"""What users of other libraries type is answered by its name here."""

import re
from inspect import signature
from operator import attrgetter
from pathlib import Path

import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from samplehold.switching.peers import CLASSES, FORECASTS, MEMBERS, OPTIONS, Word
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X = [1.0, 1.1, 0.9, 4.0, 4.2, 4.1]
MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
KINDS = {
    "switching": MODEL,
    "linear": sh.LinearSSM(1),
    "switching linear": sh.SwitchingLinearSSM(2, 1),
    "factorial": factorial_of(HALF, [HALF, HALF], [torch.zeros(2, 1).double()] * 2, torch.eye(1).double()),
}
NAME = attrgetter("theirs")
PAGE = (Path(sh.__file__).parent / "docs" / "coming_from" / "index.md").read_text()


@pytest.fixture(scope="module")
def fit() -> sh.Fit:
    return MODEL.fit(X, restarts=1, max_steps=3, progress=False)


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
def test_an_unknown_option_is_answered_in_one_sentence(model):
    for name, answer in (
        ("n_iter", "n_iter is max_steps here."),
        ("restart", "has no option 'restart'; did you mean 'restarts'?"),
        ("device", "has no option 'device'; a fit runs where x is, as in fit(x.to(device))."),
        ("nonsense", "has no option 'nonsense'."),
    ):
        with pytest.raises(TypeError, match=f"^fit: {re.escape(answer)}$"):
            model.fit(X, **{name: 10})
    with pytest.raises(TypeError, match=r"^method: got list, .* fit\(x, lengths=\.\.\.\)"):
        model.fit(X, [3, 3])


def test_other_verbs_answer_too(fit):
    for verb, options, answer in (
        (fit.forecast, {"steps": 3}, "^forecast: steps is horizon here.$"),
        (fit.model.forecast, {"x": X, "steps": 3}, "^forecast: steps is horizon here.$"),
        (MODEL.with_values(fit.values).simulate, {"n_samples": 3}, "^simulate: n_samples is n_steps here.$"),
        (fit.simulate, {"T": 3}, r"^simulate: has no option 'T'"),
        (fit.conf_int, {"alpha": 0.1}, r"^conf_int: alpha is level \(1 - alpha\) here.$"),
        (fit.summary, {"alpha": 0.1}, r"^summary: alpha is level \(1 - alpha\) here.$"),
        (fit.forecast(2).interval, {"alpha": 0.1}, r"^interval: alpha is level \(1 - alpha\) here.$"),
        (fit.forecast(2).table, {"alpha": 0.1}, r"^table: alpha is level \(1 - alpha\) here.$"),
    ):
        with pytest.raises(TypeError, match=answer):
            verb(**options)


CALLS = {
    "kappa": (lambda: sh.Markov(2, kappa=5), "Markov: kappa is sticky here."),
    "kappa of HDP": (lambda: sh.StickyHDP(5, kappa=5), "StickyHDP: kappa is sticky_prior here."),
    "durations": (lambda: sh.SemiMarkov(2, durations=sh.Poisson()), "SemiMarkov: durations is duration here."),
    "n_components": (lambda: sh.sklearn.HMM(n_components=2), "HMM: n_components is n_states here."),
    "K": (lambda: sh.SwitchingLinearSSM(K=2, n_latent=1), "SwitchingLinearSSM: K is n_regimes here."),
    "covariance_type": (
        lambda: sh.MultivariateNormal(2, covariance_type="full"),
        "MultivariateNormal: covariance_type is covariance here.",
    ),
    "device": (
        lambda: sh.LinearSSM(2, device="cuda"),
        "LinearSSM: has no option 'device'; a fit runs where x is, as in fit(x.to(device)).",
    ),
    "list": (lambda: sh.Joint([sh.Normal()]), "Joint: got list, expected an emission by the name of each column, as"),
    "few": (lambda: sh.Gamma(mean=1.0), "Gamma: has no option 'mean'; it has n_features, prior."),
    "near": (lambda: sh.AutoRegressive(ordr=1), "AutoRegressive: has no option 'ordr'; did you mean 'order'?"),
}


@pytest.mark.parametrize(("call", "answer"), CALLS.values(), ids=CALLS)
def test_arguments_of_models_and_their_parts_are_answered(call, answer):
    with pytest.raises(TypeError, match=f"^{re.escape(answer)}"):
        call()


def test_a_class_that_answers_keeps_its_signature_and_its_other_errors():
    assert list(signature(sh.Markov).parameters)[:2] == ["n_states", "initial_prior"]
    assert list(signature(sh.Poisson).parameters) == ["n_features", "prior", "inputs", "shared"]
    assert list(signature(sh.Normal).parameters) == ["n_features", "prior", "tied", "covariance"]
    assert not signature(sh.Emission).parameters
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n_states'"):
        sh.Markov()


def test_what_accompanies_a_series_is_told_too(fit):
    for verb in (fit.smooth, fit.log_evidence, fit.viterbi, fit.states):
        with pytest.raises(TypeError, match=r"^read: has no option 'length'; did you mean 'lengths'\?$"):
            verb(X, length=[6])
        with pytest.raises(TypeError, match=r"^read: exog is inputs here\.$"):
            verb(X, exog=X)


@pytest.mark.parametrize("word", MEMBERS.values(), ids=MEMBERS)
def test_a_member_of_a_peer_is_answered_by_what_to_write(word, fit):
    for thing, kind in ((fit, "fit"), (fit.model, "model")):
        answer = f"has no attribute '{word.theirs}'; use {word.said(kind)}."
        with pytest.raises(AttributeError, match=f"{re.escape(answer)}$"):
            getattr(thing, word.theirs)
        assert " of the fit or of its " not in answer
        assert "{" not in answer


@pytest.mark.parametrize("word", FORECASTS.values(), ids=FORECASTS)
def test_a_member_of_a_forecast_is_answered(word, fit):
    with pytest.raises(AttributeError, match=f"'{word.theirs}'; use {re.escape(word.ours)}.$"):
        getattr(fit.forecast(2), word.theirs)


@pytest.mark.parametrize("word", CLASSES.values(), ids=CLASSES)
def test_a_class_of_a_peer_is_answered_by_ours_in_any_spelling(word):
    for name in (word.theirs, word.theirs.lower(), word.theirs.upper()):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; use {re.escape(word.ours)}"):
            getattr(sh, name)
    with pytest.raises(AttributeError, match=r"'change_point'; use Segments"):
        _ = sh.change_point


def test_a_model_in_a_pipeline_names_the_estimator():
    table = torch.tensor(X).numpy()[:, None]
    with pytest.raises((AttributeError, TypeError), match=r"use sh\.sklearn\.SwitchingEstimator\(model\)"):
        make_pipeline(StandardScaler(), MODEL).fit(table)
    with pytest.raises(TypeError, match=r"^method: got NoneType, .* use sh\.sklearn\.SwitchingEstimator\(model\)"):
        MODEL.fit(table, None)


def test_a_name_that_nobody_has_is_an_attribute_error_without_more(fit):
    for thing in (sh, MODEL, fit):
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            thing.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "word", [*OPTIONS.values(), *MEMBERS.values(), *FORECASTS.values(), *CLASSES.values()], ids=NAME
)
def test_the_page_has_every_word(word: Word):
    assert f"| `{word.theirs}` | {word.said('fit')} | {word.of} |" in PAGE


def test_advice_is_given_for_a_model_without_the_option():
    with pytest.raises(TypeError, match=r"^fit: has no option 'masks'; NaN in x marks a missing value.$"):
        sh.LinearSSM(1).fit(X, masks=X)


@pytest.mark.parametrize("word", [word for word in CLASSES.values() if "network)" not in word.ours], ids=NAME)
def test_our_classes_are_made_as_written(word):
    call, names = re.split(", or | and other|, without", word.ours)[0], {name: getattr(sh, name) for name in dir(sh)}
    eval(
        call.replace("an emission", "Normal()"),
        names | {"K": 2, "L": 2, "F": 1, "n": 3},
    )


@pytest.mark.parametrize("word", [word for word in MEMBERS.values() if word.ours[:3] in ("{it", "fit")], ids=str)
@pytest.mark.parametrize("kind", ["fit", "model"])
def test_our_members_exist(word, kind, fit):
    said = re.split(", or |, of |: |, which", word.said(kind).replace(" for the best path", ", or "))[0]
    if "fit(x" in said or "'p'" in said or "'z'" in said or "covariance" in said:
        return  # of other models
    if "transition_probs" in said or "initial_probs" in said:
        fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal()).fit(X, restarts=1, max_steps=3, progress=False)
    names = {"fit": fit, "model": fit.model, "x": X, "n_steps": 3, "horizon": 2}
    assert eval(said, names) is not None


def test_a_fit_is_saved_and_any_model_is_loaded(tmp_path):
    fit = MODEL.fit(X, restarts=1, max_steps=3, progress=False)
    fit.save(tmp_path / "one")
    for name, table in sh.load(tmp_path / "one").values.items():
        assert torch.equal(table, fit.model.values[name])
    sh.LinearSSM(1).save(tmp_path / "other")
    assert isinstance(sh.load(str(tmp_path / "other")), sh.LinearSSM)
    with pytest.raises(ValueError, match=r"^path: "):
        sh.load(tmp_path)


@pytest.mark.peer
def test_words_of_hmmlearn_are_there_and_its_search_ends_without_a_word(caplog):
    hmm = pytest.importorskip("hmmlearn.hmm")
    theirs = hmm.GaussianHMM(2, random_state=0, tol=0.0, n_iter=2).fit(torch.randn(50, 1).numpy())
    for word in (*OPTIONS.values(), *MEMBERS.values()):
        there = hasattr(theirs, word.theirs) or word.theirs in signature(theirs.sample).parameters
        assert "hmmlearn" not in word.of or there
    for word in CLASSES.values():
        assert "hmmlearn" not in word.of or hasattr(hmm, word.theirs)
    assert theirs.monitor_.iter == 2
    assert theirs.monitor_.converged
    assert not caplog.records


@pytest.mark.peer
def test_words_of_dynamax_are_there():
    hmm = pytest.importorskip("dynamax.hidden_markov_model")
    linear = pytest.importorskip("dynamax.linear_gaussian_ssm")
    options = signature(hmm.GaussianHMM.fit_em).parameters
    for word in (*OPTIONS.values(), *MEMBERS.values(), *CLASSES.values()):
        if "dynamax" in word.of and word.theirs != "params":  # these go into and out of its methods
            there = (hmm, linear, hmm.GaussianHMM)
            assert any(hasattr(place, word.theirs) for place in there) or word.theirs in options
