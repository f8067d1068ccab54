"""Chains whose weights lie far apart, against recursions in logarithms: right to the rounding of the weights' size."""

import math
from collections.abc import Iterator

import pytest
import torch
from oracles import log_paths
from samplehold import kernels
from samplehold.face.chains import CopyChain, FactoredCopyChain, MarkovChain
from samplehold.inference.chains.contract import Chain
from samplehold.inference.chains.copy import plain as plain_form
from torch import Tensor

DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True, params=[pytest.param("kernels", marks=pytest.mark.slow), "plain"])
def _form(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels("native" if request.param == "kernels" else "plain"):
        yield


def mixed(size: float, probability: float, generator: torch.Generator, *shape: int) -> Tensor:
    """Log-weights of which some are of a size, some of a small probability, some impossible, most ordinary."""
    x, kind = (f(shape, generator=generator, dtype=torch.float64) for f in (torch.randn, torch.rand))
    x = torch.where(kind < 0.3, x * size, x)
    x = torch.where((kind > 0.6) & (kind < 0.7), math.log(probability), x)
    return torch.where(kind > 0.95, -torch.inf, x)


def check(chain: Chain, expected: tuple[Tensor, Tensor], size: float, dtype: torch.dtype) -> None:
    evidence, state = float(expected[0]), expected[1]
    if math.isinf(evidence):
        with pytest.raises(ValueError, match="impossible"):
            chain.log_normalizer()
        return
    smoothed = chain.smooth()
    rounding = 64 * torch.finfo(torch.float64).eps * size * len(state)
    share = 3e-6 if dtype == torch.float32 else 1e-12
    for found in (chain.log_normalizer(), chain.filter().log_normalizer, smoothed.log_normalizer):
        assert abs(float(found) - evidence) <= share * (abs(evidence) + len(state)) + rounding
    if rounding < 1e-3:
        limit = max(2e-4 if dtype == torch.float32 else 1e-9, rounding)
        assert float((smoothed.state.double() - state).abs().max()) <= limit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [0, 3, 9, 30, 36, 60, 150, 285])
def test_weights_of_any_size_beside_ordinary_ones(power, dtype):
    if dtype == torch.float32 and power > 34:
        power = 34
    for seed in range(25):
        generator, size = torch.Generator().manual_seed(seed), 10.0**power
        steps, states = 1 + seed % 8, 1 + seed % 3
        tables = [(states,), (steps, states), (steps, 1 if seed % 2 else states), (states, states)]
        tables = [mixed(size, 10.0 ** -(12 * seed), generator, *shape).to(dtype) for shape in tables]
        start, fresh, held, moves = tables
        if not bool((start > -torch.inf).any()):
            continue
        largest = max(1.0, *(float(t[t.isfinite()].abs().amax()) for t in tables if t.isfinite().any()))
        check(CopyChain(start, fresh, held), log_paths.copy(start, fresh, held), largest, dtype)
        check(MarkovChain(start, moves, fresh), log_paths.markov(start, moves, fresh), largest, dtype)


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probability", [1e-10, 1e-20, 1e-30, 1e-37, 1e-100, 1e-300])
def test_chains_that_have_to_hold_though_they_hardly_can(probability, dtype):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        steps, states = (3, 6, 12, 40, 300)[seed % 5], 2 + seed % 3
        seen = torch.randn(steps, states, generator=generator, dtype=torch.float64) * (1 + 3 * (seed % 3))
        if seed % 2:
            seen[-1, 1:] = -torch.inf  # it ends where it can only have been all the time
        fresh, held = seen.clone(), seen + math.log(probability)
        fresh[:, 0] = -torch.inf
        moves = torch.rand(states, states, generator=generator, dtype=torch.float64)
        moves[:, 0], moves[0, 0] = 0.0, probability
        start, fresh, held, moves, seen = (
            t.to(dtype) for t in (torch.zeros(states, dtype=torch.float64), fresh, held, moves.log(), seen)
        )
        check(CopyChain(start, fresh, held), log_paths.copy(start, fresh, held), 1e3, dtype)
        check(MarkovChain(start, moves, seen), log_paths.markov(start, moves, seen), 1e3, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 128.0, 1024.0, 2.0**20])
def test_entropies_and_changes_are_those_of_all_histories(size, dtype):
    limit = max(1e-5 if dtype == torch.float32 else 1e-11, 64 * torch.finfo(torch.float64).eps * size * 4)
    for seed in range(20):
        weights = torch.randint(-1, 2, (4, 2, 2), generator=torch.Generator().manual_seed(seed)).double() * size
        fresh, held = weights.to(dtype).unbind(1)
        histories = torch.cartesian_prod(*[torch.arange(2)] * 7)
        path, drawn = histories[:, :4], torch.cat([torch.ones(len(histories), 1), histories[:, 4:]], 1).bool()
        steps = torch.arange(4)
        weight = torch.where(drawn, fresh[steps, path], held[steps, path]).double().sum(-1)
        changes = path.diff(dim=-1, prepend=path[:, :1]) != 0
        weight = weight.masked_fill((changes & ~drawn).any(-1), -torch.inf)
        share = (weight - weight.max()).softmax(-1)
        chain = CopyChain(None, fresh, held)
        entropy = -torch.special.xlogy(share, share).sum()
        tight = {"rtol": 0.0, "atol": limit}
        torch.testing.assert_close(chain.entropy().double(), entropy, **tight)
        torch.testing.assert_close(chain.change_probability().double(), share @ changes.double(), **tight)
        moves = torch.randint(-1, 2, (2, 2), generator=torch.Generator().manual_seed(seed)).double() * size
        paths = torch.cartesian_prod(*[torch.arange(2)] * 4)
        weight = fresh[steps, paths].double().sum(-1) + moves.double()[paths[:, :-1], paths[:, 1:]].sum(-1)
        share = (weight - weight.max()).softmax(-1)
        markov = MarkovChain(torch.zeros(2, dtype=dtype), moves.to(dtype), fresh)
        torch.testing.assert_close(markov.entropy().double(), -torch.special.xlogy(share, share).sum(), **tight)
        changes = paths.diff(dim=-1, prepend=paths[:, :1]) != 0
        torch.testing.assert_close(markov.change_probability().double(), share @ changes.double(), **tight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [3, 31, 36, 150, 285])
