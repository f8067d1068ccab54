r"""A linear Gaussian chain in plain torch: all sequences at once, every covariance as a factor.

With $P = Z Z^\top$, $F_t = C_t P C_t^\top + R_t$ and the gain $K_t = P C_t^\top F_t^{-1}$, a step is

$$Z_{t|t} = [(I - K_t C_t) Z_t, \; K_t R_t^{1/2}] \, \Theta, \qquad Z_{t+1} = [A_t Z_{t|t}, \; Q_t^{1/2}] \, \Theta'$$

with rotations that leave square factors. A diffuse start $s_1 = m_1 + B \delta + Z_1 \epsilon$ is carried along: means
are affine in $\delta$, kept as $U_t = [M_t, m_t]$, and so are innovations. The whitened innovations of all steps are
rows $[\tilde E, \tilde e]$ of a regression, whose solution is the posterior of $\delta$ under a flat prior (de Jong
1991, *The diffuse Kalman filter*). The evidence is the limit for $\delta \sim N(0, \kappa I)$ of
$\log p(x) + \frac q2 \log \kappa$ over q directions:

$$-\tfrac n2 \log 2 \pi - \sum_t \log |F_t^{1/2}| - \tfrac12 \log |\tilde E^\top \tilde E|
- \tfrac12 \min_\delta |\tilde E \delta + \tilde e|^2$$

The smoother goes back in whitened coordinates, $s_t = U_{t|t} [\delta, 1] + Z_{t|t} \epsilon_t$: moves and sights turn
standard normal numbers by $\Theta$, so that $\epsilon_{t-1} = J \epsilon_t + \dots$ with a J of norm at most one, and
nothing is divided by, though states may have no noise.

From `PARALLEL` steps on, a scan replaces the loop over steps in all but `sample`: see `parallel`. Tests compare the
kernels and the scan with the loop.

A missing feature counts as an observation of 0 of pure unit noise. After its end a sequence does not change.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import parallel
from .factors import compress, covariance_of
from .steps import Belief, Forward, Move, Seen, Sight, backward, initial, moves, predict, seen_of, sights, update
from .tables import OPEN, OVERFLOW, SINGULAR, Tables

LOG_2PI = math.log(2 * math.pi)
PARALLEL = 32  # steps from which on a scan pays; on one core and for four states it takes half the time at 64
ROUNDINGS = 64.0  # times the number of directions: the limit for a singular value of 0, relative to the greatest


class Start(NamedTuple):
    """The diffuse coordinates given some rows: mean and factor, directions left open, and the cost of the rest."""

    weights: Tensor  # [*b, q + 1], the mean and 1
    factor: Tensor  # [*b, q, q]
    left_open: Tensor  # [*b, q, q], a basis and columns of 0
    log_det: Tensor  # [*b] of the rows' triangular factor, where it has any rank


def scan_of(tables: Tables) -> parallel.Scan | None:
    """The filter in parallel, where that pays and can be."""
    return parallel.scan(tables) if tables.n_steps >= max(2, PARALLEL) else None


def _see_all(tables: Tables) -> tuple[Belief, Seen]:
    """Beliefs before all observations, and the remaining regression."""
    scan = scan_of(tables)
    if scan is None:
        return forward(tables)[:2]
    return scan.predicted, update(scan.predicted, sights(tables))


def forward(tables: Tables) -> Forward:
    """Filter step by step, given the diffuse coordinates."""
    sight, step, belief = sights(tables), moves(tables), initial(tables)
    predicted, seen, turns = [], [], []
    for t in range(tables.n_steps):
        predicted.append(belief)
        seen.append(update(belief, Sight(_at(sight.emission, t, 2), _at(sight.gap, t, 1), _at(sight.noise, t, 2))))
        if t + 1 < tables.n_steps:
            transition = Move(_at(step.transition, t, 2), _at(step.offset, t, 1), _at(step.noise, t, 2))
            belief, rotation = predict(seen[-1].belief, transition)
            turns.append(rotation)
    means, factor = (_stack(list(part), 2) for part in zip(*predicted, strict=True))
    after = Belief(*(_stack(list(part), 2) for part in zip(*(each.belief for each in seen), strict=True)))
    own_axes = (2, 2, 2, 0, 0)
    others = (_stack(list(part), n) for part, n in zip(list(zip(*seen, strict=True))[1:], own_axes, strict=True))
    none = factor.new_zeros(0, 2 * factor.shape[-1], factor.shape[-1])
    return Forward(Belief(means, factor), Seen(after, *others), _stack(turns, 2) if turns else none)


def _at(table: Tensor, t: int, n_axes: int) -> Tensor:
    return table.select(-n_axes - 1, t if table.shape[-n_axes - 1] > 1 else 0)


def _stack(tables: list[Tensor], n_axes: int) -> Tensor:
    """One axis more, of steps, before the last n."""
    return torch.stack(torch.broadcast_tensors(*tables), -n_axes - 1)


def evidence(tables: Tables) -> tuple[Tensor, Tensor]:
    """log p(x) [*b], and fault."""
    total, _, fault = evidence_and_start(tables, *_see_all(tables))
    return total, fault


def evidence_and_start(tables: Tables, predicted: Belief, seen: Seen) -> tuple[Tensor, Start, Tensor]:
    """log p(x), the diffuse coordinates given x, and fault."""
    q, shape = tables.n_diffuse, tables.batch_shape
    rows = seen.white.flatten(-3, -2)
    design, residual = torch.nn.functional.pad(rows[..., :q], (0, 0, 0, q)), rows[..., q:]
    total = -seen.log_det.double().sum(-1) - LOG_2PI / 2 * n_seen(tables).double().sum(-1)
    if not q:
        start, total = _no_start(rows), total - residual.square().double().sum((-2, -1)) / 2
        left_open = rows.new_zeros((), dtype=torch.bool)
    else:
        residual = torch.nn.functional.pad(residual, (0, 0, 0, q))
        rotation, triangle = torch.linalg.qr(design)
        reached = rotation.mT @ residual
        square = (residual - rotation @ reached).square().double().sum((-2, -1))
        log_det = triangle.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        weights = torch.linalg.solve_triangular(triangle, -reached, upper=True).squeeze(-1)
        weights = torch.nn.functional.pad(weights, (0, 1), value=1.0)
        unit = torch.eye(q, dtype=rows.dtype, device=rows.device)
        factor = torch.linalg.solve_triangular(triangle, unit, upper=True)
        start = Start(weights, factor, torch.zeros_like(factor), log_det)
        total, left_open = total - log_det.double() - square / 2, _open(triangle.detach()).any(-1)
    return total.to(rows.dtype).expand(shape), start, _fault(tables, predicted, seen, left_open.expand(shape))


@torch.no_grad()
def _fault(tables: Tables, predicted: Belief, seen: Seen, left_open: Tensor) -> Tensor:
    shape, n_steps = tables.batch_shape, tables.n_steps
    beyond = ~predicted.factor.square().sum(-1).isfinite().all(-1)
    wrong = (seen.singular | beyond).expand(*shape, n_steps)
    step = wrong.int().argmax(-1)
    kind = torch.where(beyond.expand(*shape, n_steps).gather(-1, step.unsqueeze(-1)).squeeze(-1), OVERFLOW, SINGULAR)
    last = n_steps - 1 if tables.lengths is None else tables.lengths - 1
    late = torch.where(left_open, 4 * last + OPEN, -1)
    return torch.where(wrong.any(-1), 4 * step + kind, late)


def _open(triangle: Tensor) -> Tensor:
    """Which singular values are 0, to rounding."""
    values = torch.linalg.svdvals(torch.where(triangle.isfinite(), triangle, 0.0))  # without density all is refused
    least = ROUNDINGS * triangle.shape[-1] * torch.finfo(triangle.dtype).eps
    return values <= least * values[..., :1]


def n_seen(tables: Tables) -> Tensor:
    """How many features are seen, [*b, T]."""
    return seen_of(tables).sum(-1).to(tables.x)


@torch.no_grad()
def filter(tables: Tables) -> tuple[Tensor, ...]:
    """log p(x), its increments, means and covariances after and before each observation, diffuse parts, and fault."""
    predicted, seen = _see_all(tables)
    total, _, fault = evidence_and_start(tables, predicted, seen)
    starts, increment = _starts(tables, seen)
    before, after = (Start(*(_steps(part, s, n) for part, n in zip(starts, (1, 2, 2, 0), strict=True))) for s in (0, 1))
    shape, results = tables.batch_shape, []
    for belief, start in ((seen.belief, after), (predicted, before)):
        mean, factor = moments(belief, start)
        results += [_inside(tables, mean.expand(*shape, *mean.shape[-2:]), 2), _shared(tables, factor)]
    opens = [
        _shared(tables, belief.means[..., :-1] @ start.left_open)[..., : None if tables.n_diffuse else 0, :, :]
        for belief, start in ((seen.belief, after), (predicted, before))
    ]
    return total, _inside(tables, increment.expand(*shape, tables.n_steps), 1), *results, *opens, fault


def _steps(table: Tensor, first: int, n_axes: int) -> Tensor:
    """T of the T + 1 entries."""
    axis = table.dim() - n_axes - 1
    return table.narrow(axis, first, table.shape[axis] - 1)


def _shared(tables: Tables, factor: Tensor) -> Tensor:
    return _inside(tables, of_sets(tables, covariance_of(factor)), 3)


def of_sets(tables: Tables, table: Tensor) -> Tensor:
    """Covariances [*b, S, L, L] with their own batch axes; batch axes that only means have would only add copies."""
    shape, event_axes = tables.shared_shape, table.shape[-3:]
    axes = table.dim() - 3 - len(shape)
    if axes > 0:
        if 0 in table.shape[:axes]:
            return table.new_zeros(*shape, *event_axes)
        table = table[(0,) * axes]
    for axis, size in enumerate(shape[max(0, -axes) :]):
        table = table.narrow(axis, 0, min(size, table.shape[axis]))
    if 0 in table.shape and 0 not in (*shape, *event_axes):  # of no sequence, which leaves nothing of them
        return table.new_zeros(*shape, *event_axes)
    return table.expand(*shape, *event_axes)


def _inside(tables: Tables, table: Tensor, n_own: int) -> Tensor:
    """A table whose own axes begin with that of the steps, or of moves to them; 0 beyond the end."""
    active = tables.active
    if active is None:
        return table
    n_steps = table.shape[table.dim() - n_own]
    return torch.where(active[..., tables.n_steps - n_steps :][(..., *[None] * (n_own - 1))], table, 0.0)


def _starts(tables: Tables, seen: Seen) -> tuple[Start, Tensor]:
    """The diffuse coordinates before and after each step, T + 1 of them, and log p(x_t | x_1..t-1) [*b, T]."""
    q, white = tables.n_diffuse, seen.white
    constant = seen.log_det + LOG_2PI / 2 * n_seen(tables)
    if not q:
        start = Start(*(table.expand(tables.n_steps + 1, *table.shape) for table in _no_start(white)))
        return start, -(white.square().sum((-2, -1)) / 2 + constant)
    kept = parallel.prefix_rows(white)  # [*b, T + 1, q, q + 1]
    starts, unexplained = _start(kept)
    rows = torch.cat([kept[..., :-1, :, :], white], -2)
    rotation, _ = torch.linalg.qr(rows[..., :q])
    rest = (rows - rotation @ (rotation.mT @ rows))[..., q].square().sum(-1)
    # rows that leave coordinates open explain nothing of them: the residual that they hold counts at once
    cost = starts.log_det.diff() + (rest + unexplained.diff()) / 2
    return starts, -(cost + constant)


def _no_start(like: Tensor) -> Start:
    return Start(like.new_ones(1), like.new_zeros(0, 0), like.new_zeros(0, 0), like.new_zeros(()))


def _start(rows: Tensor) -> tuple[Start, Tensor]:
    """From rows [*b, q, q + 1], of any rank; and the square of the part that no coordinates explain."""
    q = rows.shape[-2]
    values_left, values, right = torch.linalg.svd(rows[..., :q])
    free = _open(rows[..., :q])
    share = (values_left.mT @ rows[..., q:]).squeeze(-1)
    safe = torch.where(free, 1.0, values)
    factor = right.mT * torch.where(free, 0.0, 1 / safe).unsqueeze(-2)
    mean = -(factor @ share.unsqueeze(-1)).squeeze(-1)
    weights = torch.nn.functional.pad(mean, (0, 1), value=1.0)
    left_open = right.mT * free.unsqueeze(-2)
    return Start(weights, factor, left_open, safe.log().sum(-1)), torch.where(free, share, 0.0).square().sum(-1)


def moments(belief: Belief, start: Start) -> tuple[Tensor, Tensor]:
    """Mean [*b, L] and factor [*b, L, L] over the diffuse coordinates as well."""
    means, factor = belief
    mean = (means @ start.weights.unsqueeze(-1)).squeeze(-1)
    if not start.factor.shape[-1]:
        return mean, factor
    return mean, compress(factor, means[..., :-1] @ start.factor)


def _by_step(start: Start) -> Start:
    """The same for all steps."""
    return Start(start.weights.unsqueeze(-2), start.factor.unsqueeze(-3), start.left_open.unsqueeze(-3), start.log_det)


@torch.no_grad()
def smooth(tables: Tables) -> tuple[Tensor, ...]:
    """log p(x), means [*b, T, L], covariances, covariances of neighbours [*b, T-1, L, L], and fault."""
    scan = scan_of(tables)
    if scan is None:
        forward_pass = forward(tables)
        predicted, seen, (belief, cross) = *forward_pass[:2], _smooth_back(forward_pass)
    else:
        predicted, seen = scan.predicted, update(scan.predicted, sights(tables))
        vector, information = parallel.future(scan.steps)
        belief = parallel.smooth(seen.belief, vector, information)
        cross = parallel.neighbours(belief, scan.steps, information)
    total, start, fault = evidence_and_start(tables, predicted, seen)
    start = _by_step(start)
    mean, factor = moments(belief, start)
    if tables.n_diffuse:
        columns = belief.means[..., :-1] @ start.factor
        cross = cross + columns[..., 1:, :, :] @ columns[..., :-1, :, :].mT
    mean = _inside(tables, mean.expand(*tables.batch_shape, *mean.shape[-2:]), 2)
    cross = _inside(tables, of_sets(tables, cross), 3)
    return total, mean, _shared(tables, factor), cross, fault


def _smooth_back(forward_pass: Forward) -> tuple[Belief, Tensor]:
    """Step by step: beliefs given all observations and the diffuse coordinates, and the covariances of neighbours."""
    back, root = backward(forward_pass), forward_pass.seen.belief.factor
    n, size = back.gain.shape[-3:-1]
    spread = torch.eye(size, dtype=root.dtype, device=root.device)
    drift = back.drift.new_zeros(size, back.drift.shape[-1])
    beliefs = [(drift, spread)]
    for t in reversed(range(n)):
        gain, step_drift, noise = (part[..., t, :, :] for part in back)
        drift, spread = gain @ drift + step_drift, compress(gain @ spread, noise)
        beliefs.append((drift, spread))
    white, spread = (_stack([pair[k] for pair in reversed(beliefs)], 2) for k in (0, 1))
    belief = Belief(forward_pass.seen.belief.means + root @ white, root @ spread)
    cross = (belief.factor @ spread.mT)[..., 1:, :, :] @ back.gain.mT @ root[..., :-1, :, :].mT
    return belief, cross


@torch.no_grad()
def sample(tables: Tables, noise: Tensor, diffuse_noise: Tensor) -> tuple[Tensor, Tensor]:
    """Paths [n, *b, T, L], backward in time, from normal numbers [n, *b, T, L] and [n, *b, q]; and fault."""
    forward_pass = forward(tables)
    _, start, fault = evidence_and_start(tables, *forward_pass[:2])
    weights = start.weights.expand(*diffuse_noise.shape[:-1], -1)
    if tables.n_diffuse:
        drawn = (start.factor @ diffuse_noise.unsqueeze(-1)).squeeze(-1)
        weights = weights + torch.nn.functional.pad(drawn, (0, 1))
    weights, numbers, back = weights[..., None, :, None], noise.unsqueeze(-1), backward(forward_pass)
    drift = back.drift @ weights + back.noise @ numbers[..., :-1, :, :]
    white = [numbers[..., -1, :, :]]
    for t in reversed(range(tables.n_steps - 1)):
        white.append(back.gain[..., t, :, :] @ white[-1] + drift[..., t, :, :])
    means, factor = forward_pass.seen.belief
    path = means @ weights + factor @ torch.stack(white[::-1], -3)
    return _inside(tables, path.squeeze(-1), 2), fault
