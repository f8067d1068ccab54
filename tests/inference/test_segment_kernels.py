"""The kernels of segments against their plain forms."""

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.segmentations import enumerate_segmentations
from oracles.segments import block_of, hazards
from samplehold import kernels
from samplehold.face.chains import Block, SegmentChain
from samplehold.inference.chains.segment import op
from samplehold.switching.segments.beliefs import INFINITE, Expectation
from torch import Tensor
from torch.testing import assert_close

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
KINDS = ["normal", "poisson", "exponential", "bernoulli", "categorical"]


def results(chain: SegmentChain) -> list[Tensor]:
    filtered, smoothed, best, runs = chain.filter(), chain.smooth(), chain.viterbi(), chain.runs()
    found = [filtered.log_increment, filtered.change, filtered.run, filtered.left_out, smoothed.change, chain.entropy()]
    found += [*filtered.expected, *smoothed.expected, best.log_probability, best.path, smoothed.left_out]
    return [*found, runs.length, runs.log_weight.exp(), *runs.statistics]


def in_both_forms(work):
    found = []
    for mode in ("plain", "native"):
        with kernels(mode):
            found.append(work())
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["step", "run"])
@pytest.mark.parametrize("tol", [0.0, 1e-6])
def test_kernels_are_the_plain_forms(kind, by, tol):
    block, base = block_of(kind, 80, 1)
    hazard = hazards(by, 80, 1).log() - 3
    plain, compiled = in_both_forms(lambda: results(SegmentChain(block, hazard, base, by, tol=tol)))
    for ours, expected in zip(compiled, plain, strict=True):
        assert_close(ours, expected, **CLOSE)


