"""The languages of Tomita, against their definitions in words."""

import itertools
import re

import pytest
from samplehold.models.automata.tomita import labelled_words, tomita

RULES = {
    1: lambda w: "0" not in w,
    2: lambda w: re.fullmatch("(10)*", w) is not None,
    3: lambda w: not any(len(one) % 2 and len(zero) % 2 for one, zero in re.findall("(1+)(0+)", w)),
    4: lambda w: "000" not in w,
    5: lambda w: w.count("0") % 2 == 0 and w.count("1") % 2 == 0,
    6: lambda w: (w.count("0") - w.count("1")) % 3 == 0,
    7: lambda w: re.fullmatch("0*1*0*1*", w) is not None,
}


@pytest.mark.parametrize("number", RULES)
def test_all_words_up_to_a_length_are_told_as_defined(number):
    language = tomita(number)
    assert len(language.states) == len(language.minify(retain_names=False).states)
    for n in range(11):
        for symbols in itertools.product("01", repeat=n):
            word = "".join(symbols)
            assert language.accepts_input(word) == RULES[number](word), word


@pytest.mark.parametrize("number", RULES)
def test_labelled_words_are_balanced_where_they_can_be(number):
    language = tomita(number)
    words = labelled_words(language, range(13), 6, seed=0)
    assert words == labelled_words(language, range(13), 6, seed=0)
    for n in range(13):
        labels = [label for word, label in words if len(word) == n]
        inside = language.count_words_of_length(n)
        assert sum(labels) == (3 if 0 < inside < 2**n else 6 * (inside > 0))
    assert all(language.accepts_input(word) == label for word, label in words)


def test_there_are_seven():
    with pytest.raises(ValueError, match=r"number: got 8, expected"):
        tomita(8)
