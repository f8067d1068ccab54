"""Segments against the enumeration of all segmentations, for every family, and against published numbers."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.segmentations import Segmentations, enumerate_segmentations
from samplehold.inference.chains.segment import naive
from samplehold.inference.chains.segment.chain import SegmentChain
from samplehold.inference.chains.segment.records import Block
from samplehold.inference.families import (
    Beta,
    Dirichlet,
    Gamma,
    MatrixNormalWishart,
    NormalGamma,
    NormalWishart,
)
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
KINDS = ("normal", "poisson", "exponential", "bernoulli", "categorical", "multivariate", "regression")
NILE = Path(__file__).parents[2] / "notebooks" / "data" / "nile.csv"


def block_of(kind: str, n_steps: int, seed: int, n_features: int = 2, scale: float = 3.0) -> tuple[Block, Tensor]:
    """A block and log_base [T] of random data with a change in the middle."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n_steps, n_features, generator=generator, dtype=torch.float64)
    x = noise + scale * (torch.arange(n_steps) >= n_steps // 2).double().unsqueeze(-1)
    one, rates = torch.ones_like(x), x.abs() + 0.1
    full = lambda value: torch.full((n_features,), value, dtype=torch.float64)
    zero = torch.zeros(n_steps, dtype=torch.float64)
    match kind:
        case "normal":
            statistics = torch.stack([x, -one / 2, one / 2, -x.square() / 2], -1)
            prior = NormalGamma().natural(full(0.3), full(0.5), full(1.5), full(2.0))
            return Block(NormalGamma(), prior, statistics), zero - n_features * math.log(2 * math.pi) / 2
        case "poisson":
            counts = torch.poisson(3 * rates, generator)
            base = -torch.lgamma(counts + 1).sum(-1)
            return Block(Gamma(), Gamma().natural(full(1.2), full(0.7)), torch.stack([counts, -one], -1)), base
        case "exponential":
            return Block(Gamma(), Gamma().natural(full(2.0), full(0.7)), torch.stack([one, -rates], -1)), zero
        case "bernoulli":
            heads = (x > 1).double()
            return Block(Beta(), Beta().natural(full(1.0), full(0.5)), torch.stack([heads, 1 - heads], -1)), zero
        case "categorical":
            symbols = torch.nn.functional.one_hot(x.round().clamp(0, 3).long(), 4).double()
            prior = torch.tensor([[1.0, 0.5, 2.0, 0.1]], dtype=torch.float64).expand(n_features, 4)
            return Block(Dirichlet(), prior, symbols), zero
        case "multivariate":
            outer = (x[:, :, None] * x[:, None, :]).flatten(1)
            half = one[:, :1] / 2
            statistics = torch.cat([x, -half, half, -outer / 2], -1).unsqueeze(1)
            eye = torch.eye(n_features, dtype=torch.float64)
            prior = NormalWishart().natural(full(0.1), full(0.4)[0], full(n_features + 1.0)[0], eye / 2)
            return Block(NormalWishart(), prior.unsqueeze(0), statistics), zero - n_features * math.log(2 * math.pi) / 2
        case _:
            design = torch.stack([one[:, 0], noise[:, 0]], -1)
            y = x[:, 1:]
            square = (design[:, :, None] * design[:, None, :]).flatten(1)
            half = one[:, :1] / 2
            statistics = torch.cat([design * y, -square / 2, half, -y.square() / 2], -1).unsqueeze(1)
            eye = torch.eye(2, dtype=torch.float64)
            family, one_by_one = MatrixNormalWishart(2), torch.ones(1, 1, dtype=torch.float64)
            prior = family.natural(torch.zeros(2, 1, dtype=torch.float64), eye / 3, full(3.0)[0], one_by_one)
            return Block(family, prior.unsqueeze(0), statistics), zero - math.log(2 * math.pi) / 2


def hazards(by: str, n_steps: int, seed: int) -> Tensor:
    size = n_steps if by == "step" else 3
    return 0.02 + 0.9 * torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chain_and_all(
    kind: str, n_steps: int, seed: int, by: str = "step", **options
) -> tuple[SegmentChain, Segmentations]:
    block, base = block_of(kind, n_steps, seed)
    hazard = hazards(by, n_steps, seed)
    chain = SegmentChain(block, hazard.log(), base, by=by, **options)
    return chain, enumerate_segmentations((block,), hazard, base, by)


def nile() -> SegmentChain:
    """NormalGamma(m=900, k=.1, a=2, b=2*120^2), P(change) .02, about 900."""
    with NILE.open() as file:
        x = torch.tensor([float(row["volume"]) for row in csv.DictReader(file)], dtype=torch.float64) - 900
    half = torch.full_like(x, 0.5)
    number = lambda value: torch.tensor([value], dtype=torch.float64)
    prior = NormalGamma().natural(number(0.0), number(0.1), number(2.0), number(2 * 120.0**2))
    block = Block(NormalGamma(), prior, torch.stack([x, -half, half, -x.square() / 2], -1).unsqueeze(-2))
    return SegmentChain(block, number(0.02).log(), torch.full_like(x, -math.log(2 * math.pi) / 2))


def test_the_nile_has_its_published_evidence_changes_and_best_path():
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
