"""The kernels of segments against their plain forms."""

import numpy as np
import pytest
import torch
from oracles.segmentations import enumerate_segmentations
from oracles.segments import block_of, hazards, nile, ragged
from samplehold import kernels
from samplehold.inference.chains.segment import op
from samplehold.inference.chains.segment.chain import SegmentChain
from samplehold.inference.chains.segment.records import Block
from samplehold.inference.numerics.compilation import lean_kernel
from samplehold.inference.numerics.elementary import log
from samplehold.inference.numerics.lanes import load, store
from samplehold.switching.segments.beliefs import INFINITE, Expectation
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.kernels
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
KINDS = ["normal", "poisson", "exponential", "bernoulli", "categorical"]


def results(chain: SegmentChain) -> list[Tensor]:
    filtered, smoothed, best, runs = chain.filter(), chain.smooth(), chain.viterbi(), chain.runs()
    found = [filtered.log_increment, filtered.change, filtered.run, filtered.left_out, smoothed.change, chain.entropy()]
    found += [*filtered.expected, *smoothed.expected, best.log_probability, best.path, smoothed.left_out]
    return [*found, runs.length, runs.log_weight.exp(), *runs.statistics]


def in_both_forms(work):
    found = []
    for mode in ("never", "always"):
        with kernels(mode):
            found.append(work())
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["step", "run"])
@pytest.mark.parametrize("tol", [0.0, 1e-6])
def test_kernels_are_the_plain_forms(kind, by, tol):
    block, base = block_of(kind, 150, 1)
    hazard = hazards(by, 150, 1).log() - 3
    plain, compiled = in_both_forms(lambda: results(SegmentChain(block, hazard, base, by, tol=tol)))
    for ours, expected in zip(compiled, plain, strict=True):
        assert_close(ours, expected, **CLOSE)


@pytest.mark.parametrize("by", ["step", "run"])
def test_kernels_take_ragged_batches_and_missing_steps(by):
    plain, compiled = in_both_forms(lambda: results(ragged(by=by)[0]))
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
    with kernels("always"):
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


def test_the_nile_has_the_same_numbers_in_kernels():
    with kernels("always"):
        chain = nile()
        assert f"{float(chain.log_normalizer()):.10f}" == "-639.8011245600"
        assert f"{float(chain.smooth().n_changes):.10f}" == "1.4503573389"
        assert f"{float(chain.viterbi().log_probability):.10f}" == "-640.4844246584"


def test_beginnings_beyond_the_first_room_are_kept():
    block, base = block_of("bernoulli", 1500, 0, n_features=1, scale=0.0)
    hazard = torch.tensor([0.3], dtype=torch.float64).log()
    with kernels("always"):
        chain = SegmentChain(block, hazard, base)
        value, change = chain.log_normalizer(), chain.smooth().change
        short = SegmentChain(block, hazard, base, tol=1e-10)
        assert 0 < short.runs().left_out <= 1e-10
        assert_close(short.smooth().change, change, rtol=0, atol=1e-10)
    assert_close(value, short.log_normalizer(), rtol=1e-12, atol=1e-9)
    assert_close(change[1:].sum() + 1, change.sum(), **CLOSE)


def test_numbers_that_kernels_do_not_take_are_left_to_the_plain_form():
    block, base = block_of("normal", 20, 0)
    hazard = torch.tensor([0.1], dtype=torch.float64).log()
    weighed = Block(block.family, block.prior, 2.5 * block.statistics)
    plain, compiled = in_both_forms(lambda: SegmentChain(weighed, hazard, base).log_normalizer())
    assert_close(plain, compiled, rtol=0, atol=0)
    with kernels("always"), pytest.raises(ValueError, match="step 0"):
        SegmentChain(Block(block.family, block.prior, block.statistics * torch.nan), hazard).smooth()
    assert "cpu" in op.forwards._kernels


def test_logarithms_of_vectors_are_exact_to_rounding():
    @lean_kernel
    def logarithms(x, y):
        for i in range(0, len(x), 8):
            store(y, i, log(load(x, i)))

    generator = np.random.default_rng(0)
    x = np.concatenate([np.exp(40 * generator.standard_normal(4000)), 1 + 0.01 * generator.standard_normal(4000)])
    y = np.empty_like(x)
    logarithms(x, y)
    assert np.abs(y - np.log(x)).max() <= 2.3e-16 * max(1.0, np.abs(np.log(x)).max())
    near = np.abs(x - 1) < 0.1
    assert (np.abs(y - np.log(x))[near] <= 4.6e-16 * np.abs(np.log(x))[near]).all()
