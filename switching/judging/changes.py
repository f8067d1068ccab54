r"""How well found changes agree with those that people have annotated, or that are known.

A change is the number of the first step of a segment, counted from 0; the beginning of the series is none. With G the
segments of an annotator, and G' those that were found, the covering is (van den Burg & Williams 2020, *An evaluation of
change point detection algorithms*, section 4)

$$C(G, G') = \frac1T \sum_{A \in G} |A| \max_{A' \in G'} \frac{|A \cap A'|}{|A \cup A'|},$$

averaged over annotators. For F1 a found change agrees with an annotated one that is at most `margin` steps away, each
with one. The precision is that beside the changes of all annotators together, the recall the mean over annotators. Both
count the beginning of the series as a change that all find, so neither is 0 / 0.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ...inference.numerics.scalars import check_integer


def covering(annotated: Sequence[Iterable[Any]], found: Iterable[Any], n_steps: int) -> float:
    """The mean covering of the annotators' segments by the found ones, between 0 and 1.

    Arguments:
        annotated: the changes of each annotator; of one if they are known.
        found: the changes that were found.
        n_steps: the length of the series.

    Raises:
        TypeError, ValueError: changes that are not between 1 and `n_steps` - 1; no annotator.

    >>> covering([[50]], [], 100), covering([[50], []], [50], 100)
    (0.5, 0.75)
    """
    n_steps = check_integer("n_steps", n_steps)
    ours = _segments(_read("found", found, n_steps), n_steps)
    total = 0.0
    for changes in _annotators(annotated, n_steps):
        for a, b in _segments(changes, n_steps):
            most = max(max(0, min(b, d) - max(a, c)) / (max(b, d) - min(a, c)) for c, d in ours)
            total += (b - a) * most / n_steps
    return total / len(annotated)


def f1(annotated: Sequence[Iterable[Any]], found: Iterable[Any], n_steps: int, margin: int = 5) -> float:
    """The harmonic mean of precision and recall of the found changes, between 0 and 1; arguments as `covering`.

    Arguments:
        margin: the most steps between changes that agree.

    Raises:
        TypeError, ValueError: as `covering`; a negative margin.

    >>> f1([[50]], [52], 100), round(f1([[50]], [], 100), 3), round(f1([[50]], [20, 52], 100), 3)
    (1.0, 0.667, 0.8)
    """
    n_steps, margin = check_integer("n_steps", n_steps), check_integer("margin", margin, least=0)
    ours = [0, *_read("found", found, n_steps)]
    each = [[0, *changes] for changes in _annotators(annotated, n_steps)]
    precision = _agreeing(sorted({change for changes in each for change in changes}), ours, margin) / len(ours)
    recall = sum(_agreeing(changes, ours, margin) / len(changes) for changes in each) / len(each)
    return 2 * precision * recall / (precision + recall)


def _agreeing(truth: list[int], found: list[int], margin: int) -> int:
    """The number of true changes, in order, that have a found one of their own near them: the nearest that is left."""
    left, n = list(found), 0
    for change in truth:
        near = min(left, key=lambda other: abs(other - change), default=None)
        if near is not None and abs(near - change) <= margin:
            left.remove(near)
            n += 1
    return n


def _segments(changes: list[int], n_steps: int) -> list[tuple[int, int]]:
    return list(pairwise([0, *changes, n_steps]))


def _annotators(annotated: Sequence[Iterable[Any]], n_steps: int) -> list[list[int]]:
    if not len(annotated):
        raise ValueError("annotated: got no annotator, expected the changes of at least one.")
    return [_read(f"annotated[{i}]", changes, n_steps) for i, changes in enumerate(annotated)]


def _read(name: str, changes: Iterable[Any], n_steps: int) -> list[int]:
    if isinstance(changes, str) or not hasattr(changes, "__iter__"):
        raise TypeError(f"{name}: got {changes!r}, expected a list of changes, the first steps of segments.")
    read = sorted({check_integer(name, change) for change in changes})
    if read and read[-1] >= n_steps:
        raise ValueError(f"{name}: got {read[-1]}, expected steps from 1 to {n_steps - 1}, where segments begin.")
    return read
