"""Steps of Newton's method from many starts at once."""

from collections.abc import Callable

import torch
from samplehold.switching.ascent import leaving, newton
from samplehold.switching.newton import NewtonAscent
from torch import Tensor
from torch.testing import assert_close


class Function:
    """A function with its derivatives by autograd, which counts the points at which it is differentiated."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function, self.n_points = function, 0

    def at(self, flat: Tensor) -> Tensor:
        return self.function(flat)

    def climb(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return self.curved(flat)[:2]

    def curved(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.n_points += len(flat)
        one = lambda point: self.function(point[None])[0]
        slopes = [torch.autograd.functional.jacobian(one, point) for point in flat]
        tables = [torch.autograd.functional.hessian(one, point) for point in flat]
        return self.at(flat), torch.stack(slopes), torch.stack(tables)


def hills(flat: Tensor) -> Tensor:
    """Maxima of 0 at (1, 0) and (-1, 0), and a saddle at the origin."""
    return -(flat[:, 0].square() - 1).square() - flat[:, 1].square()


def two(flat: Tensor) -> Tensor:
    """Maxima of about 0 at (0, 0) and of about 1 at (6, 0)."""
    high = -2 * (flat[:, 0] - 6).square() - flat[:, 1].square() + 1
    return torch.logaddexp(-2 * flat[:, 0].square() - flat[:, 1].square(), high)


def test_steps_leave_a_saddle_for_a_maximum():
    starts = torch.tensor([[1e-3, 0.5], [0.3, -2.0], [-2e-3, 0.1]], dtype=torch.float64)
    ascent = NewtonAscent(Function(hills), starts, 1e-10, n_even=1)
    run = ascent.run(12)
    assert bool((run.elbo.diff(dim=0) >= 0).all())
    assert_close(ascent.point, torch.tensor([[1.0, 0.0]]).double().expand(3, 2), rtol=1e-5, atol=1e-5)


def test_a_restart_that_a_peak_of_this_batch_explains_ends_there_and_no_other():
    function = Function(two)
    starts = torch.tensor([[0.1, 0.2], [0.3, 2.0], [4.5, 2.5]], dtype=torch.float64)
    ascent = NewtonAscent(function, starts, 1e-6)
    ascent.run(1)
    assert ascent.known is not None
    assert torch.equal(ascent.point[1], ascent.known.point)
    ascent.run(8)
    assert_close(ascent.point[2], torch.tensor([6.0, 0.0]).double(), rtol=1e-4, atol=1e-4)
    assert torch.equal(ascent.point[2], ascent.known.point)


def test_a_restart_that_rests_is_not_differentiated_again():
    function = Function(hills)
    ascent = NewtonAscent(function, torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=torch.float64), 1e-9)
    ascent.run(1)
    assert function.n_points == 3
    ascent.run(20)
    before = function.n_points
    ascent.run(20)
    assert function.n_points == before


def test_where_no_step_rises_the_points_stay():
    class Wrong(Function):
        def curved(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            heights, slopes, tables = super().curved(flat)
            return heights, -slopes, tables

    starts = torch.tensor([[0.8, 0.2]], dtype=torch.float64)
    ascent = NewtonAscent(Wrong(hills), starts.clone(), 1e-9)
    ascent.run(3)
    assert torch.equal(ascent.point, starts)


def test_a_step_of_an_m_step_is_the_last_if_it_rises_as_its_parabola_promised():
    n_steps = []

    def step_from(point):
        n_steps.append(len(point))
        return 1 - point, 2 * (1 - point).square().sum(-1)

    start = torch.tensor([[0.0, 3.0], [0.5, 1.0]]).double()
    for n_expected, share in ((2, 0.0), (1, 0.1)):  # without a share a second step shows that nothing is left
        n_steps.clear()
        with leaving(share):
            end = newton(lambda point: -(1 - point).square().sum(-1), step_from, start, 5)
        assert_close(end, torch.ones_like(start), rtol=0, atol=0)
        assert len(n_steps) == n_expected
