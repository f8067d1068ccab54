"""What the study of automata counts, with networks that are machines by their weights, or hardly trained."""

import extraction
import pytest
import samplehold as sh
import study
from oracles.machines import network_of
from samplehold.models.automata.tomita import tomita


def test_a_row_says_how_far_a_machine_is_from_its_network_and_from_the_grammar():
    found = sh.automata.extract_automaton(network_of(tomita(4), "01"))
    right, wrong = (extraction.summary(found, grammar) for grammar in (4, 1))
    assert right["is the grammar"]
    assert (right["states"], right["least states"], right["counterexample"]) == (4, 4, "")
    assert not wrong["is the grammar"]
    assert (wrong["states"], wrong["least states"], wrong["counterexample"]) == (4, 2, "`0`")
    assert right["faithful to 11"] == right["faithful at 100"] == 1
    assert right["at least"] == pytest.approx(0.025 ** (1 / 500))


@pytest.mark.cpu("the study makes its networks there")
@pytest.mark.slow
def test_the_study_gives_a_row_for_each_network_and_method(monkeypatch):
    monkeypatch.setattr(extraction, "QUICK", [("state-regularised GRU", 2)])
    monkeypatch.setattr(extraction, "MOST_STEPS", 2)
    labels = []

    def track(items, label):
        labels.append(label)
        yield from items

    found = study.study("automata", "quick", track)
    assert labels == ["networks"]
    assert found.seeds == (0,)
    assert found.tables["networks"][["network", "grammar", "steps"]].values.tolist() == [
        ["state-regularised GRU", 2, 2]
    ]
    assert found.tables["machines"]["method"].tolist() == ["lstar", "clusters", "centroids"]
    assert found.tables["machines"]["states"].min() >= 1
    assert list(found.figures) == ["machines"]
