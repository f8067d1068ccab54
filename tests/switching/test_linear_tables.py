"""The matrices of structures: each written out, those of sums, and their derivatives."""

import torch
from samplehold import Autoregression, Cycle, LocalLevel, LocalLinearTrend, Regression, Seasonal
from samplehold.switching.linear.contract import TransitionParameters
from samplehold.switching.linear.structure import Structure
from torch.testing import assert_close

FLOAT = torch.float64
TERMS = (
    LocalLinearTrend(),
    Seasonal(4),
    Seasonal(6, trigonometric=True, stochastic=False),
    Autoregression(2),
    Cycle(damped=True),
    Regression(2, varying=True),
)
EXACT = {"rtol": 1e-14, "atol": 1e-15}


def values_of(structure: Structure, n: int = 3) -> dict[str, torch.Tensor]:
    """Numbers for which autoregressions and cycles are stationary."""
    draws = torch.Generator().manual_seed(0)
    names = ["sigma2.irregular", *structure.parameters]
    return {name: 0.05 + 0.4 * torch.rand(n, generator=draws, dtype=FLOAT) for name in names}


def square(moves: TransitionParameters, *lead: int) -> list[torch.Tensor]:
    """Transition, noise and start with the same leading axes."""
    start = moves.initial_covariance
    assert start is not None
    return [table.expand(*lead, *table.shape[-2:]) for table in (moves.transition, moves.state_noise, start)]


def test_matrices_of_a_sum_are_those_of_its_terms_along_the_diagonal() -> None:
    whole = sum(TERMS[1:], start=TERMS[0])
    values = values_of(whole)
    parts = [square(term.moves(values), 3) for term in TERMS]
    for kind, table in enumerate(square(whole.moves(values), 3)):
        expected = torch.stack([torch.block_diag(*[part[kind][r] for part in parts]) for r in range(3)])
        assert_close(table, expected, rtol=0.0, atol=0.0)


def test_parameters_may_lack_axes_that_others_have() -> None:
    whole = LocalLevel() + Autoregression(1)
    values = values_of(whole)
    common = values | {"sigma2.level": values["sigma2.level"][0]}
    usual = values | {"sigma2.level": values["sigma2.level"][:1].expand(3)}
    for found, expected in zip(square(whole.moves(common), 3), square(whole.moves(usual), 3), strict=True):
        assert_close(found, expected, rtol=0.0, atol=0.0)


def test_matrices_of_constants_lack_the_axes_of_parameters() -> None:
    whole = LocalLevel() + Cycle(12) + Regression(1)
    moves = whole.moves(values_of(whole))
    assert moves.transition.shape == (4, 4)
    assert moves.state_noise.shape == (3, 4, 4)


def test_autoregressions_start_from_their_stationary_distribution() -> None:
    for order in range(1, 5):
        values = values_of(Autoregression(order))
        values |= {name: value / order for name, value in values.items() if name.startswith("ar")}
        transition, noise, start = square(Autoregression(order).moves(values), 3)
        assert_close(transition[:, 0], torch.stack([values[f"ar.L{lag + 1}"] for lag in range(order)], -1), **EXACT)
        assert_close(transition[:, 1:], torch.eye(order, dtype=FLOAT)[:-1].expand(3, -1, -1), **EXACT)
        assert_close(noise.sum((-1, -2)), values["sigma2.ar"], **EXACT)
        assert_close(noise[:, 0, 0], values["sigma2.ar"], **EXACT)
        assert_close(transition @ start @ transition.mT + noise, start, rtol=1e-12, atol=1e-14)


def test_cycles_of_a_fixed_period_turn_as_those_with_this_frequency() -> None:
    for damped in (False, True):
        fixed, free = Cycle(12, damped=damped), Cycle((6, 48), damped=damped)
        values = values_of(free) | {"frequency.cycle": torch.full((3,), 2 * torch.pi / 12, dtype=FLOAT)}
        rest = {name: value for name, value in values.items() if name != "frequency.cycle"}
        found = square(fixed.moves(rest), 3)
        for table, expected in zip(found, square(free.moves(values), 3), strict=True):
            assert_close(table, expected, **EXACT)
        factor = rest["damping.cycle"] if damped else torch.ones(3, dtype=FLOAT)
        turn = found[0]
        assert_close(turn @ turn.mT, factor.square()[:, None, None] * torch.eye(2, dtype=FLOAT), **EXACT)
        if damped:
            assert_close(turn @ found[2] @ turn.mT + found[1], found[2], **EXACT)


def test_matrices_have_derivatives_backward_forward_and_of_second_order() -> None:
    whole = LocalLevel() + Autoregression(1) + Cycle(damped=True)
    names, numbers = zip(*values_of(whole, 2).items(), strict=True)
    numbers = tuple(number.requires_grad_() for number in numbers)

    def tables(*numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(square(whole.moves(dict(zip(names, numbers, strict=True))), 2))

    assert torch.autograd.gradcheck(tables, numbers, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(tables, numbers)
    mapped = torch.func.vmap(tables)(*[number.unsqueeze(-1).expand(2, 2) for number in numbers])
    for found, expected in zip(mapped, tables(*numbers), strict=True):
        assert_close(found[:, 0], expected, rtol=0.0, atol=0.0)
