"""Parts of a longer series of segments, against the enumeration of all segmentations of the whole."""

from dataclasses import replace

import pytest
import torch
from oracles.segmentations import Segmentations, enumerate_segmentations
from oracles.segments import block_of, hazards, ragged
from samplehold.face.chains import Block, SegmentChain
from samplehold.inference.chains.segment.part import SegmentPart
from samplehold.inference.chains.segment.records import tables_of
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
N, CUTS = 8, (3, 6)


def tables(kind: str, by: str) -> tuple[Block, Tensor, Tensor]:
    block, base = block_of(kind, N, 4)
    return block, hazards(by, N, 5), base


def piece(kind: str, by: str, steps: slice) -> SegmentChain:
    block, hazard, base = tables(kind, by)
    own = hazard[steps] if by == "step" else hazard
    return SegmentChain(replace(block, statistics=block.statistics[steps]), own.log(), base[steps], by)


def three(kind: str, by: str) -> tuple[SegmentPart, SegmentPart, SegmentPart]:
    """The parts of a series; each knows what the others say."""
    first, middle, last = (piece(kind, by, s) for s in (slice(0, 4), slice(3, 7), slice(6, N)))
    after, before = last.later(), first.runs()
    return (
        first.between(None, middle.between(None, after).later()),
        middle.between(before, after),
        last.between(middle.between(before, None).runs(), None),
    )


def every(kind: str, by: str) -> Segmentations:
    block, hazard, base = tables(kind, by)
    return enumerate_segmentations((block,), hazard, base, by)


@pytest.mark.parametrize("by", ["step", "run"])
@pytest.mark.parametrize("kind", ["normal", "poisson", "regression"])
def test_three_parts_equal_all_segmentations_of_the_whole(kind, by):
    whole, parts, family = every(kind, by), three(kind, by), tables(kind, by)[0].family
    for part, steps in zip(parts, (slice(0, 4), slice(3, 7), slice(6, N)), strict=True):
        smoothed = part.smooth()
        assert_close(smoothed.change, whole.change[steps], **TIGHT)
        assert_close(smoothed.n_changes, whole.change[steps][1:].sum(), **TIGHT)
        assert_close(smoothed.expected[0], whole.expected(0, family.mean)[steps], rtol=1e-9, atol=1e-9)
        assert_close(smoothed.log_normalizer, part.log_normalizer(), **TIGHT)
        filtered = part.filter()
        assert_close(filtered.log_normalizer, part.log_normalizer(), **TIGHT)
        assert_close(filtered.change[-1], whole.change[steps][-1], **TIGHT)
        assert_close(filtered.expected[0][-1], whole.expected(0, family.mean)[steps][-1], rtol=1e-9, atol=1e-9)
        assert_close(part.change_probability()[1:], whole.change[steps][1:], **TIGHT)
    assert_close(parts[0].log_normalizer(), whole.log_normalizer, **TIGHT)
    so_far = piece(kind, by, slice(0, 4)).log_normalizer()
    assert_close(parts[1].log_normalizer(), whole.log_normalizer - so_far, **TIGHT)


def beginnings(whole: Segmentations, steps: slice) -> dict[tuple[int, ...], float]:
    """P(the beginning of the segment in force at the first step, and those of later segments, of a part | x)."""
    found: dict[tuple[int, ...], float] = {}
    for begun, weight in zip(whole.begun, whole.weight.tolist(), strict=True):
        at = begun.nonzero().flatten().tolist()
        first = max(t for t in at if t <= steps.start)
        key = (first, *(t for t in at if steps.start < t < steps.stop))
        found[key] = found.get(key, 0.0) + weight
    return found