def test_gradients_by_kernels_are_those_of_the_plain_form():
    (first, base), (second, counted) = block_of("normal", 80, 3), block_of("poisson", 80, 3)
    hazard = hazards("run", 80, 3).log() - 2

    def gradients() -> tuple[Tensor, ...]:
        leaves = [first.prior, first.statistics, second.prior, base + counted, hazard]
        prior, statistics, other, log_base, log_hazard = (x.detach().clone().requires_grad_() for x in leaves)
        blocks = Block(first.family, prior, statistics), Block(second.family, other, second.statistics)
        value = SegmentChain(blocks, log_hazard, log_base, "run").log_normalizer()
        return torch.autograd.grad(value, (prior, statistics, other, log_base, log_hazard))

    for expected, ours in zip(*in_both_forms(gradients), strict=True):
        assert_close(ours, expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_in_kernels_equal_enumeration_and_the_plain_form(kind):
    (block, base), (other, counted) = block_of(kind, 100, 4), block_of("exponential", 100, 5)
    hazard = hazards("run", 100, 4).log() - 1
    expect = Expectation(block.family), Expectation(other.family)
    short = Block(block.family, block.prior, block.statistics[46:54])
    with kernels("native"):
        few = SegmentChain(short, hazard, base[46:54], "run").smooth(expect[:1])
    every = enumerate_segmentations((short,), hazard.exp(), base[46:54], "run")
    assert_close(few.expected[0], every.expected(0, expect[0]), rtol=1e-10, atol=1e-10)

    def moments() -> list[Tensor]:
        chain = SegmentChain((block, other), hazard, base + counted, "run", tol=1e-8)
        return [*chain.filter(expect).expected, *chain.smooth(expect).expected]

    for expected, ours in zip(*in_both_forms(moments), strict=True):
        assert_close(ours, expected, **CLOSE)


def test_moments_that_do_not_exist_are_infinite_in_kernels():
    block, base = block_of("normal", 12, 0)
    prior = block.prior - torch.tensor([0.0, 0.0, 1.3, 0.0], dtype=torch.float64)  # the shape is 0.2
    chain = SegmentChain(
        Block(block.family, prior, block.statistics), torch.tensor([0.1], dtype=torch.float64).log(), base
    )
    expect = Expectation(block.family)
    plain, compiled = in_both_forms(lambda: chain.smooth(expect).expected[0])
    assert bool((compiled[..., 2:] > INFINITE).all())
    assert (compiled[..., :2] > INFINITE).equal(plain[..., :2] > INFINITE)
    assert_close(compiled[..., 0], plain[..., 0], **CLOSE)


def test_other_expectations_are_left_to_the_plain_form():
    block, base = block_of("poisson", 30, 0)
    hazard = torch.tensor([0.1], dtype=torch.float64).log()
    plain, compiled = in_both_forms(lambda: SegmentChain(block, hazard, base).smooth(torch.square).expected[0])
    assert_close(plain, compiled, **CLOSE)


@pytest.mark.parametrize("n_steps", [1500, 4000])  # the second takes several calls
def test_beginnings_beyond_the_first_room_are_kept(n_steps):
    block, base = block_of("bernoulli", n_steps, 0, n_features=1, scale=0.0)
    hazard = torch.tensor([0.3], dtype=torch.float64).log()
    with kernels("native"):
        chain = SegmentChain(block, hazard, base)
        value, change = chain.log_normalizer(), chain.smooth().change
        short = SegmentChain(block, hazard, base, tol=1e-10)
        assert 0 < short.runs().left_out <= 1e-10
        assert_close(short.smooth().change, change, rtol=0, atol=1e-10)
    assert_close(value, short.log_normalizer(), rtol=1e-12, atol=1e-9)
    assert_close(value, chain.filter().log_normalizer, rtol=0, atol=0)
    assert_close(change[1:].sum() + 1, change.sum(), **CLOSE)


def test_numbers_that_kernels_do_not_take_are_left_to_the_plain_form():
    block, base = block_of("normal", 20, 0)
    hazard = torch.tensor([0.1], dtype=torch.float64).log()
    weighed = Block(block.family, block.prior, 2.5 * block.statistics)
    plain, compiled = in_both_forms(lambda: SegmentChain(weighed, hazard, base).log_normalizer())
    assert_close(plain, compiled, rtol=0, atol=0)
    with kernels("native"), pytest.raises(ValueError, match="step 0"):
        SegmentChain(Block(block.family, block.prior, block.statistics * torch.nan), hazard).smooth()
    assert "cpu" in op.forwards._kernels


@st.composite
def chains(draw):
    """Chains of every family that kernels know, with hazards at the ends of their range, of any lengths."""
    n_steps, batch, by = draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.sampled_from(["step", "run"]))
    parts = [
        block_of(
            draw(st.sampled_from(KINDS)),
            n_steps,
            draw(st.integers(0, 99)),
            scale=draw(st.sampled_from([0.0, 3.0, 100.0])),
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    size = batch, n_steps if by == "step" else draw(st.integers(1, 50))
    ends = st.sampled_from([-torch.inf, -1e300, -800.0, -40.0, -3.0, -0.5, -1e-300, 0.0])
    hazard = torch.tensor(draw(st.lists(ends, min_size=1, max_size=7)), dtype=torch.float64)
    hazard = hazard[torch.arange(size[0] * size[1]) % len(hazard)].reshape(size)
    seen = torch.rand(batch, n_steps, generator=torch.Generator().manual_seed(1)) < draw(
        st.sampled_from([0.0, 0.7, 2.0])
    )
    base = sum(base for _, base in parts).expand(batch, n_steps) * seen
    if draw(st.booleans()):
        base = base.masked_fill(torch.arange(n_steps) == draw(st.integers(0, 80)), -torch.inf)
    blocks = tuple(Block(part.family, part.prior, part.statistics * seen[..., None, None]) for part, _ in parts)
    lengths = draw(st.none() | st.lists(st.integers(1, n_steps), min_size=batch, max_size=batch).map(torch.tensor))
    return blocks, hazard, base, by, lengths, draw(st.sampled_from([0.0, 1e-9, 1e-3]))


@given(chains())
@examples(60)
def test_kernels_are_the_plain_forms_of_any_chain(arguments):
    def found() -> list[Tensor] | str:
        chain = SegmentChain(*arguments)
        moments = tuple(Expectation(block.family) for block in chain.blocks)
        try:
            filtered, smoothed = chain.filter(moments), chain.smooth()
            tables = [filtered.log_increment, filtered.change, filtered.run, smoothed.change, chain.entropy()]
            tables += [*smoothed.expected, *chain.filter().expected, chain.viterbi().log_probability]
            return [*tables, *(table[..., :1] for table in (*filtered.expected, *chain.smooth(moments).expected))]
        except ValueError as error:
            return str(error)

    plain, compiled = in_both_forms(found)
    if isinstance(plain, str):
        assert compiled == plain
        return
    for ours, expected in zip(compiled, plain, strict=True):
        assert_close(ours, expected, rtol=1e-8, atol=1e-8)


def test_where_no_segment_can_end_a_change_has_probability_zero():
    block, base = block_of("poisson", 6, 0)
    only_after_two = torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64).log()
    plain, compiled = in_both_forms(lambda: SegmentChain(block, only_after_two, base, "run").smooth().change)
    assert bool((plain[[1, 3, 5]] == 0).all())
    assert 0 < plain[2] < 1
    assert_close(compiled, plain, **CLOSE)


def test_a_sequence_has_the_same_bits_among_others():
    block, base = block_of("normal", 60, 0)
    hazard, n = torch.tensor([0.1], dtype=torch.float64).log(), 3000  # of several calls
    many = Block(block.family, block.prior, block.statistics.expand(n, *block.statistics.shape))
    with kernels("native"):
        alone, among = SegmentChain(block, hazard, base), SegmentChain(many, hazard, base.expand(n, 60))
        for one, all_of in ((alone.filter(), among.filter()), (alone.smooth(), among.smooth())):
            assert all_of.change.equal(one.change.expand(n, 60))
            assert all_of.expected[0].equal(one.expected[0].expand(all_of.expected[0].shape))
