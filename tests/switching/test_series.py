"""What users may hand over, and what they are told when it cannot be read."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import samplehold as sh
import torch
from samplehold.switching.data.reading import read_series
from torch.testing import assert_close

LINE = [1.0, 2.0, float("nan"), 4.0]


@pytest.mark.parametrize(
    "x",
    [
        LINE,
        np.array(LINE),
        torch.tensor(LINE, dtype=torch.float64),
        pd.Series(LINE),
        pd.DataFrame({"v": LINE}),
        np.array(LINE)[:, None],
        pd.DataFrame({"v": [1, 2, None, 4]}, dtype="Int64"),
    ],
)
def test_one_sequence_in_any_form_is_the_same(x):
    series = read_series(x, 1)
    assert_close(series.observations, torch.tensor(LINE, dtype=torch.float64).unsqueeze(-1), equal_nan=True)
    assert series.batch_shape == ()


def test_integers_become_float64_and_floating_types_are_kept():
    assert read_series([1, 2, 3], 1).observations.dtype == torch.float64
    assert read_series(np.array([True, False]), 1).observations.dtype == torch.float64
    assert read_series(torch.zeros(3), 1).observations.dtype == torch.float32
    assert read_series(np.zeros(3, dtype=np.float32), 1).observations.dtype == torch.float32


@pytest.mark.parametrize("x", [[np.zeros(3), np.ones(5)], [[0.0] * 3, [1.0] * 5], (torch.zeros(3), torch.ones(5))])
def test_a_list_of_sequences_is_a_ragged_batch(x):
    series = read_series(x, 1)
    assert series.observations.shape == (2, 5, 1)
    assert series.lengths.tolist() == [3, 5]
    assert bool(torch.isnan(series.observations[0, 3:]).all())


def test_a_list_of_matrices_is_a_batch_too():
    series = read_series([np.zeros((3, 2)), np.ones((4, 2))], 2)
    assert series.observations.shape == (2, 4, 2)
    rows = read_series([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], 2)
    assert rows.observations.shape == (3, 2)  # nested numbers of equal length are the rows of one sequence


def test_pandas_gives_the_names_of_its_axes():
    series = read_series(pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]}, index=[1990, 1991]), 2)
    assert list(series.index) == [1990, 1991]
    assert list(series.features) == ["a", "b"]


def test_what_lies_beyond_a_sequence_is_ignored_even_if_infinite():
    x = torch.zeros(2, 4, 1)
    x[1, 2:] = torch.inf
    series = read_series(x, 1, lengths=[4, 2])
    assert bool(torch.isnan(series.observations[1, 2:]).all())


@pytest.mark.parametrize(
    ("x", "n_features", "lengths", "error", "said"),
    [
        (3.0, 1, None, ValueError, "x: got a single number"),
        (np.zeros(5), 2, None, ValueError, r"x: got shape \(5,\), but the emission has 2 features"),
        (np.zeros((4, 3)), 2, None, ValueError, r"x: got shape \(4, 3\), whose last axis is not the emission's 2"),
        (np.zeros((4, 3)), 1, None, ValueError, r"several sequences of one feature: \[B, T, 1\] or a list"),
        (np.zeros((0, 1)), 1, None, ValueError, "without any step"),
        ([1.0, float("inf")], 1, None, ValueError, "x: got an infinite value at step 1, feature 0"),
        (np.array([[[0.0], [-np.inf]]]), 1, None, ValueError, "x: got an infinite value at sequence 0, step 1"),
        (["a", "b"], 1, None, TypeError, "expected numbers"),
        (pd.DataFrame({"v": ["1", "x"]}), 1, None, TypeError, "not numbers"),
        (np.zeros(3, dtype=complex), 1, None, TypeError, "numbers"),
        (np.zeros((2, 4, 1)), 1, [4, 5], ValueError, "lengths: got 5 for sequence 1, but the series has 4 steps"),
        (np.zeros((2, 4, 1)), 1, [0, 4], ValueError, "lengths: got 0 for sequence 0"),
        (np.zeros((2, 4, 1)), 1, [4], ValueError, r"lengths: got shape \(1,\), expected one length a sequence"),
        (np.zeros((2, 4, 1)), 1, [4.0, 4.0], TypeError, "lengths: got dtype torch.float"),
        ([np.zeros(2), np.zeros(3)], 1, [2, 3], ValueError, "a list carries its own"),
        ([np.zeros((2, 2)), np.zeros((3, 1))], 2, None, ValueError, r"x\[1\]: got shape \(3, 1\)"),
        ([np.zeros((2, 2, 2)), np.zeros((3, 2))], 2, None, ValueError, r"x\[0\]: got shape"),
    ],
)
def test_bad_input_is_named(x, n_features, lengths, error, said):
    with pytest.raises(error, match=said):
        read_series(x, n_features, lengths=lengths)


# ---- one record for every method -------------------------------------------------------------------------------------

MODEL = sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal(1)).with_values(
    redraw_intercept=-1.0, redraw_weights=[2.0], state_probs=[0.4, 0.6], loc=[[0.0], [3.0]], scale=[[1.0], [1.0]]
)


def frames(n_steps: int = 9) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Observations and inputs with labels."""
    rng, months = np.random.default_rng(0), pd.period_range("2020-01", periods=n_steps, freq="M")
    x = pd.DataFrame({"volume": rng.normal(1.5, 2.0, n_steps)}, index=months)
    return x, pd.DataFrame({"rain": rng.normal(size=n_steps)}, index=months)