@pytest.mark.parametrize(("drawn", "held", "n"), [(0, 0, 18), (-2, -1, 6), (-1, -2, 12), (1, -1, 12), (-1, 1, 6)])
def test_entropy_beside_a_step_that_can_only_be_drawn_or_held(power, dtype, drawn, held, n):
    size = 10.0 ** (min(power, 36) if dtype == torch.float32 else power)
    fresh, kept = torch.zeros(3, 2, dtype=dtype), torch.zeros(3, 2, dtype=dtype)
    fresh[1], kept[1] = drawn * size, held * size
    rounding = 1e-6 if dtype == torch.float32 else 1e-12
    assert abs(float(CopyChain(None, fresh, kept).entropy()) - math.log(n)) < rounding


@pytest.mark.parametrize("weight", [3e37, -3e37])
def test_a_total_beyond_the_dtype_is_refused(weight):
    x, zero = torch.full((20, 2), weight), torch.zeros(2)
    for chain in (CopyChain(zero, x, x), MarkovChain(zero, torch.zeros(2, 2), x)):
        for ask in (chain.log_normalizer, chain.filter, chain.smooth, chain.marginals, chain.viterbi, chain.mean_field):
            with pytest.raises(ValueError, match=r"log p\(x\): overflows float32; .* float64"):
                ask()


@pytest.mark.parametrize("common", [1e3, 1e12, 1e30, -1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_all_initial_weights_have_in_common_changes_no_belief(common, dtype):
    generator = torch.Generator().manual_seed(0)
    fresh, held, belief = (torch.randn(4, n, generator=generator, dtype=torch.float64).to(dtype) for n in (3, 1, 3))
    plain, shifted = (CopyChain(torch.full((3,), c, dtype=dtype), fresh, held) for c in (0.0, common))
    with_gradient = CopyChain(torch.full((3,), common, dtype=dtype).requires_grad_(), fresh, held)
    for chain in (shifted, with_gradient):
        for ask in ("smooth", "filter", "mean_field"):
            found, expected = getattr(chain, ask)(), getattr(plain, ask)()
            names = ("fresh", "held") if ask == "mean_field" else ("state", "redraw")
            for name in names:
                torch.testing.assert_close(getattr(found, name).detach(), getattr(expected, name))
        torch.testing.assert_close(
            chain.predictive(belief.softmax(-1))[1:].detach(), plain.predictive(belief.softmax(-1))[1:]
        )
    tables = (table.unsqueeze(0) for table in (shifted.log_initial, fresh, held))
    found = plain_form.smooth(*tables, torch.tensor([4]))
    torch.testing.assert_close(found[1][0], plain.smooth().state)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("common", [-(2.0**18), 2.0**17, -1e36])
def test_what_all_weights_of_a_step_have_in_common_changes_no_belief(common: float, dtype: torch.dtype) -> None:
    """The weights are multiples of 1/16, which all these dtypes hold beside 2^18; beside 1e36 all weights are equal."""
    generator = torch.Generator().manual_seed(1)
    fresh, held, moves, gate, kept = (
        (torch.randn(*shape, generator=generator, dtype=torch.float64) * 16).round().to(dtype) / 16
        for shape in ((4, 3), (4, 3), (3, 3), (4,), (4,))
    )
    if abs(common) > 1e30:
        fresh, held, gate, kept = (torch.zeros_like(table) for table in (fresh, held, gate, kept))
    zero = torch.zeros(3, dtype=dtype)
    pairs = [
        (CopyChain(zero, fresh, held), CopyChain(zero, fresh + common, held + common)),
        (CopyChain(None, fresh, held[:, :1]), CopyChain(None, fresh + common, held[:, :1] + common)),
        (MarkovChain(zero, moves, fresh), MarkovChain(zero, moves, fresh + common)),
        (FactoredCopyChain(gate, kept, zero, fresh), FactoredCopyChain(gate, kept, zero, fresh + common)),
    ]
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-11}
    for plain, shifted in pairs:
        total = plain.log_normalizer().double() + 4 * common
        torch.testing.assert_close(shifted.log_normalizer().double(), total, rtol=close["rtol"], atol=close["atol"])
        found, expected = shifted.smooth(), plain.smooth()
        torch.testing.assert_close(found.state, expected.state, **close)
        torch.testing.assert_close(shifted.entropy(), plain.entropy(), **close)
        torch.testing.assert_close(shifted.change_probability(), plain.change_probability(), **close)
        assert torch.equal(shifted.viterbi().path, plain.viterbi().path)
        assert torch.equal(shifted.sample(5, seed=0).path, plain.sample(5, seed=0).path)
