"""Linear Gaussian chains by the kernels for GPUs: values and scores are those of the plain form."""

from functools import partial

import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from oracles.linear_chains import FORMS, NAMES, OFFSETS, gradients, tables_of, widened
from samplehold.inference.chains.linear_gaussian import op, plain
from samplehold.inference.chains.linear_gaussian.parameters import read
from samplehold.inference.chains.linear_gaussian.tables import OVERFLOW, SINGULAR, Tables
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.hardware("Triton interprets or compiles")

ONE = {"batch": (1,), "features": 1}
KINDS = {
    "one number": ONE | {"steps": 1, "states": 1},
    "restarts of shared covariances": {"steps": 3, "features": 1, "batch": (2, 2), "shared": NAMES},
    "missing and ragged": {"steps": 3, "missing": 0.4, "ragged": True},
    "all by step": ONE | {"steps": 3, "varying": NAMES + OFFSETS, "rank": 1},
    "moves without noise": ONE | {"steps": 3, "rank": 0},
    "more features than states": {"batch": (1,), "steps": 2, "states": 3, "features": 5},
}


tables = partial(tables_of, 7)


def scalar(steps: int, transition=0.5, state=1.0, emission=1.0, sight=1.0, initial=1.0, batch=()) -> Tables:
    """Of a chain of one state and feature."""
    x = torch.randn(*batch, steps, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    square = lambda number: torch.full((1, 1), number, dtype=torch.float64)
    none = dict.fromkeys(("initial_mean", "diffuse", "transition_offset", "emission_offset", "lengths"))
    numbers = {"transition": transition, "state_noise": state, "emission": emission, "observation_noise": sight}
    return read(x, none | {k: square(v) for k, v in numbers.items()} | {"initial_covariance": square(initial)}).tables


def agree(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], rtol: float = 1e-10) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(1e-300, float(theirs.detach().abs().amax())) if theirs.numel() else 1.0
        assert ours.dtype == theirs.dtype
        assert_close(ours, theirs.expand_as(ours), rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("kind", [next(iter(KINDS)), *map(slow, list(KINDS)[1:])])
def test_kernels_equal_the_plain_form(kind):
    given = tables(**KINDS[kind])
    with gpu_kernels():
        found = [operator(*given) for operator, _ in FORMS]
    for ours, (_, twin) in zip(found, FORMS, strict=True):
        agree(ours, twin(given))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["restarts of shared covariances", "missing and ragged", "all by step"])
def test_scores_are_those_of_the_plain_form(kind):
    given = tables(**KINDS[kind])
    with gpu_kernels() as launches:
        found = gradients(given, True)
    assert "score_sets" in {launch.kernel for launch in launches}
    expected = gradients(given, False)
    agree(tuple(found.values()), tuple(expected.values()))


@pytest.mark.slow
def test_draws_are_affine_in_their_noise_with_the_moments_of_the_posterior():
    """Every number of the noise alone, one after another: the columns of a factor."""
    steps, states = 3, 2
    given = tables(steps=steps, states=states, features=1, ragged=True, missing=0.2)
    n = steps * states
    units = torch.cat([torch.eye(n), torch.zeros(1, n)]).double()[:, None].expand(n + 1, 2, n)
    with gpu_kernels():
        path, _ = op.sample(*given, units.reshape(n + 1, 2, steps, states), units[..., :0])
    _, mean, covariance, cross, _ = plain.smooth(given)
    columns = path[:-1] - path[-1]
    agree((path[-1], torch.einsum("nbti,nbtj->btij", columns, columns)), (mean, covariance), 1e-9)
    agree((torch.einsum("nbti,nbtj->btij", columns[:, :, 1:], columns[:, :, :-1]),), (cross,), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("transition", [1e-155, 1e-162])
def test_a_rotation_by_nearly_nothing_is_left_out(transition):
    """The square of its row lies below the numbers whose inverse is finite."""
    given = scalar(4, transition=transition)
    with gpu_kernels():
        found = [operator(*given) for operator, _ in FORMS]
    for ours, (_, twin) in zip(found, FORMS, strict=True):
        agree(ours, twin(given))


@pytest.mark.slow
def test_covariances_at_rest_go_on_as_if_they_went_on():
    """Beside the loop over steps, which never rests: from 18 steps on, nothing changes any more."""
    given = scalar(21, transition=0.01)
    with gpu_kernels():
        found = op.smooth(*given)
    agree(found, plain.smooth(given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        {"state": 1e200, "sight": 1e200, "initial": 1e200},
        {"state": 1e-200, "sight": 1e-200, "initial": 1e-200},
        {"sight": 1e-6, "emission": 1e2},
        {"initial": 1e8, "state": 1e-3},
        {"sight": 0.0},
        {"emission": 0.0, "state": 0.0},
    ],
    ids=["large", "small", "sharp", "vague", "exact", "blind"],
)
def test_extremes(numbers):
    given = scalar(3, **numbers)
    with gpu_kernels():
        found = op.filter(*given), op.smooth(*given)
    for ours, theirs in zip(found, (plain.filter(given), plain.smooth(given)), strict=True):
        agree(ours, theirs)


@pytest.mark.slow
def test_faults_are_told_by_their_step():
    beyond, exact = scalar(4, transition=1e90, emission=0.0), scalar(2, state=0.0, sight=0.0)
    with gpu_kernels():
        assert op.evidence(*beyond)[1].item() == 4 * 2 + OVERFLOW
        assert op.smooth(*exact)[-1].item() == 4 * 1 + SINGULAR
        zero, one = torch.zeros(1, 1), torch.ones(1, 1)
        chain = sh.chains.LinearGaussianChain(torch.ones(2, 1), one, zero, one, zero, initial_covariance=one)
        with pytest.raises(ValueError, match="observation at step 1 has features without noise"):
            chain.smooth()


@pytest.mark.slow
def test_diffuse_starts_are_left_to_the_plain_form():
    given = tables(batch=(1,), steps=3, diffuse=1)
    with gpu_kernels() as launches:
        found = op.smooth(*given)
    assert not launches
    agree(found, plain.smooth(given))


@pytest.mark.slow
def test_float32_is_computed_in_float64_and_rounded():
    given = tables(steps=3, dtype=torch.float32, **ONE)
    with gpu_kernels():
        found = op.smooth(*given)
    for ours, theirs in zip(found, plain.smooth(widened(given)), strict=True):
        assert_close(ours, theirs.to(ours.dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_nothing_comes_of_no_sequences():
    given = scalar(3, batch=(0,))
    with gpu_kernels():
        for (operator, _), shapes in zip(FORMS, ([], [(0, 3)], [(0, 3, 1)]), strict=True):
            total, *others = operator(*given)
            assert total.shape == others[-1].shape == (0,)
            assert [tuple(x.shape) for x in others[: len(shapes)]] == shapes


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        given = tables(steps=2, missing=0.3, dtype=torch.float32, **ONE)
        op.smooth(*given)
        gradients(tables(steps=2, **ONE), True)
        op.filter(*tables(steps=2, **ONE))
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] == 0, kernel
