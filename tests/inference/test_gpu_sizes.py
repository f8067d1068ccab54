"""On a GPU, chains and scans of many programs, chunks and stretches: results are those of the CPU."""

from collections.abc import Callable

import pytest
import samplehold as sh
import torch
from oracles.placement import tolerances
from samplehold.face.chains import CopyChain, FactoredCopyChain, LinearGaussianChain, MarkovChain
from samplehold.inference.chains.contract import Chain
from torch import Tensor
from torch.testing import assert_close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

SIZES = [(1, 30_000, 2), (3, 5_000, 16), (500, 300, 5), (1, 200_000, 8), (4, 900, 64), (2000, 70, 33)]
Draw = Callable[..., Tensor]


def draws(dtype: torch.dtype, device: str = "cpu", computed: torch.dtype | None = None) -> Draw:
    """Normal numbers rounded to a dtype, and then told in the one in which they are computed with."""
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        table = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return table.to(dtype).to(device, computed or dtype)

    return draw


def of_lengths(n: int, steps: int, device: str) -> Tensor:
    lengths = torch.randint(1, steps + 1, (n,), generator=torch.Generator("cpu").manual_seed(1), device="cpu")
    lengths[:1] = steps
    return lengths.to(device)


def chain_of(kind: str, size: tuple[int, int, int], draw: Draw) -> Chain:
    n, steps, states = size
    likelihood, start = draw(n, steps, states), draw(n, states)
    lengths = of_lengths(n, steps, str(start.device))
    if kind == "markov":
        return MarkovChain(start, draw(states, states), likelihood, lengths)
    if kind == "copy":
        return CopyChain(start, likelihood, draw(n, steps, states), lengths)
    return FactoredCopyChain(draw(n, 1), draw(n, 1), start, likelihood, lengths)


each_kind = pytest.mark.parametrize("kind", ["markov", "copy", "factored"])


def tensors(record: object) -> dict[str, Tensor]:
    return {name: value for name, value in vars(record).items() if isinstance(value, Tensor)}


@each_kind
@pytest.mark.parametrize("size", SIZES)
def test_chains_of_any_size(kind, size, dtype):
    there = chain_of(kind, size, draws(dtype, "cuda"))
    here = chain_of(kind, size, draws(dtype, "cpu", torch.float64))
    for verb in ("filter", "smooth", "marginals", "viterbi"):
        ours, theirs = tensors(getattr(there, verb)()), tensors(getattr(here, verb)())
        for name, expected in theirs.items():
            found = ours[name].cpu()
            if not expected.is_floating_point():
                if dtype == torch.float64:
                    assert torch.equal(found, expected), (verb, name)
                continue
            size_of = max(1.0, float(expected.abs().nan_to_num(posinf=0).amax()))
            assert_close(found.double(), expected, **tolerances(dtype, size_of), msg=lambda m: f"{verb}.{name}: {m}")  # noqa: B023


@each_kind
@pytest.mark.parametrize("size", SIZES)
def test_draws_have_the_marginals(kind, size):
    chain = chain_of(kind, size, draws(torch.float64, "cuda"))
    _, steps, states = size
    drawn, state = chain.sample(20, 0).path, chain.smooth().state
    inside = torch.arange(steps, device="cuda") < chain.lengths.unsqueeze(-1)
    counts = torch.nn.functional.one_hot(drawn.clamp(min=0), states).double().mean(0)
    spread = (state * (1 - state) / 20).clamp(min=1e-4).sqrt()
    away = ((counts - state) / spread)[inside]
    assert float(away.mean().abs()) < 0.05
    assert 0.5 < float(away.square().mean()) < 1.5


@pytest.mark.parametrize(("n", "steps", "columns"), [(1, 100_000, 3), (64, 1000, 128), (700, 40, 33), (3, 4097, 1)])
def test_scans_and_their_gradients_of_any_size(n, steps, columns, dtype):
    draw = draws(dtype)
    given = [draw(n, steps, columns).sigmoid(), draw(n, steps, columns)]
    for scan in (sh.linear_scan, sh.lerp_scan):
        found, expected = [], []
        for results, device, wide in ((found, "cuda", dtype), (expected, "cpu", torch.float64)):
            leaves = [x.to(device, wide).requires_grad_() for x in given]
            value = scan(*leaves)
            results += [value, *torch.autograd.grad((value * value.detach().cos()).sum(), leaves)]
        for ours, theirs in zip(found, expected, strict=True):
            size_of = max(1.0, float(theirs.detach().abs().amax()))
            assert_close(ours.cpu().double(), theirs, **tolerances(dtype, size_of))


@pytest.mark.parametrize(("n", "steps", "width"), [(1, 20_000, 4), (64, 300, 32), (300, 50, 17)])
def test_networks_and_their_gradients_of_any_size(n, steps, width, dtype):
    x = draws(dtype)(n, steps, 5)
    torch.manual_seed(0)
    network, found, expected = sh.MinGRU(5, width), [], []
    for results, device, wide in ((expected, "cpu", torch.float64), (found, "cuda", dtype)):
        leaves = {name: p.detach().to(device, wide).requires_grad_() for name, p in network.named_parameters()}
        given = x.to(device, wide).requires_grad_()
        state = torch.func.functional_call(network, leaves, (given,))[0]
        results += [state.detach(), *torch.autograd.grad(state.square().sum(), [given, *leaves.values()])]
    for ours, theirs in zip(found, expected, strict=True):
        size_of = max(1.0, float(theirs.detach().abs().amax()))
        assert_close(ours.cpu().double(), theirs, **tolerances(dtype, size_of))


@pytest.mark.parametrize(("n", "steps", "states", "features"), [(1, 5000, 2, 1), (40, 300, 4, 3), (500, 60, 9, 2)])
def test_linear_gaussian_chains_of_any_size(n, steps, states, features):
    draw = draws(torch.float64)
    noise, eye = draw(states, states), torch.eye(states, dtype=torch.float64, device="cpu")
    x, emission = draw(n, steps, features), draw(features, states)
    x[0, 3:9] = torch.nan
    found, expected = (
        LinearGaussianChain(
            x.to(device),
            (0.9 * eye).to(device),
            (noise @ noise.mT + 0.1 * eye).to(device),
            emission.to(device),
            torch.eye(features, dtype=torch.float64, device=device),
            initial_covariance=eye.to(device),
        )
        for device in ("cuda", "cpu")
    )
    for verb in ("filter", "smooth"):
        ours, theirs = tensors(getattr(found, verb)()), tensors(getattr(expected, verb)())
        for name, value in theirs.items():
            size_of = max(1.0, float(value.abs().amax()))
            assert_close(ours[name].cpu(), value, rtol=1e-9, atol=1e-10 * size_of)
