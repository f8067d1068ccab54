"""Segments against the enumeration of all segmentations, for every family, and against published numbers."""

from dataclasses import replace

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_segment as naive
from oracles.segmentations import Segmentations, best_segmentation, enumerate_segmentations
from oracles.segments import block_of, hazards, nile, ragged
from samplehold import kernels
from samplehold.face.chains import Block, SegmentChain
from samplehold.inference.chains.segment.records import tables_of
from samplehold.inference.families import (
    NormalGamma,
)
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
KINDS = ("normal", "poisson", "exponential", "bernoulli", "categorical", "multivariate", "regression")


def chain_and_all(
    kind: str, n_steps: int, seed: int, by: str = "step", **options
) -> tuple[SegmentChain, Segmentations]:
    block, base = block_of(kind, n_steps, seed)
    hazard = hazards(by, n_steps, seed)
    chain = SegmentChain(block, hazard.log(), base, by=by, **options)
    return chain, enumerate_segmentations((block,), hazard, base, by)


@pytest.mark.parametrize("mode", ["plain", "native"])
def test_the_nile_has_its_published_evidence_changes_and_best_path(mode):
    with kernels(mode):
        chain = nile()
        assert f"{float(chain.log_normalizer()):.10f}" == "-639.8011245600"
        assert f"{float(chain.smooth().n_changes):.10f}" == "1.4503573389"
        best = chain.viterbi()
    assert f"{float(best.log_probability):.10f}" == "-640.4844246584"
    assert best.redraw is not None
    assert best.redraw.nonzero().flatten().tolist() == [0, 28]
    assert best.path[[0, 27, 28, 99]].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
@examples(12)
@given(n_steps=st.integers(1, 7), seed=st.integers(0, 1000), by=st.sampled_from(("step", "run")))
def test_every_family_equals_enumeration(kind, n_steps, seed, by):
    chain, every = chain_and_all(kind, n_steps, seed, by)
    family = chain.blocks[0].family
    smoothed, best = chain.smooth(), chain.viterbi()
    assert_close(chain.log_normalizer(), every.log_normalizer, **TIGHT)
    assert_close(smoothed.log_normalizer, every.log_normalizer, **TIGHT)
    assert_close(naive.log_normalizer(chain._tables())[0], every.log_normalizer, **TIGHT)
    assert_close(smoothed.change, every.change, **TIGHT)
    assert_close(smoothed.n_changes, every.change[1:].sum(), **TIGHT)
    assert_close(smoothed.expected[0], every.expected(0, family.mean), rtol=1e-9, atol=1e-9)
    assert_close(chain.entropy(), every.entropy, **TIGHT)
    assert_close(best.log_probability, every.log_joint.max(), **TIGHT)
    assert best.redraw is not None
    index = (every.begun == best.redraw).all(-1).nonzero().item()
    assert_close(every.log_joint[index], every.log_joint.max(), **TIGHT)