def test_every_method_takes_the_series_in_place_of_x_and_of_what_drives_it():
    x, rain = frames()
    series = MODEL.read(x, inputs=rain)
    for name in ("log_evidence", "filter", "smooth", "viterbi"):
        ours, theirs = getattr(MODEL, name)(series), getattr(MODEL, name)(x, inputs=rain)
        for a, b in zip(tables_of(ours), tables_of(theirs), strict=True):
            assert torch.equal(a, b)
    drawn = [
        MODEL.sample_posterior(given, 3, seed=0, **keywords).path
        for given, keywords in ((series, {}), (x, {"inputs": rain}))
    ]
    assert torch.equal(*drawn)
    assert torch.equal(MODEL.collapsed(series), MODEL.collapsed(x, inputs=rain))
    fits = [
        MODEL.fit(given, restarts=2, max_steps=3, progress=False, **keywords)
        for given, keywords in ((series, {}), (x, {"inputs": rain}))
    ]
    assert torch.equal(fits[0].objective, fits[1].objective)
    assert fits[0].to_arviz(series, draws=2).smoothed.equals(fits[1].to_arviz(x, inputs=rain, draws=2).smoothed)
    assert fits[0].plot(series).axes


def tables_of(found) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [part for part in vars(found).values() if part is not None]


def test_a_series_is_read_and_checked_once():
    x, rain = frames()
    series = MODEL.read(x, inputs=rain)
    assert MODEL.read(series) is series
    assert MODEL.with_values(MODEL.values).read(series) is series  # of the same dynamics and emission
    with pytest.raises(ValueError, match="inputs: the Series has its own; leave inputs out"):
        MODEL.smooth(series, inputs=rain)
    with pytest.raises(ValueError, match="x: got -"):
        sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Poisson(1)).read(replace(series, x=-series.observations.abs()))
    with pytest.raises(ValueError, match=r"x: got 1 feature\(s\), but the model has 2"):
        sh.SwitchingSSM(sh.Copy(2, inputs=1), sh.Normal(2)).read(series)
    with pytest.raises(
        ValueError, match="inputs: was given, but no part of the model reads any; name them in a part, as in Copy"
    ):
        sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).read(series)


def test_labels_come_along():
    x, rain = frames()
    series = MODEL.read(x, inputs=rain)
    assert series.index_of().equals(x.index)
    assert series.features_of() == ("volume",)
    assert series.drivers == ("rain",)
    named = read_series({"north": x["volume"], "south": x["volume"][:4]}, 1)
    assert named.sequences == ("north", "south")
    assert named.one(1).sequences == ("south",)
    assert named.one(1).index_of().equals(x.index[:4])
    assert read_series(x["volume"].to_numpy(), 1).features_of() == ("x",)
    assert read_series(np.zeros((3, 2)), 2).features_of() == ("x[0]", "x[1]")


def test_what_drives_the_steps_to_come_is_there_for_forecasts_and_for_nothing_else():
    x, rain = frames(12)
    series = MODEL.read(x[:9], horizon=3, inputs=rain)
    assert series.drive.inputs.shape == (9, 1)
    assert series.ahead.inputs.shape == (3, 1)
    assert torch.equal(MODEL.forecast(series, 3).mean, MODEL.forecast(x[:9], 3, inputs=rain).mean)
    assert torch.equal(MODEL.smooth(series).state, MODEL.smooth(x[:9], inputs=rain[:9]).state)
    with pytest.raises(ValueError, match=r"inputs: got shape \(12, 1\), expected \(9, 1\)"):
        MODEL.smooth(x[:9], inputs=rain)
    with pytest.raises(ValueError, match=r"horizon: got 2, but .* 12 steps .*, as in forecast\(2, inputs=\.\.\.\)"):
        MODEL.forecast(series, 2)


def test_parts_and_stretches_are_the_same_numbers():
    lengths = torch.tensor([[5, 3], [4, 1]])
    x = torch.arange(20.0).reshape(2, 2, 5, 1)
    series = read_series(x, 1, lengths=lengths, dt=x[..., 0])
    part = series.part(torch.tensor([1, 2]))
    assert part.lengths.tolist() == [3, 4]
    assert part.gaps[1].tolist() == x[1, 0, :4, 0].tolist()  # no more than the longest of them has
    stretch = series.stretch(2, 2)
    assert stretch.lengths.tolist() == [[2, 1], [2, 1]]
    assert stretch.gaps.shape == (2, 2, 2)
    one = series.one(2)
    assert one.observations.flatten().tolist() == x[1, 0, :4, 0].tolist()
    assert one.gaps.shape == (4,)
    with pytest.raises(ValueError, match="sequence: got 4, but x holds 4"):
        series.one(4)


def test_columns_in_another_order_are_refused():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    with pytest.raises(ValueError, match=r"x\[1\]: got columns \['b', 'a'\], but x\[0\] has \['a', 'b'\]"):
        read_series([frame, frame[["b", "a"]]], 2)


def test_a_problem_is_the_density_of_the_model():
    x, rain = frames()
    problem = MODEL.problem(x, inputs=rain)
    values = MODEL.values_like(problem.series.observations)
    assert_close(problem.chain(values).log_normalizer(), MODEL.log_evidence(x, inputs=rain), rtol=0, atol=0)
    assert_close(problem.log_prior(values), MODEL.log_prior(values), rtol=1e-12, atol=0)
    joint = MODEL.log_evidence(x, inputs=rain) + MODEL.log_prior(values)
    assert_close(problem.objective(values), joint, rtol=1e-12, atol=0)
    twice = {name: torch.stack([value, value]) for name, value in values.items()}
    assert_close(problem.objective(twice), joint.expand(2), rtol=1e-12, atol=0)
    flat = replace(problem, prior=None)
    assert_close(flat.objective(values), MODEL.log_evidence(x, inputs=rain), rtol=0, atol=0)
    assert len(list(problem.in_turns(twice))) == 1
    with pytest.raises(ValueError, match="prior: got None"):
        flat.sites  # noqa: B018
