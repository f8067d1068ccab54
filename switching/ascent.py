r"""Maximisation of a function from many starts at once, by the quasi-Newton steps of BFGS.

With s the last step and y the fall of the gradient along it, the inverse curvature H becomes

$$(I - \rho s y^\top) H (I - \rho y s^\top) + \rho s s^\top, \qquad \rho = 1 / y^\top s,$$

where $y^\top s > 0$ (Nocedal & Wright 2006, *Numerical Optimization*, 6.17). `newton` takes the steps of a caller that
knows the curvature.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..inference.message_passing.engine import Run

Own = TypeVar("Own", bound="Ascent")
FARTHEST = 1.0  # norm of the longest step
HALVINGS = 20
NEWTON_HALVINGS = 30
NEWTON_ROUNDING = 1e-14  # share of the objective below which a promised gain does not count
MAX_NUMBERS = 2**15  # numbers in a table of a chunk of steps
LEAST_STEPS = 64  # of a chunk
LONGEST_STEP = 5.0  # of Newton's method, of a coefficient in units of its linear predictor
FARTHEST_LOG = 300.0  # a logarithm or log odds, beyond which rates and probabilities are lost to rounding
RISE = 1e-4  # share of the rise promised by the slope that a step has to reach
ROUNDING = 1e-15  # share of the height below which a rise does not show
CLOSE = 8.0  # fall in nats below a known peak, within which its parabola is compared with the function
FAR = 1000.0  # fall below a known peak, from which its curvature no longer helps
LIKENESS = 0.2  # relative difference of the two, below which a point leads to the peak
share_left: ContextVar[float] = ContextVar("share_left", default=0.0)  # see `leaving`
_STATE = "point", "heights", "slopes", "inverse", "stuck"  # of an ascent
FLAT = 1e-12  # cosine of a step and the fall of the gradient, below which the curvature is not updated


@runtime_checkable
class Climbable(Protocol):
    """A function of P numbers, such as a log density in free coordinates.

    If the points are those of R functions, or if it remembers each restart, it has an attribute `together`, which is
    True; it is then asked about all restarts each time.
    """

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        """Its values and gradients at many points; -inf and 0 if there is none."""
        ...


@dataclass(frozen=True)
class Differentiable:
    """R functions that autograd differentiates together: from points [R, P], one for each, to values [R]."""

    function: Callable[[Tensor], Tensor]
    together: ClassVar[bool] = True

    def climb(self, flat: Float[Tensor, "R P"]) -> tuple[Float[Tensor, "R"], Float[Tensor, "R P"]]:
        with torch.enable_grad():
            here = flat.detach().requires_grad_()
            height = self.function(here)
            (gradient,) = torch.autograd.grad(height.sum(), here)
        there = height.detach().isfinite() & gradient.isfinite().all(-1)
        return torch.where(there, height.detach(), -torch.inf), torch.where(there.unsqueeze(-1), gradient, 0.0)


@dataclass(frozen=True)
class Peak:
    """A known maximum of a function, and minus the curvature there."""

    point: Float[Tensor, "P"]
    height: Float[Tensor, ""]
    precision: Float[Tensor, "P P"]

    def fall(self, points: Float[Tensor, "R P"]) -> Float[Tensor, "R"]:
        """The fall of the parabola of the peak to these points."""
        away = points - self.point
        return ((away @ self.precision) * away).sum(-1) / 2

    def explains(self, points: Float[Tensor, "R P"], heights: Float[Tensor, "R"]) -> Bool[Tensor, "R"]:
        """Which points are close, with heights on the parabola of the peak; steps from there lead to it."""
        fall, gap = self.fall(points), self.height - heights
        return (gap >= 0) & (fall <= CLOSE) & ((gap - fall).abs() <= LIKENESS * fall)


class Ascent:
    """A batch of restarts: see `fitting.search.Optimizer`.

    Arguments:
        density: the function, or R `Differentiable` ones.
        at: the starts.
        tol: a restart rests where its next step promises no greater rise; a run ends where all rest, if tol is not 0.
        n_even: the number of first coordinates whose sign does not matter; points then have positive ones.
        known: a peak that an earlier restart has reached; a restart that this peak explains moves there and rests.
    """

    inverse: Tensor
    slopes: Tensor
    point: Tensor
    stuck: Tensor
    density: Climbable
    tol: float
    n_even: int
    known: Peak | None

    stride = 8
    shorter, tries = 0.5, HALVINGS  # the factor of a step that did not rise, and how often it shortens

    def __init__(
        self,
        density: Climbable,
        at: Float[Tensor, "R P"],
        tol: float = 0.0,
        n_even: int = 0,
        known: Peak | None = None,
    ) -> None:
        self.density, self.point = density, at
        self.tol, self.n_even, self.known = tol, n_even, known
        self.heights: Tensor | None = None  # until the first step
        self.slopes = self.inverse = at.new_empty(0)
        self.stuck = at.new_zeros(len(at), dtype=torch.bool)  # no share of their step rises, so they rest

    @property
    def tables(self) -> dict[str, Any]:
        return {"y": self.point}

    @property
    def collapsed(self) -> None:
        """There are no states that could collapse."""

    @property
    def occupancy(self) -> None:
        """Steps of BFGS compute no posterior."""

    def select(self: Own, restarts: Tensor) -> Own:
        some = self._from(self.point[restarts])
        some.heights = None if self.heights is None else self.heights[restarts]
        some.stuck = self.stuck[restarts]
        for name in ("slopes", "inverse"):
            table = getattr(self, name)
            setattr(some, name, table[restarts] if len(table) else table)
        return some

    def extrapolated(self, before: dict[str, Any], by: Tensor) -> None:
        """None: steps of BFGS need no extrapolation."""

    def at(self: Own, tables: dict[str, Any]) -> Own:
        return self._from(tables["y"])

    def _from(self: Own, point: Float[Tensor, "R P"]) -> Own:
        """An ascent of the same function from other points."""
        there = copy(self)
        Ascent.__init__(there, self.density, point, self.tol, self.n_even, self.known)
        return there

    def state(self) -> dict[str, Any]:
        known = None if self.known is None else [self.known.point, self.known.height, self.known.precision]
        return {name: getattr(self, name) for name in _STATE} | {"known": known}

    def resumed(self: Own, state: dict[str, Any]) -> Own:
        there = self._from(state["point"])
        for name in _STATE:
            setattr(there, name, state[name])
        there.known = None if state["known"] is None else Peak(*state["known"])
        return there

    def height(self) -> Tensor:
        if self.heights is None:
            self._begin()
        assert self.heights is not None
        return self.heights

    def run(self, max_steps: int) -> Run:
        """Take `max_steps` steps; after Ctrl-C only complete steps count."""
        trace: list[Tensor] = []
        interrupted = False
        try:
            self.height()
            while len(trace) < max_steps:
                trace.append(self._step())
        except KeyboardInterrupt:
            if not trace:
                raise  # nothing has been reached yet
            interrupted = True
        return Run(torch.stack(trace), len(trace), False, interrupted=interrupted)

    def _begin(self) -> None:
        heights, self.slopes = self.density.climb(self.point)
        self.inverse = _unit(self.point) / self.slopes.norm(dim=-1).clamp_min(1.0)[:, None, None]
        if self.known is not None:
            near = self.known.fall(self.point) < FAR
            self.inverse = torch.where(near[:, None, None], torch.linalg.inv(self.known.precision), self.inverse)
        self.heights = heights

    def _step(self) -> Tensor:
        """The heights after one step."""
        before = self.height()
        move = (self.inverse @ self.slopes.unsqueeze(-1)).squeeze(-1)
        uphill = (move * self.slopes).sum(-1, keepdim=True) > 0
        move = torch.where(uphill, move, self.slopes)
        move = move * (FARTHEST / move.norm(dim=-1, keepdim=True).clamp_min(FARTHEST))
        promised = (move * self.slopes).sum(-1)
        rests = self.stuck | (promised <= (ROUNDING * before.abs()).clamp_min(self.tol))
        n_going = len(rests) - int(rests.sum()) if self.tol else len(rests)
        if not n_going:
            return before
        move, promised = torch.where(rests.unsqueeze(-1), 0.0, move), torch.where(rests, -torch.inf, promised)
        self._advance(move, promised, rests.int().argsort(stable=True)[:n_going])
        self._reflect()
        if self.known is not None:
            self._arrive(self.known)
        return self.height()

    def _advance(self, move: Tensor, promised: Tensor, going: Tensor) -> None:
        """Take steps in these directions, of lengths at which the function rises."""
        before = self.height()
        point, heights, slopes, size = self.point.clone(), before.clone(), self.slopes.clone(), 1.0
        for _ in range(self.tries):
            there = self.point[going] + size * move[going]
            height, slope = self._climb(there, going)
            risen = height >= before[going] + RISE * size * promised[going]
            for table, new in ((point, there), (heights, height), (slopes, slope)):
                here = risen.reshape(-1, *[1] * (new.ndim - 1))
                table[going] = torch.where(here, new, table[going])
            n_unresolved = len(going) - int(risen.sum())  # the only transfer from the device
            if not n_unresolved:
                break
            going, size = going[risen.int().argsort(stable=True)[:n_unresolved]], size * self.shorter
        else:
            self.stuck = self.stuck.index_fill(0, going, True)
        self._learn(point - self.point, self.slopes - slopes)
        self.point, self.heights, self.slopes = point, heights, slopes

    def _reflect(self) -> None:
        """Make the coordinates positive whose sign does not matter."""
        if self.n_even:
            signs = torch.ones_like(self.point)
            signs[:, : self.n_even] -= 2 * (self.point[:, : self.n_even] < 0).to(signs)
            self.point, self.slopes = self.point * signs, self.slopes * signs
            self.inverse = self.inverse * signs.unsqueeze(-1) * signs.unsqueeze(-2)

    def _arrive(self, known: Peak) -> None:
        """Move restarts to a known peak that explains them."""
        heights = self.height()
        there = known.explains(self.point, heights)
        self.heights = torch.where(there, known.height, heights)
        self.point = torch.where(there.unsqueeze(-1), known.point, self.point)
        self.slopes = torch.where(there.unsqueeze(-1), 0.0, self.slopes)

    def _climb(self, there: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        """Heights and slopes of some restarts at other points."""
        if not getattr(self.density, "together", False):
            return self.density.climb(there)
        heights, slopes = self.density.climb(self.point.index_copy(0, going, there))
        return heights[going], slopes[going]

    def _learn(self, step: Tensor, fall: Tensor) -> None:
        """Update the inverse curvature by a step."""
        common = (step * fall).sum(-1)
        seen = common > FLAT * step.norm(dim=-1) * fall.norm(dim=-1)
        rho = torch.where(seen, 1 / torch.where(seen, common, 1.0), 0.0)[:, None, None]
        step, fall = step.unsqueeze(-1), fall.unsqueeze(-1)
        projection = _unit(step.squeeze(-1)) - rho * step @ fall.mT
        self.inverse = projection @ self.inverse @ projection.mT + rho * step @ step.mT


def chunk_size(n_steps: int, n_numbers: int, device: torch.device) -> int:
    """Steps of a chunk whose tables, of so many numbers for each step, fit in the caches of a CPU; all steps on a GPU,
    where each kernel takes some time to begin."""
    return max(1, n_steps) if device.type != "cpu" else max(LEAST_STEPS, MAX_NUMBERS // max(1, n_numbers))


@contextmanager
def leaving(share: float) -> Iterator[None]:
    """Inside, `newton` also stops if a step promises no more than this share of the gain so far, or has risen as its
    parabola promised, up to this share. The next call continues from there."""
    token = share_left.set(share)
    try:
        yield
    finally:
        share_left.reset(token)


def shortened(step: Float[Tensor, "*n P"]) -> Float[Tensor, "*n P"]:
    """A step of Newton's method, shortened as a whole so that no number moves far: its direction stays."""
    return step * (LONGEST_STEP / step.abs().amax(-1, keepdim=True).clamp_min(LONGEST_STEP))


