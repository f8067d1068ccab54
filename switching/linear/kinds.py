"""Starts of structures: one for each kind of solution.

A likelihood of variances has maxima with different variances at 0, and an autoregression may stand for noise, for a
slow movement or for an alternating one. So the density is computed at a grid of small and large standard deviations, of
such autoregressions, and of frequencies. All standard deviations of a point have the best common scale; under a user's
prior the grid contains its scale. The best point of each kind is a start. Starts from a maximum add a component that it
lacks, leave one out, exchange two, or change an autoregression.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .coordinates import LinearDensity, StructureCoordinates
from .user_priors import typical_deviation

OFF, LOW, HIGH = 1e-2, 0.05, 0.4  # standard deviations of a grid, up to their scale; of changes, in the norm of all
SIZES = 3  # variances up to which a grid has all three of them; beyond it has the first and the last
NEAR_ZERO = 0.02  # standard deviation, in the norm of all, below which a component counts as absent
PARTIAL = (1.5, 0.2, -0.9), (0.0, -0.8, 0.8)  # artanh of the first two partial autocorrelations
DAMPING = 1.9, 2.7  # angles; the factors are .66 and .95
N_FREQUENCIES = 96
N_PEAKS = 3


class Starts(NamedTuple):
    """Points [R, P], and the kind of each."""

    points: Tensor
    kinds: list[str]

    def first(self, n: int) -> "Starts":
        return Starts(self.points[:n], self.kinds[:n])


def grid(density: LinearDensity) -> Starts:
    """The best point of each kind, the best kind first."""
    form = _form(density)
    sizes = (OFF, LOW, HIGH) if len(form.variances) <= SIZES else (OFF, HIGH)
    each = [(*sizes, *own) for own in _sizes_of_priors(density)]
    variances = [row for row in itertools.product(*each) if not row or set(row) != {OFF}]
    weights = [_autoregressions(len(names)) for names in form.weights]
    rows, kinds = [], []
    for row in variances:
        for parts in itertools.product(*weights, *_ranges(density)):
            rows.append([*row, *itertools.chain(*parts)])
            present = [name for name, size in zip(form.variances, row, strict=True) if size > OFF]
            kinds.append(
                ", ".join([*present, *(f"{number:.2g}" for part in parts for number in part[: len(PARTIAL)])])
                or "start"
            )
    points, found = in_scale(density, density.point.new_tensor(rows))
    heights = found.tolist()
    best: dict[str, int] = {}
    for place in sorted(range(len(rows)), key=lambda i: -heights[i]):
        best.setdefault(kinds[place], place)
    return Starts(points[list(best.values())], list(best))


def in_scale(density: LinearDensity, points: Float[Tensor, "n P"]) -> tuple[Float[Tensor, "n P"], Float[Tensor, "n"]]:
    r"""Points with all standard deviations times the best number, and the density there.

    The log-likelihood of c times all standard deviations is $A - m \log c - S / 2 c^2$, which three values determine.
    With a prior, or a known variance, this is approximate. A point that has a lower density then stays where it was.
    """
    scaled = torch.zeros_like(density.point)
    scaled[: len(density.variances)] = 1.0
    at_scales = density.at(torch.cat([points * (1 + (c - 1) * scaled) for c in (1, 2, 4)])).unflatten(0, (3, -1))
    first, second = at_scales[0] - at_scales[1], at_scales[1] - at_scales[2]
    errors = 32 / 9 * (second - first)
    scale = (errors / (first + 3 / 8 * errors) * math.log(2)).sqrt()
    moved = points * (1 + (scale.nan_to_num(1.0, 1.0).unsqueeze(-1) - 1) * scaled)
    heights = density.at(moved)
    higher = heights > at_scales[0]
    return torch.where(higher.unsqueeze(-1), moved, points), torch.where(higher, heights, at_scales[0])


def _form(density: LinearDensity) -> StructureCoordinates:
    assert isinstance(density.coordinates, StructureCoordinates)
    return density.coordinates


def _sizes_of_priors(density: LinearDensity) -> list[tuple[float, ...]]:
    """For each variance the scale of the user's prior, if it is not between those of a grid."""
    form, prior, found = _form(density), density.problem.prior, []
    for name, unit in zip(form.variances, form.units, strict=True):
        size = None
        if prior is not None and name in form.priors:
            size = typical_deviation(form.priors[name], float(prior["unit"])) * unit
        found.append((size,) if size and not OFF <= size <= HIGH else ())
    return found


def _autoregressions(order: int) -> list[tuple[float, ...]]:
    """Coordinates of some autoregressions."""
    return [(*first, *[0.0] * (order - len(PARTIAL))) for first in itertools.product(*PARTIAL[:order])]


def _ranges(density: LinearDensity) -> list[list[tuple[float]]]:
    """Some angles of each parameter in a range: for a frequency those of the greatest maxima of a profile."""
    choices = []
    for place, name in enumerate(density.ranges, len(density.point) - len(density.ranges)):
        if not name.startswith("frequency"):
            choices.append([(angle,) for angle in DAMPING])
            continue
        angles = torch.linspace(0, torch.pi, N_FREQUENCIES + 2, device="cpu")[1:-1].to(density.point)
        points = _middle(density, len(angles))
        points[:, place + 1 :] = DAMPING[-1]
        points[:, place] = angles
        choices.append([(angle,) for angle in angles[_peaks(density, points)].tolist()])
    return choices


def _middle(density: LinearDensity, n: int) -> Float[Tensor, "n P"]:
    """Points with standard deviations in the middle."""
    points = density.point.repeat(n, 1)
    points[:, : len(density.variances)] = HIGH / 2
    return points


def _peaks(density: LinearDensity, points: Float[Tensor, "n P"]) -> Tensor:
    """The numbers of the greatest maxima of the density along a row of points."""
    heights = torch.nn.functional.pad(density.at(points), (1, 1), value=-torch.inf)
    tops = (heights[1:-1] >= heights[:-2]) & (heights[1:-1] >= heights[2:])
    ordered = torch.where(tops, heights[1:-1], -torch.inf).argsort(descending=True)
    return ordered[: min(N_PEAKS, int(tops.sum()))]


def changed(density: LinearDensity, point: Float[Tensor, "P"]) -> Starts:
    """Starts that differ from a maximum in one component, or in two that are exchanged."""
    pairs = list(_changes(_form(density), point))
    return Starts(torch.stack([start for _, start in pairs]), [kind for kind, _ in pairs])


def _changes(form: StructureCoordinates, point: Tensor) -> Iterator[tuple[str, Tensor]]:
    n = len(form.variances)
    norm = float(point[:n].norm())

    def with_entries(places: list[int], numbers: list[float]) -> Tensor:
        start = point.clone()
        start[places] = start.new_tensor(numbers)
        return start

    for i, name in enumerate(form.variances):
        absent = abs(float(point[i])) < NEAR_ZERO * norm
        yield f"{'with' if absent else 'without'} {name}", with_entries([i], [(HIGH / 2 if absent else OFF) * norm])
    for i, j in itertools.combinations(range(n), 2):
        exchanged = [max(abs(float(point[k])), OFF * norm) for k in (j, i)]
        yield f"{form.variances[i]} and {form.variances[j]} exchanged", with_entries([i, j], exchanged)
    first = n
    for names in form.weights:
        places = [*range(first, first + len(names))]
        for numbers in _autoregressions(len(names)):
            yield f"ar {numbers[0]:g}", with_entries(places, [*numbers])
        first += len(names)