@pytest.mark.parametrize("by", ["step", "run"])
def test_the_filter_is_the_posterior_of_the_beginning_of_the_series(by):
    n_steps = 6
    chain, _ = chain_and_all("normal", n_steps, 3, by)
    filtered = chain.filter(lambda eta: eta[..., :2])
    block, base = chain.blocks[0], chain.log_base
    assert base is not None
    before = 0.0
    for t in range(n_steps):
        part = replace(block, statistics=block.statistics[: t + 1])
        hazard = chain.log_hazard.exp()
        every = enumerate_segmentations((part,), hazard[: t + 1] if by == "step" else hazard, base[: t + 1], by)
        assert_close(filtered.change[t], every.change[t], **TIGHT)
        assert_close(filtered.log_increment[t], every.log_normalizer - before, **TIGHT)
        assert_close(filtered.expected[0][t], every.expected(0, lambda eta: eta[..., :2])[t], **TIGHT)
        started = (every.begun * torch.arange(t + 1)).amax(-1)
        assert_close(filtered.run[t], every.weight @ (t + 1 - started).double(), **TIGHT)
        before = every.log_normalizer
    assert_close(filtered.log_normalizer, chain.log_normalizer(), **TIGHT)
    runs = chain.runs()
    assert_close(runs.log_weight.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    assert_close((runs.log_weight.exp() * runs.length).sum(), filtered.run[-1], **TIGHT)
    assert_close(runs.natural[0][-1], block.prior + block.statistics[-1], **TIGHT)
    assert int(runs.length[-1]) == 1


def test_twelve_steps_equal_all_2048_segmentations():
    chain, every = chain_and_all("poisson", 12, 5, "run")
    assert_close(chain.log_normalizer(), every.log_normalizer, **TIGHT)
    assert_close(chain.smooth().change, every.change, **TIGHT)
    assert_close(chain.entropy(), every.entropy, **TIGHT)


@pytest.mark.parametrize("by", ["step", "run"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_in_all_tables_are_those_of_the_textbook_form(kind, by):
    block, base = block_of(kind, 6, 2)
    leaves = [block.prior, block.statistics, base, hazards(by, 6, 2).log()]
    found = []
    for form in (lambda chain: chain.log_normalizer(), lambda chain: naive.log_normalizer(chain._tables())[0]):
        prior, statistics, log_base, hazard = (table.detach().clone().requires_grad_() for table in leaves)
        chain = SegmentChain(Block(block.family, prior, statistics), hazard, log_base, by=by)
        found.append(torch.autograd.grad(form(chain), (prior, statistics, log_base, hazard)))
    for ours, textbook in zip(*found, strict=True):
        assert_close(ours, textbook, rtol=1e-8, atol=1e-9)


def test_second_derivatives_are_those_of_the_textbook_form():
    block, base = block_of("poisson", 5, 2)
    hazard = hazards("step", 5, 2).log()

    def curvature(form, rate: Tensor) -> Tensor:
        prior = torch.stack([block.prior[:, 0], -rate.exp()], -1)
        return form(SegmentChain(Block(block.family, prior, block.statistics), hazard, base))

    rate = torch.tensor([0.3, -0.2], dtype=torch.float64)
    textbook = lambda chain: naive.log_normalizer(chain._tables())[0]
    ours = torch.autograd.functional.hessian(lambda x: curvature(SegmentChain.log_normalizer, x), rate)
    assert_close(ours, torch.autograd.functional.hessian(lambda x: curvature(textbook, x), rate), **TIGHT)


def test_hazards_of_zero_and_one_are_exact_and_have_finite_gradients():
    block, base = block_of("normal", 5, 1)
    sure = torch.tensor([0.3, 0.0, 1.0, 0.2, 0.0], dtype=torch.float64)
    hazard = sure.log().requires_grad_()
    chain = SegmentChain(block, hazard, base)
    every = enumerate_segmentations((block,), sure, base)
    assert_close(chain.log_normalizer(), every.log_normalizer, **TIGHT)
    assert_close(chain.smooth().change, every.change, **TIGHT)
    assert_close(chain.entropy(), every.entropy, **TIGHT)
    (gradient,) = torch.autograd.grad(chain.log_normalizer(), hazard)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("by", ["step", "run"])
@pytest.mark.parametrize("tol", [0.0, 1e-4])
def test_a_ragged_batch_is_its_sequences_one_by_one(by, tol):
    batch, alone = ragged(by=by)
    close = {"rtol": 1e-9, "atol": 1e-9} if tol == 0 else {"rtol": 0.01, "atol": 1e-3}
    smoothed, filtered, best, entropy = batch.smooth(), batch.filter(), batch.viterbi(), batch.entropy()
    runs = batch.runs()
    for place, chain in zip(((0, 0), (0, 1), (1, 0), (1, 1)), alone, strict=True):
        n, own, seen = chain.n_steps, chain.smooth(), chain.filter()
        assert_close(smoothed.log_normalizer[place], own.log_normalizer, **close)
        assert_close(smoothed.change[place][:n], own.change, **close)
        assert_close(smoothed.expected[0][place][:n], own.expected[0], **close)
        assert_close(filtered.run[place][:n], seen.run, **close)
        assert_close(filtered.expected[0][place][:n], seen.expected[0], **close)
        assert_close(entropy[place], chain.entropy(), **close)
        assert_close(best.log_probability[place], chain.viterbi().log_probability, rtol=1e-10, atol=1e-10)
        assert best.path[place][:n].equal(chain.viterbi().path)
        assert (best.path[place][n:] == -1).all()
        for table in (smoothed.change, filtered.change, filtered.run):
            assert not table[place][n:].any()
        mean_run = (runs.log_weight[place].exp() * runs.length[place]).sum()
        assert_close(mean_run, seen.run[-1], **close)


def test_missing_steps_change_nothing_but_the_hazard():
    block, base = block_of("normal", 6, 0)
    hole = torch.tensor([1.0, 1, 0, 0, 1, 1], dtype=torch.float64)
    holed = Block(block.family, block.prior, block.statistics * hole[:, None, None])
    hazard = hazards("step", 6, 4)
    chain = SegmentChain(holed, hazard.log(), base * hole)
    every = enumerate_segmentations((holed,), hazard, base * hole)
    assert_close(chain.log_normalizer(), every.log_normalizer, **TIGHT)
    assert_close(chain.filter().log_increment[2:4], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-14)
    nothing = SegmentChain(Block(block.family, block.prior, 0 * block.statistics), hazard.log())
    assert_close(nothing.log_normalizer(), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-13)
    assert_close(nothing.change_probability()[1:], hazard[1:], **TIGHT)


def test_blocks_of_different_families_change_together():
    (first, base), (second, counted) = block_of("normal", 6, 3), block_of("poisson", 6, 3)
    hazard = hazards("step", 6, 3)
    chain = SegmentChain((first, second), hazard.log(), base + counted)
    every = enumerate_segmentations((first, second), hazard, base + counted)
    assert_close(chain.log_normalizer(), every.log_normalizer, **TIGHT)
    smoothed = chain.smooth((lambda eta: eta[..., 1:], lambda eta: eta.square()))
    assert_close(smoothed.expected[0], every.expected(0, lambda eta: eta[..., 1:]), **TIGHT)
    assert_close(smoothed.expected[1], every.expected(1, lambda eta: eta.square()), **TIGHT)


def test_draws_have_the_posterior_probabilities_and_the_parameters_of_their_segments():
    chain, every = chain_and_all("normal", 5, 7, "run")
    drawn = chain.sample(4000, seed=1)
    frequency = (drawn.redraw.unsqueeze(1) == every.begun).all(-1).double().mean(0)
    assert_close(frequency, every.weight, rtol=0, atol=0.03)
    assert drawn.path.equal(drawn.redraw.cumsum(-1) - 1)
    (point,) = drawn.parameters
    assert tables_of(point)[0].shape == (4000, 5, 2)
    loc = lambda eta: NormalGamma().usual(eta).loc.unsqueeze(-1)
    assert_close(point.loc.mean(0), every.expected(0, loc).squeeze(-1), rtol=0, atol=0.15)
    held = ~drawn.redraw[:, 1:]
    assert (point.precision[:, 1:][held] == point.precision[:, :-1][held]).all()
    again = chain.sample(4000, seed=1)
    assert again.path.equal(drawn.path)
    assert again.parameters[0].loc.equal(point.loc)


def test_draws_of_a_ragged_batch_end_with_their_sequences():
    batch, _ = ragged("bernoulli")
    drawn = batch.sample(3, seed=0)
    inside = torch.arange(30) < batch.lengths.unsqueeze(-1)
    assert ((drawn.path >= 0) == inside).all()
    assert drawn.parameters[0].shape == (3, 2, 2, 30, 2)
    assert (drawn.parameters[0].isnan().all(-1) == ~inside).all()
    assert drawn.redraw[..., 0].all()


def test_single_precision_is_computed_in_double_and_returned_in_single():
    block, base = block_of("normal", 40, 0)
    single = Block(block.family, block.prior.float(), block.statistics.float())
    hazard = torch.tensor([0.05]).log()
    chain, exact = SegmentChain(single, hazard, base.float()), SegmentChain(block, hazard.double(), base)
    assert chain.log_normalizer().dtype == chain.smooth().change.dtype == torch.float32
    assert_close(chain.smooth().change, exact.smooth().change.float(), rtol=1e-3, atol=1e-5)
    assert_close(chain.log_normalizer(), exact.log_normalizer().float(), rtol=1e-5, atol=1e-4)


def test_a_huge_level_costs_later_segments_no_digits():
    family, half = NormalGamma(), torch.full((60,), 0.5, dtype=torch.float64)
    x = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:30] += 1e8  # differences of sums over all steps would have no digits of the squares
    number = lambda value: torch.tensor([value], dtype=torch.float64)
    prior = family.natural(number(0.0), number(0.1), number(2.0), number(2.0))
    statistics = torch.stack([x, -half, half, -x.square() / 2], -1).unsqueeze(-2)
    whole = SegmentChain(Block(family, prior, statistics), number(0.01).log())
    later = SegmentChain(Block(family, prior, statistics[30:]), number(0.01).log())
    assert_close(whole.filter().log_increment[31:], later.filter().log_increment[1:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["normal", "poisson", "multivariate", "regression", "categorical"])
@pytest.mark.parametrize("by", ["step", "run"])
def test_what_is_left_out_is_within_its_bound_and_the_tolerance(kind, by):
    block, base = block_of(kind, 120, 3, scale=6.0)
    hazard = hazards(by, 120, 3).log() - 2.5
    exact = SegmentChain(block, hazard, base, by)
    for tol in (1e-8, 1e-2):
        chain = SegmentChain(block, hazard, base, by, tol=tol)
        short, whole = chain.smooth(), exact.smooth()
        assert 0 < short.left_out <= tol
        missed = -torch.expm1(short.log_normalizer - whole.log_normalizer)
        assert -1e-11 <= missed <= short.left_out + 1e-11
        assert ((short.change - whole.change).abs() <= short.left_out + 1e-11).all()
        assert (chain.runs().length.shape[-1]) < 120
        assert_close(short.change.sum(), short.n_changes + 1, **TIGHT)
    assert chain.sample(2, 0).path.shape == (2, 120)
    assert whole.left_out == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_path_is_exact_though_beginnings_are_left_out(kind):
    for by in ("step", "run"):
        block, base = block_of(kind, 40, 1, scale=6.0)
        hazard = hazards(by, 40, 1).log() - 2.0
        best = SegmentChain(block, hazard, base, by).viterbi()
        best_of_all, joint = best_segmentation(block, base, hazard, by)
        assert_close(best.log_probability, joint, **TIGHT)
        assert best.redraw is not None
        assert best.redraw.nonzero().flatten().tolist() == best_of_all


def test_errors_name_what_is_wrong():
    block, base = block_of("poisson", 5, 0)
    hazard = torch.tensor([0.1], dtype=torch.float64).log()
    with pytest.raises(ValueError, match=r"log_hazard: got 0\.5"):
        SegmentChain(block, -hazard * 0 + 0.5)
    with pytest.raises(TypeError, match="log_hazard"):
        SegmentChain(block, hazard.float())
    with pytest.raises(ValueError, match=r"blocks\[0\]\.prior: shape of Gamma: got -1"):
        SegmentChain(replace(block, prior=-block.prior), hazard)
    with pytest.raises(ValueError, match=r"blocks\[0\]\.statistics: got shape"):
        SegmentChain(replace(block, statistics=block.statistics[..., :1]), hazard)
    with pytest.raises(ValueError, match="tol"):
        SegmentChain(block, hazard, tol=1.0)
    with pytest.raises(ValueError, match="by"):
        SegmentChain(block, hazard, by="duration")
    with pytest.raises(ValueError, match="blocks"):
        SegmentChain((), hazard)
    with pytest.raises(ValueError, match="expect"):
        SegmentChain(block, hazard).smooth((torch.exp, torch.exp))
    impossible = base.clone()
    impossible[3] = -torch.inf
    for method in ("log_normalizer", "filter", "smooth", "viterbi", "entropy", "runs"):
        with pytest.raises(ValueError, match="step 3"):
            getattr(SegmentChain(block, hazard, impossible), method)()
    unknown = block.statistics.clone()
    unknown[2] = torch.nan
    with pytest.raises(ValueError, match=r"blocks\[0\]\.statistics: holds NaN at step 2"):
        SegmentChain(replace(block, statistics=unknown), hazard).smooth()