def inside(height: Float[Tensor, "*n"], logs: Float[Tensor, "*n P"]) -> Float[Tensor, "*n"]:
    """Heights, -inf where a logarithm or log odds is so large that coefficients grow without end."""
    return height.masked_fill((logs.abs() > FARTHEST_LOG).any(-1), -torch.inf)


def newton(
    objective: Callable[[Tensor], Tensor],
    step_from: Callable[[Tensor], tuple[Tensor, Tensor]],
    point: Float[Tensor, "*r P"],
    max_steps: int,
) -> Float[Tensor, "*r P"]:
    """The points after steps of Newton's method or of Fisher scoring, each halved until the objective rises.

    A point rests if its step promises no more than rounding, or if no share of the step raises the objective. See
    `leaving` for points that may rest earlier.

    Objectives are sums over all steps of a series, so float32 would not show a small rise: give float64.

    Arguments:
        step_from: the step from each point, and the gain that its slope promises.
    """
    height = begun = objective(point)
    share, going = share_left.get(), torch.ones_like(height, dtype=torch.bool)
    for _ in range(max_steps):
        step, gain = step_from(point)
        going = going & (gain > (NEWTON_ROUNDING * (1 + height.abs())).maximum(share * (height - begun)))
        waiting, before = going, height
        for _ in range(NEWTON_HALVINGS):
            if not bool(waiting.any()):
                break
            tried = objective(point + step)
            better = waiting & (tried > height)
            point, height = torch.where(better.unsqueeze(-1), point + step, point), torch.where(better, tried, height)
            waiting, step = waiting & ~better, step / 2
        going = going & ~waiting & ~((height - before - gain / 2).abs() < share * gain)
        if not bool(going.any()):
            break
    return point


def _unit(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