@pytest.mark.parametrize("by", ["step", "run"])
def test_entropy_and_best_path_are_those_of_the_beginnings(by):
    whole, part = every("poisson", by), three("poisson", by)[1]
    found = beginnings(whole, slice(3, 7))
    p = torch.tensor(list(found.values()), dtype=torch.float64)
    assert_close(part.entropy(), -torch.xlogy(p, p).sum(), **TIGHT)
    best = part.viterbi()
    assert_close(best.log_probability, part.log_normalizer() + p.max().log(), **TIGHT)
    likeliest = max(found, key=lambda key: found[key])
    assert best.redraw is not None
    assert best.redraw.nonzero().flatten().tolist() == [t - 3 for t in likeliest if t >= 3]
    assert best.path.tolist() == [sum(t - 3 <= s for t in likeliest[1:]) for s in range(4)]


def test_draws_have_the_probabilities_of_the_segmentations():
    part, whole = three("poisson", "run")[1], every("poisson", "run")
    drawn = part.sample(3000, seed=0)
    assert drawn.path.shape == (3000, 4)
    assert_close(drawn.redraw.double().mean(0), whole.change[3:7], rtol=0, atol=0.04)
    rate = tables_of(drawn.parameters[0])[0]
    held = ~drawn.redraw[:, 1:]
    assert bool((rate[:, 1:][held] == rate[:, :-1][held]).all())
    means = part.smooth(lambda eta: eta[..., :1] / -eta[..., 1:]).expected[0].squeeze(-1)
    error = drawn.parameters[0].std(0) / 3000**0.5
    assert bool(((drawn.parameters[0].mean(0) - means).abs() < 5 * error).all())


def test_a_part_of_all_steps_is_the_chain():
    chain, alone = ragged("poisson", by="run")
    part = chain.between(None, None)
    ours, theirs = part.smooth(), chain.smooth()
    for name in ("log_normalizer", "change", "n_changes"):
        assert_close(getattr(ours, name), getattr(theirs, name), **TIGHT)
    assert_close(ours.expected[0], theirs.expected[0], rtol=1e-9, atol=1e-9)
    assert_close(part.entropy(), chain.entropy(), **TIGHT)
    for name in ("path", "log_probability", "redraw"):
        assert_close(getattr(part.viterbi(), name), getattr(chain.viterbi(), name))
    filtered, expected = part.filter(), chain.filter()
    for name in ("log_increment", "change", "run"):
        assert_close(getattr(filtered, name), getattr(expected, name), **TIGHT)
    drawn = part.sample(2, seed=0)
    assert bool((drawn.path[:, 1, 0] >= 0).sum() == 2)
    assert bool(tables_of(drawn.parameters[0])[0][:, 1, 0, 1:].isnan().all())
    assert_close(part.runs().log_weight.exp().sum(-1), torch.ones(2, 2, dtype=torch.float64))
    assert_close(alone[1].later().log_weight.shape[-1], 18)


def test_the_gradient_of_a_part_is_that_of_the_chain():
    block, hazard, base = tables("normal", "step")
    found = []
    for form in (lambda chain: chain.log_normalizer(), lambda chain: chain.between(None, None).log_normalizer()):
        leaves = [table.clone().requires_grad_() for table in (block.prior, block.statistics, base, hazard.log())]
        chain = SegmentChain(Block(block.family, *leaves[:2]), leaves[3], leaves[2])
        found.append(torch.autograd.grad(form(chain), leaves))
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_records_of_other_series_are_refused():
    part, other = piece("poisson", "run", slice(3, 7)), piece("normal", "step", slice(0, 4))
    with pytest.raises(TypeError, match="before: got Later, expected runs"):
        part.between(part.later(), None)
    with pytest.raises(ValueError, match="before: got blocks of shape"):
        part.between(other.runs(), None)
    with pytest.raises(ValueError, match="after: its hazards are not those of this part"):
        part.between(None, piece("poisson", "step", slice(0, 4)).later())
    with pytest.raises(ValueError, match=r"before: got batch axes \[2, 2\]"):
        part.between(ragged("poisson", by="run")[0].runs(), None)
    single = piece("poisson", "run", slice(3, 7))
    base = torch.full((4,), -torch.inf, dtype=torch.float64)
    never = SegmentChain(single.blocks, torch.tensor([-torch.inf], dtype=torch.float64), base)
    with pytest.raises(ValueError, match="step"):
        never.between(None, None).smooth()
