"""EM over sequences of very different lengths is EM over their padded batch."""

from dataclasses import replace

import pandas as pd
import pytest
import samplehold as sh
import torch
from oracles.models import KINDS, drive, random_model
from pandas.testing import assert_frame_equal
from samplehold.switching.fitting import EM, Units, first_guesses
from samplehold.switching.fitting.bucketing import Bucketing
from samplehold.switching.fitting.chains_in_parts import occupancy
from samplehold.switching.program import PathMixture
from torch.testing import assert_close

LENGTHS = torch.tensor([[40, 1, 2], [3, 7, 5]])


def ragged(dynamics, emission):
    model = random_model(dynamics, emission, seed=2)
    keywords = drive(dynamics, (2, 3), 40)
    x = model.simulate(40, (2, 3), seed=0, **keywords).x.double()
    x[0, 0, 2, 0] = x[1, 1, 3:5] = torch.nan
    model = model.scaled_to(x, lengths=LENGTHS, **keywords)
    return model.problem(x, lengths=LENGTHS, **keywords)


@pytest.mark.few(3)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_steps_without_the_padding_are_those_with_it(monkeypatch, dynamics, emission):
    problem = ragged(dynamics, emission)
    tight = {"rtol": 1e-8 if dynamics == "inputs" else 1e-10, "atol": 1e-10}  # weights of a gate are found in steps
    values = first_guesses(problem, 3, seed=0).values
    packed = EM(problem, values)
    assert packed.problem.series.n_steps < 20
    monkeypatch.setattr("samplehold.switching.data.packed.WASTE", 1e9)
    problem = replace(problem)  # which does not know its groups
    padded = EM(problem, values)
    assert padded.problem is problem
    assert_close(packed.run(6).elbo, padded.run(6).elbo, **tight)
    for name, table in padded.tables.items():
        assert_close(packed.tables[name], table, rtol=1e-6, atol=1e-7)
    assert_close(packed.occupancy, padded.occupancy, rtol=1e-6, atol=1e-7)
    for optimizer in (packed, padded):
        optimizer.height()
    some = torch.tensor([2, 0])
    assert_close(packed.select(some).run(2).elbo, padded.select(some).run(2).elbo, **tight)
    assert_close(packed.at(values).height(), padded.at(values).height(), **tight)


def test_every_step_is_packed_once_and_the_first_of_each_sequence_is_first():
    lengths = [1000, *range(1, 60), 300]
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    x = [torch.arange(n, dtype=torch.float64) + 1000 * i for i, n in enumerate(lengths)]
    packed = Bucketing.of(model.problem(x))
    assert packed is not None
    table = packed.problem.series.observations[..., 0]
    assert sorted(table[~table.isnan()].tolist()) == sorted(torch.cat(x).tolist())
    assert sorted(table[:, 0].tolist()) == [1000.0 * i for i in range(len(lengths))]
    assert table.numel() < sum(lengths) + len(lengths)
    steps = sum(part.series.n_sequences * part.series.n_steps for _, part in packed.source.groups)
    assert steps < 2 * sum(lengths)


def test_sequences_of_like_length_are_left_as_they_are():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1))
    assert Bucketing.of(model.problem(torch.randn(3, 9, 1))) is None
    assert Bucketing.of(model.problem([torch.randn(9), torch.randn(5)])) is None


@pytest.mark.few(8)
@pytest.mark.parametrize(("dynamics", "emission"), KINDS)
def test_what_is_asked_of_them_is_that_of_the_padded_batch(monkeypatch, dynamics, emission):
    problem = ragged(dynamics, emission)
    model = random_model(dynamics, emission, seed=2)
    states, values = model.states(problem.series), model.values_like(problem.series.observations)
    evidence, counts = model.log_evidence(problem.series), occupancy(problem, None, values)
    assert len(problem.groups) > 2
    monkeypatch.setattr("samplehold.switching.data.packed.WASTE", 1e9)
    padded = replace(problem)
    assert_frame_equal(states, model.states(padded.series), rtol=1e-12)
    assert_close(evidence, model.log_evidence(padded.series), rtol=1e-12, atol=0)
    assert_close(evidence, padded.chain(values).log_normalizer(), rtol=1e-12, atol=0)
    assert_close(counts, padded.chain(values).smooth().state.flatten(0, -2).sum(0), rtol=1e-12, atol=0)
    units = Units.of(problem.emission, problem.series)
    observed = ~problem.series.observations.isnan()
    assert_close(units.log_volume(problem.series), (observed * units.unit.log()).sum((-2, -1)), rtol=1e-12, atol=1e-12)


def test_states_of_rows_that_are_not_together_come_in_their_order():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.2, state_probs=[0.4, 0.6], loc=[[0.0], [1.0]], scale=[[1.0], [0.5]]
    )
    lengths = [1000, *range(1, 60), 300]
    frame = pd.DataFrame({"who": [i for i, n in enumerate(lengths) for _ in range(n)]})
    frame["x"] = torch.linspace(-1, 2, len(frame), dtype=torch.float64).numpy()
    mixed = frame.sample(frac=1.0, random_state=0)
    panel = sh.read_panel(mixed, "who")
    assert len(model.problem(panel).groups) > 2
    found = model.states(panel)
    for who in (0, 30, 60):
        own = mixed[mixed.who == who]
        alone = model.states(own["x"].reset_index(drop=True)).set_axis(own.index)
        assert_frame_equal(found.loc[own.index], alone, rtol=1e-12)


def test_an_impossible_sequence_is_named_by_its_number_among_all():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Categorical(3)).with_values(
        redraw_prob=0.2, state_probs=[0.4, 0.6], probs=[[0.5, 0.5, 0.0]] * 2
    )
    x = [torch.zeros(1000), *[torch.zeros(n) for n in range(1, 60)], torch.tensor([0.0, 1.0, 2.0])]
    for verb in (model.log_evidence, model.states):
        with pytest.raises(ValueError, match="step 2 of sequence 60 is impossible"):
            verb(x)


def test_the_density_of_several_draws_of_ragged_sequences_is_that_of_each():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Normal(1)).with_values(
        redraw_prob=0.2, state_probs=[0.4, 0.6], loc=[[0.0], [1.0]], scale=[[1.0], [0.5]]
    )
    problem = model.problem([torch.randn(n, dtype=torch.float64) for n in (60, 2, 3, 5, 2, 4)])
    mixture = PathMixture(problem, model.values_like(problem.series.observations))
    x = mixture.sample((3,))
    assert_close(mixture.log_prob(x), torch.stack([mixture.log_prob(one) for one in x]), rtol=1e-12, atol=0)
