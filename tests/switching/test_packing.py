"""EM over sequences of very different lengths is EM over their padded batch."""

import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, random_model
from samplehold.switching.fitting import packing
from samplehold.switching.fitting.em import EM
from samplehold.switching.fitting.packing import Packing
from samplehold.switching.fitting.starts import first_guesses
from torch.testing import assert_close

LENGTHS = torch.tensor([[40, 1, 2], [3, 7, 5]])


def ragged(dynamics, emission):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (2, 3), 40)
    x = model.simulate(40, (2, 3), seed=0, **keywords).x.double()
    x[0, 0, 2, 0] = x[1, 1, 3:5] = torch.nan
    model = model.scaled_to(x, lengths=LENGTHS, **keywords)
    return model.problem(x, lengths=LENGTHS, **keywords)


@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_steps_without_the_padding_are_those_with_it(monkeypatch, dynamics, emission):
    problem = ragged(dynamics, emission)
    tight = {"rtol": 1e-8 if dynamics == "covariates" else 1e-10, "atol": 1e-10}  # weights of a gate are found in steps
    values = first_guesses(problem, 3, seed=0).values
    packed = EM(problem, values)
    assert packed.problem.series.n_steps < 20
    monkeypatch.setattr(packing, "WASTE", 1e9)
    padded = EM(problem, values)
    assert padded.problem is problem
    assert_close(packed.run(6).elbo, padded.run(6).elbo, **tight)
    for name, table in padded.tables.items():
        assert_close(packed.tables[name], table, rtol=1e-6, atol=1e-7)
    assert_close(packed.occupancy, padded.occupancy, rtol=1e-6, atol=1e-7)
    for climber in (packed, padded):
        climber.height()
    some = torch.tensor([2, 0])
    assert_close(packed.select(some).run(2).elbo, padded.select(some).run(2).elbo, **tight)
    assert_close(packed.at(values).height(), padded.at(values).height(), **tight)


def test_every_step_is_packed_once_and_the_first_of_each_sequence_is_first():
    lengths = [1000, *range(1, 60), 300]
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    x = [torch.arange(n, dtype=torch.float64) + 1000 * i for i, n in enumerate(lengths)]
    packed = Packing.of(model.problem(x))
    assert packed is not None
    table = packed.problem.series.observations[..., 0]
    assert sorted(table[~table.isnan()].tolist()) == sorted(torch.cat(x).tolist())
    assert sorted(table[:, 0].tolist()) == [1000.0 * i for i in range(len(lengths))]
    assert table.numel() < sum(lengths) + len(lengths)
    steps = sum(part.series.n_sequences * part.series.n_steps for part in packed.parts)
    assert steps < 2 * sum(lengths)


def test_sequences_of_like_length_are_left_as_they_are():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    assert Packing.of(model.problem(torch.randn(3, 9, 1))) is None
    assert Packing.of(model.problem([torch.randn(9), torch.randn(5)])) is None
