"""Linear Gaussian chains by the kernels for GPUs: values and scores are those of the plain form."""

import pytest
import samplehold as sh
import torch
from examples import slow
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.inference.chains.linear_gaussian import op, plain
from samplehold.inference.chains.linear_gaussian.parameters import read
from samplehold.inference.chains.linear_gaussian.tables import OVERFLOW, OWN_AXES, SINGULAR, Tables
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.hardware("Triton interprets or compiles")

FORMS = (op.evidence, plain.evidence), (op.filter, plain.filter), (op.smooth, plain.smooth)
PARAMETERS = "transition", "state_noise", "emission", "observation_noise", "initial_covariance"
NUMBERS = [name for name in OWN_AXES if name not in ("seen", "lengths")]
KINDS = {
    "one number": {"steps": 1, "states": 1, "features": 1},
    "restarts of shared covariances": {"steps": 3, "batch": (2, 2), "shared": PARAMETERS},
    "missing and ragged": {"steps": 3, "features": 2, "batch": (2,), "missing": 0.4, "ragged": True},
    "all by step": {"steps": 3, "states": 2, "by_step": True, "rank": 1},
    "moves without noise": {"steps": 3, "rank": 0},
    "more features than states": {"steps": 2, "states": 3, "features": 5},
}


def tables(
    steps: int, states=2, features=1, batch=(1,), missing=0.0, ragged=False, by_step=False, rank=None, shared=(),
    diffuse=0, dtype=torch.float64,
) -> Tables:  # fmt: skip
    """Of a random chain, whose `shared` parameters have no batch axes, and whose noise of states has some rank."""
    generator = torch.Generator().manual_seed(7)
    moves, sights = ((steps - 1,), (steps,)) if by_step else ((), ())

    def draw(name: str, *own: int) -> Tensor:
        axes = () if name in shared else batch
        return torch.randn(*axes, *own, generator=generator, dtype=torch.float64)

    def covariance(name: str, *own: int) -> Tensor:
        factor = draw(name, *own)
        return (factor @ factor.mT).to(dtype)

    x, rank = draw("x", steps, features), states if rank is None else rank
    x[torch.rand(x.shape, generator=generator) < missing] = torch.nan
    unit = torch.eye(features, dtype=dtype)
    given = {
        "transition": 0.5 * draw("transition", *moves, states, states).to(dtype),
        "state_noise": covariance("state_noise", *moves, states, rank),
        "emission": draw("emission", *sights, features, states).to(dtype),
        "observation_noise": covariance("observation_noise", *sights, features, features) + 0.1 * unit,
        "initial_mean": draw("initial_mean", states).to(dtype),
        "initial_covariance": covariance("initial_covariance", states, states),
        "diffuse": torch.arange(states) < diffuse,
        "transition_offset": draw("transition_offset", *moves, states).to(dtype),
        "emission_offset": draw("emission_offset", *sights, features).to(dtype),
        "lengths": torch.tensor([steps, steps - 2][: batch[0]]) if ragged else None,
    }
    return read(x.to(dtype), given).tables


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


def score(form, given: Tables) -> dict[str, Tensor]:
    wanted = {
        name: getattr(given, name).detach().requires_grad_() for name in OWN_AXES if name not in ("seen", "lengths")
    }
    total, _ = form(given._replace(**wanted))
    weight = torch.linspace(1.0, 2.0, max(1, total.numel()), dtype=total.dtype).view(total.shape)
    found = torch.autograd.grad((total * weight).sum(), list(wanted.values()), allow_unused=True)
    return {
        name: torch.zeros_like(wanted[name]) if grad is None else grad for name, grad in zip(wanted, found, strict=True)
    }


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
        found = score(lambda tables: op.evidence(*tables), given)
    assert "score_sets" in {launch.kernel for launch in launches}
    expected = score(plain.evidence, given)
    agree(tuple(found.values()), tuple(expected.values()))


@pytest.mark.slow
def test_draws_are_affine_in_their_noise_with_the_moments_of_the_posterior():
    """Every number of the noise alone, one after another: the columns of a factor."""
    steps, states = 3, 2
    given = tables(steps, states, batch=(2,), ragged=True, missing=0.2)
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
    given = tables(3, 2, 2, diffuse=1)
    with gpu_kernels() as launches:
        found = op.smooth(*given)
    assert not launches
    agree(found, plain.smooth(given))


@pytest.mark.slow
def test_float32_is_computed_in_float64_and_rounded():
    given = tables(3, dtype=torch.float32)
    double = given._replace(directions=given.directions.double(), **{n: getattr(given, n).double() for n in NUMBERS})
    with gpu_kernels():
        found = op.smooth(*given)
    for ours, theirs in zip(found, plain.smooth(double), strict=True):
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
        given = tables(2, missing=0.3, dtype=torch.float32)
        op.smooth(*given)
        score(lambda t: op.evidence(*t), tables(2))
        op.filter(*tables(2))
    for kernel in compile_for_gpu(launches):
        assert kernel["local"] == 0, kernel
