"""An M-step by gradient ascent, for emissions without a conjugate prior."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.distributions import AffineTransform
from torch.distributions.constraints import Constraint

from ..ascent import FARTHEST, Ascent, Differentiable, share_left
from ..known import FreeCoordinates, joined, parted, whole_parameters
from ..parameters import Parameters
from ..priors import NONE

MAX_STEPS = 4  # of BFGS in one M-step; the next M-step continues
NEAR = 0.05  # of coordinates, between two slopes that show the curvature; kinks within it count
PART = 0.2  # of the share of the gain that Newton's method may leave: these steps know less of the curvature
RESTS = 1e-10  # promised rise of a step in nats, at which a restart rests
LEAST = 1e-6  # the least curvature


class MStep(Ascent):
    """Restarts that begin with the curvatures along their coordinates, and leave a share of the gain: see `leaving`.

    If the numbers of one parameter do not depend on each other, one more gradient gives their curvatures. A maximum may
    be a kink, about which only short steps rise.

    Attributes:
        sizes: how many coordinates each parameter has.
    """

    sizes: list[int]
    begun: Tensor
    shorter, tries = 0.25, 8

    def _begin(self) -> None:
        super()._begin()
        self.begun, curvatures = self.height(), []
        for place, part in enumerate(self.slopes.split(self.sizes, -1)):
            ahead = [NEAR * (other == place) for other, size in enumerate(self.sizes) for _ in range(size)]
            slopes = self.density.climb(self.point + self.point.new_tensor(ahead))[1]
            curvatures.append((part - slopes.split(self.sizes, -1)[place]).abs() / NEAR)
        curvature = torch.cat(curvatures, -1).maximum(self.slopes.abs() / FARTHEST).clamp_min(LEAST)
        self.inverse = torch.diag_embed(1 / curvature)

    def _advance(self, move: Tensor, promised: Tensor, going: Tensor) -> None:
        before = self.height()
        super()._advance(move, promised, going)
        share = PART * share_left.get()
        self.stuck = self.stuck | (self.height() - before <= share * (self.height() - self.begun))


def ascend(
    objective: Callable[[Parameters], Tensor],
    values: Parameters,
    supports: Mapping[str, Constraint],
    units: Mapping[str, Tensor] | None = None,
    fixed: Parameters = NONE,
) -> Parameters:
    """Increase an objective `[*r]` by BFGS in unconstrained coordinates, from all restarts `*r` at once.

    A restart whose objective would not increase keeps its values.

    Arguments:
        units: of real parameters, by name; a step of BFGS is at most one unit long. Others have unit 1.
        fixed: tables of parameters that keep their values, with NaN where an entry is free.
    """
    known = whole_parameters(fixed)
    values = values | {name: table.expand_as(values[name]) for name, table in known.items()}
    if len(known) == len(values):
        return values
    shape = objective(values).shape
    first = {name: value[(0,) * len(shape)].detach() for name, value in values.items()}
    scaled = {name: AffineTransform(torch.zeros_like(unit), unit) for name, unit in (units or {}).items()}
    coordinates = FreeCoordinates(supports, first, fixed, scaled)

    def moved(flat: Tensor) -> Parameters:
        return coordinates.values(parted(flat.reshape(*shape, -1), coordinates.start))

    start = joined(coordinates.of(values), coordinates.start).detach().reshape(shape.numel(), -1)
    climb = MStep(Differentiable(lambda flat: objective(moved(flat)).flatten()), start, RESTS)
    climb.sizes = [table.numel() for table in coordinates.start.values()]
    climb.run(MAX_STEPS)
    with torch.no_grad():
        raised = moved(climb.point)
        better = objective(raised) >= objective(values)  # False for NaN
    return {
        name: torch.where(better.reshape(*better.shape, *[1] * (values[name].ndim - better.ndim)), value, values[name])
        for name, value in raised.items()
    }
