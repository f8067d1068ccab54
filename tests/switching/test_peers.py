"""What users of other libraries type is answered by its name here."""

import re
from inspect import signature
from pathlib import Path

import pytest
import samplehold as sh
import torch
from oracles.coupled import factorial_of
from samplehold.switching.peers import CLASSES, MEMBERS, OPTIONS, Word

X = [1.0, 1.1, 0.9, 4.0, 4.2, 4.1]
MODEL = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)
KINDS = {
    "switching": MODEL,
    "linear": sh.LinearSSM(1),
    "switching linear": sh.SwitchingLinearSSM(2, 1),
    "factorial": factorial_of(HALF, [HALF, HALF], [torch.zeros(2, 1).double()] * 2, torch.eye(1).double()),
}
PAGE = (Path(sh.__file__).parent / "docs" / "coming_from" / "index.md").read_text()


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
def test_an_unknown_option_is_told_those_that_there_are_the_nearest_first(model):
    with pytest.raises(TypeError, match=r"^fit: has no option 'n_iter'; it has max_steps, "):
        model.fit(X, n_iter=10)
    with pytest.raises(TypeError, match=r"^fit: has no option 'restart'; it has restarts, "):
        model.fit(X, restart=10)
    with pytest.raises(TypeError, match=r"^method: got list, .* fit\(x, lengths=\.\.\.\)"):
        model.fit(X, [3, 3])


def test_what_accompanies_a_series_is_told_too():
    fit = MODEL.fit(X, restarts=1, max_steps=3, progress=False)
    for verb in (fit.smooth, fit.log_evidence, fit.viterbi, fit.states):
        with pytest.raises(TypeError, match=r"^length: no such argument; .* lengths, inputs, input_names, dt"):
            verb(X, length=[6])


@pytest.mark.parametrize("word", MEMBERS.values(), ids=MEMBERS)
def test_a_member_of_a_peer_is_answered_by_ours(word):
    fit = MODEL.fit(X, restarts=1, max_steps=3, progress=False)
    for thing in (fit, fit.model):
        with pytest.raises(AttributeError, match=f"has no attribute '{word.theirs}'; here it is "):
            getattr(thing, word.theirs)


@pytest.mark.parametrize("word", CLASSES.values(), ids=CLASSES)
def test_a_class_of_a_peer_is_answered_by_ours(word):
    with pytest.raises(AttributeError, match=f"no attribute '{word.theirs}'; (here it is|not there)"):
        getattr(sh, word.theirs)


def test_a_name_that_nobody_has_is_an_attribute_error_without_more():
    fit = MODEL.fit(X, restarts=1, max_steps=3, progress=False)
    for thing in (sh, MODEL, fit):
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            thing.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "word", [*OPTIONS.values(), *MEMBERS.values(), *CLASSES.values()], ids=lambda word: word.theirs
)
def test_the_page_has_every_word(word: Word):
    assert f"| `{word.theirs}` | {word.ours} | {word.of} |" in PAGE


def test_a_word_for_an_option_that_a_model_has_not_is_not_given():
    with pytest.raises(TypeError, match=r"^fit: has no option 'masks' \(here it is NaN in x .*\); it has method, "):
        sh.LinearSSM(1).fit(X, masks=X)


@pytest.mark.parametrize("word", [word for word in CLASSES.values() if "(" in word.ours], ids=lambda word: word.theirs)
def test_our_classes_are_made_as_written(word):
    call, names = re.split(", or | and other|, without", word.ours)[0], {name: getattr(sh, name) for name in dir(sh)}
    eval(call.replace("an emission", "Normal()"), names | {"K": 2, "L": 2, "F": 1, "n": 3})


@pytest.mark.parametrize("call", [word.ours for word in MEMBERS.values()])
def test_our_members_exist(call):
    fit, name = MODEL.fit(X, restarts=1, max_steps=3, progress=False), call.split("(")[0].split("[")[0].split(",")[0]
    assert name == "x less the mean of to_arviz" or hasattr(fit, name) or hasattr(fit.model, name)


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
        assert "hmmlearn" not in word.of or hasattr(theirs, word.theirs)
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
