"""Copy chains by the kernels for GPUs: every operator equals its textbook twin, however far apart weights are."""

import math

import pytest
import torch
from examples import slow
from oracles import naive_copy as naive
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.chains.copy import op, plain
from torch import Tensor
from torch.testing import assert_close

from .test_copy_chain import NONE, TIGHT, random_case

pytestmark = pytest.mark.hardware("Triton interprets or compiles")

NAMES = "log_normalizer", "filter", "smooth", "marginals", "viterbi", "sample"


def random_tables(n, steps, states, width, initial=True, size=2.0, **options):
    tables = random_case(n, steps, states, width, initial, size=size, **options).tables
    tables[-1][:1] = steps
    return tables


def double(tables):
    return tuple(table if table is None or not table.is_floating_point() else table.double() for table in tables)


def by_kernel(name: str, *given) -> list[Tensor]:
    with gpu_kernels():
        return list((op.evidence if name == "log_normalizer" else getattr(op, name))(*given))


def arguments(name: str, tables, draws: int = 3):
    size = draws, *tables[1].shape[:2], 2
    uniform = torch.rand(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (*tables, uniform) if name == "sample" else tables


def check(name: str, tables, twin, **bounds: float) -> None:
    """Results are those of the twin in float64, where no observation is impossible, which both must find alike."""
    *found, failed = by_kernel(name, *arguments(name, tables))
    *expected, failed_there = getattr(twin, name)(*arguments(name, double(tables)))
    if name == "marginals" and tables[0] is None:
        found.pop(), expected.pop()
    assert torch.equal(failed, failed_there)
    fine = (slice(None), failed < 0) if name == "sample" else failed < 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == (
            tables[1].dtype if theirs.is_floating_point() and theirs is not expected[0] else ours.dtype
        )
        assert_close(ours[fine].double(), theirs[fine].double(), **bounds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("n", "steps", "states", "width", "initial"),
    [
        (2, 2, 2, 2, True),
        slow(9, 3, 3, 3, True),
        slow(2, 5, 1, 1, False),
        slow(3, 4, 5, 1, True),
        slow(1, 3, 33, 33, False),
    ],
)
def test_kernels_equal_their_textbook_twins(name, n, steps, states, width, initial):
    check(name, random_tables(n, steps, states, width, initial), naive, **TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_impossible_events_are_exact_zeros_and_impossible_observations_are_found(name):
    tables = random_tables(6, 4, 2, 2, False, impossible=0.35)
    for table in tables[1:3]:
        table[0, 2], table[1, :, 0] = NONE, 0.0
    check(name, tables, plain, **TIGHT)
    assert by_kernel("log_normalizer", *tables)[-1][:2].sign().tolist() == [1, -1]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_float32_tables_lose_no_more_than_their_own_rounding(name):
    check(name, random_tables(3, 6, 3, 3, dtype=torch.float32), plain, rtol=3e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [300.0, 1e5, 1e30, 1e285])
def test_weights_any_distance_apart_lose_no_more_than_their_rounding(size, dtype):
    size = min(size, 1e34) if dtype == torch.float32 else size
    tables = random_tables(8, 4, 3, 3, size=size, dtype=dtype, seed=5)
    value, state, redraw, _ = by_kernel("smooth", *tables)
    expected = plain.smooth(*double(tables))
    eps = torch.finfo(dtype).eps
    assert_close(value.double(), expected[0], rtol=16 * eps, atol=0)
    for ours, theirs in zip((state, redraw), expected[1:], strict=False):
        assert_close(ours.double(), theirs, rtol=0, atol=1e-12 + (4e3 * eps if size < 1e6 else 0))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_state_written_off_by_thousands_of_nats_comes_back(dtype):
    # The state never changes: evidence of 3000 nats against it in 6 steps, then 3005 for it in 2.
    down, up = torch.tensor([0.0, -500.0], dtype=dtype), torch.tensor([-1502.5, 0.0], dtype=dtype)
    held = torch.cat([down.expand(6, 2), up.expand(2, 2)])[None]
    tables = torch.zeros(1, 2, dtype=dtype), torch.full((1, 8, 2), NONE, dtype=dtype), held, torch.tensor([8])
    odds = math.exp(-5)
    expected = torch.tensor([odds / (1 + odds), 1 / (1 + odds)], dtype=dtype).expand(1, 8, 2)
    tight = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 0.0}
    assert_close(by_kernel("smooth", *tables)[1], expected, **tight)
    assert_close(by_kernel("marginals", *tables)[2], expected, **tight)
    assert_close(by_kernel("filter", *tables)[1][:, -1], expected[:, -1], **tight)
    assert by_kernel("viterbi", *tables)[0].tolist() == [[1] * 8]
    path, redraw, _ = by_kernel("sample", *arguments("sample", tables, 40))
    assert not redraw.any()
    assert (path == path[..., :1]).all()


@pytest.mark.slow
def test_small_shares_are_as_exact_as_large_ones():
    tables = random_tables(4, 5, 3, 1, seed=6)
    tables[1][:, 1:4] -= 600.0  # so are the weights of redraws
    _, fresh, held, initial, _ = by_kernel("marginals", *tables)
    expected = plain.marginals(*tables)[1:4]
    assert float(expected[0][0, 1:4].max()) < 1e-200
    for ours, theirs in zip((fresh, held, initial), expected, strict=True):
        assert_close(ours, theirs, rtol=1e-11, atol=1e-300)


@pytest.mark.slow
@pytest.mark.parametrize(("which", "bad"), [(1, math.nan), (2, math.inf)])
def test_bad_numbers_are_found_where_they_stand_and_not_beyond_the_end(which, bad):
    tables = random_tables(3, 4, 2, 2)
    tables[3][:] = torch.tensor([4, 3, 2])
    tables[which][0, 2, 1] = tables[which][1, 3, 0] = tables[which][2, 1, 1] = bad
    for name in NAMES:
        assert by_kernel(name, *arguments(name, tables))[-1].tolist() == [2, -1, 1]


@pytest.mark.slow
def test_what_log_held_says_of_a_first_step_that_redraws_is_ignored():
    _, fresh, held, lengths = random_tables(2, 3, 2, 2)
    held[0, 0, 0], held[1, 0, 1] = math.nan, math.inf
    for name in NAMES:
        check(name, (None, fresh, held, lengths), plain, **TIGHT)


@pytest.mark.slow
def test_nothing_is_found_beyond_the_end_of_a_sequence():
    tables = random_tables(3, 5, 2, 2)
    tables[3][:] = torch.tensor([2, 1, 4])
    outside = torch.arange(5) >= tables[3].unsqueeze(-1)
    for table in tables[1:3]:
        table[outside] = math.nan
    for name in ("filter", "smooth", "marginals"):
        for table in by_kernel(name, *tables)[:-1]:
            if table.shape[:2] == outside.shape:
                assert not table[outside].any()
    path, redraw, *_ = by_kernel("viterbi", *tables)
    assert torch.equal(path < 0, outside)
    assert not redraw[outside].any()


def test_of_equally_good_paths_one_holds_and_else_is_in_the_least_state():
    zeros = torch.zeros(1, 3, 3)
    path, redraw, value, _ = by_kernel("viterbi", None, zeros, zeros - 0.5, torch.tensor([3]))
    assert path.tolist() == [[0, 0, 0]]
    assert redraw.tolist() == [[True, True, True]]
    _, redraw, value, _ = by_kernel("viterbi", None, zeros, zeros, torch.tensor([3]))
    assert redraw.tolist() == [[True, False, False]]
    assert value.item() == 0


@pytest.mark.slow
def test_the_gradient_of_the_log_normalizer_is_that_of_the_twin():
    tables = random_tables(3, 4, 3, 1)
    leaves = [table.requires_grad_() for table in tables[:3] if table is not None]
    with gpu_kernels():
        found = torch.autograd.grad(op.log_normalizer(*tables)[0].cos().sum(), leaves)
    for ours, theirs in zip(
        found, torch.autograd.grad(naive.log_normalizer(*tables)[0].cos().sum(), leaves), strict=True
    ):
        assert_close(ours, theirs, **TIGHT)


def test_no_sequences_give_empty_results():
    for name in NAMES:
        tables = random_tables(0, 3, 2, 2)
        results = by_kernel(name, *arguments(name, tables))
        for ours, theirs in zip(results, getattr(plain, name)(*arguments(name, tables)), strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_more_than_a_few_registers():
    with gpu_kernels() as launches:
        op.marginals(*random_tables(1, 1, 8, 8))
        op.viterbi(*random_tables(1, 1, 8, 8, dtype=torch.float32))
        op.sample(*arguments("sample", random_tables(1, 1, 8, 1, False, dtype=torch.float32), 100))
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] == 0, kernel
        assert kernel["stack"] <= 32, kernel  # of registers that are given up so that more programs run at once
