"""The stream of segments against the chain of all observations so far."""

import math
import pickle
from dataclasses import fields, replace

import pytest
import torch
from oracles.segments import block_of
from samplehold import kernels
from samplehold.face.chains import Block, SegmentChain, SegmentStream
from samplehold.inference.chains.segment.records import Runs
from samplehold.inference.families import Gamma
from samplehold.switching.segments.beliefs import Expectation
from torch import Tensor
from torch.testing import assert_close

TIGHT = {"rtol": 1e-11, "atol": 1e-11}


def counts(n_steps: int = 40, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prior, statistics and log_base of counts whose rate changes halfway."""
    generator = torch.Generator().manual_seed(0)
    rate = torch.where(torch.arange(n_steps) < n_steps // 2, 1.0, 8.0).double()
    x = torch.poisson(rate.expand(*batch, n_steps), generator)
    prior = Gamma().natural(torch.ones(1).double(), torch.full((1,), 0.3).double())
    return prior, torch.stack([x, -torch.ones_like(x)], -1).unsqueeze(-2), -torch.lgamma(x + 1)


def streamed(stream: SegmentStream, statistics: Tensor, base: Tensor) -> tuple[Runs, Tensor]:
    runs, increments = stream.start(), []
    for t in range(base.shape[-1]):
        runs, increment = stream.update(runs, (statistics[..., t, :, :],), base[..., t])
        increments.append(increment)
    return runs, torch.stack(increments, -1)


@pytest.mark.parametrize("by", ["step", "run"])
def test_a_stream_is_the_filter_of_the_chain(by):
    prior, statistics, base = counts(30, 2)
    hazard = torch.tensor([0.05] if by == "step" else [0.01, 0.02, 0.1], dtype=torch.float64).log()
    chain = SegmentChain(Block(Gamma(), prior, statistics), hazard, base, by)
    stream = SegmentStream((Gamma(),), (prior.expand(2, 1, 2),), hazard, by)
    runs, increments = streamed(stream, statistics, base)
    expected = chain.runs()
    assert_close(increments, chain.filter().log_increment, **TIGHT)
    assert_close(runs.log_normalizer, expected.log_normalizer, **TIGHT)
    assert runs.length.equal(expected.length)
    assert_close(runs.log_weight, expected.log_weight, **TIGHT)
    assert_close(runs.natural[0], expected.natural[0], **TIGHT)
    assert runs.n_steps.tolist() == [30, 30]


def test_a_stream_takes_a_hazard_for_each_step_and_missing_steps():
    prior, statistics, base = counts(12)
    hazard = (0.02 + 0.5 * torch.rand(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).log()
    statistics[5], base[5] = 0.0, 0.0
    chain = SegmentChain(Block(Gamma(), prior, statistics), hazard, base)
    stream = SegmentStream((Gamma(),), (prior,), hazard[:1])
    runs = stream.start()
    for t in range(12):
        runs, _ = stream.update(runs, (statistics[t],), base[t], hazard[t])
    assert_close(runs.log_normalizer, chain.log_normalizer(), **TIGHT)
    assert runs.left_out == 0


@pytest.mark.parametrize("by", ["step", "run"])
def test_what_a_stream_leaves_out_is_within_its_bound(by):
    prior, statistics, base = counts(60)
    hazard = torch.tensor([0.05] if by == "step" else [0.03, 0.05], dtype=torch.float64).log()
    exact = SegmentChain(Block(Gamma(), prior, statistics), hazard, base, by).log_normalizer()
    runs, _ = streamed(SegmentStream((Gamma(),), (prior,), hazard, by, tol=1e-5), statistics, base)
    missed = -torch.expm1(runs.log_normalizer - exact)
    assert 0 < missed <= runs.left_out <= 60e-5
    assert runs.length.shape[-1] < 45
    short, _ = streamed(SegmentStream((Gamma(),), (prior,), hazard, by, most=12), statistics, base)
    assert short.length.shape[-1] == 13  # the newest too
    assert -torch.expm1(short.log_normalizer - exact) <= short.left_out


def test_errors_name_what_is_wrong():
    prior, statistics, _ = counts()
    hazard = torch.tensor([0.1], dtype=torch.float64).log()
    with pytest.raises(ValueError, match="families, priors"):
        SegmentStream((), (), hazard)
    with pytest.raises(ValueError, match="log_hazard"):
        SegmentStream((Gamma(),), (prior,), -hazard)
    stream = SegmentStream((Gamma(),), (prior,), hazard)
    with pytest.raises(ValueError, match="statistics: the observation of sequence 0"):
        stream.update(stream.start(), (statistics[0] * torch.nan,))
    with pytest.raises(ValueError, match="log_hazard"):
        stream.update(stream.update(stream.start(), (statistics[0],))[0], (statistics[1],), log_hazard=hazard[0] + 9)


@pytest.mark.parametrize("by", ["step", "run"])
def test_many_observations_at_once_are_one_after_another(by):
    prior, statistics, base = counts(30, 2)
    hazard = torch.tensor([0.05] if by == "step" else [0.01, 0.02, 0.1], dtype=torch.float64).log()
    chain = SegmentChain(Block(Gamma(), prior, statistics), hazard, base, by)
    stream = SegmentStream((Gamma(),), (prior.expand(2, 1, 2),), hazard, by)
    first, _ = stream.extend(stream.start(), (statistics[:, :12],), base[:, :12])
    runs, found = stream.extend(first, (statistics[:, 12:],), base[:, 12:], expect=(Gamma().mean,))
    expected = chain.filter()
    for name in ("log_increment", "change", "run"):
        assert_close(getattr(found, name), getattr(expected, name)[:, 12:], **TIGHT)
    assert_close(found.expected[0], expected.expected[0][:, 12:], **TIGHT)
    assert_close(found.log_normalizer, expected.log_normalizer, **TIGHT)
    assert_close(runs.log_weight, chain.runs().log_weight, **TIGHT)
    statistics[1, 3] = torch.nan
    with pytest.raises(ValueError, match="sequence 1 at step 3"):
        stream.extend(runs, (statistics,))


def test_the_belief_of_a_stream_is_a_record():
    prior, statistics, base = counts(5)
    stream = SegmentStream((Gamma(),), (prior,), torch.tensor([0.1], dtype=torch.float64).log())
    runs, _ = streamed(stream, statistics, base)
    assert "Runs(length: [5]" in repr(pickle.loads(pickle.dumps(runs)))
    assert_close(replace(runs, n_steps=runs.n_steps + 1).log_weight, runs.log_weight)
    again = Runs(*(getattr(runs, field.name) for field in fields(runs)))
    assert_close(stream.update(again, (statistics[0],))[1], stream.update(runs, (statistics[0],))[1], rtol=0, atol=0)
    with pytest.raises(AttributeError, match="nothing"):
        runs.nothing  # noqa: B018


@pytest.mark.parametrize("kind", ["normal", "poisson", "bernoulli"])
@pytest.mark.parametrize("by", ["step", "run"])
@pytest.mark.parametrize(("tol", "most"), [(0.0, None), (1e-5, None), (1e-9, 15)])
def test_the_kernel_of_a_stream_is_the_plain_form(kind, by, tol, most):
    block, base = block_of(kind, 50, 0)
    hazard = torch.tensor([0.05] if by == "step" else [0.01, 0.02, 0.1], dtype=torch.float64).log()
    stream = SegmentStream((block.family,), (block.prior,), hazard, by, tol, most)
    found = []
    for mode in ("plain", "native"):
        with kernels(mode):
            found.append(streamed(stream, block.statistics, base))
    (plain, expected), (compiled, increments) = found
    assert_close(increments, expected, rtol=1e-9, atol=1e-9)
    assert compiled.length.equal(plain.length)
    assert_close(compiled.log_weight, plain.log_weight, rtol=1e-8, atol=1e-8)
    assert_close(compiled.natural[0], plain.natural[0], **TIGHT)
    assert_close(compiled.left_out, plain.left_out, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("kind", ["normal", "poisson", "exponential", "bernoulli", "categorical"])
@pytest.mark.parametrize("never", [False, True])
def test_moments_of_a_stream_are_those_of_the_chain(kind, never):
    block, base = block_of(kind, 40, 2)
    weighed = Block(block.family, block.prior, block.statistics * (0.7 if never else 1.0))  # not in tables by count
    hazard = torch.tensor([-torch.inf if never else math.log(0.05)], dtype=torch.float64)
    stream = SegmentStream((block.family,), (block.prior,), hazard)
    expect, given = (Expectation(block.family),), hazard.expand(40)
    with kernels("native"):
        _, found = stream.extend(stream.start(), (weighed.statistics,), base, given, expect)
    with kernels("plain"):
        expected = SegmentChain(weighed, hazard, base).filter(expect)
    for name in ("log_normalizer", "log_increment", "change", "run"):
        assert_close(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert_close(found.expected[0], expected.expected[0], rtol=1e-9, atol=1e-9)
