"""The study of state-regularised networks: its latch against theory, its words, its measures, and all of it quickly."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import samplehold as sh
import torch
from centroid_digits import DigitReader, Digits, mean_pictures
from centroid_distance import (
    half_life,
    latch_distances,
    latch_means,
    latch_table,
    random_distances,
    trained_distances,
)
from centroid_languages import balanced, bracket_words, brackets, tomita_language
from reading import NO_LABEL, Labelled, Reader, Recipe
from samplehold import GRU, StateRegularized
from state_regularized import draw_centroids
from study import Findings, study
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("the study makes its networks there")


def test_a_latch_is_as_far_from_its_chain_as_theory_says():
    table = latch_distances((0.2, 0.5, 0.9, 1.3), 128)
    for temperature, row in table.iterrows():
        drawn, soft = latch_means(temperature, 128)
        for step, distance in row.items():
            assert distance == pytest.approx(abs(soft[step - 1] - drawn[step - 1]) / 2, rel=1e-9, abs=1e-12)


def test_the_page_has_the_latch_of_theory_in_columns_of_the_study():
    page = (Path(sh.__file__).parent / "docs" / "background" / "state_regularized.md").read_text()
    head, _, *lines = [line for line in page.split("## Random networks")[0].splitlines() if line.startswith("|")]
    cells = lambda line: [cell.strip() for cell in line.strip("|").split("|")]
    table = latch_table(latch_distances((0.2, 0.5), 4))
    assert list(table.columns) == ["temperature", "chain's half-life", 1, 2, 4]
    assert cells(head)[:3] == [*map(str, table.columns[:2]), "4"]
    steps, cooling = [int(cell) for cell in cells(head)[2:]], np.geomspace(0.1, 1.6, 25)
    for shown, half, *distances in map(cells, lines):
        temperature = cooling[np.abs(cooling - float(shown)).argmin()]
        assert f"{temperature:.2f}" == shown
        assert half == f"{half_life(temperature):.3g}"
        drawn, soft = latch_means(temperature, steps[-1])
        assert distances == [f"{abs(soft[step - 1] - drawn[step - 1]) / 2:.3f}" for step in steps]
    assert len(lines) == 10


def test_a_table_whose_rows_have_names_outside_its_columns_is_refused():
    with pytest.raises(ValueError, match="the index of 'latch' would not be written"):
        Findings({"latch": latch_distances((0.2, 0.5), 2)})


def test_the_soft_pass_of_a_latch_remembers_below_its_critical_temperature_and_the_chain_forgets():
    for temperature, kept in ((0.5, True), (0.95, True), (1.05, False), (2.0, False)):
        drawn, soft = latch_means(temperature, 2000)
        assert drawn[-1] < 1e-3
        assert (soft[-1] > 0.2) == kept
        assert drawn[0] / 2 == pytest.approx(drawn[0] * (drawn[1] / drawn[0]) ** half_life(temperature))


def test_random_networks_near_zero_temperature_are_their_chain():
    table = random_distances((1e-4, 0.5), 2, 8)
    assert (table[table["step"] == 1]["TV"] < 1e-12).all()
    means = table.groupby("temperature")["TV"].mean()
    assert means[1e-4] < 0.01 < means[0.5]


def test_accuracy_of_drawn_runs_is_that_of_the_chain():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reader = Reader(StateRegularized(GRU(3, 4), 5, 0.5), 2).double()
        x = torch.randn(6, 7, 3, dtype=torch.float64)
    with torch.no_grad():
        reader.layer.centroids.mul_(4)
    label = torch.full((6, 7), NO_LABEL)
    label[:, -1] = torch.tensor([0, 1] * 3)
    data = Labelled(x, label)
    rows = trained_distances(reader, {"words": data}, {"seed": 0})
    assert reader.layer.temperature == pytest.approx(0.5)
    assert rows[0]["accuracy, soft"] == pytest.approx(reader.accuracy(data))
    n = 4000
    many = Labelled(x.repeat(n, 1, 1), label.repeat(n, 1))
    run = reader.layer.run(many.x, mode="sample", seed=0)
    share = (reader.head(run.output[:, -1]).argmax(-1) == many.label[:, -1]).double().mean()
    assert rows[0]["accuracy, drawn"] == pytest.approx(float(share), abs=5 * 0.5 / (6 * n) ** 0.5)
    assert [row["temperature"] for row in rows] == ["1 x 0.5", "0.5 x 0.5", "0.25 x 0.5", "0.1 x 0.5"]


def test_words_of_brackets_are_balanced_or_turned_and_as_deep_as_asked():
    for length in range(9):
        for symbols in itertools.product("()", repeat=length):
            word = "".join(symbols)
            rest = word
            while "()" in rest:
                rest = rest.replace("()", "")
            assert balanced(word)[-1] == (not rest) == brackets(4).accepts_input(word)
    words = bracket_words(40, 3, 6, 20, seed=0)
    assert words == bracket_words(40, 3, 6, 20, seed=0)
    for number, word in enumerate(words):
        assert len(word) == 40
        assert balanced(word)[-1] == (number % 2 == 0)
        if number % 2 == 0:
            depths = [word[:k].count("(") - word[:k].count(")") for k in range(41)]
            assert 3 < max(depths) <= 6


def test_words_are_labelled_after_every_symbol_or_the_last():
    language = tomita_language(1, (16,), 4, Recipe(GRU))
    every = language.table(["1", "110"], all_steps=True)
    assert every.label.tolist() == [[1, 1, NO_LABEL, NO_LABEL], [1, 1, 1, 0]]
    assert every.x.argmax(-1)[:, :2].tolist() == [[2, 1], [2, 1]]  # a start symbol comes first
    assert language.table(["1", "110"], all_steps=False).label.tolist() == [[-100, 1, -100, -100], [-100] * 3 + [0]]


def test_a_cell_starts_alike_with_centroids_and_without():
    recipe = Recipe(GRU, 4, 3, n_steps=2)
    regular, plain = (recipe.make(3, 2, kind, seed=1) for kind in (True, False))
    assert_close(dict(regular.layer.cell.named_parameters()), dict(plain.layer.named_parameters()), rtol=0, atol=0)
    assert_close(regular.head.state_dict(), plain.head.state_dict(), rtol=0, atol=0)


def test_mean_pictures_are_those_of_the_series_that_end_at_a_centroid():
    random = torch.Generator().manual_seed(0)
    digits = Digits("random", torch.rand(40, 4, 4, generator=random), torch.randint(10, (40,), generator=random), 2)
    for permuted in (False, True):
        _, test = digits.series(permuted)
        reader = Recipe(GRU, 6, 3).make(2, 10, True, seed=0)
        means, counts = mean_pictures(reader, digits, test)
        pictures = digits.judged()
        if not permuted:
            assert_close(test.x.reshape(-1, 4, 4), pictures, rtol=0, atol=0)
        assert counts.sum() == len(pictures) == 8
        for k in range(3):
            own = [
                p for p, x in zip(pictures, test.x, strict=True) if reader.layer.run(x).state_probs[-1].argmax() == k
            ]
            assert len(own) == counts[k]
            if own:
                assert_close(means[k], torch.stack(own).mean(0))


def test_panels_of_centroids_are_those_that_series_reach():
    digits = Digits("random", torch.zeros(4, 2, 2), torch.zeros(4).long(), 1)
    counts = [torch.tensor([0, 3, 0, 1]), torch.tensor([4, 0, 0, 0]), None]
    readers = [
        DigitReader(digits, {"digits": "", "order": "", "seed": 5}, None if n is None else torch.ones(4, 2, 2), n)
        for n in counts
    ]
    panels = draw_centroids(readers).axes
    assert [panel.get_title() if panel.axison else None for panel in panels] == ["n = 3", "n = 1", "n = 4", None]
    assert all(bool(panel.images) == panel.axison for panel in panels)


@pytest.mark.slow
def test_the_quick_study_has_all_tables_and_figures():
    found = study("state-regularized", "quick")
    assert list(found.tables) == ["latch", "random_networks", "trained_networks", "languages", "digits"]
    assert list(found.figures) == ["soft_against_exact", "accuracy_by_length", "centroids"]
    assert found.seeds == (0,)
    assert all(len(table) for table in found.tables.values())
    assert found.tables["languages"]["accuracy"].between(0, 1).all()
    for figure in found.figures.values():
        assert figure.axes
        for panel in figure.axes:
            assert all(line.get_label() for line in panel.lines)
