"""The evidence of one series for searches: its kernel against the chain that keeps factors of covariances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samplehold import kernels
from samplehold.inference.chains.one_series.op import evidence
from torch import Tensor
from torch.testing import assert_close

FLOAT = torch.float64


def both(x: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
    """By the kernel, and by the chain."""
    with kernels("native"):
        fast = evidence(x, *tables)
    with kernels("plain"):
        return fast, evidence(x, *tables)


def trend_and_wave(n: int, seed: int = 0) -> list[Tensor]:
    """A level, its drift, two turning entries, and a stationary one, under n parameters."""
    draws = torch.rand(n, 8, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))
    angle, weight, zero = 0.3 + draws[:, 0], 0.9 * draws[:, 1], torch.zeros(n, dtype=FLOAT)
    turn = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], -1).reshape(n, 2, 2)
    transition = torch.zeros(n, 5, 5, dtype=FLOAT)
    transition[:, :2, :2] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    transition[:, 2:4, 2:4], transition[:, 4, 4] = turn, weight
    noise = torch.stack([draws[:, 2], zero, draws[:, 3], draws[:, 3], draws[:, 4]], -1)
    start = torch.zeros(n, 5, 5, dtype=FLOAT)
    start[:, 4, 4] = draws[:, 4] / (1 - weight.square())
    emission = torch.tensor([[[1.0, 0.0, 1.0, 0.0, 1.0]]], dtype=FLOAT)
    diffuse = torch.tensor([True, True, True, True, False])
    return [transition, noise, emission, draws[:, 5], start, diffuse]


def walks(n: int, n_steps: int) -> Tensor:
    return torch.randn(n, n_steps, dtype=FLOAT, generator=torch.Generator().manual_seed(1)).cumsum(1)


@pytest.mark.parametrize("n_series", [1, 5])
@pytest.mark.parametrize("n_steps", [6, 150])
def test_the_kernel_is_the_chain(n_series: int, n_steps: int) -> None:
    fast, exact = both(walks(n_series, n_steps), *trend_and_wave(7))
    assert fast.shape == (7, n_series)
    assert_close(fast, exact, rtol=1e-10, atol=1e-9)


def spread_of_starts(x: Tensor, turn: Tensor, emission: Tensor, n_diffuse: int) -> Tensor:
    """The condition number of the diffuse entries given the first observations of each series, `[R, B]`."""
    found = torch.ones(len(turn), len(x), dtype=FLOAT)
    for b, seen in enumerate(~x.isnan()):
        steps = seen.nonzero().flatten()[:n_diffuse].tolist()
        if len(steps) == n_diffuse > 0:
            of_step = [emission[b % len(emission), t % emission.shape[1]] for t in steps]
            rows = [e @ turn.matrix_power(t)[..., :n_diffuse] for e, t in zip(of_step, steps, strict=True)]
            found[:, b] = torch.linalg.cond(torch.stack(rows, -2))
    return found


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 17),
    n_series=st.integers(1, 4),
    n_steps=st.integers(1, 30),
    size=st.integers(1, 6),
    n_diffuse=st.integers(0, 3),
    missing=st.sampled_from([0.0, 0.2]),
    by_step=st.booleans(),
)
def test_so_it_is_of_any_size(seed, n, n_series, n_steps, size, n_diffuse, missing, by_step) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draws(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=FLOAT, generator=generator)

    turn, half = draws(n, size, size), draws(n, size, size)
    turn = turn / torch.linalg.matrix_norm(turn, 2)[:, None, None]
    turn = torch.where(torch.rand(size, size, generator=generator) < 0.3, 0.0, turn)
    x, diffuse = draws(n_series, n_steps), torch.arange(size) < n_diffuse
    x[torch.rand(x.shape, generator=generator) < missing] = math.nan
    start = (half @ half.mT) * ~diffuse * ~diffuse[:, None]
    emission = draws(n_series if by_step else 1, n_steps if by_step else 1, size)
    tables = turn, draws(n, size).square(), emission, draws(n).square() + 0.1, start, diffuse
    fast, exact = both(x, *tables)
    known = fast.isfinite() & exact.isfinite()
    assert n_diffuse or bool(known.all())
    # where it is larger, a kernel without factors loses digits
    known &= spread_of_starts(x, turn, emission, n_diffuse) < 1e4
    assert_close(fast[known], exact[known], rtol=1e-6 if n_diffuse else 1e-10, atol=1e-6 if n_diffuse else 1e-9)


def test_missing_steps_may_come_first_after_covariances_have_settled_and_last() -> None:
    x = walks(4, 200)
    x[0, :3], x[1, 120:124], x[1, 150], x[2, 160:] = math.nan, math.nan, math.nan, math.nan
    fast, exact = both(x, *trend_and_wave(3))
    assert_close(fast, exact, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_emissions_may_vary_with_the_step(shared: bool) -> None:
    x, tables = walks(3, 60), trend_and_wave(4)
    rows = torch.randn(1 if shared else 3, 60, 1, dtype=FLOAT, generator=torch.Generator().manual_seed(2))
    tables[2] = tables[2] + torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0], dtype=FLOAT) * rows
    fast, exact = both(x, *tables)
    assert_close(fast, exact, rtol=1e-10, atol=1e-9)


def test_observations_may_have_no_noise_of_their_own() -> None:
    tables = trend_and_wave(3)
    tables[3] = torch.zeros(3, dtype=FLOAT)
    fast, exact = both(walks(2, 80), *tables)
    assert_close(fast, exact, rtol=1e-10, atol=1e-9)


def test_an_impossible_series_and_an_open_start_have_no_evidence() -> None:
    one, zero, open_ = torch.ones(1, 1, 1, dtype=FLOAT), torch.zeros(1, dtype=FLOAT), torch.tensor([True])
    impossible = both(torch.tensor([[1.0, 2.0, 4.0]], dtype=FLOAT), one, zero[:, None], one, zero, 0 * one, open_)
    unseen = both(torch.full((1, 3), math.nan, dtype=FLOAT), one, one[0], one, one[0, 0], 0 * one, open_)
    for fast, exact in (impossible, unseen):
        assert fast.tolist() == exact.tolist() == [[-math.inf]]
