"""Covering and F1 of found changes, against their definitions written out."""

import itertools

import numpy as np
import pytest
from samplehold.switching.judging.changes import covering, f1


def brute_covering(annotated: list[list[int]], found: list[int], n: int) -> float:
    """By sets of steps."""
    split = lambda changes: [set(range(a, b)) for a, b in itertools.pairwise([0, *sorted(changes), n])]
    each = [
        sum(len(a) * max(len(a & b) / len(a | b) for b in split(found)) for a in split(changes)) / n
        for changes in annotated
    ]
    return float(np.mean(each))


def test_covering_is_its_definition_over_sets():
    draw = np.random.default_rng(0)
    for _ in range(20):
        annotated = [sorted(set(draw.integers(1, 30, draw.integers(0, 5)).tolist())) for _ in range(3)]
        found = sorted(set(draw.integers(1, 30, draw.integers(0, 6)).tolist()))
        assert covering(annotated, found, 30) == pytest.approx(brute_covering(annotated, found, 30))


def test_the_same_changes_agree_completely():
    assert covering([[10, 20]], [20, 10], 30) == 1.0
    assert f1([[10, 20]], np.array([10, 20]), 30) == 1.0
    assert covering([[]], [], 30) == f1([[]], [], 30) == 1.0


def test_f1_by_hand():
    # beginnings count: precision 2 of 3, recall 2 of 3
    assert f1([[10, 20]], [14, 28], 30) == pytest.approx(2 / 3)
    # one found change agrees with one annotated change
    assert f1([[10, 12]], [11], 30) == pytest.approx(2 * 1.0 * (2 / 3) / (1 + 2 / 3))
    # two annotators: {0, 10, 20} together, precision 1; recall (1 + 2/2) / 2 and (2/2 + 1) / 2
    assert f1([[10], [20]], [10, 20], 30, margin=0) == 1.0
    # of two annotators one sees nothing: recall (2/2 + 1/1) / 2 = 1
    assert f1([[10], []], [10], 30) == 1.0
    assert f1([[10]], [16], 30) == pytest.approx(2 * (1 / 2) * (1 / 2) / 1)
    assert f1([[10]], [15], 30) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: covering([], [3], 10), "annotated: got no annotator"),
        (lambda: covering([[3]], [10], 10), "found: got 10, expected steps from 1 to 9"),
        (lambda: covering([[0]], [3], 10), r"annotated\[0\]: got 0"),
        (lambda: f1([[2]], [2.5], 10), "found: got 2.5"),
        (lambda: f1([3], [2], 10), r"annotated\[0\]: got 3, expected a list"),
        (lambda: f1([[3]], [2], 10, margin=-1), "margin: got -1"),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_changes_that_are_none_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
